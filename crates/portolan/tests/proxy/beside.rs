//! A port becomes a proxy, and stops being one, while its senders send.

use crate::{Proxied, with_segment};
use portolan::proxy::{ProxyPort, Taken};
use portolan::{Access, Deadline, Domain, Message, PortOptions, SendError, WhenFull};
use portolan_testkit::{SetOnDrop, until};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const EACH: u64 = 3000;

/// Each message comes once, and each sender's in order, whatever the port was when it was sent.
#[test]
fn nothing_is_lost_doubled_or_out_of_order_while_the_port_changes() {
    let domain = Domain::private().unwrap();
    let mut port = domain.bind(PortOptions::unnamed().queue(16)).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = SetOnDrop(&over);
        let senders: Vec<_> = (0..3_u64)
            .map(|sender| {
                let (right, domain) = (port.make_send(), &domain);
                scope.spawn(move || {
                    for number in 0..EACH {
                        let header = [sender.to_le_bytes(), number.to_le_bytes()].concat();
                        let mut message = Message::new(&header).unwrap();
                        if number % 3 == 1 {
                            message.push(domain.allocate(64).unwrap()).unwrap();
                        }
                        if number % 3 == 2 {
                            message.attach(right.clone()).unwrap();
                        }
                        right.send(message, Deadline::NEVER).unwrap();
                    }
                })
            })
            .collect();
        let mut next = [0; 3];
        let mut took = |message: Message| {
            let words = message.header().as_chunks::<8>().0;
            let [sender, number] = [0, 1].map(|at| u64::from_le_bytes(words[at]));
            let next = &mut next[usize::try_from(sender).unwrap()];
            assert_eq!(number, *next, "sender {sender}");
            *next += 1;
        };
        let mut changes = 0_u64;
        let wait = Duration::from_secs(20);
        while changes * 3 < 3 * EACH {
            took(port.receive(Access::Later, wait).unwrap());
            let mut proxy = ProxyPort::new(port, "hall").unwrap();
            for _ in 0..2 {
                let Taken::Message(message) = proxy.take(wait).unwrap() else {
                    panic!("messages are sent");
                };
                took(message);
            }
            assert_eq!(proxy.left_behind(), 0);
            port = proxy.into_receive_right();
            changes += 1;
        }
        senders.into_iter().for_each(|s| s.join().unwrap());
        drop(ends);
        assert_eq!(next, [EACH; 3]);
    });
}

/// A sender that waits for room is told of what the port has become when it can go on.
#[test]
fn a_sender_that_waits_for_room_gets_back_what_cannot_travel() {
    let domain = Domain::private().unwrap();
    let port = domain.bind(PortOptions::unnamed().queue(1)).unwrap();
    let right = port.make_send();
    let fill = || right.send(Message::new(b"fills").unwrap(), WhenFull::Fail);
    while fill().is_ok() {}
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| right.send(with_segment(&domain), Deadline::NEVER));
        until("it waits", || {
            let survey = domain.survey().unwrap();
            survey.ports.iter().any(|p| p.awaiting_room > 0)
        });
        let mut proxy = ProxyPort::new(port, "hall").unwrap();
        while proxy.depth() > 0 {
            drop(proxy.take(Deadline::NOW).unwrap());
        }
        let nothing = proxy.take(Deadline::NOW);
        assert!(nothing.is_err(), "{nothing:?}");
        let mut refused = waiting.join().unwrap().unwrap_err();
        assert!(matches!(refused.why, SendError::StaysHere { .. }));
        assert_eq!(refused.item.take_rights().len(), 1);
    });
}

/// The same for a sender whose right was made while the port was a proxy.
#[test]
fn a_sender_that_waits_at_a_proxy_goes_on_when_its_home_is_here() {
    let f = Proxied::new(PortOptions::unnamed().queue(1));
    let right = f.proxy.make_send();
    while right
        .send(Message::new(b"fills").unwrap(), WhenFull::Fail)
        .is_ok()
    {}
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| right.send(Message::new(b"it").unwrap(), Deadline::NEVER));
        until("it waits", || {
            let survey = f.domain.survey().unwrap();
            survey.ports.iter().any(|p| p.awaiting_room > 0)
        });
        let mut port = f.proxy.into_receive_right();
        while port
            .receive(Access::Later, Duration::from_secs(20))
            .unwrap()
            .header()
            != b"it"
        {}
        waiting.join().unwrap().unwrap();
    });
}
