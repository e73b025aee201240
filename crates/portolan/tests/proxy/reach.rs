//! Who watches a port's reach is told when its node is silent and when it is back; who flushes, when
//! what was sent is there.

use crate::Proxied;
use portolan::proxy::{ProxyPort, Taken};
use portolan::{
    Access, BindError, Deadline, Message, Notice, PortOptions, ReceiveError, ReceiveRight,
    RequestError, SendError, WaitSet, WhenFull,
};
use portolan_testkit::{PATIENCE, until};
use std::time::{Duration, Instant};

fn notice(port: &mut ReceiveRight) -> Option<Notice> {
    match port.receive(Access::Later, Deadline::NOW) {
        Ok(message) => Some(message.notice().expect("nothing else is sent")),
        Err(ReceiveError::TimedOut) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn each_change_is_told_once_and_of_many_the_last() {
    let mut f = Proxied::new(PortOptions::unnamed());
    let mut told = f.domain.bind(PortOptions::unnamed()).unwrap();
    f.right.watch_reach(&told, 1).unwrap();
    // Another one of the same right, and one that wants to hear of its death alone.
    f.right.watch_reach(&told, 2).unwrap();
    f.right.watch(&told, 3).unwrap();
    assert_eq!(notice(&mut told), None);
    f.proxy.set_unreachable(Instant::now());
    let mut both = [notice(&mut told).unwrap(), notice(&mut told).unwrap()];
    both.sort_by_key(|notice| format!("{notice:?}"));
    let wanted = [1, 2].map(|token| Notice::Unreachable { token });
    assert_eq!((both, notice(&mut told)), (wanted, None));
    // Said again, it is no change; and there and back is none.
    f.proxy.set_unreachable(Instant::now());
    assert_eq!(notice(&mut told), None);
    f.proxy.set_reachable();
    f.proxy.set_unreachable(Instant::now());
    assert_eq!(notice(&mut told), None);
    f.proxy.set_unreachable(Instant::now());
    f.proxy.set_reachable();
    assert!(matches!(notice(&mut told), Some(Notice::Reachable { .. })));
    assert!(matches!(notice(&mut told), Some(Notice::Reachable { .. })));
    assert_eq!(notice(&mut told), None);
    drop(f.proxy);
    let mut dead: Vec<_> = std::iter::from_fn(|| notice(&mut told)).collect();
    dead.sort_by_key(|notice| format!("{notice:?}"));
    assert_eq!(dead, [1, 2, 3].map(|token| Notice::DeadName { token }));
}

#[test]
fn who_comes_later_is_told_at_once_and_a_wait_ends() {
    let mut f = Proxied::new(PortOptions::unnamed());
    f.proxy.set_unreachable(Instant::now());
    let told = f.domain.bind(PortOptions::unnamed()).unwrap();
    f.right.watch_reach(&told, 1).unwrap();
    let mut set = WaitSet::new(&f.domain).unwrap();
    let token = set.add(told).unwrap();
    assert_eq!(set.wait(Deadline::NOW).unwrap().next(), Some(token.any()));
    let first = notice(set.get_mut(token).unwrap());
    assert_eq!(first, Some(Notice::Unreachable { token: 1 }));
    let mut told = set.remove(token).unwrap();
    let waits = std::thread::spawn(move || {
        let message = told.receive(Access::Later, PATIENCE).unwrap();
        message.notice()
    });
    std::thread::sleep(Duration::from_millis(20));
    // Its home is here again.
    let _port = f.proxy.into_receive_right();
    assert_eq!(waits.join().unwrap(), Some(Notice::Reachable { token: 1 }));
}

#[test]
fn watches_of_reach_end_with_the_port_that_is_told() {
    let mut f = Proxied::new(PortOptions::unnamed());
    let told = f.domain.bind(PortOptions::unnamed()).unwrap();
    let mut limit = 0;
    let full = loop {
        match f.right.watch_reach(&told, limit) {
            Ok(()) => limit += 1,
            Err(full) => break full,
        }
    };
    assert!(matches!(full, BindError::NoWatch { limit: most } if most as u64 == limit));
    f.proxy.set_unreachable(Instant::now());
    drop(told);
    let told = f.domain.bind(PortOptions::unnamed()).unwrap();
    for token in 0..limit {
        f.right.watch_reach(&told, token).unwrap();
    }
}

#[test]
fn a_flush_comes_behind_what_was_sent_and_is_answered_when_that_is_there() {
    let mut f = Proxied::new(PortOptions::unnamed());
    for header in [b"1", b"2"] {
        let message = Message::new(header).unwrap();
        f.right.send(message, WhenFull::Fail).unwrap();
    }
    let right = f.right.clone();
    let program = std::thread::spawn(move || right.flush(PATIENCE));
    until("the flush is there", || f.proxy.depth() == 3);
    f.right
        .send(Message::new(b"3").unwrap(), WhenFull::Fail)
        .unwrap();
    assert_eq!(f.message().header(), b"1");
    assert_eq!(f.message().header(), b"2");
    let Taken::Flush(answer) = f.proxy.take(Deadline::NOW).unwrap() else {
        panic!("a flush is next");
    };
    assert_eq!(f.message().header(), b"3");
    assert!(answer.is_wanted() && !program.is_finished());
    answer.reply(Message::default()).unwrap();
    program.join().unwrap().unwrap();
}

#[test]
fn a_flush_waits_for_a_silent_node_and_says_what_became_of_it() {
    let mut f = Proxied::new(PortOptions::unnamed());
    f.proxy.set_unreachable(Instant::now());
    let late = f.right.flush(Duration::from_millis(5));
    assert!(matches!(late, Err(RequestError::TimedOut)), "{late:?}");
    let flush = |f: &Proxied| {
        let right = f.right.clone();
        std::thread::spawn(move || right.flush(PATIENCE))
    };
    let taken = |f: &mut Proxied| match f.proxy.take(PATIENCE).unwrap() {
        Taken::Flush(answer) => answer,
        other => panic!("{other:?}"),
    };
    assert!(!taken(&mut f).is_wanted());
    let program = flush(&f);
    taken(&mut f).node_lost("hall");
    let lost = program.join().unwrap();
    assert!(matches!(&lost, Err(RequestError::NodeLost { node }) if node == "hall"));
    let program = flush(&f);
    taken(&mut f).dropped();
    let lost = program.join().unwrap();
    assert!(matches!(lost, Err(RequestError::Dropped)), "{lost:?}");
    // The port is closed with the flush in its queue; and dead.
    let program = flush(&f);
    until("the flush is there", || f.proxy.depth() == 1);
    let Proxied { proxy, right, .. } = f;
    drop(proxy);
    let lost = program.join().unwrap();
    assert!(matches!(lost, Err(RequestError::ServerDead)), "{lost:?}");
    let dead = right.flush(PATIENCE);
    let Err(RequestError::Unsent(dead)) = dead else {
        panic!("{dead:?}");
    };
    assert!(matches!(dead.why, SendError::DeadName));
}

#[test]
fn a_flush_of_a_full_queue_waits_for_room_and_one_of_this_machine_for_nothing() {
    let mut f = Proxied::new(PortOptions::unnamed().queue(1));
    while f.right.send(Message::default(), WhenFull::Fail).is_ok() {}
    let full = f.right.flush(Deadline::NOW);
    let Err(RequestError::Unsent(full)) = full else {
        panic!("{full:?}");
    };
    assert!(matches!(full.why, SendError::Full { .. }));
    let right = f.right.clone();
    let program = std::thread::spawn(move || right.flush(PATIENCE));
    loop {
        match f.proxy.take(PATIENCE).unwrap() {
            Taken::Message(_) => f.proxy.pause(),
            Taken::Flush(answer) => break answer.reply(Message::default()).unwrap(),
            other => panic!("{other:?}"),
        }
    }
    program.join().unwrap().unwrap();
    let mut port = f.proxy.into_receive_right();
    f.right.send(Message::default(), WhenFull::Fail).unwrap();
    f.right.flush(Deadline::NOW).unwrap();
    assert_eq!(port.depth(), 1);
    let _received = port.receive(Access::Later, Deadline::NOW).unwrap();
    // A port that takes requests has none.
    let asked = f.domain.bind(PortOptions::unnamed().synchronous()).unwrap();
    let right = asked.make_send();
    assert!(matches!(
        right.flush(Deadline::NOW),
        Err(RequestError::Unsent(refused)) if matches!(refused.why, SendError::WrongKind(..))
    ));
    let _elsewhere = ProxyPort::new(asked, "hall").unwrap();
    assert!(matches!(
        right.flush(Deadline::NOW),
        Err(RequestError::Unsent(refused)) if matches!(refused.why, SendError::WrongKind(..))
    ));
}
