//! Streams of large messages whose bytes nobody touches, beside the same system calls without
//! nodes, and beside a bare rustls stream.
//!
//! All memory of what is compared is there before it is measured, but for what the receiving node
//! takes; that comes in the first slice, which is not counted.

use std::io::{IoSlice, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use portolan::{AllocateError, Deadline, Domain, Extent, Message, SendRight};
use portolan_measure::cpus;
use portolan_measure::out;
use portolan_measure::sampler::Sampler;
use rustix::net::{SendAncillaryBuffer, SendFlags};

use super::lanes::{self, Effort, Lane};
use super::places::{Helper, MEETING, Over, Pair, Pinning, pin};
use super::server::{self, Brief, CALL, HEAD, LAST, Server};
use super::table::{Row, Unit};
use crate::bench::budget::{Budget, Measure};
use crate::error::{CliError, Result};

const PLAIN: Budget = Budget::new(
    "stream untouched, to the bare system calls",
    Measure::Rate,
    0.85,
    Some(0.95),
);
const TLS: Budget = Budget::new(
    "stream untouched with TLS, to a rustls stream",
    Measure::Rate,
    0.8,
    Some(0.95),
);

/// The bare stream of messages each of which has memory of its own.
const APART: &str = "sendmsg and readv, each message apart";

/// How long a sender without memory waits before it looks for some again, at first and at the most.
/// Each look goes through all chunks of the domain, on the processor on which its node sends.
const PAUSE: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];

/// A message of so many bytes, as soon as there is memory for it: what was sent before has it until
/// it is acknowledged.
pub(super) fn allocate(domain: &Domain, bytes: usize) -> Result<Extent> {
    let end = Instant::now() + MEETING;
    let [mut pause, most] = PAUSE;
    loop {
        match domain.allocate(bytes) {
            Ok(extent) => return Ok(extent),
            Err(AllocateError::OutOfPages { .. }) if Instant::now() < end => {
                std::thread::sleep(pause);
                pause = (2 * pause).min(most);
            }
            Err(error) => return Err(CliError::library("allocating a message")(error)),
        }
    }
}

/// Has a domain take the memory of so many messages from the system, as the bare stream's is there
/// before it is measured. Messages of another size before have left it cut otherwise.
fn have_memory(domain: &Domain, bytes: usize, messages: u64) -> Result<()> {
    let mut extents = Vec::new();
    for _ in 0..messages {
        match domain.allocate(bytes) {
            Ok(extent) => extents.push(extent),
            Err(AllocateError::OutOfPages { .. }) => break,
            Err(error) => return Err(CliError::library("allocating messages")(error)),
        }
    }
    Ok(())
}

/// Sends a message with an extent, untouched.
pub(super) fn send(domain: &Domain, right: &SendRight, bytes: usize, header: &[u8]) -> Result<()> {
    let mut message = Message::new(header).map_err(CliError::library("making a message"))?;
    let pushed = message.push(allocate(domain, bytes)?);
    pushed.map_err(|refused| CliError::library("making a message")(refused.why))?;
    let sent = right.send(message, Deadline::after(MEETING));
    sent.map_err(|refused| CliError::library("sending to another node")(refused.why))
}

/// Messages of one size to a port on another node.
struct Stream<'a> {
    domain: &'a Domain,
    right: SendRight,
    server: Server,
    bytes: usize,
    /// Messages of a slice.
    lot: u64,
}

impl Lane for Stream<'_> {
    fn slice(&mut self, _: Duration, sampler: &mut Sampler) -> Result<()> {
        let begun = Instant::now();
        for number in 1..=self.lot {
            let header: &[u8] = if number == self.lot { LAST } else { &[] };
            send(self.domain, &self.right, self.bytes, header)?;
        }
        self.server.done()?;
        sampler.typical(begun.elapsed(), self.lot);
        Ok(())
    }
}

/// The same system calls as between nodes, and nothing else.
pub(super) struct Bare {
    stream: TcpStream,
    server: Server,
    memory: Extent,
    _domain: Domain,
    /// How often all of its memory makes a lot of so many messages.
    times: u64,
    lot: u64,
}

impl Bare {
    /// Of messages that all lie in the same memory.
    pub(super) fn new(cpu: usize, bytes: u64, lot: u64) -> Result<Self> {
        Self::of(cpu, bytes, bytes, lot)
    }

    /// Of messages each of which has memory of its own, as they have between nodes: it is its sender's
    /// again when the message has arrived.
    fn apart(cpu: usize, bytes: u64, lot: u64) -> Result<Self> {
        Self::of(cpu, bytes, bytes * lot, lot)
    }

    fn of(cpu: usize, bytes: u64, memory: u64, lot: u64) -> Result<Self> {
        let server = Server::start(&Brief::SinkTcp { bytes })?;
        pin(server.id(), cpu)?;
        let (domain, extent) = server::memory(memory)?;
        Ok(Self {
            stream: server.connect()?,
            server,
            memory: extent,
            _domain: domain,
            times: bytes * lot / memory,
            lot,
        })
    }

    /// Sends all of its memory so many times, and waits until it has come.
    pub(super) fn send(&mut self, times: u64) -> Result<()> {
        let failed = || CliError::system("sending over TCP");
        let mut head = [0; HEAD];
        let all = self.memory.len() as u64 * times;
        head[..8].copy_from_slice(&all.to_le_bytes());
        self.stream.write_all(&head).map_err(failed())?;
        for _ in 0..times {
            for part in self.memory.chunks(CALL) {
                whole(&self.stream, part, &head).map_err(failed())?;
            }
        }
        self.server.done()
    }
}

/// Sends all of both.
fn whole(stream: &TcpStream, mut part: &[u8], mut head: &[u8]) -> std::io::Result<()> {
    while !part.is_empty() || !head.is_empty() {
        let parts = [IoSlice::new(part), IoSlice::new(head)];
        let mut nothing = SendAncillaryBuffer::default();
        let sent = rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(stream, &parts, &mut nothing, SendFlags::NOSIGNAL)
        })?;
        let its = sent.min(part.len());
        part = &part[its..];
        head = &head[sent - its..];
    }
    Ok(())
}

impl Lane for Bare {
    fn slice(&mut self, _: Duration, sampler: &mut Sampler) -> Result<()> {
        let begun = Instant::now();
        self.send(self.times)?;
        sampler.typical(begun.elapsed(), self.lot);
        Ok(())
    }
}

/// A bare rustls stream.
struct Rustls {
    helper: Helper,
    bytes: u64,
    lot: u64,
}

impl Rustls {
    fn new(pinning: Pinning) -> Result<Self> {
        let (from, to) = (pinning.near.to_string(), pinning.far.to_string());
        let words = ["stream", "--from", &from, "--to", &to].map(str::to_owned);
        let mut helper = Helper::start(&words, None)?;
        helper.expect("ready")?;
        Ok(Self {
            helper,
            bytes: 0,
            lot: 0,
        })
    }
}

impl Lane for Rustls {
    fn slice(&mut self, _: Duration, sampler: &mut Sampler) -> Result<()> {
        self.helper.say(&(self.bytes * self.lot).to_string())?;
        let nanos = self.helper.expect("")?;
        let nanos = nanos.parse().map_err(|_| std::io::ErrorKind::InvalidData);
        let nanos = nanos.map_err(CliError::system("hearing of a rustls stream"))?;
        sampler.typical(Duration::from_nanos(nanos), self.lot);
        Ok(())
    }
}

/// What to stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan<'a> {
    pub(super) sizes: &'a [u64],
    /// Bytes of a slice, at least.
    pub(super) lot: u64,
    pub(super) effort: Effort,
}

/// Each size over each pair, on one pinning.
pub(super) fn measure(
    pairs: &[Pair],
    pinning: Pinning,
    plan: Plan<'_>,
    progress: &ProgressBar,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    cpus::pin(pinning.near)?;
    let mut rustls = Rustls::new(pinning)?;
    for &bytes in plan.sizes {
        let case = format!("stream of {}, untouched", out::size(bytes));
        progress.set_message(case.clone());
        let lot = (plan.lot / bytes).max(2);
        (rustls.bytes, rustls.lot) = (bytes, lot);
        let mut bare = Bare::new(pinning.far, bytes, lot)?;
        let mut apart = Bare::apart(pinning.far, bytes, lot)?;
        let mut streams = Vec::new();
        for pair in pairs {
            pinning.pin(pair)?;
            let (server, right) = pair.serve(|domain, port| Brief::Sink { domain, port })?;
            pin(server.id(), pinning.far)?;
            let (domain, bytes) = (
                &pair.domains[0],
                usize::try_from(bytes).unwrap_or(usize::MAX),
            );
            have_memory(domain, bytes, lot)?;
            streams.push(Stream {
                domain,
                right,
                server,
                bytes,
                lot,
            });
        }
        let mut all: Vec<&mut dyn Lane> = vec![&mut bare, &mut apart, &mut rustls];
        all.extend(streams.iter_mut().map(|stream| stream as &mut dyn Lane));
        let measured = lanes::measure(&mut all, plan.effort, progress)?;
        let [bare, apart, rustls, nodes @ ..] = &measured[..] else {
            continue;
        };
        let asleep = |row: Row| row.waiting("asleep", pinning.name());
        let unit = Unit::Rate { bytes };
        rows.push(asleep(Row::of(&case, "sendmsg and readv", unit, bare)));
        let row = asleep(Row::of(&case, APART, unit, apart));
        let to_bare = apart.to(bare).map(super::lanes::Ratio::inverse);
        rows.push(row.against("sendmsg and readv", to_bare, None));
        rows.push(asleep(Row::of(&case, "rustls stream", unit, rustls)));
        for (pair, measured) in pairs.iter().zip(nodes) {
            let row = asleep(Row::of(&case, pair.over.name(), unit, measured));
            let to = |other| measured.to(other).map(super::lanes::Ratio::inverse);
            rows.push(match pair.over {
                Over::Tcp => row.against("sendmsg and readv", to(bare), Some(PLAIN)),
                Over::Tls => row.against("rustls stream", to(rustls), Some(TLS)),
                Over::Daemons => row.against("rustls stream", to(rustls), None),
            });
        }
    }
    Ok(rows)
}
