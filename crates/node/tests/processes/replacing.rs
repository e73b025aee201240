//! A process takes over from the one that runs as the node, while programs go on: their rights stay.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Scope;

use portolan::proxy::KnownPort;
use portolan::{
    Access, Deadline, Domain, Message, Notice, PortOptions, ReceiveRight, Right, SendRight,
    WhenFull,
};
use portolan_testkit::{PATIENCE, until};

use crate::scene::{Machine, json};
use crate::session::two;

/// Bytes of each eighth message of a stream: more than go with a record.
const LONG: usize = 40_000;

/// A stream of numbered messages from one domain to a port of another, by a right of before. The port is
/// read slower than it is written, so there is always something that is not acknowledged.
#[derive(Default)]
struct Stream {
    sent: AtomicU64,
    came: AtomicU64,
    ends: AtomicBool,
}

impl Stream {
    fn run<'s>(
        &'s self,
        threads: &'s Scope<'s, '_>,
        from: &'s Domain,
        right: SendRight,
        mut port: ReceiveRight,
    ) {
        threads.spawn(move || {
            while !self.ends.load(Ordering::Relaxed) {
                let number = self.sent.fetch_add(1, Ordering::Relaxed);
                let mut message = Message::new(&number.to_le_bytes()).unwrap();
                if number.is_multiple_of(8) {
                    let mut extent = from.allocate(LONG).unwrap();
                    extent.fill(number.to_le_bytes()[0]);
                    message.push(extent).unwrap();
                }
                right
                    .send(message, WhenFull::Wait(Deadline::after(PATIENCE)))
                    .unwrap();
            }
            right
                .send(Message::new(b"end").unwrap(), Deadline::after(PATIENCE))
                .unwrap();
        });
        threads.spawn(move || {
            for expected in 0_u64.. {
                let message = port.receive(Access::Now, PATIENCE).unwrap();
                if message.header() == b"end" {
                    assert_eq!(expected, self.sent.load(Ordering::Relaxed));
                    return;
                }
                assert_eq!(message.header(), expected.to_le_bytes());
                let bytes = message.extents().first().map_or(&[][..], |extent| extent);
                let is_long = expected.is_multiple_of(8);
                assert_eq!(bytes.len(), if is_long { LONG } else { 0 });
                assert!(bytes.iter().all(|byte| *byte == expected.to_le_bytes()[0]));
                self.came.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
        });
    }
}

/// A server that answers what it is asked, until it is asked to end.
fn serve<'s>(threads: &'s Scope<'s, '_>, mut port: ReceiveRight) {
    threads.spawn(move || {
        loop {
            let request = port.get_request(Access::Now, PATIENCE).unwrap();
            let header = request.message.header().to_vec();
            request.reply(Message::new(&header).unwrap()).unwrap();
            if header == b"end" {
                return;
            }
        }
    });
}

/// A client that asks on and on.
fn ask<'s>(
    threads: &'s Scope<'s, '_>,
    ends: &'s AtomicBool,
    count: &'s AtomicU64,
    right: SendRight,
) {
    threads.spawn(move || {
        while !ends.load(Ordering::Relaxed) {
            let number = count.fetch_add(1, Ordering::Relaxed).to_le_bytes();
            let asked = Message::new(&number).unwrap();
            let answer = right.request_reply(asked, Access::Now, PATIENCE).unwrap();
            assert_eq!(answer.header(), number);
        }
        let end = Message::new(b"end").unwrap();
        let answer = right.request_reply(end, Access::Now, PATIENCE).unwrap();
        assert_eq!(answer.header(), b"end");
    });
}

/// A receive right goes by a message from one domain to the other.
fn moves(port: ReceiveRight, by: &SendRight, to: &mut ReceiveRight) -> ReceiveRight {
    let mut message = Message::default();
    message.attach(port).unwrap();
    by.send(message, Deadline::after(PATIENCE)).unwrap();
    let mut message = to.receive(Access::Now, PATIENCE).unwrap();
    match message.take_rights().pop() {
        Some(Right::Receive(port)) => port,
        other => panic!("{other:?}"),
    }
}

/// What is sent by a right comes to its port.
fn comes(right: &SendRight, port: &mut ReceiveRight) {
    let message = Message::new(b"comes").unwrap();
    right.send(message, Deadline::after(PATIENCE)).unwrap();
    let came = port.receive(Access::Now, PATIENCE).unwrap();
    assert_eq!(came.header(), b"comes");
}

fn bind(domain: &Domain, options: PortOptions) -> ReceiveRight {
    domain.bind(options.spanned()).unwrap()
}

fn connect(domain: &Domain, name: &str) -> SendRight {
    domain.connect(name, PATIENCE).unwrap()
}

#[test]
fn streams_requests_and_rights_go_on_while_processes_take_over() {
    let ([mut hall, mut roof], [here, there]) = two();
    let [here, there] = [here, there].map(|name| Domain::join(&name).unwrap());
    // Streams and questions, there and back.
    let (down, up) = (Stream::default(), Stream::default());
    let ports = [(&there, "down"), (&here, "up")];
    let [to_down, to_up] =
        ports.map(|(domain, name)| bind(domain, PortOptions::named(name).queue(15)));
    let servers = [(&there, "ask-down"), (&here, "ask-up")];
    let [ask_down, ask_up] =
        servers.map(|(domain, name)| bind(domain, PortOptions::named(name).synchronous()));
    // A request that is with its server, one that is in its queue, and a right in a message.
    let mut slow = bind(&there, PortOptions::named("slow").synchronous());
    let to_slow = connect(&here, "slow");
    let with = |text: &[u8]| Message::new(text).unwrap();
    let mut served = to_slow
        .begin_request(with(b"served"), WhenFull::Fail)
        .unwrap();
    let with_server = slow.get_request(Access::Now, PATIENCE).unwrap();
    let mut queued = to_slow
        .begin_request(with(b"queued"), WhenFull::Fail)
        .unwrap();
    let mut box_there = bind(&there, PortOptions::named("box"));
    let to_box = connect(&here, "box");
    let mut given = here.bind(PortOptions::unnamed()).unwrap();
    let mut once = here.bind(PortOptions::unnamed()).unwrap();
    let mut message = with(b"rights");
    message.attach(given.make_send()).unwrap();
    message.attach(once.make_send_once()).unwrap();
    to_box.send(message, Deadline::after(PATIENCE)).unwrap();
    let mut rights = box_there
        .receive(Access::Now, PATIENCE)
        .unwrap()
        .take_rights();
    let (Some(Right::SendOnce(to_once)), Some(Right::Send(to_given))) =
        (rights.pop(), rights.pop())
    else {
        panic!("{rights:?}");
    };
    given.request_no_more_senders();
    // A port that has moved there, and one that has moved there and back.
    let (away, back) = [(); 2]
        .map(|()| here.bind(PortOptions::unnamed()).unwrap())
        .into();
    let (to_away, to_back) = (away.make_send(), back.make_send());
    let mut box_here = bind(&here, PortOptions::named("box-here"));
    let to_box_here = connect(&there, "box-here");
    let mut away = moves(away, &to_box, &mut box_there);
    let back = moves(back, &to_box, &mut box_there);
    let mut back = moves(back, &to_box_here, &mut box_here);
    comes(&to_away, &mut away);
    comes(&to_back, &mut back);

    let (ends, asked) = (
        AtomicBool::new(false),
        [AtomicU64::new(0), AtomicU64::new(0)],
    );
    std::thread::scope(|threads| {
        down.run(threads, &here, connect(&here, "down"), to_down);
        up.run(threads, &there, connect(&there, "up"), to_up);
        serve(threads, ask_down);
        serve(threads, ask_up);
        ask(threads, &ends, &asked[0], connect(&here, "ask-down"));
        ask(threads, &ends, &asked[1], connect(&there, "ask-up"));
        let all = || {
            let counts = [&down.came, &up.came, &asked[0], &asked[1]];
            counts.map(|count| count.load(Ordering::Relaxed))
        };
        let go_on = || {
            let before = all();
            until("all go on", || {
                all()
                    .iter()
                    .zip(before)
                    .all(|(now, before)| *now > before + 20)
            });
        };
        for _ in 0..2 {
            for machine in [&mut hall, &mut roof] {
                go_on();
                machine.replace();
            }
        }
        go_on();
        ends.store(true, Ordering::Relaxed);
        down.ends.store(true, Ordering::Relaxed);
        up.ends.store(true, Ordering::Relaxed);
    });

    with_server.reply(with(b"yes")).unwrap();
    assert_eq!(served.wait(Access::Now, PATIENCE).unwrap().header(), b"yes");
    let request = slow.get_request(Access::Now, PATIENCE).unwrap();
    assert_eq!(request.message.header(), b"queued");
    request.reply(with(b"too")).unwrap();
    assert_eq!(queued.wait(Access::Now, PATIENCE).unwrap().header(), b"too");
    to_once.send(with(b"once")).unwrap();
    assert_eq!(
        once.receive(Access::Now, PATIENCE).unwrap().header(),
        b"once"
    );
    to_given
        .send(with(b"given"), Deadline::after(PATIENCE))
        .unwrap();
    to_given.flush(PATIENCE).unwrap();
    assert_eq!(
        given.receive(Access::Now, PATIENCE).unwrap().header(),
        b"given"
    );
    comes(&to_away, &mut away);
    comes(&to_back, &mut back);
    drop(to_given);
    let notice = given.receive(Access::Now, PATIENCE).unwrap().notice();
    assert_eq!(notice, Some(Notice::NoMoreSenders));
    for machine in [&hall, &roof] {
        let status = machine.status();
        assert_eq!(status["incarnation"], 1, "{}", machine.log());
        assert_eq!(status["peers"][0]["state"], "up");
        assert!(
            !machine.log().contains("not taken over"),
            "{}",
            machine.log()
        );
    }
}

/// What a process says that is to take over, and hears.
struct Taker(BufReader<UnixStream>);

impl Taker {
    fn new(machine: &Machine) -> Self {
        let mut socket = UnixStream::connect(machine.state.join("control.sock")).unwrap();
        socket
            .write_all(b"{\"ask\":\"replace\",\"keeps\":1}\n")
            .unwrap();
        Self(BufReader::new(socket))
    }

    fn hears(&mut self) -> serde_json::Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        json(&line)
    }

    fn says(&mut self, line: &str) {
        writeln!(self.0.get_mut(), "{line}").unwrap();
    }
}

#[test]
fn if_the_process_that_is_to_take_over_dies_the_one_that_runs_goes_on() {
    let ([hall, _roof], [here, there]) = two();
    let [own, there] = [&here, &there].map(|name| Domain::join(name).unwrap());
    let mut port = bind(&there, PortOptions::named("port").queue(7));
    let right = connect(&own, "port");
    let goes_on = |number: u8, port: &mut ReceiveRight| {
        right
            .send(Message::new(&[number]).unwrap(), Deadline::after(PATIENCE))
            .unwrap();
        assert_eq!(
            port.receive(Access::Now, PATIENCE).unwrap().header(),
            [number]
        );
    };
    goes_on(0, &mut port);
    // Before it has joined a domain.
    let mut taker = Taker::new(&hall);
    let offer = taker.hears();
    assert_eq!(offer["offered"][0]["domain"], "cameras");
    assert_eq!(offer["offered"][0]["local"], here.as_str());
    goes_on(1, &mut port);
    drop(taker);
    until("it is noticed", || hall.log().contains("is gone"));
    goes_on(2, &mut port);
    // After it has heard everything; it says nonsense, too.
    for says in [None, Some("nonsense")] {
        let mut taker = Taker::new(&hall);
        taker.hears();
        let inlet = own.bind(PortOptions::unnamed()).unwrap();
        let joined = BTreeMap::from([("cameras", KnownPort::at(&inlet).number())]);
        taker.says(&serde_json::json!({ "joined": joined }).to_string());
        let told = taker.hears();
        assert_eq!(told["told"]["node"]["incarnation"], 1, "{told}");
        assert_eq!(told["ended"], serde_json::json!([]));
        if let Some(says) = says {
            taker.says(says);
        }
        drop(taker);
        goes_on(3, &mut port);
    }
    assert_eq!(hall.status()["incarnation"], 1);
    let said = "this one goes on";
    assert_eq!(hall.log().matches(said).count(), 2, "{}", hall.log());
}

#[test]
fn what_the_new_process_does_not_go_on_with_ends_and_is_said() {
    let ([mut hall, roof], [here, there]) = two();
    let [own, there] = [&here, &there].map(|name| Domain::join(name).unwrap());
    let _port = bind(&there, PortOptions::named("port"));
    let right = connect(&own, "port");
    // It is not to span the domain.
    let path = hall.state.join("node.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    let (without, _) = config.split_once("[[span]]").unwrap();
    std::fs::write(&path, without).unwrap();
    hall.replace();
    assert!(!right.is_live());
    let said = "all remote rights in cameras end: the new process has not joined it";
    assert_eq!(hall.log().matches(said).count(), 2, "{}", hall.log());
    // The link is kept all the same.
    assert_eq!(hall.status()["incarnation"], 1);
    until("it is linked again", || crate::are_linked(&hall, &roof));
    std::fs::write(&path, config).unwrap();
    hall.succeeds(&["reload"]);
    let right = connect(&own, "port");
    assert!(right.is_live());
}

#[test]
fn a_process_that_keeps_no_rights_is_the_next_incarnation() {
    let ([mut hall, roof], [here, there]) = two();
    let [own, there] = [&here, &there].map(|name| Domain::join(name).unwrap());
    let _port = bind(&there, PortOptions::named("port"));
    let right = connect(&own, "port");
    // One of an earlier build asks so, and hears of sockets at once.
    let mut taker = Taker(BufReader::new(
        UnixStream::connect(hall.state.join("control.sock")).unwrap(),
    ));
    taker.says("{\"ask\":\"replace\"}");
    let handed = taker.hears();
    assert_eq!(handed["version"], 2, "{handed}");
    hall.has_ended();
    assert!(!right.is_live());
    drop(taker);
    hall.up();
    assert_eq!(hall.status()["incarnation"], 2);
    until("it is linked again", || crate::are_linked(&hall, &roof));
}
