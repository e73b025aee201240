//! The tables that handles are looked up in: one a kind, each a fixed array of slots.
//!
//! A handle is no pointer but a word, so a wrong one is found by a comparison and nothing is
//! touched for it (C1). The kind is part of the word, and each kind has a table of its own.
//!
//! ```text
//! handle:  kind 6 | generation 58 - B - S | index B | zeros S      2^S bytes is a slot's stride
//!
//! a slot's word, beside the handle that names it:
//!
//!   free      kind 0, and the index of the next free slot in the place of its own
//!   idle      the handle itself
//!   shared    the handle plus n in its index, 1 <= n <= 2^B - 2
//!   sole      the handle less 1 in its index
//!
//! free --fill--> idle --share--> shared (n) --> idle --hold--> sole --> idle
//!                    ^                                            |
//!                    +---- next generation <-- free <---- take ---+     each arrow is
//!                                                                       one atomic step
//! ```
//!
//! # Count
//!
//! Instructions of a lookup that finds its handle idle, and of letting go again (x86-64, in the shared
//! library, which finds its tables by one load more):
//!
//! | step | instructions |
//! |---|---|
//! | where the slot is: the index's bits are its place in the table, so the table, its mask, and an addition | 5 |
//! | what the word must be (the handle), and what it becomes | 2 |
//! | compare-exchange, and a jump for all that is wrong | 2 |
//! | letting go: one store (`hold`), or one locked subtraction (`share`) | 1 |
//!
//! A lookup is one compare-exchange, which finds whether the handle is alive, of this kind, and
//! used by no other call (C2); so a handle that one thread frees while another uses it is found
//! too, which a table of generations alone would not find. Nothing else is compared: before the
//! first handle of a kind is made its table is two words that no handle has. The slots lie in zeroed
//! memory, so those that were never used take none.
//!
//! # Invariants
//!
//! - **H1** A slot's value is initialised exactly while its word is not that of a free one.
//! - **H2** Only the call that has brought the word to *sole* may change the value or take it out; a
//!   call that has counted itself in may read it.
//! - **H3** A generation of a slot is used once. A slot that has used its last is never used again.
//! - **H4** A table's mask is one index bit while its slots are the two words that no handle has, and
//!   after that all of them.
//! - **H5** Unless a slot is idle, its word has another index than its own. So no handle equals it
//!   that leads to this slot, whatever number a program makes up. Index 0 is never used: as a next
//!   free slot it says that there is none.

mod guards;
mod table;
#[cfg(test)]
mod tests;
pub(crate) use guards::{Reserved, Shared, Sole, Vacated};
pub(crate) use table::{Slot, Table, no_slots};

use crate::status::{enter, fail, portolan_status};
use guards::Placed;
use std::mem::forget;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use table::word;

/// The most bits that an index can have.
const MOST_BITS: u32 = 16;
const KIND_SHIFT: u32 = 58;

/// A handle of C's, and what it stands for.
pub(crate) trait Handle: Copy + 'static {
    type Value: Send + 'static;

    /// The number of its kind; neither 0 nor the last one.
    const KIND: u8;
    /// What it is, for people.
    const NAME: &'static str;
    /// Bits of an index.
    const BITS: u32;
    /// One in the index.
    const ONE: u64 = Slot::<Self::Value>::STRIDE as u64;
    /// The bits of an index.
    const MASK: u64 = {
        // Not 0, which is that of free slots; nor the last one, from which a sum would lead there.
        assert!(0 < Self::KIND && Self::KIND < (1 << (64 - KIND_SHIFT)) - 1);
        assert!(Self::BITS > 1 && Self::BITS <= MOST_BITS);
        ((1 << Self::BITS) - 1) * Self::ONE
    };
    /// One in the generation.
    const NEXT: u64 = Self::MASK + Self::ONE;
    /// The bits of a generation.
    const GENERATION: u64 = {
        // Decades of a million handles a second (H3).
        assert!(Self::NEXT < 1 << 27);
        (1 << KIND_SHIFT) - Self::NEXT
    };

    fn table() -> &'static Table<Self::Value>;
    fn id(self) -> u64;
    fn of(id: u64) -> Self;

    /// Makes a handle for a value.
    #[inline]
    fn insert(value: Self::Value) -> Result<Self, portolan_status> {
        Ok(Self::fill(Self::reserve()?, value))
    }

    /// Makes sure that there will be a handle for a value, before anything is done that cannot be
    /// undone (C3).
    #[inline]
    fn reserve() -> Result<Reserved<Self>, portolan_status> {
        match Self::try_reserve() {
            Some(reserved) => Ok(reserved),
            None => Self::reserve_fresh(),
        }
    }

    /// The same, of a slot that was used before: it calls nothing.
    #[inline(always)]
    fn try_reserve() -> Option<Reserved<Self>> {
        let (at, place) = Self::table().pop(Self::MASK, Self::NEXT)?;
        // SAFETY:
        // - Its index was on the list of free slots, so it is one's.
        let slot = unsafe { &*place };
        Some(Reserved { at, slot })
    }

    /// The same, where no slot is free that was used before.
    #[cold]
    #[inline(never)]
    fn reserve_fresh() -> Result<Reserved<Self>, portolan_status> {
        let table = Self::table();
        let mut fresh = table.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        if *fresh == 0 {
            if !table.populate(Self::BITS, Self::MASK) {
                return Err(fail(
                    portolan_status::PORTOLAN_OUT_OF_MEMORY,
                    format_args!("this process has no memory for a table of handles"),
                ));
            }
            *fresh = 1;
        }
        let at = *fresh * Self::ONE;
        if at <= Self::MASK {
            *fresh += 1;
            return Ok(Reserved::of(at));
        }
        // Another thread may have freed one since.
        if let Some(reserved) = Self::try_reserve() {
            return Ok(reserved);
        }
        Err(fail(
            portolan_status::PORTOLAN_NO_ROOM,
            format_args!(
                "this process has {} handles of the kind {}, which is the most: free some",
                *fresh - 1,
                Self::NAME
            ),
        ))
    }

    /// The handle that was reserved.
    #[inline]
    fn fill(reserved: Reserved<Self>, value: Self::Value) -> Self {
        // SAFETY:
        // - Exclusive: this call alone has the slot, from the list of free ones.
        let room = unsafe { &mut *reserved.slot.value.get() };
        // What it held was taken out (H1), so nothing is overwritten that must be dropped.
        room.write(value);
        Self::name(reserved)
    }

    /// The handle of a slot that was filled.
    #[inline(always)]
    fn name(reserved: Reserved<Self>) -> Self {
        let (at, slot) = (reserved.at, reserved.slot);
        forget(reserved);
        // Never over the last generation (H3): see `release`.
        let generation = (slot.word.load(Ordering::Relaxed) & Self::GENERATION) + Self::NEXT;
        let id = u64::from(Self::KIND) << KIND_SHIFT | generation | at;
        // Release: pairs with the lookups.
        slot.word.store(id, Ordering::Release);
        Self::of(id)
    }

    /// The same, of a value that is finished where it lies; if that fails there is no handle.
    #[inline(always)]
    fn fill_with(
        reserved: Reserved<Self>,
        value: Self::Value,
        finish: impl FnOnce(&mut Self::Value) -> Result<(), portolan_status>,
    ) -> Result<Self, portolan_status> {
        // SAFETY:
        // - Exclusive: this call alone has the slot, from the list of free ones.
        let room = unsafe { &mut *reserved.slot.value.get() };
        // What it held was taken out (H1), so nothing is overwritten that must be dropped. Should
        // `finish` fail or panic, the value is dropped, and then the slot is free again.
        let placed = Placed(room.write(value));
        finish(placed.0)?;
        forget(placed);
        Ok(Self::name(reserved))
    }

    /// Uses the value alone, through this call.
    #[inline(always)]
    fn hold(self) -> Result<Sole<Self::Value>, portolan_status> {
        match self.try_hold() {
            Some(sole) => Ok(sole),
            None => Err(self.refuse()),
        }
    }

    /// As [`Self::hold`]; [`Self::refuse`] says why not. A few instructions less, for the calls that are
    /// made most often.
    #[inline(always)]
    fn try_hold(self) -> Option<Sole<Self::Value>> {
        let (id, place) = (self.id(), Self::table().place(self.id()));
        let sole = id.wrapping_sub(Self::ONE);
        // Acquire: pairs with the release of the call that used it last.
        word(place)
            .compare_exchange(id, sole, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        // SAFETY:
        // - It was idle, so it is a slot and not one of the two words (H5), with a value (H1).
        let slot = unsafe { &*place };
        Some(Sole { slot, id })
    }

    /// The use that [`Self::try_hold`] has begun, and whose guard was forgotten.
    ///
    /// # Safety
    ///
    /// - This very call has begun it, and goes on with it once.
    #[inline(always)]
    unsafe fn resume(self) -> Sole<Self::Value> {
        // SAFETY:
        // - The handle was found, so it names a slot.
        let slot = unsafe { &*Self::table().place(self.id()) };
        Sole {
            slot,
            id: self.id(),
        }
    }

    /// Uses the value beside other calls that do so too.
    #[inline(always)]
    fn share(self) -> Result<Shared<Self::Value>, portolan_status>
    where
        Self::Value: Sync,
    {
        match self.try_share().or_else(|| self.share_with_others()) {
            Some(shared) => Ok(shared),
            None => Err(self.refuse()),
        }
    }

    /// As [`Self::share`], if no other call uses it, which is most often so.
    #[inline(always)]
    fn try_share(self) -> Option<Shared<Self::Value>>
    where
        Self::Value: Sync,
    {
        let (id, place) = (self.id(), Self::table().place(self.id()));
        let shared = id.wrapping_add(Self::ONE);
        // Acquire: as in `try_hold`.
        word(place)
            .compare_exchange(id, shared, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        // SAFETY:
        // - As in `try_hold`.
        let slot = unsafe { &*place };
        Some(Shared {
            slot,
            one: Self::ONE,
        })
    }

    /// As [`Self::resume`], where the slot is at hand.
    ///
    /// # Safety
    ///
    /// - As there; the slot is that of the guard.
    #[inline(always)]
    unsafe fn resume_at(self, slot: &'static Slot<Self::Value>) -> Sole<Self::Value> {
        Sole {
            slot,
            id: self.id(),
        }
    }

    /// The use that [`Self::try_share`] has begun, and whose guard was forgotten.
    ///
    /// # Safety
    ///
    /// - As [`Self::resume`].
    #[inline(always)]
    unsafe fn resume_shared(self) -> Shared<Self::Value>
    where
        Self::Value: Sync,
    {
        // SAFETY:
        // - As in `resume`.
        let slot = unsafe { &*Self::table().place(self.id()) };
        Shared {
            slot,
            one: Self::ONE,
        }
    }

    /// As [`Self::resume_shared`], where the slot is at hand.
    ///
    /// # Safety
    ///
    /// - As there; the slot is that of the guard.
    #[inline(always)]
    unsafe fn resume_shared_at(self, slot: &'static Slot<Self::Value>) -> Shared<Self::Value>
    where
        Self::Value: Sync,
    {
        Shared {
            slot,
            one: Self::ONE,
        }
    }

    /// Beside other calls.
    #[cold]
    #[inline(never)]
    fn share_with_others(self) -> Option<Shared<Self::Value>>
    where
        Self::Value: Sync,
    {
        let place = Self::table().place(self.id());
        let word = word(place);
        let mut found = word.load(Ordering::Relaxed);
        loop {
            // As many as there are counts below *sole* may share a value at one time.
            if self.uses(found)? >= (1 << Self::BITS) - 2 {
                return None;
            }
            // Acquire: as in `try_hold`.
            match word.compare_exchange_weak(
                found,
                found.wrapping_add(Self::ONE),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    // SAFETY:
                    // - It was this handle's, so it is a slot with a value, as in `try_hold`.
                    let slot = unsafe { &*place };
                    return Some(Shared {
                        slot,
                        one: Self::ONE,
                    });
                }
                Err(now) => found = now,
            }
        }
    }

    /// How many calls share the value of the slot whose word this is; all ones where one has it
    /// alone. `None`: the handle is not that slot's.
    fn uses(self, word: u64) -> Option<u64> {
        let (kind, beyond) = (self.id() >> KIND_SHIFT, word.wrapping_sub(self.id()));
        if kind != u64::from(Self::KIND) || !beyond.is_multiple_of(Self::ONE) {
            return None;
        }
        match beyond / Self::ONE {
            uses if uses <= (1 << Self::BITS) - 2 => Some(uses),
            _ if beyond == Self::ONE.wrapping_neg() => Some(u64::MAX),
            _ => None,
        }
    }

    /// Takes the value out; the handle is freed.
    fn take(self) -> Result<Self::Value, portolan_status> {
        Ok(Self::take_out(self.hold()?))
    }

    /// As [`Self::take`], of a value that this call uses alone.
    fn take_out(sole: Sole<Self::Value>) -> Self::Value {
        Self::vacate(sole).0
    }

    /// Frees the handle of a value that owns nothing, so that it needs no dropping. It calls nothing.
    #[inline(always)]
    fn let_go(sole: Sole<Self::Value>) {
        let (id, slot) = (sole.id, sole.slot);
        forget(sole);
        Self::release(id, slot);
    }

    /// Drops the value where it lies; the handle is freed.
    fn drop_value(self) -> Result<(), portolan_status> {
        Self::drop_held(self.hold()?);
        Ok(())
    }

    /// The same, of a value that this call uses alone.
    fn drop_held(sole: Sole<Self::Value>) {
        let vacated = Vacated::<Self>::of(&sole);
        // It does not go back to *idle*.
        let slot = sole.slot;
        forget(sole);
        // SAFETY:
        // - Exclusive: this call has the slot alone (H2).
        let value = unsafe { &mut *slot.value.get() };
        // SAFETY:
        // - Initialised: the slot is in use (H1), and from here on it counts as empty: what was made
        //   above frees it.
        unsafe { value.assume_init_drop() };
        drop(vacated);
    }

    /// Gives the value to `work`, which gives it back if it does not keep it: then the handle is
    /// as it was (C3), and else it is freed.
    fn give(
        sole: Sole<Self::Value>,
        work: impl FnOnce(Self::Value) -> Result<(), (Option<Box<Self::Value>>, portolan_status)>,
    ) -> Result<(), portolan_status> {
        let (value, vacated) = Self::vacate(sole);
        let Err((value, status)) = work(value) else {
            return Ok(());
        };
        if let Some(value) = value {
            vacated.refill(*value);
        }
        Err(status)
    }

    /// Takes the value out; until what is returned is dropped, the slot is used by this call.
    fn vacate(sole: Sole<Self::Value>) -> (Self::Value, Vacated<Self>) {
        let vacated = Vacated::of(&sole);
        // It does not go back to *idle*.
        let slot = sole.slot;
        forget(sole);
        // SAFETY:
        // - Exclusive: this call has the slot alone (H2).
        let value = unsafe { &mut *slot.value.get() };
        // SAFETY:
        // - Initialised: the slot is in use (H1), and from here on it counts as empty: what was
        //   made above frees it, or has it filled again.
        let value = unsafe { value.assume_init_read() };
        (value, vacated)
    }

    /// Frees the slot of a handle whose value was taken out.
    #[inline]
    fn release(id: u64, slot: &'static Slot<Self::Value>) {
        let (used, at) = (id & Self::GENERATION, id & Self::MASK);
        // One that has used its last generation is not used again (H3), and is no handle's (H5).
        if used == Self::GENERATION {
            let last = used | (at ^ Self::ONE);
            slot.word.store(last, Ordering::Relaxed);
        } else {
            Self::table().push(slot, at, used, Self::MASK, Self::NEXT);
        }
    }

    /// Why a lookup has found nothing.
    #[inline(always)]
    fn refuse(self) -> portolan_status {
        refused::<Self>(self.id())
    }

    #[cold]
    fn why_not(self) -> portolan_status {
        let found = word(Self::table().place(self.id())).load(Ordering::Relaxed);
        if self.uses(found).is_some() {
            return fail(
                portolan_status::PORTOLAN_BUSY,
                format_args!(
                    "another call uses the {}: end that one first, or use one for each thread",
                    Self::NAME
                ),
            );
        }
        fail(
            portolan_status::PORTOLAN_BAD_HANDLE,
            format_args!(
                "{:#x} is no {} of this process: it was freed, sent, or never made",
                self.id(),
                Self::NAME
            ),
        )
    }
}

/// See [`Handle::refuse`]. Of C's convention, by which no panic leaves it: so a function that ends in it
/// has nothing to do afterwards.
#[cold]
#[inline(never)]
extern "C" fn refused<H: Handle>(id: u64) -> portolan_status {
    enter(|| Err(H::of(id).why_not()))
}
