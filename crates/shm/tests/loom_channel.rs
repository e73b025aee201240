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
use portolan_shm::atomic::death::after;
use portolan_shm::atomic::{Ordering, asked};
use portolan_shm::channel::{Lagging, Since};
use support::channel::{By, World};
use support::{explore, explore_deaths, with};

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
            world.channel().reclaim(1);
            over.store(true, Ordering::SeqCst);
            world.wake_readers();
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

/// M1: a writer that others have lapped has nothing to publish, and takes nothing back.
#[test]
fn a_writer_that_is_lapped_takes_nothing_back() {
    explore("a writer, and four messages of another one", 2, || {
        with(World::new(CALLED_ON), |world| {
            let mut reading = world.channel().start_reading(Since::Now);
            let slow = thread::spawn(move || {
                let mut pen = world.channel().resume_writing(1);
                assert!(world.write(&mut pen, 9));
                pen.position()
            });
            let mut pen = world.channel().resume_writing(2);
            for n in 1..=4 {
                assert!(world.write(&mut pen, n));
            }
            let newest = if slow.join().unwrap() > pen.position() {
                9
            } else {
                4
            };
            let got = core::iter::from_fn(|| world.read(&mut reading));
            assert_eq!(got.last(), Some(newest));
        });
    });
}

/// A writer of many dies in the middle of its unit: once the host has voided that, no writer has to
/// step over it.
#[test]
fn a_writer_of_many_dies() {
    explore_deaths("one of many writers", 0, |k| {
        with(World::new(CALLED_ON), |world| {
            let mut reading = world.channel().start_reading(Since::Now);
            let victim = thread::spawn(move || {
                after(k, || {
                    let mut pen = world.channel().resume_writing(1);
                    assert!(world.write(&mut pen, 1));
                })
                .is_none()
            });
            let died = victim.join().unwrap();
            if died {
                world.channel().reclaim(1);
            }
            let mut pen = world.channel().resume_writing(2);
            assert!(world.write(&mut pen, 2));
            let got: Vec<u64> = core::iter::from_fn(|| world.read(&mut reading)).collect();
            assert!(got == [1, 2] || died && got == [2], "{got:?}");
            died
        })
    });
}
