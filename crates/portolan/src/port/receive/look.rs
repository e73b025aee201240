//! Looks at a port's queue once, and takes the next message, if there is one.

use super::{Origin, QueueClosed, ReceiveRight};
use crate::Extent;
use crate::port::message::{INLINE_HEADER, INLINE_WORDS, Message, Notice};
use crate::port::rights::Right;
use crate::port::send;
use crate::port::senders;
use crate::port::watches;
use crate::port::wire::{self, Contents};
use crate::space::record::{About, Begun};
use portolan_abi::port::{RightKind, RightWord, event};
use portolan_abi::slot::{Kind, Meta, Phase};
use portolan_abi::trace::EventKind;
use portolan_shm::mark;
use portolan_shm::queue::{Found, Next, Slot, Woken};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A short header that was taken from a slot, and what it is.
pub(in crate::port) struct Short {
    pub(in crate::port) origin: Origin,
    pub(in crate::port) header: usize,
    pub(in crate::port) words: [u64; INLINE_WORDS],
}

/// What [`ReceiveRight::receive_straight`] has done.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a message that was found is still in the port"]
pub enum Straight {
    /// A message was taken.
    Taken,
    /// Nothing was taken: the next message is there, and is more than a short header.
    Found,
    /// Nothing was taken.
    Nothing,
}

/// The length of a slot's header, if its meta word says that, at most so much, and this otherwise.
#[inline(always)]
fn length(slot: Slot<'_>, meta: u64, most: usize) -> Option<usize> {
    let length = usize::try_from(slot.meta().wrapping_sub(meta)).ok()?;
    (length <= most).then_some(length)
}

/// Bytes of a message's extents, if it has any.
#[inline]
fn bytes_of(message: &Message) -> Option<usize> {
    (!message.extents.is_empty()).then(|| message.len())
}

impl ReceiveRight {
    /// Looks once.
    #[inline]
    pub(super) fn look(&mut self, message: &mut Message) -> Result<Option<Origin>, QueueClosed> {
        if self.by_urgency {
            return self.look_by_urgency(message);
        }
        match self.at.queue().next(&mut self.cursor) {
            Next::Found(found) => Ok(Some(self.take(found, message))),
            Next::Empty => Ok(self.event(message)),
            Next::Closed => Err(QueueClosed),
        }
    }

    /// The straight line: the next message, if it is there, is of this kind, and has a short header
    /// and perhaps a reply word and nothing else, while no tracer records. Otherwise nothing is
    /// taken: [`Self::take_found`] takes what was found, and [`Self::next`] looks further.
    #[inline(always)]
    pub(in crate::port) fn take_short(&mut self, kind: Kind) -> Result<Short, Option<Found>> {
        // The first of these before our own lines are looked at: a forked child has none.
        if self.at.member.present().is_err()
            || self.at.traces(EventKind::Receive)
            || self.by_urgency
        {
            return Err(None);
        }
        // By value: what is behind a reference is loaded again after each atomic.
        let queue = *self.at.queue();
        let Some((found, slot)) = queue.at_head(&self.cursor) else {
            return Err(None);
        };
        let has_reply = kind != Kind::Message;
        let most = INLINE_HEADER - if has_reply { 8 } else { 0 };
        let Some(header) = length(slot, Meta::short(kind, has_reply, 0), most) else {
            return Err(Some(found));
        };
        probe!(ReceiveSeen);
        let line = slot.first_line();
        let (reply, words) = match has_reply {
            false => (0, line),
            true => {
                let [reply, a, b, c, d, e] = line;
                (reply, [a, b, c, d, e, 0])
            }
        };
        let origin = Origin::new(kind, reply);
        self.commit(found, origin, None);
        Ok(Short {
            origin,
            header,
            words,
        })
    }

    /// As [`ReceiveRight::receive_into`] of what [`Self::take_short`] takes, for functions that other
    /// programs call (the C ABI): it calls nothing. Where nothing was taken `message` may have
    /// another header.
    #[doc(hidden)]
    #[inline(always)]
    pub fn receive_straight(&mut self, message: &mut Message) -> Straight {
        // The second of these before our own lines are looked at: a forked child has none.
        if !message.is_header_only()
            || self.at.member.present().is_err()
            || self.at.traces(EventKind::Receive)
            || self.by_urgency
        {
            return Straight::Nothing;
        }
        // Not by value: to load a word again takes less than to save a register for it.
        let queue = self.at.queue();
        let Some((found, slot)) = queue.at_head(&self.cursor) else {
            return Straight::Nothing;
        };
        let short = Meta::short(Kind::Message, false, 0);
        let Some(header) = length(slot, short, INLINE_HEADER) else {
            return Straight::Found;
        };
        probe!(ReceiveSeen);
        message.emptied();
        slot.copy_first_line(message.words_of(header));
        mark!("receive.noted");
        probe!(ReceiveRead);
        // The line of no return.
        if !queue.take_at_head(&mut self.cursor, found) {
            return Straight::Nothing;
        }
        probe!(ReceiveTaken);
        probe!(ReceiveOpened);
        Straight::Taken
    }

    /// Goes on where [`Self::receive_straight`] has found a message that is more than a short header, if
    /// it is one with an extent and nothing else, in a domain that is not guarded: it calls nothing.
    /// `false`: nothing was taken. `message` is a short header still, and nothing else.
    #[doc(hidden)]
    #[inline(always)]
    pub fn receive_extent_straight(&mut self, message: &mut Message) -> bool {
        let member = &self.at.member;
        let queue = self.at.queue();
        // Looked for once more: that takes less than to carry over what was found.
        let Some((found, slot)) = queue.at_head(&self.cursor) else {
            return false;
        };
        let short = Meta::short(Kind::Message, false, 1);
        let Some(header) = length(slot, short, INLINE_HEADER - 16) else {
            return false;
        };
        let Some(turn) = queue.turn_at_head(&self.cursor, found) else {
            return false;
        };
        if member.guard.is_some() {
            return false;
        }
        probe!(ReceiveSeen);
        let mut words = [0; 2];
        slot.read(0, &mut words);
        let Some(descriptor) = wire::sound(member, words) else {
            return false;
        };
        probe!(ReceiveDescriptor);
        slot.read(2, &mut message.words_of(header)[..4]);
        // As `wire::hold`, of a member without a guard.
        let _ = member.row().hold(descriptor.page, descriptor.generation);
        message.put_only_extent(Extent::taken(member, descriptor));
        probe!(ReceiveHeld);
        mark!("receive.noted");
        probe!(ReceiveRead);
        // The line of no return.
        queue.take_in_turn(&mut self.cursor, found, turn);
        self.count_bytes(descriptor.len);
        probe!(ReceiveTaken);
        probe!(ReceiveOpened);
        true
    }

    /// Counts the bytes of extents that were taken.
    #[inline(always)]
    fn count_bytes(&self, bytes: u64) {
        let sum = &self.at.queue().port.receiver.bytes;
        // Relaxed: a counter with one writer; wrapping, should another scribble on it.
        let before = sum.load(Ordering::Relaxed);
        sum.store(before.wrapping_add(bytes), Ordering::Relaxed);
    }

    /// Takes a found message, if it is one with a short header and one extent and nothing else.
    #[inline(always)]
    pub(super) fn take_one(&mut self, found: Found) -> Option<(Short, Extent)> {
        let slot = self.at.queue().slot(found.position());
        let header = length(
            slot,
            Meta::short(Kind::Message, false, 1),
            INLINE_HEADER - 16,
        )?;
        probe!(ReceiveSeen);
        let [page, len, a, b, c, d] = slot.first_line();
        let extent = wire::take_extent(&self.at.member, [page, len])?;
        let origin = Origin::new(Kind::Message, 0);
        self.commit(found, origin, Some(extent.len()));
        let short = Short {
            origin,
            header,
            words: [a, b, c, d, 0, 0],
        };
        Some((short, extent))
    }

    /// Whether nothing is there to be taken, as far as one look tells.
    #[inline(always)]
    pub(super) fn finds_nothing(&self) -> bool {
        let queue = self.at.queue();
        !self.by_urgency
            && queue.is_empty_at_head(&self.cursor)
            && queue.port.sleep.events_of(self.at.port.generation) == 0
    }

    /// Takes a found message: all of it is ours before the queue is told.
    #[inline]
    fn take(&mut self, found: Found, message: &mut Message) -> Origin {
        if self.at.traces(EventKind::Receive) {
            return self.take_traced(found, message);
        }
        self.take_found(found, message)
    }

    /// The same, and recorded.
    #[cold]
    #[inline(never)]
    fn take_traced(&mut self, found: Found, message: &mut Message) -> Origin {
        let begun = Begun::now(EventKind::Receive);
        let position = found.position();
        let origin = self.take_found(found, message);
        let about = About::message(self.at.port.index, position, message.len() as u64);
        self.at.member.record(begun, about);
        origin
    }

    /// The same, without a record.
    #[inline]
    pub(super) fn take_found(&mut self, found: Found, message: &mut Message) -> Origin {
        probe!(ReceiveSeen);
        let slot = self.at.queue().slot(found.position());
        let Some(origin) = wire::read_plain(&self.at.member, &slot, message) else {
            return self.take_rich(found, message);
        };
        self.commit(found, origin, bytes_of(message));
        origin
    }

    /// Takes a message with rights, an urgency or a long header.
    #[cold]
    fn take_rich(&mut self, found: Found, message: &mut Message) -> Origin {
        let member = Arc::clone(&self.at.member);
        let contents = Contents::read(&member, &self.at.queue().slot(found.position()));
        // The rights first: once the header extent is ours, our death frees it, and nobody learns
        // of the rights that may be listed there, which are neither in our row nor closed.
        Right::arrive(&member, &contents.rights);
        mark!("receive.rights_noted");
        contents.all_extents().for_each(|d| wire::hold(&member, d));
        if let (Some(guard), Some(page)) = (&member.guard, contents.page) {
            // A header is read in any case, and a touch costs more than this.
            guard.open(std::iter::once((page.page, page.size)));
        }
        let origin = Origin::new(contents.kind, contents.reply.map_or(0, RightWord::pack));
        let rights = contents.rights.clone();
        contents.into_message(&member, message);
        self.commit(found, origin, bytes_of(message));
        Right::arrived(&member, &rights);
        origin
    }

    /// Tells the queue that the message, which was read and noted as ours, is taken; `bytes` are
    /// those of its extents, if it has any.
    #[inline(always)]
    fn commit(&mut self, found: Found, origin: Origin, bytes: Option<usize>) {
        let queue = self.at.queue();
        let member = &self.at.member;
        mark!("receive.noted");
        probe!(ReceiveRead);
        if let (Kind::Request, Some(reply)) = (origin.kind(), origin.reply()) {
            member.rights().hold_answer(reply.port, reply.tag);
        }
        // The line of no return.
        if queue.take(&mut self.cursor, found) == Woken::Senders {
            send::wake_senders(queue);
        }
        if let Some(bytes) = bytes {
            self.count_bytes(bytes as u64);
        }
        probe!(ReceiveTaken);
    }

    /// On a port by urgency everything published is passed over, then the most urgent taken.
    #[cold]
    fn look_by_urgency(&mut self, message: &mut Message) -> Result<Option<Origin>, QueueClosed> {
        let queue = self.at.queue();
        let urgency = |slot: &Slot<'_>| Contents::urgency(slot).unwrap_or(u64::MAX);
        queue.pass_published(&mut self.cursor, urgency);
        match queue.most_urgent(&self.cursor) {
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
        match self
            .at
            .queue()
            .port
            .sleep
            .events_of(self.at.port.generation)
        {
            0 => None,
            events => self.notice(events, message),
        }
    }

    #[cold]
    fn notice(&self, events: u32, message: &mut Message) -> Option<Origin> {
        let (member, port) = (&self.at.member, self.at.port);
        let entry = self.at.queue().port;
        let sleep = &entry.sleep;
        if events & event::UNANSWERED != 0 {
            sleep.take_event(event::UNANSWERED);
            // Another tag than ours is not for us.
            let tag = entry.unanswered(port)?;
            let kind = RightKind::SendOnce;
            let word = RightWord { kind, port, tag };
            return Some(Origin::new(Kind::ServerDead, word.pack()));
        }
        let notice = if events & event::NO_MORE_SENDERS != 0 {
            // Before the count: a right that is dropped after it raises the event again.
            sleep.take_event(event::NO_MORE_SENDERS);
            let asked = sleep.wanted.load(Ordering::SeqCst) & event::NO_MORE_SENDERS != 0;
            if !asked || !senders::is_unused(member, port) {
                // We were told already; or a new right was made since.
                return None;
            }
            sleep
                .wanted
                .fetch_and(!event::NO_MORE_SENDERS, Ordering::SeqCst);
            Notice::NoMoreSenders
        } else if events & event::REACH != 0 {
            // Before the look: a change after it raises the event again.
            sleep.take_event(event::REACH);
            let (token, is_out, more) = watches::take_reach(member, port)?;
            if more {
                sleep.raise(port.generation, event::REACH);
            }
            match is_out {
                true => Notice::Unreachable { token },
                false => Notice::Reachable { token },
            }
        } else if events & event::DEAD_NAME == 0 {
            // Of a node's port: its bits say what it is, and are looked at by who receives here.
            sleep.take_event(event::LENT);
            return None;
        } else {
            sleep.take_event(event::DEAD_NAME);
            let (token, more) = watches::take_fired(member, port)?;
            if more {
                sleep.raise(port.generation, event::DEAD_NAME);
            }
            Notice::DeadName { token }
        };
        message.set_notice(notice);
        Some(Origin::new(Kind::Message, 0))
    }

    /// Whether the next look may find something. A hint: a receiver that sleeps arms, and that
    /// decides.
    pub(crate) fn may_have(&mut self) -> bool {
        self.settle();
        let queue = self.at.queue();
        if queue.port.sleep.events_of(self.at.port.generation) != 0 {
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
        at_head || queue.has_late(&self.cursor)
    }

    /// Gives the slot read last back.
    #[inline]
    pub(crate) fn settle(&mut self) {
        let queue = self.at.queue();
        if queue.settle_all(&mut self.cursor) == Woken::Senders {
            send::wake_senders(queue);
        }
    }
}
