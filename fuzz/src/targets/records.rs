//! Records of another node, as they come: refused, skipped, or read whole; a node that gets them
//! goes on.

use arbitrary::{Result, Unstructured};
use portolan_abi::node::{
    FEATURE_RIGHTS, Hello, HelloBody, NodeId, PortId, Record, RecordHead, RecordKind, Sent, WIRE,
};
use portolan_proto::Time;
use portolan_proto::node::{
    Answer, Authenticated, ConnectionId, Delivery, Destination, DomainKey, Event, Given, Home,
    Leads, Node, PortKey, PortSettings, Settings,
};

pub(super) const PEER: NodeId = NodeId([2; 16]);
pub(super) const WIRE_TO_PEER: ConnectionId = ConnectionId(1);
pub(super) const NOW: Time = Time(1 << 30);

/// A port of four slots, which nobody empties; and the rights that have come.
#[derive(Default)]
pub(super) struct Machine(usize, Vec<Given>);

impl Home<()> for Machine {
    fn allocate(&mut self, _: Destination, _: &[u64]) -> Option<()> {
        Some(())
    }

    fn fill(&mut self, (): &(), _: &[u8]) {}

    fn deliver(&mut self, it: Delivery<()>) -> std::result::Result<(), Delivery<()>> {
        self.0 += 1;
        if self.0 > 4 {
            return Err(it);
        }
        self.1.extend(it.message.rights);
        Ok(())
    }
}

pub(super) fn run(data: &[u8]) {
    whole(data);
    let _ = conversation(&mut Unstructured::new(data));
}

/// What is read is what was written.
fn whole(data: &[u8]) {
    let Ok((head, Some(record))) = Record::decode(data) else {
        return;
    };
    let sent = Sent {
        flags: head.flags,
        flow: head.flow,
        number: u64::from(head.number),
    };
    let again = record.with(sent);
    assert_eq!(Record::decode(&again), Ok((head, Some(record))));
}

fn settings() -> PortSettings {
    PortSettings {
        id: PortId::default(),
        key: [0; 16],
        domain: DomainKey(1),
        synchronous: false,
        slots: 4,
    }
}

/// A node with a port that is lent to a peer, and has greeted it.
pub(super) fn node(machine: &mut Machine) -> Node<()> {
    let mut node = Node::new(Settings::new(NodeId([1; 16]), 1, [7; 16]));
    node.add_port(PortKey(1), settings());
    node.set_budget(DomainKey(1), 1 << 20);
    let with = Authenticated {
        node: PEER,
        expires: None,
        dialed: true,
        proven: true,
    };
    node.connected(NOW, WIRE_TO_PEER, with);
    let body = HelloBody {
        versions: WIRE,
        features: FEATURE_RIGHTS,
        cluster: [7; 16],
        node: PEER,
        incarnation: 1,
        run: [1; 16],
        name: 0,
        known: 0,
        association: None,
        proposal: 1,
        flows: 9,
        transfers: 9,
        requests: 9,
    };
    let (name, known) = ("peer".to_owned(), Vec::new());
    for record in [Record::Hello(Hello { body, name, known }), Record::Resumed] {
        let bytes = record.with(Sent::default());
        node.receive(NOW, WIRE_TO_PEER, &bytes, machine);
    }
    node.want_senders(PortKey(1));
    let (flow, domain, name) = (1, "domain", "port");
    let ask = portolan_abi::node::Resolve { flow, domain, name };
    let bytes = Record::Resolve(ask).with(Sent::default());
    node.receive(NOW, WIRE_TO_PEER, &bytes, machine);
    settle(&mut node);
    node
}

/// Lends what is asked for, and lets the node say what it has to.
pub(super) fn settle(node: &mut Node<()>) {
    let mut said = 0;
    loop {
        while let Some(event) = node.poll_event() {
            match event {
                Event::Resolve { flow, .. } => {
                    let _ = node.lend(NOW, flow, Ok(PortKey(1)));
                }
                Event::Claim { flow, port } => {
                    let _ = node.lend(NOW, flow, Ok(port));
                }
                _ => {}
            }
        }
        if node.poll_record(NOW, WIRE_TO_PEER).is_none()
            && node.poll_fragment(NOW, WIRE_TO_PEER).is_none()
        {
            break;
        }
        said += 1;
        assert!(said < 1000, "it says more and more");
    }
    if let Some((promised, usable, _)) = node.port_view(PortKey(1)) {
        assert!(
            promised <= 3 && usable <= 3,
            "{promised} of {usable} slots are promised"
        );
    }
}

/// Rights that have come are borrowed, or given back.
pub(super) fn accept(node: &mut Node<()>, machine: &mut Machine) {
    for given in std::mem::take(&mut machine.1) {
        if given.leads == Leads::There {
            node.borrow(NOW, &given);
        } else {
            let _ = node.answer(given.request, Answer::Dropped);
        }
    }
}

/// Records of the right length, one after another.
fn conversation(u: &mut Unstructured<'_>) -> Result<()> {
    let mut machine = Machine::default();
    let mut node = node(&mut machine);
    while !u.is_empty() {
        let tail = u.int_in_range(0..=300_usize)?;
        let kind = match u.int_in_range(1..=28)? {
            21 => RecordKind::Claim as u16,
            22 => RecordKind::Recall as u16,
            23 => RecordKind::WantSenders as u16,
            24 => RecordKind::MoveRight as u16,
            25 => RecordKind::Backlog as u16,
            26 => RecordKind::Moved as u16,
            27 => RecordKind::WhereIs as u16,
            28 => RecordKind::IsAt as u16,
            kind => kind,
        };
        let head = RecordHead {
            length: u32::try_from(RecordHead::BYTES + tail).unwrap_or(16),
            kind,
            flags: portolan_abi::node::RecordFlags(u.int_in_range(0..=7)?),
            flow: u.int_in_range(0..=3)?,
            number: u.int_in_range(0..=6)?,
        };
        let mut bytes = head.encode().to_vec();
        bytes.extend(u.bytes(tail.min(u.len()))?);
        bytes.resize(RecordHead::BYTES + tail, 0);
        if kind == RecordKind::Claim as u16 && tail >= 48 && u.ratio(1, 2)? {
            // Of the port that there is.
            bytes[RecordHead::BYTES + 32..][..16].copy_from_slice(&settings().secret());
        }
        whole(&bytes);
        node.receive(NOW, WIRE_TO_PEER, &bytes, &mut machine);
        accept(&mut node, &mut machine);
        settle(&mut node);
    }
    Ok(())
}
