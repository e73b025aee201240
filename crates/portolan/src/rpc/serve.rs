//! The server: its port, its connections, its threads.

use super::error::ServeError;
use super::hello::{Answer, Hello};
use super::link::{self, Ends, LinkState, Stash};
use super::method::{Dispatch, Method, NotDispatched, Service, pack};
use super::parcel::Parcels;
use super::work::{Context, Crew, Full, Job};
use crate::channel::{Channel, Interrupter, Reader, ReaderOptions, Writer};
use crate::port::{ReceiveRight, Request, SendRight};
use crate::{Access, Deadline, Domain, Message, PortOptions, Right, WhenFull};
use portolan_proto::{Incoming, Server as Protocol, ServerCounts, Status};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How calls run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Concurrency {
    /// Those of one client one after another, in the thread that waits for them: the least
    /// latency.
    #[default]
    Client,
    /// Each in a thread of its own.
    Call,
    /// In so many threads, whoever calls.
    Pool(usize),
}

/// How a service is served.
///
/// ```
/// use portolan::rpc::{Concurrency, ServerOptions};
/// let four = ServerOptions::default().concurrency(Concurrency::Pool(4)).queue(100);
/// # let _ = four;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    concurrency: Concurrency,
    queue: usize,
    waiting: crate::Waiting,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            concurrency: Concurrency::default(),
            queue: 1024,
            waiting: crate::Waiting::default(),
        }
    }
}

impl ServerOptions {
    /// How calls run.
    #[must_use]
    pub fn concurrency(self, concurrency: Concurrency) -> Self {
        Self {
            concurrency,
            ..self
        }
    }

    /// How many calls may wait for a thread of the pool, or run in one each, before the
    /// next one is refused ([`super::RpcError::Backpressure`]).
    #[must_use]
    pub fn queue(self, calls: usize) -> Self {
        Self {
            queue: calls,
            ..self
        }
    }

    /// How threads wait for calls.
    #[must_use]
    pub fn waiting(self, waiting: crate::Waiting) -> Self {
        Self { waiting, ..self }
    }
}

/// A service that is being served. Dropped, it ends: its clients are told.
#[must_use = "a server that is dropped ends"]
pub struct Server {
    shared: Arc<Shared>,
    door: Option<JoinHandle<Option<ReceiveRight>>>,
    right: SendRight,
}

pub(super) struct Shared {
    service: Arc<dyn Serves>,
    crew: Crew,
    waiting: crate::Waiting,
    /// Higher for each later server.
    incarnation: u64,
    stopping: AtomicBool,
    connections: Mutex<Vec<Connected>>,
}

/// A connection, and the thread that reads for it.
type Connected = (Arc<Connection>, JoinHandle<Reader>);

/// [`Service`], as an object.
trait Serves: Send + Sync {
    fn name(&self) -> &'static str;
    fn methods(&self) -> &'static [Method];
    fn dispatch(&self, method: u32, call: &mut Dispatch<'_>) -> Result<(), NotDispatched>;
}

impl<S: Service> Serves for S {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn methods(&self) -> &'static [Method] {
        S::METHODS
    }

    fn dispatch(&self, method: u32, call: &mut Dispatch<'_>) -> Result<(), NotDispatched> {
        Service::dispatch(self, method, call)
    }
}

/// Serves a service under a name.
///
/// # Errors
///
/// [`ServeError::Bind`] if somebody serves under this name.
pub fn serve<S: Service>(
    domain: &Domain,
    name: &str,
    service: S,
    options: &ServerOptions,
) -> Result<Server, ServeError> {
    let port = domain.bind(PortOptions::named(name).synchronous())?;
    Server::new(domain, port, service, options, link::now().0)
}

impl Server {
    pub(super) fn new<S: Service>(
        domain: &Domain,
        port: ReceiveRight,
        service: S,
        options: &ServerOptions,
        incarnation: u64,
    ) -> Result<Self, ServeError> {
        let right = port.make_send();
        let shared = Arc::new(Shared {
            service: Arc::new(service),
            crew: Crew::new(options.concurrency, options.queue)?,
            waiting: options.waiting,
            incarnation,
            stopping: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let (inside, domain) = (Arc::clone(&shared), domain.clone());
        let door = thread::Builder::new()
            .name("portolan-rpc-door".to_owned())
            .spawn(move || inside.keep_door(&domain, port))?;
        Ok(Self {
            shared,
            door: Some(door),
            right,
        })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Ends its threads: the port, and what each client's thread read from.
    pub(super) fn dismantle(&mut self) -> (Option<ReceiveRight>, Vec<(Arc<Connection>, Reader)>) {
        let port = self.shut_door();
        let connections = std::mem::take(&mut *self.shared.connections());
        let ended = connections.into_iter().filter_map(|(connection, thread)| {
            let reader = thread.join().ok()?;
            Some((connection, reader))
        });
        (port, ended.collect())
    }

    fn shut_door(&mut self) -> Option<ReceiveRight> {
        // Release: pairs with the threads that look.
        self.shared.stopping.store(true, Ordering::Release);
        let door = self.door.take()?;
        // An empty request wakes it. If there is no room it is awake.
        let _pending = self.right.request(Message::default(), WhenFull::Fail);
        let port = door.join().ok()?;
        for (connection, _) in &*self.shared.connections() {
            connection.interrupter.interrupt();
        }
        port
    }

    /// Clients that are connected.
    pub fn clients(&self) -> usize {
        let connections = self.shared.connections();
        connections.iter().filter(|c| !c.1.is_finished()).count()
    }

    /// What the transport has seen, all clients together that are connected.
    pub fn counts(&self) -> ServerCounts {
        let mut sum = ServerCounts::default();
        for (connection, _) in &*self.shared.connections() {
            let one = connection.lock().protocol.counts();
            sum.damaged += one.damaged;
            sum.repeated += one.repeated;
            sum.too_late += one.too_late;
            sum.sent_again += one.sent_again;
        }
        sum
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.shut_door());
        for (connection, _) in self.shared.connections().drain(..) {
            connection.close();
        }
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Vec<Connected>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What is served, and as which server.
    pub(super) fn identity(&self) -> (&'static str, u64) {
        (self.service.name(), self.incarnation)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Lets clients in.
    fn keep_door(
        self: &Arc<Self>,
        domain: &Domain,
        mut port: ReceiveRight,
    ) -> Option<ReceiveRight> {
        while !self.is_stopping() {
            match port.get_request(Access::Later, Deadline::NEVER) {
                // What is refused is dropped: the client hears of it.
                Ok(request) => drop(self.let_in(domain, request)),
                Err(_) => return None,
            }
        }
        Some(port)
    }

    fn let_in(self: &Arc<Self>, domain: &Domain, mut request: Request) -> Option<()> {
        let hello = Hello::from_bytes(request.message.header())?;
        let mut rights = request.message.take_rights().into_iter();
        let service = self.service.name();
        if hello.service != service {
            let answer = Answer::OtherService {
                service: service.to_owned(),
            };
            let _ = request.reply(Message::new(&answer.to_bytes()).ok()?);
            return None;
        }
        let (Some(Right::Segment(up)), Some(Right::Segment(down))) = (rights.next(), rights.next())
        else {
            return None;
        };
        let (up, down) = (Channel::try_from(up).ok()?, Channel::try_from(down).ok()?);
        let reader = up.bind_reader(ReaderOptions::default()).ok()?;
        let writer = down.bind_writer().ok()?;
        let incarnation = self.incarnation;
        let answer = Answer::Welcome { incarnation };
        let mut answer = Message::new(&answer.to_bytes()).ok()?;
        let mut parcels = None;
        if hello.moves {
            let Some(Right::Send(to)) = rights.next() else {
                return None;
            };
            let port = domain.bind(PortOptions::unnamed()).ok()?;
            answer.attach(port.make_send()).ok()?;
            parcels = Some(Arc::new(Parcels::new(to, port)));
        }
        let settings = link::settings(hello.period);
        let protocol = Protocol::new(settings, hello.session, incarnation);
        self.connect(protocol, reader, writer, parcels, hello.period)?;
        request.reply(answer).ok()
    }

    /// Begins to serve a client.
    pub(super) fn connect(
        self: &Arc<Self>,
        protocol: Protocol,
        mut reader: Reader,
        writer: Writer,
        parcels: Option<Arc<Parcels>>,
        period: Duration,
    ) -> Option<()> {
        reader.set_waiting(self.waiting);
        let connection = Arc::new(Connection {
            interrupter: reader.interrupter(),
            inner: Mutex::new(Inner {
                protocol,
                writer,
                state: LinkState::default(),
                running: HashMap::new(),
            }),
            parcels,
            period,
        });
        let (shared, own) = (Arc::clone(self), Arc::clone(&connection));
        let thread = thread::Builder::new()
            .name("portolan-rpc".to_owned())
            .spawn(move || own.run(&shared, reader))
            .ok()?;
        let mut connections = self.connections();
        connections.retain(|c| !c.1.is_finished());
        connections.push((connection, thread));
        Some(())
    }
}

/// What the thread of a client works with, and keeps.
#[derive(Default)]
struct Desk {
    stash: Stash,
    arguments: Vec<u8>,
    result: Vec<u8>,
    /// What runs in this very thread is never told that it was given up.
    never: Arc<AtomicBool>,
}

/// One client.
pub(super) struct Connection {
    /// Of its reader.
    interrupter: Interrupter,
    inner: Mutex<Inner>,
    parcels: Option<Arc<Parcels>>,
    period: Duration,
}

struct Inner {
    protocol: Protocol,
    writer: Writer,
    state: LinkState,
    /// What tells running calls that they were given up.
    running: HashMap<u64, Arc<AtomicBool>>,
}

impl Inner {
    fn with<T>(&mut self, act: impl FnOnce(&mut Protocol, &mut Ends<'_>) -> T) -> T {
        let mut ends = Ends {
            writer: &mut self.writer,
            reader: None,
            stash: &mut Stash::default(),
            state: &mut self.state,
        };
        act(&mut self.protocol, &mut ends)
    }
}

impl Connection {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is left of it once its thread has ended and nothing runs.
    pub(super) fn into_parts(self) -> (Protocol, Writer, Option<Arc<Parcels>>, Duration) {
        let inner = self.inner.into_inner();
        let inner = inner.unwrap_or_else(PoisonError::into_inner);
        (inner.protocol, inner.writer, self.parcels, self.period)
    }

    /// Tells the client, and what runs for it.
    fn close(&self) {
        let mut inner = self.lock();
        for given_up in inner.running.values() {
            given_up.store(true, Ordering::Release);
        }
        inner.with(|protocol, ends| protocol.close(ends));
    }

    /// Reads calls until the client has gone, or the server ends.
    fn run(self: &Arc<Self>, shared: &Shared, mut reader: Reader) -> Reader {
        let mut state = LinkState::default();
        let mut desk = Desk::default();
        while !(shared.is_stopping() || state.gone || state.broken || state.over.is_some()) {
            link::wait(&mut reader, Deadline::NEVER, &mut state, &mut desk.stash);
            if !desk.stash.is_empty() && !self.take(shared, &mut reader, &mut desk, &mut state) {
                break;
            }
        }
        if !shared.is_stopping() {
            self.close();
        }
        reader
    }

    /// Handles what has come, and runs it; `false` once the connection is closed.
    fn take(
        self: &Arc<Self>,
        shared: &Shared,
        reader: &mut Reader,
        desk: &mut Desk,
        state: &mut LinkState,
    ) -> bool {
        loop {
            let mut inner = self.lock();
            let now = link::now();
            let Inner {
                protocol,
                writer,
                running,
                ..
            } = &mut *inner;
            let mut ends = Ends {
                writer,
                reader: Some(reader),
                stash: &mut desk.stash,
                state,
            };
            let more = protocol.poll(now, &mut ends);
            while let Some(number) = protocol.take_cancelled() {
                if let Some(given_up) = running.get(&number) {
                    given_up.store(true, Ordering::Release);
                }
            }
            // Of a server that moves, the next one runs what has come.
            while !shared.is_stopping()
                && let Some(incoming) = inner.protocol.take(now, &mut desk.arguments)
            {
                if shared.crew.is_caller() {
                    drop(inner);
                    let context = Context::new(incoming.deadline, Arc::clone(&desk.never));
                    let (arguments, result) = (&desk.arguments, &mut desk.result);
                    self.execute(&*shared.service, incoming, arguments, result, &context);
                } else {
                    let given_up = Arc::new(AtomicBool::new(false));
                    inner.running.insert(incoming.number, Arc::clone(&given_up));
                    drop(inner);
                    let arguments = std::mem::take(&mut desk.arguments);
                    self.begin(shared, incoming, arguments, given_up);
                }
                inner = self.lock();
            }
            match more {
                Ok(true) => {}
                Ok(false) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Has a call run where calls run.
    fn begin(
        self: &Arc<Self>,
        shared: &Shared,
        incoming: Incoming,
        arguments: Vec<u8>,
        given_up: Arc<AtomicBool>,
    ) {
        let (connection, service) = (Arc::clone(self), Arc::clone(&shared.service));
        let number = incoming.number;
        let context = Context::new(incoming.deadline, given_up);
        let job: Job = Box::new(move || {
            connection.execute(&*service, incoming, &arguments, &mut Vec::new(), &context);
        });
        if let Err(Full) = shared.crew.run(job) {
            self.answer(number, Status::Busy, &mut Vec::new());
        }
    }

    fn execute(
        &self,
        service: &dyn Serves,
        incoming: Incoming,
        arguments: &[u8],
        result: &mut Vec<u8>,
        context: &Context,
    ) {
        result.clear();
        let status = if incoming.method == Method::DESCRIBE {
            describe(service.methods(), result)
        } else {
            let mut call = Dispatch {
                arguments,
                result,
                parcels: self.parcels.as_ref(),
            };
            let run = || context.during(|| service.dispatch(incoming.method, &mut call));
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(())) => Status::Returned,
                Ok(Err(NotDispatched::UnknownMethod)) => Status::UnknownMethod,
                Ok(Err(NotDispatched::Unreadable)) => Status::Unreadable,
                Ok(Err(_)) => Status::Dropped,
                Err(panic) => {
                    result.clear();
                    result.extend_from_slice(said(&*panic).as_bytes());
                    Status::Panicked
                }
            }
        };
        self.answer(incoming.number, status, result);
    }

    fn answer(&self, number: u64, status: Status, result: &mut Vec<u8>) {
        let mut inner = self.lock();
        inner.running.remove(&number);
        // Whoever does not wait any more does not want it.
        let _ = inner.with(|protocol, ends| protocol.answer(ends, number, status, result));
    }
}

fn describe(methods: &[Method], result: &mut Vec<u8>) -> Status {
    let methods = methods.iter().map(|m| (m.name(), m.layout()));
    match pack(&methods.collect::<Vec<_>>(), result, None) {
        Ok(()) => Status::Returned,
        Err(_) => Status::Dropped,
    }
}

/// What a panic said.
fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("something that is no text")
}
