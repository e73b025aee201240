//! Waits, without the kernel, until a cache line is written (monitor-wait).
//!
//! The processor watches one line and stops until it is written; a sibling thread has the
//! core meanwhile, and a core alone saves power. Intel has `umonitor` and `umwait`
//! (`WAITPKG`), AMD `monitorx` and `mwaitx` (`MONITORX`); which of them, if any, is asked of
//! the processor when the program runs. Hypervisors often hide both.
//!
//! ```text
//! watch the line -> look at the word -> (it is as expected) stop until the line is written
//!        ^                                        or BOUND clock ticks have passed
//!        +------------- the caller looks again -------------+
//! ```
//!
//! The look after the watch begins is what loses no store: one before it is seen by the
//! look, one after it ends the stop.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Clock ticks that one stop takes at most: about 30 us, so that deadlines are kept. (Linux
/// itself bounds `umwait` by as much.)
#[cfg(target_arch = "x86_64")]
const BOUND: u32 = 100_000;

/// Which instructions wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `umonitor` and `umwait`, Intel.
    Umwait,
    /// `monitorx` and `mwaitx`, AMD.
    Mwaitx,
}

impl Kind {
    /// The instruction's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Umwait => "umwait",
            Self::Mwaitx => "mwaitx",
        }
    }
}

/// The processor's monitor-wait.
///
/// # Examples
///
/// ```
/// use portolan_sys::monitor::Monitor;
/// use std::sync::atomic::AtomicU64;
/// match Monitor::probe() {
///     // Ends at once: the word is something else already.
///     Some(monitor) => monitor.wait(&AtomicU64::new(1), 0),
///     None => println!("poll, or sleep"),
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Monitor {
    kind: Kind,
}

impl Monitor {
    /// What this processor has; asked once.
    pub fn probe() -> Option<Self> {
        static FOUND: OnceLock<Option<Kind>> = OnceLock::new();
        let kind = *FOUND.get_or_init(|| {
            if has(Bit::Umwait) {
                Some(Kind::Umwait)
            } else if has(Bit::Mwaitx) {
                Some(Kind::Mwaitx)
            } else {
                None
            }
        });
        kind.map(|kind| Self { kind })
    }

    /// Which instructions wait.
    pub fn kind(self) -> Kind {
        self.kind
    }

    /// Stops until another processor writes the line of `word`, for some 30 us at most, or not at
    /// all if the word is not `expected`. Also ends for no reason: look at the word again.
    #[inline]
    pub fn wait(self, word: &AtomicU64, expected: u64) {
        imp::watch(self.kind, word);
        // Acquire: whatever the caller does next sees what came before the store.
        if word.load(Ordering::Acquire) == expected {
            imp::stop(self.kind);
        }
    }
}

/// What the processor may have that matters to signals.
#[derive(Clone, Copy)]
pub(crate) enum Bit {
    Umwait,
    Mwaitx,
    UserInterrupts,
    /// `CLDEMOTE`.
    Push,
}

/// Whether the processor has `CLDEMOTE`, which moves a line towards the cache that all share.
pub fn has_push() -> bool {
    has(Bit::Push)
}

/// Asks the processor.
pub(crate) fn has(bit: Bit) -> bool {
    imp::has(bit)
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use super::{BOUND, Bit, Kind};
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count, _rdtsc};
    use std::sync::atomic::AtomicU64;

    pub(super) fn has(bit: Bit) -> bool {
        let leaf = match bit {
            Bit::Umwait | Bit::UserInterrupts | Bit::Push => 7,
            Bit::Mwaitx => 0x8000_0001,
        };
        // SAFETY:
        // - Every x86-64 processor has the instruction.
        #[allow(unused_unsafe, reason = "unsafe before Rust 1.94")]
        let highest = unsafe { __cpuid(leaf & 0x8000_0000) }.eax;
        // SAFETY:
        // - As above.
        #[allow(unused_unsafe, reason = "unsafe before Rust 1.94")]
        let registers = unsafe { __cpuid_count(leaf, 0) };
        highest >= leaf
            && match bit {
                Bit::Umwait => registers.ecx & (1 << 5) != 0,
                Bit::Mwaitx => registers.ecx & (1 << 29) != 0,
                Bit::Push => registers.ecx & (1 << 25) != 0,
                Bit::UserInterrupts => registers.edx & (1 << 5) != 0,
            }
    }

    /// Begins to watch the line of `word`.
    #[inline]
    pub(super) fn watch(kind: Kind, word: &AtomicU64) {
        match kind {
            // SAFETY:
            // - `Monitor::probe` found the instruction, which reads the line like a load.
            // - Registers and flags stay as they are.
            Kind::Umwait => unsafe {
                asm!("umonitor {}", in(reg) word.as_ptr(), options(nostack, preserves_flags));
            },
            // SAFETY:
            // - As above; no extensions and no hints are asked for.
            Kind::Mwaitx => unsafe {
                asm!(
                    "monitorx",
                    in("rax") word.as_ptr(),
                    in("ecx") 0,
                    in("edx") 0,
                    options(nostack, preserves_flags),
                );
            },
        }
    }

    /// Stops until the line that is watched was written, or the bound is reached.
    #[inline]
    pub(super) fn stop(kind: Kind) {
        match kind {
            Kind::Umwait => {
                // SAFETY:
                // - Reads a register.
                let until = unsafe { _rdtsc() } + u64::from(BOUND);
                let [low, high] = [until & 0xffff_ffff, until >> 32];
                // SAFETY:
                // - `Monitor::probe` found the instruction.
                // - It changes flags only, which this declares by saying nothing of them.
                // - Operand 1: the lighter state, which ends sooner.
                unsafe {
                    asm!(
                        "umwait {0:e}",
                        in(reg) 1,
                        in("rax") low,
                        in("rdx") high,
                        options(nostack),
                    );
                }
            }
            // SAFETY:
            // - `Monitor::probe` found the instruction.
            // - `rbx`, which the compiler keeps, is as before when the block ends.
            // - ecx bit 1: ebx bounds the stop. eax 0xf0: the lightest state.
            Kind::Mwaitx => unsafe {
                asm!(
                    "xchg rbx, {bound}",
                    "mwaitx",
                    "xchg rbx, {bound}",
                    bound = inout(reg) u64::from(BOUND) => _,
                    in("eax") 0xf0,
                    in("ecx") 2,
                    options(nostack),
                );
            },
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    use super::{Bit, Kind};
    use std::sync::atomic::AtomicU64;

    pub(super) fn has(_: Bit) -> bool {
        false
    }

    /// Never called: there is no [`Monitor`](super::Monitor).
    pub(super) fn watch(_: Kind, _: &AtomicU64) {}

    /// As above.
    pub(super) fn stop(_: Kind) {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// What the kernel says of the processor, which asked it in its own way.
    #[cfg(target_arch = "x86_64")]
    fn kernel_says(flag: &str) -> bool {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags = info.lines().find(|line| line.starts_with("flags")).unwrap();
        flags.split_whitespace().any(|word| word == flag)
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_probe_agrees_with_the_kernel() {
        assert_eq!(has(Bit::Umwait), kernel_says("waitpkg"));
        assert_eq!(has(Bit::Mwaitx), kernel_says("mwaitx"));
        let expected = match (has(Bit::Umwait), has(Bit::Mwaitx)) {
            (true, _) => Some("umwait"),
            (false, true) => Some("mwaitx"),
            (false, false) => None,
        };
        assert_eq!(Monitor::probe().map(|found| found.kind().name()), expected);
    }

    #[test]
    fn a_wait_ends_when_the_line_is_written_and_when_not() {
        let Some(monitor) = Monitor::probe() else {
            // Nothing to wait with: what the caller does then is the caller's test.
            return;
        };
        let word = AtomicU64::new(0);
        // Ends by its bound; and at once.
        monitor.wait(&word, 0);
        monitor.wait(&word, 1);
        thread::scope(|scope| {
            scope.spawn(|| word.store(1, Ordering::Release));
            while word.load(Ordering::Acquire) == 0 {
                monitor.wait(&word, 0);
            }
        });
    }
}
