//! What becomes of a request that is carried to another machine: there it is asked for, here it is
//! answered.

use crate::SendOnceRight;
use crate::port::{check_node, may_travel};
use crate::{
    Access, BindError, Deadline, Message, PendingReply, ReceiveRight, Refused, RequestError,
    SendError, SendRight,
};
use std::time::{Duration, Instant};

/// The right to answer a request whose server is elsewhere. Dropped, it tells the client that its
/// request was dropped. If this process dies, the host tells the client that its server is dead.
#[derive(Debug)]
pub struct Answer(pub(super) SendOnceRight);

impl From<SendOnceRight> for Answer {
    /// A send-once right is used as a request is answered.
    fn from(right: SendOnceRight) -> Self {
        Self(right)
    }
}

/// What became of a request.
#[derive(Debug)]
#[must_use = "the client waits for it"]
pub enum Answered {
    /// It was answered.
    Reply(Message),
    /// It was dropped unanswered.
    Dropped,
    /// The server has died, or has closed its port, before it answered.
    ServerDead,
    /// Its node was given up before it answered.
    NodeLost {
        /// The node.
        node: String,
    },
}

impl Answer {
    /// Answers the request.
    ///
    /// # Errors
    ///
    /// [`Refused`] with the message, if the client is gone.
    pub fn reply(self, message: Message) -> Result<(), Refused<Message, SendError>> {
        self.0.send(message)
    }

    /// Puts the request into a port of this domain, whose server answers the client itself: the port's
    /// home has come here.
    ///
    /// # Errors
    ///
    /// [`Refused`] with the message and the right to answer it.
    ///
    /// ```
    /// use portolan::proxy::{ProxyPort, Taken};
    /// use portolan::{Access, Deadline, Domain, Message, PortOptions, WhenFull};
    /// let domain = Domain::private()?;
    /// let port = domain.bind(PortOptions::unnamed().synchronous())?;
    /// let mut proxy = ProxyPort::new(port, "hall").map_err(|refused| refused.why)?;
    /// let mut pending = proxy.make_send().begin_request(Message::new(b"ping")?, WhenFull::Fail)?;
    /// let Taken::Request(message, answer) = proxy.take(Deadline::NOW)? else {
    ///     return Err("a request came".into());
    /// };
    /// let mut home = domain.bind(PortOptions::unnamed().synchronous())?;
    /// answer.ask(&home.make_send(), message).map_err(|refused| refused.why)?;
    /// let request = home.get_request(Access::Later, Deadline::NOW)?;
    /// assert_eq!(request.message.header(), b"ping");
    /// request.reply(Message::new(b"pong")?)?;
    /// assert_eq!(pending.wait(Access::Later, Deadline::NOW)?.header(), b"pong");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ask(
        self,
        to: &SendRight,
        mut message: Message,
    ) -> Result<(), Refused<(Message, Self), SendError>> {
        match self.0.pass(to, &mut message) {
            Ok(()) => Ok(()),
            Err(refused) => {
                let item = (message, Self(*refused.item));
                Err(Refused::new(item, refused.why))
            }
        }
    }

    /// The send-once right that it is.
    pub fn into_right(self) -> SendOnceRight {
        self.0
    }

    /// Whether the client waits still: it has not died, and not given up.
    pub fn is_wanted(&self) -> bool {
        self.0.is_live()
    }

    /// Tells the client that its request was dropped unanswered.
    pub fn dropped(self) {
        drop(self.0);
    }

    /// Tells the client that its server has died, or has closed its port, before it answered.
    pub fn server_dead(self) {
        self.0.server_dead();
    }

    /// Tells the client that its server's node was given up before it answered
    /// ([`RequestError::NodeLost`]). What is no node's name is not told.
    ///
    /// ```
    /// use portolan::proxy::{ProxyPort, Taken};
    /// use portolan::{Access, Deadline, Domain, Message, PortOptions, RequestError, WhenFull};
    /// let domain = Domain::private()?;
    /// let port = domain.bind(PortOptions::unnamed().synchronous())?;
    /// let mut proxy = ProxyPort::new(port, "hall").map_err(|refused| refused.why)?;
    /// let mut pending = proxy.make_send().begin_request(Message::new(b"ping")?, WhenFull::Fail)?;
    /// let Taken::Request(_, answer) = proxy.take(Deadline::NOW)? else {
    ///     return Err("a request came".into());
    /// };
    /// answer.node_lost("hall");
    /// let lost = pending.wait(Access::Later, Deadline::NOW);
    /// assert!(matches!(lost, Err(RequestError::NodeLost { node }) if node == "hall"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn node_lost(self, node: &str) {
        match check_node(node) {
            Ok(()) => self.0.node_lost(node),
            Err(_) => self.0.server_dead(),
        }
    }

    /// Tells the client what became of its request.
    ///
    /// # Errors
    ///
    /// As [`reply`](Self::reply).
    pub fn give(self, answered: Answered) -> Result<(), Refused<Message, SendError>> {
        match answered {
            Answered::Reply(message) => return self.reply(message),
            Answered::Dropped => self.dropped(),
            Answered::ServerDead => self.server_dead(),
            Answered::NodeLost { node } => self.node_lost(&node),
        }
        Ok(())
    }
}

/// An answer that is waited for: what is to be known of it by another process of the same machine that waits for
/// it from now on, beside the port where it comes in.
///
/// ```
/// use portolan::proxy::{Answered, Awaited, asks_for};
/// use portolan::{Access, Deadline, Domain, Message, PortOptions, WhenFull};
/// let domain = Domain::private()?;
/// let mut port = domain.bind(PortOptions::unnamed().synchronous())?;
/// let right = asks_for(port.make_send(), "roof").map_err(|refused| refused.why)?;
/// let pending = right.begin_request(Message::new(b"for roof")?, WhenFull::Fail)?;
/// port.get_request(Access::Later, Deadline::NOW)?.reply(Message::new(b"yes")?)?;
/// // The port goes to the other process in a message, and the rest as numbers.
/// let awaited = Awaited::of(&pending).ok_or("nobody has looked for it")?;
/// let port = Awaited::hand_on(pending).ok_or("nobody has looked for it")?;
/// let mut pending = awaited.resume(port, "roof")?;
/// assert!(matches!(Answered::take(&mut pending)?, Answered::Reply(reply) if reply.header() == b"yes"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// The number of the port where it comes in: [`KnownPort::number`](super::KnownPort::number).
    pub number: u64,
    /// Which request it answers, of those whose answers have come in there.
    pub tag: u32,
    /// How long it is waited for yet, if not for ever.
    pub left: Option<Duration>,
}

impl Awaited {
    /// What a request waits for; `None` if a wait set has found the answer.
    pub fn of(pending: &PendingReply) -> Option<Self> {
        let (port, tag, due) = pending.awaits()?;
        let left = due.map(|at| at.saturating_duration_since(Instant::now()));
        let number = super::KnownPort::at(port).number();
        Some(Self { number, tag, left })
    }

    /// Where the answer comes in, which is waited for elsewhere from now on; `None` if a wait set has found it.
    pub fn hand_on(pending: PendingReply) -> Option<ReceiveRight> {
        pending.into_port()
    }

    /// Waits for an answer that goes on to this node.
    ///
    /// # Errors
    ///
    /// [`BindError::BadNode`].
    pub fn resume(self, port: ReceiveRight, node: &str) -> Result<PendingReply, BindError> {
        check_node(node)?;
        let pending = PendingReply::of_parts(port, self.tag, node);
        Ok(match self.left {
            Some(left) => pending.with_deadline(Deadline::after(left)),
            None => pending,
        })
    }
}

impl Answered {
    /// What became of a request, if that is known by now; as it may travel: an answer that cannot,
    /// which its server's library would have refused to send, is none.
    ///
    /// # Errors
    ///
    /// [`RequestError::TimedOut`] if nothing has come of it yet, or by its
    /// [own deadline](PendingReply::with_deadline); [`RequestError::Disowned`].
    ///
    /// ```
    /// use portolan::proxy::{Answered, asks_for};
    /// use portolan::{Access, Deadline, Domain, Message, PortOptions, WhenFull};
    /// let domain = Domain::private()?;
    /// let mut port = domain.bind(PortOptions::unnamed().synchronous())?;
    /// let right = asks_for(port.make_send(), "roof").map_err(|refused| refused.why)?;
    /// let mut pending = right.begin_request(Message::new(b"for roof")?, WhenFull::Fail)?;
    /// assert!(Answered::take(&mut pending).is_err());
    /// drop(port.get_request(Access::Later, Deadline::NOW)?);
    /// assert!(matches!(Answered::take(&mut pending)?, Answered::Dropped));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take(pending: &mut PendingReply) -> Result<Self, RequestError> {
        match pending.wait(Access::Later, Deadline::NOW) {
            Ok(message) if may_travel(&message).is_err() => Ok(Self::Dropped),
            Ok(message) => Ok(Self::Reply(message)),
            Err(RequestError::Dropped) => Ok(Self::Dropped),
            Err(RequestError::ServerDead) => Ok(Self::ServerDead),
            Err(RequestError::NodeLost { node }) => Ok(Self::NodeLost { node }),
            Err(other) => Err(other),
        }
    }
}
