//! Faults and who answers them. Whatever may kill a process runs in a child.

mod support;

use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use portolan_sys::fault::{self, Fault, Kind, Line, Verdict, WatchError};
use portolan_sys::memory::{self, Access, Mapping, PAGE};
use portolan_sys::upcall::{self, Callee, Caller, Upcall};
use portolan_sys::userfault::Minor;

const LEN: usize = 8 * PAGE;

/// A memory file whose pages are all there, and a mapping of it that is watched by a
/// userfaultfd with every page closed.
fn closed() -> (Mapping, Mapping, Minor) {
    let fd = memory::create("portolan-closed", LEN as u64).unwrap();
    let open = Mapping::shared_anywhere(&fd, LEN).unwrap();
    for page in 0..LEN / PAGE {
        write(
            open.base().addr() + page * PAGE,
            u8::try_from(page).unwrap() + 1,
        );
    }
    let closed = Mapping::shared_anywhere(&fd, LEN).unwrap();
    let minor = Minor::new().unwrap();
    minor.register(closed.base().addr(), LEN).unwrap();
    (open, closed, minor)
}

fn read(address: usize) -> u8 {
    let byte = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY:
    // - Mapped by the test, or the test is about the fault.
    unsafe { byte.read_volatile() }
}

fn write(address: usize, value: u8) {
    let byte = std::ptr::with_exposed_provenance_mut::<u8>(address);
    // SAFETY:
    // - Mapped by the test, or the test is about the fault.
    unsafe { byte.write_volatile(value) };
}

/// Runs `test` in a child; what became of it, and what it said.
fn run(test: &str) -> (ExitStatus, String) {
    let output = support::child(test, "victim").output().unwrap();
    (
        output.status,
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn a_touch_of_a_closed_page_is_sigbus() {
    if support::role().is_none() {
        let (status, said) = run("a_touch_of_a_closed_page_is_sigbus");
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{said}");
        return;
    }
    let (_open, closed, _minor) = closed();
    read(closed.base().addr());
}

#[test]
fn resume_opens_and_zap_closes_with_the_content_kept() {
    let (open, closed, minor) = closed();
    let start = closed.base().addr();
    assert!(!is_open(start));
    // One page in the middle first: the batch has to step over it.
    minor.resume(start + 3 * PAGE, PAGE).unwrap();
    assert!(is_open(start + 3 * PAGE) && !is_open(start + 2 * PAGE));
    minor.resume(start, LEN).unwrap();
    for page in 0..LEN / PAGE {
        assert_eq!(usize::from(read(start + page * PAGE)), page + 1);
    }
    minor.resume(start, LEN).unwrap();
    write(start, 77);
    // SAFETY:
    // - Shared memory.
    unsafe { memory::zap(start, LEN) }.unwrap();
    assert!(!is_open(start) && !is_open(start + LEN - PAGE));
    assert_eq!(read(open.base().addr()), 77);
    minor.resume(start, PAGE).unwrap();
    assert_eq!(read(start), 77);
    minor.unregister(start, LEN).unwrap();
    assert!(is_open(start + PAGE));
}

/// Whether the kernel can read the page: it answers EFAULT, not SIGBUS, if not.
fn is_open(address: usize) -> bool {
    let (_read, write) = rustix::pipe::pipe().unwrap();
    let from = std::ptr::with_exposed_provenance(address);
    // SAFETY:
    // - The kernel checks the address itself.
    let written = unsafe { libc::write(write.as_raw_fd(), from, 1) };
    assert!(
        written == 1
            || rustix::io::Errno::from_io_error(&std::io::Error::last_os_error())
                == Some(rustix::io::Errno::FAULT)
    );
    written == 1
}

#[test]
fn a_hole_cannot_be_resumed_and_allocated_memory_can() {
    let fd = memory::create("portolan-hole", LEN as u64).unwrap();
    let mapping = Mapping::shared_anywhere(&fd, LEN).unwrap();
    let start = mapping.base().addr();
    let minor = Minor::new().unwrap();
    minor.register(start, LEN).unwrap();
    let hole = minor.resume(start, LEN).unwrap_err();
    assert_eq!(hole.raw_os_error(), Some(libc::EFAULT));
    // Taken, but never written: closed like any other page.
    memory::allocate(&fd, 0, LEN as u64).unwrap();
    assert!(!is_open(start));
    minor.resume(start, LEN).unwrap();
    assert_eq!(read(start), 0);
    assert!(minor.resume(0x1000, PAGE).is_err());
}

#[test]
fn populating_does_not_open_and_collapsing_does() {
    let len = memory::HUGE_PAGE;
    let fd = memory::create("portolan-collapse", len as u64).unwrap();
    let mapping = Mapping::shared_anywhere(&fd, len).unwrap();
    let start = mapping.base().addr();
    memory::populate_write(start, len).unwrap();
    let minor = Minor::new().unwrap();
    minor.register(start, len).unwrap();
    // SAFETY:
    // - Shared memory.
    unsafe { memory::zap(start, len) }.unwrap();
    assert!(memory::populate_read(start, PAGE).is_err());
    assert!(memory::populate_write(start, PAGE).is_err());
    assert!(!is_open(start));
    if memory::collapse(start, len).unwrap() {
        // Not what one would wish for; the documentation warns of it.
        assert!(is_open(start));
    }
    // SAFETY:
    // - Shared memory.
    unsafe { memory::zap(start, len) }.unwrap();
    assert!(!is_open(start) && !is_open(start + len - PAGE));
}

#[test]
fn dropping_the_descriptor_opens_everything() {
    let (_open, closed, minor) = closed();
    drop(minor);
    assert_eq!(read(closed.base().addr()), 1);
}

/// What the handler in [`a_watcher_opens_pages_by_touch`] saw.
static TOUCHED: AtomicUsize = AtomicUsize::new(0);
static WRITES: AtomicU32 = AtomicU32::new(0);

fn open_on_touch(fault: &Fault, context: usize) -> Verdict {
    let minor = std::ptr::with_exposed_provenance::<Minor>(context);
    // SAFETY:
    // - The test keeps it alive for as long as it watches.
    let minor = unsafe { &*minor };
    TOUCHED.fetch_add(1, Ordering::Relaxed);
    if fault.write == Some(true) {
        WRITES.fetch_add(1, Ordering::Relaxed);
    }
    let page = fault.address / PAGE * PAGE;
    match minor.resume(page, PAGE) {
        Ok(()) if fault.kind == Kind::Bus => Verdict::Retry,
        _ => Verdict::Refuse,
    }
}

#[test]
fn a_watcher_opens_pages_by_touch() {
    let (_open, closed, minor) = closed();
    let start = closed.base().addr();
    let context = (&raw const minor).expose_provenance();
    let watch = fault::watch(start, LEN, open_on_touch, context).unwrap();
    assert_eq!(read(start + 5), 0);
    assert_eq!(read(start + PAGE), 2);
    assert_eq!(TOUCHED.load(Ordering::Relaxed), 2);
    write(start + 2 * PAGE, 9);
    assert_eq!(TOUCHED.load(Ordering::Relaxed), 3);
    if cfg!(target_arch = "x86_64") {
        assert_eq!(WRITES.load(Ordering::Relaxed), 1);
    }
    // Several threads at once.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for page in 3..LEN / PAGE {
                    assert_eq!(usize::from(read(start + page * PAGE)), page + 1);
                }
            });
        }
    });
    drop(watch);
}

#[test]
fn a_refused_fault_kills_with_its_own_signal() {
    if support::role().is_none() {
        let (status, said) = run("a_refused_fault_kills_with_its_own_signal");
        assert_eq!(status.signal(), Some(libc::SIGSEGV), "{said}");
        assert!(said.contains("stray write at 0x"), "{said}");
        return;
    }
    fn refuse(fault: &Fault, context: usize) -> Verdict {
        if fault.kind == Kind::Segv && fault.address == context {
            Line::new()
                .text(b"stray write at ")
                .hex(fault.address as u64)
                .text(b"\n")
                .write();
        }
        Verdict::Refuse
    }
    let fd = memory::create("portolan-refuse", LEN as u64).unwrap();
    let mapping = Mapping::shared_anywhere(&fd, LEN).unwrap();
    let start = mapping.base().addr();
    let _watch = fault::watch(start, LEN, refuse, start + 8).unwrap();
    // SAFETY:
    // - Our mapping, and no reference points into it.
    unsafe { memory::protect(start, LEN, Access::Read) }.unwrap();
    write(start + 8, 1);
}

/// How often the thread was called, and how often while its fault was being handled.
static CALLS: AtomicU32 = AtomicU32::new(0);
static CALLS_MEANWHILE: AtomicU32 = AtomicU32::new(0);

#[test]
fn an_upcall_waits_until_a_fault_is_handled() {
    struct Count;
    impl Callee for Count {
        fn run(&mut self) {
            CALLS.fetch_add(1, Ordering::Relaxed);
        }
    }
    struct Touched {
        minor: Minor,
        caller: Caller,
    }
    fn call_and_open(fault: &Fault, context: usize) -> Verdict {
        let touched = std::ptr::with_exposed_provenance::<Touched>(context);
        // SAFETY:
        // - The test keeps it alive for as long as it watches.
        let Touched { minor, caller } = unsafe { &*touched };
        let called = caller.call();
        CALLS_MEANWHILE.fetch_add(CALLS.load(Ordering::Relaxed), Ordering::Relaxed);
        match (called, minor.resume(fault.address / PAGE * PAGE, PAGE)) {
            (Ok(()), Ok(())) => Verdict::Retry,
            _ => Verdict::Refuse,
        }
    }
    let (_open, closed, minor) = closed();
    let start = closed.base().addr();
    // SAFETY:
    // - An addition is async-signal-safe.
    let upcall = unsafe { Upcall::register(upcall::default_signal(), Count) }.unwrap();
    let caller = upcall.caller();
    let touched = Touched { minor, caller };
    let context = (&raw const touched).expose_provenance();
    let _watch = fault::watch(start, LEN, call_and_open, context).unwrap();
    assert_eq!(read(start + PAGE), 2);
    assert_eq!(CALLS_MEANWHILE.load(Ordering::Relaxed), 0);
    assert_eq!(CALLS.load(Ordering::Relaxed), 1);
}

#[test]
fn a_fault_that_nobody_watches_kills_as_ever() {
    if support::role().is_none() {
        let (status, said) = run("a_fault_that_nobody_watches_kills_as_ever");
        assert_eq!(status.signal(), Some(libc::SIGSEGV), "{said}");
        return;
    }
    let _watch = fault::watch(PAGE, PAGE, |_, _| Verdict::Retry, 0).unwrap();
    read(2 * PAGE);
}

#[test]
fn a_signal_that_somebody_sent_is_not_a_fault() {
    if support::role().is_none() {
        let (status, said) = run("a_signal_that_somebody_sent_is_not_a_fault");
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{said}");
        return;
    }
    let _watch = fault::watch(0, usize::MAX, |_, _| Verdict::Retry, 0).unwrap();
    // The runtime's own handler, which is the previous one, resets the action and expects
    // the access to be made again. A sent signal is not, so it takes a second one.
    for _ in 0..2 {
        // SAFETY:
        // - Kills the process, which is the point.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}

#[test]
fn without_a_handler_before_ours_the_default_holds() {
    let Some(role) = support::role() else {
        let test = "without_a_handler_before_ours_the_default_holds";
        for (role, died_of) in [
            ("unwatched", Some(libc::SIGSEGV)),
            ("refused", Some(libc::SIGSEGV)),
            ("sent", Some(libc::SIGSEGV)),
            ("ignored", None),
        ] {
            let output = support::child(test, role).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.signal(), died_of, "{role}: {said}");
        }
        return;
    };
    let before = if role == "ignored" {
        libc::SIG_IGN
    } else {
        libc::SIG_DFL
    };
    // SAFETY:
    // - No handler of ours runs.
    unsafe { libc::signal(libc::SIGSEGV, before) };
    let _watch = fault::watch(PAGE, PAGE, |_, _| Verdict::Refuse, 0).unwrap();
    match role.as_str() {
        "unwatched" => drop(read(3 * PAGE)),
        "refused" => drop(read(PAGE)),
        // SAFETY:
        // - Kills the process or does nothing, which is the point.
        _ => drop(unsafe { libc::raise(libc::SIGSEGV) }),
    }
}

#[test]
fn the_handler_before_ours_still_gets_its_faults() {
    if support::role().is_none() {
        let (status, said) = run("the_handler_before_ours_still_gets_its_faults");
        assert_eq!(status.code(), Some(42), "{said}");
        return;
    }
    extern "C" fn older(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY:
        // - The handler before passes on what the kernel gave.
        let info = unsafe { &*info };
        // SAFETY:
        // - A fault carries an address.
        let address = unsafe { info.si_addr() }.addr();
        let code = if signal == libc::SIGSEGV && address == 3 * PAGE {
            42
        } else {
            43
        };
        // SAFETY:
        // - Ends the process without running anything else.
        unsafe { libc::_exit(code) };
    }
    let older: extern "C" fn(_, _, _) = older;
    // SAFETY:
    // - All bits zero are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = older as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY:
    // - A handler of the type that the flags say.
    unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()) };
    let _watch = fault::watch(PAGE, PAGE, |_, _| Verdict::Retry, 0).unwrap();
    read(3 * PAGE);
}

#[test]
fn a_dropped_watch_watches_nothing_and_makes_room() {
    if support::role().is_none() {
        // In a process of its own, because it fills the table.
        let (status, said) = run("a_dropped_watch_watches_nothing_and_makes_room");
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{said}");
        assert!(said.contains("before the fault"), "{said}");
        return;
    }
    let (_open, closed, minor) = closed();
    let context = (&raw const minor).expose_provenance();
    let watch = || fault::watch(closed.base().addr(), LEN, open_on_touch, context);
    let mut watches: Vec<_> = std::iter::from_fn(|| watch().ok()).collect();
    assert!(matches!(watch(), Err(WatchError::Full { max }) if max == watches.len()));
    watches.pop();
    watches.push(watch().unwrap());
    assert_eq!(read(closed.base().addr()), 1);
    drop(watches);
    fault::report(&[b"before the ", b"fault\n"]);
    read(closed.base().addr() + PAGE);
}

#[test]
fn impossible_ranges_are_refused() {
    let watch = |start, len| fault::watch(start, len, |_, _| Verdict::Refuse, 0);
    assert!(matches!(
        watch(usize::MAX, 2),
        Err(WatchError::OutOfRange { .. })
    ));
    assert!(matches!(watch(PAGE, 0), Err(WatchError::OutOfRange { .. })));
}

#[test]
fn lines_hold_what_fits() {
    let mut line = Line::new();
    line.decimal(0)
        .text(b" ")
        .decimal(u64::MAX)
        .text(b" ")
        .hex(u64::MAX);
    assert_eq!(
        line.as_bytes(),
        b"0 18446744073709551615 0xffffffffffffffff"
    );
    let mut long = Line::new();
    long.text(&[b'x'; 2000]).text(b"more");
    assert!(long.as_bytes().len() < 2000);
}
