//! An importer has the kernel copy into and out of the exporter's memory.
//!
//! # What a call costs
//!
//! Three system calls, of which the last one copies: where the descriptor of the memory stands,
//! which tells whether the number is still ours; whether the exporter itself may do that to these
//! bytes; and the copy. The first two take 0.12 and 0.34 us, and 64 KiB 8.8 us. Beside them two
//! locked instructions and a barrier, for the count of calls under way.
//!
//! `process_vm_writev` would copy in 5 us, and respects protection by itself; but it takes
//! a process id, and a process that runs another program meanwhile would be written to (K1).

use crate::vmmc::place::Place;
use crate::vmmc::{ImportError, UpdateError};
use portolan_abi::vmmc::notification_page;
use portolan_sys::fork::{CloseOnFork, close_in_child};
use portolan_sys::process::{Need, OpenError, PidFd, ProcessMemory, TransferError, user};
use rustix::fs::{SeekFrom, fstat, seek, tell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Another process's memory, of which this reaches `len` bytes.
pub(crate) struct Direct {
    /// There until dropped.
    memory: Option<ProcessMemory>,
    identity: Option<[Identity; 2]>,
    /// Where the memory's descriptor stands. No thread reads or writes there, and no other
    /// descriptor has it, so that it tells whether the number still leads to this one.
    tag: u64,
    _guards: [CloseOnFork; 2],
    address: usize,
    len: usize,
}

/// Device and inode.
type Identity = (u64, u64);

/// The next tag: positions that no file is long enough for, each used once.
static NEXT_TAG: AtomicU64 = AtomicU64::new(0x706f_7274_0000_0001);

/// What an exporter granted.
pub(crate) struct Ordinary {
    pub(crate) address: u64,
    /// Where it says that it has mapped the status page.
    pub(crate) status_page: u64,
    pub(crate) len: usize,
}

/// Why it was not opened.
pub(crate) enum Unopened {
    /// It is not there any more: look for it anew.
    Gone,
    Refused(ImportError),
}

impl Direct {
    /// Opens the memory of `exporter`, if that process made `status_page` (K1) and the kernel
    /// permits it (K3).
    pub(crate) fn open(
        exporter: &PidFd,
        status_page: impl AsFd,
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
        let status_at = usize::try_from(granted.status_page).map_err(nowhere)?;
        // An error, too, says that it is not the exporter's: it is dead, or runs another program.
        if !memory.maps().shows(status_page, status_at).unwrap_or(false) {
            return Err(Unopened::Gone);
        }
        // Relaxed: only that no two are equal.
        let tag = NEXT_TAG.fetch_add(1, Ordering::Relaxed);
        let [mem, _] = memory.descriptors();
        seek(mem, SeekFrom::Start(tag)).map_err(|errno| {
            let error = OpenError::Io(io::Error::from(errno));
            Unopened::Refused(ImportError::Unreachable(error))
        })?;
        let guards = memory
            .descriptors()
            .map(|fd| close_in_child(fd.as_raw_fd()));
        Ok(Self {
            identity: identities(&memory),
            tag,
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
        let address = self.address + offset;
        let memory = self.asked(address, bytes.len(), Need::Write)?;
        portolan_shm::mark!("update.kernel");
        Ok(memory.write_at(address, bytes)?)
    }

    /// Reads, where the exporter itself may. Within bounds.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Failed> {
        let address = self.address + offset;
        let memory = self.asked(address, bytes.len(), Need::Read)?;
        Ok(memory.read_at(address, bytes)?)
    }

    /// The memory, if the exporter itself may do that to it.
    fn asked(&self, address: usize, len: usize, need: Need) -> Result<&ProcessMemory, Failed> {
        let memory = self.memory.as_ref().ok_or(Failed::Closed)?;
        let [mem, _] = memory.descriptors();
        if tell(mem) != Ok(self.tag) {
            return Err(Failed::Closed);
        }
        match memory.check(address, len, need) {
            Ok(()) => Ok(memory),
            // Whom have we asked?
            Err(_) if !self.is_ours(memory) => Err(Failed::Closed),
            Err(error) => Err(error.into()),
        }
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

    /// Whether the program has not closed our descriptors behind our back: the numbers may be
    /// other files' by now.
    fn is_ours(&self, memory: &ProcessMemory) -> bool {
        self.identity.is_some() && identities(memory) == self.identity
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
        if let Some(memory) = self.memory.take()
            && !self.is_ours(&memory)
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
    /// Counts a call on the notification page, where the exporter sees it. The caller must check
    /// afterwards that the export is still open.
    pub(crate) fn new(notification_page: &'a Place) -> Self {
        let calls = notification_page.words().get(notification_page::UNDER_WAY);
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
            // Release: an exporter that sees the call's end sees what the call wrote.
            calls.fetch_sub(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_sys::memory::{self, Mapping};
    use rustix::io::dup2;
    use std::mem::ManuallyDrop;
    use std::os::fd::{FromRawFd, OwnedFd, RawFd};

    /// This process's own memory, of which a page is reached, whose status page is another page.
    fn own() -> (Direct, Mapping, Mapping) {
        let page = || memory::create("direct", 4096).unwrap();
        let status_file = page();
        let status_page = Mapping::shared_anywhere(&status_file, 4096).unwrap();
        let target = Mapping::shared_anywhere(&page(), 4096).unwrap();
        let granted = Ordinary {
            address: target.base().addr() as u64,
            status_page: status_page.base().addr() as u64,
            len: 4096,
        };
        let ours = PidFd::open(std::process::id()).unwrap();
        let Ok(direct) = Direct::open(&ours, &status_file, &granted) else {
            panic!("one may always open one's own memory");
        };
        (direct, target, status_page)
    }

    /// Has the number of one of its descriptors lead to a file, as if the program had closed
    /// it and opened that; the number.
    #[allow(unsafe_code)]
    fn take_number(direct: &Direct, nth: usize, file: &OwnedFd) -> RawFd {
        let memory = direct.memory.as_ref().expect("it was opened");
        let number = memory.descriptors()[nth].as_raw_fd();
        // SAFETY:
        // - Open, and not closed here: it is another file's from now on, as this is about.
        let mut taken = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
        dup2(file, &mut taken).unwrap();
        number
    }

    #[test]
    fn another_file_under_its_number_is_not_written() {
        for nth in [0, 1] {
            let (direct, _target, _status_page) = own();
            assert!(direct.write(4000, b"before").is_ok());
            let other = memory::create("other", 4096).unwrap();
            let number = take_number(&direct, nth, &other);
            assert!(matches!(direct.write(0, b"after"), Err(Failed::Closed)));
            assert!(matches!(direct.read(0, &mut [0]), Err(Failed::Closed)));
            assert_eq!(memory::allocated_bytes(&other).unwrap(), 0);
            // Nor closed: it leads to the file still.
            drop(direct);
            let link = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
            assert!(link.to_string_lossy().contains("memfd:other"), "{link:?}");
        }
    }
}
