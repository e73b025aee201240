//! What goes on by itself, in a wait set.

use crate::child::Child;
use crate::{content, domain, export};
use portolan::vmmc::{ImportOptions, Reach};
use portolan::{
    Deadline, Domain, Listener, ListenerOptions, Origin, Segment, Source, Token, WaitSet,
};
use portolan_testkit::{PATIENCE, unique};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A wait set that is told when a descriptor becomes readable.
struct Told {
    set: WaitSet,
    token: Token<Listener>,
    _source: Source,
    _segment: Segment,
}

impl Told {
    fn new(domain: &Domain, of: OwnedFd) -> Self {
        let segment = domain.make_segment(None, 4096).unwrap();
        let at = segment.address();
        let mut listener = domain.listen(ListenerOptions::default()).unwrap();
        listener.on(at..at + 1, |_| {}).unwrap();
        let source = domain.bind_address(at, Origin::Descriptor(of)).unwrap();
        let mut set = WaitSet::new(domain).unwrap();
        let token = set.add(listener).unwrap();
        Self {
            set,
            token,
            _source: source,
            _segment: segment,
        }
    }

    /// Whether it is told by the deadline.
    fn is(&mut self, by: impl Into<Deadline>) -> bool {
        let named = self.set.wait(by).unwrap().next();
        self.set.get_mut(self.token).unwrap().poll();
        named == Some(self.token.any())
    }

    /// Waits, at most once for each thing that happens, until `done` says so.
    fn until<T>(&mut self, mut done: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(done) = done() {
                return done;
            }
            assert!(self.is(PATIENCE), "nobody was told");
        }
    }
}

#[test]
fn an_import_that_waits_for_its_export() {
    let (ours, _) = domain("waits-in-a-set");
    let name = unique("exported-later");
    let mut host = Child::new();
    assert_eq!(host.ask(&format!("join {name}")), "done");
    let mut exporter = Child::new();
    assert_eq!(exporter.ask(&format!("join {name}")), "done");
    let elsewhere = Domain::builder(&name);
    let mut pending = elsewhere
        .begin_import("x", &ImportOptions::default())
        .unwrap();
    let mut told = Told::new(&ours, pending.descriptor().unwrap());
    assert!(told.is(PATIENCE), "there is something to do at first");
    // It is on the host's list when it has been told to wait, and then asks anew.
    let short = Duration::from_millis(600);
    for _ in 0..4 {
        assert!(pending.poll().unwrap().is_none());
        told.is(short);
    }
    assert!(pending.poll().unwrap().is_none());
    // A takeover on its way, and an exporter that is new.
    host.kill();
    assert_eq!(exporter.ask("export x 1"), "done");
    let import = told.until(|| pending.poll().unwrap());
    import.store_release(8, 77).unwrap();
    assert_eq!(exporter.ask("load own 8"), "77");
}

#[test]
fn an_import_within_a_private_domain() {
    let domain = Domain::private().unwrap();
    let mut pending = domain.begin_import("x", &ImportOptions::default()).unwrap();
    let mut told = Told::new(&domain, pending.descriptor().unwrap());
    let nothing = Duration::from_millis(20);
    told.is(PATIENCE);
    while {
        assert!(pending.poll().unwrap().is_none());
        told.is(nothing)
    } {}
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| told.until(|| pending.poll().unwrap()).len());
        std::thread::sleep(nothing);
        let _exported = export(&domain, 1, Reach::ReadWrite);
        assert_eq!(waits.join().unwrap(), 4096);
    });
}

#[test]
fn a_write_and_the_end_of_an_export() {
    let (domain, _) = domain("later-in-a-set");
    let (memory, export) = export(&domain, 16, Reach::ReadWrite);
    let import = domain.import("x", PATIENCE).unwrap();
    let pending = import.begin_write(0, vec![3; 16 * 4096]).unwrap();
    let mut told = Told::new(&domain, pending.descriptor().unwrap());
    assert!(told.is(PATIENCE) && pending.is_done());
    assert_eq!(pending.finish().unwrap().len(), 16 * 4096);
    let pending = export.begin_unexport();
    let mut told = Told::new(&domain, pending.descriptor().unwrap());
    assert!(told.is(PATIENCE) && pending.is_done());
    pending.finish().unwrap();
    assert!(content(&memory).iter().all(|byte| *byte == 3));
}
