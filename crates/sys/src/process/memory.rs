//! Reads and writes a process's memory by descriptors that this process opened itself and handed
//! to a process that it trusts.
//!
//! Their holder may read and write *all* of the process's memory, for as long as that
//! memory exists: they are for a third party that checks every bound, never for a peer.
//! They belong to the memory, not to the process id: after exec or death they reach
//! nothing, even if another process has the id by then.
//!
//! The kernel's file ignores page protection: a write to a page that the process itself
//! may only read succeeds (in private memory; a shared mapping of a file that was opened
//! to read is refused). So the holder asks first, with [`ProcessMemory::check`]. Between
//! the question and the write the process may remap the range, and then gets what it
//! remapped it to: its own memory, no other process's.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, fstatfs, open};
use rustix::io::{Errno, pread, preadv, pwrite, pwritev};

use super::transfer::{Target, moved};
use super::{Area, Maps, PidFd, TransferError};
use crate::memory::Mapping;

/// `f_type` of `/proc`.
const PROC_MAGIC: i64 = 0x9fa0;

/// Most parts that the kernel takes in one call; `UIO_MAXIOV`.
pub(super) const MAX_PARTS: usize = 1024;

/// All memory of one process, and what it has mapped where.
///
/// Not `Clone`: it is the capability to change that process.
///
/// # Examples
///
/// ```
/// use portolan_sys::memory::{self, Mapping, PAGE};
/// use portolan_sys::process::{Need, ProcessMemory};
/// let fd = memory::create("example", PAGE as u64)?;
/// let target = Mapping::shared_anywhere(&fd, PAGE)?;
/// let address = target.base().addr() + 10;
///
/// // The exporter opens its own and sends both descriptors; the holder verifies them.
/// let [mem, maps] = ProcessMemory::own()?.into_descriptors();
/// let memory = ProcessMemory::from_descriptors(mem, maps)?;
///
/// memory.check(address, 5, Need::Write)?;
/// memory.write_at(address, b"hello")?;
/// let mut back = [0; 5];
/// memory.read_at(address, &mut back)?;
/// assert_eq!(&back, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ProcessMemory {
    memory: OwnedFd,
    maps: Maps,
}

/// What a range must permit its own process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Reads.
    Read,
    /// Reads and writes.
    Write,
}

/// Why another process's memory was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No one's fault: the process is dead.
    #[error("the process is dead")]
    Gone,
    /// The machine's: it lives, in a process namespace that cannot be seen from here, or `/proc`
    /// does not show it.
    #[error("the process is in another process namespace, or /proc does not show it")]
    OtherNamespace,
    /// The caller's: it is another user's, or has made itself undumpable.
    #[error("the process is user {found}'s, or does not let anybody trace it")]
    OtherUser {
        /// Whose it is, as `/proc` says.
        found: u32,
    },
    /// The machine's: its settings do not let one process trace another one of the same user
    /// (`/proc/sys/kernel/yama/ptrace_scope`, or a security module).
    #[error("the kernel does not permit access to the process's memory; see ptrace_scope")]
    Denied,
    /// The machine's: the kernel refused; see the source.
    #[error("cannot open a process's memory: {0}")]
    Io(#[source] io::Error),
}

/// Why descriptors were not accepted as a process's memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForeignError {
    /// The sender's: one is some other file, or they are two processes'.
    #[error(
        "the descriptors show {memory:?} and {maps:?} instead of one process's mem and maps; refuse the sender"
    )]
    NotProcess {
        /// What the first one is open on.
        memory: String,
        /// What the second one is open on.
        maps: String,
    },
    /// The machine's: the kernel refused the check itself.
    #[error("cannot examine the descriptors: {0}")]
    Io(#[from] io::Error),
}

impl ProcessMemory {
    /// That of this process.
    ///
    /// # Errors
    ///
    /// The kernel's; `/proc` must be mounted, and the process may not have made itself
    /// undumpable.
    pub fn own() -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(Self {
            memory: open("/proc/self/mem", flags, Mode::empty())?,
            maps: Maps::own()?,
        })
    }

    /// Opens that of another process of user `user`, if the kernel lets us: a process that it lets
    /// may change that other process anyway, so this grants nothing.
    ///
    /// The process may run another program between its giving us the pidfd and this call:
    /// check by what it has mapped ([`Maps::shows`]) that it is the one that is meant.
    ///
    /// # Examples
    ///
    /// ```
    /// use portolan_sys::process::{self, OpenError, PidFd, ProcessMemory};
    /// let own = PidFd::open(std::process::id())?;
    /// // One may always open one's own.
    /// let memory = ProcessMemory::of(&own, process::user())?;
    /// let (here, mut there) = (*b"here", [0; 4]);
    /// memory.read_at(here.as_ptr().addr(), &mut there)?;
    /// assert_eq!(there, here);
    /// let other = ProcessMemory::of(&own, process::user() + 1);
    /// assert!(matches!(other, Err(OpenError::OtherUser { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn of(process: &PidFd, user: u32) -> Result<Self, OpenError> {
        // Asked again, it may have died meanwhile; it does not come back.
        let unseen = || match process.is_dead() {
            true => OpenError::Gone,
            false => OpenError::OtherNamespace,
        };
        let id = process.id().ok_or_else(unseen)?;
        let place = |file| format!("/proc/{id}/{file}");
        // The user of an undumpable process is root, for this purpose.
        let found = std::fs::metadata(place("")).map_err(|_| unseen())?;
        let found = found.uid();
        let refused = |errno: Errno| match errno {
            Errno::ACCESS | Errno::PERM => OpenError::Denied,
            Errno::NOENT | Errno::SRCH => unseen(),
            other => OpenError::Io(other.into()),
        };
        let open = |file, access| open(place(file), access | OFlags::CLOEXEC, Mode::empty());
        // In this order: if it runs another program in between, then the mappings are that
        // one's, and are found not to be what is wanted.
        let memory = open("mem", OFlags::RDWR).map_err(refused)?;
        let maps = open("maps", OFlags::RDONLY).map_err(refused)?;
        // Alive now, so no other process had its id meanwhile.
        if process.is_dead() {
            return Err(OpenError::Gone);
        }
        if found != user {
            return Err(OpenError::OtherUser { found });
        }
        let maps = Maps::from(maps);
        Ok(Self { memory, maps })
    }

    /// Takes the descriptors that another process sent, `mem` and `maps`.
    ///
    /// A process can only open memory that it may trace, so what it sends shows memory
    /// that it could change by itself. The check keeps it from having us write to other
    /// files in our name.
    ///
    /// # Errors
    ///
    /// [`ForeignError`].
    pub fn from_descriptors(memory: OwnedFd, maps: OwnedFd) -> Result<Self, ForeignError> {
        let (shown_memory, shown_maps) = (shown(&memory)?, shown(&maps)?);
        let (memory_path, maps_path) = (Path::new(&shown_memory), Path::new(&shown_maps));
        let ours = memory_path.file_name().is_some_and(|name| name == "mem")
            && maps_path.file_name().is_some_and(|name| name == "maps")
            && memory_path.parent() == maps_path.parent();
        if !ours || !on_proc(&memory)? || !on_proc(&maps)? {
            return Err(ForeignError::NotProcess {
                memory: shown_memory,
                maps: shown_maps,
            });
        }
        let maps = Maps::from(maps);
        Ok(Self { memory, maps })
    }

    /// To hand over: `mem` and `maps`.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.memory.as_fd(), self.maps.as_fd()]
    }

    /// As [`Self::descriptors`], keeping none.
    pub fn into_descriptors(self) -> [OwnedFd; 2] {
        [self.memory, self.maps.into()]
    }

    /// The process's id, as the descriptors show it; nothing if they show none.
    pub fn process(&self) -> Option<u32> {
        let path = shown(&self.memory).ok()?;
        let name = Path::new(&path).parent()?.file_name()?;
        name.to_str()?.parse().ok()
    }

    /// What the process has mapped where.
    pub fn maps(&self) -> &Maps {
        &self.maps
    }

    /// Checks that the process itself may do to the whole range what is about to be done.
    ///
    /// # Errors
    ///
    /// [`TransferError::Protected`], and `Unmapped` where there is a hole.
    pub fn check(&self, address: usize, len: usize, need: Need) -> Result<(), TransferError> {
        let target = Target::new(address, len)?;
        let range = target.address..target.address + target.len;
        let permits = |area: &Area| area.read && (need == Need::Read || area.write);
        // Most often one mapping holds all of it.
        let holds = |area: &Area| area.range.end >= range.end && permits(area);
        if self.maps.holding(address).as_ref().is_some_and(holds) {
            return Ok(());
        }
        let areas = self.maps.areas(range.clone())?;
        if let Some(address) = Area::hole(&areas, &range) {
            return Err(TransferError::Unmapped {
                address,
                done: 0,
                len,
            });
        }
        if !areas.iter().all(permits) {
            let wanted = match need {
                Need::Read => "read",
                Need::Write => "write",
            };
            return Err(TransferError::Protected { range, wanted });
        }
        Ok(())
    }

    /// Writes `bytes` at `address` of the process, whatever the protection there.
    ///
    /// # Errors
    ///
    /// [`TransferError`]. Its `done` bytes were written.
    pub fn write_at(&self, address: usize, bytes: &[u8]) -> Result<(), TransferError> {
        Target::new(address, bytes.len())?
            .carry(|done| pwrite(&self.memory, &bytes[done..], (address + done) as u64))
    }

    /// Reads at `address` of the process into all of `bytes`, whatever the protection there.
    ///
    /// # Errors
    ///
    /// [`TransferError`]. Its `done` bytes were read.
    pub fn read_at(&self, address: usize, bytes: &mut [u8]) -> Result<(), TransferError> {
        Target::new(address, bytes.len())?
            .carry(|done| pread(&self.memory, &mut bytes[done..], (address + done) as u64))
    }

    /// Writes `len` bytes of a mapping, from `from` on, at `address` of the process, as
    /// [`write_at`](Self::write_at). Others may write to the mapping meanwhile: what is
    /// written then is what stood there at some moment.
    ///
    /// # Examples
    ///
    /// ```
    /// use portolan_sys::memory::{self, Mapping, PAGE};
    /// use portolan_sys::process::ProcessMemory;
    /// use std::sync::atomic::Ordering;
    /// let fd = memory::create("example", PAGE as u64)?;
    /// let ours = Mapping::shared_anywhere(&fd, PAGE)?;
    /// let (theirs, memory) = (vec![7_u8; 8], ProcessMemory::own()?);
    /// memory.read_into(theirs.as_ptr().addr(), &ours, 8, 8)?;
    /// memory.write_from(ours.base().addr(), &ours, 8, 8)?;
    /// assert_eq!(ours.words()[0].load(Ordering::Relaxed), 0x0707_0707_0707_0707);
    /// assert!(memory.write_from(ours.base().addr(), &ours, PAGE - 1, 2).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Self::write_at`]; `OutOfRange` if the mapping has fewer bytes.
    pub fn write_from(
        &self,
        address: usize,
        mapping: &Mapping,
        from: usize,
        len: usize,
    ) -> Result<(), TransferError> {
        let first = part(mapping, from, len, address)?;
        Target::new(address, len)?.carry(|done| {
            let (place, left) = (first.wrapping_add(done).cast(), len - done);
            // SAFETY:
            // - In bounds and live: `part` has checked it, and `mapping` is borrowed; the kernel
            //   reads, so other threads may write there meanwhile.
            // - The kernel checks the address in the other process.
            let wrote = unsafe {
                libc::pwrite64(
                    self.memory.as_raw_fd(),
                    place,
                    left,
                    position(address + done),
                )
            };
            moved(wrote)
        })
    }

    /// Reads `len` bytes at `address` of the process into a mapping, from `to` on, as
    /// [`read_at`](Self::read_at).
    ///
    /// # Errors
    ///
    /// As [`Self::read_at`]; `OutOfRange` if the mapping has fewer bytes.
    pub fn read_into(
        &self,
        address: usize,
        mapping: &Mapping,
        to: usize,
        len: usize,
    ) -> Result<(), TransferError> {
        let first = part(mapping, to, len, address)?;
        Target::new(address, len)?.carry(|done| {
            let (place, left) = (first.wrapping_add(done).cast(), len - done);
            // SAFETY:
            // - In bounds and live: as in `write_from`. No code has references into it that are
            //   not of atomics; see `Mapping::words`.
            // - The kernel checks the address in the other process.
            let read = unsafe {
                libc::pread64(
                    self.memory.as_raw_fd(),
                    place,
                    left,
                    position(address + done),
                )
            };
            moved(read)
        })
    }

    /// Writes the parts, in their order, one behind the other from `address` on.
    ///
    /// # Errors
    ///
    /// As [`Self::write_at`].
    pub fn write_vectored_at(
        &self,
        address: usize,
        parts: &[IoSlice<'_>],
    ) -> Result<(), TransferError> {
        let len = parts.iter().map(|part| part.len()).sum();
        let mut parts = parts.to_vec();
        let mut left = parts.as_mut_slice();
        let mut passed = 0;
        Target::new(address, len)?.carry(|done| {
            IoSlice::advance_slices(&mut left, done - passed);
            passed = done;
            let now = left.len().min(MAX_PARTS);
            pwritev(&self.memory, &left[..now], (address + done) as u64)
        })
    }

    /// Reads from `address` on into the parts, in their order.
    ///
    /// # Errors
    ///
    /// As [`Self::read_at`].
    pub fn read_vectored_at(
        &self,
        address: usize,
        mut parts: &mut [IoSliceMut<'_>],
    ) -> Result<(), TransferError> {
        let len = parts.iter().map(|part| part.len()).sum();
        let mut passed = 0;
        Target::new(address, len)?.carry(|done| {
            IoSliceMut::advance_slices(&mut parts, done - passed);
            passed = done;
            let now = parts.len().min(MAX_PARTS);
            preadv(&self.memory, &mut parts[..now], (address + done) as u64)
        })
    }
}

/// The first of `len` bytes from `from` on, if the mapping has them.
fn part(
    mapping: &Mapping,
    from: usize,
    len: usize,
    address: usize,
) -> Result<*mut u8, TransferError> {
    match from.checked_add(len) {
        Some(end) if end <= mapping.len() => Ok(mapping.base().wrapping_add(from)),
        _ => Err(TransferError::OutOfRange { address, len }),
    }
}

/// An address that [`Target::new`] has found to be one, as a file's position.
fn position(address: usize) -> i64 {
    (address as u64).cast_signed()
}

/// The path that a descriptor was opened by, as this process would write it.
fn shown(fd: &OwnedFd) -> io::Result<String> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    Ok(link.to_string_lossy().into_owned())
}

fn on_proc(fd: &OwnedFd) -> io::Result<bool> {
    Ok(fstatfs(fd)?.f_type == PROC_MAGIC)
}
