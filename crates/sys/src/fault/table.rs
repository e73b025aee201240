//! Keeps the table of watched ranges.
//!
//! A slot is a sequence lock: `version` is odd while its writer is at work. A reader
//! that meets an odd or changed version passes on, because a range that is being put in
//! or taken out is not one that a thread may be faulting on (F1).

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Fault, Handler, Verdict, handler};
use crate::fork;

/// Most ranges that can be watched at once, in a process. A domain needs one for its
/// region, and a few for exports.
const WATCHES: usize = 64;

/// Calls `handler` with `context` for every fault in `start..start + len`.
///
/// The range is to be watched before it can fault. Where ranges overlap, the one that
/// was put into the table first is asked first, and after its `Refuse` the next.
///
/// # Errors
///
/// [`WatchError`].
pub fn watch(
    start: usize,
    len: usize,
    handler: Handler,
    context: usize,
) -> Result<Watch, WatchError> {
    handler::install().map_err(WatchError::Install)?;
    let end = start
        .checked_add(len)
        .ok_or(WatchError::OutOfRange { start, len })?;
    if len == 0 {
        return Err(WatchError::OutOfRange { start, len });
    }
    let writer = lock();
    // Relaxed: only writers change ranges, and we are the only one.
    let free = TABLE
        .iter()
        .find(|slot| slot.end.load(Ordering::Relaxed) == 0);
    let slot = free.ok_or(WatchError::Full { max: WATCHES })?;
    slot.write(start, end, handler as *mut (), context);
    drop(writer);
    Ok(Watch {
        slot,
        generation: fork::generation(),
    })
}

/// A watched range. Not watched any more once dropped (F2), which waits for handlers of
/// it that run at that moment; never drop it in one.
#[derive(Debug)]
#[must_use = "a dropped watch watches nothing"]
pub struct Watch {
    slot: &'static Slot,
    generation: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let writer = lock();
        self.slot.write(0, 0, ptr::null_mut(), 0);
        drop(writer);
        // SeqCst pairs with the handler's increment: it sees the new version, or we see it.
        // In a forked child no other thread runs, whatever the count was.
        while self.generation == fork::generation() && self.slot.running.load(Ordering::SeqCst) > 0
        {
            std::thread::yield_now();
        }
    }
}

/// Why a range is not watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The caller's: too many ranges. Watch one that spans several.
    #[error("{max} address ranges are watched already; drop a watch first")]
    Full {
        /// Most ranges at once.
        max: usize,
    },
    /// The caller's: no such addresses.
    #[error("{len:#x} bytes at {start:#x} are no range of addresses")]
    OutOfRange {
        /// First address.
        start: usize,
        /// Bytes.
        len: usize,
    },
    /// The machine's: the signal handler could not be installed.
    #[error("cannot install a signal handler: {0}")]
    Install(std::io::Error),
}

#[derive(Debug)]
struct Slot {
    version: AtomicU32,
    /// Threads that run this slot's handler or are about to.
    running: AtomicU32,
    start: AtomicUsize,
    /// Past the last address; 0 in a free slot.
    end: AtomicUsize,
    /// A [`Handler`], or null.
    handler: AtomicPtr<()>,
    context: AtomicUsize,
}

static TABLE: [Slot; WATCHES] = [const { Slot::new() }; WATCHES];

/// Held by writers only.
static WRITER: Mutex<()> = Mutex::new(());

fn lock() -> MutexGuard<'static, ()> {
    // Writers leave the table whole even if they panic, which they do not.
    WRITER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks the watchers of the fault's address, in the handler. Async-signal-safe.
pub(super) fn ask(fault: &Fault) -> Verdict {
    for slot in &TABLE {
        // Relaxed is enough to pass on: the watch of a range that may fault was put in
        // before, by this thread or by one that handed the range to it.
        let end = slot.end.load(Ordering::Relaxed);
        if fault.address < end && slot.ask(fault) == Verdict::Retry {
            return Verdict::Retry;
        }
    }
    Verdict::Refuse
}

impl Slot {
    const fn new() -> Self {
        Self {
            version: AtomicU32::new(0),
            running: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            handler: AtomicPtr::new(ptr::null_mut()),
            context: AtomicUsize::new(0),
        }
    }

    /// Changes the slot; the caller holds [`WRITER`].
    fn write(&self, start: usize, end: usize, handler: *mut (), context: usize) {
        // SeqCst pairs with `ask` for F2, see there.
        self.version.fetch_add(1, Ordering::SeqCst);
        // Release pairs with the Acquire fence in `ask`: a handler that reads one of the new
        // values sees the odd version too.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.handler.store(handler, Ordering::Relaxed);
        self.context.store(context, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    fn ask(&self, fault: &Fault) -> Verdict {
        // SeqCst pairs with `write` and the loop in `drop`: either we see the version
        // that took the range out, or `drop` sees that we run (F2).
        self.running.fetch_add(1, Ordering::SeqCst);
        let verdict = match self.read() {
            Some((start, end, handler, context)) if (start..end).contains(&fault.address) => {
                handler(fault, context)
            }
            _ => Verdict::Refuse,
        };
        // Release: `drop`, which reads this, comes after all that the handler did.
        self.running.fetch_sub(1, Ordering::Release);
        verdict
    }

    /// The slot's content, unless it is free or is being changed.
    fn read(&self) -> Option<(usize, usize, Handler, usize)> {
        let before = self.version.load(Ordering::SeqCst);
        let start = self.start.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        let handler = self.handler.load(Ordering::Relaxed);
        let context = self.context.load(Ordering::Relaxed);
        // Acquire pairs with the Release fence in `write`.
        fence(Ordering::Acquire);
        let after = self.version.load(Ordering::Relaxed);
        if before != after || !before.is_multiple_of(2) || handler.is_null() {
            return None;
        }
        // SAFETY:
        // - The version did not change, so `handler` is what `watch` stored: a `Handler`.
        let handler = unsafe { std::mem::transmute::<*mut (), Handler>(handler) };
        Some((start, end, handler, context))
    }
}
