//! Provides the atomics: the processor's, or loom's when the model checker runs.
//!
//! Under loom they are wrapped, so that a test can end a thread's life after its
//! k-th access (`death`).

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
mod modelled;
#[cfg(loom)]
pub use modelled::{AtomicU32, AtomicU64, Ordering, asked, death, fence};

/// Tells the processor that we spin; under loom, lets the others run.
///
/// ```
/// portolan_shm::atomic::pause();
/// ```
pub fn pause() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    core::hint::spin_loop();
}

/// Makes the read-modify-write before it and the load after it a store-load pair (Dekker).
///
/// On x86 a locked instruction is already a full barrier, so only the compiler is
/// held; loom and weaker machines get the fence.
#[inline]
pub fn store_load_barrier() {
    #[cfg(any(loom, miri, not(target_arch = "x86_64")))]
    fence(Ordering::SeqCst);
    #[cfg(not(any(loom, miri, not(target_arch = "x86_64"))))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// Keeps the compiler from moving accesses past it; the processor may.
///
/// One half of a store-load pair whose other half has this processor make a full barrier
/// when it matters (`membarrier`).
#[inline]
pub fn in_program_order() {
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
}
