//! Records what happens in a spanned domain here, while a node of the cluster traces it: the events of
//! its members, as a tracer of the domain reads them, and the messages that depart and arrive.
//!
//! While nobody traces there is no [`Recorder`], and a message costs one look whether there is one.
//!
//! # Invariants
//!
//! - **I1** There is one recording at a time, of one domain, for one node that asks. It ends when that
//!   node has not asked for [`LEASE`], and with the domain's span.
//! - **I2** At most [`MOST_EVENTS`] events wait to be asked for. The oldest make room, and are counted.
//! - **I3** A message has the same key at both of its nodes, and no two messages have the same key but by
//!   chance, as 64 bits have it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use portolan::{Domain, EventKind, Trace, TraceOptions};
use portolan_abi::node::{AssociationId, NodeId};
use portolan_proto::node::{DomainKey, FlowKey, RequestKey};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Events that wait to be asked for, at most: about ten megabytes.
pub(super) const MOST_EVENTS: usize = 1 << 16;
/// Without a question for so long, a recording ends.
pub(super) const LEASE: Duration = Duration::from_secs(5);
/// Between two looks at the rings of the domain's members: while something happens, and while nothing does.
const LOOKS: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(20));
/// Events that each member keeps until they are read: a look reads them all, and nothing else is done
/// meanwhile.
const RING: usize = 4096;
/// Port names that are remembered, at most: those that are asked for again cost little.
const MOST_NAMES: usize = 4096;

/// An event, as it is told.
#[derive(Clone, Debug, Serialize)]
pub(super) enum Seen {
    /// A member of the domain did something.
    #[serde(rename = "m")]
    Member(MemberEvent),
    /// A message went to a peer.
    #[serde(rename = "d")]
    Depart(Passage),
    /// A message of a peer is in its port, or an answer with its client.
    #[serde(rename = "a")]
    Arrive(Passage),
}

/// What a member did: [`portolan::Event`] in the order of its fields.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct MemberEvent(
    pub(super) &'static str,
    /// When it began, and how long it took.
    pub(super) u64,
    pub(super) u64,
    /// The space, its process, its thread.
    pub(super) u8,
    pub(super) u32,
    pub(super) u32,
    pub(super) Option<u16>,
    pub(super) Option<u64>,
    /// Bytes.
    pub(super) u64,
    pub(super) Option<(u8, u32)>,
);

/// A message that departs or arrives.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Passage(
    /// When that began, and how long it took.
    u64,
    u64,
    /// Of which message (I3).
    u64,
    /// `message`, `request` or `answer`.
    &'static str,
    /// The node at the other side.
    String,
    /// The port; empty of an answer.
    String,
    /// Bytes.
    u64,
);

/// Which message it is, at either of its nodes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Passes {
    /// The message of this number in its flow.
    Message(FlowKey, u64),
    /// The message of a request.
    Request(RequestKey),
    /// The answer to a request.
    Answer(RequestKey),
}

impl Passes {
    fn name(self) -> &'static str {
        match self {
            Self::Message(..) => "message",
            Self::Request(_) => "request",
            Self::Answer(_) => "answer",
        }
    }

    /// The node at the other side, and the association with it.
    fn with(self) -> (NodeId, u64) {
        match self {
            Self::Message(flow, _) => (flow.peer, flow.association),
            Self::Request(request) | Self::Answer(request) => (request.peer, request.association),
        }
    }

    /// Its key (I3): a hash, so that nothing about associations is told.
    fn key(self, association: AssociationId, from: NodeId, to: NodeId) -> u64 {
        let (class, first, second) = match self {
            Self::Message(flow, number) => (1_u64, u64::from(flow.flow), number),
            Self::Request(request) => (2, request.request, 0),
            Self::Answer(request) => (3, request.request, 0),
        };
        let words = [
            association.smaller,
            association.larger,
            class,
            first,
            second,
        ];
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        let bytes = words.chain(from.0).chain(to.0);
        // FNV-1a: all nodes have to have the same.
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

/// A message that has departed or arrived in this turn.
#[derive(Debug)]
struct Passed {
    departs: bool,
    passes: Passes,
    began: u64,
    took: u64,
    port: String,
    bytes: u64,
}

/// A recording.
#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) domain: DomainKey,
    /// Who asks, and which of its questions belong together.
    pub(super) by: NodeId,
    pub(super) session: u64,
    /// When it ends, unless it is asked for again.
    pub(super) until: Duration,
    /// When the rings are looked at.
    looks: Duration,
    /// It records no more; what there is can be asked for.
    pub(super) ended: bool,
    /// The domain's tracer: this process.
    members: Option<Trace>,
    /// Why there is none.
    pub(super) without_members: Option<String>,
    /// What is called a port of the domain, by its number.
    names: BTreeMap<u16, String>,
    passed: Vec<Passed>,
    events: VecDeque<Seen>,
    /// The number of the first of them.
    first: u64,
    /// Events that were overwritten in the rings, and those that have made room here.
    lost: (u64, u64),
    /// The node's thread.
    pub(super) thread: u32,
    /// How far the clock that peers are told of is ahead of the one that events have.
    ahead: Option<i64>,
}

/// The clock of events: the monotonic one of this machine.
pub(super) fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

impl Recorder {
    /// Begins to record: what members do, too, unless another process traces the domain.
    pub(super) fn new(
        key: DomainKey,
        domain: &Domain,
        (by, session): (NodeId, u64),
        kinds: &[String],
        now: Duration,
    ) -> Self {
        let all = EventKind::ALL.iter().copied();
        let wanted =
            all.filter(|kind| kinds.is_empty() || kinds.iter().any(|it| it == kind.name()));
        let members = domain.trace_with(TraceOptions::default().only(wanted).ring(RING));
        let (members, without_members) = match members {
            Ok(members) => (Some(members), None),
            Err(why) => (None, Some(why.to_string())),
        };
        Self {
            domain: key,
            by,
            session,
            until: now + LEASE,
            looks: now,
            ended: false,
            members,
            without_members,
            names: BTreeMap::new(),
            passed: Vec::new(),
            events: VecDeque::new(),
            first: 0,
            lost: (0, 0),
            thread: rustix::thread::gettid()
                .as_raw_nonzero()
                .get()
                .unsigned_abs(),
            ahead: None,
        }
    }

    /// When it is looked at.
    pub(super) fn wake_at(&self) -> Duration {
        match self.ended {
            true => self.until,
            false => self.until.min(self.looks),
        }
    }

    /// A message has departed, or arrived; what began then ends now.
    pub(super) fn passed(
        &mut self,
        departs: bool,
        passes: Passes,
        began: u64,
        port: &str,
        bytes: u64,
    ) {
        if self.ended || self.passed.len() >= MOST_EVENTS {
            return;
        }
        self.passed.push(Passed {
            departs,
            passes,
            began,
            took: clock().saturating_sub(began),
            port: port.to_owned(),
            bytes,
        });
    }

    /// Notes what the clock that peers are told of showed, a little while ago.
    pub(super) fn compare(&mut self, shown: u64) {
        let ahead = i128::from(shown) - i128::from(clock());
        let ahead = i64::try_from(ahead).unwrap_or(0);
        // The less time has passed meanwhile, the more it shows.
        self.ahead = Some(self.ahead.map_or(ahead, |before| before.max(ahead)));
    }

    /// How far the clock that peers are told of is ahead of the one that events have.
    pub(super) fn ahead(&self) -> i64 {
        self.ahead.unwrap_or(0)
    }

    /// Gives the messages of this turn their keys, and reads the rings if it is time.
    pub(super) fn look(
        &mut self,
        now: Duration,
        own: NodeId,
        association: impl Fn(NodeId, u64) -> Option<AssociationId>,
        name_of: impl Fn(NodeId) -> String,
    ) {
        for passed in std::mem::take(&mut self.passed) {
            let (peer, serial) = passed.passes.with();
            // If it is over by now, nobody has the other half.
            let Some(association) = association(peer, serial) else {
                self.lost.1 += 1;
                continue;
            };
            let (from, to) = match passed.departs {
                true => (own, peer),
                false => (peer, own),
            };
            let passage = Passage(
                passed.began,
                passed.took,
                passed.passes.key(association, from, to),
                passed.passes.name(),
                name_of(peer),
                passed.port,
                passed.bytes,
            );
            self.keep(match passed.departs {
                true => Seen::Depart(passage),
                false => Seen::Arrive(passage),
            });
        }
        if !self.ended && now >= self.looks {
            self.read_members(now);
        }
    }

    fn read_members(&mut self, now: Duration) {
        let Some(mut members) = self.members.take() else {
            self.looks = self.until;
            return;
        };
        let mut events = Vec::new();
        let drained = members.drain(|event| events.push(event));
        let pause = if events.is_empty() { LOOKS.1 } else { LOOKS.0 };
        self.looks = now + pause;
        self.take(&members, events);
        match drained {
            Ok(drained) => {
                self.lost.0 = drained.lost;
                self.members = Some(members);
            }
            Err(why) => self.without_members = Some(why.to_string()),
        }
    }

    /// Records no more.
    pub(super) fn end(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let Some(mut members) = self.members.take() else {
            return;
        };
        let mut events = Vec::new();
        if let Ok(drained) = members.finish(|event| events.push(event)) {
            self.lost.0 = drained.lost;
        }
        self.take(&members, events);
        // Its spaces are named by pages yet to be asked for; its switch is off.
        self.members = Some(members);
    }

    fn take(&mut self, members: &Trace, events: Vec<portolan::Event>) {
        for event in events {
            if let Some(port) = event.port
                && self.names.len() < MOST_NAMES
            {
                let name = self.names.entry(port).or_default();
                // A port of a number that had another one before has the name that it has first.
                if name.is_empty() {
                    *name = members.port_name(port).unwrap_or_default();
                }
            }
            self.keep(Seen::Member(MemberEvent(
                event.kind.name(),
                event.began,
                event.took,
                event.space,
                event.process,
                event.thread,
                event.port,
                event.position,
                event.bytes,
                event.about,
            )));
        }
    }

    fn keep(&mut self, seen: Seen) {
        if self.events.len() >= MOST_EVENTS {
            self.events.pop_front();
            self.first += 1;
            self.lost.1 += 1;
        }
        self.events.push_back(seen);
    }

    /// All before this one have been read.
    pub(super) fn read_until(&mut self, number: u64) {
        let count = number
            .saturating_sub(self.first)
            .min(self.events.len() as u64);
        #[expect(clippy::cast_possible_truncation, reason = "of a deque's length")]
        drop(self.events.drain(..count as usize));
        self.first += count;
    }

    /// The number of the first that is kept, and those from there on.
    pub(super) fn kept(&self) -> (u64, impl Iterator<Item = &Seen>) {
        (self.first, self.events.iter())
    }

    /// Events that were lost, in the rings of members and here.
    pub(super) fn lost(&self) -> (u64, u64) {
        self.lost
    }

    pub(super) fn name_of_port(&self, port: u16) -> Option<&str> {
        self.names
            .get(&port)
            .map(String::as_str)
            .filter(|name| !name.is_empty())
    }

    /// What a space calls itself, by its process.
    pub(super) fn name_of_space(&self, space: u8, process: u32) -> Option<&str> {
        let mut spaces = self.members.iter().flat_map(Trace::spaces);
        let its = spaces.find(|it| it.id == space && it.process == process);
        its.map(|it| it.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder(domain: &Domain) -> Recorder {
        let by = (NodeId([1; 16]), 7);
        Recorder::new(
            DomainKey(1),
            domain,
            by,
            &["send".to_owned()],
            Duration::ZERO,
        )
    }

    fn passes(number: u64) -> Passes {
        let peer = NodeId([2; 16]);
        let (association, flow) = (3, 4);
        Passes::Message(
            FlowKey {
                peer,
                association,
                flow,
            },
            number,
        )
    }

    #[test]
    fn both_nodes_give_a_message_one_key_and_no_other_message_has_it() {
        let (one, two) = (NodeId([1; 16]), NodeId([2; 16]));
        let (smaller, larger) = (5, 6);
        let id = AssociationId { smaller, larger };
        let request = |peer| RequestKey {
            peer,
            association: 9,
            request: 4,
        };
        let flow = |peer| FlowKey {
            peer,
            association: 9,
            flow: 4,
        };
        let at_one = [
            Passes::Message(flow(two), 0),
            Passes::Message(flow(two), 1),
            Passes::Request(request(two)),
            Passes::Answer(request(two)),
        ];
        let at_two = [
            Passes::Message(flow(one), 0),
            Passes::Message(flow(one), 1),
            Passes::Request(request(one)),
            Passes::Answer(request(one)),
        ];
        let mut keys = std::collections::BTreeSet::new();
        for (one_says, two_says) in at_one.iter().zip(at_two) {
            for (from, to) in [(one, two), (two, one)] {
                let key = one_says.key(id, from, to);
                assert_eq!(key, two_says.key(id, from, to));
                assert!(keys.insert(key), "{one_says:?} has the key of another one");
            }
        }
        let other = AssociationId { smaller, larger: 7 };
        assert_ne!(at_one[0].key(id, one, two), at_one[0].key(other, one, two));
    }

    #[test]
    fn what_is_not_asked_for_in_time_makes_room_and_is_counted() {
        let domain = Domain::private().unwrap();
        let mut recorder = recorder(&domain);
        let own = NodeId([1; 16]);
        let association = |_: NodeId, _: u64| {
            Some(AssociationId {
                smaller: 1,
                larger: 2,
            })
        };
        let more = 10;
        for number in 0..MOST_EVENTS as u64 + more {
            recorder.passed(true, passes(number), clock(), "log", 1);
            recorder.look(Duration::ZERO, own, association, |_| "roof".to_owned());
        }
        let (first, kept) = recorder.kept();
        assert_eq!((first, kept.count()), (more, MOST_EVENTS));
        assert_eq!(recorder.lost(), (0, more));
        recorder.read_until(more + 5);
        assert_eq!(recorder.kept().0, more + 5);
        // What was read before, and what is not there yet.
        recorder.read_until(3);
        recorder.read_until(u64::MAX);
        assert_eq!(
            (recorder.kept().0, recorder.kept().1.count()),
            (MOST_EVENTS as u64 + more, 0)
        );
    }

    #[test]
    fn a_domain_that_another_process_traces_is_recorded_without_its_members() {
        let domain = Domain::private().unwrap();
        let other = domain.trace().unwrap();
        let mut without = recorder(&domain);
        assert!(
            without
                .without_members
                .as_ref()
                .unwrap()
                .contains("traces this domain already")
        );
        drop(other);
        let mut with = recorder(&domain);
        assert_eq!(with.without_members, None);
        let port = domain.bind(portolan::PortOptions::named("log")).unwrap();
        let right = port.make_send();
        right
            .send(portolan::Message::default(), portolan::WhenFull::Fail)
            .unwrap();
        let looks =
            |it: &mut Recorder| it.look(LEASE, NodeId([1; 16]), |_, _| None, |_| String::new());
        looks(&mut with);
        looks(&mut without);
        assert_eq!((with.kept().1.count(), without.kept().1.count()), (1, 0));
        // When it ends, the rings are off.
        with.end();
        assert_eq!(domain.tracer(), None);
        assert_eq!(with.kept().1.count(), 1);
    }
}
