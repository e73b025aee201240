//! A delivery says how a signal reaches the thread of a handler.
//!
//! Hand-written `unsafe` is here for one reason: what an upcall runs interrupts its thread
//! anywhere, so the caller that asks for one makes a promise that no type can check.

#![allow(unsafe_code)]

use crate::wait::Waiting;
use portolan_sys::monitor::Monitor;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// How a handler's thread is told, chosen for each handler ([`Listener::on_by`]).
///
/// | | the thread | costs |
/// |---|---|---|
/// | [`POLLED`](Self::POLLED) | watches its FIFO | a processor; one cache line a signal |
/// | [`MONITORED`](Self::MONITORED) | stops until its FIFO's line is written | the same, but the core rests |
/// | [`DOORBELL`](Self::DOORBELL) | sleeps in the kernel, or in a [`WaitSet`](crate::WaitSet) and whatever waits for that | a wake |
/// | [`upcall`](Self::upcall) | does something else, and is interrupted | a Unix signal |
///
/// With [`Listener::on`] the thread waits as its listener was told to
/// ([`ListenerOptions::waiting`](crate::ListenerOptions::waiting)). A thread has one FIFO,
/// so it waits in the way that serves all of its handlers: it polls if one of them is to be
/// polled for, and sleeps at once only if all of them may wait for the doorbell.
///
/// Senders do the same for all of them but the upcall; none of them has to know.
///
/// [`Listener::on`]: crate::Listener::on
/// [`Listener::on_by`]: crate::Listener::on_by
///
/// ```
/// use portolan::{Delivery, Domain, ListenerOptions};
/// let domain = Domain::private()?;
/// let segment = domain.make_segment(None, 4096)?;
/// let at = segment.address();
/// let mut listener = domain.listen(ListenerOptions::default())?;
/// listener.on_by(Delivery::DOORBELL, at..at + 64, |address| println!("{address:x}"))?;
/// domain.signal(at)?;
/// assert_eq!(listener.poll(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery(pub(super) How);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// As the listener waits.
    Listened,
    Polled,
    Monitored,
    Doorbell,
    Upcall,
}

impl How {
    pub(super) const ALL: [Self; 5] = [
        Self::Listened,
        Self::Polled,
        Self::Monitored,
        Self::Doorbell,
        Self::Upcall,
    ];

    /// As the handler's entry says it, for people.
    pub(super) fn code(self) -> u32 {
        match self {
            Self::Listened => 0,
            Self::Polled => 1,
            Self::Monitored => 2,
            Self::Doorbell => 3,
            Self::Upcall => 4,
        }
    }
}

impl Delivery {
    /// The thread looks again and again, and never sleeps.
    pub const POLLED: Self = Self(How::Polled);
    /// The processor watches the line, with `umwait` or `mwaitx`. One that has neither
    /// ([`monitor_instruction`](Self::monitor_instruction)) polls instead.
    pub const MONITORED: Self = Self(How::Monitored);
    /// The thread sleeps, at once, and is woken.
    pub const DOORBELL: Self = Self(How::Doorbell);

    /// The handler interrupts the thread that adds it, whatever that does, by a real-time
    /// Unix signal which carries the address.
    ///
    /// Signals that come while it runs are queued, as for any handler, and handled before
    /// the thread goes on; it is not interrupted by itself. The sender signals the thread
    /// straight away if it has the same user and the kernel can name threads (Linux 6.9);
    /// else a thread of the receiver's, which sleeps otherwise, passes the signal on.
    ///
    /// # Safety
    ///
    /// The handler that it is used with does only what is async-signal-safe: it may use
    /// atomics and [`Domain::signal`](crate::Domain::signal), but neither allocate nor free,
    /// take a lock, nor touch thread-locals with destructors, and it must not panic (which
    /// ends the process). It must not wait for the thread that it interrupts. What it
    /// captures is dropped outside of it.
    pub const unsafe fn upcall() -> Self {
        Self(How::Upcall)
    }

    /// What [`MONITORED`](Self::MONITORED) waits with on this processor: `umwait`, `mwaitx`,
    /// or nothing, in which case it polls.
    ///
    /// ```
    /// match portolan::Delivery::monitor_instruction() {
    ///     Some(name) => println!("waits with {name}"),
    ///     None => println!("polls instead"),
    /// }
    /// ```
    pub fn monitor_instruction() -> Option<&'static str> {
        Some(Monitor::probe()?.kind().name())
    }
}

/// What the thread has been interrupted for, as [`Listener::note`](crate::Listener::note)
/// notes it.
#[derive(Debug, Default)]
pub struct Note {
    address: AtomicUsize,
    count: AtomicU64,
}

impl Note {
    /// How many signals came.
    pub fn count(&self) -> u64 {
        // Acquire: with the count comes the address, and what was written before the signal.
        self.count.load(Ordering::Acquire)
    }

    /// The address that came last; 0 before the first.
    pub fn address(&self) -> usize {
        self.address.load(Ordering::Relaxed)
    }

    /// The delivery and the handler that note.
    pub(super) fn taker(self: &Arc<Self>) -> (Delivery, impl FnMut(usize) + Send + 'static) {
        let note = Arc::clone(self);
        let take = move |address| {
            note.address.store(address, Ordering::Relaxed);
            note.count.fetch_add(1, Ordering::Release);
        };
        // SAFETY:
        // - The handler writes to two atomics.
        (unsafe { Delivery::upcall() }, take)
    }
}

/// How a thread waits for all of its handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Poll,
    Monitor(Monitor),
    /// Spins for a time, then sleeps.
    Adaptive,
    Sleep,
}

/// The way that serves handlers of all these deliveries.
pub(super) fn rest_for(
    deliveries: impl Iterator<Item = How>,
    waiting: Waiting,
    monitor: Option<Monitor>,
) -> Rest {
    let listener = match waiting {
        Waiting::Poll => Rest::Poll,
        Waiting::Adaptive => Rest::Adaptive,
        Waiting::Sleep => Rest::Sleep,
    };
    let rest_of = |how| match how {
        How::Polled => Rest::Poll,
        How::Monitored => monitor.map_or(Rest::Poll, Rest::Monitor),
        How::Listened => listener,
        // Upcalls are not waited for.
        How::Doorbell | How::Upcall => Rest::Sleep,
    };
    let eager = |rest: &Rest| match rest {
        Rest::Poll => 3,
        Rest::Monitor(_) => 2,
        Rest::Adaptive => 1,
        Rest::Sleep => 0,
    };
    deliveries
        .map(rest_of)
        .max_by_key(eager)
        .unwrap_or(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_waits_for_the_most_eager_of_its_handlers() {
        use How::{Doorbell, Listened, Monitored, Polled};
        let rest = |hows: &[How], waiting| rest_for(hows.iter().copied(), waiting, None);
        let cases: [(&[How], Waiting, Rest); 8] = [
            (&[], Waiting::Poll, Rest::Poll),
            (&[], Waiting::Sleep, Rest::Sleep),
            (&[Listened], Waiting::Adaptive, Rest::Adaptive),
            (&[Listened, Doorbell], Waiting::Sleep, Rest::Sleep),
            (&[Listened, Doorbell], Waiting::Adaptive, Rest::Adaptive),
            (&[Doorbell], Waiting::Poll, Rest::Sleep),
            (&[Doorbell, Polled], Waiting::Sleep, Rest::Poll),
            // Without the instructions it polls.
            (&[Doorbell, Monitored], Waiting::Sleep, Rest::Poll),
        ];
        for (hows, waiting, expected) in cases {
            assert_eq!(rest(hows, waiting), expected, "{hows:?}, {waiting:?}");
        }
    }
}
