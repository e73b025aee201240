//! Runs a service in another process, and a client of it here.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use portolan::rpc::{self, ClientOptions, ServerOptions};
use portolan::{Deadline, Domain, Waiting};
use portolan_measure::child::{Child, Control};
use portolan_measure::cpus;
use portolan_measure::run::Run;
use portolan_measure::sampler::Sampler;
use portolan_measure::{MeasureError, Result as Measured};
use serde::{Deserialize, Serialize};

use crate::child::Brief;
use crate::error::{self, LabError};

/// How long client and server look for each other.
pub(crate) const MEETING: Duration = Duration::from_secs(60);
/// Bytes of a small call, and of its answer: the paper's.
pub(crate) const SMALL: usize = 32;
/// Bytes of a large call.
pub(crate) const LARGE: usize = 1024;
/// Calls between two looks at the clock.
const BATCH: u64 = 16;
/// Memory of a domain of calls.
const LIMIT: u64 = 64 << 20;

/// What is called.
#[portolan::service]
pub(crate) trait Work {
    fn null(&self);
    fn exchange(&self, bytes: [u8; SMALL]) -> [u8; SMALL];
    fn take(&self, bytes: &[u8]);
    #[rpc(no_checksum)]
    fn exchange_unchecked(&self, bytes: [u8; SMALL]) -> [u8; SMALL];
    #[rpc(no_checksum)]
    fn take_unchecked(&self, bytes: &[u8]);
    /// Which thread runs it.
    fn thread(&self) -> u32;
}

pub(crate) struct Worker;

impl Work for Worker {
    fn null(&self) {}

    fn exchange(&self, bytes: [u8; SMALL]) -> [u8; SMALL] {
        black_box(bytes)
    }

    fn take(&self, bytes: &[u8]) {
        black_box(bytes);
    }

    fn exchange_unchecked(&self, bytes: [u8; SMALL]) -> [u8; SMALL] {
        black_box(bytes)
    }

    fn take_unchecked(&self, bytes: &[u8]) {
        black_box(bytes);
    }

    fn thread(&self) -> u32 {
        portolan_sys::process::thread()
    }
}

/// What the server is told to be.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ServerBrief {
    domain: String,
    cpu: usize,
    sleeps: bool,
}

/// Server to client: calls are taken.
#[derive(Debug, Serialize, Deserialize)]
struct Serving;

/// How a server waits. One that polls sleeps after a pause that no row makes: for ever it
/// would take the processor from the rows beside it.
fn serving(sleeps: bool) -> Waiting {
    if sleeps {
        Waiting::Sleep
    } else {
        Waiting::Adaptive
    }
}

/// How a client waits. It has nothing to wait for while others are measured.
fn calling(sleeps: bool) -> Waiting {
    if sleeps {
        Waiting::Sleep
    } else {
        Waiting::Poll
    }
}

/// The whole life of a server.
pub(crate) fn serve(brief: &ServerBrief, control: &Control) -> error::Result<()> {
    // Its threads are made later, and stay there as well.
    cpus::pin(brief.cpu)?;
    let domain = Domain::builder(&brief.domain)
        .space_name("lab server")
        .join()
        .map_err(LabError::library("joining a domain of calls"))?;
    let options = ServerOptions::default().waiting(serving(brief.sleeps));
    let _server = rpc::serve(&domain, SERVICE, WorkService(Worker), &options)
        .map_err(LabError::library("serving calls"))?;
    control.send(&Serving)?;
    // Until the coordinator leaves.
    let _: Option<Serving> = control.receive()?;
    Ok(())
}

pub(crate) const SERVICE: &str = "work";

/// A server in a process of its own, and the domain in which it is found.
pub(crate) struct Service {
    server: Child,
    sleeps: bool,
    /// Last: it is left after all that belongs to it.
    domain: Domain,
}

impl Service {
    /// Starts it on `cpu`.
    pub(crate) fn start(cpu: usize, sleeps: bool) -> error::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lab-calls-{}-{count}", std::process::id());
        let domain = Domain::builder(&name)
            .space_name("lab client")
            .limit(LIMIT)
            .join()
            .map_err(LabError::library("making a domain of calls"))?;
        let brief = Brief::Calls(ServerBrief {
            domain: name,
            cpu,
            sleeps,
        });
        let mut server = Child::start("server of an experiment", &brief, &[])?;
        let Serving = server.expect()?;
        server.watch()?;
        Ok(Self {
            server,
            sleeps,
            domain,
        })
    }

    pub(crate) fn connect(&self) -> error::Result<WorkClient> {
        self.connect_with(Transport::WHOLE)
    }

    fn connect_with(&self, transport: Transport) -> error::Result<WorkClient> {
        let mut options = ClientOptions::default().waiting(calling(self.sleeps));
        if !transport.timer {
            options = options.period(NEVER);
        }
        WorkClient::connect_with(&self.domain, SERVICE, &options, Deadline::after(MEETING))
            .map_err(LabError::library("connecting to an experiment's service"))
    }

    pub(crate) fn finish(self) -> error::Result<()> {
        Ok(self.server.dismiss()?)
    }
}

/// What is called for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Called {
    /// Nothing there and nothing back.
    Null,
    /// [`SMALL`] bytes there and back.
    Small,
    /// [`LARGE`] bytes there and nothing back.
    Large,
}

/// What of the transport a row of calls has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transport {
    /// Of the bytes, in the copies.
    pub(crate) checksum: bool,
    /// That looks for calls without an answer.
    pub(crate) timer: bool,
}

impl Transport {
    pub(crate) const WHOLE: Self = Self {
        checksum: true,
        timer: true,
    };
}

/// A period that no row lives to see.
const NEVER: Duration = Duration::from_secs(3600);

/// A row of calls, with a server of its own.
pub(crate) struct Calls {
    client: WorkClient,
    called: Called,
    checksum: bool,
    bytes: Vec<u8>,
    service: Service,
}

impl Calls {
    /// With so much of the transport, and the server on this processor.
    pub(crate) fn with(
        transport: Transport,
        called: Called,
        sleeps: bool,
        cpu: usize,
    ) -> error::Result<Self> {
        let service = Service::start(cpu, sleeps)?;
        Ok(Self {
            client: service.connect_with(transport)?,
            called,
            checksum: transport.checksum,
            bytes: vec![7; LARGE],
            service,
        })
    }

    /// So many calls.
    pub(crate) fn call(&self, calls: u64) -> Measured<()> {
        for _ in 0..calls {
            let small = black_box([7; SMALL]);
            let back = |back: [u8; SMALL]| {
                black_box(back);
            };
            match (self.called, self.checksum) {
                // Nothing to sum.
                (Called::Null, _) => self.client.null(),
                (Called::Small, true) => self.client.exchange(small).map(back),
                (Called::Small, false) => self.client.exchange_unchecked(small).map(back),
                (Called::Large, true) => self.client.take(black_box(&self.bytes)),
                (Called::Large, false) => self.client.take_unchecked(black_box(&self.bytes)),
            }
            .map_err(MeasureError::library("calling an experiment's service"))?;
        }
        Ok(())
    }
}

impl Run for Calls {
    fn rounds(&mut self, rounds: u64) -> Measured<()> {
        self.call(rounds)
    }

    fn slice(&mut self, budget: Duration, sampler: &mut Sampler) -> Measured<()> {
        // The first ones wake the server and refill the caches.
        self.call(2 * BATCH)?;
        let start = Instant::now();
        loop {
            let since = Instant::now();
            self.call(BATCH)?;
            sampler.typical(since.elapsed(), BATCH);
            if start.elapsed() >= budget {
                return Ok(());
            }
        }
    }

    fn finish(self: Box<Self>) -> Measured<()> {
        let Self {
            client, service, ..
        } = *self;
        drop(client);
        service.finish().map_err(LabError::into_measure)
    }
}
