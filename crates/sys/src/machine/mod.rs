//! Reads the machine's processors, memory and limits, and what this process uses.

mod cgroup;
mod describe;

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

pub(crate) use describe::huge_pages as describe_huge_pages;
pub use describe::{Machine, describe};

/// The processors that the calling thread may run on, in ascending order.
///
/// # Examples
///
/// ```
/// assert!(!portolan_sys::machine::cpus_allowed().is_empty());
/// ```
pub fn cpus_allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        // Only for a machine with more processors than the set has room for.
        return vec![0];
    };
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect()
}

/// Keeps the calling thread, and threads that it makes, on one processor.
///
/// # Errors
///
/// `EINVAL`: no such processor, or not allowed.
pub fn pin(cpu: usize) -> io::Result<()> {
    keep_on(&[cpu])
}

/// Keeps the calling thread, and threads and processes that it makes, on these processors: one that
/// was pinned may run on others again.
///
/// # Errors
///
/// `EINVAL`: no such processor, or none of them is allowed.
///
/// # Examples
///
/// ```
/// use portolan_sys::machine;
///
/// let all = machine::cpus_allowed();
/// machine::pin(all[0])?;
/// machine::keep_on(&all)?;
/// assert_eq!(machine::cpus_allowed(), all);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn keep_on(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(Errno::INVAL.into());
        }
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Whether it can help to spin before sleeping: on a machine with one processor the peer
/// does not run as long as we do. (Where we are kept on one of several, it may have another.)
pub fn spin_hint() -> bool {
    match std::fs::read_to_string("/sys/devices/system/cpu/online") {
        // A list of numbers and ranges.
        Ok(online) => online.contains(['-', ',']),
        Err(_) => cpus_allowed().len() > 1,
    }
}

/// A sensible limit for a domain's memory, in bytes: half of what is available here, to
/// the machine or to our control group, whichever is less.
pub fn default_limit() -> u64 {
    available().min(cgroup::headroom().unwrap_or(u64::MAX)) / 2
}

/// Bytes of memory that could be had without swapping.
pub fn available() -> u64 {
    describe::meminfo("MemAvailable:").unwrap_or_else(|| {
        // Without `/proc` only what is not used for anything at all.
        let info = rustix::system::sysinfo();
        info.freeram.saturating_mul(info.mem_unit.into())
    })
}

/// Bytes of memory that the machine and our control group could still give a process, at the
/// expense of files that can be read again and of what can be swapped out.
pub fn could_be_had() -> u64 {
    let left = available().min(cgroup::headroom().unwrap_or(u64::MAX));
    left.saturating_add(describe::meminfo("SwapFree:").unwrap_or(0))
}

/// A limit of the process: what holds, and how far it may raise that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What holds; `None` is no limit.
    pub soft: Option<u64>,
    /// How far the process may raise it; `None` is any.
    pub hard: Option<u64>,
}

/// How many descriptors the process may have.
pub fn rlimit_nofile() -> Limit {
    limit(Resource::Nofile)
}

/// How many bytes the process may lock in memory.
pub fn rlimit_memlock() -> Limit {
    limit(Resource::Memlock)
}

fn limit(resource: Resource) -> Limit {
    let limit = getrlimit(resource);
    Limit {
        soft: limit.current,
        hard: limit.maximum,
    }
}

/// Bytes of memory that this process has mapped and present, shared ones included.
///
/// # Errors
///
/// Where `/proc` is not mounted.
pub fn resident_bytes() -> io::Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm
        .split_ascii_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    let pages = pages.ok_or(io::ErrorKind::InvalidData)?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// Memory that this process has to itself and keeps resident, in bytes: not what is in
/// files, or shared.
///
/// # Errors
///
/// What reading `/proc` reports.
pub fn private_bytes() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kibibytes =
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let kibibytes = kibibytes.ok_or(io::ErrorKind::InvalidData)?;
    Ok(kibibytes * 1024)
}

/// Processor time that this process used, in user mode and in the kernel.
pub fn cpu_time() -> Duration {
    usage(libc::RUSAGE_SELF)
}

/// Processor time that ended children used which were waited for, and theirs in turn.
pub fn children_cpu_time() -> Duration {
    usage(libc::RUSAGE_CHILDREN)
}

fn usage(who: libc::c_int) -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY:
    // - Room for the answer; both values of `who` are valid, so it cannot fail.
    unsafe { libc::getrusage(who, usage.as_mut_ptr()) };
    // SAFETY:
    // - Zeroed, then filled by the kernel.
    let usage = unsafe { usage.assume_init() };
    duration(usage.ru_utime) + duration(usage.ru_stime)
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}
