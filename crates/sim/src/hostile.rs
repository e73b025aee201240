//! A node that says what no honest one says, among nodes that go on: N12.

use crate::chance::Chance;
use crate::oracle::Finding;
use crate::world::{HOSTILE, SimNode, World, node_id};
use crate::{Plan, Report};
use portolan_abi::node::{
    ANSWERS, Announce, Asked, Backlog, Bye, ByeReason, Claim, Dead, DeadReason, FragmentHead,
    FragmentKind, Hello, HelloBody, Lent, Located, Member, MessageBody, MessageRecord, MoveRight,
    Moved, NodeId, Ping, PortId, Record, RecordFlags, Reference, ReferenceKind, Resolve,
    ResolveFailure, Sent, WIRE,
};
use portolan_abi::slot::Kind;
use portolan_proto::node::{Authenticated, ConnectionId, Place};

/// The hostile node's id, and its victim.
const ID: NodeId = NodeId([0xee; 16]);
const VICTIM: usize = 0;
/// Records that one record makes a node say at the most, beside pings and greetings: its
/// acknowledgement, credit, a word to wait, and a grant.
const REPLIES: u64 = 8;

/// Runs nodes that have no other trouble than one that is hostile to one of them, for so many
/// records.
///
/// # Errors
///
/// The first invariant that does not hold.
pub fn run_hostile(plan: Plan, records: u64) -> Result<Report, Finding> {
    let plan = Plan {
        faults_per_second: 0,
        cuts_per_million: 0,
        ..plan
    };
    let mut world = World::new(plan);
    world.nodes[VICTIM].machine.hostile.insert(ID);
    let mut hostile = Hostile {
        chance: Chance::new(plan.seed.wrapping_mul(31)),
        connection: 0,
        proposal: 0,
        numbers: 0,
    };
    world.hostile_closed = true;
    let (mut said, mut heard) = (0, 0);
    for _ in 0..records {
        // The others go on meanwhile.
        for _ in 0..8 {
            world.step()?;
        }
        if std::mem::take(&mut world.hostile_closed) {
            hostile.connect(&mut world);
        }
        said += 1;
        hostile.say(&mut world);
        world.settle(VICTIM);
        heard += hostile.hear(&mut world);
        if heard > REPLIES * said + 64 {
            let what = format!("{heard} records reply to {said}");
            world.oracle.borrow_mut().found("N12", what);
        }
        world.judge()?;
    }
    world.check_all();
    world.judge()?;
    let mut report = world.report.clone();
    report.steps = world.step;
    report.digest = world.digest();
    report.delivered = world.oracle.borrow().delivered;
    Ok(report)
}

struct Hostile {
    chance: Chance,
    connection: u64,
    proposal: u64,
    /// Control records that it has numbered.
    numbers: u64,
}

impl Hostile {
    fn id(&self) -> ConnectionId {
        ConnectionId(HOSTILE + self.connection)
    }

    fn connect(&mut self, world: &mut World) {
        self.connection += 1;
        self.proposal += 1;
        self.numbers = 0;
        let with = Authenticated {
            node: ID,
            expires: None,
            dialed: false,
            proven: true,
        };
        let (now, id) = (world.now, self.id());
        world.nodes[VICTIM].node.connected(now, id, with);
        let rarely = self.chance.happens(50_000);
        let hello = Hello {
            body: HelloBody {
                versions: WIRE,
                features: u64::MAX,
                cluster: [if rarely { 8 } else { 7 }; 16],
                node: ID,
                incarnation: 1 + self.chance.below(2),
                run: [1; 16],
                name: 0,
                known: 0,
                association: None,
                proposal: self.proposal,
                flows: 4,
                transfers: 4,
                requests: 4,
            },
            name: "hostile".to_owned(),
            known: vec![NodeId([1; 16])],
        };
        let bytes = Record::Hello(hello).with(Sent::default());
        self.send(world, &bytes);
        let bytes = Record::Resumed.with(Sent::default());
        self.send(world, &bytes);
    }

    fn send(&self, world: &mut World, bytes: &[u8]) {
        let (now, id) = (world.now, self.id());
        let SimNode { node, machine, .. } = &mut world.nodes[VICTIM];
        node.receive(now, id, bytes, machine);
    }

    /// What the victim says is read, and counted.
    fn hear(&self, world: &mut World) -> u64 {
        let (now, id) = (world.now, self.id());
        let node = &mut world.nodes[VICTIM].node;
        let mut heard = 0;
        while node.poll_record(now, id).is_some() || node.poll_fragment(now, id).is_some() {
            heard += 1;
        }
        heard
    }

    fn say(&mut self, world: &mut World) {
        if self.chance.happens(150_000) {
            return self.fragment(world);
        }
        let mut bytes = self.record();
        if self.chance.happens(20_000) {
            let at = usize::try_from(self.chance.below(bytes.len() as u64)).unwrap_or(0);
            bytes[at] ^= 1 << self.chance.below(8);
        }
        if self.chance.happens(5_000) {
            bytes.truncate(bytes.len() / 2);
        }
        self.send(world, &bytes);
    }

    fn small(&mut self) -> u64 {
        match self.chance.below(20) {
            0 => self.chance.next(),
            1 => self.chance.below(1 << 33),
            _ => self.chance.below(6),
        }
    }

    fn flow(&mut self) -> u32 {
        match self.chance.below(32) {
            0 => ANSWERS,
            1 => 0,
            2 => u32::try_from(self.chance.below(1 << 32)).unwrap_or(9),
            _ => u32::try_from(self.chance.between(1, 4)).unwrap_or(1),
        }
    }

    fn message(&mut self, is_answer: bool) -> (MessageBody, Vec<u64>, Vec<u8>) {
        let kinds: &[Kind] = if is_answer {
            &[Kind::Reply, Kind::Dropped, Kind::ServerDead]
        } else {
            &[Kind::Message, Kind::Request]
        };
        let kind = kinds[usize::try_from(self.chance.below(kinds.len() as u64)).unwrap_or(0)];
        let is_empty = matches!(kind, Kind::Dropped | Kind::ServerDead);
        let count = if is_empty { 0 } else { self.chance.below(3) };
        let lengths: Vec<u64> = (0..count).map(|_| self.chance.between(1, 4000)).collect();
        let sum = u32::try_from(lengths.iter().sum::<u64>()).unwrap_or(0);
        let header = vec![0xab; if is_empty { 0 } else { 16 }];
        let body = MessageBody {
            header: header.len(),
            extents: lengths.len(),
            inline: sum,
            time_left: Some(self.small()),
            request: self.small(),
            ..MessageBody::new(kind)
        };
        (body, lengths, header)
    }

    /// Rights on ports that it may know of, and on others.
    fn rights(&mut self) -> Vec<Reference> {
        let count = self.chance.below(12).saturating_sub(9);
        let one = |this: &mut Self| {
            let request = this.small().max(1);
            if this.chance.happens(300_000) {
                return Reference::once(request);
            }
            let claim = this.claim(1);
            if this.chance.happens(300_000) {
                // Of a port that it says is its own.
                return Reference {
                    port: claim.port,
                    secret: claim.secret,
                    home: ID,
                    incarnation: 1,
                    kind: ReferenceKind::Receive,
                    slots: 4,
                    ..Reference::once(request)
                };
            }
            let homes = [claim.port.origin, ID, NodeId([9; 16])];
            Reference {
                port: claim.port,
                secret: claim.secret,
                home: homes[usize::try_from(this.chance.below(3)).unwrap_or(0)],
                incarnation: this.small(),
                kind: ReferenceKind::Send,
                synchronous: this.chance.happens(500_000),
                ..Reference::once(request)
            }
        };
        (0..count).map(|_| one(self)).collect()
    }

    /// A port of the victim, whose secret it does not know.
    fn claim(&mut self, flow: u32) -> Claim {
        let serial = match self.chance.below(2) {
            0 => self.chance.below(3),
            _ => self.chance.between(1000, 1004),
        };
        let mut secret = [0x5e; 16];
        secret[0] = u8::try_from(self.chance.below(200)).unwrap_or(0);
        Claim {
            flow,
            port: PortId {
                origin: NodeId([0; 16]),
                serial,
            },
            secret,
        }
    }

    fn record(&mut self) -> Vec<u8> {
        let flags = RecordFlags(u16::try_from(self.chance.below(8)).unwrap_or(0) & !1);
        let sent = Sent {
            flags,
            flow: self.flow(),
            number: self.small(),
        };
        let control = Sent {
            flow: 0,
            number: self.numbers,
            ..Sent::default()
        };
        let flow = self.flow();
        match self.chance.below(30) {
            0..4 => {
                self.numbers += 1;
                let name = if self.chance.happens(800_000) {
                    "0"
                } else {
                    "none"
                };
                let domain = "domain";
                Record::Resolve(Resolve { flow, domain, name }).with(control)
            }
            kind @ 4..=10 => {
                let is_answer = kind == 10;
                let (body, lengths, header) = self.message(is_answer);
                let inline = vec![7; body.inline as usize];
                let is_empty = header.is_empty();
                let rights = if is_empty { Vec::new() } else { self.rights() };
                let body = MessageBody {
                    rights: u8::try_from(rights.len()).unwrap_or(0),
                    ..body
                };
                let record = MessageRecord {
                    body,
                    lengths,
                    rights,
                    header: &header,
                    inline: &inline,
                };
                match is_answer {
                    true => Record::Answer(record).with(sent),
                    false => Record::Message(record).with(sent),
                }
            }
            11 => Record::Ack.with(sent),
            12 => Record::Credit.with(sent),
            13 => Record::Wait.with(sent),
            14 => {
                let credit = self.small();
                Record::Empty { credit }.with(sent)
            }
            15 => {
                let transfer = u32::try_from(self.chance.below(4)).unwrap_or(0) | 1 << 31;
                Record::Announce(Announce {
                    transfer,
                    extents: 1,
                    bytes: self.chance.between(1, 1 << 40),
                    request: self.small(),
                })
                .with(sent)
            }
            16 => Record::Grant { transfer: flow }.with(sent),
            17 => {
                self.numbers += 1;
                let lent = if self.chance.happens(500_000) {
                    Ok(Lent {
                        port: PortId::default(),
                        secret: [0; 16],
                        key: [0; 16],
                        synchronous: false,
                    })
                } else {
                    Err(ResolveFailure::Full)
                };
                Record::Resolved { flow, lent }.with(control)
            }
            18 => {
                self.numbers += 1;
                Record::Dead(Dead {
                    flow,
                    reason: DeadReason::Closed,
                    next: self.small(),
                })
                .with(control)
            }
            19 => {
                self.numbers += 1;
                Record::Close { flow }.with(control)
            }
            20 => Record::AckAnswer {
                request: self.small(),
            }
            .with(sent),
            21 => Record::Ping(Ping {
                clock: self.small(),
                echo: Some(self.chance.next()),
                held: self.small(),
            })
            .with(sent),
            22 if self.chance.happens(100_000) => Record::Bye(Bye {
                reason: ByeReason::Other,
            })
            .with(sent),
            24 => {
                self.numbers += 1;
                Record::Claim(self.claim(flow)).with(control)
            }
            25 => {
                self.numbers += 1;
                let request = self.small();
                Record::Recall { request }.with(control)
            }
            26 => {
                self.numbers += 1;
                Record::WantSenders { flow }.with(control)
            }
            27 => {
                self.numbers += 1;
                let moves = MoveRight {
                    flow,
                    wants_senders: self.chance.happens(500_000),
                    request: self.small().max(1),
                };
                Record::MoveRight(moves).with(control)
            }
            28 => {
                self.numbers += 1;
                let end = self.small();
                Record::Backlog(Backlog { flow, end }).with(control)
            }
            29 => {
                self.numbers += 1;
                let homes = [node_id(0), node_id(1), ID];
                let moved = Moved {
                    flow,
                    next: self.small(),
                    home: homes[usize::try_from(self.chance.below(3)).unwrap_or(0)],
                    incarnation: 1,
                };
                Record::Moved(moved).with(control)
            }
            23 if self.chance.happens(500_000) => {
                let member = Member {
                    node: NodeId([9; 16]),
                    address: "elsewhere:1",
                };
                let count = usize::try_from(self.chance.below(70)).unwrap_or(0);
                Record::Members(vec![member; count]).with(sent)
            }
            30 => {
                let (number, entry) = (self.small(), [0xab; 16]);
                let asked = vec![
                    Asked {
                        port: entry,
                        proof: entry,
                    };
                    usize::try_from(self.chance.below(300)).unwrap_or(0)
                ];
                Record::WhereIs { number, asked }.with(sent)
            }
            31 => {
                let (number, entry) = (self.small(), [0xab; 16]);
                let located = Located {
                    port: entry,
                    home: ID,
                    incarnation: 1,
                    proof: entry,
                };
                let located = vec![located; usize::try_from(self.chance.below(9)).unwrap_or(0)];
                Record::IsAt { number, located }.with(sent)
            }
            _ => Record::Ack.with(control),
        }
    }

    fn fragment(&mut self, world: &mut World) {
        let (now, id) = (world.now, self.id());
        let kinds = FragmentKind::ALL;
        let kind = kinds[usize::try_from(self.chance.below(3)).unwrap_or(0)];
        let (body, _, header) = self.message(false);
        let record = MessageRecord {
            body: MessageBody {
                inline: 0,
                extents: 1,
                ..body
            },
            lengths: vec![self.chance.between(1, 40_000)],
            rights: Vec::new(),
            header: &header,
            inline: &[],
        };
        let sent = Sent {
            flags: RecordFlags::PROBE,
            flow: self.flow(),
            number: self.small(),
        };
        let record = Record::Message(record).with(sent);
        let announced = u32::from(self.chance.happens(300_000)) << 31;
        let head = FragmentHead {
            transfer: u32::try_from(self.chance.below(6)).unwrap_or(0) | announced,
            offset: if kind == FragmentKind::Data {
                self.small()
            } else {
                0
            },
            length: match kind {
                FragmentKind::Opens => u32::try_from(record.len()).unwrap_or(0),
                FragmentKind::Data => u32::try_from(self.chance.between(1, 30_000)).unwrap_or(1),
                FragmentKind::Aborts => 0,
            },
            kind,
        };
        let head = head.encode();
        let SimNode { node, machine, .. } = &mut world.nodes[VICTIM];
        let (length, place) = node.fragment(now, id, &head);
        match place {
            Place::Record => node.opened(now, id, &head, &record, machine),
            Place::Into(payload, offset) => {
                payload.receive(offset, u64::from(length), 1);
                drop(payload);
                node.fragment_received(now, id, &head, machine);
            }
            Place::Discard => {}
        }
    }
}
