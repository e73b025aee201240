//! A watch waits for many descriptors, timers and Unix signals at once, by change.
//!
//! A [`Watch`] is an epoll: each descriptor that is added has a number, and
//! [`wait`](Watch::wait) says the numbers of those where something is new. Timers
//! ([`Timer`]) are descriptors in Linux; Unix signals become some ([`UnixSignal`]).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::fork::{self, CloseOnFork};
use crate::process::{self, EventFd};
use crate::time;
use crate::upcall;

/// Numbers that one call of [`Watch::wait`] says at most.
const AT_ONCE: usize = 64;

/// Tells where something is new.
///
/// # Examples
///
/// ```
/// use portolan_sys::process::EventFd;
/// use portolan_sys::watch::Watch;
/// let watch = Watch::new()?;
/// let event = EventFd::new()?;
/// watch.add(&event, 7)?;
/// event.notify()?;
/// assert_eq!(watch.wait()?, [7]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Watch {
    epoll: OwnedFd,
    /// A child would take out what we put in.
    _let_go: CloseOnFork,
}

impl Watch {
    /// Watches nothing.
    ///
    /// # Errors
    ///
    /// `EMFILE`.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let _let_go = fork::close_in_child(epoll.as_raw_fd());
        Ok(Self { epoll, _let_go })
    }

    /// Watches a descriptor: says `number` when it becomes readable or is hung up, and
    /// again whenever there is more. What it holds already counts as new.
    ///
    /// # Errors
    ///
    /// `EPERM`: it cannot be watched, as a plain file. `EEXIST`: it is watched already.
    pub fn add(&self, fd: impl AsFd, number: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.epoll, fd, data, flags)?)
    }

    /// Watches it no more.
    ///
    /// # Errors
    ///
    /// `ENOENT`: it was not watched.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Waits until something is new; where.
    ///
    /// # Errors
    ///
    /// `EBADF`: in a forked child.
    pub fn wait(&self) -> io::Result<Vec<u64>> {
        self.wait_by(None)
    }

    /// The same, until a deadline: then nowhere.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    ///
    /// ```
    /// # use portolan_sys::watch::Watch;
    /// use std::time::Instant;
    /// assert_eq!(Watch::new()?.wait_by(Some(Instant::now()))?, []);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn wait_by(&self, deadline: Option<Instant>) -> io::Result<Vec<u64>> {
        let mut events = Vec::with_capacity(AT_ONCE);
        loop {
            let left = time::relative(deadline);
            match epoll::wait(&self.epoll, spare_capacity(&mut events), left.as_ref()) {
                Err(Errno::INTR) => {}
                Err(other) => return Err(other.into()),
                Ok(_) => return Ok(events.iter().map(|e| e.data.u64()).collect()),
            }
        }
    }
}

/// A timer: readable when it has run out, once or again and again.
///
/// # Examples
///
/// ```
/// use portolan_sys::process;
/// use portolan_sys::watch::Timer;
/// use std::os::fd::AsFd;
/// use std::time::Duration;
/// let timer = Timer::start(Duration::from_millis(1), None)?;
/// process::poll(&[timer.as_fd()], None)?;
/// assert_eq!(timer.ran_out()?, 1);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Timer {
    fd: OwnedFd,
}

impl Timer {
    /// Runs out `first` from now, by the monotonic clock, and then `every` so often.
    ///
    /// # Errors
    ///
    /// `EMFILE`. `EINVAL`: a time that no clock reaches.
    pub fn start(first: Duration, every: Option<Duration>) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let timer = Self { fd };
        timer.set(first, every)?;
        Ok(timer)
    }

    pub(crate) fn set(&self, first: Duration, every: Option<Duration>) -> io::Result<()> {
        let spec = |time: Duration| Timespec::try_from(time).map_err(|_| Errno::INVAL);
        let zero = Duration::ZERO;
        let setting = Itimerspec {
            // Zero would stop it.
            it_value: spec(first.max(Duration::from_nanos(1)))?,
            it_interval: spec(every.unwrap_or(zero))?,
        };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &setting)?;
        Ok(())
    }

    /// How often it has run out since it was asked last.
    ///
    /// # Errors
    ///
    /// None that a timer has.
    pub fn ran_out(&self) -> io::Result<u64> {
        process::take_count(&self.fd)
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A descriptor that is readable while another one is, or once a time has come; which one and
/// when may change.
///
/// # Examples
///
/// ```
/// use portolan_sys::process::{EventFd, poll};
/// use portolan_sys::watch::Alarm;
/// use std::os::fd::AsFd;
/// use std::time::{Duration, Instant};
/// let alarm = Alarm::new()?;
/// let readable = || poll(&[alarm.as_fd()], Some(Instant::now())).map(|ready| ready[0].readable);
/// let event = EventFd::new()?;
/// alarm.set(&event, Some(Instant::now() + Duration::from_secs(3600)))?;
/// assert!(!readable()?);
/// event.notify()?;
/// assert!(readable()?);
/// event.drain()?;
/// assert!(!readable()?);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Alarm {
    epoll: OwnedFd,
    timer: Timer,
}

impl Alarm {
    /// One that is readable at once.
    ///
    /// # Errors
    ///
    /// `EMFILE`.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = Timer::start(Duration::ZERO, None)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, &timer, data, epoll::EventFlags::IN)?;
        Ok(Self { epoll, timer })
    }

    /// From now on this descriptor counts, beside those before that were not closed, and this
    /// time instead of the one before.
    ///
    /// # Errors
    ///
    /// `EPERM`: it cannot be watched, as a plain file. `ENOSPC`, `ENOMEM`.
    pub fn set(&self, fd: impl AsFd, at: Option<Instant>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        match epoll::add(&self.epoll, fd, epoll::EventData::new_u64(0), flags) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        self.set_time(at)
    }

    /// The time alone.
    ///
    /// # Errors
    ///
    /// None that a timer has.
    pub fn set_time(&self, at: Option<Instant>) -> io::Result<()> {
        /// Longer than anything that is waited for.
        const FAR: Duration = Duration::from_secs(1 << 30);
        let left = at.map(|at| at.saturating_duration_since(Instant::now()));
        self.timer.set(left.unwrap_or(FAR).min(FAR), None)
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// A Unix signal of this process as a descriptor: readable once it came.
///
/// An earlier handler of the signal is still called. If there was none, the signal's default
/// action is off from here on, also after this is dropped.
///
/// # Examples
///
/// ```
/// use portolan_sys::watch::UnixSignal;
/// let signal = UnixSignal::catch(10)?; // SIGUSR1
/// rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR1)?;
/// assert_eq!(signal.came()?, 1);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct UnixSignal {
    signal: i32,
    event: Arc<EventFd>,
    action: signal_hook_registry::SigId,
    _let_go: CloseOnFork,
}

/// The numbers of those that are caught, each as often as it is.
static CAUGHT: Mutex<Vec<i32>> = Mutex::new(Vec::new());

fn caught() -> MutexGuard<'static, Vec<i32>> {
    CAUGHT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a [`UnixSignal`] catches `signal`.
pub(crate) fn is_caught(signal: i32) -> bool {
    caught().contains(&signal)
}

impl UnixSignal {
    /// Catches `signal` from now on.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: there is no such signal, or no process may catch it. `ResourceBusy`: upcalls
    /// come by it ([`crate::upcall`]), so each would be told of for ever. `EMFILE`.
    pub fn catch(signal: i32) -> io::Result<Self> {
        if signal_hook_registry::FORBIDDEN.contains(&signal) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if upcall::is_used(signal) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let event = Arc::new(EventFd::new()?);
        let _let_go = fork::close_in_child(event.as_fd().as_raw_fd());
        let notifies = Arc::clone(&event);
        let action = move || {
            // In a forked child it fails: its signals are not ours.
            let _ = notifies.notify();
        };
        // SAFETY:
        // - The action makes one system call, and allocates nothing.
        let action = unsafe { signal_hook_registry::register(signal, action) };
        let action = action.map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => io::ErrorKind::InvalidInput.into(),
            _ => error,
        })?;
        caught().push(signal);
        Ok(Self {
            signal,
            event,
            action,
            _let_go,
        })
    }

    /// Whether it came since it was asked last; several that come together may count as one.
    ///
    /// # Errors
    ///
    /// `EBADF`: in a forked child.
    pub fn came(&self) -> io::Result<u64> {
        self.event.drain()
    }
}

impl AsFd for UnixSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for UnixSignal {
    fn drop(&mut self) {
        signal_hook_registry::unregister(self.action);
        let mut caught = caught();
        if let Some(place) = caught.iter().position(|s| *s == self.signal) {
            caught.swap_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_run_out_once_or_again() {
        let watch = Watch::new().unwrap();
        let once = Timer::start(Duration::ZERO, None).unwrap();
        watch.add(&once, 1).unwrap();
        assert_eq!(watch.wait().unwrap(), [1]);
        assert_eq!(once.ran_out().unwrap(), 1);
        assert_eq!(once.ran_out().unwrap(), 0);
        watch.remove(&once).unwrap();
        let short = Duration::from_millis(1);
        let again = Timer::start(short, Some(short)).unwrap();
        watch.add(&again, 2).unwrap();
        for _ in 0..3 {
            assert_eq!(watch.wait().unwrap(), [2]);
            assert!(again.ran_out().unwrap() > 0);
        }
        assert!(Timer::start(Duration::MAX, None).is_err());
    }

    #[test]
    fn an_alarm_goes_by_what_it_was_told_last() {
        let alarm = Alarm::new().unwrap();
        let readable = |by| process::poll(&[alarm.as_fd()], Some(by)).unwrap()[0].readable;
        let (now, far) = (Instant::now, Instant::now() + Duration::from_secs(3600));
        assert!(readable(far), "it was told nothing");
        let first = EventFd::new().unwrap();
        alarm.set(&first, Some(far)).unwrap();
        assert!(!readable(now()));
        first.notify().unwrap();
        // Also what was there before.
        let second = EventFd::new().unwrap();
        second.notify().unwrap();
        drop(first);
        alarm.set(&second, None).unwrap();
        alarm.set(&second, Some(far)).unwrap();
        assert!(readable(now()));
        second.drain().unwrap();
        assert!(!readable(now()));
        alarm.set_time(Some(now())).unwrap();
        assert!(readable(far));
        alarm.set_time(None).unwrap();
        assert!(!readable(now()));
    }

    #[test]
    fn what_cannot_be_watched_or_caught_is_refused() {
        let watch = Watch::new().unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let refused = watch.add(&file, 1).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        for signal in [libc::SIGKILL, libc::SIGSEGV, 0, 1000] {
            let refused = UnixSignal::catch(signal).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{signal}");
        }
    }
}
