//! A trace ring keeps the events that a space's threads, and its fault handler, recorded last.
//!
//! Written by every thread of one space, read by one tracer elsewhere. No writer waits for
//! another; a writer may be killed, or stopped for ever, at any instruction.
//!
//! ```text
//!           claim a number (fetch_add), then the line (CAS)          publish (store)
//! done(q) --------------------------------------------------> busy(p) ------------> done(p)
//!                                              q < p
//! ```
//!
//! # Invariants
//!
//! - **E1** Numbers are handed out once. Event `p` lies in line `p mod n`, or nowhere.
//! - **E2** A line's number only grows, and only the writer that made it *busy* writes its
//!   words. So a line that reads *done(p)* before and after its words were read holds
//!   event `p` whole.
//! - **E3** A writer that meets a newer event, or one that a living thread of its space is
//!   still at, drops its own: it is counted as lost, like one that was overwritten. What
//!   an earlier incarnation of the space left *busy* is overwritten, for it is dead.
//! - **E4** The reader accounts for every number between its first and the ring's next:
//!   each was read, is lost, or is unfinished and asked for again.

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::queue::Line;
use portolan_abi::region::TRACE_HEAD;
use portolan_abi::trace::{EVENT_WORDS, EventState, MIN_RING};

/// Words of an event. The model checker has every word to itself, so it gets fewer.
pub const WORDS: usize = if cfg!(loom) { 2 } else { EVENT_WORDS };
/// Lines before the first event.
const HEAD: usize = if cfg!(loom) { 1 } else { TRACE_HEAD };

/// What a space's entry says of its trace: a line that is read with every message and
/// written only when a trace begins or ends.
#[repr(C, align(64))]
pub struct TraceLine {
    /// [`portolan_abi::trace::TraceSwitch`]; 0 while no tracer records.
    pub switch: AtomicU64,
    /// Number of the first event since it was switched on.
    pub since: AtomicU64,
}

/// A space's ring.
#[derive(Clone, Copy)]
pub struct Ring<'r> {
    next: &'r AtomicU64,
    lines: &'r [Line],
}

/// An event as it lay in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Lower half of the incarnation of the space that wrote it.
    pub incarnation: u16,
    /// Its words.
    pub words: [u64; WORDS],
}

impl<'r> Ring<'r> {
    /// The ring of `1 << size` events at the beginning of `lines`. Fewer, if there is no
    /// room for so many.
    pub fn new(lines: &'r [Line], size: u8) -> Self {
        let events = lines.get(HEAD..).unwrap_or_default();
        let wanted = 1usize.checked_shl(size.into()).unwrap_or(0);
        // A power of two, so that masking keeps an index in bounds.
        let fits = |n: &usize| n.is_power_of_two() && *n <= events.len();
        let len = Some(wanted).filter(fits).unwrap_or(1 << MIN_RING);
        Self {
            next: &lines[0].words[0],
            lines: &events[..len],
        }
    }

    /// The number that the next event will have.
    pub fn next(&self) -> u64 {
        // Acquire is not needed: each line says itself whether it is there.
        self.next.load(Ordering::Relaxed)
    }

    /// How many events it holds.
    pub fn capacity(&self) -> u64 {
        self.lines.len() as u64
    }

    fn line(&self, number: u64) -> &'r [AtomicU64; 8] {
        let index = usize::try_from(number & (self.capacity() - 1)).unwrap_or(0);
        &self.lines[index].words
    }

    /// Records an event; `false` if it was dropped (E3). Async-signal-safe.
    pub fn record(&self, incarnation: u16, words: &[u64; WORDS]) -> bool {
        // Relaxed: it only hands out numbers (E1).
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let line = self.line(number - 1);
        let done = EventState {
            number,
            incarnation,
            busy: false,
        };
        let busy = EventState { busy: true, ..done };
        let mut found = line[0].load(Ordering::Relaxed);
        loop {
            let was = EventState::unpack(found);
            if was.number >= number || was.busy && was.incarnation == incarnation {
                return false;
            }
            // Acquire: what the last writer wrote comes before what we write (E2). Each
            // turn finds a larger number, or the last one done.
            match line[0].compare_exchange(found, busy.pack(), Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(now) => found = now,
            }
        }
        // Pairs with the reader's fence: a reader of one of our words finds the line busy.
        fence(Ordering::Release);
        for (to, word) in line[1..].iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
        // Release: a thread that finds it done finds the words.
        line[0].store(done.pack(), Ordering::Release);
        true
    }

    /// Event `number`, if it is there whole; else whether it may still come.
    fn read(&self, number: u64) -> Result<Read, Missing> {
        let line = self.line(number);
        let word = line[0].load(Ordering::Acquire);
        let state = EventState::unpack(word);
        if state.number > number + 1 {
            return Err(Missing::Lost);
        }
        if state.number < number + 1 || state.busy {
            return Err(Missing::Unfinished);
        }
        let mut words = [0; WORDS];
        for (to, from) in words.iter_mut().zip(&line[1..]) {
            *to = from.load(Ordering::Relaxed);
        }
        // Pairs with the writer's fence.
        fence(Ordering::Acquire);
        if line[0].load(Ordering::Relaxed) != word {
            return Err(Missing::Lost);
        }
        Ok(Read {
            incarnation: state.incarnation,
            words,
        })
    }
}

/// Why an event is not there.
enum Missing {
    /// It was overwritten.
    Lost,
    /// It is being written, or its writer is dead, or was dropped.
    Unfinished,
}

/// The reader's place in one ring.
#[derive(Debug)]
pub struct Reader {
    next: u64,
    unfinished: Vec<u64>,
    lost: u64,
}

impl Reader {
    /// A reader of what is recorded from event `since` on.
    pub fn new(since: u64) -> Self {
        Self {
            next: since,
            unfinished: Vec::new(),
            lost: 0,
        }
    }

    /// Events that were overwritten before they were read, so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Reads what has come since the last time; how many events that were. Newest kept:
    /// what the writers have overwritten is counted as lost.
    pub fn drain(&mut self, ring: &Ring<'_>, mut each: impl FnMut(Read)) -> u64 {
        let end = ring.next();
        let oldest = end.saturating_sub(ring.capacity());
        let before = self.unfinished.len();
        self.unfinished.retain(|number| *number >= oldest);
        self.lost += (before - self.unfinished.len()) as u64;
        if self.next < oldest {
            self.lost += oldest - self.next;
            self.next = oldest;
        }
        // A ring that was emptied since, or garbage: begin again where it is.
        self.next = self.next.min(end);
        let mut read = 0;
        let again = core::mem::take(&mut self.unfinished);
        for number in again.into_iter().chain(self.next..end) {
            match ring.read(number) {
                Ok(event) => {
                    each(event);
                    read += 1;
                }
                Err(Missing::Lost) => self.lost += 1,
                Err(Missing::Unfinished) => self.unfinished.push(number),
            }
        }
        self.next = end;
        read
    }

    /// Gives up what is unfinished; it counts as lost.
    pub fn finish(&mut self) {
        self.lost += self.unfinished.len() as u64;
        self.unfinished.clear();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SIZE: u8 = MIN_RING;
    const CAPACITY: u64 = 1 << SIZE;

    fn lines() -> Vec<Line> {
        (0..HEAD + (1 << SIZE)).map(|_| Line::new()).collect()
    }

    fn event(value: u64) -> [u64; WORDS] {
        [value; WORDS]
    }

    fn drained(reader: &mut Reader, ring: &Ring<'_>) -> Vec<u64> {
        let mut all = Vec::new();
        let read = reader.drain(ring, |e| all.push(e.words[0]));
        assert_eq!(read, all.len() as u64);
        all
    }

    #[test]
    fn the_newest_are_kept_and_the_others_counted() {
        let lines = lines();
        let ring = Ring::new(&lines, SIZE);
        let mut reader = Reader::new(ring.next());
        for value in 0..CAPACITY + 5 {
            assert!(ring.record(1, &event(value)));
        }
        let newest: Vec<u64> = (5..CAPACITY + 5).collect();
        assert_eq!(drained(&mut reader, &ring), newest);
        assert_eq!(reader.lost(), 5);
        assert!(ring.record(1, &event(99)));
        assert_eq!(drained(&mut reader, &ring), [99]);
        assert_eq!((drained(&mut reader, &ring).len(), reader.lost()), (0, 5));
    }

    #[test]
    fn what_a_dead_writer_began_is_lost_and_its_line_used_again() {
        let lines = lines();
        let ring = Ring::new(&lines, SIZE);
        let mut reader = Reader::new(0);
        // As a writer of incarnation 1 leaves it that dies after its claim.
        ring.next.store(1, Ordering::Relaxed);
        let busy = EventState {
            number: 1,
            incarnation: 1,
            busy: true,
        };
        ring.line(0)[0].store(busy.pack(), Ordering::Relaxed);
        assert!(ring.record(1, &event(1)));
        assert_eq!(drained(&mut reader, &ring), [1]);
        assert_eq!(reader.lost(), 0, "it may still come");
        // A lap later: a living thread's line is left alone, a dead incarnation's is not.
        for value in 2..CAPACITY {
            assert!(ring.record(1, &event(value)));
        }
        assert!(!ring.record(1, &event(16)));
        for value in 17..2 * CAPACITY {
            assert!(ring.record(2, &event(value)));
        }
        assert!(ring.record(2, &event(32)));
        let newest: Vec<u64> = (17..=32).collect();
        assert_eq!(drained(&mut reader, &ring), newest);
        // 0 and 16 were never written, 2 to 15 were overwritten before they were read.
        assert_eq!(reader.lost(), 16);
    }

    #[test]
    fn at_the_end_nothing_is_left_open() {
        let lines = lines();
        let ring = Ring::new(&lines, SIZE);
        let mut reader = Reader::new(0);
        ring.next.store(3, Ordering::Relaxed);
        assert_eq!(drained(&mut reader, &ring), []);
        assert_eq!(reader.lost(), 0);
        reader.finish();
        assert_eq!(reader.lost(), 3);
    }

    #[test]
    fn a_ring_too_large_for_its_memory_is_a_small_one() {
        let lines = lines();
        for size in [SIZE + 1, 64, 255] {
            assert_eq!(Ring::new(&lines, size).capacity(), CAPACITY);
        }
    }

    #[test]
    fn many_writers_and_a_reader_lose_nothing_uncounted() {
        let rounds = if cfg!(miri) { 40 } else { 20_000 };
        let lines = lines();
        let ring = Ring::new(&lines, SIZE);
        let mut reader = Reader::new(0);
        let mut seen = std::collections::BTreeSet::new();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|writer| {
                    scope.spawn(move || {
                        for i in 0..rounds {
                            ring.record(1, &event(writer << 32 | i));
                        }
                    })
                })
                .collect();
            let mut see = |reader: &mut Reader| {
                reader.drain(&ring, |e| {
                    assert_eq!(e.words, event(e.words[0]), "a torn event");
                    assert!(seen.insert(e.words[0]), "an event twice");
                });
            };
            while writers.iter().any(|w| !w.is_finished()) {
                see(&mut reader);
            }
            // To have finished is not yet to be seen: only joined are they before us.
            writers.into_iter().for_each(|w| w.join().unwrap());
            see(&mut reader);
        });
        reader.finish();
        assert_eq!(seen.len() as u64 + reader.lost(), 3 * rounds);
        assert_eq!(ring.next(), 3 * rounds);
    }
}
