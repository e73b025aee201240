//! Makes a bell with a helper thread, which sleeps on the word and writes an eventfd.
//!
//! The helper waits for two words at once: the user's, and `orders`, which is changed
//! whenever there is a new order. So it can be called off without disturbing anyone else
//! which sleeps on the user's word.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::io::Errno;
use rustix::thread::ClockId;
use rustix::thread::futex::{self, Wait, WaitFlags, WaitPtr, WaitvFlags};
use rustix::time::Timespec;

use super::Watched;
use super::words::Words;
use crate::futex::wake;
use crate::process::EventFd;
use crate::time;

/// Of what the helper sleeps on, the word that changes with each order.
const ORDERS: usize = 0;

/// Bytes of stack for the helper, which calls little.
pub(super) const STACK: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Helper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Further words, which other threads wait for.
    pub(super) words: Words,
}

#[derive(Debug)]
struct Shared {
    order: Mutex<Order>,
    /// Number of the newest order, wrapping. Written under the lock.
    orders: AtomicU32,
    /// The one that the helper follows: it sleeps for no older one.
    heard: AtomicU32,
    /// Readable once this order, or a further word, has fired.
    fired: Arc<EventFd>,
}

/// What the helper is to do.
#[derive(Clone, Copy, Debug)]
enum Order {
    Idle,
    /// What was waited for has come.
    Fired,
    /// Wait for the word to be woken, or to be something else, or for the deadline.
    Watch {
        word: Watched,
        until: Option<Instant>,
    },
    Quit,
}

impl Helper {
    pub(super) fn new() -> io::Result<Self> {
        // Waiting for nothing is invalid where the call exists.
        match futex::waitv(&[], WaitvFlags::empty(), None, ClockId::Monotonic) {
            Err(Errno::INVAL) | Ok(_) => {}
            Err(other) => return Err(other.into()),
        }
        let shared = Arc::new(Shared {
            order: Mutex::new(Order::Idle),
            orders: AtomicU32::new(0),
            heard: AtomicU32::new(0),
            fired: Arc::new(EventFd::new()?),
        });
        let words = Words::new(Arc::clone(&shared.fired));
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("portolan-bell".to_owned())
            .stack_size(STACK)
            .spawn(move || theirs.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
            words,
        })
    }

    pub(super) fn arm(
        &mut self,
        word: &AtomicU32,
        expected: u32,
        until: Option<Instant>,
    ) -> io::Result<()> {
        let word = Watched::new(word, expected);
        self.shared.give(Order::Watch { word, until })?;
        self.tell_of_words()
    }

    pub(super) fn drain(&mut self) -> io::Result<bool> {
        let fired = self.shared.take_fired()?;
        self.tell_of_words()?;
        Ok(fired)
    }

    pub(super) fn drain_words(&mut self) -> io::Result<Vec<u32>> {
        if !self.words.has_woken() {
            return Ok(Vec::new());
        }
        // Under the lock, as an order that fires does: that is told of afterwards.
        let order = self.shared.lock();
        let woken = self.words.take_woken()?;
        if matches!(*order, Order::Fired) {
            self.shared.fired.notify()?;
        }
        Ok(woken)
    }

    /// Words that have fired keep the descriptor readable, which was just drained.
    fn tell_of_words(&self) -> io::Result<()> {
        if self.words.has_woken() {
            self.shared.fired.notify()?;
        }
        Ok(())
    }

    /// Has the helper leave the word, and waits until it has.
    pub(super) fn cancel(&mut self) -> io::Result<()> {
        let asleep = matches!(*self.shared.lock(), Order::Watch { .. });
        // Also one that has fired: its ring is forgotten.
        self.shared.give(Order::Idle)?;
        let given = self.shared.orders.load(Ordering::Relaxed);
        // It was woken for the order.
        while asleep && self.shared.heard.load(Ordering::Acquire) != given {
            thread::yield_now();
        }
        self.tell_of_words()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        let _ = self.shared.give(Order::Quit);
        let _ = thread.join();
    }
}

impl AsFd for Helper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.fired.as_fd()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Order> {
        // An order is one store; a panic cannot leave half of one.
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the helper's order, and forgets a ring of the old one.
    fn give(&self, order: Order) -> io::Result<()> {
        let mut current = self.lock();
        *current = order;
        self.fired.drain()?;
        // Relaxed: the helper reads the order under the lock.
        self.orders.fetch_add(1, Ordering::Relaxed);
        drop(current);
        wake(&self.orders, 1);
        Ok(())
    }

    /// The helper's life.
    fn run(&self) {
        block_signals();
        loop {
            let (number, order) = self.order();
            // Release: pairs with `cancel`. It has left the word that it slept on before.
            self.heard.store(number, Ordering::Release);
            let orders = waiter(self.orders.as_ptr().addr(), number);
            let ended = match order {
                Order::Quit => return,
                Order::Idle | Order::Fired => sleep_on(&[orders], None),
                Order::Watch { word, until } => {
                    // A deadline too far away to express never comes.
                    sleep_on(&[orders, waiter_for(word)], until.and_then(time::absolute))
                }
            };
            // The wake for an order comes after it, when we may know it already and sleep
            // for it: that says nothing of the word. Of two that were woken the kernel names
            // the second. Whatever else ends the sleep, a bad address too, is a reason to look.
            if ended != Ok(ORDERS) {
                self.fire(number);
            }
        }
    }

    /// The newest order and its number.
    fn order(&self) -> (u32, Order) {
        let order = self.lock();
        (self.orders.load(Ordering::Relaxed), *order)
    }

    /// Fires unless there is a new order, which then counts from its own beginning.
    fn fire(&self, number: u32) {
        let mut order = self.lock();
        if self.orders.load(Ordering::Relaxed) == number && matches!(*order, Order::Watch { .. }) {
            *order = Order::Fired;
            let _ = self.fired.notify();
        }
    }

    /// Whether what was waited for has come; if so it is forgotten.
    fn take_fired(&self) -> io::Result<bool> {
        let mut order = self.lock();
        self.fired.drain()?;
        let fired = matches!(*order, Order::Fired);
        if fired {
            *order = Order::Idle;
        }
        Ok(fired)
    }
}

pub(super) fn waiter_for(word: Watched) -> Wait {
    waiter(word.address, word.expected)
}

pub(super) fn waiter(address: usize, expected: u32) -> Wait {
    let mut wait = Wait::new();
    wait.val = expected.into();
    wait.uaddr = WaitPtr::new(ptr::without_provenance_mut(address));
    // Shared between processes.
    wait.flags = WaitFlags::SIZE_U32;
    wait
}

/// Sleeps until one of the words is woken, or has another value, or until a time of the monotonic
/// clock.
pub(super) fn sleep_on(words: &[Wait], until: Option<Timespec>) -> rustix::io::Result<usize> {
    loop {
        let until = until.as_ref();
        match futex::waitv(words, WaitvFlags::empty(), until, ClockId::Monotonic) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Leaves the process's signals to the threads that know of them.
pub(super) fn block_signals() {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY:
    // - Room for a signal set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY:
    // - `all` was filled above; the old set is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::poll;

    #[test]
    fn a_late_wake_for_an_order_rings_nobody() {
        let word = AtomicU32::new(0);
        let mut helper = match Helper::new() {
            Ok(helper) => helper,
            Err(error) => return eprintln!("no helper: {error}"),
        };
        helper.arm(&word, 0, None).unwrap();
        // Each finds it asleep for this order, as the first one may have.
        for _ in 0..100 {
            while wake(&helper.shared.orders, 1) == 0 {
                thread::yield_now();
            }
        }
        assert!(!helper.drain().unwrap());
        word.store(1, Ordering::Release);
        wake(&word, 1);
        assert!(poll(&[helper.as_fd()], None).unwrap()[0].readable);
        assert!(helper.drain().unwrap());
    }
}
