//! The memory that the two processes of a pair share, and nothing else.

use portolan_abi::bridge::{control, pair_bytes};
use portolan_shm::lane::Lane;
use portolan_sys::memory::{self, MapError, Mapping, VerifyError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A control page, and a lane for each way.
pub(super) struct Pair {
    mapping: Mapping,
    fd: OwnedFd,
    /// Words of the lane there; the rest is the lane back.
    there: usize,
}

/// Why there is no pair.
#[derive(Debug, thiserror::Error)]
pub(super) enum PairError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Verify(#[from] VerifyError),
}

impl Pair {
    /// Makes the memory, with lanes of so many bytes there and back. The offering process does,
    /// which so decides how much it is.
    pub(super) fn create(there: u64, back: u64) -> Result<Self, PairError> {
        let fd = memory::create("portolan-pair", bytes(there, back))?;
        let pair = Self::map(fd, there, back)?;
        // A failure only means faults later.
        let _ = memory::populate_write(pair.mapping.base().addr(), pair.mapping.len());
        Ok(pair)
    }

    /// Takes memory that a stranger made.
    pub(super) fn verify(fd: OwnedFd, there: u64, back: u64) -> Result<Self, PairError> {
        memory::verify(&fd, bytes(there, back))?;
        Self::map(fd, there, back)
    }

    fn map(fd: OwnedFd, there: u64, back: u64) -> Result<Self, PairError> {
        let len = usize::try_from(bytes(there, back)).unwrap_or(usize::MAX);
        Ok(Self {
            mapping: Mapping::shared_anywhere(&fd, len)?.not_in_children()?,
            fd,
            there: usize::try_from(there).unwrap_or(usize::MAX) / 8,
        })
    }

    /// The lane with this number: 0 leads from the visitor to the offering process, 1 back.
    pub(super) fn lane(&self, number: usize) -> Lane<'_> {
        let (page, rings) = self.mapping.words().split_at(control::BYTES / 8);
        let (there, back) = rings.split_at(self.there);
        Lane::new(page, number, if number == 0 { there } else { back })
    }
}

impl AsFd for Pair {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Bytes in all; what is not decoded, or not made here, does not get this far.
fn bytes(there: u64, back: u64) -> u64 {
    pair_bytes(there, back).unwrap_or(u64::MAX)
}
