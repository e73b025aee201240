//! One thread per process watches the exporters of its imports, and sees them close or die.
//!
//! The thread exists as long as the process has imports. It sleeps in epoll over the connections to
//! exporters and their pidfds, and stores the exporter's state in a word of the import. It touches
//! nothing else of an import, and never holds its last handle.
//!
//! ```text
//!           connection ended                    it lives, or its death takes too long
//! there ------------------------> let go of ---------------------------------> disconnected
//!   |                                |                                              |
//!   +------------ dead --------------+--------------------- dead -------------------+--> died
//! ```
//!
//! The kernel closes the connections of a killed process a little before the process is dead. So
//! a call that finds the connection ended looks whether the exporter is dying, and if so waits for
//! its death.

use crate::space::Descriptor;
use crate::wait::poller::{self, Entry, PollSet};
use portolan_abi::vmmc::WAKE;
use portolan_sys::process::{PidFd, poll};
use portolan_sys::socket;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// The exporter is connected, as far as is known.
const THERE: u32 = 0;
/// The exporter has closed the connection; whether it is dying has not been asked.
const LET_GO: u32 = 1;
/// The exporter has closed the connection, and lives.
const DISCONNECTED: u32 = 2;
/// The exporter is dead.
const DIED: u32 = 3;

/// How long an exporter may take to die after its connection has closed: it may have much memory
/// to free, and get no processor.
const DYING: Duration = Duration::from_secs(5);

/// An import's exporter, watched until this is dropped.
pub(super) struct Watched(Entry<Exporter>);

/// The thread's state of an exporter.
struct Exporter {
    connection: Descriptor,
    process: Descriptor<PidFd>,
    over: AtomicU32,
    /// The deadline of its death.
    until: OnceLock<Instant>,
}

impl Watched {
    pub(super) fn new(connection: Descriptor, exporter: PidFd) -> io::Result<Self> {
        /// The poll set of this process.
        static KNOWN: Mutex<Weak<PollSet<Exporter>>> = Mutex::new(Weak::new());
        let exporter = Exporter {
            connection,
            process: Descriptor::new(exporter),
            over: AtomicU32::new(THERE),
            until: OnceLock::new(),
        };
        Ok(Self(PollSet::of(&KNOWN)?.enter(exporter)?))
    }

    /// Has the exporter look for notes. If the socket has no room for a wake, earlier wakes lie
    /// there unread; if the exporter has gone, the thread sees that.
    pub(super) fn wake(&self) {
        let _ = socket::send_by(&self.0.connection, &[WAKE], &[], Some(Instant::now()));
    }

    /// Whether the exporter is connected, as far as is known.
    #[inline]
    pub(super) fn is_there(&self) -> bool {
        self.0.seen() == THERE
    }

    /// Whether the exporter is dead, as the kernel says now.
    pub(super) fn is_dead(&self) -> bool {
        self.0.process.is_dead()
    }

    /// Whether the exporter is dead, after a call has found its connection closed or its memory
    /// gone. If the exporter is dying, this waits for its death, up to [`DYING`] in all.
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
        // Acquire: pairs with `note`; what the exporter stored before is seen with this.
        self.over.load(Ordering::Acquire)
    }

    fn note(&self, seen: u32) {
        // Release: pairs with `seen`. Never back from a death to another state.
        self.over.fetch_max(seen, Ordering::Release);
    }

    /// Decides whether the exporter is dead. It counts as alive if it has not died by `until`.
    fn settle(&self, until: Instant) {
        // If the kernel cannot tell, the exporter may be dying.
        if self.process.is_ending() != Some(false) {
            // After an error (no memory) the exporter counts as alive.
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
    /// Enough for a thread that only stores a word.
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
        // An exporter sends nothing after its answer: one that does counts as gone.
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
    // They fork.
    #![allow(unsafe_code)]
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
            // - Takes no pointers. It ends this thread, whose stack no code has a reference to.
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
