//! Death between any two accesses: a victim stops for good before its k-th access to
//! shared memory, for every k that it can reach; then the host returns what it held,
//! while the survivors go on.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p portolan-shm --release --target-dir target/loom \
//!     --test loom_death -- --nocapture --test-threads 1
//! ```
//!
//! The bound of each model is the number in it; LOOM_MAX_PREEMPTIONS overrides it. The
//! host learns of a death as it does in the world: after it, by a readable pidfd (here,
//! a join).
#![cfg(loom)]

mod support;

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::thread;
use portolan_abi::owner::{Alloc, Born, ChunkUse, Size};
use portolan_shm::atomic::death::after;
use portolan_shm::atomic::{AtomicU64, Ordering};
use portolan_shm::queue::{Closing, Cursor, Spot};
use portolan_shm::wait_set::WaitSetEntry;
use support::pool::{Pool, RUN};
use support::{Futex, Port, Sent, explore_deaths, with};

/// Allocating and sending, beside another sender and a live receiver.
#[test]
fn a_sender_dies() {
    explore_deaths("sender", 2, |k| {
        with(Pool::new(), |pool| {
            let victim = thread::spawn(move || after(k, || pool.allocate_and_send(1, 0)).is_none());
            let other = thread::spawn(|| pool.ports[0].send(&Spot::default(), 3, 31));
            let mut cursor = Cursor::resume(&pool.ports[0].queue());
            let mut received = usize::from(pool.receive_any(2, 0, &mut cursor).is_some());
            let died = victim.join().unwrap();
            if died {
                pool.reclaim(1);
            }
            assert_eq!(other.join().unwrap(), Sent::Yes);
            while pool.ports[0].queue().depth() > 0 {
                received += usize::from(pool.receive_any(2, 0, &mut cursor).is_some());
            }
            pool.audit();
            assert!(died || received == 2);
            pool.is_usable(0, &mut cursor);
            died
        })
    });
}

/// With a slot that its death leaves claimed and passed, and a wake that it owed.
#[test]
fn a_sender_dies_beside_a_sleeper() {
    explore_deaths("sender, receiver asleep", 2, |k| {
        with(Port::new(2), |port| {
            let over = Arc::new(AtomicBool::new(false));
            let victim =
                thread::spawn(move || after(k, || port.send(&Spot::default(), 1, 11)).is_none());
            let seen = Arc::clone(&over);
            let receiver = thread::spawn(move || {
                let mut cursor = Cursor::resume(&port.queue());
                let word = port.receive_waiting(&mut cursor, || seen.load(Ordering::SeqCst));
                (word, cursor)
            });
            let died = victim.join().unwrap();
            over.store(died, Ordering::SeqCst);
            if died {
                let queue = port.queue();
                for index in 0..2 {
                    let _ = queue.void(queue.slot(index).state(Ordering::Acquire).position(), 1);
                }
                port.wake_receiver();
            }
            let (word, mut cursor) = receiver.join().unwrap();
            assert!(died || word == Some(11));
            port.is_usable(&mut cursor, 3);
            died
        })
    });
}

/// A sender that fills the queue dies, and another sleeps for room.
#[test]
fn a_sender_dies_before_one_that_waits() {
    explore_deaths("sender, another waits for room", 2, |k| {
        with(Port::new(2), |port| {
            let mut cursor = Cursor::resume(&port.queue());
            let filler = Spot::default();
            assert_eq!(port.send(&filler, 3, 31), Sent::Yes);
            let victim = thread::spawn(move || after(k, || port.send(&Spot::default(), 1, 11)));
            let waiter = thread::spawn(|| port.send_waiting(&Spot::default(), 2, 21));
            let sent = victim.join().unwrap();
            if sent.is_none() {
                let queue = port.queue();
                for index in 0..2 {
                    let _ = queue.void(queue.slot(index).state(Ordering::Acquire).position(), 1);
                }
                // The dead may have owed wakes.
                port.wake_receiver();
            }
            let mut got = vec![];
            while !got.contains(&21) {
                got.extend(port.receive_waiting(&mut cursor, || false));
            }
            assert_eq!(waiter.join().unwrap(), Sent::Yes);
            got.extend(port.drain(&mut cursor));
            assert_eq!(got[0], 31);
            assert!(sent.is_none() || (sent == Some(Sent::Yes)) == got.contains(&11));
            port.is_usable(&mut cursor, 3);
            sent.is_none()
        })
    });
}

/// Taking an extent and freeing it, while messages come in; the host closes its port.
#[test]
fn a_receiver_dies() {
    explore_deaths("receiver", 2, |k| {
        with(Pool::new(), |pool| {
            let sender = thread::spawn(|| pool.allocate_and_send(1, 0));
            let victim = thread::spawn(move || {
                after(k, || {
                    let mut cursor = Cursor::resume(&pool.ports[0].queue());
                    for _ in 0..2 {
                        if let Some((page, generation)) = pool.receive(2, 0, &mut cursor) {
                            pool.alloc().free(&pool.row(2), page, generation).unwrap();
                        }
                    }
                    let _ = pool.ports[0].queue().settle_all(&mut cursor);
                })
                .is_none()
            });
            let died = victim.join().unwrap();
            if died {
                pool.reclaim(2);
            }
            pool.close(0);
            sender.join().unwrap();
            pool.audit();
            assert_eq!(pool.ports[0].queue().closing(), Closing::Complete);
            pool.is_usable(0, &mut Cursor::default());
            died
        })
    });
}

/// A receiver that has passed a stalled sender dies, and a sender sleeps for room.
#[test]
fn a_receiver_dies_before_one_that_waits() {
    explore_deaths("receiver, a sender waits for room", 2, |k| {
        with(Port::new(2), |port| {
            let stalled = port.queue().claim(&port.spots[3], 3, || true).unwrap();
            assert_eq!(port.send(&Spot::default(), 1, 11), Sent::Yes);
            let victim = thread::spawn(move || {
                after(k, || {
                    let mut cursor = Cursor::resume(&port.queue());
                    let _ = port.drain(&mut cursor);
                })
                .is_none()
            });
            let waiter = thread::spawn(|| port.send_waiting(&Spot::default(), 1, 12));
            let died = victim.join().unwrap();
            // Its owner's death closes the port.
            let queue = port.queue();
            for index in 0..2 {
                while let portolan_shm::queue::CloseStep::Message { position } =
                    queue.close_slot(index)
                {
                    queue.close_drained(position);
                }
            }
            port.wake_senders();
            waiter.join().unwrap();
            let position = stalled.position();
            assert_eq!(queue.closing(), Closing::Lingering(1));
            assert_eq!(stalled.publish(), portolan_shm::queue::Published::Closed);
            queue.withdraw(position);
            assert_eq!(queue.closing(), Closing::Complete);
            died
        })
    });
}

/// The next receiver, after one that died, finds its place.
#[test]
fn another_receiver_goes_on() {
    explore_deaths("receiver, another goes on", 2, |k| {
        with(Port::new(2), |port| {
            let stalled = port.queue().claim(&port.spots[3], 3, || true).unwrap();
            stalled.write(0, &[31]);
            assert_eq!(port.send(&Spot::default(), 1, 11), Sent::Yes);
            let victim = thread::spawn(move || {
                after(k, || {
                    let mut cursor = Cursor::resume(&port.queue());
                    let _ = port.drain(&mut cursor);
                })
                .is_none()
            });
            let sender = thread::spawn(move || {
                let _ = stalled.publish();
                port.send(&Spot::default(), 1, 12)
            });
            let died = victim.join().unwrap();
            let mut cursor = Cursor::resume(&port.queue());
            let mut got = port.drain(&mut cursor);
            let sent = sender.join().unwrap();
            got.extend(port.drain(&mut cursor));
            // What the first receiver took is gone with it; the rest comes once, in order.
            let ours: Vec<u64> = got.iter().copied().filter(|w| *w != 31).collect();
            assert!(
                [&[11, 12][..], &[12], &[11], &[]].contains(&&ours[..]),
                "{got:?}"
            );
            assert!(got.len() - ours.len() <= 1);
            let taken = port.queue().port.receiver.taken.load(Ordering::Relaxed);
            assert!(taken >= 2 + u64::from(sent == Sent::Yes), "{got:?}");
            port.is_usable(&mut cursor, 2);
            died
        })
    });
}

/// Allocating, beside another space that allocates the same extent and frees it.
#[test]
fn an_allocator_dies() {
    explore_deaths("allocator", 3, |k| {
        with(Pool::new(), |pool| {
            let victim = thread::spawn(move || {
                after(k, || pool.alloc().allocate(&pool.row(1), 0, Born::at(0))).is_none()
            });
            let other = thread::spawn(|| {
                let generation = pool.alloc().allocate(&pool.row(2), 0, Born::at(0))?;
                pool.alloc().free(&pool.row(2), 0, generation).unwrap();
                pool.alloc().allocate(&pool.row(2), 0, Born::at(0))
            });
            let died = victim.join().unwrap();
            if died {
                pool.reclaim(1);
            }
            let other = other.join().unwrap();
            pool.audit();
            assert!(!died || (pool.alloc().read(0).state() == Alloc::Used) == other.is_some());
            died
        })
    });
}

/// Freeing, beside another space that allocates the extent at once.
#[test]
fn a_freer_dies() {
    explore_deaths("freer", 3, |k| {
        with(Pool::new(), |pool| {
            let generation = pool.alloc().allocate(&pool.row(1), 0, Born::at(0)).unwrap();
            let victim = thread::spawn(move || {
                after(k, || pool.alloc().free(&pool.row(1), 0, generation)).is_none()
            });
            let other = thread::spawn(|| pool.alloc().allocate(&pool.row(2), 0, Born::at(0)));
            let died = victim.join().unwrap();
            if died {
                pool.reclaim(1);
            }
            let other = other.join().unwrap();
            pool.audit();
            if died && other.is_none() {
                assert_eq!(pool.alloc().read(0).state(), Alloc::Free);
            }
            died
        })
    });
}

/// Closing; the host closes again. The sender's message is disposed of once or its own.
#[test]
fn a_closer_dies() {
    explore_deaths("closer", 2, |k| {
        with(Pool::new(), |pool| {
            let sender = thread::spawn(|| pool.allocate_and_send(1, 0));
            let victim = thread::spawn(move || after(k, || pool.close(0)).is_none());
            let died = victim.join().unwrap();
            if died {
                pool.reclaim(2);
                pool.close(0);
            }
            sender.join().unwrap();
            pool.audit();
            assert_eq!(pool.ports[0].queue().closing(), Closing::Complete);
            pool.is_usable(0, &mut Cursor::default());
            died
        })
    });
}

/// A sender dies while its port is closed.
#[test]
fn a_sender_dies_into_a_closing_port() {
    explore_deaths("sender, port closing", 2, |k| {
        with(Pool::new(), |pool| {
            let victim = thread::spawn(move || after(k, || pool.allocate_and_send(1, 0)).is_none());
            let closer = thread::spawn(|| pool.close(0));
            let died = victim.join().unwrap();
            if died {
                pool.reclaim(1);
            }
            closer.join().unwrap();
            pool.audit();
            assert_eq!(pool.ports[0].queue().closing(), Closing::Complete);
            assert!(!died || pool.alloc().read(0).state() == Alloc::Free);
            died
        })
    });
}

/// Claiming and cutting a run, beside another space that wants one of its chunks.
#[test]
fn a_cutter_dies() {
    explore_deaths("cutter", 3, |k| {
        with(Pool::new(), |pool| {
            let victim = thread::spawn(move || {
                after(k, || {
                    let chunks = pool.chunks();
                    if chunks.claim_run(0..2, 2, 1) == Some(0) {
                        chunks.note_populated(0, false);
                        chunks.note_populated(1, false);
                        chunks.cut(&pool.alloc(), 0, Size::run(2), 1);
                    }
                })
                .is_none()
            });
            let other = thread::spawn(|| pool.chunks().claim_run(1..2, 1, 2));
            let died = victim.join().unwrap();
            if died {
                pool.reclaim(1);
            }
            let other = other.join().unwrap();
            let word = pool.chunks().read(1);
            if other.is_some() {
                assert_eq!((word.r#use, word.cache_owner), (ChunkUse::Taking, 2));
                pool.chunks().abandon(1, 1);
            }
            if died && pool.chunks().read(0).r#use == ChunkUse::Head {
                assert!(pool.chunks().adopt(0, 2), "up for adoption");
                assert!(pool.allocate(2, 0, Size::run(2)).is_some());
            } else if died {
                pool.cut(2, 0, Size::run(2));
                assert!(pool.allocate(2, 0, Size::run(2)).is_some());
            }
            died
        })
    });
}

/// Giving a run back, beside an allocator.
#[test]
fn a_giver_dies() {
    for size in [RUN, Size::run(2)] {
        explore_deaths("giver", 3, move |k| {
            with(Pool::new(), |pool| {
                pool.cut(3, 0, size);
                let victim = thread::spawn(move || {
                    after(k, || pool.chunks().give_back(&pool.alloc(), 0, 1)).is_none()
                });
                let other = thread::spawn(move || pool.allocate(2, 0, size));
                let died = victim.join().unwrap();
                if died {
                    pool.reclaim(1);
                }
                let other = other.join().unwrap();
                pool.audit();
                let word = pool.chunks().read(0);
                if other.is_some() {
                    assert_eq!(word.r#use, ChunkUse::Head);
                } else if word.r#use == ChunkUse::Head {
                    assert!(pool.allocate(2, 0, size).is_some());
                } else {
                    assert_eq!(word.r#use, ChunkUse::Free);
                    pool.cut(2, 0, Size::run(2));
                    assert!(pool.allocate(2, 0, Size::run(2)).is_some());
                }
                died
            })
        });
    }
}

/// Giving a chunk's memory to the kernel, beside another space that takes the chunk (C4).
#[test]
fn one_that_gives_memory_back_dies() {
    explore_deaths("memory", 3, |k| {
        with(Pool::new(), |pool| {
            // The file's memory for the chunk, which the kernel keeps: 1 it is there.
            let memory = Arc::new(AtomicU64::new(1));
            let chunks = pool.chunks();
            assert_eq!(chunks.claim_run(0..1, 1, 3), Some(0));
            chunks.note_populated(0, false);
            chunks.abandon(0, 1);
            let punched = Arc::clone(&memory);
            let victim = thread::spawn(move || {
                after(k, || {
                    let chunks = pool.chunks();
                    if chunks.claim_run(0..1, 1, 1) == Some(0) {
                        chunks.note_empty(0);
                        punched.store(0, Ordering::Relaxed);
                        chunks.abandon(0, 1);
                    }
                })
                .is_none()
            });
            let seen = Arc::clone(&memory);
            let taker = thread::spawn(move || {
                let chunks = pool.chunks();
                if chunks.claim_run(0..1, 1, 2) == Some(0) {
                    let is_there = seen.load(Ordering::Relaxed) == 1;
                    assert!(is_there || !chunks.read(0).populated, "a hole");
                    chunks.abandon(0, 1);
                }
            });
            let died = victim.join().unwrap();
            if died && chunks.reclaim(&pool.alloc(), 0, 1) {
                memory.store(0, Ordering::Relaxed);
                chunks.abandon(0, 1);
            }
            taker.join().unwrap();
            let word = chunks.read(0);
            assert_eq!((word.r#use, word.cache_owner), (ChunkUse::Free, 0));
            assert_eq!(word.populated, memory.load(Ordering::Relaxed) == 1);
            died
        })
    });
}

/// The cache owner of a chunk dies while another space gives the chunk back, in vain or not.
#[test]
fn a_cache_owner_dies_under_a_giver() {
    explore_deaths("cache_owner", 3, |k| {
        with(Pool::new(), |pool| {
            pool.cut(1, 0, RUN);
            let victim = thread::spawn(move || after(k, || pool.allocate(1, 0, RUN)).is_none());
            let giver = thread::spawn(|| {
                pool.chunks().give_back(&pool.alloc(), 0, 2);
            });
            let died = victim.join().unwrap();
            if died {
                pool.reclaim(1);
            }
            giver.join().unwrap();
            pool.audit();
            let word = pool.chunks().read(0);
            assert!(
                !died
                    || (word.cache_owner == 0
                        && matches!(word.r#use, ChunkUse::Head | ChunkUse::Free)),
                "{word:?}"
            );
            died
        })
    });
}

/// Raising a member of a wait set; the host raises it again.
#[test]
fn a_raiser_dies() {
    explore_deaths("raiser", 3, |k| {
        with(
            (WaitSetEntry::default(), Futex::default()),
            |(set, futex)| {
                let raise = move || {
                    if set.raise(70) {
                        futex.wake();
                    }
                };
                let victim = thread::spawn(move || after(k, raise).is_none());
                let waiter = thread::spawn(move || {
                    let mut seen = Vec::new();
                    while seen.is_empty() {
                        set.drain(|m| seen.push(m));
                        if seen.is_empty()
                            && let Some(bell) = set.sleep()
                        {
                            futex.wait(&set.doorbell, bell);
                            set.awake();
                        }
                    }
                    seen
                });
                let died = victim.join().unwrap();
                if died {
                    raise();
                    // The dead may have changed the doorbell without waking.
                    futex.wake();
                }
                assert_eq!(waiter.join().unwrap(), [70]);
                died
            },
        )
    });
}
