//! Measures clients of a service rather than one call: what an idle one keeps, what it costs to be
//! given channels of its own and to lose them, and the transport's timer.
//!
//! The peer serves ([`super::Call`]); an order of no rounds has it say what it has used.

use std::time::{Duration, Instant};

use portolan::rpc::ClientOptions;
use portolan::{Deadline, Domain};
use portolan_sys::machine;

use super::call::{SERVED, WorkClient, waiting};
use super::portolan::{MEETING, join};
use crate::case::{Case, Shape};
use crate::child::Child;
use crate::cpus::Cpus;
use crate::error::{MeasureError, Result};
use crate::run::{Counted, Run, ask, start_server};
use crate::sampler::{Sampler, median};

/// Clients that are connected before memory is looked at again.
const CLIENTS: usize = 50;
/// How long a late answer takes.
pub(super) const LATE: Duration = Duration::from_millis(2);
/// The timer's period, where it is to pass; else it passes in none.
const PERIOD: Duration = Duration::from_micros(250);
const NEVER: Duration = Duration::from_secs(20);
/// Calls with a late answer of each kind, in a slice at the least.
const CALLS: u64 = 4;
/// How long a client calls until it is a busy one. On a machine that has much else to do, its calls
/// may never be fast enough for that: then there is nothing to measure.
const PROMOTED: Duration = Duration::from_secs(10);
/// How long it may take until a busy one has channels of its own, or another one none any more.
const DONE: Duration = Duration::from_secs(60);
/// Who makes so many calls in so short a time is busy wherever the library began to count to 64.
const BUSY: usize = 128;
const BUSY_WITHIN: Duration = Duration::from_millis(100);
/// Between two calls of a client that is to hear that it shares again: so seldom that it is not
/// promoted for them.
const PAUSE: Duration = Duration::from_millis(4);
/// What the server counts: nanoseconds of processor time, and bytes that are its own.
pub(super) const CPU: &str = "cpu";
pub(super) const PRIVATE: &str = "private";

/// What the server's process says of itself.
pub(super) fn used() -> Vec<Counted> {
    // A system that does not tell has a row of nothing but what the domain holds.
    let private = machine::private_bytes().unwrap_or(0);
    let cpu = u64::try_from(machine::cpu_time().as_nanos()).unwrap_or(u64::MAX);
    [(CPU, cpu), (PRIVATE, private)].map(Counted::new).into()
}

/// A row of clients.
struct Clients {
    case: Case,
    clients: Vec<WorkClient>,
    /// Questions that the timer asked, calls, and the last slice's share of a processor.
    asked: u64,
    called: u64,
    share: Option<f64>,
    /// A client was not promoted, because its calls took too long.
    too_slow: bool,
    server: Child,
    /// Last: it is left after all that belongs to it.
    domain: Domain,
}

/// Starts the server, and connects the clients of the case.
pub(crate) fn start(case: &Case, cpus: &Cpus) -> Result<Box<dyn Run>> {
    let domain = join(case, std::process::id())?;
    let server = start_server(case, cpus)?;
    let mut clients = Clients {
        case: case.clone(),
        clients: Vec::new(),
        asked: 0,
        called: 0,
        share: None,
        too_slow: false,
        server,
        domain,
    };
    match case.shape {
        Shape::Promotion | Shape::Demotion => {
            for _ in 0..2 {
                clients.connect(ClientOptions::default().sharing())?;
            }
        }
        Shape::Late { timer } => clients.connect(options(timer))?,
        Shape::Timer => {
            clients.connect(options(false))?;
            clients.connect(options(true))?;
        }
        _ => {}
    }
    Ok(Box::new(clients))
}

fn options(timer: bool) -> ClientOptions {
    let period = if timer { PERIOD } else { NEVER };
    ClientOptions::default().period(period)
}

fn calling(error: portolan::rpc::RpcError) -> MeasureError {
    MeasureError::library("calling in a benchmark")(error)
}

impl Clients {
    fn connect(&mut self, options: ClientOptions) -> Result<()> {
        let options = options.waiting(waiting(&self.case));
        let deadline = Deadline::after(MEETING);
        let client = WorkClient::connect_with(&self.domain, SERVED, &options, deadline)
            .map_err(MeasureError::library("connecting to a benchmark's service"))?;
        // What is made at the first call belongs to a client as well.
        client.null().map_err(calling)?;
        self.clients.push(client);
        Ok(())
    }

    /// Something that the server counts, now.
    fn served(&mut self, what: &str) -> Result<f64> {
        let counts = ask(&mut self.server)?;
        let found = counts.iter().find(|counted| counted.what == what);
        Ok(found.map_or(0.0, |counted| counted.value))
    }

    /// Bytes of the domain's extents, and of what both processes have to themselves.
    fn bytes(&mut self) -> Result<f64> {
        let looking = "looking at the memory of a benchmark's domain";
        let survey = self.domain.survey();
        let used = survey.map_err(MeasureError::library(looking))?.memory.used;
        let ours = machine::private_bytes().map_err(MeasureError::system(looking))?;
        Ok(self.served(PRIVATE)? + (used + ours) as f64)
    }

    /// What each of some more idle clients keeps.
    fn idle(&mut self, sharing: bool, sampler: &mut Sampler) -> Result<()> {
        let before = self.bytes()?;
        for _ in 0..CLIENTS {
            let options = ClientOptions::default();
            self.connect(if sharing { options.sharing() } else { options })?;
        }
        let each = (self.bytes()? - before).max(0.0) / CLIENTS as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bytes of a client, not less than none"
        )]
        sampler.count(each as u64);
        Ok(())
    }

    /// Has both be busy in turn; each takes the channels of the other. Once that does not come
    /// about, nothing more is tried: a row without a sample is left out.
    fn promotions(&mut self, budget: Duration, sampler: &mut Sampler) -> Result<()> {
        let begun = Instant::now();
        while !self.too_slow {
            for busy in 0..2 {
                let Some((extra, typical)) = promote(&self.clients[busy])? else {
                    self.too_slow = true;
                    return Ok(());
                };
                // The first client took no other client's channels.
                let other = &self.clients[1 - busy];
                let mut demoted = call(other)?;
                // It may be told with the answer after that one.
                let until = Instant::now() + DONE;
                while !other.stub().is_sharing() && Instant::now() < until {
                    std::thread::sleep(PAUSE);
                    demoted = demoted.max(call(other)?);
                }
                if !other.stub().is_sharing() {
                    let doing = "waiting until a client shares again";
                    return Err(MeasureError::library(doing)("it has channels of its own"));
                }
                match self.case.shape {
                    Shape::Promotion => sampler.typical(extra, 1),
                    _ => sampler.typical(demoted.saturating_sub(typical), 1),
                }
            }
            if begun.elapsed() >= budget {
                break;
            }
        }
        Ok(())
    }

    fn late(&self, client: usize, calls: u64) -> Result<()> {
        let late = || self.clients[client].late().map_err(calling);
        (0..calls).try_for_each(|_| late())
    }

    /// Processor time of both sides for so many late answers.
    fn cpu(&mut self, client: usize, calls: u64) -> Result<Duration> {
        let served = self.served(CPU)?;
        let ours = machine::cpu_time();
        self.late(client, calls)?;
        let ours = machine::cpu_time().saturating_sub(ours);
        let served = (self.served(CPU)? - served).max(0.0);
        Ok(ours + Duration::from_secs_f64(served / 1e9))
    }

    /// What the timer costs each time that its period passes.
    fn timer(&mut self, budget: Duration, sampler: &mut Sampler) -> Result<()> {
        let calls = u64::try_from(budget.as_nanos() / (2 * LATE).as_nanos());
        let calls = calls.unwrap_or(CALLS).max(CALLS);
        let without = self.cpu(0, calls)?;
        let asked = self.clients[1].stub().counts().asked;
        let with = self.cpu(1, calls)?;
        let asked = self.clients[1].stub().counts().asked - asked;
        self.asked += asked;
        self.called += calls;
        let more = with.saturating_sub(without);
        sampler.typical(more, asked.max(1));
        self.share = Some(more.as_secs_f64() / (calls as f64 * LATE.as_secs_f64()));
        Ok(())
    }
}

fn call(client: &WorkClient) -> Result<Duration> {
    let start = Instant::now();
    client.null().map_err(calling)?;
    Ok(start.elapsed())
}

/// Calls until the client has channels of its own: by how much these calls took longer than
/// as many at their median, and the median. Nothing, if its calls are too slow for that.
fn promote(client: &WorkClient) -> Result<Option<(Duration, Duration)>> {
    let doing = "waiting until a busy client has channels of its own";
    let (mut since, mut until) = (Instant::now(), Instant::now() + PROMOTED);
    let mut is_busy = false;
    let mut times = Vec::new();
    while client.stub().is_sharing() && Instant::now() < until {
        times.push(call(client)?.as_secs_f64());
        if times.len().is_multiple_of(BUSY) {
            if !is_busy && since.elapsed() < BUSY_WITHIN {
                is_busy = true;
                until = Instant::now() + DONE;
            }
            since = Instant::now();
        }
    }
    match (client.stub().is_sharing(), median(times.clone())) {
        (true, _) if is_busy => Err(MeasureError::library(doing)("it was given none")),
        (true, _) => Ok(None),
        (false, None) => Err(MeasureError::library(doing)("it had them all along")),
        (false, Some(typical)) => {
            let extra: f64 = times.iter().map(|time| (time - typical).max(0.0)).sum();
            let [extra, typical] = [extra, typical].map(Duration::from_secs_f64);
            Ok(Some((extra, typical)))
        }
    }
}

impl Run for Clients {
    fn rounds(&mut self, rounds: u64) -> Result<()> {
        let first = self.clients.first();
        first.map_or(Ok(()), |client| {
            (0..rounds).try_for_each(|_| client.null().map_err(calling))
        })
    }

    fn slice(&mut self, budget: Duration, sampler: &mut Sampler) -> Result<()> {
        match self.case.shape {
            Shape::IdleClient { sharing } => self.idle(sharing, sampler),
            Shape::Promotion | Shape::Demotion => self.promotions(budget, sampler),
            Shape::Timer => self.timer(budget, sampler),
            _ => {
                let begun = Instant::now();
                while begun.elapsed() < budget {
                    let start = Instant::now();
                    self.late(0, 1)?;
                    sampler.typical(start.elapsed(), 1);
                }
                self.called += 1;
                Ok(())
            }
        }
    }

    fn counted(&self) -> Vec<Counted> {
        let Some(share) = self.share else {
            return Vec::new();
        };
        let counted = |what: &str, value| Counted {
            what: what.to_owned(),
            value,
        };
        vec![
            counted("asks", self.asked as f64 / self.called.max(1) as f64),
            counted("P/T", share),
        ]
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self {
            clients, server, ..
        } = *self;
        drop(clients);
        server.dismiss()
    }
}
