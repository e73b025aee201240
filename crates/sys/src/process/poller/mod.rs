//! Sleeps on descriptors and futex words at once, again and again, by one system call each time.
//!
//! ```text
//!          poll names it                     it fires
//!   loose ---------------> in the kernel ---------------> said by poll, and loose
//!                               |
//!                               +--- a call does not name it any more ---> called off
//! ```
//!
//! What a call names stays in the kernel until it fires, over any number of calls. So the next call
//! puts there what has fired, and sleeps, by one `io_uring_enter`; a caller that expects something soon may
//! have it look first ([`Poller::look`], K1 and K2 in `looks`), by one call more. Where io_uring is missing or
//! forbidden, each word has a helper thread ([`FutexFd`](crate::bell::FutexFd)), and the sleep is a
//! `ppoll`.
//!
//! # Invariants
//!
//! - **S1** When a call sleeps, everything that it names is in the kernel.
//! - **S2** What has fired is said by the call that finds it, and is put into the kernel again by the
//!   next one, which fires at once if there is something still. So what is ready is said by every
//!   second call at least, however busy the rest is.
//! - **S3** A word that is in the kernel is not compared again. A waker that changes it and finds no
//!   sleep announced wakes nobody; so the caller announces its sleep, looks at what the word tells of,
//!   and only then calls.
//! - **S4** The timer of near times is looked at behind all else, when nothing is taken out of the kernel any
//!   more before the sleep: one that has run out since an earlier call ends no sleep.

mod bells;
mod looks;
mod ring;

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use self::bells::Bells;
use self::ring::Ring;
use crate::{fork, time};

/// Times further off than a tick of the scheduler do not come first on a busy processor, and cost
/// nothing: the tick of 250 Hz.
const NEAR: Duration = Duration::from_millis(4);

/// What a [`Poller`] sleeps on.
#[derive(Clone, Copy, Debug)]
pub enum On<'a> {
    /// A descriptor that becomes readable, is hung up, or failed.
    Descriptor(BorrowedFd<'a>),
    /// A futex word that has another value than this one, or whose sleepers are woken.
    Word(&'a AtomicU32, u32),
    /// What an earlier call has named by this key, if it has not fired since. It is not put into the
    /// kernel again: for a caller that does not sleep now.
    Kept,
}

/// Sleeps for somebody who waits a short time, is called before it is over, and waits anew.
///
/// A timeout that comes before the processor's next tick is written to its timer, and written again
/// when the call ends: two writes, which a virtual machine has to trap (8 to 12 us each, measured on a
/// virtual EPYC). So near times go into one timer that stays set when a call ends before it: it is
/// written once in the shortest time that is waited for, however many calls there are.
///
/// # Examples
///
/// ```
/// use portolan_sys::futex;
/// use portolan_sys::process::{EventFd, On, Poller};
/// use std::os::fd::AsFd;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::time::{Duration, Instant};
/// let (event, word) = (EventFd::new()?, AtomicU32::new(0));
/// let on = [(7, On::Descriptor(event.as_fd())), (8, On::Word(&word, 0))];
/// let mut poller = Poller::new()?;
/// assert_eq!(poller.poll(&on, Some(Instant::now() + Duration::from_millis(1)))?, []);
/// word.store(1, Ordering::Release);
/// futex::wake(&word, u32::MAX);
/// assert_eq!(poller.poll(&on, None)?, [8]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Poller {
    /// Dropped only in the process that made it: a forked child has neither the memory of the ring nor
    /// the threads.
    way: ManuallyDrop<Way>,
    generation: u64,
}

/// What ends a sleep if nothing fires.
#[derive(Clone, Copy, Debug)]
enum By {
    /// The timer of near times, which stays set if the call ends before; how far away that is.
    Timer(Instant, Duration),
    /// The time of this call alone.
    Clock(Instant),
}

#[derive(Debug)]
enum Way {
    /// Boxed, because it is several times as large.
    Ring(Box<Ring>),
    Bells(Bells),
}

impl Poller {
    /// One that has waited for nothing yet, of the best kind there is.
    ///
    /// # Errors
    ///
    /// `EMFILE`.
    pub fn new() -> io::Result<Self> {
        match Ring::new() {
            Ok(ring) => Ok(Self::of(Way::Ring(Box::new(ring)))),
            Err(_) => Self::with_threads(),
        }
    }

    /// One that uses no io_uring.
    ///
    /// # Errors
    ///
    /// `EMFILE`.
    pub fn with_threads() -> io::Result<Self> {
        Ok(Self::of(Way::Bells(Bells::new()?)))
    }

    fn of(way: Way) -> Self {
        Self {
            way: ManuallyDrop::new(way),
            generation: fork::generation(),
        }
    }

    /// Sleeps until something fires, or until `deadline`; the keys of what has fired. It may come back
    /// before with none: when a time has come that an earlier call waited for, or for a signal.
    ///
    /// A key stands for one thing as long as that lives, and for no other one in the next call. A
    /// descriptor that is closed is open for the other side until the next call, which does not name
    /// it.
    ///
    /// # Errors
    ///
    /// The kernel's. `Unsupported` in a forked child.
    pub fn poll(
        &mut self,
        on: &[(u64, On<'_>)],
        deadline: Option<Instant>,
    ) -> io::Result<Vec<u64>> {
        self.poll_as(on, deadline, false)
    }

    /// The same, for a caller that expects something soon for which no thread of this processor has to
    /// run first: before it sleeps it looks a while, as long as that pays. Where io_uring is missing, it
    /// sleeps at once.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    pub fn look(
        &mut self,
        on: &[(u64, On<'_>)],
        deadline: Option<Instant>,
    ) -> io::Result<Vec<u64>> {
        self.poll_as(on, deadline, true)
    }

    fn poll_as(
        &mut self,
        on: &[(u64, On<'_>)],
        deadline: Option<Instant>,
        looks: bool,
    ) -> io::Result<Vec<u64>> {
        if self.generation != fork::generation() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let by = deadline.map(|at| match time::remaining(at) {
            left if left.is_zero() || left >= NEAR => By::Clock(at),
            left => By::Timer(at, left),
        });
        match &mut *self.way {
            Way::Ring(ring) => ring.poll(on, by, looks),
            Way::Bells(bells) => bells.poll(on, by),
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            // SAFETY:
            // - Dropped here and nowhere else, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.way) };
        }
    }
}

/// Whether a key is named: what is not is forgotten by the next call.
fn is_named(on: &[(u64, On<'_>)], key: u64) -> bool {
    on.iter().any(|(named, _)| *named == key)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::futex;
    use crate::process::EventFd;

    const LONG: Duration = Duration::from_millis(3);
    const FAR: Duration = Duration::from_secs(3600);
    const MINUTE: Duration = Duration::from_secs(60);

    fn after(time: Duration) -> Option<Instant> {
        Some(Instant::now() + time)
    }

    /// One of each kind that there is here.
    fn each(test: impl Fn(Poller)) {
        match Ring::new() {
            Ok(ring) => test(Poller::of(Way::Ring(Box::new(ring)))),
            Err(error) => eprintln!("no io_uring: {error}"),
        }
        test(Poller::with_threads().unwrap());
    }

    fn change(word: &AtomicU32) {
        word.fetch_add(1, Ordering::SeqCst);
        futex::wake(word, u32::MAX);
    }

    /// Polls until something has fired: it may come back before.
    fn fired(poller: &mut Poller, on: &[(u64, On<'_>)]) -> Vec<u64> {
        let end = Instant::now() + MINUTE;
        loop {
            let mut fired = poller.poll(on, Some(end)).unwrap();
            fired.sort_unstable();
            if !fired.is_empty() || Instant::now() >= end {
                return fired;
            }
        }
    }

    #[test]
    fn descriptors_and_words_end_one_sleep_and_are_named() {
        each(|mut poller| {
            let (event, other) = (EventFd::new().unwrap(), EventFd::new().unwrap());
            let words = [const { AtomicU32::new(0) }; 2];
            let on = |seen: [u32; 2]| {
                [
                    (1, On::Descriptor(event.as_fd())),
                    (2, On::Word(&words[0], seen[0])),
                    (3, On::Descriptor(other.as_fd())),
                    (4, On::Word(&words[1], seen[1])),
                ]
            };
            assert_eq!(poller.poll(&on([0, 0]), after(LONG)).unwrap(), []);
            change(&words[1]);
            assert_eq!(fired(&mut poller, &on([0, 0])), [4]);
            event.notify().unwrap();
            assert_eq!(fired(&mut poller, &on([0, 1])), [1]);
            event.drain().unwrap();
            // Both kinds are slept on again.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(LONG);
                    change(&words[1]);
                });
                assert_eq!(fired(&mut poller, &on([0, 1])), [4]);
            });
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(LONG);
                    event.notify().unwrap();
                });
                assert_eq!(fired(&mut poller, &on([0, 2])), [1]);
            });
        });
    }

    /// S2.
    #[test]
    fn what_is_ready_still_is_said_again() {
        each(|mut poller| {
            let (event, word) = (EventFd::new().unwrap(), AtomicU32::new(0));
            let on = [
                (1, On::Descriptor(event.as_fd())),
                (2, On::Word(&word, u32::MAX)),
            ];
            event.notify().unwrap();
            let (mut events, mut words) = (0, 0);
            let end = Instant::now() + MINUTE;
            while (events < 10 || words < 10) && Instant::now() < end {
                let fired = fired(&mut poller, &on);
                events += u32::from(fired.contains(&1));
                words += u32::from(fired.contains(&2));
            }
            assert!(events >= 10 && words >= 10, "{events}, {words}");
        });
    }

    /// S3: a word that is changed between two calls and not woken is not in the kernel with its old
    /// value in vain.
    #[test]
    fn a_word_stays_in_the_kernel_over_calls() {
        each(|mut poller| {
            let (event, word) = (EventFd::new().unwrap(), AtomicU32::new(0));
            let descriptor = (1, On::Descriptor(event.as_fd()));
            for seen in 0..4 {
                event.notify().unwrap();
                let on = [descriptor, (2, On::Word(&word, seen))];
                // A helper thread may find that the word has changed.
                assert!(fired(&mut poller, &on).contains(&1));
                event.drain().unwrap();
                word.fetch_add(1, Ordering::SeqCst);
            }
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(LONG);
                    change(&word);
                });
                assert_eq!(
                    fired(&mut poller, &[descriptor, (2, On::Word(&word, 4))]),
                    [2]
                );
            });
        });
    }

    #[test]
    fn what_is_kept_may_fire_and_is_not_slept_on_again() {
        each(|mut poller| {
            let word = AtomicU32::new(0);
            let now = Some(Instant::now());
            assert_eq!(poller.poll(&[(1, On::Word(&word, 0))], now).unwrap(), []);
            assert_eq!(
                poller.poll(&[(1, On::Kept), (2, On::Kept)], now).unwrap(),
                []
            );
            change(&word);
            assert_eq!(fired(&mut poller, &[(1, On::Kept)]), [1]);
            assert_eq!(poller.poll(&[(1, On::Kept)], after(LONG)).unwrap(), []);
            assert_eq!(futex::wake(&word, u32::MAX), 0);
        });
    }

    /// What is in the kernel keeps its file open.
    #[test]
    fn what_is_not_named_any_more_is_let_go_of() {
        each(|mut poller| {
            let (event, word) = (EventFd::new().unwrap(), AtomicU32::new(0));
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let now = Some(Instant::now());
            let kept = (1, On::Descriptor(event.as_fd()));
            let all = [
                kept,
                (2, On::Descriptor(ours.as_fd())),
                (3, On::Word(&word, 0)),
            ];
            assert_eq!(poller.poll(&all, now).unwrap(), []);
            drop(ours);
            assert_eq!(poller.poll(&[kept], now).unwrap(), []);
            theirs.set_read_timeout(Some(MINUTE)).unwrap();
            assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
            // It takes no wake that another sleeper is to have.
            let end = Instant::now() + MINUTE;
            while futex::wake(&word, 1) > 0 && Instant::now() < end {}
            assert_eq!(futex::wake(&word, 1), 0);
            event.notify().unwrap();
            assert_eq!(fired(&mut poller, &[kept]), [1]);
        });
    }

    /// The time that comes first ends the call, whatever was waited for before.
    #[test]
    fn a_near_time_ends_the_call_and_a_time_before_it_too() {
        each(|mut poller| {
            let event = EventFd::new().unwrap();
            let on = [(1, On::Descriptor(event.as_fd()))];
            for (set, then) in [(LONG, LONG / 8), (LONG / 8, LONG), (LONG, LONG)] {
                event.notify().unwrap();
                poller.poll(&on, after(set)).unwrap();
                event.drain().unwrap();
                let end = after(then);
                while end.is_some_and(|end| Instant::now() < end) {
                    poller.poll(&on, end).unwrap();
                }
            }
        });
    }

    /// S4: what was set for an earlier call, and has run out by now, ends no sleep any more.
    #[test]
    fn a_near_time_that_has_come_before_a_call_is_not_what_ends_it() {
        each(|mut poller| {
            let event = &EventFd::new().unwrap();
            let on = [(1, On::Descriptor(event.as_fd()))];
            event.notify().unwrap();
            while poller.poll(&on, after(LONG)).unwrap() != [1] {}
            event.drain().unwrap();
            std::thread::sleep(2 * LONG);
            let (over, is_over) = std::sync::mpsc::channel();
            let fired = std::thread::scope(|scope| {
                scope.spawn(move || {
                    // It would sleep for ever.
                    if is_over.recv_timeout(MINUTE).is_err() {
                        event.notify().unwrap();
                    }
                });
                let fired = poller.poll(&on, after(LONG)).unwrap();
                let _ = over.send(());
                fired
            });
            assert_eq!(fired, []);
        });
    }

    /// A far time, one that has passed and none.
    #[test]
    fn other_times_end_the_call_too() {
        each(|mut poller| {
            let event = EventFd::new().unwrap();
            let on = [(1, On::Descriptor(event.as_fd()))];
            assert_eq!(poller.poll(&on, after(Duration::ZERO)).unwrap(), []);
            let begun = Instant::now();
            while begun.elapsed() < 2 * NEAR {
                poller.poll(&on, Some(begun + 2 * NEAR)).unwrap();
            }
            event.notify().unwrap();
            for deadline in [None, after(FAR)] {
                while poller.poll(&on, deadline).unwrap() != [1] {}
            }
        });
    }
}
