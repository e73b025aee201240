//! A receive right lies in a port's queue when that port is closed, so its own port is closed
//! with it; and the process that closes them is killed, or stopped.

use crate::child::{Child, PATIENCE, unique, until};
use portolan::{
    Access, Deadline, Domain, Message, Notice, PortOptions, ReceiveRight, SendRight, WhenFull,
};

/// Marks that are passed first within the inner port, and then in the outer one.
const INNER: [&str; 3] = ["close.disposed", "close.drained", "close.told"];

/// A port with two messages in it lies in the queue of another.
struct Scene {
    domain: Domain,
    /// Told when the inner port dies.
    inbox: ReceiveRight,
    inner: SendRight,
    giver: Child,
    closer: Child,
}

impl Scene {
    fn new(name: &str) -> Self {
        let domain = Domain::builder(name).size(64 << 20).join().unwrap();
        let inbox = domain.bind(PortOptions::unnamed()).unwrap();
        let [mut giver, mut closer] = [Child::joined(name), Child::joined(name)];
        let done = |child: &mut Child, order: &str| assert_eq!(child.ask(order), "done");
        done(&mut giver, "bind inner");
        let inner = domain.connect("inner", Deadline::after(PATIENCE)).unwrap();
        for bytes in [1000, 2000] {
            let mut message = Message::new(b"").unwrap();
            message.push(domain.allocate(bytes).unwrap()).unwrap();
            inner.send(message, WhenFull::Fail).unwrap();
        }
        inner.watch(&inbox, 7).unwrap();
        done(&mut closer, "bind outer");
        done(&mut giver, "connect outer");
        done(&mut giver, "give");
        Self {
            domain,
            inbox,
            inner,
            giver,
            closer,
        }
    }

    fn is_there(&self, port: &str) -> bool {
        let survey = self.domain.survey().unwrap();
        survey.ports.iter().any(|p| p.name.as_deref() == Some(port))
    }

    /// Both are closed to the end, and every waiting process has been told.
    fn check(mut self, mark: &str) {
        let told = self.inbox.receive(Access::Now, Deadline::after(PATIENCE));
        let notice = told.unwrap().notice();
        assert_eq!(notice, Some(Notice::DeadName { token: 7 }), "{mark}");
        until(&format!("both are gone after {mark}"), || {
            !self.is_there("inner") && !self.is_there("outer")
        });
        until(&format!("what was in them is back after {mark}"), || {
            self.domain.survey().unwrap().memory.used == 0
        });
        assert!(!self.inner.is_live());
        assert!(!self.giver.ended());
    }
}

#[test]
fn its_closer_dies_and_it_is_closed_to_the_end() {
    for mark in INNER {
        let mut scene = Scene::new(&unique("closer"));
        assert_eq!(scene.closer.ask(&format!("die at {mark}")), "done");
        scene.closer.tell("close");
        until(&format!("the closer dies at {mark}"), || {
            scene.closer.ended()
        });
        scene.check(mark);
    }
}

#[test]
fn the_host_that_closes_it_for_somebody_dead_dies() {
    for mark in INNER {
        let name = unique("heir");
        let mut host = Child::joined(&name);
        let mut scene = Scene::new(&name);
        assert_eq!(host.ask(&format!("die at {mark}")), "done");
        scene.closer.kill();
        until(&format!("the host dies at {mark}"), || host.ended());
        scene.check(mark);
    }
}

/// Whose it was dies as well: it is not for the host to close it a second time.
#[test]
fn it_is_closed_by_one_alone() {
    let mut scene = Scene::new(&unique("one"));
    assert_eq!(scene.closer.ask("stop at close.disposed"), "done");
    scene.closer.tell("close");
    scene.closer.stopped();
    let space = scene.giver.space();
    scene.giver.kill();
    until("the giver's space is free", || {
        let survey = scene.domain.survey().unwrap();
        survey.spaces.iter().all(|s| s.id != space)
    });
    // Of the same shape: it would get the other's entry, if that were free.
    let mut next = scene.domain.bind(PortOptions::unnamed()).unwrap();
    let right = next.make_send();
    let three: [&[u8]; 3] = [b"1", b"2", b"3"];
    for header in three {
        right
            .send(Message::new(header).unwrap(), WhenFull::Fail)
            .unwrap();
    }
    until("the closer goes on to the end", || {
        scene.closer.resume();
        !scene.is_there("outer") && !scene.is_there("inner")
    });
    for header in three {
        let message = next.receive(Access::Now, Deadline::after(PATIENCE));
        assert_eq!(message.unwrap().header(), header);
    }
    assert!(right.is_live());
}
