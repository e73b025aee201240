//! Lists the reasons for which an acceptor refuses a client that the host has handed off to it.
//! Most are the same for a port, a channel and an export.

use crate::codes;
use crate::handshake::Why;

codes! {
    /// Why not. A reason that this version does not know reads as garbled.
    pub enum Denied: u32 {
        /// Another format version.
        Version = 1,
        /// What came was no request.
        Garbled = 2,
        /// As many are inside as are let in.
        Full = 3,
        /// It is not offered any more.
        Over = 4,
        /// The offering process has no descriptors or no memory left.
        Resources = 5,
        /// Of a port: sealed memory is not taken.
        Sealed = 6,
        /// Of an export: it is ordinary memory that the importer does not reach itself, and there
        /// is no host to copy for it, or the exporter cannot delegate to it.
        NoCopyBroker = 7,
    }
    unknown => Garbled
}

impl Why for Denied {
    const VERSION: Self = Self::Version;
    const GARBLED: Self = Self::Garbled;
}
