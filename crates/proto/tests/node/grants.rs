//! Grants of transfers come free, whatever of a flow was on its way when it was told to wait.

use crate::wire::take_fragment;
use portolan_abi::node::{NodeId, PortId};
use portolan_proto::Time;
use portolan_proto::node::{
    Authenticated, ConnectionId, Delivery, Destination, DomainKey, Event, FlowKey, Home, Message,
    Node, PortKey, PortSettings, Settings,
};

const IDS: [NodeId; 2] = [NodeId([1; 16]), NodeId([2; 16])];
const DOMAIN: DomainKey = DomainKey(1);
const PORT: PortKey = PortKey(1);
/// Hall has the port, and roof sends.
const HALL: usize = 0;
const ROOF: usize = 1;
const NOW: Time = Time(1_000_000);
const WIRE: ConnectionId = ConnectionId(1);
/// Of the port.
const SLOTS: u32 = 8;
/// Of a message: so many that it is announced; and more than the domain grants to two.
const BYTES: u64 = 3 << 20;

/// A machine that has no memory for a while.
#[derive(Default)]
struct Machine {
    is_short: bool,
    delivered: usize,
}

impl Home<u64> for Machine {
    fn allocate(&mut self, _: Destination, lengths: &[u64]) -> Option<u64> {
        (!self.is_short).then(|| lengths.iter().sum())
    }

    fn fill(&mut self, _: &u64, _: &[u8]) {}

    fn deliver(&mut self, _: Delivery<u64>) -> Result<(), Delivery<u64>> {
        self.delivered += 1;
        Ok(())
    }
}

struct Pair {
    nodes: [Node<u64>; 2],
    machines: [Machine; 2],
    flow: FlowKey,
}

impl Pair {
    fn new() -> Self {
        let mut nodes = IDS.map(|id| Node::new(Settings::new(id, 1, [7; 16])));
        let settings = PortSettings {
            id: PortId {
                origin: IDS[HALL],
                serial: PORT.0,
            },
            key: [5; 16],
            domain: DOMAIN,
            synchronous: false,
            slots: SLOTS,
        };
        nodes[HALL].add_port(PORT, settings);
        nodes[HALL].set_budget(DOMAIN, BYTES);
        for (at, node) in nodes.iter_mut().enumerate() {
            let with = Authenticated {
                node: IDS[1 - at],
                expires: None,
                dialed: at == HALL,
                proven: true,
            };
            node.connected(NOW, WIRE, with);
        }
        let none = FlowKey {
            peer: IDS[HALL],
            association: 0,
            flow: 0,
        };
        let mut pair = Self {
            nodes,
            machines: Default::default(),
            flow: none,
        };
        pair.settle();
        pair.flow = pair.nodes[ROOF].resolve(IDS[HALL], "d", "port").unwrap();
        pair.settle();
        pair
    }

    fn send(&mut self) {
        let message = Message::long(b"large", &[BYTES], BYTES);
        self.nodes[ROOF].send(self.flow, message).unwrap();
    }

    /// What a node writes in its stream of records.
    fn records(&mut self, at: usize) -> Vec<Vec<u8>> {
        let record = || self.nodes[at].poll_record(NOW, WIRE);
        std::iter::from_fn(record).map(|it| it.bytes).collect()
    }

    fn read(&mut self, at: usize, records: Vec<Vec<u8>>) {
        for record in records {
            let home = &mut self.machines[at];
            self.nodes[at].receive(NOW, WIRE, &record, home);
        }
        while let Some(event) = self.nodes[at].poll_event() {
            if let Event::Resolve { flow, .. } = event {
                self.nodes[at].lend(NOW, flow, Ok(PORT)).unwrap();
            }
        }
    }

    /// The other node reads all that a node writes in its stream of records; whether that is anything.
    fn talk(&mut self, at: usize) -> bool {
        let records = self.records(at);
        let any = !records.is_empty();
        self.read(1 - at, records);
        any
    }

    /// Hall reads all that roof writes in its bulk stream; whether that is anything.
    fn bulk(&mut self) -> bool {
        let mut any = false;
        while let Some(fragment) = self.nodes[ROOF].poll_fragment(NOW, WIRE) {
            any = true;
            let (hall, home) = (&mut self.nodes[HALL], &mut self.machines[HALL]);
            take_fragment(hall, (NOW, WIRE), &fragment, home);
        }
        any
    }

    /// Turns until nobody has anything to say.
    fn settle(&mut self) {
        while self.talk(HALL) | self.talk(ROOF) | self.bulk() {}
    }

    /// Hall has no memory for the first of two messages. The second one, which roof announces before it
    /// hears of that, comes when the flow's turn has come again. What each of the two has said then lies
    /// in the wires: roof's announcement, hall's word to wait, and its credit for one message.
    fn crossed() -> (Self, Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let mut pair = Self::new();
        pair.machines[HALL].is_short = true;
        pair.send();
        assert!(pair.talk(ROOF) && pair.talk(HALL), "announced, granted");
        assert!(pair.bulk(), "opened: there is no memory");
        pair.send();
        let announced = pair.records(ROOF);
        pair.machines[HALL].is_short = false;
        pair.nodes[HALL].room(NOW, PORT, SLOTS);
        let told = pair.records(HALL);
        assert_eq!((announced.len(), told.len()), (1, 2));
        (pair, announced, told)
    }

    fn all_have_come(&mut self) {
        self.settle();
        assert_eq!(self.machines[HALL].delivered, 2);
        assert_eq!(self.nodes[ROOF].first_kept(self.flow), Some(2));
        self.send();
        self.settle();
        assert_eq!(self.machines[HALL].delivered, 3);
    }
}

#[test]
fn an_announcement_that_crosses_the_word_to_wait_keeps_no_grant() {
    let (mut pair, announced, told) = Pair::crossed();
    pair.read(HALL, announced);
    pair.read(ROOF, told);
    pair.all_have_come();
}

/// By the bulk stream, roof's word that it has thrown the transfer away comes first.
#[test]
fn an_announcement_that_comes_after_its_own_end_keeps_no_grant() {
    let (mut pair, announced, told) = Pair::crossed();
    pair.read(ROOF, told);
    pair.bulk();
    pair.read(HALL, announced);
    pair.all_have_come();
}
