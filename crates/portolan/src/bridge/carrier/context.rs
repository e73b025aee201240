//! What a task of a carrier waits with.

use super::super::error::Over;
use super::Shared;
use portolan_sys::bell::FutexFd;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Steps that a task makes before the others have their turn: each is a piece of at most 64 KiB that
/// is copied, or a message. About 100 microseconds of copying.
const TURN: u32 = 16;

/// The task that waits for a word, and where it is said that the word has fired.
type Waiter = (u64, Rc<Cell<bool>>);

/// Which task waits for which futex word.
pub(super) struct Hub {
    words: RefCell<FutexFd>,
    /// By key.
    waiters: RefCell<HashMap<u32, Waiter>>,
    last: Cell<u32>,
}

impl Hub {
    pub(super) fn new(words: FutexFd) -> Self {
        Self {
            words: RefCell::new(words),
            waiters: RefCell::default(),
            last: Cell::new(0),
        }
    }

    /// Tasks of which a word has changed.
    pub(super) fn fired(&self) -> Vec<u64> {
        let waiters = self.waiters.borrow();
        // It fails where nothing can be armed either, which tasks are told.
        let keys = self.words.borrow_mut().drain_words().unwrap_or_default();
        let fired = keys.iter().filter_map(|key| waiters.get(key));
        fired
            .map(|(task, fired)| {
                fired.set(true);
                *task
            })
            .collect()
    }
}

/// A task's way to wait, and to give others their turn.
pub(in crate::bridge) struct Context {
    shared: Arc<Shared>,
    hub: Rc<Hub>,
    number: u64,
    /// This poll arms what it waits for.
    arms: Cell<bool>,
    /// It is to be polled again, without waiting for anything.
    goes_on: Cell<bool>,
    /// Steps that are left of this turn.
    left: Cell<u32>,
    due: Cell<Option<Instant>>,
    /// Something is new at its socket.
    news: Cell<bool>,
    /// The process at its other end is dead.
    death: Cell<bool>,
}

impl Context {
    pub(super) fn new(shared: Arc<Shared>, hub: Rc<Hub>, number: u64) -> Self {
        Self {
            shared,
            hub,
            number,
            arms: Cell::new(false),
            goes_on: Cell::new(false),
            left: Cell::new(TURN),
            due: Cell::new(None),
            // What came before it watched its socket is not told.
            news: Cell::new(true),
            death: Cell::new(false),
        }
    }

    // What the carrier calls.

    /// A poll begins.
    pub(super) fn begin(&self, arms: bool) {
        self.arms.set(arms);
        self.goes_on.set(false);
        self.left.set(TURN);
        self.due.set(None);
    }

    pub(super) fn goes_on(&self) -> bool {
        self.goes_on.get()
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due.get()
    }

    /// Something is new at its socket, or the process there is dead.
    pub(super) fn tell(&self, death: bool) {
        match death {
            true => self.death.set(true),
            false => self.news.set(true),
        }
    }

    // What the task calls.

    /// Waits until `look` finds something. It is asked again and again; if it is told to *arm*, it
    /// says first how it is woken (by a [`Word`], by [`Self::by`], or through the socket), looks
    /// afterwards, and is asked again when it was woken, or for any other reason.
    pub(in crate::bridge) async fn until<T>(
        &self,
        mut look: impl FnMut(bool) -> Result<Option<T>, Over>,
    ) -> Result<T, Over> {
        std::future::poll_fn(|_| {
            let found = look(self.arms.get()).transpose();
            if found.is_some() {
                self.goes_on.set(true);
            }
            found.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Gives the other tasks their turn after some steps (C3). Called once for each step.
    pub(in crate::bridge) async fn turn(&self) {
        std::future::poll_fn(|_| match self.left.get().checked_sub(1) {
            Some(left) => {
                self.left.set(left);
                Poll::Ready(())
            }
            None => {
                self.again();
                Poll::Pending
            }
        })
        .await;
    }

    /// Lets time pass.
    pub(in crate::bridge) async fn pause(&self, time: Duration) {
        let at = Instant::now() + time;
        std::future::poll_fn(|_| match Instant::now() >= at {
            true => {
                self.goes_on.set(true);
                Poll::Ready(())
            }
            false => {
                self.by(at);
                Poll::Pending
            }
        })
        .await;
    }

    /// Is polled again at that time, at the latest.
    pub(in crate::bridge) fn by(&self, at: Instant) {
        let before = self.due.get().unwrap_or(at);
        self.due.set(Some(before.min(at)));
    }

    /// Is polled again at once.
    pub(in crate::bridge) fn again(&self) {
        self.goes_on.set(true);
    }

    /// Has all tasks polled: one of them was told something.
    pub(in crate::bridge) fn ring(&self) {
        self.shared.ring();
    }

    /// Is told from now on what is new at a socket, and of a process's death.
    pub(in crate::bridge) fn watch(
        &self,
        socket: impl AsFd,
        process: Option<impl AsFd>,
    ) -> io::Result<()> {
        self.shared.watch.add(socket, 2 * self.number)?;
        match process {
            Some(process) => self.shared.watch.add(process, 2 * self.number + 1),
            None => Ok(()),
        }
    }

    /// Is told no more.
    pub(in crate::bridge) fn unwatch(&self, fd: impl AsFd) {
        // What is closed is not watched any more.
        let _ = self.shared.watch.remove(fd);
    }

    /// Whether something is new at its socket since this was asked last.
    pub(in crate::bridge) fn take_news(&self) -> bool {
        self.news.take()
    }

    /// Not all that is new was taken.
    pub(in crate::bridge) fn keep_news(&self) {
        self.news.set(true);
    }

    /// Whether the process at its other end is known to be dead.
    pub(in crate::bridge) fn is_dead(&self) -> bool {
        self.death.get()
    }

    /// A place to wait for a futex word.
    pub(in crate::bridge) fn word(&self) -> Word {
        let mut waiters = self.hub.waiters.borrow_mut();
        let mut key = self.hub.last.get();
        // There are never so many.
        while waiters.contains_key(&key) {
            key = key.wrapping_add(1);
        }
        self.hub.last.set(key.wrapping_add(1));
        let fired = Rc::<Cell<bool>>::default();
        waiters.insert(key, (self.number, Rc::clone(&fired)));
        Word {
            hub: Rc::clone(&self.hub),
            key,
            armed: Cell::new(false),
            fired,
        }
    }
}

/// A place to wait for one futex word at a time.
pub(in crate::bridge) struct Word {
    hub: Rc<Hub>,
    key: u32,
    armed: Cell<bool>,
    fired: Rc<Cell<bool>>,
}

impl Word {
    /// Has the task polled once the word has another value, or is woken.
    pub(in crate::bridge) fn arm(&self, word: &AtomicU32, seen: u32) -> io::Result<()> {
        self.armed.set(true);
        self.fired.set(false);
        self.hub.words.borrow_mut().arm_word(self.key, word, seen)
    }

    /// Whether the word that was armed last may have changed since. Until it has, what it tells of
    /// need not be looked at.
    pub(in crate::bridge) fn has_fired(&self) -> bool {
        self.fired.get()
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        self.hub.waiters.borrow_mut().remove(&self.key);
        if self.armed.get() {
            // It fails only where nothing can be armed either.
            let _ = self.hub.words.borrow_mut().disarm_word(self.key);
        }
    }
}
