//! Tests that unused memory goes back to the system, while others allocate.

use portolan::{Domain, Protection};
use std::sync::atomic::{AtomicBool, Ordering};

const THREADS: u8 = 3;
const SIZES: [usize; 5] = [4096, 10_000, 200_000, 1 << 20, 3 << 20];

#[test]
fn what_is_used_stays_and_all_else_goes_back() {
    let name = portolan_testkit::unique("trim");
    let guarded = Domain::builder(&name).protection(Protection::Guarded);
    let domains = [Domain::private().unwrap(), guarded.join().unwrap()];
    for domain in domains {
        let taken = || domain.survey().unwrap().memory.taken;
        let mut kept = domain.allocate(300_000).unwrap();
        kept.fill(77);
        let over = AtomicBool::new(false);
        let given = std::thread::scope(|scope| {
            let threads = (1..=THREADS).map(|thread| {
                let (domain, over) = (&domain, &over);
                scope.spawn(move || {
                    for size in SIZES.into_iter().cycle().take(80) {
                        let mut extent = domain.allocate(size).unwrap();
                        extent.fill(thread);
                        std::thread::yield_now();
                        assert!(extent.iter().all(|b| *b == thread), "it is ours");
                    }
                    over.store(true, Ordering::Relaxed);
                })
            });
            let threads = threads.collect::<Vec<_>>();
            let mut given = 0;
            while !over.load(Ordering::Relaxed) {
                given += domain.trim().unwrap();
            }
            threads.into_iter().for_each(|t| t.join().unwrap());
            given + domain.trim().unwrap()
        });
        assert!(given >= 4 << 20, "{given}");
        assert_eq!(taken(), 2 << 20, "the chunk of what is kept");
        assert!(kept.iter().all(|b| *b == 77));
        drop(kept);
        assert_eq!(domain.trim().unwrap(), 2 << 20);
        assert_eq!((taken(), domain.trim().unwrap()), (0, 0));
        let again = domain.allocate(5000).unwrap();
        assert_eq!(again.len(), 5000);
    }
}

/// Who takes an extent of the other size next would have its memory zeroed once more.
#[test]
fn what_would_not_be_enough_is_not_given_back() {
    const CHUNK: usize = 2 << 20;
    let domain = Domain::builder("limited").limit(8 * CHUNK as u64);
    let domain = domain.private().unwrap();
    let taken = || domain.survey().unwrap().memory.taken;
    drop(domain.allocate(4096).unwrap());
    let held: Vec<_> = (0..6).map(|_| domain.allocate(CHUNK).unwrap()).collect();
    let before = taken();
    assert_eq!(before, 7 * CHUNK as u64);
    // With the chunk of the small one there would be two chunks.
    assert!(domain.allocate(3 * CHUNK).is_err());
    assert_eq!(taken(), before);
    let long = domain.allocate(2 * CHUNK).unwrap();
    assert_eq!(taken(), 8 * CHUNK as u64);
    drop((held, long));
}

/// Page faults of this thread so far that no disk was asked for.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, behind_name) = stat.rsplit_once(')').unwrap();
    behind_name
        .split_whitespace()
        .nth(7)
        .unwrap()
        .parse()
        .unwrap()
}

/// In huge pages or small ones: who writes it waits for no page of it.
#[test]
fn what_is_taken_from_the_system_is_all_there_and_empty() {
    const BYTES: usize = 6 << 20;
    let domain = Domain::private().unwrap();
    for _ in 0..3 {
        let mut extent = domain.allocate(BYTES).unwrap();
        let before = faults();
        assert!(extent.iter().all(|byte| *byte == 0));
        extent.fill(7);
        let faults = faults() - before;
        assert!(faults < 100, "{faults} faults of {} pages", BYTES / 4096);
        drop(extent);
        assert_eq!(domain.trim().unwrap(), BYTES as u64);
    }
}
