//! Lays out what a transport between nodes says first on each of its TCP connections.
//!
//! ```text
//! who connects -> who listens   Preface of the stream: records, bulk, or the only one
//! who listens  -> who connects  the same Preface, once all connections of the link are there
//! ```
//!
//! With TLS both travel inside it, so a preface comes from whom the certificate names.

use crate::{codes, record};

/// First bytes of a [`Preface`].
pub const PREFACE_MAGIC: u32 = 0x464c_5450;
/// The version of a [`Preface`]. It has nothing to do with a region's format.
pub const PREFACE_VERSION: u32 = 1;

codes! {
    /// Which stream of a link a connection carries.
    pub enum Carries: u8 {
        /// Records and short messages; another connection carries the bulk.
        Records = 1,
        /// Bulk; another connection carries the records.
        Bulk = 2,
        /// Records, and the link has no other connection.
        Only = 3,
    }
}

record! {
    /// The first bytes of a connection, both ways.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Preface {
        /// [`PREFACE_MAGIC`].
        pub magic: u32,
        /// [`PREFACE_VERSION`] of the sender.
        pub version: u32,
        /// Which stream this is.
        pub carries: Carries,
        _: 7,
        /// What the connections of one link have in common: a random number.
        pub link: [u8; 16],
    }
    check |it| it.magic == PREFACE_MAGIC
}
