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

use crate::space::Descriptor;
use crate::wait::poller::{self, Entry, PollSet};
use portolan_abi::vmmc::RING;
use portolan_sys::process::{PidFd, poll};
use portolan_sys::socket;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, Weak};
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

/// An import's exporter, watched until this is dropped.
pub(super) struct Watched(Entry<Exporter>);

/// What the thread knows of an exporter.
struct Exporter {
    connection: Descriptor,
    process: Descriptor<PidFd>,
    over: AtomicU32,
    /// Until when it may die.
    until: OnceLock<Instant>,
}

impl Watched {
    pub(super) fn new(connection: Descriptor, exporter: PidFd) -> io::Result<Self> {
        /// That of this process.
        static KNOWN: Mutex<Weak<PollSet<Exporter>>> = Mutex::new(Weak::new());
        let exporter = Exporter {
            connection,
            process: Descriptor::new(exporter),
            over: AtomicU32::new(THERE),
            until: OnceLock::new(),
        };
        Ok(Self(PollSet::of(&KNOWN)?.enter(exporter)?))
    }

    /// Has the exporter look at what was posted. If there is no room for a ring, it has others
    /// to look for; if it has gone, that is seen.
    pub(super) fn ring(&self) {
        let _ = socket::send_by(&self.0.connection, &[RING], &[], Some(Instant::now()));
    }

    /// Whether nothing is known of the exporter's having gone.
    #[inline]
    pub(super) fn is_there(&self) -> bool {
        self.0.seen() == THERE
    }

    /// Whether the exporter is dead, as the kernel says now.
    pub(super) fn is_dead(&self) -> bool {
        self.0.process.is_dead()
    }

    /// Whether the exporter is dead, now that it is found to have let go of the connection, or
    /// of its memory. If it is about to end, that is waited for, up to [`DYING`] in all.
    #[cold]
    pub(super) fn has_died(&self) -> bool {
        if self.0.seen() < DISCONNECTED {
            let until = *self.0.until.get_or_init(|| Instant::now() + DYING);
            self.0.settle(until);
        }
        self.0.seen() == DIED
    }
}

impl Exporter {
    #[inline]
    fn seen(&self) -> u32 {
        // Acquire: pairs with `note`; what the exporter said before is there when this is.
        self.over.load(Ordering::Acquire)
    }

    fn note(&self, seen: u32) {
        // Release: pairs with `seen`. What is known of a death stays.
        self.over.fetch_max(seen, Ordering::Release);
    }

    /// Decides whether it is dead, or lives, which it does also if it has not died by `until`.
    fn settle(&self, until: Instant) {
        // If that cannot be told, it may be.
        if self.process.is_ending() != Some(false) {
            // An error (no memory) says no more than that it has not died.
            let _ = poll(&[self.process.as_fd()], Some(until));
        }
        self.note(if self.process.is_dead() {
            DIED
        } else {
            DISCONNECTED
        });
    }
}

impl poller::Watched for Exporter {
    const THREAD: &str = "portolan-import";
    /// Enough for a thread that stores a word.
    const STACK: usize = 64 << 10;

    fn descriptors(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        (self.connection.as_fd(), Some(self.process.as_fd()))
    }

    fn look(&self, process: bool) {
        if process {
            if self.process.is_dead() {
                self.note(DIED);
            }
            return;
        }
        // An exporter says nothing after its answer: whatever is there, it is none.
        if !matches!(
            socket::try_receive(&self.connection, &mut [0; 1], 0),
            Ok(None)
        ) {
            self.note(LET_GO);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_sys::process::{Signal, signal};
    use portolan_testkit::until;

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
        until("it is ending", || pidfd.is_ending() == Some(true));
        assert!(!pidfd.is_dead());
        pidfd
    }

    /// Watched, and its connection found to have ended.
    fn let_go(exporter: PidFd) -> Watched {
        let (ours, theirs) = socket::pair().unwrap();
        let watched = Watched::new(Descriptor::new(ours), exporter).unwrap();
        assert!(watched.is_there());
        drop(theirs);
        until("it has let go", || !watched.is_there());
        watched
    }

    #[test]
    fn who_lets_go_and_lives_is_no_dead_one() {
        let own = PidFd::open(std::process::id()).unwrap();
        let watched = let_go(own);
        let far = Instant::now() + Duration::from_secs(3600);
        watched.0.settle(far);
        assert_eq!(watched.0.seen(), DISCONNECTED);
        assert!(!watched.has_died());
    }

    #[test]
    fn who_lets_go_and_is_dying_is_waited_for() {
        let exporter = half_dead();
        let watched = let_go(PidFd::open(exporter.id().unwrap()).unwrap());
        let far = Instant::now() + Duration::from_secs(3600);
        std::thread::scope(|scope| {
            let settling = scope.spawn(|| watched.0.settle(far));
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
        watched.0.settle(Instant::now());
        assert!(!watched.has_died());
        signal(&exporter, Signal::KILL).unwrap();
        until("it has died", || watched.has_died());
    }
}
