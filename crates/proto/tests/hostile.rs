//! Peers that write what no honest peer writes: no panic, a typed error, a closed connection.
#![allow(clippy::cast_possible_truncation, reason = "small numbers, in a test")]

use portolan_proto::{
    Call, Client, Closed, Flags, Header, Kind, Misbehaved, NotCalled, NotFrozen, Outcome,
    PacketPath, Pipe, Seal, Server, Settings, Status, Time, WINDOW, seal,
};
use proptest::prelude::*;

const NOW: Time = Time(1_000_000_000);
const SESSION: u64 = 77;
const INCARNATION: u64 = 3;
/// Packets of one random history at most.
const MOST_PACKETS: usize = if cfg!(miri) { 12 } else { 60 };

fn settings() -> Settings {
    Settings {
        longest: 4096,
        most_damaged: if cfg!(miri) { 64 } else { 256 },
        ..Settings::default()
    }
}

/// A packet with a right checksum.
fn honest_looking(link: &Pipe, header: Header, number: u64, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let key = Seal::new(SESSION, INCARNATION);
    seal(&key, link.position(), header, number, body, &mut out);
    out
}

fn header(kind: Kind) -> Header {
    Header {
        kind,
        flags: Flags(0),
        what: 0,
        number: 0,
        behind: 0,
        // No deadline; nothing has arrived.
        when: if kind == Kind::Call { 0xff_ffff } else { 0 },
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// A server that has had one good call, and the hostile end of its link.
fn server() -> (Server, Pipe, Pipe) {
    let (mut hostile, mut link) = Pipe::pair();
    let mut server = Server::new(settings(), SESSION, INCARNATION);
    let packet = honest_looking(&hostile, header(Kind::Call), 1, b"one");
    hostile.send(&packet);
    assert_eq!(server.poll(NOW, &mut link), Ok(true));
    assert!(server.take(NOW, &mut Vec::new()).is_some());
    (server, link, hostile)
}

/// What the server says to one packet.
fn served(header: Header, number: u64, body: &[u8]) -> Result<bool, Closed> {
    let (mut server, mut link, mut hostile) = server();
    let packet = honest_looking(&hostile, header, number, body);
    hostile.send(&packet);
    let said = server.poll(NOW, &mut link);
    if let Err(closed) = said {
        assert_eq!(server.poll(NOW, &mut link), Err(closed), "it stays closed");
        let mut answer = b"x".to_vec();
        let late = server.answer(&mut link, 1, Status::Returned, &mut answer);
        assert!(late.is_err());
        assert_eq!(server.take_cancelled(), Some(1), "what ran is cancelled");
    }
    said
}

/// A client with one open call, and the hostile end of its link.
fn client() -> (Client, Pipe, Pipe, portolan_proto::CallId) {
    let (mut link, hostile) = Pipe::pair();
    let mut client = Client::new(settings(), SESSION);
    client.met(INCARNATION);
    let id = client.call(NOW, &mut link, Call::new(5), &mut b"one".to_vec());
    (client, link, hostile, id.unwrap())
}

/// What the client says to one packet.
fn answered(header: Header, number: u64, body: &[u8]) -> Result<bool, Closed> {
    let (mut client, mut link, mut hostile, id) = client();
    let packet = honest_looking(&hostile, header, number, body);
    hostile.send(&packet);
    let said = client.poll(NOW, &mut link);
    if let Err(closed) = said {
        let outcome = client.take(id, &mut Vec::new());
        assert_eq!(outcome, Some(Outcome::Closed(closed)));
        let refused = client.call(NOW, &mut link, Call::new(5), &mut Vec::new());
        assert_eq!(refused, Err(NotCalled::Closed(closed)));
        assert_eq!(client.next_timeout(), None);
    }
    said
}

fn misbehaved(why: Misbehaved) -> Result<bool, Closed> {
    Err(Closed::Misbehaved(why))
}

#[test]
fn huge_lengths_and_wrong_pieces() {
    let piece = |offset: u64, total: u64, len: usize| {
        let mut body = words(&[offset | total << 32]);
        body.extend(vec![0; len]);
        let header = |kind| Header {
            flags: Flags::PIECE,
            ..header(kind)
        };
        let served = served(header(Kind::Call), 2, &body);
        assert_eq!(served, answered(header(Kind::Answer), 1, &body));
        served
    };
    let total = u32::MAX;
    assert_eq!(
        piece(0, u64::from(total), 24),
        misbehaved(Misbehaved::TooLong {
            total: total as usize,
            most: 4096
        })
    );
    for (offset, total, len) in [
        (24_u32, 24_u32, 0),
        (0, 100, 8),
        (4, 100, 24),
        (u32::MAX, 100, 24),
        (96, 100, 24),
        (0, 0, 0),
        (0, 100, 32),
    ] {
        let said = piece(u64::from(offset), u64::from(total), len);
        let why = Misbehaved::Piece { offset, total, len };
        assert_eq!(said, misbehaved(why));
    }
    assert_eq!(piece(0, 100, 24), Ok(true));
    assert_eq!(piece(96, 100, 4), Ok(true));
}

#[test]
fn a_piece_without_its_place_and_bodies_of_wrong_length() {
    let piece = Header {
        flags: Flags::PIECE,
        ..header(Kind::Call)
    };
    let (kind, len) = (Kind::Call, 5);
    let why = Misbehaved::Body { kind, len };
    assert_eq!(served(piece, 2, &[0; 5]), misbehaved(why));
    for kind in [Kind::Ask, Kind::Missing] {
        for len in [0, 8, 15, 17, 40] {
            let why = Misbehaved::Body { kind, len };
            assert_eq!(served(header(kind), 1, &vec![0; len]), misbehaved(why));
        }
    }
    for kind in [Kind::Welcome, Kind::Arrived, Kind::Missing] {
        for len in [0, 7, 9, 40] {
            let why = Misbehaved::Body { kind, len };
            assert_eq!(answered(header(kind), 1, &vec![0; len]), misbehaved(why));
        }
    }
}

#[test]
fn kinds_from_the_wrong_side() {
    for kind in [Kind::Welcome, Kind::Answer, Kind::Arrived] {
        let why = Misbehaved::WrongSide { kind };
        assert_eq!(served(header(kind), 1, &[0; 8]), misbehaved(why));
    }
    for kind in [Kind::Hello, Kind::Call, Kind::Ask, Kind::Cancel, Kind::Done] {
        let why = Misbehaved::WrongSide { kind };
        assert_eq!(answered(header(kind), 1, &[0; 32]), misbehaved(why));
    }
}

#[test]
fn numbers_backward_and_far_ahead() {
    // Replayed and older ones are dropped, as on any way that repeats and delays.
    assert_eq!(served(header(Kind::Call), 1, b"again"), Ok(true));
    let far = Header {
        behind: (WINDOW - 1) as u8,
        ..header(Kind::Call)
    };
    let number = 2 + 2 * WINDOW;
    assert_eq!(served(far, number, b""), Ok(true), "63 may be under way");
    for behind in [WINDOW as u8, u8::MAX] {
        let far = Header {
            behind,
            ..header(Kind::Call)
        };
        let why = Misbehaved::Number {
            number,
            expected: 2,
        };
        assert_eq!(served(far, number, b""), misbehaved(why));
    }
    let floor = u64::MAX - 3;
    let ask = words(&[INCARNATION, floor, u64::MAX, u64::MAX]);
    let why = Misbehaved::Number {
        number: floor,
        expected: 2,
    };
    assert_eq!(served(header(Kind::Ask), 0, &ask), misbehaved(why));
    // The answer to a call that was never made, and news of calls that were never made.
    assert_eq!(answered(header(Kind::Answer), 9, b""), Ok(true));
    let ahead = Header {
        when: 9,
        ..header(Kind::Arrived)
    };
    let why = Misbehaved::Number {
        number: 9,
        expected: 2,
    };
    assert_eq!(answered(ahead, 1, &[0; 8]), misbehaved(why));
    // Which the client does not cancel: the next call will have that number.
    let why = Misbehaved::Number {
        number: 2,
        expected: 2,
    };
    let pieces = words(&[0, 1]);
    assert_eq!(answered(header(Kind::Missing), 2, &pieces), misbehaved(why));
    assert_eq!(answered(header(Kind::Missing), 1, &pieces), Ok(true));
    let status = Header {
        what: 99,
        ..header(Kind::Answer)
    };
    let why = Misbehaved::Status { what: 99 };
    assert_eq!(answered(status, 1, b""), misbehaved(why));
}

#[test]
fn a_replayed_unit_of_another_position_is_damaged_and_of_its_own_is_a_repetition() {
    let (mut server, mut link, mut hostile) = server();
    let packet = honest_looking(&hostile, header(Kind::Call), 2, b"two");
    hostile.send(&packet);
    hostile.send(&packet);
    while server.poll(NOW, &mut link).unwrap() {}
    let mut body = Vec::new();
    assert_eq!(server.take(NOW, &mut body).map(|i| i.number), Some(2));
    assert_eq!(server.take(NOW, &mut body), None);
    assert_eq!((server.counts().damaged, server.counts().repeated), (1, 0));
}

#[test]
fn nothing_but_garbage_closes_the_connection() {
    let (mut server, mut link, mut hostile) = server();
    let (mut client, mut client_link, mut at_server, _) = client();
    let packets = settings().most_damaged;
    for i in 1..=packets {
        let garbage = vec![i as u8; i as usize % 70];
        hostile.send(&garbage);
        at_server.send(&garbage);
        let expected = if i < packets {
            Ok(true)
        } else {
            misbehaved(Misbehaved::Garbage { packets })
        };
        assert_eq!(server.poll(NOW, &mut link), expected);
        assert_eq!(client.poll(NOW, &mut client_link), expected);
    }
}

#[test]
fn calls_that_are_never_taken_do_not_pile_up() {
    let (mut server, mut link, mut hostile) = server();
    for number in 2..if cfg!(miri) { 3 * WINDOW } else { 10_000 } {
        let packet = honest_looking(&hostile, header(Kind::Call), number, b"more");
        hostile.send(&packet);
        while server.poll(NOW, &mut link).unwrap() {}
    }
    let mut taken = 0;
    while server.take(NOW, &mut Vec::new()).is_some() {
        taken += 1;
    }
    assert!(taken <= WINDOW, "{taken}");
}

fn any_header() -> impl Strategy<Value = (Header, u64)> {
    let kinds = [
        Kind::Hello,
        Kind::Welcome,
        Kind::Call,
        Kind::Call,
        Kind::Call,
        Kind::Answer,
        Kind::Answer,
        Kind::Ask,
        Kind::Arrived,
        Kind::Missing,
        Kind::Cancel,
        Kind::Done,
        Kind::Bye,
    ];
    let number = prop_oneof![0_u64..200, any::<u64>()];
    (
        prop::sample::select(kinds.to_vec()),
        0_u8..16,
        0_u32..9,
        number,
        0_u8..70,
        prop_oneof![0_u32..100, any::<u32>()],
    )
        .prop_map(|(kind, flags, what, number, behind, when)| {
            let header = Header {
                kind,
                flags: Flags(flags),
                what,
                number: 0,
                behind,
                when,
            };
            (header, number)
        })
}

fn any_body() -> impl Strategy<Value = Vec<u8>> {
    let small = prop_oneof![0_u64..300, any::<u64>()];
    prop_oneof![
        prop::collection::vec(small, 0..6).prop_map(|w| words(&w)),
        prop::collection::vec(any::<u8>(), 0..60),
        // A piece that may fit.
        (0_u64..20, 1_u64..500).prop_map(|(index, total)| {
            let offset = index * 24;
            let len = total.saturating_sub(offset).min(24);
            let mut body = words(&[offset | total << 32]);
            body.extend(vec![7; len as usize]);
            body
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 100 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn well_sealed_nonsense_never_panics(
        packets in prop::collection::vec((any_header(), any_body()), 1..MOST_PACKETS),
    ) {
        let (mut server, mut server_link, mut to_server) = server();
        let (mut client, mut client_link, mut to_client, _) = client();
        let mut body = Vec::new();
        for (i, ((header, number), bytes)) in packets.into_iter().enumerate() {
            let packet = honest_looking(&to_server, header, number, &bytes);
            to_server.send(&packet);
            let packet = honest_looking(&to_client, header, number, &bytes);
            to_client.send(&packet);
            let now = Time(NOW.0 + i as u64 * 3_000_000);
            let _ = server.poll(now, &mut server_link);
            let _ = client.poll(now, &mut client_link);
            if let Some(incoming) = server.take(now, &mut body) {
                let _ = server.answer(&mut server_link, incoming.number, Status::Returned, &mut body);
            }
            client.review(now, &mut client_link);
            let _ = client.call(now, &mut client_link, Call::new(1), &mut vec![1; 100]);
        }
    }

    #[test]
    fn raw_garbage_never_panics(packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 1..MOST_PACKETS)) {
        let (mut server, mut server_link, mut to_server) = server();
        let (mut client, mut client_link, mut to_client, id) = client();
        for packet in packets {
            to_server.send(&packet);
            to_client.send(&packet);
            prop_assert_eq!(server.poll(NOW, &mut server_link), Ok(true));
            prop_assert_eq!(client.poll(NOW, &mut client_link), Ok(true));
        }
        prop_assert!(client.is_open(id), "garbage ended a call");
        prop_assert_eq!(server.take(NOW, &mut Vec::new()), None);
    }

    #[test]
    fn states_that_were_tampered_with_are_refused_or_harmless(
        at in any::<prop::sample::Index>(),
        bit in 0_u8..8,
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let (mut server, mut link, mut hostile) = server();
        server.answer(&mut link, 1, Status::Returned, &mut b"result".to_vec()).unwrap();
        let mut state = server.freeze().unwrap();
        let at = at.index(state.len());
        state[at] ^= 1 << bit;
        if let Some(cut) = cut {
            state.truncate(cut.index(state.len()));
        }
        if let Ok(mut thawed) = Server::thaw(settings(), &state) {
            for number in 2..9 {
                let packet = honest_looking(&hostile, header(Kind::Call), number, b"x");
                hostile.send(&packet);
                let _ = thawed.poll(NOW, &mut link);
                let _ = thawed.take(NOW, &mut Vec::new());
            }
        }
    }
}

#[test]
fn a_state_in_which_a_place_that_was_never_used_holds_a_call_is_refused() {
    let state = Server::new(settings(), SESSION, INCARNATION)
        .freeze()
        .unwrap();
    // Seven words of the server's own, and five for each place; the second is its stage.
    let stages = (8 * 8..state.len()).step_by(5 * 8);
    assert!(stages.len() > 8, "{} places", stages.len());
    for at in stages {
        let mut state = state.clone();
        state[at] = 1;
        let thawed = Server::thaw(settings(), &state).map(|s| s.expected());
        assert!(
            matches!(thawed, Err(NotFrozen::Bytes { .. })),
            "{at}: {thawed:?}"
        );
    }
}
