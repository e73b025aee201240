//! Errors say what went wrong when bytes were carried into or out of another process.

use std::io;
use std::ops::Range;

use rustix::io::Errno;

use super::MapsError;

/// Why not all bytes were carried. What `done` counts, from the front, was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The caller's: no process has such addresses, or the two sides differ in length.
    #[error(
        "{len:#x} bytes at {address:#x} are not addresses of a process, or not as many as there are on the other side"
    )]
    OutOfRange {
        /// First address.
        address: usize,
        /// Bytes wanted.
        len: usize,
    },
    /// The process's: it has nothing mapped there any more, or its file has become shorter,
    /// or it does not permit the access. Refuse further transfers to this range.
    #[error(
        "after {done} of {len} bytes there is no memory to use at {address:#x}; the process unmapped, truncated or protected it"
    )]
    Unmapped {
        /// Where it stopped.
        address: usize,
        /// Bytes carried before that.
        done: usize,
        /// Bytes wanted.
        len: usize,
    },
    /// The process's: what is mapped in the range does not permit the access.
    #[error(
        "the process itself may not {wanted} all of {range:#x?}; it changed the range after it offered it"
    )]
    Protected {
        /// The range asked for.
        range: Range<usize>,
        /// What it must permit: `read` or `write`.
        wanted: &'static str,
    },
    /// No one's fault: the process has ended, or runs another program now.
    #[error("the process ended, or runs another program, after {done} bytes")]
    Gone {
        /// Bytes carried before that.
        done: usize,
    },
    /// The caller's: another user's process, or one that may not be traced.
    #[error(
        "the kernel does not permit access to the process's memory; let the process hand over a descriptor of it"
    )]
    Denied,
    /// The machine's: the kernel refused; see the source.
    #[error("after {done} bytes: {source}")]
    Io {
        /// Bytes carried before that.
        done: usize,
        /// The kernel's reason.
        source: io::Error,
    },
}

impl TransferError {
    /// Bytes that were carried all the same, from the front.
    pub fn done(&self) -> usize {
        match self {
            Self::Unmapped { done, .. } | Self::Gone { done } | Self::Io { done, .. } => *done,
            Self::OutOfRange { .. } | Self::Protected { .. } | Self::Denied => 0,
        }
    }
}

impl From<MapsError> for TransferError {
    fn from(error: MapsError) -> Self {
        match error {
            MapsError::Gone => Self::Gone { done: 0 },
            MapsError::Io(source) => Self::Io { done: 0, source },
        }
    }
}

/// What a system call has moved, by what it returned.
pub(super) fn moved(returned: isize) -> rustix::io::Result<usize> {
    usize::try_from(returned)
        .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Which bytes are carried: `len` at `address`.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) address: usize,
    pub(super) len: usize,
}

impl Target {
    pub(super) fn new(address: usize, len: usize) -> Result<Self, TransferError> {
        match address.checked_add(len) {
            // The kernel takes addresses as file positions, which are signed.
            Some(end) if isize::try_from(end).is_ok() => Ok(Self { address, len }),
            _ => Err(TransferError::OutOfRange { address, len }),
        }
    }

    /// Repeats `step` from where the last one stopped until everything is carried.
    pub(super) fn carry(
        self,
        mut step: impl FnMut(usize) -> rustix::io::Result<usize>,
    ) -> Result<(), TransferError> {
        let mut done = 0;
        while done < self.len {
            match step(done) {
                // Only memory that no code uses any more takes nothing without an error.
                Ok(0) => return Err(TransferError::Gone { done }),
                Ok(more) => done += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed(errno, done)),
            }
        }
        Ok(())
    }

    fn failed(self, errno: Errno, done: usize) -> TransferError {
        match errno {
            Errno::IO | Errno::FAULT => TransferError::Unmapped {
                address: self.address + done,
                done,
                len: self.len,
            },
            Errno::SRCH => TransferError::Gone { done },
            Errno::PERM | Errno::ACCESS => TransferError::Denied,
            other => TransferError::Io {
                done,
                source: other.into(),
            },
        }
    }
}
