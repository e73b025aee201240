//! `portolan bench structures` times a map of a million string keys to small records, from its
//! building in one process to a thousand look-ups in another.
//!
//! ```text
//! sender:    build | encode | send ....
//! receiver:                       .... received | decode | first lookup | all lookups
//! ```
//!
//! Portolan's structure is built where it is sent, and read where it lies. The others are
//! serialised, sent through a Unix socket or as an extent through a port, and decoded (or,
//! with rkyv, checked). And the hand-over alone: the structure there and back, in turn with
//! a message of nothing.

#[cfg(feature = "serialisers")]
mod codec;
mod data;
mod peer;

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use portolan::{Domain, Message, ReceiveRight, SendRight};
use portolan_measure::child::Child;
use portolan_measure::cpus::Cpus;
use portolan_measure::machine::Machine;
use portolan_measure::out::{self, Align, Table};
use portolan_measure::sampler::median;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::Serialize;

use self::peer::{Answer, Order, now, receive, send};
pub(crate) use self::peer::{Brief, main as peer_main};
use super::budget::{Budget, Measure, Verdict};
use super::report;
use crate::Own;
use crate::args::BenchArgs;
use crate::error::{CliError, Result};

const PATIENCE: Duration = Duration::from_secs(60);
/// Lookups after the message has come.
const LOOKUPS: u64 = 1000;
/// How long the receiver gets to be at its port before a message is sent.
const SETTLE: Duration = Duration::from_millis(5);

const HAND_OVER: Budget = Budget::new(
    "a structure handed over, to null message",
    Measure::Yardstick,
    1.3,
    Some(1.1),
);
const fn first_lookup(what: &'static str) -> Budget {
    Budget::stretch(what, Measure::Limit, 2.0)
}
const FIRST_LOOKUP: Budget = first_lookup("send to first lookup, us, pages new there");
const LOOKUP_AGAIN: Budget = first_lookup("send to first lookup, us, pages had before");

/// One way to get the map across.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Built for this round. Large pages that the receiver never had are mapped by its
    /// first touch.
    Structure,
    /// Sent back, and sent once more.
    Again,
    #[cfg(feature = "serialisers")]
    Bytes(codec::Codec, Carrier),
}

#[cfg(feature = "serialisers")]
#[derive(Clone, Copy, Debug)]
enum Carrier {
    Port,
    Socket,
}

/// Medians over the rounds, in nanoseconds.
#[derive(Debug, Serialize)]
struct Row {
    system: &'static str,
    carrier: &'static str,
    /// Bytes that were sent.
    bytes: u64,
    build: f64,
    encode: f64,
    /// From the send to the message's arrival.
    transfer: f64,
    decode: f64,
    /// From the send to the first record.
    first_lookup: f64,
    lookups: f64,
    /// From the beginning of `encode` to the last record.
    total: f64,
}

/// The hand-over alone, in nanoseconds one way.
#[derive(Debug, Serialize)]
struct HandOver {
    null: f64,
    structure: f64,
    ratio: f64,
    /// Extents that the structure lies in.
    extents: usize,
}

#[derive(Serialize)]
struct Report<'a> {
    machine: &'a Machine,
    entries: u64,
    lookups: u64,
    rows: Vec<Row>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hand_over: Option<HandOver>,
    budgets: Vec<Verdict>,
}

/// The sender, and its way to the receiver.
struct Bench {
    entries: u64,
    domain: Domain,
    port: ReceiveRight,
    right: SendRight,
    receiver: Child,
    /// A structure that came back.
    kept: Option<Message>,
    #[cfg(feature = "serialisers")]
    socket: std::os::fd::OwnedFd,
    #[cfg(feature = "serialisers")]
    buffer: Vec<u8>,
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let cpus = Cpus::choose();
    let machine = Machine::look(&cpus);
    let (entries, rounds, slices) = if args.quick {
        (100_000, 3, 5)
    } else {
        (1_000_000, 7, 20)
    };
    let word = args.filter.as_deref().unwrap_or("").to_lowercase();
    let mut ways = ways();
    ways.retain(|way| {
        let (system, carrier) = way.names();
        format!("{system} {carrier}").contains(&word)
    });
    if ways.is_empty() {
        return Err(CliError::NothingMatches { word });
    }
    portolan_measure::cpus::pin(cpus.ours)?;
    let mut bench = Bench::start(entries, &cpus)?;
    let mut rows = Vec::new();
    for way in &ways {
        rows.push(bench.row(*way, rounds)?);
    }
    // What came back is not needed any more.
    bench.kept = None;
    let own = rows.iter().any(|row| row.system == "portolan");
    let hand_over = own.then(|| bench.hand_over(slices)).transpose()?;
    bench.receiver.dismiss()?;
    let lookups = [(FIRST_LOOKUP, "new"), (LOOKUP_AGAIN, "again")];
    let lookups = lookups.into_iter().filter_map(|(budget, carrier)| {
        let row = rows.iter().find(|row| row.carrier == carrier)?;
        Some(budget.verdict_of(row.first_lookup / 1000.0, 1))
    });
    let hand_overs = hand_over.iter().map(|h| HAND_OVER.verdict_of(h.ratio, 1));
    let budgets = hand_overs.chain(lookups).collect();
    let report = Report {
        machine: &machine,
        entries,
        lookups: LOOKUPS,
        rows,
        hand_over,
        budgets,
    };
    if args.json {
        crate::json::print(&report)?;
    } else {
        out::print(&report.text())?;
    }
    Ok(())
}

fn ways() -> Vec<Way> {
    let ways = [Way::Structure, Way::Again];
    #[cfg(feature = "serialisers")]
    let ways = ways.into_iter().chain(
        [Carrier::Port, Carrier::Socket]
            .into_iter()
            .flat_map(|carrier| codec::Codec::ALL.map(|codec| Way::Bytes(codec, carrier))),
    );
    ways.into_iter().collect()
}

impl Way {
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Structure => ("portolan", "new"),
            Self::Again => ("portolan", "again"),
            #[cfg(feature = "serialisers")]
            Self::Bytes(codec, Carrier::Port) => (codec.name(), "port"),
            #[cfg(feature = "serialisers")]
            Self::Bytes(codec, Carrier::Socket) => (codec.name(), "socket"),
        }
    }
}

/// What one round took.
struct Round {
    bytes: u64,
    build: u64,
    encode: u64,
    sent: u64,
    answer: Answer,
}

impl Bench {
    fn start(entries: u64, cpus: &Cpus) -> Result<Self> {
        let name = format!("portolan-bench-structures-{}", std::process::id());
        let domain = Domain::join(&name).map_err(library("joining the domain"))?;
        let (socket, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(CliError::system("making a pair of Unix sockets"))?;
        let poll = !cpus.single();
        let brief = Brief {
            domain: name,
            entries,
            lookups: LOOKUPS,
            cpu: cpus.peer(0),
            poll,
        };
        let role = "receiver of the structures";
        let mut receiver = Child::start(role, &Own::Structures(brief), &[theirs.as_fd()])?;
        let (port, right) = peer::ports(&domain, "sender", "receiver", poll)?;
        let () = receiver.expect()?;
        receiver.watch()?;
        #[cfg(not(feature = "serialisers"))]
        drop(socket);
        Ok(Self {
            entries,
            domain,
            port,
            right,
            receiver,
            kept: None,
            #[cfg(feature = "serialisers")]
            socket,
            #[cfg(feature = "serialisers")]
            buffer: Vec::new(),
        })
    }

    fn row(&mut self, way: Way, rounds: usize) -> Result<Row> {
        // The first has cold memory.
        self.round(way)?;
        let rounds: Vec<Round> = (0..rounds)
            .map(|_| self.round(way))
            .collect::<Result<_>>()?;
        let middle = |of: &dyn Fn(&Round) -> u64| {
            median(rounds.iter().map(|r| of(r) as f64).collect()).unwrap_or(f64::NAN)
        };
        let (system, carrier) = way.names();
        Ok(Row {
            system,
            carrier,
            bytes: rounds.first().map_or(0, |r| r.bytes),
            build: middle(&|r| r.build),
            encode: middle(&|r| r.encode),
            transfer: middle(&|r| r.answer.received.saturating_sub(r.sent)),
            decode: middle(&|r| r.answer.ready - r.answer.received),
            first_lookup: middle(&|r| r.answer.first.saturating_sub(r.sent)),
            lookups: middle(&|r| r.answer.all - r.answer.ready),
            total: middle(&|r| r.encode + r.answer.all.saturating_sub(r.sent)),
        })
    }

    fn round(&mut self, way: Way) -> Result<Round> {
        let round = match way {
            Way::Structure => self.structure()?,
            Way::Again => self.again()?,
            #[cfg(feature = "serialisers")]
            Way::Bytes(codec, carrier) => self.bytes(codec, carrier)?,
        };
        if round.answer.found != LOOKUPS {
            return Err(CliError::WrongDigest {
                carrier: way.names().0,
                what: "the map that was received",
                found: format!("{} of the keys", round.answer.found),
                expected: format!("all {LOOKUPS}"),
            });
        }
        Ok(round)
    }

    fn structure(&mut self) -> Result<Round> {
        let start = now();
        let structure = data::structure(&self.domain, self.entries);
        let message = structure
            .map_err(library("building the structure"))?
            .into_message();
        let built = now();
        let round = self.pass(message)?;
        self.kept = None;
        Ok(Round {
            build: built - start,
            ..round
        })
    }

    /// As [`Bench::structure`], with one that the receiver has had.
    fn again(&mut self) -> Result<Round> {
        let message = match self.kept.take() {
            Some(message) => message,
            None => data::structure(&self.domain, self.entries)
                .map_err(library("building the structure"))?
                .into_message(),
        };
        self.pass(message)
    }

    /// Sends a structure; it comes back.
    fn pass(&mut self, message: Message) -> Result<Round> {
        let bytes = message.len() as u64;
        self.order(Order::Structure)?;
        let sent = now();
        send(&self.right, message)?;
        let answer = self.receiver.expect()?;
        self.kept = Some(receive(&mut self.port)?);
        Ok(Round {
            bytes,
            build: 0,
            encode: 0,
            sent,
            answer,
        })
    }

    #[cfg(feature = "serialisers")]
    fn bytes(&mut self, codec: codec::Codec, carrier: Carrier) -> Result<Round> {
        let start = now();
        let map = data::plain(self.entries);
        let built = now();
        let room = usize::try_from(self.entries * codec::ENTRY).unwrap_or(usize::MAX);
        match carrier {
            Carrier::Port => {
                let mut extent = self
                    .domain
                    .allocate(room)
                    .map_err(library("allocating an extent"))?;
                let begun = now();
                let used = codec.encode(&map, &mut extent).map_err(codec::failed)?;
                // Cannot fail: it was encoded into so many.
                let _ = extent.set_len(used);
                let encoded = now();
                let mut message = Message::default();
                message
                    .push(extent)
                    .map_err(library("putting an extent into a message"))?;
                self.order(Order::Extent(codec))?;
                let sent = now();
                send(&self.right, message)?;
                Ok(Round {
                    bytes: used as u64,
                    build: built - start,
                    encode: encoded - begun,
                    sent,
                    answer: self.receiver.expect()?,
                })
            }
            Carrier::Socket => {
                self.buffer.resize(room, 0);
                let begun = now();
                let used = codec
                    .encode(&map, &mut self.buffer)
                    .map_err(codec::failed)?;
                let encoded = now();
                self.order(Order::Socket(codec, used as u64))?;
                let sent = now();
                let mut rest = self.buffer.get(..used).unwrap_or(&[]);
                while !rest.is_empty() {
                    let done = rustix::io::retry_on_intr(|| rustix::io::write(&self.socket, rest))
                        .map_err(CliError::system("writing to a socket"))?;
                    rest = &rest[done..];
                }
                Ok(Round {
                    bytes: used as u64,
                    build: built - start,
                    encode: encoded - begun,
                    sent,
                    answer: self.receiver.expect()?,
                })
            }
        }
    }

    /// Says what comes, and lets the receiver get ready for it.
    fn order(&mut self, order: Order) -> Result<()> {
        self.receiver.send(&order)?;
        std::thread::sleep(SETTLE);
        Ok(())
    }

    /// The structure and a message of nothing there and back, slice by slice in turn.
    fn hand_over(&mut self, slices: usize) -> Result<HandOver> {
        const ROUNDS: u64 = 2000;
        let structure = data::structure(&self.domain, self.entries);
        let structure = structure.map_err(library("building the structure"))?;
        let extents = structure.extents();
        let mut message = structure.into_message();
        let mut null = Message::default();
        let (mut nulls, mut structures) = (Vec::new(), Vec::new());
        for _ in 0..slices {
            nulls.push(self.there_and_back(&mut null, ROUNDS)?);
            structures.push(self.there_and_back(&mut message, ROUNDS)?);
        }
        let ratios = structures.iter().zip(&nulls).map(|(own, null)| own / null);
        let ratio = median(ratios.collect()).unwrap_or(f64::NAN);
        Ok(HandOver {
            null: median(nulls).unwrap_or(f64::NAN),
            structure: median(structures).unwrap_or(f64::NAN),
            ratio,
            extents,
        })
    }

    /// Nanoseconds one way, over `rounds`.
    fn there_and_back(&mut self, message: &mut Message, rounds: u64) -> Result<f64> {
        self.order(Order::Echo { rounds })?;
        let start = Instant::now();
        for _ in 0..rounds {
            send(&self.right, std::mem::take(message))?;
            *message = receive(&mut self.port)?;
        }
        Ok(start.elapsed().as_nanos() as f64 / (2 * rounds) as f64)
    }
}

impl Report<'_> {
    fn text(&self) -> String {
        let mut table = Table::new(&[
            ("", Align::Left),
            ("build", Align::Right),
            ("encode", Align::Right),
            ("transfer", Align::Right),
            ("decode", Align::Right),
            ("first", Align::Right),
            ("lookups", Align::Right),
            ("total", Align::Right),
        ]);
        for row in &self.rows {
            let mut cells = vec![format!("{}, {}", row.system, row.carrier)];
            let times = [
                row.build,
                row.encode,
                row.transfer,
                row.decode,
                row.first_lookup,
                row.lookups,
                row.total,
            ];
            cells.extend(times.map(report::nanos));
            table.row(cells);
        }
        let mut text = format!(
            "{}\n\na map of {} keys, looked up {} times; medians\n{}",
            self.machine,
            self.entries,
            self.lookups,
            table.render()
        );
        text += "\nfirst: from the send to the first record; total: from encode to the last\n";
        if cfg!(not(feature = "serialisers")) {
            text += "postcard, bincode and rkyv: build with --features serialisers\n";
        }
        if let Some(one) = &self.hand_over {
            text += &format!(
                "\nhand-over, one way: {} ({} extent{}), null message {}, ratio {:.2}\n",
                report::nanos(one.structure),
                one.extents,
                if one.extents == 1 { "" } else { "s" },
                report::nanos(one.null),
                one.ratio
            );
        }
        text + "\n" + &report::verdicts(&self.budgets)
    }
}

/// For `map_err`: names what was being done.
fn library<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    doing: &'static str,
) -> impl FnOnce(E) -> CliError {
    CliError::library(doing)
}
