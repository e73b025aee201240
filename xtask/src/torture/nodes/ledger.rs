//! The ledger: what programs of all nodes have sent and received, by their own count, in memory
//! outside every region.
//!
//! ```text
//! [head][counts of a place] x MAX_WORKERS [a stream] x STREAMS
//! ```
//!
//! A *stream* is what one process sends by one right. Its numbers begin at 1 and go up by one, so
//! a row of a few words tells all of it: the sender writes how many it has sent, the receiver how
//! many have come.

use portolan_sys::shared::{Window, WindowError};
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::board::MAX_WORKERS;

/// Nodes, at most.
pub(crate) const MAX_NODES: usize = 8;
/// Streams that are known: the row of one that was over long ago is used again.
const STREAMS: u64 = 65_536;
const HEAD_WORDS: usize = 8;
const PLACE_WORDS: usize = 64;
const ROW_WORDS: usize = 8;
const ROWS: usize = HEAD_WORDS + MAX_WORKERS * PLACE_WORDS;

/// A word of the whole ledger.
#[derive(Clone, Copy)]
pub(crate) enum Word {
    /// How many streams there have been.
    LastStream = 0,
    /// Not 0: programs press on one port. The number of this round.
    Round = 1,
    /// The place whose port that is.
    Target = 2,
}

/// A count of one place: of all its processes in turn, unless it says something else.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Count {
    /// Which of them has the place now.
    Process = 0,
    /// Messages that were sent: the call has returned, so they are the library's.
    Sent,
    /// Messages that were received.
    Received,
    /// Bytes in extents of those.
    Bytes,
    /// Requests that ran here.
    Ran,
    /// Requests that were answered.
    Answered,
    /// Requests that ended by an error: no answer in time.
    TimedOut,
    /// The server has dropped it.
    Dropped,
    /// The server is dead.
    ServerDead,
    /// The server's node was given up.
    NodeLost,
    /// Sends and requests that were handed back because the node was silent.
    Unreachable,
    /// Ports that came with messages from other nodes, and rights on ports.
    Moves,
    Handoffs,
    /// Of this process, in a pause: rights whose node is silent, by what they say.
    Silent,
    /// Of this process: the round in which the target's port was full.
    Presses,
    /// Of this process, as a target: what has come in this round, by node.
    Arrived,
}

const _: () = assert!(Count::Arrived as usize + MAX_NODES <= PLACE_WORDS);

/// How a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum End {
    /// It goes on, or its sender is dead.
    Open = 0,
    /// Its sender has dropped the right.
    Dropped,
    /// Its sender has found the right dead.
    Dead,
}

/// What a stream consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Messages = 0,
    Requests,
    /// Messages as short as they can be, in a round.
    Short,
    /// Messages to a port that goes from program to program.
    Roams,
}

/// What a stream's row says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) id: u64,
    /// When its sender began to look for the port, by [`now`].
    pub(crate) opened: u64,
    /// The sender's place, and which process there.
    pub(crate) from: usize,
    pub(crate) process: u64,
    /// The receiver's place.
    pub(crate) to: usize,
    pub(crate) kind: Kind,
    /// The last number that was to be sent.
    pub(crate) begun: u64,
    /// The last number that was sent.
    pub(crate) sent: u64,
    pub(crate) end: End,
    /// The last number that has come.
    pub(crate) received: u64,
}

/// A word of a row.
#[derive(Clone, Copy)]
enum Entry {
    Id = 0,
    Opened,
    Path,
    Begun,
    Sent,
    End,
    Received,
    /// The process that has received: its place, and which one there.
    Receiver,
}

/// The ledger.
pub(crate) struct Ledger {
    window: Window,
}

/// Nanoseconds of a clock that all processes share.
pub(crate) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

impl Ledger {
    pub(crate) fn create() -> Result<Self, WindowError> {
        let rows = usize::try_from(STREAMS).unwrap_or(0) * ROW_WORDS;
        Window::create(8 * (ROWS + rows)).map(|window| Self { window })
    }

    /// Where other processes find the ledger of this one.
    pub(crate) fn path(&self) -> String {
        let fd = self.window.fd().as_raw_fd();
        format!("/proc/{}/fd/{fd}", std::process::id())
    }

    pub(crate) fn open(path: &Path) -> Result<Self, WindowError> {
        let file = File::options().read(true).write(true).open(path)?;
        Window::from_fd(file.into()).map(|window| Self { window })
    }

    pub(crate) fn word(&self, word: Word) -> &AtomicU64 {
        self.window.word(word as usize)
    }

    pub(crate) fn count(&self, place: usize, count: Count) -> &AtomicU64 {
        self.nth_count(place, count, 0)
    }

    /// The `nth` word of a count that has several.
    fn nth_count(&self, place: usize, count: Count, nth: usize) -> &AtomicU64 {
        let at = HEAD_WORDS + place % MAX_WORKERS * PLACE_WORDS + count as usize + nth;
        self.window.word(at)
    }

    pub(crate) fn arrived(&self, place: usize, node: usize) -> &AtomicU64 {
        self.nth_count(place, Count::Arrived, node % MAX_NODES)
    }

    pub(crate) fn add(&self, place: usize, count: Count, more: u64) {
        self.count(place, count).fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, place: usize, count: Count) -> u64 {
        self.count(place, count).load(Ordering::SeqCst)
    }

    /// The sum over all places.
    pub(crate) fn sum(&self, count: Count) -> u64 {
        (0..MAX_WORKERS).map(|place| self.get(place, count)).sum()
    }

    fn row(&self, stream: u64, entry: Entry) -> &AtomicU64 {
        let row = usize::try_from(stream % STREAMS).unwrap_or(0);
        self.window.word(ROWS + row * ROW_WORDS + entry as usize)
    }

    /// A new stream of a process.
    pub(crate) fn begin(&self, from: usize, to: usize, kind: Kind, opened: u64) -> u64 {
        let stream = self
            .word(Word::LastStream)
            .fetch_add(1, Ordering::SeqCst)
            .wrapping_add(1);
        let process = self.get(from, Count::Process);
        let path = from as u64 | (to as u64) << 8 | (kind as u64) << 16 | process << 32;
        let words = [
            (Entry::Opened, opened),
            (Entry::Path, path),
            (Entry::Begun, 0),
            (Entry::Sent, 0),
            (Entry::End, End::Open as u64),
            (Entry::Received, 0),
            (Entry::Receiver, 0),
            // Last: the row means something from here on.
            (Entry::Id, stream),
        ];
        for (entry, word) in words {
            self.row(stream, entry).store(word, Ordering::SeqCst);
        }
        stream
    }

    /// The sender is about to send this number.
    pub(crate) fn sending(&self, stream: u64, number: u64) {
        self.row(stream, Entry::Begun)
            .store(number, Ordering::SeqCst);
    }

    /// The sender has sent this number.
    pub(crate) fn sent(&self, stream: u64, number: u64) {
        self.row(stream, Entry::Sent)
            .store(number, Ordering::SeqCst);
    }

    pub(crate) fn end(&self, stream: u64, end: End) {
        self.row(stream, Entry::End)
            .store(end as u64, Ordering::SeqCst);
    }

    /// A number has come to a process of the place `at`; what is wrong with that. Requests may be
    /// missing, because a client that has stopped to wait may take its request back; and messages to a port
    /// that roams, because a node dies with what is in its ports, and the port may be elsewhere.
    pub(crate) fn received(&self, stream: u64, number: u64, at: usize) -> Result<(), String> {
        let Some(row) = self.stream(stream) else {
            return Err(format!("a message of stream {stream}, which there is not"));
        };
        let said = format!("number {number} of {row:?} has come");
        let own = self.get(at, Count::Process) << 32 | at as u64 | 1 << 31;
        let receiver = self
            .row(stream, Entry::Receiver)
            .swap(own, Ordering::SeqCst);
        self.row(stream, Entry::Received)
            .fetch_max(number, Ordering::SeqCst);
        let roams = row.kind == Kind::Roams;
        if row.to != at && !roams {
            return Err(format!("{said} to place {at}"));
        }
        if receiver != 0 && receiver != own && !roams {
            return Err(format!("{said} to another process than what came before"));
        }
        if number > row.begun {
            return Err(format!("{said}, which was not sent"));
        }
        if number <= row.received {
            return Err(format!("{said} again, or too late"));
        }
        if number != row.received + 1 && row.kind != Kind::Requests && !roams {
            return Err(format!("{said}, and what is before it is lost"));
        }
        Ok(())
    }

    /// What is known of a stream.
    pub(crate) fn stream(&self, stream: u64) -> Option<Stream> {
        let word = |entry| self.row(stream, entry).load(Ordering::SeqCst);
        if stream == 0 || word(Entry::Id) != stream {
            return None;
        }
        let path = word(Entry::Path);
        let [from, to, kind, ..] = path.to_le_bytes();
        Some(Stream {
            id: stream,
            opened: word(Entry::Opened),
            from: usize::from(from),
            process: path >> 32,
            to: usize::from(to),
            kind: match kind {
                0 => Kind::Messages,
                1 => Kind::Requests,
                2 => Kind::Short,
                _ => Kind::Roams,
            },
            begun: word(Entry::Begun),
            sent: word(Entry::Sent),
            end: match word(Entry::End) {
                0 => End::Open,
                1 => End::Dropped,
                _ => End::Dead,
            },
            received: word(Entry::Received),
        })
    }

    /// All streams that began after `last`, which is moved on.
    pub(crate) fn news(&self, last: &mut u64) -> Vec<u64> {
        let newest = self.word(Word::LastStream).load(Ordering::SeqCst);
        let news = (*last + 1..=newest).collect();
        *last = newest;
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_twice_late_or_not_at_all_is_told() {
        let ledger = Ledger::create().unwrap();
        ledger.count(3, Count::Process).store(7, Ordering::SeqCst);
        let stream = ledger.begin(1, 3, Kind::Messages, now());
        for number in 1..=4 {
            ledger.sending(stream, number);
            ledger.sent(stream, number);
        }
        let says = |number, at| ledger.received(stream, number, at).err();
        assert_eq!((says(1, 3), says(2, 3)), (None, None));
        assert!(says(2, 3).unwrap().contains("again"));
        assert!(says(4, 3).unwrap().contains("is lost"));
        assert!(says(5, 3).unwrap().contains("was not sent"));
        assert!(says(5, 2).unwrap().contains("to place 2"));
        assert_eq!(ledger.stream(stream).unwrap().received, 5);
        assert!(ledger.received(stream + 1, 1, 3).is_err());
        let roams = ledger.begin(1, 1, Kind::Roams, now());
        ledger.sending(roams, 9);
        assert_eq!(ledger.received(roams, 2, 3), Ok(()));
        assert_eq!(ledger.received(roams, 4, 2), Ok(()));
        assert!(
            ledger
                .received(roams, 3, 2)
                .unwrap_err()
                .contains("too late")
        );
        let asks = ledger.begin(1, 3, Kind::Requests, now());
        ledger.sending(asks, 9);
        assert_eq!(ledger.received(asks, 3, 3), Ok(()));
        assert!(ledger.received(asks, 3, 3).is_err());
        ledger.count(3, Count::Process).store(8, Ordering::SeqCst);
        let other = ledger.received(asks, 4, 3).unwrap_err();
        assert!(other.contains("another process"), "{other}");
    }
}
