//! A kind's slots, where one lies, and which are free.

use std::alloc::{Layout, alloc_zeroed};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// A slot begins on a cache line, if the stride is a whole number of them.
const LINE: usize = 64;

/// A slot of a table. The word is first: of what is no slot there is nothing else.
#[repr(C)]
pub(crate) struct Slot<T> {
    pub(super) word: AtomicU64,
    pub(super) value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY:
// - A value is reached by shared reference only through `Shared`, which asks that it be `Sync`,
//   and else by the one thread that has brought its slot to *sole* (H2), to which it was sent.
unsafe impl<T: Send> Sync for Slot<T> {}

impl<T> Slot<T> {
    /// Bytes from one slot to the next: a power of two, so that an index is a place.
    pub(crate) const STRIDE: usize = size_of::<Self>().next_power_of_two();
    /// How many words [`no_slots`] has.
    pub(crate) const WORDS: usize = Self::STRIDE / size_of::<AtomicU64>() + 1;
}

/// The first words of two slots that are none, in which no handle is found (H5): the one at index 0
/// says 1, and the one at index 1 says 0.
pub(crate) const fn no_slots<const WORDS: usize>(one: u64) -> [AtomicU64; WORDS] {
    let mut words = [const { AtomicU64::new(0) }; WORDS];
    words[0] = AtomicU64::new(one);
    words
}

/// The word of the slot at a place.
#[inline(always)]
pub(super) fn word<T>(place: *const Slot<T>) -> &'static AtomicU64 {
    // SAFETY:
    // - Live for good, and initialised: a word of a static, or of a table, which is never freed and
    //   was made of zeros.
    // - What changes in it changes through atomics.
    unsafe { &*place.cast::<AtomicU64>() }
}

/// The slots of one kind, and which of them are free. `mask` and `next` are everywhere the kind's
/// [`MASK`](super::Handle::MASK) and
/// [`NEXT`](super::Handle::NEXT).
pub(crate) struct Table<T: 'static> {
    slots: AtomicPtr<Slot<T>>,
    /// See H4. Written after `slots`.
    mask: AtomicU64,
    /// The index of a free slot, whose word has that of the next one; above it a count of steps, so
    /// that a list which is as it was before is told from one that did not change.
    free: AtomicU64,
    /// The first index that was never used; 0 before there are slots.
    pub(super) fresh: Mutex<u64>,
}

impl<T> Table<T> {
    /// A table without slots but `none`, from [`no_slots`].
    pub(crate) const fn new(none: &'static [AtomicU64]) -> Self {
        assert!(none.len() == Slot::<T>::WORDS && align_of::<Slot<T>>() <= LINE);
        Self {
            slots: AtomicPtr::new(none.as_ptr().cast_mut().cast()),
            mask: AtomicU64::new(Slot::<T>::STRIDE as u64),
            free: AtomicU64::new(0),
            fresh: Mutex::new(0),
        }
    }

    /// Makes the slots; whether there are some now. Under the lock of `fresh`, so one thread does.
    pub(super) fn populate(&self, bits: u32, mask: u64) -> bool {
        let bytes = Slot::<T>::STRIDE << bits;
        // Aligned by us: zeros that are asked for in whole lines would be written.
        let Ok(layout) = Layout::from_size_align(bytes + LINE, align_of::<Slot<T>>()) else {
            return false;
        };
        // SAFETY:
        // - Of more than no bytes.
        let memory = unsafe { alloc_zeroed(layout) };
        if memory.is_null() {
            return false;
        }
        // SAFETY:
        // - In bounds: less than a line on, and there is one more.
        let slots = unsafe { memory.add(memory.align_offset(LINE) % LINE) }.cast::<Slot<T>>();
        // Index 0 is no slot's (H5).
        word(slots).store(Slot::<T>::STRIDE as u64, Ordering::Relaxed);
        self.slots.store(slots, Ordering::Relaxed);
        // Release: pairs with the acquire of `place`.
        self.mask.store(mask, Ordering::Release);
        true
    }

    /// Where the slot lies that an id names. There is a word in any case.
    #[inline(always)]
    pub(super) fn place(&self, id: u64) -> *const Slot<T> {
        // Acquire: pairs with the release of `populate`. A thread that finds the mask from before
        // that and the slots from after it looks at one of the first two, as it may.
        let mask = self.mask.load(Ordering::Acquire);
        let slots = self.slots.load(Ordering::Relaxed);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "an index and a stride are 27 bits"
        )]
        let offset = (id & mask) as usize;
        // SAFETY:
        // - In bounds: what the mask leaves of an id is the place of one of two words, or of a slot
        //   of the table (H4).
        let place = unsafe { slots.byte_add(offset) };
        // From here on in one register: kept as a start and an offset it takes two, which the
        // function would have to save.
        let mut address = place.expose_provenance();
        // SAFETY:
        // - Does nothing.
        unsafe {
            std::arch::asm!(
                "/* {0} */",
                inout(reg) address,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        let place: *const Slot<T> = std::ptr::with_exposed_provenance(address);
        // SAFETY:
        // - In memory that was found not to be null, or in a static.
        unsafe { std::hint::assert_unchecked(!place.is_null()) };
        place
    }

    /// Takes a free slot that was used before from the list: its index, as a place, and where it lies.
    #[inline]
    pub(super) fn pop(&self, mask: u64, next: u64) -> Option<(u64, *const Slot<T>)> {
        // Acquire: pairs with the release of `push`, for the slot's word.
        let mut free = self.free.load(Ordering::Acquire);
        loop {
            let at = free & mask;
            if at == 0 {
                return None;
            }
            // Of a slot that another thread takes first this is any value; then the exchange fails.
            let place = self.place(at);
            let after = word(place).load(Ordering::Relaxed) & mask;
            let then = (free & !mask).wrapping_add(next) | after;
            match self
                .free
                .compare_exchange_weak(free, then, Ordering::Acquire, Ordering::Acquire)
            {
                Ok(_) => return Some((at, place)),
                Err(now) => free = now,
            }
        }
    }

    /// Puts a slot on the list of free ones, which had a handle of this generation.
    #[inline]
    pub(super) fn push(&self, slot: &Slot<T>, at: u64, generation: u64, mask: u64, next: u64) {
        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            // The kind is 0, and the index is another one's, so no handle is the same (H5).
            slot.word.store(generation | free & mask, Ordering::Relaxed);
            let then = (free & !mask).wrapping_add(next) | at;
            // Release: pairs with the acquire of `pop`. Each later step of the list is an exchange
            // too, so one that takes the slot after others have come and gone sees its word as well.
            match self
                .free
                .compare_exchange_weak(free, then, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => free = now,
            }
        }
    }
}
