//! Memory that is taken from the kernel and given back to it: a death in the middle leaves no
//! hole under an extent, and threads that need none do not wait.
#![cfg(feature = "marks")]

use portolan::{AllocateError, Domain, Extent, Protection};
use portolan_testkit::{PATIENCE, die_at, role, spawn, unique};
use std::cell::RefCell;
use std::os::unix::process::ExitStatusExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

const CHUNK: usize = 2 << 20;
/// Chunks of memory that a domain of these tests may have.
const CHUNKS: usize = 4;

fn join(name: &str, protection: Protection) -> Domain {
    let builder = Domain::builder(name).protection(protection);
    builder.limit((CHUNKS * CHUNK) as u64).join().unwrap()
}

/// Leaves memory in chunks of the small part, and then wants all of it in the large part: so
/// chunks are given back, one by one.
fn give_back(domain: &Domain) -> Result<(), AllocateError> {
    let sizes = [4096, 65_536, 1 << 20];
    drop(sizes.map(|bytes| domain.allocate(bytes)));
    domain.allocate(3 << 20).map(drop)
}

/// All extents of 64 KiB that there are, once the dead have been reclaimed.
fn all_extents(domain: &Domain) -> Vec<Extent> {
    const BYTES: usize = 64 << 10;
    let most = CHUNKS * CHUNK / BYTES;
    let end = Instant::now() + PATIENCE;
    loop {
        let had = (0..most).map_while(|_| domain.allocate(BYTES).ok());
        let had: Vec<_> = had.collect();
        if had.len() == most {
            return had;
        }
        assert!(Instant::now() < end, "{} of {most} extents", had.len());
        drop(had);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The other process; nothing, when it is run as a test.
#[test]
fn other() {
    let Some([what, name, mark]) = role() else {
        return;
    };
    let domain = join(&name, Protection::Guarded);
    if what == "dies" {
        die_at(&mark, portolan_shm::mark::install);
        give_back(&domain).unwrap();
        return;
    }
    // All extents that there are, twice, and in each a page is written to. The first touch of a
    // hole makes a page there; the second one opens it together with its neighbours.
    for _ in 0..2 {
        all_extents(&domain)
            .iter_mut()
            .for_each(|extent| extent[5 * 4096] = 7);
    }
}

#[test]
fn who_dies_while_memory_is_given_back_leaves_no_hole() {
    for mark in ["chunk.emptied", "chunk.punched"] {
        let name = unique("supply");
        let _host = join(&name, Protection::Guarded);
        let mut victim = spawn("other", &["dies", &name, mark]);
        let ended = victim.wait().unwrap();
        assert_eq!(ended.signal(), Some(libc::SIGKILL), "{mark}: {ended}");
        let mut toucher = spawn("other", &["touches", &name, "-"]);
        let ended = toucher.wait().unwrap();
        assert!(ended.success(), "{mark}: {ended}");
    }
}

/// Where a thread stops for a while: it says so, and waits until it is told to go on.
struct Stop {
    mark: &'static str,
    reached: Sender<()>,
    go_on: Receiver<()>,
}

thread_local! {
    static STOP: RefCell<Option<Stop>> = const { RefCell::new(None) };
}

fn passed(mark: &'static str) {
    let stop = STOP.with_borrow_mut(|stop| stop.take_if(|stop| stop.mark == mark));
    if let Some(stop) = stop {
        stop.reached.send(()).unwrap();
        // Also when the test has failed, and its end was dropped.
        let _ = stop.go_on.recv();
    }
}

#[test]
fn other_threads_allocate_while_one_is_at_the_kernel_for_memory() {
    portolan_shm::mark::install(passed);
    let protections = [Protection::Trusted, Protection::Guarded];
    // Before memory is taken, after it, and between giving some back and taking it.
    let marks = ["allocate.run_claimed", "chunk.populated", "chunk.punched"];
    for (protection, mark) in protections.into_iter().flat_map(|p| marks.map(|m| (p, m))) {
        let name = unique("supply-beside");
        let domain = join(&name, protection);
        let _kept = domain.allocate(4096).unwrap();
        let (reached, is_there) = channel();
        let (go, go_on) = channel();
        let growing = std::thread::spawn({
            let domain = domain.clone();
            move || {
                // Leaves too little memory for the run, but for what is given back.
                drop([65_536, 1 << 20].map(|bytes| domain.allocate(bytes)));
                let stop = Stop {
                    mark,
                    reached,
                    go_on,
                };
                STOP.set(Some(stop));
                domain.allocate(3 << 20).map(drop)
            }
        });
        is_there.recv_timeout(PATIENCE).unwrap();
        let (say, said) = channel();
        std::thread::spawn({
            let domain = domain.clone();
            move || say.send(domain.allocate(4096).map(|extent| extent.len()))
        });
        let beside = said.recv_timeout(PATIENCE);
        go.send(()).unwrap();
        let len = beside.unwrap_or_else(|_| panic!("{mark}: the other thread waits"));
        assert_eq!(len.unwrap(), 4096);
        growing.join().unwrap().unwrap();
    }
}
