//! Readers with handlers beside processes that are killed and stopped.

use crate::signalled::Ear;
use crate::{bound, number};
use portolan::channel::{Channel, ChannelOptions, ReadError};
use portolan::{Deadline, Domain};
use portolan_testkit::{PATIENCE, unique, until};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

/// The other process; nothing, when it is run as a test.
#[test]
fn victim() {
    let Some([what, domain, mark]) = portolan_testkit::role() else {
        return;
    };
    let domain = Domain::join(&domain).unwrap();
    let channel = domain.find_channel("channel", PATIENCE).unwrap();
    let mut there = domain
        .find_channel("there", PATIENCE)
        .unwrap()
        .bind_writer()
        .unwrap();
    if what == "reads" {
        let mut ear = Ear::new(&domain, &channel);
        let mut reader = bound(&channel);
        reader.enable().unwrap();
        there.write(b"there", PATIENCE).unwrap();
        loop {
            ear.listener.wait(PATIENCE);
        }
    }
    let mut writer = channel.bind_writer().unwrap();
    portolan_testkit::die_at(&mark, portolan_shm::mark::install);
    for n in 0.. {
        writer.write(&crate::message(n), PATIENCE).unwrap();
    }
}

fn made(name: &str) -> (Domain, Channel, Channel) {
    let domain = Domain::join(name).unwrap();
    let options = ChannelOptions::named("channel").units(32).unit(576);
    let channel = domain.make_channel(&options).unwrap();
    let there = domain
        .make_channel(&ChannelOptions::named("there"))
        .unwrap();
    (domain, channel, there)
}

/// The host signals what a dead writer owed: the last unit, which so is found.
#[test]
fn a_writer_that_is_killed_before_it_signals() {
    for mark in [
        "channel.published",
        "channel.advanced",
        "channel.before_signal",
    ] {
        let name = unique("handled-w");
        let (domain, channel, _there) = made(&name);
        let mut reader = bound(&channel);
        let mut ear = Ear::new(&domain, &channel);
        reader.enable().unwrap();
        // It dies at its first message, of which it has told nobody.
        let mut child =
            portolan_testkit::spawn("signalled_deaths::victim", &["writes", &name, mark]);
        assert!(
            ear.listener.wait(PATIENCE).is_some(),
            "{mark}: nobody was told"
        );
        assert_eq!(ear.places(), [0], "{mark}");
        assert_eq!(number(&reader.receive(Deadline::NOW).unwrap()), 0, "{mark}");
        // Its place is free before handlers are told.
        assert_eq!(
            reader.receive(Deadline::NOW),
            Err(ReadError::WriterGone),
            "{mark}"
        );
        child.wait().unwrap();
    }
}

/// A reader that is stopped, and then killed: the writer and other handlers go on.
#[test]
fn a_reader_that_is_stopped_and_killed() {
    let name = unique("handled-r");
    let (domain, channel, there) = made(&name);
    let mut tells = bound(&there);
    let mut child = portolan_testkit::spawn("signalled_deaths::victim", &["reads", &name, "none"]);
    assert_eq!(*tells.receive(PATIENCE).unwrap(), *b"there");
    let mut reader = bound(&channel);
    let mut ear = Ear::new(&domain, &channel);
    reader.enable().unwrap();
    let mut writer = channel.bind_writer().unwrap();
    let mut write = |n: u64| {
        writer.write(&crate::message(n), Deadline::NOW).unwrap();
        // After a death the host signals too.
        let places = ear.places();
        assert!(places.contains(&(n % 32)), "{n}: {places:?}");
    };
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let began = Instant::now();
    for n in 0..2000 {
        write(n);
    }
    child.kill().unwrap();
    for n in 2000..4000 {
        write(n);
    }
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "a stopped reader held the writer up"
    );
    child.wait().unwrap();
    drop(reader);
    // Its handler and its entry are gone, and the mark with the next signal that nobody wants.
    drop((ear, writer));
    until("the host has returned what it held", || {
        domain.survey().unwrap().spaces.len() == 1
    });
    let mut writer = channel.bind_writer().unwrap();
    let signals = || domain.survey().unwrap().spaces[0].signals;
    writer.write(b"x", Deadline::NOW).unwrap();
    let before = signals();
    writer.write(b"x", Deadline::NOW).unwrap();
    assert_eq!(signals(), before);
}
