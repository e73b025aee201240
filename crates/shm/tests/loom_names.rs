//! Ports that bind one name at the same time, under the model checker.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p portolan-shm --release --target-dir target/loom \
//!     --test loom_names -- --nocapture --test-threads 1
//! ```
//!
//! The bound of each model is the number in it; LOOM_MAX_PREEMPTIONS overrides it.
#![cfg(loom)]

mod support;

use loom::thread;
use portolan_shm::atomic::death::after;
use portolan_shm::atomic::{AtomicU64, Ordering};
use portolan_shm::names::{Lost, NameHash, give_up, show, win};
use support::{explore, explore_deaths, with};

/// How an entry comes to a name.
type Bind = fn(&Names, usize) -> bool;

/// The words of some ports' entries, all of which have the same text.
struct Names(Vec<AtomicU64>);

impl Names {
    fn new(entries: usize) -> Self {
        Self((0..entries).map(|_| AtomicU64::new(0)).collect())
    }

    fn name() -> NameHash {
        NameHash::of("frames")
    }

    /// Binds the name, as the library does; whether it got it.
    fn bind(&self, ours: usize) -> bool {
        loop {
            match win(&self.0, ours, Self::name(), 0..self.0.len(), |_| true) {
                Ok(()) => {
                    show(&self.0[ours], Self::name());
                    return true;
                }
                Err(Lost::To(_)) => return false,
                Err(Lost::Again) => {}
            }
        }
    }

    /// Looks whether an entry has it, and takes it.
    fn look_and_take(&self, ours: usize) -> bool {
        let taken = self.0.iter().any(|word| Self::name().is_taken(word));
        if !taken {
            show(&self.0[ours], Self::name());
        }
        !taken
    }

    fn shown(&self) -> usize {
        let all = self.0.iter();
        all.filter(|word| Self::name().is_shown(word)).count()
    }
}

/// N1: of those that bind at once one gets the name.
fn at_once(entries: usize, bind: Bind) {
    with(Names::new(entries), |names| {
        let others: Vec<_> = (1..entries)
            .map(|index| thread::spawn(move || bind(names, index)))
            .collect();
        let ours = bind(names, 0);
        let won = others.into_iter().map(|o| o.join().unwrap());
        let won = won.filter(|won| *won).count() + usize::from(ours);
        assert_eq!((won, names.shown()), (1, 1));
    });
}

#[test]
fn of_two_one_gets_the_name() {
    explore("two", 4, || at_once(2, Names::bind));
}

#[test]
fn of_three_one_gets_the_name() {
    explore("three", 2, || at_once(3, Names::bind));
}

#[test]
#[should_panic]
fn who_looks_and_then_takes_shares_it() {
    explore("look and take", 3, || at_once(2, Names::look_and_take));
}

/// N2: the entry that has the name gives it up, or another one tries in between: it is never had
/// twice.
#[test]
fn a_name_that_is_given_up_is_won_again() {
    explore("given up", 3, || {
        with(Names::new(2), |names| {
            let other = thread::spawn(|| {
                let name = Names::name();
                let won = win(&names.0, 1, name, 0..2, |_| true).is_ok();
                give_up(&names.0[1], name);
                won
            });
            let ours = names.bind(0);
            let theirs = other.join().unwrap();
            assert!(ours || theirs);
            assert_eq!(names.shown(), usize::from(ours));
            if !ours {
                assert!(names.bind(0));
            }
        });
    });
}

/// N2: a binder dies at any access; its entry is closed, and the name is to be had.
#[test]
fn a_binder_dies() {
    for victim in [0, 1] {
        let name = ["lower dies", "higher dies"][victim];
        explore_deaths(name, 2, move |k| {
            with(Names::new(2), |names| {
                let bound = thread::spawn(move || after(k, || names.bind(victim)));
                let ours = names.bind(1 - victim);
                let bound = bound.join().unwrap();
                let (died, theirs) = (bound.is_none(), bound == Some(true));
                if died {
                    names.0[victim].store(0, Ordering::Release);
                }
                let won = usize::from(ours) + usize::from(theirs);
                assert!(won == 1 || (died && won == 0));
                assert_eq!(names.shown(), won);
                if won == 0 {
                    assert!(names.bind(1 - victim));
                }
                died
            })
        });
    }
}
