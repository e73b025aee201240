//! Room in full ports, waited for in one set.

use crate::{readable, soon};
use portolan::{
    Access, Deadline, Domain, Message, PortOptions, ReceiveRight, Room, SendError, SendRight,
    Token, WaitSet, WhenFull,
};
use portolan_testkit::{Answer, Child, PATIENCE, obey, unique};
use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::time::Duration;

fn fill(right: &SendRight) {
    while right.send(Message::default(), WhenFull::Fail).is_ok() {}
}

fn empty(port: &mut ReceiveRight) {
    while port.receive(Access::Later, Deadline::NOW).is_ok() {}
}

fn now(set: &mut WaitSet) -> Vec<Token> {
    set.wait(Deadline::NOW).unwrap().collect()
}

/// Full ports, and a set that waits for room in each.
struct Full {
    domain: Domain,
    set: WaitSet,
    ports: Vec<ReceiveRight>,
    rights: Vec<SendRight>,
    rooms: Vec<Token<Room>>,
}

impl Full {
    fn new(ports: usize) -> Self {
        let domain = Domain::private().unwrap();
        let mut set = WaitSet::new(&domain).unwrap();
        let ports: Vec<_> = (0..ports)
            .map(|_| domain.bind(PortOptions::unnamed().queue(3)).unwrap())
            .collect();
        let rights: Vec<_> = ports.iter().map(ReceiveRight::make_send).collect();
        rights.iter().for_each(fill);
        let rooms = rights.iter().map(|right| set.add(right.room()).unwrap());
        let rooms = rooms.collect();
        Self {
            domain,
            set,
            ports,
            rights,
            rooms,
        }
    }
}

#[test]
fn of_a_thousand_full_ports_those_with_room_are_named() {
    let mut f = Full::new(1000);
    assert!(now(&mut f.set).is_empty());
    assert!(f.set.wait(Duration::from_millis(5)).unwrap().is_empty());
    for at in [0, 1, 499, 127, 999] {
        empty(&mut f.ports[at]);
        assert_eq!(
            f.set.wait(soon()).unwrap().collect::<Vec<_>>(),
            [f.rooms[at]]
        );
        // For as long as there is room.
        assert_eq!(now(&mut f.set), [f.rooms[at]]);
        fill(&f.rights[at]);
        assert!(now(&mut f.set).is_empty());
    }
    f.ports.iter_mut().for_each(empty);
    let mut named = BTreeSet::new();
    while named.len() < 1000 {
        named.extend(f.set.wait(soon()).unwrap());
    }
    assert_eq!(named, f.rooms.iter().map(|room| room.any()).collect());
    // All once more, from where they are now.
    f.rights.iter().for_each(fill);
    assert!(now(&mut f.set).is_empty());
    f.ports.iter_mut().for_each(empty);
    assert_eq!(now(&mut f.set).len(), 1000);
}

/// Receivers in other threads, one at a time and together; a thread that sleeps in the set.
#[test]
fn a_thread_that_sleeps_is_woken_by_room_and_by_messages() {
    let mut f = Full::new(200);
    let inbox = f.domain.bind(PortOptions::unnamed()).unwrap();
    let tell = inbox.make_send();
    let inbox = f.set.add(inbox).unwrap();
    let ports = std::mem::take(&mut f.ports);
    std::thread::scope(|scope| {
        let receivers: Vec<_> = ports
            .into_iter()
            .enumerate()
            .fold(
                vec![Vec::new(), Vec::new(), Vec::new(), Vec::new()],
                |mut by, (at, port)| {
                    by[at % 4].push(port);
                    by
                },
            )
            .into_iter()
            .map(|mut ports| {
                let tell = tell.clone();
                scope.spawn(move || {
                    for _ in 0..20 {
                        for port in &mut ports {
                            // At least one message each round: the sender fills it again.
                            drop(port.receive(Access::Later, PATIENCE).unwrap());
                            empty(port);
                        }
                        tell.send(
                            Message::new(b"round").unwrap(),
                            WhenFull::Wait(PATIENCE.into()),
                        )
                        .unwrap();
                    }
                    ports
                })
            })
            .collect();
        let mut rounds = 0;
        while rounds < 4 * 20 {
            for token in f.set.wait(soon()).unwrap() {
                if token == inbox {
                    let port = f.set.get_mut(inbox).unwrap();
                    while port.receive(Access::Later, Deadline::NOW).is_ok() {
                        rounds += 1;
                    }
                } else {
                    let at = f.rooms.iter().position(|room| *room == token).unwrap();
                    fill(&f.rights[at]);
                }
            }
        }
        for receiver in receivers {
            receiver.join().unwrap();
        }
    });
}

/// Room is made at each instant of a wait in turn, so at one between two looks as well.
fn room_is_found(mut wait: impl FnMut(&mut WaitSet) -> usize) {
    let mut f = Full::new(1);
    let mut port = f.ports.pop().unwrap();
    let (go, goes) = channel::<u64>();
    let (done, is_done) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for spins in goes {
                (0..spins).for_each(|_| std::hint::spin_loop());
                empty(&mut port);
                done.send(()).unwrap();
            }
        });
        for round in 0..5_000 {
            go.send(round * 7 % 500).unwrap();
            while wait(&mut f.set) == 0 {}
            is_done.recv().unwrap();
            fill(&f.rights[0]);
        }
        drop(go);
    });
}

#[test]
fn no_room_is_missed() {
    room_is_found(|set| set.wait(soon()).unwrap().len());
}

#[test]
fn no_room_is_missed_with_a_descriptor() {
    room_is_found(|set| {
        assert!(readable(set, soon()));
        now(set).len()
    });
}

#[cfg(feature = "tokio")]
#[test]
fn no_room_is_missed_by_a_task() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    room_is_found(|set| runtime.block_on(set.wait_async()).unwrap().len());
}

#[test]
fn room_that_is_made_a_little_is_told_when_it_is_worth_a_wake() {
    let domain = Domain::private().unwrap();
    let mut port = domain.bind(PortOptions::unnamed().queue(15)).unwrap();
    let right = port.make_send();
    fill(&right);
    let mut set = WaitSet::new(&domain).unwrap();
    let room = set.add(right.room()).unwrap();
    assert!(now(&mut set).is_empty());
    // At the latest when half of it is free.
    for _ in 0..9 {
        drop(port.receive(Access::Later, Deadline::NOW).unwrap());
    }
    assert_eq!(set.wait(soon()).unwrap().collect::<Vec<_>>(), [room]);
    let it = set.remove(room).unwrap();
    assert!(it.is_there());
    fill(&right);
    assert!(!it.is_there());
}

#[test]
fn a_port_that_is_closed_is_named_and_a_send_says_why() {
    let mut f = Full::new(3);
    assert!(now(&mut f.set).is_empty());
    drop(f.ports.remove(1));
    assert_eq!(
        f.set.wait(soon()).unwrap().collect::<Vec<_>>(),
        [f.rooms[1]]
    );
    let error = f.rights[1]
        .send(Message::default(), WhenFull::Fail)
        .unwrap_err();
    assert!(matches!(error.why, SendError::DeadName));
    // And it keeps being named until it is taken out; another port in its entry is another one.
    let again: Vec<_> = (0..1100)
        .map(|_| f.domain.bind(PortOptions::unnamed().queue(1)).unwrap())
        .collect();
    assert_eq!(now(&mut f.set), [f.rooms[1]]);
    drop(again);
    f.set.remove(f.rooms[1]).unwrap();
    assert!(now(&mut f.set).is_empty());
}

#[test]
fn the_descriptor_is_readable_whenever_a_wait_may_find_room() {
    let mut f = Full::new(40);
    // Asked for only after waits that armed it, found something, and found nothing.
    assert!(now(&mut f.set).is_empty());
    empty(&mut f.ports[3]);
    assert_eq!(
        f.set.wait(soon()).unwrap().collect::<Vec<_>>(),
        [f.rooms[3]]
    );
    assert!(readable(&f.set, Deadline::NOW), "it found something");
    fill(&f.rights[3]);
    while !now(&mut f.set).is_empty() {}
    assert!(!readable(
        &f.set,
        Deadline::after(Duration::from_millis(20))
    ));
    for at in 0..40 {
        empty(&mut f.ports[at]);
        assert!(readable(&f.set, soon()));
        assert_eq!(now(&mut f.set), [f.rooms[at]]);
        assert!(readable(&f.set, Deadline::NOW), "it found something");
        // Taking it out, or adding it, says that something may be there.
        let room = f.set.remove(f.rooms[at]).unwrap();
        fill(&f.rights[at]);
        f.rooms[at] = f.set.add(room).unwrap();
        assert!(readable(&f.set, Deadline::NOW));
        assert!(now(&mut f.set).is_empty());
        assert!(!readable(&f.set, Deadline::NOW), "it found nothing");
    }
    // Without any room to wait for it is a set like others.
    for room in std::mem::take(&mut f.rooms) {
        f.set.remove(room).unwrap();
    }
    assert!(now(&mut f.set).is_empty());
    let port = f.domain.bind(PortOptions::unnamed()).unwrap();
    let right = port.make_send();
    let token = f.set.add(port).unwrap();
    assert!(now(&mut f.set).is_empty());
    assert!(!readable(&f.set, Deadline::NOW));
    right.send(Message::default(), WhenFull::Fail).unwrap();
    assert!(readable(&f.set, soon()));
    assert_eq!(now(&mut f.set), [token]);
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_task_awaits_room() {
    let mut f = Full::new(20);
    for _ in 0..3 {
        let mut port = f.ports.swap_remove(0);
        let emptied = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            empty(&mut port);
            port
        });
        let ready: Vec<_> = f.set.wait_async().await.unwrap().collect();
        assert_eq!(ready.len(), 1);
        let at = f.rooms.iter().position(|room| *room == ready[0]).unwrap();
        // It may take messages still.
        f.ports.push(emptied.join().unwrap());
        fill(&f.rights[at]);
        // One that is given up loses nothing.
        let nothing = tokio::time::timeout(Duration::from_millis(5), f.set.wait_async()).await;
        assert!(nothing.is_err());
    }
}

/// A process that receives when it is told to.
#[test]
fn takes_orders() {
    let mut ports = Vec::new();
    // Kept as long as its ports.
    let mut _joined = None;
    obey(|order| -> Answer {
        let (order, word) = order.split_once(' ').unwrap_or((order, ""));
        match order {
            "join" => {
                let domain = Domain::join(word)?;
                for number in 0..8 {
                    let options = PortOptions::named(&format!("full-{number}")).queue(3);
                    ports.push(domain.bind(options)?);
                }
                _joined = Some(domain);
            }
            "empty" => ports.iter_mut().for_each(empty),
            _ => return Err(format!("no such order: {order}").into()),
        }
        Ok("done".to_owned())
    });
}

fn receiver(name: &str) -> (Domain, Child, Vec<SendRight>) {
    let domain = Domain::join(name).unwrap();
    let mut child = Child::running("room::takes_orders", |_| {});
    assert_eq!(child.ask(&format!("join {name}")), "done");
    let rights: Vec<_> = (0..8)
        .map(|number| domain.connect(&format!("full-{number}"), PATIENCE).unwrap())
        .collect();
    rights.iter().for_each(fill);
    (domain, child, rights)
}

#[test]
fn room_is_made_by_another_process_also_after_a_stop() {
    let (domain, mut child, rights) = receiver(&unique("room-stopped"));
    let mut set = WaitSet::new(&domain).unwrap();
    let rooms: BTreeSet<Token> = rights
        .iter()
        .map(|right| set.add(right.room()).unwrap().any())
        .collect();
    child.stop();
    assert!(set.wait(Duration::from_millis(20)).unwrap().is_empty());
    child.tell("empty");
    child.resume();
    let mut named = BTreeSet::new();
    while named.len() < rooms.len() {
        named.extend(set.wait(soon()).unwrap());
    }
    assert_eq!(named, rooms);
    assert_eq!(child.answer(), "done");
}

#[test]
fn ports_of_a_killed_receiver_are_named() {
    let (domain, mut child, rights) = receiver(&unique("room-killed"));
    let mut set = WaitSet::new(&domain).unwrap();
    let mut rooms: BTreeSet<Token> = rights
        .iter()
        .map(|right| set.add(right.room()).unwrap().any())
        .collect();
    assert!(now(&mut set).is_empty());
    child.kill();
    while !rooms.is_empty() {
        for token in set.wait(soon()).unwrap() {
            assert!(rooms.remove(&token));
            set.remove(token.of::<Room>()).unwrap();
        }
    }
    assert!(rights.iter().all(|right| !right.is_live()));
}

/// A node promises slots, and leaves some of them to senders of its own machine.
#[test]
fn room_for_several_messages_is_named_when_so_many_slots_are_free() {
    let domain = Domain::private().unwrap();
    let mut port = domain.bind(PortOptions::unnamed().queue(16)).unwrap();
    let right = port.make_send();
    fill(&right);
    assert_eq!(right.room().free(), 0);
    let mut set = WaitSet::new(&domain).unwrap();
    let token = set.add(right.room().for_messages(3)).unwrap();
    for _ in 0..2 {
        drop(port.receive(Access::Later, Deadline::NOW).unwrap());
    }
    assert!(set.wait(Deadline::NOW).unwrap().is_empty());
    drop(port.receive(Access::Later, Deadline::NOW).unwrap());
    // It is told of at the latest when the receiver looks in vain.
    empty(&mut port);
    assert_eq!(set.wait(Deadline::NOW).unwrap().next(), Some(token.any()));
    let slots = right.room().free();
    assert!(slots >= 16, "{slots}");
    // More than half of the queue is never waited for.
    assert!(set.remove(token).is_some());
    for _ in 0..slots / 2 {
        right.send(Message::default(), WhenFull::Fail).unwrap();
    }
    let token = set.add(right.room().for_messages(slots)).unwrap();
    assert_eq!(set.wait(Deadline::NOW).unwrap().next(), Some(token.any()));
}

/// What was taken has its slot until the receiver has given that back: then nobody can send into it.
#[test]
fn as_much_room_is_counted_as_there_is() {
    let domain = Domain::private().unwrap();
    for queue in [1, 2, 7, 30] {
        for taken in 0..=queue {
            let mut port = domain.bind(PortOptions::unnamed().queue(queue)).unwrap();
            let right = port.make_send();
            fill(&right);
            assert_eq!(right.room().free(), 0);
            for _ in 0..taken {
                drop(port.receive(Access::Later, Deadline::NOW).unwrap());
            }
            let free = right.room().free();
            let sent = (0..).take_while(|_| right.send(Message::default(), WhenFull::Fail).is_ok());
            assert_eq!(sent.count(), free, "{taken} of {queue}");
        }
    }
}
