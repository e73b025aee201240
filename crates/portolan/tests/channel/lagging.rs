//! Readers that do not keep up, and what becomes of them and of the others.

use crate::{PATIENCE, bound, message};
use portolan::channel::{
    ChannelOptions, Lagging, Missed, ReadError, ReaderOptions, Since, WriteError,
};
use portolan::{Deadline, Domain};
use std::time::Duration;

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
    // A late reader may ask for the messages that are still there.
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

/// The other process of the tests below; nothing, when it is run as a test.
#[test]
fn other() {
    let Some([what, domain, name]) = portolan_testkit::role() else {
        return;
    };
    let domain = Domain::join(&domain).unwrap();
    let channel = domain.find_channel(&name, PATIENCE).unwrap();
    match &*what {
        "write" => {
            let mut writer = channel.bind_writer().unwrap();
            for i in 0..20_000 {
                writer.write(&message(i), PATIENCE).unwrap();
                if i % 1000 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        "burst" => {
            let mut writer = channel.bind_writer().unwrap();
            let mut asked = bound(&domain.find_channel("back", PATIENCE).unwrap());
            for i in 0..40 * 800u64 {
                writer.write(&i.to_le_bytes(), PATIENCE).unwrap();
                if i % 800 == 799 {
                    assert_eq!(*asked.receive(PATIENCE).unwrap(), (i / 800).to_le_bytes());
                    std::thread::sleep(Duration::from_micros(i / 800 * 5));
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
    let name = portolan_testkit::unique("channel-stopped");
    let domain = Domain::join(&name).unwrap();
    let board = domain
        .make_channel(&ChannelOptions::named("board").reliable())
        .unwrap();
    let mut board = bound(&board);
    let channel = domain
        .make_channel(&ChannelOptions::named("news").units(64))
        .unwrap();
    let (mut writer, mut reader) = (channel.bind_writer().unwrap(), bound(&channel));
    let mut child = portolan_testkit::spawn("lagging::other", &["follow", &name, "news"]);
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
