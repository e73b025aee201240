//! Sends, receives, asks and answers.

use super::super::board::Entry;
use super::super::{Doing, payload};
use super::{HEADERS, KEPT, KEPT_EXTENTS, LONG, NAMES, SHORT, Worker, keep};
use portolan::channel::Channel;
use portolan::{
    Access, Deadline, Domain, Message, PendingReply, PortOptions, ReceiveError, ReceiveRight,
    Refused, RequestError, Right, SendError, Urgency, WaitSet, WhenFull,
};
use std::sync::atomic::Ordering;

impl Worker {
    /// A message of anything.
    pub(super) fn compose(&mut self) -> Message {
        let len = HEADERS[if self.random.once_in(4) {
            self.random.below(HEADERS.len())
        } else {
            self.random.below(3)
        }];
        let seed = self.random.next();
        let header = payload::header(seed, len);
        let in_place = self.random.once_in(2);
        let composed = match &self.domain {
            Some(domain) if in_place => domain.message(&header).ok(),
            _ => Message::new(&header).ok(),
        };
        let mut message = composed.unwrap_or_default();
        for _ in 0..self.random.below(5) {
            let held = if self.random.once_in(2) {
                self.holds.extents.pop()
            } else {
                None
            };
            let extent = held.or_else(|| self.extent());
            if let Some(extent) = extent {
                let end = message.extents().len();
                let at = self.random.below(end + 1);
                // Far from the limit.
                let _ = message.insert(at, extent);
            }
        }
        if self.random.once_in(4) {
            for _ in 0..=self.random.below(2) {
                if let Some(right) = self.right() {
                    let _ = message.attach(right);
                }
            }
        }
        match self.random.below(12) {
            0 => message.set_urgency(Some(Urgency::Priority(7))),
            1 => message.set_urgency(Some(Urgency::Deadline(std::time::Instant::now()))),
            _ => {}
        }
        message
    }

    fn right(&mut self) -> Option<Right> {
        match self.random.below(9) {
            6 => self.shared_right(),
            7.. => Some(self.holds.channels.give(&mut self.random)?.into()),
            0..3 => Some(self.own_port()?.make_send().into()),
            3 if !self.holds.sends.is_empty() => {
                let at = self.random.below(self.holds.sends.len());
                Some(self.holds.sends[at].clone().into())
            }
            4 => Some(self.own_port()?.make_send_once().into()),
            5 => self.holds.onces.pop().map(Right::from),
            _ => Some(self.holds.sends.pop()?.into()),
        }
    }

    fn own_port(&mut self) -> Option<&ReceiveRight> {
        let at = self.random.below(self.holds.ports.len() + 1);
        self.holds.ports.get(at).or(self.holds.inbox.as_ref())
    }

    pub(super) fn send(&mut self) {
        self.doing(Doing::Sending);
        let message = self.compose();
        self.post(message);
    }

    pub(super) fn when_full(&mut self) -> WhenFull {
        match self.random.below(4) {
            0 => WhenFull::Drop,
            1 => WhenFull::Wait(Deadline::after(SHORT)),
            _ => WhenFull::Fail,
        }
    }

    /// Sends a message somewhere; what cannot be sent is kept.
    fn post(&mut self, message: Message) {
        if self.holds.sends.is_empty() {
            self.connect();
        }
        let when_full = self.when_full();
        let at = self.random.below(self.holds.sends.len());
        let Some(right) = self.holds.sends.get(at) else {
            return self.absorb(message);
        };
        match right.send(message, when_full) {
            Ok(()) => {}
            Err(Refused {
                why: SendError::WrongKind(..),
                item,
            }) => {
                let asked = right.begin_request(*item, when_full);
                self.asked(asked);
            }
            Err(error) => self.unsent(at, error),
        }
    }

    fn unsent(&mut self, at: usize, error: Refused<Message, SendError>) {
        match error.why {
            SendError::Full { .. } | SendError::Allocate(_) => {}
            SendError::DeadName => drop(self.holds.sends.swap_remove(at)),
            other => self.corrupt(&format!("a message was refused: {other}")),
        }
        self.absorb(*error.item);
    }

    fn asked(&mut self, asked: Result<PendingReply, RequestError>) {
        match asked {
            Ok(pending) => {
                if self.holds.pending.len() >= KEPT {
                    drop(self.holds.pending.remove(0));
                }
                self.holds.pending.push(pending);
            }
            Err(error) => self.unasked(error),
        }
    }

    fn unasked(&mut self, error: RequestError) {
        match error {
            RequestError::Unsent(error) => self.absorb(*error.item),
            RequestError::NoReplyPort(_, message) => self.absorb(*message),
            _ => {}
        }
    }

    /// Takes everything out of a message and keeps some of it.
    pub(super) fn absorb(&mut self, mut message: Message) {
        if message.notice().is_none() && !payload::is_whole(message.header()) {
            self.corrupt("a header is not what was sent");
        }
        for extent in message.extents() {
            self.check(extent);
        }
        for right in message.take_rights() {
            match right {
                Right::Send(right) => keep(&mut self.holds.sends, right),
                Right::SendOnce(right) => keep(&mut self.holds.onces, right),
                Right::Receive(right) => keep(&mut self.holds.ports, right),
                Right::Shared(shared) => self.keep_shared(shared),
                Right::Segment(segment) => match Channel::try_from(segment) {
                    Ok(channel) => self.holds.channels.take(channel),
                    Err(refused) => self.corrupt(&refused.to_string()),
                },
                _ => {}
            }
        }
        let extents = message.split_off(0);
        for mut extent in extents {
            if self.random.once_in(2) && self.holds.extents.len() < KEPT_EXTENTS {
                if self.random.once_in(2) {
                    let seed = self.random.next();
                    payload::stamp(&mut extent, seed);
                }
                self.holds.extents.push(extent);
            }
        }
    }

    pub(super) fn receive(&mut self) {
        let long = self.at % 2 == 1 && self.random.once_in(40);
        if long {
            // Who waits for us meanwhile shall not.
            self.holds.onces.clear();
            self.close_bridge();
        }
        let at = self.random.below(self.holds.ports.len() + 1);
        let later = self.random.once_in(2);
        let access = if later { Access::Later } else { Access::Now };
        let deadline = match self.random.below(4) {
            0 => Deadline::after(SHORT),
            _ => Deadline::NOW,
        };
        self.doing(if long {
            Doing::Waiting
        } else {
            Doing::Receiving
        });
        let requests = at < self.holds.ports.len() && !long;
        let (port, deadline) = match self.holds.ports.get_mut(at) {
            Some(port) if !long => (Some(port), deadline),
            _ => (
                self.holds.inbox.as_mut(),
                if long {
                    Deadline::after(LONG)
                } else {
                    deadline
                },
            ),
        };
        let Some(port) = port else { return };
        let received = if requests {
            port.get_request(access, deadline)
                .map(|r| (r.wants_reply(), r.into_parts()))
        } else {
            port.receive(access, deadline).map(|m| (false, (m, None)))
        };
        self.doing(Doing::Receiving);
        let (wants, (message, once)) = match received {
            Ok(received) => received,
            Err(ReceiveError::Closed) if requests => {
                return drop(self.holds.ports.swap_remove(at));
            }
            Err(_) => return,
        };
        self.board
            .of(self.at, Entry::Received)
            .fetch_add(1, Ordering::Relaxed);
        if message.notice().is_some() {
            return;
        }
        if let (true, Some(once)) = (wants, once) {
            match self.random.below(4) {
                0 => {
                    // In place: as it came.
                    let _ = once.send(message).map_err(|e| self.absorb(*e.item));
                    return;
                }
                1 => drop(once),
                2 => {
                    self.doing(Doing::Serving);
                    let answer = self.compose();
                    let _ = once.send(answer).map_err(|e| self.absorb(*e.item));
                }
                _ => keep(&mut self.holds.onces, once),
            }
        }
        if self.random.once_in(3) {
            // On it goes, header, rights and all.
            for extent in message.extents() {
                self.check(extent);
            }
            self.doing(Doing::Forwarding);
            return self.forward(message);
        }
        self.absorb(message);
    }

    /// Makes two ports that hold one another, so that no space can reach them, and has them closed,
    /// as a space that is short of memory does. If the worker dies before, the host closes them.
    pub(super) fn tie_a_cycle(&mut self) {
        self.doing(Doing::Sending);
        let Some(domain) = self.domain.clone() else {
            return;
        };
        if tie(&domain).is_none() {
            return;
        }
        // There is never so much.
        drop(domain.allocate(1 << 40));
    }

    /// Makes a wait set, or waits in it, or drops it with its ports.
    pub(super) fn wait_in_set(&mut self) {
        self.doing(Doing::Receiving);
        let Some(domain) = &self.domain else { return };
        let Some(set) = &mut self.holds.set else {
            self.holds.set = WaitSet::new(domain).ok();
            return;
        };
        if self.random.once_in(30) {
            self.holds.set = None;
            return;
        }
        if set.len() < 3 {
            let name = NAMES[self.random.below(3)];
            // What `doing` does; the set is borrowed.
            let doing = |doing: Doing| self.board.set(self.at, Entry::Doing, doing as u64);
            doing(Doing::Binding);
            let bound = domain.bind(PortOptions::named(name).queue(3));
            doing(Doing::Receiving);
            if let Ok(port) = bound {
                keep(&mut self.holds.sends, port.make_send());
                // Refused only if it were of another domain.
                let _ = set.add(port);
            }
        }
        let ready: Vec<_> = set
            .wait(Deadline::after(SHORT))
            .into_iter()
            .flatten()
            .collect();
        let mut received = Vec::new();
        for token in ready {
            let port = set.get_mut(token.of::<portolan::ReceiveRight>());
            received.extend(port.and_then(|p| p.receive(Access::Later, Deadline::NOW).ok()));
        }
        for message in received {
            self.board
                .of(self.at, Entry::Received)
                .fetch_add(1, Ordering::Relaxed);
            self.absorb(message);
        }
    }

    fn forward(&mut self, mut message: Message) {
        for right in message.take_rights() {
            match right {
                Right::Receive(port) => keep(&mut self.holds.ports, port),
                // As many as came fit.
                other => drop(message.attach(other)),
            }
        }
        self.post(message);
    }

    pub(super) fn request(&mut self) {
        self.doing(Doing::Requesting);
        if self.holds.sends.is_empty() {
            return self.connect();
        }
        let message = self.compose();
        let at = self.random.below(self.holds.sends.len());
        let Some(right) = self.holds.sends.get(at) else {
            return self.absorb(message);
        };
        if self.random.once_in(3) {
            match right.request_reply(message, Access::Later, Deadline::after(SHORT)) {
                Ok(answer) => self.absorb(answer),
                Err(error) => self.unasked(error),
            }
        } else {
            let asked = right.begin_request(message, WhenFull::Fail);
            self.asked(asked);
        }
    }

    /// Answers an open request.
    pub(super) fn answer(&mut self) {
        self.doing(Doing::Serving);
        if self.holds.onces.is_empty() {
            return;
        }
        let at = self.random.below(self.holds.onces.len());
        let once = self.holds.onces.swap_remove(at);
        if self.random.once_in(4) {
            return drop(once);
        }
        let answer = self.compose();
        let _ = once.send(answer).map_err(|e| self.absorb(*e.item));
    }

    pub(super) fn take_answer(&mut self) {
        self.doing(Doing::Requesting);
        if self.holds.pending.is_empty() {
            return;
        }
        let at = self.random.below(self.holds.pending.len());
        let deadline = if self.random.once_in(2) {
            Deadline::NOW
        } else {
            Deadline::after(SHORT)
        };
        match self.holds.pending[at].wait(Access::Now, deadline) {
            Ok(answer) => {
                drop(self.holds.pending.swap_remove(at));
                self.absorb(answer);
            }
            Err(RequestError::TimedOut) if !self.random.once_in(50) => {}
            Err(_) => drop(self.holds.pending.swap_remove(at)),
        }
    }
}

/// Makes two ports that hold one another.
pub(super) fn tie(domain: &Domain) -> Option<()> {
    let bind = || domain.bind(PortOptions::unnamed()).ok();
    let (one, other) = bind().zip(bind())?;
    let (to_one, to_other) = (one.make_send(), other.make_send());
    for (to, port) in [(to_other, one), (to_one, other)] {
        let mut message = Message::default();
        // Far from the limit. What is refused is dropped, and its port closed.
        let _ = message.attach(port);
        drop(to.send(message, WhenFull::Fail));
    }
    Some(())
}
