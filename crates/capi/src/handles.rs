//! The tables that handles are looked up in: one a kind, each a fixed array of slots.
//!
//! A handle is no pointer but a word, so a wrong one is found by a comparison and nothing is
//! touched for it (C1). The kind is part of the word, and each kind has a table of its own.
//!
//! ```text
//! handle:    kind 8 | generation 56 - B | index B
//! a slot's:  kind 8 | generation 56 - B | use B    use: 0 free, 1 idle, 2.. shared, all ones sole
//!
//! B is a number of the kind: its table has 2^B slots, so every index is one of a slot.
//!
//! free --fill--> idle --share--> shared (n) --> idle --hold--> sole --> idle
//!                    ^                                            |
//!                    +---- next generation <-- free <---- take ---+     each arrow is
//!                                                                       one atomic step
//! ```
//!
//! A lookup is one compare-exchange, which finds whether the handle is alive, of this kind, and
//! used by no other call (C2); so a handle that one thread frees while another uses it is found
//! too, which a table of generations alone would not find. Nothing else is compared: before the
//! first handle of a kind is made its table is one slot that no handle has. The slots lie in zeroed
//! memory, so those that were never used take none.
//!
//! # Invariants
//!
//! - **H1** A slot's value is initialised exactly while its use is not 0.
//! - **H2** Only the call that has brought the use to *sole* may change the value or take it out; a
//!   call that has counted itself in may read it.
//! - **H3** A generation of a slot is used once. A slot that has used its last is never used again.
//! - **H4** A table's mask is 0 while its slots are the one slot that no handle has, and after that
//!   one less than their number.

use crate::status::{fail, portolan_status};
use std::alloc::{Layout, alloc_zeroed};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The most bits that an index can have.
const MOST_BITS: u32 = 16;
const KIND_SHIFT: u32 = 56;

const IDLE: u64 = 1;

/// A handle of C's, and what it stands for.
pub(crate) trait Handle: Copy {
    type Value: Send + 'static;

    /// The number of its kind; not 0.
    const KIND: u8;
    /// What it is, for people.
    const NAME: &'static str;
    /// Bits of an index.
    const BITS: u32;
    /// The bits of a handle that are its index, and of a word those that are its use.
    const LOW: u64 = {
        assert!(
            Self::BITS <= MOST_BITS,
            "a list of free slots has room for this"
        );
        (1 << Self::BITS) - 1
    };

    fn table() -> &'static Table<Self::Value>;
    fn id(self) -> u64;
    fn of(id: u64) -> Self;

    /// Makes a handle for a value.
    fn insert(value: Self::Value) -> Result<Self, portolan_status> {
        Ok(Self::fill(Self::reserve()?, value))
    }

    /// Makes sure that there will be a handle for a value, before anything is done that cannot be
    /// undone (C3).
    fn reserve() -> Result<Reserved<Self::Value>, portolan_status> {
        Self::table().reserve(Self::KIND, Self::LOW, Self::NAME)
    }

    /// The handle that was reserved.
    fn fill(reserved: Reserved<Self::Value>, value: Self::Value) -> Self {
        Self::of(reserved.fill(value))
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
        Self::table().hold(self.id(), Self::LOW)
    }

    /// Uses the value beside other calls that do so too.
    #[inline(always)]
    fn share(self) -> Result<Shared<Self::Value>, portolan_status>
    where
        Self::Value: Sync,
    {
        match self.try_share() {
            Some(shared) => Ok(shared),
            None => Err(self.refuse()),
        }
    }

    /// As [`Self::try_hold`].
    #[inline(always)]
    fn try_share(self) -> Option<Shared<Self::Value>>
    where
        Self::Value: Sync,
    {
        Self::table().share(self.id(), Self::LOW)
    }

    /// Takes the value out; the handle is freed.
    fn take(self) -> Result<Self::Value, portolan_status> {
        Ok(Self::take_out(self.hold()?))
    }

    /// As [`Self::take`], of a value that this call uses alone.
    fn take_out(sole: Sole<Self::Value>) -> Self::Value {
        Self::table().vacate(sole, Self::LOW).0
    }

    /// Gives the value to `work`, which gives it back if it does not keep it: then the handle is
    /// as it was (C3), and else it is freed.
    fn give(
        sole: Sole<Self::Value>,
        work: impl FnOnce(Self::Value) -> Result<(), (Option<Box<Self::Value>>, portolan_status)>,
    ) -> Result<(), portolan_status> {
        let (value, vacated) = Self::table().vacate(sole, Self::LOW);
        let Err((value, status)) = work(value) else {
            return Ok(());
        };
        if let Some(value) = value {
            vacated.refill(*value);
        }
        Err(status)
    }

    /// Why a lookup has found nothing.
    #[cold]
    #[inline(never)]
    fn refuse(self) -> portolan_status {
        if Self::table().is_alive(self.id(), Self::LOW) {
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

/// A slot of a table.
pub(crate) struct Slot<T> {
    word: AtomicU64,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY:
// - A value is reached by shared reference only through `Shared`, which asks that it be `Sync`,
//   and else by the one thread that has brought its slot to *sole* (H2), to which it was sent.
unsafe impl<T: Send> Sync for Slot<T> {}

impl<T> Slot<T> {
    /// One without a value.
    pub(crate) const fn none() -> Self {
        Self {
            word: AtomicU64::new(0),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }
}

/// The slots of one kind, and which of them are free. `low` is everywhere the kind's
/// [`Handle::LOW`].
pub(crate) struct Table<T: 'static> {
    slots: AtomicPtr<Slot<T>>,
    /// See H4. Written after `slots`.
    mask: AtomicU64,
    free: Mutex<Free>,
}

struct Free {
    /// Slots that were used and are free.
    again: Vec<u16>,
    /// The first slot that was never used.
    next: u64,
}

impl<T> Table<T> {
    /// A table without slots but `none`, which no handle has.
    pub(crate) const fn new(none: &'static Slot<T>) -> Self {
        Self {
            slots: AtomicPtr::new(std::ptr::from_ref(none).cast_mut()),
            mask: AtomicU64::new(0),
            free: Mutex::new(Free {
                again: Vec::new(),
                next: 0,
            }),
        }
    }

    /// Makes the slots, if there are none; whether there are some now. Under the list's lock, so
    /// one thread does.
    fn populate(&self, low: u64) -> bool {
        if self.mask.load(Ordering::Relaxed) != 0 {
            return true;
        }
        let Ok(Ok(layout)) = usize::try_from(low + 1).map(Layout::array::<Slot<T>>) else {
            return false;
        };
        // SAFETY:
        // - Of more than no bytes: a slot has a word.
        let slots = unsafe { alloc_zeroed(layout) }.cast::<Slot<T>>();
        if slots.is_null() {
            return false;
        }
        self.slots.store(slots, Ordering::Relaxed);
        // Release: pairs with the acquire of `slot`.
        self.mask.store(low, Ordering::Release);
        true
    }

    #[inline(always)]
    fn slot(&self, id: u64) -> &'static Slot<T> {
        // Acquire: pairs with the release of `populate`. A thread that finds the mask from before
        // that and the slots from after it looks at the first slot, as it may.
        let mask = self.mask.load(Ordering::Acquire);
        #[expect(clippy::cast_possible_truncation, reason = "an index is 16 bits")]
        let index = (id & mask) as usize;
        let slots = self.slots.load(Ordering::Relaxed);
        // SAFETY:
        // - A static, or a table that was found not to be null.
        unsafe { std::hint::assert_unchecked(!slots.is_null()) };
        // SAFETY:
        // - In bounds: there is one slot, and where the mask is more there are as many as it
        //   leaves indices (H4).
        let slot = unsafe { slots.add(index) };
        // SAFETY:
        // - Initialised: zeros are a slot without a value (H1).
        // - Live for good: a static, or a table, which is never freed.
        // - What changes in it changes through atomics and an `UnsafeCell`.
        unsafe { &*slot }
    }

    #[inline(always)]
    fn hold(&self, id: u64, low: u64) -> Option<Sole<T>> {
        let slot = self.slot(id);
        let idle = id & !low | IDLE;
        // Acquire: pairs with the release of the call that used it last.
        slot.word
            .compare_exchange(
                idle,
                idle + (low - IDLE),
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .ok()?;
        Some(Sole { slot, idle, id })
    }

    #[inline(always)]
    fn share(&self, id: u64, low: u64) -> Option<Shared<T>> {
        let slot = self.slot(id);
        let idle = id & !low | IDLE;
        // Mostly no other call uses it. Acquire: as in `hold`.
        let alone =
            slot.word
                .compare_exchange(idle, idle + 1, Ordering::Acquire, Ordering::Relaxed);
        match alone {
            Ok(_) => Some(Shared { slot }),
            Err(found) => Self::share_with(slot, id & !low, low, found),
        }
    }

    #[cold]
    #[inline(never)]
    fn share_with(slot: &'static Slot<T>, tag: u64, low: u64, mut found: u64) -> Option<Shared<T>> {
        loop {
            // As many as there are counts below *sole* may share a value at one time.
            if found & !low != tag || !(IDLE..low - 1).contains(&(found & low)) {
                return None;
            }
            // Acquire: as in `hold`.
            match slot.word.compare_exchange_weak(
                found,
                found + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(Shared { slot }),
                Err(now) => found = now,
            }
        }
    }

    fn is_alive(&self, id: u64, low: u64) -> bool {
        let word = self.slot(id).word.load(Ordering::Relaxed);
        word & !low == id & !low && word & low != 0
    }

    fn reserve(
        &'static self,
        kind: u8,
        low: u64,
        name: &str,
    ) -> Result<Reserved<T>, portolan_status> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.populate(low) {
            return Err(fail(
                portolan_status::PORTOLAN_OUT_OF_MEMORY,
                format_args!("this process has no memory for a table of handles"),
            ));
        }
        let index = match free.again.pop() {
            Some(index) => u64::from(index),
            None if free.next <= low => {
                free.next += 1;
                free.next - 1
            }
            None => {
                return Err(fail(
                    portolan_status::PORTOLAN_NO_ROOM,
                    format_args!(
                        "this process has {} handles of the kind {name}, which is the most: free some",
                        low + 1
                    ),
                ));
            }
        };
        Ok(Reserved {
            slot: self.slot(index),
            free: &self.free,
            index,
            kind,
            low,
        })
    }

    /// Takes the value out; until what is returned is dropped, the slot is used by this call.
    fn vacate(&'static self, sole: Sole<T>, low: u64) -> (T, Vacated<T>) {
        let vacated = Vacated {
            slot: sole.slot,
            free: &self.free,
            id: sole.id,
            low,
        };
        // It does not go back to *idle*.
        std::mem::forget(sole);
        // SAFETY:
        // - Exclusive: this call has the slot alone (H2).
        let value = unsafe { &mut *vacated.slot.value.get() };
        // SAFETY:
        // - Initialised: the slot is in use (H1), and from here on it counts as empty: what was
        //   made above frees it, or has it filled again.
        let value = unsafe { value.assume_init_read() };
        (value, vacated)
    }
}

/// The bits of a word that are its generation.
const fn generation(low: u64) -> u64 {
    !low & ((1 << KIND_SHIFT) - 1)
}

/// A slot whose value was taken out; dropped, it is free.
struct Vacated<T: 'static> {
    slot: &'static Slot<T>,
    free: &'static Mutex<Free>,
    id: u64,
    low: u64,
}

impl<T> Vacated<T> {
    /// Puts a value back: the handle is as it was.
    fn refill(self, value: T) {
        let (slot, idle) = (self.slot, self.id & !self.low | IDLE);
        std::mem::forget(self);
        // SAFETY:
        // - Exclusive: this call has the slot alone (H2), and its value was taken out.
        unsafe { slot.value.get().write(MaybeUninit::new(value)) };
        // Release: pairs with the next lookup.
        slot.word.store(idle, Ordering::Release);
    }
}

impl<T> Drop for Vacated<T> {
    fn drop(&mut self) {
        let used = self.id & generation(self.low);
        // Relaxed: the list's lock orders this before the next use. The kind is 0, so no handle
        // is the same, and so is the use.
        self.slot.word.store(used, Ordering::Relaxed);
        // One that has used its last generation is not used again (H3).
        if used < generation(self.low) {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            #[expect(clippy::cast_possible_truncation, reason = "an index is 16 bits")]
            free.again.push((self.id & self.low) as u16);
        }
    }
}

/// A slot that this call has taken from the list of free ones; dropped, it goes back there.
pub(crate) struct Reserved<T: 'static> {
    slot: &'static Slot<T>,
    free: &'static Mutex<Free>,
    index: u64,
    kind: u8,
    low: u64,
}

impl<T> Reserved<T> {
    /// The handle.
    fn fill(self, value: T) -> u64 {
        let Self {
            slot,
            index,
            kind,
            low,
            ..
        } = self;
        std::mem::forget(self);
        // Never over the last generation (H3): see `Vacated`.
        let next = (slot.word.load(Ordering::Relaxed) & generation(low)) + low + 1;
        let tag = u64::from(kind) << KIND_SHIFT | next;
        // SAFETY:
        // - Exclusive: the slot's use is 0, and its index was on the list of free ones, from which
        //   this call alone has it.
        // - What it held was taken out (H1), so nothing is overwritten that must be dropped.
        unsafe { slot.value.get().write(MaybeUninit::new(value)) };
        // Release: pairs with the lookups.
        slot.word.store(tag | IDLE, Ordering::Release);
        tag | index
    }
}

impl<T> Drop for Reserved<T> {
    fn drop(&mut self) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        #[expect(clippy::cast_possible_truncation, reason = "an index is 16 bits")]
        free.again.push(self.index as u16);
    }
}

/// A value that this call alone uses.
pub(crate) struct Sole<T: 'static> {
    slot: &'static Slot<T>,
    /// The slot's word when no call uses it.
    idle: u64,
    id: u64,
}

impl<T> Deref for Sole<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY:
        // - Exclusive: this call has the slot alone (H2).
        let value = unsafe { &*self.slot.value.get() };
        // SAFETY:
        // - Initialised (H1).
        unsafe { value.assume_init_ref() }
    }
}

impl<T> DerefMut for Sole<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY:
        // - Exclusive: this call has the slot alone (H2), and `self` is borrowed so.
        let value = unsafe { &mut *self.slot.value.get() };
        // SAFETY:
        // - Initialised (H1).
        unsafe { value.assume_init_mut() }
    }
}

impl<T> Drop for Sole<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the next lookup.
        self.slot.word.store(self.idle, Ordering::Release);
    }
}

/// A value that this call uses, beside others.
pub(crate) struct Shared<T: 'static> {
    slot: &'static Slot<T>,
}

impl<T> Deref for Shared<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY:
        // - No call changes it: this one has counted itself in (H2).
        let value = unsafe { &*self.slot.value.get() };
        // SAFETY:
        // - Initialised (H1).
        unsafe { value.assume_init_ref() }
    }
}

impl<T> Drop for Shared<T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the lookup of the call that frees it.
        self.slot.word.fetch_sub(1, Ordering::Release);
    }
}
