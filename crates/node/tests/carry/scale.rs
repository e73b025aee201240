//! Thousands of rights between two machines: more than a domain has watches, and as many proxies as
//! half of its ports.

use std::collections::BTreeSet;
use std::time::Instant;

use portolan::{
    Access, Deadline, Message, Notice, PortOptions, ReceiveRight, Right, RightState, SendRight,
    WhenFull,
};
use portolan_testkit::{PATIENCE, until};

use portolan_abi::limits::MAX_PORTS;

use crate::machine::{Machine, Network, Patience, Plan};
use crate::messages::{bind, send};

/// Rights of one message.
const BATCH: usize = 64;

/// A port of the giver, and the right on it that the taker has.
struct Given {
    port: ReceiveRight,
    right: SendRight,
}

/// Two machines, with a port at the one that takes rights.
struct Two {
    hall: Machine,
    roof: Machine,
    upper: ReceiveRight,
    to_upper: SendRight,
}

impl Two {
    fn new() -> Self {
        let network = Network::tls();
        let patience = Patience {
            silent: PATIENCE,
            dead: 2 * PATIENCE,
        };
        let [hall, roof] = ["hall", "roof"].map(|name| {
            let plan = Plan {
                name,
                patience,
                ..Plan::default()
            };
            Machine::planned(&network, &plan)
        });
        roof.linked(&hall);
        let upper = bind(&roof, "upper");
        let to_upper = hall.domain.connect("upper", PATIENCE).unwrap();
        Self {
            hall,
            roof,
            upper,
            to_upper,
        }
    }

    /// Ports of the hall, with rights on them at the roof.
    fn give(&mut self, count: usize) -> Vec<Given> {
        let began = Instant::now();
        let mut given = Vec::new();
        while given.len() < count {
            let ports: Vec<ReceiveRight> = (given.len()..count)
                .take(BATCH)
                .map(|_| self.hall.domain.bind(PortOptions::unnamed().queue(1)))
                .map(Result::unwrap)
                .collect();
            let mut message = Message::default();
            for port in &ports {
                message.attach(port.make_send()).unwrap();
            }
            send(&self.to_upper, message);
            let mut came = self.upper.receive(Access::Later, PATIENCE).unwrap();
            let rights = came.take_rights().into_iter().map(|right| match right {
                Right::Send(right) => right,
                other => panic!("{other:?}"),
            });
            let both = ports.into_iter().zip(rights);
            given.extend(both.map(|(port, right)| Given { port, right }));
            // Of one giver no more than some thousand may be without a loan.
            if given.len() % (16 * BATCH) == 0 || given.len() == count {
                until("there is a loan of each", || {
                    self.roof.report().rights.borrowing == 0
                });
            }
        }
        println!("{count} rights: {:.1?}", began.elapsed());
        given
    }
}

/// Each leads to its own port.
fn all_work(given: &mut [Given]) {
    let began = Instant::now();
    for (number, it) in given.iter().enumerate() {
        let message = Message::new(&number.to_le_bytes()).unwrap();
        it.right.send(message, WhenFull::Fail).unwrap();
    }
    for (number, it) in given.iter_mut().enumerate() {
        let came = it.port.receive(Access::Later, PATIENCE).unwrap();
        assert_eq!(came.header(), number.to_le_bytes());
    }
    println!("{} messages: {:.1?}", given.len(), began.elapsed());
}

/// The entry and which port of it.
fn number_of(right: &SendRight) -> u64 {
    portolan::proxy::KnownPort::of(right).number()
}

fn entry_of(right: &SendRight) -> u64 {
    number_of(right) & 0xffff
}

/// Made, used, closed, counted: of each what is said of it, although other ports have the entries of
/// those that are gone.
fn many(count: usize) {
    let mut two = Two::new();
    let mut given = two.give(count);
    all_work(&mut given);
    let proxies = two.roof.report().spans[0].proxies.len();
    let lent = two.hall.report().spans[0].lent.len();
    assert_eq!((proxies, lent), (count, count));

    // A third of the ports close. Other ports take some of their entries, and are lent too.
    let (closed, rest): (Vec<_>, Vec<_>) = given
        .into_iter()
        .enumerate()
        .partition(|(at, _)| at % 3 == 0);
    let entries: BTreeSet<u64> = closed
        .iter()
        .map(|(_, it)| entry_of(&it.port.make_send()))
        .collect();
    let began = Instant::now();
    let closed: Vec<SendRight> = closed.into_iter().map(|(_, it)| it.right).collect();
    until("their rights are dead", || {
        let state = |right: &SendRight| right.state() == RightState::Dead;
        closed.iter().all(state)
    });
    println!("{} dead names: {:.1?}", closed.len(), began.elapsed());
    drop(closed);
    let mut rest: Vec<Given> = rest.into_iter().map(|(_, it)| it).collect();
    // Entries are used in turn.
    for _ in entries.len()..MAX_PORTS {
        drop(two.hall.domain.bind(PortOptions::unnamed().queue(1)));
    }
    let mut new = two.give(count / 2);
    let taken = new.iter().map(|it| entry_of(&it.port.make_send()));
    let taken = taken.filter(|entry| entries.contains(entry)).count();
    assert!(taken > 0, "no entry was taken by another port");
    all_work(&mut rest);
    all_work(&mut new);

    // Half of the others want to know when no sender is left, and the roof drops three quarters.
    let began = Instant::now();
    let ask = |at: usize| at.is_multiple_of(2);
    let keep = |at: usize| at.is_multiple_of(4);
    for (at, it) in rest.iter_mut().enumerate().filter(|(at, _)| ask(*at)) {
        assert!(it.right.state() == RightState::Live, "{at}");
        it.port.request_no_more_senders();
    }
    let mut ports = Vec::new();
    let mut kept = Vec::new();
    for (at, it) in rest.into_iter().enumerate() {
        ports.push(it.port);
        kept.extend(keep(at).then_some(it.right));
    }
    for (at, port) in ports.iter_mut().enumerate() {
        if ask(at) && !keep(at) {
            let notice = port.receive(Access::Later, PATIENCE).unwrap().notice();
            assert_eq!(notice, Some(Notice::NoMoreSenders), "{at}");
        } else {
            assert!(port.receive(Access::Later, Deadline::NOW).is_err(), "{at}");
        }
    }
    println!("{} counted: {:.1?}", ports.len() / 4, began.elapsed());
    assert!(kept.iter().all(|right| right.state() == RightState::Live));
    all_work(&mut new);

    drop((kept, ports, new));
    let began = Instant::now();
    until("no proxy is left", || {
        let spans = two.roof.report().spans;
        spans[0].proxies.is_empty()
    });
    let own = two.to_upper.state();
    assert_eq!(own, RightState::Live);
    until("nothing is lent", || {
        two.hall.report().spans[0].lent.is_empty()
    });
    println!("all over: {:.1?}", began.elapsed());
}

#[test]
fn twenty_thousand_rights_are_lent_and_used_and_end_as_they_should() {
    many(20_000);
}

/// The borrower's node ends when it has thousands of proxies, with rights on its way; the next one of
/// it begins with none.
#[test]
fn a_node_that_ends_with_thousands_of_proxies_returns_all_of_them() {
    let mut two = Two::new();
    let given = two.give(6000);
    two.roof.end();
    until("their rights are dead", || {
        given.iter().all(|it| it.right.state() == RightState::Dead)
    });
    two.roof.start();
    two.roof.link(&two.hall);
    until("the loans are over", || {
        two.hall.report().spans[0].lent.is_empty()
    });
    two.roof.is_linked(&two.hall);
    until("no right is left", || {
        given.iter().all(|it| it.port.senders() == 0)
    });
    two.to_upper = two.hall.domain.connect("upper", PATIENCE).unwrap();
    let mut again = two.give(100);
    all_work(&mut again);
}
