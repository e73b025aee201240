//! Asks the kernel which process is at the other end, and which one holds a name.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use super::{Address, SocketError};
use crate::process::{comm, is_stopped, start_time};

/// Linux 4.13: the supplementary groups of a socket's peer.
const SO_PEERGROUPS: i32 = 59;

/// Linux 6.16: whether a socket takes descriptors.
const SO_PASSRIGHTS: i32 = 83;

/// The process that connected, or that first listened, at the other end.
///
/// All of it as of that moment. A listener's process may be dead, its socket inherited:
/// judge by the user, not by the process id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id; 0 outside our pid namespace.
    pub pid: u32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Asks which process is at the other end of a connected socket.
///
/// # Errors
///
/// [`SocketError::Io`]: not a Unix socket.
pub fn peer(socket: impl AsFd) -> Result<Peer, SocketError> {
    let failed = |source| SocketError::Io {
        doing: "cannot tell the peer of a socket",
        source,
    };
    let credentials = credentials(socket.as_fd()).map_err(failed)?;
    let groups = groups(socket.as_fd()).map_err(failed)?;
    Ok(Peer {
        pid: credentials.pid,
        uid: credentials.uid,
        gid: credentials.gid,
        groups,
    })
}

/// Has a socket refuse descriptors: a peer's attempt to send some fails in the peer.
///
/// `Ok(false)` where the kernel cannot (before 6.16). There, and in any case, a call that
/// receives with room for none takes none and reports the message as truncated.
///
/// Messages that wait to be received already keep their descriptors.
///
/// # Examples
///
/// ```
/// use portolan_sys::socket;
/// let (ours, theirs) = socket::pair()?;
/// if socket::refuse_descriptors(&ours)? {
///     let fd = std::os::fd::AsFd::as_fd(&theirs);
///     assert!(socket::send(&theirs, b"unwanted", &[fd]).is_err());
/// }
/// socket::send(&theirs, b"fine", &[])?;
/// # Ok::<(), socket::SocketError>(())
/// ```
///
/// # Errors
///
/// [`SocketError::Io`]: not a Unix socket.
pub fn refuse_descriptors(socket: impl AsFd) -> Result<bool, SocketError> {
    pass_descriptors(socket.as_fd(), false)
}

/// Has a socket take descriptors again, after [`refuse_descriptors`].
///
/// `Ok(false)` where the kernel cannot refuse them (before 6.16).
///
/// # Examples
///
/// ```
/// use portolan_sys::socket;
/// use std::os::fd::AsFd;
/// let (ours, theirs) = socket::pair()?;
/// socket::refuse_descriptors(&ours)?;
/// socket::accept_descriptors(&ours)?;
/// socket::send(&theirs, b"a gift", &[theirs.as_fd()])?;
/// assert_eq!(socket::receive(&ours, &mut [0; 8], 1)?.fds.len(), 1);
/// # Ok::<(), socket::SocketError>(())
/// ```
///
/// # Errors
///
/// [`SocketError::Io`]: not a Unix socket.
pub fn accept_descriptors(socket: impl AsFd) -> Result<bool, SocketError> {
    pass_descriptors(socket.as_fd(), true)
}

fn pass_descriptors(socket: BorrowedFd<'_>, pass: bool) -> Result<bool, SocketError> {
    let pass = i32::from(pass);
    let value = (&raw const pass).cast();
    let len = libc::socklen_t::try_from(size_of_val(&pass)).unwrap_or(0);
    let fd = socket.as_raw_fd();
    // SAFETY:
    // - `value` points to `len` bytes that live until the call returns.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, value, len) };
    if set == 0 {
        return Ok(true);
    }
    let source = io::Error::last_os_error();
    match source.raw_os_error() {
        Some(libc::ENOPROTOOPT) => Ok(false),
        _ => Err(SocketError::Io {
            doing: "cannot say whether a socket takes descriptors",
            source,
        }),
    }
}

/// `SO_PEERCRED`. Not rustix's, which cannot express a peer outside our pid namespace.
pub(crate) fn credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let [pid, uid, gid] = option(socket, libc::SO_PEERCRED)?;
    Ok(Credentials { pid, uid, gid })
}

/// The kernel's `struct ucred`.
pub(crate) struct Credentials {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Reads a socket option that consists of `N` 32-bit words.
pub(crate) fn option<const N: usize>(socket: BorrowedFd<'_>, name: i32) -> io::Result<[u32; N]> {
    let mut words = [0; N];
    if read_option(socket, name, &mut words)? != N {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(words)
}

fn groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    // Enough for most users; the kernel refuses where it is not.
    let mut groups = vec![0_u32; 32];
    loop {
        match read_option(socket, SO_PEERGROUPS, &mut groups) {
            Ok(count) => {
                groups.truncate(count);
                return Ok(groups);
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::ERANGE) => groups.resize(groups.len() * 2, 0),
                // The kernel does not know the groups, or does not know the question.
                Some(libc::ENODATA | libc::ENOPROTOOPT) => return Ok(Vec::new()),
                _ => return Err(error),
            },
        }
    }
}

/// Reads a socket option of 32-bit words into `words`; says how many it has.
fn read_option(socket: BorrowedFd<'_>, name: i32, words: &mut [u32]) -> io::Result<usize> {
    let mut len = libc::socklen_t::try_from(size_of_val(words)).unwrap_or(libc::socklen_t::MAX);
    let to = words.as_mut_ptr().cast();
    let fd = socket.as_raw_fd();
    // SAFETY:
    // - `words` has room for `len` bytes, and the kernel writes no more than that.
    // - Any bits are a valid `u32`.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, to, &raw mut len) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(len as usize / size_of::<u32>())
}

/// A process that has a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its process id.
    pub pid: u32,
    /// The short name of its program.
    pub comm: String,
    /// Its effective user, if it still is there.
    pub user: Option<u32>,
    /// Whether it is stopped (`SIGSTOP`, or by a debugger).
    pub stopped: bool,
}

impl Holder {
    /// What can be said of a process; `None` if there is none.
    ///
    /// ```
    /// use portolan_sys::socket::Holder;
    /// let us = Holder::of(std::process::id()).unwrap();
    /// assert!(us.user.is_some() && !us.stopped);
    /// ```
    pub fn of(pid: u32) -> Option<Self> {
        let comm = comm(pid)?;
        let user = std::fs::metadata(format!("/proc/{pid}")).map(|m| m.uid());
        Some(Self {
            pid,
            comm,
            user: user.ok(),
            stopped: is_stopped(pid),
        })
    }
}

/// What has a socket's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupant {
    /// Whether it accepts connections there.
    pub listens: bool,
    /// Who it is, if that can be told.
    pub holder: Option<Holder>,
}

/// Names the process that listens at `address`, for error messages; `None` if no process does or if
/// it is hidden.
///
/// Only processes whose descriptors we may list are found. Of several, one that is stopped, because
/// the others wait for it; else the one that was started first: others may have it from there, for as
/// long as a program takes to start.
pub fn holder(address: &Address) -> Option<Holder> {
    occupant(address).filter(|o| o.listens)?.holder
}

/// What has the name of `address`, for error messages: a listening socket, or one that was bound
/// and does not listen. `None` if nothing has it.
///
/// The process is found as by [`holder`].
pub fn occupant(address: &Address) -> Option<Occupant> {
    let table = std::fs::read("/proc/thread-self/net/unix").ok()?;
    let (inode, listens) = bound_inode(&table, address)?;
    let wanted = format!("socket:[{inode}]");
    let pids = std::fs::read_dir("/proc").into_iter().flatten();
    let pids = pids.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let holders = pids
        .filter(|&pid| has_descriptor(pid, wanted.as_bytes()))
        .filter_map(|pid| Some((Holder::of(pid)?, start_time(pid)?)));
    let holder = to_be_named(holders);
    Some(Occupant { listens, holder })
}

/// Of processes that have a socket, and when they were started: the one that is to be named.
fn to_be_named(holders: impl Iterator<Item = (Holder, u64)>) -> Option<Holder> {
    let named = holders.min_by_key(|(holder, started)| (!holder.stopped, *started, holder.pid));
    named.map(|(holder, _)| holder)
}

/// The inode of the socket that is bound to `address`, from `/proc/net/unix`, and whether it
/// accepts connections. One that does comes first.
fn bound_inode(table: &[u8], address: &Address) -> Option<(u64, bool)> {
    /// The flag of a socket that accepts connections.
    const ACCEPTS: &str = "00010000";
    /// The state of a socket that is not connected. Those that were accepted at an address have
    /// its name as well, and are.
    const UNCONNECTED: &str = "01";
    let shown: Vec<u8> = match address {
        // The kernel shows a zero byte as `@`, first of all the one that marks the name.
        Address::Abstract(name) => std::iter::once(b'@')
            .chain(name.iter().map(|&byte| if byte == 0 { b'@' } else { byte }))
            .collect(),
        Address::Path(path) => path.as_os_str().as_bytes().to_vec(),
    };
    // A line: number, references, protocol, flags, type, state, inode, name.
    let bound = table.split(|&byte| byte == b'\n').filter_map(|line| {
        let fields = line.strip_suffix(shown.as_slice())?.strip_suffix(b" ")?;
        let fields: Vec<&str> = std::str::from_utf8(fields)
            .ok()?
            .split_whitespace()
            .collect();
        match fields[..] {
            [_, _, _, ACCEPTS, _, _, inode] => Some((inode.parse().ok()?, true)),
            [_, _, _, _, _, UNCONNECTED, inode] => Some((inode.parse().ok()?, false)),
            _ => None,
        }
    });
    bound.max_by_key(|(_, accepts)| *accepts)
}

fn has_descriptor(pid: u32, wanted: &[u8]) -> bool {
    let Ok(fds) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    fds.filter_map(Result::ok)
        .filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .any(|target| target.as_os_str().as_bytes() == wanted)
}

#[cfg(test)]
mod tests {
    use super::{Holder, to_be_named};

    fn holder(pid: u32, stopped: bool) -> Holder {
        Holder {
            pid,
            comm: "test".to_owned(),
            user: None,
            stopped,
        }
    }

    #[test]
    fn who_was_started_first_is_named_before_its_children_and_who_is_stopped_before_all() {
        // Process ids begin again: a child's may be lower.
        let both = [(holder(700, false), 12), (holder(16, false), 90)];
        let named = |all: &[(Holder, u64)]| to_be_named(all.iter().cloned()).unwrap().pid;
        assert_eq!(named(&both), 700);
        let stopped = (holder(801, true), 91);
        assert_eq!(named(&[both.as_slice(), &[stopped]].concat()), 801);
        assert_eq!(to_be_named(std::iter::empty()), None);
    }
}
