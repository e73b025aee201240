//! A bell tells tokio's reactor that a word has changed.

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime::{Handle, Id};
use portolan_sys::bell::FutexFd;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::AtomicU32;
use std::task::{Context, Poll, ready};
use std::time::Instant;

/// A descriptor that becomes readable when a word changes, in a runtime's reactor.
pub(crate) struct Bell {
    fd: AsyncFd<Fd>,
    /// Whose reactor: another one's would not be told.
    runtime: Id,
}

struct Fd(FutexFd);

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Bell").field(&self.fd.as_raw_fd()).finish()
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Bell {
    // The safe constructor is deprecated for types whose descriptor may change or close; the
    // one that replaces it is unsafe, and too new to be relied on. Ours owns its descriptor.
    #[allow(deprecated)]
    fn new() -> io::Result<Self> {
        let fd = AsyncFd::with_interest(Fd(FutexFd::new()?), Interest::READABLE)?;
        Ok(Self {
            fd,
            runtime: Handle::current().id(),
        })
    }

    /// The bell that is there, or a new one.
    pub(crate) fn of(there: &mut Option<Self>) -> io::Result<&mut Self> {
        if there
            .as_ref()
            .is_none_or(|b| b.runtime != Handle::current().id())
        {
            *there = Some(Self::new()?);
        }
        there.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// From now on the bell fires when `word` is not `value`, or its sleepers are woken.
    pub(crate) fn arm(&mut self, word: &AtomicU32, value: u32) -> io::Result<()> {
        self.arm_until(word, value, None)
    }

    /// The same, and at that time.
    pub(crate) fn arm_until(
        &mut self,
        word: &AtomicU32,
        value: u32,
        until: Option<Instant>,
    ) -> io::Result<()> {
        self.fd.get_mut().0.arm_until(word, value, until)
    }

    /// It does not sleep on any word from now on.
    pub(crate) fn disarm(&mut self) {
        // Fails only where nothing can be armed either.
        let _ = self.fd.get_mut().0.disarm();
    }

    /// Whether the bell has fired; if not, `context` is told when it does.
    pub(crate) fn poll_fired(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready_mut(context))?;
            guard.clear_ready();
            if guard.get_inner_mut().0.drain()? {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Waits until the bell fires.
    pub(crate) async fn fired(&mut self) -> io::Result<()> {
        loop {
            let mut guard = self.fd.readable_mut().await?;
            // Before the look: what comes between the two is told again.
            guard.clear_ready();
            if guard.get_inner_mut().0.drain()? {
                return Ok(());
            }
        }
    }
}
