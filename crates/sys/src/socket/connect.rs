//! Listens, connects and accepts.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, bind, socket_with};

use super::{Address, SocketError};
use crate::process::wait;
use crate::time;

/// The shortest timeout that the kernel does not take for "for ever".
const SHORTEST_TIMEOUT: Duration = Duration::from_micros(1);

/// Listens at `address`; up to `backlog` clients wait to be accepted.
///
/// The socket does not block, so that any number of processes may share it.
///
/// # Errors
///
/// [`SocketError::AddressInUse`], above all.
///
/// # Examples
///
/// ```
/// use portolan_sys::socket::{self, Address};
/// let address = Address::Abstract(format!("example-{}", std::process::id()).into());
/// let listener = socket::listen(&address, 8)?;
/// let client = socket::connect(&address)?;
/// let server = socket::accept(&listener)?;
/// socket::send(&client, b"hello", &[])?;
/// let mut buffer = [0; 16];
/// let received = socket::receive(&server, &mut buffer, 0)?;
/// assert_eq!(&buffer[..received.len], b"hello");
/// # Ok::<(), socket::SocketError>(())
/// ```
pub fn listen(address: &Address, backlog: u32) -> Result<OwnedFd, SocketError> {
    let socket = unbound()?;
    reserve(&socket, address)?;
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
    rustix::net::listen(&socket, backlog)
        .map_err(|errno| SocketError::new("cannot listen on a socket", errno))?;
    Ok(socket)
}

/// A socket that has no name yet.
///
/// # Errors
///
/// [`SocketError`]: no descriptor, above all.
pub fn unbound() -> Result<OwnedFd, SocketError> {
    new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Gives `socket` the name `address`, without listening there: no other socket has it until
/// the last copy of this one is closed.
///
/// # Errors
///
/// [`SocketError::AddressInUse`], above all.
///
/// # Examples
///
/// ```
/// use portolan_sys::socket::{self, Address, SocketError};
/// let address = Address::Abstract(format!("example-reserved-{}", std::process::id()).into());
/// let (socket, other) = (socket::unbound()?, socket::unbound()?);
/// socket::reserve(&socket, &address)?;
/// let taken = socket::reserve(&other, &address);
/// assert!(matches!(taken, Err(SocketError::AddressInUse { .. })));
/// # Ok::<(), SocketError>(())
/// ```
pub fn reserve(socket: impl AsFd, address: &Address) -> Result<(), SocketError> {
    bind(socket, &address.encode()?).map_err(|errno| match errno {
        Errno::ADDRINUSE => SocketError::AddressInUse {
            address: address.clone(),
        },
        Errno::NOENT | Errno::NOTDIR => SocketError::NotFound {
            address: address.clone(),
        },
        other => SocketError::new("cannot bind a socket", other),
    })
}

/// Connects to a listener at `address`; waits as long as its backlog is full.
///
/// # Errors
///
/// [`SocketError::Refused`] and [`SocketError::NotFound`], above all.
pub fn connect(address: &Address) -> Result<OwnedFd, SocketError> {
    connect_by(address, None)
}

/// Connects to a listener at `address`, until `deadline`.
///
/// # Errors
///
/// As [`connect`], and [`SocketError::BacklogFull`] at the deadline.
pub fn connect_by(address: &Address, deadline: Option<Instant>) -> Result<OwnedFd, SocketError> {
    let encoded = address.encode()?;
    let socket = new_socket(SocketFlags::CLOEXEC)?;
    loop {
        // A full backlog cannot be polled for. The kernel waits in `connect` itself, for
        // as long as a send may take.
        let timeout = deadline.map(|deadline| time::remaining(deadline).max(SHORTEST_TIMEOUT));
        set_timeout(&socket, timeout)?;
        match rustix::net::connect(&socket, &encoded) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if deadline.is_none_or(|deadline| Instant::now() < deadline) => {}
            Err(errno) => return Err(not_connected(address, errno)),
        }
    }
    set_timeout(&socket, None)?;
    Ok(socket)
}

fn not_connected(address: &Address, errno: Errno) -> SocketError {
    let address = address.clone();
    match errno {
        Errno::CONNREFUSED => SocketError::Refused { address },
        Errno::NOENT | Errno::NOTDIR => SocketError::NotFound { address },
        Errno::AGAIN => SocketError::BacklogFull { address },
        other => SocketError::new("cannot connect a socket", other),
    }
}

/// Takes the next client, waiting for one.
///
/// # Errors
///
/// [`SocketError::DescriptorsExhausted`]: the client stays in the backlog.
pub fn accept(listener: impl AsFd) -> Result<OwnedFd, SocketError> {
    accept_by(listener, None)
}

/// Takes the next client, waiting for one until `deadline`.
///
/// # Errors
///
/// As [`accept`], and [`SocketError::TimedOut`].
pub fn accept_by(listener: impl AsFd, deadline: Option<Instant>) -> Result<OwnedFd, SocketError> {
    let listener = listener.as_fd();
    loop {
        // Another process that shares the listener may be faster; then we wait again.
        if let Some(client) = try_accept(listener)? {
            return Ok(client);
        }
        let mut fds = [PollFd::from_borrowed_fd(listener, PollFlags::IN)];
        let ready = wait(&mut fds, deadline).map_err(|source| SocketError::Io {
            doing: "cannot wait for clients",
            source,
        })?;
        if !ready {
            return Err(SocketError::TimedOut);
        }
    }
}

/// Takes the next client if one waits.
///
/// # Errors
///
/// As [`accept`].
pub fn try_accept(listener: impl AsFd) -> Result<Option<OwnedFd>, SocketError> {
    loop {
        match accept_with(listener.as_fd(), SocketFlags::CLOEXEC) {
            Ok(client) => return Ok(Some(client)),
            Err(Errno::AGAIN) => return Ok(None),
            // A client that gave up while it waited.
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(errno) => return Err(SocketError::new("cannot accept a client", errno)),
        }
    }
}

fn new_socket(flags: SocketFlags) -> Result<OwnedFd, SocketError> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|errno| SocketError::new("cannot make a socket", errno))
}

fn set_timeout(socket: &OwnedFd, timeout: Option<Duration>) -> Result<(), SocketError> {
    set_socket_timeout(socket, Timeout::Send, timeout)
        .map_err(|errno| SocketError::new("cannot set a socket's timeout", errno))
}
