//! Makes a descriptor readable when a futex word changes.
//!
//! A thread can sleep on a futex, and cannot poll it. A [`FutexFd`] turns one word at a time into a
//! descriptor for poll, epoll and libraries above them, until a deadline if it has one:
//!
//! ```text
//!         arm(word, value)                 the word is not `value`, or a waker
//!   idle ------------------> armed ------> woke its sleepers: fired, readable
//!    ^                     |                  |
//!    +------ disarm -------+------ drain -----+
//! ```
//!
//! An armed bell is a sleeper like any other: a wake of a limited number of sleepers may wake the
//! bell. A caller that wants another sleeper woken instead must disarm the bell before.
//!
//! The same descriptor may wait for any number of *further words* besides, each under a key
//! ([`FutexFd::arm_word`]): it is readable when one of them has fired too, and
//! [`FutexFd::drain_words`] says which.
//!
//! It uses io_uring futex waits, whose ring can be polled. Where io_uring is missing or
//! forbidden, as in many containers, a sleeping helper thread does the same, and for further words
//! one for each 127. None uses the processor while nothing happens.
//!
//! # The word may go
//!
//! Nothing here reads the word by itself: the kernel looks at it when it is armed, and
//! answers a bad address with an error, which fires the bell. So arming is safe even if the word
//! is unmapped meanwhile; the bell then fires for no reason or not at all.

mod ring;
mod thread;
mod words;

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use self::ring::Ring;
pub(crate) use self::ring::wait_entry;
use self::thread::Helper;
use crate::fork;

/// A descriptor that becomes readable when a futex word changes.
///
/// # Examples
///
/// ```
/// use portolan_sys::{bell::FutexFd, futex};
/// use std::sync::atomic::{AtomicU32, Ordering};
/// let word = AtomicU32::new(0);
/// let mut bell = FutexFd::new()?;
/// bell.arm(&word, 0)?;
/// assert!(!bell.drain()?);
/// word.store(1, Ordering::Release);
/// futex::wake(&word, u32::MAX);
/// portolan_sys::process::poll(&[bell.as_fd()], None)?;
/// assert!(bell.drain()?);
/// # use std::os::fd::AsFd;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct FutexFd {
    /// Dropped only in the process that made it. A forked child has neither the memory of
    /// the ring nor the thread.
    inner: ManuallyDrop<Inner>,
    generation: u64,
}

#[derive(Debug)]
enum Inner {
    /// Boxed, because it is several times as large.
    Ring(Box<Ring>),
    Helper(Helper),
}

/// A word that is waited for: where it is, and which value it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Watched {
    address: usize,
    expected: u32,
}

impl Watched {
    fn new(word: &AtomicU32, expected: u32) -> Self {
        Self {
            address: word.as_ptr().addr(),
            expected,
        }
    }
}

/// What a [`FutexFd`] works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An io_uring futex wait (Linux 6.7).
    ///
    /// A ring completes in the thread that armed it, by a kind of signal. So when the bell fires
    /// while that thread sleeps in `epoll_wait`, that call returns `EINTR`, every time,
    /// and only the next one finds the bell readable. A program that handles signals handles
    /// this. If the thread ends, the bell fires once for no reason.
    Ring,
    /// A helper thread that sleeps on the word.
    Thread,
}

impl FutexFd {
    /// A bell of the best kind there is.
    ///
    /// # Errors
    ///
    /// `EMFILE`, above all, and those of [`with_thread`](Self::with_thread).
    pub fn new() -> io::Result<Self> {
        match Ring::new() {
            Ok(ring) => Ok(Self::of(Inner::Ring(Box::new(ring)))),
            Err(_) => Self::with_thread(),
        }
    }

    /// A bell with an io_uring.
    ///
    /// # Errors
    ///
    /// `EPERM` and `ENOSYS`: no io_uring here. `Unsupported`: none with futexes.
    pub fn with_ring() -> io::Result<Self> {
        Ok(Self::of(Inner::Ring(Box::new(Ring::new()?))))
    }

    /// A bell with a helper thread.
    ///
    /// # Errors
    ///
    /// `ENOSYS`: a kernel before 5.16. `EAGAIN`: too many threads. `EMFILE`.
    pub fn with_thread() -> io::Result<Self> {
        Ok(Self::of(Inner::Helper(Helper::new()?)))
    }

    fn of(inner: Inner) -> Self {
        Self {
            inner: ManuallyDrop::new(inner),
            generation: fork::generation(),
        }
    }

    /// What this bell works with.
    pub fn kind(&self) -> Kind {
        match &*self.inner {
            Inner::Ring(_) => Kind::Ring,
            Inner::Helper(_) => Kind::Thread,
        }
    }

    /// Waits for `word` to be woken, or to be something else than `expected` now. Takes
    /// the place of what was armed before.
    ///
    /// # Errors
    ///
    /// The kernel's; nothing is armed then. `Unsupported` in a forked child.
    pub fn arm(&mut self, word: &AtomicU32, expected: u32) -> io::Result<()> {
        self.arm_until(word, expected, None)
    }

    /// The same, until a deadline, at which the bell fires too.
    ///
    /// # Errors
    ///
    /// As [`arm`](Self::arm).
    ///
    /// ```
    /// use portolan_sys::bell::FutexFd;
    /// use std::sync::atomic::AtomicU32;
    /// use std::time::{Duration, Instant};
    /// # use std::os::fd::AsFd;
    /// let word = AtomicU32::new(0);
    /// let mut bell = FutexFd::new()?;
    /// bell.arm_until(&word, 0, Some(Instant::now() + Duration::from_millis(1)))?;
    /// portolan_sys::process::poll(&[bell.as_fd()], None)?;
    /// assert!(bell.drain()?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn arm_until(
        &mut self,
        word: &AtomicU32,
        expected: u32,
        until: Option<Instant>,
    ) -> io::Result<()> {
        match self.inner()? {
            Inner::Ring(ring) => ring.arm(word, expected, until),
            Inner::Helper(helper) => helper.arm(word, expected, until),
        }
    }

    /// Waits for a further word besides, under this key, in the place of what it waited for under
    /// it. What rings once is waited for no more. A waker changes the word before it wakes: one that
    /// does not may wake nobody.
    ///
    /// # Errors
    ///
    /// The kernel's. `Unsupported` in a forked child.
    ///
    /// ```
    /// use portolan_sys::{bell::FutexFd, futex};
    /// use std::sync::atomic::{AtomicU32, Ordering};
    /// # use std::os::fd::AsFd;
    /// let words = [const { AtomicU32::new(0) }; 3];
    /// let mut bell = FutexFd::new()?;
    /// for (key, word) in (0..).zip(&words) {
    ///     bell.arm_word(key, word, 0)?;
    /// }
    /// assert_eq!(bell.drain_words()?, []);
    /// words[1].store(1, Ordering::Release);
    /// futex::wake(&words[1], u32::MAX);
    /// portolan_sys::process::poll(&[bell.as_fd()], None)?;
    /// assert_eq!(bell.drain_words()?, [1]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn arm_word(&mut self, key: u32, word: &AtomicU32, expected: u32) -> io::Result<()> {
        match self.inner()? {
            Inner::Ring(ring) => ring.arm_word(key, word, expected),
            Inner::Helper(helper) => helper.words.arm(key, Watched::new(word, expected)),
        }
    }

    /// Waits for no further word under this key any more, and forgets that it has fired.
    ///
    /// # Errors
    ///
    /// The kernel's. `Unsupported` in a forked child.
    pub fn disarm_word(&mut self, key: u32) -> io::Result<()> {
        match self.inner()? {
            Inner::Ring(ring) => ring.cancel_word(key),
            Inner::Helper(helper) => {
                helper.words.cancel(key);
                Ok(())
            }
        }
    }

    /// Keys of the further words that have fired since the last call: they were woken, or had another
    /// value. Each may ring for no reason.
    ///
    /// What [`drain`](Self::drain) would say keeps the descriptor readable.
    ///
    /// # Errors
    ///
    /// The kernel's. `Unsupported` in a forked child.
    pub fn drain_words(&mut self) -> io::Result<Vec<u32>> {
        match self.inner()? {
            Inner::Ring(ring) => ring.drain_words(),
            Inner::Helper(helper) => helper.drain_words(),
        }
    }

    /// Has the bell sleep on no word any more: from now on it takes no wake. It does not become
    /// readable, and is not readable any more if it had fired before.
    ///
    /// # Errors
    ///
    /// The kernel's. `Unsupported` in a forked child.
    ///
    /// ```
    /// use portolan_sys::{bell::FutexFd, futex};
    /// use std::sync::atomic::AtomicU32;
    /// let word = AtomicU32::new(0);
    /// let mut bell = FutexFd::new()?;
    /// bell.arm(&word, 0)?;
    /// bell.disarm()?;
    /// assert_eq!(futex::wake(&word, 1), 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn disarm(&mut self) -> io::Result<()> {
        match self.inner()? {
            Inner::Ring(ring) => ring.cancel(),
            Inner::Helper(helper) => helper.cancel(),
        }
    }

    /// Whether the bell has fired since it was armed. If so it is idle and not readable
    /// for it any more: look at the word, then arm it again. Further words that have fired keep the
    /// descriptor readable until [`drain_words`](Self::drain_words).
    ///
    /// # Errors
    ///
    /// The kernel's. `Unsupported` in a forked child.
    pub fn drain(&mut self) -> io::Result<bool> {
        match self.inner()? {
            Inner::Ring(ring) => ring.drain_bell(),
            Inner::Helper(helper) => helper.drain(),
        }
    }

    /// Whether the descriptor is readable, as far as can be known without a system call: `false` may
    /// be wrong, `true` is not.
    ///
    /// ```
    /// use portolan_sys::bell::{FutexFd, Kind};
    /// use std::sync::atomic::AtomicU32;
    /// let word = AtomicU32::new(0);
    /// let mut bell = FutexFd::new()?;
    /// assert!(!bell.is_readable());
    /// // The word is something else already.
    /// bell.arm(&word, 1)?;
    /// portolan_sys::process::poll(&[bell.as_fd()], None)?;
    /// assert_eq!(bell.is_readable(), bell.kind() == Kind::Ring);
    /// bell.drain()?;
    /// assert!(!bell.is_readable());
    /// # use std::os::fd::AsFd;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn is_readable(&mut self) -> bool {
        match self.inner() {
            Ok(Inner::Ring(ring)) => ring.has_completions(),
            Ok(Inner::Helper(_)) | Err(_) => false,
        }
    }
}

impl FutexFd {
    fn inner(&mut self) -> io::Result<&mut Inner> {
        if self.generation == fork::generation() {
            Ok(&mut self.inner)
        } else {
            Err(io::ErrorKind::Unsupported.into())
        }
    }
}

impl Drop for FutexFd {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            // SAFETY:
            // - Dropped here and nowhere else, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

impl AsFd for FutexFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &*self.inner {
            Inner::Ring(ring) => ring.as_fd(),
            Inner::Helper(helper) => helper.as_fd(),
        }
    }
}
