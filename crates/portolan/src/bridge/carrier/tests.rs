//! Tests the carrier with tasks of their own.

use super::*;
use crate::Domain;
use portolan_sys::futex;
use portolan_testkit::until;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// Whether the domain's carrier has ended.
fn has_ended(domain: &Domain) -> bool {
    let carrier = domain.member().part::<Carrier>();
    let shared = lock(&carrier.0).clone();
    shared.is_some_and(|shared| lock(&shared.inbox).over)
}

fn run<F: Future<Output = ()> + 'static>(
    domain: &Domain,
    task: impl FnOnce(Rc<Context>) -> F + Send + 'static,
) {
    launch(domain.member(), task).unwrap();
}

fn wait_for(word: &AtomicU32, value: u32) {
    until("the task says so", || word.load(Ordering::Acquire) == value);
}

/// Waits in a task until the word is something else.
async fn other_than(context: &Context, at: &Word, word: &AtomicU32, value: u32) {
    let changed = context.until(|arms| {
        if arms {
            at.arm(word, value)?;
        }
        Ok((word.load(Ordering::Acquire) != value).then_some(()))
    });
    assert!(changed.await.is_ok());
}

/// Changes a word, and wakes who waits for it.
fn set(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::Release);
    futex::wake(word, u32::MAX);
}

#[test]
fn tasks_wait_for_words_each_for_its_own_and_the_thread_ends_with_the_last() {
    let domain = Domain::private().unwrap();
    for _ in 0..3 {
        let words: Vec<_> = (0..20)
            .map(|_| Arc::new([const { AtomicU32::new(0) }; 2]))
            .collect();
        for word in &words {
            let word = Arc::clone(word);
            run(&domain, |context| async move {
                let at = context.word();
                for value in 0..3 {
                    other_than(&context, &at, &word[0], value).await;
                    word[1].store(value + 1, Ordering::Release);
                }
            });
        }
        for value in 1..4 {
            for word in words.iter().rev() {
                assert_eq!(word[1].load(Ordering::Acquire), value - 1);
                set(&word[0], value);
                wait_for(&word[1], value);
            }
        }
        until("the thread ends", || has_ended(&domain));
    }
}

#[test]
fn time_passes_for_a_task_while_others_sleep_or_are_busy() {
    let domain = Domain::private().unwrap();
    let done = Arc::new([const { AtomicU32::new(0) }; 3]);
    let (sleeps, busy, pauses) = (Arc::clone(&done), Arc::clone(&done), Arc::clone(&done));
    run(&domain, |context| async move {
        let at = context.word();
        other_than(&context, &at, &sleeps[0], 0).await;
    });
    run(&domain, |context| async move {
        while busy[0].load(Ordering::Acquire) == 0 {
            context.turn().await;
        }
    });
    run(&domain, |context| async move {
        for value in 1..20 {
            context.pause(Duration::from_millis(1)).await;
            pauses[1].store(value, Ordering::Release);
        }
        pauses[2].store(1, Ordering::Release);
    });
    wait_for(&done[2], 1);
    set(&done[0], 1);
    until("the thread ends", || has_ended(&domain));
}

#[test]
fn a_task_that_never_waits_gives_others_their_turn() {
    let domain = Domain::private().unwrap();
    let (over, steps) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
    for _ in 0..2 {
        let (over, steps) = (Arc::clone(&over), Arc::clone(&steps));
        run(&domain, |context| async move {
            while over.load(Ordering::Acquire) == 0 {
                context.turn().await;
                steps.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    // It begins, waits and is woken beside them.
    let word = Arc::new([const { AtomicU32::new(0) }; 2]);
    let its_own = Arc::clone(&word);
    run(&domain, |context| async move {
        let at = context.word();
        for value in 0..50 {
            other_than(&context, &at, &its_own[0], value).await;
            its_own[1].store(value + 1, Ordering::Release);
        }
    });
    for value in 1..51 {
        set(&word[0], value);
        wait_for(&word[1], value);
    }
    assert!(steps.load(Ordering::Relaxed) > 0);
    over.store(1, Ordering::Release);
    until("the thread ends", || has_ended(&domain));
}

#[test]
fn a_task_that_panics_is_dropped_alone() {
    struct Drops(Arc<AtomicU32>);
    impl Drop for Drops {
        fn drop(&mut self) {
            self.0.store(1, Ordering::Release);
        }
    }
    let domain = Domain::private().unwrap();
    let word = Arc::new([const { AtomicU32::new(0) }; 2]);
    let its_own = Arc::clone(&word);
    run(&domain, |context| async move {
        let at = context.word();
        other_than(&context, &at, &its_own[0], 0).await;
        its_own[1].store(1, Ordering::Release);
    });
    let dropped = Arc::new(AtomicU32::new(0));
    let drops = Drops(Arc::clone(&dropped));
    run(&domain, |context| async move {
        let _drops = drops;
        context.pause(Duration::from_millis(1)).await;
        // Quietly: a panic hook would print it.
        std::panic::resume_unwind(Box::new("planted"));
    });
    wait_for(&dropped, 1);
    assert!(!has_ended(&domain));
    set(&word[0], 1);
    wait_for(&word[1], 1);
}

#[test]
fn tasks_are_ended_where_they_wait() {
    let domain = Domain::private().unwrap();
    let stop = Arc::<Stop>::default();
    let never = Arc::new(AtomicU32::new(0));
    for _ in 0..10 {
        let (stops, running, never) = (Arc::clone(&stop), stop.begin(), Arc::clone(&never));
        run(&domain, |context| async move {
            let at = context.word();
            let work = async {
                other_than(&context, &at, &never, 0).await;
                Over::Gone
            };
            assert!(matches!(stops.or(work).await, Over::Stopped));
            drop(running);
        });
    }
    assert_eq!(stop.running(), 10);
    stop.end(domain.member());
    assert_eq!(stop.running(), 0);
    until("the thread ends", || has_ended(&domain));
}
