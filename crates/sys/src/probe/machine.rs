//! Trials of the processor, and settings of the system.

use super::{Outcome, Trial};
use crate::machine::{self, Limit, describe_huge_pages};

pub(super) const TRIALS: &[Trial] = &[
    Trial {
        name: "protection keys",
        run: protection_keys,
        without: "nothing today: no mechanism here depends on them",
    },
    Trial {
        name: "umwait",
        run: umwait,
        without: "monitor-wait for signals, on Intel; polling and futexes serve instead",
    },
    Trial {
        name: "mwaitx",
        run: mwaitx,
        without: "monitor-wait for signals, on AMD; polling and futexes serve instead",
    },
    Trial {
        name: "user interrupts",
        run: user_interrupts,
        without: "nothing today: Linux does not offer them either",
    },
    Trial {
        name: "transparent huge pages",
        run: huge_pages,
        without: "speed with large extents: 2 MiB pages guard and map faster",
    },
    Trial {
        name: "memory lock limit",
        run: memory_lock,
        without: "locking of a domain's memory, unless privileged",
    },
    Trial {
        name: "open descriptor limit",
        run: descriptors,
        without: "room for many members; each costs the host a few descriptors",
    },
    Trial {
        name: "yama ptrace scope",
        run: ptrace_scope,
        without: "kernel-mediated writes between one user's processes",
    },
];

fn protection_keys() -> Outcome {
    // SAFETY:
    // - Takes no pointers.
    let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, 0) };
    if key < 0 {
        return Err(std::io::Error::last_os_error().to_string());
    }
    // SAFETY:
    // - Allocated above, and used by nobody.
    unsafe { libc::syscall(libc::SYS_pkey_free, key) };
    Ok("a key could be allocated".to_owned())
}

/// `WAITPKG`.
fn umwait() -> Outcome {
    cpuid(7, |leaf| leaf.ecx & (1 << 5) != 0)
}

/// `MONITORX`.
fn mwaitx() -> Outcome {
    cpuid(0x8000_0001, |leaf| leaf.ecx & (1 << 29) != 0)
}

/// `UINTR`.
fn user_interrupts() -> Outcome {
    cpuid(7, |leaf| leaf.edx & (1 << 5) != 0)
}

#[cfg(target_arch = "x86_64")]
fn cpuid(leaf: u32, has: fn(&std::arch::x86_64::CpuidResult) -> bool) -> Outcome {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // SAFETY:
    // - Every x86-64 processor has the instruction.
    #[allow(unused_unsafe, reason = "unsafe before Rust 1.94")]
    let highest = unsafe { __cpuid(leaf & 0x8000_0000) }.eax;
    // SAFETY:
    // - As above.
    #[allow(unused_unsafe, reason = "unsafe before Rust 1.94")]
    let registers = unsafe { __cpuid_count(leaf, 0) };
    if highest >= leaf && has(&registers) {
        Ok("the processor has it".to_owned())
    } else {
        Err("the processor, or its hypervisor, does not offer it".to_owned())
    }
}

/// Stands for the registers of a processor that has none of these.
#[cfg(not(target_arch = "x86_64"))]
struct Leaf {
    ecx: u32,
    edx: u32,
}

#[cfg(not(target_arch = "x86_64"))]
fn cpuid(_: u32, _: fn(&Leaf) -> bool) -> Outcome {
    Err("not an x86-64 processor".to_owned())
}

fn huge_pages() -> Outcome {
    let detail = format!(
        "{}; shared memory: {}",
        describe_huge_pages("enabled"),
        describe_huge_pages("shmem_enabled")
    );
    if detail.starts_with("none") {
        Err("not built into this kernel".to_owned())
    } else {
        Ok(detail)
    }
}

fn memory_lock() -> Outcome {
    limit(machine::rlimit_memlock(), " bytes", 64 << 10)
}

fn descriptors() -> Outcome {
    limit(machine::rlimit_nofile(), "", 256)
}

/// Shows a limit; one below `enough` counts as missing.
fn limit(limit: Limit, unit: &str, enough: u64) -> Outcome {
    let show =
        |value: Option<u64>| value.map_or("unlimited".to_owned(), |value| format!("{value}{unit}"));
    let detail = format!(
        "{}, can be raised to {}",
        show(limit.soft),
        show(limit.hard)
    );
    if limit.soft.is_none_or(|soft| soft >= enough) {
        Ok(detail)
    } else {
        Err(detail)
    }
}

fn ptrace_scope() -> Outcome {
    match std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
        Err(_) => Ok("no such restriction".to_owned()),
        Ok(scope) if scope.trim() == "0" => {
            Ok("0: a user's processes may access each other".to_owned())
        }
        Ok(scope) => Err(format!("{}: only descendants, or nobody", scope.trim())),
    }
}
