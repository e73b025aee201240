//! Tries instructions of the processor, and reads settings of the system.

use super::{Need, Outcome, Trial};
use crate::machine::{self, Limit, describe_huge_pages};
use crate::monitor::{self, Bit};

pub(super) const TRIALS: &[Trial] = &[
    Trial {
        name: "protection keys",
        run: protection_keys,
        without: "nothing today: no mechanism here depends on them",
        need: Need::Unused,
    },
    Trial {
        name: "umwait",
        run: umwait,
        without: "monitor-wait for signals, on Intel; polling and futexes serve instead",
        need: Need::Alternative("mwaitx"),
    },
    Trial {
        name: "mwaitx",
        run: mwaitx,
        without: "monitor-wait for signals, on AMD; polling and futexes serve instead",
        need: Need::Alternative("umwait"),
    },
    Trial {
        name: "user interrupts",
        run: user_interrupts,
        without: "nothing today: Linux does not offer them either",
        need: Need::Unused,
    },
    Trial {
        name: "cldemote",
        run: push,
        without: "the push hint, which only a row of `bench signal` tries",
        need: Need::Unused,
    },
    Trial {
        name: "transparent huge pages",
        run: huge_pages,
        without: "speed with large extents: 2 MiB pages guard and map faster",
        need: Need::Wanted,
    },
    Trial {
        name: "memory lock limit",
        run: memory_lock,
        without: "locking of a domain's memory, unless privileged",
        need: Need::Wanted,
    },
    Trial {
        name: "open descriptor limit",
        run: descriptors,
        without: "room for many members; each costs the host a few descriptors",
        need: Need::Wanted,
    },
    Trial {
        name: "yama ptrace scope",
        run: ptrace_scope,
        without: "kernel-mediated writes between one user's processes",
        need: Need::Wanted,
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
    // - Allocated above, and used by no code.
    unsafe { libc::syscall(libc::SYS_pkey_free, key) };
    Ok("a key could be allocated".to_owned())
}

/// `WAITPKG`.
fn umwait() -> Outcome {
    processor(Bit::Umwait)
}

/// `MONITORX`.
fn mwaitx() -> Outcome {
    processor(Bit::Mwaitx)
}

/// `UINTR`.
fn user_interrupts() -> Outcome {
    processor(Bit::UserInterrupts)
}

/// `CLDEMOTE`.
fn push() -> Outcome {
    processor(Bit::Push)
}

fn processor(bit: Bit) -> Outcome {
    if monitor::has(bit) {
        Ok("the processor has it".to_owned())
    } else {
        Err("the processor, or its hypervisor, does not offer it".to_owned())
    }
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
