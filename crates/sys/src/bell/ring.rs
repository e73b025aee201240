//! Makes a bell with an io_uring: futex waits in a ring that can be polled.
//!
//! The ring is readable while it has a completion, and each call takes all that there are, its own
//! and others. So it ends with [`Ring::tell`], which leaves one for what was found and not asked for.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use io_uring::types::{TimeoutFlags, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};

use super::Watched;
use crate::time;

/// Entries of the submission queue: one wait or timer, or its cancellation, at a time.
const ENTRIES: u32 = 2;
/// Completions that fit into the ring: no more memory than for fewer, a page. The kernel keeps
/// further ones until there is room.
const COMPLETIONS: u32 = 128;

/// futex2's flag for a word of 32 bits, shared between processes.
const FUTEX2_SIZE_U32: u32 = 2;

/// A waker reaches every sleeper, whatever it sleeps for.
const ANY: u64 = u32::MAX as u64;

/// Marks the completion of a cancellation; waits are numbered below both marks.
const CANCEL: u64 = u64::MAX;
/// Marks a completion that only makes the ring readable.
const TOLD: u64 = CANCEL - 1;

pub(super) struct Ring {
    ring: IoUring,
    /// Number of the wait that is in the kernel.
    armed: Option<u64>,
    /// Number of the timer that ends it, if there is one.
    timer: Option<u64>,
    /// The bell has fired, and that was not drained.
    fired: bool,
    /// Further words: by key, the number of the wait, and for what.
    words: HashMap<u32, (u64, Watched)>,
    /// Their keys, by the number of the wait.
    keys: HashMap<u64, u32>,
    /// Keys of those that have fired.
    woken: Vec<u32>,
    /// Waits and timers so far.
    numbers: u64,
}

impl Ring {
    pub(super) fn new() -> io::Result<Self> {
        // Completions interrupt the thread that armed the ring (see `Kind::Ring`). With
        // IORING_SETUP_DEFER_TASKRUN they would not, but then nothing wakes a poller
        // either: on Linux 6.18 `epoll_wait` slept on.
        let ring = IoUring::builder()
            .setup_cqsize(COMPLETIONS)
            .build(ENTRIES)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::FutexWait::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self {
            ring,
            armed: None,
            timer: None,
            fired: false,
            words: HashMap::new(),
            keys: HashMap::new(),
            woken: Vec::new(),
            numbers: 0,
        })
    }

    pub(super) fn arm(
        &mut self,
        word: &AtomicU32,
        expected: u32,
        until: Option<Instant>,
    ) -> io::Result<()> {
        self.call_off()?;
        // A deadline too far away to express never comes.
        if let Some(at) = until.and_then(time::absolute) {
            let at = Timespec::new()
                .sec(at.tv_sec.unsigned_abs())
                .nsec(u32::try_from(at.tv_nsec).unwrap_or(0));
            let number = self.number();
            let timer = opcode::Timeout::new(&raw const at)
                .flags(TimeoutFlags::ABS)
                .build();
            self.submit(&timer.user_data(number), 0)?;
            self.timer = Some(number);
        }
        let number = self.number();
        self.submit(&wait_entry(word, expected).user_data(number), 0)?;
        self.armed = Some(number);
        self.tell()
    }

    /// Waits for a further word, under this key, in the place of what was waited for under it.
    pub(super) fn arm_word(&mut self, key: u32, word: &AtomicU32, expected: u32) -> io::Result<()> {
        let watched = Watched::new(word, expected);
        self.drain()?;
        if self.words.get(&key).is_none_or(|(_, is)| *is != watched) {
            self.call_off_word(key)?;
            let number = self.number();
            self.submit(&wait_entry(word, expected).user_data(number), 0)?;
            self.words.insert(key, (number, watched));
            self.keys.insert(number, key);
        }
        self.tell()
    }

    /// Takes the wait for a further word out of the kernel.
    pub(super) fn cancel_word(&mut self, key: u32) -> io::Result<()> {
        self.call_off_word(key)?;
        self.tell()
    }

    pub(super) fn drain_bell(&mut self) -> io::Result<bool> {
        self.drain()?;
        let fired = std::mem::take(&mut self.fired);
        if fired {
            // Of the word and the timer the other one.
            self.call_off()?;
        }
        self.tell()?;
        Ok(fired)
    }

    pub(super) fn drain_words(&mut self) -> io::Result<Vec<u32>> {
        self.drain()?;
        let woken = std::mem::take(&mut self.woken);
        self.tell()?;
        Ok(woken)
    }

    /// Takes the waits for the bell's own word out of the kernel, and their completions out of the
    /// queue.
    pub(super) fn cancel(&mut self) -> io::Result<()> {
        self.call_off()?;
        self.tell()
    }

    /// Makes the ring readable if something has fired that was not asked for yet.
    fn tell(&mut self) -> io::Result<()> {
        if !self.fired && self.woken.is_empty() || self.has_completions() {
            return Ok(());
        }
        self.submit(&opcode::Nop::new().build().user_data(TOLD), 0)
    }

    fn call_off_word(&mut self, key: u32) -> io::Result<()> {
        self.drain()?;
        if let Some((number, _)) = self.words.get(&key) {
            self.cancel_one(*number)?;
        }
        self.woken.retain(|woken| *woken != key);
        Ok(())
    }

    fn call_off(&mut self) -> io::Result<()> {
        self.drain()?;
        for number in [self.armed, self.timer].into_iter().flatten() {
            self.cancel_one(number)?;
        }
        self.fired = false;
        Ok(())
    }

    /// Whether there is a completion that was not drained, which makes the ring readable.
    pub(super) fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Takes all completions; what they were of is in the kernel no more.
    fn drain(&mut self) -> io::Result<()> {
        loop {
            // To the end: what is left of a wait that was called off goes as well.
            let done: Vec<u64> = self.ring.completion().map(|c| c.user_data()).collect();
            for number in done {
                if Some(number) == self.armed {
                    (self.armed, self.fired) = (None, true);
                } else if Some(number) == self.timer {
                    (self.timer, self.fired) = (None, true);
                } else if let Some(key) = self.keys.remove(&number) {
                    self.words.remove(&key);
                    self.woken.push(key);
                }
            }
            if !self.ring.submission().cq_overflow() {
                return Ok(());
            }
            // The kernel moves those over for which there was no room.
            self.enter(0)?;
        }
    }

    /// Whether the wait or timer of this number is in the kernel, as far as was drained.
    fn is_there(&self, number: u64) -> bool {
        [self.armed, self.timer].contains(&Some(number)) || self.keys.contains_key(&number)
    }

    /// Takes one wait or timer out of the kernel, and its completion out of the queue.
    fn cancel_one(&mut self, number: u64) -> io::Result<()> {
        if !self.is_there(number) {
            return Ok(());
        }
        let cancel = opcode::AsyncCancel::new(number).build().user_data(CANCEL);
        self.submit(&cancel, 1)?;
        // It completes one way or the other, perhaps after its cancellation, whose own completion
        // would otherwise make the ring readable.
        self.drain()?;
        while self.is_there(number) {
            self.enter(1)?;
            self.drain()?;
        }
        Ok(())
    }

    /// Puts an entry into the kernel and waits for `want` completions.
    fn submit(&mut self, entry: &squeue::Entry, want: usize) -> io::Result<()> {
        // SAFETY:
        // - No entry makes the kernel write to our memory, and it reads the futex word, or the
        //   timer's time, only while it submits, when the caller's reference is alive.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.map_err(io::Error::other)?;
        self.enter(want)
    }

    /// Submits what is pushed and waits for `want` completions.
    fn enter(&self, want: usize) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(want) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other.map(|_| ()),
            }
        }
    }
}

/// An entry that sleeps on a word while it has this value.
pub(crate) fn wait_entry(word: &AtomicU32, expected: u32) -> squeue::Entry {
    opcode::FutexWait::new(word.as_ptr(), expected.into(), ANY, FUTEX2_SIZE_U32).build()
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel calls a wait off some time after its ring was closed, and until then a wake
        // that is meant for another sleeper may end it. Of further words all sleepers are woken.
        let _ = self.call_off();
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY:
        // - The ring keeps its descriptor open as long as `self` lives.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("armed", &self.armed)
            .field("words", &self.words.len())
            .finish_non_exhaustive()
    }
}
