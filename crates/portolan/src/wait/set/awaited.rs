//! A task awaits a wait set under tokio.

use super::{Ready, WaitSet, WaitSetError};
use crate::wait::{Bell, NoDescriptor};
use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime::{Handle, Id};
use ::tokio::task::coop::consume_budget;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Another descriptor of a set's bell, in a runtime's reactor.
pub(super) struct AsyncRing {
    fd: Arc<AsyncFd<OwnedFd>>,
    /// Whose reactor: another one's would not be told.
    runtime: Id,
}

impl WaitSet {
    /// As [`WaitSet::wait`], without blocking the thread. A future that is dropped loses
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`WaitSetError`].
    ///
    /// # Panics
    ///
    /// As [`ReceiveRight::receive_async`](crate::ReceiveRight::receive_async).
    ///
    /// ```
    /// use portolan::{Access, Domain, Message, PortOptions, WaitSet};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let domain = Domain::private()?;
    /// let mut set = WaitSet::new(&domain)?;
    /// let port = domain.bind(PortOptions::unnamed())?;
    /// let right = port.make_send();
    /// let token = set.add(port)?;
    /// right.send_async(Message::new(b"hello")?).await?;
    /// assert_eq!(set.wait_async().await?.next(), Some(token.any()));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait_async(&mut self) -> Result<Ready, WaitSetError> {
        loop {
            consume_budget().await;
            self.present()?;
            match self.round()? {
                Ok(ready) => return Ok(self.named(ready)),
                Err(value) if self.alarms.has_words() => self.woken(value).await?,
                Err(value) => {
                    let due = self.alarms.next();
                    // If this future is dropped the set counts as asleep until its next wait:
                    // that costs its senders a system call, and nothing else.
                    let (bell, doorbell) = self.bell_and_word();
                    let bell = Bell::of(bell).map_err(NoDescriptor::from)?;
                    bell.arm_until(doorbell, value, due)
                        .map_err(NoDescriptor::from)?;
                    bell.fired().await.map_err(NoDescriptor::from)?;
                }
            }
        }
    }

    /// Waits until the set's own bell fires: for the doorbell, a time or a word.
    async fn woken(&mut self, value: u32) -> Result<(), NoDescriptor> {
        let due = self.alarms.next();
        self.quiet = None;
        let doorbell = &self.member.tables().wait_sets[self.index as usize].doorbell;
        self.alarms.bell.arm_until(doorbell, value, due)?;
        let ring = self.async_ring()?;
        // What has fired by now needs no wait.
        while !self.hear()? {
            let mut guard = ring.readable().await?;
            // Before the look: what comes between the two is told again.
            guard.clear_ready();
        }
        Ok(())
    }

    // The safe constructor is deprecated for types whose descriptor may change or close; the
    // one that replaces it is unsafe, and too new to be relied on. This one owns its descriptor.
    #[allow(deprecated)]
    fn async_ring(&mut self) -> io::Result<Arc<AsyncFd<OwnedFd>>> {
        let runtime = Handle::current().id();
        if let Some(ring) = &self.async_ring
            && ring.runtime == runtime
        {
            return Ok(Arc::clone(&ring.fd));
        }
        let fd = self.alarms.bell.as_fd().try_clone_to_owned()?;
        let fd = Arc::new(AsyncFd::with_interest(fd, Interest::READABLE)?);
        self.async_ring = Some(AsyncRing {
            fd: Arc::clone(&fd),
            runtime,
        });
        Ok(fd)
    }
}
