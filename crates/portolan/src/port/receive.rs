//! Receiving: look, take, and wait if there is nothing.

use super::rights::{self, Right};
use super::wire::{self, Contents};
use super::{SendOnceRight, SendRight, close, send};
use crate::member::Member;
use crate::message::{Message, Notice};
use crate::region::Attached;
use crate::tally;
use crate::trace::{About, Begun};
use crate::wait::{Patience, Waiting, pause};
use crate::{Deadline, Disowned, Extent, NoDescriptor};
use portolan_abi::owner::Destination;
use portolan_abi::port::{PortName, PortPhase, RightKind, RightWord, event};
use portolan_abi::slot::{Kind, Phase};
use portolan_abi::thread::{At, Wait};
use portolan_abi::trace::EventKind;
use portolan_shm::mark;
use portolan_shm::queue::{Cursor, Found, Next, Slot, Woken};
use portolan_shm::region::read_text;
use portolan_sys::futex;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering;

/// Looks at the next slot between looks at all else: events, and senders passed over.
const LOOK_AROUND: u32 = 64;

/// Whether the receiver will touch the message's pages at once (the paper's hint).
///
/// In a guarded domain [`Access::Now`] opens them in one batch and [`Access::Later`]
/// leaves each to its first touch; forwarders want the latter. In a trusted domain,
/// where pages stay mapped, [`Access::Now`] maps those that this process has never
/// touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Open pages as they are touched, if they are.
    #[default]
    Later,
    /// Open all pages now.
    Now,
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The state's: nothing came before the deadline.
    #[error("no message came before the deadline")]
    TimedOut,
    /// The caller's: the port takes requests, not messages, or the other way round.
    #[error("this port is {0}: use {1}")]
    WrongKind(&'static str, &'static str),
    /// The state's: the port was closed.
    #[error("the port is closed")]
    Closed,
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
    /// See [`NoDescriptor`].
    #[error(transparent)]
    NoDescriptor(#[from] NoDescriptor),
}

impl From<QueueClosed> for ReceiveError {
    fn from(_: QueueClosed) -> Self {
        Self::Closed
    }
}

/// The right to receive from a port. Dropping it closes the port.
///
/// One thread receives at a time; [`ReceiveRight::share`] makes a handle for several.
pub struct ReceiveRight {
    at: Attached,
    cursor: Cursor,
    patience: Patience,
    waiting: Waiting,
    by_urgency: bool,
    given: bool,
    /// What an async receive waits with.
    #[cfg(feature = "tokio")]
    bell: Option<crate::tokio::Bell>,
}

/// What a received message is, besides what is in it: its kind, and where its answer
/// goes. One register: a reply's right is a send-once right, so the bits that say so in
/// a right's word hold the kind here.
#[derive(Clone, Copy)]
pub(super) struct Origin(NonZeroU64);

/// The queue is closed.
pub(super) struct QueueClosed;

impl Origin {
    const ANSWERED: u64 = 8;
    const KIND: u64 = 7;

    /// From a slot's kind and reply word, 0 for none.
    #[inline]
    pub(super) fn new(kind: Kind, reply: u64) -> Self {
        let answered = if reply == 0 { 0 } else { Self::ANSWERED };
        // Kinds begin at 0; one more, and it is never 0.
        Self(NonZeroU64::MIN.saturating_add(reply & !15 | answered | kind as u64))
    }

    #[inline]
    fn word(self) -> u64 {
        self.0.get() - 1
    }

    #[inline]
    pub(super) fn kind(self) -> Kind {
        match self.word() & Self::KIND {
            0 => Kind::Message,
            1 => Kind::Request,
            2 => Kind::Reply,
            3 => Kind::Dropped,
            _ => Kind::ServerDead,
        }
    }

    /// Where the answer goes, or which request it answers.
    #[inline]
    pub(super) fn reply(self) -> Option<RightWord> {
        if self.word() & Self::ANSWERED == 0 {
            None
        } else {
            RightWord::unpack(self.word() & !15 | RightKind::SendOnce as u64)
        }
    }
}

impl ReceiveRight {
    pub(super) fn new(at: Attached, by_urgency: bool) -> Self {
        let cursor = Cursor::resume(at.queue());
        Self {
            at,
            cursor,
            patience: Patience::default(),
            waiting: Waiting::default(),
            by_urgency,
            given: false,
            #[cfg(feature = "tokio")]
            bell: None,
        }
    }

    /// Receives a message from an asynchronous port.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`]; nothing is lost.
    #[inline]
    pub fn receive(
        &mut self,
        access: Access,
        deadline: impl Into<Deadline>,
    ) -> Result<Message, ReceiveError> {
        let mut message = Message::default();
        self.receive_into(&mut message, access, deadline)?;
        Ok(message)
    }

    /// As [`ReceiveRight::receive`], into a message that is already there; what it held is
    /// dropped first. Saves moving it about.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`]; the message is empty then.
    #[inline]
    pub fn receive_into(
        &mut self,
        message: &mut Message,
        access: Access,
        deadline: impl Into<Deadline>,
    ) -> Result<(), ReceiveError> {
        message.clear();
        let origin = self.next(message, deadline.into())?;
        self.finish(origin, message, access)
    }

    /// Receives a message if one is there.
    ///
    /// # Errors
    ///
    /// [`ReceiveError::TimedOut`] if none is.
    #[inline]
    pub fn try_receive(&mut self, access: Access) -> Result<Message, ReceiveError> {
        self.receive(access, Deadline::NOW)
    }

    #[inline]
    pub(super) fn finish(
        &self,
        origin: Origin,
        message: &mut Message,
        access: Access,
    ) -> Result<(), ReceiveError> {
        match origin.kind() {
            Kind::Message | Kind::Reply => {}
            Kind::Dropped | Kind::ServerDead => message.set_notice(Notice::SendOnceDropped),
            Kind::Request => return Err(self.refuse(origin, message)),
        }
        self.open(message, access);
        probe!(ReceiveOpened);
        Ok(())
    }

    /// Cannot happen: a request is refused by an asynchronous port. If a buggy member sent
    /// one all the same, its client is answered, and the message dropped.
    #[cold]
    fn refuse(&self, origin: Origin, message: &mut Message) -> ReceiveError {
        message.clear();
        drop(origin.reply().map(|word| self.once(word)));
        ReceiveError::WrongKind("asynchronous", "send, and receive")
    }

    pub(super) fn once(&self, word: RightWord) -> Option<SendOnceRight> {
        Some(SendOnceRight::new(
            Attached::new(&self.at.member, word.port)?,
            word.tag,
        ))
    }

    /// Opens the message's pages as the hint says.
    #[inline]
    pub(super) fn open(&self, message: &Message, access: Access) {
        if access == Access::Now && !message.extents.is_empty() {
            self.open_now(message);
        }
    }

    #[cold]
    fn open_now(&self, message: &Message) {
        let member = &self.at.member;
        let extents = message.extents().iter().map(Extent::pages);
        let first = extents.clone().next().map_or(0, |(page, _)| page);
        let about = About::pages(first, message.len() as u64);
        member.during(EventKind::Map, about, || match &member.guard {
            Some(guard) => guard.open(extents),
            None => extents.for_each(|(page, size)| crate::extent::map(member, page, size)),
        });
    }

    /// The next message or notice, waiting for it; into `message`, which is empty.
    #[inline]
    pub(super) fn next(
        &mut self,
        message: &mut Message,
        deadline: Deadline,
    ) -> Result<Origin, ReceiveError> {
        self.at.member.present()?;
        if let Some(origin) = self.look(message)? {
            return Ok(origin);
        }
        self.settle();
        probe!(ReceiveLooked);
        if deadline.is_now() {
            return Err(ReceiveError::TimedOut);
        }
        self.wait(message, deadline)
    }

    /// Looks once.
    #[inline]
    fn look(&mut self, message: &mut Message) -> Result<Option<Origin>, QueueClosed> {
        if self.by_urgency {
            return self.look_by_urgency(message);
        }
        match self.at.queue().next(&mut self.cursor) {
            Next::Found(found) => Ok(Some(self.take(found, message))),
            Next::Empty => Ok(self.event(message)),
            Next::Closed => Err(QueueClosed),
        }
    }

    /// Takes a found message: all of it is ours before the queue is told.
    #[inline]
    fn take(&mut self, found: Found, message: &mut Message) -> Origin {
        if self.at.member.traces(EventKind::Receive) {
            return self.take_traced(found, message);
        }
        self.take_untraced(found, message)
    }

    /// The same, and recorded.
    #[cold]
    #[inline(never)]
    fn take_traced(&mut self, found: Found, message: &mut Message) -> Origin {
        let begun = Begun::now(EventKind::Receive);
        let position = found.position();
        let origin = self.take_untraced(found, message);
        let about = About::message(self.at.port.index, position, message.len() as u64);
        self.at.member.record(begun, about);
        origin
    }

    /// The same, without a record.
    #[inline(always)]
    fn take_untraced(&mut self, found: Found, message: &mut Message) -> Origin {
        probe!(ReceiveSeen);
        let queue = self.at.queue();
        let member = &self.at.member;
        let slot = queue.slot(found.position());
        let origin = match wire::read_plain(member, &slot, message) {
            Some(origin) => origin,
            None => Self::read_rich(member, &slot, message),
        };
        mark!("receive.noted");
        probe!(ReceiveRead);
        if let (Kind::Request, Some(reply)) = (origin.kind(), origin.reply()) {
            member.rights().hold_answer(reply.port, reply.tag);
        }
        // The line of no return.
        if queue.take(&mut self.cursor, found) == Woken::Senders {
            send::wake_senders(queue);
        }
        if !message.extents.is_empty() {
            let bytes = &queue.port.receiver.bytes;
            // Relaxed: a counter with one writer; wrapping, should another scribble on it.
            let sum = bytes.load(Ordering::Relaxed);
            bytes.store(sum.wrapping_add(message.len() as u64), Ordering::Relaxed);
        }
        probe!(ReceiveTaken);
        origin
    }

    /// Reads a message with rights, an urgency or a long header.
    #[cold]
    fn read_rich(
        member: &std::sync::Arc<Member>,
        slot: &Slot<'_>,
        message: &mut Message,
    ) -> Origin {
        let contents = Contents::read(member, slot);
        contents.all_extents().for_each(|d| wire::hold(member, d));
        if let (Some(guard), Some(page)) = (&member.guard, contents.page) {
            // A header is read in any case, and a touch costs more than this.
            guard.open(std::iter::once((page.page, page.size)));
        }
        Right::arrive(member, &contents.rights);
        let origin = Origin::new(contents.kind, contents.reply.map_or(0, RightWord::pack));
        contents.into_message(member, message);
        origin
    }

    /// On a port by urgency everything published is passed over, then the most urgent taken.
    #[cold]
    fn look_by_urgency(&mut self, message: &mut Message) -> Result<Option<Origin>, QueueClosed> {
        let queue = self.at.queue();
        queue.pass_published(&mut self.cursor, |_| {});
        let published = queue
            .passed(&self.cursor)
            .into_iter()
            .filter(|(_, state)| state.phase() == Phase::Published);
        let by_urgency = published.map(|(position, _)| {
            let urgency = Contents::read(&self.at.member, &queue.slot(position)).urgency;
            (urgency.unwrap_or(u64::MAX), position)
        });
        match by_urgency
            .min()
            .and_then(|(_, position)| queue.found_passed(&self.cursor, position))
        {
            Some(found) => Ok(Some(self.take(found, message))),
            // Voids among the passed are cleared by the ordinary look.
            None => match queue.next(&mut self.cursor) {
                Next::Closed => Err(QueueClosed),
                Next::Found(found) => Ok(Some(self.take(found, message))),
                Next::Empty => Ok(self.event(message)),
            },
        }
    }

    /// Something that the port asked to be told.
    #[inline]
    fn event(&self, message: &mut Message) -> Option<Origin> {
        let events = self.at.queue().port.sleep.events.load(Ordering::Acquire);
        if events == 0 {
            None
        } else {
            self.notice(events, message)
        }
    }

    #[cold]
    fn notice(&self, events: u32, message: &mut Message) -> Option<Origin> {
        let word = &self.at.queue().port.sleep.events;
        if events & event::UNANSWERED != 0 {
            word.fetch_and(!event::UNANSWERED, Ordering::AcqRel);
            // Acquire: the tag came before the event. Another tag than ours is not for us.
            let tag = self
                .at
                .queue()
                .port
                .sleep
                .unanswered
                .load(Ordering::Acquire);
            let port = self.at.port;
            let kind = RightKind::SendOnce;
            return Some(Origin::new(
                Kind::ServerDead,
                RightWord { kind, port, tag }.pack(),
            ));
        }
        let notice = if events & event::NO_MORE_SENDERS != 0 {
            self.at
                .queue()
                .port
                .sleep
                .wanted
                .fetch_and(!event::NO_MORE_SENDERS, Ordering::SeqCst);
            word.fetch_and(!event::NO_MORE_SENDERS, Ordering::AcqRel);
            Notice::NoMoreSenders
        } else {
            word.fetch_and(!event::DEAD_NAME, Ordering::AcqRel);
            let (token, more) = rights::take_fired(&self.at.member, self.at.port)?;
            if more {
                word.fetch_or(event::DEAD_NAME, Ordering::AcqRel);
            }
            Notice::DeadName { token }
        };
        message.set_notice(notice);
        Some(Origin::new(Kind::Message, 0))
    }

    /// Whether the next look may find something. A hint: who sleeps arms, and that decides.
    pub(crate) fn may_have(&mut self) -> bool {
        self.settle();
        let queue = self.at.queue();
        if queue.port.sleep.events.load(Ordering::Acquire) != 0 {
            return true;
        }
        let head = self.cursor.head();
        let state = queue.slot(head).state(Ordering::Acquire);
        let at_head = match state.phase() {
            Phase::Closed => true,
            // Not gone round yet: all slots are passed.
            _ if state.position() < head => false,
            // Left out: a look steps over it.
            _ if state.position() > head => true,
            Phase::Free => false,
            Phase::Published | Phase::Void => true,
            // Being written; if more lies beyond, a look may pass it.
            Phase::Claimed => {
                let beyond = queue.slot(head + 1).state(Ordering::Acquire);
                beyond.phase() != Phase::Free || beyond.position() != head + 1
            }
        };
        at_head
            || queue
                .passed(&self.cursor)
                .iter()
                .any(|(_, s)| matches!(s.phase(), Phase::Published | Phase::Void))
    }

    /// Gives the slot read last back.
    #[inline]
    pub(crate) fn settle(&mut self) {
        let queue = self.at.queue();
        if queue.settle_all(&mut self.cursor) == Woken::Senders {
            send::wake_senders(queue);
        }
    }

    /// Spins, then sleeps, until something comes.
    #[cold]
    fn wait(&mut self, message: &mut Message, deadline: Deadline) -> Result<Origin, ReceiveError> {
        let mut told = false;
        let outcome = self.wait_for(message, deadline, &mut told);
        if told {
            tally::waits(&self.at.member, Wait::Nothing);
        }
        outcome
    }

    /// Tells people that this thread spins. Not before it has for a while: whoever is about
    /// to find something has no time for this.
    fn tell_spinning(&self, told: &mut bool) {
        if !*told {
            let port = At::Port(self.at.port.index);
            tally::waits(&self.at.member, Wait::Spinning(port));
            *told = true;
        }
    }

    fn wait_for(
        &mut self,
        message: &mut Message,
        deadline: Deadline,
        told: &mut bool,
    ) -> Result<Origin, ReceiveError> {
        if self.waiting == Waiting::Poll {
            return self.poll(message, deadline, told);
        }
        loop {
            let looks = if self.waiting == Waiting::Sleep {
                0
            } else {
                self.patience.looks()
            };
            for look in 0..looks {
                if (look % LOOK_AROUND == 0 || !self.at.queue().is_still(&self.cursor))
                    && let Some(origin) = self.look(message)?
                {
                    self.patience.paid(look);
                    return Ok(origin);
                }
                if look % 256 == 255 {
                    self.tell_spinning(told);
                    if deadline.has_passed() {
                        return Err(ReceiveError::TimedOut);
                    }
                }
                pause(look);
            }
            if looks > 0 {
                self.patience.in_vain();
            }
            self.sleep(deadline);
            // Asleep it said so, and awake again that it spins.
            *told = true;
            if let Some(origin) = self.look(message)? {
                return Ok(origin);
            }
            if deadline.has_passed() {
                return Err(ReceiveError::TimedOut);
            }
        }
    }

    fn poll(
        &mut self,
        message: &mut Message,
        deadline: Deadline,
        told: &mut bool,
    ) -> Result<Origin, ReceiveError> {
        loop {
            for _ in 0..16 {
                let queue = self.at.queue();
                (0..LOOK_AROUND).find(|_| {
                    let stirs = !queue.is_still(&self.cursor);
                    if !stirs {
                        std::hint::spin_loop();
                    }
                    stirs
                });
                if let Some(origin) = self.look(message)? {
                    return Ok(origin);
                }
                self.tell_spinning(told);
            }
            self.settle();
            if deadline.has_passed() {
                return Err(ReceiveError::TimedOut);
            }
        }
    }

    /// Sleeps until woken, if there is nothing (Q6).
    fn sleep(&mut self, deadline: Deadline) {
        // The last look may have retired slots that senders wait for.
        self.settle();
        let sleep = &self.at.queue().port.sleep;
        let bell = sleep.doorbell.load(Ordering::SeqCst);
        if self.arm() {
            let port = At::Port(self.at.port.index);
            tally::waits(&self.at.member, Wait::Sleeping(port));
            mark!("sleep.before_futex");
            probe!(SleepArmed);
            let about = About::port(self.at.port.index);
            let _ = self.at.member.during(EventKind::Sleep, about, || {
                let doorbell = &self.at.queue().port.sleep.doorbell;
                futex::wait(doorbell, bell, deadline.instant())
            });
            probe!(SleepWoken);
            tally::waits(&self.at.member, Wait::Spinning(port));
        }
        self.disarm();
        probe!(SleepDisarmed);
    }

    /// Says to all senders that this port must be woken; `false` if something is there.
    pub(crate) fn arm(&mut self) -> bool {
        let queue = self.at.queue();
        queue.arm(&mut self.cursor) && queue.port.sleep.events.load(Ordering::SeqCst) == 0
    }

    pub(crate) fn disarm(&mut self) {
        self.at.queue().disarm(&mut self.cursor);
    }

    /// Chooses how this port waits.
    pub fn set_waiting(&mut self, waiting: Waiting) {
        self.waiting = waiting;
    }

    /// A new send right on this port.
    ///
    /// If the port died at this instant the right is a dead name, as it would be a moment later.
    pub fn make_send(&self) -> SendRight {
        SendRight::make_counted(self.at.clone())
    }

    /// A new send-once right on this port.
    pub fn make_send_once(&self) -> SendOnceRight {
        SendOnceRight::make(self.at.clone())
    }

    /// Asks to be told, once, when no send right on this port is left anywhere
    /// ([`Notice::NoMoreSenders`]). If there is none now, it is told at once.
    pub fn request_no_more_senders(&self) {
        self.at
            .queue()
            .port
            .sleep
            .wanted
            .fetch_or(event::NO_MORE_SENDERS, Ordering::SeqCst);
        rights::check_senders(&self.at.member, self.at.port);
    }

    /// How many send rights there are, held or travelling.
    pub fn senders(&self) -> u32 {
        rights::senders(&self.at.member, self.at.port)
    }

    /// Messages that wait.
    pub fn depth(&self) -> usize {
        self.at.queue().depth()
    }

    /// The name under which others find it.
    pub fn name(&self) -> Option<String> {
        Some(read_text(&self.at.queue().port.name.words)).filter(|n| !n.is_empty())
    }

    pub(crate) fn at(&self) -> &Attached {
        &self.at
    }

    /// The bell of async receives, and the word that changes when something comes.
    #[cfg(feature = "tokio")]
    pub(crate) fn bell_and_word(
        &mut self,
    ) -> (
        &mut Option<crate::tokio::Bell>,
        &std::sync::atomic::AtomicU32,
    ) {
        (&mut self.bell, &self.at.queue().port.sleep.doorbell)
    }

    /// Lays the port down, to be sent: what was taken is retired, so that the next receiver
    /// finds nothing of ours.
    pub(crate) fn lay_down(&mut self) {
        self.disarm();
        self.settle();
    }

    /// About to be published at `destination`: from here on the port is *moving*, and the
    /// slot decides whose it is. Its queue stays where it is, in order.
    pub(super) fn leave(&self, destination: Destination) {
        self.at
            .queue()
            .port
            .control
            .transit
            .store(destination.0, Ordering::Relaxed);
        rights::set_phase(
            &self.at.member,
            self.at.port,
            PortPhase::Moving,
            self.at.member.space,
        );
        mark!("right.receive_leaves");
    }

    /// It was not published after all.
    pub(super) fn stay(&self) {
        rights::set_phase(
            &self.at.member,
            self.at.port,
            PortPhase::Open,
            self.at.member.space,
        );
    }

    pub(super) fn given(mut self) {
        self.given = true;
    }

    /// A receive right came in a message that we are about to take: the port is ours.
    pub(super) fn arrive(member: &Member, port: PortName) {
        rights::set_phase(member, port, PortPhase::Open, member.space);
    }

    /// The handle of a receive right that has arrived.
    pub(super) fn resumed(at: Attached) -> Option<Self> {
        let status = portolan_abi::port::PortStatus::unpack(
            at.queue().port.control.status.load(Ordering::Acquire),
        );
        (status.generation == at.port.generation).then(|| Self::new(at, status.by_urgency))
    }
}

impl Drop for ReceiveRight {
    fn drop(&mut self) {
        if !self.given && self.at.member.present().is_ok() {
            close::close(&self.at.member, self.at.port.index);
        }
    }
}

impl From<ReceiveRight> for Right {
    fn from(right: ReceiveRight) -> Self {
        Self::Receive(right)
    }
}

impl std::fmt::Debug for ReceiveRight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveRight")
            .field("port", &self.at.port)
            .field("name", &self.name())
            .finish()
    }
}
