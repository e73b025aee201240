//! Channels between spaces: streams with and without flow control, and who is told of what.

use portolan::channel::{
    BindChannelError, Channel, ChannelOptions, Garbled, Lagging, Missed, ReadError, Reader,
    ReaderOptions, Signalling, Since, WriteError,
};
use portolan::{
    Access, Deadline, Domain, Message, PortOptions, Segment, WaitSet, Waiting, WhenFull,
    WhyNoReader,
};
use portolan_abi::channel::{Meta, Stamp};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const ROLE: &str = "PORTOLAN_CHANNEL_ROLE";

fn bound(channel: &Channel) -> Reader {
    channel.bind_reader(ReaderOptions::default()).unwrap()
}

fn message(i: u64) -> Vec<u8> {
    let len = usize::try_from(i * 37 % 500).unwrap();
    let byte = u8::try_from(i % 251).unwrap();
    let mut bytes = vec![byte; len + 8];
    bytes[..8].copy_from_slice(&i.to_le_bytes());
    bytes
}

/// Its number; every byte is checked.
fn number(bytes: &[u8]) -> u64 {
    let i = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes, message(i));
    i
}

/// Runs a test of this program as another process.
fn spawn(test: &str, role: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn messages_of_every_length_come_whole() {
    let domain = Domain::private().unwrap();
    let channel = domain
        .make_channel(&ChannelOptions::unnamed().unit(128).units(64).reliable())
        .unwrap();
    assert_eq!((channel.unit(), channel.units()), (128, 64));
    assert_eq!((channel.unit_payload(), channel.longest()), (112, 7168));
    let (mut writer, mut reader) = (channel.bind_writer().unwrap(), bound(&channel));
    for len in [0, 1, 7, 8, 111, 112, 113, 500, 7167, 7168] {
        let bytes: Vec<u8> = (0..len).map(|i| u8::try_from(i % 255).unwrap()).collect();
        let at = writer.write(&bytes, Deadline::NOW).unwrap();
        let received = reader.receive(Deadline::NOW).unwrap();
        assert_eq!((&*received, received.position()), (&*bytes, at));
        let (a, b) = bytes.split_at(len / 3);
        writer.write_parts(&[a, b, &[]], Deadline::NOW).unwrap();
        assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *bytes);
        // In place, from the end to the beginning.
        let claim = writer.claim(len, Deadline::NOW).unwrap();
        assert_eq!((claim.len(), claim.is_empty()), (len, len == 0));
        assert_eq!(claim.fill(len / 3, b), b.len());
        assert_eq!(claim.fill(0, a), a.len());
        assert_eq!(claim.fill(len, b"beyond"), 0);
        claim.commit();
        assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *bytes);
    }
    let long = vec![0; 7169];
    let (len, most) = (7169, 7168);
    let refused = WriteError::TooLong { len, most };
    assert_eq!(writer.write(&long, Deadline::NOW), Err(refused));
    assert_eq!(writer.claim(len, Deadline::NOW).map(|_| 0), Err(refused));
    // A claim that is given up leaves nothing.
    drop(writer.claim(400, Deadline::NOW).unwrap());
    assert_eq!(reader.receive(Deadline::NOW), Err(ReadError::TimedOut));
    writer.write(b"next", Deadline::NOW).unwrap();
    assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *b"next");
}

#[test]
fn one_space_writes_at_a_time_and_readers_hear_that_it_left() {
    let domain = Domain::private().unwrap();
    let channel = domain
        .make_channel(&ChannelOptions::named("one").reliable().readers(2))
        .unwrap();
    let mut reader = bound(&channel);
    assert!(!reader.has_writer());
    assert_eq!(reader.receive(Deadline::NOW), Err(ReadError::TimedOut));
    let mut writer = channel.bind_writer().unwrap();
    assert_eq!(channel.writer(), Some(domain.space()));
    assert!(reader.has_writer());
    let space = domain.space();
    assert_eq!(
        channel.bind_writer().map(|_| ()),
        Err(BindChannelError::Written { space })
    );
    writer.write(b"last words", Deadline::NOW).unwrap();
    let channel = writer.unbind();
    assert_eq!(*reader.receive(PATIENCE).unwrap(), *b"last words");
    assert_eq!(reader.receive(PATIENCE), Err(ReadError::WriterGone));
    // Told once; the next writer goes on.
    assert_eq!(reader.receive(Deadline::NOW), Err(ReadError::TimedOut));
    let mut writer = channel.bind_writer().unwrap();
    assert_eq!(writer.write(b"again", Deadline::NOW), Ok(1));
    assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *b"again");
    let _second = bound(&channel);
    let third = channel.bind_reader(ReaderOptions::default());
    assert_eq!(
        third.map(|_| ()),
        Err(BindChannelError::NoEntry { entries: 2 })
    );
    let channel = reader.unbind();
    let _third = bound(&channel);
}

#[test]
fn options_and_segments_that_cannot_be_are_refused() {
    let domain = Domain::private().unwrap();
    for options in [
        ChannelOptions::unnamed().unit(96),
        ChannelOptions::unnamed().units(5),
        ChannelOptions::unnamed().readers(256),
        ChannelOptions::unnamed().signal(Signalling::Bytes(32)),
        ChannelOptions::unnamed().reliable().many_writers(),
    ] {
        assert!(domain.make_channel(&options).is_err(), "{options:?}");
    }
    let segment = domain.make_segment(Some("plain"), 4096).unwrap();
    assert!(domain.find_channel("plain", Deadline::NOW).is_err());
    let back = Channel::try_from(segment).unwrap_err();
    assert_eq!(back.segment.len(), 4096);
}

#[test]
fn who_lags_is_told_exactly_what_it_missed() {
    let domain = Domain::private().unwrap();
    let channel = domain
        .make_channel(&ChannelOptions::unnamed().units(8))
        .unwrap();
    let mut writer = channel.bind_writer().unwrap();
    let mut readers = [bound(&channel), bound(&channel)];
    let mut next = [0; 2];
    for i in 0..1000u64 {
        writer.write(&i.to_le_bytes(), Deadline::NOW).unwrap();
        for (reader, (next, every)) in readers.iter_mut().zip(next.iter_mut().zip([1, 29])) {
            if i % every != 0 {
                continue;
            }
            loop {
                match reader.receive(Deadline::NOW) {
                    Ok(message) => {
                        assert_eq!(message.position(), *next);
                        assert_eq!(*message, next.to_le_bytes());
                        *next += 1;
                    }
                    Err(ReadError::Missed(Missed { from, to })) => {
                        assert_eq!((from, every), (*next, 29));
                        *next = to;
                    }
                    Err(error) => {
                        assert_eq!((error, *next), (ReadError::TimedOut, i + 1));
                        break;
                    }
                }
            }
        }
    }
    // Whoever comes late may ask for what is still there.
    let since = ReaderOptions::default().since(Since::Last(3));
    let mut late = channel.bind_reader(since).unwrap();
    assert_eq!(*late.receive(Deadline::NOW).unwrap(), 997u64.to_le_bytes());
}

#[test]
fn a_full_channel_waits_and_a_dropped_reader_is_told() {
    let domain = Domain::private().unwrap();
    let channel = domain
        .make_channel(&ChannelOptions::unnamed().units(4).reliable())
        .unwrap();
    let mut writer = channel.bind_writer().unwrap();
    let dropped = ReaderOptions::default().lagging(Lagging::Drop);
    let mut dropped = channel.bind_reader(dropped).unwrap();
    let mut reader = bound(&channel);
    for i in 0..4 {
        writer.write(&[i], Deadline::NOW).unwrap();
    }
    let (room, wanted) = (0, 1);
    let full = Err(WriteError::Full { room, wanted });
    assert_eq!(writer.write(&[4], Deadline::NOW), full);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 4..2000u32 {
                writer.write(&[i.to_le_bytes()[0]], PATIENCE).unwrap();
            }
        });
        for i in 0..2000u32 {
            let received = reader.receive(PATIENCE).unwrap();
            assert_eq!(*received, [i.to_le_bytes()[0]]);
        }
    });
    assert_eq!(dropped.receive(PATIENCE), Err(ReadError::Dropped));
    assert_eq!(dropped.receive(PATIENCE), Err(ReadError::Dropped));
}

#[test]
fn many_writers_never_mix() {
    let domain = Domain::private().unwrap();
    let channel = domain
        .make_channel(&ChannelOptions::unnamed().units(64).many_writers())
        .unwrap();
    let mut reader = bound(&channel);
    const EACH: u32 = 3000;
    let heard = std::thread::scope(|scope| {
        for who in 0..3u8 {
            let mut writer = channel.bind_writer().unwrap();
            scope.spawn(move || {
                for i in 0..EACH {
                    let mut bytes = [who; 40];
                    bytes[..4].copy_from_slice(&i.to_le_bytes());
                    writer.write(&bytes, PATIENCE).unwrap();
                }
            });
        }
        let (mut heard, mut missed) = ([0; 3], 0);
        while heard.iter().sum::<u64>() + missed < 3 * u64::from(EACH) {
            match reader.receive(PATIENCE) {
                Ok(bytes) => {
                    assert_eq!(bytes.len(), 40);
                    assert!(bytes[4..].iter().all(|b| *b == bytes[4]));
                    heard[usize::from(bytes[4])] += 1;
                }
                Err(ReadError::Missed(range)) => missed += range.units(),
                Err(error) => panic!("{error}"),
            }
        }
        heard.iter().sum::<u64>()
    });
    assert!(heard > 0);
    assert_eq!(
        channel.bind_writer().unwrap().show_is_refused(),
        WriteError::ManyWriters
    );
}

trait Pieces {
    fn show_is_refused(&mut self) -> WriteError;
}

impl Pieces for portolan::channel::Writer {
    fn show_is_refused(&mut self) -> WriteError {
        self.append(b"x", Deadline::NOW).unwrap_err()
    }
}

#[test]
fn a_message_longer_than_the_ring_comes_in_pieces() {
    let domain = Domain::private().unwrap();
    let channel = domain
        .make_channel(&ChannelOptions::unnamed().units(4).reliable())
        .unwrap();
    let (mut writer, mut reader) = (channel.bind_writer().unwrap(), bound(&channel));
    let all: Vec<u8> = (0..5000u32).map(|i| i.to_le_bytes()[0]).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for piece in all.chunks(70) {
                writer.append(piece, PATIENCE).unwrap();
                writer.show();
            }
            writer.end(PATIENCE).unwrap();
            writer.write(b"after", PATIENCE).unwrap();
        });
        let mut seen = vec![];
        loop {
            let piece = reader.receive_some(PATIENCE).unwrap();
            seen.extend_from_slice(&piece);
            assert_eq!(piece.position(), 0);
            if piece.is_complete() {
                break;
            }
        }
        assert_eq!(seen, all);
        assert_eq!(*reader.receive(PATIENCE).unwrap(), *b"after");
    });
    // Who wants it whole is told that it cannot be.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            writer.append(&all, PATIENCE).unwrap();
            writer.end(PATIENCE).unwrap();
            writer.write(b"after", PATIENCE).unwrap();
        });
        let most = channel.longest();
        assert_eq!(
            reader.receive(PATIENCE).map(|_| ()),
            Err(ReadError::TooLong { most })
        );
        loop {
            match reader.receive(PATIENCE) {
                Ok(bytes) => break assert_eq!(*bytes, *b"after"),
                Err(error) => assert!(matches!(error, ReadError::Missed(_)), "{error}"),
            }
        }
    });
}

/// The other process of the tests below; nothing, when it is run as a test.
#[test]
fn other() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let [what, domain, name] = role.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{role}")
    };
    let domain = Domain::join(domain).unwrap();
    let channel = domain.find_channel(name, PATIENCE).unwrap();
    match what {
        "write" => {
            let mut writer = channel.bind_writer().unwrap();
            for i in 0..20_000 {
                writer.write(&message(i), PATIENCE).unwrap();
                if i % 1000 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        // Until the last one; all in order, and what was missed is known.
        "follow" => {
            let mut reader = bound(&channel);
            let mut board = domain
                .find_channel("board", PATIENCE)
                .unwrap()
                .bind_writer()
                .unwrap();
            board.write(b"ready", PATIENCE).unwrap();
            let (mut next, mut missed) = (reader.position(), 0);
            loop {
                match reader.receive(PATIENCE) {
                    Ok(received) => {
                        assert_eq!(received.position(), next);
                        next += 1;
                        if *received == *b"last" {
                            break;
                        }
                    }
                    Err(ReadError::Missed(range)) => {
                        assert_eq!(range.from, next);
                        missed += range.units();
                        next = range.to;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            board.write(&missed.to_le_bytes(), PATIENCE).unwrap();
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_reader_that_stops_misses_and_nobody_else_does() {
    let name = format!("channel-stopped-{}", std::process::id());
    let domain = Domain::join(&name).unwrap();
    let board = domain
        .make_channel(&ChannelOptions::named("board").reliable())
        .unwrap();
    let mut board = bound(&board);
    let channel = domain
        .make_channel(&ChannelOptions::named("news").units(64))
        .unwrap();
    let (mut writer, mut reader) = (channel.bind_writer().unwrap(), bound(&channel));
    let mut child = spawn("other", &format!("follow {name} news"));
    assert_eq!(*board.receive(PATIENCE).unwrap(), *b"ready");
    let pid = i32::try_from(child.id()).unwrap();
    // SAFETY:
    // - signals a child of ours that has not been waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
    let mut status = 0;
    // SAFETY:
    // - `status` is ours to write to; the child stays to be waited for.
    let stopped = unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) };
    assert!(stopped == pid && libc::WIFSTOPPED(status));
    for i in 0..10_000u64 {
        writer.write(&i.to_le_bytes(), Deadline::NOW).unwrap();
        assert_eq!(*reader.receive(Deadline::NOW).unwrap(), i.to_le_bytes());
    }
    // SAFETY:
    // - as above.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGCONT) }, 0);
    writer.write(b"last", Deadline::NOW).unwrap();
    let missed = board.receive(PATIENCE).unwrap();
    assert!(u64::from_le_bytes((*missed).try_into().unwrap()) > 9_000);
    assert!(child.wait().unwrap().success());
}

#[test]
fn readers_and_ports_are_waited_for_together() {
    let domain = Domain::private().unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    let options = ChannelOptions::unnamed().readers(2);
    let channels = [(); 3].map(|()| domain.make_channel(&options).unwrap());
    let mut writers = [0, 1, 2].map(|i: usize| channels[i].bind_writer().unwrap());
    let tokens = [0, 1, 2].map(|i: usize| set.add_reader(bound(&channels[i])).unwrap());
    let port = domain.bind(PortOptions::unnamed()).unwrap();
    let right = port.make_send();
    let port = set.add(port).unwrap();
    assert!(set.wait(Deadline::NOW).unwrap().is_empty());
    assert!(set.port(tokens[0]).is_none() && set.reader(port).is_none());
    assert!(set.remove(tokens[0]).is_none() && set.remove_reader(port).is_none());
    for waiting in [Waiting::Sleep, Waiting::Adaptive] {
        set.set_waiting(waiting);
        for round in 0..200 {
            let which = round % 4;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    if round % 3 == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    match writers.get_mut(which) {
                        Some(writer) => drop(writer.write(b"x", Deadline::NOW).unwrap()),
                        None => right.send(Message::default(), WhenFull::Fail).unwrap(),
                    }
                });
                let ready: Vec<_> = set.wait(PATIENCE).unwrap().collect();
                assert_eq!(ready, [*tokens.get(which).unwrap_or(&port)]);
            });
            match tokens.get(which) {
                Some(token) => {
                    let reader = set.reader_mut(*token).unwrap();
                    assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *b"x");
                }
                None => drop(
                    set.port_mut(port)
                        .unwrap()
                        .try_receive(Access::Later)
                        .unwrap(),
                ),
            }
            assert!(set.wait(Deadline::NOW).unwrap().is_empty());
        }
    }
    // A writer that leaves is something too.
    let [first, ..] = writers;
    drop(first);
    let ready: Vec<_> = set.wait(PATIENCE).unwrap().collect();
    assert_eq!(ready, [tokens[0]]);
    let mut reader = set.remove_reader(tokens[0]).unwrap();
    assert_eq!(reader.receive(Deadline::NOW), Err(ReadError::WriterGone));
    // Readers without an entry, without signals, of another domain.
    let _second = bound(&channels[0]);
    let refused = set.add_reader(bound(&channels[0])).unwrap_err();
    assert_eq!(refused.why, WhyNoReader::NoEntry);
    let silent = ChannelOptions::unnamed().signal(Signalling::Never);
    let silent = domain.make_channel(&silent).unwrap();
    let refused = set.add_reader(bound(&silent)).unwrap_err();
    assert_eq!(refused.why, WhyNoReader::NotSignalled);
    let other = Domain::private().unwrap();
    let other = other.make_channel(&options).unwrap();
    let refused = set.add_reader(bound(&other)).unwrap_err();
    assert_eq!(refused.why, WhyNoReader::OtherDomain);
}

/// A writer and a reader of ours among words that somebody scribbles at.
#[test]
fn a_hostile_peer_is_found_out_and_does_no_harm() {
    let mut state = 88_172_645_463_325_252u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let domain = Domain::private().unwrap();
    let mut found_out = [0; 3];
    for (mode, options) in [
        ChannelOptions::unnamed().reliable(),
        ChannelOptions::unnamed(),
        ChannelOptions::unnamed().many_writers(),
    ]
    .into_iter()
    .enumerate()
    {
        for _ in 0..300 {
            let channel = domain.make_channel(&options.clone().units(8)).unwrap();
            let (mut writer, mut reader) = (channel.bind_writer().unwrap(), bound(&channel));
            let words = channel.segment().words();
            for _ in 0..60 {
                let at = usize::try_from(random()).unwrap() % (words.len() / 2);
                // Garbage; lengths beyond all bounds; positions that go back, or far ahead.
                let word = match random() % 5 {
                    0 => random(),
                    1 => u64::MAX,
                    2 => Meta::new(0xff_ffff, 0xff, 0).0,
                    3 => Stamp::done(random() % 64, 1).0,
                    _ => reader.position().wrapping_sub(random() % 3),
                };
                words[at].store(word, Ordering::Relaxed);
                if random() % 3 == 0 {
                    let _ = writer.write(&[7; 100], Deadline::NOW);
                    let _ = writer.append(&[7; 20], Deadline::NOW);
                }
                let late = ReaderOptions::default().since(Since::Last(random()));
                drop(channel.bind_reader(late));
                for _ in 0..20 {
                    match reader.receive(Deadline::NOW) {
                        Ok(_) | Err(ReadError::Missed(_)) => {}
                        Err(why @ ReadError::Garbled(_)) => {
                            found_out[mode] += 1;
                            // For good.
                            assert_eq!(reader.receive(Deadline::NOW), Err(why));
                            break;
                        }
                        Err(_) => break,
                    }
                }
            }
            assert!(
                Channel::try_from(channel.segment().clone()).is_ok_and(|c| c.units() <= 16)
                    || Channel::try_from(channel.segment().clone()).is_err()
            );
            drop(writer);
            drop(channel.bind_writer());
        }
    }
    assert!(found_out.iter().all(|found| *found > 0), "{found_out:?}");
}

#[test]
fn what_a_hostile_peer_does_is_named() {
    let domain = Domain::private().unwrap();
    let options = ChannelOptions::unnamed().units(8).readers(0);
    let unit = |segment: &Segment, position: usize, stamp: Stamp, meta: Meta| {
        let at = 32 + position % 8 * 8;
        segment.words()[at + 1].store(meta.0, Ordering::Relaxed);
        segment.words()[at].store(stamp.0, Ordering::Release);
    };
    let whole = Meta::FIRST | Meta::LAST | Meta::CLOSED;
    let hostile = |stamp, meta| {
        let channel = domain.make_channel(&options).unwrap();
        let mut reader = bound(&channel);
        unit(channel.segment(), 0, stamp, meta);
        reader.receive(Deadline::NOW).map(|_| ())
    };
    let (position, len, most) = (0, 1 << 20, 48);
    let (expected, found) = (0, 3);
    assert_eq!(
        hostile(Stamp::done(0, 1), Meta::new(1 << 20, whole, 0)),
        Err(ReadError::Garbled(Garbled::Length {
            position,
            len,
            most
        }))
    );
    assert_eq!(
        hostile(Stamp::done(3, 1), Meta::new(1, whole, 0)),
        Err(ReadError::Garbled(Garbled::Position { expected, found }))
    );
    // A unit of an older lap, put back: where many write, its sum is of that lap.
    let called = options.clone().many_writers();
    let channel = domain.make_channel(&called).unwrap();
    let (mut writer, mut reader) = (channel.bind_writer().unwrap(), bound(&channel));
    let words = &channel.segment().words()[32..40];
    writer.write(b"pay him", Deadline::NOW).unwrap();
    let old: Vec<u64> = words.iter().map(|w| w.load(Ordering::Relaxed)).collect();
    for _ in 0..7 {
        writer.write(b"other", Deadline::NOW).unwrap();
    }
    while reader.receive(Deadline::NOW).is_ok() {}
    words
        .iter()
        .zip(&old)
        .for_each(|(w, old)| w.store(*old, Ordering::Relaxed));
    assert_eq!(reader.receive(Deadline::NOW), Err(ReadError::TimedOut));
    words[0].store(Stamp::done(8, 1).0, Ordering::Relaxed);
    let (from, to) = (8, 9);
    assert_eq!(
        reader.receive(Deadline::NOW),
        Err(ReadError::Missed(Missed { from, to }))
    );
}

#[test]
fn two_processes_stream_whatever_way_they_wait() {
    for (waiting, signalling) in [
        (Waiting::Adaptive, Signalling::Message),
        (Waiting::Sleep, Signalling::Message),
        (Waiting::Sleep, Signalling::Bytes(64)),
        (Waiting::Poll, Signalling::Never),
    ] {
        let name = format!("channel-{}-{waiting:?}", std::process::id());
        let domain = Domain::join(&name).unwrap();
        let channel = domain
            .make_channel(
                &ChannelOptions::named("stream")
                    .units(64)
                    .reliable()
                    .signal(signalling),
            )
            .unwrap();
        let mut reader = bound(&channel);
        reader.set_waiting(waiting);
        let mut child = spawn("other", &format!("write {name} stream"));
        for i in 0..20_000 {
            assert_eq!(number(&reader.receive(PATIENCE).unwrap()), i);
        }
        assert_eq!(reader.receive(PATIENCE), Err(ReadError::WriterGone));
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_reader_that_waits_uses_no_processor() {
    let domain = Domain::private().unwrap();
    let channel = domain.make_channel(&ChannelOptions::unnamed()).unwrap();
    let _writer = channel.bind_writer().unwrap();
    let mut reader = bound(&channel);
    let used = || {
        let time = rustix_time();
        Duration::new(
            u64::try_from(time.tv_sec).unwrap(),
            u32::try_from(time.tv_nsec).unwrap(),
        )
    };
    let before = used();
    let deadline = Duration::from_millis(500);
    assert_eq!(reader.receive(deadline), Err(ReadError::TimedOut));
    let spent = used() - before;
    // Not a duration of ours, but of the processor's, and a tenth of what a poll takes.
    assert!(spent < Duration::from_millis(50), "{spent:?}");
}

fn rustix_time() -> libc::timespec {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY:
    // - `time` is a timespec of ours to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time
}

#[cfg(feature = "marks")]
mod deaths {
    use super::*;
    use portolan::{PortKind, Protection};
    use std::os::unix::process::ExitStatusExt;
    use std::sync::OnceLock;

    static DEADLY: OnceLock<String> = OnceLock::new();

    fn reached(mark: &str) {
        if DEADLY.get().is_some_and(|deadly| deadly == mark) {
            // SAFETY:
            // - Sends a signal to ourselves; nothing is touched.
            unsafe { libc::raise(libc::SIGKILL) };
        }
    }

    /// The other process; nothing, when it is run as a test.
    #[test]
    fn victim() {
        let Ok(role) = std::env::var(ROLE) else {
            return;
        };
        let [what, domain, mark] = role.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{role}")
        };
        let domain = Domain::join(domain).unwrap();
        let channel = domain.find_channel("channel", PATIENCE).unwrap();
        DEADLY.set(mark.to_owned()).unwrap();
        portolan_shm::mark::install(reached);
        match what {
            "writes" => writes(&channel),
            _ => reads(&channel),
        }
    }

    fn writes(channel: &Channel) {
        let mut i = 0;
        loop {
            let mut writer = channel.bind_writer().unwrap();
            for _ in 0..20 {
                match i % 3 {
                    0 => drop(writer.write(&message(i), PATIENCE).unwrap()),
                    1 => {
                        let bytes = message(i);
                        let claim = writer.claim(bytes.len(), PATIENCE).unwrap();
                        claim.fill(0, &bytes);
                        claim.commit();
                    }
                    _ => {
                        for piece in message(i).chunks(30) {
                            writer.append(piece, PATIENCE).unwrap();
                            writer.show();
                        }
                        writer.end(PATIENCE).unwrap();
                    }
                }
                i += 1;
            }
        }
    }

    fn reads(channel: &Channel) {
        loop {
            let mut reader = bound(channel);
            reader.set_waiting(Waiting::Sleep);
            for _ in 0..50 {
                if let Ok(message) = reader.receive(PATIENCE) {
                    number(&message);
                }
            }
        }
    }

    fn used(domain: &Domain) -> (u64, usize) {
        let survey = domain.survey().unwrap();
        let segments = survey.ports.iter().filter(|p| p.kind == PortKind::Segment);
        (survey.memory.used, segments.count())
    }

    fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
        let end = std::time::Instant::now() + PATIENCE;
        while !done() {
            assert!(std::time::Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_killed(child: &mut Child, mark: &str) -> bool {
        let Some(status) = child.try_wait().unwrap() else {
            return false;
        };
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{mark}");
        true
    }

    /// Reads what a victim writes, until it is dead and its place is free.
    fn outlive_a_writer(protection: Protection, mark: &str, kill: impl Fn(&mut Child, u64)) {
        let name = format!("channel-w-{}-{mark}-{protection:?}", std::process::id());
        let builder = Domain::builder(&name).protection(protection);
        let domain = builder.join().unwrap();
        let options = ChannelOptions::named("channel").units(16).reliable();
        let channel = domain.make_channel(&options).unwrap();
        let mut reader = bound(&channel);
        reader.set_waiting(Waiting::Sleep);
        let mut child = spawn("deaths::victim", &format!("writes {name} {mark}"));
        let (mut next, mut dead) = (0, false);
        loop {
            match reader.receive(PATIENCE) {
                Ok(received) => {
                    assert_eq!(number(&received), next, "{mark}");
                    next += 1;
                    kill(&mut child, next);
                }
                // The victim also leaves, and comes back.
                Err(ReadError::WriterGone) if dead => break,
                Err(ReadError::WriterGone) => {
                    wait_for(mark, || {
                        dead = is_killed(&mut child, mark);
                        dead || reader.has_writer()
                    });
                    if dead && !reader.has_writer() {
                        break;
                    }
                }
                Err(error) => panic!("{mark}: {error}"),
            }
        }
        let mut writer = channel.bind_writer().unwrap();
        writer.write(&message(41), Deadline::NOW).unwrap();
        let mut last = 0;
        while let Ok(received) = reader.receive(Deadline::NOW) {
            last = number(&received);
        }
        assert_eq!(last, 41, "{mark}");
        drop((writer, reader, channel));
        wait_for(mark, || used(&domain) == (0, 0));
    }

    #[test]
    fn a_writer_dies_at_whatever_step() {
        for mark in [
            "channel.bound",
            "channel.begun",
            "channel.claimed",
            "channel.filled",
            "channel.published",
            "channel.advanced",
            "channel.before_wake",
            "channel.raised",
            "channel.before_futex",
            "channel.unbound",
        ] {
            outlive_a_writer(Protection::Trusted, mark, |_, _| {});
        }
        outlive_a_writer(Protection::Guarded, "channel.filled", |_, _| {});
    }

    #[test]
    fn a_writer_is_killed_at_random() {
        for round in 0..8 {
            outlive_a_writer(Protection::Trusted, "none", |child, next| {
                if next == 10 + round * 37 {
                    child.kill().unwrap();
                }
            });
        }
    }

    fn outlive_a_reader(protection: Protection, mark: &str, kill: impl Fn(&mut Child, u64)) {
        let name = format!("channel-r-{}-{mark}-{protection:?}", std::process::id());
        let builder = Domain::builder(&name).protection(protection);
        let domain = builder.join().unwrap();
        let options = ChannelOptions::named("channel")
            .units(8)
            .unit(576)
            .reliable();
        let channel = domain.make_channel(&options.readers(2)).unwrap();
        let mut writer = channel.bind_writer().unwrap();
        let mut child = spawn("deaths::victim", &format!("reads {name} {mark}"));
        let (mut i, mut after) = (0, 0);
        while after < 100 {
            // Never longer than until the host has noticed.
            writer.write(&message(i), PATIENCE).unwrap();
            i += 1;
            kill(&mut child, i);
            if i % 16 == 0 {
                // So that it sleeps now and then.
                std::thread::sleep(Duration::from_micros(300));
            }
            after += u64::from(after > 0 || is_killed(&mut child, mark));
        }
        child.wait().unwrap();
        // Its entry is free.
        wait_for(mark, || {
            let readers = [(); 2].map(|()| channel.bind_reader(ReaderOptions::default()));
            readers.iter().all(Result::is_ok)
        });
        drop((writer, channel));
        wait_for(mark, || used(&domain) == (0, 0));
    }

    #[test]
    fn a_reader_dies_at_whatever_step() {
        for mark in [
            "channel.joining",
            "channel.joined",
            "channel.copied",
            "channel.quarter_read",
            "channel.room_made",
            "channel.armed",
            "channel.before_sleep",
        ] {
            outlive_a_reader(Protection::Trusted, mark, |_, _| {});
        }
        outlive_a_reader(Protection::Guarded, "channel.copied", |_, _| {});
    }

    #[test]
    fn a_reader_is_killed_at_random() {
        for round in 0..5 {
            outlive_a_reader(Protection::Trusted, "none", |child, i| {
                if i == 500 + round * 3333 {
                    child.kill().unwrap();
                }
            });
        }
    }
}
