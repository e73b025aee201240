//! Turns values into bytes that others read, and bytes into values. This is the one file of topics,
//! and of calls, that does the latter.
//!
//! Its promises: bytes become a value only after they were looked at, in memory that no space
//! writes any more (a copy of the reader's own, or a buffer whose sample was told of, B1) or
//! that one loan alone has; and of a value no byte is shared that its program never wrote.
#![allow(unsafe_code)]

use super::payload::sealed::Flat;
use super::sample::{Bytes, COPY_ALIGN, Few};
use super::store::Buffer;
use crate::schema::{Hash, Schema};
use crate::{Extent, SharedExtent};
use std::marker::PhantomData;
use std::num::{
    NonZeroI8, NonZeroI16, NonZeroI32, NonZeroI64, NonZeroI128, NonZeroIsize, NonZeroU8,
    NonZeroU16, NonZeroU32, NonZeroU64, NonZeroU128, NonZeroUsize,
};

/// A type whose values can lie in shared memory: where its padding is is known, and any bytes
/// can be looked at whether they are a value.
///
/// Derive it, as [`Payload`](super::Payload) says.
///
/// # Safety
///
/// - The padding of a value is what [`Self::scrub`] writes, and no other byte: if there is none,
///   and only then, the type is [`Self::WHOLE`].
/// - Bytes that [`Self::check`] accepts, whatever their padding, are a value; if any are, and only
///   then, the type takes [`Self::ANY`].
/// - [`Self::begin`] makes a value of zeros.
/// - A value holds no pointer, and nothing in it changes through a shared reference.
/// - Where its fields lie follows from the declaration, for every compiler.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be published as a sample",
    label = "it is not known what its bytes may be",
    note = "write `#[derive(Clone, Copy, portolan::channel::Payload)]` and `#[repr(C)]` (of an enum, `#[repr(u8)]`) above a type of your own, and above each type in it",
    note = "maps, lists and texts are published as `portolan::structure::Structure<T>`, where `T` has `#[derive(portolan::Handover)]`"
)]
pub unsafe trait Plain: Copy + Send + Sync + 'static {
    /// What its bytes mean.
    const HASH: u64;
    /// No byte of it is padding.
    const WHOLE: bool;
    /// Any bytes are a value of it.
    const ANY: bool;

    /// Whether so many bytes as a value has are one.
    fn check(bytes: &[u8]) -> bool;

    /// Makes a value out of zeros, as many as a value has bytes.
    fn begin(bytes: &mut [u8]);

    /// Puts zeros where a value, which these bytes are, has padding.
    fn scrub(bytes: &mut [u8]);
}

macro_rules! any {
    ($($t:ty),*) => {$(
        // SAFETY:
        // - numbers: no padding, and any bytes are one.
        unsafe impl Plain for $t {
            const HASH: u64 = <$t as Schema>::HASH;
            const WHOLE: bool = true;
            const ANY: bool = true;
            #[inline]
            fn check(_: &[u8]) -> bool {
                true
            }
            fn begin(_: &mut [u8]) {}
            fn scrub(_: &mut [u8]) {}
        }
    )*};
}
any!(
    u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64
);
any!(());

macro_rules! non_zero {
    ($($t:ty: $of:ty),*) => {$(
        // SAFETY:
        // - a number without padding; zero is refused, and what begins is a one.
        unsafe impl Plain for $t {
            const HASH: u64 = Hash::new().text("nonzero").word(<$of as Schema>::HASH).finish();
            const WHOLE: bool = true;
            const ANY: bool = false;
            #[inline]
            fn check(bytes: &[u8]) -> bool {
                bytes.iter().any(|byte| *byte != 0)
            }
            fn begin(bytes: &mut [u8]) {
                let one: $of = 1;
                bytes.copy_from_slice(&one.to_ne_bytes());
            }
            fn scrub(_: &mut [u8]) {}
        }
    )*};
}
non_zero!(
    NonZeroU8: u8, NonZeroU16: u16, NonZeroU32: u32, NonZeroU64: u64, NonZeroU128: u128,
    NonZeroUsize: usize, NonZeroI8: i8, NonZeroI16: i16, NonZeroI32: i32, NonZeroI64: i64,
    NonZeroI128: i128, NonZeroIsize: isize
);

// SAFETY:
// - one byte, which is 0 or 1.
unsafe impl Plain for bool {
    const HASH: u64 = <bool as Schema>::HASH;
    const WHOLE: bool = true;
    const ANY: bool = false;
    #[inline]
    fn check(bytes: &[u8]) -> bool {
        matches!(bytes, [0 | 1])
    }
    fn begin(_: &mut [u8]) {}
    fn scrub(_: &mut [u8]) {}
}

// SAFETY:
// - a number without padding; what is no character is refused.
unsafe impl Plain for char {
    const HASH: u64 = <char as Schema>::HASH;
    const WHOLE: bool = true;
    const ANY: bool = false;
    #[inline]
    fn check(bytes: &[u8]) -> bool {
        let number = bytes.try_into().map(u32::from_ne_bytes);
        number.is_ok_and(|n| char::from_u32(n).is_some())
    }
    fn begin(_: &mut [u8]) {}
    fn scrub(_: &mut [u8]) {}
}

// SAFETY:
// - values side by side, each of which is what `T` promises.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {
    const HASH: u64 = Hash::new()
        .text("array")
        .word(N as u64)
        .word(T::HASH)
        .finish();
    const WHOLE: bool = T::WHOLE;
    const ANY: bool = T::ANY;
    #[inline]
    fn check(bytes: &[u8]) -> bool {
        all_are::<T>(bytes)
    }
    fn begin(bytes: &mut [u8]) {
        begin_all::<T>(bytes);
    }
    fn scrub(bytes: &mut [u8]) {
        scrub_all::<T>(bytes);
    }
}

/// Whether these are values of `T`, side by side.
#[inline]
fn all_are<T: Plain>(bytes: &[u8]) -> bool {
    T::ANY || size_of::<T>() == 0 || bytes.chunks_exact(size_of::<T>()).all(T::check)
}

fn begin_all<T: Plain>(bytes: &mut [u8]) {
    if !T::ANY && size_of::<T>() > 0 {
        bytes.chunks_exact_mut(size_of::<T>()).for_each(T::begin);
    }
}

#[inline]
fn scrub_all<T: Plain>(bytes: &mut [u8]) {
    if !T::WHOLE && size_of::<T>() > 0 {
        bytes.chunks_exact_mut(size_of::<T>()).for_each(T::scrub);
    }
}

/// The fields of a `#[repr(C)]` type in their order, for the derive: each lies where the one
/// before it ends, at the next multiple of its alignment.
#[doc(hidden)]
pub mod fields {
    use super::Plain;
    use std::ops::Range;

    fn next<T>(at: &mut usize) -> Range<usize> {
        let start = at.next_multiple_of(align_of::<T>());
        *at = start + size_of::<T>();
        start..*at
    }

    /// Whether the field that is next, after `at`, holds a value.
    #[inline]
    pub fn check<T: Plain>(bytes: &[u8], at: &mut usize) -> bool {
        let field = next::<T>(at);
        T::ANY || bytes.get(field).is_some_and(T::check)
    }

    /// Makes a value in it.
    pub fn begin<T: Plain>(bytes: &mut [u8], at: &mut usize) {
        let field = next::<T>(at);
        if !T::ANY {
            T::begin(&mut bytes[field]);
        }
    }

    /// Puts zeros before it, and where it has padding.
    #[inline]
    pub fn scrub<T: Plain>(bytes: &mut [u8], at: &mut usize) {
        let before = *at;
        let field = next::<T>(at);
        bytes[before..field.start].fill(0);
        if !T::WHOLE {
            T::scrub(&mut bytes[field]);
        }
    }
}

/// The bytes of values that have no padding; `None` if they have.
#[inline]
pub(super) fn whole<T: Plain>(values: &[T]) -> Option<&[u8]> {
    if !T::WHOLE {
        return None;
    }
    // SAFETY:
    // - live, in bounds: the slice's own memory; unchanged: borrowed, and without cells;
    // - initialised: no byte of a value is padding.
    Some(unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) })
}

/// Copies values, with zeros in the place of their padding, to as many bytes.
pub(super) fn copy<T: Plain>(values: &[T], to: &mut [u8]) {
    assert_eq!(to.len(), size_of_val(values), "room for the values");
    let from = values.as_ptr().cast::<u8>();
    // SAFETY:
    // - in bounds of both: compared above; apart: `to` is borrowed exclusively;
    // - what is not initialised is padding, which is copied as such, and overwritten below
    //   before any process reads it.
    unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
    scrub_all::<T>(to);
}

/// Bytes that are a `T`, in memory that no space writes.
pub(super) struct Held<T: ?Sized> {
    bytes: Bytes,
    of: PhantomData<fn(&T)>,
}

/// Why bytes are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotHeld {
    /// There is another number of bytes, or they lie where no value may.
    Shape,
    /// A value of this type has other bytes.
    Value,
}

impl<T: Flat + ?Sized> Held<T> {
    #[inline]
    pub(super) fn check(bytes: Bytes) -> Result<Self, NotHeld> {
        let found = bytes.get();
        let fits = match T::SIZE {
            Some(size) => found.len() == size,
            None => found.len().is_multiple_of(size_of::<T::Element>()),
        };
        // A copy moves with its sample, and stays aligned to no more than this.
        let aligned = match &bytes {
            Bytes::Few(..) | Bytes::Many(..) => T::ALIGN <= COPY_ALIGN,
            Bytes::Shared(..) => found.as_ptr().addr().is_multiple_of(T::ALIGN),
            Bytes::Arena(..) => false,
        };
        if !fits || !aligned {
            return Err(NotHeld::Shape);
        }
        if !all_are::<T::Element>(found) {
            return Err(NotHeld::Value);
        }
        let of = PhantomData;
        Ok(Self { bytes, of })
    }

    /// As [`Self::check`], of the first `len` bytes of a copy that were put there; the copy is not
    /// moved before it was looked at.
    #[inline(always)]
    pub(super) fn check_few(few: &Few, len: usize) -> Result<Self, NotHeld> {
        let found = bytemuck::cast_slice::<_, u8>(few).get(..len);
        let found = found.ok_or(NotHeld::Shape)?;
        let fits = match T::SIZE {
            Some(size) => len == size,
            None => len.is_multiple_of(size_of::<T::Element>()),
        };
        if !fits || T::ALIGN > COPY_ALIGN {
            return Err(NotHeld::Shape);
        }
        if !all_are::<T::Element>(found) {
            return Err(NotHeld::Value);
        }
        let (bytes, of) = (Bytes::Few(*few, len), PhantomData);
        Ok(Self { bytes, of })
    }

    #[inline]
    pub(super) fn get(&self) -> &T {
        let bytes = self.bytes.get();
        let count = T::count(bytes.len());
        let first = bytes.as_ptr().cast::<T::Element>();
        // SAFETY:
        // - live, in bounds: as many values as there are bytes for; aligned, initialised, values
        //   of this type: `check` looked, and no space writes them;
        // - unchanged while borrowed: our own copy, or a buffer that was told of (B1).
        T::of(unsafe { std::slice::from_raw_parts(first, count) })
    }
}

impl<T: ?Sized> Held<T> {
    /// Of a structure, which is looked at each time it is read.
    pub(super) fn arena(extents: Vec<SharedExtent>) -> Self {
        let (bytes, of) = (Bytes::Arena(extents), PhantomData);
        Self { bytes, of }
    }

    /// Bytes of the sample; of a structure, those of the memory that it lies in.
    pub(super) fn bytes(&self) -> usize {
        let of_extents = |extents: &[SharedExtent]| extents.iter().map(|e| e.len()).sum();
        match &self.bytes {
            Bytes::Arena(extents) => of_extents(extents),
            bytes => bytes.get().len(),
        }
    }

    pub(super) fn extents(&self) -> &[SharedExtent] {
        match &self.bytes {
            Bytes::Arena(extents) => extents,
            Bytes::Few(..) | Bytes::Many(..) | Bytes::Shared(..) => &[],
        }
    }
}

impl<T: ?Sized> Clone for Held<T> {
    fn clone(&self) -> Self {
        let (bytes, of) = (self.bytes.clone(), PhantomData);
        Self { bytes, of }
    }
}

/// Where a sample is filled.
pub(super) enum Room {
    /// To be copied from.
    Stage(Vec<u128>),
    /// Where it is read.
    Buffer(Buffer),
}

/// Memory in which a value is filled.
///
/// # Safety
///
/// Both return the same bytes, each time, wherever the `Memory` itself is moved.
pub(crate) unsafe trait Memory {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
}

// SAFETY:
// - pages of the domain, at one address, which nobody gives away but by value.
unsafe impl Memory for Extent {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

// SAFETY:
// - what a vector holds lies on the heap, and is not made longer; a buffer lies in the domain.
unsafe impl Memory for Room {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Stage(words) => bytemuck::cast_slice(words),
            Self::Buffer(buffer) => buffer.bytes(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Stage(words) => bytemuck::cast_slice_mut(words),
            Self::Buffer(buffer) => buffer.bytes_mut(),
        }
    }
}

/// A value that is being filled: at any time some value of its type.
pub(crate) struct Draft<T: ?Sized, M> {
    room: M,
    len: usize,
    of: PhantomData<fn(&mut T)>,
}

impl<T: Flat + ?Sized, M: Memory> Draft<T, M> {
    /// A value of `len` bytes at the beginning of `room`.
    pub(crate) fn new(mut room: M, len: usize) -> Self {
        let bytes = &mut room.bytes_mut()[..len];
        let fits = len.is_multiple_of(size_of::<T::Element>().max(1));
        assert!(
            fits && bytes.as_ptr().addr().is_multiple_of(T::ALIGN),
            "a loan is as long, and as aligned, as its type"
        );
        if !T::Element::ANY {
            bytes.fill(0);
            begin_all::<T::Element>(bytes);
        }
        let of = PhantomData;
        Self { room, len, of }
    }

    /// The value that fills `room`; the room, if it holds none of this type.
    pub(crate) fn found(room: M) -> Result<Self, M> {
        let bytes = room.bytes();
        let len = bytes.len();
        let fits = match T::SIZE {
            Some(size) => len == size,
            None => len.is_multiple_of(size_of::<T::Element>()),
        };
        if !fits || !bytes.as_ptr().addr().is_multiple_of(T::ALIGN) || !all_are::<T::Element>(bytes)
        {
            return Err(room);
        }
        let of = PhantomData;
        Ok(Self { room, len, of })
    }

    pub(crate) fn get(&self) -> &T {
        let first = self.room.bytes().as_ptr().cast::<T::Element>();
        // SAFETY:
        // - live, in bounds: `new` cut so many bytes, or `found` counted them; aligned: they
        //   looked, and the room does not move;
        // - values of this type: `new` made them, or `found` looked, or any bytes are; since then
        //   they were written as values, by `get_mut`.
        T::of(unsafe { std::slice::from_raw_parts(first, T::count(self.len)) })
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        let first = self.room.bytes_mut().as_mut_ptr().cast::<T::Element>();
        // SAFETY:
        // - as for `get`; exclusive: the room is this draft's, and the draft is borrowed.
        T::of_mut(unsafe { std::slice::from_raw_parts_mut(first, T::count(self.len)) })
    }

    /// The room, without a byte that was not written.
    pub(crate) fn finish(mut self) -> (M, usize) {
        scrub_all::<T::Element>(&mut self.room.bytes_mut()[..self.len]);
        (self.room, self.len)
    }
}

impl<T: ?Sized, M> Draft<T, M> {
    /// The room of a value that is given up.
    pub(super) fn give_up(self) -> M {
        self.room
    }
}
