//! Upcalls between processes, also of two users.

use super::*;
use portolan_testkit::{in_role, role, spawn, unique};
use std::process::{Command, Stdio};

/// A user who is neither us nor root.
const FRIEND: u32 = 54_324;

/// The other process; nothing, when it is run as a test.
#[test]
fn sender() {
    let Some([name, owner]) = role() else { return };
    let owner = owner.parse().unwrap();
    let domain = Domain::builder(&name).of_user(owner).join().unwrap();
    signal_a_hundred(&domain);
}

fn sends(name: &str) -> Command {
    // Whose domain it is.
    let owner = portolan_sys::process::user().to_string();
    in_role("processes::sender", &[name, &owner])
}

#[test]
fn another_users_process_has_the_upcall_thread_interrupt() {
    use std::os::unix::process::CommandExt;
    if portolan_sys::process::user() != 0 {
        eprintln!("skipped: only root can run processes of two users");
        return;
    }
    let name = unique("friend");
    let domain = Domain::builder(&name).allow_user(FRIEND).join().unwrap();
    let segment = domain.make_segment(Some("here"), 4096).unwrap();
    let at = segment.address();
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let (board, _) = interrupted(&mut listener, at..at + 4096);
    let mut child = sends(&name).uid(FRIEND).gid(FRIEND).spawn().unwrap();
    spin_until("the handler was called", || {
        board.count.load(Ordering::SeqCst) == 100
    });
    assert!(child.wait().unwrap().success());
    assert_eq!(board.seen(), (at..at + 100).collect::<Vec<_>>());
    assert_eq!(board.on.load(Ordering::SeqCst), thread());
}

/// A process with a thread that can be interrupted; nothing, when it is run as a test.
#[test]
fn interrupted_one() {
    let Some([name]) = role() else { return };
    let domain = Domain::join(&name).unwrap();
    let segment = domain.find_segment("here", PATIENCE).unwrap();
    let at = segment.address();
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let (board, _) = interrupted(&mut listener, at..at + 64);
    let answers = domain.clone();
    loop {
        // The first call may come before this thread has left `interrupted`.
        spin_until("the handler was called", || {
            board.count.load(Ordering::SeqCst) > 0
        });
        // The board has room for a hundred.
        board.count.store(0, Ordering::SeqCst);
        answers.signal(at + 64).unwrap();
    }
}

#[test]
fn a_thread_that_is_interrupted_may_be_killed() {
    let name = unique("killed");
    let domain = Domain::join(&name).unwrap();
    let segment = domain.make_segment(Some("here"), 4096).unwrap();
    let at = segment.address();
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    listener.on(at + 64..at + 65, |_| {}).unwrap();
    for _ in 0..5 {
        let mut child = spawn("processes::interrupted_one", &[&name]);
        spin_until("somebody listens", || domain.signal(at).unwrap() == 1);
        assert!(listener.wait(PATIENCE).is_some());
        child.kill().unwrap();
        // While it dies, and until the host has noticed.
        spin_until("nobody listens", || {
            domain.signal(at).unwrap() == 0 && domain.survey().unwrap().spaces.len() == 1
        });
        child.wait().unwrap();
        while listener.poll() > 0 {}
    }
}

/// A process whose upcall panics; nothing, when it is run as a test.
#[test]
fn panicking_one() {
    let Some([name]) = role() else { return };
    let domain = Domain::join(&name).unwrap();
    let segment = domain.find_segment("here", PATIENCE).unwrap();
    let at = segment.address();
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    // SAFETY:
    // - It breaks the promise, in the one way that ends the process.
    let delivery = unsafe { Delivery::upcall() };
    let panics = |_| panic!("as the test wants");
    listener.on_by(delivery, at..at + 64, panics).unwrap();
    domain.signal(at + 64).unwrap();
    // Interrupted here, with no lock held, so that the panic can be reported.
    loop {
        std::thread::sleep(PATIENCE);
    }
}

#[test]
fn an_upcall_that_panics_ends_its_process_and_no_other() {
    use std::os::unix::process::ExitStatusExt;
    let name = unique("panics");
    let domain = Domain::join(&name).unwrap();
    let segment = domain.make_segment(Some("here"), 4096).unwrap();
    let at = segment.address();
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let (board, _) = interrupted(&mut listener, at + 65..at + 66);
    listener.on(at + 64..at + 65, |_| {}).unwrap();
    let mut child = in_role("processes::panicking_one", &[&name])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(listener.wait(PATIENCE).is_some(), "it is ready");
    assert_eq!(domain.signal(at).unwrap(), 1);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGABRT));
    spin_until("nobody listens", || {
        domain.signal(at).unwrap() == 0 && domain.survey().unwrap().spaces.len() == 1
    });
    // We go on, also with upcalls.
    assert_eq!(domain.signal(at + 64).unwrap(), 1);
    assert_eq!(listener.poll(), 1);
    assert_eq!(domain.signal(at + 65).unwrap(), 1);
    spin_until("the handler was called", || board.seen() == [at + 65]);
}

#[test]
fn another_process_interrupts_a_thread() {
    let name = unique("delivery");
    let domain = Domain::join(&name).unwrap();
    let segment = domain.make_segment(Some("here"), 4096).unwrap();
    let at = segment.address();
    let mut listener = domain.listen(ListenerOptions::default()).unwrap();
    let (board, _) = interrupted(&mut listener, at..at + 4096);
    let mut child = sends(&name).spawn().unwrap();
    spin_until("the handler was called", || {
        board.count.load(Ordering::SeqCst) == 100
    });
    assert!(child.wait().unwrap().success());
    assert_eq!(board.seen(), (at..at + 100).collect::<Vec<_>>());
    assert_eq!(board.on.load(Ordering::SeqCst), thread());
}
