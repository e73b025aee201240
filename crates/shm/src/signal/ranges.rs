//! Finds the handlers of an address, by the ranges that hold it (S4).
//!
//! The table of blocks changes under a lock. A holder that is stopped delays no other thread: a
//! handler can be added *unlisted*, without blocks, and taken out as an *orphan*, whose blocks
//! stay. Neither needs the lock; the next holder lists the unlisted handlers and takes out the
//! orphans ([`Ranges::sweep`]). While there are unlisted handlers senders look at all handlers
//! instead of the table.
//!
//! ```text
//!       claim           add                        remove, or orphan and sweep
//! free ------> disabled ---------------> enabled --------------------------------> free
//!                  |  add_unlisted          ^
//!                  +-------> unlisted ------+ sweep: blocks first
//! ```

mod unlisted;

use crate::atomic::{AtomicU32, AtomicU64, Ordering, store_load_barrier};
use crate::mark;
use portolan_abi::signal::{Block, LEVELS, blocks};

/// Which levels have blocks, and how many places are in use. Written under the lock.
#[repr(C, align(64))]
#[derive(Default)]
pub struct RangesLine {
    /// A bit for each level that may have blocks; read by every sender.
    levels: AtomicU64,
    /// Bit 0: there may be unlisted handlers; read by every sender. Above it, how often one was
    /// added, so that the bit is not taken back while another one is.
    unlisted: AtomicU64,
    /// Blocks of each level; never too few.
    of_level: [AtomicU32; LEVELS],
    /// A process died in the middle of a change: count anew.
    dirty: AtomicU32,
    /// Blocks in the table.
    count: AtomicU64,
    /// Handlers that were ever used: those before it.
    used: AtomicU64,
    /// Entries before this one are in use.
    full: AtomicU64,
    /// A process has died, and may have left handlers.
    orphans: AtomicU32,
}

/// A handler of one range, in one line.
#[repr(C, align(64))]
#[derive(Default)]
pub struct HandlerEntry {
    /// [`HandlerState`], packed.
    state: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    /// The FIFO that its signals go to.
    fifo: AtomicU32,
    /// How its thread is told.
    delivery: AtomicU32,
    spare: [AtomicU64; 4],
}

/// What a handler's entry is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerState {
    /// For nothing.
    Free,
    /// It belongs to a space, and gets no signals: not yet, or not any more.
    Disabled {
        /// The space.
        space: u8,
    },
    /// It gets signals.
    Enabled {
        /// The space.
        space: u8,
    },
    /// Its space is dead, or has given it up: the next holder of the lock takes it out.
    Orphan,
    /// It gets signals, and is not in the table: the next holder of the lock lists it.
    Unlisted {
        /// The space.
        space: u8,
    },
}

impl HandlerState {
    fn pack(self) -> u64 {
        match self {
            Self::Free => 0,
            Self::Disabled { space } => u64::from(space) << 8 | 1,
            Self::Enabled { space } => u64::from(space) << 8 | 2,
            Self::Orphan => 3,
            Self::Unlisted { space } => u64::from(space) << 8 | 4,
        }
    }

    #[inline]
    fn unpack(word: u64) -> Self {
        let [phase, space, ..] = word.to_le_bytes();
        match phase {
            1 => Self::Disabled { space },
            2 => Self::Enabled { space },
            3 => Self::Orphan,
            4 => Self::Unlisted { space },
            _ => Self::Free,
        }
    }
}

impl HandlerEntry {
    /// What it is used for.
    #[inline]
    pub fn state(&self) -> HandlerState {
        HandlerState::unpack(self.state.load(Ordering::Acquire))
    }

    /// Makes it an orphan if it belongs to `space`; whether it did. Another thread may list it at
    /// the same time.
    fn disown(&self, space: u8) -> bool {
        let mut word = self.state.load(Ordering::Acquire);
        loop {
            let owner = match HandlerState::unpack(word) {
                HandlerState::Enabled { space }
                | HandlerState::Disabled { space }
                | HandlerState::Unlisted { space } => Some(space),
                HandlerState::Free | HandlerState::Orphan => None,
            };
            if owner != Some(space) {
                return false;
            }
            let orphan = HandlerState::Orphan.pack();
            match self
                .state
                .compare_exchange(word, orphan, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// The bytes from `start` up to `end` for which it gets signals, if there are any.
    pub fn overlap(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let gets = matches!(
            self.state(),
            HandlerState::Enabled { .. } | HandlerState::Unlisted { .. }
        );
        // Relaxed: written before it got signals, which we have acquired.
        let first = self.start.load(Ordering::Relaxed).max(start);
        let end = self.end.load(Ordering::Relaxed).min(end);
        (gets && first < end).then_some((first, end))
    }

    /// Where its signals go.
    #[inline]
    pub fn fifo(&self) -> u32 {
        self.fifo.load(Ordering::Acquire)
    }

    /// How its thread is told; what the caller of [`Ranges::add`] said.
    pub fn delivery(&self) -> u32 {
        self.delivery.load(Ordering::Relaxed)
    }

    /// Where its signals go now, if no longer to `fifo`. A sender looks after its push, and
    /// pushes there too (S5).
    #[inline]
    pub fn moved_from(&self, fifo: u32) -> Option<u32> {
        // Pairs with the barrier in `move_to`: push, look here; change, look into the FIFO.
        store_load_barrier();
        let now = self.fifo.load(Ordering::Relaxed);
        (now != fifo).then_some(now)
    }

    /// Sends its signals to another FIFO. The caller then drains the old one (S5).
    pub fn move_to(&self, fifo: u32) {
        self.fifo.swap(fifo, Ordering::AcqRel);
        store_load_barrier();
    }
}

/// The table has no room for the blocks of one more range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the table of signal ranges is full: {used} of {places} places are taken; use fewer, or better aligned, ranges"
)]
pub struct Crowded {
    /// Places taken.
    pub used: usize,
    /// Places that may be taken.
    pub places: usize,
}

/// The table of ranges and their handlers.
#[derive(Clone, Copy)]
pub struct Ranges<'a> {
    line: &'a RangesLine,
    places: &'a [AtomicU64],
    handlers: &'a [HandlerEntry],
}

impl<'a> Ranges<'a> {
    /// The table over its parts; of the places as many as make a power of two.
    #[inline]
    pub fn new(
        line: &'a RangesLine,
        places: &'a [AtomicU64],
        handlers: &'a [HandlerEntry],
    ) -> Self {
        let power = 1 << places.len().max(1).ilog2();
        Self {
            line,
            places: &places[..power.min(places.len())],
            handlers,
        }
    }

    /// The entries of handlers that were ever used.
    pub fn handlers(&self) -> &'a [HandlerEntry] {
        let used = usize::try_from(self.line.used.load(Ordering::Acquire));
        &self.handlers[..used.unwrap_or(usize::MAX).min(self.handlers.len())]
    }

    /// Every handler that gets signals and whose range holds the byte at `offset`; takes no lock.
    #[inline]
    pub fn find(&self, offset: u64, mut each: impl FnMut(u16, &'a HandlerEntry)) {
        // Acquire: pairs with `add_unlisted`; and with `sweep`, so that the blocks are there of
        // whatever is listed by now.
        if self.line.unlisted.load(Ordering::Acquire) & 1 != 0 {
            return self.find_all(offset, each);
        }
        // Acquire: pairs with the release of `add`, so that its blocks are there.
        let mut levels = self.line.levels.load(Ordering::Acquire);
        while levels != 0 {
            let level = levels.trailing_zeros() as usize;
            levels &= levels - 1;
            let Some(block) = Block::around(level, offset) else {
                return;
            };
            self.search(block, |_, place| {
                if let Some((found, handler)) = Block::unpack(place.load(Ordering::Acquire))
                    && found == block
                    && let Some(entry) = self.handlers.get(usize::from(handler))
                    && matches!(entry.state(), HandlerState::Enabled { .. })
                    // Relaxed: written before it was enabled, which we have acquired.
                    && entry.start.load(Ordering::Relaxed) <= offset
                    && offset < entry.end.load(Ordering::Relaxed)
                {
                    each(handler, entry);
                }
                false
            });
        }
    }

    /// Looks at places from where `block` hashes to up to the first one that was never used,
    /// or until told that it is enough.
    #[inline]
    fn search(&self, block: Block, mut found: impl FnMut(usize, &'a AtomicU64) -> bool) {
        let first = block.hash(self.places.len());
        for step in 0..self.places.len() {
            let index = (first + step) & (self.places.len() - 1);
            let place = &self.places[index];
            if place.load(Ordering::Acquire) == Block::NEVER || found(index, place) {
                return;
            }
        }
    }

    fn claim_entry(&self, index: u16, entry: &HandlerEntry, space: u8) -> bool {
        // Before the claim: a sender that looks at all handlers then looks at this one too.
        self.line
            .used
            .fetch_max(u64::from(index) + 1, Ordering::AcqRel);
        let claimed = entry.state.compare_exchange(
            HandlerState::Free.pack(),
            HandlerState::Disabled { space }.pack(),
            // Acquire: whatever its last owner wrote is overwritten. No block leads to it.
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        claimed.is_ok()
    }

    /// The entry of a handler, and how many blocks there are, if there is room for those of a
    /// range.
    fn room_for(
        &self,
        index: u16,
        start: u64,
        end: u64,
    ) -> Result<(usize, &'a HandlerEntry), Crowded> {
        let wanted = blocks(start, end).count();
        let used = usize::try_from(self.line.count.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        // Half full at most: searches stay short.
        let places = self.places.len() / 2;
        let entry = self.handlers.get(usize::from(index));
        let room = used.saturating_add(wanted) <= places;
        entry
            .filter(|_| room)
            .map(|entry| (used, entry))
            .ok_or(Crowded { used, places })
    }

    /// Makes handler `index`, which must be free or claimed by `space`, tell `fifo` of the bytes
    /// from `start` up to `end`, for `space`. Under the lock.
    pub fn add(
        &self,
        index: u16,
        space: u8,
        (start, end): (u64, u64),
        fifo: u32,
        delivery: u32,
    ) -> Result<(), Crowded> {
        let (used, entry) = self.room_for(index, start, end)?;
        self.claim_entry(index, entry, space);
        if entry.state() != (HandlerState::Disabled { space }) {
            let places = self.places.len() / 2;
            return Err(Crowded { used, places });
        }
        // No block leads to it: whatever of these it lives to write, none is there.
        entry.start.store(start, Ordering::Relaxed);
        entry.end.store(end, Ordering::Relaxed);
        // Not free any more. Relaxed, as where it is lowered: under the lock.
        if self.line.full.load(Ordering::Relaxed) == u64::from(index) {
            self.line
                .full
                .store(u64::from(index) + 1, Ordering::Relaxed);
        }
        mark!("signal.handler_claimed");
        entry.fifo.store(fifo, Ordering::Relaxed);
        entry.delivery.store(delivery, Ordering::Relaxed);
        for block in blocks(start, end) {
            self.counted(block, true);
            self.insert(block, index);
            mark!("signal.block_added");
        }
        // The line of no return. Release: pairs with `find`.
        entry
            .state
            .store(HandlerState::Enabled { space }.pack(), Ordering::Release);
        Ok(())
    }

    fn insert(&self, block: Block, index: u16) {
        let first = block.hash(self.places.len());
        for step in 0..self.places.len() {
            let place = &self.places[(first + step) & (self.places.len() - 1)];
            let found = place.load(Ordering::Relaxed);
            if Block::unpack(found).is_none() {
                place.store(block.pack(index), Ordering::Release);
                return;
            }
        }
    }

    fn counted(&self, block: Block, one_more: bool) {
        let line = self.line;
        let of_level = &line.of_level[block.level()];
        let (count, blocks) = (
            line.count.load(Ordering::Relaxed),
            of_level.load(Ordering::Relaxed),
        );
        let (count, blocks) = if one_more {
            (count.saturating_add(1), blocks.saturating_add(1))
        } else {
            (count.saturating_sub(1), blocks.saturating_sub(1))
        };
        line.count.store(count, Ordering::Relaxed);
        of_level.store(blocks, Ordering::Relaxed);
        let levels = line.levels.load(Ordering::Relaxed);
        let bit = 1 << block.level();
        let levels = if blocks == 0 {
            levels & !bit
        } else {
            levels | bit
        };
        // Release: pairs with `find`.
        line.levels.store(levels, Ordering::Release);
    }

    /// Takes handler `index` out, if it belongs to `space`. Under the lock. Signals that are
    /// on their way may still come.
    pub fn remove(&self, index: u16, space: u8) {
        let Some(entry) = self.handlers.get(usize::from(index)) else {
            return;
        };
        match entry.state() {
            HandlerState::Enabled { space: owner }
            | HandlerState::Disabled { space: owner }
            | HandlerState::Unlisted { space: owner }
                if owner == space => {}
            _ => return,
        }
        entry
            .state
            .store(HandlerState::Disabled { space }.pack(), Ordering::Release);
        mark!("signal.handler_disabled");
        self.take_out(index, entry);
    }

    /// Takes a handler's blocks out, those that are there, and frees its entry.
    fn take_out(&self, index: u16, entry: &HandlerEntry) {
        let (start, end) = (
            entry.start.load(Ordering::Relaxed),
            entry.end.load(Ordering::Relaxed),
        );
        for block in blocks(start, end) {
            if let Some(at) = self.place_of(block, index) {
                self.give_up(at);
                self.counted(block, false);
            }
            mark!("signal.block_removed");
        }
        // Before the entry is free: a process that dies in between has hidden no free entry.
        let full = self.line.full.load(Ordering::Relaxed);
        self.line
            .full
            .store(full.min(u64::from(index)), Ordering::Relaxed);
        entry
            .state
            .store(HandlerState::Free.pack(), Ordering::Release);
    }

    /// Where the table says that a block leads to a handler.
    fn place_of(&self, block: Block, handler: u16) -> Option<usize> {
        let word = block.pack(handler);
        let mut at = None;
        self.search(block, |index, place| {
            let found = place.load(Ordering::Relaxed) == word;
            if found {
                at = Some(index);
            }
            found
        });
        at
    }

    /// Gives a place up, and those before it that only led here.
    fn give_up(&self, mut index: usize) {
        let mask = self.places.len() - 1;
        self.places[index].store(Block::GONE, Ordering::Release);
        if self.places[(index + 1) & mask].load(Ordering::Relaxed) != Block::NEVER {
            return;
        }
        for _ in 0..self.places.len() {
            if self.places[index].load(Ordering::Relaxed) != Block::GONE {
                return;
            }
            self.places[index].store(Block::NEVER, Ordering::Release);
            index = index.wrapping_sub(1) & mask;
        }
    }

    /// Ends every handler of a dead space, also one that it was adding or removing; their
    /// blocks stay until [`Self::sweep`]. Takes no lock, because its holder may be stopped.
    /// `held_lock`: it died with the lock.
    pub fn disown(&self, space: u8, held_lock: bool) {
        if held_lock {
            self.line.dirty.store(1, Ordering::Release);
        }
        for entry in self.handlers() {
            if entry.disown(space) {
                mark!("host.reclaim.handler");
            }
        }
        // Release: pairs with `sweep`. Also where there were none: a host that died here before
        // us may have made some.
        self.line.orphans.store(1, Ordering::Release);
    }

    /// Takes out what the dead have left, and what was given up without the lock; lists what was
    /// added without it. One look where there is nothing of that. Under the lock. Whether
    /// nothing is left to do: there may be no room for the blocks of a handler.
    pub fn sweep(&self) -> bool {
        let tidy = self.list();
        self.take_out_orphans();
        tidy
    }

    fn take_out_orphans(&self) {
        // Acquire: pairs with `disown`. Taken back first: a handler that is disowned meanwhile
        // sets it again. A space that dies from here on sets `dirty`.
        let orphans = self.line.orphans.swap(0, Ordering::AcqRel);
        if orphans == 0 && self.line.dirty.load(Ordering::Acquire) == 0 {
            return;
        }
        for (index, entry) in (0..=u16::MAX).zip(self.handlers()) {
            if entry.state() == HandlerState::Orphan {
                self.take_out(index, entry);
            }
        }
        if self.line.dirty.load(Ordering::Acquire) != 0 {
            self.recount();
            self.line.dirty.store(0, Ordering::Release);
        }
    }

    fn recount(&self) {
        let mut of_level = [0u32; LEVELS];
        for place in self.places {
            if let Some((block, _)) = Block::unpack(place.load(Ordering::Relaxed)) {
                of_level[block.level()] += 1;
            }
        }
        let mut levels = 0;
        for (level, count) in of_level.iter().enumerate() {
            self.line.of_level[level].store(*count, Ordering::Relaxed);
            levels |= u64::from(*count > 0) << level;
        }
        let count = of_level.iter().map(|c| u64::from(*c)).sum();
        self.line.count.store(count, Ordering::Relaxed);
        // Release: pairs with `find`.
        self.line.levels.store(levels, Ordering::Release);
    }
}
