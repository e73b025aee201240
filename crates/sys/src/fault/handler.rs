//! Handles the signals SIGSEGV and SIGBUS.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

use super::{Fault, Kind, Verdict, table};
use crate::process;

/// The handlers that were there before ours. Written before ours is installed.
static PREVIOUS: [OnceLock<Action>; 2] = [const { OnceLock::new() }; 2];

/// A `sigaction` that may lie in a static: it is copied in, and only read afterwards.
struct Action(libc::sigaction);

// SAFETY:
// - The content is plain data; the function in it may be called in any thread.
unsafe impl Send for Action {}
// SAFETY:
// - As above, and nothing changes it.
unsafe impl Sync for Action {}

/// Installs the handler, once for the process.
pub(super) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let failed = |error: io::Error| error.raw_os_error().unwrap_or(libc::EINVAL);
        install_for(Kind::Segv).map_err(failed)?;
        install_for(Kind::Bus).map_err(failed)
    });
    installed.map_err(io::Error::from_raw_os_error)
}

fn install_for(kind: Kind) -> io::Result<()> {
    let signal = signal_of(kind);
    // The previous handler is recorded first: ours may run as soon as it is installed.
    let previous = action(signal, None)?;
    PREVIOUS[kind as usize].get_or_init(|| Action(previous));
    // SAFETY:
    // - All bits zero are a valid `sigaction`.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    let entry: extern "C" fn(_, _, _) = on_fault;
    ours.sa_sigaction = entry as usize;
    // Not deferred: a handler may itself touch watched memory of another range.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // All else waits until it has returned (F4).
    ours.sa_mask = process::quiet();
    action(signal, Some(&ours))?;
    Ok(())
}

fn signal_of(kind: Kind) -> i32 {
    match kind {
        Kind::Segv => libc::SIGSEGV,
        Kind::Bus => libc::SIGBUS,
    }
}

/// Reads a signal's action, and sets a new one.
fn action(signal: i32, new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY:
    // - `new` is null or an action, `old` has room for one.
    // - The only handlers set are `on_fault` and the default.
    let result = unsafe { libc::sigaction(signal, new, old.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY:
    // - Zeroed, then filled by the kernel.
    Ok(unsafe { old.assume_init() })
}

/// The entry of the handler. The kernel gives it a signal's number, details and context.
extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY:
    // - Always valid, and this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY:
    // - As above; the interrupted code must find the value it had.
    let saved = unsafe { errno.read() };
    // SAFETY:
    // - The kernel filled it for this call.
    let info = unsafe { &*info };
    let kind = if signal == libc::SIGBUS {
        Kind::Bus
    } else {
        Kind::Segv
    };
    // Signals that a process sent have a code of at most zero, and no address (F3).
    let claimed = info.si_code > 0 && {
        // SAFETY:
        // - Signals of this kind, raised by the kernel, carry an address.
        let address = unsafe { info.si_addr() }.addr();
        let fault = Fault {
            address,
            kind,
            write: was_write(context),
        };
        table::ask(&fault) == Verdict::Retry
    };
    if !claimed {
        pass_on(signal, kind, info, context);
    }
    // SAFETY:
    // - As above.
    unsafe { errno.write(saved) };
}

/// Calls the previous handler, or dies as if there were none.
fn pass_on(signal: i32, kind: Kind, info: &libc::siginfo_t, context: *mut libc::c_void) {
    let Some(Action(previous)) = PREVIOUS[kind as usize].get() else {
        return die(signal, info);
    };
    let sent = info.si_code <= 0;
    match previous.sa_sigaction {
        libc::SIG_IGN if sent => {}
        // The kernel does not let a process ignore its own faults either.
        libc::SIG_DFL | libc::SIG_IGN => die(signal, info),
        entry if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            type Entry = extern "C" fn(i32, *const libc::siginfo_t, *mut libc::c_void);
            // SAFETY:
            // - Installed with SA_SIGINFO, so it is a function of this type.
            let entry = unsafe { std::mem::transmute::<*const (), Entry>(function(entry)) };
            entry(signal, info, context);
        }
        entry => {
            type Entry = extern "C" fn(i32);
            // SAFETY:
            // - Installed without SA_SIGINFO, so it is a function of this type.
            let entry = unsafe { std::mem::transmute::<*const (), Entry>(function(entry)) };
            entry(signal);
        }
    }
}

/// A handler's address as the pointer that it was.
fn function(entry: usize) -> *const () {
    ptr::with_exposed_provenance(entry)
}

/// Dies of `signal`, with the original details, so that a core dump shows the access.
fn die(signal: i32, info: &libc::siginfo_t) {
    // SAFETY:
    // - All bits zero are a valid `sigaction`: the default.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    let _ = action(signal, Some(&default));
    // SAFETY:
    // - Always succeeds.
    let process = unsafe { libc::getpid() };
    // SAFETY:
    // - Always succeeds.
    let thread = unsafe { libc::gettid() };
    let number = libc::SYS_rt_tgsigqueueinfo;
    let info = ptr::from_ref(info);
    // The signal is not deferred, so it arrives before this call returns.
    // SAFETY:
    // - `info` points to a `siginfo_t`. A process may send itself any.
    unsafe { libc::syscall(number, process, thread, signal, info) };
}

/// Whether the access was a write, from the processor's error code.
#[cfg(target_arch = "x86_64")]
fn was_write(context: *mut libc::c_void) -> Option<bool> {
    /// Bit of a page fault's error code.
    const WRITE: i64 = 1 << 1;
    let context: *const libc::ucontext_t = context.cast();
    // SAFETY:
    // - The kernel gave it to a handler that was installed with SA_SIGINFO.
    let context = unsafe { context.as_ref() }?;
    let error = context.uc_mcontext.gregs[usize::try_from(libc::REG_ERR).ok()?];
    Some(error & WRITE != 0)
}

/// Whether the access was a write; not known on this processor.
#[cfg(not(target_arch = "x86_64"))]
fn was_write(_: *mut libc::c_void) -> Option<bool> {
    None
}
