//! A shaped link in virtual time: when bytes arrive, to the nanosecond.

use std::sync::Arc;
use std::time::Duration;

use portolan_transport::clock::{Clock, ManualClock};
use portolan_transport::{
    Address, Class, Connection, Destination, Listener, Memory, Progress, Shape, Shaped, Source,
    State, StreamId, Transport, TransportError,
};

const MS: Duration = Duration::from_millis(1);

/// Nodes on one network and clock.
struct Network {
    clock: Arc<ManualClock>,
    memory: Memory,
}

impl Network {
    fn new() -> Self {
        Self {
            clock: Arc::new(ManualClock::default()),
            memory: Memory::default(),
        }
    }

    fn node(&self, shape: Shape) -> Shaped<Memory> {
        Shaped::new(self.memory.clone(), shape, self.clock.clone())
    }
}

struct End {
    connection: Box<dyn Connection>,
    on: StreamId,
}

impl End {
    fn new(mut connection: Box<dyn Connection>) -> Self {
        let on = connection.open(Class::Records).unwrap();
        Self { connection, on }
    }

    fn send(&mut self, bytes: &[u8]) -> Progress {
        self.connection.send(self.on, &[Source::from(bytes)])
    }

    /// How many bytes it receives now.
    fn receive(&mut self) -> usize {
        self.connection.progress();
        let mut all = 0;
        let mut bytes = vec![0; 1 << 16];
        loop {
            match self
                .connection
                .receive(self.on, &[Destination::from(&mut bytes[..])])
            {
                Progress::Moved(moved) => all += moved,
                Progress::Blocked => return all,
                other => panic!("{other:?}"),
            }
        }
    }
}

fn join(from: &Shaped<Memory>, to: &mut Box<dyn Listener>) -> (End, End) {
    let client = from.connect(&to.address()).unwrap();
    let server = to.accept().unwrap().unwrap();
    (End::new(client), End::new(server))
}

/// Lets time go on until so many bytes have come; when that was.
fn until_came(network: &Network, ends: &mut [(End, End)], bytes: usize) -> Duration {
    let mut came = 0;
    loop {
        for (from, to) in ends.iter_mut() {
            from.connection.progress();
            came += to.receive();
        }
        if came >= bytes {
            return network.clock.now();
        }
        let all = ends
            .iter()
            .flat_map(|(a, b)| [&a.connection, &b.connection]);
        let wake = all.filter_map(|connection| connection.wake_at()).min();
        let wake = wake.expect("bytes are under way, and nobody says when they are due");
        network.clock.advance(wake - network.clock.now());
    }
}

#[test]
fn a_byte_arrives_after_its_time_on_the_wire_and_the_delay() {
    let network = Network::new();
    // A byte takes 1 us.
    let shape = Shape {
        delay: 20 * MS,
        rate: Some(1_000_000),
        ..Shape::default()
    };
    let (a, b) = (network.node(shape), network.node(shape));
    let mut listener = b.listen(&Address::named("b")).unwrap();
    let mut ends = [join(&a, &mut listener)];
    assert_eq!(ends[0].0.send(&[1; 5_000]), Progress::Moved(5_000));
    assert_eq!(until_came(&network, &mut ends, 5_000), 25 * MS);
    // Two more, one behind the other.
    assert_eq!(ends[0].0.send(&[1; 1_000]), Progress::Moved(1_000));
    assert_eq!(ends[0].0.send(&[1; 1_000]), Progress::Moved(1_000));
    assert_eq!(until_came(&network, &mut ends, 1_000), 46 * MS);
    assert_eq!(until_came(&network, &mut ends, 1_000), 47 * MS);
}

#[test]
fn a_window_is_filled_once_a_round_trip() {
    let network = Network::new();
    let shape = Shape {
        delay: 10 * MS,
        window: 1_000,
        ..Shape::default()
    };
    let node = network.node(shape);
    let mut listener = node.listen(&Address::named("b")).unwrap();
    let mut ends = [join(&node, &mut listener)];
    for round in 0..3 {
        assert_eq!(ends[0].0.send(&[1; 5_000]), Progress::Moved(1_000));
        assert_eq!(ends[0].0.send(&[1; 1]), Progress::Blocked);
        assert_eq!(
            until_came(&network, &mut ends, 1_000),
            (20 * round + 10) * MS
        );
        assert_eq!(ends[0].0.send(&[1; 1]), Progress::Blocked);
        let wake = ends[0].0.connection.wake_at();
        assert_eq!(
            wake,
            Some((20 * round + 20) * MS),
            "it is said when there is room"
        );
        network.clock.advance(10 * MS);
        ends[0].0.connection.progress();
    }
}

#[test]
fn a_gap_occupies_the_sender_and_the_receiver() {
    let gap = Shape {
        gap: MS,
        ..Shape::default()
    };
    // One sender to four nodes: its own interface is what they share.
    let network = Network::new();
    let sender = network.node(gap);
    let mut ends: Vec<_> = (0..4)
        .map(|n| {
            let receiver = network.node(gap);
            let mut listener = receiver.listen(&Address::named(&n.to_string())).unwrap();
            join(&sender, &mut listener)
        })
        .collect();
    for (from, _) in &mut ends {
        assert_eq!(from.send(b"x"), Progress::Moved(1));
    }
    assert_eq!(until_came(&network, &mut ends, 4), 5 * MS);
    // Four senders to one node: the receiver's is.
    let network = Network::new();
    let receiver = network.node(gap);
    let mut listener = receiver.listen(&Address::named("b")).unwrap();
    let mut ends: Vec<_> = (0..4)
        .map(|_| join(&network.node(gap), &mut listener))
        .collect();
    for (from, _) in &mut ends {
        assert_eq!(from.send(b"x"), Progress::Moved(1));
    }
    assert_eq!(until_came(&network, &mut ends, 4), 5 * MS);
    // Four pairs share nothing.
    let network = Network::new();
    let mut ends: Vec<_> = (0..4)
        .map(|n| {
            let receiver = network.node(gap);
            let mut listener = receiver.listen(&Address::named(&n.to_string())).unwrap();
            join(&network.node(gap), &mut listener)
        })
        .collect();
    for (from, _) in &mut ends {
        assert_eq!(from.send(b"x"), Progress::Moved(1));
    }
    assert_eq!(until_came(&network, &mut ends, 4), 2 * MS);
}

#[test]
fn a_stall_keeps_bytes_one_way_and_loses_none() {
    let network = Network::new();
    let (a, b) = (
        network.node(Shape::default()),
        network.node(Shape::default()),
    );
    let mut listener = b.listen(&Address::named("b")).unwrap();
    let (mut client, mut server) = join(&a, &mut listener);
    a.faults().stall_until(30 * MS);
    assert_eq!(client.send(b"kept"), Progress::Moved(4));
    assert_eq!(server.send(b"other way"), Progress::Moved(9));
    assert_eq!((client.receive(), server.receive()), (9, 0));
    assert_eq!(client.connection.wake_at(), Some(30 * MS));
    network.clock.advance(30 * MS);
    client.connection.progress();
    assert_eq!(server.receive(), 4);
    // Without an end, until it is healed.
    a.faults().stall_until(Duration::MAX);
    assert_eq!(client.send(b"kept"), Progress::Moved(4));
    network.clock.advance(3_600_000 * MS);
    assert_eq!(client.connection.progress(), State::Up);
    assert_eq!((server.receive(), client.connection.wake_at()), (0, None));
    a.faults().heal();
    assert!(client.connection.wake_at().is_some());
    client.connection.progress();
    assert_eq!(server.receive(), 4);
}

#[test]
fn a_cut_ends_the_connections_that_there_are() {
    let network = Network::new();
    let node = network.node(Shape::default());
    let mut listener = node.listen(&Address::named("b")).unwrap();
    let (mut client, mut server) = join(&node, &mut listener);
    assert_eq!(client.connection.progress(), State::Up);
    node.faults().cut();
    assert_eq!(client.connection.wake_at(), Some(network.clock.now()));
    for end in [&mut client, &mut server] {
        assert_eq!(end.connection.progress(), State::Failed);
        // The second one may notice that the first is gone before it notices its own cut.
        let broken = matches!(
            end.connection.failure(),
            Some(TransportError::Broken { .. } | TransportError::Truncated)
        );
        assert!(broken);
        assert!(matches!(end.send(b"x"), Progress::Failed(_)));
    }
    let (mut client, mut server) = join(&node, &mut listener);
    assert_eq!(client.send(b"whole"), Progress::Moved(5));
    assert_eq!(server.receive(), 5);
}

#[test]
fn some_datagrams_are_lost_and_the_same_ones_of_the_same_seed() {
    let arrived = |lost, seed| {
        let network = Network::new();
        let shape = Shape {
            lost,
            seed,
            ..Shape::default()
        };
        let node = network.node(shape);
        let mut listener = node.listen(&Address::named("b")).unwrap();
        let (mut client, mut server) = join(&node, &mut listener);
        let came = (0..1_000_u32).filter(|n| {
            assert!(
                client.connection.datagram(&n.to_le_bytes()),
                "who sends does not know"
            );
            let datagram = server.connection.receive_datagram();
            assert!(datagram.as_ref().is_none_or(|d| d[..] == n.to_le_bytes()));
            datagram.is_some()
        });
        came.collect::<Vec<_>>()
    };
    assert_eq!(arrived(0, 1).len(), 1_000);
    assert_eq!(arrived(1_000_000, 1).len(), 0);
    let some = arrived(300_000, 7);
    assert!((600..800).contains(&some.len()), "{}", some.len());
    assert_eq!(some, arrived(300_000, 7));
    assert_ne!(some, arrived(300_000, 8));
}
