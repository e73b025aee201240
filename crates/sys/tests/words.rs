//! A bell that waits for many words, and until a deadline.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use portolan_sys::bell::FutexFd;
use portolan_sys::{futex, process};

const MANY: u32 = 1000;

/// A bell of each kind that this machine has.
fn bells() -> Vec<FutexFd> {
    let ring = FutexFd::with_ring().inspect_err(|error| eprintln!("no ring: {error}"));
    let thread = FutexFd::with_thread().inspect_err(|error| eprintln!("no thread: {error}"));
    let bells: Vec<_> = [ring, thread].into_iter().flatten().collect();
    assert!(!bells.is_empty());
    bells
}

fn words(count: u32) -> Vec<AtomicU32> {
    (0..count).map(|_| AtomicU32::new(0)).collect()
}

fn change(word: &AtomicU32) {
    word.fetch_add(1, Ordering::SeqCst);
    futex::wake(word, u32::MAX);
}

fn readable(bell: &FutexFd, deadline: Option<Instant>) -> bool {
    process::poll(&[bell.as_fd()], deadline).unwrap()[0].readable
}

fn now() -> Option<Instant> {
    Some(Instant::now())
}

/// Time enough for what is to come.
fn in_time() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(60))
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(10))
}

/// Keys of so many words that ring, each once.
fn woken(bell: &mut FutexFd, count: usize) -> BTreeSet<u32> {
    let mut woken = BTreeSet::new();
    loop {
        // Before the wait: the last arming may have seen some already.
        for key in bell.drain_words().unwrap() {
            assert!(woken.insert(key), "{key} has fired twice");
        }
        if woken.len() >= count {
            return woken;
        }
        assert!(readable(bell, None));
    }
}

#[test]
fn of_many_words_each_rings_alone() {
    let words = words(MANY);
    for mut bell in bells() {
        for (key, word) in (0..).zip(&words) {
            bell.arm_word(key, word, word.load(Ordering::SeqCst))
                .unwrap();
        }
        assert!(!readable(&bell, soon()), "{:?}", bell.kind());
        for key in [0, 1, 126, 127, 128, 500, MANY - 1] {
            let word = &words[key as usize];
            change(word);
            assert_eq!(woken(&mut bell, 1), BTreeSet::from([key]));
            assert!(!readable(&bell, now()), "{:?}", bell.kind());
            // It is waited for no more, until it is armed again.
            change(word);
            assert!(!readable(&bell, soon()), "{:?}", bell.kind());
            bell.arm_word(key, word, word.load(Ordering::SeqCst))
                .unwrap();
        }
        assert!(!bell.drain().unwrap());
    }
}

/// More completions than a ring has room for.
#[test]
fn all_of_many_words_ring_at_once() {
    let words = words(MANY);
    for mut bell in bells() {
        for round in 0..3 {
            for (key, word) in (0..).zip(&words) {
                bell.arm_word(key, word, word.load(Ordering::SeqCst))
                    .unwrap();
            }
            words.iter().for_each(change);
            let woken = woken(&mut bell, MANY as usize);
            assert_eq!(woken.last(), Some(&(MANY - 1)), "{round}");
            assert!(!readable(&bell, now()), "{:?}", bell.kind());
        }
    }
}

#[test]
fn a_word_that_has_changed_already_rings_at_once() {
    let words = words(3);
    for mut bell in bells() {
        bell.arm_word(0, &words[0], 0).unwrap();
        bell.arm_word(1, &words[1], 7).unwrap();
        bell.arm_word(2, &words[2], 0).unwrap();
        assert_eq!(woken(&mut bell, 1), BTreeSet::from([1]));
        assert!(!readable(&bell, soon()), "{:?}", bell.kind());
    }
}

#[test]
fn a_key_is_of_the_word_that_it_was_armed_for_last() {
    let (old, new) = (AtomicU32::new(0), AtomicU32::new(0));
    for mut bell in bells() {
        for round in 0..50 {
            let (was, is) = (old.load(Ordering::SeqCst), new.load(Ordering::SeqCst));
            bell.arm_word(5, &old, was).unwrap();
            // Twice the same is once.
            bell.arm_word(5, &old, was).unwrap();
            if round % 2 == 0 {
                // It has fired, which is forgotten.
                change(&old);
            }
            bell.arm_word(5, &new, is).unwrap();
            bell.drain_words().unwrap();
            change(&old);
            if round < 2 {
                assert!(!readable(&bell, soon()), "{:?}", bell.kind());
            }
            bell.arm_word(5, &new, is).unwrap();
            change(&new);
            assert_eq!(woken(&mut bell, 1), BTreeSet::from([5]));
            bell.arm_word(5, &new, is + 1).unwrap();
            bell.disarm_word(5).unwrap();
            change(&new);
            assert!(!readable(&bell, now()) || bell.drain_words().unwrap().is_empty());
        }
    }
}

#[test]
fn the_bells_own_word_and_the_others_share_the_descriptor() {
    let (own, words) = (AtomicU32::new(0), words(4));
    for mut bell in bells() {
        for round in 0..50 {
            let own_value = own.load(Ordering::SeqCst);
            bell.arm(&own, own_value).unwrap();
            for (key, word) in (0..).zip(&words) {
                bell.arm_word(key, word, word.load(Ordering::SeqCst))
                    .unwrap();
            }
            match round % 3 {
                0 => {
                    change(&own);
                    assert!(readable(&bell, None));
                    assert!(bell.drain_words().unwrap().is_empty());
                    assert!(bell.drain().unwrap());
                }
                1 => {
                    change(&words[2]);
                    assert_eq!(woken(&mut bell, 1), BTreeSet::from([2]));
                    assert!(!bell.drain().unwrap());
                }
                _ => {
                    change(&words[3]);
                    assert!(readable(&bell, None));
                    // What has fired is kept over whatever becomes of the own word.
                    bell.disarm().unwrap();
                    bell.arm(&own, own_value).unwrap();
                    assert!(!bell.drain().unwrap());
                    assert_eq!(bell.drain_words().unwrap(), [3]);
                }
            }
            assert!(!readable(&bell, now()), "{:?} {round}", bell.kind());
        }
    }
}

#[test]
fn what_a_call_finds_and_does_not_take_keeps_the_descriptor_readable() {
    let (own, words) = (AtomicU32::new(0), words(3));
    let call = |bell: &mut FutexFd, round| match round {
        0 => assert!(!bell.drain().unwrap()),
        1 => bell.arm(&own, own.load(Ordering::SeqCst)).unwrap(),
        2 => bell.disarm().unwrap(),
        3 => bell.arm_word(2, &words[2], 0).unwrap(),
        _ => bell.disarm_word(2).unwrap(),
    };
    for mut bell in bells() {
        let name = bell.kind();
        for round in 0..5 {
            let value = words[1].load(Ordering::SeqCst);
            bell.arm(&own, own.load(Ordering::SeqCst)).unwrap();
            bell.arm_word(1, &words[1], value).unwrap();
            assert!(bell.drain_words().unwrap().is_empty());
            change(&words[1]);
            // Before the helper thread has told of it, and after.
            call(&mut bell, round);
            assert!(readable(&bell, in_time()), "{name:?} {round}");
            call(&mut bell, round);
            assert!(readable(&bell, in_time()), "{name:?} {round}");
            assert_eq!(bell.drain_words().unwrap(), [1]);
            assert!(!readable(&bell, now()), "{name:?} {round}");
        }
        bell.arm(&own, own.load(Ordering::SeqCst)).unwrap();
        change(&own);
        assert!(bell.drain_words().unwrap().is_empty());
        assert!(readable(&bell, in_time()), "{name:?}");
        assert!(bell.drain_words().unwrap().is_empty());
        assert!(readable(&bell, in_time()), "{name:?}");
        assert!(bell.drain().unwrap() && !readable(&bell, now()), "{name:?}");
    }
}

#[test]
fn a_deadline_fires_a_bell_once_and_not_before() {
    let word = AtomicU32::new(0);
    for mut bell in bells() {
        let until = Instant::now() + Duration::from_millis(30);
        bell.arm_until(&word, 0, Some(until)).unwrap();
        assert!(!bell.drain().unwrap());
        assert!(readable(&bell, None));
        assert!(Instant::now() >= until && bell.drain().unwrap());
        assert!(!readable(&bell, soon()), "{:?}", bell.kind());
        // No wake is taken any more.
        assert_eq!(futex::wake(&word, 1), 0);
        // A word that is woken first, and then nothing at the deadline.
        bell.arm_until(&word, 0, soon()).unwrap();
        change(&word);
        assert!(readable(&bell, None) && bell.drain().unwrap());
        std::thread::sleep(Duration::from_millis(15));
        assert!(!readable(&bell, now()), "{:?}", bell.kind());
        // Nor one of an order that was called off.
        bell.arm_until(&word, 1, soon()).unwrap();
        bell.arm(&word, 1).unwrap();
        std::thread::sleep(Duration::from_millis(15));
        assert!(!readable(&bell, now()), "{:?}", bell.kind());
        // And one that has passed.
        bell.arm_until(&word, 1, now()).unwrap();
        assert!(readable(&bell, None) && bell.drain().unwrap());
        word.store(0, Ordering::SeqCst);
    }
}

#[test]
fn words_are_woken_by_other_threads_again_and_again() {
    let words = words(200);
    for mut bell in bells() {
        let before: Vec<u32> = words.iter().map(|w| w.load(Ordering::SeqCst)).collect();
        for (key, word) in (0..).zip(&words) {
            bell.arm_word(key, word, before[key as usize]).unwrap();
        }
        std::thread::scope(|scope| {
            for part in words.chunks(50) {
                scope.spawn(move || {
                    for _ in 0..20 {
                        part.iter().for_each(change);
                        std::thread::yield_now();
                    }
                });
            }
            // Every change is seen, or a later one.
            let mut seen = before.clone();
            let last: Vec<u32> = before.iter().map(|value| value + 20).collect();
            while seen != last {
                let woken = bell.drain_words().unwrap();
                if woken.is_empty() {
                    assert!(readable(&bell, None));
                }
                for key in woken {
                    let word = &words[key as usize];
                    let value = word.load(Ordering::SeqCst);
                    seen[key as usize] = value;
                    bell.arm_word(key, word, value).unwrap();
                }
            }
        });
    }
}
