//! A client shares channels with others until it is busy; see `shared_channels.rs`.

use super::client_end::{Connection, Inner};
use super::connect::Shape;
use super::door::Part;
use super::hello::{Answer, Channels, Hello};
use super::link::{Inlet, Ways};
use crate::channel::{Channel, Reader, ReaderOptions, Writer};
use crate::port::ReceiveRight;
use crate::{Access, Deadline, Domain, Message};
use portolan_proto::Time;
use portolan_shm::mark;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Calls within [`BUSY_WITHIN`] that make a client a busy one.
const BUSY: u32 = 64;
const BUSY_WITHIN: Duration = Duration::from_millis(100);
/// How long the server may take to promote it.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a client has that shares.
pub(super) struct Sharing {
    domain: Domain,
    /// What others call on, and are answered in.
    calls: Channel,
    answers: Channel,
    hello: Hello,
    shape: Shape,
    connection: Weak<Connection>,
    /// A port that tells the server of its death; where parcels come there is one anyway.
    _alive: Option<ReceiveRight>,
    /// Calls since a moment, and since it had channels of its own.
    called: u32,
    since: Time,
    /// A thread presents channels of its own.
    promoting: bool,
    /// It has not rested since it was busy.
    wants_own: bool,
}

impl Sharing {
    /// Begins to share: where its packets go, and where they come from.
    pub(super) fn begin(
        domain: &Domain,
        calls: Channel,
        answers: Channel,
        hello: Hello,
        shape: Shape,
    ) -> Option<(Self, Ways, Inlet)> {
        let sharing = Self {
            domain: domain.clone(),
            calls,
            answers,
            hello,
            shape,
            connection: Weak::new(),
            _alive: None,
            called: 0,
            since: Time::ZERO,
            promoting: false,
            wants_own: false,
        };
        let writer = Arc::new(Mutex::new(sharing.calls.bind_writer().ok()?));
        let ways = Ways::shared(&writer, sharing.hello.session);
        let inlet = sharing.inlet()?;
        Some((sharing, ways, inlet))
    }

    fn inlet(&self) -> Option<Inlet> {
        let mut reader = self.answers.bind_reader(ReaderOptions::default()).ok()?;
        reader.set_waiting(self.shape.waiting);
        Some(Inlet::shared(reader, self.hello.session))
    }

    /// It shares on behalf of this connection.
    pub(super) fn of(
        mut self,
        connection: &Arc<Connection>,
        alive: Option<ReceiveRight>,
    ) -> Box<Self> {
        self.connection = Arc::downgrade(connection);
        self._alive = alive;
        Box::new(self)
    }
}

impl Inner {
    /// Notes that a call was made at this time. A client that makes many gets channels of its own.
    #[inline]
    pub(super) fn has_called(&mut self, now: Time) {
        if self.sharing.is_some() && !self.ways.has_own() {
            self.count_call(now);
        }
    }

    fn count_call(&mut self, now: Time) {
        let Some(sharing) = &mut self.sharing else {
            return;
        };
        sharing.called += 1;
        if sharing.called < BUSY {
            return;
        }
        let busy = now.since(sharing.since) < BUSY_WITHIN;
        sharing.called = 0;
        sharing.since = now;
        if !busy {
            return;
        }
        sharing.wants_own = true;
        if sharing.promoting {
            return;
        }
        let Some(there) = sharing.connection.upgrade() else {
            return;
        };
        let server = there.server.clone();
        let (domain, shape) = (sharing.domain.clone(), sharing.shape);
        let hello = Hello {
            channels: Channels::Promoted,
            ..sharing.hello.clone()
        };
        let connection = Weak::clone(&sharing.connection);
        // Not in the caller's thread: the server may take its time.
        let promotes = there.drain.spawn("portolan-rpc-promote", move || {
            let own = present(&domain, &hello, shape, |message| {
                server
                    .request_reply(message, Access::Later, Deadline::after(PATIENCE))
                    .ok()
            });
            if let Some(connection) = connection.upgrade() {
                connection.lock().promoted(own);
            }
        });
        sharing.promoting = promotes.is_ok();
    }

    /// The server reads in the new channels, if there are any. If it has rested meanwhile, it
    /// does without, and the server finds out.
    fn promoted(&mut self, own: Option<(Writer, Reader)>) {
        let Some(sharing) = &mut self.sharing else {
            return;
        };
        sharing.promoting = false;
        if let Some((writer, reader)) = own.filter(|_| sharing.wants_own) {
            sharing.called = 0;
            self.ways.promote(writer);
            mark!("call.promoted");
            self.read_with(Inlet::own(reader));
        }
    }

    /// It gives back channels of its own, also those that it is about to be given; what it has
    /// called before does not make it a busy one.
    pub(super) fn rest(&mut self) {
        if let Some(sharing) = &mut self.sharing {
            sharing.called = 0;
            sharing.wants_own = false;
        }
        self.share_again();
    }

    /// Its own channel is no longer written to, and the server lives; or it is to have none: it
    /// shares again. What is under way there is lost, and asked for (C1).
    #[cold]
    pub(super) fn share_again(&mut self) {
        let Some(sharing) = self.sharing.as_ref().filter(|_| self.ways.has_own()) else {
            return;
        };
        let Some(inlet) = sharing.inlet() else {
            return;
        };
        self.ways.demote();
        self.read_with(inlet);
        self.state.gone = false;
    }

    fn read_with(&mut self, mut inlet: Inlet) {
        // The thread that waits with the old reader then looks for the new one.
        self.interrupter.interrupt();
        self.interrupter = inlet.interrupter();
        self.next_reader = Some(inlet);
        if self.reader.is_some() {
            self.change_readers();
        }
    }

    /// The reader is here: what it has is handled, and the next one takes its place.
    #[cold]
    pub(super) fn change_readers(&mut self) {
        self.poll();
        if let Some(next) = self.next_reader.take() {
            self.reader = Some(next);
        }
        // That of the old one has told nothing of the new one.
        self.state.gone = false;
    }
}

/// Makes channels for one client alone, and presents them.
fn present(
    domain: &Domain,
    hello: &Hello,
    shape: Shape,
    ask: impl FnOnce(Message) -> Option<Message>,
) -> Option<(Writer, Reader)> {
    let calls = domain
        .make_channel(&shape.of(Part::Calls, hello.session))
        .ok()?;
    let answers = domain
        .make_channel(&shape.of(Part::Answers, hello.session))
        .ok()?;
    let writer = calls.bind_writer().ok()?;
    let mut reader = answers.bind_reader(ReaderOptions::default()).ok()?;
    reader.set_waiting(shape.waiting);
    let mut message = Message::new(&hello.to_bytes()).ok()?;
    message.attach(calls).ok()?;
    message.attach(answers).ok()?;
    mark!("call.presented");
    let answer = ask(message)?;
    let promoted = matches!(
        Answer::from_bytes(answer.header()),
        Some(Answer::Welcome { .. })
    );
    promoted.then_some((writer, reader))
}
