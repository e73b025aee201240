//! Owner rows, allocation words, chunks and wait sets under the model checker.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p portolan-shm --release --target-dir target/loom \
//!     --test loom_owner -- --nocapture --test-threads 1
//! ```
//!
//! The bound of each model is the number in it; LOOM_MAX_PREEMPTIONS overrides it.
#![cfg(loom)]

mod support;

use loom::thread;
use portolan_abi::owner::{Alloc, Born, ChunkUse, Destination, Size};
use portolan_shm::queue::{Claim, Cursor};
use portolan_shm::wait_set::WaitSetEntry;
use support::pool::{Pool, RUN};
use support::{Futex, explore, with};

/// O1, O4: an extent goes from one space to another and is freed there.
#[test]
fn an_extent_is_sent_taken_and_freed() {
    explore("send and take", 3, || {
        with(Pool::new(), |pool| {
            let sender = thread::spawn(|| {
                let first = pool.allocate_and_send(1, 0);
                (first, pool.allocate_and_send(1, 0))
            });
            let mut cursor = Cursor::resume(&pool.ports[0].queue());
            for _ in 0..3 {
                if let Some((page, generation)) = pool.receive(2, 0, &mut cursor) {
                    pool.alloc().free(&pool.row(2), page, generation).unwrap();
                }
            }
            sender.join().unwrap();
            pool.audit();
        });
    });
}

/// O1: one space's threads send to one another, while the first has not noted yet that the
/// extent is gone.
#[test]
fn an_extent_comes_back_to_its_sender() {
    explore("send to oneself", 3, || {
        with(Pool::new(), |pool| {
            let sender = thread::spawn(|| pool.allocate_and_send(1, 0));
            let mut cursor = Cursor::resume(&pool.ports[0].queue());
            let got = (0..2).find_map(|_| pool.receive(1, 0, &mut cursor));
            sender.join().unwrap();
            pool.audit();
            if let Some((page, generation)) = got {
                pool.alloc().free(&pool.row(1), page, generation).unwrap();
                pool.audit();
            }
        });
    });
}

/// O1: the same, and the extent is on its way again.
#[test]
fn an_extent_is_sent_on_by_its_sender() {
    explore("send on", 3, || {
        with(Pool::new(), |pool| {
            let sender = thread::spawn(|| pool.allocate_and_send(1, 0));
            let mut cursor = Cursor::resume(&pool.ports[0].queue());
            let got = (0..2).find_map(|_| pool.receive(1, 0, &mut cursor));
            let on = got.map(|(page, generation)| {
                let claim = pool.ports[1]
                    .queue()
                    .claim(&pool.ports[1].spots[1], 1, || true)
                    .unwrap();
                pool.row(1)
                    .sending(page, generation, Destination::new(1, claim.position()));
                claim
            });
            sender.join().unwrap();
            pool.audit();
            on.map(Claim::abandon);
        });
    });
}

/// O1: an extent is freed, allocated elsewhere and sent back while the freeing thread has
/// not noted that it is gone.
#[test]
fn a_freed_extent_comes_back() {
    explore("free and receive", 3, || {
        with(Pool::new(), |pool| {
            let generation = pool.alloc().allocate(&pool.row(1), 0, Born::at(0)).unwrap();
            let freer =
                thread::spawn(move || pool.alloc().free(&pool.row(1), 0, generation).unwrap());
            let sender = thread::spawn(|| pool.allocate_and_send(2, 0));
            let mut cursor = Cursor::resume(&pool.ports[0].queue());
            for _ in 0..2 {
                let _ = pool.receive(1, 0, &mut cursor);
            }
            freer.join().unwrap();
            sender.join().unwrap();
            pool.audit();
        });
    });
}

/// O1: a handle without a type is known to two threads, and each takes the extent up: one gets it,
/// and frees it. The other one may come before, beside, or when another extent lies there.
#[test]
fn a_parked_extent_is_taken_up_once() {
    explore("unpark", 3, || {
        with(Pool::new(), |pool| {
            let generation = pool.alloc().allocate(&pool.row(1), 0, Born::at(0)).unwrap();
            pool.row(1).park(0, generation).unwrap();
            let adopt = move || {
                let got = pool.row(1).unpark(0, generation).is_ok();
                if got {
                    pool.alloc().free(&pool.row(1), 0, generation).unwrap();
                }
                got
            };
            let other = thread::spawn(adopt);
            let again = thread::spawn(move || pool.alloc().allocate(&pool.row(1), 0, Born::at(0)));
            let ours = adopt();
            assert_ne!(ours, other.join().unwrap(), "of two one gets it");
            if let Some(later) = again.join().unwrap() {
                assert_ne!(later, generation);
                pool.alloc().free(&pool.row(1), 0, later).unwrap();
            }
            pool.audit();
        });
    });
}

/// O5: of two spaces, and of two threads of one, one gets a free extent.
#[test]
fn one_of_three_gets_an_extent() {
    explore("allocate", 3, || {
        with(Pool::new(), |pool| {
            let others = [1, 1].map(|space| {
                thread::spawn(move || pool.alloc().allocate(&pool.row(space), 0, Born::at(0)))
            });
            let mine = pool.alloc().allocate(&pool.row(2), 0, Born::at(0));
            let got = others.map(|o| o.join().unwrap());
            assert!(got.into_iter().chain([mine]).flatten().count() <= 1);
            pool.audit();
        });
    });
}

/// C1: a chunk is given back, claimed and cut anew while an allocator still believes in its
/// old cut.
#[test]
fn a_chunk_changes_its_cut_under_an_allocator() {
    explore("give back and allocate", 3, || {
        with(Pool::new(), |pool| {
            pool.cut(1, 0, RUN);
            let allocator = thread::spawn(|| pool.allocate(2, 0, RUN));
            let giver = thread::spawn(|| {
                pool.chunks().give_back(&pool.alloc(), 0, 3);
            });
            let other = Size::run(2);
            let second = pool.chunks().claim_run(0..2, 2, 1).and_then(|first| {
                pool.chunks().cut(&pool.alloc(), first, other, 1);
                pool.allocate(1, 0, other)
            });
            giver.join().unwrap();
            let first = allocator.join().unwrap();
            assert!(
                first.is_none() || second.is_none(),
                "one page in two extents"
            );
            pool.audit();
            let word = pool.chunks().read(0);
            if first.is_some() || second.is_some() {
                assert_eq!(word.r#use, ChunkUse::Head);
            }
            if word.r#use == ChunkUse::Free {
                assert!(pool.chunks().claim_run(0..2, 2, 1).is_some());
            } else {
                assert_ne!(pool.alloc().read(0).state(), Alloc::Locked);
            }
        });
    });
}

/// A waiter that sleeps is woken for every member that was raised, and drains it once.
#[test]
fn no_ready_member_is_slept_over() {
    members_of_a_set("wait set", [1, 70]);
}

/// The same, of members whose bits lie in one word.
#[test]
fn no_ready_member_of_one_leaf_is_slept_over() {
    members_of_a_set("wait set, one leaf", [1, 2]);
}

fn members_of_a_set(name: &str, members: [usize; 2]) {
    explore(name, 3, move || {
        with(
            (WaitSetEntry::default(), Futex::default()),
            |(set, futex)| {
                let raisers = members.map(|member| {
                    thread::spawn(move || {
                        if set.raise(member) {
                            futex.wake();
                        }
                    })
                });
                let mut seen = Vec::new();
                while seen.len() < 2 {
                    set.drain(|m| seen.push(m));
                    if seen.len() < 2
                        && let Some(bell) = set.sleep()
                    {
                        futex.wait(&set.doorbell, bell);
                        set.awake();
                    }
                }
                seen.sort_unstable();
                assert_eq!(seen, members);
                raisers.into_iter().for_each(|r| r.join().unwrap());
            },
        );
    });
}
