//! The thread that sees exporters go.
//!
//! One a process, there as long as it has imports. It sleeps in epoll over the connections to
//! exporters and their pidfds, and says in a word of the import what it has seen. It touches
//! nothing else of an import, and is never the last to hold one.
//!
//! ```text
//!           connection ended                    it lives, or does not get on
//! there ------------------------> let go of ---------------------------------> disconnected
//!   |                                |                                              |
//!   +------------ dead --------------+--------------------- dead -------------------+--> died
//! ```
//!
//! Whoever is killed lets go of its connections a little before it is dead. So whoever finds the
//! connection ended looks whether the exporter is about to end, and if so waits for that.

use crate::domain::Descriptor;
use portolan_abi::vmmc::RING;
use portolan_sys::process::{EventFd, PidFd, poll};
use portolan_sys::socket;
use portolan_sys::watch::Watch;
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Nothing has been seen.
const THERE: u32 = 0;
/// The exporter has let go of the connection; whether it is dying has not been asked.
const LET_GO: u32 = 1;
/// It lives.
const DISCONNECTED: u32 = 2;
/// The exporter is dead.
const DIED: u32 = 3;

/// How long an exporter may take to die, once it has let go of what it had: it may have much
/// memory to give back, and not get a processor.
const DYING: Duration = Duration::from_secs(5);

/// Enough for a thread that stores a word.
const STACK: usize = 64 << 10;

/// An import's exporter, watched until this is dropped.
pub(super) struct Watched {
    watcher: Arc<Watcher>,
    number: u64,
    connection: Arc<Descriptor>,
    exporter: Arc<Descriptor<PidFd>>,
    over: Arc<AtomicU32>,
    /// Until when it may die.
    until: OnceLock<Instant>,
}

impl Watched {
    pub(super) fn new(connection: Descriptor, exporter: PidFd) -> io::Result<Self> {
        let watcher = Watcher::of_process()?;
        let over = Arc::new(AtomicU32::new(THERE));
        let connection = Arc::new(connection);
        let exporter = Arc::new(Descriptor::new(exporter));
        let entry = Entry {
            connection: Arc::clone(&connection),
            exporter: Arc::clone(&exporter),
            over: Arc::clone(&over),
        };
        let number = watcher.shared.add(entry)?;
        Ok(Self {
            watcher,
            number,
            connection,
            exporter,
            over,
            until: OnceLock::new(),
        })
    }

    /// Has the exporter look at what was posted. If there is no room for a ring, it has others
    /// to look for; if it has gone, that is seen.
    pub(super) fn ring(&self) {
        let _ = socket::send_by(&**self.connection, &[RING], &[], Some(Instant::now()));
    }

    /// Whether nothing is known of the exporter's having gone.
    #[inline]
    pub(super) fn is_there(&self) -> bool {
        self.seen() == THERE
    }

    #[inline]
    fn seen(&self) -> u32 {
        // Acquire: pairs with `look`; what the exporter said before is there when this is.
        self.over.load(Ordering::Acquire)
    }

    /// Whether the exporter is dead, now that it is found to have let go of the connection, or
    /// of its memory. If it is about to end, that is waited for, up to [`DYING`] in all.
    #[cold]
    pub(super) fn has_died(&self) -> bool {
        if self.seen() < DISCONNECTED {
            let until = *self.until.get_or_init(|| Instant::now() + DYING);
            self.settle(until);
        }
        self.seen() == DIED
    }

    /// Decides whether it is dead, or lives, which it does also if it has not died by `until`.
    fn settle(&self, until: Instant) {
        // If that cannot be told, it may be.
        if self.exporter.is_ending() != Some(false) {
            // An error (no memory) says no more than that it has not died.
            let _ = poll(&[self.exporter.as_fd()], Some(until));
        }
        let seen = match self.exporter.is_dead() {
            true => DIED,
            false => DISCONNECTED,
        };
        // Release, Acquire: as in `look`.
        self.over.fetch_max(seen, Ordering::AcqRel);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !portolan_sys::fork::in_child() {
            self.watcher.shared.remove(self.number);
        }
    }
}

struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    watch: Watch,
    /// Ends the thread.
    over: EventFd,
    imports: Mutex<Imports>,
}

#[derive(Default)]
struct Imports {
    last: u64,
    by_number: HashMap<u64, Entry>,
}

struct Entry {
    connection: Arc<Descriptor>,
    exporter: Arc<Descriptor<PidFd>>,
    over: Arc<AtomicU32>,
}

/// The number of [`Shared::over`]; those of imports are even for connections, odd for pidfds.
const OVER: u64 = 0;

impl Watcher {
    /// That of this process.
    fn of_process() -> io::Result<Arc<Self>> {
        static KNOWN: Mutex<Weak<Watcher>> = Mutex::new(Weak::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = known.upgrade() {
            return Ok(watcher);
        }
        let shared = Arc::new(Shared {
            watch: Watch::new()?,
            over: EventFd::new()?,
            imports: Mutex::default(),
        });
        shared.watch.add(&shared.over, OVER)?;
        let its_own = Arc::clone(&shared);
        let thread =
            portolan_sys::process::spawn_quiet("portolan-import", STACK, move || its_own.serve())?;
        let watcher = Arc::new(Self {
            shared,
            thread: Some(thread),
        });
        *known = Arc::downgrade(&watcher);
        Ok(watcher)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // In a forked child there is no thread, and its descriptors are let go of.
        if portolan_sys::fork::in_child() {
            return;
        }
        let _ = self.shared.over.notify();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        while let Ok(numbers) = self.watch.wait() {
            for number in numbers {
                if number == OVER {
                    return;
                }
                self.look(number);
            }
        }
    }

    fn look(&self, number: u64) {
        let imports = self.imports();
        let Some(entry) = imports.by_number.get(&(number / 2)) else {
            return;
        };
        let seen = if number % 2 == 1 {
            if entry.exporter.is_dead() {
                DIED
            } else {
                THERE
            }
        } else {
            // An exporter says nothing after its answer: whatever is there, it is none.
            match socket::try_receive(&**entry.connection, &mut [0; 1], 0) {
                Ok(None) => THERE,
                Ok(Some(_)) | Err(_) => LET_GO,
            }
        };
        // Release: pairs with `seen`. What is known of a death stays.
        entry.over.fetch_max(seen, Ordering::Release);
    }

    fn add(&self, entry: Entry) -> io::Result<u64> {
        let mut imports = self.imports();
        imports.last += 1;
        let number = imports.last;
        // Added before it is watched: what is the matter already is found.
        let entry = imports.by_number.entry(number).insert_entry(entry);
        let watched = self
            .watch
            .add(&**entry.get().connection, number * 2)
            .and_then(|()| self.watch.add(&**entry.get().exporter, number * 2 + 1));
        if let Err(error) = watched {
            let entry = entry.remove();
            let _ = self.watch.remove(&**entry.connection);
            return Err(error);
        }
        Ok(number)
    }

    fn remove(&self, number: u64) {
        let gone = self.imports().by_number.remove(&number);
        if let Some(entry) = gone {
            // Explicitly: others may have descriptors of the same files.
            let _ = self.watch.remove(&**entry.connection);
            let _ = self.watch.remove(&**entry.exporter);
        }
    }

    fn imports(&self) -> MutexGuard<'_, Imports> {
        self.imports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_sys::process::{Signal, signal};

    fn until(mut done: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !done() {
            assert!(Instant::now() < end, "waited in vain");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A process whose first thread has ended and another one has not: as one that is dying, for
    /// as long as it is left so.
    fn half_dead() -> PidFd {
        // SAFETY:
        // - The child makes a thread and a system call.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            std::thread::spawn(|| {
                loop {
                    std::thread::park();
                }
            });
            // SAFETY:
            // - Takes no pointers. It ends this thread, whose stack nobody has a reference to.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        let pidfd = PidFd::open(u32::try_from(pid).unwrap()).unwrap();
        until(|| pidfd.is_ending() == Some(true));
        assert!(!pidfd.is_dead());
        pidfd
    }

    /// Watched, and its connection found to have ended.
    fn let_go(exporter: PidFd) -> Watched {
        let (ours, theirs) = socket::pair().unwrap();
        let watched = Watched::new(Descriptor::new(ours), exporter).unwrap();
        assert!(watched.is_there());
        drop(theirs);
        until(|| !watched.is_there());
        watched
    }

    #[test]
    fn who_lets_go_and_lives_is_no_dead_one() {
        let own = PidFd::open(std::process::id()).unwrap();
        let watched = let_go(own);
        let far = Instant::now() + Duration::from_secs(3600);
        watched.settle(far);
        assert_eq!(watched.seen(), DISCONNECTED);
        assert!(!watched.has_died());
    }

    #[test]
    fn who_lets_go_and_is_dying_is_waited_for() {
        let exporter = half_dead();
        let watched = let_go(PidFd::open(exporter.id().unwrap()).unwrap());
        let far = Instant::now() + Duration::from_secs(3600);
        std::thread::scope(|scope| {
            let settling = scope.spawn(|| watched.settle(far));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!settling.is_finished());
            signal(&exporter, Signal::KILL).unwrap();
        });
        assert!(watched.has_died());
    }

    #[test]
    fn who_lets_go_and_does_not_get_on_with_dying_is_not_waited_for_longer() {
        let exporter = half_dead();
        let watched = let_go(PidFd::open(exporter.id().unwrap()).unwrap());
        watched.settle(Instant::now());
        assert!(!watched.has_died());
        signal(&exporter, Signal::KILL).unwrap();
        until(|| watched.has_died());
    }
}
