//! How tests carry what nodes say to one another.

use portolan_proto::Time;
use portolan_proto::node::{
    ConnectionId, Delivery, Destination, Event, Home, Node, OutFragment, OutRecord, Place, PortKey,
};

/// What has come to the ports of a machine that has room for all.
#[derive(Default)]
pub(crate) struct Machine(pub(crate) Vec<Delivery<u64>>);

impl Home<u64> for Machine {
    fn allocate(&mut self, _: Destination, lengths: &[u64]) -> Option<u64> {
        Some(lengths.iter().sum())
    }

    fn fill(&mut self, payload: &u64, bytes: &[u8]) {
        assert_eq!(*payload, bytes.len() as u64);
    }

    fn deliver(&mut self, delivery: Delivery<u64>) -> Result<(), Delivery<u64>> {
        self.0.push(delivery);
        Ok(())
    }
}

/// Lends what is asked for; ports are asked for by their numbers.
pub(crate) fn lend(node: &mut Node<u64>, now: Time, event: &Event<u64>) {
    match event {
        Event::Resolve { flow, name, .. } => {
            let port = PortKey(name.parse().unwrap());
            node.lend(now, *flow, Ok(port)).unwrap();
        }
        Event::Claim { flow, port } => node.lend(now, *flow, Ok(*port)).unwrap(),
        _ => {}
    }
}

/// A record that a node says, with its payload, as it is on the wire.
pub(crate) fn bytes_of(record: OutRecord<u64>) -> Vec<u8> {
    let mut bytes = record.bytes;
    let payload = record.payload.map_or(0, |(_, length)| length);
    bytes.resize(bytes.len() + usize::try_from(payload).unwrap(), 0);
    bytes
}

/// A node takes a fragment, all of it.
pub(crate) fn take_fragment<H: Home<u64>>(
    node: &mut Node<u64>,
    (now, wire): (Time, ConnectionId),
    fragment: &OutFragment<u64>,
    home: &mut H,
) {
    let head = fragment.head.encode();
    match node.fragment(now, wire, &head).1 {
        Place::Record => {
            node.opened(now, wire, &head, &fragment.record, home);
        }
        Place::Into(..) => node.fragment_received(now, wire, &head, home),
        Place::Discard => {}
    }
}

/// Carries a record, or else a fragment, from one node to another; whether there was one.
pub(crate) fn carry_one<H: Home<u64>>(
    nodes: &mut [Node<u64>],
    (from, to): (usize, usize),
    at: (Time, ConnectionId),
    home: &mut H,
) -> bool {
    let (now, wire) = at;
    if let Some(record) = nodes[from].poll_record(now, wire) {
        nodes[to].receive(now, wire, &bytes_of(record), home);
    } else if let Some(fragment) = nodes[from].poll_fragment(now, wire) {
        take_fragment(&mut nodes[to], at, &fragment, home);
    } else {
        return false;
    }
    true
}
