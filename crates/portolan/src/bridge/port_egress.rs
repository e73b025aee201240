//! A port's egress takes messages out of a proxy port, as its window allows, and gives answers to
//! the requests among them.

use super::carrier::{Context, Word};
use super::codec::Outgoing;
use super::error::{Over, ViolationKind};
use super::side::bytes_of;
use super::window::{Taken, Window};
use crate::port::{is_unused, may_leave};
use crate::space::drain::Drain;
use crate::space::public::Shown;
use crate::space::{Member, Part};
use crate::{Access, Deadline, Message, Notice, ReceiveError, ReceiveRight, Request};
use portolan_abi::bridge::MAX_REQUESTS;
use portolan_abi::port::{Leaving, PortName};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// An egress that is to begin.
pub(super) struct PortEgress {
    pub(super) port: ReceiveRight,
    /// Its number in the connection.
    pub(super) number: u32,
    /// The limits of a message there, and of an answer here.
    pub(super) there: Leaving,
    pub(super) back: u64,
    /// Messages that may be under way.
    pub(super) window: u32,
    /// The offer's name.
    pub(super) name: String,
    /// What observers see.
    pub(super) shown: Shown,
}

/// The egress of a port, while it lasts.
pub(super) struct Proxy {
    port: RefCell<ReceiveRight>,
    number: u32,
    /// Where the proxy port rings, and whether it is to.
    word: Word,
    armed: Cell<bool>,
    there: Leaving,
    pub(super) back: u64,
    /// The member and the port, for events.
    pub(super) member: Arc<Member>,
    pub(super) at: PortName,
    window: RefCell<Window>,
    /// The other side was asked what it has accepted, and has not said it yet.
    has_asked_it: Cell<bool>,
    /// What is sent next, once there is room for it.
    held: RefCell<Option<Held>>,
    /// No process can send any more.
    drained: Cell<bool>,
    /// Requests that were not answered yet, by their numbers.
    asked: RefCell<HashMap<u64, Request>>,
    /// The number of the last one.
    last: Cell<u64>,
    shown: Shown,
    // The last field: it outlives the handles in the others.
    _drain: Arc<Drain>,
}

/// A message that waits for the port's window.
struct Held {
    message: Box<Outgoing>,
    taken: Taken,
    /// If it is one.
    request: Option<Request>,
}

/// What a port has to write.
pub(super) enum Act {
    /// A message, or a request of this number.
    Send {
        message: Box<Outgoing>,
        tag: Option<u64>,
    },
    /// That it waits.
    Blocked,
    /// Nothing any more.
    End,
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
    pub(super) fn member(&self) -> &Arc<Member> {
        &self.port.at().member
    }

    /// It is about to begin, while the caller has a right on the port.
    pub(super) fn launched(&self) -> Arc<Drain> {
        self.port.request_no_more_senders();
        let part = self.member().part::<PortEgresses>();
        part.launched(self.port.at().port)
    }

    /// It begins, in a task.
    pub(super) fn open(self, context: &Rc<Context>, drain: Arc<Drain>) -> Proxy {
        Proxy {
            member: Arc::clone(self.member()),
            at: self.port.at().port,
            port: RefCell::new(self.port),
            number: self.number,
            word: context.word(),
            armed: Cell::new(false),
            there: self.there,
            back: self.back,
            window: RefCell::new(Window::new(self.window, self.there.most)),
            has_asked_it: Cell::new(false),
            held: RefCell::default(),
            drained: Cell::new(false),
            asked: RefCell::default(),
            last: Cell::new(0),
            shown: self.shown,
            _drain: drain,
        }
    }

    /// It cannot begin.
    pub(super) fn forget(self, drain: Arc<Drain>) {
        drop(self);
        drop(drain);
    }
}

impl Proxy {
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// What is to be written for it now.
    pub(super) fn next_act(&self, arms: bool) -> Result<Option<Act>, Over> {
        let mut held = self.held.borrow_mut();
        if held.is_none() {
            *held = self.hold(arms)?;
        }
        let Some(next) = &*held else {
            // Who has asked and dropped the right waits for the answer all the same.
            let ends = self.drained.get() && self.asked.borrow().is_empty();
            return Ok(ends.then_some(Act::End));
        };
        if next.request.is_some() && self.asked.borrow().len() >= MAX_REQUESTS {
            return Ok(None);
        }
        let mut window = self.window.borrow_mut();
        let taken = next.taken;
        if !window.fits(taken) {
            let asks = window.must_ask() && !self.has_asked_it.replace(true);
            return Ok(asks.then_some(Act::Blocked));
        }
        let Some(Held {
            mut message,
            request,
            ..
        }) = held.take()
        else {
            return Ok(None);
        };
        message.leaves(&self.member);
        window.begin(taken);
        let tag = request.map(|request| {
            let tag = self.last.get() + 1;
            self.last.set(tag);
            self.asked.borrow_mut().insert(tag, request);
            tag
        });
        Ok(Some(Act::Send { message, tag }))
    }

    /// Takes a message out of the port, if there is one.
    fn hold(&self, arms: bool) -> Result<Option<Held>, Over> {
        while !self.drained.get() && self.may_have(arms)? {
            let Some(mut next) = self.next() else {
                continue;
            };
            let message = std::mem::take(&mut next.message);
            // It was looked at when it was sent, but a member may send past its library.
            if may_leave(&message, self.there).is_err() {
                continue;
            }
            let message = Outgoing::new(message, self.there.sealed)?;
            return Ok(Some(Held {
                taken: message.taken(),
                message: Box::new(message),
                request: next.wants_reply().then_some(next),
            }));
        }
        Ok(None)
    }

    /// The next message or request, if there is one.
    fn next(&self) -> Option<Request> {
        match self
            .port
            .borrow_mut()
            .get_request(Access::Later, Deadline::NOW)
        {
            Ok(next) => match next.message.notice() {
                None => return Some(next),
                // Comes when nothing else is there.
                Some(Notice::NoMoreSenders) => self.drained.set(true),
                Some(_) => {}
            },
            Err(ReceiveError::TimedOut) => {}
            Err(_) => self.drained.set(true),
        }
        None
    }

    /// Whether something may be in the port; if not, it is armed, if that is asked for.
    fn may_have(&self, arms: bool) -> Result<bool, Over> {
        let mut port = self.port.borrow_mut();
        if self.armed.take() {
            port.disarm();
        }
        if port.may_have() || !arms {
            return Ok(port.may_have());
        }
        let doorbell = &port.at().queue().port.sleep.doorbell;
        // SeqCst: before the marks are set, as in `ReceiveRight::sleep`.
        let seen = doorbell.load(Ordering::SeqCst);
        self.word.arm(doorbell, seen)?;
        if port.arm() {
            self.armed.set(true);
            return Ok(false);
        }
        port.disarm();
        Ok(true)
    }

    /// A message of it has gone over.
    pub(super) fn went(&self, sent: Outgoing) {
        let bytes = sent.left(&self.member, self.at.index);
        self.shown.went(bytes);
    }

    /// The other side says that so many messages are in the port.
    pub(super) fn accepted(&self, count: u64) -> Result<(), Over> {
        self.has_asked_it.set(false);
        match self.window.borrow_mut().accept_to(count) {
            true => Ok(()),
            false => Err(ViolationKind::Window { port: self.number }.into()),
        }
    }

    /// Whether there is a request of this number that was not answered.
    pub(super) fn has_asked(&self, tag: u64) -> Result<(), Over> {
        match self.asked.borrow().contains_key(&tag) {
            true => Ok(()),
            false => Err(ViolationKind::FrameHeader.into()),
        }
    }

    /// The answer to a request has come; or it was dropped.
    pub(super) fn answered(&self, tag: u64, answer: Option<Message>) -> Result<(), Over> {
        let asked = self.asked.borrow_mut().remove(&tag);
        let asked = asked.ok_or(ViolationKind::FrameHeader)?;
        match answer {
            Some(answer) => {
                self.shown.came(bytes_of(&answer));
                // Its client may be gone by now.
                let _ = asked.reply(answer);
            }
            None => drop(asked),
        }
        Ok(())
    }
}
