//! Waits for further words of a bell with helper threads, each of which sleeps on many at once.
//!
//! A thread sleeps on its own word, `orders`, beside those that it waits for: it is woken by that
//! when they are others. So no other sleeper of theirs is disturbed.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::io::Errno;
use rustix::time::Timespec;

use super::Watched;
use super::thread::{STACK, block_signals, sleep_on, waiter, waiter_for};
use crate::futex::wake;
use crate::process::EventFd;

/// Words that one thread waits for: the kernel takes 128 in one call, and `orders` is one.
const EACH: usize = 127;

/// The threads of one bell; none before the first word.
#[derive(Debug)]
pub(super) struct Words {
    fired: Arc<EventFd>,
    threads: Vec<Sleeper>,
}

/// One thread, and what it waits for.
#[derive(Debug)]
struct Sleeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Goes up with each change of the state by the bell, wrapping. Written under the lock.
    orders: AtomicU32,
    fired: Arc<EventFd>,
}

#[derive(Debug, Default)]
struct State {
    /// By key.
    words: BTreeMap<u32, Watched>,
    /// Keys of those that have fired, and are waited for no more.
    woken: Vec<u32>,
    quit: bool,
}

impl Words {
    pub(super) fn new(fired: Arc<EventFd>) -> Self {
        Self {
            fired,
            threads: Vec::new(),
        }
    }

    pub(super) fn arm(&mut self, key: u32, word: Watched) -> io::Result<()> {
        let is_there = |sleeper: &&Sleeper| sleeper.shared.lock().words.get(&key) == Some(&word);
        if self.threads.iter().any(|sleeper| is_there(&sleeper)) {
            return Ok(());
        }
        self.cancel(key);
        let has_room = |sleeper: &&Sleeper| sleeper.shared.lock().words.len() < EACH;
        let found = self.threads.iter().position(|sleeper| has_room(&sleeper));
        let at = match found {
            Some(at) => at,
            None => {
                self.threads.push(Sleeper::new(Arc::clone(&self.fired))?);
                self.threads.len() - 1
            }
        };
        self.threads[at].shared.order(|state| {
            state.words.insert(key, word);
        });
        Ok(())
    }

    pub(super) fn cancel(&mut self, key: u32) {
        for Sleeper { shared, .. } in &self.threads {
            let known = {
                let mut state = shared.lock();
                state.woken.retain(|woken| *woken != key);
                state.words.contains_key(&key)
            };
            if known {
                shared.order(|state| {
                    state.words.remove(&key);
                    state.woken.retain(|woken| *woken != key);
                });
            }
        }
    }

    pub(super) fn has_woken(&self) -> bool {
        let mut threads = self.threads.iter();
        threads.any(|sleeper| !sleeper.shared.lock().woken.is_empty())
    }

    /// Takes the keys of all words that have fired; the descriptor is readable for none of them any more.
    ///
    /// Each thread notes its words and makes the descriptor readable under its own lock. Under all of
    /// them nothing is noted between the drain of the descriptor and the taking.
    pub(super) fn take_woken(&self) -> io::Result<Vec<u32>> {
        let mut states: Vec<_> = self.threads.iter().map(|it| it.shared.lock()).collect();
        self.fired.drain()?;
        let woken = states
            .iter_mut()
            .map(|state| std::mem::take(&mut state.woken));
        Ok(woken.flatten().collect())
    }
}

impl Sleeper {
    fn new(fired: Arc<EventFd>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            orders: AtomicU32::new(0),
            fired,
        });
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("portolan-words".to_owned())
            .stack_size(STACK)
            .spawn(move || theirs.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.shared.order(|state| state.quit = true);
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that is done under the lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what the thread waits for.
    fn order(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        // Relaxed: the thread reads the state under the lock.
        self.orders.fetch_add(1, Ordering::Relaxed);
        drop(state);
        wake(&self.orders, 1);
    }

    /// The thread's life.
    fn run(&self) {
        block_signals();
        loop {
            let (number, words) = {
                let state = self.lock();
                if state.quit {
                    return;
                }
                let words: Vec<_> = state
                    .words
                    .iter()
                    .map(|(key, word)| (*key, *word))
                    .collect();
                (self.orders.load(Ordering::Relaxed), words)
            };
            let orders = waiter(self.orders.as_ptr().addr(), number);
            let all =
                std::iter::once(orders).chain(words.iter().map(|(_, word)| waiter_for(*word)));
            let all: Vec<_> = all.collect();
            let came: Vec<_> = match sleep_on(&all, None) {
                Ok(0) => Vec::new(),
                // Of several that were woken the kernel names one; the next call finds that the
                // others have changed.
                Ok(named) => words.get(named - 1).copied().into_iter().collect(),
                // A word had another value, or is there no more; the kernel does not say which.
                Err(_) if self.orders.load(Ordering::Relaxed) != number => Vec::new(),
                Err(_) => {
                    let known = words.iter().copied();
                    let other: Vec<_> = known.filter(|(_, word)| !has_value(*word)).collect();
                    // It cannot sleep at all: all of them, so that it does not try for ever.
                    if other.is_empty() { words } else { other }
                }
            };
            self.ring(&came);
        }
    }

    /// Tells of words that are still waited for.
    fn ring(&self, came: &[(u32, Watched)]) {
        let mut state = self.lock();
        let mut rings = false;
        for (key, word) in came {
            if state.words.get(key) == Some(word) {
                state.words.remove(key);
                state.woken.push(*key);
                rings = true;
            }
        }
        if rings {
            let _ = self.fired.notify();
        }
    }
}

/// Whether the word still has the value, as far as the kernel can tell.
fn has_value(word: Watched) -> bool {
    let past = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    sleep_on(&[waiter_for(word)], Some(past)) == Err(Errno::TIMEDOUT)
}
