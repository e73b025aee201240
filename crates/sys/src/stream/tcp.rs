//! TCP sockets that never block, with the options that links between nodes need.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrAny, SocketFlags, SocketType, acceptfrom_with, bind,
    getpeername, getsockname, ipproto, shutdown, socket_with,
};

use super::range::{Destination, Source, raw_destinations, raw_sources};

/// Most ranges of one system call; the kernel's `UIO_MAXIOV`. More are cut off: their bytes count
/// as not moved.
pub const MOST_RANGES: usize = 1024;

/// Bytes that wait unsent in the kernel beyond which a socket has no room. Without it megabytes of
/// bulk would lie before each short record.
pub const NOT_SENT_LOW_WATER: u32 = 128 * 1024;

/// Bytes that a socket's buffers hold each way, from its first byte on.
pub const SOCKET_BUFFER: usize = 4 * 1024 * 1024;

/// Listens at `address`; port 0 lets the kernel choose. An unspecified IPv6 address takes IPv4 too.
///
/// # Errors
///
/// `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`, `EMFILE`.
///
/// # Examples
///
/// ```
/// use portolan_sys::process::poll;
/// use portolan_sys::stream::{self, Destination, Source};
/// use std::os::fd::AsFd;
/// let listener = stream::listen("127.0.0.1:0".parse().unwrap(), 8)?;
/// let client = stream::connect(stream::bound_to(&listener)?)?;
/// poll(&[listener.as_fd()], None)?;
/// let (server, _) = stream::accept(&listener)?.expect("a client waits");
/// assert_eq!(stream::send(&server, &[Source::from(b"hello".as_slice())])?, Some(5));
/// poll(&[client.as_fd()], None)?;
/// let mut bytes = [0; 8];
/// assert_eq!(stream::receive(&client, &[Destination::from(&mut bytes[..])])?, Some(5));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn listen(address: SocketAddr, backlog: u32) -> io::Result<OwnedFd> {
    let socket = new_socket(&address)?;
    // A node that is started again has its old connections still in the kernel.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, address.ip() != Ipv6Addr::UNSPECIFIED)?;
    }
    bind(&socket, &address)?;
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Begins to connect to `address`; the socket becomes writable when that has succeeded or failed,
/// and [`connected`] says which.
///
/// # Errors
///
/// `EMFILE`, `ENETUNREACH`, and what else the kernel knows at once.
pub fn connect(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = new_socket(&address)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Whether a socket that [`connect`] made is connected by now.
///
/// # Errors
///
/// Why it will not be: `ECONNREFUSED`, `ETIMEDOUT`, `EHOSTUNREACH`.
pub fn connected(socket: impl AsFd) -> io::Result<bool> {
    sockopt::socket_error(&socket)??;
    match getpeername(&socket) {
        Ok(_) => Ok(true),
        Err(Errno::NOTCONN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Takes the next client if one waits, and where it is.
///
/// # Errors
///
/// `EMFILE`, `ENFILE`: the client goes on waiting.
pub fn accept(listener: impl AsFd) -> io::Result<Option<(OwnedFd, SocketAddr)>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        match acceptfrom_with(listener.as_fd(), flags) {
            Ok((socket, address)) => {
                let address = address.and_then(|address| SocketAddr::try_from(address).ok());
                let unknown = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
                // A socket that is dead already is refused its options; its next call says so.
                let _ = tune(&socket);
                return Ok(Some((socket, canonical(address.unwrap_or(unknown)))));
            }
            Err(Errno::AGAIN) => return Ok(None),
            // A client that gave up while it waited; the network's errors of that client.
            Err(
                Errno::INTR
                | Errno::CONNABORTED
                | Errno::PROTO
                | Errno::NETDOWN
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::NETUNREACH,
            ) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// An IPv4 address that came in by an IPv6 socket, as such.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The address that a socket has here.
///
/// # Errors
///
/// None that a TCP socket has.
pub fn bound_to(socket: impl AsFd) -> io::Result<SocketAddr> {
    internet(getsockname(socket)?)
}

/// The address that it is connected to.
///
/// # Errors
///
/// `ENOTCONN`.
pub fn remote(socket: impl AsFd) -> io::Result<SocketAddr> {
    let address = getpeername(socket)?.ok_or(Errno::NOTCONN)?;
    Ok(canonical(internet(address)?))
}

fn internet(address: SocketAddrAny) -> io::Result<SocketAddr> {
    Ok(SocketAddr::try_from(address)?)
}

/// Sends bytes of `parts`, from the front, as many as there is room for; how many, or `None` if
/// there is no room. At most [`MOST_RANGES`] parts are looked at.
///
/// # Errors
///
/// `EPIPE`, `ECONNRESET`, `ETIMEDOUT`: the connection is over. `EFAULT`: a range is not mapped.
pub fn send(socket: impl AsFd, parts: &[Source<'_>]) -> io::Result<Option<usize>> {
    let mut message = message(raw_sources(parts), parts.len());
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let fd = socket.as_fd().as_raw_fd();
    retry(|| {
        // SAFETY:
        // - `message` is initialised, and lives for the call.
        // - It has so many ranges of memory as `parts` has, which the kernel checks as it reads
        //   them; no reference to them is made, so others may write them meanwhile.
        unsafe { libc::sendmsg(fd, &raw mut message, flags) }
    })
}

/// Receives bytes into `into`, from the front, as many as are there; how many, `Some(0)` at the end
/// of the stream, or `None` if none is there now. At most [`MOST_RANGES`] ranges are looked at.
///
/// Ranges without room receive `Some(0)` as well.
///
/// # Errors
///
/// As [`send`].
pub fn receive(socket: impl AsFd, into: &[Destination<'_>]) -> io::Result<Option<usize>> {
    let mut message = message(raw_destinations(into), into.len());
    let fd = socket.as_fd().as_raw_fd();
    retry(|| {
        // SAFETY:
        // - `message` is initialised, and lives for the call.
        // - It has so many ranges of memory as `into` has, which nothing else in this process
        //   writes (the promise of `Destination`), and which the kernel checks as it writes them.
        unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT) }
    })
}

fn message(ranges: *mut libc::iovec, count: usize) -> libc::msghdr {
    libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: ranges,
        msg_iovlen: count.min(MOST_RANGES),
        msg_control: std::ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    }
}

fn retry(mut call: impl FnMut() -> isize) -> io::Result<Option<usize>> {
    let moved = retry_on_intr(|| {
        usize::try_from(call())
            .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    });
    match moved {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sends nothing more: the peer receives what was sent, and then the end.
///
/// # Errors
///
/// `ENOTCONN`: the connection is over.
pub fn finish(socket: impl AsFd) -> io::Result<()> {
    Ok(shutdown(socket, Shutdown::Write)?)
}

fn new_socket(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    tune(&socket)?;
    Ok(socket)
}

/// Sets what a link needs. A listener passes its buffers on to what it accepts, whose window the
/// kernel scales by them when the connection begins.
fn tune(socket: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    set_not_sent_low_water(socket)?;
    // Without the privilege the kernel cuts a buffer at `rmem_max` and stops to adapt it, which
    // is less than it would come to by itself; then it is left alone.
    let _ = sockopt::set_socket_send_buffer_size_force(socket, SOCKET_BUFFER / 2);
    let _ = sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER / 2);
    Ok(())
}

fn set_not_sent_low_water(socket: &OwnedFd) -> io::Result<()> {
    let value = NOT_SENT_LOW_WATER;
    // SAFETY:
    // - The pointer is to a `u32`, whose size is given; the kernel reads it before the call ends.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const value).cast(),
            4,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{poll, wait};
    use rustix::event::{PollFd, PollFlags};

    fn connection(address: &str) -> (OwnedFd, OwnedFd) {
        let listener = listen(address.parse().unwrap(), 8).unwrap();
        let client = connect(bound_to(&listener).unwrap()).unwrap();
        poll(&[listener.as_fd()], None).unwrap();
        let (server, from) = accept(&listener).unwrap().unwrap();
        assert_eq!(from, bound_to(&client).unwrap());
        assert_eq!(remote(&client).unwrap(), bound_to(&listener).unwrap());
        assert!(connected(&client).unwrap());
        (client, server)
    }

    #[test]
    fn sockets_have_their_options_on_both_sides_and_both_families() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (client, server) = connection(address);
            for socket in [&client, &server] {
                assert!(sockopt::tcp_nodelay(socket).unwrap());
            }
        }
    }

    #[test]
    fn a_refused_connection_says_so() {
        let listener = listen("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let address = bound_to(&listener).unwrap();
        drop(listener);
        let refused = connect(address).and_then(|socket| {
            let mut fds = [PollFd::new(&socket, PollFlags::OUT)];
            wait(&mut fds, None)?;
            connected(&socket)
        });
        let refused = refused.unwrap_err().raw_os_error();
        assert_eq!(refused, Some(libc::ECONNREFUSED));
    }

    #[test]
    fn many_ranges_go_by_one_call_and_more_are_cut() {
        let (client, server) = connection("127.0.0.1:0");
        let bytes = vec![7; 2 * MOST_RANGES];
        let parts: Vec<_> = bytes.chunks(1).map(Source::from).collect();
        assert_eq!(send(&client, &parts).unwrap(), Some(MOST_RANGES));
        poll(&[server.as_fd()], None).unwrap();
        let mut into = vec![0; 2 * MOST_RANGES];
        let ranges: Vec<_> = into.chunks_mut(1).map(Destination::from).collect();
        assert_eq!(receive(&server, &ranges).unwrap(), Some(MOST_RANGES));
        assert_eq!(receive(&server, &ranges).unwrap(), None);
        finish(&client).unwrap();
        poll(&[server.as_fd()], None).unwrap();
        assert_eq!(receive(&server, &ranges).unwrap(), Some(0));
    }

    #[test]
    fn a_range_that_is_not_mapped_is_refused_by_the_kernel() {
        let (client, _server) = connection("127.0.0.1:0");
        let nowhere = std::ptr::without_provenance(0x1000);
        // SAFETY: only the kernel reads it, and refuses.
        let part = unsafe { Source::at(nowhere, 16) }.unwrap();
        let refused = send(&client, &[part]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EFAULT));
    }
}
