//! Shares one port among several receiving threads of its space.

use super::receive::Origin;
use super::{Access, ReceiveError, ReceiveRight, Request, SendRight};
use crate::space::counters;
use crate::space::record::About;
use crate::{Deadline, EventKind, Message};
use portolan_abi::thread::{At, Wait};
use portolan_sys::futex;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A receive right that several threads may use at once; each message goes to exactly one.
///
/// Messages are handed out in order. A thread that dies while receiving loses at most
/// the message that it was handed.
///
/// ```
/// use portolan::{Access, Deadline, Domain, Message, PortOptions, WhenFull};
/// let domain = Domain::private()?;
/// let port = domain.bind(PortOptions::unnamed())?;
/// let right = port.make_send();
/// let shared = port.share();
/// let threads: Vec<_> = (0..2)
///     .map(|_| {
///         let shared = shared.clone();
///         std::thread::spawn(move || shared.receive(Access::Later, Deadline::NEVER).unwrap().header().len())
///     })
///     .collect();
/// right.send(Message::new(b"one")?, WhenFull::Fail)?;
/// right.send(Message::new(b"other")?, WhenFull::Fail)?;
/// let lengths: usize = threads.into_iter().map(|t| t.join().unwrap()).sum();
/// assert_eq!(lengths, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SharedReceiver(Arc<Mutex<Inner>>);

struct Inner {
    right: ReceiveRight,
    sleepers: usize,
}

impl ReceiveRight {
    /// Makes a handle for several threads of it.
    pub fn share(self) -> SharedReceiver {
        SharedReceiver(Arc::new(Mutex::new(Inner {
            right: self,
            sleepers: 0,
        })))
    }
}

impl SharedReceiver {
    /// As [`ReceiveRight::receive`], from any thread.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`].
    pub fn receive(
        &self,
        access: Access,
        deadline: impl Into<Deadline>,
    ) -> Result<Message, ReceiveError> {
        let mut message = Message::default();
        let origin = self.next(&mut message, deadline.into())?;
        self.lock().right.finish(origin, &mut message, access)?;
        Ok(message)
    }

    /// As [`ReceiveRight::get_request`], from any thread.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`].
    pub fn get_request(
        &self,
        access: Access,
        deadline: impl Into<Deadline>,
    ) -> Result<Request, ReceiveError> {
        let mut message = Message::default();
        let origin = self.next(&mut message, deadline.into())?;
        let reply = self.lock().right.finish_request(origin, &message, access);
        Ok(Request { message, reply })
    }

    /// A new send right on the port.
    pub fn make_send(&self) -> SendRight {
        self.lock().right.make_send()
    }

    /// The receive right again, if this is the last handle.
    pub fn unshare(self) -> Result<ReceiveRight, Self> {
        let inner = Arc::try_unwrap(self.0).map_err(Self)?;
        Ok(inner
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .right)
    }

    // A thread that panicked in here left the queue as it was, or took one message.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self, message: &mut Message, deadline: Deadline) -> Result<Origin, ReceiveError> {
        loop {
            let mut inner = self.lock();
            match inner.right.next(message, Deadline::NOW) {
                Err(ReceiveError::TimedOut) if !deadline.has_passed() => {}
                other => {
                    inner.rearm();
                    return other;
                }
            }
            inner.right.hush();
            // Sleep marks are set under the lock, for all sleeping threads; a thread that takes a
            // message while others sleep sets them again behind it.
            let bell = inner
                .right
                .at()
                .queue()
                .port
                .sleep
                .doorbell
                .load(Ordering::SeqCst);
            inner.right.disarm();
            if !inner.right.arm() {
                inner.right.disarm();
                continue;
            }
            inner.sleepers += 1;
            let at = inner.right.at().clone();
            drop(inner);
            let (port, about) = (At::Port(at.port.index), About::port(at.port.index));
            counters::waits(&at.member, Wait::Sleeping(port));
            let _ = at.member.during(EventKind::Sleep, about, || {
                futex::wait(&at.queue().port.sleep.doorbell, bell, deadline.instant())
            });
            counters::waits(&at.member, Wait::Nothing);
            let mut inner = self.lock();
            inner.sleepers -= 1;
            if inner.sleepers == 0 {
                inner.right.disarm();
            }
        }
    }
}

impl Inner {
    /// One thread was served; others may sleep, and the marks were in the slot it took.
    fn rearm(&mut self) {
        if self.sleepers == 0 {
            return;
        }
        self.right.disarm();
        if !self.right.arm() {
            let doorbell = &self.right.at().queue().port.sleep.doorbell;
            doorbell.fetch_add(1, Ordering::SeqCst);
            futex::wake(doorbell, 1);
        }
    }
}
