//! Reads the processor's own clock, to measure pieces of code of a few nanoseconds.
//!
//! On x86-64 it is the time stamp counter, which is the same in all processors where the
//! kernel uses it as its clock. It may count in steps: on some machines ten nanoseconds at
//! a time, which averages out over many readings at no particular phase of it.

/// The counter, after everything before it is done.
///
/// How many ticks make a second is for the caller to find out, by another clock.
/// Async-signal-safe.
///
/// # Examples
///
/// ```
/// let before = portolan_sys::ticks::now();
/// assert!(portolan_sys::ticks::now() >= before);
/// ```
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn now() -> u64 {
    // Otherwise the counter is read while earlier instructions are still under way, and a
    // piece of code shorter than the processor's window would seem to take no time.
    // SAFETY:
    // - Every x86-64 processor has SSE2, which brings this instruction.
    unsafe { core::arch::x86_64::_mm_lfence() };
    // SAFETY:
    // - Linux lets every process read the counter, unless it has forbidden itself to.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The counter: nanoseconds of the monotonic clock, on this processor.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
