//! Proxy ports: a member of the domain receives at them on behalf of ports on other nodes.
//!
//! A *node* daemon is a member of each domain that it spans. Where a program holds a right on a port
//! of another machine, it holds an ordinary right on a port of its own domain, the *proxy*, at
//! which the node receives. A proxied port differs from others in one bit of its status word:
//!
//! - Senders learn at once what cannot travel: [`SendError::Structure`](crate::SendError::Structure),
//!   [`SendError::StaysHere`](crate::SendError::StaysHere); and, while the node has said so, that
//!   the other node is silent: [`SendError::Unreachable`](crate::SendError::Unreachable). Messages
//!   to ports of this machine pay nothing for that.
//! - Its receiver takes whatever comes, with its kind, its rights, and the right to answer it
//!   ([`ProxyPort::take`]).
//!
//! What a node daemon calls, on the two machines that a message is carried between:
//!
//! | step | call |
//! |---|---|
//! | serve programs that have it span a domain ([`Builder::spanning`](crate::Builder::spanning)) | [`programs_socket`] |
//! | be asked for names that a program does not find in its domain | [`Span::take`] |
//! | find a port that is let out; bind the proxy of one elsewhere | [`Span::find`], [`Span::bind`] |
//! | take it off the proxy port, with its kind | [`ProxyPort::take`] |
//! | write it out: header, extents, rights, time left | [`Message::header`], [`Message::slices`], [`Message::take_rights`], [`time_left`] |
//! | receive it over there, straight into extents of that domain | [`Incoming`] |
//! | know a port again by a right that is to travel, and make a right on it when one comes home | [`KnownPort`], [`SpannedPort::of`] |
//! | learn which of the ports that other nodes were lent have closed, or want to know their senders | [`Span::lend`], [`Span::changed`] |
//! | let the message of a send-once right, or of its end, come in | [`ProxyPort::make_send_once`], [`Taken::Once`], [`Taken::OnceDropped`] |
//! | send it to the port there | [`SendRight::send`], [`SendOnceRight::send`] |
//! | ask the port there, and learn what became of that, of any number in one wait set | [`asks_for`], [`SendRight::begin_request`], [`Answered::take`] |
//! | answer the client here | [`Answer::give`] |
//! | make a port whose receive right has moved away a proxy; find it by the name that it has kept | [`ProxyPort::new`], [`Span::find_left`] |
//! | pass on what comes for a port that has moved here | [`SendRight::send`], [`Answer::ask`] |
//! | tell a program that what it sent is in the port there ([`SendRight::flush`]) | [`Taken::Flush`] |
//! | learn of room in full ports there | [`SendRight::room`] |
//! | let another process go on as the node, which then receives at its ports | [`ProxyPort::hand_on`], [`Awaited`], [`KnownPort::with_number`] |
//!
//! All of them do without a thread for each port, request or peer: proxy ports, pending replies and
//! room are waited for in a [`WaitSet`](crate::WaitSet), whose descriptor stands beside sockets in
//! epoll.
//!
//! A port may become a proxy when its receive right has moved to another node, and stop being one
//! when that comes back. Its queue and all rights on it stay as they are. The node daemon has a port that
//! comes back be another one, to which the proxy's messages are passed on (see `ARCHITECTURE.md`).
//!
//! ```
//! use portolan::proxy::{ProxyPort, Taken};
//! use portolan::{Access, Deadline, Domain, Message, PortOptions, SendError, WhenFull};
//! use std::time::Instant;
//!
//! let domain = Domain::private()?;
//! let port = domain.bind(PortOptions::unnamed().synchronous())?;
//! let right = port.make_send();
//! let mut proxy = ProxyPort::new(port, "hall").map_err(|refused| refused.why)?;
//!
//! let mut pending = right.begin_request(Message::new(b"ping")?, WhenFull::Fail)?;
//! let Taken::Request(message, answer) = proxy.take(Deadline::NOW)? else {
//!     return Err("a request came".into());
//! };
//! assert_eq!(message.header(), b"ping"); // it travels to "hall", and the answer comes back
//! answer.reply(Message::new(b"pong")?)?;
//! assert_eq!(pending.wait(Access::Later, Deadline::NOW)?.header(), b"pong");
//!
//! proxy.set_unreachable(Instant::now());
//! let unsent = right.begin_request(Message::new(b"ping")?, WhenFull::Fail).err();
//! let Some(portolan::RequestError::Unsent(unsent)) = unsent else {
//!     return Err("the message comes back".into());
//! };
//! assert!(matches!(unsent.why, SendError::Unreachable { node, .. } if node == "hall"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod answer;
mod incoming;
mod known;
mod programs;
mod span;

pub use answer::{Answer, Answered, Awaited};
pub use incoming::Incoming;
pub use known::KnownPort;
pub(crate) use programs::span as span_by_node;
pub use programs::{programs_socket, state_directory};
pub use span::{LentNotice, Node, Query, Span, SpannedPort};

use crate::port::{check_node, may_travel};
use crate::wait::Armable;
use crate::{
    BindError, Deadline, Domain, Message, Notice, ReceiveError, ReceiveRight, Refused,
    SendOnceRight, SendRight, Urgency,
};
use portolan_abi::slot::Kind;
use std::time::{Duration, Instant};

/// The receive right of a port that is received on behalf of one on another node, its *home*.
///
/// Dropping it closes the port, which every right on it then finds dead. It can be
/// [waited for](crate::WaitSet::add): it is named when [`take`](Self::take) may find something.
pub struct ProxyPort {
    port: ReceiveRight,
    node: String,
    left_behind: u64,
}

/// What has come at a proxy port.
#[derive(Debug)]
#[must_use = "what was taken is the taker's to carry on, or to answer"]
pub enum Taken {
    /// A message.
    Message(Message),
    /// A request, and the right to answer it.
    Request(Message, Answer),
    /// A program waits until all that it took before is in the port's queue
    /// ([`SendRight::flush`]): any reply says so.
    Flush(Answer),
    /// The one message of a send-once right on the port.
    Once(Message),
    /// A send-once right on the port has ended unused.
    OnceDropped,
    /// Something that the port asked to be told.
    Notice(Notice),
}

/// The same right, for requests whose answers go on to this node. The ports at which these come in
/// are proxies too: a server learns what cannot travel there.
///
/// # Errors
///
/// [`BindError::BadNode`], with the right.
pub fn asks_for(right: SendRight, node: &str) -> Result<SendRight, Refused<SendRight, BindError>> {
    match check_node(node) {
        Ok(()) => Ok(right.for_node(node)),
        Err(why) => Err(Refused::new(right, why)),
    }
}

/// How much of a message's time is left, if it is to be dealt with by some instant: as it goes to
/// another machine, which has another clock. [`Incoming::set_time_left`] is the other end.
pub fn time_left(message: &Message) -> Option<Duration> {
    match message.urgency() {
        Some(Urgency::Deadline(at)) => Some(at.saturating_duration_since(Instant::now())),
        _ => None,
    }
}

/// Whether the extents of a message are of this membership of a domain; of one without extents it is not known.
///
/// ```
/// use portolan::{Domain, proxy};
/// let [one, other] = [Domain::private()?, Domain::private()?];
/// let mut message = one.message(b"")?;
/// assert!(!proxy::is_of(&message, &one));
/// message.push(one.allocate(1)?)?;
/// assert!(proxy::is_of(&message, &one) && !proxy::is_of(&message, &other));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn is_of(message: &Message, domain: &Domain) -> bool {
    let first = message.extents().first();
    first.is_some_and(|extent| extent.is_of(domain.member()))
}

impl ProxyPort {
    /// Makes a proxy of a port, whose home is on this node from now on. What its senders have sent
    /// already stays in its queue.
    ///
    /// # Errors
    ///
    /// [`BindError::BadNode`], with the port.
    pub fn new(port: ReceiveRight, node: &str) -> Result<Self, Refused<ReceiveRight, BindError>> {
        if let Err(why) = check_node(node) {
            return Err(Refused::new(port, why));
        }
        port.proxy_for(node, None);
        Ok(Self {
            port,
            node: node.to_owned(),
            left_behind: 0,
        })
    }

    /// Takes what is next: a message, a request, or a notice.
    ///
    /// A message that cannot travel, which was sent before the port became a proxy, is dropped and
    /// [counted](Self::left_behind); if it is a request, its client is told that it was dropped.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`]; nothing is lost.
    pub fn take(&mut self, deadline: impl Into<Deadline>) -> Result<Taken, ReceiveError> {
        let deadline = deadline.into();
        loop {
            let (kind, request) = self.port.get_any(deadline)?;
            let (message, reply) = request.into_parts();
            if let Some(notice) = message.notice() {
                return Ok(Taken::Notice(notice));
            }
            if may_travel(&message).is_err() {
                // Its answer right, if it has one, tells the client.
                self.left_behind += 1;
                continue;
            }
            return Ok(match (kind, reply) {
                (Kind::Request, Some(reply)) if self.port.is_synchronous() => {
                    Taken::Request(message, Answer(reply))
                }
                (Kind::Request, Some(reply)) => Taken::Flush(Answer(reply)),
                // A request without an answer right: none is sent so.
                (Kind::Request | Kind::Message, _) => Taken::Message(message),
                (Kind::Reply, _) => Taken::Once(message),
                (Kind::Dropped | Kind::ServerDead, _) => Taken::OnceDropped,
            });
        }
    }

    /// Says that nothing more is taken for a while, though there may be something: senders that wait
    /// for room learn what has been made. A receiver tells them otherwise when half of the queue is
    /// free, or when it finds nothing more.
    ///
    /// ```
    /// use portolan::proxy::ProxyPort;
    /// use portolan::{Deadline, Domain, Message, PortOptions, WhenFull};
    /// use std::time::Duration;
    /// let domain = Domain::private()?;
    /// let port = domain.bind(PortOptions::unnamed())?;
    /// let right = port.make_send();
    /// let mut proxy = ProxyPort::new(port, "hall").map_err(|refused| refused.why)?;
    /// while right.send(Message::new(b"1")?, WhenFull::Fail).is_ok() {}
    /// let waits = std::thread::spawn(move || {
    ///     let soon = Deadline::after(Duration::from_secs(10));
    ///     right.send(Message::new(b"2").unwrap(), soon).is_ok()
    /// });
    /// let _taken = (proxy.take(Deadline::NOW)?, proxy.take(Deadline::NOW)?);
    /// proxy.pause();
    /// assert!(waits.join().expect("it ends"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pause(&mut self) {
        self.port.settle();
    }

    /// How many messages [`take`](Self::take) has dropped because they could not travel.
    pub fn left_behind(&self) -> u64 {
        self.left_behind
    }

    /// The node that its home is on.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Says that its home's node is silent since then: from now on sends come back with
    /// [`SendError::Unreachable`](crate::SendError::Unreachable). What was sent before stays.
    pub fn set_unreachable(&mut self, since: Instant) {
        self.port.proxy_for(&self.node, Some(since));
    }

    /// Says that its home's node is there again.
    pub fn set_reachable(&mut self) {
        self.port.proxy_for(&self.node, None);
    }

    /// Says that its home is on this node from now on, which is there.
    ///
    /// # Errors
    ///
    /// [`BindError::BadNode`]; nothing has changed.
    pub fn set_node(&mut self, node: &str) -> Result<(), BindError> {
        check_node(node)?;
        node.clone_into(&mut self.node);
        self.port.proxy_for(&self.node, None);
        Ok(())
    }

    /// The port, which is a proxy no more: its home is here.
    pub fn into_receive_right(self) -> ReceiveRight {
        self.port.proxy_no_more();
        self.port
    }

    /// The port, which stays a proxy: another process of this machine's node receives at it from now on.
    ///
    /// ```
    /// use portolan::proxy::{ProxyPort, Taken};
    /// use portolan::{Access, Deadline, Domain, Message, PortOptions, Right, WhenFull};
    /// let domain = Domain::private()?;
    /// let port = domain.bind(PortOptions::unnamed())?;
    /// let right = port.make_send();
    /// let proxy = ProxyPort::new(port, "hall").map_err(|refused| refused.why)?;
    /// right.send(Message::new(b"1")?, WhenFull::Fail)?;
    /// // To the other process, while programs go on to send.
    /// let mut next = domain.bind(PortOptions::unnamed())?;
    /// let mut message = Message::default();
    /// message.attach(proxy.hand_on()).map_err(|refused| refused.why)?;
    /// next.make_send().send(message, WhenFull::Fail)?;
    /// right.send(Message::new(b"2")?, WhenFull::Fail)?;
    /// let mut message = next.receive(Access::Later, Deadline::NOW)?;
    /// let Some(Right::Receive(port)) = message.take_rights().pop() else {
    ///     return Err("it has come".into());
    /// };
    /// let mut proxy = ProxyPort::new(port, "hall").map_err(|refused| refused.why)?;
    /// for expected in [b"1", b"2"] {
    ///     let Taken::Message(message) = proxy.take(Deadline::NOW)? else {
    ///         return Err("a message".into());
    ///     };
    ///     assert_eq!(message.header(), expected);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hand_on(self) -> ReceiveRight {
        self.port
    }

    /// A new send right on it.
    pub fn make_send(&self) -> SendRight {
        self.port.make_send()
    }

    /// A new send-once right on it.
    pub fn make_send_once(&self) -> SendOnceRight {
        self.port.make_send_once()
    }

    /// See [`ReceiveRight::request_no_more_senders`].
    pub fn request_no_more_senders(&self) {
        self.port.request_no_more_senders();
    }

    /// See [`ReceiveRight::senders`].
    pub fn senders(&self) -> u32 {
        self.port.senders()
    }

    /// Messages that wait.
    pub fn depth(&self) -> usize {
        self.port.depth()
    }
}

impl std::fmt::Debug for ProxyPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProxyPort")
            .field("port", &self.port)
            .field("node", &self.node)
            .finish()
    }
}

impl Armable for ProxyPort {
    fn kind(&self) -> &'static str {
        "the proxy port"
    }

    fn membership(&self) -> u64 {
        Armable::membership(&self.port)
    }

    fn may_have(&mut self) -> bool {
        self.port.may_have()
    }

    fn arm_for(&mut self, link: u64) -> bool {
        self.port.arm_for(link)
    }
}
