//! Messages that are passed on to a port of this machine, and messages that go once more: the port of a
//! proxy has come here, or has moved.
//!
//! ```text
//! the port has come here    back, then the proxy's queue ---> the port's own queue
//! it has moved              back, then the proxy's queue ---> the flow to its home
//! ```
//!
//! What is `back` was taken off the proxy, and is not in the port: it was sent to an earlier home that had
//! no room for it any more, or it gives away a port that has not arrived. It goes before all else.

use std::rc::Rc;
use std::time::Duration;

use portolan::proxy::{Answer, Taken};
use portolan::{
    Domain, Message, Notice, ReceiveError, Refused, Right, Room, SendError, SendRight, Token,
    WhenFull,
};
use portolan_proto::node::{self, DomainKey, FlowKey, PortKey, Returned};

use super::super::Engine;
use super::super::machine::{Machine, Waits};
use super::super::payload::Payload;
use super::super::spans::Thing;
use super::Proxy;

/// How soon it is tried again when there was no memory.
pub(super) const AGAIN: Duration = Duration::from_millis(10);

/// Where a proxy's messages go whose port is of this machine.
#[derive(Debug)]
pub(super) struct Here {
    pub(super) port: PortKey,
    pub(super) right: SendRight,
    /// It is full, and its room is waited for.
    pub(super) room: Option<Token<Room>>,
}

/// A message that goes once more; of a request with the right to answer it.
#[derive(Debug)]
pub(super) enum Back {
    Whole(Message, Option<Answer>),
    /// Its bytes may still be written to a connection with the port's earlier home.
    Shared(Rc<Message>, Vec<Right>, Option<Answer>),
}

/// What came of passing one on.
enum Passed {
    One,
    /// There is nothing more.
    All,
    /// It goes on later, or the proxy is closed.
    Waits,
}

impl Machine {
    /// A message that goes once more, as it was; itself, if there is no memory for it now.
    fn whole(&self, domain: DomainKey, back: Back) -> Result<(Message, Option<Answer>), Box<Back>> {
        let (shared, rights, answer) = match back {
            Back::Whole(message, answer) => return Ok((message, answer)),
            Back::Shared(shared, rights, answer) => (shared, rights, answer),
        };
        let mut message = match Rc::try_unwrap(shared) {
            Ok(message) => message,
            // Once, because its port has moved while it was being written.
            Err(shared) => match self
                .spans
                .get(&domain)
                .and_then(|it| copy(&it.domain, &shared))
            {
                Some(copy) => copy,
                None => return Err(Box::new(Back::Shared(shared, rights, answer))),
            },
        };
        for right in rights {
            // As many as it had before.
            let _ = message.attach(right);
        }
        Ok((message, answer))
    }
}

/// The same bytes, in memory of their own.
fn copy(domain: &Domain, message: &Message) -> Option<Message> {
    let mut copy = domain.message(message.header()).ok()?;
    for piece in message.slices() {
        let mut extent = domain.allocate(piece.len()).ok()?;
        extent.copy_from_slice(piece);
        copy.push(extent).ok()?;
    }
    copy.set_urgency(message.urgency());
    Some(copy)
}

impl Engine {
    /// Takes the next off a proxy's queue. What cannot travel was dropped, and is counted; the backlog gets
    /// shorter.
    pub(super) fn take_off(&mut self, id: u64) -> Option<Result<Taken, ReceiveError>> {
        let (taken, behind) = self.port_of(id, |port| {
            let taken = port.take(portolan::Deadline::NOW);
            (taken, port.left_behind())
        })?;
        let proxy = self.proxies.all.get_mut(&id)?;
        let dropped = behind.saturating_sub(proxy.behind);
        proxy.behind = behind;
        self.machine.left_behind += dropped;
        if let Some(left) = &mut proxy.backlog {
            let dropped = usize::try_from(dropped).unwrap_or(usize::MAX);
            let is_one = !matches!(taken, Ok(Taken::Notice(_)) | Err(_));
            *left = left.saturating_sub(dropped.saturating_add(usize::from(is_one)));
            if matches!(taken, Err(ReceiveError::TimedOut)) {
                // All that peers had put into it lies before anything that is not there yet.
                *left = 0;
            }
        }
        if let Some((gone, left)) = &mut proxy.behind_lost {
            let (is_behind, gone) = (*left > 0, *gone);
            let is_one = usize::from(!matches!(taken, Err(ReceiveError::TimedOut)));
            *left = left.saturating_sub(usize::try_from(dropped).unwrap_or(usize::MAX) + is_one);
            if is_behind && let Ok(Taken::Flush(answer)) = taken {
                // Not all that was sent before is there.
                answer.node_lost(&self.machine.name_of(gone));
                return self.take_off(id);
            }
        }
        Some(taken)
    }

    /// Says that the backlog of a port that has left was sent, if it was.
    pub(super) fn end_backlog(&mut self, id: u64) {
        let Some(proxy) = self.proxies.all.get_mut(&id) else {
            return;
        };
        let is_sent = proxy.held.is_none() && proxy.back.is_empty();
        if let Some(flow) = proxy.flow
            && is_sent
            && proxy.backlog == Some(0)
        {
            proxy.backlog = None;
            // If there is no such flow, its new home is given up.
            let _ = self.node.backlog_ends(flow);
        }
    }

    /// Sends one on by a flow that goes once more; whether there may be more.
    pub(super) fn send_back(&mut self, id: u64, back: Back) -> bool {
        let Some(domain) = self.proxies.all.get(&id).map(|proxy| proxy.domain) else {
            return false;
        };
        match self.machine.whole(domain, back) {
            Ok((message, Some(answer))) => self.send_on(id, Taken::Request(message, answer)),
            Ok((message, None)) => self.send_on(id, Taken::Message(message)),
            Err(back) => {
                self.goes_later(id, *back);
                false
            }
        }
    }

    /// There is no memory for a message now.
    fn goes_later(&mut self, id: u64, back: Back) {
        if let Some(proxy) = self.proxies.all.get_mut(&id) {
            proxy.back.push_front(back);
        }
        let again = self.machine.now + AGAIN;
        self.proxies.set_again(id, Some(again));
        self.park(id);
    }

    /// Goes on with the proxies for whose messages there was no memory.
    pub(in crate::engine) fn try_again(&mut self) {
        let now = self.machine.now;
        let due: Vec<u64> = self.proxies.again.until(now).collect();
        for id in due {
            self.proxies.set_again(id, None);
            self.unpark(id);
        }
    }

    /// What is back and was not sent in this turn goes in the next one: no wait names it.
    pub(super) fn go_on_with_back(&mut self, id: u64) {
        let now = self.machine.now;
        if let Some(proxy) = self.proxies.all.get(&id)
            && !proxy.back.is_empty()
            && proxy.again.is_none()
        {
            self.proxies.set_again(id, Some(now));
        }
    }

    // The port is of this machine.

    /// Passes on what programs have sent to a proxy whose port is here; `false` if it goes on later, or the
    /// proxy is closed.
    pub(super) fn pass_some_on(&mut self, id: u64, most: usize) -> bool {
        for _ in 0..most {
            match self.pass_on(id) {
                Passed::One => {}
                Passed::All => return true,
                Passed::Waits => return false,
            }
        }
        self.go_on_with_back(id);
        true
    }

    fn pass_on(&mut self, id: u64) -> Passed {
        let Some(proxy) = self.proxies.all.get_mut(&id) else {
            return Passed::Waits;
        };
        let Some(here) = &proxy.here else {
            return Passed::Waits;
        };
        if !here.right.is_live() {
            self.close_proxy(id);
            return Passed::Waits;
        }
        if !here.right.room().is_there() {
            self.await_room(id);
            return Passed::Waits;
        }
        let (domain, synchronous, right) = (proxy.domain, proxy.synchronous, here.right.clone());
        let taken = match proxy.back.pop_front() {
            Some(back) => match self.machine.whole(domain, back) {
                Ok((message, Some(answer))) => Taken::Request(message, answer),
                Ok((message, None)) => Taken::Message(message),
                Err(back) => {
                    self.goes_later(id, *back);
                    return Passed::Waits;
                }
            },
            None => match self.take_off(id) {
                Some(Ok(taken)) => taken,
                Some(Err(ReceiveError::TimedOut)) => return Passed::All,
                Some(Err(_)) | None => {
                    self.close_proxy(id);
                    return Passed::Waits;
                }
            },
        };
        let refused = match taken {
            Taken::Message(message) | Taken::Once(message) if !synchronous => {
                let refused = right.send(message, WhenFull::Fail).err();
                refused.map(|Refused { item, why, .. }| (Back::Whole(*item, None), why))
            }
            Taken::Request(message, answer) if synchronous => {
                let refused = answer.ask(&right, message).err();
                refused.map(|Refused { item, why, .. }| {
                    let (message, answer) = *item;
                    (Back::Whole(message, Some(answer)), why)
                })
            }
            other => {
                self.pass_by(id, other);
                return Passed::One;
            }
        };
        match refused {
            None => {
                if let Some(proxy) = self.proxies.all.get_mut(&id) {
                    proxy.sent += 1;
                    proxy.have_arrived(proxy.sent);
                }
                Passed::One
            }
            Some((back, SendError::Full { .. })) => {
                if let Some(proxy) = self.proxies.all.get_mut(&id) {
                    proxy.back.push_front(back);
                }
                self.await_room(id);
                Passed::Waits
            }
            Some((_, SendError::DeadName)) => {
                self.close_proxy(id);
                Passed::Waits
            }
            // Its client is told that it was dropped, if it is a request.
            Some(_) => {
                self.machine.left_behind += 1;
                Passed::One
            }
        }
    }

    /// What is no message to be passed on.
    fn pass_by(&mut self, id: u64, taken: Taken) {
        match taken {
            // All before it is in the port. A program that is gone needs no answer.
            Taken::Flush(answer) => drop(answer.reply(Message::default())),
            Taken::Notice(Notice::NoMoreSenders) => {
                if let Some(proxy) = self.proxies.all.get_mut(&id) {
                    proxy.unused = true;
                }
            }
            Taken::Request(_, answer) => answer.dropped(),
            Taken::Message(_) | Taken::Once(_) => self.machine.left_behind += 1,
            Taken::OnceDropped | Taken::Notice(_) => {}
        }
    }

    /// The port is full: its room is waited for.
    fn await_room(&mut self, id: u64) {
        self.park(id);
        let Some(proxy) = self.proxies.all.get_mut(&id) else {
            return;
        };
        let Some(here) = proxy.here.as_mut().filter(|here| here.room.is_none()) else {
            return;
        };
        let span = self.machine.spans.get_mut(&proxy.domain);
        here.room = span.and_then(|span| span.add(here.right.room(), Thing::Space(id)));
        if here.room.is_none() {
            let again = self.machine.now + AGAIN;
            self.proxies.set_again(id, Some(again));
        }
    }

    /// There is room in the port.
    pub(in crate::engine) fn has_space(&mut self, id: u64) {
        self.wait_no_more(id);
        self.unpark(id);
    }

    /// The room of the port is not waited for any more.
    pub(super) fn wait_no_more(&mut self, id: u64) {
        if let Some(proxy) = self.proxies.all.get_mut(&id)
            && let Some(room) = proxy.here.as_mut().and_then(|here| here.room.take())
            && let Some(span) = self.machine.spans.get_mut(&proxy.domain)
        {
            span.remove(room);
        }
    }

    // What comes back.

    /// A message of this machine that was not put into its port; `None` of a request that nobody waits for
    /// any more. The requests that were open for its rights are not.
    pub(super) fn comes_back(&mut self, returned: Returned<Payload>) -> Option<Back> {
        let asked = returned.request;
        let answer = asked.and_then(|request| self.machine.asking.remove(&request));
        let answer = answer.and_then(|asking| match asking.what {
            Waits::Answer(answer) => Some(answer),
            _ => None,
        });
        let node::Message {
            urgency,
            header,
            rights,
            payload,
            ..
        } = returned.message;
        let rights = rights.iter().filter_map(|given| {
            let asking = self.machine.asking.remove(&given.request)?;
            Some(match asking.what {
                Waits::Keep(right) => right.into(),
                Waits::Once(answer) | Waits::Answer(answer) => answer.into_right().into(),
                Waits::Moves(_, port) => (*port).into(),
            })
        });
        let rights: Vec<Right> = rights.collect();
        if asked.is_some() && answer.is_none() {
            return None;
        }
        if let Some(Payload::Goes(shared)) = payload {
            return Some(Back::Shared(shared, rights, answer));
        }
        // It was a message before: its header is none that is too long.
        let mut message = Message::new(&header).unwrap_or_default();
        message.set_urgency(urgency.and_then(|urgency| self.machine.urgency(urgency)));
        for right in rights {
            let _ = message.attach(right);
        }
        Some(Back::Whole(message, answer))
    }

    /// What a proxy holds as a message to an earlier home goes once more.
    pub(super) fn take_held_back(&mut self, id: u64) {
        self.proxies.holds_none(id);
        let held = self.proxies.all.get_mut(&id).and_then(|it| it.held.take());
        let Some((message, answer)) = held else {
            return;
        };
        let requests: Vec<_> = message.rights.iter().map(|it| it.request).collect();
        let returned = Returned {
            request: None,
            deadline: None,
            message,
        };
        let back = self.comes_back(returned);
        let now = self.protocol_time();
        for request in requests {
            self.node.abandon(now, request);
        }
        let back = match back {
            Some(Back::Whole(message, _)) => Back::Whole(message, Some(answer)),
            Some(Back::Shared(shared, rights, _)) => Back::Shared(shared, rights, Some(answer)),
            None => return answer.dropped(),
        };
        if let Some(proxy) = self.proxies.all.get_mut(&id) {
            proxy.back.push_front(back);
        }
    }
}

impl Proxy {
    /// All below this number were put into the port, as far as is known.
    pub(in crate::engine) fn arrived(
        &self,
        first_kept: impl FnOnce(FlowKey) -> Option<u64>,
    ) -> Option<u64> {
        match (&self.here, self.flow) {
            (Some(_), _) => Some(self.sent),
            (None, Some(flow)) => Some(self.first + first_kept(flow)?),
            (None, None) => None,
        }
    }

    /// Messages that go before its queue.
    pub(in crate::engine) fn waiting_back(&self) -> usize {
        self.back.len()
    }
}
