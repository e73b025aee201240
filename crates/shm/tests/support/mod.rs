//! What the models share: a queue in memory of its own, a futex, and the exploration itself.
#![allow(dead_code, unreachable_pub)]

pub mod channel;
pub mod pool;
pub mod signal;

use loom::sync::{Condvar, Mutex};
use portolan_abi::limits::MIN_SLOTS;
use portolan_shm::atomic::{AtomicU32, Ordering, death};
use portolan_shm::queue::{
    ClaimError, Cursor, Line, Next, PortEntry, Published, Queue, Spot, Woken,
};
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

/// Explores every execution of `model` with at most `preemptions` preemptions, or as many
/// as LOOM_MAX_PREEMPTIONS says, and prints how many there were.
pub fn explore(name: &str, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.max_branches = 20_000;
    let (before, began) = (EXECUTIONS.load(Ordering::Relaxed), Instant::now());
    builder.check(move || {
        EXECUTIONS.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let executions = EXECUTIONS.load(Ordering::Relaxed) - before;
    println!("{name}: {executions} executions, {:.1?}", began.elapsed());
}

/// Explores `model` once for each number of accesses after which the victim dies, until it
/// lives through it in every execution. The model says whether the victim died.
pub fn explore_deaths(
    name: &str,
    preemptions: usize,
    model: impl Fn(usize) -> bool + Send + Sync + Copy + 'static,
) {
    static DEATHS: AtomicUsize = AtomicUsize::new(0);
    for accesses in 0.. {
        let before = DEATHS.load(Ordering::Relaxed);
        explore(
            &format!("{name}, dead before access {accesses}"),
            preemptions,
            move || {
                if model(accesses) {
                    DEATHS.fetch_add(1, Ordering::Relaxed);
                }
            },
        );
        if DEATHS.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

/// Runs a model on something that its threads may borrow for good; it has joined them all
/// when it returns.
pub fn with<T: 'static, R>(world: T, model: impl FnOnce(&'static T) -> R) -> R {
    let world = Box::into_raw(Box::new(world));
    // SAFETY: live until freed below, shared only by `&`.
    let result = model(unsafe { &*world });
    // SAFETY: from the box above; every thread that borrowed it was joined.
    drop(unsafe { Box::from_raw(world) });
    result
}

/// A port with its slots.
pub struct Port {
    entry: PortEntry,
    lines: Vec<Line>,
    /// Where each of four spaces believes the end to be.
    pub spots: [Spot; 4],
    /// The receiver's futex, and the senders'.
    pub bell: Futex,
    pub room: Futex,
}

impl Port {
    /// An open one.
    pub fn new(slots: usize) -> Self {
        assert!(slots >= MIN_SLOTS);
        let lines = (0..slots).map(|_| Line::new()).collect();
        let port = Self {
            entry: PortEntry::default(),
            lines,
            spots: Default::default(),
            bell: Futex::default(),
            room: Futex::default(),
        };
        port.queue().open(0);
        port
    }

    pub fn queue(&self) -> Queue<'_> {
        Queue::new(&self.entry, &self.lines, 1).expect("a shape")
    }

    pub fn wake_receiver(&self) {
        self.bell.change_and_wake(&self.entry.sleep.doorbell);
    }

    pub fn wake_senders(&self) {
        self.room.change_and_wake(&self.entry.room.room);
    }

    /// Sends one word if there is room.
    pub fn send(&self, spot: &Spot, space: u8, word: u64) -> Sent {
        let claim = match self.queue().claim(spot, space, || true) {
            Ok(claim) => claim,
            Err(ClaimError::Full { .. }) => return Sent::Full,
            Err(ClaimError::Closed) => return Sent::Closed,
        };
        let position = claim.position();
        claim.set_meta(0);
        claim.write(0, &[word]);
        match claim.publish() {
            Published::Done => Sent::Yes,
            Published::Wake => {
                self.wake_receiver();
                Sent::Yes
            }
            Published::Closed => {
                self.queue().withdraw(position);
                Sent::Closed
            }
        }
    }

    /// Sends one word, asleep while there is no room.
    pub fn send_waiting(&self, spot: &Spot, space: u8, word: u64) -> Sent {
        loop {
            match self.send(spot, space, word) {
                Sent::Full => {}
                other => return other,
            }
            let room = self.queue().announce_waiting();
            match self.send(spot, space, word) {
                Sent::Full => self.room.wait(&self.entry.room.room, room),
                other => return other,
            }
        }
    }

    /// Takes one word if there is one.
    pub fn receive(&self, cursor: &mut Cursor) -> Option<u64> {
        let queue = self.queue();
        let Next::Found(found) = queue.next(cursor) else {
            return None;
        };
        let mut word = [0];
        queue.slot(found.position()).read(0, &mut word);
        self.woken(queue.take(cursor, found));
        Some(word[0])
    }

    /// Takes one word, asleep while there is none; `None` once `done` and nothing is there.
    pub fn receive_waiting(&self, cursor: &mut Cursor, done: impl Fn() -> bool) -> Option<u64> {
        let queue = self.queue();
        loop {
            // Before the look: what was published before it was done is then found.
            let last = done();
            if let Some(word) = self.receive(cursor) {
                return Some(word);
            }
            self.woken(queue.settle_all(cursor));
            if last {
                return None;
            }
            let bell = self.entry.sleep.doorbell.load(Ordering::SeqCst);
            if queue.arm(cursor) && !done() {
                self.bell.wait(&self.entry.sleep.doorbell, bell);
            }
            queue.disarm(cursor);
        }
    }

    fn woken(&self, woken: Woken) {
        if woken == Woken::Senders {
            self.wake_senders();
        }
    }

    /// Takes all that is there.
    pub fn drain(&self, cursor: &mut Cursor) -> Vec<u64> {
        let words = core::iter::from_fn(|| self.receive(cursor)).collect();
        let _ = self.queue().settle_all(cursor);
        words
    }

    /// Fills and drains the whole ring, twice, to show that no slot is lost; some messages
    /// come first. `space` is the sender.
    pub fn is_usable(&self, cursor: &mut Cursor, space: u8) {
        let slots = self.queue().slots();
        assert_eq!(self.drain(cursor), [0; 0]);
        for lap in 0..2 {
            let spot = Spot::new(0);
            let words: Vec<u64> = (0..)
                .map(|i| 1000 + lap * 100 + i)
                .take_while(|w| self.send(&spot, space, *w) == Sent::Yes)
                .collect();
            assert_eq!(words.len(), slots, "slots are lost");
            assert_eq!(self.drain(cursor), words);
        }
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    Yes,
    Full,
    Closed,
}

/// A futex: sleeps only if the word still has the value.
#[derive(Default)]
pub struct Futex {
    lock: Mutex<()>,
    sleepers: Condvar,
}

impl Futex {
    pub fn wait(&self, word: &AtomicU32, value: u32) {
        let guard = self.lock.lock().unwrap();
        // As in the kernel: compared under the lock that wakers take.
        if word.load(Ordering::SeqCst) == value {
            drop(self.sleepers.wait(guard).unwrap());
        }
    }

    pub fn change_and_wake(&self, word: &AtomicU32) {
        word.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    pub fn wake(&self) {
        death::call();
        // The kernel takes its lock on the way.
        drop(self.lock.lock().unwrap());
        self.sleepers.notify_all();
    }
}
