//! A receive right looks for a message, takes it, and waits if there is none.

mod interrupt;
mod look;
mod origin;
mod wait;

pub(crate) use interrupt::Bell;
pub(super) use look::Short;
pub use look::Straight;
pub(super) use origin::Origin;

use super::rights::{self, Right};
use super::{SendOnceRight, SendRight, close, lent, senders};
use crate::port::message::{Message, Notice};
use crate::port::sealed::SealedStore;
use crate::space::Member;
use crate::space::record::About;
use crate::space::region::Attached;
use crate::wait::{Patience, Waiting};
use crate::{Deadline, Disowned, Extent, NoDescriptor};
use portolan_abi::owner::{Destination, Size};
use portolan_abi::port::{PortName, PortPhase, RightWord, event};
use portolan_abi::slot::Kind;
use portolan_abi::trace::EventKind;
use portolan_shm::mark;
use portolan_shm::queue::{Cursor, Found};
use portolan_shm::region::read_text;
use std::sync::atomic::Ordering;

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
    /// The way to the client that asked last: most ask again.
    client: Option<Box<Attached>>,
    /// What an async receive waits with.
    #[cfg(feature = "tokio")]
    bell: Option<crate::wait::Bell>,
}

/// The queue is closed.
pub(super) struct QueueClosed;

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
            client: None,
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
        match self.take_short(Kind::Message) {
            Ok(short) => {
                // It has no pages to open.
                probe!(ReceiveOpened);
                Ok(Message::short_of(short.header, short.words))
            }
            Err(Some(found)) => self.receive_found(found, access),
            Err(None) => self.receive_any(access, deadline.into()),
        }
    }

    /// The same, of the message that was found.
    #[inline(never)]
    fn receive_found(&mut self, found: Found, access: Access) -> Result<Message, ReceiveError> {
        if let Some((short, extent)) = self.take_one(found) {
            if access == Access::Now {
                // Its pages and not itself, which stays in registers so.
                self.open_now(std::iter::once(extent.pages()), extent.len());
            }
            probe!(ReceiveOpened);
            return Ok(Message::one_of(short.header, short.words, extent));
        }
        let mut message = Message::default();
        match self.receive_any_into(&mut message, Some(found), access, Deadline::NOW) {
            Ok(()) => Ok(message),
            Err(error) => Err(error),
        }
    }

    /// The same, of any message, waiting for one.
    #[inline(never)]
    fn receive_any(&mut self, access: Access, deadline: Deadline) -> Result<Message, ReceiveError> {
        if deadline.is_now() && self.at.member.present().is_ok() && self.finds_nothing() {
            self.settle();
            return Err(ReceiveError::TimedOut);
        }
        let mut message = Message::default();
        match self.receive_any_into(&mut message, None, access, deadline) {
            Ok(()) => Ok(message),
            Err(error) => Err(error),
        }
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
        match self.take_short(Kind::Message) {
            Ok(short) => {
                message.set_words(short.header, short.words);
                probe!(ReceiveOpened);
                Ok(())
            }
            Err(Some(found)) => self.receive_found_into(message, found, access),
            Err(None) => self.receive_any_into(message, None, access, deadline.into()),
        }
    }

    /// The same, of the message that was found.
    #[inline(never)]
    fn receive_found_into(
        &mut self,
        message: &mut Message,
        found: Found,
        access: Access,
    ) -> Result<(), ReceiveError> {
        let Some((short, extent)) = self.take_one(found) else {
            return self.receive_any_into(message, Some(found), access, Deadline::NOW);
        };
        if access == Access::Now {
            self.open_now(std::iter::once(extent.pages()), extent.len());
        }
        message.set_words(short.header, short.words);
        message.set_only_extent(extent);
        probe!(ReceiveOpened);
        Ok(())
    }

    /// The same, of any message: the one that was found, or else waiting for one.
    #[inline(never)]
    fn receive_any_into(
        &mut self,
        message: &mut Message,
        found: Option<Found>,
        access: Access,
        deadline: Deadline,
    ) -> Result<(), ReceiveError> {
        let origin = match found {
            Some(found) => self.take_found(found, message),
            None => self.next(message, deadline)?,
        };
        self.finish(origin, message, access)
    }

    #[inline]
    pub(super) fn finish(
        &mut self,
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
    fn refuse(&mut self, origin: Origin, message: &mut Message) -> ReceiveError {
        message.clear();
        drop(origin.reply().map(|word| self.once(word)));
        ReceiveError::WrongKind("asynchronous", "send, and receive")
    }

    #[inline]
    pub(super) fn once(&mut self, word: RightWord) -> Option<SendOnceRight> {
        let client = match &self.client {
            Some(client) if client.port == word.port => Attached::clone(client),
            _ => self.other_client(word.port)?,
        };
        Some(SendOnceRight::new(client, word.tag))
    }

    /// Finds the way to a client that is not the last one's.
    #[cold]
    fn other_client(&mut self, port: PortName) -> Option<Attached> {
        let client = Attached::new(&self.at.member, port)?;
        self.client = Some(Box::new(client.clone()));
        Some(client)
    }

    /// Opens the message's pages as the hint says.
    #[inline]
    pub(super) fn open(&self, message: &Message, access: Access) {
        if access == Access::Now && !message.extents.is_empty() {
            self.open_now(message.extents().iter().map(Extent::pages), message.len());
        }
    }

    /// Opens the extents of a message, which has so many bytes.
    #[cold]
    fn open_now(&self, extents: impl Iterator<Item = (u32, Size)> + Clone, bytes: usize) {
        let member = &self.at.member;
        let first = extents.clone().next().map_or(0, |(page, _)| page);
        let about = About::pages(first, bytes as u64);
        member.during(EventKind::Map, about, || match &member.guard {
            Some(guard) => guard.open(extents),
            None => extents.for_each(|(page, size)| crate::space::extent::map(member, page, size)),
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
    /// ([`Notice::NoMoreSenders`]). If there is none now, the notice comes at once.
    pub fn request_no_more_senders(&self) {
        self.at
            .queue()
            .port
            .sleep
            .wanted
            .fetch_or(event::NO_MORE_SENDERS, Ordering::SeqCst);
        lent::tell(&self.at.member, self.at.port.index);
        rights::check_senders(&self.at.member, self.at.port);
    }

    /// How many send rights there are, held or travelling.
    pub fn senders(&self) -> u32 {
        senders::senders(&self.at.member, self.at.port)
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
        &mut Option<crate::wait::Bell>,
        &std::sync::atomic::AtomicU32,
    ) {
        (&mut self.bell, &self.at.queue().port.sleep.doorbell)
    }

    /// Has an async receive that was given up leave the doorbell: a sender wakes one sleeper, and
    /// that is to be the calling thread. Before it says that it sleeps.
    #[inline]
    pub(crate) fn hush(&mut self) {
        #[cfg(feature = "tokio")]
        if let Some(bell) = &mut self.bell {
            bell.disarm();
        }
    }

    /// Lays the port down, to be sent: what was taken is retired, so that the next receiver
    /// finds nothing of ours.
    pub(crate) fn lay_down(&mut self) {
        self.at.member.part::<SealedStore>().leaves(self.at.port);
        self.disarm();
        self.settle();
    }

    /// Whether nothing waits here that cannot go to another process.
    pub(crate) fn may_leave(&self) -> bool {
        !self.at.member.part::<SealedStore>().holds(self.at.port)
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
        at.member.part::<SealedStore>().stays(at.port);
        (status.generation == at.port.generation).then(|| Self::new(at, status.by_urgency))
    }
}

impl Drop for ReceiveRight {
    fn drop(&mut self) {
        if !self.given && self.at.member.present().is_ok() {
            self.at.member.part::<SealedStore>().stays(self.at.port);
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
