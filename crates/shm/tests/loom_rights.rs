//! Rights, segments, watches and events of ports under the model checker.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p portolan-shm --release --target-dir target/loom \
//!     --test loom_rights -- --nocapture --test-threads 1
//! ```
//!
//! The bound of each model is the number in it; LOOM_MAX_PREEMPTIONS overrides it.
#![cfg(loom)]

mod support;

use loom::thread;
use portolan_abi::port::{PortName, PortPhase, PortStatus, event};
use portolan_shm::atomic::death;
use portolan_shm::atomic::{AtomicU64, Ordering, fence};
use portolan_shm::queue::PortEntry;
use portolan_shm::rights::{
    Doubt, Mark, RightEntry, RightRow, forget_mark, is_unused, joins_in_time,
};
use portolan_shm::watch::{WatchEntry, WatchPhase};
use support::{explore, explore_deaths, with};

/// What a slot of some queue holds of a message with one right in it.
const FREE: u64 = 0;
const PUBLISHED: u64 = 1;
const OVER: u64 = 2;

/// A port's entry, the rows of three spaces, and two slots that rights travel in.
struct World {
    ports: [PortEntry; 1],
    rows: [[RightEntry; 1]; 3],
    slot: AtomicU64,
    other: AtomicU64,
}

const fn name(generation: u32) -> PortName {
    PortName {
        index: 0,
        generation,
    }
}

/// The port of the models.
const PORT: PortName = name(1);
/// The spaces: a sender, a taker, and the host.
/// In the order in which rows are read: what moves while they are goes from a later to an earlier.
const TAKER: u8 = 1;
const SENDER: u8 = 2;
const HOST: u8 = 3;
const SPACES: core::ops::RangeInclusive<u8> = TAKER..=HOST;

impl World {
    /// The port is open, or a segment, and the sender has a right on it.
    fn new(shared: bool) -> Self {
        let world = Self {
            ports: [PortEntry::default()],
            rows: Default::default(),
            slot: AtomicU64::new(FREE),
            other: AtomicU64::new(FREE),
        };
        world.bind(PORT, shared);
        world.row(SENDER).add_send(PORT);
        // A right has travelled before.
        world.entry().rights.depart(world.entry(), PORT);
        world.entry().rights.arrive(world.entry(), PORT);
        world
    }

    fn bind(&self, port: PortName, shared: bool) {
        let status = PortStatus {
            phase: PortPhase::Open,
            shared,
            generation: port.generation,
            ..PortStatus::FRESH
        };
        let word = &self.entry().control.status;
        word.store(status.pack(), Ordering::Release);
    }

    fn entry(&self) -> &PortEntry {
        &self.ports[0]
    }

    fn row(&self, space: u8) -> RightRow<'_> {
        RightRow::new(&self.rows[usize::from(space - TAKER)], &self.ports)
    }

    fn is_unused(&self) -> bool {
        let is_there = |slot: &AtomicU64| slot.load(Ordering::Acquire) == PUBLISHED;
        let in_slots = || u32::from(is_there(&self.slot)) + u32::from(is_there(&self.other));
        let rows = || SPACES.map(|space| self.row(space));
        is_unused(self.entry(), PORT, rows, in_slots)
    }

    /// Sends the right, as the library does; whether the sender finds that none is left.
    fn send(&self) -> bool {
        let row = self.row(SENDER);
        row.moves(PORT);
        self.entry().rights.depart(self.entry(), PORT);
        // The line of no return.
        self.slot.swap(PUBLISHED, Ordering::SeqCst);
        row.departed(PORT) == 0 && self.is_unused()
    }

    /// Takes the message, if it is there.
    fn take(&self) -> bool {
        if self.slot.load(Ordering::Acquire) != PUBLISHED {
            return false;
        }
        let row = self.row(TAKER);
        row.arrives(PORT);
        self.slot.swap(OVER, Ordering::SeqCst);
        self.entry().rights.arrive(self.entry(), PORT);
        row.settled(PORT);
        true
    }

    /// Closes a slot that no receiver took from, and the right in it with it; whether none is left.
    fn dispose(&self, slot: &AtomicU64) -> bool {
        if slot.load(Ordering::Acquire) != PUBLISHED {
            return false;
        }
        let row = self.row(HOST);
        row.moves(PORT);
        slot.swap(OVER, Ordering::SeqCst);
        self.entry().rights.arrive(self.entry(), PORT);
        row.settled(PORT) == 0 && self.is_unused()
    }

    fn drop_right(&self, space: u8) -> bool {
        self.row(space).drop_send(PORT) == 0 && self.is_unused()
    }

    /// What the host does with the row of a dead space.
    fn reclaim(&self, space: u8) {
        if let Some(sends) = self.row(space).any_sends(0)
            && sends.moving > 0
        {
            self.entry().rights.doubt(self.entry(), PORT);
        }
        self.row(space).forget(0);
    }

    /// Closes the segment if no space has a right; whether it did.
    fn close_unused(&self, space: u8) -> bool {
        if !self.is_unused() {
            return false;
        }
        let Some(mark) = Mark::set(self.entry(), PORT, space) else {
            return false;
        };
        if self.is_unused() {
            mark.close()
        } else {
            mark.take_back();
            false
        }
    }

    fn is_open(&self) -> bool {
        let status = PortStatus::unpack(self.entry().control.status.load(Ordering::Acquire));
        status.phase == PortPhase::Open
    }
}

/// R2: a right that is under way while its sender counts is counted.
#[test]
fn a_right_that_travels_is_counted() {
    explore("send, take, count", 6, || {
        with(World::new(false), |world| {
            let (sender, taker) = (
                thread::spawn(|| world.send()),
                thread::spawn(|| world.take()),
            );
            assert!(!sender.join().unwrap(), "none is left, and one is there");
            let _ = taker.join().unwrap();
            assert!(!world.is_unused());
        });
    });
}

/// R2: a third space counts while a right goes from a row that it reads later to one that it has
/// read.
#[test]
fn a_right_that_moves_past_the_count_is_seen() {
    explore("send and take, count", 6, || {
        with(World::new(false), |world| {
            world.row(HOST).add_send(PORT);
            let mover = thread::spawn(|| (world.send(), world.take()));
            let third = thread::spawn(|| world.drop_right(HOST)).join().unwrap();
            let (sender, taken) = mover.join().unwrap();
            assert!(taken && !sender && !third, "none is left, and one is there");
            assert!(world.drop_right(TAKER));
        });
    });
}

/// R2: a count that may be too large is put right beside a taker: by what is too much, no more.
#[test]
fn a_doubtful_count_is_put_right_beside_a_taker() {
    explore("take, correct", 6, || {
        with(World::new(false), |world| {
            // Two rights travel. A third was counted by a space that has died.
            let row = world.row(SENDER);
            row.add_send(PORT);
            for slot in [&world.slot, &world.other] {
                row.moves(PORT);
                world.entry().rights.depart(world.entry(), PORT);
                slot.swap(PUBLISHED, Ordering::SeqCst);
                row.departed(PORT);
            }
            row.moves(PORT);
            world.entry().rights.depart(world.entry(), PORT);
            world.reclaim(SENDER);
            let counter = thread::spawn(|| world.is_unused());
            let last = world.take() && world.drop_right(TAKER);
            assert!(!last, "one is in the other slot");
            assert!(!counter.join().unwrap(), "one is in the other slot");
            assert!(!world.is_unused(), "one is in the other slot");
            world.dispose(&world.slot);
            assert!(world.dispose(&world.other), "the last one is noticed");
        });
    });
}

/// R2: the same, as the host does it for many ports, where a row has a right: beside a space that sends
/// one on. Then the count is what is in slots.
#[test]
fn a_count_is_put_right_beside_a_sender_and_a_taker() {
    explore("send, take, settle", 4, || {
        with(World::new(false), |world| {
            // A right that stays; one that a dead space has left in the count.
            let row = world.row(HOST);
            row.add_send(PORT);
            row.add_send(PORT);
            row.moves(PORT);
            world.entry().rights.depart(world.entry(), PORT);
            world.reclaim(HOST);
            world.row(HOST).add_send(PORT);
            let rows = || SPACES.map(|space| world.row(space));
            let count = || {
                let slots = [&world.slot, &world.other];
                let there = slots.map(|slot| slot.load(Ordering::Acquire) == PUBLISHED);
                there.map(u32::from).iter().sum::<u32>()
            };
            let settle = move || {
                let doubt = Doubt::of(world.entry(), PORT, rows);
                doubt.is_some_and(|doubt| {
                    let count = count();
                    doubt.settle(rows(), count)
                })
            };
            let host = thread::spawn(settle);
            let mover = thread::spawn(|| (world.send(), world.take()));
            let done = host.join().unwrap();
            mover.join().unwrap();
            assert!(done || settle(), "nothing moves any more");
            assert_eq!(world.entry().rights.count(PORT), count());
        });
    });
}

/// R2: of those who give up the last rights, one finds that none is left.
#[test]
fn the_last_right_is_noticed() {
    explore("send, take, drop, count", 6, || {
        with(World::new(false), |world| {
            let taker = thread::spawn(|| (world.take(), world.drop_or_not()));
            let sender = thread::spawn(|| world.send());
            let sender_knows = sender.join().unwrap();
            let (_, taker_knows) = taker.join().unwrap();
            let gone = world.slot.load(Ordering::Acquire) == OVER;
            assert_eq!(sender_knows || taker_knows, gone);
        });
    });
}

impl World {
    /// The taker drops its right, if it has one.
    fn drop_or_not(&self) -> bool {
        self.row(TAKER).sends(PORT) > 0 && self.drop_right(TAKER)
    }
}

/// R2: two spaces drop the last two rights at once.
#[test]
fn of_two_that_drop_the_last_rights_one_notices() {
    explore("drop, drop", 6, || {
        with(World::new(false), |world| {
            world.row(TAKER).add_send(PORT);
            let taker = thread::spawn(|| world.drop_right(TAKER));
            let one = world.drop_right(SENDER);
            assert!(taker.join().unwrap() | one);
        });
    });
}

/// R2: the sender dies anywhere, beside a taker; then what is left is counted rightly.
#[test]
fn a_sender_that_dies_leaves_a_count_that_is_put_right() {
    explore_deaths("the sender of a right", 5, |accesses| {
        with(World::new(false), |world| {
            let taker = thread::spawn(|| world.take());
            let died = death::after(accesses, || world.send()).is_none();
            if died {
                world.reclaim(SENDER);
            }
            // While the taker moves: the answer may be no, and is never a wrong yes.
            let early = world.is_unused();
            let taken = taker.join().unwrap();
            let left = taken || world.slot.load(Ordering::Acquire) == PUBLISHED;
            assert!(!(early && left), "none is left, and one is there");
            assert_eq!(world.is_unused(), !left);
            if taken {
                assert!(world.drop_right(TAKER), "the last one is noticed");
            } else if left {
                assert!(world.dispose(&world.slot), "the last one is noticed");
            }
            died
        })
    });
}

/// R2: the taker dies anywhere; the host closes what it had not taken, and counts.
#[test]
fn a_taker_that_dies_leaves_a_count_that_is_put_right() {
    explore_deaths("the taker of a right", 5, |accesses| {
        with(World::new(false), |world| {
            let host = thread::spawn(move || {
                let taken = death::after(accesses, || world.take());
                if taken.is_none() {
                    world.reclaim(TAKER);
                }
                (taken, taken.is_none() && world.is_unused())
            });
            let early = world.send();
            let (taken, by_host) = host.join().unwrap();
            let left = taken == Some(true) || world.slot.load(Ordering::Acquire) == PUBLISHED;
            assert!(!((early || by_host) && left));
            assert_eq!(world.is_unused(), !left);
            taken.is_none()
        })
    });
}

/// G1: a joiner that comes in time keeps the segment; one that comes too late finds out.
#[test]
fn who_joins_a_segment_in_time_keeps_it() {
    explore("join, close", 6, || {
        with(World::new(true), |world| {
            let joiner = thread::spawn(|| {
                world.row(TAKER).add_send(PORT);
                joins_in_time(world.entry(), PORT).is_some()
            });
            let closer = thread::spawn(|| {
                world.row(SENDER).drop_send(PORT);
                world.close_unused(SENDER)
            });
            let closed = closer.join().unwrap();
            let joined = joiner.join().unwrap();
            assert!(!(joined && closed), "closed, and somebody has a right");
            if joined {
                world.row(TAKER).drop_send(PORT);
                assert!(world.close_unused(TAKER), "nobody's, and still open");
            }
        });
    });
}

/// G2: a joiner that leaves again, and two closers: one of the three closes.
#[test]
fn a_segment_that_nobody_has_is_closed_once() {
    explore("join, leave, close", 6, || {
        with(World::new(true), |world| {
            let joiner = thread::spawn(|| {
                let row = world.row(TAKER);
                row.add_send(PORT);
                joins_in_time(world.entry(), PORT);
                row.drop_send(PORT) == 0 && world.close_unused(TAKER)
            });
            let closer = thread::spawn(|| {
                world.row(SENDER).drop_send(PORT);
                world.close_unused(SENDER)
            });
            let one = closer.join().unwrap();
            let two = joiner.join().unwrap();
            assert!(one != two, "closed by {}", u8::from(one) + u8::from(two));
            assert!(!world.is_open());
        });
    });
}

/// G1: a closer dies anywhere; the host takes its mark back, and closes.
#[test]
fn a_closer_that_dies_leaves_a_segment_that_is_closed() {
    explore_deaths("the closer of a segment", 5, |accesses| {
        with(World::new(true), |world| {
            let joiner = thread::spawn(|| {
                let row = world.row(TAKER);
                row.add_send(PORT);
                let joined = joins_in_time(world.entry(), PORT).is_some();
                row.drop_send(PORT);
                joined && world.close_unused(TAKER)
            });
            let outcome = death::after(accesses, || {
                world.row(SENDER).drop_send(PORT);
                world.close_unused(SENDER)
            });
            if outcome.is_none() {
                world.row(SENDER).forget(0);
                let status = world.entry().control.status.load(Ordering::Acquire);
                let status = PortStatus::unpack(status);
                if status.phase == PortPhase::Open && status.owner == SENDER && status.shared {
                    forget_mark(world.entry(), status);
                }
            }
            joiner.join().unwrap();
            if outcome.is_none() && world.is_open() {
                assert!(world.close_unused(HOST));
            }
            assert!(!world.is_open());
            outcome.is_none()
        })
    });
}

/// R1, R3: counts of one row by several threads, of a port and of the next one of its entry.
#[test]
fn counts_of_a_row_add_up() {
    explore("rights", 3, || {
        with(World::new(false), |world| {
            let row = world.row(SENDER);
            let next = name(2);
            let dropper = thread::spawn(move || row.drop_send(PORT));
            world.bind(next, false);
            let adder = thread::spawn(move || row.add_send(next));
            row.add_send(next);
            dropper.join().unwrap();
            adder.join().unwrap();
            assert_eq!((row.sends(PORT), row.sends(next)), (0, 2));
        });
    });
}

/// N1: a process that fires a watch that was dropped and armed anew meanwhile fires nothing.
#[test]
fn a_watch_is_not_fired_for_an_earlier_one() {
    explore("fire, drop, arm", 3, || {
        with([WatchEntry::default()], |[entry]| {
            let armed = entry.take(1).unwrap();
            entry.arm(armed, WatchPhase::Armed, [10, 20, 30]);
            let closer = thread::spawn(|| entry.fire(10));
            assert!(entry.free_if(|_, entry| entry.notify.load(Ordering::Acquire) == 20));
            let again = entry.take(1).unwrap();
            entry.arm(again, WatchPhase::Armed, [11, 21, 31]);
            let told = closer.join().unwrap();
            assert!(matches!(told, None | Some(20)), "told {told:?}");
            assert_eq!(entry.watch().phase, WatchPhase::Armed);
            assert_eq!(entry.take_fired(21), None);
            assert_eq!(entry.fire(11), Some(21));
            assert_eq!(entry.take_fired(21), Some(31));
        });
    });
}

/// N3: a watcher that arms and an owner that says that its node is silent: the later one sees the
/// other's store, and the notice is taken once.
#[test]
fn a_change_of_reach_is_told_to_a_watch_that_is_armed_meanwhile() {
    explore("arm, change", 3, || {
        with(
            (WatchEntry::default(), AtomicU64::new(0), AtomicU64::new(0)),
            |(entry, silent, raised)| {
                let owner = thread::spawn(move || {
                    silent.store(1, Ordering::Release);
                    fence(Ordering::SeqCst);
                    if entry.of_reach(10).is_some() {
                        raised.fetch_or(1, Ordering::SeqCst);
                    }
                });
                let writing = entry.take(1).unwrap();
                entry.arm(writing, WatchPhase::Reachable, [10, 20, 30]);
                fence(Ordering::SeqCst);
                if silent.load(Ordering::Acquire) == 1 {
                    raised.fetch_or(1, Ordering::SeqCst);
                }
                owner.join().unwrap();
                assert_eq!(raised.load(Ordering::SeqCst), 1);
                let reach = |_| Some(silent.load(Ordering::Acquire) == 1);
                assert_eq!(entry.take_reach(20, reach), Some((30, true)));
                assert_eq!(entry.take_reach(20, reach), None);
            },
        );
    });
}

/// N1, N3: a port that dies while its receiver looks is told of as dead, once, and not as back.
#[test]
fn a_port_that_dies_is_not_told_of_as_reached() {
    explore("reach, fire", 3, || {
        with([WatchEntry::default()], |[entry]| {
            let writing = entry.take(1).unwrap();
            entry.arm(writing, WatchPhase::Reachable, [10, 20, 30]);
            let closer = thread::spawn(|| entry.fire(10));
            let told = entry.take_reach(20, |_| Some(true));
            assert!(matches!(told, None | Some((30, true))));
            assert_eq!(closer.join().unwrap(), Some(20));
            assert_eq!(entry.take_fired(20), Some(30));
            assert_eq!(entry.take_reach(20, |_| Some(false)), None);
        });
    });
}

/// E1: an event for a port that is closed meanwhile is not told to the next one of its entry.
#[test]
fn an_event_is_told_to_its_port_or_to_none() {
    explore("raise, bind", 3, || {
        with(World::new(false), |world| {
            let entry = world.entry();
            entry.sleep.clear_events(1);
            let closer = thread::spawn(|| {
                entry.sleep.raise(1, event::NO_MORE_SENDERS);
                entry.note_unanswered(PORT, 7);
            });
            let other = thread::spawn(|| entry.sleep.raise(2, event::DEAD_NAME));
            entry.sleep.clear_events(2);
            world.bind(name(2), false);
            assert!(entry.note_unanswered(name(2), 9));
            let early = entry.sleep.events_of(2);
            closer.join().unwrap();
            let told = other.join().unwrap();
            let expected = if told { event::DEAD_NAME } else { 0 };
            assert_eq!(entry.sleep.events_of(2), expected);
            assert_eq!(early & !event::DEAD_NAME, 0);
            assert_eq!(entry.unanswered(name(2)), Some(9));
        });
    });
}

/// E1: a receiver takes the event back, and then counts: it is told that no right is left, though
/// others are made and dropped meanwhile.
#[test]
fn the_end_of_the_last_right_is_told_beside_one_that_comes_and_goes() {
    explore("take an event, make, drop", 3, || {
        with(World::new(false), |world| {
            let sleep = &world.entry().sleep;
            sleep.clear_events(1);
            let drops = |space: u8| {
                if world.drop_right(space) {
                    sleep.raise(1, event::NO_MORE_SENDERS);
                }
            };
            let sender = thread::spawn(move || drops(SENDER));
            // Another thread of the receiver's.
            let maker = thread::spawn(move || {
                world.row(TAKER).add_send(PORT);
                drops(TAKER);
            });
            let take = || {
                let is_raised = sleep.events_of(1) & event::NO_MORE_SENDERS != 0;
                is_raised && {
                    sleep.take_event(event::NO_MORE_SENDERS);
                    world.is_unused()
                }
            };
            let early = take();
            sender.join().unwrap();
            maker.join().unwrap();
            assert!(early || take(), "nobody tells it");
        });
    });
}
