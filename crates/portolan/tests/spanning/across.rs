//! Two machines' domains, and one thread that is the node of both: a program of the one calls what a
//! program of the other serves, and neither knows of it.

use portolan::proxy::{Answer, Answered, Incoming, ProxyPort, Span, Taken, asks_for, time_left};
use portolan::{
    Access, ConnectError, Deadline, Domain, Message, PendingReply, PortOptions, ReceiveError,
    RequestError, SendRight, WhenFull,
};
use portolan_testkit::{PATIENCE, unique};
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A port of the other domain: its proxy here, and a right on it there.
struct Way {
    proxy: ProxyPort,
    to: SendRight,
    open: Vec<(PendingReply, Answer)>,
}

/// One machine's side.
struct Side {
    domain: Domain,
    span: Span,
    ways: Vec<Way>,
}

impl Side {
    fn new(name: &str, node: &str) -> Self {
        let domain = Domain::join(name).unwrap();
        let span = Span::begin(&domain, node).unwrap();
        Self {
            domain,
            span,
            ways: Vec::new(),
        }
    }

    /// Answers what programs here ask, by what is there.
    fn answer(&mut self, there: &Self) {
        let query = match self.span.take(Deadline::NOW) {
            Ok(query) => query,
            Err(ReceiveError::TimedOut) => return,
            Err(error) => panic!("{error}"),
        };
        let node = there.span.node();
        if query.node().is_some_and(|named| named != node) {
            return query.no_such_node();
        }
        // One that is not there, or is not let out, may come: the query is dropped, and asked again.
        let Some(found) = there.span.find(query.name()) else {
            return;
        };
        let options = PortOptions::unnamed().queue(found.slots - 1);
        let options = if found.synchronous {
            options.synchronous()
        } else {
            options
        };
        let proxy = self.span.bind(query.name(), node, options).unwrap();
        query.found(proxy.make_send(), node).unwrap();
        self.ways.push(Way {
            proxy,
            to: asks_for(found.right, self.span.node()).unwrap(),
            open: Vec::new(),
        });
    }

    /// Carries what has come at the proxies here to the ports there, and the answers back.
    fn carry(&mut self, there: &Domain) {
        for way in &mut self.ways {
            match way.proxy.take(Deadline::NOW) {
                Ok(Taken::Message(message)) => {
                    let message = carried(&message, there);
                    way.to.send(message, WhenFull::Fail).unwrap();
                }
                Ok(Taken::Request(message, answer)) => {
                    let message = carried(&message, there);
                    let pending = way.to.begin_request(message, WhenFull::Fail);
                    way.open.push((pending.unwrap(), answer));
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => {}
            }
            for (mut pending, answer) in std::mem::take(&mut way.open) {
                match Answered::take(&mut pending) {
                    Ok(Answered::Reply(message)) => {
                        let message = carried(&message, &self.domain);
                        answer.reply(message).unwrap();
                    }
                    Ok(other) => answer.give(other).unwrap(),
                    Err(RequestError::TimedOut) => way.open.push((pending, answer)),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

/// As bytes, and back in extents of `to`.
fn carried(message: &Message, to: &Domain) -> Message {
    let lengths: Vec<u64> = message.slices().map(|part| part.len() as u64).collect();
    let bytes: Vec<u8> = message.slices().flatten().copied().collect();
    let mut incoming = Incoming::new(to, message.header(), &lengths, 1 << 20).unwrap();
    if let Some(left) = time_left(message) {
        incoming.set_time_left(left);
    }
    let mut stream = &bytes[..];
    while !incoming.is_whole() {
        let taken = stream.read_vectored(&mut incoming.unfilled()).unwrap();
        incoming.filled(taken);
    }
    incoming.into_message().unwrap()
}

fn call(domain: &Domain, name: &str) -> Vec<u8> {
    let right = domain.connect(name, PATIENCE).unwrap();
    let mut extent = domain.allocate(70_000).unwrap();
    extent.fill(b'x');
    let mut message = Message::new(b"header").unwrap();
    message.push(extent).unwrap();
    let answer = right.request_reply(message, Access::Now, PATIENCE).unwrap();
    assert_eq!(answer.header(), b"header");
    answer.slices().flatten().copied().collect()
}

#[test]
fn a_program_calls_what_another_machines_program_serves() {
    let (hall, roof) = (unique("span-hall"), unique("span-roof"));
    let over = Arc::new(AtomicBool::new(false));
    let node = {
        let (hall, roof, over) = (hall.clone(), roof.clone(), Arc::clone(&over));
        std::thread::spawn(move || {
            let (mut hall, mut roof) = (Side::new(&hall, "hall"), Side::new(&roof, "roof"));
            while !over.load(Ordering::Relaxed) {
                hall.answer(&roof);
                roof.answer(&hall);
                hall.carry(&roof.domain);
                roof.carry(&hall.domain);
                std::thread::sleep(Duration::from_micros(100));
            }
        })
    };
    let (hall, roof) = (Domain::join(&hall).unwrap(), Domain::join(&roof).unwrap());
    // It is called before it is there.
    let client = {
        let roof = roof.clone();
        std::thread::spawn(move || [call(&roof, "upper"), call(&roof, "upper@hall")])
    };
    std::thread::sleep(Duration::from_millis(50));
    let server = {
        let options = PortOptions::named("upper").synchronous().spanned();
        let mut port = hall.bind(options).unwrap();
        std::thread::spawn(move || {
            for _ in 0..2 {
                let mut request = port.get_request(Access::Now, PATIENCE).unwrap();
                let extents = request.message.extents_mut();
                extents.iter_mut().for_each(|e| e.make_ascii_uppercase());
                request.reply_in_place().unwrap();
            }
        })
    };
    for answer in client.join().unwrap() {
        assert!(answer.len() == 70_000 && answer.iter().all(|byte| *byte == b'X'));
    }
    server.join().unwrap();
    // What is not let out stays where it is.
    let _kept = hall.bind(PortOptions::named("kept")).unwrap();
    let kept = roof.connect("kept@hall", Duration::from_millis(200));
    assert!(matches!(kept, Err(ConnectError::NoSuchPort { .. })));
    let none = roof.connect("upper@cellar", PATIENCE);
    assert!(matches!(none, Err(ConnectError::NoSuchNode { .. })));
    over.store(true, Ordering::Relaxed);
    node.join().unwrap();
}
