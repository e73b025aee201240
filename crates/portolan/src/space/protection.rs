//! Says what happens to a sender's access to a message's memory when it sends.

use portolan_shm::region::Header;
use std::sync::atomic::Ordering;

/// What happens to the sender's access to an extent that it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// The handle is consumed and the owner word changes; page tables stay as they are.
    #[default]
    Trusted,
    /// An extent is accessible only in the space that owns it; a stray access is reported.
    Guarded,
    /// The receiver gets a copy of its own.
    Copied,
    /// Of a connection to another domain: the receiver gets memory that no process can change any
    /// more ([`crate::Sealed`]), and that is not copied. What it writes there is its own.
    Sealed,
}

/// How extents are protected in the domain with this header.
pub(crate) fn protection_of(header: &Header) -> Protection {
    match header.protection.load(Ordering::Relaxed) {
        0 => Protection::Trusted,
        _ => Protection::Guarded,
    }
}
