//! Two members admit newcomers at the same time, under the model checker: the host, which was
//! stopped and goes on, and a member that admitted in its place.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p portolan-shm --release --target-dir target/loom \
//!     --test loom_admission -- --nocapture --test-threads 1
//! ```
//!
//! The bound of each model is the number in it; LOOM_MAX_PREEMPTIONS overrides it.
#![cfg(loom)]

mod support;

use loom::sync::Mutex;
use loom::thread;
use portolan_abi::space::{SpacePhase, SpaceStatus};
use portolan_shm::atomic::death::after;
use portolan_shm::atomic::{AtomicU64, Ordering};
use portolan_shm::space;
use support::{explore, explore_deaths, with};

const HOST: u8 = 1;
const MEMBER: u8 = 2;
const FREE: SpaceStatus = SpaceStatus {
    phase: SpacePhase::Free,
    disconnected: false,
    claimer: 0,
    incarnation: 0,
};

/// What takes a free entry.
type Claim = fn(&AtomicU64, u8) -> Option<u32>;

/// A space's entry: its status, and the process that it names.
struct Entry {
    status: AtomicU64,
    process: AtomicU64,
}

/// The entries of a domain, and the welcome that each of two members has sent to the newcomer.
struct Domain {
    entries: Vec<Entry>,
    welcomes: [Mutex<Option<(usize, u32)>>; 2],
}

impl Domain {
    fn new(entries: usize) -> Self {
        let entry = || Entry {
            status: AtomicU64::new(FREE.pack()),
            process: AtomicU64::new(0),
        };
        Self {
            entries: (0..entries).map(|_| entry()).collect(),
            welcomes: [Mutex::new(None), Mutex::new(None)],
        }
    }

    /// What a member does with the greeting of a process, up to the welcome.
    fn reserve(&self, by: u8, process: u64, claim: Claim) -> Option<(usize, u32)> {
        for entry in &self.entries {
            let now = space::status(&entry.status);
            let same = entry.process.load(Ordering::Relaxed) == process;
            if now.phase == SpacePhase::Joining && same {
                let (joining, free) = (SpacePhase::Joining, SpacePhase::Free);
                space::step(&entry.status, now.incarnation, joining, free);
            }
        }
        let (index, incarnation) = self
            .entries
            .iter()
            .enumerate()
            .find_map(|(i, entry)| Some((i, claim(&entry.status, by)?)))?;
        let entry = &self.entries[index];
        entry.process.store(process, Ordering::Relaxed);
        space::hand_over(&entry.status, by, incarnation).then_some((index, incarnation))
    }

    /// What a newcomer does with a welcome.
    fn arrive(&self, (index, incarnation): (usize, u32), process: u64) -> bool {
        let entry = &self.entries[index];
        let (joining, live) = (SpacePhase::Joining, SpacePhase::Live);
        let arrived = space::step(&entry.status, incarnation, joining, live);
        if arrived {
            // A1: the entry says whose it is.
            assert_eq!(entry.process.load(Ordering::Relaxed), process);
        }
        arrived
    }

    fn count(&self, phase: SpacePhase) -> usize {
        let all = self.entries.iter();
        all.filter(|e| space::status(&e.status).phase == phase)
            .count()
    }
}

/// The claim as a store: what a host could do that alone admits.
fn claim_by_store(word: &AtomicU64, claimer: u8) -> Option<u32> {
    let was = space::status(word);
    let claimed = SpaceStatus {
        phase: SpacePhase::Claimed,
        claimer,
        incarnation: was.incarnation + 1,
        ..was
    };
    (was.phase == SpacePhase::Free).then(|| {
        word.store(claimed.pack(), Ordering::Release);
        claimed.incarnation
    })
}

/// A1, A3: two newcomers, each admitted by another member, get two entries.
fn two_newcomers(claim: Claim) {
    with(Domain::new(3), |domain| {
        let others = thread::spawn(move || {
            let got = domain.reserve(HOST, 10, claim);
            got.map(|welcome| (welcome.0, domain.arrive(welcome, 10)))
        });
        let ours = domain.reserve(MEMBER, 20, claim).unwrap();
        let arrived = domain.arrive(ours, 20);
        // Either may have missed a free entry by one step of the other's, and asks again.
        let other = others.join().unwrap();
        assert!(arrived && other.is_some_and(|(_, arrived)| arrived));
        assert_eq!(domain.count(SpacePhase::Live), 2);
        assert_eq!(domain.count(SpacePhase::Free), 1);
    });
}

#[test]
fn two_newcomers_get_two_entries() {
    explore("two newcomers", 3, || two_newcomers(space::claim));
}

#[test]
#[should_panic]
fn an_entry_that_is_taken_by_a_store_is_given_twice() {
    explore("claim by store", 3, || two_newcomers(claim_by_store));
}

/// A4: the host has the newcomer's first greeting in its hands, and a member the second.
#[test]
fn a_newcomer_that_two_admit_enters_once() {
    explore("one newcomer, two that admit", 3, || {
        with(Domain::new(3), |domain| {
            let admits = |by: u8, to: usize| {
                let welcome = domain.reserve(by, 10, space::claim);
                *domain.welcomes[to].lock().unwrap() = welcome;
                welcome
            };
            let host = thread::spawn(move || admits(HOST, 0));
            let member = thread::spawn(move || admits(MEMBER, 1));
            // It gives the first connection up if nothing has come, and asks for the second.
            let first = domain.welcomes[0].lock().unwrap().take();
            let entered = first.is_some_and(|w| domain.arrive(w, 10));
            let (by_host, by_member) = (host.join().unwrap(), member.join().unwrap());
            let entered = entered || by_member.is_some_and(|w| domain.arrive(w, 10));
            // Each that admitted it frees the entry that the newcomer has not entered: the
            // newcomer's connection has ended.
            for (index, incarnation) in [by_host, by_member].into_iter().flatten() {
                let (joining, free) = (SpacePhase::Joining, SpacePhase::Free);
                space::step(&domain.entries[index].status, incarnation, joining, free);
            }
            assert_eq!(domain.count(SpacePhase::Live), usize::from(entered));
            assert_eq!(
                domain.count(SpacePhase::Free),
                domain.entries.len() - usize::from(entered)
            );
        });
    });
}

/// A2: a member dies while it admits; what it had claimed becomes free, and nothing else.
#[test]
fn who_admits_dies() {
    explore_deaths("admitting", 2, |k| {
        with(Domain::new(2), |domain| {
            let victim = thread::spawn(move || {
                let admits = || domain.reserve(MEMBER, 20, space::claim);
                after(k, || admits().map(|w| domain.arrive(w, 20))).is_none()
            });
            let ours = domain.reserve(HOST, 10, space::claim);
            let died = victim.join().unwrap();
            if died {
                for entry in &domain.entries {
                    space::release(&entry.status, MEMBER);
                }
            }
            assert!(domain.arrive(ours.unwrap(), 10));
            assert_eq!(domain.count(SpacePhase::Claimed), 0);
            // The newcomer of the dead one asks again, and gets an entry.
            if died && domain.count(SpacePhase::Live) < 2 {
                let again = domain.reserve(HOST, 20, space::claim).unwrap();
                assert!(domain.arrive(again, 20));
            }
            assert_eq!(domain.count(SpacePhase::Live), 2);
            died
        })
    });
}
