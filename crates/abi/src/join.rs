//! Lays out what a newcomer and the node that lets it in say to one another, inside TLS.
//!
//! ```text
//! newcomer -> node   JoinRequest, its name, its signing request
//! node -> newcomer   JoinAnswer, and if it is Welcome a certificate and those of the authorities
//! ```
//!
//! Both are on the only stream of a connection, which ends with the answer.

use crate::limits::MAX_NODE_NAME;
use crate::{codes, record};

/// First bytes of a [`JoinRequest`] and of a [`JoinAnswer`].
pub const JOIN_MAGIC: u32 = 0x4e4a_5450;
/// Their version.
pub const JOIN_VERSION: u32 = 1;
/// Longest signing request, in bytes: one of a short key takes 300.
pub const MAX_SIGNING_REQUEST: usize = 4096;
/// Longest certificate in an answer, in bytes.
pub const MAX_CERTIFICATE: usize = 8192;
/// Most authorities in an answer: two while they are exchanged.
pub const MAX_AUTHORITIES: usize = 4;

record! {
    /// "Let me in." The name follows, and the signing request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct JoinRequest {
        /// [`JOIN_MAGIC`].
        pub magic: u32,
        /// [`JOIN_VERSION`] of the newcomer.
        pub version: u32,
        /// Which invitation it has.
        pub invitation: [u8; 8],
        /// That it knows the invitation's secret.
        pub proof: [u8; 32],
        /// Bytes of its name.
        pub name: u16,
        /// Bytes of its signing request.
        pub request: u16,
    }
    check |it| it.magic == JOIN_MAGIC
        && (1..=MAX_NODE_NAME).contains(&usize::from(it.name))
        && (1..=MAX_SIGNING_REQUEST).contains(&usize::from(it.request))
}

codes! {
    /// What became of a request.
    pub enum JoinOutcome: u8 {
        /// The newcomer is a node of the cluster.
        Welcome = 1,
        /// The invitation is not known: it was used, or is another node's.
        Unknown = 2,
        /// Its time is over.
        Expired = 3,
        /// The proof is wrong.
        WrongProof = 4,
        /// The name or the signing request cannot be used.
        BadRequest = 5,
        /// Too many have asked.
        Busy = 6,
        /// The node cannot let anybody in now: its own log says why.
        Failed = 7,
        /// The node does not have the authority's key.
        NoAuthority = 8,
        /// The request is of another version.
        Version = 9,
    }
}

record! {
    /// The answer. A certificate follows, and each authority's with two bytes of its length.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct JoinAnswer {
        /// [`JOIN_MAGIC`].
        pub magic: u32,
        /// [`JOIN_VERSION`] of the node.
        pub version: u32,
        /// What became of the request.
        pub outcome: JoinOutcome,
        /// How many authorities there are.
        pub authorities: u8,
        /// Bytes of the certificate.
        pub certificate: u16,
    }
    check |it| it.magic == JOIN_MAGIC
        && usize::from(it.authorities) <= MAX_AUTHORITIES
        && usize::from(it.certificate) <= MAX_CERTIFICATE
}
