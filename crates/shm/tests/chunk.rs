//! Chunks whose taker has died (C2, C3).
#![cfg(not(loom))]

use portolan_abi::owner::{ChunkUse, Size};
use portolan_shm::atomic::AtomicU64;
use portolan_shm::chunk::Chunks;
use portolan_shm::owner::AllocWords;

const TAKER: u8 = 1;

#[test]
fn a_chunk_whose_taker_died_waits_until_its_memory_is_gone() {
    let words = [0, 0].map(AtomicU64::new);
    let chunks = Chunks::new(&words);
    let alloc = AllocWords::new(&[]);
    assert_eq!(chunks.claim_run(0..2, 2, TAKER), Some(0));
    // Of the first it has all its memory, of the second perhaps a part.
    chunks.note_populated(0, false);
    assert!(!chunks.reclaim(&alloc, 0, TAKER));
    assert_eq!(chunks.read(0).r#use, ChunkUse::Free);
    assert!(
        chunks.reclaim(&alloc, 1, TAKER),
        "its memory is to be given back first"
    );
    assert_eq!(chunks.claim_run(1..2, Size::run(1).chunks(), 2), None);
    // As the host does once it has given the memory to the kernel.
    chunks.abandon(1, 1);
    assert!(!chunks.read(1).populated);
    assert_eq!(chunks.claim_run(1..2, Size::run(1).chunks(), 2), Some(1));
}

#[test]
fn only_chunks_that_were_touched_are_looked_at() {
    let words: [AtomicU64; 64] = std::array::from_fn(|_| AtomicU64::new(0));
    let chunks = Chunks::new(&words);
    let touched = || {
        let touched = chunks.touched(0..chunks.len());
        touched.map(|(index, _)| index).collect::<Vec<_>>()
    };
    assert!(touched().is_empty());
    assert_eq!(chunks.memory(), (0, 0));
    assert_eq!(chunks.claim_run(32..64, 2, TAKER), Some(32));
    assert_eq!((touched(), chunks.memory()), (vec![32, 33], (2, 0)));
    chunks.note_populated(33, false);
    chunks.abandon(32, 2);
    // One has gone back untouched.
    assert_eq!((touched(), chunks.memory()), (vec![33], (1, 1)));
    assert_eq!(chunks.touched(0..33).count(), 0);
}
