//! The client's end of a connection begins calls, waits for answers, and ends calls, for stubs and
//! for tasks that await.

use super::awaited::Waiters;
use super::error::RpcError;
use super::handoff_lock::HandoffLock;
use super::link::{self, EAGER, Ends, Inlet, LOOKS, LinkState, Source, Ways};
use super::method::Method;
use super::parcel::{NotSent, Parcel, Parcels, Reading};
use super::sharing::Sharing;
use super::work::wake;
use crate::Deadline;
use crate::EventKind;
use crate::channel::Interrupter;
use crate::port::{SendError, SendRight, WhenFull};
use crate::space::counters;
use crate::space::drain::Drain;
use crate::space::record::{About, Begun};
use portolan_proto::{Call, CallId, Client, Closed, Misbehaved, NotCalled, Outcome, Status, Time};
use portolan_shm::mark;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// Questions between two looks at the server's process.
const ASKS: u64 = 4;
/// How long a leaving client waits for its one-way calls to arrive, at most.
const LEAVING: Duration = Duration::from_secs(10);
/// Looks again so soon whether a server that has left is dead or moving.
pub(super) const SOON: Duration = Duration::from_millis(20);

/// What all stubs of a connection have: with the last of them it goes, and before that what
/// was posted gets through.
pub(super) struct Last(pub(super) Arc<Connection>);

pub(super) struct Connection {
    /// A thread that has read a packet tells the threads that wait for the lock.
    pub(super) inner: HandoffLock<Inner>,
    pub(super) parcels: Option<Arc<Parcels>>,
    pub(super) server: SendRight,
    // The last field: it outlives the handles in the others.
    pub(super) drain: Arc<Drain>,
}

pub(super) struct Inner {
    pub(super) client: Client,
    pub(super) ways: Ways,
    /// Gone while a caller waits with it; the driver's for good, if there is one.
    pub(super) reader: Option<Inlet>,
    /// In place of the reader, once that is back.
    pub(super) next_reader: Option<Inlet>,
    /// Of the reader.
    pub(super) interrupter: Interrupter,
    /// If it shares channels with others.
    pub(super) sharing: Option<Box<Sharing>>,
    pub(super) state: LinkState,
    pub(super) waiters: Waiters,
    /// Threads that wait for room in the window.
    crowd: usize,
    /// When the last call was made, or a little later.
    begun: Time,
    /// At so many questions it looks whether the server's process lives.
    looks_at: u64,
    /// One-way calls that ended unconfirmed, and that the caller has been told of.
    told: u64,
}

/// What a call is made of.
pub(super) struct Ready {
    pub(super) body: Vec<u8>,
    /// Until it is sent.
    pub(super) parcel: Option<Parcel>,
}

/// Why a call has no answer; out of the way of those that have one.
pub(super) struct Unanswered(Box<RpcError>);

impl From<RpcError> for Unanswered {
    fn from(error: RpcError) -> Self {
        Self(Box::new(error))
    }
}

impl From<Unanswered> for RpcError {
    fn from(error: Unanswered) -> Self {
        *error.0
    }
}

/// Why a call has no answer that ended so.
#[cold]
#[inline(never)]
fn unanswered(outcome: Outcome) -> Unanswered {
    let error = match outcome {
        Outcome::Deadline => RpcError::Deadline,
        Outcome::ServerDied => RpcError::ServerDied,
        Outcome::Closed(why) => why.into(),
        _ => RpcError::Dropped,
    };
    error.into()
}

/// How the server says that a call has ended for which this thread has waited.
#[inline(never)]
fn status(ended: Result<(Outcome, Reading), RpcError>) -> Result<Status, Unanswered> {
    match ended {
        Ok((Outcome::Answered(status), _)) => Ok(status),
        Ok((other, _)) => Err(unanswered(other)),
        Err(error) => Err(error.into()),
    }
}

/// How the server says that a call has ended.
#[inline]
pub(super) fn answered(outcome: Outcome) -> Result<Status, RpcError> {
    match outcome {
        Outcome::Answered(status) => Ok(status),
        other => Err(unanswered(other).into()),
    }
}

/// A call that is recorded: when it began, and which it is.
pub(super) struct Traced(Begun, About);

impl Connection {
    /// When a call begins, if calls are recorded. The caller is no forked child.
    #[inline]
    pub(super) fn begins(&self) -> Option<Begun> {
        self.server.to.member.begins(EventKind::Call)
    }

    /// A call that was begun, with so many bytes of arguments.
    #[cold]
    pub(super) fn trace(&self, inner: &Inner, begun: Begun, id: CallId, bytes: usize) -> Traced {
        let number = inner.client.number(id).unwrap_or(0);
        let number = link::trace_number(inner.client.session(), number);
        let port = self.server.to.port.index;
        Traced(begun, About::message(port, number, bytes as u64))
    }

    /// It has ended.
    #[inline]
    pub(super) fn ended(&self, traced: Option<Traced>) {
        if let Some(Traced(begun, about)) = traced {
            self.server.to.member.record(begun, about);
        }
    }

    pub(super) fn new(
        client: Client,
        ways: Ways,
        mut reader: Inlet,
        parcels: Option<Arc<Parcels>>,
        server: SendRight,
    ) -> Self {
        let inner = Inner {
            client,
            ways,
            interrupter: reader.interrupter(),
            reader: Some(reader),
            next_reader: None,
            sharing: None,
            state: LinkState::default(),
            waiters: Waiters::default(),
            crowd: 0,
            begun: link::now(),
            looks_at: ASKS,
            told: 0,
        };
        Self {
            inner: HandoffLock::new(inner),
            parcels,
            server,
            drain: Arc::default(),
        }
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Whether calls are recorded. Not to be asked in a forked child.
    #[inline(always)]
    pub(super) fn is_traced(&self) -> bool {
        self.server.to.traces(EventKind::Call)
    }

    /// Makes a call without extents while no tracer records; how it ended, and its answer in place
    /// of the arguments.
    ///
    /// It goes in a straight line: a call of one packet that finds room, over channels of the
    /// client's own, and whose answer is the first packet that comes while it spins. Otherwise [`Self::begin`] makes the
    /// call, and [`Self::outcome`] waits.
    #[inline(never)]
    pub(super) fn call(
        &self,
        method: &Method,
        limit: Duration,
        body: &mut Vec<u8>,
    ) -> Result<Status, Unanswered> {
        let now = link::soon();
        let call = Call {
            method: method.id(),
            flags: method.flags(),
            deadline: Some(link::deadline(now, limit)),
        };
        let mut guard = self.lock();
        self.tidy(&guard);
        let inner = &mut *guard;
        if !inner.state.is_fine() {
            return self.call_any(guard, now, call, body);
        }
        let (client, mut ends) = inner.parts();
        let begun = client.call_straight(now, &mut ends, call, body);
        let Some(id) = begun else {
            return self.call_any(guard, now, call, body);
        };
        inner.begun = now;
        mark!("call.begun");
        counters::called(self.server.to.own().threads);
        inner.has_called(now);
        let mut came = false;
        loop {
            match inner.look_straight(id, body) {
                Some(Outcome::Answered(status)) => return Ok(status),
                Some(other) => return Err(unanswered(other)),
                // It is another packet, or more than one.
                None if came => return status(self.outcome(guard, id, call.deadline, body)),
                None => {}
            }
            // It keeps the lock while it spins, unless another thread wants it.
            let reader = inner.reader.as_ref();
            came = reader.is_some_and(|r| r.comes_soon(|| self.inner.is_wanted()));
            if !came {
                return status(self.outcome_later(guard, id, call.deadline, body));
            }
        }
    }

    /// The same, of a call that does not go in a straight line.
    #[inline(never)]
    fn call_any(
        &self,
        inner: MutexGuard<'_, Inner>,
        now: Time,
        call: Call,
        body: &mut Vec<u8>,
    ) -> Result<Status, Unanswered> {
        let mut ready = Ready {
            body: std::mem::take(body),
            parcel: None,
        };
        let (inner, begun) = self.begin(inner, now, call, &mut ready);
        let id = begun.map_err(Unanswered::from)?;
        *body = ready.body;
        status(self.outcome(inner, id, call.deadline, body))
    }

    /// Makes a call, at this moment or a little earlier; waits for room in the window.
    #[inline]
    pub(super) fn begin<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        mut now: Time,
        call: Call,
        ready: &mut Ready,
    ) -> (MutexGuard<'a, Inner>, Result<CallId, RpcError>) {
        loop {
            if let Err(error) = self.check(&mut inner) {
                return (inner, Err(error));
            }
            inner.begun = now;
            match self.ship(&mut inner, ready) {
                Ok(true) => {}
                Ok(false) if Some(now) < call.deadline => {
                    inner.poll();
                    inner = self.wait(inner, call.deadline.min(Some(now.after(SOON))));
                    now = link::soon();
                    continue;
                }
                Ok(false) => return (inner, Err(RpcError::Backpressure)),
                Err(error) => return (inner, Err(error)),
            }
            let body = &mut ready.body;
            let error = match inner.with(|client, ends| client.call(now, ends, call, body)) {
                Ok(id) => {
                    mark!("call.begun");
                    counters::called(self.server.to.own().threads);
                    inner.has_called(now);
                    return (inner, Ok(id));
                }
                Err(NotCalled::WindowFull { .. }) if Some(now) < call.deadline => {
                    inner.poll();
                    // What was read may have made room, and with nothing open nothing else
                    // would come.
                    if !inner.client.has_room() {
                        inner.crowd += 1;
                        inner = self.wait(inner, call.deadline);
                        inner.crowd -= 1;
                    }
                    now = link::soon();
                    continue;
                }
                Err(error) => error,
            };
            return (inner, Err(error.into()));
        }
    }

    /// Sends a call's extents, if there is a place for the call, which is made next; `false` if
    /// there is none, or no room for them.
    #[inline]
    pub(super) fn ship(&self, inner: &mut Inner, ready: &mut Ready) -> Result<bool, RpcError> {
        let Some(parcel) = ready.parcel.take() else {
            return Ok(true);
        };
        // Of a call that is not made they would lie in the server's port.
        inner.client.accepts(ready.body.len())?;
        let Some(number) = inner.client.next_number() else {
            ready.parcel = Some(parcel);
            return Ok(false);
        };
        let parcels = self.parcels.as_ref().ok_or(NotSent::NoWay);
        match parcels.and_then(|p| p.send(parcel, number, WhenFull::Fail)) {
            Ok(()) => Ok(true),
            Err(NotSent::Full(parcel)) => {
                ready.parcel = Some(parcel);
                Ok(false)
            }
            Err(NotSent::Unsent(SendError::DeadName)) => Err(RpcError::ServerDied),
            Err(why) => Err(unsendable(&why)),
        }
    }

    /// Gives back extents of answers that no thread waits for, and makes room for others.
    pub(super) fn tidy(&self, inner: &Inner) {
        if let Some(parcels) = &self.parcels {
            parcels.tidy(|number| inner.client.awaits(number));
        }
    }

    /// Before an answer is taken ([`Parcels::reading`]).
    #[inline]
    pub(super) fn reading(&self) -> Reading {
        Parcels::reading(self.parcels.as_ref())
    }

    #[inline(never)]
    pub(super) fn outcome<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        id: CallId,
        until: Option<Time>,
        body: &mut Vec<u8>,
    ) -> Result<(Outcome, Reading), RpcError> {
        let reading = self.reading();
        if let Some(outcome) = self.spin(&mut inner, id, body) {
            return Ok((outcome, reading));
        }
        drop(reading);
        self.outcome_later(inner, id, until, body)
    }

    /// The same, of a call whose answer was not there while this thread spun.
    #[inline(never)]
    fn outcome_later<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        id: CallId,
        until: Option<Time>,
        body: &mut Vec<u8>,
    ) -> Result<(Outcome, Reading), RpcError> {
        let mut late = false;
        loop {
            inner.poll();
            let dead = self.check(&mut inner);
            let reading = self.reading();
            if let Some(outcome) = inner.client.take(id, body) {
                mark!("call.ended");
                self.tell_of_room(inner);
                return Ok((outcome, reading));
            }
            drop(reading);
            dead?;
            if late {
                // Whatever it waits for, it waits no longer.
                inner.with(|client, ends| client.cancel(ends, id));
                self.tell_of_room(inner);
                return Err(RpcError::Deadline);
            }
            inner = self.wait(inner, until);
            late = until.is_some_and(|until| until < link::now());
        }
    }

    /// Tells those that wait for room in the window, after this caller may have made some.
    ///
    /// Of a call that ends the thread tells that reads; but its place is free when its caller has
    /// taken the outcome, and nothing may be read after that. Who takes it while the reader is
    /// here need not tell: a thread that waits has the reader, or has been told by who had it.
    #[inline]
    pub(super) fn tell_of_room(&self, mut inner: MutexGuard<'_, Inner>) {
        if inner.crowd > 0 {
            self.inner.tell();
            if inner.reader.is_none() && !inner.waiters.driven {
                inner.interrupter.interrupt();
            }
        }
        let Inner {
            client, waiters, ..
        } = &mut *inner;
        let woken = waiters.for_places(|| client.room());
        drop(inner);
        woken.into_iter().for_each(wake);
    }

    /// Looks for an answer for as long as a short method takes, and keeps the lock meanwhile
    /// unless another thread wants it. Reads no clock.
    fn spin(&self, inner: &mut Inner, id: CallId, body: &mut Vec<u8>) -> Option<Outcome> {
        for look in 0..LOOKS {
            let reader = inner.reader.as_ref().filter(|r| look > 0 || r.spins())?;
            if reader.has_more() {
                if let Some(outcome) = inner.look_straight(id, body) {
                    return Some(outcome);
                }
                // What is wrong with a packet, the next call or wait says.
                let now = inner.begun;
                let _ = inner.with(|client, ends| client.poll(now, ends));
                if let Some(outcome) = inner.client.take(id, body) {
                    return Some(outcome);
                }
            } else if self.inner.is_wanted() {
                return None;
            }
            if look > EAGER {
                std::hint::spin_loop();
            }
        }
        None
    }

    /// Whether anything can come of waiting.
    #[inline]
    pub(super) fn check(&self, inner: &mut Inner) -> Result<(), RpcError> {
        if let Some(why) = inner.state.over {
            return Err(why.into());
        }
        if inner.state.broken {
            let packets = 0;
            return Err(Closed::Misbehaved(Misbehaved::Garbage { packets }).into());
        }
        if inner.state.gone {
            // A server that moves takes its port along.
            if !self.server.is_live() {
                inner.client.server_died();
                return Err(RpcError::ServerDied);
            }
            inner.share_again();
        }
        Ok(())
    }

    /// See [`super::Stub::flush`].
    pub(super) fn flush(&self, deadline: Deadline) -> Result<usize, RpcError> {
        self.server.to.member.present()?;
        let mut inner = self.lock();
        inner.poll();
        // What is said next goes where the server reads.
        let _ = self.check(&mut inner);
        if inner.client.posted() > 0 {
            // Not before a period has passed, otherwise.
            inner.client.hasten(link::now());
            self.review(&mut inner);
            self.tell_driver(&mut inner);
        }
        while inner.client.posted() > 0 && !deadline.has_passed() {
            self.check(&mut inner)?;
            inner = self.wait(inner, deadline.instant().map(link::time));
            inner.poll();
        }
        let unconfirmed = inner.client.counts().unconfirmed;
        let given_up = unconfirmed - std::mem::replace(&mut inner.told, unconfirmed);
        let given_up = usize::try_from(given_up).unwrap_or(usize::MAX);
        Ok(inner.client.posted().saturating_add(given_up))
    }

    /// Waits until something has come, or it is time to review.
    fn wait<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        until: Option<Time>,
    ) -> MutexGuard<'a, Inner> {
        self.tidy(&inner);
        let now = link::now();
        let timer = inner.client.next_timeout();
        let soon = inner.state.gone.then(|| now.after(SOON));
        let due = [until, timer, soon].into_iter().flatten().min();
        let due = due.map(|at| Instant::now() + at.since(now));
        let free = if inner.waiters.driven {
            None
        } else {
            inner.reader.take()
        };
        if let Some(mut reader) = free {
            let mut state = inner.state;
            drop(inner);
            let due = due.map_or(Deadline::NEVER, Deadline::at);
            link::wait(&mut reader, due, &mut state);
            inner = self.lock();
            inner.put_back(reader, state);
            self.inner.tell();
        } else {
            let due = due.unwrap_or_else(|| Instant::now() + SOON);
            let time = due.saturating_duration_since(Instant::now());
            inner = self.inner.listen(inner, Some(time));
        }
        self.review(&mut inner);
        inner
    }

    pub(super) fn review(&self, inner: &mut Inner) {
        // The channel tells of a death at once; this is for what it may have told already.
        inner.state.gone |= !self.server.is_live();
        let now = link::now();
        if inner.client.next_timeout().is_some_and(|t| t <= now) {
            inner.with(|client, ends| client.review(now, ends));
            let asked = inner.client.counts().asked;
            if asked >= inner.looks_at {
                inner.looks_at = asked + ASKS;
                // In case no host reclaims the dead server: it may be stopped.
                let owner = self.server.owner();
                if owner != 0 && crate::space::entry::has_died(&self.server.to.member, owner) {
                    inner.client.server_died();
                }
            }
            self.inner.tell();
        }
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        let connection = &*self.0;
        // A forked child has no part in it; another thread of its parent's may have the lock.
        let member = &connection.server.to.member;
        if member.present().is_err() {
            return;
        }
        connection.drain.begin(&member.drains);
        match connection.flush(Deadline::after(LEAVING)) {
            Ok(0) => {}
            Ok(calls) => tracing::warn!(calls, "a client left before its one-way calls arrived"),
            Err(error) => tracing::debug!(%error, "a client left that had lost its server"),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        if inner.waiters.driven {
            // It has the reader, and no connection to go on for.
            inner.interrupter.interrupt();
        }
    }
}

impl Inner {
    /// Whether nothing will come any more.
    pub(super) fn is_over(&self) -> bool {
        self.state.over.is_some() || self.state.broken || self.client.closed().is_some()
    }

    #[inline]
    pub(super) fn with<T>(&mut self, act: impl FnOnce(&mut Client, &mut Ends<'_>) -> T) -> T {
        let (client, mut ends) = self.parts();
        act(client, &mut ends)
    }

    #[inline(always)]
    fn parts(&mut self) -> (&mut Client, Ends<'_>) {
        let ends = Ends {
            ways: &mut self.ways,
            source: self.reader.as_mut().map_or(Source::None, Source::Inlet),
            state: &mut self.state,
        };
        (&mut self.client, ends)
    }

    /// Takes the reader back from the thread that waited with it.
    #[inline]
    pub(super) fn put_back(&mut self, reader: Inlet, state: LinkState) {
        self.reader = Some(reader);
        self.state = state;
        if self.next_reader.is_some() {
            self.change_readers();
        }
    }

    /// Handles one packet, if it lies in one unit of a channel of its own; the outcome of this
    /// call, if it has ended, and its answer in place of what `body` holds.
    #[inline(always)]
    fn look_straight(&mut self, id: CallId, body: &mut Vec<u8>) -> Option<Outcome> {
        // The last call was just made. What is wrong with a packet, the next call or wait says.
        let now = self.begun;
        let (client, mut ends) = self.parts();
        client.poll_for(now, &mut ends, id, body)
    }

    /// Handles what has come.
    #[inline]
    pub(super) fn poll(&mut self) {
        let now = link::now();
        self.with(|client, ends| while client.poll(now, ends) == Ok(true) {});
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.with(|client, ends| client.close(ends));
    }
}

#[cold]
pub(super) fn unsendable(why: &dyn std::fmt::Display) -> RpcError {
    RpcError::Unsendable {
        what: "arguments",
        why: why.to_string(),
    }
}
