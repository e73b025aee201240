//! Counts a thread's instructions and system calls by stepping through them, where there are no
//! counters.
//!
//! The thread belongs to another process, which says by [`mark`] where the count begins and
//! where it ends. Between two marks the thread is stopped after each instruction in user
//! mode; what the kernel does for it is one, and so is a string instruction that repeats itself
//! (`rep movsb`), behind which the thread stops (at each of its turns, where the processor has no breakpoint for
//! us). The count is exact, and whatever is counted runs some thousand times slower, so nothing that is timed
//! is ever stepped through.
//!
//! ```text
//! run_to_mark: ......mark            the thread runs
//! count_to_mark:     mark-i-i-i-mark one stop an instruction
//! calls_to_mark:     mark....c...mark two stops a system call
//! ```
//!
//! # Invariants
//!
//! - **N1** A stepper is used by the thread that made it: the kernel answers no other.
//! - **N2** A thread under a stepper never outlives it unnoticed: dropped, the stepper lets go
//!   of it, and killed, the kernel kills the thread's process.

#[cfg(target_arch = "x86_64")]
mod repeated;

use std::io;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The Unix signal of a mark: one that does nothing while no thread steps.
const MARK: i32 = libc::SIGURG;
/// How a stop at a system call tells itself from a step.
const CALL: i32 = libc::SIGTRAP | 0x80;
/// How long a thread may take to its next stop, or to so many steps. Beside processes that keep all
/// processors busy, each takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);
const MANY: u64 = 1 << 8;

/// Tells a [`Stepper`] of the calling thread that a count begins or ends here; does nothing else.
#[inline(never)]
pub fn mark() {
    // SAFETY:
    // - Sends a signal to the calling thread, which by default is ignored.
    unsafe { libc::raise(MARK) };
}

/// A thread of another process, run by us.
///
/// Not `Send`: see N1.
#[derive(Debug)]
pub struct Stepper {
    thread: libc::pid_t,
    /// A signal that it gets when it goes on.
    pending: i32,
    /// The address of its next instruction, where it stopped after a step.
    next: Option<i64>,
    guard: Guard,
    _own: PhantomData<*const ()>,
}

/// Why instructions were not counted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The machine's: it does not let us trace the thread, or not step.
    #[error("the system does not let us step through a thread: {0}")]
    Refused(#[source] io::Error),
    /// The thread's: it ended.
    #[error("the thread ended while its instructions were counted")]
    Ended,
    /// The thread's: it waited for something, or took too long to its next mark; its process
    /// was killed.
    #[error("the thread did not stop within {} s, and was killed", PATIENCE.as_secs())]
    Late,
}

/// Where a thread has stopped.
enum Stop {
    /// After one instruction.
    Step,
    /// After one turn of an instruction that repeats itself, and will again.
    Turn,
    /// Where a system call begins, or where it ends.
    Call,
    Mark,
    /// Elsewhere, with a signal that it gets when it goes on, or without.
    Other,
}

impl Stepper {
    /// Takes the thread `tid` of another process, and stops it.
    ///
    /// # Errors
    ///
    /// [`StepError`].
    pub fn seize(tid: u32) -> Result<Self, StepError> {
        let thread = tid.cast_signed();
        let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
        request(libc::PTRACE_SEIZE, thread, options)?;
        let mut stepper = Self {
            thread,
            pending: 0,
            next: None,
            guard: Guard::of(thread)?,
            _own: PhantomData,
        };
        request(libc::PTRACE_INTERRUPT, thread, 0)?;
        stepper.guarded(|stepper| stepper.wait())?;
        Ok(stepper)
    }

    /// Lets it run up to its next mark.
    ///
    /// # Errors
    ///
    /// [`StepError`].
    pub fn run_to_mark(&mut self) -> Result<(), StepError> {
        self.guarded(|own| {
            loop {
                own.go_on(libc::PTRACE_CONT)?;
                if matches!(own.wait()?, Stop::Mark) {
                    return Ok(());
                }
            }
        })
    }

    /// The instructions from the mark where it stands to the next one, those of the marks
    /// themselves included: as many as between two marks with nothing between.
    ///
    /// # Errors
    ///
    /// [`StepError`].
    pub fn count_to_mark(&mut self) -> Result<u64, StepError> {
        self.guarded(|own| {
            let (mut count, mut stops) = (0_u64, 0_u64);
            loop {
                match own.step()? {
                    Stop::Step => count += 1,
                    Stop::Mark => return Ok(count),
                    Stop::Turn | Stop::Call | Stop::Other => {}
                }
                stops += 1;
                if stops.is_multiple_of(MANY) {
                    own.guard.until(Some(Instant::now() + PATIENCE));
                }
            }
        })
    }

    /// The system calls from the mark where it stands to the next one, those of the marks
    /// themselves included.
    ///
    /// # Errors
    ///
    /// [`StepError`].
    pub fn calls_to_mark(&mut self) -> Result<u64, StepError> {
        self.guarded(|own| {
            let mut stops = 0_u64;
            loop {
                own.go_on(libc::PTRACE_SYSCALL)?;
                match own.wait()? {
                    Stop::Call => stops += 1,
                    // Where a call begins and where it ends.
                    Stop::Mark => return Ok(stops / 2),
                    Stop::Step | Stop::Turn | Stop::Other => {}
                }
            }
        })
    }

    /// Steps for as long as `so` says, which is asked before each step; how many instructions.
    ///
    /// # Errors
    ///
    /// [`StepError`].
    pub fn count_while(&mut self, mut so: impl FnMut() -> bool) -> Result<u64, StepError> {
        self.guarded(|own| {
            let mut count = 0_u64;
            while so() {
                if matches!(own.step()?, Stop::Step) {
                    count += 1;
                }
            }
            Ok(count)
        })
    }

    /// Does what must be done in time.
    fn guarded<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, StepError>,
    ) -> Result<T, StepError> {
        self.guard.until(Some(Instant::now() + PATIENCE));
        let done = work(self);
        self.guard.until(None);
        done
    }

    fn step(&mut self) -> Result<Stop, StepError> {
        self.go_on(libc::PTRACE_SINGLESTEP)?;
        let before = self.next.take();
        let stop = self.stop()?;
        if matches!(stop, Stop::Step)
            && let Some(at) = self.next
            && self.next == before
        {
            return self.turn(at);
        }
        Ok(stop)
    }

    /// After one turn of the instruction at `at`: to its end, where the processor can stop there.
    fn turn(&mut self, at: i64) -> Result<Stop, StepError> {
        let behind = repeated::behind(self.thread, at);
        if behind.is_none() || !repeated::stops_at(self.thread, behind) {
            return Ok(Stop::Turn);
        }
        self.go_on(libc::PTRACE_CONT)?;
        let stop = self.stop()?;
        repeated::stops_at(self.thread, None);
        if !matches!(stop, Stop::Step) {
            // In the middle of it: the next step is another turn, or its last.
            self.next = Some(at);
        }
        Ok(stop)
    }

    /// Its next stop, and where it stands if that is one after a step.
    fn stop(&mut self) -> Result<Stop, StepError> {
        let stop = self.wait()?;
        if matches!(stop, Stop::Step) {
            self.next = repeated::next(self.thread);
        }
        Ok(stop)
    }

    fn go_on(&mut self, how: libc::c_uint) -> Result<(), StepError> {
        request(how, self.thread, std::mem::take(&mut self.pending))
    }

    /// Waits for its next stop. That it comes, or the thread is killed, the guard sees to.
    fn wait(&mut self) -> Result<Stop, StepError> {
        let mut status = 0;
        loop {
            // SAFETY:
            // - `status` has room for one.
            // - A thread of another process, which only this tracer waits for.
            let found = unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL) };
            if found == self.thread {
                return self.stop_of(status);
            }
            if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                return Err(self.ended());
            }
        }
    }

    /// Of a thread that has ended: by itself, or because it took too long.
    fn ended(&self) -> StepError {
        match self.guard.state().late {
            true => StepError::Late,
            false => StepError::Ended,
        }
    }

    fn stop_of(&mut self, status: i32) -> Result<Stop, StepError> {
        if !libc::WIFSTOPPED(status) {
            return Err(self.ended());
        }
        let event = status >> 16;
        Ok(match libc::WSTOPSIG(status) {
            // Stopped by us, or together with its process.
            _ if event != 0 => Stop::Other,
            libc::SIGTRAP => Stop::Step,
            CALL => Stop::Call,
            MARK => Stop::Mark,
            other => {
                self.pending = other;
                Stop::Other
            }
        })
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        if request(libc::PTRACE_DETACH, self.thread, self.pending).is_ok() {
            return;
        }
        // Only a stopped thread can be let go; one that has ended must be waited for.
        let _ = request(libc::PTRACE_INTERRUPT, self.thread, 0);
        let _ = self.guarded(|own| own.wait());
        let _ = request(libc::PTRACE_DETACH, self.thread, self.pending);
    }
}

/// A thread that kills the stepped thread if it does not stop in time, because the thread that
/// waits for a stop cannot wait for anything else.
#[derive(Debug)]
struct Guard {
    shared: Arc<(Mutex<State>, Condvar)>,
    watcher: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// When it has to have stopped, while a thread waits for that.
    until: Option<Instant>,
    late: bool,
    over: bool,
}

impl Guard {
    fn of(thread: libc::pid_t) -> Result<Self, StepError> {
        let shared: Arc<(Mutex<State>, Condvar)> = Arc::default();
        let theirs = Arc::clone(&shared);
        let watcher = thread::Builder::new()
            .name("step-guard".to_owned())
            .spawn(move || watch(thread, &theirs))
            .map_err(StepError::Refused)?;
        Ok(Self {
            shared,
            watcher: Some(watcher),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.shared.0)
    }

    fn until(&self, until: Option<Instant>) {
        self.state().until = until;
        self.shared.1.notify_one();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.state().over = true;
        self.shared.1.notify_one();
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // No thread panics while it holds the lock.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The whole life of a guard's thread.
fn watch(thread: libc::pid_t, (state, changed): &(Mutex<State>, Condvar)) {
    let mut state = lock(state);
    while !state.over {
        let now = Instant::now();
        let left = state
            .until
            .map(|until| until.saturating_duration_since(now));
        if left == Some(Duration::ZERO) {
            state.until = None;
            state.late = true;
            // SAFETY:
            // - Takes no pointers.
            // - The thread's number means no other: only its tracer waits for its end, and
            //   that says first that nothing is due.
            unsafe { libc::kill(thread, libc::SIGKILL) };
            continue;
        }
        let left = left.unwrap_or(PATIENCE);
        let waited = changed.wait_timeout(state, left);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Where no instruction repeats itself.
#[cfg(not(target_arch = "x86_64"))]
mod repeated {
    pub(super) fn next(_thread: libc::pid_t) -> Option<i64> {
        None
    }

    pub(super) fn behind(_thread: libc::pid_t, _at: i64) -> Option<i64> {
        None
    }

    pub(super) fn stops_at(_thread: libc::pid_t, _at: Option<i64>) -> bool {
        false
    }
}

/// A request without memory of ours.
fn request(what: libc::c_uint, thread: libc::pid_t, data: i32) -> Result<(), StepError> {
    let none = ptr::null_mut::<libc::c_void>();
    let data = ptr::without_provenance_mut::<libc::c_void>(usize::try_from(data).unwrap_or(0));
    // SAFETY:
    // - Of the requests made here none reads or writes memory of ours, nor of the thread.
    // - A thread that is not ours to trace is refused.
    let done = unsafe { libc::ptrace(what, thread, none, data) };
    if done < 0 {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::ESRCH) => StepError::Ended,
            _ => StepError::Refused(error),
        });
    }
    Ok(())
}
