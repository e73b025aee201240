//! A node's engine in a process of its own: the same engine as the daemon's, over TLS, or over plain
//! TCP.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use portolan::Domain;
use portolan_node::Result;
use portolan_node::authority::{self, Authority};
use portolan_node::config;
use portolan_node::engine::{Engine, Happened};
use portolan_node::state::State;
use portolan_proto::node::Settings;
use portolan_sys::process::{On, Poller, poll, random};
use portolan_transport::clock::{Clock, SystemClock};
use portolan_transport::tls::{LinkOptions, links};
use portolan_transport::{
    Address, Connection, Listener, Moment, NodeId, Peer, State as Progress, Tcp, Transport,
};

use crate::{EngineArgs, Over, SpokesArgs, refused, say, system};

/// The name that all of them have for the domain.
const DOMAIN: &str = "bench";
/// Their cluster.
const CLUSTER: [u8; 16] = *b"portolan bench\0\0";
/// Longer than any part of the benchmark: a machine that is busy, and an engine that is stepped through,
/// are silent for long.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long after its peer an engine may be told to end.
const ENDING: Duration = Duration::from_secs(5);

/// Keys of the descriptor that ends an engine, and of where links come from: the first of those.
const END: u64 = Engine::OTHERS;
const DOOR: u64 = Engine::OTHERS | 1;

/// What an engine of the benchmark has for its links.
struct Place {
    args: EngineArgs,
    transport: Tcp,
    id: NodeId,
    clock: Arc<dyn Clock>,
}

/// The id of an engine that shows no certificate.
fn plain(number: u8) -> NodeId {
    NodeId([number; 16])
}

/// The whole life of one.
pub(crate) fn run(args: &EngineArgs) -> Result<()> {
    let stdin = std::io::stdin();
    Place::new(args)?.live(Some(stdin.as_fd()), say)
}

/// One after another, so that the engine which they connect to knows who comes; then all of them,
/// each in a thread.
pub(crate) fn spokes(args: &SpokesArgs) -> Result<()> {
    let (says, hears): (Sender<Result<()>>, Receiver<_>) = channel();
    for number in 0..args.count {
        let its = EngineArgs {
            over: Over::Tcp,
            local: format!("{}.{number}", args.local),
            // The first is the one that they connect to.
            number: number + 2,
            connect: vec![args.connect],
            links: 1,
            keys: None,
        };
        let says = says.clone();
        let spoke = std::thread::Builder::new().name(format!("spoke {number}"));
        let run = move || {
            let linked = says.clone();
            let lived = Place::new(&its).and_then(|place| {
                place.live(None, move |_| {
                    // Who hears it has ended with the process.
                    let _ = linked.send(Ok(()));
                    Ok(())
                })
            });
            let _ = says.send(lived);
        };
        spoke.spawn(run).map_err(system("cannot start a thread"))?;
        hear(&hears)?;
    }
    say("linked")?;
    // One that ends was not told to.
    std::thread::spawn(move || {
        if let Ok(Err(error)) = hears.recv() {
            error.report();
            std::process::exit(error.exit_code().into());
        }
    });
    let waited = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    waited.map_err(system("cannot hear `portolan bench`"))?;
    Ok(())
}

/// The next thing that an engine of this process says.
fn hear(from: &Receiver<Result<()>>) -> Result<()> {
    let gone = |_| refused("an engine")(&"it has ended");
    from.recv().map_err(gone)?
}

impl Place {
    fn new(args: &EngineArgs) -> Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let (transport, id) = match (args.over, &args.keys) {
            (Over::Tcp, _) => (Tcp::new(Arc::clone(&clock)), plain(args.number)),
            (Over::Tls, Some(keys)) => {
                let now = Moment {
                    seconds: clock.of_day().as_secs(),
                };
                let state = identity(keys, args.number, now)?;
                let cluster = authority::cluster(&state, now)?;
                let transport = links(&cluster, LinkOptions::default(), Arc::clone(&clock));
                (transport, cluster.node())
            }
            (Over::Tls, None) => return Err(refused("--over tls")(&"it needs --keys")),
        };
        Ok(Self {
            args: args.clone(),
            transport,
            id,
            clock,
        })
    }

    fn engine(&self) -> Result<Engine> {
        let mut settings = Settings::new(self.id, 1, CLUSTER);
        settings.run = random().map_err(system("cannot draw a number"))?;
        settings.silent_after = PATIENCE;
        settings.dead_after = Some(2 * PATIENCE);
        let name = format!("bench{}", self.args.number);
        let mut engine = Engine::new(settings, &name).map_err(|why| refused("an engine")(&why))?;
        let domain = Domain::builder(&self.args.local)
            .always_open()
            .space_name("node")
            .join()
            .map_err(|why| refused("the domain of the benchmark")(&why))?;
        let span = config::Span {
            domain: DOMAIN.to_owned(),
            local: self.args.local.clone(),
            nodes: vec!["*".to_owned()],
            ports: Vec::new(),
        };
        let spanned = engine.span(span, domain);
        spanned.map_err(|why| refused("the domain of the benchmark")(&why))?;
        Ok(engine)
    }

    /// Listens or connects, says when it is linked with all, and goes on until `end` is readable.
    fn live(
        self,
        end: Option<BorrowedFd<'_>>,
        mut says: impl FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        let mut engine = self.engine()?;
        let mut door = self.door(&mut says)?;
        let mut linked = BTreeSet::new();
        let mut poller = Poller::new().map_err(system("cannot wait"))?;
        loop {
            let now = self.clock.now();
            door.step(&mut engine, now)?;
            engine.step(self.clock.now());
            let mut lost = None;
            for happened in engine.happened() {
                match happened {
                    Happened::Linked { node, .. } => {
                        linked.insert(node);
                        if linked.len() == usize::from(self.args.links) {
                            // Nobody else comes in.
                            door = Door::default();
                            says("linked")?;
                        }
                    }
                    Happened::Lost { why, .. }
                    | Happened::Refused { why, .. }
                    | Happened::Over { why, .. }
                    | Happened::SpanLost { why, .. } => lost = Some(why),
                    _ => {}
                }
            }
            if let Some(why) = lost {
                return match end {
                    Some(end) if is_ending(end)? => Ok(()),
                    _ => Err(refused("a link")(&why)),
                };
            }
            let ends = end.into_iter().map(|end| (END, end));
            let doors = (DOOR..).zip(door.descriptors());
            let others = ends.chain(doors);
            let mut on: Vec<(u64, On<'_>)> =
                others.map(|(key, fd)| (key, On::Descriptor(fd))).collect();
            let wakes = engine.wake_at().into_iter().chain(door.wake_at());
            let wake = wakes.min();
            let by = wake.map(|at| Instant::now() + at.saturating_sub(self.clock.now()));
            let expects_soon = engine.expects_soon();
            let by = engine.arm(&mut on).into_iter().chain(by).min();
            let fired = match expects_soon {
                true => poller.look(&on, by),
                false => poller.poll(&on, by),
            };
            let fired = fired.map_err(system("cannot wait"))?;
            engine.fired(&fired);
            if fired.contains(&END) {
                return Ok(());
            }
        }
    }

    fn door(&self, says: &mut impl FnMut(&str) -> Result<()>) -> Result<Door> {
        let mut door = Door::default();
        let addresses = &self.args.connect;
        if addresses.len() < usize::from(self.args.links) {
            let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let listener = self.transport.listen(&Address::Internet(any))?;
            says(&format!("listens {}", listener.address()))?;
            // Those before it have their own numbers.
            door.listens = Some((listener, self.args.number));
        }
        for (number, address) in (1..).zip(addresses) {
            let connection = self.transport.connect(&Address::Internet(*address))?;
            door.connects.push((connection, number));
        }
        Ok(door)
    }
}

/// Whether the benchmark ends, which it tells one engine after another.
fn is_ending(end: BorrowedFd<'_>) -> Result<bool> {
    let ready = poll(&[end], Some(Instant::now() + ENDING));
    let ready = ready.map_err(system("cannot wait"))?;
    Ok(ready.iter().any(|end| end.any()))
}

/// Where links come from, until all are there.
#[derive(Default)]
struct Door {
    /// From others, of whom the last one that came has this number.
    listens: Option<(Box<dyn Listener>, u8)>,
    /// From here, to those of these numbers.
    connects: Vec<(Box<dyn Connection>, u8)>,
}

impl Door {
    fn step(&mut self, engine: &mut Engine, now: Duration) -> Result<()> {
        if let Some((listener, last)) = &mut self.listens {
            while let Some(connection) = listener.accept()? {
                *last += 1;
                // They come in their order.
                let who = who(&*connection, plain(*last));
                engine.adopt(now, connection, who, false)?;
            }
        }
        for (mut connection, number) in std::mem::take(&mut self.connects) {
            match connection.progress() {
                Progress::Up => {
                    let who = who(&*connection, plain(number));
                    engine.adopt(now, connection, who, true)?;
                }
                Progress::Connecting => self.connects.push((connection, number)),
                Progress::Over | Progress::Failed => {
                    let why = connection.failure().map(ToString::to_string);
                    let why = why.unwrap_or_else(|| "it was closed".to_owned());
                    return Err(refused("a link")(&why));
                }
            }
        }
        Ok(())
    }

    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listens = self.listens.iter().map(|(it, _)| it.descriptor());
        listens.chain(self.connects.iter().map(|(it, _)| it.descriptor()))
    }

    fn wake_at(&self) -> Option<Duration> {
        let listens = self.listens.iter().filter_map(|(it, _)| it.wake_at());
        let connects = self.connects.iter().filter_map(|(it, _)| it.wake_at());
        listens.chain(connects).min()
    }
}

/// Who is at the other end: by its certificate, or as things are known where nobody shows one.
fn who(connection: &dyn Connection, plain: NodeId) -> NodeId {
    match connection.peer() {
        Peer::Node(node) => node,
        Peer::Directory(_) | Peer::Newcomer | Peer::Unknown => plain,
    }
}

/// A state directory with the identity of the engine of this number. The first one's has the
/// authority's key, by which the others sign their own.
fn identity(keys: &Path, number: u8, now: Moment) -> Result<State> {
    let at = |number: u8| State::at(&keys.join(number.to_string()));
    let (state, name) = (at(number)?, format!("bench{number}"));
    if number == 1 {
        authority::make_first(&state, &name, now)?;
        return Ok(state);
    }
    let first = at(1)?;
    let (key, _) = authority::request(&name)?;
    let certificate = Authority::load(&first)?.sign(&name, &key, now)?;
    authority::keep(
        &state,
        &key,
        &certificate,
        &authority::authorities(&first, now)?,
    )?;
    Ok(state)
}
