//! Counts each access of loom's atomics against the life of the thread that makes it.
//!
//! A word may stand for plain memory ([`AtomicU64::plain`]): bytes of an extent or of a ring,
//! which only one side uses at a time. Loom then reports a load and a store that nothing
//! orders. Between atomics it could not: a load never sees a store that comes later in the
//! execution, although the language and some processors allow that.

pub use loom::sync::atomic::{Ordering, fence};

/// A thread's death after a number of atomic accesses, for models of recovery.
///
/// The victim unwinds just before the access that it does not live to make, so
/// that what it wrote is what a killed process would have written. Nothing here
/// has a destructor that touches shared memory.
pub mod death {
    use core::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    loom::thread_local! {
        static LEFT: Cell<Option<usize>> = Cell::new(None);
    }

    struct Died;

    /// Runs `f`, which dies before its access number `accesses` (from 0); `None` if it did.
    pub fn after<T>(accesses: usize, f: impl FnOnce() -> T) -> Option<T> {
        LEFT.with(|left| left.set(Some(accesses)));
        let outcome = catch_unwind(AssertUnwindSafe(f));
        LEFT.with(|left| left.set(None));
        match outcome {
            Ok(value) => Some(value),
            Err(payload) if payload.is::<Died>() => None,
            Err(payload) => resume_unwind(payload),
        }
    }

    /// A system call is about to be made: the victim may die before it as before an access.
    pub fn call() {
        access();
    }

    /// An access is about to be made.
    pub(super) fn access() {
        let dead = LEFT.with(|left| match left.get() {
            Some(0) => true,
            Some(n) => {
                left.set(Some(n - 1));
                false
            }
            None => false,
        });
        if dead {
            // Without the panic hook: nothing is printed.
            resume_unwind(Box::new(Died));
        }
    }
}

/// Barriers that a thread makes when others ask for them, between any two of its accesses:
/// what the kernel's `membarrier` does.
pub mod asked {
    use super::{Ordering, fence};
    use core::cell::Cell;
    use loom::sync::atomic::AtomicU32;

    /// More than are ever asked for.
    const GONE: u32 = u32::MAX;

    loom::lazy_static! {
        static ref ASKED: AtomicU32 = AtomicU32::new(0);
        static ref MADE: AtomicU32 = AtomicU32::new(0);
    }

    loom::thread_local! {
        static ANSWERS: Cell<bool> = Cell::new(false);
    }

    /// Runs `f` in the one thread that makes barriers when asked to. It must not block.
    pub fn answering<T>(f: impl FnOnce() -> T) -> T {
        struct Gone;
        impl Drop for Gone {
            fn drop(&mut self) {
                ANSWERS.with(|answers| answers.set(false));
                // Who does not run has made one.
                fence(Ordering::SeqCst);
                MADE.store(GONE, Ordering::Release);
            }
        }
        ANSWERS.with(|answers| answers.set(true));
        let _gone = Gone;
        f()
    }

    /// Has that thread make one.
    pub fn everywhere() {
        fence(Ordering::SeqCst);
        let ours = ASKED.fetch_add(1, Ordering::Relaxed) + 1;
        while MADE.load(Ordering::Acquire) < ours {
            loom::thread::yield_now();
        }
        fence(Ordering::SeqCst);
    }

    /// An access is about to be made.
    pub(super) fn access() {
        if !ANSWERS.with(Cell::get) {
            return;
        }
        // Relaxed, both: nothing but the barrier is to order what the model does.
        let asked = ASKED.load(Ordering::Relaxed);
        if asked != MADE.load(Ordering::Relaxed) {
            fence(Ordering::SeqCst);
            MADE.store(asked, Ordering::Release);
        }
    }
}

macro_rules! counted {
    ($name:ident, $int:ty) => {
        /// Loom's, with each access counted.
        #[derive(Debug, Default)]
        pub struct $name {
            word: loom::sync::atomic::$name,
            plain: bool,
        }

        impl $name {
            /// A new one.
            pub fn new(value: $int) -> Self {
                let word = loom::sync::atomic::$name::new(value);
                Self { word, plain: false }
            }

            /// One that stands for plain memory: a load of it and a store to it that are not
            /// ordered fail the model.
            pub fn plain(value: $int) -> Self {
                let plain = true;
                Self { plain, ..Self::new(value) }
            }

            /// As the standard library's.
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $int {
                death::access();
                asked::access();
                if self.plain {
                    // SAFETY:
                    // - Races: loom runs one thread at a time, and fails the model if a store is
                    //   not ordered before or after this load.
                    unsafe { self.word.unsync_load() };
                }
                self.word.load(order)
            }

            counted!(@ $int, store(value: $int, order: Ordering) -> ());
            counted!(@ $int, swap(value: $int, order: Ordering) -> $int);
            counted!(@ $int, fetch_add(value: $int, order: Ordering) -> $int);
            counted!(@ $int, fetch_or(value: $int, order: Ordering) -> $int);
            counted!(@ $int, fetch_and(value: $int, order: Ordering) -> $int);
            counted!(@ $int, fetch_max(value: $int, order: Ordering) -> $int);
            counted!(@ $int, compare_exchange(from: $int, to: $int, success: Ordering, failure: Ordering) -> Result<$int, $int>);
            counted!(@ $int, compare_exchange_weak(from: $int, to: $int, success: Ordering, failure: Ordering) -> Result<$int, $int>);
        }
    };
    (@ $int:ty, $method:ident($($arg:ident: $type:ty),*) -> $result:ty) => {
        /// As the standard library's.
        #[track_caller]
        pub fn $method(&self, $($arg: $type),*) -> $result {
            death::access();
            asked::access();
            self.word.$method($($arg),*)
        }
    };
}

counted!(AtomicU32, u32);
counted!(AtomicU64, u64);
