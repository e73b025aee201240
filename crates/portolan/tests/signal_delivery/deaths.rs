//! When the sender dies before it can call, or wake.

use super::*;

/// The other process; nothing, when it is run as a test.
#[test]
fn victim() {
    let Some([name, mark]) = portolan_testkit::role() else {
        return;
    };
    let domain = Domain::join(&name).unwrap();
    portolan_testkit::die_at(&mark, portolan_shm::mark::install);
    signal_a_hundred(&domain);
}

#[test]
fn a_call_that_the_dead_owed_is_made() {
    for mark in ["signal.filled", "signal.before_wake"] {
        let name = portolan_testkit::unique("owed");
        let domain = Domain::join(&name).unwrap();
        let segment = domain.make_segment(Some("here"), 4096).unwrap();
        let at = segment.address();
        let mut listener = domain.listen(ListenerOptions::default()).unwrap();
        let (board, _) = interrupted(&mut listener, at..at + 4096);
        let mut child = portolan_testkit::spawn("deaths::victim", &[&name, mark]);
        spin_until("the handler was called", || board.seen() == [at]);
        assert!(!child.wait().unwrap().success());
        // And the thread can be interrupted again.
        domain.signal(at + 1).unwrap();
        spin_until("the handler was called", || board.seen() == [at, at + 1]);
    }
}

#[test]
fn a_wait_set_is_told_of_what_the_dead_signalled() {
    for mark in ["signal.filled", "signal.before_wake", "send.raised"] {
        let name = portolan_testkit::unique("raised");
        let domain = Domain::join(&name).unwrap();
        let segment = domain.make_segment(Some("here"), 4096).unwrap();
        let at = segment.address();
        let mut listener = domain.listen(ListenerOptions::default()).unwrap();
        listener.on(at..at + 4096, |_| {}).unwrap();
        let mut set = WaitSet::new(&domain).unwrap();
        set.set_waiting(Waiting::Sleep);
        let token = set.add(listener).unwrap();
        assert!(set.wait(Deadline::NOW).unwrap().is_empty());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let ready = set.wait(PATIENCE).unwrap().next();
                assert_eq!(ready, Some(token.any()), "{mark}");
                set.get_mut(token).unwrap().poll()
            });
            let mut child = portolan_testkit::spawn("deaths::victim", &[&name, mark]);
            assert!(!child.wait().unwrap().success());
            assert_eq!(waits.join().unwrap(), 1, "{mark}");
        });
    }
}
