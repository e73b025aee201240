//! Finds a port by its name: in the domain, and where there is none, through its node.

#[cfg(feature = "tokio")]
use crate::NoDescriptor;
use crate::port::{
    ConnectError, from_monotonic_nanos, look_for_port, name_changes, node_of, taken_name,
};
use crate::space::Member;
use crate::{
    Access, Deadline, Domain, Message, PendingReply, RequestError, Right, SendRight, Urgency,
    WhenFull,
};
use portolan_abi::connect::OfferName;
use portolan_abi::node::{Asks, NODE_PORT, NamesAnswer, NamesQuestion, NodeName, Says};
use portolan_shm::atomic::Ordering;
use portolan_shm::mark;
use portolan_sys::futex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to wait before a node is asked again that has dropped the question or had no room for it,
/// at first and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

impl Domain {
    /// A send right on the port of this name, waiting until there is one: in this domain or, if a
    /// node spans it, the one on another node that is bound
    /// [`spanned`](crate::PortOptions::spanned). A port of this domain comes first.
    ///
    /// `upper@hall` is the port `upper` on the node `hall`, and no other.
    ///
    /// Other machines take a while to answer: [`Deadline::NOW`] finds ports of this machine only.
    ///
    /// # Errors
    ///
    /// [`ConnectError::NoSuchPort`] once the deadline has passed, or, if a node is named,
    /// [`ConnectError::Unreachable`] if that is silent, and [`ConnectError::NoNode`] if none spans the
    /// domain here. At once: [`ConnectError::BadName`];
    /// [`ConnectError::Ambiguous`] if several other nodes have such a port;
    /// [`ConnectError::NoSuchNode`]; [`ConnectError::BadAnswer`].
    ///
    /// ```
    /// use portolan::{ConnectError, Deadline, Domain, PortOptions};
    /// use std::time::Duration;
    /// let domain = Domain::private()?;
    /// let port = domain.bind(PortOptions::named("upper"))?;
    /// let right = domain.connect("upper", Deadline::NOW)?;
    /// let none = domain.connect("upper@hall", Duration::from_millis(1));
    /// assert!(matches!(none, Err(ConnectError::NoNode)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect(
        &self,
        name: &str,
        deadline: impl Into<Deadline>,
    ) -> Result<SendRight, ConnectError> {
        let (member, deadline) = (self.member(), deadline.into());
        let mut search = Search::of(member, name)?;
        member.present()?;
        member.host_connection.connected()?;
        let changes = name_changes(member);
        loop {
            // Acquire: what appears, or is answered, after this changes the word, and we do not
            // sleep.
            let seen = changes.load(Ordering::Acquire);
            if let Some(right) = search.look_here() {
                return Ok(right);
            }
            // It would not have answered.
            if !deadline.is_now()
                && let Some(right) = search.ask(deadline)?
            {
                return Ok(right);
            }
            if deadline.has_passed() {
                return Err(search.not_found(name));
            }
            let until = search
                .again
                .map_or(deadline, |again| deadline.min(again.into()));
            let _ = futex::wait(changes, seen, until.instant());
        }
    }
}

#[cfg(feature = "tokio")]
impl Domain {
    /// As [`Domain::connect`], without blocking the thread. A future that is dropped has done
    /// nothing.
    ///
    /// # Errors
    ///
    /// As [`Domain::connect`], but not because a deadline has passed: for one, put the future into
    /// `tokio::time::timeout`.
    ///
    /// # Panics
    ///
    /// As [`ReceiveRight::receive_async`](crate::ReceiveRight::receive_async).
    ///
    /// ```
    /// use portolan::{Domain, PortOptions};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let domain = Domain::private()?;
    /// let others = domain.clone();
    /// let binder = tokio::spawn(async move { others.bind(PortOptions::named("frames")) });
    /// let right = domain.connect_async("frames").await?;
    /// assert!(right.is_live());
    /// # drop(binder.await??);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect_async(&self, name: &str) -> Result<SendRight, ConnectError> {
        let member = self.member();
        let mut search = Search::of(member, name)?;
        let mut bell = None;
        member.present()?;
        member.host_connection.connected()?;
        let changes = name_changes(member);
        loop {
            ::tokio::task::coop::consume_budget().await;
            // As in `connect`.
            let seen = changes.load(Ordering::Acquire);
            if let Some(right) = search.look_here() {
                return Ok(right);
            }
            if let Some(right) = search.ask(Deadline::NEVER)? {
                return Ok(right);
            }
            let bell = crate::wait::Bell::of(&mut bell).map_err(NoDescriptor::from)?;
            bell.arm_until(changes, seen, search.again)
                .map_err(NoDescriptor::from)?;
            bell.fired().await.map_err(NoDescriptor::from)?;
        }
    }
}

/// One call's search for a port.
struct Search<'m> {
    member: &'m Arc<Member>,
    name: OfferName,
    /// The node that it is on, where it was named: then the port is not looked for here.
    node: Option<NodeName>,
    /// What the node was asked.
    pending: Option<PendingReply>,
    /// When it may be asked again.
    again: Option<Instant>,
    /// How long to wait before that the next time.
    pause: Duration,
    /// Since when the named node is silent, by the last answer.
    silent_since: Option<Instant>,
}

impl<'m> Search<'m> {
    fn of(member: &'m Arc<Member>, wanted: &str) -> Result<Self, ConnectError> {
        let bad = || ConnectError::BadName {
            name: wanted.to_owned(),
        };
        let (name, node) = match wanted.split_once('@') {
            None => (wanted, None),
            Some((name, node)) => (name, Some(NodeName::new(node).ok_or_else(bad)?)),
        };
        Ok(Self {
            member,
            name: OfferName::new(name).ok_or_else(bad)?,
            node,
            pending: None,
            again: None,
            pause: AGAIN.0,
            silent_since: None,
        })
    }

    fn look_here(&self) -> Option<SendRight> {
        match self.node {
            None => look_for_port(self.member, self.name.as_str()),
            Some(_) => None,
        }
    }

    /// Asks the node, or looks what it has answered; waits for nothing.
    fn ask(&mut self, deadline: Deadline) -> Result<Option<SendRight>, ConnectError> {
        if let Some(pending) = &mut self.pending {
            let answer = match pending.wait(Access::Later, Deadline::NOW) {
                Err(RequestError::TimedOut) => return Ok(None),
                Err(RequestError::Disowned(why)) => return Err(why.into()),
                answer => answer,
            };
            self.pending = None;
            if let Ok(answer) = answer
                && let Some(right) = self.read(answer)?
            {
                return Ok(Some(right));
            }
            // It has dropped the question, or is dead; or the port that it has found is.
            self.ask_again();
        }
        if self.again.is_some_and(|again| Instant::now() < again) {
            return Ok(None);
        }
        self.again = None;
        let Some(node) = look_for_port(self.member, NODE_PORT) else {
            return Ok(None);
        };
        match node.begin_request(self.question(deadline), WhenFull::Fail) {
            Ok(pending) => {
                mark!("span.asked");
                self.pending = Some(pending);
            }
            Err(RequestError::Disowned(why)) => return Err(why.into()),
            // Full, or dead since; or we have no room for an answer.
            Err(_) => self.ask_again(),
        }
        Ok(None)
    }

    fn ask_again(&mut self) {
        self.again = Instant::now().checked_add(self.pause);
        self.pause = (self.pause * 2).min(AGAIN.1);
    }

    fn question(&self, deadline: Deadline) -> Message {
        let question = NamesQuestion {
            asks: Asks::Port,
            from: 0,
            name: Some(self.name),
            node: self.node,
        };
        let mut message = message_of(&question.encode());
        if deadline != Deadline::NEVER {
            message.set_urgency(deadline.instant().map(Urgency::Deadline));
        }
        message
    }

    /// What the node says; nothing, if the port that it has found is dead by now.
    fn read(&mut self, mut answer: Message) -> Result<Option<SendRight>, ConnectError> {
        let bad = || ConnectError::BadAnswer {
            node: node_here(self.member).unwrap_or_default(),
        };
        let says = NamesAnswer::decode(answer.header()).map_err(|_| bad())?;
        self.silent_since = None;
        match (says.says, self.node) {
            // It may come back: it is asked for again.
            (Says::Unreachable, Some(_)) => {
                let since = says.entries.first().map(|node| node.silent_since);
                self.silent_since = since.map(from_monotonic_nanos);
                Ok(None)
            }
            (Says::Found, _) => match answer.take_rights().pop() {
                Some(Right::Send(right)) => Ok(Some(right).filter(SendRight::is_live)),
                _ => Err(bad()),
            },
            (Says::Ambiguous, None) => Err(ConnectError::Ambiguous {
                name: self.name.as_str().to_owned(),
                nodes: names_of(&says),
            }),
            (Says::NoSuchNode, Some(node)) => Err(ConnectError::NoSuchNode {
                node: node.as_str().to_owned(),
            }),
            _ => Err(bad()),
        }
    }

    fn not_found(&self, wanted: &str) -> ConnectError {
        if self.node.is_some() && node_here(self.member).is_none() {
            return ConnectError::NoNode;
        }
        if let (Some(node), Some(since)) = (self.node, self.silent_since) {
            return ConnectError::Unreachable {
                name: self.name.as_str().to_owned(),
                node: node.as_str().to_owned(),
                since,
            };
        }
        ConnectError::NoSuchPort {
            name: wanted.to_owned(),
        }
    }
}

fn names_of(answer: &NamesAnswer) -> Vec<String> {
    let names = answer.entries.iter();
    names.map(|node| node.name.as_str().to_owned()).collect()
}

/// A message with this header, which is not too long for one.
pub(super) fn message_of(header: &[u8]) -> Message {
    Message::new(header).unwrap_or_default()
}

/// The name of the node of this domain, if it has one.
pub(super) fn node_here(member: &Member) -> Option<String> {
    let (entry, _) = taken_name(member, NODE_PORT)?;
    Some(node_of(entry).0)
}
