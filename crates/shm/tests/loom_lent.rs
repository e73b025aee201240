//! A node's lent ports under the model checker.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p portolan-shm --release --target-dir target/loom \
//!     --test loom_lent -- --nocapture --test-threads 1
//! ```
//!
//! The bound of each model is the number in it; LOOM_MAX_PREEMPTIONS overrides it.
#![cfg(loom)]

mod support;

use loom::thread;
use portolan_abi::port::{PortName, PortPhase, PortStatus, event};
use portolan_shm::atomic::death::after;
use portolan_shm::atomic::{AtomicU64, Ordering, store_load_barrier};
use portolan_shm::lent::{Change, LentPorts, look};
use portolan_shm::queue::PortEntry;
use support::{explore, explore_deaths, with};

/// What the bell says.
const BELL: u64 = 7;
/// The entry of the port.
const INDEX: u16 = 70;

/// The words of lent ports, one port's entry, and the sleep of its node.
#[derive(Default)]
struct World {
    lent: LentPorts,
    entry: PortEntry,
    asleep: AtomicU64,
    woken: AtomicU64,
}

const fn name(generation: u32) -> PortName {
    PortName {
        index: INDEX,
        generation,
    }
}

impl World {
    /// With the first port open.
    fn new() -> Self {
        let world = Self::default();
        world.lent.begin(BELL);
        world.bind(1);
        world
    }

    fn bind(&self, generation: u32) {
        self.entry.sleep.wanted.store(0, Ordering::Relaxed);
        self.set(PortPhase::Open, generation);
    }

    fn set(&self, phase: PortPhase, generation: u32) {
        let status = PortStatus {
            phase,
            generation,
            ..PortStatus::FRESH
        };
        let word = &self.entry.control.status;
        word.swap(status.pack(), Ordering::SeqCst);
    }

    /// Closes the port of this generation, as the library does.
    fn close(&self, generation: u32) {
        self.set(PortPhase::Closing, generation + 1);
        self.tell(INDEX);
        self.set(PortPhase::Free, generation + 1);
    }

    /// Asks for its senders, as its receiver does.
    fn ask(&self) {
        let wanted = &self.entry.sleep.wanted;
        wanted.fetch_or(event::NO_MORE_SENDERS, Ordering::SeqCst);
        self.tell(INDEX);
    }

    fn tell(&self, index: u16) {
        if self.lent.is_lent(index) {
            assert_eq!(self.lent.change(index), BELL);
            store_load_barrier();
            if self.asleep.load(Ordering::SeqCst) == 1 {
                self.woken.store(1, Ordering::SeqCst);
            }
        }
    }

    /// Whether the node finds the port's entry among those that have changed.
    fn finds(&self) -> bool {
        let mut found = false;
        self.lent.drain(|index| found |= index == INDEX);
        found
    }
}

/// L1: a port closes while it is lent.
#[test]
fn a_port_that_closes_while_it_is_lent_is_told_of() {
    explore("lend, close", 4, || {
        with(World::new(), |world| {
            let closer = thread::spawn(|| world.close(1));
            world.lent.lend(INDEX);
            let seen = look(&world.entry, name(1)) == Some(Change::Closed);
            closer.join().unwrap();
            assert!(seen || world.finds());
        });
    });
}

/// L1: its receiver asks while it is lent.
#[test]
fn a_question_for_senders_while_it_is_lent_is_told_of() {
    explore("lend, ask", 4, || {
        with(World::new(), |world| {
            let receiver = thread::spawn(|| world.ask());
            world.lent.lend(INDEX);
            let seen = look(&world.entry, name(1)) == Some(Change::WantsSenders);
            receiver.join().unwrap();
            assert!(seen || world.finds());
        });
    });
}

/// L3: two ports change while the node takes what has changed; one is of the same word, one is not.
#[test]
fn changes_beside_a_look_are_found_by_it_or_by_the_next() {
    for other in [3, INDEX + 1] {
        explore("two changes, drain", 3, move || {
            with(World::new(), |world| {
                world.lent.lend(INDEX);
                world.lent.lend(other);
                let one = thread::spawn(|| world.tell(INDEX));
                let two = thread::spawn(move || world.tell(other));
                let mut found = Vec::new();
                world.lent.drain(|index| found.push(index));
                one.join().unwrap();
                two.join().unwrap();
                world.lent.drain(|index| found.push(index));
                found.sort_unstable();
                found.dedup();
                let mut all = [INDEX, other];
                all.sort_unstable();
                assert_eq!(found, all);
            });
        });
    }
}

/// The bell: a node that finds nothing, and falls asleep, is woken.
#[test]
fn a_node_that_falls_asleep_is_woken_for_a_change() {
    explore("change, sleep", 4, || {
        with(World::new(), |world| {
            world.lent.lend(INDEX);
            let closer = thread::spawn(|| world.close(1));
            world.lent.drain(|_| {});
            world.asleep.swap(1, Ordering::SeqCst);
            let sleeps = !world.lent.has_changed();
            closer.join().unwrap();
            let dead = look(&world.entry, name(1));
            assert_eq!(dead, Some(Change::Closed));
            // Awake, woken, or it had found the change before.
            let found = world.finds();
            assert!(!(sleeps && found) || world.woken.load(Ordering::SeqCst) == 1);
        });
    });
}

/// L2: an entry is taken by the next port, which is lent too, beside the notice of the first one's
/// close. Each is told of as what it is.
#[test]
fn the_next_port_of_an_entry_is_not_taken_for_the_closed_one() {
    explore("close, bind, lend, ask", 3, || {
        with(World::new(), |world| {
            world.lent.lend(INDEX);
            world.close(1);
            world.bind(2);
            let receiver = thread::spawn(|| world.ask());
            world.lent.lend(INDEX);
            let mut told = look(&world.entry, name(2));
            let mut finds = || {
                if world.finds() {
                    assert_eq!(look(&world.entry, name(1)), Some(Change::Closed));
                    told = told.or(look(&world.entry, name(2)));
                }
            };
            finds();
            receiver.join().unwrap();
            finds();
            assert_eq!(told, Some(Change::WantsSenders));
        });
    });
}

/// L4: a closer dies anywhere; the host goes on with what it has begun, from the start.
#[test]
fn a_closer_that_dies_leaves_nothing_untold() {
    explore_deaths("close", 3, |accesses| {
        with(World::new(), |world| {
            world.lent.lend(INDEX);
            let closer = thread::spawn(move || after(accesses, || world.close(1)));
            let mut found = world.finds();
            let outcome = closer.join().unwrap();
            let status = PortStatus::unpack(world.entry.control.status.load(Ordering::SeqCst));
            if outcome.is_none() && status.phase == PortPhase::Closing {
                world.tell(INDEX);
            }
            found |= world.finds();
            let closed = look(&world.entry, name(1)) == Some(Change::Closed);
            assert!(found || !closed);
            outcome.is_none()
        })
    });
}
