//! The board carries words between coordinator and workers, in memory outside the region.
//!
//! It outlives every worker, so it is also where their **journals** stand: what each
//! holds by its own count, for the auditor.

use crate::marks::MARKS;
use portolan_sys::shared::{Window, WindowError};
use rustix::process::{Pid, Signal};
use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most workers of a run.
pub(crate) const MAX_WORKERS: usize = 32;
/// Extents that a worker holds at the most.
pub(crate) const MAX_HELD: usize = 256;

/// What happens to a worker at the first of its marks: it dies.
pub(crate) const DIE: u64 = 1;
/// It stops.
pub(crate) const STOP: u64 = 2;
/// It is there, and about to die or to stop.
const UNDER_WAY: u64 = 3;

const HEAD_WORDS: usize = 512;
const HITS: usize = 64;
const HELD: usize = 512;
const CALLS: usize = HELD + 2 * MAX_HELD;
/// Calls whose runs are known: the latest of each worker.
const KNOWN: usize = 256;
const CUTS: usize = CALLS + KNOWN;
/// Streams of which it is known that they were cut short: far more than one channel holds.
const CUT: usize = 64;
/// How often it passes each mark before something happens there; 0: nothing does.
const COUNTDOWNS: usize = CUTS + CUT;
const SLOT_WORDS: usize = COUNTDOWNS + MARKS.len();
/// Numbers of calls are within these bits. In a call's word they stand above the byte that counts.
pub(crate) const NUMBERS: u64 = u64::MAX >> 8;

/// A word of the whole board.
#[derive(Clone, Copy)]
pub(crate) enum Word {
    /// Not 0: no new operations; hold what you hold.
    Pause = 0,
    /// Not 0, in a pause: write your journal.
    Count = 1,
    /// The worker plus one that sends a message to everybody who has not paused.
    Pinger = 2,
}

/// A word of one worker's place.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Entry {
    /// The pause that it has heeded.
    Paused = 0,
    /// The journal that it has written.
    Counted,
    /// Operations so far.
    Beat,
    /// What it is doing: [`super::Doing`].
    Doing,
    /// What happens to it at the first of its marks: [`DIE`], [`STOP`], either ([`UNDER_WAY`]); 0 nothing.
    Action,
    /// The mark plus one at which it died.
    DiedAt,
    /// The mark plus one at which it stopped.
    StoppedAt,
    /// 1: leave and join again. 2: leave and end.
    Order,
    /// What it is to do last, in a pause: see [`super::last_acts::LastAct`].
    LastAct,
    /// Space and incarnation, as a host word; 0 while it is in none.
    Space,
    /// Journal: extents.
    Extents,
    /// Journal: live send rights.
    Sends,
    /// Journal: receive rights.
    Ports,
    /// Journal: requests that wait for an answer.
    Pending,
    /// Messages received.
    Received,
    /// Contents that were not what the sender had written.
    Corrupt,
    /// It could not join or leave: see [`super::worker::Failure`].
    Failure,
    /// A bit for each worker that it has sent a ping in this pause.
    Pinged,
    /// Journal: entries as a reader of channels.
    Readers,
    /// Journal: places as the one writer of a channel.
    Writers,
    /// Journal: listeners to signals, each with one handler.
    Listeners,
    /// Where the channel lies on which it gets letters.
    Letters,
    /// Messages written to channels.
    Written,
    /// Messages read from channels, and told to have been missed.
    Read,
    /// Samples received of topics.
    Sampled,
    /// Calls that were answered.
    Called,
    /// Calls that ended without an answer.
    Uncalled,
    /// Calls run for others.
    Ran,
    /// Servers that moved away.
    Moved,
    /// Of the calls that were answered: those of clients that share channels.
    Shared,
    /// Those of clients that were let in over a channel.
    Presented,
    /// Those that were awaited.
    Awaited,
    /// Clients that were given channels of their own.
    Promoted,
    /// Streams begun.
    Streams,
    /// Bytes read of streams.
    Drunk,
    /// Frames put.
    Put,
    /// Looks at frames.
    Looked,
    /// Where its bell is, and the tag of that: see [`super::worker::bells`].
    Bell,
    /// How often that was about to be signalled, with its tag.
    Signalling,
    /// How often it was signalled and a handler was reached, with its tag.
    Signalled,
    /// Signals that have interrupted it.
    Heard,
    /// Updates of exports that have landed.
    Updated,
    /// The last of these: the export, and the number of the record.
    Landed,
    /// The same of exports of ordinary memory.
    LandedBytes,
    /// The record of which it is about to notify, or has: the export, and the number.
    Telling,
    Told,
    /// Notes of importers that it has taken.
    Noted,
    /// The number of its bridge, while that is open.
    Bridge,
    /// The bridge that it has left in order, after what it had sent there; as whom, and how much.
    LeftBridge,
    LeftAs,
    LeftAt,
    /// Messages and requests that came to its bridge.
    ClientsHeard,
    /// Requests that others' bridges have answered.
    Answered,
    /// News of others' bridges.
    Followed,
}

/// The board.
pub(crate) struct Board {
    window: Window,
}

/// What a worker holds, by its own count.
pub(crate) struct Journal {
    pub(crate) worker: usize,
    /// Space and incarnation, as a host word.
    pub(crate) space: u64,
    /// Address and capacity of each extent.
    pub(crate) extents: Vec<(u64, u64)>,
    pub(crate) sends: u64,
    pub(crate) ports: u64,
    pub(crate) pending: u64,
    /// Entries as a reader of channels.
    pub(crate) readers: u64,
    /// Places as the one writer of a channel.
    pub(crate) writers: u64,
    /// Listeners to signals, each with one handler.
    pub(crate) listeners: u64,
}

impl Board {
    pub(crate) fn create() -> Result<Self, WindowError> {
        Window::create(8 * (HEAD_WORDS + MAX_WORKERS * SLOT_WORDS)).map(|window| Self { window })
    }

    /// Where a worker finds the board of this process.
    pub(crate) fn path(&self) -> String {
        use std::os::fd::AsRawFd;
        format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.window.fd().as_raw_fd()
        )
    }

    pub(crate) fn open(path: &Path) -> Result<Self, WindowError> {
        let file = File::options().read(true).write(true).open(path)?;
        Window::from_fd(file.into()).map(|window| Self { window })
    }

    pub(crate) fn word(&self, word: Word) -> &AtomicU64 {
        self.window.word(word as usize)
    }

    pub(crate) fn of(&self, worker: usize, entry: Entry) -> &AtomicU64 {
        self.window
            .word(HEAD_WORDS + worker * SLOT_WORDS + entry as usize)
    }

    pub(crate) fn get(&self, worker: usize, entry: Entry) -> u64 {
        self.of(worker, entry).load(Ordering::SeqCst)
    }

    pub(crate) fn set(&self, worker: usize, entry: Entry, value: u64) {
        self.of(worker, entry).store(value, Ordering::SeqCst);
    }

    /// How often the worker has passed a mark.
    pub(crate) fn hits(&self, worker: usize, mark: usize) -> &AtomicU64 {
        self.window
            .word(HEAD_WORDS + worker * SLOT_WORDS + HITS + mark)
    }

    fn held(&self, worker: usize, index: usize) -> (&AtomicU64, &AtomicU64) {
        let at = HEAD_WORDS + worker * SLOT_WORDS + HELD + 2 * index;
        (self.window.word(at), self.window.word(at + 1))
    }

    fn known(&self, worker: usize, number: u64) -> &AtomicU64 {
        let at = usize::try_from(number % KNOWN as u64).unwrap_or(0);
        self.window
            .word(HEAD_WORDS + worker % MAX_WORKERS * SLOT_WORDS + CALLS + at)
    }

    /// A worker is about to make a call.
    pub(crate) fn call(&self, worker: usize, number: u64) {
        let word = number << 8;
        self.known(worker, number).store(word, Ordering::SeqCst);
    }

    /// A worker's call runs, somewhere; whether it has run before.
    pub(crate) fn runs(&self, worker: usize, number: u64) -> bool {
        let known = self.known(worker, number);
        let run = known.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| {
            // Older calls are not known any more.
            (word >> 8 == number && word & 0xff < 0xff).then_some(word + 1)
        });
        run.is_ok_and(|before| before & 0xff > 0)
    }

    /// How often a worker's call has run; `None` of one that is too long ago to be known.
    pub(crate) fn has_run(&self, worker: usize, number: u64) -> Option<u64> {
        let word = self.known(worker, number).load(Ordering::SeqCst);
        (word >> 8 == number).then_some(word & 0xff)
    }

    fn cuts(&self, who: u64) -> &AtomicU64 {
        let [worker, number, ..] = who.to_le_bytes().map(usize::from);
        let at = HEAD_WORDS + worker % MAX_WORKERS * SLOT_WORDS + CUTS + number % CUT;
        self.window.word(at)
    }

    /// A stream ends before its length: `who` names its worker, and its number there.
    pub(crate) fn cut(&self, who: u64) {
        self.cuts(who).store(who, Ordering::SeqCst);
    }

    /// Whether its writer has said that it ends before its length.
    pub(crate) fn is_cut(&self, who: u64) -> bool {
        self.cuts(who).load(Ordering::SeqCst) == who
    }

    fn countdown(&self, worker: usize, mark: usize) -> &AtomicU64 {
        let at = HEAD_WORDS + worker * SLOT_WORDS + COUNTDOWNS + mark;
        self.window.word(at)
    }

    /// Tells a worker what is to happen at the first of these marks that it passes for the time
    /// that stands beside it.
    pub(crate) fn arm(&self, worker: usize, marks: &[(usize, u64)], action: u64) {
        self.disarm(worker);
        for mark in 0..MARKS.len() {
            self.countdown(worker, mark).store(0, Ordering::SeqCst);
        }
        for (mark, times) in marks {
            let times = (*times).max(1);
            self.countdown(worker, *mark).store(times, Ordering::SeqCst);
        }
        self.set(worker, Entry::Action, action);
    }

    pub(crate) fn disarm(&self, worker: usize) {
        self.set(worker, Entry::Action, 0);
    }

    pub(crate) fn is_armed(&self, worker: usize) -> bool {
        self.get(worker, Entry::Action) != 0
    }

    /// Makes a worker's place fit for the next process. Counters of the run stay.
    pub(crate) fn renew(&self, worker: usize) {
        use Entry::{
            Action, Bell, Bridge, Corrupt, Counted, DiedAt, Doing, Extents, Failure, LastAct,
            LeftAs, LeftAt, LeftBridge, Letters, Listeners, Order, Paused, Pending, Pinged, Ports,
            Readers, Sends, Signalled, Signalling, Space, StoppedAt, Writers,
        };
        for entry in [
            Paused, Counted, Doing, Action, DiedAt, StoppedAt, Order, LastAct, Space, Extents,
            Sends, Ports, Pending, Readers, Writers, Listeners, Letters, Corrupt, Failure, Pinged,
            Bell, Signalling, Signalled, Bridge, LeftBridge, LeftAs, LeftAt,
        ] {
            self.set(worker, entry, 0);
        }
    }

    pub(crate) fn write_extents(&self, worker: usize, extents: impl Iterator<Item = (u64, u64)>) {
        let mut count = 0;
        for (index, (address, bytes)) in extents.take(MAX_HELD).enumerate() {
            let (a, b) = self.held(worker, index);
            a.store(address, Ordering::SeqCst);
            b.store(bytes, Ordering::SeqCst);
            count = index + 1;
        }
        self.set(worker, Entry::Extents, count as u64);
    }

    pub(crate) fn journal(&self, worker: usize) -> Journal {
        let count = usize::try_from(self.get(worker, Entry::Extents))
            .unwrap_or(0)
            .min(MAX_HELD);
        let read = |index| {
            let (a, b) = self.held(worker, index);
            (a.load(Ordering::SeqCst), b.load(Ordering::SeqCst))
        };
        Journal {
            worker,
            space: self.get(worker, Entry::Space),
            extents: (0..count).map(read).collect(),
            sends: self.get(worker, Entry::Sends),
            ports: self.get(worker, Entry::Ports),
            pending: self.get(worker, Entry::Pending),
            readers: self.get(worker, Entry::Readers),
            writers: self.get(worker, Entry::Writers),
            listeners: self.get(worker, Entry::Listeners),
        }
    }
}

const _: () = assert!((Entry::Followed as usize) < HITS && HITS + MARKS.len() <= HELD);

static OURS: OnceLock<(Board, usize)> = OnceLock::new();

/// Makes this process a worker: from now on it counts the marks that it passes, and
/// dies or stops at the first one of those that the coordinator names.
pub(crate) fn enlist(board: Board, worker: usize) -> &'static Board {
    let (board, _) = OURS.get_or_init(|| (board, worker));
    portolan_shm::mark::install(passed);
    board
}

fn passed(mark: &'static str) {
    let (Some((board, worker)), Some(index)) = (OURS.get(), crate::marks::index(mark)) else {
        return;
    };
    board.hits(*worker, index).fetch_add(1, Ordering::Relaxed);
    if !board.is_armed(*worker) {
        return;
    }
    let countdown = board.countdown(*worker, index);
    if countdown.load(Ordering::SeqCst) == 0 || countdown.fetch_sub(1, Ordering::SeqCst) != 1 {
        return;
    }
    let own = Pid::from_raw(i32::try_from(std::process::id()).unwrap_or(0));
    // Of threads that come to marks at the same time, one dies or stops there. The coordinator must not
    // take the worker for one that is at work meanwhile: not before it has read where that was.
    let action = board.of(*worker, Entry::Action);
    let action = action.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |action| {
        matches!(action, DIE | STOP).then_some(UNDER_WAY)
    });
    let (entry, signal) = match action {
        Err(_) => return,
        Ok(STOP) => (Entry::StoppedAt, Signal::STOP),
        Ok(_) => (Entry::DiedAt, Signal::KILL),
    };
    board.set(*worker, entry, index as u64 + 1);
    board.disarm(*worker);
    if let Some(own) = own {
        // Cannot fail: a process may send itself signals.
        let _ = rustix::process::kill_process(own, signal);
    }
    if signal == Signal::STOP {
        // Another thread may have taken the signal, and this one is to stop here.
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
