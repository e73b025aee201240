//! What a killed process held comes back.

use crate::child::{Child, PATIENCE, unique, until};
use portolan::{Access, Deadline, Domain, Message, Notice, PortOptions};

#[test]
fn extents_of_the_killed_come_back() {
    let name = unique("extents");
    let mut host = Child::new();
    host.ask(&format!("join {name} limit={}", 8 << 20));
    for round in 0..3 {
        let mut child = Child::joined(&name);
        for _ in 0..3 {
            assert_eq!(child.ask("allocate 2097152"), "done", "round {round}");
        }
        assert!(
            child.ask("allocate 4194304").starts_with("error"),
            "the limit is reached"
        );
        child.kill();
        until("the memory is back", || {
            let mut probe = Child::joined(&name);
            let answers: Vec<String> = (0..3).map(|_| probe.ask("allocate 2097152")).collect();
            probe.ask("leave");
            answers.iter().all(|a| a == "done")
        });
    }
}

#[test]
fn what_the_host_held_comes_back_through_its_successor() {
    let name = unique("host-extents");
    let mut host = Child::new();
    host.ask(&format!("join {name} limit={}", 8 << 20));
    assert_eq!(host.ask("allocate 4194304"), "done");
    assert_eq!(host.ask("bind inbox"), "done");
    let mut second = Child::joined(&name);
    assert_eq!(second.ask("connect inbox"), "done");
    host.kill();
    until("the memory is back", || {
        second.ask("allocate 6291456") == "done"
    });
    assert!(second.ask("send 100").starts_with("error"), "a dead name");
    // The name of the dead port is free.
    assert_eq!(second.ask("bind inbox"), "done");
}

#[test]
fn extents_in_the_queue_of_the_killed_come_back_and_published_ones_arrive() {
    let name = unique("queues");
    let mut host = Child::new();
    host.ask(&format!("join {name} limit={}", 8 << 20));
    assert_eq!(host.ask("bind kept"), "done");
    let mut receiver = Child::joined(&name);
    assert_eq!(receiver.ask("bind lost"), "done");
    let mut sender = Child::joined(&name);
    assert_eq!(sender.ask("connect lost"), "done");
    assert_eq!(sender.ask("send 2000000"), "done");
    assert_eq!(sender.ask("connect kept"), "done");
    assert_eq!(sender.ask("send 2000000"), "done");
    sender.kill();
    assert_eq!(
        host.ask("receive"),
        "2000000 bytes",
        "it was published before the death"
    );
    receiver.kill();
    until("all but the host's message is back", || {
        let mut probe = Child::joined(&name);
        let done = (0..3).all(|_| probe.ask("allocate 2097152") == "done");
        probe.ask("leave");
        done
    });
}

#[test]
fn a_waiting_receiver_hears_that_no_sender_is_left() {
    let name = unique("no-senders");
    let domain = Domain::builder(&name).size(64 << 20).join().unwrap();
    let mut port = domain.bind(PortOptions::named("inbox")).unwrap();
    let mut sender = Child::joined(&name);
    assert_eq!(sender.ask("connect inbox"), "done");
    assert_eq!(port.senders(), 1);
    port.request_no_more_senders();
    sender.kill();
    let told = port.receive(Access::Now, Deadline::after(PATIENCE));
    assert_eq!(told.unwrap().notice(), Some(Notice::NoMoreSenders));
}

#[test]
fn a_watcher_hears_of_a_killed_port() {
    let name = unique("watch");
    let domain = Domain::builder(&name).size(64 << 20).join().unwrap();
    let mut inbox = domain.bind(PortOptions::unnamed()).unwrap();
    let mut other = Child::joined(&name);
    assert_eq!(other.ask("bind theirs"), "done");
    let right = domain.connect("theirs", Deadline::after(PATIENCE)).unwrap();
    right.watch(&inbox, 42).unwrap();
    other.kill();
    let told = inbox.receive(Access::Now, Deadline::after(PATIENCE));
    assert_eq!(told.unwrap().notice(), Some(Notice::DeadName { token: 42 }));
    assert!(
        right
            .send(Message::new(b"x").unwrap(), Deadline::NOW)
            .is_err()
    );
}

#[test]
fn many_are_killed_at_once() {
    let name = unique("massacre");
    let mut host = Child::new();
    host.ask(&format!("join {name} limit={}", 16 << 20));
    for _ in 0..3 {
        let mut crowd: Vec<Child> = (0..6).map(|_| Child::joined(&name)).collect();
        for (i, child) in crowd.iter_mut().enumerate() {
            assert_eq!(child.ask(&format!("bind port{i}")), "done");
            assert_eq!(child.ask("allocate 2097152"), "done");
        }
        crowd.iter_mut().for_each(|child| child.kill_only());
        drop(crowd);
        until("all of it is back", || {
            let mut probe = Child::joined(&name);
            let done = (0..7).all(|_| probe.ask("allocate 2097152") == "done");
            let bound = (0..6).all(|i| probe.ask(&format!("bind port{i}")) == "done");
            probe.ask("leave");
            done && bound
        });
    }
    assert!(host.is_host());
}
