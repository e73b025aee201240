//! Readers with handlers, every interleaving: what a reader does not find after it has enabled the
//! channel's signals is signalled (M8), also while another reader disables them, and when a writer
//! or a reader dies.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p portolan-shm --release --target-dir target/loom \
//!     --test loom_handled -- --nocapture --test-threads 1
//! ```
#![cfg(loom)]

#[allow(dead_code, reason = "of these, one is used")]
mod modes;
mod support;

use loom::thread;
use modes::{CALLED_ON, LOSSY};
use portolan_shm::atomic::death::after;
use portolan_shm::atomic::{AtomicU64, Ordering, asked};
use portolan_shm::channel::{Finished, Lagging, Pen, Reading, Since};
use support::channel::{By, World};
use support::{explore, explore_deaths, with};

/// A channel, and the positions that were signalled, as bits.
struct Signalled {
    world: World,
    told: AtomicU64,
}

impl Signalled {
    fn new(mode: portolan_shm::channel::Mode, barriers: By) -> Self {
        Self {
            world: World::with_barriers(mode, barriers),
            told: AtomicU64::new(0),
        }
    }

    /// Writes `n` and signals what is owed then.
    fn write(&self, pen: &mut Pen, n: u64) {
        let message = [n.to_le_bytes(), n.to_le_bytes()].concat();
        let channel = self.world.channel();
        if channel.write(pen, &[&message]).unwrap() == Finished::Wake {
            for position in pen.take_due() {
                self.told.fetch_or(1 << position, Ordering::SeqCst);
            }
        }
    }

    fn join(&self, space: u8) -> Reading {
        let joined = self.world.channel().join(space, Lagging::Skip, Since::Now);
        joined.unwrap()
    }

    /// Enables signals, then looks; the messages that it finds.
    fn enable(&self, reading: &mut Reading, barriers: By) -> Vec<u64> {
        self.world.channel().enable(reading, &barriers).unwrap();
        core::iter::from_fn(|| self.world.read(reading)).collect()
    }

    /// Message `n` has position `n - 1`.
    fn was_told(&self, n: u64) -> bool {
        self.told.load(Ordering::SeqCst) & (1 << (n - 1)) != 0
    }
}

/// A writer of messages 1 to `last`, and a reader that enables signals meanwhile.
fn enabling(it: &'static Signalled, last: u64, barriers: By, relaxes: bool) {
    let mut reading = it.join(2);
    let writer = thread::spawn(move || {
        asked::answering(|| {
            let mut pen = it.world.channel().resume_writing(1);
            if relaxes {
                pen.relax_when(|| true);
            }
            (1..=last).for_each(|n| it.write(&mut pen, n));
        });
    });
    let found = it.enable(&mut reading, barriers);
    writer.join().unwrap();
    for n in 1..=last {
        assert!(found.contains(&n) || it.was_told(n), "{n} is lost");
    }
}

#[test]
fn what_is_not_found_is_signalled() {
    explore("two messages, a reader that enables", 3, || {
        with(Signalled::new(LOSSY, By::Itself), |it| {
            enabling(it, 2, By::Itself, false);
        });
    });
}

#[test]
fn what_is_not_found_is_signalled_by_a_writer_without_barriers() {
    for (name, barriers) in [("by the kernel", By::Kernel), ("by time", By::Time)] {
        let name = format!("three messages, a reader that enables, barriers {name}");
        explore(&name, 2, move || {
            with(Signalled::new(LOSSY, barriers), |it| {
                enabling(it, 3, barriers, true);
            });
        });
    }
}

#[test]
#[should_panic(expected = "is lost")]
fn without_any_barrier_it_would_not() {
    explore("the same, and no barrier", 2, || {
        with(Signalled::new(LOSSY, By::Mistake), |it| {
            enabling(it, 3, By::Mistake, true);
        });
    });
}

#[test]
fn what_is_not_found_is_signalled_by_one_of_many_writers() {
    explore("two writers, a reader that enables", 2, || {
        with(Signalled::new(CALLED_ON, By::Itself), |it| {
            let mut reading = it.join(3);
            let writer = thread::spawn(move || {
                let mut pen = it.world.channel().resume_writing(1);
                it.write(&mut pen, 1);
                pen.position()
            });
            let found = it.enable(&mut reading, By::Itself);
            let position = writer.join().unwrap();
            assert!(found == [1] || it.was_told(position), "it is lost");
        });
    });
}

/// The mark is taken back by a reader that disables and by a writer that signalled no handler, and
/// not under the hands of a reader that enables.
#[test]
fn a_mark_that_is_taken_back_is_nobody_elses() {
    explore(
        "a reader that disables, one that enables, a writer",
        2,
        || {
            with(Signalled::new(LOSSY, By::Itself), |it| {
                let [mut first, mut second] = [it.join(2), it.join(3)];
                it.enable(&mut first, By::Itself);
                let disables = thread::spawn(move || it.world.channel().disable(&first));
                let writer = thread::spawn(move || {
                    let mut pen = it.world.channel().resume_writing(1);
                    it.write(&mut pen, 1);
                    it.world.channel().prune();
                    it.write(&mut pen, 2);
                });
                let found = it.enable(&mut second, By::Itself);
                writer.join().unwrap();
                disables.join().unwrap();
                for n in 1..=2 {
                    assert!(found.contains(&n) || it.was_told(n), "{n} is lost");
                }
                // Both are gone: so is the mark.
                it.world.channel().disable(&second);
                assert!(!it.world.channel().is_handled());
            });
        },
    );
}

/// A writer that dies owes signals, and the host makes one for them: of what was published last.
#[test]
fn a_writer_that_dies_before_it_signals() {
    explore_deaths("a writer, a reader with handlers", 1, |k| {
        with(Signalled::new(LOSSY, By::Itself), |it| {
            let mut reading = it.join(2);
            assert_eq!(it.enable(&mut reading, By::Itself), []);
            let victim = thread::spawn(move || {
                after(k, || {
                    let mut pen = it.world.channel().resume_writing(1);
                    it.write(&mut pen, 1);
                    it.write(&mut pen, 2);
                })
                .is_none()
            });
            let died = victim.join().unwrap();
            let channel = it.world.channel();
            channel.reclaim(1);
            assert!(channel.is_handled());
            if died {
                let last = channel.last_published();
                it.told.fetch_or(1 << last, Ordering::SeqCst);
            }
            let found: Vec<u64> = core::iter::from_fn(|| it.world.read(&mut reading)).collect();
            if let Some(last) = found.last() {
                assert!(it.was_told(*last), "{last} is lost");
            }
            died
        })
    });
}

/// A reader that dies leaves its mark, and the next look for handlers takes it back.
#[test]
fn a_reader_that_dies_costs_nothing_for_long() {
    explore_deaths("a reader that enables, a writer", 1, |k| {
        with(Signalled::new(LOSSY, By::Itself), |it| {
            let mut reading = it.join(2);
            let victim =
                thread::spawn(move || after(k, || it.enable(&mut reading, By::Itself)).is_none());
            let mut pen = it.world.channel().resume_writing(1);
            it.write(&mut pen, 1);
            let died = victim.join().unwrap();
            if died {
                it.world.channel().reclaim(2);
                it.world.channel().prune();
                assert!(!it.world.channel().is_handled());
            }
            died
        })
    });
}
