//! Receive rights that move between machines, and what becomes of the messages that are sent meanwhile:
//! over TLS, because secrets go with them.

use std::time::Duration;

use portolan::{
    Access, Deadline, Domain, Message, Notice, PortOptions, ReceiveRight, RequestError, Right,
    RightState, SendError, SendRight, WhenFull,
};
use portolan_testkit::{PATIENCE, SetOnDrop, until};

use crate::machine::{Machine, Network, Patience};
use crate::messages::{ask, bind, is_empty, is_numbered, numbered, send, serve, two};
use crate::rights::{SHORT, is_settled, notice, receive, right_in, rights, three, with};

/// Numbers of one sender's messages begin here times its own.
pub(crate) const SENDER: u32 = 100_000;

/// The receive right in a message.
fn port_in(mut message: Message) -> ReceiveRight {
    match message.take_rights().pop() {
        Some(Right::Receive(port)) => port,
        other => panic!("{other:?}"),
    }
}

/// A port moves: its receive right goes by this right to this inbox.
fn moved(way: &SendRight, port: ReceiveRight, inbox: &mut ReceiveRight) -> ReceiveRight {
    send(way, with(b"port", port));
    port_in(receive(inbox))
}

/// The extents of a message of this number.
fn lengths(number: u32) -> &'static [usize] {
    match number % 11 {
        0 => &[20_000],
        1 => &[100, 5],
        2 => &[300_000],
        _ => &[],
    }
}

/// Sends some of one sender's messages.
pub(crate) fn send_some(
    domain: &Domain,
    right: &SendRight,
    sender: u32,
    some: std::ops::Range<u32>,
) {
    for number in some {
        let number = sender * SENDER + number;
        send(right, numbered(domain, number, lengths(number)));
    }
}

/// What was received: of each sender the number that comes next.
#[derive(Default)]
pub(crate) struct Audit(pub(crate) [u32; 6]);

impl Audit {
    #[track_caller]
    pub(crate) fn takes(&mut self, message: &Message) {
        let number = u32::from_le_bytes(message.header().try_into().unwrap());
        let (sender, number_of) = (number / SENDER, number % SENDER);
        let next = &mut self.0[sender as usize];
        assert_eq!(number_of, *next, "of sender {sender}");
        *next += 1;
        is_numbered(message, number, lengths(number));
    }

    fn taken(&self) -> u32 {
        self.0.iter().sum()
    }
}

/// A port at each machine by which receive rights come, and for each of the others a right on it.
pub(crate) struct Ways {
    inboxes: Vec<ReceiveRight>,
    ways: Vec<Vec<Option<SendRight>>>,
}

impl Ways {
    pub(crate) fn new(machines: &[&Machine]) -> Self {
        let inbox = |machine: &Machine| bind(machine, &format!("inbox of {}", machine.name));
        let inboxes: Vec<_> = machines.iter().map(|it| inbox(it)).collect();
        let way = |from: &Machine, to: &Machine| {
            let name = format!("inbox of {}", to.name);
            let is_other = from.name != to.name;
            is_other.then(|| from.domain.connect(&name, PATIENCE).unwrap())
        };
        let ways = machines
            .iter()
            .map(|from| machines.iter().map(|to| way(from, to)).collect());
        Self {
            inboxes,
            ways: ways.collect(),
        }
    }

    pub(crate) fn moves(&mut self, port: ReceiveRight, from: usize, to: usize) -> ReceiveRight {
        let way = self.ways[from][to].as_ref().unwrap();
        moved(way, port, &mut self.inboxes[to])
    }
}

#[test]
fn a_quiet_port_moves_and_all_who_have_rights_on_it_reach_it() {
    let (hall, roof) = two(&Network::tls());
    let port = bind(&hall, "upper");
    let here = port.make_send();
    let there = roof.domain.connect("upper", PATIENCE).unwrap();
    let mut inbox = bind(&roof, "inbox");
    let way = hall.domain.connect("inbox", PATIENCE).unwrap();
    let mut port = moved(&way, port, &mut inbox);
    for (number, (machine, right)) in (0..).zip([(&hall, &here), (&roof, &there)]) {
        send_some(&machine.domain, right, number, 0..50);
        let mut audit = Audit::default();
        (0..50).for_each(|_| audit.takes(&receive(&mut port)));
    }
    // Its name stays where it was bound, and is found from both.
    for machine in [&hall, &roof] {
        let found = machine.domain.connect("upper", PATIENCE).unwrap();
        send(&found, Message::new(b"by name").unwrap());
        assert_eq!(receive(&mut port).header(), b"by name");
    }
    // Rights that are made at the new home travel as any others.
    let mut back = hall.domain.bind(PortOptions::unnamed()).unwrap();
    send(&here, with(b"answer here", back.make_send()));
    let answer = right_in(receive(&mut port));
    send(&answer, with(b"a right", port.make_send()));
    let again = right_in(receive(&mut back));
    send(&again, Message::new(b"again").unwrap());
    assert_eq!(receive(&mut port).header(), b"again");
    until("it is known to have moved", || {
        (rights(&hall).ports_left, rights(&roof).ports_arrived) == (1, 1)
    });
    assert_eq!(
        (hall.report().left_behind, roof.report().left_behind),
        (0, 0)
    );
    // Its end is told to all.
    drop(port);
    for right in [&here, &there, &again] {
        until("it is dead", || right.state() == RightState::Dead);
    }
    drop((here, there, again, answer, back, way, inbox));
    is_settled(&[&hall, &roof]);
    is_empty(&hall);
    is_empty(&roof);
}

#[test]
fn what_was_queued_comes_first_and_in_each_senders_order() {
    let [attic, roof, hall] = three(Patience::default());
    let options = PortOptions::named("upper").spanned().queue(500);
    let port = hall.domain.bind(options).unwrap();
    let local = port.make_send();
    let of_roof = roof.domain.connect("upper", PATIENCE).unwrap();
    let of_attic = attic.domain.connect("upper", PATIENCE).unwrap();
    let senders = [(&hall, &local), (&roof, &of_roof), (&attic, &of_attic)];
    for (sender, (machine, right)) in (0..).zip(senders) {
        send_some(&machine.domain, right, sender, 0..50);
        right.flush(PATIENCE).unwrap();
    }
    assert_eq!(port.depth(), 150);
    let mut ways = Ways::new(&[&hall, &roof, &attic]);
    let mut port = ways.moves(port, 0, 1);
    let mut audit = Audit::default();
    std::thread::scope(|scope| {
        for (sender, (machine, right)) in (0..).zip(senders) {
            let domain = &machine.domain;
            scope.spawn(move || {
                send_some(domain, right, sender, 50..400);
                right.flush(PATIENCE).unwrap();
            });
        }
        (0..1200).for_each(|_| audit.takes(&receive(&mut port)));
    });
    assert_eq!(audit.0[..3], [400; 3]);
    let nothing = port.receive(Access::Later, Deadline::after(Duration::from_millis(50)));
    assert!(nothing.is_err(), "{nothing:?}");
    drop((port, local, of_roof, of_attic, ways));
    is_settled(&[&hall, &roof, &attic]);
    [&hall, &roof, &attic].into_iter().for_each(is_empty);
}

/// Programs on all machines send to a port that goes among them; nothing is lost, doubled or out of order.
fn goes_round<const N: usize>(machines: [&Machine; N], each: u32, moves: usize) {
    let options = PortOptions::named("upper").spanned();
    let mut port = machines[0].domain.bind(options).unwrap();
    let found = |machine: &Machine| machine.domain.connect("upper", PATIENCE).unwrap();
    let senders = machines.map(found);
    let mut ways = Ways::new(&machines);
    let (mut audit, mut at) = (Audit::default(), 0);
    let all = u32::try_from(N).unwrap() * each;
    let mut port = std::thread::scope(|scope| {
        for (sender, (machine, right)) in (0..).zip(machines.into_iter().zip(&senders)) {
            let domain = &machine.domain;
            scope.spawn(move || {
                send_some(domain, right, sender, 0..each);
                right.flush(PATIENCE).unwrap();
            });
        }
        let domain = &machines[2].domain;
        scope.spawn(move || {
            for _ in 0..10 {
                let found = domain.connect("upper", PATIENCE).unwrap();
                assert!(found.is_live());
            }
        });
        for hop in 0..moves {
            // To and fro, and round.
            let to = match hop % 5 {
                3 => (at + N - 1) % N,
                _ => (at + 1) % N,
            };
            let until = all * u32::try_from(hop + 1).unwrap() / u32::try_from(moves + 1).unwrap();
            while audit.taken() < until {
                audit.takes(&receive(&mut port));
            }
            port = ways.moves(port, at, to);
            at = to;
        }
        while audit.taken() < all {
            audit.takes(&receive(&mut port));
        }
        port
    });
    assert_eq!(audit.0[..N], [each; N]);
    let nothing = port.receive(Access::Later, Deadline::after(Duration::from_millis(50)));
    assert!(nothing.is_err(), "{nothing:?}");
    let left: u64 = machines.iter().map(|it| rights(it).ports_left).sum();
    assert_eq!(left, moves as u64);
    drop((port, senders, ways));
    is_settled(&machines);
    machines.into_iter().for_each(is_empty);
}

#[test]
fn a_port_goes_round_three_nodes_under_load() {
    let [hall, roof, attic] = three(Patience::default());
    goes_round([&hall, &roof, &attic], 1000, 30);
}

#[test]
fn a_port_is_bounced_among_five_nodes_under_load() {
    let network = Network::tls();
    let names = ["hall", "roof", "attic", "cellar", "porch"];
    let machines = names.map(|name| Machine::new(&network, name));
    for (at, machine) in machines.iter().enumerate() {
        machines[..at]
            .iter()
            .for_each(|other| machine.linked(other));
    }
    goes_round(machines.each_ref(), 300, 40);
}

#[test]
fn a_port_goes_round_while_links_are_cut() {
    let [hall, roof, attic] = three(Patience::LONG);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let faults = [&hall, &roof, &attic].map(|it| it.faults.clone());
        let (_ends, over) = (SetOnDrop(&over), &over);
        scope.spawn(move || {
            for cut in 0_u64.. {
                if over.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(30));
                let faults = &faults[usize::try_from(cut % 3).unwrap()];
                match cut % 4 {
                    0 => faults.cut(),
                    _ => faults.cut_after(900 * (cut % 50) + 7),
                }
                std::thread::sleep(Duration::from_millis(15));
                faults.heal();
            }
        });
        goes_round([&hall, &roof, &attic], 500, 15);
    });
}

#[test]
fn a_port_that_is_given_on_at_once_waits_for_what_was_queued() {
    let [attic, roof, hall] = three(Patience::default());
    let options = PortOptions::unnamed().queue(500);
    let mut port = hall.domain.bind(options).unwrap();
    let right = port.make_send();
    let mut ways = Ways::new(&[&hall, &roof, &attic]);
    let mut audit = Audit::default();
    for round in 0..4 {
        send_some(&hall.domain, &right, 0, 100 * round..100 * (round + 1));
        // Nobody receives on the way.
        port = ways.moves(port, 0, 1);
        port = ways.moves(port, 1, 2);
        port = ways.moves(port, 2, 0);
        if round % 2 == 1 {
            (0..200).for_each(|_| audit.takes(&receive(&mut port)));
        }
    }
    assert_eq!(audit.0[0], 400);
}

#[test]
fn a_port_that_is_given_on_full_makes_room_for_what_was_queued() {
    let [attic, roof, hall] = three(Patience::default());
    let port = hall.domain.bind(PortOptions::unnamed().queue(7)).unwrap();
    let right = port.make_send();
    let mut ways = Ways::new(&[&hall, &roof, &attic]);
    let mut audit = Audit::default();
    // What is queued takes a while: each needs a transfer of its own.
    for number in 0..7 {
        send(&right, numbered(&hall.domain, number, &[4 << 20]));
    }
    let port = ways.moves(port, 0, 1);
    // Meanwhile a program there fills the port, and gives it on, so nobody can receive at it.
    let there = port.make_send();
    let mut sent = 0;
    let next = |sent: u32| numbered(&roof.domain, SENDER + sent, lengths(SENDER + sent));
    while there.send(next(sent), WhenFull::Fail).is_ok() {
        sent += 1;
    }
    let mut port = ways.moves(port, 1, 2);
    // Who has a right on it goes on behind that.
    let more = sent..sent + 50;
    let all = 7 + more.end;
    std::thread::scope(|scope| {
        scope.spawn(|| send_some(&roof.domain, &there, 1, more));
        let mut next = 0;
        for _ in 0..all {
            let message = receive(&mut port);
            if message.len() == 4 << 20 {
                is_numbered(&message, next, &[4 << 20]);
                next += 1;
            } else {
                audit.takes(&message);
            }
        }
    });
    drop((port, right, there, ways));
    is_settled(&[&hall, &roof, &attic]);
    [&hall, &roof, &attic].into_iter().for_each(is_empty);
}

#[test]
fn requests_are_answered_wherever_their_port_goes() {
    let [attic, roof, hall] = three(Patience::default());
    let mut port = serve(&hall, "server");
    let machines = [&hall, &roof, &attic];
    let clients = machines.map(|it| it.domain.connect("server", PATIENCE).unwrap());
    let mut ways = Ways::new(&machines);
    let all = 3 * 200;
    let port = std::thread::scope(|scope| {
        for (machine, right) in machines.into_iter().zip(&clients) {
            let domain = &machine.domain;
            scope.spawn(move || {
                for number in 0..200 {
                    let question = numbered(domain, number, lengths(number));
                    let answer = ask(right, question).unwrap();
                    is_numbered(&answer, number + 1, &[64]);
                }
            });
        }
        let (mut at, mut kept) = (0, Vec::new());
        for served in 0..all {
            // Those that were taken before the port has gone are answered after.
            if served % 40 == 20 {
                let to = (at + 1) % 3;
                port = ways.moves(port, at, to);
                at = to;
                for (domain, request) in kept.drain(..) {
                    reply(domain, request);
                }
            }
            let request = port.get_request(Access::Later, PATIENCE).unwrap();
            match served % 40 {
                19 => kept.push((&machines[at].domain, request)),
                _ => reply(&machines[at].domain, request),
            }
        }
        port
    });
    drop((port, clients, ways));
    is_settled(&machines);
}

pub(crate) fn reply(domain: &Domain, request: portolan::Request) {
    let number = u32::from_le_bytes(request.message.header().try_into().unwrap());
    request.reply(numbered(domain, number + 1, &[64])).unwrap();
}

#[test]
fn what_was_queued_and_cannot_travel_is_counted_and_its_request_is_answered() {
    let (hall, roof) = two(&Network::tls());
    let (plain, server) = (bind(&hall, "plain"), serve(&hall, "server"));
    let segment = || {
        let segment = hall.domain.make_segment(None, 4096).unwrap();
        with(b"segment", segment)
    };
    let (to_plain, to_server) = (plain.make_send(), server.make_send());
    send(&to_plain, Message::new(b"first").unwrap());
    send(&to_plain, segment());
    send(&to_plain, Message::new(b"last").unwrap());
    let asked = to_server.begin_request(segment(), WhenFull::Fail);
    let mut asked = asked.unwrap();
    let mut inbox = bind(&roof, "inbox");
    let way = hall.domain.connect("inbox", PATIENCE).unwrap();
    let mut plain = moved(&way, plain, &mut inbox);
    let _server = moved(&way, server, &mut inbox);
    assert_eq!(receive(&mut plain).header(), b"first");
    assert_eq!(receive(&mut plain).header(), b"last");
    let dropped = asked.wait(Access::Later, PATIENCE);
    assert!(matches!(dropped, Err(RequestError::Dropped)), "{dropped:?}");
    assert_eq!(hall.report().left_behind, 2);
    // From now on it is refused.
    let refused = to_plain.send(segment(), WhenFull::Fail).unwrap_err();
    assert!(matches!(refused.why, SendError::StaysHere { .. }));
}

#[test]
fn who_asked_for_no_more_senders_is_told_at_the_new_home() {
    let [attic, roof, hall] = three(Patience::default());
    let port = hall.domain.bind(PortOptions::unnamed()).unwrap();
    let right = port.make_send();
    let mut ways = Ways::new(&[&hall, &roof, &attic]);
    let mut upper = bind(&attic, "upper");
    let way = hall.domain.connect("upper", PATIENCE).unwrap();
    send(&way, with(b"a right", port.make_send()));
    let there = right_in(receive(&mut upper));
    port.request_no_more_senders();
    let mut port = ways.moves(port, 0, 1);
    send(&right, Message::new(b"from the old home").unwrap());
    assert_eq!(receive(&mut port).header(), b"from the old home");
    drop(right);
    send(&there, Message::new(b"from the third").unwrap());
    assert_eq!(receive(&mut port).header(), b"from the third");
    drop(there);
    assert_eq!(notice(&mut port), Some(Notice::NoMoreSenders));
}

#[test]
fn the_old_home_may_go_once_a_port_has_moved() {
    let [attic, roof, mut hall] = three(SHORT);
    let port = bind(&hall, "upper");
    let of_roof = roof.domain.connect("upper", PATIENCE).unwrap();
    let of_attic = attic.domain.connect("upper", PATIENCE).unwrap();
    send_some(&roof.domain, &of_roof, 0, 0..20);
    send_some(&attic.domain, &of_attic, 1, 0..20);
    let mut ways = Ways::new(&[&hall, &roof, &attic]);
    let mut port = ways.moves(port, 0, 1);
    let mut audit = Audit::default();
    (0..40).for_each(|_| audit.takes(&receive(&mut port)));
    // Both have followed.
    send_some(&roof.domain, &of_roof, 0, 20..40);
    send_some(&attic.domain, &of_attic, 1, 20..40);
    (0..40).for_each(|_| audit.takes(&receive(&mut port)));
    hall.end();
    for machine in [&roof, &attic] {
        until("it is given up", || {
            let peers = machine.report().peers;
            !peers.iter().any(|peer| peer.node == hall.id && peer.is_up)
        });
    }
    send_some(&roof.domain, &of_roof, 0, 40..100);
    send_some(&attic.domain, &of_attic, 1, 40..100);
    (0..120).for_each(|_| audit.takes(&receive(&mut port)));
    assert_eq!(audit.0[..2], [100; 2]);
}

#[test]
fn rights_are_dead_when_the_present_home_is() {
    let [attic, mut roof, hall] = three(SHORT);
    let port = bind(&hall, "upper");
    let of_hall = port.make_send();
    let of_attic = attic.domain.connect("upper", PATIENCE).unwrap();
    let mut ways = Ways::new(&[&hall, &roof, &attic]);
    let mut port = ways.moves(port, 0, 1);
    send(&of_hall, Message::new(b"hall").unwrap());
    assert_eq!(receive(&mut port).header(), b"hall");
    send(&of_attic, Message::new(b"attic").unwrap());
    assert_eq!(receive(&mut port).header(), b"attic");
    roof.end();
    for right in [&of_hall, &of_attic] {
        until("it is dead", || right.state() == RightState::Dead);
    }
}

#[test]
fn a_port_whose_new_home_dies_with_its_receive_right_under_way_is_dead() {
    let [attic, mut roof, hall] = three(SHORT);
    let port = serve(&hall, "server");
    let right = port.make_send();
    let of_attic = attic.domain.connect("server", PATIENCE).unwrap();
    let ways = Ways::new(&[&hall, &roof, &attic]);
    // What goes there does not come back.
    roof.faults.stall_until(Duration::MAX);
    let way = ways.ways[0][1].as_ref().unwrap();
    send(way, with(b"port", port));
    until("it is under way", || hall.report().sent > 0);
    let asked = |right: &SendRight| {
        let asked = right.begin_request(Message::default(), WhenFull::Fail);
        asked.unwrap()
    };
    let mut waiting = asked(&right);
    roof.end();
    let lost = waiting.wait(Access::Later, PATIENCE);
    let is_told = matches!(lost, Err(RequestError::ServerDead | RequestError::Dropped));
    assert!(is_told, "{lost:?}");
    for right in [&right, &of_attic] {
        until("it is dead", || right.state() == RightState::Dead);
    }
}

/// A port lives on where it went; its first home starts anew, and its ports have other names.
#[test]
fn a_port_that_has_left_is_none_of_its_origins_next_run() {
    let [attic, roof, mut hall] = three(SHORT);
    let port = hall.domain.bind(PortOptions::unnamed()).unwrap();
    let mut ways = Ways::new(&[&hall, &roof, &attic]);
    let mut first = ways.moves(port, 0, 1);
    let right = first.make_send();
    hall.end();
    hall.start();
    hall.linked(&roof);
    let way = hall.domain.connect("inbox of roof", PATIENCE).unwrap();
    for _ in 0..4 {
        let port = hall.domain.bind(PortOptions::unnamed()).unwrap();
        let to_other = port.make_send();
        send(&to_other, Message::new(b"other").unwrap());
        let mut other = moved(&way, port, &mut ways.inboxes[1]);
        assert_eq!(receive(&mut other).header(), b"other");
    }
    send(&right, Message::new(b"first").unwrap());
    assert_eq!(receive(&mut first).header(), b"first");
}

/// Proxies of a machine: ports elsewhere that it knows, and entries that its ports had before they moved.
fn proxies(machine: &Machine) -> usize {
    machine.report().spans[0].proxies.len()
}

/// Each time that a port comes back it has another entry, and nobody has a right on the one of before: nothing of
/// that follows the port when it goes again.
#[test]
fn a_port_that_goes_to_and_fro_leaves_nothing_behind_that_follows_it() {
    let (hall, roof) = two(&Network::tls());
    let machines = [&hall, &roof];
    let mut ways = Ways::new(&machines);
    let mut port = hall.domain.bind(PortOptions::unnamed()).unwrap();
    let right = port.make_send();
    for round in 0..40 {
        let from = round % 2;
        port = ways.moves(port, from, 1 - from);
        send(&right, Message::new(b"behind it").unwrap());
        assert_eq!(receive(&mut port).header(), b"behind it");
        // The other's inbox, the entry to which the right leads, and a few that have just been left: one that has
        // not heard yet that it has no senders follows once.
        let most = machines.map(proxies);
        assert!(most.iter().all(|&its| its <= 8), "{most:?}, move {round}");
    }
    // The right has followed all the way.
    assert_eq!(right.state(), RightState::Live);
}

/// Run it alone, with `--ignored --nocapture`, as a release build.
#[test]
#[ignore = "it measures, and asserts nothing"]
fn how_long_a_move_takes() {
    let (hall, roof) = two(&Network::tls());
    let machines = [&hall, &roof];
    let mut ways = Ways::new(&machines);
    for queued in [0, 10, 50] {
        let mut port = bind(&hall, &format!("port {queued}"));
        let right = port.make_send();
        let (mut given, mut first, mut round_trips) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..200 {
            (0..queued).for_each(|_| send(&right, Message::new(b"queued").unwrap()));
            let from = round % 2;
            let began = std::time::Instant::now();
            port = ways.moves(port, from, 1 - from);
            given.push(began.elapsed());
            send(&right, Message::new(b"sent after").unwrap());
            (0..queued).for_each(|_| drop(receive(&mut port)));
            assert_eq!(receive(&mut port).header(), b"sent after");
            first.push(began.elapsed());
            let began = std::time::Instant::now();
            send(&right, Message::new(b"quiet").unwrap());
            assert_eq!(receive(&mut port).header(), b"quiet");
            round_trips.push(began.elapsed());
        }
        let middle = |all: &mut Vec<Duration>| {
            all.sort_unstable();
            (all[all.len() / 2], all[all.len() * 95 / 100])
        };
        println!(
            "{queued} queued: right there {:?}, next message there {:?}, a message alone {:?} (median, 95 %)",
            middle(&mut given),
            middle(&mut first),
            middle(&mut round_trips)
        );
    }
}
