//! Signals that interrupt a worker, whatever it is doing: each that reached it is noted.
//!
//! A worker's *bell* is a byte of its own memory, whose address stands on the board with a tag
//! that no other of its bells has. Who rings it counts on the board before, and after it has
//! reached somebody. So the worker knows how often it was interrupted at the least, and at the
//! most; who is killed in between makes the two differ.

use super::super::Doing;
use super::super::board::{Entry, MAX_WORKERS};
use super::Worker;
use portolan::{Domain, Listener, ListenerOptions, Note, Segment};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// An address on the board is below this, and the tag above.
const ADDRESSES: u64 = 1 << 48;
/// Bytes of a bell, and of the memory in which each is somewhere else: who was stopped on its
/// way to the last one does not ring this one.
const BELL: usize = 64;
const MEMORY: usize = 64 << 10;
/// How long a signal may take that has reached the worker.
const LATEST: Duration = Duration::from_secs(20);
/// Signals that a thread may be behind.
const DEPTH: usize = 64;

/// A worker's bell. It does not outlive a pause.
#[derive(Default)]
pub(super) struct Bell(Option<Hung>);

struct Hung {
    listener: Listener,
    note: Arc<Note>,
    tag: u64,
    _segment: Segment,
}

impl Bell {
    pub(super) fn is_hung(&self) -> bool {
        self.0.is_some()
    }
}

/// Adds one to a count on the board, if that is of this bell.
fn count(word: &std::sync::atomic::AtomicU64, tag: u64) {
    // Of another bell by now, it is nobody's business.
    let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
        (count / ADDRESSES == tag).then_some(count + 1)
    });
}

impl Worker {
    pub(super) fn ring_or_listen(&mut self) {
        self.doing(Doing::Sharing);
        let Some(domain) = self.domain.clone() else {
            return;
        };
        match self.random.below(16) {
            0 => self.take_bell_down(),
            1..4 => self.hang_bell(&domain),
            _ => self.ring(&domain),
        }
    }

    pub(super) fn hang_bell(&mut self, domain: &Domain) {
        if self.holds.bell.0.is_some() {
            return self.check_bell();
        }
        // Memory, places and threads run out now and then.
        let Ok(segment) = domain.make_segment(None, MEMORY) else {
            return;
        };
        let Ok(mut listener) = domain.listen(ListenerOptions::default().depth(DEPTH)) else {
            return;
        };
        let tag = 1 + self.random.next() % 0xffff;
        let at = segment.address() + BELL * self.random.below(MEMORY / BELL);
        let Ok((_, note)) = listener.note(at..at + BELL) else {
            return;
        };
        self.board.set(self.at, Entry::Ringing, tag * ADDRESSES);
        self.board.set(self.at, Entry::Rung, tag * ADDRESSES);
        let at = tag * ADDRESSES + at as u64;
        self.board.set(self.at, Entry::Bell, at);
        self.holds.bell.0 = Some(Hung {
            listener,
            note,
            tag,
            _segment: segment,
        });
    }

    fn ring(&mut self, domain: &Domain) {
        let to = self.random.below(MAX_WORKERS);
        let bell = self.board.get(to, Entry::Bell);
        let (tag, address) = (bell / ADDRESSES, bell % ADDRESSES);
        let Ok(address) = usize::try_from(address) else {
            return;
        };
        if tag == 0 {
            return;
        }
        let lies = self.plants("upcall");
        for _ in 0..=self.random.below(8) {
            count(self.board.of(to, Entry::Ringing), tag);
            let at = address + self.random.below(BELL);
            if lies || domain.signal(at).is_ok_and(|reached| reached > 0) {
                count(self.board.of(to, Entry::Rung), tag);
            }
        }
    }

    /// Compares how often it was interrupted with how often others say that it was.
    pub(super) fn check_bell(&mut self) {
        let Some(hung) = &self.holds.bell.0 else {
            return;
        };
        let of = |entry: Entry| {
            let word = self.board.get(self.at, entry);
            (word / ADDRESSES == hung.tag).then_some(word % ADDRESSES)
        };
        let Some(least) = of(Entry::Rung) else {
            return self.corrupt("somebody else's bell is on the board");
        };
        let end = Instant::now() + LATEST;
        // The last of them may be about to be called.
        while hung.note.count() < least {
            if Instant::now() > end {
                let (count, dropped) = (hung.note.count(), hung.listener.dropped());
                return self.corrupt(&format!(
                    "{least} signals reached it, and it was interrupted for {count} ({dropped} found no room)"
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let count = hung.note.count();
        let most = of(Entry::Ringing).unwrap_or(u64::MAX);
        if count > most {
            self.corrupt(&format!(
                "it was interrupted for {count} signals, and there were {most}"
            ));
        }
    }

    /// Nobody rings it from here on.
    pub(super) fn take_bell_down(&mut self) {
        self.board.set(self.at, Entry::Bell, 0);
        self.check_bell();
        if let Some(hung) = self.holds.bell.0.take() {
            let heard = self.board.of(self.at, Entry::Heard);
            heard.fetch_add(hung.note.count(), Ordering::Relaxed);
        }
    }
}
