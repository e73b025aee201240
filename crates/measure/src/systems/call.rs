//! Measures calls: a service in the peer, and a client of it here.
//!
//! The peer's own threads serve, so it has nothing to do in a round. Client and server
//! wait as they do by default where a row polls: they spin, and would sleep only after
//! a pause that no round makes. A server that polled for ever would take the processor
//! from the rows that are measured in turn with this one. Blocking ones sleep at once.

use std::hint::black_box;
use std::os::fd::OwnedFd;

use portolan::rpc::{self, ClientOptions, Concurrency, Loan, Server, ServerOptions};
use portolan::{Deadline, Domain, Waiting};

use super::portolan::{MEETING, join, parent};
use super::{Endpoint, clients};
use crate::case::{Case, Mode, Shape};
use crate::error::{MeasureError, Result};
use crate::run::Counted;

/// What is called. What comes back is empty: the arguments are what the rows' bytes are.
#[portolan::service]
pub(super) trait Work {
    fn null(&self);
    fn small(&self, bytes: [u8; SMALL]);
    fn bytes(&self, bytes: &[u8]);
    #[rpc(no_checksum)]
    fn unchecked(&self, bytes: &[u8]);
    /// Answers after a while.
    fn late(&self);
}

/// The same, with bytes that move. A service of its own, so that the others stand for services that
/// know nothing of extents.
#[portolan::service]
trait Loans {
    fn loaned(&self, bytes: Loan<[u8]>);
}

struct Nothing;

impl Work for Nothing {
    fn null(&self) {}
    fn small(&self, bytes: [u8; SMALL]) {
        black_box(bytes);
    }
    fn bytes(&self, bytes: &[u8]) {
        black_box(bytes);
    }
    fn unchecked(&self, bytes: &[u8]) {
        black_box(bytes);
    }
    fn late(&self) {
        std::thread::sleep(clients::LATE);
    }
}

impl Loans for Nothing {
    fn loaned(&self, bytes: Loan<[u8]>) {
        black_box(bytes.read().map(|bytes| bytes.len()));
    }
}

/// Bytes that go by value, as fields of a record would.
const SMALL: usize = 32;
/// Clients that call nothing, in the row that has them.
const IDLE: usize = 999;
/// Memory of one client's two channels, with what their extents are rounded up to.
const CHANNELS: u64 = 512 << 10;

/// One side of a row of calls.
pub(crate) struct Call {
    client: Option<Client>,
    /// What its process uses is asked for.
    asked: bool,
    idle: Vec<WorkClient>,
    _server: Option<Server>,
    waiting: Waiting,
    /// Last: it is left after all that belongs to it.
    domain: Domain,
}

/// A client, and what it calls.
enum Client {
    Work(WorkClient, Method),
    /// With so many bytes, which nobody touches.
    Loans(LoansClient, usize),
}

enum Method {
    Null,
    Small([u8; SMALL]),
    Bytes(Vec<u8>),
    Unchecked(Vec<u8>),
}

impl Method {
    fn of(case: &Case) -> Self {
        match (case.bytes, case.shape) {
            (0, _) => Self::Null,
            (_, Shape::Unchecked) => Self::Unchecked(vec![7; bytes_of(case)]),
            _ if case.bytes == SMALL as u64 => Self::Small([7; SMALL]),
            _ => Self::Bytes(vec![7; bytes_of(case)]),
        }
    }
}

fn bytes_of(case: &Case) -> usize {
    usize::try_from(case.bytes).expect("64-bit only")
}

/// Bytes of the channels of a row.
pub(super) fn channels(case: &Case) -> u64 {
    match case.shape {
        Shape::IdleClients | Shape::IdleClient { .. } => (IDLE as u64 + 1) * CHANNELS,
        _ => CHANNELS,
    }
}

impl Call {
    fn new(case: &Case, domain: Domain, server: Option<Server>) -> Self {
        Self {
            client: None,
            asked: case.shape.is_about_clients(),
            idle: Vec::new(),
            _server: server,
            waiting: waiting(case),
            domain,
        }
    }

    fn connect(&self, case: &Case) -> Result<WorkClient> {
        let options = ClientOptions::default().waiting(self.waiting);
        let options = match case.shape {
            Shape::Reliable => options.reliable(),
            _ => options,
        };
        WorkClient::connect_with(&self.domain, SERVED, &options, Deadline::after(MEETING))
            .map_err(MeasureError::library("connecting to a benchmark's service"))
    }
}

pub(super) const SERVED: &str = "work";

pub(super) fn waiting(case: &Case) -> Waiting {
    match case.mode {
        Mode::Poll | Mode::Adaptive => Waiting::Adaptive,
        _ => Waiting::Sleep,
    }
}

impl Endpoint for Call {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let domain = join(case, std::process::id())?;
        Ok((Self::new(case, domain, None), Vec::new()))
    }

    fn attach(case: &Case, _seat: u32, _descriptors: Vec<OwnedFd>) -> Result<Self> {
        let domain = join(case, parent()?)?;
        let options = ServerOptions::default().waiting(waiting(case));
        let options = match case.shape {
            // One is taken from another at once.
            Shape::Promotion | Shape::Demotion => options.own_channels(1),
            // Who reads goes on reading while a call runs, and says that it has arrived.
            Shape::Late { .. } | Shape::Timer => options.concurrency(Concurrency::Pool(1)),
            _ => options,
        };
        let server = match case.shape {
            Shape::Loaned => rpc::serve(&domain, SERVED, LoansService(Nothing), &options),
            _ => rpc::serve(&domain, SERVED, WorkService(Nothing), &options),
        }
        .map_err(MeasureError::library("serving a benchmark's service"))?;
        Ok(Self::new(case, domain, Some(server)))
    }

    fn meet(&mut self, case: &Case) -> Result<()> {
        if case.shape == Shape::IdleClients {
            let idle = (0..IDLE).map(|_| self.connect(case));
            self.idle = idle.collect::<Result<_>>()?;
        }
        if case.shape == Shape::Loaned {
            let options = ClientOptions::default().waiting(self.waiting);
            let deadline = Deadline::after(MEETING);
            let loans = LoansClient::connect_with(&self.domain, SERVED, &options, deadline);
            let doing = "connecting to a benchmark's service";
            let loans = loans.map_err(MeasureError::library(doing))?;
            self.client = Some(Client::Loans(loans, bytes_of(case)));
            return Ok(());
        }
        self.client = Some(Client::Work(self.connect(case)?, Method::of(case)));
        Ok(())
    }

    fn counts(&self) -> Vec<Counted> {
        if self.asked {
            return clients::used();
        }
        Vec::new()
    }

    /// The call, if this is its client.
    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        match &self.client {
            None => Ok(()),
            Some(Client::Work(client, method)) => match method {
                Method::Null => client.null(),
                Method::Small(bytes) => client.small(*bytes),
                Method::Bytes(bytes) => client.bytes(bytes),
                Method::Unchecked(bytes) => client.unchecked(bytes),
            },
            Some(Client::Loans(client, bytes)) => {
                let loan = Loan::slice(&self.domain, *bytes)
                    .map_err(MeasureError::library("taking memory for a call"))?;
                client.loaned(loan)
            }
        }
        .map_err(MeasureError::library("calling in a benchmark"))
    }

    /// Nothing: a call has its answer.
    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        Ok(())
    }
}
