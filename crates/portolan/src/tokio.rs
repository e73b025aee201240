//! Async receive, request, send and wait, under tokio.
//!
//! An async call looks, as a blocking one does. If nothing is there it sets the same sleep
//! marks, but instead of sleeping on the port's doorbell it arms a *bell*: a descriptor
//! that becomes readable when the doorbell is rung, and that tokio's reactor watches.
//!
//! A message is taken only at the moment in which it is returned. So a future that is
//! dropped loses none; it takes its sleep marks back, and the bell stays for the next. It may
//! be armed still, so a blocking receive disarms it before it sleeps.

use crate::port::WhenFull;
use crate::{
    Access, Deadline, Message, NoDescriptor, Ready, ReceiveError, ReceiveRight, Request,
    RequestError, SendError, SendRight, Unsent, WaitError, WaitSet,
};
use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime::{Handle, Id};
use ::tokio::task::coop::consume_budget;
use portolan_sys::bell::FutexFd;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

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

    /// From now on it rings when `word` is not `value`, or its sleepers are woken.
    pub(crate) fn arm(&mut self, word: &AtomicU32, value: u32) -> io::Result<()> {
        self.fd.get_mut().0.arm(word, value)
    }

    /// It does not sleep on any word from now on.
    pub(crate) fn disarm(&mut self) {
        // Fails only where nothing can be armed either.
        let _ = self.fd.get_mut().0.disarm();
    }

    /// Whether it rings; if not, `context` is told when it does.
    pub(crate) fn poll_rung(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready_mut(context))?;
            guard.clear_ready();
            if guard.get_inner_mut().0.drain()? {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Waits until it rings.
    pub(crate) async fn rung(&mut self) -> io::Result<()> {
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

/// A port with its sleep marks set; dropped, it takes them back.
struct Armed<'p>(&'p mut ReceiveRight);

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        // Not in a forked child, where the region is not mapped.
        if self.0.at().member.present().is_ok() {
            self.0.disarm();
        }
    }
}

impl ReceiveRight {
    /// As [`ReceiveRight::receive`], without blocking the thread. A future that is dropped
    /// loses no message.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`], but not [`ReceiveError::TimedOut`]: for a deadline, put the future
    /// into `tokio::time::timeout`.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, and in one without its I/O driver.
    ///
    /// ```
    /// use portolan::{Access, Domain, Message, PortOptions, WhenFull};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let domain = Domain::private()?;
    /// let mut port = domain.bind(PortOptions::unnamed())?;
    /// let right = port.make_send();
    /// let receiver = tokio::spawn(async move { port.receive_async(Access::Later).await });
    /// right.send_async(Message::new(b"hello")?).await?;
    /// assert_eq!(receiver.await??.header(), b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn receive_async(&mut self, access: Access) -> Result<Message, ReceiveError> {
        loop {
            consume_budget().await;
            match self.receive(access, Deadline::NOW) {
                Err(ReceiveError::TimedOut) => self.something().await?,
                other => return other,
            }
        }
    }

    /// As [`ReceiveRight::get_request`], without blocking the thread. A future that is
    /// dropped loses no request.
    ///
    /// # Errors
    ///
    /// As [`ReceiveRight::receive_async`].
    ///
    /// # Panics
    ///
    /// As [`ReceiveRight::receive_async`].
    pub async fn get_request_async(&mut self, access: Access) -> Result<Request, ReceiveError> {
        loop {
            consume_budget().await;
            match self.get_request(access, Deadline::NOW) {
                Err(ReceiveError::TimedOut) => self.something().await?,
                other => return other,
            }
        }
    }

    /// Waits until the next look may find something.
    async fn something(&mut self) -> Result<(), NoDescriptor> {
        // As in a blocking receive: the doorbell is read before the marks are set.
        let value = self.at().queue().port.sleep.doorbell.load(Ordering::SeqCst);
        let nothing = self.arm();
        let armed = Armed(self);
        if nothing {
            let (bell, doorbell) = armed.0.bell_and_word();
            let bell = Bell::of(bell)?;
            bell.arm(doorbell, value)?;
            bell.rung().await?;
        }
        Ok(())
    }
}

impl WaitSet {
    /// As [`WaitSet::wait`], without blocking the thread. A future that is dropped loses
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`WaitError`].
    ///
    /// # Panics
    ///
    /// As [`ReceiveRight::receive_async`].
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
    /// assert_eq!(set.wait_async().await?.next(), Some(token));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait_async(&mut self) -> Result<Ready, WaitError> {
        loop {
            consume_budget().await;
            self.present()?;
            match self.round() {
                Ok(ready) => return Ok(self.named(ready)),
                Err(value) => {
                    // If this future is dropped the set counts as asleep until its next wait:
                    // that costs its senders a system call, and nothing else.
                    let (bell, doorbell) = self.bell_and_word();
                    let bell = Bell::of(bell).map_err(NoDescriptor::from)?;
                    bell.arm(doorbell, value).map_err(NoDescriptor::from)?;
                    bell.rung().await.map_err(NoDescriptor::from)?;
                }
            }
        }
    }
}

impl SendRight {
    /// As [`SendRight::request_reply`], without blocking the thread. It waits for room in
    /// the queue, then for the answer. A future that is dropped abandons its request.
    ///
    /// # Errors
    ///
    /// [`RequestError`], but not [`RequestError::TimedOut`]: for a deadline, put the future
    /// into `tokio::time::timeout`.
    ///
    /// # Panics
    ///
    /// As [`ReceiveRight::receive_async`].
    ///
    /// ```
    /// use portolan::{Access, Domain, Message, PortOptions};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let domain = Domain::private()?;
    /// let mut port = domain.bind(PortOptions::unnamed().synchronous())?;
    /// let right = port.make_send();
    /// tokio::spawn(async move {
    ///     while let Ok(request) = port.get_request_async(Access::Later).await {
    ///         request.reply_in_place().ok();
    ///     }
    /// });
    /// let answer = right.request_async(Message::new(b"ping")?, Access::Later).await?;
    /// assert_eq!(answer.header(), b"ping");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn request_async(
        &self,
        message: Message,
        access: Access,
    ) -> Result<Message, RequestError> {
        let mut message = message;
        let mut room = Room::default();
        let mut pending = loop {
            consume_budget().await;
            match self.request(message, WhenFull::Fail) {
                Ok(pending) => break pending,
                Err(RequestError::Unsent(unsent)) => message = room.after(self, unsent).await?,
                Err(other) => return Err(other),
            }
        };
        loop {
            match (pending.wait(access, Deadline::NOW), pending.port()) {
                (Err(RequestError::TimedOut), Some(port)) => port.something().await?,
                (answer, _) => return answer,
            }
        }
    }

    /// As [`SendRight::send`], waiting for room without blocking the thread. A future that
    /// is dropped before it is done has not sent its message, and drops it.
    ///
    /// # Errors
    ///
    /// [`SendError`], with the message inside.
    ///
    /// # Panics
    ///
    /// As [`ReceiveRight::receive_async`].
    pub async fn send_async(&self, message: Message) -> Result<(), SendError> {
        let mut message = message;
        let mut room = Room::default();
        loop {
            consume_budget().await;
            match self.send(message, WhenFull::Fail) {
                Ok(()) => return Ok(()),
                Err(unsent) => message = room.after(self, unsent).await?,
            }
        }
    }
}

/// Waits for room in a port's queue.
#[derive(Default)]
struct Room {
    bell: Option<Bell>,
    /// Announced, with this value of the word that changes when room is made.
    announced: Option<u32>,
}

impl Room {
    /// After a send that was refused: gives the message back when it may be tried again.
    async fn after(&mut self, to: &SendRight, unsent: SendError) -> Result<Message, SendError> {
        let SendError {
            reason: Unsent::Full { .. },
            ..
        } = &unsent
        else {
            return Err(unsent);
        };
        let Some(value) = self.announced.take() else {
            // Q7 of queues: announced before the last try.
            self.announced = Some(to.at().queue().announce_waiting());
            return Ok(*unsent.message);
        };
        match self.wait(to, value).await {
            Ok(()) => Ok(*unsent.message),
            Err(error) => Err(SendError {
                reason: NoDescriptor::from(error).into(),
                message: unsent.message,
            }),
        }
    }

    async fn wait(&mut self, to: &SendRight, value: u32) -> io::Result<()> {
        let bell = Bell::of(&mut self.bell)?;
        bell.arm(&to.at().queue().port.room.room, value)?;
        bell.rung().await
    }
}
