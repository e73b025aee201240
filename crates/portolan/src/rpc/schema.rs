//! What a type looks like as bytes, in 64 bits.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Travels in calls: what its bytes mean has a hash, so that two programs notice when they
/// mean different things.
///
/// Derived, it covers names and types of all fields, and all variants; a type that contains
/// itself has none. The bytes themselves are `serde`'s affair.
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
pub trait Schema {
    /// The hash.
    const HASH: u64;
    /// Whether there may be a [`super::Large`] in it.
    const MOVES: bool = false;
}

/// A hash that can be computed at compile time: FNV-1a.
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
    u8 => "u8", u16 => "u16", u32 => "u32", u64 => "u64", u128 => "u128", usize => "usize",
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
    Option<T>, "option", T;
    Result<T, E>, "result", T E;
    Vec<T>, "list", T;
    [T], "list", T;
    BTreeSet<T>, "list", T;
    BTreeMap<K, V>, "map", K V;
    (A,), "tuple", A;
    (A, B), "tuple", A B;
    (A, B, C), "tuple", A B C;
    (A, B, C, D), "tuple", A B C D;
    (A, B, C, D, E), "tuple", A B C D E;
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
}

impl<T: Schema + ?Sized> Schema for &T {
    const HASH: u64 = T::HASH;
    const MOVES: bool = T::MOVES;
}

impl<T: Schema + ?Sized> Schema for Box<T> {
    const HASH: u64 = T::HASH;
    const MOVES: bool = T::MOVES;
}
