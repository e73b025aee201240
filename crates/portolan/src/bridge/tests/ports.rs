//! Several ports of one connection.

use super::*;
use crate::bridge::sharing::Served;
use portolan_abi::bridge::FRAGMENT;

macro_rules! over_each_wire {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[test] fn $test() { super::$test(super::Over::Memory); })*
        }
        mod over_tcp {
            $(#[test] fn $test() { super::$test(super::Over::Tcp); })*
        }
    };
}

over_each_wire! {
    a_full_port_holds_up_no_other,
    a_short_message_passes_a_long_one,
    a_short_answer_passes_a_long_one,
    a_server_that_does_not_answer_holds_up_no_other,
    ports_come_and_go_and_the_others_stay,
    an_offer_that_is_withdrawn_in_the_middle_of_a_message_ends_its_own_port,
    a_request_that_is_being_answered_when_its_offer_is_withdrawn_ends_alone,
    what_was_sent_before_a_client_left_is_there_for_each_port,
    messages_of_many_ports_go_over_in_order,
}

/// Two private domains, some ports of one, and a right on each in the other, over one connection.
struct Many {
    ours: Domain,
    theirs: Domain,
    ports: Vec<Option<ReceiveRight>>,
    offered: Vec<Option<OfferedPort>>,
    rights: Vec<Option<SendRight>>,
    connected: Option<tcp::Connected>,
}

impl Many {
    fn new(over: self::Over, count: usize, bind: impl Fn() -> PortOptions) -> Self {
        let mut many = Self {
            ours: Domain::private().unwrap(),
            theirs: Domain::builder("theirs").private().unwrap(),
            ports: Vec::new(),
            offered: Vec::new(),
            rights: Vec::new(),
            connected: None,
        };
        for _ in 0..count {
            many.add(over, bind());
        }
        many
    }

    /// One more port.
    fn add(&mut self, over: self::Over, bind: PortOptions) -> usize {
        let at = self.ports.len();
        let port = self.theirs.bind(bind).unwrap();
        let name = format!("port {at}");
        let options = OfferOptions::default().most_bytes(32 << 20);
        let permissions = Permissions::own_user();
        let offered = port.offer(&name, &permissions, options).unwrap();
        let connect = ConnectOptions::default().queue(3).ring_bytes(64 << 10);
        let right = match (over, &self.connected) {
            (self::Over::Memory, _) => join_to(&self.ours, &self.theirs, &name, &connect),
            (self::Over::Tcp, Some(connected)) => connected.more(&self.ours, &offered, &connect),
            (self::Over::Tcp, None) => {
                let (connected, right) = tcp::Connected::new(&self.ours, &offered, &connect);
                self.connected = Some(connected);
                right
            }
        };
        self.ports.push(Some(port));
        self.offered.push(Some(offered));
        self.rights.push(Some(right));
        // It has one connection for all.
        assert_eq!(Served::count(self.theirs.member()), 1);
        at
    }

    fn right(&self, at: usize) -> &SendRight {
        self.rights[at].as_ref().unwrap()
    }

    fn send(&self, at: usize, number: u8, lengths: &[usize]) {
        let message = message(&self.ours, number, lengths);
        self.right(at).send(message, long()).unwrap();
    }

    /// Sends to a port until it is full, and the connection's part for it too; how many.
    fn fill(&self, at: usize, len: usize) -> u8 {
        let mut sent = 0;
        loop {
            let message = message(&self.ours, sent, &[len]);
            let soon = Deadline::after(Duration::from_millis(300));
            match self.right(at).send(message, soon) {
                Ok(()) => sent += 1,
                Err(error) => {
                    assert!(matches!(error.why, SendError::Full { .. }), "{error}");
                    return sent;
                }
            }
        }
    }

    #[track_caller]
    fn comes(&mut self, at: usize, number: u8, lengths: &[usize]) {
        let port = self.ports[at].as_mut().unwrap();
        is_the_one(
            &port.receive(Access::Later, long()).unwrap(),
            number,
            lengths,
        );
    }

    /// No client broke a rule, and all offers have one.
    fn is_well(&self) {
        for offered in self.offered.iter().flatten() {
            assert_eq!(offered.clients(), 1);
            let violations = offered.take_violations();
            assert!(violations.is_empty(), "{violations:?}");
        }
    }
}

pub(super) fn small() -> PortOptions {
    PortOptions::unnamed().queue(3)
}

fn asked() -> PortOptions {
    PortOptions::unnamed().queue(3).synchronous()
}

fn a_full_port_holds_up_no_other(over: self::Over) {
    let mut many = Many::new(over, 3, small);
    // Each is longer than the byte ring, or none of them.
    let full = [(0, many.fill(0, 100_000)), (1, many.fill(1, 0))];
    for (_, sent) in full {
        assert!((6..30).contains(&sent), "{sent}");
    }
    for number in 0..20 {
        let lengths = [usize::from(number) * 50_000];
        many.send(2, number, &lengths);
        many.comes(2, number, &lengths);
    }
    // And what was held up is there.
    for ((at, sent), len) in full.into_iter().zip([100_000, 0]) {
        for number in 0..sent {
            many.comes(at, number, &[len]);
        }
        many.send(at, 99, &[5]);
        many.comes(at, 99, &[5]);
    }
    many.is_well();
}

/// In which order they pass, `the_fragments_of_a_message_let_others_pass` says.
fn a_short_message_passes_a_long_one(over: self::Over) {
    const LONG: usize = 24 << 20;
    let mut many = Many::new(over, 2, small);
    let done = std::sync::atomic::AtomicBool::new(false);
    let Many {
        ours,
        ports,
        rights,
        ..
    } = &mut many;
    let mut ports: Vec<_> = ports.iter_mut().flatten().collect();
    let (long_one, short_one) = ports.split_at_mut(1);
    std::thread::scope(|scope| {
        let (long_right, ours) = (rights[0].as_ref().unwrap(), &*ours);
        // Without end, so that one is under way at any time.
        let done = &done;
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let next = message(ours, 1, &[LONG]);
                long_right.send(next, long()).unwrap();
            }
            long_right
                .send(Message::new(b"the end").unwrap(), long())
                .unwrap();
        });
        scope.spawn(|| {
            loop {
                let came = long_one[0].receive(Access::Later, long()).unwrap();
                if came.header() == b"the end" {
                    return;
                }
                is_the_one(&came, 1, &[LONG]);
            }
        });
        for number in 0..30 {
            let short = message(ours, number, &[100]);
            rights[1].as_ref().unwrap().send(short, long()).unwrap();
            let came = short_one[0].receive(Access::Later, long()).unwrap();
            is_the_one(&came, number, &[100]);
        }
        done.store(true, Ordering::Relaxed);
    });
    many.is_well();
}

fn a_short_answer_passes_a_long_one(over: self::Over) {
    const LONG: usize = 24 << 20;
    let mut many = Many::new(over, 2, asked);
    let ask = |many: &Many, at, number| {
        let asked = message(&many.ours, number, &[10]);
        many.right(at).begin_request(asked, long()).unwrap()
    };
    let get = |many: &mut Many, at: usize| {
        let port = many.ports[at].as_mut().unwrap();
        port.get_request(Access::Later, long()).unwrap()
    };
    let mut long_one = ask(&many, 0, 1);
    let first = get(&mut many, 0);
    let mut short_one = ask(&many, 1, 2);
    let second = get(&mut many, 1);
    first.reply(message(&many.theirs, 1, &[LONG])).unwrap();
    second.reply(message(&many.theirs, 2, &[7])).unwrap();
    is_the_one(&short_one.wait(Access::Later, long()).unwrap(), 2, &[7]);
    is_the_one(&long_one.wait(Access::Later, long()).unwrap(), 1, &[LONG]);
    many.is_well();
}

fn a_server_that_does_not_answer_holds_up_no_other(over: self::Over) {
    let mut many = Many::new(over, 2, asked);
    let mut pending = Vec::new();
    loop {
        let asked = message(&many.ours, 1, &[10]);
        let soon = Deadline::after(Duration::from_millis(300));
        match many.right(0).begin_request(asked, soon) {
            Ok(one) => pending.push(one),
            Err(crate::RequestError::Unsent(_)) => break,
            Err(other) => panic!("{other}"),
        }
    }
    for number in 0..20 {
        let asked = message(&many.ours, number, &[300_000]);
        let mut one = many.right(1).begin_request(asked, long()).unwrap();
        let port = many.ports[1].as_mut().unwrap();
        let request = port.get_request(Access::Later, long()).unwrap();
        request.reply_in_place().unwrap();
        is_the_one(
            &one.wait(Access::Later, long()).unwrap(),
            number,
            &[300_000],
        );
    }
    for mut one in pending {
        let port = many.ports[0].as_mut().unwrap();
        let request = port.get_request(Access::Later, long()).unwrap();
        request.reply_in_place().unwrap();
        is_the_one(&one.wait(Access::Later, long()).unwrap(), 1, &[10]);
    }
    many.is_well();
}

fn ports_come_and_go_and_the_others_stay(over: self::Over) {
    let mut many = Many::new(over, 2, small);
    for round in 0..100 {
        let at = many.add(over, small());
        many.send(at, 1, &[70_000]);
        match round % 3 {
            // Its right is dropped, with something on the way.
            0 => {
                many.rights[at] = None;
                many.comes(at, 1, &[70_000]);
                let offered = many.offered[at].take().unwrap();
                until("the client has left", || offered.clients() == 0);
                many.ports[at] = None;
            }
            // Its offer is withdrawn.
            1 => {
                many.offered[at] = None;
                until("it is a dead name", || !many.right(at).is_live());
                (many.rights[at], many.ports[at]) = (None, None);
            }
            // It is closed.
            _ => {
                many.ports[at] = None;
                until("it is a dead name", || !many.right(at).is_live());
                (many.rights[at], many.offered[at]) = (None, None);
            }
        }
        for stays in [0, 1] {
            many.send(stays, 3, &[9]);
            many.comes(stays, 3, &[9]);
        }
    }
    many.is_well();
    // The last one ends the connection.
    many.rights.clear();
    many.connected = None;
    until("it is over", || Served::count(many.theirs.member()) == 0);
    assert_eq!(many.theirs.survey().unwrap().memory.used, 0);
}

fn an_offer_that_is_withdrawn_in_the_middle_of_a_message_ends_its_own_port(over: self::Over) {
    let mut many = Many::new(over, 2, small);
    for round in 0..20 {
        let at = many.add(over, small());
        let over_it = std::thread::scope(|scope| {
            let (ours, right) = (&many.ours, many.rights[at].clone().unwrap());
            let sender = scope.spawn(move || {
                (0..).find_map(|_| right.send(message(ours, 1, &[3_000_000]), long()).err())
            });
            let port = many.ports[at].as_mut().unwrap();
            for _ in 0..=round % 3 {
                is_the_one(
                    &port.receive(Access::Later, long()).unwrap(),
                    1,
                    &[3_000_000],
                );
            }
            many.offered[at] = None;
            sender.join().unwrap().unwrap().why
        });
        assert!(matches!(over_it, SendError::DeadName), "{over_it}");
        // What had come whole is there, and nothing else of it.
        let mut port = many.ports[at].take().unwrap();
        while let Ok(came) = port.receive(Access::Later, Deadline::NOW) {
            is_the_one(&came, 1, &[3_000_000]);
        }
        drop(port);
        many.rights[at] = None;
        for stays in [0, 1] {
            many.send(stays, 3, &[400_000]);
            many.comes(stays, 3, &[400_000]);
        }
        assert_eq!(many.theirs.survey().unwrap().memory.used, 0);
    }
    many.is_well();
}

fn a_request_that_is_being_answered_when_its_offer_is_withdrawn_ends_alone(over: self::Over) {
    let mut many = Many::new(over, 1, asked);
    for round in 0..20 {
        let at = many.add(over, asked());
        let asking = message(&many.ours, 1, &[5]);
        let mut pending = many.right(at).begin_request(asking, long()).unwrap();
        let port = many.ports[at].as_mut().unwrap();
        let request = port.get_request(Access::Later, long()).unwrap();
        // Of one fragment, and of many.
        let len = [FRAGMENT, 7_000_000][round % 2];
        request.reply(message(&many.theirs, 1, &[len])).unwrap();
        many.offered[at] = None;
        // All of it has come, or nothing.
        if let Ok(answer) = pending.wait(Access::Later, long()) {
            is_the_one(&answer, 1, &[len]);
        }
        until("it is a dead name", || !many.right(at).is_live());
        (many.rights[at], many.ports[at]) = (None, None);
        let asking = message(&many.ours, 2, &[400_000]);
        let mut pending = many.right(0).begin_request(asking, long()).unwrap();
        let port = many.ports[0].as_mut().unwrap();
        let request = port.get_request(Access::Later, long()).unwrap();
        request.reply_in_place().unwrap();
        is_the_one(&pending.wait(Access::Later, long()).unwrap(), 2, &[400_000]);
    }
    many.is_well();
}

fn what_was_sent_before_a_client_left_is_there_for_each_port(over: self::Over) {
    for _ in 0..10 {
        let mut many = Many::new(over, 3, small);
        for number in 0..3 {
            for at in 0..3 {
                many.send(at, number, &[5000]);
            }
        }
        many.rights.clear();
        let Many {
            ours, mut ports, ..
        } = many;
        ours.leave().unwrap();
        for port in ports.iter_mut().flatten() {
            for number in 0..3 {
                let came = port.receive(Access::Later, long()).unwrap();
                is_the_one(&came, number, &[5000]);
            }
        }
    }
}

fn messages_of_many_ports_go_over_in_order(over: self::Over) {
    const PORTS: usize = 8;
    const COUNT: u8 = 100;
    let mut many = Many::new(over, PORTS, small);
    let len = |at: usize, number: u8| (usize::from(number) * 7919 * (at + 1)) % 300_000;
    std::thread::scope(|scope| {
        let ours = &many.ours;
        for (at, right) in many.rights.iter().flatten().enumerate() {
            scope.spawn(move || {
                for number in 0..COUNT {
                    let message = message(ours, number, &[len(at, number)]);
                    right.send(message, long()).unwrap();
                }
            });
        }
        for (at, port) in many.ports.iter_mut().flatten().enumerate() {
            scope.spawn(move || {
                for number in 0..COUNT {
                    let came = port.receive(Access::Later, long()).unwrap();
                    is_the_one(&came, number, &[len(at, number)]);
                }
            });
        }
    });
    many.is_well();
}
