//! Makes a bell with an io_uring: a futex wait in a ring that can be polled.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::AtomicU32;

use io_uring::{IoUring, Probe, opcode, squeue};

/// Entries of the submission queue: one wait and one cancellation.
const ENTRIES: u32 = 2;

/// futex2's flag for a word of 32 bits, shared between processes.
const FUTEX2_SIZE_U32: u32 = 2;

/// A waker reaches every sleeper, whatever it sleeps for.
const ANY: u64 = u32::MAX as u64;

/// Marks the completion of a cancellation; waits are numbered below it.
const CANCEL: u64 = u64::MAX;

pub(super) struct Ring {
    ring: IoUring,
    /// Number of the wait that is in the kernel.
    armed: Option<u64>,
    waits: u64,
}

impl Ring {
    pub(super) fn new() -> io::Result<Self> {
        // Completions interrupt the thread that armed the ring (see `Kind::Ring`). With
        // IORING_SETUP_DEFER_TASKRUN they would not, but then nothing wakes a poller
        // either: on Linux 6.18 `epoll_wait` slept on.
        let ring = IoUring::new(ENTRIES)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::FutexWait::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self {
            ring,
            armed: None,
            waits: 0,
        })
    }

    pub(super) fn arm(&mut self, word: &AtomicU32, expected: u32) -> io::Result<()> {
        self.cancel()?;
        self.waits += 1;
        let wait = opcode::FutexWait::new(word.as_ptr(), expected.into(), ANY, FUTEX2_SIZE_U32);
        self.submit(&wait.build().user_data(self.waits), 0)?;
        self.armed = Some(self.waits);
        Ok(())
    }

    pub(super) fn drain(&mut self) -> bool {
        let mut fired = false;
        // To the end: what is left of a wait that was called off goes as well.
        for completion in self.ring.completion() {
            fired |= Some(completion.user_data()) == self.armed;
        }
        if fired {
            self.armed = None;
        }
        fired
    }

    /// Takes the wait out of the kernel and its completion out of the queue.
    pub(super) fn cancel(&mut self) -> io::Result<()> {
        if self.drain() {
            return Ok(());
        }
        let Some(armed) = self.armed else {
            return Ok(());
        };
        let cancel = opcode::AsyncCancel::new(armed).build().user_data(CANCEL);
        self.submit(&cancel, 1)?;
        // The wait completes one way or the other, perhaps after its cancellation.
        while !self.drain() {
            self.enter(1)?;
        }
        // The cancellation's own completion would otherwise make the ring readable.
        self.ring.completion().for_each(drop);
        Ok(())
    }

    /// Puts an entry into the kernel and waits for `want` completions.
    fn submit(&mut self, entry: &squeue::Entry, want: usize) -> io::Result<()> {
        // SAFETY:
        // - Neither entry makes the kernel write to our memory, and it reads the futex
        //   word only while it submits, when the caller's reference is alive.
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

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel calls a wait off some time after its ring was closed, and until then a wake
        // that is meant for another sleeper may end it.
        let _ = self.cancel();
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
            .finish_non_exhaustive()
    }
}
