//! Sends requests, and answers them.
//!
//! A client takes the answer at a small port of its own (a *reply port*), which it
//! uses again for its next request. A request carries a send-once right on it, with a
//! tag; the server's row of rights notes it, so the host can answer for a dead server.
//! A client that gives up closes its reply port: a late answer meets a dead name.

use super::bind::{PortOptions, bind};
use super::receive::{Origin, Short};
use super::rights::{self, SendOnceRight};
use super::send;
use super::{Access, BindError, ReceiveError, ReceiveRight, SendError, SendRight, WhenFull};
use crate::port::message::{Message, drop_sent};
use crate::space::Member;
use crate::space::counters;
use crate::wait::{Armable, Waiting};
use crate::{Deadline, Disowned, NoDescriptor, Refused};
use crossbeam_utils::atomic::AtomicCell;
use portolan_abi::limits::MAX_NODE_NAME;
use portolan_abi::name::is_name;
use portolan_abi::port::{PortName, RightKind, RightWord, TAG_MASK, event};
use portolan_abi::slot::Kind;
use portolan_shm::mark;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Reply ports that are not in use: one at hand, the others behind a lock.
#[derive(Default)]
pub(crate) struct ReplyPorts {
    at_hand: AtomicCell<Option<Box<ReplyPort>>>,
    // Boxed, so that one can be put at hand without moving.
    #[allow(clippy::vec_box)]
    others: Mutex<Vec<Box<ReplyPort>>>,
    /// The node that the answers go on to, if they do.
    node: Option<Box<str>>,
}

pub(super) struct ReplyPort {
    port: ReceiveRight,
    tag: u32,
}

/// A request that was received, to be answered: by any thread, in any order.
///
/// Dropped unanswered, its client gets an error.
#[derive(Debug, Default)]
#[must_use = "a dropped request answers its client with an error"]
pub struct Request {
    /// What was asked.
    pub message: Message,
    pub(super) reply: Option<SendOnceRight>,
}

/// A request on its way, to be waited for. Dropped, it is abandoned.
///
/// Any number of them can be waited for at once, in a [`WaitSet`](crate::WaitSet). It names one when
/// its answer has come, when the request was dropped or its server has died, or when its own
/// [deadline](Self::with_deadline) has passed: in each case [`wait`](Self::wait) says which, at once.
#[must_use = "a dropped request is abandoned"]
pub struct PendingReply {
    pool: Arc<ReplyPorts>,
    port: Option<Box<ReplyPort>>,
    /// The answer, if a wait set has found it.
    answer: Option<Box<Result<Message, RequestError>>>,
    /// When it is waited for no longer.
    due: Deadline,
    /// Of which membership it is: its number.
    membership: u64,
}

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The request was not sent; the message is inside.
    #[error(transparent)]
    Unsent(#[from] Refused<Message, SendError>),
    /// No port for the answer.
    #[error("no port for the answer: {0}")]
    NoReplyPort(Box<BindError>, Box<Message>),
    /// The state's: no answer came before the deadline. It was sent, and may be served yet.
    #[error("no answer came before the deadline; the request was sent and may still be served")]
    TimedOut,
    /// The peer's: the server dropped the request unanswered.
    #[error("the server dropped the request unanswered")]
    Dropped,
    /// The peer's: the server died, or closed its port, before it answered; or one of the two nodes
    /// between ended, or stopped to span the domain. It was sent, and may have been served.
    #[error(
        "the server died, or closed its port, or a node between ended or stopped to span the domain, before it answered; the request was sent and may have been served"
    )]
    ServerDead,
    /// The peer's: its node was given up before an answer came, for it was silent for too long, or
    /// was started anew.
    #[error(
        "node {node:?} was given up before it answered; the request was sent and may have been served"
    )]
    NodeLost {
        /// The node.
        node: String,
    },
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
    /// See [`NoDescriptor`]. The request was sent, and may be served yet.
    #[error(transparent)]
    NoDescriptor(#[from] NoDescriptor),
}

impl SendRight {
    /// Sends a request to a synchronous port and waits for the answer.
    ///
    /// # Errors
    ///
    /// [`RequestError`]; prompt when the server dies, with the message inside if it was
    /// not sent.
    ///
    /// ```
    /// use portolan::{Access, Deadline, Domain, Message, PortOptions};
    /// let domain = Domain::private()?;
    /// let mut port = domain.bind(PortOptions::unnamed().synchronous())?;
    /// let right = port.make_send();
    /// let server = std::thread::spawn(move || {
    ///     let request = port.get_request(Access::Later, Deadline::NEVER).unwrap();
    ///     let answer = Message::new(request.message.header()).unwrap();
    ///     request.reply(answer).unwrap();
    /// });
    /// let answer = right.request_reply(Message::new(b"ping")?, Access::Later, Deadline::NEVER)?;
    /// assert_eq!(answer.header(), b"ping");
    /// # server.join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn request_reply(
        &self,
        mut message: Message,
        access: Access,
        deadline: impl Into<Deadline>,
    ) -> Result<Message, RequestError> {
        self.request_reply_in_place(&mut message, access, deadline, Waiting::Adaptive)?;
        Ok(message)
    }

    /// As [`SendRight::request_reply`], with the answer in the message's own place, which saves
    /// moving both about; the call waits as `waiting` says.
    ///
    /// # Errors
    ///
    /// As [`SendRight::request_reply`]; `message` is empty then.
    #[inline]
    pub fn request_reply_in_place(
        &self,
        message: &mut Message,
        access: Access,
        deadline: impl Into<Deadline>,
        waiting: Waiting,
    ) -> Result<(), RequestError> {
        let deadline = deadline.into();
        let mut port = self.post_request(message, WhenFull::Wait(deadline))?;
        port.port.set_waiting(waiting);
        let answer = port.wait_in(message, access, deadline);
        if !matches!(
            answer,
            Err(RequestError::TimedOut | RequestError::Disowned(_))
        ) {
            self.replies.put(port);
        }
        answer
    }

    /// Sends a request; the answer is waited for later. Any number may be under way.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unsent`] or [`RequestError::NoReplyPort`], with the message inside.
    pub fn begin_request(
        &self,
        mut message: Message,
        when_full: impl Into<WhenFull>,
    ) -> Result<PendingReply, RequestError> {
        match self.post_request(&mut message, when_full.into()) {
            Ok(port) => {
                drop_sent!(message);
                Ok(PendingReply {
                    pool: Arc::clone(&self.replies),
                    port: Some(port),
                    answer: None,
                    due: Deadline::NEVER,
                    membership: self.to.member.number,
                })
            }
            Err(error) => Err(error),
        }
    }

    #[inline]
    fn post_request(
        &self,
        message: &mut Message,
        when_full: WhenFull,
    ) -> Result<Box<ReplyPort>, RequestError> {
        self.to.member.present()?;
        let mut port = match self.replies.take(&self.to.member) {
            Ok(port) => port,
            Err(error) => {
                return Err(RequestError::NoReplyPort(
                    Box::new(error),
                    Box::new(std::mem::take(message)),
                ));
            }
        };
        let reply = port.next_right();
        mark!("request.before_post");
        let drops = matches!(when_full, WhenFull::Drop);
        let when_full = if drops { WhenFull::Fail } else { when_full };
        match send::deliver(
            &self.to,
            &self.spot,
            Kind::Request,
            Some(reply.pack()),
            message,
            when_full,
        ) {
            Ok(()) => Ok(port),
            Err(SendError::Full { .. }) if drops => {
                self.dropped(reply);
                Ok(port)
            }
            Err(why) => {
                self.replies.put(port);
                Err(Refused::new(std::mem::take(message), why).into())
            }
        }
    }

    /// A request was dropped at a full queue: the client that waits for its answer is told.
    #[cold]
    fn dropped(&self, reply: RightWord) {
        // Relaxed: a counter for people.
        self.to
            .queue()
            .port
            .counters
            .dropped
            .fetch_add(1, Ordering::Relaxed);
        counters::dropped(&self.to.member);
        send::post_word(&self.to.member, reply.port, Kind::Dropped, reply);
    }
}

impl ReplyPort {
    /// The right to answer the next request.
    #[inline(always)]
    pub(super) fn next_right(&mut self) -> RightWord {
        // Never 0, which is the tag of a send-once right that answers nothing.
        self.tag = self.tag % TAG_MASK + 1;
        RightWord {
            kind: RightKind::SendOnce,
            port: self.port.at().port,
            tag: self.tag,
        }
    }

    /// Waits for the answer to the last request.
    fn wait(&mut self, access: Access, deadline: Deadline) -> Result<Message, RequestError> {
        let mut message = Message::default();
        self.wait_in(&mut message, access, deadline)?;
        Ok(message)
    }

    /// Waits for the answer to the last request, in `message`, which is empty.
    #[inline]
    pub(super) fn wait_in(
        &mut self,
        message: &mut Message,
        access: Access,
        deadline: Deadline,
    ) -> Result<(), RequestError> {
        message.clear();
        if let Some(short) = self.take_short() {
            message.set_words(short.header, short.words);
            return Ok(());
        }
        self.wait_any(message, access, deadline)
    }

    /// The answer to the last request, if it is there and has a short header and nothing else.
    #[inline(always)]
    fn take_short(&mut self) -> Option<Short> {
        loop {
            let short = self.port.take_short(Kind::Reply).ok()?;
            // As in `wait_any`.
            if short.origin.reply().is_some_and(|r| r.tag == self.tag) {
                return Some(short);
            }
        }
    }

    /// The same as `wait_in`, for any answer.
    #[inline(never)]
    fn wait_any(
        &mut self,
        message: &mut Message,
        access: Access,
        deadline: Deadline,
    ) -> Result<(), RequestError> {
        loop {
            let origin = match self.port.next(message, deadline) {
                Ok(origin) => origin,
                Err(ReceiveError::TimedOut) => return Err(RequestError::TimedOut),
                Err(ReceiveError::Disowned(why)) => return Err(why.into()),
                Err(_) => return Err(RequestError::ServerDead),
            };
            // An answer to an older request, by a host that answered for a server which had
            // answered just before it died: not ours.
            if origin.reply().map(|r| r.tag) != Some(self.tag) {
                message.clear();
                continue;
            }
            return match origin.kind() {
                Kind::Dropped => Err(RequestError::Dropped),
                Kind::ServerDead => {
                    let why = dead(message.header());
                    message.clear();
                    Err(why)
                }
                Kind::Reply | Kind::Message | Kind::Request => {
                    self.port.open(message, access);
                    Ok(())
                }
            };
        }
    }
}

/// What a header says of a server that is dead: its node's name, if that was given up.
fn dead(header: &[u8]) -> RequestError {
    match std::str::from_utf8(header) {
        Ok(node) if is_name(node, MAX_NODE_NAME) => RequestError::NodeLost {
            node: node.to_owned(),
        },
        _ => RequestError::ServerDead,
    }
}

impl PendingReply {
    /// The same, which is waited for until then and no longer: from then on [`wait`](Self::wait)
    /// gives [`RequestError::TimedOut`] at once if there is no answer, and a wait set names it.
    ///
    /// ```
    /// use portolan::{Access, Deadline, Domain, Message, PortOptions, RequestError, WaitSet, WhenFull};
    /// use std::time::Duration;
    /// let domain = Domain::private()?;
    /// let port = domain.bind(PortOptions::unnamed().synchronous())?;
    /// let mut set = WaitSet::new(&domain)?;
    /// let pending = port.make_send().begin_request(Message::new(b"any news?")?, WhenFull::Fail)?;
    /// let token = set.add(pending.with_deadline(Duration::from_millis(1)))?;
    /// assert_eq!(set.wait(Deadline::NEVER)?.next(), Some(token.any()));
    /// let mut pending = set.remove(token).ok_or("not in the set")?;
    /// let answer = pending.wait(Access::Later, Deadline::NEVER);
    /// assert!(matches!(answer, Err(RequestError::TimedOut)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_deadline(self, deadline: impl Into<Deadline>) -> Self {
        Self {
            due: deadline.into(),
            ..self
        }
    }

    /// Waits for the answer. After [`RequestError::TimedOut`] it can be waited for again.
    ///
    /// # Errors
    ///
    /// [`RequestError`]; [`RequestError::Dropped`] if the answer was taken before.
    pub fn wait(
        &mut self,
        access: Access,
        deadline: impl Into<Deadline>,
    ) -> Result<Message, RequestError> {
        // Where a wait set has found it nothing is there any more, and it is the answer.
        let Some(port) = &mut self.port else {
            return Err(RequestError::Dropped);
        };
        if let Some(short) = port.take_short() {
            if let Some(port) = self.port.take() {
                self.pool.put(port);
            }
            return Ok(Message::short_of(short.header, short.words));
        }
        self.wait_any(access, deadline.into())
    }

    /// The same, for any answer.
    #[inline(never)]
    fn wait_any(&mut self, access: Access, deadline: Deadline) -> Result<Message, RequestError> {
        let Some(port) = &mut self.port else {
            return Err(RequestError::Dropped);
        };
        let answer = match self.answer.take() {
            Some(answer) => answer.inspect(|message| port.port.open(message, access)),
            None => port.wait(access, deadline.min(self.due)),
        };
        if !matches!(
            answer,
            Err(RequestError::TimedOut | RequestError::Disowned(_))
        ) && let Some(port) = self.port.take()
        {
            self.pool.put(port);
        }
        answer
    }

    /// Where the answer comes in, to which request, and until when it is waited for; `None` if it was found.
    pub(crate) fn awaits(&self) -> Option<(&ReceiveRight, u32, Option<Instant>)> {
        let port = self.port.as_ref().filter(|_| self.answer.is_none())?;
        Some((&port.port, port.tag, self.due.instant()))
    }

    /// Where the answer comes in, which is waited for elsewhere from now on; `None` if it was found.
    pub(crate) fn into_port(mut self) -> Option<ReceiveRight> {
        let port = self.port.take().filter(|_| self.answer.is_none())?;
        Some(port.port)
    }

    /// Waits for the answer with this tag, which comes in at a port of its own and goes on to this node, whose
    /// name was checked.
    pub(crate) fn of_parts(port: ReceiveRight, tag: u32, node: &str) -> Self {
        Self {
            membership: port.at().member.number,
            pool: Arc::new(ReplyPorts::for_node(node)),
            port: Some(Box::new(ReplyPort { port, tag })),
            answer: None,
            due: Deadline::NEVER,
        }
    }

    /// Whether a wait would end at once.
    fn is_over(&mut self) -> bool {
        let Some(port) = &mut self.port else {
            return true;
        };
        if self.answer.is_none() {
            // Taken, so that an answer to an older request is not taken for this one's.
            match port.wait(Access::Later, Deadline::NOW) {
                Err(RequestError::TimedOut) => {}
                answer => self.answer = Some(Box::new(answer)),
            }
        }
        self.answer.is_some() || self.due.has_passed()
    }

    /// Arms it: the word that changes when the answer comes, and its value; `None` if a wait would
    /// end at once.
    pub(crate) fn arm(&mut self) -> Option<(&AtomicU32, u32)> {
        let seen = loop {
            // Each time: what kept it from being armed may be an answer to an older request.
            if self.is_over() {
                return None;
            }
            let port = &mut self.port.as_mut()?.port;
            port.settle();
            // SeqCst: before the marks are set, as in `ReceiveRight::sleep`.
            let seen = port.at().queue().port.sleep.doorbell.load(Ordering::SeqCst);
            if port.arm() {
                break seen;
            }
            port.disarm();
        };
        let port = &self.port.as_ref()?.port;
        Some((&port.at().queue().port.sleep.doorbell, seen))
    }

    /// Is armed no more.
    pub(crate) fn disarm(&mut self) {
        if let Some(port) = &mut self.port {
            port.port.disarm();
        }
    }

    /// Where the answer will come in.
    #[cfg(feature = "tokio")]
    pub(crate) fn port(&mut self) -> Option<&mut ReceiveRight> {
        self.port.as_mut().map(|p| &mut p.port)
    }
}

impl std::fmt::Debug for PendingReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingReply")
            .field("port", &self.port.as_ref().map(|port| &port.port))
            .field("answered", &self.answer.is_some())
            .field("due", &self.due)
            .finish()
    }
}

impl Armable for PendingReply {
    fn kind(&self) -> &'static str {
        "the pending reply"
    }

    fn membership(&self) -> u64 {
        self.membership
    }

    fn may_have(&mut self) -> bool {
        self.is_over()
    }

    fn has_alarms(&self) -> bool {
        true
    }

    fn due(&self) -> Option<Instant> {
        self.due.instant()
    }

    fn arm_for(&mut self, link: u64) -> bool {
        loop {
            if let Some(port) = &mut self.port {
                port.port.arm_for(0);
            }
            if link == 0 {
                return true;
            }
            if self.is_over() {
                return false;
            }
            if let Some(port) = &mut self.port
                && port.port.arm_for(link)
            {
                return true;
            }
        }
    }
}

impl ReceiveRight {
    /// Receives a request from a synchronous port. Many may be open at once.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`].
    #[inline]
    pub fn get_request(
        &mut self,
        access: Access,
        deadline: impl Into<Deadline>,
    ) -> Result<Request, ReceiveError> {
        match self.take_short(Kind::Request) {
            Ok(short) => Ok(Request {
                reply: self.answer_to(short.origin),
                message: Message::short_of(short.header, short.words),
            }),
            Err(_) => self.get_any_request(access, deadline.into()),
        }
    }

    /// The same, of any request, waiting for it.
    #[inline(never)]
    fn get_any_request(
        &mut self,
        access: Access,
        deadline: Deadline,
    ) -> Result<Request, ReceiveError> {
        let mut request = Request::default();
        match self.get_any_request_into(&mut request, access, deadline) {
            Ok(()) => Ok(request),
            Err(error) => Err(error),
        }
    }

    /// As [`ReceiveRight::get_request`], into a request that is already there; one that was
    /// not answered is dropped first. Saves moving it about.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`]; the request is empty then.
    #[inline]
    pub fn get_request_into(
        &mut self,
        request: &mut Request,
        access: Access,
        deadline: impl Into<Deadline>,
    ) -> Result<(), ReceiveError> {
        request.reply = None;
        request.message.clear();
        if let Ok(short) = self.take_short(Kind::Request) {
            request.message.set_words(short.header, short.words);
            request.reply = self.answer_to(short.origin);
            return Ok(());
        }
        self.get_any_request_into(request, access, deadline.into())
    }

    #[inline(never)]
    fn get_any_request_into(
        &mut self,
        request: &mut Request,
        access: Access,
        deadline: Deadline,
    ) -> Result<(), ReceiveError> {
        let origin = self.next(&mut request.message, deadline)?;
        request.reply = self.finish_request(origin, &request.message, access);
        Ok(())
    }

    /// What a message that was taken here is, as a request.
    pub(super) fn request_of(&mut self, origin: Origin, message: Message) -> Request {
        let reply = self.finish_request(origin, &message, Access::Later);
        Request { message, reply }
    }

    #[inline]
    pub(super) fn finish_request(
        &mut self,
        origin: Origin,
        message: &Message,
        access: Access,
    ) -> Option<SendOnceRight> {
        self.open(message, access);
        self.answer_to(origin)
    }

    /// The right to answer what was taken here, if it is a request.
    #[inline]
    fn answer_to(&mut self, origin: Origin) -> Option<SendOnceRight> {
        match (origin.kind(), origin.reply()) {
            (Kind::Request, Some(word)) => self.once(word),
            _ => None,
        }
    }
}

impl Request {
    /// Answers. A copy of what was asked may be kept; its extents may be sent back.
    ///
    /// # Errors
    ///
    /// [`Refused`] with the message inside, if the client is gone.
    #[inline]
    pub fn reply(mut self, mut message: Message) -> Result<(), Refused<Message, SendError>> {
        match self.reply.take() {
            Some(mut once) => match once.post(Kind::Reply, &mut message) {
                Ok(()) => {
                    drop_sent!(message);
                    Ok(())
                }
                Err(why) => Err(Refused::new(message, why)),
            },
            None => Err(Refused::new(message, SendError::DeadName)),
        }
    }

    /// Answers with the request's own message, changed in place.
    ///
    /// # Errors
    ///
    /// As [`Request::reply`].
    #[inline]
    pub fn reply_in_place(mut self) -> Result<(), Refused<Message, SendError>> {
        match self.reply_from() {
            Ok(()) => {
                drop_sent!(self.message);
                Ok(())
            }
            Err(why) => Err(Refused::new(self.message, why)),
        }
    }

    /// Answers with the request's own message, which is empty then; the request can be used
    /// for the next one.
    ///
    /// # Errors
    ///
    /// The reason; the message is untouched.
    #[inline]
    pub fn reply_from(&mut self) -> Result<(), SendError> {
        match self.reply.take() {
            Some(mut once) => once.post(Kind::Reply, &mut self.message),
            None => Err(SendError::DeadName),
        }
    }

    /// Whether a client waits for an answer; not for notices.
    pub fn wants_reply(&self) -> bool {
        self.reply.is_some()
    }

    /// The right to answer, for another thread or space; and what was asked.
    pub fn into_parts(self) -> (Message, Option<SendOnceRight>) {
        (self.message, self.reply)
    }
}

impl ReplyPorts {
    /// Reply ports whose answers go on to this node, whose name was checked.
    pub(super) fn for_node(node: &str) -> Self {
        Self {
            node: Some(node.into()),
            ..Self::default()
        }
    }

    #[inline]
    pub(super) fn take(&self, member: &Arc<Member>) -> Result<Box<ReplyPort>, BindError> {
        match self.at_hand.take() {
            Some(port) => Ok(port),
            None => self.take_other(member),
        }
    }

    #[cold]
    fn take_other(&self, member: &Arc<Member>) -> Result<Box<ReplyPort>, BindError> {
        let spare = self
            .others
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        match spare {
            Some(port) => Ok(port),
            None => {
                let options = PortOptions::unnamed().queue(3).for_replies();
                let port = bind(member, &options)?;
                if let Some(node) = &self.node {
                    port.proxy_for(node, None);
                }
                Ok(Box::new(ReplyPort { port, tag: 0 }))
            }
        }
    }

    #[inline]
    pub(super) fn put(&self, port: Box<ReplyPort>) {
        if let Some(other) = self.at_hand.swap(Some(port)) {
            self.put_other(other);
        }
    }

    // Out of line, for otherwise the whole of `put` is.
    #[cold]
    fn put_other(&self, port: Box<ReplyPort>) {
        self.others
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(port);
    }
}

/// Tells a client that its server will not answer: on behalf of a dead space, or of a
/// port that closes with the request in its queue.
pub(crate) fn answer_for_dead(member: &Member, port: PortName, tag: u32) {
    let word = RightWord {
        kind: RightKind::SendOnce,
        port,
        tag,
    };
    if !send::post_word(member, port, Kind::ServerDead, word)
        && let Some(entry) = member.tables().ports.get(usize::from(port.index))
    {
        // Every slot is void: so many have died while they answered. Told beside the queue.
        if entry.note_unanswered(port, tag) {
            rights::raise(member, port, event::UNANSWERED);
        }
    }
}

#[cfg(test)]
mod tests;
