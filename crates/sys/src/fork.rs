//! Closes what a forked child must not keep, and lets it notice that it is one.
//!
//! A child made by `fork` has copies of our descriptors and of our variables, but not
//! our threads, and not the mappings marked "not in children". It has to notice before
//! it uses either. One handler, registered once and never taken out, runs in the child
//! before `fork` returns there. It allocates nothing and takes no lock.
//!
//! `vfork`, `posix_spawn` and bare `clone` run no handlers; they lead to exec, where
//! close-on-exec does the same work.

use std::os::fd::RawFd;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

// All orderings on the generation are relaxed: it changes only in a new process, before
// that process has a second thread.
static GENERATION: AtomicU64 = AtomicU64::new(0);
static REGISTERED: Once = Once::new();

/// How many forks lie between this process and the one that first asked.
///
/// Whatever must not be used in a child remembers the generation that made it.
pub fn generation() -> u64 {
    register();
    GENERATION.load(Ordering::Relaxed)
}

/// Whether this process is a forked child of one that asked for its generation before.
///
/// One load: cheap enough for every operation.
#[inline]
pub fn in_child() -> bool {
    GENERATION.load(Ordering::Relaxed) > 0
}

/// Makes forked children let go of what `fd` refers to, until the guard is dropped.
///
/// In the child the *number* stays taken, by a descriptor that is good for nothing
/// (every use is `EBADF`). So a copy of the owner that is dropped in the child closes
/// that, and not a stranger's file that got the same number.
///
/// # Examples
///
/// ```
/// use std::os::fd::AsRawFd;
/// let file = std::fs::File::open("/proc/self/stat")?;
/// let guard = portolan_sys::fork::close_in_child(file.as_raw_fd());
/// # drop(guard);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn close_in_child(fd: RawFd) -> CloseOnFork {
    register();
    let mut chunk: &'static Chunk = &FIRST;
    loop {
        for slot in &chunk.fds {
            // Relaxed: the handler runs in the thread that forked, which sees its own
            // stores, and a race of fork with this call has no right answer.
            let claimed = slot.compare_exchange(FREE, fd, Ordering::Relaxed, Ordering::Relaxed);
            if claimed.is_ok() {
                return CloseOnFork { slot };
            }
        }
        chunk = chunk.next_or_new();
    }
}

/// Keeps a descriptor on the list of those that forked children let go of.
#[derive(Debug)]
#[must_use = "when dropped, children keep the descriptor"]
pub struct CloseOnFork {
    slot: &'static AtomicI32,
}

impl Drop for CloseOnFork {
    fn drop(&mut self) {
        self.slot.store(FREE, Ordering::Relaxed);
    }
}

/// A slot without a descriptor.
const FREE: RawFd = -1;

/// Descriptors in one piece of the list.
const CHUNK: usize = 64;

/// A piece of the list of descriptors. Pieces are added and never removed, so that the
/// child can walk them whatever its parent's threads were doing.
struct Chunk {
    fds: [AtomicI32; CHUNK],
    next: AtomicPtr<Chunk>,
}

static FIRST: Chunk = Chunk::new();

impl Chunk {
    const fn new() -> Self {
        Self {
            fds: [const { AtomicI32::new(FREE) }; CHUNK],
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn next(&self) -> Option<&'static Self> {
        // Acquire pairs with the Release in `next_or_new`: the piece is initialised.
        let next = self.next.load(Ordering::Acquire);
        // SAFETY:
        // - Null, or a piece that was leaked in `next_or_new` and so lives for ever.
        unsafe { next.as_ref() }
    }

    fn next_or_new(&self) -> &'static Self {
        if let Some(next) = self.next() {
            return next;
        }
        let new = Box::into_raw(Box::new(Self::new()));
        // Release pairs with the Acquire in `next`. On failure Acquire reads the winner's piece.
        let won =
            self.next
                .compare_exchange(ptr::null_mut(), new, Ordering::Release, Ordering::Acquire);
        match won {
            // SAFETY:
            // - Not null, and never freed from here on.
            Ok(_) => unsafe { &*new },
            Err(theirs) => {
                // SAFETY:
                // - Made above, and seen by no other thread.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY:
                // - Not null, or it would have been ours; never freed.
                unsafe { &*theirs }
            }
        }
    }
}

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> libc::c_int;
}

fn register() {
    REGISTERED.call_once(|| {
        // SAFETY:
        // - The handler is async-signal-safe and lives as long as the program.
        let failed = unsafe { pthread_atfork(None, None, Some(child)) };
        assert_eq!(failed, 0, "no memory for a fork handler");
    });
}

/// Runs in the child, in its only thread, before `fork` returns.
unsafe extern "C" fn child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // SAFETY:
    // - The path is a C string.
    let dead = unsafe { libc::open(c"/".as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
    let mut chunk = Some(&FIRST);
    while let Some(Chunk { fds, .. }) = chunk {
        for slot in fds {
            // The slot stays with the child's copy of the guard, so a grandchild does the
            // same again.
            let fd = slot.load(Ordering::Relaxed);
            if fd != FREE {
                let_go(fd, dead);
            }
        }
        chunk = chunk.and_then(Chunk::next);
    }
    if dead >= 0 {
        // SAFETY:
        // - Opened above and used nowhere else.
        unsafe { libc::close(dead) };
    }
}

/// Replaces `fd` by `dead`, or closes it where there is no `dead`.
fn let_go(fd: RawFd, dead: RawFd) {
    if dead >= 0 {
        // SAFETY:
        // - The owner asked for `fd` to be let go of in children, by `close_in_child`.
        unsafe { libc::dup3(dead, fd, libc::O_CLOEXEC) };
    } else {
        // SAFETY:
        // - As above; nothing is left to hold the number.
        unsafe { libc::close(fd) };
    }
}
