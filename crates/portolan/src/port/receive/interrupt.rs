//! Ends another thread's wait at a port, without a message, for which there may be no room.

use super::{ReceiveError, ReceiveRight};
use crate::Deadline;
use crate::port::Request;
use crate::port::message::Message;
use crate::space::region::Attached;
use portolan_sys::futex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Wakes the receiver at a port of this process, so that it looks whether it must stop.
pub(crate) struct Bell(Attached);

impl Bell {
    /// Wakes the receiver. The caller must have stored `stop` before.
    pub(crate) fn wake(&self) {
        if self.0.member.present().is_ok() {
            let doorbell = &self.0.queue().port.sleep.doorbell;
            // SeqCst: after `stop`, which the receiver reads after it has read the bell.
            doorbell.fetch_add(1, Ordering::SeqCst);
            futex::wake(doorbell, u32::MAX);
        }
    }
}

/// Until when a receiver waits.
#[derive(Clone, Copy)]
pub(super) struct Until<'a> {
    pub(super) deadline: Deadline,
    /// Set by a thread that then [wakes](Bell::wake) the receiver: ends the wait as a deadline does.
    pub(super) stop: Option<&'a AtomicBool>,
}

impl Until<'_> {
    pub(super) fn is_stopped(self) -> bool {
        // SeqCst: see `Bell::wake`.
        self.stop.is_some_and(|stop| stop.load(Ordering::SeqCst))
    }

    pub(super) fn is_over(self) -> bool {
        self.is_stopped() || self.deadline.has_passed()
    }
}

impl ReceiveRight {
    /// The bell that wakes a thread which waits here, so that it looks whether it must stop.
    pub(crate) fn bell_of_port(&self) -> Bell {
        Bell(self.at.clone())
    }

    /// The next request, waiting for it until `stop` is set, and the port's [bell](Bell) woken.
    pub(crate) fn get_request_unless(
        &mut self,
        stop: &AtomicBool,
    ) -> Result<Request, ReceiveError> {
        let mut message = Message::default();
        let until = Until {
            deadline: Deadline::NEVER,
            stop: Some(stop),
        };
        self.at.member.present()?;
        let origin = match self.look(&mut message)? {
            Some(origin) => origin,
            None => self.wait_until(&mut message, until)?,
        };
        Ok(self.request_of(origin, message))
    }
}
