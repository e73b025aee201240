//! Whose the bytes of an extent are: allocated, freed, sent, and cut anew, every interleaving.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p portolan-shm --release --target-dir target/loom \
//!     --test loom_bytes -- --nocapture --test-threads 1
//! ```
//!
//! The bytes stand in plain words: two uses of them that nothing orders fail the model.
#![cfg(loom)]

mod support;

use loom::thread;
use portolan_abi::limits::CHUNK_PAGES;
use portolan_abi::owner::{Born, Size};
use portolan_shm::atomic::{AtomicU64, Ordering};
use portolan_shm::chunk::{Chunks, GiveBack};
use portolan_shm::owner::{AllocWords, OwnerEntry, OwnerRow};
use portolan_shm::queue::Cursor;
use support::pool::{Pool, RUN};
use support::{explore, with};

/// The bytes of an extent, used by its holder.
fn use_bytes(bytes: &AtomicU64, by: u8) {
    let _ = bytes.load(Ordering::Relaxed);
    bytes.store(by.into(), Ordering::Relaxed);
}

/// O4: a space that allocates an extent alone uses its bytes: the space that freed it does not
/// touch them any more.
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

/// O4: a space that takes an extent out of a message alone uses its bytes, and so does the space
/// that allocates the extent afterwards.
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
                // An allocator then looks at the chunk's word, and may still see its first value.
                // Loom cannot: it keeps seven stores of a word. So that look is left out.
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

/// C1: a space that claims an extent of a chunk that was cut anew meanwhile finds that out.
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
