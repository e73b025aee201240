//! Sends and receives messages with descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
    recvmsg, sendmsg, shutdown, socketpair,
};

use super::SocketError;
use crate::process::{EventFd, wait};

/// Most descriptors in one message; the kernel's `SCM_MAX_FD`.
pub const MAX_DESCRIPTORS: usize = 253;

/// Bytes before the descriptors in a control message.
const CONTROL_HEADER: usize = size_of::<libc::cmsghdr>();

/// Two connected sockets.
///
/// # Errors
///
/// [`SocketError::DescriptorsExhausted`].
pub fn pair() -> Result<(OwnedFd, OwnedFd), SocketError> {
    socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|errno| SocketError::new("cannot make a socket pair", errno))
}

/// Sends one message with duplicates of `fds`, whole or not at all; waits for room.
///
/// # Errors
///
/// [`SocketError`]; [`Closed`](SocketError::Closed) if the peer is not there any more.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SocketError> {
    send_by(socket, bytes, fds, None)
}

/// Sends one message as [`send`], waiting for room until `deadline`.
///
/// # Errors
///
/// As [`send`], and [`SocketError::TimedOut`].
pub fn send_by(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    deadline: Option<Instant>,
) -> Result<(), SocketError> {
    if bytes.is_empty() {
        // The receiver could not tell it from the end of the connection.
        return Err(SocketError::BadLength { len: 0 });
    }
    if fds.len() > MAX_DESCRIPTORS {
        return Err(SocketError::TooManyDescriptors {
            count: fds.len(),
            max: MAX_DESCRIPTORS,
        });
    }
    loop {
        match send_now(socket.as_fd(), bytes, fds) {
            Ok(()) => return Ok(()),
            Err(Errno::AGAIN) => wait_for(socket.as_fd(), PollFlags::OUT, deadline)?,
            Err(Errno::MSGSIZE) => return Err(SocketError::BadLength { len: bytes.len() }),
            Err(errno) => return Err(SocketError::new("cannot send a message", errno)),
        }
    }
}

fn send_now(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(fds.len()))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    // A packet goes whole or not at all, so the count says nothing new.
    rustix::io::retry_on_intr(|| sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags))
        .map(|_| ())
}

/// Lets nothing more come: what the peer sends from now on fails there with
/// [`SocketError::Closed`], so it knows that it was not received. What has come can be received.
///
/// # Examples
///
/// ```
/// use portolan_sys::socket::{self, SocketError};
/// let (ours, theirs) = socket::pair()?;
/// socket::send(&theirs, b"early", &[])?;
/// socket::close_entrance(&ours)?;
/// assert!(matches!(socket::send(&theirs, b"late", &[]), Err(SocketError::Closed)));
/// let mut bytes = [0; 5];
/// assert_eq!(socket::receive(&ours, &mut bytes, 0)?.len, 5);
/// # Ok::<(), SocketError>(())
/// ```
///
/// # Errors
///
/// [`SocketError`]: the socket is connected no more.
pub fn close_entrance(socket: impl AsFd) -> Result<(), SocketError> {
    shutdown(socket, Shutdown::Read)
        .map_err(|errno| SocketError::new("cannot close a socket's entrance", errno))
}

/// What came in one message.
#[derive(Debug)]
#[must_use = "the message may have been cut short"]
pub struct Received {
    /// Bytes written to the front of the buffer.
    pub len: usize,
    /// The descriptors that came along, ours now, close-on-exec.
    pub fds: Vec<OwnedFd>,
    /// The message had more bytes or more descriptors than we took; the rest is lost.
    pub truncated: bool,
}

/// Receives one message with at most `max_fds` descriptors, waiting for it.
///
/// # Errors
///
/// [`SocketError::Closed`] at the end of the connection, and
/// [`SocketError::DescriptorsExhausted`], which loses the message.
pub fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    max_fds: usize,
) -> Result<Received, SocketError> {
    receive_by(socket, buffer, max_fds, None)
}

/// Receives one message as [`receive`], waiting for it until `deadline`.
///
/// # Errors
///
/// As [`receive`], and [`SocketError::TimedOut`].
pub fn receive_by(
    socket: impl AsFd,
    buffer: &mut [u8],
    max_fds: usize,
    deadline: Option<Instant>,
) -> Result<Received, SocketError> {
    loop {
        if let Some(received) = try_receive(socket.as_fd(), buffer, max_fds)? {
            return Ok(received);
        }
        wait_for(socket.as_fd(), PollFlags::IN, deadline)?;
    }
}

/// Receives one message as [`receive`] if one is there.
///
/// # Errors
///
/// As [`receive`].
pub fn try_receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    max_fds: usize,
) -> Result<Option<Received>, SocketError> {
    let mut room = ControlRoom::new(max_fds);
    let mut control = RecvAncillaryBuffer::new(room.bytes());
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(buffer)];
    let mut next =
        || rustix::io::retry_on_intr(|| recvmsg(socket.as_fd(), &mut parts, &mut control, flags));
    let message = match next() {
        // The peer closed without having read all, which is told once, and before what it said itself.
        Err(Errno::CONNRESET) => next(),
        other => other,
    };
    let message = match message {
        Err(Errno::AGAIN) => return Ok(None),
        other => other.map_err(|errno| SocketError::new("cannot receive a message", errno))?,
    };
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    let lost_control = message.flags.contains(ReturnFlags::CTRUNC);
    if lost_control && fds.len() < max_fds {
        // There was room, so the kernel could not make descriptors for us. Say so if
        // that is still true.
        EventFd::new().map_err(|error| match Errno::from_io_error(&error) {
            Some(errno) => SocketError::new("cannot receive descriptors", errno),
            None => SocketError::Io {
                doing: "cannot receive descriptors",
                source: error,
            },
        })?;
    }
    if message.bytes == 0 && fds.is_empty() && !lost_control {
        return Err(SocketError::Closed);
    }
    let truncated = lost_control || message.flags.contains(ReturnFlags::TRUNC);
    Ok(Some(Received {
        len: message.bytes,
        fds,
        truncated,
    }))
}

/// Room for the control message of exactly so many descriptors. With the padding that
/// `CMSG_SPACE` adds, an odd number would let one more in.
struct ControlRoom {
    /// Words, because control messages are aligned to words.
    words: Vec<MaybeUninit<u64>>,
    len: usize,
}

impl ControlRoom {
    fn new(max_fds: usize) -> Self {
        let fds = max_fds.min(MAX_DESCRIPTORS) * size_of::<RawFd>();
        let len = if fds == 0 { 0 } else { CONTROL_HEADER + fds };
        Self {
            words: vec![MaybeUninit::uninit(); len.div_ceil(8)],
            len,
        }
    }

    fn bytes(&mut self) -> &mut [MaybeUninit<u8>] {
        let start: *mut MaybeUninit<u8> = self.words.as_mut_ptr().cast();
        // SAFETY:
        // - In bounds: `words` has at least `len` bytes.
        // - Exclusive: `self` is borrowed for as long as the slice lives.
        // - Uninitialised bytes are valid as `MaybeUninit`.
        unsafe { std::slice::from_raw_parts_mut(start, self.len) }
    }
}

fn wait_for(
    socket: BorrowedFd<'_>,
    events: PollFlags,
    deadline: Option<Instant>,
) -> Result<(), SocketError> {
    let mut fds = [PollFd::from_borrowed_fd(socket, events)];
    match wait(&mut fds, deadline) {
        Ok(true) => Ok(()),
        Ok(false) => Err(SocketError::TimedOut),
        Err(source) => Err(SocketError::Io {
            doing: "cannot wait for a socket",
            source,
        }),
    }
}
