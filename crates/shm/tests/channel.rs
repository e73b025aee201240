//! Channels against oracles, and under threads that race.
#![cfg(not(loom))]

mod modes;

use modes::{CALLED_ON, LOSSY, RELIABLE};
use portolan_abi::channel::Shape;
use portolan_shm::channel::{
    Barriers, Channel, Finished, Garbled, Head, Lagging, Look, Meta, Mode, NotWritten, ReaderEntry,
    Reading, Signalling, Since,
};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

struct Memory {
    head: Head,
    readers: Vec<ReaderEntry>,
    words: Vec<AtomicU64>,
    shape: Shape,
    mode: Mode,
}

impl Memory {
    fn new(unit: usize, units: u64, mode: Mode) -> Self {
        let shape = Shape::new(unit, units, 4).unwrap();
        let words = usize::try_from(units).unwrap() * unit / 8;
        let memory = Self {
            head: Head::default(),
            readers: (0..4).map(|_| ReaderEntry::default()).collect(),
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            shape,
            mode,
        };
        Channel::make(&memory.head, &memory.readers, &memory.words, shape, mode).unwrap();
        memory
    }

    fn channel(&self) -> Channel<'_> {
        let channel = Channel::open(&self.head, &self.readers, &self.words).unwrap();
        assert_eq!((channel.shape(), channel.mode()), (self.shape, self.mode));
        channel
    }
}

/// What a reader has of a stream.
#[derive(Debug, PartialEq)]
enum Got {
    Message(Vec<u8>),
    Missed(u64, u64),
    Nothing,
    Dropped,
    Garbled(Garbled),
}

/// Reads a message, or finds out what was missed.
fn read(channel: &Channel<'_>, reading: &mut Reading, message: &mut Vec<u8>) -> Got {
    loop {
        // Half of them in one go.
        let mut out = [0; 1024];
        if message.is_empty()
            && reading.position().is_multiple_of(2)
            && let Some((len, _)) = channel.take_one(reading, &mut out)
        {
            return Got::Message(out[..len].to_vec());
        }
        match channel.look(reading) {
            Look::Nothing => return Got::Nothing,
            Look::Dropped => return Got::Dropped,
            Look::Garbled(why) => return Got::Garbled(why),
            Look::Missed(range) => {
                message.clear();
                return Got::Missed(range.start, range.end);
            }
            Look::Unit { len, flags } => {
                if flags & Meta::FIRST != 0 {
                    message.clear();
                }
                let had = message.len();
                message.resize(had + len, 0);
                let Some(copied) = channel.copy(reading, &mut message[had..]) else {
                    message.truncate(had);
                    continue;
                };
                let whole = !channel.mode().many_writers || channel.is_whole(reading, message);
                let _ = channel.advance(reading, copied, flags & Meta::CLOSED != 0);
                if !whole {
                    let at = reading.position();
                    return Got::Missed(at - 1, at);
                }
                if flags & Meta::LAST != 0 {
                    return Got::Message(std::mem::take(message));
                }
            }
        }
    }
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| u8::try_from((seed * 31 + i * 7) % 251).unwrap())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 3 } else { 300 }, ..Default::default() })]

    /// Every message comes whole and in order, or its positions are reported as missed.
    #[test]
    fn a_lossy_stream(unit in 1usize..4, steps in prop::collection::vec((0u8..3, 0usize..200), 1..120)) {
        let memory = Memory::new(unit * 64, 8, LOSSY);
        let channel = memory.channel();
        let mut pen = channel.resume_writing(1);
        let mut reading = channel.start_reading(Since::Now);
        let mut part = vec![];
        let mut sent = vec![]; // (position, bytes)
        let mut expected = 0; // position
        let check = |got: Got, expected: &mut u64, end: u64, sent: &[(u64, Vec<u8>)]| {
            match got {
                Got::Message(message) => {
                    let (at, bytes) = sent.iter().find(|(at, _)| at >= expected).unwrap();
                    prop_assert_eq!(*at, *expected);
                    prop_assert_eq!(&message, bytes);
                    *expected = sent.iter().map(|(a, _)| *a).find(|a| a > at).unwrap_or(end);
                }
                Got::Missed(from, to) => {
                    prop_assert!(from >= *expected && to > from && to <= end);
                    *expected = to;
                }
                Got::Nothing => prop_assert_eq!(*expected, end),
                Got::Dropped | Got::Garbled(_) => prop_assert!(false),
            }
            Ok(())
        };
        for (i, (step, len)) in steps.into_iter().enumerate() {
            if step < 2 {
                let message = bytes(i, len);
                let at = pen.position();
                let (a, b) = message.split_at(len / 3);
                match channel.write(&mut pen, &[a, b]) {
                    Ok(_) => sent.push((at, message)),
                    Err(NotWritten::TooLong { most, .. }) => prop_assert!(len > most),
                    Err(other) => prop_assert!(false, "{}", other),
                }
            } else {
                let end = pen.position();
                let mut from = expected;
                // Missed units in the middle of a message lead to the next beginning.
                let got = read(&channel, &mut reading, &mut part);
                check(got, &mut from, end, &sent)?;
                expected = from;
            }
        }
        let end = pen.position();
        while expected != end {
            let got = read(&channel, &mut reading, &mut part);
            prop_assert!(got != Got::Nothing);
            check(got, &mut expected, end, &sent)?;
        }
        prop_assert_eq!(read(&channel, &mut reading, &mut part), Got::Nothing);
    }

    /// Nothing is lost and nothing overwritten; a full channel refuses.
    #[test]
    fn a_reliable_stream(unit in 1usize..4, steps in prop::collection::vec((0u8..4, 0usize..300), 1..120)) {
        let memory = Memory::new(unit * 64, 8, RELIABLE);
        let channel = memory.channel();
        let mut pen = channel.resume_writing(1);
        let mut readings = [
            channel.join(2, Lagging::Wait, Since::Now).unwrap(),
            channel.join(3, Lagging::Wait, Since::Now).unwrap(),
        ];
        let mut parts = [vec![], vec![]];
        let mut queues = [std::collections::VecDeque::new(), std::collections::VecDeque::new()];
        for (i, (step, len)) in steps.into_iter().enumerate() {
            if step < 2 {
                let message = bytes(i, len);
                match channel.write(&mut pen, &[&message]) {
                    Ok(_) => queues.iter_mut().for_each(|q| q.push_back(message.clone())),
                    Err(NotWritten::Full { room, wanted }) => prop_assert!(room < wanted),
                    Err(NotWritten::TooLong { most, .. }) => prop_assert!(len > most),
                    Err(other) => prop_assert!(false, "{}", other),
                }
            } else {
                let r = usize::from(step) - 2;
                match (read(&channel, &mut readings[r], &mut parts[r]), queues[r].pop_front()) {
                    (Got::Message(got), Some(expected)) => prop_assert_eq!(got, expected),
                    (got, expected) => prop_assert!(got == Got::Nothing && expected.is_none()),
                }
            }
        }
        let [first, second] = readings;
        let _ = channel.leave(first);
        let _ = channel.leave(second);
        prop_assert_eq!(channel.write(&mut pen, &[&[7; 64]]).is_ok(), true);
    }
}

#[test]
fn a_message_is_seen_while_it_is_written() {
    let memory = Memory::new(64, 8, RELIABLE);
    let channel = memory.channel();
    let mut pen = channel.resume_writing(1);
    let mut reading = channel.join(2, Lagging::Wait, Since::Now).unwrap();
    let mut seen = vec![];
    let take = |reading: &mut Reading, seen: &mut Vec<u8>| {
        while let Look::Unit { len, flags } = channel.look(reading) {
            let had = seen.len();
            seen.resize(had + len, 0);
            let copied = channel.copy(reading, &mut seen[had..]).unwrap();
            let _ = channel.advance(reading, copied, flags & Meta::CLOSED != 0);
            if flags & Meta::LAST != 0 {
                return true;
            }
            if flags & Meta::CLOSED == 0 {
                return false;
            }
        }
        false
    };
    let all = bytes(1, 130);
    let _ = channel.append(&mut pen, &all[..10]).unwrap();
    assert!(!take(&mut reading, &mut seen) && seen.is_empty());
    let _ = channel.show(&mut pen);
    assert!(!take(&mut reading, &mut seen));
    assert_eq!(seen, all[..10]);
    let _ = channel.append(&mut pen, &all[10..100]).unwrap();
    let _ = channel.show(&mut pen);
    assert!(!take(&mut reading, &mut seen));
    assert_eq!(seen, all[..100]);
    let _ = channel.append(&mut pen, &all[100..]).unwrap();
    let _ = channel.end(&mut pen).unwrap();
    assert!(take(&mut reading, &mut seen));
    assert_eq!(seen, all);
    assert_eq!(channel.look(&mut reading), Look::Nothing);
}

#[test]
fn laggards_are_waited_for_dropped_or_left_behind() {
    let memory = Memory::new(64, 4, RELIABLE);
    let channel = memory.channel();
    let mut pen = channel.resume_writing(1);
    let mut dropped = channel.join(2, Lagging::Drop, Since::Now).unwrap();
    let mut skips = channel.join(3, Lagging::Skip, Since::Now).unwrap();
    for i in 0..9u8 {
        assert!(channel.write(&mut pen, &[&[i]]).is_ok());
    }
    assert_eq!(channel.look(&mut dropped), Look::Dropped);
    assert_eq!(channel.look(&mut skips), Look::Missed(0..6));
    let waits = channel.join(4, Lagging::Wait, Since::Last(2)).unwrap();
    assert_eq!(waits.position(), 7);
    assert!(channel.join(5, Lagging::Wait, Since::Now).is_ok());
    let none = channel.join(6, Lagging::Wait, Since::Now).unwrap_err();
    assert_eq!(none.entries, 4);
    channel.reclaim(2);
    assert!(channel.join(6, Lagging::Wait, Since::Now).is_ok());
    let full = (0..5).find_map(|_| channel.write(&mut pen, &[&[1]]).err());
    assert_eq!(full, Some(NotWritten::Full { room: 0, wanted: 1 }));
    for space in 4..7 {
        channel.reclaim(space);
    }
    assert!(channel.write(&mut pen, &[&[1]]).is_ok());
}

#[test]
fn a_unit_that_was_growing_when_its_writer_died_grows_no_more() {
    let memory = Memory::new(64, 16, RELIABLE);
    let channel = memory.channel();
    let mut reading = channel.join(2, Lagging::Wait, Since::Now).unwrap();
    let mut part = vec![];
    let mut dead = channel.resume_writing(1);
    let _ = channel.append(&mut dead, &[1; 20]).unwrap();
    let _ = channel.show(&mut dead);
    let got = read(&channel, &mut reading, &mut part);
    assert_eq!((got, part.len()), (Got::Nothing, 20));
    channel.reclaim(1);
    let mut pen = channel.resume_writing(3);
    let _ = channel.write(&mut pen, &[&[2; 30]]).unwrap();
    let got = read(&channel, &mut reading, &mut part);
    assert_eq!(got, Got::Message(vec![2; 30]));
}

#[test]
fn a_claimed_message_is_seen_when_it_is_committed() {
    let memory = Memory::new(64, 8, RELIABLE);
    let channel = memory.channel();
    let mut pen = channel.resume_writing(1);
    let mut reading = channel.join(2, Lagging::Wait, Since::Now).unwrap();
    for round in 0..20 {
        channel.claim(&mut pen, 100).unwrap();
        for unit in 0..3 {
            for word in channel.claimed(&pen, unit) {
                word.store(round, Ordering::Relaxed);
            }
        }
        let mut part = vec![];
        assert_eq!(read(&channel, &mut reading, &mut part), Got::Nothing);
        if round % 3 != 0 {
            let _ = channel.commit(&mut pen, 100);
            let words = [round.to_le_bytes(); 13].concat();
            let got = read(&channel, &mut reading, &mut part);
            assert_eq!(got, Got::Message(words[..100].to_vec()));
        }
    }
    let error = channel.claim(&mut pen, 8 * 48 + 1);
    let (len, most) = (8 * 48 + 1, 8 * 48);
    assert_eq!(error, Err(NotWritten::TooLong { len, most }));
}

#[test]
fn a_message_without_an_end_is_thrown_away() {
    let memory = Memory::new(64, 16, LOSSY);
    let channel = memory.channel();
    let mut reading = channel.start_reading(Since::Now);
    let mut dead = channel.resume_writing(1);
    let _ = channel.append(&mut dead, &[1; 200]).unwrap();
    channel.reclaim(1);
    let mut pen = channel.resume_writing(2);
    let _ = channel.write(&mut pen, &[&[2; 100]]).unwrap();
    let got = read(&channel, &mut reading, &mut vec![]);
    assert_eq!(got, Got::Message(vec![2; 100]));
}

/// One thread needs no barriers.
struct Alone;

impl Barriers for Alone {
    fn everywhere(&self) -> bool {
        true
    }

    fn by_time(&self) {}
}

#[test]
fn sleepers_are_woken_at_signals_and_only_then() {
    let writes = |signalling| {
        let mode = Mode {
            signalling,
            ..RELIABLE
        };
        let memory = Memory::new(64, 16, mode);
        let channel = memory.channel();
        let mut pen = channel.resume_writing(1);
        let mut reading = channel.join(2, Lagging::Skip, Since::Now).unwrap();
        let mut wakes = vec![];
        for _ in 0..4 {
            let armed = channel.arm(&mut reading, &Alone).0.is_some();
            let finished = channel.write(&mut pen, &[&[0; 96]]).unwrap();
            wakes.push((armed, finished == Finished::Wake));
        }
        assert!(wakes.iter().skip(1).all(|(armed, _)| !armed));
        wakes.into_iter().map(|(_, wake)| wake).collect::<Vec<_>>()
    };
    assert_eq!(writes(Signalling::Never), [false; 4]);
    assert_eq!(writes(Signalling::Message), [true; 4]);
    // Two units a message: at every fourth unit.
    assert_eq!(writes(Signalling::Bytes(256)), [false, true, false, true]);
}

#[test]
fn a_head_that_lies_is_refused() {
    let memory = Memory::new(64, 8, LOSSY);
    let open = || Channel::open(&memory.head, &memory.readers, &memory.words).map(|_| ());
    for (word, lies) in [
        (&memory.head.config.unit, [0, 63, 1 << 40]),
        (&memory.head.config.units, [0, 16, u64::MAX]),
        (&memory.head.config.readers, [5, 256, u64::MAX]),
        (&memory.head.config.magic, [0, 1, u64::MAX]),
    ] {
        let truth = word.load(Ordering::Relaxed);
        for lie in lies {
            word.store(lie, Ordering::Relaxed);
            assert!(open().is_err(), "{lie}");
        }
        word.store(truth, Ordering::Relaxed);
    }
    assert!(open().is_ok());
}

/// Whatever stands in the units, a reader neither panics nor hangs.
#[test]
fn garbage_is_survived() {
    let mut state = 88_172_645_463_325_252u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for mode in [LOSSY, RELIABLE, CALLED_ON] {
        let memory = Memory::new(128, 8, mode);
        let channel = memory.channel();
        let mut reading = channel.start_reading(Since::Last(8));
        let (mut out, mut garbled) = (vec![], 0);
        for _ in 0..if cfg!(miri) { 300 } else { 5000 } {
            for _ in 0..3 {
                let word = &memory.words[usize::try_from(random() % 128).unwrap()];
                let near = (reading.position().wrapping_add(random() % 4) << 16) | (random() % 3);
                word.store(
                    if random() % 2 == 0 { random() } else { near },
                    Ordering::Relaxed,
                );
            }
            out.truncate(1 << 16);
            for _ in 0..20 {
                match read(&channel, &mut reading, &mut out) {
                    Got::Nothing => break,
                    Got::Garbled(_) => {
                        garbled += 1;
                        memory
                            .words
                            .iter()
                            .for_each(|w| w.store(0, Ordering::Relaxed));
                    }
                    _ => {}
                }
            }
            let _ = channel.step_over(&mut reading);
            if reading.position() > 1 << 40 {
                reading = channel.start_reading(Since::Now);
                memory
                    .head
                    .writer
                    .next
                    .store(random() % 100, Ordering::Relaxed);
            }
        }
        assert!(garbled > 0);
    }
}

/// A writer that never waits, and readers that copy while it overwrites: what they get
/// is whole, and what they miss is counted.
#[test]
fn racing_readers_get_whole_messages() {
    let messages: u64 = if cfg!(miri) { 60 } else { 200_000 };
    let memory = Memory::new(128, 8, LOSSY);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let channel = memory.channel();
                let mut reading = channel.start_reading(Since::Now);
                let (mut part, mut units) = (vec![], 0);
                let mut begun = reading.position();
                let first = begun;
                loop {
                    let last = over.load(Ordering::Acquire);
                    match read(&channel, &mut reading, &mut part) {
                        Got::Message(message) => {
                            let n = u64::from_le_bytes(message[..8].try_into().unwrap());
                            let same = message.chunks_exact(8).all(|c| c == n.to_le_bytes());
                            assert!(
                                same && message.len() == 24 + usize::try_from(n % 25).unwrap() * 8
                            );
                            units += reading.position() - begun;
                        }
                        Got::Missed(from, to) => {
                            units += to - from.max(begun) + (from.max(begun) - begun)
                        }
                        Got::Nothing if last => break,
                        Got::Nothing => std::hint::spin_loop(),
                        Got::Dropped | Got::Garbled(_) => panic!("dropped"),
                    }
                    if part.is_empty() {
                        begun = reading.position();
                    }
                }
                assert_eq!(units, reading.position() - first);
            });
        }
        let channel = memory.channel();
        let mut pen = channel.resume_writing(1);
        for n in 0..messages {
            let words = 3 + usize::try_from(n % 25).unwrap();
            let message: Vec<u8> = n.to_le_bytes().repeat(words);
            let _ = channel.write(&mut pen, &[&message]).unwrap();
        }
        over.store(true, Ordering::Release);
    });
}

/// Several writers: what is read is what one of them wrote, and each one's are in order.
#[test]
fn many_writers_never_mix() {
    let calls: u64 = if cfg!(miri) { 20 } else { 50_000 };
    let memory = Memory::new(128, 16, CALLED_ON);
    let over = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for space in 1..4u8 {
            let (memory, over) = (&memory, &over);
            scope.spawn(move || {
                let channel = memory.channel();
                let mut pen = channel.resume_writing(space);
                for n in 0..calls {
                    let word = u64::from(space) << 56 | n;
                    let message = word
                        .to_le_bytes()
                        .repeat(1 + usize::try_from(n % 13).unwrap());
                    while channel.write(&mut pen, &[&message]).is_err() {
                        std::thread::yield_now();
                    }
                }
                over.fetch_add(1, Ordering::Release);
            });
        }
        let channel = memory.channel();
        let mut reading = channel.start_reading(Since::Now);
        let (mut part, mut last, mut got) = (vec![], [None; 4], 0u64);
        loop {
            let done = over.load(Ordering::Acquire) == 3;
            match read(&channel, &mut reading, &mut part) {
                Got::Message(message) => {
                    let word = u64::from_le_bytes(message[..8].try_into().unwrap());
                    assert!(message.chunks_exact(8).all(|c| c == word.to_le_bytes()));
                    let (space, n) = (usize::try_from(word >> 56).unwrap(), word & 0xff_ffff);
                    assert!(last[space] < Some(n), "{last:?} {space} {n}");
                    last[space] = Some(n);
                    got += 1;
                }
                Got::Missed(..) => {}
                Got::Nothing if done => break,
                Got::Nothing => std::hint::spin_loop(),
                Got::Dropped | Got::Garbled(_) => panic!("dropped"),
            }
        }
        assert!(got > 0);
    });
}

/// A stopped writer comes back a lap later: its unit is rejected, or it is not whole.
#[test]
fn a_unit_of_a_dead_caller_is_not_handed_out() {
    let memory = Memory::new(64, 4, CALLED_ON);
    let channel = memory.channel();
    let mut reading = channel.start_reading(Since::Now);
    let mut pen = channel.resume_writing(1);
    let _ = channel.write(&mut pen, &[b"one"]).unwrap();
    // As a writer that dies after taking position 1 leaves it.
    memory.words[8].store(1 << 16 | 9 << 8 | 1, Ordering::Relaxed);
    let _ = channel.write(&mut pen, &[b"three"]).unwrap();
    let mut part = vec![];
    assert_eq!(
        read(&channel, &mut reading, &mut part),
        Got::Message(b"one".to_vec())
    );
    assert_eq!(read(&channel, &mut reading, &mut part), Got::Nothing);
    channel.reclaim(9);
    assert_eq!(read(&channel, &mut reading, &mut part), Got::Missed(1, 2));
    part.clear();
    assert_eq!(
        read(&channel, &mut reading, &mut part),
        Got::Message(b"three".to_vec())
    );
}
