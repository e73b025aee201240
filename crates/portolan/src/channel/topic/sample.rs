//! What a subscriber gets.

use super::payload::Payload;
use crate::SharedExtent;
use bytemuck::Pod;
use std::fmt::{self, Debug, Formatter};
use std::marker::PhantomData;
use std::ops::Deref;

/// A copy is aligned to this; what needs more lies in memory of its own.
pub(super) const COPY_ALIGN: usize = align_of::<u128>();

/// A sample, and where it is from.
///
/// A short one is a copy. A long one lies where its publisher filled it, and stays there
/// until the last `Sample` of it, in whatever process, is dropped, or has died.
pub struct Sample<T: ?Sized> {
    bytes: Bytes,
    publisher: u8,
    position: u64,
    missed: u64,
    of: PhantomData<fn(&T)>,
}

/// Where its bytes are.
#[derive(Clone)]
pub(super) enum Bytes {
    /// Here.
    Few([u128; 4], usize),
    /// In memory of our own.
    Many(Vec<u128>, usize),
    /// Where all who have the sample read them.
    Shared(SharedExtent, usize),
}

impl Bytes {
    #[inline]
    pub(super) fn copy(bytes: &[u8]) -> Self {
        let len = bytes.len();
        let mut few = [0; 4];
        if let Some(room) = bytemuck::cast_slice_mut(&mut few).get_mut(..len) {
            room.copy_from_slice(bytes);
            return Self::Few(few, len);
        }
        let mut many = vec![0; len.div_ceil(size_of::<u128>())];
        bytemuck::cast_slice_mut(&mut many)[..len].copy_from_slice(bytes);
        Self::Many(many, len)
    }

    #[inline]
    fn get(&self) -> &[u8] {
        match self {
            Self::Few(words, len) => &bytemuck::cast_slice(words)[..*len],
            Self::Many(words, len) => &bytemuck::cast_slice(words)[..*len],
            Self::Shared(extent, len) => &extent[..*len],
        }
    }
}

impl<T: Payload + ?Sized> Sample<T> {
    /// `None` if these are no bytes of a `T`.
    #[inline]
    pub(super) fn new(bytes: Bytes, publisher: u8, position: u64) -> Option<Self> {
        T::of(bytes.get())?;
        Some(Self {
            bytes,
            publisher,
            position,
            missed: 0,
            of: PhantomData,
        })
    }

    pub(super) fn after(self, missed: u64) -> Self {
        Self { missed, ..self }
    }
}

impl<T: Pod> Sample<T> {
    /// The value itself.
    pub fn into_inner(self) -> T
    where
        T: Payload,
    {
        *self
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
            bytes: self.bytes.clone(),
            ..*self
        }
    }
}

impl<T: Payload + ?Sized> Deref for Sample<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        T::of(self.bytes.get()).expect("asked when the sample was made")
    }
}

impl<T: Payload + Debug + ?Sized> Debug for Sample<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sample")
            .field("value", &&**self)
            .field("publisher", &self.publisher)
            .field("position", &self.position)
            .field("missed", &self.missed)
            .finish()
    }
}
