//! A task receives, requests and sends under tokio.
//!
//! An async call looks, as a blocking one does. If nothing is there it sets the same sleep
//! marks, but instead of sleeping on the port's doorbell it arms a *bell*: a descriptor
//! that becomes readable when the doorbell changes, and that tokio's reactor watches.
//!
//! A message is taken only at the moment in which it is returned. So a future that is
//! dropped loses none; it takes its sleep marks back, and the bell stays for the next. It may
//! be armed still, so a blocking receive disarms it before it sleeps.

use super::message::Message;
use super::{
    Access, ReceiveError, ReceiveRight, Request, RequestError, SendError, SendRight, WhenFull,
};
use crate::Refused;
use crate::wait::{Bell, Deadline, NoDescriptor};
use ::tokio::task::coop::consume_budget;
use std::io;
use std::sync::atomic::Ordering;

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
            bell.fired().await?;
        }
        Ok(())
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
    /// let answer = right.request_reply_async(Message::new(b"ping")?, Access::Later).await?;
    /// assert_eq!(answer.header(), b"ping");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn request_reply_async(
        &self,
        message: Message,
        access: Access,
    ) -> Result<Message, RequestError> {
        let mut message = message;
        let mut room = Room::default();
        let mut pending = loop {
            consume_budget().await;
            match self.begin_request(message, WhenFull::Fail) {
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
    /// [`Refused`], with the message inside.
    ///
    /// # Panics
    ///
    /// As [`ReceiveRight::receive_async`].
    pub async fn send_async(&self, message: Message) -> Result<(), Refused<Message, SendError>> {
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
    async fn after(
        &mut self,
        to: &SendRight,
        unsent: Refused<Message, SendError>,
    ) -> Result<Message, Refused<Message, SendError>> {
        let Refused {
            why: SendError::Full { .. },
            ..
        } = &unsent
        else {
            return Err(unsent);
        };
        let Some(value) = self.announced.take() else {
            // Q7 of queues: announced before the last try.
            self.announced = Some(to.at().queue().announce_waiting());
            return Ok(*unsent.item);
        };
        match self.wait(to, value).await {
            Ok(()) => Ok(*unsent.item),
            Err(error) => Err(Refused {
                why: NoDescriptor::from(error).into(),
                item: unsent.item,
            }),
        }
    }

    async fn wait(&mut self, to: &SendRight, value: u32) -> io::Result<()> {
        let bell = Bell::of(&mut self.bell)?;
        bell.arm(&to.at().queue().port.room.room, value)?;
        bell.fired().await
    }
}
