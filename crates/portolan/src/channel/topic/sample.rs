//! A sample gives a subscriber access to one published value.

use super::payload::sealed::Flat;
use super::plain::Held;
use crate::SharedExtent;
use crate::structure::{Root, RootError, Structure, root_in};
use std::fmt::{self, Debug, Formatter};
use std::ops::Deref;

/// A copy is aligned to this; what needs more lies in memory of its own.
pub(super) const COPY_ALIGN: usize = align_of::<u128>();

/// A sample, and where it is from.
///
/// A short one is a copy. A long one, and every structure, lies where its publisher filled it,
/// and stays there until the last `Sample` of it, in whatever process, is dropped, or has died.
/// A value is read by dereferencing; a structure by [`Self::root`].
pub struct Sample<T: ?Sized> {
    held: Held<T>,
    publisher: u8,
    position: u64,
    missed: u64,
}

/// A publisher left, or died. What it had published was received, or was missed and is counted.
///
/// If the next publisher has taken its place already, samples of that one may have come before, and
/// one notice may stand for several publishers that went between two calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublisherGone {
    /// Which one. The next publisher that comes has this number again, if it is free.
    pub publisher: u8,
    /// The position at which the samples of this number go on.
    pub next: u64,
    /// Samples that were missed since the last one that was received: overwritten before they were
    /// read, left unfinished at the death, or long ones whose memory went with their publisher.
    pub missed: u64,
}

/// Room for a short sample.
pub(super) type Few = [u128; 4];

/// Where its bytes are.
#[derive(Clone)]
pub(super) enum Bytes {
    /// Here.
    Few(Few, usize),
    /// In memory of our own.
    Many(Vec<u128>, usize),
    /// Where all who have the sample read them.
    Shared(SharedExtent, usize),
    /// The same, of a structure, which has no bytes to be looked at.
    Arena(Vec<SharedExtent>),
}

impl Bytes {
    #[inline]
    pub(super) fn copy(bytes: &[u8]) -> Self {
        let len = bytes.len();
        let mut few: Few = [0; 4];
        if let Some(room) = bytemuck::cast_slice_mut(&mut few).get_mut(..len) {
            room.copy_from_slice(bytes);
            return Self::Few(few, len);
        }
        let mut many = vec![0; len.div_ceil(size_of::<u128>())];
        bytemuck::cast_slice_mut(&mut many)[..len].copy_from_slice(bytes);
        Self::Many(many, len)
    }

    #[inline]
    pub(super) fn get(&self) -> &[u8] {
        match self {
            Self::Few(words, len) => &bytemuck::cast_slice(words)[..*len],
            Self::Many(words, len) => &bytemuck::cast_slice(words)[..*len],
            Self::Shared(extent, len) => &extent[..*len],
            Self::Arena(_) => &[],
        }
    }
}

impl<T: ?Sized> Sample<T> {
    #[inline]
    pub(super) fn new(held: Held<T>, publisher: u8, position: u64, missed: u64) -> Self {
        Self {
            held,
            publisher,
            position,
            missed,
        }
    }
}

impl<T: Flat> Sample<T> {
    /// The value itself.
    pub fn into_inner(self) -> T
    where
        T: Copy,
    {
        *self
    }
}

impl<T: Root + 'static> Sample<Structure<T>> {
    /// The root of the structure, read where it lies.
    ///
    /// # Errors
    ///
    /// Build and type were compared when it was received, so only what comes from outside is
    /// left, as for [`Structure::root`].
    pub fn root(&self) -> Result<&T::At<'_>, RootError> {
        root_in::<T>(self.held.extents())
    }

    /// Bytes of the memory that it lies in.
    pub fn capacity(&self) -> usize {
        self.held.extents().iter().map(|extent| extent.len()).sum()
    }
}

impl<T: ?Sized> Sample<T> {
    /// Who published it.
    pub fn publisher(&self) -> u8 {
        self.publisher
    }

    /// Its number among that publisher's samples.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Samples of that publisher that were missed just before it.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

impl<T: ?Sized> Clone for Sample<T> {
    fn clone(&self) -> Self {
        Self {
            held: self.held.clone(),
            ..*self
        }
    }
}

impl<T: Flat + ?Sized> Deref for Sample<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.held.get()
    }
}

impl<T: Flat + Debug + ?Sized> Debug for Sample<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sample")
            .field("value", &&**self)
            .field("publisher", &self.publisher)
            .field("position", &self.position)
            .field("missed", &self.missed)
            .finish()
    }
}

impl<T: Root + 'static> Debug for Sample<Structure<T>> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sample")
            .field("root", &portolan_arena::handover::name_of::<T>())
            .field("publisher", &self.publisher)
            .field("position", &self.position)
            .field("missed", &self.missed)
            .finish()
    }
}
