//! A server has a port, connections and threads, and serves one trait on them.

use super::connection::Connection;
use super::door;
use super::error::ServeError;
use super::link::{self, Inlet, LOOK, Ways};
use super::method::{Dispatch, Method, NotDispatched, Service};
use super::parcel::Parcels;
use super::shared_channels::SharedChannels;
use super::task::{MethodFuture, OwnedCall, Spawner, Task};
use super::work::Crew;
use crate::channel::{Interrupter, Reader, ReaderOptions, Writer};
use crate::port::{self, ReceiveRight};
use crate::space::Member;
use crate::space::drain::{Drain, Drained};
use crate::{Deadline, Domain, PortOptions};
use portolan_proto::{Server as Protocol, ServerCounts};
use portolan_shm::mark;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How calls run.
///
/// ```
/// use portolan::rpc::{Concurrency, ServerOptions};
/// let four_at_a_time = ServerOptions::default().concurrency(Concurrency::Pool(4));
/// # drop(four_at_a_time);
/// assert_eq!(Concurrency::default(), Concurrency::Client);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Concurrency {
    /// Those of one client one after another, in the thread that waits for them: the least
    /// latency.
    #[default]
    Client,
    /// Each in a thread of its own.
    Call,
    /// In so many threads, for all clients.
    Pool(usize),
}

/// How a service is served.
///
/// ```
/// use portolan::rpc::{Concurrency, ServerOptions};
/// let four = ServerOptions::default().concurrency(Concurrency::Pool(4)).queue(100);
/// # let _ = four;
/// ```
#[derive(Clone)]
pub struct ServerOptions {
    concurrency: Concurrency,
    tasks: Option<Spawner>,
    queue: usize,
    waiting: crate::Waiting,
    on_channel: bool,
    own_channels: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            concurrency: Concurrency::default(),
            tasks: None,
            queue: 1024,
            waiting: crate::Waiting::default(),
            on_channel: false,
            own_channels: 64,
        }
    }
}

impl ServerOptions {
    /// How calls run.
    #[must_use]
    pub fn concurrency(self, concurrency: Concurrency) -> Self {
        Self {
            concurrency,
            tasks: None,
            ..self
        }
    }

    /// Calls run as tasks that `spawn` hands to a runtime, any number at once. Methods that
    /// are not `async` run there too, and should not block.
    ///
    /// A call that is given up is dropped where it waits.
    ///
    /// ```
    /// # use portolan::{Deadline, Domain, rpc};
    /// use portolan::rpc::ServerOptions;
    /// use std::time::Duration;
    ///
    /// #[portolan::service]
    /// trait Slow {
    ///     async fn square(&self, n: u64) -> u64;
    /// }
    /// struct Squares;
    /// impl Slow for Squares {
    ///     async fn square(&self, n: u64) -> u64 {
    ///         tokio::time::sleep(Duration::from_millis(10)).await;
    ///         n * n
    ///     }
    /// }
    /// # let runtime = tokio::runtime::Builder::new_multi_thread();
    /// # let runtime = { runtime }.worker_threads(1).enable_time().build()?;
    /// # let domain = Domain::private()?;
    /// let tokio = runtime.handle().clone();
    /// let options = ServerOptions::default().tasks(move |task| {
    ///     tokio.spawn(task);
    /// });
    /// let _server = rpc::serve(&domain, "slow", SlowService(Squares), &options)?;
    /// let client = SlowClient::connect(&domain, "slow", Deadline::NEVER)?;
    /// assert_eq!(client.square(5), Ok(25));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn tasks(self, spawn: impl Fn(Task) + Send + Sync + 'static) -> Self {
        Self {
            tasks: Some(Arc::new(spawn)),
            ..self
        }
    }

    /// How many calls may wait for a thread of the pool, or run in a thread or task each, before the
    /// next one is refused ([`super::RpcError::Backpressure`]). A reliable one-way call, whose
    /// client would not hear of it, waits for a place instead, until its deadline; what its
    /// client calls after it waits with it.
    #[must_use]
    pub fn queue(self, calls: usize) -> Self {
        Self {
            queue: calls,
            ..self
        }
    }

    /// Clients may also present themselves over a well-known channel
    /// ([`super::ClientOptions::over_channel`]).
    #[must_use]
    pub fn on_channel(self) -> Self {
        Self {
            on_channel: true,
            ..self
        }
    }

    /// How many of the clients that share channels ([`super::ClientOptions::sharing`]) may have
    /// some of their own at a time, because they are busy: 64. One more takes the place of the
    /// client that has called least, which shares again.
    #[must_use]
    pub fn own_channels(self, clients: usize) -> Self {
        Self {
            own_channels: clients,
            ..self
        }
    }

    /// How threads wait for calls.
    #[must_use]
    pub fn waiting(self, waiting: crate::Waiting) -> Self {
        Self { waiting, ..self }
    }
}

impl std::fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerOptions")
            .field("concurrency", &self.concurrency)
            .field("tasks", &self.tasks.is_some())
            .field("queue", &self.queue)
            .field("waiting", &self.waiting)
            .field("on_channel", &self.on_channel)
            .field("own_channels", &self.own_channels)
            .finish()
    }
}

/// What a server leaves that moves.
pub(super) struct Remains {
    pub(super) port: Option<ReceiveRight>,
    /// Clients with channels of their own, and what is read for each.
    pub(super) own: Vec<(Arc<Connection>, Reader)>,
    pub(super) shared_channels: Option<Arc<SharedChannels>>,
    /// Clients that share those.
    pub(super) sharing: Vec<Arc<Connection>>,
}

/// A service that is being served. Dropped, it ends: its clients are told.
#[must_use = "a server that is dropped ends"]
pub struct Server {
    shared: Arc<Shared>,
    door: Option<(port::Bell, JoinHandle<Option<ReceiveRight>>)>,
    member: Arc<Member>,
    /// The thread that lets in over the channel.
    listener: Option<(Interrupter, JoinHandle<()>)>,
}

pub(super) struct Shared {
    pub(super) service: Arc<dyn Serves>,
    pub(super) crew: Crew,
    waiting: crate::Waiting,
    /// Under which it is served.
    name: String,
    /// Higher for each later server.
    incarnation: u64,
    pub(super) stopping: AtomicBool,
    /// How many of those that share may have channels of their own.
    pub(super) own_channels: usize,
    connections: Mutex<Vec<Connected>>,
    /// Once a client wanted to share.
    shared_channels: Mutex<Option<Arc<SharedChannels>>>,
    // The last field: it outlives the handles in the others.
    pub(super) drain: Arc<Drain>,
}

/// A connection, and the thread that reads for it.
type Connected = (Arc<Connection>, JoinHandle<Drained<Inlet>>);

/// [`Service`], as an object; with the method that every service has.
pub(super) trait Serves: Send + Sync {
    fn name(&self) -> &'static str;
    fn run(&self, method: u32, call: &mut Dispatch<'_>) -> Result<(), NotDispatched>;
    /// To be awaited; what is not async runs when it is first polled.
    fn begin(self: Arc<Self>, method: u32, call: OwnedCall) -> MethodFuture;
    /// Whose it is, and the port under which it is known.
    fn at(&self) -> (&Member, u16);
}

/// A service, and where it is served.
struct Hosted<S> {
    service: Arc<S>,
    member: Arc<Member>,
    port: u16,
}

impl<S: Service> Serves for Hosted<S> {
    fn name(&self) -> &'static str {
        S::NAME
    }

    #[inline]
    fn at(&self) -> (&Member, u16) {
        (&self.member, self.port)
    }

    fn run(&self, method: u32, call: &mut Dispatch<'_>) -> Result<(), NotDispatched> {
        if method == Method::DESCRIBE {
            let methods = S::METHODS.iter().map(|m| (m.name(), m.layout()));
            return call.returns(&methods.collect::<Vec<_>>());
        }
        self.service.dispatch(method, call)
    }

    fn begin(self: Arc<Self>, method: u32, call: OwnedCall) -> MethodFuture {
        match Arc::clone(&self.service).dispatch_async(method, call) {
            Ok(future) => future,
            Err(call) => Box::pin(async move {
                let mut result = Vec::new();
                let mut dispatch = Dispatch {
                    arguments: &call.arguments,
                    result: &mut result,
                    parcels: call.parcels.as_ref(),
                };
                self.run(method, &mut dispatch)?;
                Ok(result)
            }),
        }
    }
}

/// Serves a service under a name.
///
/// # Errors
///
/// [`ServeError::Bind`] if another server has this name.
pub fn serve<S: Service>(
    domain: &Domain,
    name: &str,
    service: S,
    options: &ServerOptions,
) -> Result<Server, ServeError> {
    let port = domain.bind(PortOptions::named(name).synchronous())?;
    let server = Server::new(&port, name, service, options, link::now().0)?;
    server.open(domain, port, options)
}

impl Server {
    /// One that lets no client in yet.
    pub(super) fn new<S: Service>(
        port: &ReceiveRight,
        name: &str,
        service: S,
        options: &ServerOptions,
        incarnation: u64,
    ) -> Result<Self, ServeError> {
        let shared = Arc::new(Shared {
            service: Arc::new(Hosted {
                service: Arc::new(service),
                member: Arc::clone(&port.at().member),
                port: port.at().port.index,
            }),
            crew: match &options.tasks {
                Some(spawner) => Crew::of_tasks(spawner, options.queue),
                None => Crew::new(options.concurrency, options.queue)?,
            },
            waiting: options.waiting,
            name: name.to_owned(),
            incarnation,
            stopping: AtomicBool::new(false),
            own_channels: options.own_channels,
            connections: Mutex::default(),
            shared_channels: Mutex::default(),
            drain: Arc::default(),
        });
        Ok(Self {
            shared,
            door: None,
            member: Arc::clone(&port.at().member),
            listener: None,
        })
    }

    /// Lets clients in.
    pub(super) fn open(
        mut self,
        domain: &Domain,
        port: ReceiveRight,
        options: &ServerOptions,
    ) -> Result<Self, ServeError> {
        if options.on_channel {
            let channel = door::find_or_make(domain, &self.shared.name)?;
            let mut reader = channel.bind_reader(ReaderOptions::default())?;
            let interrupter = reader.interrupter();
            let (inside, domain) = (Arc::clone(&self.shared), domain.clone());
            let listener = thread::Builder::new()
                .name("portolan-rpc-listener".to_owned())
                .spawn(move || inside.keep_listening(&domain, reader))?;
            self.listener = Some((interrupter, listener));
        }
        let bell = port.bell_of_port();
        let (inside, domain) = (Arc::clone(&self.shared), domain.clone());
        let door = thread::Builder::new()
            .name("portolan-rpc-door".to_owned())
            .spawn(move || inside.keep_door(&domain, port))?;
        self.door = Some((bell, door));
        Ok(self)
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Ends its threads. `None` if calls run yet at the deadline; when it is dropped then, they
    /// and their clients are told.
    pub(super) fn dismantle(&mut self, deadline: Deadline) -> Option<Remains> {
        let port = self.shut_door();
        while !self.shared.is_quiet() {
            if deadline.has_passed() {
                return None;
            }
            thread::sleep(LOOK);
        }
        let connections = std::mem::take(&mut *self.shared.connections());
        let ended = connections.into_iter().filter_map(|(connection, thread)| {
            let inlet = thread.join().ok()?.outcome;
            Some((connection, inlet.into_reader()))
        });
        // Who shares is with the others, and without channels of its own from now on.
        let own = ended
            .filter(|(connection, _)| !connection.shares())
            .collect();
        let shared_channels = link::lock(&self.shared.shared_channels).take();
        let sharing = shared_channels
            .as_ref()
            .map(|c| c.dismantle())
            .unwrap_or_default();
        Some(Remains {
            port,
            own,
            shared_channels,
            sharing,
        })
    }

    /// No client is let in any more, and threads that wait for calls end.
    fn shut_door(&mut self) -> Option<ReceiveRight> {
        // SeqCst: before the bell, and pairs with the threads that look.
        self.shared.stopping.store(true, Ordering::SeqCst);
        let port = self.door.take().and_then(|(bell, door)| {
            bell.wake();
            door.join().ok()?
        });
        if let Some((interrupter, listener)) = self.listener.take() {
            interrupter.interrupt();
            let _ = listener.join();
        }
        for (connection, _) in &*self.shared.connections() {
            connection.interrupt();
        }
        if let Some(shared_channels) = &*link::lock(&self.shared.shared_channels) {
            shared_channels.interrupt();
        }
        port
    }

    /// Clients that are connected.
    pub fn clients(&self) -> usize {
        self.shared.clients().len()
    }

    /// Those of them that share channels, and have none of their own now.
    pub fn sharing(&self) -> usize {
        let clients = self.shared.clients();
        let shares = |c: &&Arc<Connection>| c.shares() && !c.is_promoted();
        clients.iter().filter(shares).count()
    }

    /// What the transport has seen, all clients together that are connected.
    pub fn counts(&self) -> ServerCounts {
        let mut sum = ServerCounts::default();
        for connection in self.shared.clients() {
            let one = connection.counts();
            sum.damaged += one.damaged;
            sum.repeated += one.repeated;
            sum.too_late += one.too_late;
            sum.sent_again += one.sent_again;
            sum.refused += one.refused;
        }
        sum
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let member = &self.member;
        if member.present().is_err() {
            // A forked child has none of its threads, and its clients are its parent's.
            return;
        }
        self.shared.drain.begin(&member.drains);
        drop(self.shut_door());
        for (connection, _) in self.shared.connections().drain(..) {
            connection.end();
        }
        if let Some(shared_channels) = link::lock(&self.shared.shared_channels).take() {
            shared_channels.end();
        }
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Vec<Connected>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The name under which it is served.
    pub(super) fn served_as(&self) -> &str {
        &self.name
    }

    /// The name of the service, and the incarnation of the server.
    pub(super) fn identity(&self) -> (&'static str, u64) {
        (self.service.name(), self.incarnation)
    }

    #[inline]
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Whether a stopping server is quiet: all reading threads have ended, and no call of a living
    /// client runs.
    fn is_quiet(&self) -> bool {
        let shared_channels = self.there();
        let members = shared_channels
            .as_ref()
            .map(|c| c.members())
            .unwrap_or_default();
        shared_channels.is_none_or(|c| c.has_ended())
            && members.iter().all(|member| member.is_idle())
            && self
                .connections()
                .iter()
                .all(|c| c.1.is_finished() && c.0.is_idle())
    }

    /// All connections, shared and dedicated.
    pub(super) fn clients(&self) -> Vec<Arc<Connection>> {
        let sharing = self.there().map(|c| c.members()).unwrap_or_default();
        let connections = self.connections();
        let own = connections
            .iter()
            .filter(|(connection, thread)| !connection.shares() && !thread.is_finished());
        let own = own.map(|(connection, _)| Arc::clone(connection));
        sharing.into_iter().chain(own).collect()
    }

    /// The channels that clients share; made for the first client that shares.
    pub(super) fn shared_channels(
        self: &Arc<Self>,
        domain: &Domain,
    ) -> Option<Arc<SharedChannels>> {
        let mut shared_channels = link::lock(&self.shared_channels);
        if shared_channels.is_none() {
            *shared_channels = SharedChannels::open(domain, self).ok();
        }
        shared_channels.clone()
    }

    /// The shared channels, if a client has ever shared.
    pub(super) fn there(&self) -> Option<Arc<SharedChannels>> {
        link::lock(&self.shared_channels).clone()
    }

    /// Drops shared channels that are spoiled; the next client that shares gets new ones.
    pub(super) fn abandon(&self, spoiled: &SharedChannels) {
        let mut shared_channels = link::lock(&self.shared_channels);
        shared_channels.take_if(|there| std::ptr::eq(&raw const **there, spoiled));
    }

    /// Takes the shared channels of a server that has moved here.
    pub(super) fn inherit(&self, shared_channels: Arc<SharedChannels>) {
        *link::lock(&self.shared_channels) = Some(shared_channels);
    }

    /// Whether a client of this session is connected.
    pub(super) fn knows(&self, session: u64) -> bool {
        let connections = self.connections();
        connections.iter().any(|(c, _)| c.session() == session)
    }

    /// Begins to serve a client over channels of its own.
    pub(super) fn connect(
        self: &Arc<Self>,
        protocol: Protocol,
        reader: Reader,
        writer: Writer,
        parcels: Option<Arc<Parcels>>,
        period: Duration,
    ) -> Option<()> {
        let connection = Connection::new(protocol, Ways::own(writer), None, parcels, period);
        self.read_for(Arc::new(connection), reader, None)
    }

    /// Begins a thread that reads for a client; one that shares is answered over `promoted`.
    pub(super) fn read_for(
        self: &Arc<Self>,
        connection: Arc<Connection>,
        mut reader: Reader,
        promoted: Option<Writer>,
    ) -> Option<()> {
        reader.set_waiting(self.waiting);
        // A client that has its writer no more had left before this reader was bound.
        reader.tell_of_earlier_writers();
        let mut reader = Inlet::own(reader);
        let which = connection.reads_with(&mut reader, promoted);
        if connection.shares() {
            mark!("serve.promoted");
        }
        let (shared, own) = (Arc::clone(self), Arc::clone(&connection));
        let run = move || own.run(&shared, reader, which);
        // Locked, so that it is there when the thread looks for it.
        let mut connections = self.connections();
        let Ok(thread) = self.drain.spawn("portolan-rpc", run) else {
            connection.reads_no_more(which);
            return None;
        };
        connections.push((connection, thread));
        Some(())
    }

    /// What the thread that calls this has read for goes with it; of a server that moves it
    /// goes along.
    pub(super) fn forget_this_thread(&self) {
        if !self.is_stopping() {
            let own = thread::current().id();
            self.connections().retain(|c| c.1.thread().id() != own);
        }
    }
}
