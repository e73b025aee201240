//! Hashes what a type looks like as bytes, into 64 bits.

mod wire;

pub use wire::{Bulk, Pack, Unpack};

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use wire::split_list;

/// Travels in calls: what its bytes mean has a hash, so that two programs notice when they
/// mean different things.
///
/// Derived, it covers names and types of all fields, and all variants; a type that contains
/// itself has none. The bytes themselves are `serde`'s affair; what would have it write
/// something else than is declared (`#[serde(skip)]`, `with`, `from`, `flatten`, ...) does not
/// compile with the derive.
///
/// ```
/// use portolan::rpc::Schema;
///
/// #[derive(Schema)]
/// struct Old { x: u32 }
/// mod new {
///     #[derive(portolan::rpc::Schema)]
///     pub struct Old { pub x: u64 }
/// }
/// assert_ne!(Old::HASH, new::Old::HASH);
/// assert_eq!(<&str>::HASH, String::HASH);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no `Schema`: nobody can say what its bytes mean",
    label = "this type does not say what its bytes mean",
    note = "write `#[derive(portolan::rpc::Schema)]` above `{Self}`, and above each type in it"
)]
pub trait Schema {
    /// The hash.
    const HASH: u64;
    /// Whether there may be a [`Large`](crate::rpc::Large) in it.
    const MOVES: bool = false;

    /// What `serde` would write of it, if most of that is a list of bytes.
    #[doc(hidden)]
    #[inline]
    fn bulk(&self) -> Option<Bulk<'_>> {
        None
    }

    /// Takes a value off the beginning of `bytes`: it, and what comes after it. `None` leaves
    /// it to `serde`.
    #[doc(hidden)]
    #[inline]
    fn from_bulk(bytes: &[u8]) -> Option<(Self, &[u8])>
    where
        Self: Sized,
    {
        let _ = bytes;
        None
    }

    /// A list of these as bytes, if they are bytes.
    #[doc(hidden)]
    #[inline]
    fn as_bytes(list: &[Self]) -> Option<&[u8]>
    where
        Self: Sized,
    {
        let _ = list;
        None
    }

    /// Bytes as a list of these, if they are bytes.
    #[doc(hidden)]
    #[inline]
    fn list_of(bytes: &[u8]) -> Option<Vec<Self>>
    where
        Self: Sized,
    {
        let _ = bytes;
        None
    }

    /// Bytes as an array of these, if they are bytes.
    #[doc(hidden)]
    #[inline]
    fn array_of<const N: usize>(bytes: &[u8; N]) -> Option<[Self; N]>
    where
        Self: Sized,
    {
        let _ = bytes;
        None
    }
}

impl Schema for u8 {
    const HASH: u64 = Hash::new().text("u8").finish();

    #[inline]
    fn as_bytes(list: &[Self]) -> Option<&[u8]> {
        Some(list)
    }

    #[inline]
    fn list_of(bytes: &[u8]) -> Option<Vec<Self>> {
        Some(bytes.to_vec())
    }

    #[inline]
    fn array_of<const N: usize>(bytes: &[u8; N]) -> Option<[Self; N]> {
        Some(*bytes)
    }
}

/// A hash that can be computed at compile time: FNV-1a.
///
/// ```
/// use portolan::rpc::{Hash, Schema};
/// /// Its bytes are those of a number, which means something else than others.
/// struct Celsius(f64);
/// impl Schema for Celsius {
///     const HASH: u64 = Hash::new().text("Celsius").word(f64::HASH).finish();
/// }
/// assert_ne!(Celsius::HASH, f64::HASH);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self::new()
    }
}

impl Hash {
    /// Of nothing.
    pub const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// And this text, and where it ends.
    #[must_use]
    pub const fn text(self, text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut at = 0;
        let mut hash = self;
        while at < bytes.len() {
            hash = hash.byte(bytes[at]);
            at += 1;
        }
        hash.byte(0xff)
    }

    /// And this word.
    #[must_use]
    pub const fn word(self, word: u64) -> Self {
        let bytes = word.to_le_bytes();
        let mut at = 0;
        let mut hash = self;
        while at < bytes.len() {
            hash = hash.byte(bytes[at]);
            at += 1;
        }
        hash
    }

    const fn byte(self, byte: u8) -> Self {
        Self((self.0 ^ byte as u64).wrapping_mul(0x0100_0000_01b3))
    }

    /// The hash.
    pub const fn finish(self) -> u64 {
        self.0
    }
}

macro_rules! named {
    ($($type:ty => $name:literal),* $(,)?) => {
        $(impl Schema for $type {
            const HASH: u64 = Hash::new().text($name).finish();
        })*
    };
}

named! {
    () => "()", bool => "bool", char => "char",
    u16 => "u16", u32 => "u32", u64 => "u64", u128 => "u128", usize => "usize",
    i8 => "i8", i16 => "i16", i32 => "i32", i64 => "i64", i128 => "i128", isize => "isize",
    f32 => "f32", f64 => "f64",
    str => "text", String => "text",
    std::time::Duration => "duration",
}

macro_rules! holding {
    ($($type:ty, $name:literal, $($of:ident)+;)*) => {
        $(impl<$($of: Schema),+> Schema for $type {
            const HASH: u64 = Hash::new().text($name)$(.word($of::HASH))+.finish();
            const MOVES: bool = false $(|| $of::MOVES)+;
        })*
    };
}

holding! {
    BTreeSet<T>, "list", T;
    BTreeMap<K, V>, "map", K V;
    (A,), "tuple", A;
    (A, B), "tuple", A B;
    (A, B, C), "tuple", A B C;
    (A, B, C, D), "tuple", A B C D;
    (A, B, C, D, E), "tuple", A B C D E;
}

impl<T: Schema> Schema for Option<T> {
    const HASH: u64 = Hash::new().text("option").word(T::HASH).finish();
    const MOVES: bool = T::MOVES;

    #[inline]
    fn bulk(&self) -> Option<Bulk<'_>> {
        self.as_ref()?.bulk()?.tagged(1)
    }

    #[inline]
    fn from_bulk(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&1, bytes) = bytes.split_first()? else {
            return None;
        };
        T::from_bulk(bytes).map(|(value, rest)| (Some(value), rest))
    }
}

impl<T: Schema, E: Schema> Schema for Result<T, E> {
    const HASH: u64 = Hash::new()
        .text("result")
        .word(T::HASH)
        .word(E::HASH)
        .finish();
    const MOVES: bool = T::MOVES || E::MOVES;

    #[inline]
    fn bulk(&self) -> Option<Bulk<'_>> {
        self.as_ref().ok()?.bulk()?.tagged(0)
    }

    #[inline]
    fn from_bulk(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&0, bytes) = bytes.split_first()? else {
            return None;
        };
        T::from_bulk(bytes).map(|(value, rest)| (Ok(value), rest))
    }
}

impl<T: Schema> Schema for [T] {
    const HASH: u64 = Hash::new().text("list").word(T::HASH).finish();
    const MOVES: bool = T::MOVES;

    #[inline]
    fn bulk(&self) -> Option<Bulk<'_>> {
        T::as_bytes(self).map(Bulk::list)
    }
}

impl<T: Schema> Schema for Vec<T> {
    const HASH: u64 = <[T]>::HASH;
    const MOVES: bool = T::MOVES;

    #[inline]
    fn bulk(&self) -> Option<Bulk<'_>> {
        self[..].bulk()
    }

    #[inline]
    fn from_bulk(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (list, rest) = split_list(bytes)?;
        T::list_of(list).map(|list| (list, rest))
    }
}

impl<T: Schema> Schema for VecDeque<T> {
    const HASH: u64 = <[T]>::HASH;
    const MOVES: bool = T::MOVES;
}

impl<T: Schema, S> Schema for HashSet<T, S> {
    const HASH: u64 = <[T]>::HASH;
    const MOVES: bool = T::MOVES;
}

impl<K: Schema, V: Schema, S> Schema for HashMap<K, V, S> {
    const HASH: u64 = BTreeMap::<K, V>::HASH;
    const MOVES: bool = K::MOVES || V::MOVES;
}

impl<T: Schema, const N: usize> Schema for [T; N] {
    const HASH: u64 = Hash::new()
        .text("array")
        .word(N as u64)
        .word(T::HASH)
        .finish();
    const MOVES: bool = T::MOVES;

    #[inline]
    fn bulk(&self) -> Option<Bulk<'_>> {
        T::as_bytes(self).map(Bulk::fixed)
    }

    #[inline]
    fn from_bulk(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (array, rest) = bytes.split_first_chunk::<N>()?;
        T::array_of(array).map(|array| (array, rest))
    }
}

impl<T: Schema + ?Sized> Schema for &T {
    const HASH: u64 = T::HASH;
    const MOVES: bool = T::MOVES;

    #[inline]
    fn bulk(&self) -> Option<Bulk<'_>> {
        (**self).bulk()
    }
}

impl<T: Schema + ?Sized> Schema for Box<T> {
    const HASH: u64 = T::HASH;
    const MOVES: bool = T::MOVES;

    #[inline]
    fn bulk(&self) -> Option<Bulk<'_>> {
        (**self).bulk()
    }
}
