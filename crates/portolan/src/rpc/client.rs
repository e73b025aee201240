//! A stub makes calls for a client, and a pending call tells when its answer is there.

use super::client_end::{Connection, Last, Ready, Traced, answered, unsendable};
use super::error::RpcError;
use super::link;
use super::method::{self, Method, pack};
use super::parcel;
use crate::Deadline;
use crate::schema::Pack;
use crate::schema::Schema;
use portolan_proto::{Call, CallId, Flags, Status, Time};
use serde::de::DeserializeOwned;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// A connection to a service; what clients made by `#[portolan::service]` call through. A
/// clone is the same connection. Any number of threads may call at once.
#[derive(Clone)]
pub struct Stub {
    /// First, so that it goes before the connection.
    pub(super) _last: Arc<Last>,
    pub(super) connection: Arc<Connection>,
    pub(super) limit: Duration,
}

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
        connection.server.to.member.present()?;
        if A::MOVES || R::MOVES || connection.is_traced() {
            return self.call_any(method, arguments);
        }
        let mut body = method::spared();
        method::pack_plain(arguments, &mut body).map_err(|why| unsendable(&why))?;
        let status = connection.call(method, self.limit, &mut body)?;
        let result = self.result(method, status, &body);
        method::spare(body);
        result
    }

    /// The same, of any call.
    #[inline(never)]
    fn call_any<A: Pack, R: Schema + DeserializeOwned>(
        &self,
        method: &Method,
        arguments: &A,
    ) -> Result<R, RpcError> {
        let connection = &*self.connection;
        let (mut ready, call, now) = self.prepare(method, arguments)?;
        let (begins, bytes) = (connection.begins(), ready.body.len());
        let (inner, begun) = connection.begin(connection.lock(), now, call, &mut ready);
        let (id, mut body) = (begun?, ready.body);
        let traced = begins.map(|begins| connection.trace(&inner, begins, id, bytes));
        let (outcome, _reading) = connection.outcome(inner, id, call.deadline, &mut body)?;
        connection.ended(traced);
        let result = self.result(method, answered(outcome)?, &body);
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
    /// // What `client.begin_add` does:
    /// let add = &CounterService::<Zero>::METHODS[0];
    /// let (one, two) = (client.stub().begin(add, &(1u64,))?, client.stub().begin(add, &(2u64,))?);
    /// assert_eq!((one.wait(), two.wait()), (Ok(1u64), Ok(2u64)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin<A: Pack, R>(
        &self,
        method: &'static Method,
        arguments: &A,
    ) -> Result<Pending<R>, RpcError> {
        is_answered(method)?;
        let (mut ready, call, now) = self.prepare(method, arguments)?;
        let connection = &*self.connection;
        let (begins, bytes) = (connection.begins(), ready.body.len());
        let (inner, begun) = connection.begin(connection.lock(), now, call, &mut ready);
        let id = begun?;
        let traced = begins.map(|begins| connection.trace(&inner, begins, id, bytes));
        drop(inner);
        Ok(Pending {
            stub: self.clone(),
            method,
            call,
            id: Some(id),
            traced,
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
        let (begins, bytes) = (connection.begins(), ready.body.len());
        let (mut inner, begun) = connection.begin(connection.lock(), now, call, &mut ready);
        method::spare(ready.body);
        let id = begun?;
        connection.ended(begins.map(|begins| connection.trace(&inner, begins, id, bytes)));
        // No thread waits for an answer, so the driver does what is due, or else the next caller.
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
        status: Status,
        body: &[u8],
    ) -> Result<R, RpcError> {
        if status == Status::Returned {
            return match parcel::read(body, self.connection.parcels.as_ref()) {
                Some((result,)) => Ok(result),
                None => Err(RpcError::Unreadable { what: "the result" }),
            };
        }
        Err(self.failure(method, status, body))
    }

    /// Why a call that was answered so has no result.
    #[cold]
    #[inline(never)]
    fn failure(&self, method: &Method, status: Status, body: &[u8]) -> RpcError {
        match status {
            Status::Returned => RpcError::Unreadable { what: "the result" },
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
        }
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
    /// For a client that knows that it will not call for a while: no other thread does, and no
    /// timer guesses. What is free then, [`Domain::trim`](crate::Domain::trim) gives to the system.
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

/// Whether a method has an answer, to be waited for.
#[inline]
fn is_answered(method: &Method) -> Result<(), RpcError> {
    if method.flags().has(Flags::ONE_WAY) {
        let method = method.name();
        return Err(RpcError::OneWay { method });
    }
    Ok(())
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
/// let (three, four) = (client.begin_square(3)?, client.begin_square(4)?);
/// assert_eq!(three.wait()? + four.wait()?, 25);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a call that was begun and dropped is cancelled"]
pub struct Pending<R> {
    pub(super) stub: Stub,
    pub(super) method: &'static Method,
    pub(super) call: Call,
    pub(super) id: Option<CallId>,
    pub(super) traced: Option<Traced>,
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
        connection.ended(self.traced.take());
        self.stub.result(self.method, answered(outcome)?, &body)
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
            // Its parent's, which goes on waiting for it.
            return false;
        }
        let mut inner = self.stub.connection.lock();
        inner.poll();
        // The server hears of it where it reads.
        let _ = self.stub.connection.check(&mut inner);
        let was_open = inner.with(|client, ends| client.cancel(ends, id));
        self.stub.connection.tidy(&inner);
        self.stub.connection.tell_of_room(inner);
        was_open
    }
}

impl<R> Drop for Pending<R> {
    fn drop(&mut self) {
        self.give_up();
    }
}
