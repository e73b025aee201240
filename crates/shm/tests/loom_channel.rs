//! Channels, every interleaving: overtaken readers, sleepers, writers that wait, deaths.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p portolan-shm --release --target-dir target/loom \
//!     --test loom_channel -- --nocapture --test-threads 1
//! ```
#![cfg(loom)]

mod modes;
mod support;

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::thread;
use modes::{CALLED_ON, LOSSY, RELIABLE};
use portolan_abi::channel::Shape;
use portolan_shm::atomic::death::after;
use portolan_shm::atomic::{AtomicU64, Ordering, asked};
use portolan_shm::channel::{
    Barriers, Channel, Finished, Head, Lagging, Look, Meta, Mode, Pen, ReaderEntry, Reading, Since,
};
use support::{Futex, explore, explore_deaths, with};

/// How readers come by a writer's barriers.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// It makes its own, always.
    Itself,
    /// The kernel has it make one.
    Kernel,
    /// Readers wait until its stores are seen, as they are after any barrier.
    Time,
    /// They do not.
    Mistake,
}

impl Barriers for By {
    fn everywhere(&self) -> bool {
        match self {
            Self::Itself => panic!("nobody asks then"),
            Self::Kernel => asked::everywhere(),
            Self::Mistake => {}
            Self::Time => return false,
        }
        true
    }

    fn by_time(&self) {
        asked::everywhere();
    }
}

struct World {
    barriers: By,
    head: Head,
    readers: Vec<ReaderEntry>,
    words: Vec<AtomicU64>,
    bell: Futex,
    room: Futex,
}

impl World {
    fn new(mode: Mode) -> Self {
        Self::with_barriers(mode, By::Itself)
    }

    fn with_barriers(mode: Mode, barriers: By) -> Self {
        let shape = Shape::new(64, 4, 2).unwrap();
        let world = Self {
            barriers,
            head: Head::default(),
            readers: (0..2).map(|_| ReaderEntry::default()).collect(),
            words: (0..32).map(|_| AtomicU64::new(0)).collect(),
            bell: Futex::default(),
            room: Futex::default(),
        };
        Channel::make(&world.head, &world.readers, &world.words, shape, mode).unwrap();
        world
    }

    fn channel(&self) -> Channel<'_> {
        Channel::open(&self.head, &self.readers, &self.words).unwrap()
    }

    /// A message whose two words are both `n`.
    fn write(&self, pen: &mut Pen, n: u64) -> bool {
        let message = [n.to_le_bytes(), n.to_le_bytes()].concat();
        match self.channel().write(pen, &[&message]) {
            Ok(Finished::Wake) => self.bell.wake(),
            Ok(Finished::Done) => {}
            Err(_) => return false,
        }
        true
    }

    fn write_waiting(&self, pen: &mut Pen, n: u64) {
        while !self.write(pen, n) {
            if let Some(bell) = self.channel().wait_for_room(pen, 1) {
                self.room.wait(&self.head.room.room, bell);
            }
        }
    }

    fn read(&self, reading: &mut Reading) -> Option<u64> {
        let channel = self.channel();
        loop {
            let mut out = [0; 16];
            // Half of them in one go.
            if reading.position().is_multiple_of(2)
                && let Some((len, finished)) = channel.take_one(reading, &mut out)
            {
                self.owed(finished);
                let n = u64::from_le_bytes(out[..8].try_into().unwrap());
                assert_eq!((len, &out[8..]), (16, &n.to_le_bytes()[..]), "torn");
                return Some(n);
            }
            match channel.look(reading) {
                Look::Nothing => return None,
                Look::Missed(_) => {}
                Look::Dropped => panic!("dropped"),
                Look::Garbled(why) => panic!("{why}"),
                Look::Unit { len, flags } => {
                    assert_eq!((len, flags), (16, Meta::FIRST | Meta::LAST | Meta::CLOSED));
                    if channel.copy(reading, &mut out) != Some(16) {
                        continue;
                    }
                    let whole = !channel.mode().many_writers || channel.is_whole(reading, &out);
                    self.owed(channel.advance(reading, 16, true));
                    if whole {
                        let n = u64::from_le_bytes(out[..8].try_into().unwrap());
                        assert_eq!(out[8..], n.to_le_bytes(), "torn");
                        return Some(n);
                    }
                }
            }
        }
    }

    fn owed(&self, finished: Finished) {
        if finished == Finished::Wake {
            self.room.wake();
        }
    }

    fn read_waiting(&self, reading: &mut Reading, over: &AtomicBool) -> Option<u64> {
        loop {
            let last = over.load(Ordering::SeqCst);
            if let Some(n) = self.read(reading) {
                return Some(n);
            }
            if last {
                return None;
            }
            let (bell, owed) = self.channel().arm(reading, &self.barriers);
            self.owed(owed);
            if let Some(bell) = bell
                && !over.load(Ordering::SeqCst)
            {
                self.bell.wait(&self.head.sleep.doorbell, bell);
            }
        }
    }
}

#[test]
fn an_overtaken_reader_never_sees_a_torn_unit() {
    explore("five messages over four units, a reader", 2, || {
        with(World::new(LOSSY), |world| {
            let mut reading = world.channel().start_reading(Since::Now);
            let mut pen = world.channel().resume_writing(1);
            for n in 0..4 {
                assert!(world.write(&mut pen, n));
            }
            let writer = thread::spawn(move || assert!(world.write(&mut pen, 4)));
            let first = world.read(&mut reading);
            assert!(first.is_some_and(|n| n <= 4));
            writer.join().unwrap();
            let mut last = first;
            while let Some(n) = world.read(&mut reading) {
                assert!(Some(n) > last);
                last = Some(n);
            }
            assert_eq!(last, Some(4));
        });
    });
}

/// The same of a unit that is not read in one go.
#[test]
fn an_overtaken_reader_never_sees_a_torn_unit_that_it_looked_at() {
    explore("six messages over four units, a reader", 2, || {
        with(World::new(LOSSY), |world| {
            let mut reading = world.channel().start_reading(Since::Now);
            let mut pen = world.channel().resume_writing(1);
            for n in 0..5 {
                assert!(world.write(&mut pen, n));
                if n == 0 {
                    assert_eq!(world.read(&mut reading), Some(0));
                }
            }
            let writer = thread::spawn(move || assert!(world.write(&mut pen, 5)));
            let first = world.read(&mut reading);
            assert!(first.is_some_and(|n| n > 0), "{first:?}");
            writer.join().unwrap();
        });
    });
}

#[test]
fn no_reader_sleeps_on() {
    explore("two messages, a reader that sleeps", 3, || {
        with(World::new(LOSSY), |world| {
            let mut reading = world.channel().start_reading(Since::Now);
            let writer = thread::spawn(move || {
                let mut pen = world.channel().resume_writing(1);
                assert!(world.write(&mut pen, 1) && world.write(&mut pen, 2));
            });
            let over = AtomicBool::new(false);
            assert_eq!(world.read_waiting(&mut reading, &over), Some(1));
            assert_eq!(world.read_waiting(&mut reading, &over), Some(2));
            writer.join().unwrap();
        });
    });
}

/// A writer that stops making barriers of its own, and a reader that sleeps (M6).
fn relaxing(world: &'static World) {
    let mut reading = world.channel().start_reading(Since::Now);
    let writer = thread::spawn(move || {
        asked::answering(|| {
            let mut pen = world.channel().resume_writing(1);
            pen.relax_when(|| true);
            assert!((1..=3).all(|n| world.write(&mut pen, n)));
        });
    });
    let over = AtomicBool::new(false);
    for n in 1..=3 {
        assert_eq!(world.read_waiting(&mut reading, &over), Some(n));
    }
    writer.join().unwrap();
}

#[test]
fn no_reader_sleeps_on_beside_a_writer_without_barriers() {
    for (name, barriers) in [("by the kernel", By::Kernel), ("by time", By::Time)] {
        let name = format!("three messages, a reader that sleeps, barriers {name}");
        explore(&name, 2, move || {
            with(World::with_barriers(LOSSY, barriers), relaxing)
        });
    }
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_any_barrier_it_would() {
    explore("the same, and no barrier", 2, || {
        with(World::with_barriers(LOSSY, By::Mistake), relaxing);
    });
}

#[test]
fn no_writer_sleeps_on_and_nothing_is_overwritten() {
    explore(
        "a full channel, a writer that waits, a reader that sleeps",
        2,
        || {
            with(World::new(RELIABLE), |world| {
                let channel = world.channel();
                let mut reading = channel.join(2, Lagging::Wait, Since::Now).unwrap();
                let mut pen = channel.resume_writing(1);
                for n in 0..4 {
                    assert!(world.write(&mut pen, n));
                }
                let writer = thread::spawn(move || {
                    world.write_waiting(&mut pen, 4);
                    world.write_waiting(&mut pen, 5);
                });
                let over = AtomicBool::new(false);
                for n in 0..6 {
                    assert_eq!(world.read_waiting(&mut reading, &over), Some(n));
                }
                writer.join().unwrap();
            });
        },
    );
}

#[test]
fn a_reader_that_joins_is_waited_for() {
    explore("joining a channel that is being written", 2, || {
        with(World::new(RELIABLE), |world| {
            let writer = thread::spawn(move || {
                let mut pen = world.channel().resume_writing(1);
                (0..6).take_while(|n| world.write(&mut pen, *n)).count() as u64
            });
            let mut reading = world.channel().join(2, Lagging::Wait, Since::Now).unwrap();
            let from = reading.position();
            let written = writer.join().unwrap();
            for n in from..written {
                assert_eq!(world.read(&mut reading), Some(n));
            }
            assert_eq!(world.read(&mut reading), None);
        });
    });
}

#[test]
fn callers_do_not_mix() {
    explore("two writers, a reader", 2, || {
        with(World::new(CALLED_ON), |world| {
            let callers = [1u8, 2].map(|space| {
                thread::spawn(move || {
                    let mut pen = world.channel().resume_writing(space);
                    assert!(world.write(&mut pen, u64::from(space)));
                })
            });
            let mut reading = world.channel().start_reading(Since::Last(3));
            let mut got: Vec<u64> = world.read(&mut reading).into_iter().collect();
            for caller in callers {
                caller.join().unwrap();
            }
            got.extend(core::iter::from_fn(|| world.read(&mut reading)));
            got.sort_unstable();
            assert_eq!(got, [1, 2]);
        });
    });
}

#[test]
fn a_writer_dies() {
    explore_deaths("writer, reader asleep", 2, |k| {
        with(World::new(RELIABLE), |world| {
            let channel = world.channel();
            let mut reading = channel.join(2, Lagging::Wait, Since::Now).unwrap();
            let over = Arc::new(AtomicBool::new(false));
            let victim = thread::spawn(move || {
                after(k, || {
                    let mut pen = world.channel().resume_writing(1);
                    assert!(world.write(&mut pen, 1) && world.write(&mut pen, 2));
                })
                .is_none()
            });
            let seen = Arc::clone(&over);
            let reader = thread::spawn(move || {
                let got: Vec<u64> =
                    core::iter::from_fn(|| world.read_waiting(&mut reading, &seen)).collect();
                (got, reading)
            });
            let died = victim.join().unwrap();
            world.channel().bury(1);
            over.store(true, Ordering::SeqCst);
            world.bell.ring(&world.head.sleep.doorbell);
            let (mut got, mut reading) = reader.join().unwrap();
            // Another goes on where it stopped: what it had not finished is written anew.
            let mut pen = channel.resume_writing(3);
            assert!(world.write(&mut pen, 3));
            got.extend(core::iter::from_fn(|| world.read(&mut reading)));
            let unfinished = [vec![1, 2, 3], vec![1, 3], vec![3]];
            assert!(
                unfinished[..if died { 3 } else { 1 }].contains(&got),
                "{got:?}"
            );
            died
        })
    });
}
