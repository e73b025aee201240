//! The straight line of a send, for functions that other programs call: the C ABI.
//!
//! Such a function is not inlined into its caller, so it saves each register that a value keeps
//! over a call. What stands here calls nothing: it does the usual case whole, or says how far it
//! came, and [`SendRight::finish`], which the usual case never enters, does the rest.
//!
//! # Count
//!
//! Of the C ABI's whole function for a null message (x86-64, rustc 1.95; `objdump -d libportolan_c.so`):
//!
//! | step | instructions |
//! |---|---|
//! | two handles, looked up and let go | 20 |
//! | what the message holds; a forked child, a port that needs more, a tracer | 14 |
//! | the port takes it: before the claim, and after it | 15 |
//! | claim | 18 |
//! | meta word and six words of header | 14 |
//! | publish, and where the next one goes | 8 |
//! | the message is empty; the receiver is awake | 6 |
//! | count | 11 |
//! | registers saved and restored; answer and return | 10 |
//!
//! # Where it ends
//!
//! ```text
//! send_straight: checked --> claimed --> published --> counted: Ok
//!                   |           |            |            |
//!                   v           v            v            v
//!                Unsent      Claimed       Closed       Posted  --finish--> as `send_from`
//! ```

use super::{Any, Carried, Posted, SendError, Unpublished, WhenFull, check_extent, deliver};
use super::{given, is_straight, publish, take_back, takes, wake};
use crate::Extent;
use crate::port::SendRight;
use crate::port::message::Message;
use crate::port::wire::Plan;
use crate::space::{Member, counters};
use portolan_abi::slot::Kind;
use portolan_shm::queue::AtSpot;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How far [`SendRight::send_straight`] came.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
#[must_use = "a slot may be claimed, or a receiver be waiting for its wake"]
pub enum Unfinished {
    /// Nothing was done.
    Unsent,
    /// The slot at this position is claimed, for a port that does not take the message.
    Claimed(u64),
    /// The message was published at this position into a port that was closed meanwhile.
    Closed(u64),
    /// It was sent at this position, and is to be counted.
    Posted(u64),
    /// The same, and its receiver may sleep.
    Wakes(u64),
}

/// What an extent that was sent had kept mapped.
#[doc(hidden)]
#[must_use = "it is dropped at a place of the caller's choice"]
#[expect(dead_code, reason = "it is dropped, and not looked at")]
pub struct Given(Option<Arc<Member>>);

impl SendRight {
    /// The straight line of [`SendRight::send_from`]: a short header and nothing else, to a port with
    /// room, whose receiver is awake. What was begun is to be [finished](Self::finish).
    #[doc(hidden)]
    #[inline(always)]
    pub fn send_straight(&self, message: &mut Message) -> Result<(), Unfinished> {
        let to = &self.to;
        if !message.is_header_only() || !is_straight(to) {
            return Err(Unfinished::Unsent);
        }
        probe!(SendCalled);
        probe!(SendChecked);
        let Some(plan) = Plan::short(message, Kind::Message, None, None) else {
            return Err(Unfinished::Unsent);
        };
        probe!(SendPlanned);
        let posted = self.post_straight(message, &plan, ())?;
        message.emptied();
        self.count_straight(posted, 0)
    }

    /// The same, of a short header and one extent and nothing else. Once it was sent what is returned is to
    /// be dropped, after all else: that may call.
    #[doc(hidden)]
    #[inline(always)]
    pub fn send_extent_straight(&self, message: &mut Message) -> Result<Given, Unfinished> {
        let to = &self.to;
        let Some(extent) = message.only_extent().filter(|_| is_straight(to)) else {
            return Err(Unfinished::Unsent);
        };
        probe!(SendCalled);
        let Ok(held) = check_extent(to, &to.member.row(), extent) else {
            return Err(Unfinished::Unsent);
        };
        probe!(SendChecked);
        let Some(plan) = Plan::short(message, Kind::Message, None, Some(extent)) else {
            return Err(Unfinished::Unsent);
        };
        probe!(SendPlanned);
        let bytes = extent.len() as u64;
        let posted = self.post_straight(message, &plan, held)?;
        self.count_straight(posted, bytes)?;
        let extent = message.take_only_extent();
        message.emptied();
        Ok(Given(extent.and_then(Extent::give)))
    }

    /// One attempt, as `post_untraced`.
    #[inline(always)]
    fn post_straight(
        &self,
        message: &Message,
        plan: &Plan,
        carried: impl Carried,
    ) -> Result<Posted, Unfinished> {
        let to = &self.to;
        let (takes, queue) = (takes(to, Kind::Message), to.queue());
        let status = queue.port.control.status.load(Ordering::Acquire);
        if status & takes.0 != takes.1 {
            return Err(Unfinished::Unsent);
        }
        probe!(SendAdmitted);
        let AtSpot::Claimed(claim) = queue.claim_at_spot(&self.spot, to.member.space) else {
            return Err(Unfinished::Unsent);
        };
        publish(to, claim, takes, plan, message, carried).map_err(|unpublished| match unpublished {
            Unpublished::Refused { position, .. } => Unfinished::Claimed(position),
            Unpublished::Closed { position } => Unfinished::Closed(position),
        })
    }

    /// Counts what was sent, with so many bytes of extents.
    #[inline(always)]
    fn count_straight(&self, posted: Posted, bytes: u64) -> Result<(), Unfinished> {
        if posted.wakes {
            return Err(Unfinished::Wakes(posted.position));
        }
        if !counters::sent_by_hint(self.to.own().threads, &self.counts, bytes) {
            return Err(Unfinished::Posted(posted.position));
        }
        probe!(SendGiven);
        Ok(())
    }

    /// Goes on with what [`SendRight::send_straight`] has begun, as [`SendRight::send_from`].
    ///
    /// # Errors
    ///
    /// The reason.
    #[doc(hidden)]
    #[inline(never)]
    pub fn finish(
        &self,
        begun: Unfinished,
        message: &mut Message,
        when_full: impl Into<WhenFull>,
    ) -> Result<(), SendError> {
        let to = &self.to;
        let posted = match begun {
            Unfinished::Unsent => None,
            Unfinished::Claimed(position) => {
                if to.queue().abandon(position) {
                    wake(&to.member, to.queue(), to.port.index);
                }
                None
            }
            Unfinished::Closed(position) => {
                take_back(to, Any::of(&to.member, message), position);
                None
            }
            Unfinished::Posted(position) => Some((position, false)),
            Unfinished::Wakes(position) => Some((position, true)),
        };
        if let Some((position, wakes)) = posted {
            // What it carried is the receiver's since it was published.
            let bytes = given(message);
            message.emptied();
            Posted { position, wakes }.settle(to, bytes);
            self.counts.renew();
            return Ok(());
        }
        let when_full = when_full.into();
        deliver(to, &self.spot, Kind::Message, None, message, when_full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Straight;
    use crate::{Access, Deadline, Domain, PortOptions};
    use portolan_abi::owner::Destination;
    use portolan_abi::port::{PortPhase, PortStatus};
    use portolan_shm::queue::Published;

    #[test]
    fn what_was_begun_is_finished_from_wherever_it_stopped() {
        let domain = Domain::private().unwrap();
        let mut port = domain.bind(PortOptions::unnamed().queue(7)).unwrap();
        let right = port.make_send();
        let mut message = Message::new(b"one").unwrap();
        if let Err(begun) = right.send_straight(&mut message) {
            assert!(matches!(begun, Unfinished::Posted(_)), "{begun:?}");
            right.finish(begun, &mut message, WhenFull::Fail).unwrap();
        }
        // From the second one on this thread's line is known.
        assert_eq!(message.header(), b"");
        message.set_header(b"two").unwrap();
        assert!(right.send_straight(&mut message).is_ok());
        // A slot is claimed, and the port does not take the message: it does later.
        let queue = right.to.queue();
        let claim = || match queue.claim_at_spot(&right.spot, domain.space()) {
            AtSpot::Claimed(claim) => claim,
            AtSpot::Taken => panic!("no slot is free"),
        };
        let left = claim();
        let begun = Unfinished::Claimed(left.position());
        left.leave();
        message.set_header(b"three").unwrap();
        right.finish(begun, &mut message, WhenFull::Fail).unwrap();
        // What the straight line does not send.
        message.push(domain.allocate(100).unwrap()).unwrap();
        let begun = right.send_straight(&mut message).unwrap_err();
        assert!(matches!(begun, Unfinished::Unsent), "{begun:?}");
        assert_eq!(message.len(), 100);
        right.finish(begun, &mut message, WhenFull::Fail).unwrap();
        assert!(message.extents().is_empty());
        let survey = domain.survey().unwrap();
        assert_eq!(survey.spaces[0].sent, 4);

        // As they were sent, by the straight line or not; `take_at_head` takes nothing each half ring.
        let mut came = Message::default();
        for text in [&b"one"[..], b"two", b"three", b""] {
            if port.receive_straight(&mut came) != Straight::Taken {
                port.receive_into(&mut came, Access::Later, Deadline::NOW)
                    .unwrap();
            }
            assert_eq!(came.header(), text);
        }
        assert_eq!(came.len(), 100);
        came.clear();
        assert_eq!(port.receive_straight(&mut came), Straight::Nothing);
        for n in 0..100_u64 {
            message.set_header(&n.to_le_bytes()).unwrap();
            if let Err(begun) = right.send_straight(&mut message) {
                right.finish(begun, &mut message, WhenFull::Fail).unwrap();
            }
            if port.receive_straight(&mut came) != Straight::Taken {
                port.receive_into(&mut came, Access::Later, Deadline::NOW)
                    .unwrap();
            }
            assert_eq!(came.header(), n.to_le_bytes());
        }

        // The port is closed while a slot is claimed: the message is the sender's, and the entry is
        // given back.
        let held = claim();
        let position = held.position();
        drop(port);
        assert_eq!(held.publish(), Published::Closed);
        message.set_header(b"four").unwrap();
        let begun = Unfinished::Closed(position);
        let refused = right.finish(begun, &mut message, WhenFull::Fail);
        assert!(matches!(refused, Err(SendError::DeadName)), "{refused:?}");
        assert_eq!(message.header(), b"four");
        let begun = right.send_straight(&mut message).unwrap_err();
        assert!(matches!(begun, Unfinished::Unsent), "{begun:?}");
        let status = queue.port.control.status.load(Ordering::Acquire);
        assert!(matches!(PortStatus::unpack(status).phase, PortPhase::Free));
    }

    /// Bytes that members hold, and messages and bytes that this one has sent.
    fn counted(domain: &Domain) -> (u64, u64, u64) {
        let survey = domain.survey().unwrap();
        let space = &survey.spaces[0];
        (survey.memory.used, space.sent, space.sent_bytes)
    }

    #[test]
    fn an_extent_is_sent_and_received_by_straight_lines_and_counted() {
        let domain = Domain::private().unwrap();
        let mut port = domain.bind(PortOptions::unnamed().queue(7)).unwrap();
        let right = port.make_send();
        let (mut message, mut came) = (Message::default(), Message::default());
        let (mut sent, mut taken) = (0, 0);
        for n in 0..100_u8 {
            message.set_header(&[n; 32]).unwrap();
            let mut extent = domain.allocate(100).unwrap();
            extent.fill(n);
            message.push(extent).unwrap();
            match right.send_extent_straight(&mut message) {
                Ok(given) => {
                    sent += 1;
                    drop(given);
                }
                Err(begun) => {
                    // The first one of this thread.
                    assert!(
                        matches!((begun, n), (Unfinished::Posted(_), 0)),
                        "{begun:?}"
                    );
                    right.finish(begun, &mut message, WhenFull::Fail).unwrap();
                }
            }
            assert!(message.owns_nothing() && message.header().is_empty());
            // Each half ring what is there is left to the general way.
            match port.receive_straight(&mut came) {
                Straight::Found if port.receive_extent_straight(&mut came) => taken += 1,
                Straight::Found => port
                    .receive_into(&mut came, Access::Later, Deadline::NOW)
                    .unwrap(),
                other => panic!("{other:?}"),
            }
            assert_eq!(came.header(), [n; 32]);
            assert_eq!(&*came.extents()[0], [n; 100]);
            drop(came.take_only_extent().unwrap());
            assert!(came.owns_nothing());
        }
        assert!(sent >= 99 && taken > 50, "{sent} sent, {taken} received");
        assert_eq!(counted(&domain), (0, 100, 100 * 100));
        // What is no such message is left as it is, on both sides.
        message.push(domain.allocate(1).unwrap()).unwrap();
        message.push(domain.allocate(2).unwrap()).unwrap();
        let refused = right.send_extent_straight(&mut message).map(drop);
        assert!(matches!(refused, Err(Unfinished::Unsent)), "{refused:?}");
        right
            .finish(Unfinished::Unsent, &mut message, WhenFull::Fail)
            .unwrap();
        assert_eq!(port.receive_straight(&mut came), Straight::Found);
        assert!(!port.receive_extent_straight(&mut came));
        port.receive_into(&mut came, Access::Later, Deadline::NOW)
            .unwrap();
        assert_eq!(came.len(), 3);
        came.clear();
        assert!(!port.receive_extent_straight(&mut came));
    }

    #[test]
    fn an_extent_is_the_senders_again_where_its_port_was_closed_meanwhile() {
        let domain = Domain::private().unwrap();
        let port = domain.bind(PortOptions::unnamed().queue(7)).unwrap();
        let right = port.make_send();
        let mut message = Message::default();
        message.push(domain.allocate(100).unwrap()).unwrap();
        let claim = || match right.to.queue().claim_at_spot(&right.spot, domain.space()) {
            AtSpot::Claimed(claim) => claim,
            AtSpot::Taken => panic!("no slot is free"),
        };
        // A slot was claimed, and the port did not take it: it does now.
        let left = claim();
        let begun = Unfinished::Claimed(left.position());
        left.leave();
        right.finish(begun, &mut message, WhenFull::Fail).unwrap();
        assert!(message.owns_nothing());
        message.push(domain.allocate(100).unwrap()).unwrap();
        // The row says that it is on its way.
        let held = claim();
        let position = held.position();
        let destination = Destination::new(right.to.port.index, position);
        let member = domain.member();
        Any::of(member, &message).leave(member, destination);
        drop(port);
        assert_eq!(held.publish(), Published::Closed);
        let refused = right.finish(Unfinished::Closed(position), &mut message, WhenFull::Fail);
        assert!(matches!(refused, Err(SendError::DeadName)), "{refused:?}");
        assert_eq!(message.len(), 100);
        let extent = message.take_only_extent().unwrap();
        let row = member.row();
        assert!(
            row.check(extent.descriptor().page, extent.descriptor().generation)
                .is_ok()
        );
        drop(extent);
        assert_eq!(counted(&domain).0, 0);
    }

    #[test]
    fn a_receiver_that_sleeps_is_woken_for_an_extent() {
        let domain = Domain::private().unwrap();
        let mut port = domain.bind(PortOptions::unnamed().queue(7)).unwrap();
        let right = port.make_send();
        let sleeps = || domain.survey().unwrap().spaces[0].sleeping > 0;
        let message = |bytes| {
            let mut message = Message::default();
            message.push(domain.allocate(bytes).unwrap()).unwrap();
            message
        };
        std::thread::scope(|scope| {
            let receiver = scope.spawn(move || {
                let mut came = 0;
                while port.receive(Access::Later, Deadline::NEVER).unwrap().len() > 1 {
                    came += 1;
                }
                came
            });
            let (mut sent, mut wakes) = (0, false);
            while !wakes {
                while !sleeps() {
                    std::thread::yield_now();
                }
                let mut message = message(100);
                // It says that it sleeps a moment before it does.
                if let Err(begun) = right.send_extent_straight(&mut message).map(drop) {
                    wakes = matches!(begun, Unfinished::Wakes(_));
                    assert_eq!(message.len(), 100);
                    right.finish(begun, &mut message, WhenFull::Fail).unwrap();
                }
                assert!(message.owns_nothing());
                sent += 1;
            }
            right.send(message(1), WhenFull::Fail).unwrap();
            assert_eq!(receiver.join().unwrap(), sent);
        });
        assert_eq!(counted(&domain).0, 0);
    }
}
