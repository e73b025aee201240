//! A worker is one process that does a random mix of everything, until it is killed.

mod awaited;
pub(super) mod bells;
mod bridges;
mod calls;
mod channels;
mod connections;
mod dying;
mod exports;
mod flows;
mod frames;
mod freight;
mod memory;
mod messages;
mod notes;
mod ordinary;
mod records;
mod sharing;
mod topics;

use super::board::{Board, Entry, MAX_HELD, Word, enlist};
use super::payload;
use super::random::Random;
use super::{Doing, MEMORY_LIMIT, SIZE};
use bells::Bell;
use bridges::Bridge;
use calls::Calls;
use channels::Channels;
use connections::Connections;
use exports::Exports;
use flows::Flows;
use frames::Frames;
use freight::Freight;
use ordinary::Ordinary;
use portolan::{
    Deadline, Domain, Extent, LeaveError, Message, PendingReply, PortOptions, Protection,
    RawExtent, ReceiveRight, SendError, SendOnceRight, SendRight, SharedExtent, WaitSet, WhenFull,
};
use portolan_abi::space::HostWord;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;
use topics::Topics;

/// How long joining and leaving may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long a worker sleeps for a message at the most; only a message ends that sooner.
const LONG: Duration = Duration::from_secs(600);
/// How long an operation may wait otherwise.
const SHORT: Duration = Duration::from_millis(30);
/// How long to wait for what a planted fault keeps from coming.
const LATEST_PLANTED: Duration = Duration::from_secs(5);
/// Most rights, ports, and so on, that a worker keeps.
const KEPT: usize = 8;
/// Most extents that it keeps.
const KEPT_EXTENTS: usize = 24;
const _: () = assert!(KEPT_EXTENTS * 4 < MAX_HELD);
/// Bytes of extents; the larger ones are runs of two and three chunks.
const SIZES: [usize; 10] = [
    32,
    4096,
    5000,
    16 << 10,
    60_000,
    256 << 10,
    1 << 20,
    2 << 20,
    3 << 20,
    5 << 20,
];
const LARGEST: usize = SIZES[SIZES.len() - 1];
/// Bytes of headers: in a line, in a slot, and in an extent of their own.
const HEADERS: [usize; 6] = [0, 8, 48, 100, 1000, 4096];
/// Ports that everybody tries to bind and to find.
const NAMES: [&str; 8] = [
    "public 0",
    "public 1",
    "public 2",
    "urgent 0",
    "urgent 1",
    "service 0",
    "service 1",
    "service 2",
];

/// Why a worker gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Failure {
    /// It was not let in.
    Join = 1,
    /// What it held was not taken back.
    Leave = 2,
    /// Its own port could not be bound.
    Bind = 3,
}

impl Failure {
    pub(crate) fn of(word: u64) -> Option<Self> {
        [Self::Join, Self::Leave, Self::Bind]
            .into_iter()
            .find(|f| *f as u64 == word)
    }
}

/// What a worker was told on its command line.
pub(crate) struct Task<'a> {
    pub(crate) board: &'a Path,
    pub(crate) worker: usize,
    pub(crate) domain: &'a str,
    pub(crate) seed: u64,
    pub(crate) sabotage: Option<&'a str>,
    pub(crate) plant: Option<&'a str>,
    pub(crate) guarded: bool,
}

/// Faults of its own that a worker can be told to have now and then, to see that it, or
/// another one, finds them.
pub(crate) const PLANTS: [&str; 17] = [
    "call-again",
    "call-not",
    "call-answer",
    "stream",
    "stream-end",
    "frame",
    "upcall",
    "sample",
    "update",
    "unexport",
    "note",
    "beside",
    "bridge-lost",
    "bridge-end",
    "bridge-news",
    "bridge-hold",
    "stall",
];

/// The name of a worker's own port.
fn inbox(worker: usize) -> String {
    format!("inbox {worker}")
}

struct Worker {
    board: &'static Board,
    at: usize,
    name: String,
    random: Random,
    /// One of [`PLANTS`].
    plant: Option<&'static str>,
    protection: Protection,
    holds: Holds,
    domain: Option<Domain>,
}

/// All that a worker holds.
#[derive(Default)]
struct Holds {
    inbox: Option<ReceiveRight>,
    ports: Vec<ReceiveRight>,
    sends: Vec<SendRight>,
    onces: Vec<SendOnceRight>,
    extents: Vec<Extent>,
    /// With address and capacity.
    parked: Vec<(RawExtent, (u64, u64))>,
    pending: Vec<PendingReply>,
    set: Option<WaitSet>,
    channels: Channels,
    topics: Topics,
    calls: Calls,
    shared: Vec<SharedExtent>,
    freight: Freight,
    flows: Flows,
    frames: Frames,
    bell: Bell,
    exports: Exports,
    ordinary: Ordinary,
    connections: Connections,
    bridge: Option<Bridge>,
}

/// Runs a worker.
pub(crate) fn run(task: &Task<'_>) -> ExitCode {
    let board = match Board::open(task.board) {
        Ok(board) => enlist(board, task.worker),
        Err(error) => {
            eprintln!("no board: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(rule) = task.sabotage {
        portolan::sabotage::switch_off(rule);
    }
    let mut worker = Worker {
        board,
        at: task.worker,
        name: task.domain.to_owned(),
        random: Random::new(task.seed),
        plant: PLANTS.into_iter().find(|plant| task.plant == Some(plant)),
        protection: if task.guarded {
            Protection::Guarded
        } else {
            Protection::Trusted
        },
        holds: Holds::default(),
        domain: None,
    };
    match worker.work() {
        Ok(()) => ExitCode::SUCCESS,
        Err((failure, why)) => {
            eprintln!("worker {}: {failure:?}: {why}", task.worker);
            board.set(task.worker, Entry::Failure, failure as u64);
            ExitCode::FAILURE
        }
    }
}

type Outcome = Result<(), (Failure, String)>;

impl Worker {
    fn work(&mut self) -> Outcome {
        self.join()?;
        loop {
            self.beat();
            self.pause();
            match self.board.get(self.at, Entry::Order) {
                1 => {
                    self.leave()?;
                    self.join()?;
                }
                2 => return self.leave(),
                _ => self.operate()?,
            }
        }
    }

    /// It goes on.
    fn beat(&self) {
        let beats = self.board.of(self.at, Entry::Beat);
        beats.fetch_add(1, Ordering::Relaxed);
    }

    fn doing(&self, doing: Doing) {
        self.board.set(self.at, Entry::Doing, doing as u64);
    }

    fn join(&mut self) -> Outcome {
        self.doing(Doing::Joining);
        let builder = Domain::builder(&self.name)
            .size(SIZE)
            .limit(MEMORY_LIMIT)
            .protection(self.protection)
            .deadline(PATIENCE);
        let domain = builder
            .join()
            .map_err(|e| (Failure::Join, format!("{e} ({e:?})")))?;
        // From here on it may be asked to wake others, in a pause.
        self.domain = Some(domain.clone());
        self.doing(Doing::Binding);
        // While its last owner has not been reclaimed, the name is taken.
        let end = std::time::Instant::now() + PATIENCE;
        let options = PortOptions::named(&inbox(self.at)).queue(8);
        let bound = loop {
            match domain.bind(options.clone()) {
                Ok(bound) => break bound,
                Err(error) if std::time::Instant::now() > end => {
                    return Err((Failure::Bind, error.to_string()));
                }
                Err(_) => {
                    self.pause_before_inbox();
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        };
        self.holds.inbox = Some(bound);
        self.open_letters(&domain);
        self.note_space();
        Ok(())
    }

    /// A pause can be heeded while the name of the own port is not to be had: the worker
    /// holds nothing then.
    fn pause_before_inbox(&mut self) {
        self.pause();
    }

    /// The space's number and incarnation, which the region's own table knows by our process id.
    fn note_space(&self) {
        let space = self.domain.as_ref().map_or(0, Domain::space);
        let word = HostWord {
            space,
            incarnation: 0,
        }
        .pack();
        self.board.set(self.at, Entry::Space, word);
    }

    fn leave(&mut self) -> Outcome {
        self.doing(Doing::Leaving);
        // Whatever threads still work with it, the library waits for.
        self.drop_calls();
        self.let_go_of_rest();
        self.leave_abroad();
        self.holds = Holds::default();
        self.board.set(self.at, Entry::Space, 0);
        self.board.set(self.at, Entry::Order, 0);
        let Some(domain) = self.domain.take() else {
            return Ok(());
        };
        match domain.leave() {
            Ok(()) => Ok(()),
            Err(error @ (LeaveError::Unanswered { .. } | _)) => {
                Err((Failure::Leave, error.to_string()))
            }
        }
    }

    /// Holds what it holds while the coordinator looks at it.
    fn pause(&mut self) {
        let pause = self.board.word(Word::Pause).load(Ordering::SeqCst);
        if pause == 0 {
            return;
        }
        self.doing(Doing::Pausing);
        self.let_go_of_all();
        let mut pinged = 0;
        while self.board.word(Word::Pause).load(Ordering::SeqCst) == pause {
            self.board.set(self.at, Entry::Paused, pause);
            if self.board.word(Word::Pinger).load(Ordering::SeqCst) == self.at as u64 + 1 {
                self.ping(pause, &mut pinged);
            }
            if self.board.word(Word::Count).load(Ordering::SeqCst) == pause
                && self.board.get(self.at, Entry::Counted) != pause
            {
                self.write_journal();
                self.board.set(self.at, Entry::Counted, pause);
            }
            self.heed_last_act();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets go of what no journal could tell of.
    fn let_go_of_all(&mut self) {
        self.end_calls();
        self.let_go_of_rest();
    }

    fn let_go_of_rest(&mut self) {
        self.end_connections();
        self.close_bridge();
        self.check_abroad();
        self.end_flows();
        self.take_bell_down();
        self.holds.freight = Freight::default();
        self.holds.frames = Frames::default();
    }

    /// Whether it is to have this fault, this time.
    fn plants(&mut self, what: &str) -> bool {
        self.plant == Some(what) && self.random.once_in(8)
    }

    /// How long to wait for something, `usual`ly: what the fault keeps from coming is not waited for
    /// long.
    fn latest(&self, fault: &str, usual: Duration) -> Duration {
        match self.plant {
            Some(planted) if planted == fault => LATEST_PLANTED,
            _ => usual,
        }
    }

    /// Sends one message to each worker that sleeps, and has none in `pinged` yet: a bit for each.
    fn ping(&self, pause: u64, pinged: &mut u64) {
        let Some(domain) = &self.domain else { return };
        for other in 0..super::board::MAX_WORKERS {
            let doing = Doing::of(self.board.get(other, Entry::Doing));
            let is_told = *pinged >> other & 1 == 1;
            if is_told || !doing.is_asleep() || self.board.get(other, Entry::Paused) == pause {
                continue;
            }
            let sent = if doing == Doing::Listening {
                channels::post(domain, other, pause << 8 | other as u64)
            } else {
                wake_up(domain, other)
            };
            match sent {
                Ok(()) => {
                    *pinged |= 1 << other;
                    let mine = self.board.of(self.at, Entry::Pinged);
                    mine.fetch_or(1 << other, Ordering::SeqCst);
                }
                // Again, until the coordinator thinks that it takes too long.
                Err(why) => eprintln!("worker {}: no ping to worker {other}: {why}", self.at),
            }
        }
    }

    fn write_journal(&self) {
        let holds = &self.holds;
        let extents = holds
            .extents
            .iter()
            .map(|e| (e.address() as u64, e.capacity() as u64));
        let parked = holds.parked.iter().map(|(_, place)| *place);
        self.board.write_extents(self.at, extents.chain(parked));
        let live = holds.sends.iter().filter(|s| s.is_live()).count();
        let (of_channels, of_topics) = (holds.channels.counts(), holds.topics.counts());
        let live = live + of_channels.0 + of_topics.0 + holds.shared.len();
        let (readers, writers) = (of_channels.1 + of_topics.1, of_channels.2 + of_topics.2);
        self.board.set(self.at, Entry::Readers, readers as u64);
        self.board.set(self.at, Entry::Writers, writers as u64);
        let listeners = u64::from(holds.bell.is_hung());
        self.board.set(self.at, Entry::Listeners, listeners);
        let in_set = holds.set.as_ref().map_or(0, WaitSet::len);
        let ports = holds.ports.len() + usize::from(holds.inbox.is_some()) + in_set;
        self.board.set(self.at, Entry::Sends, live as u64);
        self.board.set(self.at, Entry::Ports, ports as u64);
        self.board
            .set(self.at, Entry::Pending, holds.pending.len() as u64);
    }

    /// Does what a fault is in: half of what a worker does that has one.
    fn err(&mut self, fault: &str) {
        match fault {
            "stream" | "stream-end" => self.flow(),
            "frame" => self.frames(),
            "upcall" => self.signal_or_listen(),
            "sample" => self.publish_or_subscribe(),
            "update" | "unexport" | "note" => self.export_or_import(),
            "beside" => self.lend_or_borrow(),
            "stall" => self.stall(),
            fault if fault.starts_with("call") => self.call_or_serve(),
            _ if self.random.once_in(3) => self.serve_bridge(),
            _ => self.use_bridges(),
        }
    }

    /// Gets nowhere for a while, as one that waits for somebody who is stopped.
    fn stall(&mut self) {
        if self.random.once_in(64) {
            self.doing(Doing::Allocating);
            std::thread::sleep(Duration::from_secs(10));
        }
    }

    fn operate(&mut self) -> Outcome {
        if let Some(fault) = self.plant
            && self.random.once_in(2)
        {
            self.err(fault);
            return Ok(());
        }
        match self.random.below(274) {
            100..127 => self.stream(),
            127..131 | 195..203 => self.publish_or_subscribe(),
            203..217 => self.export_or_import(),
            217..230 => self.serve_bridge(),
            250..258 => self.lend_or_borrow(),
            258..261 => self.squeeze(),
            261..264 => self.touch(),
            264..270 => self.give_port(),
            270.. => self.tie_a_cycle(),
            230..250 => self.use_bridges(),
            131..135 => self.tell(),
            135..160 => self.call_or_serve(),
            160..170 => self.freight(),
            170..182 => self.flow(),
            182..188 => self.frames(),
            188..195 => self.signal_or_listen(),
            0..12 => self.allocate(),
            12..17 => self.free(),
            17..42 => self.send(),
            42..66 => self.receive(),
            66..74 => self.request(),
            74..79 => self.answer(),
            79..83 => self.take_answer(),
            83..86 => self.wait_in_set(),
            86..90 => self.bind(),
            90..92 => self.close(),
            92..95 => self.connect(),
            95..97 => self.share(),
            97 => self.park(),
            98 => self.watch(),
            _ if self.random.once_in(20) => {
                self.leave()?;
                self.join()?;
            }
            _ => self.let_go(),
        }
        Ok(())
    }

    fn corrupt(&self, what: &str) {
        eprintln!("worker {}: {what}", self.at);
        self.board
            .of(self.at, Entry::Corrupt)
            .fetch_add(1, Ordering::SeqCst);
    }

    fn check(&self, extent: &Extent) {
        if let Err(why) = payload::verify(extent) {
            self.corrupt(&format!("page {:#x}: {why}", extent.address()));
        }
    }

    fn bind(&mut self) {
        self.doing(Doing::Binding);
        if self.holds.ports.len() >= KEPT / 2 {
            return;
        }
        let name = NAMES[self.random.below(NAMES.len())];
        let named = !self.random.once_in(3);
        let mut options = if named {
            PortOptions::named(name)
        } else {
            PortOptions::unnamed()
        };
        options = options
            .queue([1, 3, 7][self.random.below(3)])
            .inline_bytes([48, 112, 496][self.random.below(3)]);
        if name.starts_with("urgent") {
            options = options.by_urgency();
        }
        if name.starts_with("service") {
            options = options.synchronous();
        }
        let Some(domain) = &self.domain else { return };
        if let Ok(port) = domain.bind(options) {
            if self.random.once_in(2) {
                let right = port.make_send();
                keep(&mut self.holds.sends, right);
                port.request_no_more_senders();
            }
            self.holds.ports.push(port);
        }
    }

    fn close(&mut self) {
        self.doing(Doing::Closing);
        if !self.holds.ports.is_empty() {
            let at = self.random.below(self.holds.ports.len());
            drop(self.holds.ports.swap_remove(at));
        }
    }

    fn connect(&mut self) {
        self.doing(Doing::Connecting);
        let own = self.random.once_in(3);
        let name = if own {
            inbox(self.random.below(super::board::MAX_WORKERS))
        } else {
            NAMES[self.random.below(NAMES.len())].to_owned()
        };
        let Some(domain) = &self.domain else { return };
        if let Ok(right) = domain.connect(&name, Deadline::NOW) {
            keep(&mut self.holds.sends, right);
        }
    }

    /// Gives a receive right away: to ports that are never given away themselves, for ports
    /// that travel in one another's queues are closed, at the next death or shortage.
    fn give_port(&mut self) {
        self.doing(Doing::Sending);
        let to = inbox(self.random.below(super::board::MAX_WORKERS));
        let Some(domain) = &self.domain else { return };
        let Ok(right) = domain.connect(&to, Deadline::NOW) else {
            return;
        };
        if self.holds.ports.is_empty() {
            self.bind();
            self.doing(Doing::Sending);
        }
        let Some(port) = self.holds.ports.pop() else {
            return;
        };
        let mut message = self.compose();
        let _ = message.attach(port);
        let when_full = self.when_full();
        let _ = right
            .send(message, when_full)
            .map_err(|e| self.absorb(*e.item));
    }

    fn watch(&mut self) {
        self.doing(Doing::Connecting);
        let Some(inbox) = &self.holds.inbox else {
            return;
        };
        if !self.holds.sends.is_empty() {
            let at = self.random.below(self.holds.sends.len());
            // Fails once the table is full.
            let _ = self.holds.sends[at].watch(inbox, 1);
        }
    }

    fn let_go(&mut self) {
        self.doing(Doing::Closing);
        match self.random.below(3) {
            0 => drop(self.holds.sends.pop()),
            1 => drop(self.holds.onces.pop()),
            _ => drop(self.holds.pending.pop()),
        }
    }
}

/// Sends a message to a worker's own port. A full queue holds something to wake up for.
fn wake_up(domain: &Domain, worker: usize) -> Result<(), String> {
    let right = domain.connect(&inbox(worker), Deadline::NOW);
    let right = right.map_err(|e| e.to_string())?;
    let message = Message::new(b"").map_err(|e| e.to_string())?;
    match right.send(message, WhenFull::Fail) {
        Ok(()) => Ok(()),
        Err(refused) if matches!(refused.why, SendError::Full { .. }) => Ok(()),
        Err(refused) => Err(refused.to_string()),
    }
}

/// Keeps at most [`KEPT`]; the oldest is dropped.
fn keep<T>(list: &mut Vec<T>, item: T) {
    if list.len() >= KEPT {
        drop(list.remove(0));
    }
    list.push(item);
}
