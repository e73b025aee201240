//! Gives the push hint: the processor moves a written line towards the cache that all share.
//!
//! The next reader then finds the line nearer than in the writer's own cache. Intel has an
//! instruction for it (`cldemote`); other x86-64 processors take the same bytes as an instruction
//! without effect. A program can see the hint only in time.

use std::sync::atomic::AtomicU64;

use portolan_sys::monitor;

/// Whether the hint does anything on this processor.
pub fn is_there() -> bool {
    monitor::has_push()
}

/// Asks for the line of `word` to be moved towards the cache that all share.
#[inline]
pub fn hint(word: &AtomicU64) {
    imp::hint(word);
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::asm;
    use std::sync::atomic::AtomicU64;

    #[inline]
    pub(super) fn hint(word: &AtomicU64) {
        // SAFETY:
        // - A hint: it changes no memory, no register and no flag, and never faults.
        // - Processors without it execute the encoding as an instruction that does nothing.
        unsafe {
            asm!("cldemote [{}]", in(reg) word.as_ptr(), options(nostack, preserves_flags));
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    use std::sync::atomic::AtomicU64;

    /// There is no such instruction.
    pub(super) fn hint(_: &AtomicU64) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_hint_changes_nothing_on_any_processor() {
        let word = AtomicU64::new(7);
        hint(&word);
        assert_eq!(word.load(Ordering::Relaxed), 7);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_probe_agrees_with_the_kernel() {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags = info.lines().find(|line| line.starts_with("flags")).unwrap();
        let listed = flags.split_whitespace().any(|word| word == "cldemote");
        assert_eq!(is_there(), listed);
    }
}
