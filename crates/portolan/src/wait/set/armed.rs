//! A thread sleeps on a set and on other things by a system call of its own.
//!
//! - **W8** Between [`WaitSet::arm`] and the next wait all ports of the set are armed, and what comes to
//!   them changes the doorbell and wakes its sleepers. The set's descriptor is left as it is, and costs
//!   no system call: only words of its ports, if there are any, ring it.

use super::{WaitSet, WaitSetError};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// What to sleep on until something may be at a port of a wait set: see [`WaitSet::arm`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Armed<'a> {
    /// A futex word, shared between processes.
    pub word: &'a AtomicU32,
    /// What it is until something comes.
    pub value: u32,
    /// When something is due in any case.
    pub until: Option<Instant>,
    /// A descriptor to sleep on too, if the set has ports that need one: rooms that are waited for.
    pub descriptor: Option<BorrowedFd<'a>>,
}

impl WaitSet {
    /// Arms the set for a thread that sleeps on more than this set by one system call of its own, as
    /// a futex wait in an io_uring; `None` if something is there, which the next wait names.
    ///
    /// Once the word has another value, its sleepers were woken, the descriptor is readable or the
    /// time has come, call [`wait`](Self::wait) with `Deadline::NOW`. A thread that was woken for
    /// anything else may call it too. A futex wait that was not woken yet may stay in the kernel: it
    /// is woken by what comes after this call, whatever the value was when it began.
    ///
    /// A set that was armed so once leaves its own descriptor alone. If you ask for that later, call
    /// `wait(Deadline::NOW)` before you wait for it.
    ///
    /// # Errors
    ///
    /// [`WaitSetError`].
    ///
    /// ```
    /// use portolan::{Deadline, Domain, Message, PortOptions, WaitSet, WhenFull};
    /// use std::sync::atomic::Ordering;
    /// let domain = Domain::private()?;
    /// let mut set = WaitSet::new(&domain)?;
    /// let port = domain.bind(PortOptions::unnamed())?;
    /// let right = port.make_send();
    /// let token = set.add(port)?;
    /// let armed = set.arm()?.ok_or("there is something")?;
    /// assert_eq!(armed.word.load(Ordering::SeqCst), armed.value);
    /// right.send(Message::new(b"hello")?, WhenFull::Fail)?;
    /// assert_ne!(armed.word.load(Ordering::SeqCst), armed.value);
    /// assert_eq!(set.wait(Deadline::NOW)?.next(), Some(token.any()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn arm(&mut self) -> Result<Option<Armed<'_>>, WaitSetError> {
        self.member.present()?;
        // Relaxed: this thread has the set to itself.
        self.outside.store(true, Ordering::Relaxed);
        let Err(value) = self.round()? else {
            return Ok(None);
        };
        // To arm a word may have taken from the descriptor that another one has fired.
        if self.hear()? {
            return Ok(None);
        }
        let words = self.alarms.has_words();
        Ok(Some(Armed {
            word: &self.member.tables().wait_sets[self.index as usize].doorbell,
            value,
            until: self.alarms.next(),
            descriptor: words.then(|| self.alarms.bell.as_fd()),
        }))
    }

    /// Whether its descriptor is left alone.
    pub(super) fn is_outside(&self) -> bool {
        self.outside.load(Ordering::Relaxed)
    }
}
