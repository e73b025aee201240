//! Interrupts workers by signals, whatever they are doing, and checks that each signal is noted.
//!
//! A worker's *bell* is an address in its own memory, which stands on the board with a tag that no
//! other of its bells has. A worker that signals it adds one on the board before, and one after
//! the signal has reached a handler. So the bell's worker knows how often it was interrupted at
//! the least, and at the most; a sender that is killed in between makes the two differ.

use super::super::Doing;
use super::super::board::{Entry, MAX_WORKERS};
use super::Worker;
use portolan::{Domain, Listener, ListenerOptions, Note, Segment};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// An address on the board is below this, and the tag above.
const ADDRESSES: u64 = 1 << 48;
/// Bytes of a bell, and of the memory in which each is somewhere else: a sender that was stopped
/// on its way to the last one does not signal this one.
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
    // If the word is of another bell by now, it does not count.
    let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
        (count / ADDRESSES == tag).then_some(count + 1)
    });
}

impl Worker {
    pub(super) fn signal_or_listen(&mut self) {
        self.doing(Doing::Sharing);
        let Some(domain) = self.domain.clone() else {
            return;
        };
        match self.random.below(16) {
            0 => self.take_bell_down(),
            1..4 => self.hang_bell(&domain),
            _ => self.signal_one(&domain),
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
        self.board.set(self.at, Entry::Signalling, tag * ADDRESSES);
        self.board.set(self.at, Entry::Signalled, tag * ADDRESSES);
        let at = tag * ADDRESSES + at as u64;
        self.board.set(self.at, Entry::Bell, at);
        self.holds.bell.0 = Some(Hung {
            listener,
            note,
            tag,
            _segment: segment,
        });
    }

    fn signal_one(&mut self, domain: &Domain) {
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
            count(self.board.of(to, Entry::Signalling), tag);
            let at = address + self.random.below(BELL);
            if lies || domain.signal(at).is_ok_and(|reached| reached > 0) {
                count(self.board.of(to, Entry::Signalled), tag);
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
        let Some(least) = of(Entry::Signalled) else {
            return self.corrupt("somebody else's bell is on the board");
        };
        let end = Instant::now() + self.latest("upcall", LATEST);
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
        let most = of(Entry::Signalling).unwrap_or(u64::MAX);
        if count > most {
            self.corrupt(&format!(
                "it was interrupted for {count} signals, and there were {most}"
            ));
        }
    }

    /// From here on no worker signals the bell.
    pub(super) fn take_bell_down(&mut self) {
        self.board.set(self.at, Entry::Bell, 0);
        self.check_bell();
        if let Some(hung) = self.holds.bell.0.take() {
            let heard = self.board.of(self.at, Entry::Heard);
            heard.fetch_add(hung.note.count(), Ordering::Relaxed);
        }
    }
}
