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
use portolan_abi::limits::CHUNK_PAGES;
use portolan_abi::owner::{Alloc, Born, ChunkUse, Destination, Size};
use portolan_abi::port::PortName;
use portolan_shm::atomic::{AtomicU64, Ordering};
use portolan_shm::chunk::{Chunks, GiveBack};
use portolan_shm::owner::{AllocWords, OwnerEntry, OwnerRow};
use portolan_shm::queue::{Claim, Cursor};
use portolan_shm::rights::{RightEntry, RightRow};
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
                    .claim(&pool.ports[1].spots[1], 1)
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

/// The bytes of an extent, used by its holder.
fn use_bytes(bytes: &AtomicU64, by: u8) {
    let _ = bytes.load(Ordering::Relaxed);
    bytes.store(by.into(), Ordering::Relaxed);
}

/// O4: who allocates an extent has its bytes to itself: whoever freed it, in another space,
/// has done with them.
#[test]
fn the_bytes_of_a_freed_extent_are_its_next_holders() {
    explore("use, free, allocate, use", 3, || {
        with((Pool::new(), AtomicU64::plain(0)), |(pool, bytes)| {
            let users = [1, 2].map(|space| {
                thread::spawn(move || {
                    for _ in 0..2 {
                        let row = pool.row(space);
                        let Some(generation) = pool.alloc().allocate(&row, 0, Born::at(0)) else {
                            continue;
                        };
                        use_bytes(bytes, space);
                        pool.alloc().free(&row, 0, generation).unwrap();
                    }
                })
            });
            users.into_iter().for_each(|u| u.join().unwrap());
            pool.audit();
        });
    });
}

/// O4: who takes an extent out of a message has its bytes to itself, and so has whoever
/// allocates it then.
#[test]
fn the_bytes_of_a_message_are_its_takers() {
    explore("send, take, free, allocate", 3, || {
        with((Pool::new(), AtomicU64::plain(0)), |(pool, bytes)| {
            let sender = thread::spawn(move || {
                for _ in 0..2 {
                    let row = pool.row(1);
                    if let Some(generation) = pool.alloc().allocate(&row, 0, Born::at(0)) {
                        use_bytes(bytes, 1);
                        assert!(pool.send(1, 0, 0, generation));
                    }
                }
            });
            let mut cursor = Cursor::resume(&pool.ports[0].queue());
            for _ in 0..2 {
                if let Some((page, generation)) = pool.receive(2, 0, &mut cursor) {
                    use_bytes(bytes, 2);
                    pool.alloc().free(&pool.row(2), page, generation).unwrap();
                }
            }
            sender.join().unwrap();
            pool.audit();
        });
    });
}

/// O4, C1: between an allocator's look at a word and its exchange the extent's chunk becomes
/// part of a larger extent, which is used, and then what it was. The word says the same as
/// before, for it is in the middle of the larger extent.
#[test]
fn the_bytes_of_an_extent_that_was_cut_anew_are_its_allocators() {
    explore("cut anew under an allocator", 2, || {
        const MIDDLE: usize = CHUNK_PAGES;
        let words = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let row = |pages| {
            (0..pages)
                .map(|_| OwnerEntry::default())
                .collect::<Vec<_>>()
        };
        let world = (
            words(MIDDLE + 1),
            words(2),
            [row(1), row(MIDDLE + 1)],
            AtomicU64::plain(0),
        );
        with(world, |(alloc, chunks, rows, bytes)| {
            let (alloc, chunks) = (AllocWords::new(alloc), Chunks::new(chunks));
            let [large, small] = [Size::run(2), Size::run(1)];
            let cut = move |first: usize, size: Size| {
                let chunks_of = first..first + size.chunks();
                assert_eq!(chunks.claim_run(chunks_of, size.chunks(), 1), Some(first));
                chunks.cut(&alloc, first, size, 1);
            };
            cut(1, small);
            let allocator = thread::spawn(move || {
                let (row, page) = (OwnerRow::new(&rows[1], 2), Chunks::first_page(1));
                // Whoever allocates then looks at the chunk's word, and may still see how that was
                // at first. Loom cannot: it keeps seven stores of a word. So it is left out.
                if alloc.allocate(&row, page, Born::at(0)).is_some() {
                    use_bytes(bytes, 2);
                }
            });
            if chunks.give_back(&alloc, 1, 1) == GiveBack::Done(1) {
                cut(0, large);
                let row = OwnerRow::new(&rows[0], 1);
                let generation = alloc.allocate(&row, 0, Born::at(0)).unwrap();
                use_bytes(bytes, 1);
                alloc.free(&row, 0, generation).unwrap();
                assert_eq!(chunks.give_back(&alloc, 0, 1), GiveBack::Done(2));
                cut(1, small);
            }
            allocator.join().unwrap();
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
            for (extent, size) in [(first, RUN), (second, other)] {
                if extent.is_some() {
                    assert_eq!((word.r#use, word.size), (ChunkUse::Head, size.code()));
                }
            }
            if word.r#use == ChunkUse::Free {
                assert!(pool.chunks().claim_run(0..2, 2, 1).is_some());
            } else {
                assert_ne!(pool.alloc().read(0).state(), Alloc::Locked);
            }
        });
    });
}

/// C1: who claims an extent of a chunk that was cut anew meanwhile finds that out.
#[test]
fn an_extent_of_another_cut_is_not_allocated() {
    explore("cut anew and allocate", 3, || {
        with(Pool::new(), |pool| {
            pool.cut(1, 0, RUN);
            let allocator = thread::spawn(|| pool.allocate(2, 0, RUN));
            let (chunks, larger) = (pool.chunks(), Size::run(2));
            if chunks.give_back(&pool.alloc(), 0, 1) == GiveBack::Done(1) {
                assert_eq!(chunks.claim_run(0..2, 2, 1), Some(0));
                chunks.cut(&pool.alloc(), 0, larger, 1);
            }
            let got = allocator.join().unwrap();
            pool.audit();
            assert!(
                got.is_none() || chunks.read(0).size == RUN.code(),
                "another cut"
            );
        });
    });
}

/// A waiter that sleeps is woken for every member that was raised, and drains it once.
#[test]
fn no_ready_member_is_slept_over() {
    explore("wait set", 3, || {
        with(
            (WaitSetEntry::default(), Futex::default()),
            |(set, futex)| {
                let raisers = [1, 70].map(|member| {
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
                assert_eq!(seen, [1, 70]);
                raisers.into_iter().for_each(|r| r.join().unwrap());
            },
        );
    });
}

/// R1, R3: counts of one row by several threads.
#[test]
fn counts_of_a_row_add_up() {
    explore("rights", 3, || {
        with([RightEntry::default()], |entries| {
            let row = RightRow::new(entries);
            let (old, new) = (
                PortName {
                    index: 0,
                    generation: 1,
                },
                PortName {
                    index: 0,
                    generation: 2,
                },
            );
            row.add_send(old, 2);
            let dropper = thread::spawn(move || {
                row.drop_send(old);
                row.drop_send(old);
            });
            let adder = thread::spawn(move || row.add_send(new, 1));
            row.add_send(new, 1);
            dropper.join().unwrap();
            adder.join().unwrap();
            assert_eq!(row.sends(new), 2);
        });
    });
}
