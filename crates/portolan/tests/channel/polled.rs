//! Readers that are polled in a wait set and never sleep: a writer that waits for room is woken.

use crate::{PATIENCE, bound};
use portolan::channel::{ChannelOptions, Reader, ReaderOptions};
use portolan::{Deadline, Domain, Message, PortOptions, Token, WaitSet, Waiting, WhenFull};
use portolan_testkit::until;
use std::sync::mpsc;
use std::time::Instant;

/// A quarter of a lap is two of them, and a reader that has read one has not come so far.
const UNITS: u64 = 8;

fn options() -> ChannelOptions {
    ChannelOptions::unnamed().units(UNITS).reliable()
}

/// Calls `write` in another thread, and `poll` from when that thread sleeps until it has ended: not
/// by its deadline, at which it finds the room that was made.
fn polls_until_written(write: impl FnOnce() + Send, mut poll: impl FnMut()) {
    let began = Instant::now();
    std::thread::scope(|scope| {
        let (says, told) = mpsc::channel();
        let writes = scope.spawn(move || {
            says.send(rustix::thread::gettid()).unwrap();
            write();
        });
        let thread = told.recv().unwrap().as_raw_nonzero();
        until("the writer sleeps, or has written", || {
            let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
            // Behind the name, which is in parentheses.
            stat.is_ok_and(|stat| stat.contains(") S ")) || writes.is_finished()
        });
        while !writes.is_finished() {
            poll();
        }
        writes.join().unwrap();
    });
    assert!(began.elapsed() < PATIENCE, "the writer was not woken");
}

/// A set of this domain with a reader, whose writer writes one unit and then waits for all of the
/// room.
fn a_waiting_writer_is_woken(
    domain: &Domain,
    set: &mut WaitSet,
    mut poll: impl FnMut(&mut WaitSet, Token<Reader>),
) {
    let channel = domain.make_channel(&options()).unwrap();
    let mut writer = channel.bind_writer().unwrap();
    let reader = set.add(bound(&channel)).unwrap();
    writer.write(b"x", Deadline::NOW).unwrap();
    let long = vec![7; channel.longest()];
    let write = || _ = writer.write(&long, PATIENCE).unwrap();
    polls_until_written(write, || poll(set, reader));
    let reader = set.get_mut(reader).unwrap();
    assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *long);
}

fn receives(set: &mut WaitSet, reader: Token<Reader>) {
    let reader = set.get_mut(reader).unwrap();
    assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *b"x");
}

#[test]
fn a_set_that_is_asked_now_and_then() {
    let domain = Domain::private().unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    let mut received = false;
    a_waiting_writer_is_woken(&domain, &mut set, |set, reader| {
        let ready = set.wait(Deadline::NOW).unwrap();
        if !received && !ready.is_empty() {
            receives(set, reader);
            received = true;
        }
    });
}

#[test]
fn a_set_that_never_sleeps() {
    let domain = Domain::private().unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    set.set_waiting(Waiting::Poll);
    let mut received = false;
    a_waiting_writer_is_woken(&domain, &mut set, |set, reader| {
        assert!(!set.wait(PATIENCE).unwrap().is_empty());
        if !received {
            receives(set, reader);
            received = true;
        }
    });
}

#[test]
fn a_set_in_which_another_member_is_always_ready() {
    let domain = Domain::private().unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    let port = domain.bind(PortOptions::unnamed()).unwrap();
    let right = port.make_send();
    right.send(Message::default(), WhenFull::Fail).unwrap();
    let port = set.add(port).unwrap();
    let mut received = false;
    a_waiting_writer_is_woken(&domain, &mut set, |set, reader| {
        for token in set.wait(Deadline::NEVER).unwrap() {
            if token == reader && !received {
                receives(set, reader);
                received = true;
            }
            assert!(token == reader || token == port);
        }
    });
}

#[test]
fn a_reader_of_parcels_in_a_set() {
    let domain = Domain::private().unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    let channel = domain.make_channel(&options()).unwrap();
    let mut writer = channel.bind_parcel_writer().unwrap();
    let reader = channel.bind_parcel_reader(ReaderOptions::default(), PATIENCE);
    let reader = set.add(reader.unwrap()).unwrap();
    writer.send(b"x", None, Deadline::NOW).unwrap();
    // With its stamp it takes all units.
    let long = vec![7; channel.longest() - channel.unit_payload()];
    let write = || _ = writer.send(&long, None, PATIENCE).unwrap();
    let mut notes = Vec::new();
    polls_until_written(write, || {
        if !set.wait(Deadline::NOW).unwrap().is_empty() && notes.is_empty() {
            let reader = set.get_mut(reader).unwrap();
            notes.push(reader.receive(Deadline::NOW).unwrap().note);
        }
    });
    assert_eq!(notes, [b"x"]);
    let reader = set.get_mut(reader).unwrap();
    assert_eq!(reader.receive(Deadline::NOW).unwrap().note, long);
}
