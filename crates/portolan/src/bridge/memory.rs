//! Makes, checks and maps the memory that the two processes of a connection share.

use portolan_abi::bridge::{connection_bytes, control};
use portolan_shm::byte_ring::ByteRing;
use portolan_sys::memory::{self, MapError, Mapping, VerifyError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes that are had there in one step.
const POPULATED: usize = 256 << 10;

/// A control page, and a byte ring for each direction.
pub(super) struct ConnectionMemory {
    mapping: Mapping,
    fd: OwnedFd,
    /// Words of the byte ring there; the rest is the byte ring back.
    there: usize,
}

/// Why a connection has no memory.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemoryError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Verify(#[from] VerifyError),
}

impl ConnectionMemory {
    /// Makes the memory, with byte rings of so many bytes there and back. The offering process
    /// calls this, so it decides how much memory it is.
    pub(super) fn create(there: u64, back: u64) -> Result<Self, MemoryError> {
        let fd = memory::create("portolan-bridge", bytes(there, back))?;
        Self::map(fd, there, back)
    }

    /// Has its pages there, a part at each step, so that none of the steps takes long.
    pub(super) fn populate(&self) -> impl Iterator<Item = ()> {
        let (base, len) = (self.mapping.base().addr(), self.mapping.len());
        (0..len).step_by(POPULATED).map(move |at| {
            // A failure only means faults later.
            let _ = memory::populate_write(base + at, POPULATED.min(len - at));
        })
    }

    /// Takes memory that a stranger made.
    pub(super) fn verify(fd: OwnedFd, there: u64, back: u64) -> Result<Self, MemoryError> {
        memory::verify(&fd, bytes(there, back))?;
        Self::map(fd, there, back)
    }

    fn map(fd: OwnedFd, there: u64, back: u64) -> Result<Self, MemoryError> {
        let len = usize::try_from(bytes(there, back)).unwrap_or(usize::MAX);
        Ok(Self {
            mapping: Mapping::shared_anywhere(&fd, len)?.not_in_children()?,
            fd,
            there: usize::try_from(there).unwrap_or(usize::MAX) / 8,
        })
    }

    /// The byte ring with this number: 0 leads from the client to the offering process, 1 back.
    pub(super) fn ring(&self, number: usize) -> ByteRing<'_> {
        let (page, rings) = self.mapping.words().split_at(control::BYTES / 8);
        let (there, back) = rings.split_at(self.there);
        ByteRing::new(page, number, if number == 0 { there } else { back })
    }
}

impl AsFd for ConnectionMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Bytes in all. The lengths were decoded, or chosen here, so both are allowed.
fn bytes(there: u64, back: u64) -> u64 {
    connection_bytes(there, back).unwrap_or(u64::MAX)
}
