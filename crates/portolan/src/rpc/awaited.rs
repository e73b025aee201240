//! Tasks await calls, under any runtime or none.
//!
//! A future has no thread that could wait for its answer, nor a timer. So a connection has a
//! *driver* from its first awaited call on: one thread that reads what comes, reviews what is
//! due, and wakes the tasks whose calls have ended. It has the connection's reader for good;
//! callers that block are told by it.
//!
//! # Invariants
//!
//! - **A1** A task notes that it waits, under the connection's lock, after a look that found the
//!   call open; the driver ends calls under that lock and then looks through the notes.
//! - **A2** The driver sleeps no longer than until `due`, and a thread that makes a call due for
//!   review sooner interrupts it. Nothing moves `due` back: so a row of calls, each
//!   answered long before its review, interrupts the driver once a period at most, and while
//!   nothing is open it sleeps without a timer.
//! - **A3** The driver does not keep the connection: the last stub that goes ends both.
//! - **A4** Tasks wait for room in the window in turn. The driver finds some after it has read, and
//!   a caller makes some when it takes an outcome; for each place one is woken. A look that comes
//!   before that one has used its place wakes the next one, too, which then waits on in its turn: so
//!   one that is woken and never polled keeps no place from others. One that does not use its
//!   place passes it on.

use super::client::{Pending, Stub};
use super::client_end::{Connection, Inner, Ready, SOON, answered};
use super::error::RpcError;
use super::link::{self, Inlet, LinkState};
use super::method::{self, Method};
use super::parcel::Reading;
use super::work::wake;
use crate::Deadline;
use crate::schema::Pack;
use crate::schema::Schema;
use crate::space::counters;
use portolan_proto::{Call, CallId, Flags, NotCalled, Outcome, Status, Time};
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};

/// The tasks that wait, on one connection.
#[derive(Default)]
pub(super) struct Waiters {
    /// There is a driver, or there is about to be: the reader is its own.
    pub(super) driven: bool,
    /// When the driver looks again at the latest (A2); `None` while it sleeps without a timer.
    due: Option<Time>,
    calls: Vec<(CallId, Waker)>,
    /// Those that wait for room, by their turns.
    room: VecDeque<ForRoom>,
    /// Turns that were given.
    turns: u64,
}

/// What a task waits for that begins a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Window,
    /// The server's port, for extents that it sends along.
    Port,
}

/// A task that waits for room.
struct ForRoom {
    turn: u64,
    room: Room,
    /// When it tries again at the latest.
    until: Option<Time>,
    waker: Waker,
}

impl Waiters {
    /// Notes a waker once.
    fn note(&mut self, id: CallId, waker: &Waker) {
        match self.calls.iter_mut().find(|(there, _)| *there == id) {
            Some((_, known)) => known.clone_from(waker),
            None => self.calls.push((id, waker.clone())),
        }
    }

    fn forget(&mut self, id: CallId) {
        self.calls.retain(|(there, _)| *there != id);
    }

    /// Notes one that waits for room, which has this turn if it has waited before; its turn.
    fn queue_up(
        &mut self,
        turn: Option<u64>,
        room: Room,
        until: Option<Time>,
        waker: &Waker,
    ) -> u64 {
        let turn = turn.unwrap_or_else(|| {
            self.turns += 1;
            self.turns
        });
        let at = self.room.partition_point(|other| other.turn < turn);
        let waits = ForRoom {
            turn,
            room,
            until,
            waker: waker.clone(),
        };
        self.room.insert(at, waits);
        turn
    }

    /// One with this turn waits for room no more. Whether it was woken.
    fn leave(&mut self, turn: u64) -> bool {
        match self.room.binary_search_by_key(&turn, |other| other.turn) {
            Ok(at) => self.room.remove(at).is_none(),
            Err(_) => true,
        }
    }

    /// Takes out those that wait for room in the window, as many as there is room for (A4).
    #[inline]
    pub(super) fn for_places(&mut self, room: impl FnOnce() -> usize) -> Vec<Waker> {
        if self.room.is_empty() {
            return Vec::new();
        }
        self.first_in_window(room())
    }

    fn first_in_window(&mut self, most: usize) -> Vec<Waker> {
        let mut woken = Vec::new();
        let mut at = 0;
        while woken.len() < most && at < self.room.len() {
            if self.room[at].room == Room::Window {
                woken.extend(self.room.remove(at).map(|waiter| waiter.waker));
            } else {
                at += 1;
            }
        }
        woken
    }
}

/// A call that is awaited: made when it is first polled, cancelled when it is dropped.
///
/// Any runtime will do. The deadline is the connection's, as for calls that block. Arguments
/// with a [`super::Large`] in them may wait for room in the server's port.
///
/// ```
/// # use portolan::{Deadline, Domain, rpc};
/// #[portolan::service]
/// trait Slow {
///     fn square(&self, n: u64) -> u64;
/// }
/// # struct Squares;
/// # impl Slow for Squares { fn square(&self, n: u64) -> u64 { n * n } }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let domain = Domain::private()?;
/// # let _server = rpc::serve(&domain, "slow", SlowService(Squares), &Default::default())?;
/// let client = SlowClient::connect(&domain, "slow", Deadline::NEVER)?;
/// let (three, four) = tokio::join!(client.square_async(3), client.square_async(4));
/// assert_eq!(three? + four?, 25);
/// # Ok(())
/// # }
/// ```
#[must_use = "a call is made when it is awaited"]
pub struct Awaited<R> {
    pending: Pending<R>,
    step: Step,
    /// Since it has waited for room.
    turn: Option<u64>,
    /// The server did not know the method, and is asked for those that it knows.
    describing: bool,
}

/// How a call ended, its answer, and what keeps the extents of that.
type Ended = (Outcome, Vec<u8>, Reading);

/// Whether a call was made.
enum Begun {
    Yes,
    /// With these arguments.
    Waits(Ready, Room),
}

enum Step {
    /// It was not even written.
    Failed(RpcError),
    /// These are its arguments.
    ToBegin(Ready),
    Begun,
}

// What it waits for is the connection's; nothing in it is pinned.
impl<R> Unpin for Awaited<R> {}

impl Stub {
    /// Calls a method, to be awaited. Of a one-way method the future ends when it is under way.
    pub fn call_async<A: Pack, R>(&self, method: &'static Method, arguments: &A) -> Awaited<R> {
        let (step, call) = match self.prepare(method, arguments) {
            Ok((ready, call, _)) => (Step::ToBegin(ready), call),
            Err(error) => (Step::Failed(error), Call::new(method.id())),
        };
        let pending = Pending {
            stub: self.clone(),
            method,
            call,
            id: None,
            traced: None,
            result: PhantomData,
        };
        Awaited::new(pending, step)
    }
}

impl<R: Schema + DeserializeOwned> IntoFuture for Pending<R> {
    type Output = Result<R, RpcError>;
    type IntoFuture = Awaited<R>;

    fn into_future(self) -> Awaited<R> {
        Awaited::new(self, Step::Begun)
    }
}

impl<R: Schema + DeserializeOwned> Future for Awaited<R> {
    type Output = Result<R, RpcError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            let (outcome, body, _reading) = ready!(this.outcome(context))?;
            let (stub, method) = (&this.pending.stub, this.pending.method);
            if this.describing {
                let methods = answered(outcome);
                let methods = methods.and_then(|s| stub.result(&Method::describe(), s, &body));
                return Poll::Ready(Err(Stub::differs(method, methods)));
            }
            if outcome != Outcome::Answered(Status::UnknownMethod) {
                return Poll::Ready(stub.result(method, answered(outcome)?, &body));
            }
            this.describe();
        }
    }
}

impl<R> Awaited<R> {
    fn new(pending: Pending<R>, step: Step) -> Self {
        Self {
            pending,
            step,
            turn: None,
            describing: false,
        }
    }

    /// The server does not know the method: asks it which ones it has.
    #[cold]
    fn describe(&mut self) {
        self.describing = true;
        match self.pending.stub.prepare(&Method::describe(), &()) {
            Ok((ready, call, _)) => {
                self.pending.call = call;
                self.step = Step::ToBegin(ready);
            }
            Err(error) => self.step = Step::Failed(error),
        }
    }

    /// Makes the call, and takes its outcome and answer when they are there.
    fn outcome(&mut self, context: &mut Context<'_>) -> Poll<Result<Ended, RpcError>> {
        let connection = Arc::clone(&self.pending.stub.connection);
        connection.server.to.member.present()?;
        let mut inner = connection.lock();
        connection.drive(&mut inner)?;
        connection.tidy(&inner);
        match std::mem::replace(&mut self.step, Step::Begun) {
            Step::Begun => {}
            Step::Failed(error) => return Poll::Ready(Err(error)),
            Step::ToBegin(ready) => {
                let call = self.pending.call;
                connection.check(&mut inner)?;
                let turn = self.turn.take();
                let called = turn.is_some_and(|turn| inner.waiters.leave(turn));
                let waits = match self.begin(&connection, &mut inner, ready) {
                    Ok(Begun::Yes) => None,
                    Ok(Begun::Waits(ready, room)) => {
                        self.step = Step::ToBegin(ready);
                        let until = self.tries_again(room);
                        let waker = context.waker();
                        self.turn = Some(inner.waiters.queue_up(turn, room, until, waker));
                        connection.hurry(&mut inner, until);
                        Some(Poll::Pending)
                    }
                    Err(error) => Some(Poll::Ready(Err(error))),
                };
                if let Some(waits) = waits {
                    if called {
                        connection.tell_of_room(inner);
                    }
                    return waits;
                }
                if call.flags.has(Flags::ONE_WAY) {
                    self.pending.id = None;
                    connection.ended(self.pending.traced.take());
                    let returned = Outcome::Answered(Status::Returned);
                    return Poll::Ready(Ok((returned, Vec::new(), connection.reading())));
                }
            }
        }
        let Some(id) = self.pending.id else {
            return Poll::Ready(Err(RpcError::Cancelled));
        };
        let dead = connection.check(&mut inner);
        let mut body = Vec::new();
        let reading = connection.reading();
        if let Some(outcome) = inner.client.take(id, &mut body) {
            self.pending.id = None;
            connection.ended(self.pending.traced.take());
            inner.waiters.forget(id);
            connection.tell_of_room(inner);
            return Poll::Ready(Ok((outcome, body, reading)));
        }
        drop(reading);
        dead?;
        inner.waiters.note(id, context.waker());
        // One that was begun before there was a driver is not known to it.
        connection.tell_driver(&mut inner);
        Poll::Pending
    }

    /// When it looks for room itself, at the latest.
    fn tries_again(&self, room: Room) -> Option<Time> {
        let soon = (room == Room::Port).then(|| link::now().after(SOON));
        soon.into_iter().chain(self.pending.call.deadline).min()
    }

    /// Makes the call, if there is room for it.
    fn begin(
        &mut self,
        connection: &Connection,
        inner: &mut Inner,
        mut ready: Ready,
    ) -> Result<Begun, RpcError> {
        let (now, call) = (link::now(), self.pending.call);
        let in_time = Some(now) < call.deadline;
        if inner.client.has_room() && !connection.ship(inner, &mut ready)? {
            return if in_time {
                Ok(Begun::Waits(ready, Room::Port))
            } else {
                Err(RpcError::Backpressure)
            };
        }
        let (begins, bytes) = (connection.begins(), ready.body.len());
        match inner.with(|client, ends| client.call(now, ends, call, &mut ready.body)) {
            Ok(id) => {
                counters::called(connection.server.to.own().threads);
                let traced = begins.map(|begins| connection.trace(inner, begins, id, bytes));
                self.pending.traced = traced;
                self.pending.id = Some(id);
                method::spare(ready.body);
                inner.has_called(now);
                connection.tell_driver(inner);
                Ok(Begun::Yes)
            }
            Err(NotCalled::WindowFull { .. }) if in_time => Ok(Begun::Waits(ready, Room::Window)),
            Err(error) => Err(error.into()),
        }
    }
}

impl<R> Drop for Awaited<R> {
    fn drop(&mut self) {
        let connection = &self.pending.stub.connection;
        // A forked child has no part in it; another thread of its parent's may have the lock.
        if connection.server.to.member.present().is_err() {
            return;
        }
        if let Some(id) = self.pending.id {
            connection.lock().waiters.forget(id);
        }
        if let Some(turn) = self.turn.take() {
            let mut inner = connection.lock();
            if inner.waiters.leave(turn) {
                connection.tell_of_room(inner);
            }
        }
    }
}

impl Connection {
    /// Sees to it that there is a driver.
    fn drive(self: &Arc<Self>, inner: &mut Inner) -> Result<(), RpcError> {
        if inner.waiters.driven || inner.is_over() {
            return Ok(());
        }
        let connection = Arc::downgrade(self);
        self.drain
            .spawn("portolan-rpc-driver", move || {
                Driver::default().run(&connection);
            })
            .map_err(|error| RpcError::Unsendable {
                what: "a call that is awaited",
                why: format!("no thread waits for its answer: {error}"),
            })?;
        inner.waiters.driven = true;
        // A caller that blocks with the reader gives it back.
        inner.interrupter.interrupt();
        Ok(())
    }

    /// There is something to be reviewed, perhaps sooner than the driver knows, if there is one.
    pub(super) fn tell_driver(&self, inner: &mut Inner) {
        if inner.waiters.driven {
            let timer = inner.client.next_timeout();
            self.hurry(inner, timer);
        }
    }

    /// The driver is to look by then (A2).
    fn hurry(&self, inner: &mut Inner, by: Option<Time>) {
        if let Some(by) = by
            && inner.waiters.due.is_none_or(|due| by < due)
        {
            inner.waiters.due = Some(by);
            inner.interrupter.interrupt();
        }
    }
}

/// What the driver works with.
#[derive(Default)]
struct Driver {
    reader: Option<Inlet>,
    state: LinkState,
}

impl Driver {
    /// Reads until the connection has gone (A3), or nothing can come of it any more.
    fn run(mut self, connection: &Weak<Connection>) {
        loop {
            let Some(there) = connection.upgrade() else {
                return;
            };
            let Some(due) = self.look(&there) else {
                return;
            };
            drop(there);
            if let Some(reader) = &mut self.reader {
                link::wait(reader, due, &mut self.state);
            }
        }
    }

    /// Handles packets that have come and calls that are due, and wakes their tasks. Returns until
    /// when to wait then; `None` if there is no more to do.
    fn look(&mut self, connection: &Connection) -> Option<Deadline> {
        let mut inner = connection.lock();
        if let Some(reader) = self.reader.take() {
            inner.put_back(reader, self.state);
        } else {
            // The first time. A caller may be waiting with the reader, and was interrupted.
            while inner.reader.is_none() {
                inner = connection.inner.listen(inner, None);
            }
        }
        inner.poll();
        // A task that is woken for an error finds the error again.
        let failed = connection.check(&mut inner).is_err();
        connection.review(&mut inner);
        connection.tidy(&inner);
        connection.inner.tell();

        let now = link::now();
        let over = inner.is_over();
        let Inner {
            client,
            waiters,
            state,
            reader,
            ..
        } = &mut *inner;
        let mut woken = Vec::new();
        waiters.calls.retain(|(id, waker)| {
            let open = !over && client.is_open(*id);
            if !open {
                woken.push(waker.clone());
            }
            open
        });
        let room = if over || failed {
            usize::MAX
        } else {
            client.room()
        };
        woken.extend(waiters.first_in_window(room));
        // For those who send something along: the server may have received.
        waiters.room.retain(|waiter| {
            let in_time = waiter.until.is_none_or(|until| now < until);
            let waits = in_time && (waiter.room == Room::Window || room == 0);
            if !waits {
                woken.push(waiter.waker.clone());
            }
            waits
        });
        if over {
            // The reader stays, for callers that block.
            waiters.driven = false;
            drop(inner);
            woken.into_iter().for_each(wake);
            return None;
        }
        let waited_for = client.open() > 0 || !waiters.room.is_empty();
        let soon = (state.gone && waited_for).then(|| now.after(SOON));
        let until = waiters.room.iter().filter_map(|w| w.until).min();
        let timers = [client.next_timeout(), soon, until];
        let kept = waiters.due.filter(|due| *due > now);
        waiters.due = timers.into_iter().flatten().chain(kept).min();
        let due = waiters
            .due
            .map_or(Deadline::NEVER, |due| Deadline::at(link::instant(due)));
        self.state = *state;
        self.reader = reader.take();
        drop(inner);
        woken.into_iter().for_each(wake);
        Some(due)
    }
}
