//! Tries kernel mechanisms.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::thread::ClockId;
use rustix::thread::futex::{self, WaitvFlags};

use super::{Need, Outcome, Trial};
use crate::bell::FutexFd;
use crate::memory::{self, HUGE_PAGE, Mapping, PAGE};
use crate::process::{self, PidFd, ThreadFd};
use crate::socket;
use crate::track::{self, Tracker};
use crate::userfault::Minor;

pub(super) const TRIALS: &[Trial] = &[
    Trial {
        name: "memfd seals",
        run: memfd_seals,
        without: "everything: shared memory could shrink under its users",
        need: Need::Required,
    },
    Trial {
        name: "MFD_NOEXEC_SEAL",
        run: noexec_seal,
        without: "nothing but hardening: a memfd can be made executable",
        need: Need::Wanted,
    },
    Trial {
        name: "MAP_FIXED_NOREPLACE",
        run: fixed_noreplace,
        without: "equal addresses in every space, and with them pointers in messages",
        need: Need::Required,
    },
    Trial {
        name: "pidfd",
        run: pidfd,
        without: "reliable notice of a death",
        need: Need::Required,
    },
    Trial {
        name: "SO_PEERPIDFD",
        run: peer_pidfd,
        without: "certainty about who connected, if process ids are reused quickly",
        need: Need::Wanted,
    },
    Trial {
        name: "pidfd thread signals",
        run: thread_signals,
        without: "upcalls straight from the sender: the receiver's own thread delivers them",
        need: Need::Wanted,
    },
    Trial {
        name: "userfaultfd minor, SIGBUS",
        run: userfault_minor,
        without: "guarding of small extents",
        need: Need::Wanted,
    },
    Trial {
        name: "MADV_POPULATE_WRITE",
        run: populate_write,
        without: "memory taken in batches: every page costs a fault of its own",
        need: Need::Wanted,
    },
    Trial {
        name: "MADV_COLLAPSE on shared memory",
        run: collapse,
        without: "huge pages, unless the system gives them by itself; guarding large extents is slow",
        need: Need::Wanted,
    },
    Trial {
        name: "MADV_GUARD_INSTALL on shared memory",
        run: guard_install,
        without: "the cheapest guard for a few pages; mprotect or userfaultfd serve instead",
        need: Need::Unused,
    },
    Trial {
        name: "io_uring futex wait",
        run: ring_futex,
        without: "wait set descriptors without a helper thread",
        need: Need::Wanted,
    },
    Trial {
        name: "futex_waitv",
        run: waitv,
        without: "wait set descriptors where io_uring is missing too",
        need: Need::Alternative("io_uring futex wait"),
    },
    Trial {
        name: "PAGEMAP_SCAN",
        run: pagemap_scan,
        without: "tracked automatic update",
        need: Need::Wanted,
    },
    Trial {
        name: "asynchronous write protection",
        run: async_write_protect,
        without: "tracked automatic update",
        need: Need::Wanted,
    },
    Trial {
        name: "SO_PASSRIGHTS",
        run: pass_rights,
        without: "refusing descriptors from peers that must not send any",
        need: Need::Wanted,
    },
];

fn text(error: impl Display) -> String {
    error.to_string()
}

fn memory(len: usize) -> Result<(OwnedFd, Mapping), String> {
    let fd = memory::create("portolan-probe", len as u64).map_err(text)?;
    let mapping = Mapping::shared_anywhere(&fd, len).map_err(text)?;
    Ok((fd, mapping))
}

fn memfd_seals() -> Outcome {
    let fd = memory::create("portolan-probe", PAGE as u64).map_err(text)?;
    memory::verify(&fd, PAGE as u64).map_err(text)?;
    match rustix::fs::ftruncate(&fd, 0) {
        Err(Errno::PERM) => Ok("a sealed memfd refuses to shrink".to_owned()),
        other => Err(format!("a sealed memfd was truncated: {other:?}")),
    }
}

fn noexec_seal() -> Outcome {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL;
    memfd_create("portolan-probe", flags).map_err(text)?;
    Ok("since Linux 6.3".to_owned())
}

fn fixed_noreplace() -> Outcome {
    let (fd, mapping) = memory(PAGE)?;
    match Mapping::shared_at(&fd, mapping.base().addr(), PAGE) {
        Err(memory::MapError::Taken { .. }) => Ok("a taken range is refused".to_owned()),
        Err(other) => Err(text(other)),
        Ok(_) => Err("a mapping was replaced".to_owned()),
    }
}

fn pidfd() -> Outcome {
    let own = PidFd::open(std::process::id()).map_err(text)?;
    if own.is_dead() {
        Err("says that we are dead".to_owned())
    } else {
        Ok("since Linux 5.3".to_owned())
    }
}

fn peer_pidfd() -> Outcome {
    /// Linux 6.5.
    const SO_PEERPIDFD: i32 = 77;
    let (one, _other) = socket::pair().map_err(text)?;
    let [raw] = socket::option(one.as_fd(), SO_PEERPIDFD).map_err(text)?;
    // SAFETY:
    // - The kernel has just made the descriptor for us.
    drop(unsafe { OwnedFd::from_raw_fd(raw.cast_signed()) });
    Ok("since Linux 6.5".to_owned())
}

fn thread_signals() -> Outcome {
    let own = ThreadFd::open(process::thread()).map_err(text)?;
    // Of no signal: the kernel checks, and sends nothing.
    own.check().map_err(text)?;
    Ok("since Linux 6.9".to_owned())
}

fn userfault_minor() -> Outcome {
    let (fd, mapping) = memory(PAGE)?;
    let start = mapping.base().addr();
    memory::allocate(&fd, 0, PAGE as u64).map_err(text)?;
    let minor = Minor::new().map_err(text)?;
    minor.register(start, PAGE).map_err(text)?;
    minor.resume(start, PAGE).map_err(text)?;
    Ok("user mode only, no privilege needed".to_owned())
}

fn populate_write() -> Outcome {
    let (_fd, mapping) = memory(PAGE)?;
    memory::populate_write(mapping.base().addr(), PAGE).map_err(text)?;
    Ok("since Linux 5.14".to_owned())
}

fn collapse() -> Outcome {
    let (_fd, mapping) = memory(HUGE_PAGE)?;
    let start = mapping.base().addr();
    memory::populate_write(start, HUGE_PAGE).map_err(text)?;
    match memory::collapse(start, HUGE_PAGE).map_err(text)? {
        true => Ok("2 MiB collapsed".to_owned()),
        false => Err("no huge page could be had; memory may be fragmented".to_owned()),
    }
}

fn guard_install() -> Outcome {
    /// Linux 6.13, on shared memory 6.15.
    const MADV_GUARD_INSTALL: i32 = 102;
    let (_fd, mapping) = memory(PAGE)?;
    // SAFETY:
    // - Our own mapping, which no code reads or writes any more.
    let guarded = unsafe { libc::madvise(mapping.base().cast(), PAGE, MADV_GUARD_INSTALL) };
    if guarded < 0 {
        Err(text(io::Error::last_os_error()))
    } else {
        Ok("since Linux 6.15".to_owned())
    }
}

fn ring_futex() -> Outcome {
    let word = AtomicU32::new(0);
    let mut bell = FutexFd::with_ring().map_err(text)?;
    // The word is something else already, so the bell fires at once.
    bell.arm(&word, 1).map_err(text)?;
    let fired = bell.drain().map_err(text)?;
    if fired {
        Ok("since Linux 6.7".to_owned())
    } else {
        Err("did not fire".to_owned())
    }
}

fn waitv() -> Outcome {
    match futex::waitv(&[], WaitvFlags::empty(), None, ClockId::Monotonic) {
        Err(Errno::INVAL) => Ok("since Linux 5.16".to_owned()),
        other => Err(format!("{other:?}")),
    }
}

fn pagemap_scan() -> Outcome {
    let (_fd, mapping) = memory(PAGE)?;
    track::probe(mapping.base().addr()).map_err(text)?;
    Ok("since Linux 6.7".to_owned())
}

fn async_write_protect() -> Outcome {
    let (_fd, mapping) = memory(PAGE)?;
    let start = mapping.base().addr();
    let mut tracker = Tracker::new(start, PAGE).map_err(text)?;
    memory::populate_write(start, PAGE).map_err(text)?;
    let mut written = Vec::new();
    tracker.take_written(&mut written).map_err(text)?;
    if written.first() == Some(&(start..start + PAGE)) {
        Ok("since Linux 6.7, shared memory too".to_owned())
    } else {
        Err("a written page was not found".to_owned())
    }
}

fn pass_rights() -> Outcome {
    let (one, other) = socket::pair().map_err(text)?;
    if !socket::refuse_descriptors(&one).map_err(text)? {
        return Err("the kernel has no such option".to_owned());
    }
    match socket::send(&other, b"x", &[one.as_fd()]) {
        Err(_) => Ok("since Linux 6.16: a descriptor was refused".to_owned()),
        Ok(()) => Err("a descriptor was let through".to_owned()),
    }
}
