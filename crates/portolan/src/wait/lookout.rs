//! Threads that watch descriptors until they are dropped.
//!
//! A [`Lookout`] is one that sleeps in epoll. Most of them watch things of one kind, which come
//! and go while they sleep: that is a [`Roll`], with an [`Entry`] for each.

use portolan_sys::process::{EventFd, spawn_quiet};
use portolan_sys::watch::Watch;
use std::collections::HashMap;
use std::io;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

/// The number of the bell. Others begin behind it.
const BELL: u64 = 0;

/// A thread that sleeps until something is new at one of its descriptors, until this is dropped.
#[derive(Debug)]
pub(crate) struct Lookout {
    post: Arc<Post>,
    thread: Option<JoinHandle<()>>,
}

/// Where a lookout sleeps.
#[derive(Debug)]
pub(crate) struct Post {
    watch: Watch,
    bell: EventFd,
    over: AtomicBool,
}

/// What a lookout has seen.
pub(crate) enum Seen {
    /// It was rung for.
    Bell,
    /// Something is new at the descriptor of this number.
    At(u64),
}

impl Lookout {
    /// Starts one, on whose thread `look` runs for whatever is seen. Nothing is watched yet;
    /// numbers begin at 1.
    pub(crate) fn start(
        name: &str,
        stack: usize,
        look: impl FnMut(&Post, Seen) + Send + 'static,
    ) -> io::Result<Self> {
        let post = Arc::new(Post {
            watch: Watch::new()?,
            bell: EventFd::new()?,
            over: AtomicBool::new(false),
        });
        post.watch.add(&post.bell, BELL)?;
        let its_own = Arc::clone(&post);
        let thread = spawn_quiet(name, stack, move || its_own.serve(look))?;
        Ok(Self {
            post,
            thread: Some(thread),
        })
    }

    pub(crate) fn post(&self) -> &Post {
        &self.post
    }

    /// Has it end, and does not wait until it has.
    pub(crate) fn dismiss(mut self) -> Option<JoinHandle<()>> {
        self.thread.take()
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        // In a forked child there is no thread, and its descriptors are let go of.
        if portolan_sys::fork::in_child() {
            return;
        }
        // Release: pairs with `serve`; the bell comes after it.
        self.post.over.store(true, Ordering::Release);
        self.post.ring();
        if let Some(thread) = self.thread.take() {
            // What it looks at may hold the last handle of it.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Post {
    /// Where descriptors are put in and taken out, by any thread.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Has the lookout see that there is something for it to do.
    pub(crate) fn ring(&self) {
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
                // Acquire: pairs with the drop. Loaded before it looks, so that what was ordered
                // before the end is done.
                let over = self.over.load(Ordering::Acquire);
                look(self, Seen::Bell);
                if over {
                    return;
                }
            }
        }
    }
}

/// Something that a roll watches.
pub(crate) trait Watched: Send + Sync + 'static {
    /// The name of the roll's thread.
    const THREAD: &str;
    /// Bytes of its stack.
    const STACK: usize;

    /// What is watched of it: one descriptor, or two.
    fn descriptors(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>);

    /// Something is new at the first of them, or at the second. Runs on the thread.
    fn look(&self, second: bool);
}

/// A lookout for things of one kind, there as long as there are any.
pub(crate) struct Roll<T> {
    lookout: Lookout,
    things: Arc<Mutex<Things<T>>>,
}

/// One of them; taken out when dropped.
pub(crate) struct Entry<T: Watched> {
    thing: Arc<T>,
    roll: Arc<Roll<T>>,
    number: u64,
}

struct Things<T> {
    last: u64,
    by_number: HashMap<u64, Arc<T>>,
}

impl<T: Watched> Roll<T> {
    /// The roll that is known, or a new one, which then is.
    pub(crate) fn of(known: &Mutex<Weak<Self>>) -> io::Result<Arc<Self>> {
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(roll) = known.upgrade() {
            return Ok(roll);
        }
        let things = Arc::new(Mutex::new(Things::<T> {
            last: 0,
            by_number: HashMap::new(),
        }));
        let its_own = Arc::clone(&things);
        let look = move |_: &Post, seen| {
            let Seen::At(number) = seen else { return };
            let thing = lock(&its_own).by_number.get(&(number / 2)).map(Arc::clone);
            if let Some(thing) = thing {
                thing.look(number % 2 == 1);
            }
        };
        let lookout = Lookout::start(T::THREAD, T::STACK, look)?;
        let roll = Arc::new(Self { lookout, things });
        *known = Arc::downgrade(&roll);
        Ok(roll)
    }

    /// Watches a thing from now on; what is the matter with it already is found.
    pub(crate) fn enter(self: Arc<Self>, thing: T) -> io::Result<Entry<T>> {
        let thing = Arc::new(thing);
        let number = {
            let mut things = lock(&self.things);
            things.last += 1;
            let number = things.last;
            things.by_number.insert(number, Arc::clone(&thing));
            number
        };
        // Dropped, and so taken out again, if one of them cannot be watched.
        let entry = Entry {
            thing,
            roll: self,
            number,
        };
        let (first, second) = entry.thing.descriptors();
        let watch = &entry.roll.lookout.post().watch;
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
        // What a forked child has is a copy, of which our thread knows nothing.
        if portolan_sys::fork::in_child() {
            return;
        }
        lock(&self.roll.things).by_number.remove(&self.number);
        // Explicitly: others may have descriptors of the same files.
        let (first, second) = self.thing.descriptors();
        let watch = &self.roll.lookout.post().watch;
        let _ = watch.remove(first);
        if let Some(second) = second {
            let _ = watch.remove(second);
        }
    }
}

fn lock<T>(things: &Mutex<Things<T>>) -> MutexGuard<'_, Things<T>> {
    // Nothing that is done under the lock panics.
    things.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::sync::mpsc::{self, Sender};
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(60);

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
    fn what_is_entered_is_watched_until_it_is_dropped() {
        let known = Mutex::default();
        let (tell, told) = mpsc::channel();
        let pair = || Pair {
            first: EventFd::new().unwrap(),
            second: Some(EventFd::new().unwrap()),
            tell: tell.clone(),
        };
        let before = pair();
        before.second.as_ref().unwrap().notify().unwrap();
        let one = Roll::of(&known).unwrap().enter(before).unwrap();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(true));
        let two = Roll::of(&known).unwrap().enter(pair()).unwrap();
        assert!(Arc::ptr_eq(&one.roll, &two.roll));
        one.first.notify().unwrap();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(false));
        let gone = Arc::clone(&one.thing);
        drop(one);
        gone.first.notify().unwrap();
        two.second.as_ref().unwrap().notify().unwrap();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(true));
        let roll = Arc::downgrade(&two.roll);
        drop(two);
        assert!(roll.upgrade().is_none());
        assert_eq!(told.try_recv().ok(), None);
    }

    #[test]
    fn what_cannot_be_watched_is_not_kept() {
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
        let roll = Roll::of(&known).unwrap();
        let entered = Arc::clone(&roll).enter(Plain(file, Arc::clone(&there)));
        let why = entered.err().unwrap();
        assert_eq!(why.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(Arc::strong_count(&there), 1);
    }

    #[test]
    fn orders_from_before_the_end_are_followed() {
        let (tell, told) = mpsc::channel();
        let lookout = Lookout::start("test", 64 << 10, move |_, seen| {
            if matches!(seen, Seen::Bell) {
                let _ = tell.send(());
            }
        });
        let lookout = lookout.unwrap();
        lookout.post().ring();
        drop(lookout);
        assert!(told.iter().count() >= 1);
    }
}
