//! A port's egress takes messages out of a proxy port and writes them to the other domain.
//!
//! ```text
//! proxy port --message----------------------> byte ring
//!            --request, noted by its number--> byte ring
//!  client <-------- its answer ------------- byte ring back
//! ```
//!
//! It is a task with two halves: one sends, the other takes answers. So many requests are under way
//! at a time, and their answers come in any order.
//!
//! It ends with the last right on the proxy port, once everything sent before has gone over and is
//! answered, or with the other side; then the proxy port is closed, and a dead name (G5).

use super::carrier::{self, Context, Word, either};
use super::codec;
use super::error::{ConnectToError, Over, ViolationKind};
use super::side::{Side, bytes_of, crossing};
use super::wire::Agreed;
use crate::port::{is_unused, may_leave};
use crate::space::drain::Drain;
use crate::space::public::Shown;
use crate::space::{Member, Part};
use crate::{Access, Deadline, EventKind, Notice, ReceiveError, ReceiveRight, Request};
use portolan_abi::bridge::MAX_REQUESTS;
use portolan_abi::port::{Leaving, PortName};
use portolan_abi::slot::Kind;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// An egress that is to begin.
pub(super) struct PortEgress {
    pub(super) port: ReceiveRight,
    pub(super) wire: Box<dyn Agreed>,
    /// The limits of a message there, and of an answer here.
    pub(super) there: Leaving,
    pub(super) back: u64,
    /// The offer's name.
    pub(super) name: String,
    /// What observers see.
    pub(super) shown: Shown,
}

/// The state of the task.
struct Egress {
    port: RefCell<ReceiveRight>,
    side: Side,
    /// Where the proxy port rings, and whether it is to.
    word: Word,
    armed: Cell<bool>,
    there: Leaving,
    back: u64,
    /// The member and the port, for events.
    member: Arc<Member>,
    at: PortName,
    /// Requests that were not answered yet, by their numbers.
    asked: RefCell<HashMap<u64, Request>>,
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
    /// Begins to carry the messages sent to the port, on which the caller has a right.
    pub(super) fn launch(self) -> Result<(), ConnectToError> {
        self.port.request_no_more_senders();
        let member = Arc::clone(&self.port.at().member);
        let drain = member.part::<PortEgresses>().launched(self.port.at().port);
        carrier::launch(&member, move |context| self.run(context, drain))?;
        Ok(())
    }

    async fn run(self, context: Rc<Context>, drain: Arc<Drain>) {
        let member = Arc::clone(&self.port.at().member);
        let (domain, name) = (member.domain.clone(), self.name);
        let at = self.port.at().port;
        let over = match self.wire.of_task(&context) {
            Ok(wire) => {
                let egress = Egress {
                    port: RefCell::new(self.port),
                    side: Side::new(wire, &context).sealing(self.there.sealed),
                    word: context.word(),
                    armed: Cell::new(false),
                    there: self.there,
                    back: self.back,
                    member,
                    at,
                    asked: RefCell::default(),
                    shown: self.shown,
                    _drain: drain,
                };
                either(egress.send_all(), egress.take_answers()).await
            }
            Err(error) => {
                drop((self.port, self.shown, member));
                drop(drain);
                Over::Io(error)
            }
        };
        match over {
            Over::Stopped => tracing::debug!(domain, name, "all that was sent has gone over"),
            Over::Gone => tracing::info!(domain, name, "the other side is gone"),
            Over::Violation(error) => {
                tracing::warn!(domain, name, %error, "the other side breaks the rules");
            }
            Over::Io(error) => tracing::warn!(domain, name, %error, "cannot carry on"),
        }
    }
}

impl Egress {
    /// Carries what is sent until no process can send any more; returns the reason.
    async fn send_all(&self) -> Over {
        let (mut scratch, mut number) = (Vec::new(), 0);
        loop {
            let sent = match self.next() {
                Ok(Some(next)) => self.send(next, &mut number, &mut scratch).await,
                Ok(None) => self.wait().await,
                Err(Over::Stopped) => {
                    // Who has asked and dropped the right waits for the answer all the same.
                    let answered = self.fewer_than(1).await;
                    return answered.err().unwrap_or(Over::Stopped);
                }
                Err(over) => Err(over),
            };
            if let Err(over) = sent {
                return over;
            }
        }
    }

    /// The next message or request, if there is one.
    fn next(&self) -> Result<Option<Request>, Over> {
        let mut port = self.port.borrow_mut();
        match port.get_request(Access::Later, Deadline::NOW) {
            // Comes when nothing else is there.
            Ok(next) if next.message.notice() == Some(Notice::NoMoreSenders) => Err(Over::Stopped),
            Ok(next) if next.message.notice().is_some() => Ok(None),
            Ok(next) => Ok(Some(next)),
            Err(ReceiveError::TimedOut) => Ok(None),
            Err(_) => Err(Over::Stopped),
        }
    }

    /// Sends a message, or a request once there are fewer than may be under way.
    async fn send(
        &self,
        mut next: Request,
        number: &mut u64,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Over> {
        // It was looked at when it was sent, but a member may send past its library.
        if may_leave(&next.message, self.there).is_err() {
            return Ok(());
        }
        let asks = next.wants_reply();
        let (kind, tag) = if asks {
            self.fewer_than(MAX_REQUESTS).await?;
            *number += 1;
            (Kind::Request, *number)
        } else {
            (Kind::Message, 0)
        };
        let message = std::mem::take(&mut next.message);
        let write = async {
            codec::write(&self.side, kind, tag, &message, scratch).await?;
            Ok(((), bytes_of(&message)))
        };
        crossing(&self.member, EventKind::Depart, self.at.index, write).await?;
        self.shown.went(bytes_of(&message));
        if asks {
            self.asked.borrow_mut().insert(tag, next);
            portolan_shm::mark!("bridge.requested");
        } else {
            portolan_shm::mark!("bridge.carried");
        }
        Ok(())
    }

    /// Waits until fewer requests than so many are under way.
    async fn fewer_than(&self, requests: usize) -> Result<(), Over> {
        let look = |_| Ok((self.asked.borrow().len() < requests).then_some(()));
        self.side.context().until(look).await
    }

    /// Waits until something is sent.
    async fn wait(&self) -> Result<(), Over> {
        let look = |arms: bool| {
            let mut port = self.port.borrow_mut();
            if self.armed.take() {
                port.disarm();
            }
            if port.may_have() {
                return Ok(Some(()));
            }
            if !arms {
                return Ok(None);
            }
            let doorbell = &port.at().queue().port.sleep.doorbell;
            // SeqCst: before the marks are set, as in `ReceiveRight::sleep`.
            let seen = doorbell.load(Ordering::SeqCst);
            self.word.arm(doorbell, seen)?;
            if port.arm() {
                self.armed.set(true);
                return Ok(None);
            }
            port.disarm();
            Ok(Some(()))
        };
        self.side.context().until(look).await
    }

    /// Takes answers until the other side ends; returns the reason.
    async fn take_answers(&self) -> Over {
        let mut scratch = Vec::new();
        loop {
            if let Err(over) = self.take_answer(&mut scratch).await {
                return over;
            }
        }
    }

    async fn take_answer(&self, scratch: &mut Vec<u8>) -> Result<(), Over> {
        self.side.more(|_| Ok(())).await?;
        let read = async {
            let read = codec::read(&self.side, &self.member, self.back, scratch).await?;
            let bytes = bytes_of(&read.1);
            Ok((read, bytes))
        };
        let read = crossing(&self.member, EventKind::Arrive, self.at.index, read);
        let (frame, answer) = read.await?;
        self.shown.came(bytes_of(&answer));
        portolan_shm::mark!("bridge.answer_came");
        let asked = self.asked.borrow_mut().remove(&frame.tag);
        match (frame.kind, asked) {
            // Its client may be gone by now.
            (Kind::Reply, Some(asked)) => drop(asked.reply(answer)),
            // And so is our client's.
            (Kind::Dropped, Some(asked)) => drop(asked),
            _ => return Err(ViolationKind::FrameHeader.into()),
        }
        Ok(())
    }
}
