//! Rights are what a program holds on a port; they may travel in messages.

use super::request::{ReplyPorts, answer_for_dead};
use super::{ReceiveRight, SendError, WhenFull, entry, send};
use crate::Refused;
use crate::port::message::{Message, drop_sent};
use crate::port::segment::Segment;
use crate::port::shared_extent::SharedExtent;
use crate::space::Member;
use crate::space::region::Attached;
use portolan_abi::owner::Destination;
use portolan_abi::port::{PortName, PortPhase, PortStatus, RightKind, RightWord, event};
use portolan_abi::slot::Kind;
use portolan_shm::mark;
use portolan_shm::queue::{PortEntry, Queue, Spot};
use portolan_shm::rights;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The right to send any number of messages to a port. A clone is another right, and counted.
///
/// ```
/// use portolan::{Deadline, Domain, Message, PortOptions, WhenFull};
/// let domain = Domain::private()?;
/// let mut port = domain.bind(PortOptions::unnamed())?;
/// let right = port.make_send();
/// right.send(Message::new(b"hello")?, WhenFull::Fail)?;
/// let message = port.receive(Default::default(), Deadline::NOW)?;
/// assert_eq!(message.header(), b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SendRight {
    pub(crate) to: Attached,
    pub(super) spot: Spot,
    /// Where answers to requests come in; shared by clones.
    pub(super) replies: Arc<ReplyPorts>,
    given: bool,
}

/// The right to send one message to a port: most often the answer to a request.
/// If it is dropped unused, the client that waits for the answer is told.
pub struct SendOnceRight {
    pub(super) to: Attached,
    pub(super) tag: u32,
    given: bool,
}

/// A counted send right on a segment: it keeps the segment, and has nothing of what sending needs,
/// since each sample of a topic makes and drops one.
pub(crate) struct SegmentRight {
    pub(crate) to: Attached,
    given: bool,
}

/// How a send right stands: see [`SendRight::state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RightState {
    /// The port lives.
    Live,
    /// The port is on another node, which is silent: sends come back as
    /// [`SendError::Unreachable`](crate::SendError::Unreachable). It may be there again.
    Unreachable,
    /// The port is dead, for good.
    Dead,
}

/// A right of any kind, as it travels in a message.
#[derive(Debug)]
#[non_exhaustive]
#[allow(
    clippy::large_enum_variant,
    reason = "a right is what it is handed out as, and a message holds few"
)]
pub enum Right {
    /// See [`SendRight`].
    Send(SendRight),
    /// See [`SendOnceRight`].
    SendOnce(SendOnceRight),
    /// See [`ReceiveRight`].
    Receive(ReceiveRight),
    /// See [`Segment`].
    Segment(Segment),
    /// See [`SharedExtent`].
    Shared(SharedExtent),
}

impl SendRight {
    /// A new, counted right; `None` if the port is dead.
    pub(crate) fn make(to: Attached) -> Option<Self> {
        let right = Self::make_counted(to);
        mark!("right.counted");
        right.is_live().then_some(right)
    }

    /// A new, counted right, dead or alive.
    pub(super) fn make_counted(to: Attached) -> Self {
        // A forked child's is good for nothing, and counts for nothing.
        if to.member.present().is_ok() {
            to.member.rights().add_send(to.port);
        }
        Self::of(to)
    }

    /// The handle of a right that is counted already.
    fn of(to: Attached) -> Self {
        let tail = |()| to.queue().port.sender.tail.load(Ordering::Relaxed);
        Self {
            spot: Spot::new(to.member.present().map_or(0, tail)),
            to,
            replies: Arc::default(),
            given: false,
        }
    }

    /// Sends a message to an asynchronous port.
    ///
    /// # Errors
    ///
    /// [`Refused`] holds the message, whole, and why.
    #[inline]
    pub fn send(
        &self,
        mut message: Message,
        when_full: impl Into<WhenFull>,
    ) -> Result<(), Refused<Message, SendError>> {
        match self.send_from(&mut message, when_full) {
            Ok(()) => {
                drop_sent!(message);
                Ok(())
            }
            Err(why) => Err(Refused::new(message, why)),
        }
    }

    /// As [`SendRight::send`], out of a message that stays where it is: empty when it was
    /// sent, untouched when not. Saves moving it about.
    ///
    /// # Errors
    ///
    /// The reason.
    #[inline]
    pub fn send_from(
        &self,
        message: &mut Message,
        when_full: impl Into<WhenFull>,
    ) -> Result<(), super::SendError> {
        send::deliver(
            &self.to,
            &self.spot,
            Kind::Message,
            None,
            message,
            when_full.into(),
        )
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn at(&self) -> &Attached {
        &self.to
    }

    /// Whether the port lives.
    pub fn is_live(&self) -> bool {
        self.state() != RightState::Dead
    }

    /// How the port is, as things are; not where.
    ///
    /// ```
    /// use portolan::proxy::ProxyPort;
    /// use portolan::{Domain, PortOptions, RightState};
    /// use std::time::Instant;
    /// let domain = Domain::private()?;
    /// let port = domain.bind(PortOptions::unnamed())?;
    /// let right = port.make_send();
    /// assert_eq!(right.state(), RightState::Live);
    /// let mut proxy = ProxyPort::new(port, "hall").map_err(|refused| refused.why)?;
    /// proxy.set_unreachable(Instant::now());
    /// assert_eq!(right.state(), RightState::Unreachable);
    /// drop(proxy);
    /// assert_eq!(right.state(), RightState::Dead);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn state(&self) -> RightState {
        let status = self.status();
        match is_live(status, self.to.port) {
            true if status.unreachable => RightState::Unreachable,
            true => RightState::Live,
            false => RightState::Dead,
        }
    }

    /// What its entry says, which may be another port's by now.
    pub(crate) fn status(&self) -> PortStatus {
        let status = &self.to.queue().port.control.status;
        // Acquire: pairs with the release of bind, move and close.
        PortStatus::unpack(status.load(Ordering::Acquire))
    }

    /// The space that receives at the port, as things are; 0 if it is dead.
    pub(crate) fn owner(&self) -> u8 {
        let status = self.status();
        if is_live(status, self.to.port) {
            status.owner
        } else {
            0
        }
    }
}

impl SegmentRight {
    /// A new, counted right, dead or alive.
    #[inline]
    pub(super) fn make_counted(to: Attached) -> Self {
        // As `SendRight::make_counted`.
        if to.member.present().is_ok() {
            to.member.rights().add_send(to.port);
        }
        Self { to, given: false }
    }

    /// The right was published: forgets it here (R1).
    fn given(mut self) {
        self.given = true;
        depart(&self.to);
    }
}

impl SendOnceRight {
    pub(super) fn new(to: Attached, tag: u32) -> Self {
        Self {
            to,
            tag,
            given: false,
        }
    }

    /// A new, counted right, not made from a request.
    pub(super) fn make(to: Attached) -> Self {
        to.member.rights().add_once(to.port, 0);
        Self::new(to, 0)
    }

    /// Sends the one message.
    ///
    /// # Errors
    ///
    /// [`Refused`] holds the message. The right is used up; the client that waits for the answer
    /// is told that none will come.
    pub fn send(mut self, mut message: Message) -> Result<(), Refused<Message, SendError>> {
        self.post(Kind::Reply, &mut message)
            .map_err(|why| Refused::new(message, why))
    }

    /// Tells the client that waits for the answer that its server is dead, as the host does for a
    /// server that has died.
    pub(crate) fn server_dead(mut self) {
        if self.to.member.present().is_ok() {
            answer_for_dead(&self.to.member, self.to.port, self.tag);
            self.given = true;
            self.uncount();
        }
    }

    /// Tells the client that waits for the answer that its server's node was given up.
    pub(crate) fn node_lost(mut self, node: &str) {
        // Too long a name, or another port than a client's, which is full: it is told less.
        let told = Message::new(node.as_bytes())
            .is_ok_and(|mut message| self.post(Kind::ServerDead, &mut message).is_ok());
        if !told && !self.given {
            self.server_dead();
        }
    }

    /// Puts a request into a port of the domain, whose receiver answers it by this right.
    /// What was sent leaves `message` empty; what was not leaves it as it was.
    ///
    /// # Errors
    ///
    /// The right, and why.
    pub(crate) fn pass(
        mut self,
        to: &SendRight,
        message: &mut Message,
    ) -> Result<(), Refused<Self, SendError>> {
        let reply = RightWord {
            kind: RightKind::SendOnce,
            port: self.to.port,
            tag: self.tag,
        };
        let posted = send::try_post(&to.to, &to.spot, Kind::Request, Some(reply.pack()), message);
        match posted {
            Ok(()) => {
                // It was published: the receiver has it, or the slot.
                self.given = true;
                self.uncount();
                Ok(())
            }
            Err(why) => Err(Refused::new(self, why)),
        }
    }

    /// Of whose port it is.
    pub(crate) fn member(&self) -> &Arc<Member> {
        &self.to.member
    }

    pub(crate) fn is_live(&self) -> bool {
        let status = &self.to.queue().port.control.status;
        // Acquire: pairs with the release of bind, move and close.
        is_live(
            PortStatus::unpack(status.load(Ordering::Acquire)),
            self.to.port,
        )
    }

    /// Takes the right from our row.
    #[inline]
    fn uncount(&self) {
        // A tag says that it answers a request (see `ReplyPort`).
        let rights = self.to.member.rights();
        if self.tag == 0 {
            rights.drop_once(self.to.port)
        } else {
            rights.drop_answer(self.to.port, self.tag)
        }
    }

    #[inline]
    pub(super) fn post(
        &mut self,
        kind: Kind,
        message: &mut Message,
    ) -> Result<(), super::SendError> {
        // Before the claim as well as after it: a claim that is given back takes a slot until
        // the receiver looks, and a client's reply port, which may have taken the place of
        // one that is gone, has few. Rights on dead names would fill it.
        if !self.is_live() {
            self.given = true;
            self.uncount();
            return Err(super::SendError::DeadName);
        }
        let reply = RightWord {
            kind: RightKind::SendOnce,
            port: self.to.port,
            tag: self.tag,
        };
        let spot = Spot::new(self.to.queue().port.sender.tail.load(Ordering::Relaxed));
        let posted = send::try_post(&self.to, &spot, kind, Some(reply.pack()), message);
        // Refused for what is in it, or for want of a page: the right is not used up, and
        // its drop tells who waits.
        if matches!(posted, Ok(()) | Err(super::SendError::DeadName)) {
            self.given = true;
            self.uncount();
        }
        posted
    }
}

impl Right {
    pub(super) fn word(&self) -> RightWord {
        match self {
            Self::Send(r) => RightWord {
                kind: RightKind::Send,
                port: r.to.port,
                tag: 0,
            },
            Self::SendOnce(r) => RightWord {
                kind: RightKind::SendOnce,
                port: r.to.port,
                tag: r.tag,
            },
            Self::Receive(r) => RightWord {
                kind: RightKind::Receive,
                port: r.at().port,
                tag: 0,
            },
            Self::Segment(s) => RightWord {
                kind: RightKind::Send,
                port: s.right().to.port,
                tag: 0,
            },
            Self::Shared(s) => RightWord {
                kind: RightKind::Send,
                port: s.segment().right().to.port,
                tag: 0,
            },
        }
    }

    pub(super) fn is_of(&self, member: &Arc<Member>) -> bool {
        let whose = match self {
            Self::Send(r) => &r.to.member,
            Self::SendOnce(r) => &r.to.member,
            Self::Receive(r) => &r.at().member,
            Self::Segment(s) => &s.right().to.member,
            Self::Shared(s) => &s.segment().right().to.member,
        };
        Arc::ptr_eq(whose, member)
    }

    /// Whether it is the right to receive from `port`.
    pub(super) fn receives_from(&self, port: PortName) -> bool {
        matches!(self, Self::Receive(r) if r.at().port == port)
    }

    /// Rights are about to be published at `destination` (R1).
    pub(super) fn leave(member: &Member, rights: &[Self], destination: Destination) {
        for right in rights {
            match right {
                Self::Receive(r) => r.leave(destination),
                other => {
                    if let Some(port) = other.sends_to() {
                        member.rights().moves(port);
                        mark!("right.moves");
                        if let Some(entry) = entry_of(member, port) {
                            entry.rights.depart(entry, port);
                        }
                    }
                }
            }
        }
        mark!("right.departs");
    }

    /// They were not published after all.
    pub(super) fn stay(member: &Member, rights: &[Self]) {
        for right in rights {
            match right {
                Self::Receive(r) => r.stay(),
                other => {
                    if let Some(port) = other.sends_to() {
                        settle(member, port);
                    }
                }
            }
        }
    }

    /// The port that this is a send right on.
    fn sends_to(&self) -> Option<PortName> {
        let word = self.word();
        (word.kind == RightKind::Send).then_some(word.port)
    }

    /// The right was published: forget it here (R1).
    pub(super) fn given(self) {
        match self {
            Self::Send(mut r) => {
                r.given = true;
                depart(&r.to);
            }
            Self::SendOnce(mut r) => {
                r.given = true;
                r.uncount();
            }
            Self::Receive(r) => r.given(),
            Self::Segment(s) => s.into_right().given(),
            Self::Shared(s) => s.into_segment().into_right().given(),
        }
    }

    /// Notes rights of a message that we are about to take as ours (R1).
    pub(super) fn arrive(member: &Member, rights: &[RightWord]) {
        for right in rights {
            mark!("right.arrives");
            match right.kind {
                RightKind::Send => member.rights().arrives(right.port),
                RightKind::SendOnce if right.tag != 0 => {
                    member.rights().hold_answer(right.port, right.tag)
                }
                RightKind::SendOnce => member.rights().add_once(right.port, 0),
                RightKind::Receive => ReceiveRight::arrive(member, right.port),
            }
        }
    }

    /// The message that they were in was taken, or its slot closed: they travel no more (R1).
    pub(super) fn arrived(member: &Member, rights: &[RightWord]) {
        for right in rights.iter().filter(|r| r.kind == RightKind::Send) {
            mark!("right.arrived");
            settle(member, right.port);
        }
    }

    /// As [`Self::arrive`], for a message whose slot we are about to close: no space holds its
    /// rights.
    pub(super) fn end(member: &Member, rights: &[RightWord]) {
        for right in rights.iter().filter(|r| r.kind == RightKind::Send) {
            member.rights().moves(right.port);
        }
    }

    /// The handle of a right that has arrived; nothing, for one that names no port.
    pub(super) fn taken(member: &Arc<Member>, word: RightWord) -> Option<Self> {
        let to = Attached::new(member, word.port)?;
        Some(match word.kind {
            RightKind::Send if rights::is_segment(to.queue().port, to.port) => {
                let right = SegmentRight { to, given: false };
                let (segment, frozen) = Segment::taken(right)?;
                if frozen {
                    Self::Shared(SharedExtent::of(segment))
                } else {
                    Self::Segment(segment)
                }
            }
            RightKind::Send => Self::Send(SendRight::of(to)),
            RightKind::SendOnce => Self::SendOnce(SendOnceRight::new(to, word.tag)),
            RightKind::Receive => Self::Receive(ReceiveRight::resumed(to)?),
        })
    }
}

impl From<Segment> for Right {
    fn from(segment: Segment) -> Self {
        Self::Segment(segment)
    }
}

impl From<SharedExtent> for Right {
    fn from(shared: SharedExtent) -> Self {
        Self::Shared(shared)
    }
}

impl Clone for SendRight {
    fn clone(&self) -> Self {
        let mut right = Self::make_counted(self.to.clone());
        right.replies = Arc::clone(&self.replies);
        right
    }
}

impl Drop for SendRight {
    fn drop(&mut self) {
        if self.given || self.to.member.present().is_err() {
            return;
        }
        drop_counted(&self.to.member, self.to.port);
    }
}

impl Clone for SegmentRight {
    fn clone(&self) -> Self {
        Self::make_counted(self.to.clone())
    }
}

impl Drop for SegmentRight {
    #[inline]
    fn drop(&mut self) {
        if !self.given && self.to.member.present().is_ok() {
            drop_counted(&self.to.member, self.to.port);
        }
    }
}

impl Drop for SendOnceRight {
    fn drop(&mut self) {
        if !self.given && self.to.member.present().is_ok() {
            // A queue of replies has room for this one; a dead port needs no answer.
            let _ = self.post(Kind::Dropped, &mut Message::default());
            if !self.given {
                // Another port was full: the right ends all the same.
                self.uncount();
            }
        }
    }
}

impl From<SendRight> for Right {
    fn from(right: SendRight) -> Self {
        Self::Send(right)
    }
}

impl From<SendOnceRight> for Right {
    fn from(right: SendOnceRight) -> Self {
        Self::SendOnce(right)
    }
}

impl std::fmt::Debug for SendRight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SendRight").field(&self.to.port).finish()
    }
}

impl std::fmt::Debug for SegmentRight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SegmentRight").field(&self.to.port).finish()
    }
}

impl std::fmt::Debug for SendOnceRight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SendOnceRight").field(&self.to.port).finish()
    }
}

/// Whether the port of this name is the one that the entry holds.
pub(super) fn is_live(status: PortStatus, port: PortName) -> bool {
    status.generation == port.generation
        && matches!(status.phase, PortPhase::Open | PortPhase::Moving)
}

/// Takes a right from our row, and does what is due if that was the last one.
pub(super) fn drop_counted(member: &Member, port: PortName) {
    if member.rights().drop_send(port) == 0 {
        check_senders(member, port);
    }
}

/// A right was published in a message, and is ours no more; does what is due if it was the last one.
fn depart(to: &Attached) {
    let (member, port) = (&to.member, to.port);
    if member.rights().departed(port) == 0 {
        // The taker may have dropped it already, and have seen it counted here.
        check_senders(member, port);
    }
}

/// A right on `port` travels no more; does what is due if it was the last one.
fn settle(member: &Member, port: PortName) {
    if let Some(entry) = entry_of(member, port) {
        entry.rights.arrive(entry, port);
        mark!("right.settles");
        if member.rights().settled(port) == 0 {
            check_senders(member, port);
        }
    }
}

fn entry_of(member: &Member, port: PortName) -> Option<&PortEntry> {
    member.tables().ports.get(usize::from(port.index))
}

/// Tells the port's receiver that no send right is left, if it asked and there is none.
pub(crate) fn check_senders(member: &Member, port: PortName) {
    let Some(entry) = entry_of(member, port) else {
        return;
    };
    let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
    if !is_live(status, port) {
        return;
    }
    if status.shared {
        super::shared_entries::close_unused(member, port);
        return;
    }
    if entry.sleep.wanted.load(Ordering::SeqCst) & event::NO_MORE_SENDERS == 0
        || !is_unused(member, port)
    {
        return;
    }
    mark!("right.last_gone");
    // The receiver takes `wanted` back when it is told, so that a death between here and
    // there loses nothing.
    raise(member, port, event::NO_MORE_SENDERS);
}

/// Tells the receiver of `port` of an event. If another port has taken its entry meanwhile, that
/// one is told nothing (E1 of queues).
pub(super) fn raise(member: &Member, port: PortName, event: u32) {
    let Some(queue) = member.tables().queue(port.index) else {
        return;
    };
    if queue.port.sleep.raise(port.generation, event) {
        send::wake(member, &queue, port.index);
    }
}

/// Whether no send right on the port is left, held or travelling (R2).
pub(crate) fn is_unused(member: &Member, port: PortName) -> bool {
    let tables = member.tables();
    entry_of(member, port).is_none_or(|entry| {
        rights::is_unused(
            entry,
            port,
            || tables.used_spaces().map(|s| tables.right_row(s)),
            || in_slots(member, port),
        )
    })
}

/// Send rights on the port, in every row and in messages. One that moves at this moment may be
/// counted twice; if none is counted there is none (R2).
pub(crate) fn senders(member: &Member, port: PortName) -> u32 {
    if is_unused(member, port) {
        return 0;
    }
    let travelling = entry_of(member, port).map_or(0, |e| e.rights.count(port));
    held(member, port).saturating_add(travelling).max(1)
}

/// Send rights on the port in every row.
pub(super) fn held(member: &Member, port: PortName) -> u32 {
    let tables = member.tables();
    let rows = tables.used_spaces().map(|s| tables.right_row(s));
    rows.map(|row| row.sends(port)).fold(0, u32::saturating_add)
}

/// Send rights on the port in all messages that no receiver has taken: looks at every slot of the
/// domain. Only after the death of a space that was moving such a right.
fn in_slots(member: &Member, port: PortName) -> u32 {
    let tables = member.tables();
    let queues = tables.used_ports().filter_map(|(index, entry)| {
        entry::look_at_queue(entry, || in_queue(member, &tables.queue(index)?, port))?
    });
    u32::try_from(queues.sum::<usize>()).unwrap_or(u32::MAX)
}

/// The same, in one queue. Also of a port that is being closed: until its slot is closed.
fn in_queue(member: &Member, queue: &Queue<'_>, port: PortName) -> Option<usize> {
    let slots = (0..queue.slots() as u64).map(|at| queue.slot(at));
    let untaken = slots.filter(|slot| queue.is_untaken(slot.state(Ordering::Acquire)));
    let sends = untaken.map(|slot| {
        let rights = super::wire::Contents::peek(member, &slot).rights;
        let is_one = |r: &&RightWord| r.kind == RightKind::Send && r.port == port;
        rights.iter().filter(is_one).count()
    });
    Some(sends.sum())
}

/// A receive right that travels: from `Open` to `Moving` and back.
pub(super) fn set_phase(member: &Member, port: PortName, phase: PortPhase, owner: u8) {
    let Some(entry) = member.tables().ports.get(usize::from(port.index)) else {
        return;
    };
    let was = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
    if was.generation == port.generation && matches!(was.phase, PortPhase::Open | PortPhase::Moving)
    {
        // Release: the transit word, or the queue as we left it, comes first.
        entry.control.status.store(
            PortStatus {
                phase,
                owner,
                ..was
            }
            .pack(),
            Ordering::Release,
        );
    }
}
