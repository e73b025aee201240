//! Two nodes' connections, with sockets of the test in Zenoh's place.

use std::io::{Read as _, Write as _};

use portolan_testkit::{unique, until};
use portolan_transport::clock::ManualClock;
use portolan_transport::{Address, Listener, Moment, Peer, Transport as _};

use super::*;
use crate::authority;
use crate::state::State as Directory;

/// When the certificates are made.
const TODAY: u64 = 1_800_000_000;

/// A node: its connections, its listener, and where Zenoh would listen.
struct Place {
    state: Directory,
    cluster: Cluster,
    tunnels: Tunnels,
    listener: Box<dyn Listener>,
    zenoh: UnixListener,
    wakes: Arc<EventFd>,
}

impl Place {
    fn new(state: Directory, clock: &Arc<ManualClock>) -> Self {
        let now = Moment { seconds: TODAY };
        let cluster = authority::cluster(&state, now).unwrap();
        let clock = Arc::clone(clock) as Arc<dyn Clock>;
        let transport = links(&cluster, LinkOptions::default(), Arc::clone(&clock));
        let any = Address::Internet(([127, 0, 0, 1], 0).into());
        let path = state.file("zenoh.sock");
        let zenoh = UnixListener::bind(&path).unwrap();
        zenoh.set_nonblocking(true).unwrap();
        Self {
            tunnels: Tunnels::new(&cluster, &clock, &path).unwrap(),
            listener: transport.listen(&any).unwrap(),
            wakes: Arc::new(EventFd::new().unwrap()),
            state,
            cluster,
            zenoh,
        }
    }

    fn knows(&mut self, others: &[&Self]) {
        let ways = others.iter().map(|other| Way {
            node: Some(other.cluster.node()),
            address: other.listener.address().to_string(),
        });
        self.tunnels.set_ways(ways.collect());
    }

    fn step(&mut self) {
        while let Ok(Some(connection)) = self.listener.accept() {
            match connection.peer() {
                Peer::Directory(node) => self.tunnels.take(node, connection),
                other => panic!("{other:?}"),
            }
        }
        self.tunnels.step(&self.wakes);
    }

    /// Zenoh connects.
    fn connects(&self, slot: usize) -> UnixStream {
        let path = slot_path(self.state.path(), slot);
        let socket = UnixStream::connect(path).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    }

    /// Zenoh accepts, if somebody has connected.
    fn accepts(&self) -> Option<UnixStream> {
        let (socket, _) = self.zenoh.accept().ok()?;
        socket.set_nonblocking(true).unwrap();
        Some(socket)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.state.path());
    }
}

/// Two nodes of one cluster, of which the first has the smaller id.
fn two() -> (Place, Place, Arc<ManualClock>) {
    let now = Moment { seconds: TODAY };
    let clock = Arc::new(ManualClock::at(Duration::from_secs(TODAY)));
    let [first, second] = ["tunnels-a", "tunnels-b"].map(|name| {
        let path = std::env::temp_dir().join(unique(name));
        Directory::at(&path).unwrap()
    });
    authority::make_first(&first, "hall", now).unwrap();
    let (key, _) = authority::request("roof").unwrap();
    let certificate = authority::Authority::load(&first).unwrap();
    let certificate = certificate.sign("roof", &key, now).unwrap();
    let believed = authority::authorities(&first, now).unwrap();
    authority::keep(&second, &key, &certificate, &believed).unwrap();
    let mut both = [first, second].map(|state| Place::new(state, &clock));
    both.sort_by_key(|place| place.cluster.node());
    let [low, high] = both;
    (low, high, clock)
}

/// Reads what has come.
fn read(socket: &mut UnixStream, into: &mut Vec<u8>) {
    let mut room = [0; 4096];
    while let Ok(moved @ 1..) = socket.read(&mut room) {
        into.extend(&room[..moved]);
    }
}

fn has_ended(socket: &mut UnixStream) -> bool {
    matches!(socket.read(&mut [0; 1]), Ok(0))
}

/// Connects Zenoh of one with Zenoh of the other: the two ends.
fn connected(from: &mut Place, to: &mut Place, slot: usize) -> (UnixStream, UnixStream) {
    let ours = from.connects(slot);
    let mut theirs = None;
    until("the other end is connected", || {
        from.step();
        to.step();
        theirs = theirs.take().or_else(|| to.accepts());
        theirs.is_some() && !from.tunnels.nodes().is_empty()
    });
    (ours, theirs.unwrap())
}

#[test]
fn bytes_go_both_ways_and_an_end_ends_both() {
    let (mut hall, mut roof, _) = two();
    roof.knows(&[&hall]);
    let (mut ours, mut theirs) = connected(&mut roof, &mut hall, 2);
    assert_eq!(roof.tunnels.nodes(), [hall.cluster.node()]);
    assert_eq!(hall.tunnels.nodes(), [roof.cluster.node()]);
    // More than all buffers take, both ways at once; the readers begin late.
    let bytes: Vec<u8> = (0..3_000_000_u32)
        .map(|at| (at / 7).to_le_bytes()[0])
        .collect();
    let (mut sent, mut back) = (0, 0);
    let (mut there, mut here) = (Vec::new(), Vec::new());
    until("all has come", || {
        sent += ours.write(&bytes[sent..]).unwrap_or(0);
        back += theirs.write(&bytes[back..]).unwrap_or(0);
        roof.step();
        hall.step();
        if sent > 500_000 {
            read(&mut theirs, &mut there);
            read(&mut ours, &mut here);
        }
        there.len() == bytes.len() && here.len() == bytes.len()
    });
    assert!(there == bytes && here == bytes);
    drop(theirs);
    until("the other end has ended", || {
        hall.step();
        roof.step();
        has_ended(&mut ours)
    });
    assert!(roof.tunnels.nodes().is_empty() && hall.tunnels.nodes().is_empty());
}

#[test]
fn of_two_that_cross_both_keep_the_one_of_the_smaller_id() {
    let (mut low, mut high, _) = two();
    low.knows(&[&high]);
    high.knows(&[&low]);
    let (mut of_low, mut of_high) = (low.connects(0), high.connects(0));
    let mut ends = Vec::new();
    until("one is left", || {
        low.step();
        high.step();
        ends.extend(high.accepts());
        // What low has taken of the other one is over again.
        while low.accepts().is_some() {}
        let is_one = |place: &Place| place.tunnels.all.len() == 1;
        let is_ours = low.tunnels.all.iter().all(|it| it.slot.is_some());
        let is_theirs = high.tunnels.all.iter().all(|it| it.slot.is_none());
        is_one(&low) && is_one(&high) && is_ours && is_theirs && !ends.is_empty()
    });
    of_low.write_all(b"hello").unwrap();
    let mut there = Vec::new();
    until("it carries bytes", || {
        low.step();
        high.step();
        ends.extend(high.accepts());
        ends.iter_mut().for_each(|end| read(end, &mut there));
        there == b"hello"
    });
    // The other node does not try again while there is one.
    assert!(high.tunnels.next_way(Duration::from_secs(3600)).is_none());
    let _ = has_ended(&mut of_high);
}

#[test]
fn who_was_tried_in_vain_waits_and_a_node_that_is_refused_is_not_connected_with() {
    let (mut hall, mut roof, clock) = two();
    let nobody = Way {
        node: Some(NodeId([9; 16])),
        address: hall.listener.address().to_string(),
    };
    roof.tunnels.set_ways([nobody.clone()].into());
    let mut zenoh = roof.connects(0);
    until("another node answers there", || {
        hall.step();
        roof.step();
        has_ended(&mut zenoh)
    });
    let now = clock.now();
    assert!(roof.tunnels.next_way(now).is_none(), "not at once");
    assert_eq!(roof.tunnels.next_way(now + PAUSES.0), Some(nobody.clone()));
    for _ in 0..20 {
        roof.tunnels.avoid(nobody.address.clone(), now);
    }
    assert!(roof.tunnels.next_way(now + PAUSES.1 / 3).is_none());
    assert!(roof.tunnels.next_way(now + PAUSES.1).is_some());
    // Whom the cluster refuses loses what it has.
    roof.tunnels.avoided.clear();
    roof.knows(&[&hall]);
    let (mut ours, _theirs) = connected(&mut roof, &mut hall, 1);
    hall.cluster.forget([roof.cluster.node()]);
    until("it has ended", || {
        hall.step();
        roof.step();
        has_ended(&mut ours)
    });
    assert!(hall.tunnels.nodes().is_empty());
}

#[test]
fn what_zenoh_connects_with_nobody_for_ends_before_zenoh_is_tired() {
    let (_, mut roof, clock) = two();
    let mut zenoh = roof.connects(3);
    roof.step();
    assert!(!has_ended(&mut zenoh));
    assert_eq!(roof.tunnels.wake_at(), Some(clock.now() + KEPT));
    clock.advance(KEPT);
    roof.step();
    assert!(has_ended(&mut zenoh));
    assert!(!roof.tunnels.descriptors().is_empty());
}
