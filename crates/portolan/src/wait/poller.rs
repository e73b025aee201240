//! A poller is a thread that sleeps in epoll, and runs a closure for each descriptor that becomes
//! ready.
//!
//! A [`Poller`] owns one such thread and stops it when it is dropped. A [`PollSet`] is a poller
//! for things of one kind, which are added and removed while the thread sleeps; each has an
//! [`Entry`].

use portolan_sys::process::{EventFd, spawn_quiet};
use portolan_sys::watch::Watch;
use std::collections::HashMap;
use std::io;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

/// The epoll number of the poller's own event descriptor. Other numbers begin behind it.
const BELL: u64 = 0;

/// A thread that sleeps in epoll over its descriptors; dropping this stops the thread.
#[derive(Debug)]
pub(crate) struct Poller {
    poll_loop: Arc<PollLoop>,
    thread: Option<JoinHandle<()>>,
}

/// What a poller's thread shares with its handle: the epoll instance, and what wakes it.
#[derive(Debug)]
pub(crate) struct PollLoop {
    watch: Watch,
    bell: EventFd,
    over: AtomicBool,
}

/// Why a poller's thread woke.
pub(crate) enum Seen {
    /// Another thread called [`PollLoop::ring`].
    Bell,
    /// The descriptor of this number is ready.
    At(u64),
}

impl Poller {
    /// Starts a thread that runs `look` for each event. It watches no descriptor yet; their
    /// numbers begin at 1.
    pub(crate) fn start(
        name: &str,
        stack: usize,
        look: impl FnMut(&PollLoop, Seen) + Send + 'static,
    ) -> io::Result<Self> {
        let poll_loop = Arc::new(PollLoop {
            watch: Watch::new()?,
            bell: EventFd::new()?,
            over: AtomicBool::new(false),
        });
        poll_loop.watch.add(&poll_loop.bell, BELL)?;
        let its_own = Arc::clone(&poll_loop);
        let thread = spawn_quiet(name, stack, move || its_own.serve(look))?;
        Ok(Self {
            poll_loop,
            thread: Some(thread),
        })
    }

    pub(crate) fn poll_loop(&self) -> &PollLoop {
        &self.poll_loop
    }

    /// Has the thread end, and gives back its handle instead of joining it.
    pub(crate) fn dismiss(mut self) -> Option<JoinHandle<()>> {
        self.thread.take()
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        // A forked child has no such thread, and the library closes its descriptors there.
        if portolan_sys::fork::in_child() {
            return;
        }
        // Release: pairs with `serve`; the bell comes after it.
        self.poll_loop.over.store(true, Ordering::Release);
        self.poll_loop.wake();
        if let Some(thread) = self.thread.take() {
            // The closure may own the last handle of the poller: a thread cannot join itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl PollLoop {
    /// The epoll instance. Any thread may add and remove descriptors.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Wakes the thread, which then runs its closure with [`Seen::Bell`].
    pub(crate) fn wake(&self) {
        // Fails only where the program has closed the descriptor.
        let _ = self.bell.notify();
    }

    fn serve(&self, mut look: impl FnMut(&Self, Seen)) {
        while let Ok(numbers) = self.watch.wait() {
            for number in numbers {
                if number != BELL {
                    look(self, Seen::At(number));
                    continue;
                }
                let _ = self.bell.drain();
                // Acquire: pairs with the drop. Loaded before the closure runs, so that the
                // thread carries out every order that came before the end.
                let over = self.over.load(Ordering::Acquire);
                look(self, Seen::Bell);
                if over {
                    return;
                }
            }
        }
    }
}

/// A thing that a poll set watches.
pub(crate) trait Watched: Send + Sync + 'static {
    /// The name of the poll set's thread.
    const THREAD: &str;
    /// Bytes of its stack.
    const STACK: usize;

    /// The descriptors to watch: one or two.
    fn descriptors(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>);

    /// Handles readiness of the first descriptor, or of the second one. Runs on the thread.
    fn look(&self, second: bool);
}

/// A poller for things of one kind; it exists as long as it has an entry.
pub(crate) struct PollSet<T> {
    poller: Poller,
    things: Arc<Mutex<Things<T>>>,
}

/// One thing in a poll set; dropping the entry removes the thing.
pub(crate) struct Entry<T: Watched> {
    thing: Arc<T>,
    set: Arc<PollSet<T>>,
    number: u64,
}

struct Things<T> {
    last: u64,
    by_number: HashMap<u64, Arc<T>>,
}

impl<T: Watched> PollSet<T> {
    /// Returns the poll set in `known`, or makes one and stores it there.
    pub(crate) fn of(known: &Mutex<Weak<Self>>) -> io::Result<Arc<Self>> {
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(set) = known.upgrade() {
            return Ok(set);
        }
        let things = Arc::new(Mutex::new(Things::<T> {
            last: 0,
            by_number: HashMap::new(),
        }));
        let its_own = Arc::clone(&things);
        let look = move |_: &PollLoop, seen| {
            let Seen::At(number) = seen else { return };
            let thing = lock(&its_own).by_number.get(&(number / 2)).map(Arc::clone);
            if let Some(thing) = thing {
                thing.look(number % 2 == 1);
            }
        };
        let poller = Poller::start(T::THREAD, T::STACK, look)?;
        let set = Arc::new(Self { poller, things });
        *known = Arc::downgrade(&set);
        Ok(set)
    }

    /// Adds a thing. A descriptor that is ready already is reported as well.
    pub(crate) fn enter(self: Arc<Self>, thing: T) -> io::Result<Entry<T>> {
        let thing = Arc::new(thing);
        let number = {
            let mut things = lock(&self.things);
            things.last += 1;
            let number = things.last;
            things.by_number.insert(number, Arc::clone(&thing));
            number
        };
        // If epoll refuses a descriptor, the entry is dropped and so removes the thing again.
        let entry = Entry {
            thing,
            set: self,
            number,
        };
        let (first, second) = entry.thing.descriptors();
        let watch = &entry.set.poller.poll_loop().watch;
        watch.add(first, number * 2)?;
        if let Some(second) = second {
            watch.add(second, number * 2 + 1)?;
        }
        Ok(entry)
    }
}

impl<T: Watched> Deref for Entry<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.thing
    }
}

impl<T: Watched> Drop for Entry<T> {
    fn drop(&mut self) {
        // A forked child shares the epoll instance with its parent, whose entry must stay.
        if portolan_sys::fork::in_child() {
            return;
        }
        lock(&self.set.things).by_number.remove(&self.number);
        // Explicitly: another descriptor of the same file would keep it in the epoll instance.
        let (first, second) = self.thing.descriptors();
        let watch = &self.set.poller.poll_loop().watch;
        let _ = watch.remove(first);
        if let Some(second) = second {
            let _ = watch.remove(second);
        }
    }
}

fn lock<T>(things: &Mutex<Things<T>>) -> MutexGuard<'_, Things<T>> {
    // No code panics while it holds the lock.
    things.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_testkit::PATIENCE;
    use std::os::fd::AsFd;
    use std::sync::mpsc::{self, Sender};

    struct Pair {
        first: EventFd,
        second: Option<EventFd>,
        tell: Sender<bool>,
    }

    impl Watched for Pair {
        const THREAD: &str = "test";
        const STACK: usize = 64 << 10;

        fn descriptors(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
            (self.first.as_fd(), self.second.as_ref().map(AsFd::as_fd))
        }

        fn look(&self, second: bool) {
            let event = if second { self.second.as_ref() } else { None };
            let _ = event.unwrap_or(&self.first).drain();
            let _ = self.tell.send(second);
        }
    }

    #[test]
    fn an_entry_is_watched_until_it_is_dropped() {
        let known = Mutex::default();
        let (tell, told) = mpsc::channel();
        let pair = || Pair {
            first: EventFd::new().unwrap(),
            second: Some(EventFd::new().unwrap()),
            tell: tell.clone(),
        };
        let before = pair();
        before.second.as_ref().unwrap().notify().unwrap();
        let one = PollSet::of(&known).unwrap().enter(before).unwrap();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(true));
        let two = PollSet::of(&known).unwrap().enter(pair()).unwrap();
        assert!(Arc::ptr_eq(&one.set, &two.set));
        one.first.notify().unwrap();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(false));
        let gone = Arc::clone(&one.thing);
        drop(one);
        gone.first.notify().unwrap();
        two.second.as_ref().unwrap().notify().unwrap();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(true));
        let set = Arc::downgrade(&two.set);
        drop(two);
        assert!(set.upgrade().is_none());
        assert_eq!(told.try_recv().ok(), None);
    }

    #[test]
    fn a_thing_that_epoll_refuses_is_removed() {
        struct Plain(
            std::fs::File,
            #[expect(dead_code, reason = "counted")] Arc<()>,
        );
        impl Watched for Plain {
            const THREAD: &str = "test";
            const STACK: usize = 64 << 10;

            fn descriptors(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
                (self.0.as_fd(), None)
            }

            fn look(&self, _: bool) {}
        }
        let known = Mutex::default();
        let there = Arc::new(());
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let set = PollSet::of(&known).unwrap();
        let entered = Arc::clone(&set).enter(Plain(file, Arc::clone(&there)));
        let why = entered.err().unwrap();
        assert_eq!(why.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(Arc::strong_count(&there), 1);
    }

    #[test]
    fn orders_from_before_the_end_are_followed() {
        let (tell, told) = mpsc::channel();
        let poller = Poller::start("test", 64 << 10, move |_, seen| {
            if matches!(seen, Seen::Bell) {
                let _ = tell.send(());
            }
        });
        let poller = poller.unwrap();
        poller.poll_loop().wake();
        drop(poller);
        assert!(told.iter().count() >= 1);
    }
}
