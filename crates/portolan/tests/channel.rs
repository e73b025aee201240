//! Channels between spaces: streams with and without flow control, and who is told of what.

use portolan::channel::{
    BindChannelError, Channel, ChannelOptions, Lagging, Missed, ReadError, Reader, ReaderOptions,
    Signalling, Since, WriteError,
};
use portolan::{Deadline, Domain, Waiting};
use std::process::{Child, Command, Stdio};
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
    let mut writer = channel.bind_writer().unwrap();
    match what {
        "write" => {
            for i in 0..20_000 {
                writer.write(&message(i), PATIENCE).unwrap();
                if i % 1000 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        other => panic!("{other}"),
    }
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
