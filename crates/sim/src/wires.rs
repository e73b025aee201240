//! Wires between nodes: streams with a delay, which lose all when they are cut; and nodes that are
//! killed, which cuts all of theirs.

use crate::home::{Label, Machine};
use crate::world::{Happening, SimNode, World};
use portolan_abi::node::{FragmentHead, FragmentKind, Record, RecordHead, RecordKind};
use portolan_proto::Time;
use portolan_proto::node::{Authenticated, ConnectionId, Node, Place, Settings};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// What is written ahead of the wire: as little as a socket is told to take.
const AHEAD: u64 = 200_000;

/// One direction of a wire.
#[derive(Debug, Default)]
pub(crate) struct Direction {
    records: VecDeque<Item>,
    bulk: VecDeque<Item>,
    busy: Time,
    /// When the last item of each stream arrives.
    last: [Time; 2],
    delay: u64,
    /// Nothing arrives any more, and neither end knows.
    pub(crate) cut: bool,
    pub(crate) pumping: bool,
    /// Transfers of messages that are open: which message, and how many of its bytes are to come.
    coming: BTreeMap<u32, (Label, u64)>,
}

impl Direction {
    /// A fragment is written; what is wrong with its turn (N14).
    fn fragment(&mut self, head: &FragmentHead, record: &[u8]) -> Option<String> {
        let transfer = head.transfer;
        match head.kind {
            FragmentKind::Aborts => {
                self.coming.remove(&transfer);
                return None;
            }
            FragmentKind::Opens => {
                let (_, record) = Record::decode(record).ok()?;
                // Answers have no order.
                let Some(Record::Message(message)) = record else {
                    return None;
                };
                let label = Label::read(message.header)?;
                self.coming.insert(transfer, (label, message.payload()));
            }
            FragmentKind::Data => {
                let (_, left) = self.coming.get_mut(&transfer)?;
                *left = left.saturating_sub(u64::from(head.length));
            }
        }
        let (label, left) = *self.coming.get(&transfer)?;
        if left == 0 {
            self.coming.remove(&transfer);
        }
        let earlier = self
            .coming
            .values()
            .find(|(other, _)| other.instance == label.instance && other.number < label.number);
        earlier.map(|(earlier, left)| {
            format!("bytes of {label:?} go, and {left} of {earlier:?} are to come")
        })
    }
}

/// What is on the way.
#[derive(Debug)]
pub(crate) enum Item {
    Record(Vec<u8>),
    Fragment {
        head: [u8; FragmentHead::BYTES],
        record: Vec<u8>,
        content: u64,
    },
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Wire {
    /// Its ends: 0 has dialed.
    pub(crate) ends: [usize; 2],
    pub(crate) open: [bool; 2],
    pub(crate) directions: [Direction; 2],
}

impl World {
    pub(crate) fn dial(&mut self, from: usize, to: usize) {
        let has_one = self.nodes[from]
            .node
            .connection(self.nodes[to].id)
            .is_some();
        let is_under_way = self.nodes[from].wires.iter().any(|wire| {
            let wire = &self.wires[*wire];
            wire.open[0] && wire.ends == [from, to]
        });
        if has_one || is_under_way {
            return;
        }
        if self.nodes[to].stalled > self.now && !self.is_healed {
            let after = self.chance.between(100_000_000, 500_000_000);
            return self.at(after, Happening::Dial(from, to));
        }
        let index = self.wires.len();
        let mut direction = || Direction {
            delay: self.chance.between(20_000, self.plan.delay),
            ..Direction::default()
        };
        let directions = [direction(), direction()];
        self.wires.push(Wire {
            ends: [from, to],
            open: [true, true],
            directions,
        });
        self.report.connections += 1;
        for (end, dialed) in [(0, true), (1, false)] {
            let (here, there) = (self.wires[index].ends[end], self.wires[index].ends[1 - end]);
            let with = Authenticated {
                node: self.nodes[there].id,
                expires: None,
                dialed,
                proven: true,
            };
            let it = &mut self.nodes[here];
            it.wires.insert(index);
            it.node
                .connected(self.now, ConnectionId(index as u64), with);
            self.settle(here);
        }
    }

    /// Writes what an end has to say, as far as the wire takes it.
    pub(crate) fn pump(&mut self, wire: usize, end: usize) {
        let node = self.wires[wire].ends[end];
        let id = ConnectionId(wire as u64);
        while self.wires[wire].open[end] {
            let busy = self.wires[wire].directions[end].busy;
            if busy.0 > self.now.0 + AHEAD {
                if !std::mem::replace(&mut self.wires[wire].directions[end].pumping, true) {
                    let after = busy.0 - self.now.0 - AHEAD / 2;
                    self.at(after, Happening::Pump(wire, end));
                }
                return;
            }
            let it = &mut self.nodes[node];
            let record = it.node.poll_record(self.now, id);
            if let Some(record) = record {
                let mut bytes = record.bytes;
                self.counts_senders(node, &bytes);
                if let Some((payload, length)) = record.payload {
                    let length = usize::try_from(length).unwrap_or(0);
                    let content = payload.content().to_le_bytes();
                    bytes.extend(content.iter().cycle().take(length));
                }
                let length = bytes.len() as u64;
                self.put(wire, end, length, Item::Record(bytes));
                continue;
            }
            let Some(fragment) = it.node.poll_fragment(self.now, id) else {
                return;
            };
            let direction = &mut self.wires[wire].directions[end];
            if let Some(what) = direction.fragment(&fragment.head, &fragment.record) {
                self.oracle.borrow_mut().found("N14", what);
            }
            let length = u64::from(fragment.head.length) + 32;
            let content = fragment.payload.map_or(0, |(payload, _)| payload.content());
            let item = Item::Fragment {
                head: fragment.head.encode(),
                record: fragment.record,
                content,
            };
            self.put(wire, end, length, item);
        }
    }

    /// A record is written: N8.
    fn counts_senders(&mut self, node: usize, record: &[u8]) {
        let head = record.get(..RecordHead::BYTES).map(RecordHead::decode);
        if !matches!(head, Some(Ok(head)) if head.kind == RecordKind::WantSenders as u16) {
            return;
        }
        self.report.senders_asked += 1;
        if !self.nodes[node].rights.has_asked {
            let what = format!("node {node} asks for senders, and no port wants to know");
            self.oracle.borrow_mut().found("N8", what);
        }
    }

    fn put(&mut self, wire: usize, end: usize, length: u64, item: Item) {
        let jitter = self.chance.below(self.plan.delay / 4 + 1);
        let now = self.now;
        self.report.bytes += length;
        let direction = &mut self.wires[wire].directions[end];
        let begin = direction.busy.max(now);
        direction.busy = Time(begin.0 + length * 1_000_000_000 / self.plan.rate);
        let bulk = matches!(item, Item::Fragment { .. });
        // In order within a stream, in any order between them.
        let last = &mut direction.last[usize::from(bulk)];
        *last = Time((direction.busy.0 + direction.delay + jitter).max(last.0 + 1));
        let after = last.0 - now.0;
        let queue = if bulk {
            &mut direction.bulk
        } else {
            &mut direction.records
        };
        queue.push_back(item);
        self.at(after, Happening::Arrive(wire, end, bulk));
    }

    pub(crate) fn arrive(&mut self, wire: usize, direction: usize, bulk: bool) {
        let there = &mut self.wires[wire];
        let end = 1 - direction;
        let way = &mut there.directions[direction];
        let queue = if bulk {
            &mut way.bulk
        } else {
            &mut way.records
        };
        let Some(item) = queue.pop_front() else {
            return;
        };
        let is_lost = way.cut || !there.open[end];
        let node = there.ends[end];
        if is_lost {
            return;
        }
        if !self.is_healed && self.chance.happens(self.plan.cuts_per_million) {
            return self.cut(wire);
        }
        let id = ConnectionId(wire as u64);
        let SimNode { node, machine, .. } = &mut self.nodes[node];
        machine.now = self.now;
        self.report.records += 1;
        match item {
            Item::Record(bytes) => node.receive(self.now, id, &bytes, machine),
            Item::Fragment {
                head,
                record,
                content,
            } => {
                let (length, place) = node.fragment(self.now, id, &head);
                match place {
                    Place::Record => node.opened(self.now, id, &head, &record, machine),
                    Place::Into(payload, offset) => {
                        let length = u64::from(length);
                        if !payload.receive(offset, length, content) {
                            let what = format!("bytes at {offset} do not continue {payload:?}");
                            self.oracle.borrow_mut().found("N6", what);
                        }
                        drop(payload);
                        node.fragment_received(self.now, id, &head, machine);
                    }
                    Place::Discard => {}
                }
            }
        }
    }

    /// Both ends lose a connection, each when it notices.
    pub(crate) fn cut(&mut self, wire: usize) {
        self.report.cuts += 1;
        for end in 0..2 {
            self.wires[wire].directions[end].cut = true;
            if self.wires[wire].open[end] {
                let after = self.chance.below(2_000_000);
                self.at(after, Happening::Gone(wire, end));
            }
        }
    }

    /// One direction loses all, and nobody is told.
    pub(crate) fn cut_one_way(&mut self, wire: usize, direction: usize) {
        self.report.cuts += 1;
        self.wires[wire].directions[direction].cut = true;
    }

    pub(crate) fn gone(&mut self, wire: usize, end: usize) {
        if !std::mem::take(&mut self.wires[wire].open[end]) {
            return;
        }
        let node = self.wires[wire].ends[end];
        let peer = self.wires[wire].ends[1 - end];
        self.nodes[node].wires.remove(&wire);
        let id = ConnectionId(wire as u64);
        self.nodes[node].node.disconnected(self.now, id);
        self.redial(node, peer);
    }

    fn redial(&mut self, node: usize, peer: usize) {
        let after = self.chance.between(5_000_000, 300_000_000);
        self.at(after, Happening::Dial(node, peer));
    }

    /// An end closes its connection: what it wrote still arrives.
    pub(crate) fn close(&mut self, wire: usize, end: usize) {
        self.pump(wire, end);
        if !std::mem::take(&mut self.wires[wire].open[end]) {
            return;
        }
        let node = self.wires[wire].ends[end];
        let peer = self.wires[wire].ends[1 - end];
        self.nodes[node].wires.remove(&wire);
        self.nodes[node]
            .node
            .disconnected(self.now, ConnectionId(wire as u64));
        let direction = &self.wires[wire].directions[end];
        if self.wires[wire].open[1 - end] && !direction.cut {
            let last = direction.last[0].max(direction.last[1]).max(self.now);
            let after = last.0 - self.now.0 + 1 + direction.delay;
            self.at(after, Happening::Gone(wire, 1 - end));
        }
        self.redial(node, peer);
    }

    /// A node is killed and starts again.
    pub(crate) fn restart(&mut self, node: usize) {
        self.report.restarts += 1;
        for wire in self.nodes[node].wires.clone() {
            let end = usize::from(self.wires[wire].ends[1] == node);
            self.wires[wire].open[end] = false;
            self.nodes[node].wires.remove(&wire);
            self.wires[wire].directions[0].cut = true;
            self.wires[wire].directions[1].cut = true;
            let after = self.chance.below(2_000_000);
            self.at(after, Happening::Gone(wire, 1 - end));
        }
        let peers = self.nodes[node].neighbours.clone();
        self.oracle
            .borrow_mut()
            .open
            .retain(|(of, _), _| *of != node);
        self.oracle.borrow_mut().restarted(node);
        let placeholder = Node::new(Settings::new(self.nodes[node].id, 1, [7; 16]));
        let old = &mut self.nodes[node];
        let it = SimNode {
            id: old.id,
            incarnation: old.incarnation,
            node: placeholder,
            machine: Machine {
                ledger: Rc::clone(&old.machine.ledger),
                queues: std::mem::take(&mut old.machine.queues),
                lent: BTreeMap::new(),
                hostile: std::mem::take(&mut old.machine.hostile),
                oracle: Rc::clone(&old.machine.oracle),
                memory: old.machine.memory,
                now: self.now,
                arrived: Vec::new(),
                moves: old.machine.moves,
            },
            flows: std::mem::take(&mut old.flows),
            neighbours: peers.clone(),
            taken: Vec::new(),
            rights: std::mem::take(&mut old.rights),
            moves: std::mem::take(&mut old.moves),
            stalled: old.stalled,
            parked: std::mem::take(&mut old.parked),
            slow: old.slow,
            timer: None,
            wires: BTreeSet::new(),
        };
        self.nodes[node] = self.started(it);
        peers.iter().for_each(|peer| self.redial(node, *peer));
    }
}
