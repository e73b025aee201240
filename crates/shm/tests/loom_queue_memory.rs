//! Queue memory under the model checker: binders that take and give back banks, one of them
//! dead at any step, and a sender that comes when its port's memory is another port's.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p portolan-shm --release --target-dir target/loom \
//!     --test loom_queue_memory -- --nocapture --test-threads 1
//! ```
//!
//! The bound of each model is the number in it; LOOM_MAX_PREEMPTIONS overrides it.
#![cfg(loom)]

mod support;

use loom::thread;
use portolan_abi::slot::SlotState;
use portolan_shm::atomic::death::after;
use portolan_shm::atomic::{AtomicU32, AtomicU64, Ordering};
use portolan_shm::queue::{CloseStep, Cursor, Line, Next, PortEntry, Published, Queue, Spot};
use portolan_shm::queue_memory::{BankHints, BankOwner, QueueMemory};
use support::{explore, explore_deaths, with};

const BANKS: usize = 4;

/// The words of four banks, what each of three ports has named, and who uses a bank now.
#[derive(Default)]
struct Heap {
    hints: BankHints,
    taken: [AtomicU64; 1],
    memory: [AtomicU64; 1],
    owners: [AtomicU32; BANKS],
    named: [AtomicU64; 3],
    users: [AtomicU32; BANKS],
}

impl Heap {
    fn memory(&self) -> QueueMemory<'_> {
        QueueMemory::new(&self.hints, &self.taken, &self.memory, &self.owners)
    }

    /// As a binder does; the first bank.
    fn take(&self, port: u16, count: usize) -> Option<usize> {
        let named = &self.named[usize::from(port)];
        let name = |bank| named.store(u64::from(bank) << 8 | count as u64, Ordering::Release);
        let first = self.memory().take(BankOwner::port(port), count, name)?;
        let first = usize::try_from(first).unwrap();
        self.memory().note_memory(first, count);
        Some(first)
    }

    /// Uses a run that it has, and gives it back: no other port uses any of it meanwhile.
    fn use_and_give_back(&self, port: u16, first: usize, count: usize, empty: bool) {
        for user in &self.users[first..first + count] {
            assert_eq!(user.swap(1, Ordering::Relaxed), 0, "two use one bank");
        }
        for user in &self.users[first..first + count] {
            user.store(0, Ordering::Relaxed);
        }
        if empty {
            self.memory().note_empty(first, count);
        }
        self.memory().give_back(BankOwner::port(port), first, count);
    }

    /// The host: gives back what a dead binder had, which its entry leads to (U2).
    fn reclaim(&self, port: u16) {
        let named = self.named[usize::from(port)].load(Ordering::Acquire);
        let (first, count) = (named >> 8, named & 0xff);
        let first = usize::try_from(first).unwrap();
        let count = usize::try_from(count).unwrap();
        self.memory().give_back(BankOwner::port(port), first, count);
    }

    /// Nothing is lost: every bank can be taken, at once and one by one.
    fn is_whole(&self) {
        assert_eq!(
            self.taken[0].load(Ordering::SeqCst),
            0,
            "bits of free banks"
        );
        assert_eq!(self.take(2, BANKS), Some(0));
        self.use_and_give_back(2, 0, BANKS, true);
        assert_eq!(self.memory().with_memory(), 0);
        for bank in 0..BANKS {
            assert_eq!(self.take(2, 1), Some(bank));
        }
        (0..BANKS).for_each(|bank| self.use_and_give_back(2, bank, 1, true));
    }
}

/// U1, U3: of binders that want the same banks, each gets its own.
#[test]
fn no_bank_has_two_owners() {
    explore("two binders", 3, || {
        with(Heap::default(), |heap| {
            let other = thread::spawn(|| {
                let first = heap.take(0, 4);
                if let Some(first) = first {
                    heap.use_and_give_back(0, first, 4, false);
                }
            });
            for _ in 0..2 {
                let first = heap.take(1, 2);
                if let Some(first) = first {
                    heap.use_and_give_back(1, first, 2, true);
                }
            }
            other.join().unwrap();
            heap.is_whole();
        });
    });
}

/// U2: whatever a binder had taken when it died, its entry leads to it.
#[test]
fn a_binder_dies() {
    explore_deaths("binder", 2, |k| {
        with(Heap::default(), |heap| {
            let victim = thread::spawn(move || {
                after(k, || {
                    let first = heap.take(0, 2);
                    if let Some(first) = first {
                        heap.use_and_give_back(0, first, 2, true);
                    }
                })
                .is_none()
            });
            let live = heap.take(1, 1).unwrap();
            let died = victim.join().unwrap();
            if died {
                heap.reclaim(0);
                // And once more, by the host that comes after one that died here.
                heap.reclaim(0);
                heap.users
                    .iter()
                    .for_each(|user| user.store(0, Ordering::Relaxed));
            }
            assert!(heap.memory().has(BankOwner::port(1), live, 1));
            heap.use_and_give_back(1, live, 1, true);
            heap.is_whole();
            died
        })
    });
}

/// A host that dies while it gives back what a dead binder had, beside a live binder.
#[test]
fn a_host_dies_over_a_dead_binder() {
    explore_deaths("host", 2, |k| {
        with(Heap::default(), |heap| {
            assert_eq!(heap.take(0, 2), Some(0));
            let host = thread::spawn(move || after(k, || heap.reclaim(0)).is_none());
            let live = heap.take(1, 1).unwrap();
            let died = host.join().unwrap();
            heap.reclaim(0);
            assert!(heap.memory().has(BankOwner::port(1), live, 1));
            heap.use_and_give_back(1, live, 1, true);
            heap.is_whole();
            died
        })
    });
}

/// Four slots of memory, two entries, and the position beyond which queues begin.
#[derive(Default)]
struct World {
    lines: [Line; 4],
    entries: [PortEntry; 2],
    positions: AtomicU64,
    spot: Spot,
}

impl World {
    /// Port `entry` over some of the memory.
    fn queue(&self, entry: usize, lines: core::ops::Range<usize>) -> Queue<'_> {
        Queue::new(&self.entries[entry], &self.lines[lines], 1).unwrap()
    }

    /// Opens it as a port of this generation.
    fn open(&self, entry: usize, lines: core::ops::Range<usize>, generation: u64) -> Queue<'_> {
        let queue = self.queue(entry, lines);
        queue.open(self.positions.load(Ordering::Acquire));
        let status = &queue.port.control.status;
        status.store(generation, Ordering::Release);
        queue
    }

    /// Closes it and gives entry and memory back, if no sender has a slot; what it held.
    fn close(&self, queue: &Queue<'_>) -> (Vec<u64>, bool) {
        queue.port.control.status.store(0, Ordering::SeqCst);
        let mut held = Vec::new();
        for index in 0..queue.slots() as u64 {
            while let CloseStep::Message { position } = queue.close_slot(index) {
                let mut word = [0];
                queue.slot(position).read(0, &mut word);
                held.push(word[0]);
                queue.close_drained(position);
            }
        }
        let retired = queue.retired();
        if let Some(retired) = retired {
            self.positions.fetch_max(retired, Ordering::SeqCst);
        }
        (held, retired.is_some())
    }

    /// Sends to the port of this generation; whether it came.
    fn send(&self, queue: &Queue<'_>, generation: u64) -> bool {
        let lives = || queue.port.control.status.load(Ordering::Acquire) == generation;
        if !lives() {
            return false;
        }
        let Ok(claim) = queue.claim(&self.spot, 1, lives) else {
            return false;
        };
        if !lives() {
            claim.abandon();
            return false;
        }
        let position = claim.position();
        claim.set_meta(0);
        claim.write(0, &[11]);
        if claim.publish() == Published::Closed {
            queue.withdraw(position);
            return false;
        }
        true
    }
}

/// A port without a sender holds nothing, and has all of its slots and its place in order.
fn is_untouched(queue: &Queue<'_>, from: u64) {
    let slots = queue.slots() as u64;
    for position in from..from + slots {
        let state = queue.slot(position).state(Ordering::Acquire);
        assert_eq!(state, SlotState::free(position));
    }
    assert_eq!(queue.port.sender.left_out.load(Ordering::SeqCst), from);
    let mut cursor = Cursor::resume(queue);
    assert_eq!(queue.next(&mut cursor), Next::Empty);
}

/// U4, U5: a sender is late; meanwhile its port's memory becomes part of a port with twice as
/// many slots, and its port's entry one over other memory.
#[test]
fn a_late_sender_finds_memory_and_entry_cut_anew() {
    for sent_before in 0..=2 {
        explore(
            &format!("late sender, {sent_before} sent before"),
            3,
            move || {
                with(World::default(), |world| {
                    let old = world.open(0, 0..2, 1);
                    let mut cursor = Cursor::resume(&old);
                    for _ in 0..sent_before {
                        assert!(world.send(&old, 1));
                        let Next::Found(found) = old.next(&mut cursor) else {
                            panic!("nothing came");
                        };
                        let _ = old.take(&mut cursor, found);
                    }
                    let _ = old.settle(&mut cursor);
                    let late = thread::spawn(move || world.send(&old, 1));
                    let (held, free) = world.close(&old);
                    if free {
                        // The wider one first, so that the entry's new port is at other positions.
                        let from = world.positions.load(Ordering::Acquire);
                        let wide = world.open(1, 0..4, 2);
                        is_untouched(&wide, from);
                        let came = late.join().unwrap();
                        assert_eq!(held.len(), usize::from(came));
                        is_untouched(&wide, from);
                    } else {
                        let came = late.join().unwrap();
                        assert!(!came && held.is_empty());
                        assert!(old.retired().is_some());
                    }
                });
            },
        );
    }
}

/// The same, and its entry is a port over other memory, whose words must not lead it astray.
#[test]
fn a_late_sender_finds_its_entry_in_use() {
    explore("late sender, entry in use", 3, || {
        with(World::default(), |world| {
            let old = world.open(0, 0..2, 1);
            let late = thread::spawn(move || world.send(&old, 1));
            let (held, free) = world.close(&old);
            if free {
                let from = world.positions.load(Ordering::Acquire);
                // Its memory has a port with the same positions as its entry's new one.
                let other = world.open(1, 0..2, 2);
                let again = world.open(0, 2..4, 3);
                let came = late.join().unwrap();
                assert_eq!(held.len(), usize::from(came));
                is_untouched(&other, from);
                is_untouched(&again, from);
            } else {
                assert!(!late.join().unwrap() && held.is_empty());
            }
        });
    });
}

/// The sender goes on past slots that are passed, and so beyond the last position.
#[test]
fn a_late_sender_goes_past_what_is_passed() {
    explore("late sender, slots passed", 3, || {
        with(World::default(), |world| {
            let old = world.open(0, 0..2, 1);
            let mut cursor = Cursor::resume(&old);
            assert!(world.send(&old, 1) && world.send(&old, 1));
            old.pass_published(&mut cursor, |_| 0);
            let late = thread::spawn(move || world.send(&old, 1));
            let (held, free) = world.close(&old);
            assert!(free && held.len() == 2, "there is no room for a third");
            let from = world.positions.load(Ordering::Acquire);
            let wide = world.open(1, 0..4, 2);
            assert!(!late.join().unwrap());
            is_untouched(&wide, from);
        });
    });
}

/// Memory that was given to the system reads as zero.
#[test]
fn a_late_sender_finds_memory_without_content() {
    explore("late sender, no memory", 3, || {
        with(World::default(), |world| {
            let old = world.open(0, 0..2, 1);
            let late = thread::spawn(move || world.send(&old, 1));
            let (held, free) = world.close(&old);
            if free {
                for line in &world.lines[0..2] {
                    // Not a store: see `QueueMemory::give_back`.
                    line.words[0].swap(0, Ordering::SeqCst);
                }
                let again = world.open(0, 2..4, 3);
                let from = world.positions.load(Ordering::Acquire);
                assert_eq!(late.join().unwrap(), held.len() == 1);
                is_untouched(&again, from);
                for line in &world.lines[0..2] {
                    assert_eq!(line.words[0].load(Ordering::SeqCst), 0);
                }
            } else {
                assert!(!late.join().unwrap() && held.is_empty());
            }
        });
    });
}
