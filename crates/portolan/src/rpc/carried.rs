//! Names the types of a service's arguments and results, as `#[portolan::service]` uses them.
//!
//! Code that is made for a method says nothing of its types but by these names. So a type that
//! cannot travel is refused once, where its name is given, and not at each use.

use crate::schema::Bulk;
use crate::schema::Schema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What can be an argument or a result of a call: what its bytes mean is known ([`Schema`]), and
/// `serde` writes and reads it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot travel in a call",
    label = "it cannot be written as bytes, or what they mean is not known",
    note = "write `#[derive(portolan::rpc::Schema, portolan::serde::Serialize, portolan::serde::Deserialize)]` and `#[serde(crate = \"portolan::serde\")]` above a type of your own, and above each type in it"
)]
pub trait Travels<'a>: Sized {
    // Not by traits above it: each that a type has not would be an error of its own.
    /// [`Schema::HASH`].
    const HASH: u64;
    /// [`Schema::MOVES`].
    const MOVES: bool;

    /// [`Schema::bulk`].
    fn bulk(&self) -> Option<Bulk<'_>>;

    /// [`Schema::from_bulk`].
    fn from_bulk(bytes: &[u8]) -> Option<(Self, &[u8])>;

    /// [`Serialize::serialize`].
    ///
    /// # Errors
    ///
    /// Its own.
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error>;

    /// [`Deserialize::deserialize`].
    ///
    /// # Errors
    ///
    /// Its own.
    fn read<D: Deserializer<'a>>(from: D) -> Result<Self, D::Error>;
}

#[diagnostic::do_not_recommend]
impl<'a, T: Schema + Serialize + Deserialize<'a>> Travels<'a> for T {
    const HASH: u64 = <T as Schema>::HASH;
    const MOVES: bool = <T as Schema>::MOVES;

    #[inline]
    fn bulk(&self) -> Option<Bulk<'_>> {
        Schema::bulk(self)
    }

    #[inline]
    fn from_bulk(bytes: &[u8]) -> Option<(Self, &[u8])> {
        <T as Schema>::from_bulk(bytes)
    }

    #[inline]
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.serialize(to)
    }

    #[inline]
    fn read<D: Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
        T::deserialize(from)
    }
}

/// The name of an argument, which may borrow from the call.
pub trait Carries {
    /// Its type.
    type Value<'a>: Travels<'a>;
}

/// The name of a result, which borrows nothing.
pub trait Returns {
    /// Its type.
    type Value: for<'a> Travels<'a>;
}

/// The hash of an argument, and whether there may be a [`super::Large`] in it.
pub const fn argument<C: Carries>() -> (u64, bool) {
    (
        <C::Value<'static> as Travels<'static>>::HASH,
        <C::Value<'static> as Travels<'static>>::MOVES,
    )
}

/// As [`argument`], of a result.
pub const fn result<R: Returns>() -> (u64, bool) {
    (
        <R::Value as Travels<'static>>::HASH,
        <R::Value as Travels<'static>>::MOVES,
    )
}

/// An argument that is read.
pub struct Taken<'a, C: Carries>(pub C::Value<'a>);

/// An argument that is written.
pub struct Lent<'r, 'a, C: Carries>(pub &'r C::Value<'a>);

/// A result that is read.
pub struct Given<R: Returns>(pub R::Value);

/// A result that is written.
pub struct Told<'r, R: Returns>(pub &'r R::Value);

impl<'a, C: Carries> Schema for Taken<'a, C> {
    const HASH: u64 = <C::Value<'a> as Travels<'a>>::HASH;
    const MOVES: bool = <C::Value<'a> as Travels<'a>>::MOVES;

    #[inline]
    fn from_bulk(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (value, rest) = <C::Value<'a> as Travels<'a>>::from_bulk(bytes)?;
        Some((Self(value), rest))
    }
}

impl<'a, C: Carries> Deserialize<'a> for Taken<'a, C> {
    #[inline]
    fn deserialize<D: Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
        Travels::read(from).map(Self)
    }
}

impl<'a, C: Carries> Schema for Lent<'_, 'a, C> {
    const HASH: u64 = <C::Value<'a> as Travels<'a>>::HASH;
    const MOVES: bool = <C::Value<'a> as Travels<'a>>::MOVES;

    #[inline]
    fn bulk(&self) -> Option<Bulk<'_>> {
        Travels::bulk(self.0)
    }
}

impl<C: Carries> Serialize for Lent<'_, '_, C> {
    #[inline]
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.write(to)
    }
}

impl<R: Returns> Schema for Given<R> {
    const HASH: u64 = <R::Value as Travels<'static>>::HASH;
    const MOVES: bool = <R::Value as Travels<'static>>::MOVES;

    #[inline]
    fn from_bulk(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (value, rest) = <R::Value as Travels<'static>>::from_bulk(bytes)?;
        Some((Self(value), rest))
    }
}

impl<'a, R: Returns> Deserialize<'a> for Given<R> {
    #[inline]
    fn deserialize<D: Deserializer<'a>>(from: D) -> Result<Self, D::Error> {
        Travels::read(from).map(Self)
    }
}

impl<R: Returns> Schema for Told<'_, R> {
    const HASH: u64 = <R::Value as Travels<'static>>::HASH;
    const MOVES: bool = <R::Value as Travels<'static>>::MOVES;

    #[inline]
    fn bulk(&self) -> Option<Bulk<'_>> {
        Travels::bulk(self.0)
    }
}

impl<R: Returns> Serialize for Told<'_, R> {
    #[inline]
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.write(to)
    }
}
