//! The queue on the processor's own atomics, with real threads: short, and without clocks.
//! What goes wrong here shows as a wrong order, or as a test that never ends.
#![cfg(not(loom))]

use portolan_shm::atomic::{AtomicU32, Ordering};
use portolan_shm::queue::{
    ClaimError, Cursor, Line, Next, PortEntry, Published, Queue, Spot, Woken,
};
use std::sync::{Condvar, Mutex};
use std::thread;

const SENDERS: u8 = 4;
const MESSAGES: u64 = if cfg!(miri) { 20 } else { 20_000 };

/// Sleeps while the word has the value.
#[derive(Default)]
struct Futex {
    lock: Mutex<()>,
    sleepers: Condvar,
}

impl Futex {
    fn wait(&self, word: &AtomicU32, value: u32) {
        let mut guard = self.lock.lock().unwrap();
        while word.load(Ordering::SeqCst) == value {
            guard = self.sleepers.wait(guard).unwrap();
        }
    }

    fn change_and_wake(&self, word: &AtomicU32) {
        word.fetch_add(1, Ordering::SeqCst);
        drop(self.lock.lock().unwrap());
        self.sleepers.notify_all();
    }
}

/// A small generator, so that each run differs from thread to thread and from none to none.
struct Dice(u64);

impl Dice {
    fn one_in(&mut self, n: u64) -> bool {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.is_multiple_of(n)
    }
}

/// `stall`: one in so many claims is published late. `sleep`: both sides sleep.
fn run(slots: usize, stall: u64, sleep: bool) {
    let entry = PortEntry::default();
    let lines: Vec<Line> = (0..slots).map(|_| Line::new()).collect();
    let queue = Queue::new(&entry, &lines, 1).unwrap();
    queue.open(0);
    let (bell, room) = (Futex::default(), Futex::default());
    let send = |sender: u8| {
        let spot = Spot::default();
        let mut dice = Dice(u64::from(sender) * 0x9e37_79b9 + 1);
        for i in 0..MESSAGES {
            let claim = loop {
                let space = sender + 1;
                match queue.claim(&spot, space, || true) {
                    Ok(claim) => break claim,
                    Err(ClaimError::Closed) => panic!("closed"),
                    Err(ClaimError::Full { .. }) if !sleep => thread::yield_now(),
                    Err(ClaimError::Full { .. }) => {
                        let value = queue.announce_waiting();
                        match queue.claim(&spot, space, || true) {
                            Ok(claim) => break claim,
                            Err(_) => room.wait(&entry.room.room, value),
                        }
                    }
                }
            };
            claim.write(0, &[u64::from(sender), i]);
            if dice.one_in(stall) {
                (0..4).for_each(|_| thread::yield_now());
            }
            if claim.publish() == Published::Wake {
                bell.change_and_wake(&entry.sleep.doorbell);
            }
        }
    };
    thread::scope(|scope| {
        for sender in 0..SENDERS {
            scope.spawn(move || send(sender));
        }
        let mut cursor = Cursor::resume(&queue);
        let mut next = [0; SENDERS as usize];
        let wake = |woken| {
            if woken == Woken::Senders {
                room.change_and_wake(&entry.room.room);
            }
        };
        while next.iter().sum::<u64>() < u64::from(SENDERS) * MESSAGES {
            if let Next::Found(found) = queue.next(&mut cursor) {
                let mut words = [0; 2];
                queue.slot(found.position()).read(0, &mut words);
                wake(queue.take(&mut cursor, found));
                let expected = &mut next[usize::try_from(words[0]).unwrap()];
                assert_eq!(words[1], *expected, "sender {}", words[0]);
                *expected += 1;
                continue;
            }
            wake(queue.settle_all(&mut cursor));
            if !sleep {
                thread::yield_now();
                continue;
            }
            let value = entry.sleep.doorbell.load(Ordering::SeqCst);
            if queue.arm(&mut cursor) {
                bell.wait(&entry.sleep.doorbell, value);
            }
            queue.disarm(&mut cursor);
        }
        assert_eq!(queue.next(&mut cursor), Next::Empty);
    });
}

#[test]
fn four_senders_poll_and_keep_their_order() {
    run(4, u64::MAX, false);
}

#[test]
fn senders_that_stall_are_passed() {
    run(4, 50, false);
    run(2, 50, false);
}

#[test]
fn both_sides_sleep_and_are_woken() {
    run(4, 200, true);
    run(2, 200, true);
}
