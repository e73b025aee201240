//! The tests, for any transport.

use std::time::Instant;

use portolan_testkit::PATIENCE;
use portolan_transport::clock::Clock as _;
use portolan_transport::{
    Class, Destination, Progress, Source, State, StreamId, TransportError, skip_destinations,
    skip_sources,
};

use crate::pair::{Factory, Pair, noise, receive, soon_readable};

const CLASSES: [Class; 2] = [Class::Records, Class::Bulk];

/// T2: with parts and ranges of odd lengths.
pub(crate) fn bytes_arrive_in_order_each_once_both_ways_on_all_streams(factory: &impl Factory) {
    const BYTES: usize = 300_000;
    struct Way {
        from: usize,
        on: [StreamId; 2],
        bytes: Vec<u8>,
        sent: usize,
        came: Vec<u8>,
    }
    let mut pair = factory.pair();
    let mut ways = Vec::new();
    for (seed, class) in (1..).zip(CLASSES) {
        let on = pair.open(class);
        for from in 0..2 {
            ways.push(Way {
                from,
                on,
                bytes: noise(BYTES, seed * 100 + from as u64),
                sent: 0,
                came: Vec::new(),
            });
        }
    }
    while ways.iter().any(|way| way.came.len() < BYTES) {
        let mut moved = false;
        for way in &mut ways {
            let parts = way.bytes[way.sent..].chunks(7_001).take(9);
            let parts: Vec<_> = parts.map(Source::from).collect();
            if let Progress::Moved(bytes) = pair.ends[way.from].send(way.on[way.from], &parts) {
                way.sent += bytes;
                moved |= bytes > 0;
            }
            let mut room = [[0; 5_003], [0; 5_003], [0; 5_003]];
            let ranges = room.each_mut().map(|part| Destination::from(&mut part[..]));
            match pair.ends[1 - way.from].receive(way.on[1 - way.from], &ranges) {
                Progress::Moved(bytes) => {
                    way.came.extend(&room.as_flattened()[..bytes]);
                    moved = true;
                }
                Progress::Blocked => {}
                other => panic!("{other:?}"),
            }
        }
        if !moved {
            pair.wait();
        }
    }
    for way in ways {
        assert!(way.came == way.bytes, "other bytes came than were sent");
    }
}

/// More ranges than a system call takes, of one byte each, and empty ones among them.
pub(crate) fn more_ranges_than_one_call_takes(factory: &impl Factory) {
    const RANGES: usize = 3_000;
    let mut pair = factory.pair();
    let on = pair.open(Class::Bulk);
    let bytes = noise(RANGES, 5);
    let mut parts: Vec<_> = bytes
        .chunks(1)
        .flat_map(|byte| [Source::from(&[][..]), Source::from(byte)])
        .collect();
    let mut left = &mut parts[..];
    let mut came = vec![0; RANGES];
    let mut ranges: Vec<_> = came.chunks_mut(1).map(Destination::from).collect();
    let mut open = &mut ranges[..];
    while !open.is_empty() {
        let mut moved = false;
        if let Progress::Moved(bytes) = pair.ends[0].send(on[0], left) {
            moved |= bytes > 0;
            skip_sources(&mut left, bytes);
        }
        if let Progress::Moved(bytes) = pair.ends[1].receive(on[1], open) {
            moved |= bytes > 0;
            skip_destinations(&mut open, bytes);
        }
        if !moved {
            pair.wait();
        }
    }
    assert_eq!(came, bytes);
}

/// Zero lengths: no parts, empty parts, no room.
pub(crate) fn nothing_is_moved_without_an_error(factory: &impl Factory) {
    let mut pair = factory.pair();
    let on = pair.open(Class::Records);
    let empty = [Source::from(&[][..]); 3];
    for parts in [&[][..], &empty] {
        assert_eq!(pair.ends[0].send(on[0], parts), Progress::Moved(0));
    }
    let (came, _) = pair.carry(0, on, b"x");
    assert_eq!(came, b"x");
    assert_eq!(
        pair.ends[0].send(on[0], &[Source::from(&b"y"[..])]),
        Progress::Moved(1)
    );
    while !pair.readable()[1] {
        pair.wait();
    }
    let mut none = [0; 0];
    for _ in 0..2 {
        assert_eq!(pair.ends[1].receive(on[1], &[]), Progress::Moved(0));
        let ranges = [Destination::from(&mut none[..])];
        assert_eq!(pair.ends[1].receive(on[1], &ranges), Progress::Moved(0));
    }
    loop {
        match receive(&mut *pair.ends[1], on[1], 9) {
            Ok(came) => break assert_eq!(came, b"y"),
            Err(_) => drop(pair.wait()),
        }
    }
}

/// Sends until the stream is blocked and stays so; how many bytes.
fn fill(pair: &mut Pair, from: usize, on: StreamId, bytes: &[u8]) -> usize {
    let mut sent = 0;
    let end = Instant::now() + PATIENCE;
    loop {
        assert!(
            Instant::now() < end && sent < 256 << 20,
            "there is no bound"
        );
        match pair.ends[from].send(on, &[Source::from(&bytes[sent % bytes.len()..])]) {
            Progress::Moved(moved) => sent += moved,
            Progress::Blocked => {
                let is_ready = match &pair.clock {
                    Some(_) => pair.readable()[from],
                    // What is under way in the kernel makes room for a moment.
                    None => soon_readable(&*pair.ends[from]),
                };
                // The other end's descriptor tells of what lies there unread.
                match (&pair.clock, pair.ends[from].wake_at()) {
                    _ if is_ready => {}
                    (Some(clock), Some(wake)) => clock.advance(wake.saturating_sub(clock.now())),
                    _ => return sent,
                }
                pair.ends[from].progress();
            }
            other => panic!("{other:?}"),
        }
    }
}

/// T1, T3, T7: back pressure is bounded, silent, and ends.
pub(crate) fn a_sender_without_room_is_blocked_and_told_of_room(factory: &impl Factory) {
    let mut pair = factory.pair();
    let on = pair.open(Class::Bulk);
    let bytes = noise(1 << 20, 3);
    let sent = fill(&mut pair, 0, on[0], &bytes);
    assert!(sent > 0);
    // Blocked took nothing: all that came is what was counted, and then there is room again.
    let mut came = 0;
    let mut told = false;
    while came < sent {
        match receive(&mut *pair.ends[1], on[1], 100_000) {
            Ok(more) => {
                let place = came % bytes.len();
                let expected = bytes[place..].iter().chain(&bytes).take(more.len());
                assert!(more.iter().eq(expected));
                came += more.len();
            }
            Err(Progress::Blocked) => drop(pair.wait()),
            Err(other) => panic!("{other:?}"),
        }
        told |= pair.readable()[0] || pair.ends[0].wake_at().is_some();
    }
    assert_eq!(came, sent);
    assert!(told, "nobody said that there is room");
    let (rest, _) = pair.carry(0, on, b"more");
    assert_eq!(rest, b"more");
}

pub(crate) fn a_stuck_stream_does_not_hold_up_the_other(factory: &impl Factory) {
    let mut pair = factory.pair();
    let bulk = pair.open(Class::Bulk);
    let records = pair.open(Class::Records);
    let bytes = noise(1 << 20, 3);
    fill(&mut pair, 0, bulk[0], &bytes);
    for from in [0, 1] {
        let (came, _) = pair.carry(from, records, b"beside");
        assert_eq!(came, b"beside");
    }
}

/// A slow reader.
pub(crate) fn a_reader_of_single_bytes_gets_them_all(factory: &impl Factory) {
    let mut pair = factory.pair();
    let on = pair.open(Class::Records);
    let bytes = noise(3_000, 7);
    let mut parts = [Source::from(&bytes)];
    let mut left = &mut parts[..];
    let mut came = Vec::new();
    while came.len() < bytes.len() {
        if let Progress::Moved(moved) = pair.ends[0].send(on[0], left) {
            skip_sources(&mut left, moved);
        }
        match receive(&mut *pair.ends[1], on[1], 1) {
            Ok(byte) => came.extend(byte),
            Err(_) => drop(pair.wait()),
        }
    }
    assert_eq!(came, bytes);
}

/// T5, and a half-open connection: one side has ended, the other goes on.
pub(crate) fn an_end_comes_behind_all_bytes_and_each_way_alone(factory: &impl Factory) {
    let mut pair = factory.pair();
    let on = pair.open(Class::Records);
    let bytes = noise(200_000, 11);
    let mut parts = [Source::from(&bytes)];
    let mut left = &mut parts[..];
    let mut came = Vec::new();
    let end = loop {
        match pair.ends[0].send(on[0], left) {
            Progress::Moved(moved) => skip_sources(&mut left, moved),
            Progress::Blocked | Progress::Ended => {}
            Progress::Failed(why) => panic!("{why}"),
        }
        if left.iter().all(Source::is_empty) {
            pair.ends[0].close();
        }
        match receive(&mut *pair.ends[1], on[1], 10_000) {
            Ok(more) => came.extend(more),
            Err(Progress::Blocked) => drop(pair.wait()),
            Err(end) => break end,
        }
    };
    assert_eq!((end, came == bytes), (Progress::Ended, true));
    let one = [Source::from(&b"x"[..])];
    assert_eq!(pair.ends[0].send(on[0], &one), Progress::Ended);
    assert_eq!(receive(&mut *pair.ends[1], on[1], 9), Err(Progress::Ended));
    // The other way goes on, and ends in its turn.
    let (answer, _) = pair.carry(1, on, b"answer");
    assert_eq!(answer, b"answer");
    pair.ends[1].close();
    loop {
        match receive(&mut *pair.ends[0], on[0], 9) {
            Err(Progress::Ended) => break,
            Err(Progress::Blocked) => drop(pair.wait()),
            other => panic!("{other:?}"),
        }
    }
    let end = Instant::now() + PATIENCE;
    while pair.ends.each_mut().map(|end| end.progress()) != [State::Over; 2] {
        assert!(Instant::now() < end, "the connection is not over");
    }
    assert_eq!(pair.readable(), [false; 2], "what is over is quiet");
}

/// T6: its handle is dropped, as by a process that dies.
pub(crate) fn a_peer_that_goes_away_is_noticed_and_what_came_is_a_prefix(factory: &impl Factory) {
    for gone in 0..2 {
        let mut pair = factory.pair();
        let authentic = pair.ends[0].limits().authentic_ends;
        let on = pair.open(Class::Records);
        let mut sent = 0;
        let bytes = noise(50_000, 13);
        if let Progress::Moved(moved) = pair.ends[gone].send(on[gone], &[Source::from(&bytes)]) {
            sent = moved;
        }
        let there = 1 - gone;
        let spare = factory.pair().ends;
        let [spare, _other] = spare;
        drop(std::mem::replace(&mut pair.ends[gone], spare));
        let mut came = Vec::new();
        let end = loop {
            match receive(&mut *pair.ends[there], on[there], 1_000) {
                Ok(more) => came.extend(more),
                Err(Progress::Blocked) => drop(pair.wait()),
                Err(end) => break end,
            }
        };
        assert!(came.len() <= sent && came[..] == bytes[..came.len()]);
        let is_failure = matches!(end, Progress::Failed(_));
        assert!(
            is_failure || (!authentic && end == Progress::Ended),
            "{end:?}"
        );
        // Each further call says so, whatever it is; sending finds it out at last.
        let deadline = Instant::now() + PATIENCE;
        let failed = loop {
            assert!(Instant::now() < deadline, "sending goes on for ever");
            match pair.ends[there].send(on[there], &[Source::from(&bytes)]) {
                Progress::Failed(why) => break why,
                Progress::Moved(_) | Progress::Blocked => drop(pair.ends[there].progress()),
                Progress::Ended => panic!("nobody has closed"),
            }
        };
        assert_eq!(pair.ends[there].failure(), Some(&failed));
        assert_eq!(pair.ends[there].progress(), State::Failed);
        let again = receive(&mut *pair.ends[there], on[there], 9);
        assert_eq!(again, Err(Progress::Failed(failed)));
        assert!(
            !pair.readable()[there],
            "what has failed and has said so is quiet"
        );
        assert!(!pair.ends[there].datagram(b"x"));
        pair.ends[there].close();
    }
}

/// T4, and readiness that comes and goes.
pub(crate) fn a_descriptor_is_readable_as_long_as_there_is_something(factory: &impl Factory) {
    let mut pair = factory.pair();
    let on = pair.open(Class::Records);
    let _ = pair.ends.each_mut().map(|end| end.progress());
    assert_eq!(pair.readable(), [false; 2], "nothing has happened");
    for round in 0..3 {
        let sent = pair.ends[0].send(on[0], &[Source::from(&b"abc"[..])]);
        assert_eq!(sent, Progress::Moved(3));
        // However often it is looked at, and progress is made.
        let mut came = Vec::new();
        while came.len() < 3 {
            match receive(&mut *pair.ends[1], on[1], 1) {
                Ok(byte) => came.extend(byte),
                Err(Progress::Blocked) => {
                    pair.wait();
                    continue;
                }
                Err(other) => panic!("{other:?}"),
            }
            let more = came.len() < 3;
            for _ in 0..2 {
                let [_, readable] = pair.readable();
                let waits = pair.ends[1].wake_at().is_some();
                // Bytes may come one after the other.
                assert!(more || !readable, "round {round}: {came:?}");
                assert!(
                    !more
                        || readable
                        || waits
                        || pair.clock.is_some()
                        || soon_readable(&*pair.ends[1])
                );
                pair.ends[1].progress();
            }
        }
    }
}

pub(crate) fn streams_are_few_and_numbered_alike_on_both_sides(factory: &impl Factory) {
    let mut pair = factory.pair();
    let most = pair.ends[0].limits().streams;
    assert!(most >= 1);
    for class in CLASSES {
        let streams: Vec<_> = (0..most).map(|_| pair.open(class)).collect();
        let refused = pair.ends[0].open(class);
        assert_eq!(refused, Err(TransportError::NoMoreStreams { class, most }));
        // The last one first: each leads to its own.
        for (number, on) in streams.iter().enumerate().rev() {
            let text = format!("stream {number}");
            let (came, _) = pair.carry(0, *on, text.as_bytes());
            assert_eq!(came, text.as_bytes());
        }
    }
}

pub(crate) fn what_comes_before_a_stream_is_opened_waits_for_it(factory: &impl Factory) {
    let mut pair = factory.pair();
    let sender = pair.ends[0].open(Class::Bulk).unwrap();
    let sent = pair.ends[0].send(sender, &[Source::from(&b"early"[..])]);
    assert_eq!(sent, Progress::Moved(5));
    // It lies there in silence: nobody could receive it.
    for _ in 0..10 {
        let _ = pair.ends.each_mut().map(|end| end.progress());
    }
    if pair.clock.is_none() {
        assert!(!soon_readable(&*pair.ends[1]));
    }
    let receiver = pair.ends[1].open(Class::Bulk).unwrap();
    let mut came = Vec::new();
    while came.len() < 5 {
        match receive(&mut *pair.ends[1], receiver, 9) {
            Ok(more) => came.extend(more),
            Err(_) => drop(pair.wait()),
        }
    }
    assert_eq!(came, b"early");
}

pub(crate) fn datagrams_come_whole_or_not_at_all(factory: &impl Factory) {
    let mut pair = factory.pair();
    let most = pair.ends[0].limits().datagram;
    assert!(!pair.ends[0].datagram(&vec![0; most + 1]), "too long");
    assert_eq!(pair.ends[1].receive_datagram(), None);
    if most == 0 {
        return;
    }
    // More than fit: those that are lost are lost whole, and nobody waits.
    let mut sent = Vec::new();
    for round in 0..500_usize {
        let bytes = noise(1 + round * 31 % most, round as u64 + 1);
        if pair.ends[0].datagram(&bytes) {
            sent.push(bytes);
        }
    }
    assert!(!sent.is_empty() && sent.len() < 500);
    let mut left = sent.into_iter();
    let mut came = 0;
    loop {
        match pair.ends[1].receive_datagram() {
            Some(datagram) => {
                assert!(
                    left.any(|sent| sent == datagram),
                    "one that was not sent, or again"
                );
                came += 1;
            }
            None if pair.readable()[1] || pair.ends.iter().any(|e| e.wake_at().is_some()) => {
                pair.wait();
            }
            None => break,
        }
    }
    assert!(came > 0);
}

/// A small exchange that is cut at each of its bytes.
pub(crate) fn a_cut_at_any_byte_leaves_a_prefix_and_ends_both_sides(factory: &impl Factory) {
    const EXCHANGE: usize = 48;
    let bytes = noise(EXCHANGE, 17);
    for cut in 0..EXCHANGE as u64 {
        let mut pair = factory.cut_after(cut);
        let on = pair.open(Class::Records);
        let (came, end) = pair.carry(0, on, &bytes);
        assert!(
            came.len() as u64 <= cut && came[..] == bytes[..came.len()],
            "cut at {cut}"
        );
        let authentic = pair.ends[1].limits().authentic_ends;
        let failed = matches!(end, Progress::Failed(_));
        assert!(
            failed || (!authentic && end == Progress::Ended),
            "cut at {cut}: {end:?}"
        );
        assert!(failed || pair.ends[1].failure().is_none());
        let deadline = Instant::now() + PATIENCE;
        while pair.ends[0].progress() != State::Failed {
            assert!(
                Instant::now() < deadline,
                "who sent does not notice the cut at {cut}"
            );
        }
    }
}
