//! A sender that looks its port's name up again when the port has died.
//!
//! ```text
//!   apart --a port has the name--> connected --its port is dead--> apart
//!                                     |  ^
//!                                     +--+ sends, counted
//! ```
//!
//! - **R1** A message is counted as sent to the port whose queue took it. When that port is found
//!   dead, its count goes to `lost`, and `lost` is emptied by what returns it to the caller.
//! - **R2** A queue has as many slots as it has, and a slot is used again only once its message was
//!   taken. So of the messages in a dead queue at most that many were not taken. Where the queue
//!   leads on to another domain or node, this bound does not hold, and all count.

use crate::port::{Room, look_for_port, name_changes};
use crate::wait::Armable;
use crate::{ConnectError, Deadline, Domain, Message, Refused, SendError, SendRight, WhenFull};
use std::sync::atomic::{AtomicU32, Ordering};

/// Sends to the port that has a name, whichever process has bound it. See
/// [`Domain::reconnecting_sender`].
///
/// # In a wait set
///
/// A [`WaitSet`](crate::WaitSet) names it when a send may succeed, or says something: a port of this
/// machine has the name and its queue has room, or the port has died. It is named as long as that is
/// so: take it out while there is nothing to send. A port of another node is found by
/// [`Self::connect`] alone.
///
/// ```
/// use portolan::{Deadline, Domain, Message, PortOptions, WaitSet, WhenFull};
/// let domain = Domain::private()?;
/// let mut set = WaitSet::new(&domain)?;
/// let token = set.add(domain.reconnecting_sender("frames"))?;
/// assert!(set.wait(Deadline::NOW)?.is_empty());
///
/// let port = domain.bind(PortOptions::named("frames"))?;
/// assert_eq!(set.wait(Deadline::NEVER)?.next(), Some(token.any()));
/// let sender = set.get_mut(token).ok_or("not in the set")?;
/// let sent = sender.send(Message::new(b"1")?, WhenFull::Fail)?;
/// assert_eq!(sent.lost, None);
/// # drop(port);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ReconnectingSender {
    domain: Domain,
    name: String,
    connection: Option<Connection>,
    /// Receivers so far.
    receivers: u64,
    /// What no call has returned yet.
    lost: Option<Lost>,
    /// The count of names when the wait for one was announced last.
    seen: u32,
}

/// A port that had the name when it was looked up.
struct Connection {
    right: SendRight,
    room: Room,
    sent: u64,
    /// A message went on to another domain or node from there.
    went_on: bool,
}

/// A message was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "says what was lost with an earlier receiver"]
pub struct Sent {
    /// Which receiver's queue has it: 1 for the first, and one more after each death.
    pub receiver: u64,
    /// What may be lost with the receiver before, if this is the first message since its death.
    pub lost: Option<Lost>,
}

/// What may be lost with a receiver that has died, or has closed its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Which receiver: the one that [`Sent::receiver`] named.
    pub receiver: u64,
    /// Messages that were sent to it in all.
    pub sent: u64,
    /// So many of these, at most, it has not received: the last ones, unless it receives by urgency.
    /// All others were received; whether they were worked off, the receiver alone knew.
    pub at_most: u64,
}

impl Domain {
    /// A sender to the port of this name, which looks the name up when it first sends, and again
    /// when the port has died. Nothing waits and nothing is checked here.
    ///
    /// See [`reconnect`](crate::reconnect) for what it says of losses.
    ///
    /// ```
    /// use portolan::{ConnectError, Deadline, Domain, Message, Refused, SendError};
    /// use std::time::Duration;
    /// let domain = Domain::private()?;
    /// let mut sender = domain.reconnecting_sender("frames");
    /// let soon = Deadline::after(Duration::from_millis(5));
    /// let refused = sender.send(Message::new(b"1")?, soon);
    /// let Err(Refused { why: SendError::Connect(ConnectError::NoSuchPort { .. }), item }) = refused
    /// else {
    ///     panic!("no process has bound it")
    /// };
    /// assert_eq!(item.header(), b"1");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reconnecting_sender(&self, name: &str) -> ReconnectingSender {
        ReconnectingSender {
            domain: self.clone(),
            name: name.to_owned(),
            connection: None,
            receivers: 0,
            lost: None,
            seen: 0,
        }
    }
}

impl ReconnectingSender {
    /// Sends a message to the port that has the name now. With a deadline it waits for such a port,
    /// and for room in its queue; with [`WhenFull::Fail`] and [`WhenFull::Drop`] for neither.
    ///
    /// # Errors
    ///
    /// [`Refused`] holds the message, whole, and why: [`SendError::Connect`] if no port had the
    /// name before the deadline, [`SendError::Full`] if its queue had no room. What was lost before
    /// is kept for the next call that succeeds, or [`Self::take_lost`].
    #[inline]
    pub fn send(
        &mut self,
        mut message: Message,
        when_full: impl Into<WhenFull>,
    ) -> Result<Sent, Refused<Message, SendError>> {
        let sent = self.send_from(&mut message, when_full);
        sent.map_err(|why| Refused::new(message, why))
    }

    /// As [`Self::send`], out of a message that stays where it is: empty when it was sent, untouched
    /// when not.
    ///
    /// # Errors
    ///
    /// The reason.
    #[inline]
    pub fn send_from(
        &mut self,
        message: &mut Message,
        when_full: impl Into<WhenFull>,
    ) -> Result<Sent, SendError> {
        let when_full = when_full.into();
        let deadline = match when_full {
            WhenFull::Wait(deadline) => deadline,
            WhenFull::Fail | WhenFull::Drop => Deadline::NOW,
        };
        // First of all: a forked child has no region to look at.
        self.domain.member().present()?;
        loop {
            // Each round after the first follows the death of a port: this loop does not spin.
            self.connect(deadline)?;
            if let Some(connection) = &mut self.connection {
                match connection.right.send_from(message, when_full) {
                    Ok(()) => {
                        connection.count();
                        return Ok(self.sent());
                    }
                    Err(SendError::DeadName) => {}
                    Err(why) => return Err(why),
                }
            }
        }
    }

    /// As [`Self::send`], waiting for a port and for room without blocking the thread. A future that
    /// is dropped before it is done has not sent its message, and drops it.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the message inside. For a deadline, put the future into
    /// `tokio::time::timeout`.
    ///
    /// # Panics
    ///
    /// As [`ReceiveRight::receive_async`](crate::ReceiveRight::receive_async).
    ///
    /// ```
    /// use portolan::{Access, Domain, Message, PortOptions};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let domain = Domain::private()?;
    /// let mut sender = domain.reconnecting_sender("frames");
    /// let sending = tokio::spawn(async move { sender.send_async(Message::default()).await });
    /// tokio::task::yield_now().await; // It waits for the name.
    /// let mut port = domain.bind(PortOptions::named("frames"))?;
    /// assert_eq!(sending.await??.receiver, 1);
    /// port.receive_async(Access::Later).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    pub async fn send_async(
        &mut self,
        mut message: Message,
    ) -> Result<Sent, Refused<Message, SendError>> {
        loop {
            if !self.is_connected() {
                match self.domain.connect_async(&self.name).await {
                    Ok(right) => self.take_up(right),
                    Err(why) => return Err(Refused::new(message, why)),
                }
            }
            if let Some(connection) = &mut self.connection {
                match connection.right.send_async(message).await {
                    Ok(()) => {
                        connection.count();
                        return Ok(self.sent());
                    }
                    Err(Refused {
                        why: SendError::DeadName,
                        item,
                    }) => message = *item,
                    Err(refused) => return Err(refused),
                }
            }
        }
    }

    /// Waits until a port has the name, unless the one of the last send lives. Sends nothing, so it
    /// is for a program that wants to know ([`Self::take_lost`]) before it sends.
    ///
    /// # Errors
    ///
    /// As [`Domain::connect`].
    #[inline]
    pub fn connect(&mut self, deadline: impl Into<Deadline>) -> Result<(), ConnectError> {
        if self.is_connected() {
            return Ok(());
        }
        let right = self.domain.connect(&self.name, deadline)?;
        self.take_up(right);
        Ok(())
    }

    /// The right on the port that has the name, waiting for one as [`Self::connect`] does: for
    /// requests, which say themselves what became of them. What is sent by it is not counted here.
    ///
    /// # Errors
    ///
    /// As [`Domain::connect`].
    ///
    /// ```
    /// use portolan::{Access, Deadline, Domain, Message, PortOptions};
    /// let domain = Domain::private()?;
    /// let mut port = domain.bind(PortOptions::named("upper").synchronous())?;
    /// let server = std::thread::spawn(move || {
    ///     port.get_request(Access::Later, Deadline::NEVER)?.reply_in_place().ok();
    ///     Ok::<_, portolan::ReceiveError>(())
    /// });
    /// let mut sender = domain.reconnecting_sender("upper");
    /// let right = sender.right(Deadline::NOW)?;
    /// let answer = right.request_reply(Message::new(b"ping")?, Access::Later, Deadline::NEVER)?;
    /// assert_eq!(answer.header(), b"ping");
    /// # server.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn right(&mut self, deadline: impl Into<Deadline>) -> Result<&SendRight, ConnectError> {
        self.connect(deadline)?;
        let connection = self.connection.as_ref();
        connection
            .map(|connection| &connection.right)
            .ok_or_else(|| ConnectError::NoSuchPort {
                name: self.name.clone(),
            })
    }

    /// Whether the port of the last send, or of [`Self::connect`], lives.
    #[inline]
    pub fn is_connected(&mut self) -> bool {
        if self.domain.member().present().is_err() {
            return false;
        }
        let lives = self
            .connection
            .as_ref()
            .is_some_and(|connection| connection.right.is_live());
        if !lives {
            self.part();
        }
        lives
    }

    /// What may be lost with the last receiver, if it has died and no call has returned it: to be asked
    /// before a program ends, say.
    ///
    /// ```
    /// use portolan::{Domain, Message, PortOptions, WhenFull};
    /// let domain = Domain::private()?;
    /// let port = domain.bind(PortOptions::named("frames"))?;
    /// let mut sender = domain.reconnecting_sender("frames");
    /// let sent = sender.send(Message::new(b"1")?, WhenFull::Fail)?;
    /// assert_eq!((sent.receiver, sender.take_lost()), (1, None));
    /// drop(port);
    /// assert_eq!(sender.take_lost().map(|lost| lost.at_most), Some(1));
    /// assert_eq!(sender.take_lost(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_lost(&mut self) -> Option<Lost> {
        self.is_connected();
        self.lost.take()
    }

    /// The name that it sends to.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn sent(&mut self) -> Sent {
        Sent {
            receiver: self.receivers,
            lost: self.lost.take(),
        }
    }

    /// From now on it sends to this port.
    fn take_up(&mut self, right: SendRight) {
        self.receivers += 1;
        self.connection = Some(Connection {
            room: right.room(),
            right,
            sent: 0,
            went_on: false,
        });
    }

    /// The port is dead: what was sent there is told of (R1).
    #[cold]
    fn part(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        if connection.sent == 0 {
            return;
        }
        let sent = connection.sent;
        let at_most = match connection.went_on {
            true => sent,
            false => sent.min(connection.right.slots()),
        };
        // Nothing is overwritten: the first message that this receiver got took what was there (R1).
        self.lost = Some(Lost {
            receiver: self.receivers,
            sent,
            at_most,
        });
    }
}

impl Connection {
    /// A message is in its queue.
    #[inline]
    fn count(&mut self) {
        self.sent += 1;
        // After the send: a port that leads on from now on led on, or will, with this one.
        self.went_on |= self.right.leads_on();
    }
}

impl Armable for ReconnectingSender {
    fn kind(&self) -> &'static str {
        "the reconnecting sender"
    }

    fn membership(&self) -> u64 {
        self.domain.member().number
    }

    fn may_have(&mut self) -> bool {
        match &mut self.connection {
            // Also if the port is dead, which a send finds.
            Some(connection) => connection.room.may_have(),
            None => {
                let member = self.domain.member();
                // A send says it.
                member.present().is_err() || look_for_port(member, &self.name).is_some()
            }
        }
    }

    fn has_alarms(&self) -> bool {
        true
    }

    fn word(&self) -> Option<(&AtomicU32, u32)> {
        match &self.connection {
            Some(connection) => connection.room.word(),
            None => Some((name_changes(self.domain.member()), self.seen)),
        }
    }

    fn arm_for(&mut self, link: u64) -> bool {
        if let Some(connection) = &mut self.connection {
            return connection.room.arm_for(link);
        }
        if link == 0 {
            return true;
        }
        // Acquire: a name that appears after this changes the word, which was armed for this value.
        self.seen = name_changes(self.domain.member()).load(Ordering::Acquire);
        !self.may_have()
    }
}

impl std::fmt::Debug for ReconnectingSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReconnectingSender")
            .field("name", &self.name)
            .field("receivers", &self.receivers)
            .finish_non_exhaustive()
    }
}
