//! Polls again and again with times that are mostly called off before they come.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::{Ready, poll};
use crate::time;
use crate::watch::Timer;

/// Times further off than a tick of the scheduler do not come first on a busy processor, and cost
/// nothing: the tick of 250 Hz.
const NEAR: Duration = Duration::from_millis(4);

/// Polls for somebody who waits a short time, is called before it is over, and waits anew.
///
/// A timeout that comes before the processor's next tick is written to its timer, and written again
/// when the call ends: two writes, which a virtual machine has to trap (8 to 12 us each, measured on a
/// virtual EPYC). So near times go into one timer that stays set when a call ends before it: it is
/// written once in the shortest time that is waited for, however many calls there are.
///
/// # Examples
///
/// ```
/// use portolan_sys::process::{EventFd, Poller};
/// use std::os::fd::AsFd;
/// use std::time::{Duration, Instant};
/// let mut poller = Poller::new()?;
/// let event = EventFd::new()?;
/// let soon = || Some(Instant::now() + Duration::from_millis(1));
/// assert!(!poller.poll(&[event.as_fd()], soon())?[0].any());
/// event.notify()?;
/// assert!(poller.poll(&[event.as_fd()], soon())?[0].readable);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Poller {
    timer: Timer,
    /// When it runs out; `None`: it has.
    set: Option<Instant>,
}

impl Poller {
    /// One that has waited for nothing yet.
    ///
    /// # Errors
    ///
    /// `EMFILE`.
    pub fn new() -> io::Result<Self> {
        let set = Some(Instant::now());
        let timer = Timer::start(Duration::ZERO, None)?;
        Ok(Self { timer, set })
    }

    /// As [`poll`]. It may come back before `deadline` with nothing ready: when a time has come that an
    /// earlier call waited for.
    ///
    /// # Errors
    ///
    /// As [`poll`].
    pub fn poll(
        &mut self,
        fds: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> io::Result<Vec<Ready>> {
        let left = deadline.map(|at| (at, time::remaining(at)));
        let Some((at, left)) = left.filter(|(_, left)| !left.is_zero() && *left < NEAR) else {
            return poll(fds, deadline);
        };
        if self.set.is_none_or(|set| set > at) {
            self.timer.set(left, None)?;
            self.set = Some(at);
        }
        let all: Vec<_> = fds.iter().copied().chain([self.timer.as_fd()]).collect();
        let mut ready = poll(&all, None)?;
        if ready.pop().is_some_and(Ready::any) {
            self.timer.ran_out()?;
            self.set = None;
        }
        Ok(ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::EventFd;

    const LONG: Duration = Duration::from_millis(3);

    fn after(time: Duration) -> Option<Instant> {
        Some(Instant::now() + time)
    }

    /// The time that comes first ends the call, whatever was waited for before.
    #[test]
    fn a_near_time_ends_the_call_and_a_time_before_it_too() {
        let mut poller = Poller::new().unwrap();
        let event = EventFd::new().unwrap();
        let fds = [event.as_fd()];
        for (set, then) in [(LONG, LONG / 8), (LONG / 8, LONG), (LONG, LONG)] {
            event.notify().unwrap();
            assert!(poller.poll(&fds, after(set)).unwrap()[0].any());
            event.drain().unwrap();
            let end = after(then);
            while end.is_some_and(|end| Instant::now() < end) {
                assert!(!poller.poll(&fds, end).unwrap()[0].any());
            }
        }
    }

    /// What is called off is not written to the timer again.
    #[test]
    fn a_timer_that_is_set_for_an_earlier_time_stays() {
        let mut poller = Poller::new().unwrap();
        let event = EventFd::new().unwrap();
        event.notify().unwrap();
        poller.poll(&[event.as_fd()], after(LONG / 8)).unwrap();
        let set = poller.set;
        poller.poll(&[event.as_fd()], after(LONG)).unwrap();
        // It may have run out in either call.
        assert!(set.is_none() || poller.set.is_none() || poller.set == set);
    }

    /// A far time, one that has passed and none are plain polls.
    #[test]
    fn other_times_need_no_timer() {
        let mut poller = Poller::new().unwrap();
        let event = EventFd::new().unwrap();
        let set = poller.set;
        assert!(
            !poller
                .poll(&[event.as_fd()], after(Duration::ZERO))
                .unwrap()[0]
                .any()
        );
        event.notify().unwrap();
        for deadline in [None, after(Duration::from_secs(3600))] {
            assert!(poller.poll(&[event.as_fd()], deadline).unwrap()[0].any());
        }
        assert_eq!(poller.set, set);
    }
}
