//! Signals against oracles: a FIFO beside a deque, ranges beside a list.
#![cfg(not(loom))]

use portolan_shm::signal::{Fifo, FifoEntry, HandlerEntry, Pushed, Ranges, RangesLine};
use proptest::prelude::*;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::AtomicU64;

/// The first handler that may be claimed.
fn free_handler(ranges: &Ranges<'_>) -> Option<u16> {
    let index = ranges.claim(7)?;
    ranges.unclaim(index, 7);
    Some(index)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 300 }, ..Default::default() })]

    #[test]
    fn a_fifo_is_a_bounded_deque(depth in 1usize..20, steps in prop::collection::vec(0u8..7, 1..200)) {
        let entry = FifoEntry::default();
        let (fifo, mut head) = Fifo::open(&entry, depth);
        let mut oracle = VecDeque::new();
        let (mut next, mut dropped) = (1, 0);
        // S6: the slot that was read last is full still, unless it is the only one.
        let mut owed = 0;
        // S3: until the reader is awake, or a wake has been made.
        let mut asleep = false;
        for step in steps {
            match step {
                0..3 => {
                    let pushed = fifo.push(next);
                    if oracle.len() + owed < fifo.depth() {
                        let due = if asleep { Pushed::Wake } else { Pushed::Done };
                        prop_assert_eq!(pushed, due);
                        oracle.push_back(next);
                    } else {
                        prop_assert_eq!(pushed, Pushed::Full);
                        dropped += 1;
                    }
                    next += 1;
                }
                3 => {
                    let popped = oracle.pop_front();
                    owed = usize::from(popped.is_some() && fifo.depth() > 1);
                    prop_assert_eq!(fifo.pop(&mut head), popped);
                }
                4 => {
                    let mut made = 0;
                    fifo.rouse(|_| made += 1);
                    prop_assert_eq!(made, 1);
                    asleep = false;
                }
                5 => {
                    fifo.disarm();
                    asleep = false;
                }
                _ => {
                    let armed = fifo.arm(&mut head).is_some();
                    owed = 0;
                    prop_assert_eq!(armed, oracle.is_empty());
                    asleep = armed;
                }
            }
            prop_assert_eq!(fifo.dropped(), dropped);
            prop_assert_eq!(fifo.is_ready(&head), !oracle.is_empty());
        }
    }

    #[test]
    fn ranges_find_whom_a_list_finds(steps in prop::collection::vec((0u8..6, 0u64..5000, 1u64..70_000, 0u16..12), 1..80)) {
        let world = World::new(1024, 12);
        let ranges = world.ranges();
        let mut oracle: Vec<Option<(u8, u64, u64)>> = vec![None; 12];
        for (step, start, len, index) in steps {
            let space = u8::try_from(index % 3).unwrap() + 1;
            match (step, oracle[usize::from(index)]) {
                (0..2, None) => {
                    let range = (start * 7, start * 7 + len);
                    if ranges.add(index, space, range, u32::from(index), 0).is_ok() {
                        oracle[usize::from(index)] = Some((space, range.0, range.1));
                    }
                }
                (4, _) => {
                    // In another entry, perhaps: the first that is free.
                    let Some(index) = ranges.claim(space) else { continue };
                    let range = (start * 7, start * 7 + len);
                    if ranges.add_unlisted(index, range, u32::from(index), 0).is_ok() {
                        oracle[usize::from(index)] = Some((space, range.0, range.1));
                    } else {
                        ranges.unclaim(index, space);
                    }
                }
                (5, Some((space, ..))) if len % 2 == 0 => {
                    ranges.orphan(index, space);
                    ranges.sweep();
                    oracle[usize::from(index)] = None;
                }
                (2, Some((space, ..))) => {
                    ranges.remove(index, space);
                    oracle[usize::from(index)] = None;
                }
                (3, _) => {
                    ranges.disown(space, len % 2 == 0);
                    ranges.sweep();
                    for handler in &mut oracle {
                        handler.take_if(|h| h.0 == space);
                    }
                }
                _ => {}
            }
            let free = oracle.iter().position(Option::is_none);
            prop_assert_eq!(free_handler(&ranges).map(usize::from), free);
            for at in [0, start * 7, start * 7 + len - 1, start * 7 + len, start * 11] {
                let mut found = BTreeSet::new();
                ranges.find(at, |handler, _| {
                    assert!(found.insert(handler), "found twice");
                });
                let holds = |h: &Option<(u8, u64, u64)>| h.is_some_and(|(_, s, e)| s <= at && at < e);
                let expected = (0u16..).zip(&oracle).filter(|(_, h)| holds(h)).map(|(i, _)| i);
                prop_assert_eq!(found, expected.collect::<BTreeSet<_>>(), "at {}", at);
            }
        }
        for space in 1..4 {
            ranges.disown(space, true);
        }
        ranges.sweep();
        prop_assert!(world.places.iter().all(|p| p.load(std::sync::atomic::Ordering::Relaxed) <= 1));
        prop_assert_eq!(free_handler(&ranges), Some(0));
    }
}

struct World {
    line: RangesLine,
    places: Vec<AtomicU64>,
    handlers: Vec<HandlerEntry>,
}

impl World {
    fn new(places: usize, handlers: usize) -> Self {
        Self {
            line: RangesLine::default(),
            places: (0..places).map(|_| AtomicU64::new(0)).collect(),
            handlers: (0..handlers).map(|_| HandlerEntry::default()).collect(),
        }
    }

    fn ranges(&self) -> Ranges<'_> {
        Ranges::new(&self.line, &self.places, &self.handlers)
    }
}

#[test]
fn a_full_table_refuses_and_changes_nothing() {
    let world = World::new(64, 40);
    let ranges = world.ranges();
    let mut added = 0;
    let refused = loop {
        // Two lines that share no larger block: two blocks.
        match ranges.add(
            added,
            1,
            (u64::from(added) * 1024 + 448, u64::from(added) * 1024 + 576),
            0,
            0,
        ) {
            Ok(()) => added += 1,
            Err(crowded) => break crowded,
        }
    };
    assert_eq!((added, refused.used, refused.places), (16, 32, 32));
    assert_eq!(free_handler(&ranges), Some(16));
    ranges.remove(3, 2); // not its owner
    let mut found = 0;
    ranges.find(3 * 1024 + 500, |_, _| found += 1);
    assert_eq!(found, 1);
    ranges.remove(3, 1);
    assert!(ranges.add(3, 2, (0, 64), 0, 0).is_ok());
}

#[test]
fn a_fifo_opened_anew_is_empty_also_for_those_who_come_late() {
    let entry = FifoEntry::default();
    let (old, _) = Fifo::open(&entry, 8);
    for i in 0..8 {
        assert_eq!(old.push(i), Pushed::Done);
    }
    let (new, mut head) = Fifo::open(&entry, 32);
    assert_eq!(new.pop(&mut head), None);
    // A sender that still believes in the old depth neither hangs nor breaks anything.
    let _ = old.push(99);
    for i in 0..31 {
        assert_ne!(new.push(i), Pushed::Full);
    }
    let got: Vec<u64> = core::iter::from_fn(|| new.pop(&mut head))
        .filter(|s| *s != 99)
        .collect();
    assert_eq!(got, (0..31).collect::<Vec<_>>());
}
