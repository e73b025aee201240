//! Receivers that are killed, and the senders that go on.

use crate::{Other, processor_time, soon};
use portolan::{
    Access, ConnectError, Deadline, Domain, Message, PortOptions, Refused, SendError, WaitSet,
    WhenFull,
};
use portolan_testkit::{PATIENCE, unique, until};
use std::time::{Duration, Instant};

/// Receives numbers, tells each, and takes its time.
pub(crate) fn receive(domain: &Domain) {
    let options = PortOptions::named("numbers").queue(15);
    let mut port = domain.bind_when_free(options, PATIENCE).unwrap();
    println!("told bound");
    loop {
        let message = port.receive(Access::Later, soon()).unwrap();
        println!("told {}", number_of(&message));
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn number_of(message: &Message) -> u64 {
    u64::from_le_bytes(message.header().try_into().unwrap())
}

fn numbered(number: u64) -> Message {
    Message::new(&number.to_le_bytes()).unwrap()
}

/// Sends numbers through the deaths of two receivers, the second of which has just told what it has.
fn goes_on(name: &str, domain: impl FnOnce(&mut Other) -> Domain) {
    let mut first = Other::start("receives", name);
    let domain = domain(&mut first);
    let mut sender = domain.reconnecting_sender("numbers");
    let mut next = 0;
    while next < 300 {
        let sent = sender.send(numbered(next), soon()).unwrap();
        assert_eq!((sent.receiver, sent.lost), (1, None));
        next += 1;
    }
    let received = first.kill();
    let mut second = Other::start("receives", name);
    let lost = loop {
        // Some may go to the dead one's queue, until its port is closed.
        let sent = sender.send(numbered(next), soon()).unwrap();
        next += 1;
        if let Some(lost) = sent.lost {
            assert_eq!(sent.receiver, 2);
            break lost;
        }
        assert_eq!(sent.receiver, 1);
    };
    assert_eq!((lost.receiver, lost.sent), (1, next - 1));
    // No more than its queue can hold, and no fewer than it has not received.
    assert!(lost.at_most <= 16, "{lost:?}");
    let told: Vec<u64> = received.iter().filter_map(|n| n.parse().ok()).collect();
    assert!(told.iter().copied().eq(0..told.len() as u64), "{told:?}");
    // It may have received one more that it had not told.
    assert!(
        lost.sent - lost.at_most <= told.len() as u64 + 1,
        "{lost:?}, but it told of {} only",
        told.len()
    );
    // The second has the rest, from the one on with which the loss was told.
    for _ in 0..10 {
        assert_eq!(sender.send(numbered(next), soon()).unwrap().lost, None);
        next += 1;
    }
    assert_eq!(second.told().as_deref(), Some("bound"));
    for number in lost.sent..next {
        assert_eq!(second.told(), Some(number.to_string()));
    }
    assert_eq!(sender.take_lost(), None);
    second.kill();
    until("the port of the second is closed", || {
        !sender.is_connected()
    });
    let lost = sender.take_lost().unwrap();
    assert_eq!((lost.receiver, lost.sent, lost.at_most), (2, 11, 11));
}

#[test]
fn a_sender_goes_on_when_its_receiver_is_killed() {
    let name = unique("reconnect");
    let domain = Domain::join(&name).unwrap();
    goes_on(&name, |_| domain);
}

#[test]
fn a_sender_goes_on_when_its_receiver_hosted_the_domain() {
    let name = unique("reconnect-host");
    goes_on(&name, |first| {
        assert_eq!(first.told().as_deref(), Some("bound"));
        let domain = Domain::join(&name).unwrap();
        assert!(!domain.is_host());
        domain
    });
}

#[test]
fn a_loss_is_kept_while_sends_fail() {
    let domain = Domain::private().unwrap();
    let mut sender = domain.reconnecting_sender("numbers");
    let first = domain.bind(PortOptions::named("numbers")).unwrap();
    let sent = sender.send(numbered(1), WhenFull::Fail).unwrap();
    assert_eq!((sent.receiver, sent.lost), (1, None));
    drop(first);
    for _ in 0..2 {
        let refused = sender.send(numbered(2), WhenFull::Fail).unwrap_err();
        assert!(matches!(refused.why, SendError::Connect(_)), "{refused:?}");
        assert_eq!(number_of(&refused.item), 2, "it comes back whole");
    }
    // This one receives nothing and goes: it is none to which anything was lost.
    let idle = domain.bind(PortOptions::named("numbers")).unwrap();
    sender.connect(Deadline::NOW).unwrap();
    drop(idle);
    let _third = domain.bind(PortOptions::named("numbers")).unwrap();
    let sent = sender.send(numbered(2), WhenFull::Fail).unwrap();
    let lost = sent.lost.unwrap();
    assert_eq!((sent.receiver, lost.receiver), (3, 1));
    assert_eq!((lost.sent, lost.at_most), (1, 1));
}

#[test]
fn without_a_receiver_it_waits_asleep_until_its_deadline() {
    let domain = Domain::private().unwrap();
    let mut sender = domain.reconnecting_sender("numbers");
    let (begun, used) = (Instant::now(), processor_time());
    let refused = sender.send(numbered(7), Deadline::after(Duration::from_millis(500)));
    let Err(Refused { why, item }) = refused else {
        panic!("there is no receiver")
    };
    assert!(matches!(
        why,
        SendError::Connect(ConnectError::NoSuchPort { ref name }) if name == "numbers"
    ));
    assert_eq!(number_of(&item), 7);
    assert!(begun.elapsed() >= Duration::from_millis(500));
    // Of half a second: a loop that looks again and again uses all of it.
    assert!(processor_time() - used < Duration::from_millis(100));
}

#[test]
fn a_wait_set_names_a_sender_when_it_may_send() {
    let name = unique("reconnect-set");
    let domain = Domain::join(&name).unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    let token = set.add(domain.reconnecting_sender("numbers")).unwrap();
    assert!(set.wait(Deadline::NOW).unwrap().is_empty());

    // It has come.
    let first = Other::start("sleeps", &name);
    assert_eq!(set.wait(soon()).unwrap().next(), Some(token.any()));
    let sender = set.get_mut(token).unwrap();
    let full = loop {
        match sender.send(numbered(1), WhenFull::Fail) {
            Ok(sent) => assert_eq!(sent.lost, None),
            Err(refused) => break refused.why,
        }
    };
    assert!(matches!(full, SendError::Full { .. }));
    assert!(set.wait(Deadline::NOW).unwrap().is_empty());

    // It is dead: a send says so, and then nothing is there until the next one comes.
    first.kill();
    assert_eq!(set.wait(soon()).unwrap().next(), Some(token.any()));
    let sender = set.get_mut(token).unwrap();
    let refused = sender.send(numbered(2), WhenFull::Fail).unwrap_err();
    assert!(matches!(refused.why, SendError::Connect(_)), "{refused:?}");
    let used = processor_time();
    assert!(set.wait(Duration::from_millis(300)).unwrap().is_empty());
    assert!(processor_time() - used < Duration::from_millis(100));

    let second = Other::start("sleeps", &name);
    assert_eq!(set.wait(soon()).unwrap().next(), Some(token.any()));
    let sender = set.get_mut(token).unwrap();
    let sent = sender.send(numbered(3), WhenFull::Fail).unwrap();
    let lost = sent.lost.unwrap();
    assert_eq!((sent.receiver, lost.receiver), (2, 1));
    assert_eq!(lost.sent, lost.at_most, "it received nothing");
    drop(second);
}

#[test]
fn a_name_is_bound_when_its_killed_owner_has_been_reclaimed() {
    let name = unique("reconnect-name");
    let domain = Domain::join(&name).unwrap();
    for _ in 0..5 {
        let mut first = Other::start("sleeps", &name);
        assert_eq!(first.told().as_deref(), Some("bound"));
        first.kill();
        // At once: mostly before its reclaim.
        let options = PortOptions::named("numbers");
        let port = domain.bind_when_free(options.clone(), soon()).unwrap();
        assert!(domain.bind_when_free(options, Deadline::NOW).is_err());
        drop(port);
    }
}
