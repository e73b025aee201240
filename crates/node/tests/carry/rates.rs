//! Bytes a second to a peer and from it: what was held back is counted, and what floods takes its time at
//! the least.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use portolan::{Access, Deadline, Domain, ReceiveRight};
use portolan_abi::node::{FragmentKind, Ping, Record, Sent};
use portolan_node::rates::{PeerRates, Rate};
use portolan_proto::node::Rates;
use portolan_testkit::{PATIENCE, SetOnDrop, until};

use crate::hostile::{Hostile, ID, fragment, message};
use crate::machine::Network;
use crate::messages::{ask, bind, is_numbered, numbered, send, serve, two};

crate::scenes! {
    a_long_message_is_held_back_and_short_ones_are_not_lost_behind_it,
    rates_that_end_let_all_go,
}

/// Taken from each peer at most.
fn takes(rate: u64) -> PeerRates {
    PeerRates {
        each: Rates {
            send: None,
            take: Some(rate),
        },
        of: Vec::new(),
    }
}

fn a_long_message_is_held_back_and_short_ones_are_not_lost_behind_it(network: &Network) {
    let (hall, roof) = two(network);
    let (mut long, mut short) = (bind(&hall, "long"), bind(&hall, "short"));
    let to_long = roof.domain.connect("long", PATIENCE).unwrap();
    let to_short = roof.domain.connect("short", PATIENCE).unwrap();
    hall.set_rates(takes(2_000_000));
    until("roof hears what is taken", || {
        roof.rates(hall.id).said == Some(2_000_000)
    });
    send(&to_long, numbered(&roof.domain, 7, &[2_000_000]));
    for number in 0..20 {
        send(&to_short, numbered(&roof.domain, number, &[3_000]));
    }
    for number in 0..20 {
        let came = short.receive(Access::Later, PATIENCE).unwrap();
        is_numbered(&came, number, &[3_000]);
    }
    let came = long.receive(Access::Later, PATIENCE).unwrap();
    is_numbered(&came, 7, &[2_000_000]);
    // The burst is a tenth of it: so it waited for the rest, in parts.
    assert!(roof.rates(hall.id).sends_held > 5);
    assert_eq!(hall.rates(roof.id).set.take, Some(2_000_000));
    // The other way there is no limit.
    assert_eq!(hall.rates(roof.id).sends_held, 0);
    assert!(hall.is_up(&roof) && roof.is_up(&hall));
}

fn rates_that_end_let_all_go(network: &Network) {
    let (hall, roof) = two(network);
    let mut long = bind(&hall, "long");
    let right = roof.domain.connect("long", PATIENCE).unwrap();
    // It would take two hours.
    roof.set_rates(PeerRates {
        each: Rates::default(),
        of: vec![Rate {
            node: hall.id.to_string(),
            send: Some(Some(1_000)),
            take: None,
        }],
    });
    send(&right, numbered(&roof.domain, 1, &[8_000_000]));
    until("it is held back", || roof.rates(hall.id).sends_held > 0);
    assert!(long.receive(Access::Later, Deadline::NOW).is_err());
    roof.set_rates(PeerRates::default());
    let came = long.receive(Access::Later, PATIENCE).unwrap();
    is_numbered(&came, 1, &[8_000_000]);
}

/// It hears no rate, and floods the link: it is read at the rate, others as ever, and what it says is heard
/// in the end.
#[test]
fn a_greedy_peer_is_read_at_its_rate_and_holds_nobody_up() {
    let network = Network::memory();
    let (hall, roof) = two(&network);
    let mut open = bind(&hall, "open");
    let mut upper = serve(&hall, "upper");
    let right = roof.domain.connect("upper", PATIENCE).unwrap();
    hall.set_rates(PeerRates {
        of: vec![Rate {
            node: roof.id.to_string(),
            send: None,
            take: Some(None),
        }],
        ..takes(4_000_000)
    });
    let (began, over) = (Instant::now(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        let mut greedy = Hostile::new(&hall);
        let over = &over;
        scope.spawn(move || {
            greedy.greet(1);
            greedy.resolve(1, "open");
            let opens = message(0, &[1_500_000], &[]);
            greedy.write(greedy.bulk, &fragment(FragmentKind::Opens, 1, 0, &opens));
            for part in 0..6 {
                let bytes = [part; 250_000];
                let offset = 250_000 * u64::from(part);
                greedy.write(
                    greedy.bulk,
                    &fragment(FragmentKind::Data, 1, offset, &bytes),
                );
            }
            let ping = Record::Ping(Ping {
                clock: 1,
                echo: None,
                held: 0,
            });
            let ping = ping.with(Sent::default());
            let many = ping.repeat(1_000);
            (0..20).for_each(|_| greedy.write(greedy.records, &many));
            // One that is silent is hung up, and what was read of it is not told any more.
            while !over.load(Relaxed) {
                greedy.write(greedy.records, &ping);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let domain = &hall.domain;
        scope.spawn(|| answers(domain, &mut upper));
        for number in 0..50 {
            let answer = ask(&right, numbered(&roof.domain, number, &[2_000])).unwrap();
            is_numbered(&answer, number, &[2_000]);
        }
        let came = open.receive(Access::Later, PATIENCE).unwrap();
        let extent = &came.extents()[0];
        let wrong = extent.iter().enumerate();
        let wrong = wrong.filter(|(at, is)| usize::from(**is) != at / 250_000);
        assert_eq!((extent.len(), wrong.count()), (1_500_000, 0));
        until("all of it is read", || {
            let report = hall.report();
            let its = report.peers.iter().find(|it| it.node == ID);
            its.is_some_and(|it| it.bytes.1 > 1_500_000 + 20_000 * 32)
        });
        let view = hall.rates(ID);
        // How often depends on how much comes at a time; that it takes its time does not: all but twice
        // a burst, and what comes at once, goes by the rate.
        assert!(view.takes_held > 0, "{view:?}");
        let at_rate = Duration::from_secs_f64(1_250_000.0 / 4_000_000.0);
        assert!(began.elapsed() >= at_rate, "{view:?}");
        assert_eq!(hall.rates(roof.id).takes_held, 0);
    });
}

/// Answers what is asked, as it came.
fn answers(domain: &Domain, upper: &mut ReceiveRight) {
    for number in 0..50 {
        let request = upper.get_request(Access::Later, PATIENCE).unwrap();
        is_numbered(&request.message, number, &[2_000]);
        request.reply(numbered(domain, number, &[2_000])).unwrap();
    }
}
