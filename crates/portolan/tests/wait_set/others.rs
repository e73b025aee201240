//! Other processes send, and die.

use crate::{Epoll, PATIENCE, drain, send, soon};
use portolan::channel::{ChannelOptions, ReadError};
use portolan::{Deadline, Domain, PortOptions, WaitSet, Waiting};
use portolan_testkit::{in_role, role, unique};
use rustix::event::epoll::EventFlags;
use std::io::Write;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Not a test: what the other processes run. Each line of input is sent to "inbox"; some ask
/// for more.
#[test]
fn sends_its_input() {
    let Some([name]) = role() else { return };
    let domain = Domain::join(&name).unwrap();
    let right = domain.connect("inbox", soon()).unwrap();
    let mut sets = Vec::new();
    let mut writers = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        if line == "make sets" {
            sets.extend((0..100).map(|_| WaitSet::new(&domain).unwrap()));
        }
        if line == "write frames" {
            let channel = domain.find_channel("frames", soon()).unwrap();
            writers.push(channel.bind_frame_writer().unwrap());
        }
        send(&right, &line);
    }
}

/// Another process. Killed when dropped.
struct Other(Child);

impl Other {
    fn of(domain: &Domain) -> Self {
        let child = in_role("others::sends_its_input", &[domain.name()])
            .stdin(Stdio::piped())
            .spawn();
        Self(child.unwrap())
    }

    fn say(&mut self, line: &str) {
        writeln!(self.0.stdin.as_ref().unwrap(), "{line}").unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn joined(test: &str) -> Domain {
    let name = unique(&format!("wait-set-{test}"));
    Domain::builder(&name).size(64 << 20).join().unwrap()
}

#[test]
fn another_process_makes_the_descriptor_readable_by_sending_and_by_dying() {
    let domain = joined("epoll");
    let mut set = WaitSet::new(&domain).unwrap();
    for _ in 0..50 {
        set.add(domain.bind(PortOptions::unnamed()).unwrap())
            .unwrap();
    }
    let inbox = set
        .add(domain.bind(PortOptions::named("inbox")).unwrap())
        .unwrap();
    let epoll = Epoll::of(&set, EventFlags::empty());
    let told = |set: &mut WaitSet, other: &mut Other, line: &str| {
        // The set sleeps: only now is there something to wake it.
        assert!(set.wait(Deadline::NOW).unwrap().is_empty());
        match line {
            "NoMoreSenders" => other.0.kill().unwrap(),
            line => other.say(line),
        }
        loop {
            assert!(epoll.wait(PATIENCE), "{line}");
            let ready = set.wait(Deadline::NOW).unwrap();
            if !ready.is_empty() {
                assert_eq!(drain(set, ready), [line]);
                return;
            }
        }
    };
    let mut other = Other::of(&domain);
    for line in ["one", "two", "three"] {
        told(&mut set, &mut other, line);
    }
    set.get(inbox).unwrap().request_no_more_senders();
    // The host, which is this process, is told of the death and wakes who sleeps.
    told(&mut set, &mut other, "NoMoreSenders");
}

#[test]
fn a_dead_process_wakes_a_blocked_wait_and_leaves_its_sets() {
    let domain = joined("death");
    let inbox = domain.bind(PortOptions::named("inbox")).unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    set.set_waiting(Waiting::Sleep);
    let token = set.add(inbox).unwrap();
    // More sets than there are, were those of the dead not returned.
    for round in 0..7 {
        let mut other = Other::of(&domain);
        other.say("make sets");
        let ready = set.wait(soon()).unwrap();
        assert_eq!(drain(&mut set, ready), ["make sets"], "{round}");
        set.get(token).unwrap().request_no_more_senders();
        drop(other);
        let ready = set.wait(soon()).unwrap();
        assert_eq!(drain(&mut set, ready), ["NoMoreSenders"], "{round}");
    }
}

#[test]
fn a_set_is_told_of_a_dead_writer_of_frames() {
    let domain = joined("frames");
    let mut inbox = domain.bind(PortOptions::named("inbox")).unwrap();
    let options = ChannelOptions::named("frames").raw().readers(1);
    let channel = domain.make_channel(&options).unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    set.set_waiting(Waiting::Sleep);
    let token = set.add(channel.bind_frame_reader().unwrap()).unwrap();
    for round in 0..5 {
        let mut other = Other::of(&domain);
        other.say("write frames");
        let said = inbox.receive(portolan::Access::Later, soon()).unwrap();
        assert_eq!(said.header(), b"write frames", "{round}");
        // Armed: its writer is there, and puts nothing.
        assert!(set.wait(Duration::from_micros(1)).unwrap().is_empty());
        drop(other);
        assert_eq!(
            set.wait(soon()).unwrap().next(),
            Some(token.any()),
            "{round}"
        );
        let reader = set.get_mut(token).unwrap();
        assert_eq!(reader.wait(Deadline::NOW), Err(ReadError::WriterGone));
        assert_eq!(reader.wait(Deadline::NOW), Err(ReadError::TimedOut));
    }
}
