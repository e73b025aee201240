//! Kept memory is written by one process while no other one has a right on it, and read by others
//! in between.

use super::segment::Segment;
use super::shared_entries::{self, Sharing};
use super::{BindError, SendError};
use crate::Domain;
use portolan_abi::owner::Size;
use portolan_abi::port::PortName;

/// A segment that this process has made and keeps (G3 of `portolan_shm::rights`). Every other process
/// only reads it; so does this one, once it has told another one the segment's name, until it finds
/// that it is alone with it.
///
/// Let go of when it is dropped: the memory is freed with the last right on it.
pub(crate) struct Kept {
    segment: Segment,
}

impl Kept {
    /// Makes one of at least `len` bytes.
    pub(crate) fn make(domain: &Domain, len: usize) -> Result<Self, BindError> {
        // All of the extent, so that it serves for other lengths too.
        let extent = domain.allocate(Size::for_bytes(len).bytes())?;
        let made = shared_entries::make(domain.member(), None, extent, Sharing::Kept);
        let right = made.map_err(|(error, _)| error)?;
        match Segment::taken(right) {
            Some((segment, _)) => Ok(Self { segment }),
            None => Err(BindError::Unsent(SendError::DeadName)),
        }
    }

    /// Bytes of it.
    pub(crate) fn len(&self) -> usize {
        self.segment.len()
    }

    /// The name under which other processes make rights on it ([`shared_entries::join_told`]).
    pub(crate) fn name(&self) -> PortName {
        self.segment.right().to.port
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.segment.bytes()
    }

    /// The caller has told no process its name; or has made sure that who comes with the name
    /// comes too late, and has then found that it is alone ([`Self::is_ours_alone`]).
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.segment.bytes_mut()
    }

    /// Whether no other process has a right on it, and no other handle of ours. Rights on kept
    /// memory travel in no message.
    pub(crate) fn is_ours_alone(&self) -> bool {
        shared_entries::is_only(self.segment.right())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Before the right on it is dropped, with the segment.
        shared_entries::let_go(self.segment.right());
    }
}
