//! Emulates signal-on-write: a store to guarded memory calls a function.
//!
//! A window is mapped for reading only. A store to it traps; the trap's handler opens the
//! page, calls the function, and has the store made again. The function runs before the store is
//! made, so its listener must look for it. Until it is [armed](Tripwire::arm) again the page calls
//! nothing.
//!
//! ```text
//!           store: trap, open, tell, store
//!   armed --------------------------------> open (stores call nothing)
//!     ^                                       |
//!     +------------------ arm ----------------+
//! ```
//!
//! # Invariants
//!
//! - **W1** Only [`Tripwire::store`] writes through the mapping, so `tell` runs within it, in
//!   the thread that calls it and at no other place: nothing that it interrupts holds a lock.

use std::io;
use std::sync::atomic::Ordering;

use portolan_sys::fault::{self, Fault, Verdict, Watch, WatchError};
use portolan_sys::memory::{self, Access, PAGE};
use portolan_sys::shared::Window;

/// A window that tells of stores to it, page by page.
///
/// # Examples
///
/// ```
/// use portolan_sys::shared::Window;
/// use portolan_instruments::tripwire::Tripwire;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// let told = Arc::new(AtomicUsize::new(0));
/// let tells = Arc::clone(&told);
/// let wire = Tripwire::new(Window::create(4096)?, move |offset| {
///     tells.store(offset, Ordering::Relaxed);
/// })?;
/// wire.store(5, 77);
/// assert_eq!((wire.word(5), told.load(Ordering::Relaxed)), (77, 40));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tripwire<F> {
    /// Before what its handler uses.
    _watch: Watch,
    told: Box<Told<F>>,
}

#[derive(Debug)]
struct Told<F> {
    window: Window,
    tell: F,
}

/// Why there is no tripwire.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TripwireError {
    /// See [`WatchError`].
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The machine's: the memory could not be protected.
    #[error("cannot protect memory against stores: {0}")]
    Protect(#[from] io::Error),
}

impl<F: Fn(usize) + Send + Sync> Tripwire<F> {
    /// Arms the window: the first store to each of its pages calls `tell` with its offset,
    /// in the thread that stores. `tell` must not panic (the process would be aborted), and
    /// runs on that thread's signal stack: a Rust thread's has 8 KiB.
    ///
    /// # Errors
    ///
    /// [`TripwireError`].
    pub fn new(window: Window, tell: F) -> Result<Self, TripwireError> {
        // In a box, so that it stays where the handler finds it.
        let told = Box::new(Told { window, tell });
        let context = std::ptr::from_ref(&*told).expose_provenance();
        let start = told.window.base().addr();
        let watch = fault::watch(start, told.window.len(), on_store::<F>, context)?;
        let wire = Self {
            _watch: watch,
            told,
        };
        wire.arm()?;
        Ok(wire)
    }

    /// From now on stores tell again.
    ///
    /// # Errors
    ///
    /// What the kernel reports.
    pub fn arm(&self) -> io::Result<()> {
        let window = &self.told.window;
        // SAFETY:
        // - The window's own mapping, whole.
        // - References into it that store exist only within `store`, which handles the trap.
        unsafe { memory::protect(window.base().addr(), window.len(), Access::Read) }
    }

    /// Stores to the `index`th 8-byte word.
    ///
    /// # Panics
    ///
    /// If the window ends before it.
    #[inline]
    pub fn store(&self, index: usize, value: u64) {
        // Release: as any message would need.
        self.told.window.word(index).store(value, Ordering::Release);
    }

    /// What the `index`th 8-byte word holds.
    ///
    /// # Panics
    ///
    /// If the window ends before it.
    pub fn word(&self, index: usize) -> u64 {
        self.told.window.word(index).load(Ordering::Acquire)
    }
}

/// Opens the page of a store, and tells.
fn on_store<F: Fn(usize) + Send + Sync>(fault: &Fault, context: usize) -> Verdict {
    if fault.write == Some(false) {
        return Verdict::Refuse;
    }
    let told = std::ptr::with_exposed_provenance::<Told<F>>(context);
    // SAFETY:
    // - `Tripwire::new` exposed the address, of a value of this type.
    // - It lives: the watch is dropped before it, and that waits for this handler.
    // - It is only read; `F` is `Sync`.
    let told = unsafe { &*told };
    let offset = fault.address - told.window.base().addr();
    let page = fault.address / PAGE * PAGE;
    // SAFETY:
    // - A page of the window's own mapping: the watch is of nothing else.
    // - It gives access, and takes none.
    if unsafe { memory::protect(page, PAGE, Access::ReadWrite) }.is_err() {
        return Verdict::Refuse;
    }
    (told.tell)(offset);
    Verdict::Retry
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::Mutex;

    #[test]
    fn each_page_tells_once_until_it_is_armed_again() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tells = Arc::clone(&told);
        let window = Window::create(2 * PAGE).unwrap();
        let theirs = Window::from_fd(window.fd().try_clone_to_owned().unwrap()).unwrap();
        let wire = Tripwire::new(window, move |offset| tells.lock().unwrap().push(offset)).unwrap();
        let take = || std::mem::take(&mut *told.lock().unwrap());

        wire.store(0, 1);
        wire.store(1, 2);
        assert_eq!(take(), [0]);
        wire.store(PAGE / 8 + 3, 3);
        assert_eq!(take(), [PAGE + 24]);
        wire.arm().unwrap();
        wire.store(1, 4);
        assert_eq!(take(), [8]);
        // Every store was made, and others see it; their own stores call nothing.
        let word = |index| theirs.word(index).load(Ordering::Acquire);
        assert_eq!([word(0), word(1), word(PAGE / 8 + 3)], [1, 4, 3]);
        wire.arm().unwrap();
        theirs.word(0).store(5, Ordering::Release);
        assert_eq!((wire.word(0), take()), (5, Vec::new()));
    }
}
