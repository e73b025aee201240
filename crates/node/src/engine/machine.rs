//! This machine's side of the protocol: ports that peers send to, and the requests that are under
//! way in either direction.
//!
//! | file | holds |
//! |---|---|
//! | `slots` | how many slots of ports are free |

mod slots;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portolan::proxy::{Answer, Incoming, KnownPort, SpannedPort, asks_for, time_left};
use portolan::{
    Deadline, Message, MessageError, ReceiveRight, Refused, RequestError, Right, Room, SendError,
    SendRight, Token, Urgency, WhenFull,
};
use portolan_abi::node::NodeId;
use portolan_proto::Time;
use portolan_proto::node::{
    self, Delivery, Destination, DomainKey, FlowKey, Home, PortKey, RequestKey,
};

use super::arrivals::Arrivals;
use super::payload::Payload;
use super::proxies::Leaving;
use super::recorder::{self, Passes, Recorder};
use super::spans::{Span, Thing};

/// A port of this machine that peers send to, or were given a right on.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) domain: DomainKey,
    pub(super) name: String,
    pub(super) known: KnownPort,
    /// While flows lead there: else it is only known, for who claims it.
    pub(super) right: Option<SendRight>,
    /// Its receiver wants to know when no sender is left, and borrowers were told.
    pub(super) wants_senders: bool,
    /// The same, for requests of each peer.
    asks: BTreeMap<NodeId, SendRight>,
    pub(super) slots: u32,
    /// Waits until flows that wait can be served.
    room: Option<Token<Room>>,
    /// Messages that were put into it, and when the last one was.
    pub(super) delivered: u64,
    delivered_at: Option<Duration>,
    /// When it is looked at again, if memory was short.
    again: Option<Duration>,
    /// How long after that, if it is short still.
    pause: Duration,
}

impl Lent {
    /// Whether flows lead there.
    pub(super) fn is_awake(&self) -> bool {
        self.right.is_some()
    }

    /// Whether there is no room for what flows bring.
    pub(super) fn is_full(&self) -> bool {
        let right = self.right.as_ref();
        right.is_some_and(|right| right.room().free() == 0)
    }
}

/// How soon after memory was short a port's flows are called again: at first, and at the latest.
const CALLS_AGAIN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// A request of this machine's that is open at a peer.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) domain: DomainKey,
    pub(super) what: Waits,
}

/// For what a request is open.
#[derive(Debug)]
pub(super) enum Waits {
    /// For the answer to a program's request.
    Answer(Answer),
    /// For the one message of a send-once right that a peer was given.
    Once(Answer),
    /// For the peer to take the right to receive at a port of this machine.
    Moves(PortKey, Box<ReceiveRight>),
    /// For the peer to have a loan of what it was given: until then the right is kept.
    Keep(#[allow(dead_code, reason = "it is kept, and dropped")] SendRight),
}

impl Lent {
    /// A port of a domain, with a queue of so many slots, to which no flow leads yet.
    pub(super) fn new(domain: DomainKey, name: &str, known: KnownPort, slots: u32) -> Self {
        Self {
            domain,
            name: name.to_owned(),
            known,
            right: None,
            wants_senders: false,
            asks: BTreeMap::new(),
            slots,
            room: None,
            delivered: 0,
            delivered_at: None,
            again: None,
            pause: CALLS_AGAIN.0,
        }
    }
}

/// What [`Home`] needs.
#[derive(Debug, Default)]
pub(super) struct Machine {
    pub(super) spans: BTreeMap<DomainKey, Span>,
    pub(super) lent: BTreeMap<PortKey, Lent>,
    /// The same, by their numbers in their domains.
    by_number: BTreeMap<(DomainKey, u64), PortKey>,
    pub(super) last_port: u64,
    pub(super) asking: BTreeMap<RequestKey, Asking>,
    /// Rights that have come, and what is to be done for them.
    pub(super) arrivals: Arrivals,
    /// Ports that peers have taken, until the protocol says how their queues follow.
    pub(super) leaving: BTreeMap<PortKey, Leaving>,
    /// Names of peers.
    pub(super) names: BTreeMap<NodeId, String>,
    /// Ports whose free slots are counted each time: flows wait in them, or this turn has put something into them.
    looked_at: BTreeSet<PortKey>,
    /// Others that had fewer than all when that was counted last; and the last of them whose turn it was.
    backlogged: BTreeSet<PortKey>,
    last_backlogged: u64,
    /// Those that are to be looked at later, because memory was short: when.
    short: BTreeSet<(Duration, PortKey)>,
    /// Ports that were found dead.
    pub(super) dead: BTreeSet<PortKey>,
    /// Messages and answers that could not travel, or had no place here.
    pub(super) left_behind: u64,
    /// Messages that were sent to peers, and those of peers that were put into ports here.
    pub(super) sent: u64,
    pub(super) delivered: u64,
    /// Requests of peers that have no place here, or whose answers cannot be waited for; and those of
    /// rights that need not be kept.
    pub(super) unheard: Vec<RequestKey>,
    /// While a node traces one of its domains.
    pub(super) recorder: Option<Box<Recorder>>,
    /// The engine's clock.
    pub(super) now: Duration,
    /// The last that this turn has done for a program: a peer was asked, or answered, which says something
    /// soon; and not that something went to a program here, which has to run for what comes next.
    pub(super) expects: bool,
}

/// A node's time, in the protocol's.
pub(super) fn time(clock: Duration) -> Time {
    Time(u64::try_from(clock.as_nanos()).unwrap_or(u64::MAX))
}

impl Machine {
    /// What a peer is called in a domain: its id, if it has not said its name.
    pub(super) fn name_of(&self, peer: NodeId) -> String {
        let name = self.names.get(&peer).cloned();
        name.unwrap_or_else(|| peer.to_string())
    }

    /// When something begins that a recording of the domain tells of, if there is one.
    pub(super) fn records(&self, domain: DomainKey) -> Option<u64> {
        let recorder = self.recorder.as_ref()?;
        (recorder.domain == domain && !recorder.ended).then(recorder::clock)
    }

    /// What has begun then has ended: a message has departed, or arrived.
    pub(super) fn passed(
        &mut self,
        began: Option<u64>,
        departs: bool,
        passes: Passes,
        port: &str,
        bytes: u64,
    ) {
        if let (Some(began), Some(recorder)) = (began, &mut self.recorder) {
            recorder.passed(departs, passes, began, port, bytes);
        }
    }

    /// Knows a port that peers may be lent: the one of before, if it is the same. And whether it is new.
    pub(super) fn know(
        &mut self,
        domain: DomainKey,
        name: &str,
        found: &SpannedPort,
    ) -> (PortKey, bool) {
        let known = KnownPort::of(&found.right);
        let number = (domain, known.number());
        if let Some(key) = self.by_number.get(&number) {
            return (*key, false);
        }
        let key = self.next_port();
        let slots = u32::try_from(found.slots).unwrap_or(u32::MAX);
        self.keep(key, Lent::new(domain, name, known, slots));
        (key, true)
    }

    /// Has a port more that peers may be lent.
    pub(super) fn keep(&mut self, key: PortKey, lent: Lent) {
        self.by_number
            .insert((lent.domain, lent.known.number()), key);
        if let Some(span) = self.spans.get_mut(&lent.domain) {
            span.lend(&lent.known, key);
        }
        self.lent.insert(key, lent);
    }

    /// A number for a port that none has had.
    pub(super) fn next_port(&mut self) -> PortKey {
        self.last_port += 1;
        PortKey(self.last_port)
    }

    /// The ports that are known whose receive rights are in a message.
    pub(super) fn moved_by(&self, domain: DomainKey, message: &Message) -> Vec<PortKey> {
        let ports = KnownPort::moved_by(message);
        let known = ports.filter_map(|port| self.by_number.get(&(domain, port.number())));
        known.copied().collect()
    }

    /// Whether the receiver of a port wants to know when no sender is left.
    pub(super) fn is_counted(&self, key: PortKey) -> bool {
        let lent = self.lent.get(&key);
        lent.is_some_and(|lent| lent.known.wants_no_more_senders())
    }

    /// A flow leads to a port from now on; whether the port lives.
    pub(super) fn wake(&mut self, key: PortKey) -> bool {
        let Some(lent) = self.lent.get_mut(&key) else {
            return false;
        };
        if lent.right.is_none() && self.spans.contains_key(&lent.domain) {
            lent.right = lent.known.right();
        }
        lent.right.is_some()
    }

    /// No flow leads to a port any more: it is only known.
    pub(super) fn rest(&mut self, key: PortKey) {
        let Some(lent) = self.lent.get_mut(&key) else {
            return;
        };
        let (right, room) = (lent.right.take(), lent.room.take());
        lent.asks.clear();
        lent.wants_senders = false;
        if let Some(at) = lent.again.take() {
            self.short.remove(&(at, key));
        }
        if let Some(span) = self.spans.get_mut(&lent.domain)
            && let Some(room) = room
        {
            span.remove(room);
        }
        self.looked_at.remove(&key);
        self.backlogged.remove(&key);
        drop(right);
    }

    /// A port is not lent any more, and not known.
    pub(super) fn take_back(&mut self, key: PortKey) -> Option<Lent> {
        self.rest(key);
        let lent = self.lent.remove(&key)?;
        self.by_number.remove(&(lent.domain, lent.known.number()));
        if let Some(span) = self.spans.get_mut(&lent.domain) {
            span.take_back(&lent.known);
        }
        Some(lent)
    }

    /// A port has another entry of its domain from now on, with a queue of so many slots.
    pub(super) fn has_entry(&mut self, key: PortKey, known: KnownPort, slots: usize) {
        let Some(before) = self.take_back(key) else {
            return;
        };
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        let mut lent = Lent::new(before.domain, &before.name, known, slots);
        (lent.wants_senders, lent.delivered) = (before.wants_senders, before.delivered);
        self.keep(key, lent);
        self.wake(key);
        self.looked_at.insert(key);
    }

    /// Ports to which flows lead.
    pub(super) fn awake(&self) -> impl Iterator<Item = (&PortKey, &Lent)> {
        let all = self.lent.iter();
        all.filter(|(_, lent)| lent.is_awake())
    }

    /// When a port is to be looked at again.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        self.short.first().map(|(at, _)| *at)
    }

    /// There is no memory for what comes to a port: its flows are called again later.
    fn no_memory(&mut self, key: PortKey) {
        let now = self.now;
        if let Some(lent) = self.lent.get_mut(&key) {
            let at = now + lent.pause;
            if let Some(before) = lent.again.replace(at) {
                self.short.remove(&(before, key));
            }
            self.short.insert((at, key));
            lent.pause = (2 * lent.pause).min(CALLS_AGAIN.1);
        }
    }

    /// The message that has come, with the rights that were made of its own.
    pub(super) fn message(
        &self,
        domain: DomainKey,
        came: node::Message<Payload>,
        rights: Vec<Right>,
    ) -> Option<Message> {
        let span = self.spans.get(&domain)?;
        let mut message = match came.payload {
            Some(payload) => {
                let mut message = payload.take()?;
                message.set_header(&came.header).ok()?;
                message
            }
            None => span.domain.message(&came.header).ok()?,
        };
        for right in rights {
            message.attach(right).ok()?;
        }
        message.set_urgency(came.urgency.and_then(|urgency| self.urgency(urgency)));
        Some(message)
    }

    pub(super) fn urgency(&self, urgency: node::Urgency) -> Option<Urgency> {
        match urgency {
            node::Urgency::Priority(priority) => Some(Urgency::Priority(priority)),
            node::Urgency::Deadline(at) => {
                let left = at.since(time(self.now));
                // What is too far away to express never comes.
                Instant::now().checked_add(left).map(Urgency::Deadline)
            }
        }
    }

    /// A message of this machine as the protocol has it, without the rights that were taken out;
    /// `None` if it cannot travel.
    pub(super) fn outgoing(&mut self, message: Message) -> Option<node::Message<Payload>> {
        let lengths: Vec<u64> = message.slices().map(|piece| piece.len() as u64).collect();
        if lengths.contains(&0) {
            self.left_behind += 1;
            return None;
        }
        let urgency = match message.urgency() {
            Some(Urgency::Priority(priority)) => Some(node::Urgency::Priority(priority)),
            Some(Urgency::Deadline(_)) => time_left(&message)
                .map(|left| node::Urgency::Deadline(time(self.now.saturating_add(left)))),
            None => None,
        };
        let header = message.header().to_vec();
        let payload = (!lengths.is_empty()).then(|| Payload::Goes(std::rc::Rc::new(message)));
        Some(node::Message {
            urgency,
            header,
            lengths,
            rights: Vec::new(),
            payload,
        })
    }

    fn domain_of(&self, to: Destination) -> Option<&Span> {
        let domain = match to {
            Destination::Port(port) => self.lent.get(&port)?.domain,
            Destination::Request(request) => self.asking.get(&request)?.domain,
        };
        self.spans.get(&domain)
    }

    /// Puts a message into its port.
    fn put(&mut self, delivery: Delivery<Payload>) -> Result<(), Put> {
        let key = delivery.port;
        let domain = self.lent.get(&key).ok_or(Put::Dead)?.domain;
        if matches!(delivery.message.payload, Some(Payload::Unwanted)) {
            self.left_behind += 1;
            self.unheard.extend(delivery.request);
            let rights = delivery.message.rights.iter();
            self.unheard.extend(rights.map(|right| right.request));
            return Ok(());
        }
        let mut arriving = Vec::new();
        let mut rights = Vec::new();
        if !delivery.message.rights.is_empty() {
            let to = self.lent.get(&key).and_then(|lent| lent.right.as_ref());
            // Before rights are made that would have to be made again.
            if to.is_some_and(|right| right.room().free() == 0) {
                return Err(Put::Full);
            }
            let made = self.rights(domain, &delivery.message.rights);
            (rights, arriving) = made.ok_or(Put::NoMemory)?;
        }
        let (from, request, deadline) = (delivery.from, delivery.request, delivery.deadline);
        let message = self.message(domain, delivery.message, rights);
        let message = message.ok_or(Put::NoMemory)?;
        self.put_message(key, from.peer, request, deadline, message)?;
        self.arrivals.commit(arriving);
        Ok(())
    }

    fn put_message(
        &mut self,
        key: PortKey,
        from: NodeId,
        request: Option<RequestKey>,
        deadline: Option<Time>,
        message: Message,
    ) -> Result<(), Put> {
        let lent = self.lent.get_mut(&key).ok_or(Put::Dead)?;
        let domain = lent.domain;
        let to = lent.right.as_ref().ok_or(Put::Dead)?;
        let Some(request) = request else {
            return to.send(message, WhenFull::Fail).map_err(Put::of);
        };
        let right = match lent.asks.entry(from) {
            std::collections::btree_map::Entry::Occupied(right) => right.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => {
                let name = self.names.get(&from).cloned();
                let name = name.unwrap_or_else(|| from.to_string());
                let right = asks_for(to.clone(), &name).map_err(|_| Put::Dead)?;
                place.insert(right)
            }
        };
        let pending = match right.begin_request(message, WhenFull::Fail) {
            Ok(pending) => pending,
            Err(RequestError::Unsent(refused)) => return Err(Put::of(refused)),
            Err(RequestError::NoReplyPort(..)) => return Err(Put::NoMemory),
            Err(_) => return Err(Put::Dead),
        };
        let pending = match deadline {
            Some(at) => pending.with_deadline(Deadline::after(at.since(time(self.now)))),
            None => pending,
        };
        let span = self.spans.get_mut(&domain).ok_or(Put::Dead)?;
        if span.add(pending, Thing::Serving(request)).is_none() {
            // It is with its server, and nobody can hear the answer.
            self.unheard.push(request);
        }
        Ok(())
    }
}

/// Why a message is not in its port.
enum Put {
    Full,
    NoMemory,
    Dead,
}

impl Put {
    fn of(refused: Refused<Message, SendError>) -> Self {
        match refused.why {
            SendError::Full { .. } => Self::Full,
            // Whatever else: nothing comes into it from here any more.
            _ => Self::Dead,
        }
    }
}

impl Home<Payload> for Machine {
    fn allocate(&mut self, to: Destination, lengths: &[u64]) -> Option<Payload> {
        let span = self.domain_of(to)?;
        match Incoming::new(&span.domain, &[], lengths, span.most) {
            Ok(incoming) => Some(Payload::coming(incoming)),
            // There will never be so much: its flow does not wait for that.
            Err(MessageError::TooLong { .. }) => Some(Payload::Unwanted),
            Err(_) => {
                if let Destination::Port(port) = to {
                    self.no_memory(port);
                }
                None
            }
        }
    }

    fn fill(&mut self, payload: &Payload, bytes: &[u8]) {
        payload.fill(bytes);
    }

    fn deliver(&mut self, delivery: Delivery<Payload>) -> Result<(), Delivery<Payload>> {
        let (port, from, request) = (delivery.port, delivery.from, delivery.request);
        self.looked_at.insert(port);
        let (number, bytes) = (delivery.number, delivery.message.bytes());
        // While nobody traces, this looks once whether somebody does.
        let lent = self.recorder.as_ref().and_then(|_| self.lent.get(&port));
        let began = lent.and_then(|lent| self.records(lent.domain));
        let why = match self.put(delivery) {
            Ok(()) => {
                if began.is_some() {
                    let name = self.lent.get(&port).map(|lent| lent.name.clone());
                    let passes = request.map_or(Passes::Message(from, number), Passes::Request);
                    self.passed(began, false, passes, &name.unwrap_or_default(), bytes);
                }
                if let Some(lent) = self.lent.get_mut(&port) {
                    lent.delivered += 1;
                    lent.delivered_at = Some(self.now);
                    self.delivered += 1;
                    self.expects = false;
                    if let Some(at) = lent.again.take() {
                        self.short.remove(&(at, port));
                    }
                    lent.pause = CALLS_AGAIN.0;
                }
                return Ok(());
            }
            Err(why) => why,
        };
        match why {
            Put::Full => {}
            Put::NoMemory => self.no_memory(port),
            Put::Dead => drop(self.dead.insert(port)),
        }
        // It is thrown away: its sender has it still.
        Err(thrown_away(port, from, request))
    }
}

/// What is left of a message that was not delivered.
fn thrown_away(port: PortKey, from: FlowKey, request: Option<RequestKey>) -> Delivery<Payload> {
    Delivery {
        port,
        from,
        number: 0,
        request,
        deadline: None,
        message: node::Message::short(&[]),
    }
}
