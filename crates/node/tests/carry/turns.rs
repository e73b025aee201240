//! Flows of several nodes that wait for room in one port are served in turn.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portolan::{Deadline, Message, PortOptions, WhenFull};
use portolan_testkit::{PATIENCE, SetOnDrop, until};

use crate::machine::{Machine, Network};
use crate::rights::receive;

/// Messages that are counted, and of these each of three flows gets so many at the least: not all of a third,
/// because a sender may not have been ready.
const COUNTED: u32 = 120;
const LEAST: u32 = 20;

/// The fewest slots that a queue has: fewer than flows wait, so one could come before another each time.
#[test]
fn three_flows_that_press_on_one_port_have_as_many_turns_each() {
    let network = Network::tls();
    let machines = ["hall", "roof", "attic", "cellar"].map(|name| Machine::new(&network, name));
    let [hall, others @ ..] = machines.each_ref();
    others.iter().for_each(|other| other.linked(hall));
    let options = PortOptions::named("narrow").spanned().queue(1);
    let mut port = hall.domain.bind(options).unwrap();
    let over = AtomicBool::new(false);
    let counts = std::thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        for (sender, machine) in others.iter().enumerate() {
            let (domain, over) = (&machine.domain, &over);
            scope.spawn(move || {
                let right = domain.connect("narrow", PATIENCE).unwrap();
                while !over.load(Ordering::Relaxed) {
                    let message = Message::new(&[u8::try_from(sender).unwrap()]).unwrap();
                    let soon = Deadline::after(Duration::from_millis(50));
                    // The next one comes if this one finds no room.
                    let _ = right.send(message, WhenFull::Wait(soon));
                }
            });
        }
        until("all flows wait", || {
            let waits =
                |other: &&Machine| other.report().spans[0].proxies.iter().any(|it| it.waits);
            others.iter().all(waits)
        });
        let mut counts = [0; 3];
        for _ in 0..COUNTED {
            let message = receive(&mut port);
            counts[usize::from(message.header()[0])] += 1;
            // All that wait are there again before the next.
            std::thread::sleep(Duration::from_millis(5));
        }
        counts
    });
    assert!(counts.iter().all(|count| *count >= LEAST), "{counts:?}");
}
