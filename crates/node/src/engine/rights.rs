//! Rights in messages: what goes to peers, what has come from them, and who wants to know when no
//! sender is left.
//!
//! ```text
//! goes   right on a proxy ---> its port's reference      right on a port here ---> known by a key
//!        the right is kept here (`Waits::Keep`) until its request has ended
//! comes  proxy, parked ---Borrowed---> waits for messages        home: a right on the port itself
//! ```

use portolan::proxy::{Answer, Answered, KnownPort, LentNotice, ProxyPort, SpannedPort, Taken};
use portolan::{Deadline, Message, PendingReply, RequestError, Right, SendRight};
use portolan_abi::node::{DeadReason, NodeId, PortId, ResolveFailure};
use portolan_proto::node::{
    self, BorrowKey, DomainKey, FlowKey, Gift, Given, PortKey, PortSettings, PortStay, RequestKey,
};
use portolan_sys::process::random;

use super::Engine;
use super::arrivals::Arrival;
use super::machine::{Asking, Waits};
use super::payload::Payload;
use super::recorder::Passes;
use super::spans::{Span, Thing};

/// Ports that have changed, of which one turn hears: the others have their turn then.
const TURN: usize = 1024;

/// Rights in messages, and what was said because a port wants to know its senders.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rights {
    /// Given to peers, and come from peers.
    pub(super) gave: u64,
    pub(super) came: u64,
    /// Ports here whose borrowers were asked, and flows of which peers have asked.
    pub(super) asked: u64,
    pub(super) heard: u64,
    /// Ports that have left for peers, and that have come from them.
    pub(super) left: u64,
    pub(super) arrived: u64,
    /// Proxies whose homes were given up, and of whose ports it was asked where they are.
    pub(super) sought: u64,
}

impl Engine {
    // What goes.

    /// A message of this machine as the protocol has it, to a node with which there is this
    /// association; `None` if it cannot travel.
    pub(super) fn outgoing(
        &mut self,
        to: (NodeId, u64),
        domain: DomainKey,
        mut message: Message,
    ) -> Option<node::Message<Payload>> {
        let rights = message.take_rights();
        let mut goes = self.machine.outgoing(message)?;
        for right in rights {
            let Some(given) = self.give(to, domain, right) else {
                self.machine.left_behind += 1;
                self.take_rights_back(&goes.rights);
                return None;
            };
            goes.rights.push(given);
        }
        self.rights.gave += goes.rights.len() as u64;
        Some(goes)
    }

    fn give(&mut self, to: (NodeId, u64), domain: DomainKey, right: Right) -> Option<Given> {
        let (gift, what) = match right {
            Right::Send(right) => {
                let number = KnownPort::of(&right).number();
                let gift = match self.proxies.gift(domain, number) {
                    Some(gift) => gift,
                    None => Gift::Port(self.known_port(domain, &right)?),
                };
                (gift, Waits::Keep(right))
            }
            Right::SendOnce(right) => (Gift::Once, Waits::Once(Answer::from(right))),
            Right::Receive(port) => {
                let key = self.known_port(domain, &port.make_send())?;
                // What its receiver wants to know goes with it, also if no flow leads to it yet.
                self.look_at_senders(key);
                if self.machine.is_counted(key) {
                    self.node.want_senders(key);
                }
                (Gift::Receive(key), Waits::Moves(key, Box::new(port)))
            }
            _ => return None,
        };
        let given = self.node.give(to.0, to.1, domain, gift).ok()?;
        self.machine
            .asking
            .insert(given.request, Asking { domain, what });
        Some(given)
    }

    /// Has a port of this machine that a right leads to.
    fn known_port(&mut self, domain: DomainKey, right: &SendRight) -> Option<PortKey> {
        let found = SpannedPort::of(right.clone());
        self.lendable(domain, "given", &found)
    }

    /// Has a port that peers may be lent, by what follows from its key.
    pub(super) fn lendable(
        &mut self,
        domain: DomainKey,
        name: &str,
        found: &SpannedPort,
    ) -> Option<PortKey> {
        let key = random().ok()?;
        let (port, is_new) = self.machine.know(domain, name, found);
        if is_new {
            let origin = self.node.settings().node;
            // A port may outlive this run of its origin: no later one gives the same id.
            let serial = self.node.settings().incarnation << 32 | port.0;
            let settings = PortSettings {
                id: PortId { origin, serial },
                key,
                domain,
                synchronous: found.synchronous,
                slots: u32::try_from(found.slots).unwrap_or(u32::MAX),
            };
            self.node.add_port(port, settings);
        }
        Some(port)
    }

    /// The message that these go with is not sent: they end here.
    pub(super) fn take_rights_back(&mut self, rights: &[Given]) {
        let now = self.protocol_time();
        for given in rights {
            self.node.abandon(now, given.request);
        }
    }

    /// An answer to a request of a peer is there, or it is known that there will be none.
    pub(super) fn answered(
        &mut self,
        request: RequestKey,
        domain: DomainKey,
        mut pending: PendingReply,
    ) {
        self.machine.expects = true;
        let answer = match Answered::take(&mut pending) {
            Ok(Answered::Reply(message)) => return self.reply(request, domain, message),
            Ok(Answered::Dropped) => node::Answer::Dropped,
            // Its client has stopped to wait.
            Err(RequestError::TimedOut) => node::Answer::Dropped,
            // It came from another node: then it is its server.
            Ok(Answered::NodeLost { .. } | Answered::ServerDead) | Err(_) => {
                node::Answer::ServerDead
            }
        };
        // A client whose node is gone needs none.
        let _ = self.node.answer(request, answer);
    }

    /// Answers a request of a peer's with a message of this machine.
    fn reply(&mut self, request: RequestKey, domain: DomainKey, message: Message) {
        let to = (request.peer, request.association);
        let began = self.machine.records(domain);
        let answer = match self.outgoing(to, domain, message) {
            Some(message) => node::Answer::Reply(message),
            None => node::Answer::Dropped,
        };
        let bytes = match &answer {
            node::Answer::Reply(message) => Some(message.bytes()),
            _ => None,
        };
        match (self.node.answer(request, answer), bytes) {
            (Err(refused), _) => {
                if let node::Answer::Reply(message) = refused.item {
                    self.take_rights_back(&message.rights);
                }
            }
            (Ok(()), Some(bytes)) => {
                let passes = Passes::Answer(request);
                self.machine.passed(began, true, passes, "", bytes);
            }
            (Ok(()), None) => {}
        }
    }

    // What has come.

    /// Rights have come, and their messages are in their ports.
    pub(super) fn handle_arrivals(&mut self) -> bool {
        let arrivals = self.machine.arrivals.take();
        let any = !arrivals.is_empty();
        for arrival in arrivals {
            self.rights.came += 1;
            match arrival {
                Arrival::New(domain, given, port) => self.borrow(domain, &given, port),
                Arrival::Again(domain, given, number) => {
                    let borrow = self.proxies.borrow_of(domain, number);
                    self.node.borrow_too(borrow, &given);
                }
                Arrival::Once(domain, request, port) => self.holds_once(domain, request, *port),
                Arrival::Receive(domain, given, known) => self.takes(domain, &given, known),
                Arrival::Settled(request) => {
                    // If its giver is gone, so is what it has kept.
                    let _ = self.node.answer(request, node::Answer::Dropped);
                }
            }
        }
        any
    }

    /// A right on a port of another node has come: its proxy waits until there is a loan.
    fn borrow(&mut self, domain: DomainKey, given: &Given, mut port: Box<ProxyPort>) {
        let now = self.protocol_time();
        let home = self.node.peer_view(given.reference.home);
        if home.is_some_and(|home| home.is_unreachable) {
            port.set_unreachable(std::time::Instant::now());
        }
        let borrow = self.node.borrow(now, given);
        self.proxies.borrowed(domain, given, borrow, port);
    }

    /// The end of a borrow.
    pub(super) fn has_borrowed(
        &mut self,
        borrow: BorrowKey,
        flow: Result<FlowKey, ResolveFailure>,
    ) {
        let Some(id) = self.proxies.take_borrow(borrow) else {
            // Its proxy is closed.
            if let Ok(flow) = flow {
                let _ = self.node.close(flow);
            }
            return;
        };
        if let Some(giver) = self.proxies.giver(id) {
            self.machine.arrivals.settled(giver);
        }
        match flow {
            Ok(flow) => {
                let taken = self.node.next_number(flow).unwrap_or(0);
                self.proxies.lead_to(id, flow, taken);
                self.is_at(id, flow.peer);
                self.unpark(id);
            }
            Err(_) => self.is_nowhere(id),
        }
    }

    /// A send-once right of a peer's is with a program here.
    fn holds_once(&mut self, domain: DomainKey, request: RequestKey, port: ProxyPort) {
        let span = self.machine.spans.get_mut(&domain);
        if span.is_none_or(|span| span.add(port, Thing::Once(request)).is_none()) {
            self.machine.arrivals.settled(request.peer);
            let _ = self.node.answer(request, node::Answer::ServerDead);
        }
    }

    /// A send-once right of a peer's was used, or has ended unused.
    pub(super) fn once_used(
        &mut self,
        domain: DomainKey,
        request: RequestKey,
        token: portolan::Token<ProxyPort>,
    ) {
        let Some(span) = self.machine.spans.get_mut(&domain) else {
            return;
        };
        let Some(taken) = span.set.get_mut(token).map(|port| port.take(Deadline::NOW)) else {
            return;
        };
        match taken {
            Err(portolan::ReceiveError::TimedOut) | Ok(Taken::Notice(_)) => return,
            Ok(Taken::Once(message)) => {
                span.remove(token);
                self.reply(request, domain, message);
            }
            // Nobody has another right on it.
            _ => {
                span.remove(token);
                let _ = self.node.answer(request, node::Answer::Dropped);
            }
        }
        self.machine.arrivals.settled(request.peer);
    }

    /// The message of an answer, with its rights; `None` if it has no place.
    pub(super) fn incoming(
        &mut self,
        domain: DomainKey,
        came: node::Message<Payload>,
    ) -> Option<Message> {
        let requests: Vec<RequestKey> = came.rights.iter().map(|it| it.request).collect();
        let made = self.machine.rights(domain, &came.rights);
        let message = made.and_then(|(rights, arriving)| {
            Some((self.machine.message(domain, came, rights)?, arriving))
        });
        if let Some((message, arriving)) = message {
            self.machine.arrivals.commit(arriving);
            return Some(message);
        }
        for request in requests {
            let _ = self.node.answer(request, node::Answer::Dropped);
        }
        None
    }

    // Who wants to know when no sender is left.

    /// A peer claims a port by its secret.
    pub(super) fn claimed(&mut self, flow: FlowKey, port: PortKey) {
        let now = self.protocol_time();
        let called = self.machine.name_of(flow.peer);
        let domain = self.machine.lent.get(&port).map(|lent| lent.domain);
        let span = domain.and_then(|domain| self.machine.spans.get(&domain));
        let answer = match span {
            None => Err(ResolveFailure::NoSuchPort),
            Some(span) if !span.allows(flow.peer, &called) => Err(ResolveFailure::Denied),
            Some(_) => self.lends(port),
        };
        // If not, the association is over by now.
        let _ = self.node.lend(now, flow, answer);
        match answer {
            Ok(port) => self.is_lent(port),
            Err(ResolveFailure::NoSuchPort) => self.is_gone(port),
            Err(_) => {}
        }
    }

    /// A port is about to be lent: if it lives.
    pub(super) fn lends(&mut self, port: PortKey) -> Result<PortKey, ResolveFailure> {
        // Of one that has left its borrower is told where it is.
        let has_left = self.node.stay(port) == Some(PortStay::Left);
        match has_left || self.machine.wake(port) {
            true => Ok(port),
            false => Err(ResolveFailure::NoSuchPort),
        }
    }

    /// A port is lent.
    pub(super) fn is_lent(&mut self, port: PortKey) {
        self.machine.has_room(port);
        self.look_at_senders(port);
    }

    pub(super) fn is_gone(&mut self, port: PortKey) {
        let now = self.protocol_time();
        self.machine.take_back(port);
        self.node.remove_port(now, port, DeadReason::Closed);
        self.close_passing_to(port);
    }

    /// A port had no borrower, and has one again: if its wish was told, it was to those of before.
    pub(super) fn asks_senders_anew(&mut self, port: PortKey) {
        if let Some(lent) = self.machine.lent.get_mut(&port) {
            lent.wants_senders = false;
            self.look_at_senders(port);
        }
    }

    /// Asks the borrowers of a port for their senders, if its receiver wants to know.
    fn look_at_senders(&mut self, port: PortKey) {
        if let Some(lent) = self.machine.lent.get_mut(&port)
            && !lent.wants_senders
            && lent.is_awake()
            && lent.known.wants_no_more_senders()
        {
            lent.wants_senders = true;
            self.rights.asked += 1;
            self.node.want_senders(port);
        }
    }

    /// Hears what has changed of the ports that a domain's node knows.
    pub(super) fn hear_changes(&mut self, domain: DomainKey) {
        for _ in 0..TURN {
            let span = self.machine.spans.get_mut(&domain);
            match span.and_then(Span::changed) {
                Some(LentNotice::Closed { token }) => {
                    self.machine.dead.insert(PortKey(token));
                }
                Some(LentNotice::WantsSenders { token }) => self.look_at_senders(PortKey(token)),
                _ => return,
            }
        }
    }

    /// The home of a proxy's port wants to know when no right leads there from here.
    pub(super) fn senders_wanted(&mut self, flow: FlowKey) {
        self.rights.heard += 1;
        if let Some(id) = self.proxies.count_senders(flow) {
            self.close_if_unused(id);
        }
    }
}
