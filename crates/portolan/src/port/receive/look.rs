//! One look: what is there is taken.

use super::{Origin, QueueClosed, ReceiveRight};
use crate::member::Member;
use crate::message::{Message, Notice};
use crate::port::rights::Right;
use crate::port::send;
use crate::port::watches;
use crate::port::wire::{self, Contents};
use crate::trace::{About, Begun};
use portolan_abi::port::{RightKind, RightWord, event};
use portolan_abi::slot::{Kind, Phase};
use portolan_abi::trace::EventKind;
use portolan_shm::mark;
use portolan_shm::queue::{Found, Next, Slot, Woken};
use std::sync::atomic::Ordering;

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
            let (token, more) = watches::take_fired(&self.at.member, self.at.port)?;
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
}
