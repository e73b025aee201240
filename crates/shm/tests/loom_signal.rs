//! Signals, every interleaving: a sleeping reader, several senders, a death, moves.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p portolan-shm --release --target-dir target/loom \
//!     --test loom_signal -- --nocapture --test-threads 1
//! ```
#![cfg(loom)]

mod support;

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::thread;
use portolan_shm::atomic::Ordering;
use portolan_shm::atomic::death::after;
use portolan_shm::signal::{Fifo, FifoEntry, HandlerEntry, Head, Pushed, Ranges, RangesLine};
use support::signal::Listener;
use support::{explore, explore_deaths, with};

#[test]
fn no_signal_is_lost_and_no_reader_sleeps_on() {
    explore("two senders, a sleeper", 3, || {
        let (listener, mut head) = Listener::new();
        with(listener, |listener| {
            let senders = [1, 2].map(|i| thread::spawn(move || assert!(listener.push(i * 10))));
            let mut got = [0; 2].map(|_| listener.wait(&mut head, || false).unwrap());
            got.sort_unstable();
            assert_eq!(got, [10, 20]);
            for sender in senders {
                sender.join().unwrap();
            }
            assert_eq!(listener.fifo().pop(&mut head), None);
        });
    });
}

#[test]
fn a_full_fifo_counts_what_it_drops() {
    explore(
        "two senders, one of two signals each is too many",
        2,
        || {
            let (listener, mut head) = Listener::new();
            with(listener, |listener| {
                let senders = [1, 2].map(|i| {
                    thread::spawn(move || {
                        (0..2).filter(|n| listener.push(i * 10 + n)).count() as u64
                    })
                });
                let mut got = vec![];
                got.extend(listener.fifo().pop(&mut head));
                let pushed: u64 = senders.map(|s| s.join().unwrap()).iter().sum();
                got.extend(core::iter::from_fn(|| listener.fifo().pop(&mut head)));
                assert_eq!(got.len() as u64, pushed);
                assert_eq!(listener.fifo().dropped(), 4 - pushed);
                // S2: in the order of each sender.
                for i in [10, 20] {
                    let of: Vec<u64> = got.iter().copied().filter(|o| o / 10 * 10 == i).collect();
                    assert!(of.is_sorted());
                }
            });
        },
    );
}

/// S2: a sender that finds a slot of the lap before full does not go on to the next one, which
/// may be emptied by then.
#[test]
fn no_signal_goes_beyond_a_full_slot() {
    explore("a full FIFO, read while one more signal comes", 3, || {
        let (listener, mut head) = Listener::new();
        with(listener, |listener| {
            assert!(listener.push(10) && listener.push(20));
            let sender = thread::spawn(move || listener.push(30));
            let mut got = Vec::new();
            got.extend((0..2).filter_map(|_| listener.fifo().pop(&mut head)));
            listener.fifo().settle(&mut head);
            let pushed = sender.join().unwrap();
            got.extend(core::iter::from_fn(|| listener.fifo().pop(&mut head)));
            assert_eq!(got, [10, 20, 30][..2 + usize::from(pushed)]);
        });
    });
}

#[test]
fn a_sender_dies() {
    explore_deaths("sender, reader asleep", 2, |k| {
        let (listener, mut head) = Listener::new();
        with(listener, |listener| {
            let over = Arc::new(AtomicBool::new(false));
            let victim = thread::spawn(move || after(k, || listener.push(10)).is_none());
            let seen = Arc::clone(&over);
            let reader = thread::spawn(move || {
                (
                    listener.wait(&mut head, || seen.load(Ordering::SeqCst)),
                    head,
                )
            });
            let died = victim.join().unwrap();
            over.store(died, Ordering::SeqCst);
            if died {
                // The host wakes whom the dead may have owed a wake.
                listener.wake();
            }
            let (got, mut head) = reader.join().unwrap();
            assert!(died || got == Some(10));
            for lap in 0..2 {
                // S6: only then are both slots empty.
                listener.fifo().settle(&mut head);
                assert!(listener.push(lap) && listener.push(lap + 10));
                assert!(!listener.push(0));
                let got = [0; 2].map(|_| listener.fifo().pop(&mut head));
                assert_eq!(got, [Some(lap), Some(lap + 10)]);
            }
            died
        })
    });
}

#[test]
fn a_handler_moves_and_loses_nothing() {
    struct Two {
        fifos: [FifoEntry; 2],
        line: RangesLine,
        places: Vec<portolan_shm::atomic::AtomicU64>,
        handlers: Vec<HandlerEntry>,
    }
    explore("a signal while its handler moves", 3, || {
        let two = Two {
            fifos: Default::default(),
            line: RangesLine::default(),
            places: (0..2).map(|_| Default::default()).collect(),
            handlers: vec![HandlerEntry::default()],
        };
        let mut heads = two.fifos.each_ref().map(|e| Fifo::open(e, 2).1);
        with(two, |two| {
            let ranges = || Ranges::new(&two.line, &two.places, &two.handlers);
            ranges().add(0, 1, (0, 64), 0, 0).unwrap();
            let sender = thread::spawn(move || {
                let mut sent = 0;
                ranges().find(7, |_, handler| {
                    let mut to = handler.fifo();
                    loop {
                        assert_ne!(
                            Fifo::new(&two.fifos[to as usize]).unwrap().push(7),
                            Pushed::Full
                        );
                        match handler.moved_from(to) {
                            Some(now) => to = now,
                            None => break,
                        }
                    }
                    sent += 1;
                });
                assert_eq!(sent, 1);
            });
            two.handlers[0].move_to(1);
            let old = Fifo::new(&two.fifos[0]).unwrap();
            let new = Fifo::new(&two.fifos[1]).unwrap();
            while let Some(offset) = old.pop(&mut heads[0]) {
                assert_ne!(new.push(offset), Pushed::Full);
            }
            sender.join().unwrap();
            assert_eq!(new.pop(&mut heads[1]), Some(7));
        });
    });
}

/// S4: a sender that found a handler by one byte of its range finds it by every other.
#[test]
fn a_handler_is_there_with_its_whole_range_or_not_at_all() {
    struct Table {
        line: RangesLine,
        places: Vec<portolan_shm::atomic::AtomicU64>,
        handlers: Vec<HandlerEntry>,
    }
    explore(
        "a handler of two blocks is added beside a sender",
        3,
        || {
            let table = Table {
                line: RangesLine::default(),
                places: (0..4).map(|_| Default::default()).collect(),
                handlers: vec![HandlerEntry::default()],
            };
            with(table, |table| {
                let ranges = || Ranges::new(&table.line, &table.places, &table.handlers);
                let sender = thread::spawn(move || {
                    // Blocks are added in the order of their addresses.
                    [0, 64].map(|offset| {
                        let mut found = 0;
                        ranges().find(offset, |_, _| found += 1);
                        found
                    })
                });
                ranges().add(0, 1, (0, 128), 0, 0).unwrap();
                let [first, second] = sender.join().unwrap();
                assert!(first <= second, "found by one block of two");
            });
        },
    );
}

/// The signal of the models below.
const SIGNAL: u64 = 7;

/// Handlers of one address, in two FIFOs.
struct Shared {
    fifos: [FifoEntry; 2],
    line: RangesLine,
    places: Vec<portolan_shm::atomic::AtomicU64>,
    handlers: Vec<HandlerEntry>,
    /// The function of the handler that moves is where it moves to.
    given: AtomicBool,
}

impl Shared {
    /// With a handler in each of these FIFOs.
    fn new(of: &[u32]) -> (Self, [Head; 2]) {
        let shared = Self {
            fifos: Default::default(),
            line: RangesLine::default(),
            places: (0..2 * of.len().next_power_of_two())
                .map(|_| Default::default())
                .collect(),
            handlers: of.iter().map(|_| HandlerEntry::default()).collect(),
            given: AtomicBool::new(false),
        };
        let heads = shared.fifos.each_ref().map(|e| Fifo::open(e, 4).1);
        for (id, fifo) in (0..).zip(of) {
            shared.ranges().add(id, 1, (0, 64), *fifo, 0).unwrap();
        }
        (shared, heads)
    }

    fn ranges(&self) -> Ranges<'_> {
        Ranges::new(&self.line, &self.places, &self.handlers)
    }

    fn fifo(&self, index: u32) -> Fifo<'_> {
        Fifo::new(&self.fifos[index as usize]).unwrap()
    }

    /// Signals as the library does (S5): one push for all handlers of a FIFO, and another one for
    /// each that has moved since.
    fn signal(&self) {
        let mut group = vec![];
        self.ranges()
            .find(SIGNAL, |_, handler| group.push((handler, handler.fifo())));
        assert_eq!(group.len(), self.handlers.len());
        let mut told = [false; 2];
        for &(_, to) in &group {
            if !core::mem::replace(&mut told[to as usize], true) {
                assert_ne!(self.fifo(to).push(SIGNAL), Pushed::Full);
            }
        }
        for (handler, mut to) in group {
            while let Some(now) = handler.moved_from(to) {
                assert_ne!(self.fifo(now).push(SIGNAL), Pushed::Full);
                to = now;
            }
        }
    }

    /// Moves a handler from the first FIFO to the second one, as its listener does; how many
    /// signals were there, for the handlers that stay.
    fn give(&self, id: usize, head: &mut Head) -> u64 {
        self.given.store(true, Ordering::Release);
        self.handlers[id].move_to(1);
        let mut there = 0;
        while self.fifo(0).pop(head).is_some() {
            assert_ne!(self.fifo(1).push(SIGNAL), Pushed::Full);
            there += 1;
        }
        there
    }

    /// Reads what is in a FIFO, at most so many.
    fn read(&self, fifo: u32, head: &mut Head, most: usize) -> u64 {
        let read = (0..most).map_while(|_| self.fifo(fifo).pop(head));
        read.map(|offset| assert_eq!(offset, SIGNAL)).count() as u64
    }
}

#[test]
fn of_two_handlers_of_one_fifo_one_moves_and_neither_loses_anything() {
    explore("two handlers of a FIFO, one moves, two signals", 3, || {
        let (shared, mut heads) = Shared::new(&[0, 0]);
        with(shared, |shared| {
            let senders = [(); 2].map(|()| thread::spawn(move || shared.signal()));
            // Both are here yet.
            let both = shared.read(0, &mut heads[0], 1);
            let (mut stays, mut moves) = (both, both);
            stays += shared.give(1, &mut heads[0]);
            for sender in senders {
                sender.join().unwrap();
            }
            stays += shared.read(0, &mut heads[0], 4);
            moves += shared.read(1, &mut heads[1], 4);
            assert_eq!(stays, 2, "each is pushed once for who stays");
            assert!(moves >= 2, "{moves}");
        });
    });
}

#[test]
fn who_moves_to_where_the_signal_was_read_already_is_told_again() {
    explore("a handler moves to the FIFO of another one", 3, || {
        let (shared, [mut here, mut there]) = Shared::new(&[0, 0, 1]);
        with(shared, |shared| {
            let sender = thread::spawn(move || shared.signal());
            let reader = thread::spawn(move || {
                let mut moved = 0;
                let mut own = 0;
                for _ in 0..2 {
                    let read = shared.read(1, &mut there, 1);
                    own += read;
                    // After the signal, as a listener looks for what it was given.
                    moved += read * u64::from(shared.given.load(Ordering::Acquire));
                }
                (own, moved, there)
            });
            let both = shared.read(0, &mut here, 1);
            let stays = both + shared.give(1, &mut here);
            sender.join().unwrap();
            let (own, moved, mut there) = reader.join().unwrap();
            let late = shared.read(1, &mut there, 4);
            assert_eq!(stays + shared.read(0, &mut here, 4), 1);
            assert!(own + late >= 1);
            assert!(both + moved + late >= 1, "the one that moves was not told");
        });
    });
}

/// A handler is added, and given up, while another thread has the lock and brings the table in
/// order: a sender that signals after it was added finds it once.
struct Unlisted {
    line: RangesLine,
    places: Vec<portolan_shm::atomic::AtomicU64>,
    handlers: Vec<HandlerEntry>,
}

impl Unlisted {
    fn new() -> Self {
        Self {
            line: RangesLine::default(),
            places: (0..4).map(|_| Default::default()).collect(),
            handlers: (0..2).map(|_| HandlerEntry::default()).collect(),
        }
    }

    fn ranges(&self) -> Ranges<'_> {
        Ranges::new(&self.line, &self.places, &self.handlers)
    }

    fn add(&self, space: u8) -> u16 {
        let index = self.ranges().claim(space).unwrap();
        self.ranges().add_unlisted(index, (0, 64), 0, 0).unwrap();
        index
    }

    fn found(&self) -> usize {
        let mut found = 0;
        self.ranges().find(SIGNAL, |_, _| found += 1);
        found
    }
}

#[test]
fn a_handler_that_is_added_without_the_lock_is_found_once() {
    explore("added without the lock", 3, || {
        with(Unlisted::new(), |listener| {
            let holder = thread::spawn(|| while !listener.ranges().sweep() {});
            let sender = thread::spawn(|| listener.found());
            listener.add(1);
            assert_eq!(listener.found(), 1);
            assert!(sender.join().unwrap() <= 1);
            holder.join().unwrap();
            assert_eq!(listener.found(), 1);
            assert!(listener.ranges().sweep() && !listener.ranges().is_untidy());
            assert_eq!(listener.found(), 1);
        });
    });
}

#[test]
fn two_are_added_and_one_given_up_without_the_lock() {
    explore("added and given up without the lock", 2, || {
        with(Unlisted::new(), |listener| {
            let holder = thread::spawn(|| listener.ranges().sweep());
            let other = thread::spawn(|| listener.add(2));
            let ours = listener.add(1);
            listener.ranges().orphan(ours, 1);
            // Perhaps in the entry that we gave up, if it was swept before.
            other.join().unwrap();
            assert_eq!(listener.found(), 1);
            holder.join().unwrap();
            assert!(listener.ranges().sweep() && !listener.ranges().is_untidy());
            assert_eq!(listener.found(), 1);
            // Its entry and its place are free again.
            listener.add(3);
            assert!(listener.ranges().sweep());
            assert_eq!(listener.found(), 2);
        });
    });
}

/// The thread that lists handlers dies; the next one finishes it, and no signal is found twice.
#[test]
fn who_lists_handlers_dies() {
    explore_deaths("listing", 2, |k| {
        with(Unlisted::new(), |listener| {
            listener.add(1);
            let holder = thread::spawn(move || after(k, || listener.ranges().sweep()).is_none());
            let sender = thread::spawn(|| listener.found());
            let died = holder.join().unwrap();
            assert_eq!(sender.join().unwrap(), 1);
            if died {
                listener.ranges().disown(2, true);
            }
            assert!(listener.ranges().sweep() && !listener.ranges().is_untidy());
            assert_eq!(listener.found(), 1);
            died
        })
    });
}
