//! Wraps POSIX message queues, as a competitor to measure.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

/// A deadline that has always passed. With it a call on a full or an empty queue comes
/// back at once, without making the queue non-blocking for every process that has it.
const PAST: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// A message queue in the kernel.
///
/// Made under a name, which goes when its creator calls [`unlink`](Self::unlink) or
/// drops it. A process that has it open keeps it.
///
/// # Examples
///
/// ```
/// use portolan_instruments::mqueue::Queue;
/// let queue = Queue::create(4, 64)?;
/// queue.send(b"hello")?;
/// let mut buffer = [0; 64];
/// assert_eq!(queue.receive(&mut buffer)?, 5);
/// assert!(queue.try_receive(&mut buffer).is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Queue {
    fd: OwnedFd,
    /// The name, while it is ours to unlink.
    name: Option<CString>,
}

impl Queue {
    /// Makes a queue of at most `depth` messages of at most `message_size` bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL`: beyond the limits in `/proc/sys/fs/mqueue`. `EMFILE`: beyond `ulimit -q`
    /// or the number of descriptors.
    pub fn create(depth: usize, message_size: usize) -> io::Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the number only has to be new.
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = CString::new(format!("/portolan-{}-{number}", std::process::id()))?;
        // SAFETY:
        // - All bits zero are a valid `mq_attr`.
        let mut attributes: libc::mq_attr = unsafe { std::mem::zeroed() };
        attributes.mq_maxmsg = i64::try_from(depth).map_err(io::Error::other)?;
        attributes.mq_msgsize = i64::try_from(message_size).map_err(io::Error::other)?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        let mode: libc::mode_t = 0o600;
        // SAFETY:
        // - The name is a C string, and mode and attributes follow `O_CREAT`.
        let raw = unsafe { libc::mq_open(name.as_ptr(), flags, mode, &raw const attributes) };
        Ok(Self {
            fd: owned(raw)?,
            name: Some(name),
        })
    }

    /// Opens the queue that another process made and has not unlinked yet.
    ///
    /// # Errors
    ///
    /// `NotFound`, above all.
    pub fn open(name: &str) -> io::Result<Self> {
        let name = CString::new(name)?;
        // SAFETY:
        // - The name is a C string.
        let raw = unsafe { libc::mq_open(name.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        Ok(Self {
            fd: owned(raw)?,
            name: None,
        })
    }

    /// Takes a queue's descriptor that another process sent.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd, name: None }
    }

    /// The name to open the queue by; `None` once it is unlinked, or if it is not ours.
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref()?.to_str().ok()
    }

    /// Removes the name. The queue goes when its last descriptor does.
    pub fn unlink(&mut self) {
        if let Some(name) = self.name.take() {
            // SAFETY:
            // - The name is a C string.
            let removed = unsafe { libc::mq_unlink(name.as_ptr()) };
            // Another process may have removed it already, which is as good.
            let _ = removed;
        }
    }

    /// Sends one message, waiting for room.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`: too long for this queue.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        self.send_until(message, None)
    }

    /// Sends one message if there is room.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if the queue is full.
    pub fn try_send(&self, message: &[u8]) -> io::Result<()> {
        self.send_until(message, Some(&PAST))
    }

    /// Receives one message, waiting for it; returns its length.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`: the buffer is shorter than the queue's longest message.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive_until(buffer, None)
    }

    /// Receives one message if there is one; returns its length.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if the queue is empty.
    pub fn try_receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive_until(buffer, Some(&PAST))
    }

    fn send_until(&self, message: &[u8], deadline: Option<&libc::timespec>) -> io::Result<()> {
        let (fd, from) = (self.fd.as_raw_fd(), message.as_ptr().cast());
        let deadline = deadline.map_or(ptr::null(), ptr::from_ref);
        loop {
            // SAFETY:
            // - `from` points to as many bytes as said.
            // - `deadline` is null or a timespec.
            let sent = unsafe { libc::mq_timedsend(fd, from, message.len(), 0, deadline) };
            if sent == 0 {
                return Ok(());
            }
            retry(io::Error::last_os_error())?;
        }
    }

    fn receive_until(
        &self,
        buffer: &mut [u8],
        deadline: Option<&libc::timespec>,
    ) -> io::Result<usize> {
        let (fd, to) = (self.fd.as_raw_fd(), buffer.as_mut_ptr().cast());
        let deadline = deadline.map_or(ptr::null(), ptr::from_ref);
        let no_priority = ptr::null_mut();
        loop {
            // SAFETY:
            // - `to` has room for as many bytes as said.
            // - `deadline` is null or a timespec.
            let received =
                unsafe { libc::mq_timedreceive(fd, to, buffer.len(), no_priority, deadline) };
            if let Ok(len) = usize::try_from(received) {
                return Ok(len);
            }
            retry(io::Error::last_os_error())?;
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.unlink();
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn owned(raw: libc::mqd_t) -> io::Result<OwnedFd> {
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY:
    // - On Linux a queue's handle is a descriptor, just made, and owned by no value yet.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// `Ok` if the call was interrupted and is to be made again.
fn retry(error: io::Error) -> io::Result<()> {
    match Errno::from_io_error(&error) {
        Some(Errno::INTR) => Ok(()),
        Some(Errno::TIMEDOUT | Errno::AGAIN) => Err(io::ErrorKind::WouldBlock.into()),
        _ => Err(error),
    }
}
