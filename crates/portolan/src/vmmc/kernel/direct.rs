//! The importer's side: the kernel copies into and out of the exporter's memory.

use crate::vmmc::place::Place;
use crate::vmmc::{ImportError, UpdateError};
use portolan_abi::vmmc::post;
use portolan_sys::fork::{CloseOnFork, close_in_child};
use portolan_sys::process::{Need, OpenError, PidFd, ProcessMemory, TransferError, user};
use rustix::fs::fstat;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Another process's memory, of which this reaches `len` bytes.
pub(crate) struct Direct {
    /// There until dropped.
    memory: Option<ProcessMemory>,
    identity: Option<[Identity; 2]>,
    _guards: [CloseOnFork; 2],
    address: usize,
    len: usize,
}

/// Device and inode.
type Identity = (u64, u64);

/// What an exporter granted.
pub(crate) struct Ordinary {
    pub(crate) address: u64,
    /// Where it says that it has mapped the board.
    pub(crate) board: u64,
    pub(crate) len: usize,
}

/// Why it was not opened.
pub(crate) enum Unopened {
    /// It is not there any more: look for it anew.
    Gone,
    Refused(ImportError),
}

impl Direct {
    /// Opens the memory of `exporter`, if that is who made `board` (K1), and the kernel permits
    /// it (K3).
    pub(crate) fn open(
        exporter: &PidFd,
        board: impl AsFd,
        granted: &Ordinary,
    ) -> Result<Self, Unopened> {
        let memory = ProcessMemory::of(exporter, user()).map_err(|error| match error {
            OpenError::Gone => Unopened::Gone,
            other => Unopened::Refused(ImportError::Unreachable(other)),
        })?;
        let nowhere = |_| {
            let what = "addresses that no memory has";
            Unopened::Refused(ImportError::Garbled { what })
        };
        let address = usize::try_from(granted.address).map_err(nowhere)?;
        let board_at = usize::try_from(granted.board).map_err(nowhere)?;
        // An error, too, says that it is not the exporter's: it is dead, or runs another program.
        if !memory.maps().shows(board, board_at).unwrap_or(false) {
            return Err(Unopened::Gone);
        }
        let guards = memory
            .descriptors()
            .map(|fd| close_in_child(fd.as_raw_fd()));
        Ok(Self {
            identity: identities(&memory),
            memory: Some(memory),
            _guards: guards,
            address,
            len: granted.len,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Writes, where the exporter itself may. Within bounds.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Failed> {
        let (memory, address) = (self.memory()?, self.address + offset);
        memory.check(address, bytes.len(), Need::Write)?;
        portolan_shm::mark!("update.kernel");
        Ok(memory.write_at(address, bytes)?)
    }

    /// Reads, where the exporter itself may. Within bounds.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Failed> {
        let (memory, address) = (self.memory()?, self.address + offset);
        memory.check(address, bytes.len(), Need::Read)?;
        Ok(memory.read_at(address, bytes)?)
    }

    /// What the importer is told of a failure.
    pub(crate) fn explain(&self, failed: TransferError) -> UpdateError {
        match failed {
            TransferError::Unmapped { address, .. } => UpdateError::Unmapped {
                offset: address.saturating_sub(self.address),
            },
            TransferError::Protected { range, .. } => UpdateError::Protected {
                offset: range.start.saturating_sub(self.address),
                len: range.len(),
            },
            TransferError::Io { source, .. } => UpdateError::System {
                errno: source.raw_os_error().unwrap_or(0),
            },
            // The kernel was asked when it was opened.
            _ => UpdateError::System {
                errno: rustix::io::Errno::ACCESS.raw_os_error(),
            },
        }
    }

    /// It, unless the program has closed our descriptors behind our back: the numbers may be
    /// other files' by now.
    fn memory(&self) -> Result<&ProcessMemory, Failed> {
        let memory = self.memory.as_ref().ok_or(Failed::Closed)?;
        if self.identity.is_some() && identities(memory) == self.identity {
            Ok(memory)
        } else {
            Err(Failed::Closed)
        }
    }
}

/// Why nothing, or not all, was copied.
pub(crate) enum Failed {
    /// The program has closed our descriptors.
    Closed,
    Transfer(TransferError),
}

impl From<TransferError> for Failed {
    fn from(error: TransferError) -> Self {
        Self::Transfer(error)
    }
}

fn identities(memory: &ProcessMemory) -> Option<[Identity; 2]> {
    let of = |fd: BorrowedFd<'_>| fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino));
    let [memory, maps] = memory.descriptors();
    Some([of(memory)?, of(maps)?])
}

impl Drop for Direct {
    fn drop(&mut self) {
        let ours = self.memory().is_ok();
        if let Some(memory) = self.memory.take()
            && !ours
        {
            for fd in memory.into_descriptors() {
                let _ = fd.into_raw_fd();
            }
        }
    }
}

/// A call that is under way, until dropped (K2).
pub(crate) struct UnderWay<'a>(Option<&'a AtomicU64>);

impl<'a> UnderWay<'a> {
    /// Tells the exporter so, on the pair's post page. Whether the export is still open is to be
    /// asked afterwards.
    pub(crate) fn new(post: &'a Place) -> Self {
        let calls = post.words().get(post::UNDER_WAY);
        if let Some(calls) = calls {
            calls.fetch_add(1, Ordering::Relaxed);
        }
        // SeqCst: between the count and the state; pairs with the one in `Lent::settle`.
        fence(Ordering::SeqCst);
        Self(calls)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(calls) = self.0 {
            // Release: who sees that it is over sees what it wrote.
            calls.fetch_sub(1, Ordering::Release);
        }
    }
}
