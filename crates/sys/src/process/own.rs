//! Describes this process: its user, threads that take no signals, commands that die with it.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::thread::{Builder, JoinHandle};

/// The effective user of this process.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Random bytes that no process can guess.
///
/// # Errors
///
/// `ENOSYS` and `EPERM`, where the kernel has or permits no such call.
///
/// # Examples
///
/// ```
/// assert_ne!(portolan_sys::process::random::<16>()?, portolan_sys::process::random()?);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while let Some(left) = bytes.get_mut(filled..).filter(|left| !left.is_empty()) {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut *left, flags))?;
    }
    Ok(bytes)
}

/// Starts a thread that never runs a signal handler of the program's.
///
/// Every signal is blocked there from its first instruction on, but for those that
/// report its own faults.
///
/// # Errors
///
/// `EAGAIN`: too many threads.
pub fn spawn_quiet<F, T>(name: &str, stack: usize, run: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    // A thread begins with the mask of the one that makes it.
    let before = change_mask(&quiet());
    let spawned = Builder::new()
        .name(name.to_owned())
        .stack_size(stack)
        .spawn(run);
    change_mask(&before);
    spawned
}

/// Has a command killed when the thread that starts it ends, so that it never outlives this
/// process however that dies. What the command starts itself is not killed.
pub fn dies_with_us(command: &mut Command) -> &mut Command {
    let ours = rustix::process::getpid();
    let ask = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // We may have died before that.
        if rustix::process::getppid() == Some(ours) {
            Ok(())
        } else {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    };
    // SAFETY:
    // - Between fork and exec: two system calls, no memory taken, no lock.
    unsafe { command.pre_exec(ask) }
}

/// Has the kernel put programs that this thread starts from now on always at the same
/// addresses, so that what they count is the same in each run. Refused in some containers:
/// `false`, and nothing has changed.
///
/// ```
/// // Its own addresses stay as they are.
/// let _ = portolan_sys::process::fix_addresses();
/// ```
pub fn fix_addresses() -> bool {
    /// Asks what it is, and sets nothing.
    const ASK: libc::c_ulong = 0xffff_ffff;
    // SAFETY:
    // - Takes no pointers, and changes nothing.
    let now = unsafe { libc::personality(ASK) };
    let Ok(now) = libc::c_ulong::try_from(now) else {
        return false;
    };
    let fixed = now | libc::ADDR_NO_RANDOMIZE as libc::c_ulong;
    // SAFETY:
    // - Takes no pointers; of memory that is mapped already nothing moves.
    unsafe { libc::personality(fixed) != -1 }
}

/// Which C library this program runs with: `glibc 2.36`.
///
/// ```
/// assert!(!portolan_sys::process::libc_version().is_empty());
/// ```
pub fn libc_version() -> String {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY:
        // - Takes nothing; what it returns is a string without end of life.
        let version = unsafe { libc::gnu_get_libc_version() };
        // SAFETY:
        // - As above: ends with 0, and is never changed.
        let version = unsafe { std::ffi::CStr::from_ptr(version) };
        format!("glibc {}", version.to_string_lossy())
    }
    #[cfg(not(target_env = "gnu"))]
    "another".to_owned()
}

/// All signals but those that the processor raises.
pub(crate) fn quiet() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY:
    // - Room for a signal set.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY:
    // - Filled above.
    let mut set = unsafe { set.assume_init() };
    for fault in [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGFPE,
        libc::SIGTRAP,
    ] {
        // SAFETY:
        // - A valid set and valid signals.
        unsafe { libc::sigdelset(&raw mut set, fault) };
    }
    set
}

/// Replaces the calling thread's mask; returns the old one.
fn change_mask(to: &libc::sigset_t) -> libc::sigset_t {
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY:
    // - A valid set, and room for another.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, ptr::from_ref(to), before.as_mut_ptr()) };
    // SAFETY:
    // - Zeroed, then filled by the call, which cannot fail on a valid request.
    unsafe { before.assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_thread_blocks_signals_and_its_maker_does_not() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status.lines().find_map(|l| l.strip_prefix("SigBlk:"));
            u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
        };
        let before = blocked();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = spawn_quiet("quiet", 64 << 10, move || tell.send(blocked()).unwrap()).unwrap();
        thread.join().unwrap();
        let bit = |signal: i32| 1_u64 << (signal - 1);
        let theirs = told.recv().unwrap();
        assert_ne!(theirs & bit(libc::SIGTERM), 0);
        assert_eq!(theirs & (bit(libc::SIGSEGV) | bit(libc::SIGBUS)), 0);
        assert_eq!(blocked(), before);
    }
}
