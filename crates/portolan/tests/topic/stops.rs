//! Publishers that are stopped at marked steps, while others go on.

use crate::{options, used};
use portolan::{Domain, Protection};
use portolan_testkit::{PATIENCE, resume, role, spawn, until};
use std::process::Child;

const LONG: usize = 70_000;
const TEST: &str = "stops::a_buffer_stays_while_its_publisher_is_stopped";

/// Where it has taken back what told of the buffer. The host looks at every port, and takes a right
/// on every segment for a moment, when it returns what a dead member held.
#[test]
fn a_buffer_stays_while_its_publisher_is_stopped() {
    match role() {
        Some([what, name]) if what == "publishes" => return publish(&name),
        Some([_, name]) => {
            let domain = Domain::join(&name).unwrap();
            let _port = domain.bind(portolan::PortOptions::named("mortal")).unwrap();
            std::thread::sleep(PATIENCE);
            return;
        }
        None => {}
    }
    for protection in [Protection::Trusted, Protection::Guarded] {
        let name = format!("stops-{}-{protection:?}", std::process::id());
        let builder = Domain::builder(&name).protection(protection);
        let domain = builder.join().unwrap();
        let mut publisher = spawn(TEST, &["publishes", &name]);
        until("the publisher has stopped", || is_stopped(&publisher));
        let before = used(&domain);

        let mut mortal = spawn(TEST, &["dies", &name]);
        drop(domain.connect("mortal", PATIENCE).unwrap());
        assert_eq!(domain.survey().unwrap().spaces.len(), 3);
        mortal.kill().unwrap();
        mortal.wait().unwrap();
        until("what it held is returned", || {
            domain.survey().unwrap().spaces.len() == 2
        });
        assert_eq!(used(&domain), before, "{protection:?}");

        resume(&publisher);
        assert!(publisher.wait().unwrap().success());
        until("all is returned", || used(&domain) == (0, 0));
    }
}

fn publish(name: &str) {
    let domain = Domain::join(name).unwrap();
    let mut publisher = domain.publisher::<[u8]>("t", options()).unwrap();
    let sample = [7; LONG];
    for _ in 0..30 {
        publisher.publish(&sample).unwrap();
    }
    let buffers = publisher.buffers();
    portolan_testkit::stop_once_at("topic.taken_back", portolan_shm::mark::install);
    for _ in 0..30 {
        publisher.publish(&sample).unwrap();
    }
    assert_eq!(publisher.buffers(), buffers, "one of them is dead");
}

fn is_stopped(process: &Child) -> bool {
    let stat = format!("/proc/{}/stat", process.id());
    std::fs::read_to_string(stat).is_ok_and(|stat| stat.contains(") T "))
}
