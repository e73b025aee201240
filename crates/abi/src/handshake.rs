//! A handshake: one process asks over a connection, and the other one grants or refuses, once.
//!
//! ```text
//! asker    -> answerer   a record that opens: magic, version, what it asks for
//! answerer -> asker      Granted + descriptors, or Refusal
//!
//! answer:   [ magic 4 ][ version 4 ][ code 4 ][ of a grant: its fields                       ]
//!                                             [ of a refusal: zeros 12 ][ value 8 ][ zeros   ]
//! ```
//!
//! All handshakes have this form: to join and to look ([`hello`](crate::hello)), of a connection
//! between two domains ([`bridge`](crate::bridge)), of an import ([`vmmc`](crate::vmmc)). The code
//! is 0 in a grant. `portolan_proto::handshake` has the rules for both sides.
//!
//! A refusal can be read in every version of the format, so an asker of another version learns the
//! answerer's.

use crate::FORMAT_VERSION;
use crate::codec::{DecodeError, Field, Reader, Record, Writer};
use std::fmt::Debug;

/// What an asker says first: a record, or one of several.
pub trait Request: Sized {
    /// The reasons for a refusal.
    type Why: Why;

    /// Bytes of the longest.
    const BYTES: usize;

    /// Reads it.
    ///
    /// # Errors
    ///
    /// [`DecodeError`].
    fn read(bytes: &[u8]) -> Result<Self, DecodeError>;
}

/// A request that is one record, which always gets the same kind of grant.
pub trait Ask: Record {
    /// What it gets.
    type Granted: Grant;

    /// Descriptors that come with any grant at the most.
    const DESCRIPTORS: usize;

    /// Descriptors that come with this grant.
    fn descriptors(granted: &Self::Granted) -> usize;
}

impl<A: Ask> Request for A {
    type Why = <A::Granted as Grant>::Why;
    const BYTES: usize = <A as Field>::BYTES;

    fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        A::of_bytes(bytes)
    }
}

/// What an answerer grants: a record that opens with [`MAGIC`](Self::MAGIC), and has zeros in
/// place of the code.
pub trait Grant: Record {
    /// The first bytes of an answer.
    const MAGIC: u32;
    /// The reasons for a refusal.
    type Why: Why;
}

/// The reasons for a refusal, none of which is 0.
pub trait Why: Field + Copy + Debug + PartialEq {
    /// The asker speaks another version of the format.
    const VERSION: Self;
    /// What came is no request.
    const GARBLED: Self;
}

/// "No", with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal<W> {
    /// The format that the answerer speaks.
    pub version: u32,
    /// Why.
    pub why: W,
    /// A number that explains it, or 0.
    pub value: u64,
}

impl<W> Refusal<W> {
    /// A refusal of ours that needs no number.
    pub const fn new(why: W) -> Self {
        Self::with(why, 0)
    }

    /// A refusal of ours, with the value that was refused.
    pub const fn with(why: W, value: u64) -> Self {
        Self {
            version: FORMAT_VERSION,
            why,
            value,
        }
    }
}

/// What an answerer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<G: Grant> {
    /// Yes.
    Granted(G),
    /// No.
    Refused(Refusal<G::Why>),
}

/// Reserved bytes between a refusal's code and its value.
const BEFORE_VALUE: usize = 12;

impl<G: Grant> Answer<G> {
    /// Bytes on the wire.
    pub const BYTES: usize = G::BYTES;

    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let refusal = match self {
            Self::Granted(granted) => return granted.to_bytes(),
            Self::Refused(refusal) => refusal,
        };
        let mut out = vec![0; G::BYTES];
        let mut to = Writer::new(&mut out);
        G::MAGIC.put(&mut to);
        refusal.version.put(&mut to);
        refusal.why.put(&mut to);
        to.reserved(BEFORE_VALUE);
        refusal.value.put(&mut to);
        out
    }

    /// Reads a record. Of another version, a refusal is one, and a grant is an error.
    ///
    /// # Errors
    ///
    /// [`DecodeError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut from = Reader::new(bytes);
        from.magic(G::MAGIC)?;
        let version = from.field("version")?;
        let granted = from.clone().field::<u32>("code")? == 0;
        if granted {
            return G::of_bytes(bytes).map(Self::Granted);
        }
        let why = from.field("code")?;
        if version != FORMAT_VERSION {
            let value = 0;
            return Ok(Self::Refused(Refusal {
                version,
                why,
                value,
            }));
        }
        let (found, wanted) = (bytes.len(), G::BYTES);
        if found != wanted {
            return Err(DecodeError::Length { found, wanted });
        }
        from.reserved(BEFORE_VALUE)?;
        let value = from.field("value")?;
        from.reserved(from.rest().len())?;
        Ok(Self::Refused(Refusal {
            version,
            why,
            value,
        }))
    }
}
