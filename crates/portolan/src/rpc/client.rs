//! The client's end of a connection.

use super::awaited::Waiters;
use super::error::RpcError;
use super::link::{self, EAGER, Ends, Inlet, LOOKS, LinkState, Source, Ways};
use super::method::{self, Method, pack};
use super::parcel::{self, NotSent, Parcel, Parcels, Reading};
use super::schema::Schema;
use super::sharing::Sharing;
use super::turnstile::Turnstile;
use super::wire::Pack;
use crate::Deadline;
use crate::channel::Interrupter;
use crate::ending::Ending;
use crate::port::{SendRight, Unsent, WhenFull};
use portolan_proto::{
    Call, CallId, Client, Closed, Flags, Misbehaved, NotCalled, Outcome, Status, Time,
};
use portolan_shm::mark;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// A connection to a service; what clients made by `#[portolan::service]` call through. A
/// clone is the same connection. Any number of threads may call at once.
#[derive(Clone)]
pub struct Stub {
    /// First, so that it goes before the connection.
    pub(super) _last: Arc<Last>,
    pub(super) connection: Arc<Connection>,
    pub(super) limit: Duration,
}

/// What all stubs of a connection have: with the last of them it goes, and before that what
/// was posted gets through.
pub(super) struct Last(pub(super) Arc<Connection>);

pub(super) struct Connection {
    /// Whoever has read something tells.
    pub(super) inner: Turnstile<Inner>,
    parcels: Option<Arc<Parcels>>,
    pub(super) server: SendRight,
    // The last field: it outlives the handles in the others.
    pub(super) ending: Arc<Ending>,
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
    parcel: Option<Parcel>,
}

#[cold]
fn unsendable(why: &dyn std::fmt::Display) -> RpcError {
    RpcError::Unsendable {
        what: "arguments",
        why: why.to_string(),
    }
}

/// Whether a method has an answer, to be waited for.
#[inline]
fn is_answered(method: &Method) -> Result<(), RpcError> {
    if method.flags().has(Flags::ONE_WAY) {
        let method = method.name();
        return Err(RpcError::OneWay { method });
    }
    Ok(())
}

/// Questions between two looks at the server's process.
const ASKS: u64 = 4;
/// How long whoever leaves waits for its one-way calls to arrive, at most.
const LEAVING: Duration = Duration::from_secs(10);
/// Looks again so soon whether a server that has left is dead or moving.
pub(super) const SOON: Duration = Duration::from_millis(20);

impl Stub {
    /// The same connection, with another time limit for each call.
    #[must_use]
    pub fn within(&self, limit: Duration) -> Self {
        Self {
            limit,
            ..self.clone()
        }
    }

    /// Calls a method and waits for its result.
    ///
    /// # Errors
    ///
    /// [`RpcError`].
    ///
    /// ```
    /// # use portolan::{Deadline, Domain, rpc};
    /// use portolan::rpc::{RpcError, Service};
    /// #[portolan::service]
    /// trait Counter {
    ///     fn add(&self, n: u64) -> u64;
    ///     #[rpc(one_way)]
    ///     fn reset(&self);
    /// }
    /// # struct Zero;
    /// # impl Counter for Zero { fn add(&self, n: u64) -> u64 { n } fn reset(&self) {} }
    /// # let domain = Domain::private()?;
    /// # let _server = rpc::serve(&domain, "counter", CounterService(Zero), &Default::default())?;
    /// let client = CounterClient::connect(&domain, "counter", Deadline::NEVER)?;
    /// // What `client.add(5)` does:
    /// let [add, reset] = CounterService::<Zero>::METHODS else { panic!() };
    /// assert_eq!(client.stub().call(add, &(5u64,)), Ok(5u64));
    /// let refused = client.stub().call::<_, ()>(reset, &());
    /// assert_eq!(refused, Err(RpcError::OneWay { method: "reset" }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn call<A: Pack, R: Schema + DeserializeOwned>(
        &self,
        method: &Method,
        arguments: &A,
    ) -> Result<R, RpcError> {
        let connection = &*self.connection;
        is_answered(method)?;
        let (mut ready, call, now) = self.prepare(method, arguments)?;
        let (inner, begun) = connection.begin(connection.lock(), now, call, &mut ready);
        let mut body = ready.body;
        let (outcome, _reading) = connection.outcome(inner, begun?, call.deadline, &mut body)?;
        let result = self.result(method, outcome, &body);
        method::spare(body);
        result
    }

    /// Calls a method, to wait for its result later.
    ///
    /// # Errors
    ///
    /// [`RpcError`].
    ///
    /// ```
    /// # use portolan::{Deadline, Domain, rpc};
    /// # use portolan::rpc::Service;
    /// # #[portolan::service]
    /// # trait Counter {
    /// #     fn add(&self, n: u64) -> u64;
    /// # }
    /// # struct Zero;
    /// # impl Counter for Zero { fn add(&self, n: u64) -> u64 { n } }
    /// # let domain = Domain::private()?;
    /// # let _server = rpc::serve(&domain, "counter", CounterService(Zero), &Default::default())?;
    /// # let client = CounterClient::connect(&domain, "counter", Deadline::NEVER)?;
    /// // What `client.start_add` does:
    /// let add = &CounterService::<Zero>::METHODS[0];
    /// let (one, two) = (client.stub().start(add, &(1u64,))?, client.stub().start(add, &(2u64,))?);
    /// assert_eq!((one.wait(), two.wait()), (Ok(1u64), Ok(2u64)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start<A: Pack, R: Schema + DeserializeOwned>(
        &self,
        method: &'static Method,
        arguments: &A,
    ) -> Result<Pending<R>, RpcError> {
        is_answered(method)?;
        let (mut ready, call, now) = self.prepare(method, arguments)?;
        let connection = &*self.connection;
        let (inner, begun) = connection.begin(connection.lock(), now, call, &mut ready);
        drop(inner);
        Ok(Pending {
            stub: self.clone(),
            method,
            call,
            id: Some(begun?),
            result: PhantomData,
        })
    }

    /// Calls a one-way method: returns when it is under way. If it is reliable it gets through,
    /// also if its client leaves at once: the last stub of a connection, when it is dropped,
    /// waits for what was posted, until that arrives or its deadline, and 10 s at most.
    /// [`flush`](Self::flush) says how many did not arrive.
    ///
    /// # Errors
    ///
    /// [`RpcError`].
    ///
    /// ```
    /// # use portolan::{Deadline, Domain, rpc};
    /// # use portolan::rpc::Service;
    /// # #[portolan::service]
    /// # trait Counter {
    /// #     #[rpc(one_way)]
    /// #     fn reset(&self);
    /// # }
    /// # struct Zero;
    /// # impl Counter for Zero { fn reset(&self) {} }
    /// # let domain = Domain::private()?;
    /// # let _server = rpc::serve(&domain, "counter", CounterService(Zero), &Default::default())?;
    /// # let client = CounterClient::connect(&domain, "counter", Deadline::NEVER)?;
    /// // What `client.reset()` does:
    /// client.stub().post(&CounterService::<Zero>::METHODS[0], &())?;
    /// assert_eq!(client.stub().flush(Deadline::NEVER)?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn post<A: Pack>(&self, method: &Method, arguments: &A) -> Result<(), RpcError> {
        if !method.flags().has(Flags::ONE_WAY) {
            let method = method.name();
            return Err(RpcError::NotOneWay { method });
        }
        let connection = &*self.connection;
        let (mut ready, call, now) = self.prepare(method, arguments)?;
        let (mut inner, begun) = connection.begin(connection.lock(), now, call, &mut ready);
        method::spare(ready.body);
        begun?;
        // Nobody waits, so whoever calls next does what is due; the driver, if there is one.
        connection.review(&mut inner);
        connection.tell_driver(&mut inner);
        Ok(())
    }

    #[inline]
    pub(super) fn prepare<A: Pack>(
        &self,
        method: &Method,
        arguments: &A,
    ) -> Result<(Ready, Call, Time), RpcError> {
        self.connection.server.to.member.present()?;
        let mut body = method::spared();
        let parcel = pack(arguments, &mut body, self.connection.parcels.as_ref());
        let parcel = parcel.map_err(|why| unsendable(&why))?;
        let ready = Ready { body, parcel };
        let now = link::soon();
        let call = Call {
            method: method.id(),
            flags: method.flags(),
            deadline: Some(link::deadline(now, self.limit)),
        };
        Ok((ready, call, now))
    }

    #[inline]
    pub(super) fn result<R: Schema + DeserializeOwned>(
        &self,
        method: &Method,
        outcome: Outcome,
        body: &[u8],
    ) -> Result<R, RpcError> {
        let status = match outcome {
            Outcome::Answered(status) => status,
            Outcome::Deadline => return Err(RpcError::Deadline),
            Outcome::ServerDied => return Err(RpcError::ServerDied),
            Outcome::Closed(why) => return Err(why.into()),
            _ => return Err(RpcError::Dropped),
        };
        Err(match status {
            Status::Returned => match parcel::read(body, self.connection.parcels.as_ref()) {
                Some((result,)) => return Ok(result),
                None => RpcError::Unreadable { what: "the result" },
            },
            Status::UnknownMethod => self.what_differs(method),
            Status::Unreadable => RpcError::Unreadable {
                what: "the arguments",
            },
            Status::Panicked => RpcError::Panicked {
                message: String::from_utf8_lossy(body).into_owned(),
            },
            Status::TooLate => RpcError::Deadline,
            Status::Busy => RpcError::Backpressure,
            Status::Dropped => RpcError::Dropped,
            Status::TooLong => RpcError::Unsendable {
                what: "the result",
                why: "it is longer than an answer may be: return a `Large`".to_owned(),
            },
            Status::Unwritable => RpcError::Unsendable {
                what: "the result",
                why: "its `Serialize` fails, or its extents have no room at the client".to_owned(),
            },
        })
    }

    /// Why the server does not know a method: asks it which ones it has.
    #[cold]
    fn what_differs(&self, method: &Method) -> RpcError {
        if method.id() == Method::DESCRIBE {
            let method = method.name();
            return RpcError::UnknownMethod { method };
        }
        Self::differs(method, self.call(&Method::describe(), &()))
    }

    /// Why it does not know a method, if it has these, with their layouts.
    pub(super) fn differs(
        method: &Method,
        methods: Result<Vec<(String, u64)>, RpcError>,
    ) -> RpcError {
        let name = method.name();
        match methods {
            Ok(methods) => match methods.iter().find(|(n, _)| n == name) {
                Some(&(_, theirs)) => RpcError::OtherVersion {
                    method: name,
                    ours: method.layout(),
                    theirs,
                },
                None => RpcError::UnknownMethod { method: name },
            },
            Err(error) => error,
        }
    }

    /// Waits until every one-way call has arrived; how many have not by the deadline. Those that
    /// were given up since it was last called, at their own deadlines, count too.
    ///
    /// # Errors
    ///
    /// [`RpcError`]: nothing can arrive any more.
    ///
    /// ```
    /// # use portolan::{Deadline, Domain, rpc};
    /// # use std::time::Duration;
    /// #[portolan::service]
    /// trait Log {
    ///     #[rpc(one_way)]
    ///     fn line(&self, text: &str);
    /// }
    /// # struct Lines;
    /// # impl Log for Lines { fn line(&self, _: &str) {} }
    /// # let domain = Domain::private()?;
    /// # let _server = rpc::serve(&domain, "log", LogService(Lines), &Default::default())?;
    /// let client = LogClient::connect(&domain, "log", Deadline::NEVER)?;
    /// client.line("hello")?;
    /// assert_eq!(client.stub().flush(Duration::from_secs(60))?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush(&self, deadline: impl Into<Deadline>) -> Result<usize, RpcError> {
        self.connection.flush(deadline.into())
    }

    /// Gives channels of its own back, with their memory and the server's thread for them, if
    /// nothing is open and the client shares ([`super::ClientOptions::sharing`]); whether it has
    /// none now. Calls go on as before; when it is busy again it is given others.
    ///
    /// For a client that knows that it will not call for a while: nobody else does, and no timer
    /// guesses. What is free then, [`Domain::trim`](crate::Domain::trim) gives to the system.
    ///
    /// ```
    /// # use portolan::{Deadline, Domain, rpc};
    /// # use portolan::rpc::ClientOptions;
    /// #[portolan::service]
    /// trait Clock {
    ///     fn now(&self) -> u64;
    /// }
    /// # struct Ticks;
    /// # impl Clock for Ticks { fn now(&self) -> u64 { 3 } }
    /// # let domain = Domain::private()?;
    /// # let _server = rpc::serve(&domain, "clock", ClockService(Ticks), &Default::default())?;
    /// let options = ClientOptions::default().sharing();
    /// let client = ClockClient::connect_with(&domain, "clock", &options, Deadline::NEVER)?;
    /// (0..1000).try_for_each(|_| client.now().map(drop))?; // by now it may have its own
    /// assert!(client.stub().rest());
    /// assert_eq!(client.now(), Ok(3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rest(&self) -> bool {
        let mut inner = self.connection.lock();
        inner.poll();
        if inner.client.open() == 0 {
            inner.rest();
        }
        !inner.ways.has_own()
    }

    /// Whether it shares its channels with others now ([`super::ClientOptions::sharing`]).
    pub fn is_sharing(&self) -> bool {
        !self.connection.lock().ways.has_own()
    }

    /// What the transport has seen.
    pub fn counts(&self) -> portolan_proto::ClientCounts {
        self.connection.lock().client.counts()
    }
}

impl Connection {
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
            begun: link::now(),
            looks_at: ASKS,
            told: 0,
        };
        Self {
            inner: Turnstile::new(inner),
            parcels,
            server,
            ending: Arc::default(),
        }
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Makes a call, at this moment or a little earlier; waits for room in the window.
    #[inline]
    fn begin<'a>(
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
                    inner.has_called(now);
                    return (inner, Ok(id));
                }
                Err(NotCalled::WindowFull { .. }) if Some(now) < call.deadline => {
                    inner.poll();
                    // What was read may have made room, and with nothing open nothing else
                    // would come.
                    if !inner.client.has_room() {
                        inner = self.wait(inner, call.deadline);
                    }
                    now = link::soon();
                    continue;
                }
                Err(error) => error,
            };
            return (inner, Err(error.into()));
        }
    }

    /// Sends a call's extents, if there is a place for the call; `false` if there is none, or
    /// no room for them.
    #[inline]
    pub(super) fn ship(&self, inner: &mut Inner, ready: &mut Ready) -> Result<bool, RpcError> {
        let Some(parcel) = ready.parcel.take() else {
            return Ok(true);
        };
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
            Err(NotSent::Unsent(Unsent::DeadName)) => Err(RpcError::ServerDied),
            Err(why) => Err(unsendable(&why)),
        }
    }

    /// Gives back extents of answers that nobody waits for, and makes room for others.
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

    #[inline]
    fn outcome<'a>(
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
        let mut late = false;
        loop {
            inner.poll();
            let dead = self.check(&mut inner);
            let reading = self.reading();
            if let Some(outcome) = inner.client.take(id, body) {
                mark!("call.ended");
                return Ok((outcome, reading));
            }
            drop(reading);
            dead?;
            if late {
                // Whatever it waits for, it waits no longer.
                inner.with(|client, ends| client.cancel(ends, id));
                return Err(RpcError::Deadline);
            }
            inner = self.wait(inner, until);
            late = until.is_some_and(|until| until < link::now());
        }
    }

    /// Looks for an answer for as long as a short method takes, and keeps the lock meanwhile
    /// unless another thread wants it. Reads no clock.
    #[inline]
    fn spin(&self, inner: &mut Inner, id: CallId, body: &mut Vec<u8>) -> Option<Outcome> {
        for look in 0..LOOKS {
            let reader = inner.reader.as_ref().filter(|r| look > 0 || r.spins())?;
            if reader.has_more() {
                inner.read();
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

    /// See [`Stub::flush`].
    fn flush(&self, deadline: Deadline) -> Result<usize, RpcError> {
        self.server.to.member.present()?;
        let mut inner = self.lock();
        inner.poll();
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
                // Should nobody bury the dead: a host that is stopped, say.
                let owner = self.server.owner();
                if owner != 0 && crate::domain::has_died(&self.server.to.member, owner) {
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
        connection.ending.begin(&member.endings);
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
        let mut ends = Ends {
            ways: &mut self.ways,
            source: self.reader.as_mut().map_or(Source::None, Source::Inlet),
            state: &mut self.state,
        };
        act(&mut self.client, &mut ends)
    }

    /// Takes the reader back from whoever waited with it.
    #[inline]
    pub(super) fn put_back(&mut self, reader: Inlet, state: LinkState) {
        self.reader = Some(reader);
        self.state = state;
        if self.next_reader.is_some() {
            self.change_readers();
        }
    }

    /// Handles what has come.
    #[inline]
    pub(super) fn poll(&mut self) {
        let now = link::now();
        self.with(|client, ends| while client.poll(now, ends) == Ok(true) {});
    }

    /// Handles one packet that has come.
    #[inline]
    fn read(&mut self) {
        // The last call was just made.
        let now = self.begun;
        // What is wrong with it, the next call or wait says.
        let _ = self.with(|client, ends| client.poll(now, ends));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.with(|client, ends| client.close(ends));
    }
}

/// A call that was begun. Dropped, it is cancelled.
///
/// ```
/// # use portolan::{Deadline, Domain, rpc};
/// #[portolan::service]
/// trait Slow {
///     fn square(&self, n: u64) -> u64;
/// }
/// # struct Squares;
/// # impl Slow for Squares { fn square(&self, n: u64) -> u64 { n * n } }
/// # let domain = Domain::private()?;
/// # let _server = rpc::serve(&domain, "slow", SlowService(Squares), &Default::default())?;
/// let client = SlowClient::connect(&domain, "slow", Deadline::NEVER)?;
/// let (three, four) = (client.start_square(3)?, client.start_square(4)?);
/// assert_eq!(three.wait()? + four.wait()?, 25);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a call that was begun and dropped is cancelled"]
pub struct Pending<R> {
    pub(super) stub: Stub,
    pub(super) method: &'static Method,
    pub(super) call: Call,
    pub(super) id: Option<CallId>,
    pub(super) result: PhantomData<fn() -> R>,
}

impl<R: Schema + DeserializeOwned> Pending<R> {
    /// Waits for its result.
    ///
    /// # Errors
    ///
    /// [`RpcError`].
    pub fn wait(mut self) -> Result<R, RpcError> {
        let Some(id) = self.id.take() else {
            return Err(RpcError::Cancelled);
        };
        let connection = &*self.stub.connection;
        connection.server.to.member.present()?;
        let mut body = Vec::new();
        let (outcome, _reading) =
            connection.outcome(connection.lock(), id, self.call.deadline, &mut body)?;
        self.stub.result(self.method, outcome, &body)
    }
}

impl<R> Pending<R> {
    /// Gives it up; the server is told. `false` if it had ended.
    pub fn cancel(mut self) -> bool {
        self.give_up()
    }

    fn give_up(&mut self) -> bool {
        let Some(id) = self.id.take() else {
            return false;
        };
        if self.stub.connection.server.to.member.present().is_err() {
            // Its parent's, who goes on waiting for it.
            return false;
        }
        let mut inner = self.stub.connection.lock();
        inner.poll();
        let was_open = inner.with(|client, ends| client.cancel(ends, id));
        self.stub.connection.tidy(&inner);
        was_open
    }
}

impl<R> Drop for Pending<R> {
    fn drop(&mut self) {
        self.give_up();
    }
}
