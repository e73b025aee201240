//! Finds the handlers of one thread by address.
//!
//! A few are looked through one after another. Of more, those that may want an address are
//! in a table, by the blocks that their ranges are cut into (`abi/signal.rs`), as in the one
//! that senders use; so what a signal costs its reader depends as little on how many ranges
//! that has.

use super::delivery::How;
use portolan_abi::signal::{Block, LEVELS, blocks};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// As many are looked through sooner than a table is asked.
const FEW: usize = 8;

/// Never locked: it makes a listener, and what it is in, fit to be shared.
type Run = Mutex<Box<dyn FnMut(usize) + Send>>;

/// A handler.
pub(super) struct Handling {
    pub(super) id: u16,
    pub(super) range: Range<u64>,
    pub(super) how: How,
    pub(super) run: Run,
}

/// All handlers of one FIFO.
#[derive(Default)]
pub(super) struct Handlers {
    all: Vec<Handling>,
    /// By block: the places in `all` of those whose ranges have it.
    by_block: HashMap<u64, Vec<usize>, BuildHasherDefault<Spread>>,
    /// Places in the table that are of each level's blocks.
    of_level: [usize; LEVELS],
    /// A bit for each level that has any.
    levels: u32,
    /// How many are told in each way.
    of_how: [usize; How::ALL.len()],
}

/// How far a search for those that want an address has come.
pub(super) struct Search {
    offset: u64,
    /// In all of them, or in those of the block of the first level that is left.
    at: usize,
    /// Levels that are left.
    levels: u32,
}

impl Handlers {
    /// Begins to look for those that want an address.
    #[inline]
    pub(super) fn search(&self, offset: u64) -> Search {
        Search {
            offset,
            at: 0,
            levels: self.levels,
        }
    }

    /// The next one that wants it: its place, for [`Self::call`] and [`Self::id`].
    #[inline]
    pub(super) fn next(&self, search: &mut Search) -> Option<usize> {
        if self.all.len() > FEW {
            return self.next_by_block(search);
        }
        let mut rest = self.all.iter().enumerate().skip(search.at);
        let (place, _) = rest.find(|(_, h)| h.range.contains(&search.offset))?;
        search.at = place + 1;
        Some(place)
    }

    fn next_by_block(&self, search: &mut Search) -> Option<usize> {
        while search.levels != 0 {
            let level = search.levels.trailing_zeros() as usize;
            let block = Block::around(level, search.offset)?;
            let places = self
                .by_block
                .get(&key(block))
                .map_or(&[][..], Vec::as_slice);
            while let Some(place) = places.get(search.at) {
                search.at += 1;
                let wants = |h: &Handling| h.range.contains(&search.offset);
                if self.all.get(*place).is_some_and(wants) {
                    return Some(*place);
                }
            }
            search.levels &= search.levels - 1;
            search.at = 0;
        }
        None
    }

    /// Whether any wants it.
    pub(super) fn want(&self, offset: u64) -> bool {
        self.next(&mut self.search(offset)).is_some()
    }

    /// Calls the only one there is, if it wants the signal; whether it does. `None` if there
    /// are more. Then no handler is left to go on with if it panics.
    #[inline]
    pub(super) fn call_only(&mut self, offset: u64, address: usize) -> Option<bool> {
        let [only] = self.all.as_mut_slice() else {
            return None;
        };
        let wants = only.range.contains(&offset);
        if wants {
            let run = only.run.get_mut();
            run.unwrap_or_else(PoisonError::into_inner)(address);
        }
        Some(wants)
    }

    /// Calls the one at `place`.
    #[inline]
    pub(super) fn call(&mut self, place: usize, address: usize) {
        let run = self.all[place].run.get_mut();
        run.unwrap_or_else(PoisonError::into_inner)(address);
    }

    /// The number of the one at `place`.
    pub(super) fn id(&self, place: usize) -> u16 {
        self.all[place].id
    }

    /// Where the handler `id` is.
    pub(super) fn place(&self, id: u16) -> Option<usize> {
        self.all.iter().position(|h| h.id == id)
    }

    /// The numbers of all.
    pub(super) fn ids(&self) -> impl Iterator<Item = u16> + '_ {
        self.all.iter().map(|h| h.id)
    }

    /// The ways in which they are told, each once.
    pub(super) fn hows(&self) -> impl Iterator<Item = How> + '_ {
        let used = |how: &How| self.of_how[*how as usize] > 0;
        How::ALL.into_iter().filter(used)
    }

    pub(super) fn add(&mut self, handling: Handling) {
        let place = self.all.len();
        for block in blocks(handling.range.start, handling.range.end) {
            self.by_block.entry(key(block)).or_default().push(place);
            self.of_level[block.level()] += 1;
            self.levels |= 1 << block.level();
        }
        self.of_how[handling.how as usize] += 1;
        self.all.push(handling);
    }

    pub(super) fn remove(&mut self, id: u16) -> Option<Handling> {
        let place = self.place(id)?;
        let gone = self.all.swap_remove(place);
        for block in blocks(gone.range.start, gone.range.end) {
            self.take_out(block, place);
        }
        self.of_how[gone.how as usize] -= 1;
        // The last one has its place now.
        if let Some(moved) = self.all.get(place) {
            let last = self.all.len();
            for block in blocks(moved.range.start, moved.range.end) {
                let places = self.by_block.get_mut(&key(block));
                if let Some(found) = places.and_then(|p| p.iter_mut().find(|p| **p == last)) {
                    *found = place;
                }
            }
        }
        Some(gone)
    }

    fn take_out(&mut self, block: Block, place: usize) {
        let Some(places) = self.by_block.get_mut(&key(block)) else {
            return;
        };
        places.retain(|p| *p != place);
        if places.is_empty() {
            self.by_block.remove(&key(block));
        }
        let left = &mut self.of_level[block.level()];
        *left -= 1;
        if *left == 0 {
            self.levels &= !(1 << block.level());
        }
    }
}

fn key(block: Block) -> u64 {
    block.pack(0)
}

/// Hashes one word, of which its writers choose nothing: a product's halves.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(word) * 0x9e37_79b9_7f4a_7c15;
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let lower = product as u64;
        self.0 = lower ^ (product >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 << 8 | u64::from(*byte));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handling(id: u16, range: Range<u64>) -> Handling {
        Handling {
            id,
            range,
            how: How::Listened,
            run: Mutex::new(Box::new(|_| {})),
        }
    }

    /// By a search, and by looking at each.
    fn wanting(handlers: &Handlers, offset: u64) -> [Vec<u16>; 2] {
        let mut search = handlers.search(offset);
        let found = std::iter::from_fn(|| handlers.next(&mut search));
        let found = found.map(|place| handlers.id(place)).collect();
        let each = handlers.all.iter();
        let each = each.filter(|h| h.range.contains(&offset)).map(|h| h.id);
        [found, each.collect()].map(|mut ids: Vec<u16>| {
            ids.sort_unstable();
            ids
        })
    }

    #[test]
    fn a_search_finds_whom_a_look_at_each_finds() {
        let mut handlers = Handlers::default();
        let mut next = 1u64;
        let mut random = |below: u64| {
            next = next.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (next >> 33) % below
        };
        let mut here = vec![];
        for round in 0..4_000_u16 {
            // First more and more, then fewer and fewer.
            let grows = random(4) < if round < 2_000 { 3 } else { 1 };
            if grows || here.is_empty() {
                let start = random(1 << 20);
                let longest = 1 << (1 + random(20));
                let len = 1 + random(longest);
                handlers.add(handling(round, start..start + len));
                here.push(round);
            } else {
                let at = usize::try_from(random(here.len() as u64)).unwrap();
                let id = here.swap_remove(at);
                assert_eq!(handlers.remove(id).map(|h| h.id), Some(id));
                assert!(handlers.remove(id).is_none());
            }
            assert_eq!(handlers.ids().count(), here.len());
            for offset in [random(1 << 20), random(1 << 21)] {
                let [found, each] = wanting(&handlers, offset);
                assert_eq!(found, each, "{offset} of {}", here.len());
                assert_eq!(handlers.want(offset), !each.is_empty());
            }
        }
        for id in here {
            handlers.remove(id);
        }
        assert!(handlers.by_block.is_empty() && handlers.levels == 0);
        assert_eq!(handlers.hows().count(), 0);
    }
}
