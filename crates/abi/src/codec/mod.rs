//! The codec turns records into bytes, and bytes from another process into records or a typed error.
//!
//! A record is declared once, field by field in the order of the wire, and the declaration is its
//! layout. Four macros declare everything that crosses a process:
//!
//! | macro | declares | gives |
//! |---|---|---|
//! | [`record!`](crate::record) | a struct of so many bytes | `BYTES`, `encode`, `decode` |
//! | [`tagged!`](crate::tagged) | an enum whose tag says which fields follow | the same |
//! | [`codes!`](crate::codes) | an enum that is one number | `from_code`, `ALL` |
//! | `word!` | a struct that is packed into 64 bits of shared memory | `pack`, `unpack` |
//!
//! ```text
//! record:   [ magic 4 ][ version 4 ][ field ][ field ][ reserved: zeros ][ field ] ...
//!             only if it is said     little-endian, nothing between them but what is declared
//! ```
//!
//! # Invariants
//!
//! - **W1** `decode` takes whole records or nothing: another length, a magic number of something
//!   else, another version, a code without a meaning, or a reserved byte that is not zero is a
//!   [`DecodeError`]. It copies, allocates nothing, and never panics.
//! - **W2** No two byte strings decode to equal records, so `decode(bytes)` says that `encode`
//!   wrote these bytes. (But for codes that are declared with `unknown`.)
//! - **W3** The first eight bytes of a record that `opens` a connection are the same in every
//!   version, and are looked at first. So a process of another version is told so, whatever else
//!   has changed.
//!
//! `tests/golden.rs` holds an example of each record with its bytes, and checks W1 and W2 for it.
//! A new record needs a declaration, and one line there.
//!
//! # Example
//!
//! What one node tells another one of itself, and a list of them:
//!
//! ```
//! use portolan_abi::codec::{DecodeError, Reader, Record};
//! use portolan_abi::{codes, record};
//!
//! codes! {
//!     /// How a node can be reached.
//!     pub enum Link: u8 {
//!         /// By datagrams.
//!         Udp = 1,
//!         /// By a stream.
//!         Tcp = 2,
//!     }
//! }
//!
//! record! {
//!     /// "I am here": a node announces itself.
//!     #[derive(Clone, Copy, Debug, PartialEq, Eq)]
//!     pub struct Announcement {
//!         opens 0x4e41_5450,
//!         /// The node.
//!         pub node: [u8; 16],
//!         /// How it can be reached.
//!         pub link: Link,
//!         _: 1,
//!         /// At which port.
//!         pub port: u16,
//!         has token,
//!         _: 3,
//!         /// The secret that its peers must show, if there is one.
//!         pub token: Option<u64>,
//!     }
//!     check |it| it.port != 0
//! }
//!
//! let here = Announcement { node: [7; 16], link: Link::Udp, port: 4000, token: None };
//! let bytes = here.encode();
//! assert_eq!((Announcement::BYTES, bytes.len()), (40, 40));
//! assert_eq!(Announcement::decode(&bytes), Ok(here));
//!
//! // Anything else is an error that says what is wrong.
//! assert_eq!(Announcement::decode(&bytes[..39]), Err(DecodeError::Length { found: 39, wanted: 40 }));
//! let with = |at: usize, byte| {
//!     let mut bytes = bytes;
//!     bytes[at] = byte;
//!     Announcement::decode(&bytes)
//! };
//! assert_eq!(with(4, 99), Err(DecodeError::Version { found: 99 }));
//! assert_eq!(with(24, 3), Err(DecodeError::Value { field: "link" }));
//! assert_eq!(with(25, 1), Err(DecodeError::Reserved { after: "link" }));
//!
//! // Records in a row, borrowed from a packet.
//! let packet = [bytes, bytes].concat();
//! let mut reader = Reader::new(&packet);
//! while !reader.is_empty() {
//!     assert_eq!(reader.field::<Announcement>("node")?, here);
//! }
//! # Ok::<(), DecodeError>(())
//! ```

mod field;
mod macros;
mod word;

pub use field::{Field, Reader, Writer};
pub(crate) use word::{Bits, bits_of, word};

use std::fmt;

/// Why bytes are not the record that they should be. Each is the sender's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// There are more bytes, or fewer.
    Length {
        /// How many there are.
        found: usize,
        /// How many the record has.
        wanted: usize,
    },
    /// They begin as another record does, or as none.
    Magic {
        /// The first four.
        found: u32,
        /// Those of the record.
        wanted: u32,
    },
    /// The sender speaks another version of the format.
    Version {
        /// The sender's.
        found: u32,
    },
    /// A field has a value that no sender writes.
    Value {
        /// Which.
        field: &'static str,
    },
    /// A reserved byte is not zero.
    Reserved {
        /// The field before it.
        after: &'static str,
    },
    /// The fields contradict one another, or one is over its limit.
    Check {
        /// The record.
        record: &'static str,
    },
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { found, wanted } => {
                write!(f, "the record has {found} bytes instead of {wanted}")
            }
            Self::Magic { found, wanted } => {
                write!(
                    f,
                    "the record begins with {found:#x} instead of {wanted:#x}"
                )
            }
            Self::Version { found } => write!(
                f,
                "the record has format {found}, this program speaks {}: use programs of one version",
                crate::FORMAT_VERSION
            ),
            Self::Value { field } => {
                write!(f, "the field `{field}` has a value that no sender writes")
            }
            Self::Reserved { after } => {
                write!(f, "a reserved byte after the field `{after}` is not zero")
            }
            Self::Check { record } => {
                write!(
                    f,
                    "the fields of the record `{record}` contradict one another"
                )
            }
        }
    }
}

impl std::error::Error for DecodeError {}

/// What [`record!`](crate::record) and [`tagged!`](crate::tagged) declare.
pub trait Record: Field {
    /// What it is called, in errors.
    const NAME: &'static str;

    /// Its bytes.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![0; Self::BYTES];
        self.put(&mut Writer::new(&mut out));
        out
    }

    /// Reads it from all of `bytes` (W1).
    ///
    /// # Errors
    ///
    /// [`DecodeError`].
    #[inline]
    fn of_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        // What is wrong at the beginning is said first (W3), and then what is wrong with the length.
        let record = Self::get(&mut reader);
        let (found, wanted) = (bytes.len(), Self::BYTES);
        match record {
            Err(error @ (DecodeError::Magic { .. } | DecodeError::Version { .. })) => Err(error),
            _ if found != wanted => Err(DecodeError::Length { found, wanted }),
            record => record,
        }
    }
}
