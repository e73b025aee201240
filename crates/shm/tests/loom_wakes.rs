//! Tests who owes a wake: of several threads that could wake a sleeper one stops, for good, before
//! any of its steps, and no host acts for it, because it is not dead. What another one brings is
//! found all the same.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p portolan-shm --release --target-dir target/loom \
//!     --test loom_wakes -- --nocapture --test-threads 1
//! ```
//!
//! A sleeper without a wake is a deadlock, which loom finds. Where only one could make a wake
//! there is none of these models: only a port's receiver makes room in its queue, and
//! only the other process wakes a side of a byte ring. What becomes of their sleepers when they
//! die is in `loom_death` and in the control socket of a connection.
#![cfg(loom)]

mod modes;
mod support;

use loom::sync::atomic::AtomicBool;
use loom::sync::{Condvar, Mutex};
use loom::thread;
use modes::{CALLED_ON, LOSSY, RELIABLE};
use portolan_shm::atomic::death::after;
use portolan_shm::atomic::{AtomicU32, Ordering};
use portolan_shm::channel::{Finished, Lagging, Pen, Since};
use portolan_shm::queue::{CloseStep, Cursor, Spot};
use portolan_shm::wait_set::WaitSetEntry;
use support::channel::{By, World};
use support::signal::Listener;
use support::{Futex, Port, Sent, explore, explore_deaths, with};

/// A queue's receiver. (The slot that the stopped one has claimed is passed over.)
#[test]
fn a_receiver_beside_a_stopped_sender() {
    explore_deaths("a stopped sender, another one, a receiver asleep", 2, |k| {
        with(Port::new(2), |port| {
            let stopped =
                thread::spawn(move || after(k, || port.send(&Spot::default(), 1, 11)).is_none());
            let sender = thread::spawn(move || {
                assert_eq!(port.send(&Spot::default(), 2, 21), Sent::Yes);
            });
            let mut cursor = Cursor::resume(&port.queue());
            while port.receive_waiting(&mut cursor, || false) != Some(21) {}
            sender.join().unwrap();
            stopped.join().unwrap()
        })
    });
}

/// The room of a queue. Its receiver dies, and who closes the port for it makes the wake.
#[test]
fn a_sender_that_waits_for_room_beside_a_receiver_that_dies() {
    explore_deaths("a receiver, a sender that waits for room", 2, |k| {
        with(Port::new(2), |port| {
            let spot = Spot::default();
            assert_eq!(port.send(&spot, 1, 11), Sent::Yes);
            assert_eq!(port.send(&spot, 1, 12), Sent::Yes);
            let sender = thread::spawn(move || port.send_waiting(&Spot::default(), 2, 21));
            let victim = thread::spawn(move || {
                after(k, || {
                    let mut cursor = Cursor::resume(&port.queue());
                    port.receive(&mut cursor);
                    port.drain(&mut cursor);
                })
                .is_none()
            });
            let died = victim.join().unwrap();
            if died {
                let queue = port.queue();
                for index in 0..2 {
                    while let CloseStep::Message { position } = queue.close_slot(index) {
                        queue.close_drained(position);
                    }
                }
                port.wake_senders();
            }
            assert_ne!(sender.join().unwrap(), Sent::Full);
            died
        })
    });
}

/// Writes a message of `space` where many write: whether a wake is owed.
fn write(world: &World, space: u8) -> bool {
    let channel = world.channel();
    let mut pen = channel.resume_writing(space);
    let message = u64::from(space).to_le_bytes();
    channel.write(&mut pen, &[&message, &message]) == Ok(Finished::Wake)
}

/// A channel's reader, with many writers. What is stopped is a wake; a unit in the middle of
/// which its writer stops would be stepped over.
#[test]
fn a_reader_beside_a_stopped_writer() {
    explore_deaths("a stopped writer, another one, a reader asleep", 2, |k| {
        with(World::new(CALLED_ON), |world| {
            let stopped = thread::spawn(move || {
                let owes = write(world, 1);
                after(k, || owes.then(|| world.wake_readers())).is_none()
            });
            let writer = thread::spawn(move || {
                if write(world, 2) {
                    world.wake_readers();
                }
            });
            let never = AtomicBool::new(false);
            let mut reading = world.channel().start_reading(Since::Last(4));
            while world.read_waiting(&mut reading, &never) != Some(2) {}
            writer.join().unwrap();
            stopped.join().unwrap()
        })
    });
}

/// The same, where the reader waits in a set.
#[test]
fn a_reader_in_a_wait_set_beside_a_stopped_writer() {
    /// The place of a reader in its set, plus one.
    const LINK: u64 = 2;
    explore_deaths("a stopped writer, another one, a reader in a set", 1, |k| {
        let world = World::new(CALLED_ON);
        let set = WaitSetEntry::default();
        with((world, set), |(world, set)| {
            let wake = || {
                let raise = |link| {
                    if link == LINK && set.raise(1) {
                        world.bell.wake();
                    }
                };
                world.channel().rouse(raise, |_| {});
            };
            let channel = world.channel();
            let mut reading = channel.join(3, Lagging::Skip, Since::Now).unwrap();
            channel.link(&reading, LINK);
            let stopped = thread::spawn(move || {
                let owes = write(world, 1);
                after(k, || owes.then(wake)).is_none()
            });
            let writer = thread::spawn(move || {
                if write(world, 2) {
                    wake();
                }
            });
            while world.read(&mut reading) != Some(2) {
                if channel.is_stuck(&reading) {
                    thread::yield_now();
                } else if channel.arm(&mut reading, &By::Itself).0.is_some() {
                    let mut raised = false;
                    while !raised {
                        set.drain(|_| raised = true);
                        if !raised && let Some(bell) = set.sleep() {
                            world.bell.wait(&set.doorbell, bell);
                            set.awake();
                        }
                    }
                }
            }
            writer.join().unwrap();
            stopped.join().unwrap()
        })
    });
}

/// Two readers, which have one mark together: it is taken back only if no reader has armed since
/// (M7).
#[test]
fn two_readers_of_a_writer_that_rouses_one_while_the_other_arms() {
    explore("two messages, two readers that sleep", 2, || {
        with(World::new(LOSSY), |world| {
            let read = |mut reading| {
                let never = AtomicBool::new(false);
                for n in 1..=2 {
                    assert_eq!(world.read_waiting(&mut reading, &never), Some(n));
                }
            };
            let [one, two] = [(); 2].map(|()| world.channel().start_reading(Since::Now));
            let reader = thread::spawn(move || read(one));
            let writer = thread::spawn(move || {
                let mut pen = world.channel().resume_writing(1);
                assert!(world.write(&mut pen, 1) && world.write(&mut pen, 2));
            });
            read(two);
            reader.join().unwrap();
            writer.join().unwrap();
        });
    });
}

/// A full channel, and a pen at its end.
fn full(world: &World) -> Pen {
    let mut pen = world.channel().resume_writing(1);
    for n in 0..4 {
        assert!(world.write(&mut pen, n));
    }
    pen
}

/// The room of a reliable channel, which the stopped reader does not even make.
#[test]
fn a_writer_that_waits_for_room_beside_a_stopped_reader() {
    explore_deaths(
        "a stopped reader, another one, a writer that waits",
        2,
        |k| {
            with(World::new(RELIABLE), |world| {
                let channel = world.channel();
                let mut waits = channel.join(2, Lagging::Wait, Since::Now).unwrap();
                let mut skips = channel.join(3, Lagging::Skip, Since::Now).unwrap();
                let mut pen = full(world);
                let stopped = thread::spawn(move || after(k, || world.read(&mut skips)).is_none());
                let writer = thread::spawn(move || world.write_waiting(&mut pen, 4));
                assert_eq!(world.read(&mut waits), Some(0));
                writer.join().unwrap();
                stopped.join().unwrap()
            })
        },
    );
}

/// The room of a reliable channel, which a reader makes that looks once more, and never sleeps.
/// Eight units, so that a quarter of a lap is two.
#[test]
fn a_writer_that_waits_for_more_room_than_the_last_quarter_made() {
    explore(
        "a writer that waits for all units, a reader that polls",
        3,
        || {
            with(World::with_units(8, RELIABLE, By::Itself), |world| {
                let channel = world.channel();
                let mut reading = channel.join(2, Lagging::Wait, Since::Now).unwrap();
                let mut pen = channel.resume_writing(1);
                assert!(world.write(&mut pen, 7));
                let writer = thread::spawn(move || {
                    while let Some(bell) = world.channel().wait_for_room(&mut pen, 8) {
                        world.room.wait(&world.head.room.room, bell);
                    }
                });
                assert_eq!(world.read(&mut reading), Some(7));
                assert_eq!(world.read(&mut reading), None);
                writer.join().unwrap();
            });
        },
    );
}

/// A thread that signals wake.
#[test]
fn a_listener_beside_a_stopped_sender() {
    explore_deaths("a stopped sender, another one, a listener asleep", 2, |k| {
        let (listener, mut head) = Listener::new();
        with(listener, |listener| {
            let stopped = thread::spawn(move || after(k, || assert!(listener.push(10))).is_none());
            let sender = thread::spawn(move || assert!(listener.push(20)));
            while listener.wait(&mut head, || false) != Some(20) {}
            sender.join().unwrap();
            stopped.join().unwrap()
        })
    });
}

/// A wait set, whose members are raised by two.
#[test]
fn a_wait_set_beside_a_stopped_raiser() {
    explore_deaths("a stopped raiser, another one, a set asleep", 2, |k| {
        with(
            (WaitSetEntry::default(), Futex::default()),
            |(set, futex)| {
                let raise = |member| {
                    if set.raise(member) {
                        futex.wake();
                    }
                };
                let stopped = thread::spawn(move || after(k, || raise(1)).is_none());
                let raiser = thread::spawn(move || raise(2));
                let mut seen = false;
                while !seen {
                    set.drain(|member| seen |= member == 2);
                    if !seen && let Some(bell) = set.sleep() {
                        futex.wait(&set.doorbell, bell);
                        set.awake();
                    }
                }
                raiser.join().unwrap();
                stopped.join().unwrap()
            },
        )
    });
}

/// A futex wait in an io_uring: it stays in the kernel until it is woken, though something else ends
/// the sleep.
#[derive(Default)]
struct InRing {
    kernel: Mutex<Kernel>,
    sleeper: Condvar,
}

#[derive(Default)]
struct Kernel {
    queued: bool,
    fired: bool,
}

impl InRing {
    /// As `sys/process/poller`: one that is there already is not compared again.
    fn sleep(&self, word: &AtomicU32, value: u32) {
        let mut kernel = self.kernel.lock().unwrap();
        if !kernel.queued && !kernel.fired {
            kernel.queued = word.load(Ordering::SeqCst) == value;
            kernel.fired = !kernel.queued;
        }
        while !kernel.fired {
            kernel = self.sleeper.wait(kernel).unwrap();
        }
        kernel.fired = false;
    }

    fn wake(&self) {
        let mut kernel = self.kernel.lock().unwrap();
        if std::mem::take(&mut kernel.queued) {
            kernel.fired = true;
            self.sleeper.notify_all();
        }
    }

    /// Something else, as a socket.
    fn fire(&self) {
        self.kernel.lock().unwrap().fired = true;
        self.sleeper.notify_all();
    }
}

/// A wait set that a thread sleeps on by a call of its own (W8).
#[test]
fn a_set_whose_futex_wait_outlives_a_sleep() {
    explore("two things raised, and a socket", 2, || {
        with(
            (WaitSetEntry::default(), InRing::default()),
            |(set, ring)| {
                let raiser = thread::spawn(move || {
                    for member in [1, 2] {
                        if set.raise(member) {
                            ring.wake();
                        }
                    }
                });
                let socket = thread::spawn(move || ring.fire());
                let mut seen = 0;
                while seen != 3 {
                    set.drain(|member| seen |= member);
                    if seen != 3
                        && let Some(bell) = set.sleep()
                    {
                        ring.sleep(&set.doorbell, bell);
                        set.awake();
                    }
                }
                raiser.join().unwrap();
                socket.join().unwrap();
            },
        );
    });
}
