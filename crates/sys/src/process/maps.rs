//! Reads what a process has mapped where, through a descriptor that it opened itself.
//!
//! The descriptor belongs to the memory that the process had when it opened it, not to its
//! process id: after exec or death every question is answered by [`MapsError::Gone`].

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fstat, major, minor, open};
use rustix::io::{Errno, pread, retry_on_intr};
use rustix::ioctl::{Updater, ioctl, opcode};

/// The definitions of `linux/fs.h` that rustix and libc lack.
mod abi {
    pub(super) const WRITABLE: u64 = 1 << 1;
    pub(super) const READABLE: u64 = 1 << 0;
    pub(super) const SHARED: u64 = 1 << 3;
    /// The mapping that holds the address, or else the next one.
    pub(super) const COVERING_OR_NEXT: u64 = 1 << 4;

    /// `struct procmap_query`.
    #[repr(C)]
    #[derive(Default)]
    pub(super) struct Query {
        pub(super) size: u64,
        pub(super) flags: u64,
        pub(super) address: u64,
        pub(super) start: u64,
        pub(super) end: u64,
        pub(super) access: u64,
        pub(super) page_size: u64,
        pub(super) offset: u64,
        pub(super) inode: u64,
        pub(super) major: u32,
        pub(super) minor: u32,
        pub(super) name_size: u32,
        pub(super) build_id_size: u32,
        pub(super) name: u64,
        pub(super) build_id: u64,
    }

    const _: () = assert!(size_of::<Query>() == 104);
}

/// `PROCMAP_QUERY`, Linux 6.11.
const QUERY: u32 = opcode::read_write::<abi::Query>(b'f', 17);

/// One mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// Its addresses.
    pub range: Range<usize>,
    /// Whether the process may read it.
    pub read: bool,
    /// Whether the process may write it.
    pub write: bool,
    /// Whether writes go to a file that others may have mapped too.
    pub shared: bool,
    /// Where in the file it begins; 0 without a file.
    pub offset: u64,
    /// The file's device, major and minor number; zeros without a file.
    pub device: (u32, u32),
    /// The file's inode; 0 without a file.
    pub inode: u64,
}

/// What one process has mapped: its own `/proc/self/maps`, which it may hand to another.
///
/// # Examples
///
/// ```
/// use portolan_sys::memory::{self, Mapping, PAGE};
/// use portolan_sys::process::Maps;
/// let fd = memory::create("example", PAGE as u64)?;
/// let mapping = Mapping::shared_anywhere(&fd, PAGE)?;
/// let start = mapping.base().addr();
/// let areas = Maps::own()?.areas(start..start + PAGE)?;
/// assert!(areas[0].range.contains(&start) && areas[0].write && areas[0].shared);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Maps {
    fd: OwnedFd,
}

/// Why nothing was learnt of a process's mappings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapsError {
    /// The process's: it has ended, or runs another program now.
    #[error("the process has ended or runs another program")]
    Gone,
    /// The machine's: the kernel refused; see the source.
    #[error("cannot read a process's mappings: {0}")]
    Io(#[from] io::Error),
}

impl Maps {
    /// Those of this process, until it ends or runs another program.
    ///
    /// # Errors
    ///
    /// The kernel's; `/proc` must be mounted.
    pub fn own() -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = open("/proc/self/maps", flags, Mode::empty())?;
        Ok(Self { fd })
    }

    /// The mappings that have an address in `range`, in ascending order, not cut to it.
    ///
    /// Each is as it was at some moment of the call; the process may change them meanwhile.
    ///
    /// # Errors
    ///
    /// [`MapsError`].
    pub fn areas(&self, range: Range<usize>) -> Result<Vec<Area>, MapsError> {
        match self.query(&range) {
            // The kernel does not know the request.
            Err(Errno::NOTTY) => self.read(&range),
            Err(Errno::SRCH) => Err(MapsError::Gone),
            other => Ok(other.map_err(io::Error::from)?),
        }
    }

    /// Whether the process has the first page of a file mapped at `address`, shared and to be
    /// written, as its maker has it. Of a file that is [sealed to
    /// readers](crate::memory::seal_to_readers) no other process can.
    ///
    /// # Errors
    ///
    /// [`MapsError`].
    pub fn shows(&self, file: impl AsFd, address: usize) -> Result<bool, MapsError> {
        let stat = fstat(file).map_err(io::Error::from)?;
        let device = (major(stat.st_dev), minor(stat.st_dev));
        let areas = self.areas(address..address.saturating_add(1))?;
        Ok(areas.iter().any(|area| {
            let there = area.range.start == address && area.offset == 0;
            there && area.shared && area.write && (area.device, area.inode) == (device, stat.st_ino)
        }))
    }

    /// The mapping that holds an address, if the kernel says so in one answer: one system call,
    /// and nothing is allocated. None says nothing; ask for the [areas](Self::areas).
    pub(super) fn holding(&self, address: usize) -> Option<Area> {
        let area = self.next(address).ok()??;
        area.range.contains(&address).then_some(area)
    }

    fn query(&self, range: &Range<usize>) -> Result<Vec<Area>, Errno> {
        let mut areas = Vec::new();
        let mut from = range.start;
        while from < range.end {
            let Some(area) = self.next(from)? else { break };
            if area.range.start >= range.end || area.range.end <= from {
                break;
            }
            from = area.range.end;
            areas.push(area);
        }
        Ok(areas)
    }

    /// The mapping that holds an address, or else the next one.
    fn next(&self, address: usize) -> Result<Option<Area>, Errno> {
        let mut query = abi::Query {
            size: size_of::<abi::Query>() as u64,
            flags: abi::COVERING_OR_NEXT,
            address: address as u64,
            ..abi::Query::default()
        };
        // SAFETY:
        // - The struct is the one that the request takes; see the size assertion.
        let request = unsafe { Updater::<QUERY, _>::new(&mut query) };
        // SAFETY:
        // - No buffers are given, so the kernel writes to the struct only.
        match unsafe { ioctl(&self.fd, request) } {
            Ok(()) => Ok(Some(Area::from(&query))),
            Err(Errno::NOENT) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// As [`Self::areas`] from the text, for kernels before 6.11.
    fn read(&self, range: &Range<usize>) -> Result<Vec<Area>, MapsError> {
        /// As much as the kernel gives at once.
        const STEP: usize = 64 << 10;
        let mut text = Vec::new();
        loop {
            let done = text.len();
            text.resize(done + STEP, 0);
            let got = retry_on_intr(|| pread(&self.fd, &mut text[done..], done as u64));
            match got {
                Ok(got) => text.truncate(done + got),
                Err(Errno::SRCH) => return Err(MapsError::Gone),
                Err(other) => return Err(MapsError::Io(other.into())),
            }
            if text.len() == done {
                break;
            }
        }
        if text.is_empty() {
            return Err(MapsError::Gone);
        }
        let text = String::from_utf8_lossy(&text);
        let meets = |area: &Area| area.range.start < range.end && range.start < area.range.end;
        Ok(text.lines().filter_map(Area::parse).filter(meets).collect())
    }
}

impl From<&abi::Query> for Area {
    fn from(query: &abi::Query) -> Self {
        // Only ever compared and shown, so that a value which does not fit misleads no caller.
        let address = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        Self {
            range: address(query.start)..address(query.end),
            read: query.access & abi::READABLE != 0,
            write: query.access & abi::WRITABLE != 0,
            shared: query.access & abi::SHARED != 0,
            offset: query.offset,
            device: (query.major, query.minor),
            inode: query.inode,
        }
    }
}

impl Area {
    /// The first address of `range` that is in none of `areas`, which come in ascending order.
    pub(crate) fn hole(areas: &[Self], range: &Range<usize>) -> Option<usize> {
        let reached = areas.iter().fold(range.start, |reached, area| {
            if area.range.contains(&reached) {
                area.range.end
            } else {
                reached
            }
        });
        (reached < range.end).then_some(reached)
    }

    /// A line of `/proc/PID/maps`: `start-end rwxp offset major:minor inode name`.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let access = fields.next()?.as_bytes();
        let offset = fields.next()?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let address = |digits| usize::from_str_radix(digits, 16).ok();
        Some(Self {
            range: address(start)?..address(end)?,
            read: access.first() == Some(&b'r'),
            write: access.get(1) == Some(&b'w'),
            shared: access.get(3) == Some(&b's'),
            offset: u64::from_str_radix(offset, 16).ok()?,
            device: (
                u32::from_str_radix(major, 16).ok()?,
                u32::from_str_radix(minor, 16).ok()?,
            ),
            inode: fields.next()?.parse().ok()?,
        })
    }
}

impl AsFd for Maps {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Maps> for OwnedFd {
    fn from(maps: Maps) -> Self {
        maps.fd
    }
}

impl From<OwnedFd> for Maps {
    /// Takes what another process sent; [`ProcessMemory::from_descriptors`] checks it.
    ///
    /// [`ProcessMemory::from_descriptors`]: super::ProcessMemory::from_descriptors
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{self, Access, Mapping, PAGE};

    #[test]
    fn the_text_and_the_query_say_the_same() {
        let fd = memory::create("portolan-areas", 4 * PAGE as u64).unwrap();
        let mapping = Mapping::shared_anywhere(&fd, 4 * PAGE).unwrap();
        let start = mapping.base().addr();
        // SAFETY:
        // - Our mapping, and no reference points into it.
        unsafe { memory::protect(start + PAGE, PAGE, Access::Read) }.unwrap();
        let maps = Maps::own().unwrap();
        let range = start + 100..start + 2 * PAGE + 1;
        let read = maps.read(&range).unwrap();
        assert_eq!(maps.areas(range.clone()).unwrap(), read);
        let stat = rustix::fs::fstat(&fd).unwrap();
        let seen: Vec<_> = read
            .iter()
            .map(|area| (area.range.start, area.write, area.offset))
            .collect();
        let page = PAGE as u64;
        assert_eq!(
            seen,
            [
                (start, true, 0),
                (start + PAGE, false, page),
                (start + 2 * PAGE, true, 2 * page)
            ]
        );
        assert!(read.iter().all(|area| area.inode == stat.st_ino
            && area.shared
            && area.read
            && area.device
                == (
                    rustix::fs::major(stat.st_dev),
                    rustix::fs::minor(stat.st_dev)
                )));
        drop(mapping);
        assert!(
            maps.areas(range)
                .unwrap()
                .iter()
                .all(|area| area.inode != stat.st_ino)
        );
        assert_eq!(maps.areas(0..PAGE).unwrap(), []);
    }
}
