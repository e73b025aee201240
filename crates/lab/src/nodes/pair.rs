//! Two linked nodes and their programs, by mode; the near program is this process.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use portolan::{Access, AllocateError, Deadline, Domain, Message, SendRight, Waiting};
use portolan_measure::Result as Measured;
use portolan_measure::child::Child;
use portolan_measure::cpus::Cpus;
use portolan_measure::run::Run;
use portolan_measure::sampler::Sampler;
use portolan_transport::clock::{Clock, SystemClock};
use portolan_transport::{Class, Connection, State, StreamId};

use super::engine::{self, system, wait};
use super::far::{self, ANSWER, Brief, LAST, Order, Place, QUIET, SAY, Said, What};
use super::transfer::{Frames, HEAD, Inbound, Outbound, head};
use super::{Mode, PATIENCE, Wire};
use crate::error::{LabError, Result};

/// Bytes of a null message where there is no header.
const NULL: usize = 64;
/// How long a sender without memory waits before it looks for some again.
const PAUSE: Duration = Duration::from_micros(50);

/// A name that nothing else of this run has.
pub(crate) fn unique(what: &str) -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only to tell them apart.
    let made = MADE.fetch_add(1, Ordering::Relaxed);
    format!("lab-{what}-{}-{made}", std::process::id())
}

/// A domain of this run, which this process hosts.
pub(crate) fn domain(limit: u64) -> Result<Domain> {
    let builder = Domain::builder(&unique("node")).space_name("lab near");
    let joined = builder.limit(limit).deadline(PATIENCE).join();
    joined.map_err(LabError::library("making a domain of this experiment"))
}

/// Starts a further process. It is watched from now on: its death ends this command.
pub(crate) fn start(
    role: &str,
    cpu: usize,
    what: What,
    descriptors: &[std::os::fd::BorrowedFd<'_>],
) -> Result<Child> {
    let brief = crate::child::Brief::Nodes(Brief { cpu, what });
    Ok(Child::start(role, &brief, descriptors)?)
}

/// What it says next must be this.
pub(crate) fn expect(child: &mut Child, wanted: fn(&Said) -> bool) -> Result<Said> {
    let said: Said = child.expect()?;
    match wanted(&said) {
        true => Ok(said),
        false => Err(failed(format!("a further process said {said:?}"))),
    }
}

pub(crate) fn failed<E: Into<Box<dyn std::error::Error + Send + Sync>>>(error: E) -> LabError {
    LabError::library("measuring between nodes")(error)
}

/// A server, or another program, that has bound its ports.
pub(crate) fn program(role: &str, cpu: usize, what: What) -> Result<Child> {
    let mut child = start(role, cpu, what, &[])?;
    expect(&mut child, |said| matches!(said, Said::Bound))?;
    child.watch()?;
    Ok(child)
}

/// A node with its domain, and those that are linked with it.
pub(crate) struct Star {
    /// The first one, which all others are linked with.
    pub(crate) hub: Node,
    pub(crate) leaves: Vec<Node>,
}

/// A node: its process, and the domain that it spans.
pub(crate) struct Node {
    pub(crate) process: Child,
    pub(crate) domain: Domain,
}

impl Star {
    /// So many nodes around one, in a mode, all linked alike.
    pub(crate) fn start(
        mode: Mode,
        wire: Wire,
        leaves: u8,
        limit: u64,
        cpus: [usize; 2],
    ) -> Result<Self> {
        let mut begun = Begun::new(mode, wire, leaves, limit, cpus)?;
        for at in 0..leaves {
            // One after the other: the hub knows them by their order.
            begun.add(at + 2)?;
            begun.linked()?;
        }
        begun.finish()
    }

    /// So many stars of two nodes. They start side by side: links take their time.
    pub(crate) fn pairs(
        mode: Mode,
        wire: Wire,
        count: u8,
        limit: u64,
        cpus: [usize; 2],
    ) -> Result<Vec<Self>> {
        let begun = (0..count).map(|_| Begun::new(mode, wire, 1, limit, cpus));
        let mut begun = begun.collect::<Result<Vec<_>>>()?;
        begun.iter_mut().try_for_each(|star| star.add(2))?;
        begun.iter_mut().try_for_each(Begun::linked)?;
        begun.into_iter().map(Begun::finish).collect()
    }

    /// Ends them all. Each is told before one has ended, or the others would take it for a failure.
    pub(crate) fn finish(self) -> Result<()> {
        let Self { hub, leaves } = self;
        let mut processes = vec![hub.process];
        processes.extend(leaves.into_iter().map(|node| node.process));
        finish(processes)
    }
}

/// A star that is being started.
struct Begun {
    mode: Mode,
    wire: Wire,
    limit: u64,
    leaf_cpu: usize,
    hub: Node,
    /// Where the hub listens, once it has said so.
    address: Option<SocketAddr>,
    leaves: Vec<Node>,
}

impl Begun {
    /// Starts the hub, which is to have so many leaves.
    fn new(
        mode: Mode,
        wire: Wire,
        leaves: u8,
        limit: u64,
        [hub_cpu, leaf_cpu]: [usize; 2],
    ) -> Result<Self> {
        let hub = Self::node(mode, wire, limit, hub_cpu, |brief| brief.links = leaves)?;
        Ok(Self {
            mode,
            wire,
            limit,
            leaf_cpu,
            hub,
            address: None,
            leaves: Vec::new(),
        })
    }

    /// Starts a node with a domain: the first one, with one link, unless `but` says otherwise.
    fn node(
        mode: Mode,
        wire: Wire,
        limit: u64,
        cpu: usize,
        but: impl FnOnce(&mut engine::Brief),
    ) -> Result<Node> {
        let domain = domain(limit)?;
        let mut brief = engine::Brief {
            number: 1,
            local: domain.name().to_owned(),
            mode,
            wire,
            connect: None,
            links: 1,
        };
        but(&mut brief);
        let process = start("node", cpu, What::Node(brief), &[])?;
        Ok(Node { process, domain })
    }

    /// Starts a leaf, the node of this number.
    fn add(&mut self, number: u8) -> Result<()> {
        if self.address.is_none() {
            let said = expect(&mut self.hub.process, |it| matches!(it, Said::Listens(_)))?;
            if let Said::Listens(address) = said {
                self.address = Some(address);
            }
        }
        let leaf = Self::node(self.mode, self.wire, self.limit, self.leaf_cpu, |brief| {
            (brief.number, brief.connect) = (number, self.address);
        })?;
        self.leaves.push(leaf);
        Ok(())
    }

    /// Waits until the last leaf is linked.
    fn linked(&mut self) -> Result<()> {
        self.leaves.last_mut().map_or(Ok(()), Node::is_linked)
    }

    /// Waits until the hub is linked with all.
    fn finish(mut self) -> Result<Star> {
        self.hub.is_linked()?;
        Ok(Star {
            hub: self.hub,
            leaves: self.leaves,
        })
    }
}

impl Node {
    /// Waits until it is linked with all; its death ends this command from then on.
    fn is_linked(&mut self) -> Result<()> {
        expect(&mut self.process, |said| matches!(said, Said::Linked))?;
        Ok(self.process.watch()?)
    }
}

/// Ends processes of which none may end before all have been told.
pub(crate) fn finish(processes: Vec<Child>) -> Result<()> {
    for process in processes {
        process.dismiss()?;
    }
    Ok(())
}

/// A way for bytes from this process to another one, by nodes.
pub(crate) enum Way {
    Raw(Raw),
    Relay(Relayed),
    Engines(Box<Engines>),
}

impl Way {
    /// Starts its processes: what is near on our processor, what is far on another.
    pub(crate) fn start(mode: Mode, wire: Wire, limit: u64, cpus: &Cpus) -> Result<Self> {
        let (near, away) = (cpus.ours, cpus.peer(0));
        Ok(match mode {
            Mode::Bare => Self::Raw(Raw::start(wire, Frames::None, away)?),
            Mode::Kkt => Self::Raw(Raw::start(wire, Frames::Heads, away)?),
            Mode::Relay => Self::Relay(Relayed::start(wire, [near, away])?),
            Mode::StopAndWait { .. } | Mode::Dipc => {
                Self::Engines(Box::new(Engines::start(mode, wire, limit, [near, away])?))
            }
        })
    }

    /// Sends so many messages, each with one extent of so many bytes, as fast as they are taken; the
    /// time until all have come.
    pub(crate) fn stream(&mut self, bytes: usize, count: u64) -> Result<Duration> {
        match self {
            Self::Raw(raw) => raw.stream(bytes, count),
            Self::Relay(relay) => relay.stream(bytes, count),
            Self::Engines(engines) => engines.stream(bytes, count),
        }
    }

    /// Null messages there and back, one after the other, for so long; the time of each.
    pub(crate) fn rounds(
        &mut self,
        budget: Duration,
        mut each: impl FnMut(Duration),
    ) -> Result<()> {
        let begun = Instant::now();
        loop {
            match self {
                Self::Raw(raw) => each(raw.round()?),
                Self::Relay(relay) => each(relay.round()?),
                Self::Engines(engines) => each(asked(&engines.echo, &mut engines.message)?),
            }
            if begun.elapsed() >= budget {
                return Ok(());
            }
        }
    }

    pub(crate) fn finish(self) -> Result<()> {
        match self {
            Self::Raw(raw) => Ok(raw.far.dismiss()?),
            Self::Relay(relay) => relay.finish(),
            Self::Engines(engines) => engines.finish(),
        }
    }
}

/// The time of one null request.
fn asked(right: &SendRight, message: &mut Message) -> Result<Duration> {
    let begun = Instant::now();
    right
        .request_reply_in_place(message, Access::Later, PATIENCE, Waiting::Sleep)
        .map_err(failed)?;
    Ok(begun.elapsed())
}

/// Null messages of a way, as a row that is measured beside others.
pub(crate) struct Rounds(pub(crate) Way);

/// Null requests within one domain.
pub(crate) struct Local {
    pub(crate) right: SendRight,
    message: Message,
    server: Vec<Child>,
    /// The domain, where this process alone is a member beside the server.
    _domain: Domain,
}

impl Local {
    /// Of a server on the same processor, in this domain.
    pub(crate) fn start(domain: &Domain, cpu: usize) -> Result<Self> {
        let (place, server) = echo(domain, cpu)?;
        Self::asks(domain, &place.port, vec![server])
    }

    /// The same by a proxy port on the way.
    pub(crate) fn by_proxy(domain: &Domain, cpu: usize) -> Result<Self> {
        let (place, server) = echo(domain, cpu)?;
        let at = Place {
            domain: place.domain,
            port: unique("proxy"),
        };
        let proxy = What::Forward {
            at: at.clone(),
            to: place.port,
        };
        let proxy = program("proxy", cpu, proxy)?;
        Self::asks(domain, &at.port, vec![proxy, server])
    }

    fn asks(domain: &Domain, port: &str, server: Vec<Child>) -> Result<Self> {
        Ok(Self {
            right: domain.connect(port, PATIENCE).map_err(failed)?,
            message: Message::default(),
            server,
            _domain: domain.clone(),
        })
    }
}

/// A server of null requests.
fn echo(domain: &Domain, cpu: usize) -> Result<(Place, Child)> {
    let place = Place {
        domain: domain.name().to_owned(),
        port: unique("echo"),
    };
    let what = What::Echo {
        ports: vec![place.clone()],
        threads: 1,
    };
    let child = program("server", cpu, what)?;
    Ok((place, child))
}

impl Run for Rounds {
    fn rounds(&mut self, rounds: u64) -> Measured<()> {
        for _ in 0..rounds {
            let done = self.0.rounds(Duration::ZERO, |_| {});
            done.map_err(LabError::into_measure)?;
        }
        Ok(())
    }

    fn slice(&mut self, budget: Duration, sampler: &mut Sampler) -> Measured<()> {
        let done = self.0.rounds(budget, |took| sampler.typical(took, 1));
        done.map_err(LabError::into_measure)
    }

    fn finish(self: Box<Self>) -> Measured<()> {
        self.0.finish().map_err(LabError::into_measure)
    }
}

impl Run for Local {
    fn rounds(&mut self, rounds: u64) -> Measured<()> {
        for _ in 0..rounds {
            asked(&self.right, &mut self.message).map_err(LabError::into_measure)?;
        }
        Ok(())
    }

    fn slice(&mut self, budget: Duration, sampler: &mut Sampler) -> Measured<()> {
        let begun = Instant::now();
        loop {
            let took = asked(&self.right, &mut self.message).map_err(LabError::into_measure)?;
            sampler.typical(took, 1);
            if begun.elapsed() >= budget {
                return Ok(());
            }
        }
    }

    fn finish(self: Box<Self>) -> Measured<()> {
        // They wait for requests alone: they are killed.
        drop(self.server);
        Ok(())
    }
}

/// Two engines, and programs in their domains.
pub(crate) struct Engines {
    star: Star,
    programs: [Child; 2],
    sink: SendRight,
    echo: SendRight,
    message: Message,
}

impl Engines {
    fn start(mode: Mode, wire: Wire, limit: u64, [near, away]: [usize; 2]) -> Result<Self> {
        let star = Star::start(mode, wire, 1, limit, [near, away])?;
        let there = &star.leaves[0].domain;
        let place = Place {
            domain: there.name().to_owned(),
            port: unique("sink"),
        };
        let sink = program("receiver", away, What::Sink(place.clone()))?;
        let (answers, echo) = echo(there, away)?;
        let here = &star.hub.domain;
        Ok(Self {
            sink: here.connect(&place.port, PATIENCE).map_err(failed)?,
            echo: here.connect(&answers.port, PATIENCE).map_err(failed)?,
            message: Message::default(),
            programs: [sink, echo],
            star,
        })
    }

    /// The domain of the near node.
    pub(crate) fn here(&self) -> &Domain {
        &self.star.hub.domain
    }

    fn stream(&mut self, bytes: usize, count: u64) -> Result<Duration> {
        let begun = Instant::now();
        for number in 1..=count {
            let header = if number == count { LAST } else { &[] };
            let mut message = Message::new(header).map_err(failed)?;
            let extent = allocate(self.here(), bytes)?;
            message
                .push(extent)
                .map_err(|refused| failed(refused.why))?;
            let sent = self.sink.send(message, Deadline::after(PATIENCE));
            sent.map_err(|refused| failed(refused.why))?;
        }
        expect(&mut self.programs[0], |said| matches!(said, Said::Done))?;
        Ok(begun.elapsed())
    }

    fn finish(self) -> Result<()> {
        drop((self.sink, self.echo));
        // A receiver knows no end: it is killed.
        drop(self.programs);
        self.star.finish()
    }
}

/// An extent, as soon as there is memory for it: what was sent before has it until it is
/// acknowledged.
fn allocate(domain: &Domain, bytes: usize) -> Result<portolan::Extent> {
    let end = Instant::now() + PATIENCE;
    loop {
        match domain.allocate(bytes) {
            Ok(extent) => return Ok(extent),
            Err(AllocateError::OutOfPages { .. }) if Instant::now() < end => {
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

/// The near end of bare streams and of KKT.
pub(crate) struct Raw {
    far: Child,
    clock: Arc<dyn Clock>,
    connection: Box<dyn Connection>,
    on: StreamId,
    frames: Frames,
    memory: Vec<u8>,
    /// The far end answers whatever comes.
    answers: bool,
}

impl Raw {
    fn start(wire: Wire, frames: Frames, cpu: usize) -> Result<Self> {
        let heads = frames == Frames::Heads;
        let mut far = start("far end", cpu, What::Raw { wire, heads }, &[])?;
        let Said::Listens(address) = expect(&mut far, |it| matches!(it, Said::Listens(_)))? else {
            return Err(failed("the far end does not listen"));
        };
        far.watch()?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let mut connection = far::dial(wire, address, &clock)?;
        Ok(Self {
            on: connection.open(Class::Bulk).map_err(failed)?,
            connection,
            clock,
            frames,
            memory: Vec::new(),
            answers: false,
            far,
        })
    }

    fn order(&mut self, bytes: usize, count: u64, answers: bool) -> Result<()> {
        self.answers = answers;
        if self.memory.len() < bytes {
            self.memory.resize(bytes, 1);
        }
        let order = Order {
            bytes,
            count,
            answers,
        };
        Ok(self.far.send(&order)?)
    }

    fn stream(&mut self, bytes: usize, count: u64) -> Result<Duration> {
        self.order(bytes, count, false)?;
        let begun = Instant::now();
        let mut out = Outbound::new(self.on, self.frames, count);
        loop {
            // The far end does not end when its connection does, so that is noticed here.
            if matches!(self.connection.progress(), State::Over | State::Failed) {
                return Err(failed("the connection has ended"));
            }
            out.step(&mut *self.connection, &self.memory[..bytes])
                .map_err(failed)?;
            let fds = [self.far.control().as_fd(), self.connection.descriptor()];
            let ready = wait(&fds, self.connection.wake_at(), &*self.clock)?;
            if ready.first() == Some(&true) {
                expect(&mut self.far, |said| matches!(said, Said::Done))?;
                return Ok(begun.elapsed());
            }
        }
    }

    fn round(&mut self) -> Result<Duration> {
        if !self.answers {
            // Until another order comes.
            self.order(NULL, u64::MAX, true)?;
        }
        let begun = Instant::now();
        let mut out = Outbound::new(self.on, self.frames, 1);
        let mut back = Inbound::new(self.on, self.frames);
        loop {
            self.connection.progress();
            let memory = &mut self.memory[..NULL];
            out.step(&mut *self.connection, memory).map_err(failed)?;
            if back.step(&mut *self.connection, memory).map_err(failed)? {
                return Ok(begun.elapsed());
            }
            let fds = [self.connection.descriptor()];
            wait(&fds, self.connection.wake_at(), &*self.clock)?;
        }
    }
}

/// A program by its proxy, another proxy, and the program there.
pub(crate) struct Relayed {
    socket: UnixStream,
    memory: Vec<u8>,
    proxies: Vec<Child>,
    program: Child,
}

impl Relayed {
    fn start(wire: Wire, [near, away]: [usize; 2]) -> Result<Self> {
        let doing = "making a proxy's sockets";
        let pair = || UnixStream::pair().map_err(system(doing));
        let ((socket, here), (there, beside)) = (pair()?, pair()?);
        let relay = |connect| What::Relay { wire, connect };
        let owned = |socket: UnixStream| OwnedFd::from(socket);
        let (here, there, beside) = (owned(here), owned(there), owned(beside));
        let mut far = start("far proxy", away, relay(None), &[there.as_fd()])?;
        let Said::Listens(address) = expect(&mut far, |it| matches!(it, Said::Listens(_)))? else {
            return Err(failed("a proxy does not listen"));
        };
        let mut first = start("near proxy", near, relay(Some(address)), &[here.as_fd()])?;
        for proxy in [&mut far, &mut first] {
            expect(proxy, |said| matches!(said, Said::Linked))?;
            proxy.watch()?;
        }
        let mut program = start("receiver", away, What::Beside, &[beside.as_fd()])?;
        expect(&mut program, |said| matches!(said, Said::Bound))?;
        program.watch()?;
        Ok(Self {
            socket,
            memory: Vec::new(),
            proxies: vec![first, far],
            program,
        })
    }

    fn send(&mut self, wanted: u64, bytes: usize) -> Result<()> {
        if self.memory.len() < bytes {
            self.memory.resize(bytes, 1);
        }
        let sent = self.socket.write_all(&head(wanted, bytes));
        let sent = sent.and_then(|()| self.socket.write_all(&self.memory[..bytes]));
        sent.map_err(system("a proxy's socket"))
    }

    fn stream(&mut self, bytes: usize, count: u64) -> Result<Duration> {
        let begun = Instant::now();
        for number in 1..=count {
            self.send(if number == count { SAY } else { QUIET }, bytes)?;
        }
        expect(&mut self.program, |said| matches!(said, Said::Done))?;
        Ok(begun.elapsed())
    }

    fn round(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        self.send(ANSWER, NULL)?;
        let mut answer = [0; HEAD + NULL];
        let read = self.socket.read_exact(&mut answer);
        read.map_err(system("a proxy's socket"))?;
        Ok(begun.elapsed())
    }

    fn finish(self) -> Result<()> {
        let mut processes = self.proxies;
        processes.push(self.program);
        finish(processes)
    }
}

/// Bytes of memory that a process has had at once, as the system counts them.
pub(crate) fn peak(process: &Child) -> Result<u64> {
    let doing = "reading another process's status";
    let path = format!("/proc/{}/status", process.id());
    let status = std::fs::read_to_string(path).map_err(system(doing))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let words = line.and_then(|line| line.split_whitespace().next());
    let kibibytes: Option<u64> = words.and_then(|word| word.parse().ok());
    let kibibytes = kibibytes.ok_or_else(|| system(doing)(ErrorKind::InvalidData.into()))?;
    Ok(kibibytes << 10)
}
