//! Bits that turn over on their way: what is checked is dropped, and asked for; what is not
//! is handed out as it came, and only its head has a checksum.
#![allow(clippy::cast_possible_truncation, reason = "small numbers, in a test")]

use portolan_proto::{
    Call, CallId, Client, Flags, Outcome, PacketPath, Pipe, Server, Settings, Status, Time,
};

const NOW: Time = Time(1_000_000_000);
/// Bytes of a packet's head.
const HEAD: usize = 16;
/// Bytes that say where in the whole a piece lies.
const PLACE: usize = 8;
/// Bits from one that is turned over to the next: Miri has not the time for all.
const STEP: usize = if cfg!(miri) { 13 } else { 1 };

/// A client, a server, and what lies between them, where packets may be seen and changed.
struct World {
    client: Client,
    server: Server,
    at_client: Pipe,
    from_client: Pipe,
    to_server: Pipe,
    at_server: Pipe,
}

impl World {
    fn new() -> Self {
        let (at_client, from_client) = Pipe::pair();
        let (to_server, at_server) = Pipe::pair();
        let mut client = Client::new(Settings::default(), 7);
        client.met(1);
        Self {
            client,
            server: Server::new(Settings::default(), 7, 1),
            at_client,
            from_client,
            to_server,
            at_server,
        }
    }

    fn call(&mut self, flags: Flags, arguments: &[u8]) -> CallId {
        let call = Call {
            flags,
            ..Call::new(5)
        };
        let mut body = arguments.to_vec();
        let id = self.client.call(NOW, &mut self.at_client, call, &mut body);
        id.expect("a place is free")
    }

    /// Carries calls to the server; `damage` sees each packet, and its number in this call.
    fn up(&mut self, damage: impl FnMut(usize, &mut Vec<u8>)) {
        carry(&mut self.from_client, &mut self.to_server, damage);
        while self.server.poll(NOW, &mut self.at_server).expect("honest") {}
    }

    /// The same, of answers to the client.
    fn down(&mut self, damage: impl FnMut(usize, &mut Vec<u8>)) {
        carry(&mut self.to_server, &mut self.from_client, damage);
        while self.client.poll(NOW, &mut self.at_client).expect("honest") {}
    }

    /// What has come to the server: its number, and its arguments.
    fn taken(&mut self) -> Option<(u64, Vec<u8>)> {
        let mut body = Vec::new();
        let incoming = self.server.take(NOW, &mut body)?;
        Some((incoming.number, body))
    }

    /// What has come to the client.
    fn answer(&mut self, id: CallId) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        let outcome = self.client.take(id, &mut body)?;
        assert_eq!(outcome, Outcome::Answered(Status::Returned));
        Some(body)
    }
}

fn carry(from: &mut Pipe, to: &mut Pipe, mut damage: impl FnMut(usize, &mut Vec<u8>)) {
    let mut packet = Vec::new();
    let mut index = 0;
    while from.receive(&mut packet).is_some() {
        damage(index, &mut packet);
        to.send(&packet);
        index += 1;
    }
}

fn untouched(_: usize, _: &mut Vec<u8>) {}

/// Turns one bit over, counted from `from` bytes on.
fn flip(bytes: &mut [u8], from: usize, bit: usize) {
    bytes[from + bit / 8] ^= 1 << (bit % 8);
}

/// Arguments of one packet, and the same with a bit turned over.
fn arguments(bit: usize) -> ([u8; 19], [u8; 19]) {
    let right = core::array::from_fn(|i| i as u8 * 3);
    let mut wrong = right;
    flip(&mut wrong, 0, bit);
    (right, wrong)
}

#[test]
fn a_checked_call_that_was_damaged_is_dropped_and_comes_when_it_is_asked_for() {
    for bit in (0..19 * 8).step_by(STEP) {
        let (right, _) = arguments(bit);
        let mut world = World::new();
        let id = world.call(Flags(0), &right);
        world.up(|_, packet| flip(packet, HEAD, bit));
        assert_eq!(world.taken(), None, "bit {bit}");
        assert_eq!(world.server.counts().damaged, 1, "bit {bit}");
        let later = world.client.next_timeout().expect("it is open");
        world.client.review(later, &mut world.at_client);
        // The question, what is missing, the call.
        world.up(untouched);
        world.down(untouched);
        world.up(untouched);
        let (number, body) = world.taken().expect("it came");
        assert_eq!(body, right);

        let mut result = right.to_vec();
        let (server, link) = (&mut world.server, &mut world.at_server);
        let answered = server.answer(link, number, Status::Returned, &mut result);
        answered.expect("it runs");
        world.down(|_, packet| flip(packet, HEAD, bit));
        assert_eq!(world.answer(id), None, "bit {bit}");
        assert_eq!(world.client.counts().damaged, 1, "bit {bit}");
    }
}

#[test]
fn an_unchecked_call_comes_as_it_is_and_so_does_its_answer() {
    for bit in (0..19 * 8).step_by(STEP) {
        let (right, wrong) = arguments(bit);
        let mut world = World::new();
        let id = world.call(Flags::UNCHECKED, &right);
        world.up(|_, packet| flip(packet, HEAD, bit));
        let (number, body) = world.taken().expect("nobody saw it");
        assert_eq!(body, wrong, "bit {bit}");

        let mut result = right.to_vec();
        let (server, link) = (&mut world.server, &mut world.at_server);
        let answered = server.answer(link, number, Status::Returned, &mut result);
        answered.expect("it runs");
        world.down(|_, packet| flip(packet, HEAD, bit));
        assert_eq!(world.answer(id), Some(wrong.to_vec()), "bit {bit}");
        let damaged = (world.client.counts().damaged, world.server.counts().damaged);
        assert_eq!(damaged, (0, 0), "bit {bit}");
    }
}

#[test]
fn the_head_of_a_call_is_checked_always() {
    for flags in [Flags(0), Flags::UNCHECKED] {
        for bit in (0..HEAD * 8).step_by(STEP) {
            let mut world = World::new();
            world.call(flags, b"arguments");
            world.up(|_, packet| flip(packet, 0, bit));
            assert_eq!(world.taken(), None, "{flags:?}, bit {bit}");
            assert_eq!(world.server.counts().damaged, 1, "{flags:?}, bit {bit}");
        }
    }
}

/// A place that was damaged would put the piece elsewhere, or look like a peer's misbehaviour
/// and close the connection.
#[test]
fn where_a_piece_lies_is_checked_always() {
    let right = vec![9; 100];
    for flags in [Flags(0), Flags::UNCHECKED] {
        for bit in (0..PLACE * 8).step_by(STEP) {
            let mut world = World::new();
            world.call(flags, &right);
            world.up(|index, packet| {
                if index == 1 {
                    flip(packet, HEAD, bit);
                }
            });
            assert_eq!(world.taken(), None, "{flags:?}, bit {bit}");
            assert_eq!(world.server.counts().damaged, 1, "{flags:?}, bit {bit}");
        }
        let mut world = World::new();
        world.call(flags, &right);
        world.up(|index, packet| {
            if index == 1 {
                flip(packet, HEAD + PLACE, 0);
            }
        });
        let came = world.taken().map(|(_, body)| body);
        if flags.has(Flags::UNCHECKED) {
            let wrong = came.expect("nobody saw it");
            let differ = wrong.iter().zip(&right).filter(|(a, b)| a != b);
            assert_eq!((wrong.len(), differ.count()), (100, 1));
        } else {
            assert_eq!(came, None);
        }
    }
}
