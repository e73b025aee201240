//! Requests of one connection are under way side by side, no more than the offer allows; and one
//! thread carries all connections of a process.

use crate::child::Child;
use crate::hostile::{Stranger, preamble};
use crate::numbered::{is_message, long, message};
use crate::over::{offering, plain};
use portolan::{
    Access, ConnectOptions, Deadline, Domain, Message, OfferOptions, PendingReply, PortOptions,
    ReceiveError, ReceiveRight, Request, RequestError, SendRight, WhenFull,
};
use portolan_abi::bridge::{FrameHeader, FrameKind, MAX_REQUESTS};
use portolan_testkit::{SetOnDrop, unique, until};
use std::time::Duration;

/// Long enough for what may come to have come.
const SOON: Duration = Duration::from_millis(300);

/// A domain of our own, and a right of it on a port that takes so many requests of a client.
struct Asking {
    theirs: Domain,
    ours: Domain,
    port: ReceiveRight,
    offered: portolan::OfferedPort,
    right: SendRight,
}

fn asking(requests: usize) -> Asking {
    let offer = OfferOptions::default().most_requests(requests);
    let (name, theirs, port, offered) = offering(PortOptions::unnamed().synchronous(), offer);
    let ours = Domain::join(&unique("asking")).unwrap();
    let other = Domain::builder(&name);
    let right = ours
        .connect_to(&other, "frames", ConnectOptions::default())
        .unwrap();
    Asking {
        theirs,
        ours,
        port,
        offered,
        right,
    }
}

fn begin(asking: &Asking, number: u64) -> PendingReply {
    let message = message(&asking.ours, number, &[5000]);
    asking.right.begin_request(message, long()).unwrap()
}

fn get(port: &mut ReceiveRight, number: u64) -> Request {
    let request = port.get_request(Access::Later, long()).unwrap();
    is_message(&request.message, number, &[5000]);
    request
}

#[test]
fn requests_are_with_the_server_at_one_time_and_are_answered_in_any_order() {
    const COUNT: u64 = 40;
    let mut asking = asking(64);
    let mut pending: Vec<_> = (0..COUNT).map(|number| begin(&asking, number)).collect();
    // None is answered before all are there.
    let requests: Vec<_> = (0..COUNT).map(|n| get(&mut asking.port, n)).collect();
    for (number, request) in (0..COUNT).rev().zip(requests.into_iter().rev()) {
        match number % 4 {
            0 => drop(request),
            _ => request
                .reply(message(&asking.theirs, number, &[70_000]))
                .unwrap(),
        }
        let answer = pending.pop().unwrap().wait(Access::Later, long());
        match answer {
            Ok(answer) if number % 4 > 0 => is_message(&answer, number, &[70_000]),
            Err(RequestError::Dropped) if number % 4 == 0 => {}
            other => panic!("{number}: {other:?}"),
        }
    }
    assert!(asking.offered.take_violations().is_empty());
}

#[test]
fn no_more_requests_are_with_the_server_than_the_offer_allows() {
    let mut asking = asking(3);
    let mut pending: Vec<_> = (0..6).map(|number| begin(&asking, number)).collect();
    let mut requests: Vec<_> = (0..3).map(|n| get(&mut asking.port, n)).collect();
    let next = asking.port.get_request(Access::Later, SOON);
    assert!(matches!(next, Err(ReceiveError::TimedOut)), "{next:?}");
    // Whichever is answered makes room for one.
    requests.swap_remove(1).reply_in_place().unwrap();
    let answer = pending[1].wait(Access::Later, long()).unwrap();
    is_message(&answer, 1, &[5000]);
    requests.push(get(&mut asking.port, 3));
    let next = asking.port.get_request(Access::Later, SOON);
    assert!(matches!(next, Err(ReceiveError::TimedOut)), "{next:?}");
    for request in requests {
        request.reply_in_place().unwrap();
    }
    for number in 4..6 {
        get(&mut asking.port, number).reply_in_place().unwrap();
    }
    for number in [0, 2, 3, 4, 5] {
        let answer = pending[number].wait(Access::Later, long()).unwrap();
        is_message(&answer, number as u64, &[5000]);
    }
}

#[test]
fn requests_whose_right_or_port_is_gone_are_answered_yet() {
    let Asking {
        theirs: _theirs,
        ours,
        mut port,
        offered: _offered,
        right,
    } = asking(64);
    let begin = |number| {
        let message = message(&ours, number, &[5000]);
        right.begin_request(message, WhenFull::Fail).unwrap()
    };
    let (mut one, mut other) = (begin(1), begin(2));
    let (first, second) = (get(&mut port, 1), get(&mut port, 2));
    drop(right);
    first.reply_in_place().unwrap();
    is_message(&one.wait(Access::Later, long()).unwrap(), 1, &[5000]);
    drop(port);
    std::thread::sleep(SOON);
    second.reply_in_place().unwrap();
    is_message(&other.wait(Access::Later, long()).unwrap(), 2, &[5000]);
}

/// A client writes requests without end, and reads no answer.
#[test]
fn who_takes_no_answers_has_no_more_requests_served() {
    let offer = OfferOptions::default().most_requests(4);
    let (name, theirs, mut port, offered) = offering(PortOptions::unnamed().synchronous(), offer);
    let stranger = Stranger::new(&name);
    let bytes: Vec<u8> = (0..50)
        .flat_map(|tag| {
            let request = FrameHeader {
                tag,
                ..FrameHeader::new(FrameKind::Request)
            };
            preamble(&request, &[])
        })
        .collect();
    stranger.says(&bytes, bytes.len() as u64);
    // More than the byte ring back holds.
    let mut served = 0;
    while let Ok(request) = port.get_request(Access::Later, SOON) {
        request.reply(message(&theirs, 1, &[200_000])).unwrap();
        served += 1;
    }
    assert_eq!(served, 4);
    // Others are served meanwhile, by the same thread.
    let ours = Domain::join(&unique("beside")).unwrap();
    let other = Domain::builder(&name);
    let right = ours
        .connect_to(&other, "frames", ConnectOptions::default())
        .unwrap();
    let asked = message(&ours, 7, &[5000]);
    let mut pending = right.begin_request(asked, WhenFull::Fail).unwrap();
    get(&mut port, 7).reply_in_place().unwrap();
    is_message(&pending.wait(Access::Later, long()).unwrap(), 7, &[5000]);
    drop(stranger);
    until("it has left", || offered.clients() == 1);
    assert!(offered.take_violations().is_empty());
}

/// As many as a client may have under way, and some more, which wait.
#[test]
fn many_more_requests_than_may_be_under_way() {
    let offer = OfferOptions::default().most_requests(usize::MAX);
    let requests = PortOptions::unnamed().synchronous();
    let (name, _theirs, mut port, _offered) = offering(requests, offer);
    let ours = Domain::join(&unique("many")).unwrap();
    let other = Domain::builder(&name);
    let right = ours
        .connect_to(&other, "frames", ConnectOptions::default())
        .unwrap();
    let count = MAX_REQUESTS as u64 + 40;
    let server = std::thread::spawn(move || {
        let mut held = Vec::new();
        for _ in 0..MAX_REQUESTS {
            held.push(port.get_request(Access::Later, long()).unwrap());
        }
        let next = port.get_request(Access::Later, SOON);
        assert!(matches!(next, Err(ReceiveError::TimedOut)), "{next:?}");
        for request in held {
            request.reply_in_place().unwrap();
        }
        for _ in MAX_REQUESTS as u64..count {
            let request = port.get_request(Access::Later, long()).unwrap();
            request.reply_in_place().unwrap();
        }
    });
    let ask = |number: u64| {
        let message = Message::new(&number.to_le_bytes()).unwrap();
        right.begin_request(message, long()).unwrap()
    };
    let pending: Vec<_> = (0..count).map(ask).collect();
    for (number, mut pending) in (0..count).zip(pending) {
        let answer = pending.wait(Access::Later, long()).unwrap();
        assert_eq!(answer.header(), number.to_le_bytes());
    }
    server.join().unwrap();
}

#[test]
fn one_thread_of_a_process_carries_all_its_connections() {
    let name = unique("offering");
    let mut offers = Child::new();
    assert_eq!(offers.ask(&format!("offer {name}")), "offered");
    assert_eq!(offers.ask("carriers"), "0");
    let mut connects = Child::connected(&name);
    for _ in 0..7 {
        assert_eq!(connects.ask(&format!("connect-more {name}")), "connected");
    }
    assert_eq!(connects.ask("send 1 100"), "sent");
    assert_eq!(offers.ask("receive 1 100"), "received");
    for child in [&mut connects, &mut offers] {
        assert_eq!(child.ask("carriers"), "1");
    }
    // It ends with the last of them, and another one begins with the next.
    assert_eq!(connects.ask("drop-right"), "dropped");
    for child in [&mut connects, &mut offers] {
        until("there is none", || child.ask("carriers") == "0");
    }
    assert_eq!(connects.ask(&format!("connect-more {name}")), "connected");
    for child in [&mut connects, &mut offers] {
        // A thread has its name a moment after it was made.
        until("there is one", || child.ask("carriers") == "1");
    }
}

/// A client that always has more to send does not keep the thread from the others.
#[test]
fn a_busy_connection_holds_up_no_other() {
    let (name, _theirs, mut port, _offered) = plain();
    let (quiet, _quiet_domain, mut asked, _quiet_offered) = plain();
    let mut busy = Child::connected(&name);
    busy.tell("send-many 0 100000 1000000");
    // Both egresses are of one process and domain, and so share its thread.
    let ours = Domain::join(&unique("beside")).unwrap();
    let right = |name| {
        let other = Domain::builder(name);
        ours.connect_to(&other, "frames", ConnectOptions::default())
            .unwrap()
    };
    let (flood, single) = (right(&name), right(&quiet));
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = flood.send(message(&ours, 1, &[1_000_000]), Deadline::after(SOON));
            }
        });
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = port.receive(Access::Later, SOON);
            }
        });
        for number in 0..50 {
            single.send(message(&ours, number, &[100]), long()).unwrap();
            let came = asked.receive(Access::Later, long()).unwrap();
            is_message(&came, number, &[100]);
        }
    });
}
