//! Signals, every interleaving: a sleeping reader, several senders, a death, a move.
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
use support::{Futex, explore, explore_deaths, with};

struct World {
    entry: FifoEntry,
    futex: Futex,
}

impl World {
    fn new() -> (Self, Head) {
        let entry = FifoEntry::default();
        let (_, head) = Fifo::open(&entry, 2);
        let futex = Futex::default();
        (Self { entry, futex }, head)
    }

    fn fifo(&self) -> Fifo<'_> {
        Fifo::new(&self.entry).unwrap()
    }

    fn push(&self, offset: u64) -> bool {
        match self.fifo().push(offset) {
            Pushed::Done => true,
            Pushed::Wake => {
                self.futex.ring(&self.entry.control.doorbell);
                true
            }
            Pushed::Full => false,
        }
    }

    fn wait(&self, head: &mut Head, over: &AtomicBool) -> Option<u64> {
        let fifo = self.fifo();
        loop {
            let last = over.load(Ordering::SeqCst);
            if let Some(offset) = fifo.pop(head) {
                return Some(offset);
            }
            if last {
                return None;
            }
            if let Some(bell) = fifo.arm(head)
                && !over.load(Ordering::SeqCst)
            {
                self.futex.wait(&self.entry.control.doorbell, bell);
            }
            fifo.disarm(head);
        }
    }
}

#[test]
fn no_signal_is_lost_and_no_reader_sleeps_on() {
    explore("two senders, a sleeper", 3, || {
        let (world, mut head) = World::new();
        with(world, |world| {
            let senders = [1, 2].map(|i| thread::spawn(move || assert!(world.push(i * 10))));
            let over = AtomicBool::new(false);
            let mut got = [0; 2].map(|_| world.wait(&mut head, &over).unwrap());
            got.sort_unstable();
            assert_eq!(got, [10, 20]);
            for sender in senders {
                sender.join().unwrap();
            }
            assert_eq!(world.fifo().pop(&mut head), None);
        });
    });
}

#[test]
fn a_full_fifo_counts_what_it_drops() {
    explore(
        "two senders, one of two signals each is too many",
        2,
        || {
            let (world, mut head) = World::new();
            with(world, |world| {
                let senders = [1, 2].map(|i| {
                    thread::spawn(move || (0..2).filter(|n| world.push(i * 10 + n)).count() as u64)
                });
                let mut got = vec![];
                got.extend(world.fifo().pop(&mut head));
                let pushed: u64 = senders.map(|s| s.join().unwrap()).iter().sum();
                got.extend(core::iter::from_fn(|| world.fifo().pop(&mut head)));
                assert_eq!(got.len() as u64, pushed);
                assert_eq!(world.fifo().dropped(), 4 - pushed);
                // S2: in the order of each sender.
                for i in [10, 20] {
                    let of: Vec<u64> = got.iter().copied().filter(|o| o / 10 * 10 == i).collect();
                    assert!(of.is_sorted());
                }
            });
        },
    );
}

#[test]
fn a_sender_dies() {
    explore_deaths("sender, reader asleep", 2, |k| {
        let (world, mut head) = World::new();
        with(world, |world| {
            let over = Arc::new(AtomicBool::new(false));
            let victim = thread::spawn(move || after(k, || world.push(10)).is_none());
            let seen = Arc::clone(&over);
            let reader = thread::spawn(move || (world.wait(&mut head, &seen), head));
            let died = victim.join().unwrap();
            over.store(died, Ordering::SeqCst);
            if died {
                // The host wakes whom the dead may have owed a wake.
                world.futex.ring(&world.entry.control.doorbell);
            }
            let (got, mut head) = reader.join().unwrap();
            assert!(died || got == Some(10));
            for lap in 0..2 {
                // S6: only then are both slots empty.
                world.fifo().settle(&mut head);
                assert!(world.push(lap) && world.push(lap + 10));
                assert!(!world.push(0));
                let got = [0; 2].map(|_| world.fifo().pop(&mut head));
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
