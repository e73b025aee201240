//! Writers and readers that are killed at marked steps, and at random.

use crate::{PATIENCE, bound, message, number, used};
use portolan::channel::{Channel, ChannelOptions, ReadError, ReaderOptions};
use portolan::{Deadline, Domain, Protection, Waiting};
use portolan_testkit::{unique, until};
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::time::Duration;

/// The other process; nothing, when it is run as a test.
#[test]
fn victim() {
    let Some([what, domain, mark]) = portolan_testkit::role() else {
        return;
    };
    let domain = Domain::join(&domain).unwrap();
    let channel = domain.find_channel("channel", PATIENCE).unwrap();
    portolan_testkit::die_at(&mark, portolan_shm::mark::install);
    match &*what {
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

fn is_killed(child: &mut Child, mark: &str) -> bool {
    let Some(status) = child.try_wait().unwrap() else {
        return false;
    };
    assert_eq!(status.signal(), Some(libc::SIGKILL), "{mark}");
    true
}

/// Reads what a victim writes, until it is dead and its place is free.
fn outlive_a_writer(protection: Protection, mark: &str, kill: impl Fn(&mut Child, u64)) {
    let name = unique("channel-w");
    let builder = Domain::builder(&name).protection(protection);
    let domain = builder.join().unwrap();
    let options = ChannelOptions::named("channel").units(16).reliable();
    let channel = domain.make_channel(&options).unwrap();
    let mut reader = bound(&channel);
    reader.set_waiting(Waiting::Sleep);
    let mut child = portolan_testkit::spawn("deaths::victim", &["writes", &name, mark]);
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
                until(mark, || {
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
    until(mark, || used(&domain) == (0, 0));
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
    let name = unique("channel-r");
    let builder = Domain::builder(&name).protection(protection);
    let domain = builder.join().unwrap();
    let options = ChannelOptions::named("channel")
        .units(8)
        .unit(576)
        .reliable();
    let channel = domain.make_channel(&options.readers(2)).unwrap();
    let mut writer = channel.bind_writer().unwrap();
    let mut child = portolan_testkit::spawn("deaths::victim", &["reads", &name, mark]);
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
    until(mark, || {
        let readers = [(); 2].map(|()| channel.bind_reader(ReaderOptions::default()));
        readers.iter().all(Result::is_ok)
    });
    drop((writer, channel));
    until(mark, || used(&domain) == (0, 0));
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
