//! Measures one row: our end, the peers, and slices of work.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::case::{Case, Pattern, Placement, Shape, System};
use crate::child::{Child, Control};
use crate::cpus::Cpus;
use crate::error::{MeasureError, Result};
use crate::sampler::Sampler;
use crate::systems::{Endpoint, clients, update, with_endpoint};

/// Rounds shorter than this are timed in batches for the median.
const LONG_ROUND: Duration = Duration::from_micros(2);
/// Rounds in such a batch, and single rounds after it.
const BATCH: u64 = 16;
const SINGLES: u64 = 8;
/// How long a receiver is given to fall asleep.
const ASLEEP: Duration = Duration::from_micros(50);
/// Samples in a slice of a stream.
const STREAM_SAMPLES: u64 = 100;
/// The first estimate of a round's pace ends when its rounds took this long.
const CALIBRATION: Duration = Duration::from_millis(1);
/// Rounds of one part of a slice at most, whatever the pace.
const ROUNDS_MAX: u64 = 1 << 26;
/// Parts of a slice whose two sides wait for each other. The rounds of a part are done once they
/// are ordered; a slice that other programs slow down ends with the part that its time ends in.
const PARTS: u32 = 5;

/// What a peer is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PeerBrief {
    case: Case,
    seat: u32,
    cpu: usize,
}

/// Coordinator to peer: do so many rounds, or send so many messages.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    rounds: u64,
}

/// Peer to coordinator: ready, or done and how much processor time it took.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    cpu_nanos: u64,
    /// What its end has counted so far.
    counts: Vec<Counted>,
}

impl Answer {
    fn ready() -> Self {
        Self {
            cpu_nanos: 0,
            counts: Vec::new(),
        }
    }
}

/// Something beside the time of an event that is counted in some rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// What is counted.
    pub what: String,
    /// How often, or how much.
    pub value: f64,
}

impl Counted {
    pub(crate) fn new((what, count): (&str, u64)) -> Self {
        Self {
            what: what.to_owned(),
            value: count as f64,
        }
    }
}

/// Idle peer to coordinator: what it keeps resident.
#[derive(Debug, Serialize, Deserialize)]
pub struct Resident {
    /// Bytes of it.
    pub bytes: u64,
}

/// A row under measurement, whatever its endpoint's type.
pub trait Run {
    /// Works exactly so many rounds (or messages, from each sender) without recording it.
    fn rounds(&mut self, rounds: u64) -> Result<()>;
    /// Works for about `budget` and records it.
    fn slice(&mut self, budget: Duration, sampler: &mut Sampler) -> Result<()>;
    /// Counts what is counted by stepping through another process, where rows are about that.
    fn step(&mut self) -> Result<()> {
        Ok(())
    }
    /// What was counted beside the time, by event; nothing in most rows.
    fn counted(&self) -> Vec<Counted> {
        Vec::new()
    }
    /// Nanoseconds of processor time that the receiver spent on each message of the last slice,
    /// where rows are about that.
    fn received(&self) -> Option<f64> {
        None
    }
    /// Why something that is counted in other runs was not, for people.
    fn uncounted(&self) -> Option<String> {
        None
    }
    /// Lets the peers go.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Makes the connection, starts the peers, and measures the pace.
pub fn start(case: &Case, cpus: &Cpus) -> Result<Box<dyn Run>> {
    if case.shape == Shape::Idle {
        return Ok(Box::new(IdleProcess {
            case: case.clone(),
            cpus: cpus.clone(),
        }));
    }
    if let System::Update(operation) = case.system {
        return update::start(case, operation, cpus);
    }
    if case.shape.is_about_clients() {
        return clients::start(case, cpus);
    }
    with_endpoint!(case.system, E => Ok(Box::new(Typed::<E>::start(case, cpus)?)))
}

/// Processes that do nothing, one a slice.
struct IdleProcess {
    case: Case,
    cpus: Cpus,
}

impl Run for IdleProcess {
    fn rounds(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn slice(&mut self, _: Duration, sampler: &mut Sampler) -> Result<()> {
        let Resident { bytes } = resident(&self.case, &self.cpus)?;
        sampler.count(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// A peer that serves what the case calls; ready.
pub(crate) fn start_server(case: &Case, cpus: &Cpus) -> Result<Child> {
    let brief = PeerBrief {
        case: case.clone(),
        seat: 0,
        cpu: match case.placement {
            Placement::OneCpu => cpus.ours,
            Placement::TwoCpus => cpus.peer(0),
        },
    };
    let mut server = Child::start_row("server of a row of clients", brief, &[])?;
    let Answer { .. } = server.expect()?;
    server.watch()?;
    Ok(server)
}

/// Has a peer do its part of one round; it has when this returns.
pub(crate) fn one_round(peer: &mut Child) -> Result<()> {
    peer.send(&Order { rounds: 1 })?;
    let Answer { .. } = peer.expect()?;
    Ok(())
}

/// What a peer's end has counted by now.
pub(crate) fn ask(peer: &mut Child) -> Result<Vec<Counted>> {
    peer.send(&Order { rounds: 0 })?;
    let Answer { counts, .. } = peer.expect()?;
    Ok(counts)
}

/// The whole life of a peer.
pub(crate) fn peer_main(
    brief: &PeerBrief,
    control: &Control,
    descriptors: Vec<std::os::fd::OwnedFd>,
) -> Result<()> {
    crate::cpus::pin(brief.cpu)?;
    if brief.case.shape == Shape::Idle {
        return idle(&brief.case, control);
    }
    with_endpoint!(brief.case.system, E => serve(E::attach(&brief.case, brief.seat, descriptors)?, &brief.case, control))
}

/// Joins if the case says so, and reports what it costs.
fn idle(case: &Case, control: &Control) -> Result<()> {
    let _joined = match case.system {
        System::Portolan => Some(crate::systems::join_idle(case)?),
        _ => None,
    };
    control.send(&Answer::ready())?;
    let bytes = portolan_sys::machine::resident_bytes()
        .map_err(MeasureError::system("reading how much memory is resident"))?;
    control.send(&Resident { bytes })?;
    let _: Option<Order> = control.receive()?;
    Ok(())
}

/// How much memory an idle process of this kind keeps resident. The domain of one that
/// joins is hosted by another, which is not measured.
pub fn resident(case: &Case, cpus: &Cpus) -> Result<Resident> {
    let _host = match case.system {
        System::Portolan => Some(crate::systems::host_idle(case)?),
        _ => None,
    };
    let brief = PeerBrief {
        case: case.clone(),
        seat: 0,
        cpu: cpus.peer(0),
    };
    let mut peer = Child::start_row("idle process", brief, &[])?;
    let Answer { .. } = peer.expect()?;
    let resident = peer.expect()?;
    peer.dismiss()?;
    Ok(resident)
}

fn serve<E: Endpoint>(mut end: E, case: &Case, control: &Control) -> Result<()> {
    control.send(&Answer::ready())?;
    while let Some(Order { rounds }) = control.receive()? {
        let before = cpu_nanos();
        for _ in 0..rounds {
            match case.pattern {
                Pattern::RoundTrip { .. } => end.echo()?,
                Pattern::Multicast { .. } | Pattern::Paced => end.receive()?,
                Pattern::Stream | Pattern::FanIn { .. } => end.send()?,
            }
        }
        control.send(&Answer {
            cpu_nanos: cpu_nanos() - before,
            counts: end.counts(),
        })?;
    }
    Ok(())
}

struct Typed<E> {
    case: Case,
    end: E,
    peers: Vec<Child>,
    /// One that takes no part.
    bystander: Option<Child>,
    /// Time of a round or of a message, from the last slice.
    pace: Duration,
    /// Messages ordered so far, and what their senders counted.
    ordered: u64,
    counts: Vec<Counted>,
    /// See [`Run::received`].
    received: Option<f64>,
}

impl<E: Endpoint> Typed<E> {
    fn start(case: &Case, cpus: &Cpus) -> Result<Self> {
        let (end, descriptors) = E::create(case)?;
        let borrowed: Vec<_> = descriptors.iter().map(std::os::fd::AsFd::as_fd).collect();
        let seats = match case.pattern {
            Pattern::FanIn { senders } => senders,
            Pattern::Multicast { readers } => readers,
            Pattern::RoundTrip { .. } | Pattern::Stream | Pattern::Paced => 1,
        };
        let role = format!(
            "peer of the row \"{}, {}\"",
            case.system_name(),
            case.name()
        );
        let start = |seat| {
            let cpu = match case.placement {
                Placement::OneCpu => cpus.ours,
                Placement::TwoCpus => cpus.peer(seat),
            };
            let brief = PeerBrief {
                case: case.clone(),
                seat,
                cpu,
            };
            Child::start_row(&role, brief, &borrowed)
        };
        let mut peers = (0..seats).map(start).collect::<Result<Vec<_>>>()?;
        let has_bystander = matches!(case.shape, Shape::BesideIdle | Shape::BesideStopped);
        let mut bystander = has_bystander.then(|| start(seats)).transpose()?;
        // Our copies go, so that a dead peer ends the pipe.
        drop(borrowed);
        drop(descriptors);
        for peer in peers.iter_mut().chain(&mut bystander) {
            let Answer { .. } = peer.expect()?;
            peer.watch()?;
        }
        if let Some(bystander) = bystander
            .as_ref()
            .filter(|_| case.shape == Shape::BesideStopped)
        {
            bystander.stop()?;
        }
        let mut end = end;
        end.meet(case)?;
        let mut run = Self {
            case: case.clone(),
            end,
            peers,
            bystander,
            pace: Duration::ZERO,
            ordered: 0,
            counts: Vec::new(),
            received: None,
        };
        run.calibrate()?;
        Ok(run)
    }

    /// Doubles the rounds until they take long enough to tell the pace. Warms up, too.
    fn calibrate(&mut self) -> Result<()> {
        let mut unrecorded = Sampler::new(Duration::ZERO);
        let mut rounds = 1;
        loop {
            self.pace = CALIBRATION / u32::try_from(rounds).unwrap_or(u32::MAX);
            let start = Instant::now();
            self.work(rounds, &mut unrecorded)?;
            let elapsed = start.elapsed();
            if elapsed >= CALIBRATION || rounds >= ROUNDS_MAX {
                break;
            }
            rounds *= 2;
        }
        Ok(())
    }

    /// Orders about `rounds` rounds and takes our part in them; updates the pace.
    fn work(&mut self, rounds: u64, sampler: &mut Sampler) -> Result<()> {
        match self.case.pattern {
            Pattern::RoundTrip { one_way } => {
                let ways = if one_way { 2 } else { 1 };
                self.round_trips(rounds, ways * u64::from(self.case.burst()), sampler)
            }
            Pattern::Stream => self.stream(rounds, sampler, E::receive),
            Pattern::Multicast { .. } => self.stream(rounds, sampler, E::send),
            Pattern::Paced => self.paced(rounds, sampler),
            Pattern::FanIn { senders } => self.fan_in(rounds.div_ceil(senders.into()), sampler),
        }
    }

    fn round_trips(&mut self, rounds: u64, events: u64, sampler: &mut Sampler) -> Result<()> {
        // The first rounds of an order wake the peer and refill the caches.
        let warm = 1 + rounds / 16;
        let batched = self.pace < LONG_ROUND;
        let cycle = if batched { BATCH + SINGLES } else { 1 };
        let cycles = rounds.div_ceil(cycle);
        self.order(warm + cycles * cycle)?;
        for _ in 0..warm {
            self.end.round_trip()?;
        }
        let start = Instant::now();
        for _ in 0..cycles {
            if !batched {
                let elapsed = self.timed(1)?;
                sampler.typical(elapsed, events);
                sampler.tail(elapsed, events);
                continue;
            }
            let elapsed = self.timed(BATCH)?;
            sampler.typical(elapsed, BATCH * events);
            for _ in 0..SINGLES {
                let elapsed = self.timed(1)?;
                sampler.tail(elapsed, events);
            }
        }
        self.pace = pace(start.elapsed(), cycles * cycle);
        self.answers()?;
        Ok(())
    }

    #[inline(always)]
    fn timed(&mut self, rounds: u64) -> Result<Duration> {
        let start = Instant::now();
        for _ in 0..rounds {
            self.end.round_trip()?;
        }
        Ok(start.elapsed())
    }

    /// Messages one after another, of which we do `part`.
    fn stream(
        &mut self,
        messages: u64,
        sampler: &mut Sampler,
        part: impl Fn(&mut E) -> Result<()>,
    ) -> Result<()> {
        let warm = 1 + messages / 16;
        let batch = messages.div_ceil(STREAM_SAMPLES);
        let batches = messages.div_ceil(batch);
        self.order(warm + batches * batch)?;
        for _ in 0..warm {
            part(&mut self.end)?;
        }
        let start = Instant::now();
        let mut last = start;
        for _ in 0..batches {
            for _ in 0..batch {
                part(&mut self.end)?;
            }
            let now = Instant::now();
            sampler.typical(now - last, batch);
            sampler.tail(now - last, batch);
            last = now;
        }
        self.pace = pace(last - start, batches * batch);
        self.answers()?;
        Ok(())
    }

    /// Messages to somebody who sleeps, each call timed.
    fn paced(&mut self, messages: u64, sampler: &mut Sampler) -> Result<()> {
        let all = 1 + messages;
        self.order(all)?;
        let start = Instant::now();
        for nth in 0..all {
            let pause = Instant::now();
            while pause.elapsed() < ASLEEP {
                std::hint::spin_loop();
            }
            let sent = Instant::now();
            self.end.send()?;
            let elapsed = sent.elapsed();
            // The first one wakes the peer from its wait for orders.
            if nth > 0 {
                sampler.typical(elapsed, 1);
                sampler.tail(elapsed, 1);
            }
        }
        self.pace = pace(start.elapsed(), all);
        self.received = Some(self.answers()? as f64 / all as f64);
        Ok(())
    }

    /// One sample: the processor time of all processes, by message.
    fn fan_in(&mut self, each: u64, sampler: &mut Sampler) -> Result<()> {
        let messages = each * self.peers.len() as u64;
        self.order(each)?;
        let (start, before) = (Instant::now(), cpu_nanos());
        for _ in 0..messages {
            self.end.receive()?;
        }
        let ours = cpu_nanos() - before;
        self.pace = pace(start.elapsed(), messages);
        self.received = Some(ours as f64 / messages as f64);
        let total = Duration::from_nanos(ours + self.answers()?);
        sampler.typical(total, messages);
        sampler.tail(total, messages);
        Ok(())
    }

    fn order(&mut self, rounds: u64) -> Result<()> {
        self.ordered += rounds;
        self.peers
            .iter_mut()
            .try_for_each(|peer| peer.send(&Order { rounds }))
    }

    /// Waits until every peer is parked again; their processor time together.
    fn answers(&mut self) -> Result<u64> {
        let mut total = 0;
        for peer in &mut self.peers {
            let Answer { cpu_nanos, counts } = peer.expect()?;
            total += cpu_nanos;
            self.counts = counts;
        }
        Ok(total)
    }
}

impl<E: Endpoint> Run for Typed<E> {
    fn rounds(&mut self, rounds: u64) -> Result<()> {
        self.order(rounds)?;
        for _ in 0..rounds {
            match self.case.pattern {
                Pattern::RoundTrip { .. } => self.end.round_trip()?,
                Pattern::Stream => self.end.receive()?,
                Pattern::Multicast { .. } | Pattern::Paced => self.end.send()?,
                Pattern::FanIn { .. } => {
                    for _ in 0..self.peers.len() {
                        self.end.receive()?;
                    }
                }
            }
        }
        self.answers()?;
        Ok(())
    }

    fn slice(&mut self, budget: Duration, sampler: &mut Sampler) -> Result<()> {
        let parts = match self.case.pattern {
            Pattern::RoundTrip { .. } => PARTS,
            // A queue makes the end of an order faster, and where one order is a sample, waking
            // its peers is a part of that: the fewer orders the better.
            Pattern::Stream
            | Pattern::Multicast { .. }
            | Pattern::Paced
            | Pattern::FanIn { .. } => 1,
        };
        let start = Instant::now();
        for _ in 0..parts {
            let rounds = (budget / parts).as_nanos() / self.pace.as_nanos().max(1);
            let rounds = u64::try_from(rounds).unwrap_or(ROUNDS_MAX);
            self.work(rounds.clamp(1, ROUNDS_MAX), sampler)?;
            if start.elapsed() >= budget {
                break;
            }
        }
        Ok(())
    }

    fn counted(&self) -> Vec<Counted> {
        let each = |counted: &Counted| Counted {
            what: counted.what.clone(),
            value: counted.value / self.ordered.max(1) as f64,
        };
        self.counts.iter().map(each).collect()
    }

    fn received(&self) -> Option<f64> {
        self.received
    }

    fn finish(self: Box<Self>) -> Result<()> {
        // Our end goes last: a peer may still say goodbye to it.
        let Self {
            end,
            peers,
            bystander,
            ..
        } = *self;
        if let Some(bystander) = &bystander {
            bystander.go_on()?;
        }
        let all = peers.into_iter().chain(bystander);
        all.into_iter().try_for_each(Child::dismiss)?;
        drop(end);
        Ok(())
    }
}

fn pace(elapsed: Duration, rounds: u64) -> Duration {
    Duration::from_nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX) / rounds)
        .max(Duration::from_nanos(1))
}

/// User and system time of this process so far.
fn cpu_nanos() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
