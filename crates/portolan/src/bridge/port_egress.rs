//! A port's egress takes messages out of a proxy port and writes them to the other domain.
//!
//! ```text
//! loose --nothing there--> armed --poll: the proxy's bell, the socket--> loose
//!   |
//!   +--a message--> written into the byte ring, waiting for room there
//!   +--a request--> the same, and then its answer is read from the byte ring back
//! ```
//!
//! Requests go over one at a time: the next one waits for the answer to the one before.
//!
//! It ends with the last right on the proxy port, once everything sent before has gone over,
//! or with the other side; then the proxy port is closed, and a dead name (G5).

use super::codec;
use super::error::{ConnectToError, Over, ViolationKind};
use super::side::{BUSY, Side, bytes_of, crossing};
use crate::port::{is_unused, may_leave};
use crate::space::drain::Drain;
use crate::space::public::Shown;
use crate::space::{Member, Part};
use crate::wait::{Patience, waiting_beside};
use crate::{
    Access, Deadline, EventKind, NoDescriptor, Notice, ReceiveError, ReceiveRight, Request,
};
use portolan_abi::port::{Leaving, PortName};
use portolan_abi::slot::Kind;
use portolan_sys::bell::FutexFd;
use portolan_sys::process::spawn_quiet;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Enough for loops and logs.
const STACK: usize = 256 << 10;

/// The state of the egress thread.
pub(super) struct PortEgress {
    port: ReceiveRight,
    side: Side,
    bell: FutexFd,
    patience: Patience,
    /// The limits of a message there, and of an answer here.
    there: Leaving,
    back: u64,
    /// Requests so far.
    asked: u64,
    scratch: Vec<u8>,
    /// What observers see.
    shown: Shown,
    // The last field: it outlives the handles in the others.
    _drain: Arc<Drain>,
}

/// The port egresses of a membership, and the ports that they receive at.
#[derive(Default)]
pub(crate) struct PortEgresses(Mutex<Vec<(PortName, Weak<Drain>)>>);

impl PortEgresses {
    fn lock(&self) -> MutexGuard<'_, Vec<(PortName, Weak<Drain>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn launched(&self, port: PortName) -> Arc<Drain> {
        let drain = Arc::default();
        let mut all = self.lock();
        all.retain(|(_, egress)| egress.strong_count() > 0);
        all.push((port, Arc::downgrade(&drain)));
        drain
    }
}

impl Part for PortEgresses {
    /// Begins to drain each egress whose port has no sender any more; it carries over all
    /// messages that were sent before.
    fn leaving(&self, member: &Member) {
        for (port, egress) in &*self.lock() {
            if let Some(egress) = egress.upgrade()
                && is_unused(member, *port)
            {
                egress.begin(&member.drains);
            }
        }
    }
}

impl PortEgress {
    /// Begins to carry the messages sent to `port`, on which the caller has a right, as far as they
    /// may go `there`, and answers that take `back` bytes at the most.
    pub(super) fn launch(
        port: ReceiveRight,
        side: Side,
        there: Leaving,
        back: u64,
        name: &str,
        shown: Shown,
    ) -> Result<(), ConnectToError> {
        port.request_no_more_senders();
        let at = port.at();
        let drain = at.member.part::<PortEgresses>().launched(at.port);
        let egress = Self {
            port,
            side,
            bell: FutexFd::new().map_err(NoDescriptor::from)?,
            patience: Patience::default(),
            there,
            back,
            asked: 0,
            scratch: Vec::new(),
            shown,
            _drain: drain,
        };
        let name = name.to_owned();
        spawn_quiet("portolan-egress", STACK, move || egress.run(&name))?;
        Ok(())
    }

    fn run(mut self, name: &str) {
        let domain = self.port.at().member.domain.clone();
        match self.carry_all() {
            Over::Stopped => tracing::debug!(domain, name, "all that was sent has gone over"),
            Over::Gone => tracing::info!(domain, name, "the other side is gone"),
            Over::Violation(error) => {
                tracing::warn!(domain, name, %error, "the other side breaks the rules");
            }
            Over::Io(error) => tracing::warn!(domain, name, %error, "cannot carry on"),
        }
    }

    /// Carries messages until the connection ends; returns the reason.
    fn carry_all(&mut self) -> Over {
        loop {
            let carried = match self.next() {
                Ok(Some(next)) => self.carry(next),
                Ok(None) => self.wait(),
                Err(over) => Err(over),
            };
            if let Err(over) = carried {
                return over;
            }
        }
    }

    /// The next message or request, if there is one.
    fn next(&mut self) -> Result<Option<Request>, Over> {
        match self.port.get_request(Access::Later, Deadline::NOW) {
            // Comes when nothing else is there.
            Ok(next) if next.message.notice() == Some(Notice::NoMoreSenders) => Err(Over::Stopped),
            Ok(next) if next.message.notice().is_some() => Ok(None),
            Ok(next) => Ok(Some(next)),
            Err(ReceiveError::TimedOut) => Ok(None),
            Err(_) => Err(Over::Stopped),
        }
    }

    /// Takes a message over, or a request, whose answer it waits for.
    fn carry(&mut self, next: Request) -> Result<(), Over> {
        let member = &self.port.at().member;
        let port = self.port.at().port.index;
        let Self {
            side,
            scratch,
            shown,
            ..
        } = self;
        // It was looked at when it was sent, but a member may send past its library.
        if may_leave(&next.message, self.there).is_err() {
            return Ok(());
        }
        if !next.wants_reply() {
            crossing(member, EventKind::Depart, port, || {
                codec::write(side, Kind::Message, 0, &next.message, scratch)?;
                Ok(((), bytes_of(&next.message)))
            })?;
            shown.went(bytes_of(&next.message));
            portolan_shm::mark!("bridge.carried");
            return Ok(());
        }
        self.asked += 1;
        crossing(member, EventKind::Depart, port, || {
            codec::write(side, Kind::Request, self.asked, &next.message, scratch)?;
            Ok(((), bytes_of(&next.message)))
        })?;
        shown.went(bytes_of(&next.message));
        portolan_shm::mark!("bridge.requested");
        let (frame, answer) = crossing(member, EventKind::Arrive, port, || {
            let read = codec::read(side, member, self.back, scratch)?;
            let bytes = bytes_of(&read.1);
            Ok((read, bytes))
        })?;
        shown.came(bytes_of(&answer));
        portolan_shm::mark!("bridge.answer_came");
        if frame.tag != self.asked {
            return Err(ViolationKind::FrameHeader.into());
        }
        match frame.kind {
            // Its client may be gone by now.
            Kind::Reply => drop(next.reply(answer)),
            // And so is our client's.
            Kind::Dropped => drop(next),
            Kind::Message | Kind::Request | Kind::ServerDead => {
                return Err(ViolationKind::FrameHeader.into());
            }
        }
        Ok(())
    }

    /// Waits until something is sent, or the other side ends.
    fn wait(&mut self) -> Result<(), Over> {
        let mut looking = self.patience.begin(waiting_beside(BUSY));
        while looking.again() {
            if self.port.may_have() {
                self.patience.paid(&looking);
                return Ok(());
            }
        }
        let begun = looking.begun();
        let slept = self.sleep();
        self.port.disarm();
        self.patience.slept(&looking, begun.elapsed());
        slept?;
        if self.side.is_gone() {
            return Err(Over::Gone);
        }
        Ok(())
    }

    fn sleep(&mut self) -> Result<(), Over> {
        let doorbell = &self.port.at().queue().port.sleep.doorbell;
        // SeqCst: before the marks are set, as in `ReceiveRight::sleep`.
        let seen = doorbell.load(Ordering::SeqCst);
        self.bell.arm(doorbell, seen)?;
        if self.port.arm() {
            self.side.poll(&[self.bell.as_fd()], None)?;
        }
        self.bell.drain()?;
        Ok(())
    }
}
