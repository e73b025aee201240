//! Further processes of the experiments on nodes: nodes, programs in their domains, and what is at
//! the other end of bare streams and proxies.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan::proxy::{ProxyPort, Taken};
use portolan::{Access, Deadline, Domain, Message, PortOptions, ReceiveRight, Waiting};
use portolan_measure::child::Control;
use portolan_measure::{MeasureError, cpus};
use portolan_transport::clock::{Clock, SystemClock};
use portolan_transport::{Address, Class, Connection, State, TransportError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::engine::{self, system, wait};
use super::relay::{Broken, Relay};
use super::transfer::{Frames, HEAD, Inbound, Outbound, head, read};
use super::{PATIENCE, Wire};
use crate::error::{LabError, Result};

/// The header of the last message of a lot.
pub(crate) const LAST: &[u8] = b"last";
/// Numbers in a relayed transfer's head: nothing is wanted; an answer of as many bytes; word that
/// the lot has come.
pub(crate) const QUIET: u64 = 0;
pub(crate) const ANSWER: u64 = 1;
pub(crate) const SAY: u64 = 2;

/// What a process is to do, and on which processor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Brief {
    pub(crate) cpu: usize,
    pub(crate) what: What,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum What {
    /// Be a node.
    Node(engine::Brief),
    /// Answer requests at ports of domains, each with so many threads.
    Echo { ports: Vec<Place>, threads: u32 },
    /// Receive messages, and say when the last of a lot has come.
    Sink(Place),
    /// Receive messages and keep their rights; at the last of a lot, drop these and say so.
    Keep(Place),
    /// Receive requests at a proxy port, ask the port of that name in the same domain, and answer.
    Forward { at: Place, to: String },
    /// Receive a message in so many nanoseconds, and count those of each sender for so long.
    Count {
        at: Place,
        senders: u32,
        each_nanos: u64,
        millis: u64,
    },
    /// Send to a port of domains as fast as they take it, with so many threads in each.
    Send {
        domains: Vec<String>,
        port: String,
        threads: u32,
    },
    /// The far end of bare streams and of KKT.
    Raw { wire: Wire, heads: bool },
    /// A user-level proxy. Its descriptor is the programs' socket.
    Relay {
        wire: Wire,
        connect: Option<SocketAddr>,
    },
    /// A program beside a proxy, by the socket that is its descriptor.
    Beside,
}

/// A port of a domain, by its name on this machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) domain: String,
    pub(crate) port: String,
}

/// Process to coordinator.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Said {
    /// Here it listens.
    Listens(SocketAddr),
    /// All its links are up.
    Linked,
    /// Its ports are bound.
    Bound,
    /// A lot has come. To a node: how many records of senders it has counted is asked for.
    Done,
    /// How often a node has asked borrowers for their senders, and how often a peer has asked it.
    Senders { asked: u64, told: u64 },
    /// So many messages of each sender; there may be more of them in the next packet.
    Counts(Vec<u32>),
}

/// Coordinator to the far end of bare streams: so many transfers of so many bytes come.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) bytes: usize,
    pub(crate) count: u64,
    /// Each is answered by one of the same size.
    pub(crate) answers: bool,
}

/// The whole life of a further process.
pub(crate) fn serve(brief: Brief, control: &Control, descriptors: Vec<OwnedFd>) -> Result<()> {
    cpus::pin(brief.cpu)?;
    let _punctual = Punctual::begin();
    let socket = descriptors.into_iter().next().map(UnixStream::from);
    let socket = || socket.ok_or(MeasureError::NoCoordinator);
    match brief.what {
        What::Node(brief) => engine::serve(&brief, control),
        What::Echo { ports, threads } => echo(ports, threads, control),
        What::Sink(at) => sink(&at, control),
        What::Keep(at) => keep(&at, control),
        What::Forward { at, to } => forward(&at, &to, control),
        What::Count {
            at,
            senders,
            each_nanos,
            millis,
        } => {
            let each = Duration::from_nanos(each_nanos);
            count(&at, senders, each, Duration::from_millis(millis), control)
        }
        What::Send {
            domains,
            port,
            threads,
        } => send(&domains, &port, threads, control),
        What::Raw { wire, heads } => raw(wire, heads, control),
        What::Relay { wire, connect } => relay(wire, connect, socket()?, control),
        What::Beside => beside(&socket()?, control),
    }
}

/// While it lives the kernel wakes this thread when it asked for it, and not up to 50 us later: what
/// is shaped depends on it.
pub(crate) struct Punctual;

impl Punctual {
    pub(crate) fn begin() -> Self {
        // A kernel that does not know it wakes later.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        Self
    }
}

impl Drop for Punctual {
    fn drop(&mut self) {
        let _ = rustix::thread::set_current_timer_slack(None);
    }
}

fn join(name: &str) -> Result<Domain> {
    let builder = Domain::builder(name).space_name("lab far");
    let joined = builder.deadline(PATIENCE).join();
    joined.map_err(LabError::library("joining a domain of this experiment"))
}

fn bind(domain: &Domain, options: PortOptions) -> Result<ReceiveRight> {
    let port = domain.bind(options.spanned());
    let mut port = port.map_err(LabError::library("binding a port of this experiment"))?;
    port.set_waiting(Waiting::Sleep);
    Ok(port)
}

fn receiving<E: Into<Box<dyn std::error::Error + Send + Sync>>>(error: E) -> LabError {
    LabError::library("receiving in an experiment")(error)
}

/// Waits until the coordinator is done with this process.
fn stay(control: &Control) -> Result<()> {
    let _: Option<Said> = control.receive()?;
    Ok(())
}

/// What this process works with has ended, as `why` says. That is no failure if the coordinator is done
/// with this process too: it ends them in any order, and a process that ends by itself ends the whole
/// command.
fn unless_over(control: &Control, why: LabError) -> Result<()> {
    match control.receive::<IgnoredAny>()? {
        None => Ok(()),
        Some(_) => Err(why),
    }
}

/// Runs `work` in a thread of its own, whose failure ends this process.
fn spawn(work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let run = move || {
        if let Err(error) = work() {
            error.report();
            std::process::exit(error.exit_code().into());
        }
    };
    // There are up to a thousand, which call a few functions.
    let thread = std::thread::Builder::new().stack_size(128 << 10);
    thread.spawn(run).map_err(system("starting a thread"))?;
    Ok(())
}

fn echo(ports: Vec<Place>, threads: u32, control: &Control) -> Result<()> {
    let mut domains: Vec<Domain> = Vec::new();
    for place in ports {
        let domain = match domains.iter().position(|it| it.name() == place.domain) {
            Some(at) => &domains[at],
            None => {
                domains.push(join(&place.domain)?);
                &domains[domains.len() - 1]
            }
        };
        let mut port = bind(domain, PortOptions::named(&place.port).synchronous())?;
        if threads == 1 {
            spawn(move || {
                let mut request = portolan::Request::default();
                loop {
                    let got = port.get_request_into(&mut request, Access::Later, Deadline::NEVER);
                    got.map_err(receiving)?;
                    if !request.message.is_empty() {
                        request.message = Message::default();
                    }
                    request.reply_from().map_err(receiving)?;
                }
            })?;
            continue;
        }
        let shared = port.share();
        for _ in 0..threads {
            let shared = shared.clone();
            spawn(move || {
                loop {
                    let request = shared.get_request(Access::Later, Deadline::NEVER);
                    let request = request.map_err(receiving)?;
                    let replied = request.reply(Message::default());
                    replied.map_err(|refused| receiving(refused.why))?;
                }
            })?;
        }
    }
    control.send(&Said::Bound)?;
    stay(control)
}

fn sink(at: &Place, control: &Control) -> Result<()> {
    let domain = join(&at.domain)?;
    let mut port = bind(&domain, PortOptions::named(&at.port))?;
    control.send(&Said::Bound)?;
    loop {
        let message = port.receive(Access::Later, Deadline::NEVER);
        if message.map_err(receiving)?.header() == LAST {
            control.send(&Said::Done)?;
        }
    }
}

fn keep(at: &Place, control: &Control) -> Result<()> {
    let domain = join(&at.domain)?;
    let mut port = bind(&domain, PortOptions::named(&at.port))?;
    control.send(&Said::Bound)?;
    let mut kept = Vec::new();
    loop {
        let message = port.receive(Access::Later, Deadline::NEVER);
        let mut message = message.map_err(receiving)?;
        kept.extend(message.take_rights());
        if message.header() == LAST {
            kept.clear();
            control.send(&Said::Done)?;
        }
    }
}

fn forward(at: &Place, to: &str, control: &Control) -> Result<()> {
    let domain = Domain::builder(&at.domain)
        .always_open()
        .space_name("lab proxy");
    let domain = domain.deadline(PATIENCE).join();
    let domain = domain.map_err(LabError::library("joining a domain of this experiment"))?;
    let right = domain.connect(to, PATIENCE).map_err(receiving)?;
    let port = bind(&domain, PortOptions::named(&at.port).synchronous())?;
    let proxy = ProxyPort::new(port, "here").map_err(|refused| receiving(refused.why));
    let mut proxy = proxy?;
    control.send(&Said::Bound)?;
    loop {
        if let Taken::Request(mut message, answer) =
            proxy.take(Deadline::NEVER).map_err(receiving)?
        {
            let asked =
                right.request_reply_in_place(&mut message, Access::Later, PATIENCE, Waiting::Sleep);
            asked.map_err(receiving)?;
            answer
                .reply(message)
                .map_err(|refused| receiving(refused.why))?;
        }
    }
}

fn count(
    at: &Place,
    senders: u32,
    each: Duration,
    time: Duration,
    control: &Control,
) -> Result<()> {
    let domain = join(&at.domain)?;
    let mut port = bind(&domain, PortOptions::named(&at.port))?;
    control.send(&Said::Bound)?;
    let mut counts = vec![0_u32; senders as usize];
    // All of them send before any is counted.
    let mut begun = None;
    loop {
        let message = port.receive(Access::Later, Deadline::NEVER);
        let message = message.map_err(receiving)?;
        let sender = message.header().try_into().map(u32::from_le_bytes);
        drop(message);
        let since: Instant = *begun.get_or_insert_with(Instant::now);
        if (time..2 * time).contains(&since.elapsed())
            && let Ok(sender) = sender
            && let Some(count) = counts.get_mut(sender as usize)
        {
            *count += 1;
        }
        if since.elapsed() >= 2 * time && !counts.is_empty() {
            // A packet has some 8 KiB.
            for part in std::mem::take(&mut counts).chunks(500) {
                control.send(&Said::Counts(part.to_vec()))?;
            }
        }
        // It works on each, asleep: others have the processors meanwhile.
        std::thread::sleep(each);
    }
}

fn send(domains: &[String], port: &str, threads: u32, control: &Control) -> Result<()> {
    let mut number = 0_u32;
    let mut joined = Vec::new();
    for name in domains {
        let domain = join(name)?;
        let right = domain.connect(port, PATIENCE).map_err(receiving)?;
        for _ in 0..threads {
            let (right, header) = (right.clone(), number.to_le_bytes());
            number += 1;
            spawn(move || {
                loop {
                    let message = Message::new(&header).map_err(receiving)?;
                    let sent = right.send(message, Deadline::NEVER);
                    sent.map_err(|refused| receiving(refused.why))?;
                }
            })?;
        }
        joined.push(domain);
    }
    control.send(&Said::Bound)?;
    stay(control)
}

/// A connection that is up, from the first that comes, or to where another process listens.
fn linked(
    wire: Wire,
    connect: Option<SocketAddr>,
    control: &Control,
    clock: &Arc<dyn Clock>,
) -> Result<Box<dyn Connection>> {
    if let Some(address) = connect {
        return dial(wire, address, clock);
    }
    let transport = wire.transport(clock);
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = transport.listen(&Address::Internet(any));
    let mut listener = listener.map_err(receiving)?;
    if let Address::Internet(address) = listener.address() {
        control.send(&Said::Listens(address))?;
    }
    loop {
        if let Some(connection) = listener.accept().map_err(receiving)? {
            return Ok(connection);
        }
        let fds = [control.as_fd(), listener.descriptor()];
        if wait(&fds, listener.wake_at(), &**clock)?.first() == Some(&true) {
            return Err(MeasureError::NoCoordinator.into());
        }
    }
}

/// A connection to where another process listens.
pub(crate) fn dial(
    wire: Wire,
    address: SocketAddr,
    clock: &Arc<dyn Clock>,
) -> Result<Box<dyn Connection>> {
    let connection = wire.transport(clock).connect(&Address::Internet(address));
    let mut connection = connection.map_err(receiving)?;
    loop {
        match connection.progress() {
            State::Up => return Ok(connection),
            State::Connecting => {}
            State::Over | State::Failed => {
                let why = connection.failure().map(ToString::to_string);
                return Err(receiving(why.unwrap_or_default()));
            }
        }
        wait(&[connection.descriptor()], connection.wake_at(), &**clock)?;
    }
}

/// Receives what is ordered until the coordinator is done.
fn raw(wire: Wire, heads: bool, control: &Control) -> Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let mut connection = linked(wire, None, control, &clock)?;
    let frames = if heads { Frames::Heads } else { Frames::None };
    let on = connection.open(Class::Bulk).map_err(receiving)?;
    let mut memory = Vec::new();
    let mut job: Option<(Order, Inbound)> = None;
    let mut out: Option<Outbound> = None;
    loop {
        connection.progress();
        if let Some((order, inbound)) = &mut job {
            let (order, memory) = (*order, &mut memory[..order.bytes]);
            let done = follow(order, inbound, &mut out, &mut *connection, memory);
            if let Err(why) = done {
                return unless_over(control, receiving(why));
            }
            if inbound.come == order.count {
                job = None;
                control.send(&Said::Done)?;
            }
        }
        let fds = [control.as_fd(), connection.descriptor()];
        let fds = if job.is_some() { &fds[..] } else { &fds[..1] };
        if wait(fds, connection.wake_at(), &*clock)?.first() == Some(&true) {
            let Some(order): Option<Order> = control.receive()? else {
                return Ok(());
            };
            if memory.len() < order.bytes {
                memory.resize(order.bytes, 0);
            }
            job = Some((order, Inbound::new(on, frames)));
        }
    }
}

/// Receives what has come of an order, and answers it.
fn follow(
    order: Order,
    inbound: &mut Inbound,
    out: &mut Option<Outbound>,
    connection: &mut dyn Connection,
    memory: &mut [u8],
) -> std::result::Result<(), TransportError> {
    while inbound.come < order.count && inbound.step(connection, memory)? {
        if order.answers {
            let answer = out.insert(Outbound::new(inbound.on, inbound.frames, 1));
            answer.step(connection, memory)?;
        }
    }
    if let Some(answer) = out {
        answer.step(connection, memory)?;
    }
    Ok(())
}

/// Copies between its programs and the other node.
fn relay(
    wire: Wire,
    connect: Option<SocketAddr>,
    programs: UnixStream,
    control: &Control,
) -> Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let mut connection = linked(wire, connect, control, &clock)?;
    let on = connection.open(Class::Bulk).map_err(receiving)?;
    let mut relay = Relay::new(programs, on).map_err(system("a proxy's socket"))?;
    control.send(&Said::Linked)?;
    loop {
        connection.progress();
        if let Err(broken) = relay.step(&mut *connection) {
            let why = match broken {
                Broken::Programs(error) => system("a proxy's socket")(error),
                Broken::Link(error) => receiving(error),
            };
            return unless_over(control, why);
        }
        let mut programs = PollFlags::empty();
        programs.set(PollFlags::IN, relay.takes());
        programs.set(PollFlags::OUT, relay.gives());
        let (link, programs_fd) = (connection.descriptor(), relay.programs());
        let mut fds = vec![PollFd::new(control, PollFlags::IN)];
        if !programs.is_empty() {
            fds.push(PollFd::new(programs_fd, programs));
        }
        // What has come waits in the kernel while there is no room for it here.
        if relay.has_room() {
            fds.push(PollFd::from_borrowed_fd(link, PollFlags::IN));
        }
        let left = connection
            .wake_at()
            .map(|at| at.saturating_sub(clock.now()));
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        });
        let waited = rustix::io::retry_on_intr(|| poll(&mut fds, left.as_ref()));
        waited.map_err(|error| system("waiting")(error.into()))?;
        if !fds[0].revents().is_empty() {
            return Ok(());
        }
    }
}

/// Receives transfers by a proxy, and does what their heads say.
fn beside(socket: &UnixStream, control: &Control) -> Result<()> {
    control.send(&Said::Bound)?;
    let mut memory = Vec::new();
    loop {
        match transfer(socket, &mut memory) {
            Ok(SAY) => control.send(&Said::Done)?,
            Ok(_) => {}
            Err(error) => return unless_over(control, system("a proxy's socket")(error)),
        }
    }
}

/// Receives one transfer, and answers it if that is wanted; what is wanted.
fn transfer(mut socket: &UnixStream, memory: &mut Vec<u8>) -> std::io::Result<u64> {
    let mut its = [0; HEAD];
    socket.read_exact(&mut its)?;
    let (wanted, length) = read(&its);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if memory.len() < length {
        memory.resize(length, 0);
    }
    socket.read_exact(&mut memory[..length])?;
    if wanted == ANSWER {
        let answer = [&head(QUIET, length)[..], &memory[..length]].concat();
        socket.write_all(&answer)?;
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use std::thread::spawn;

    use portolan_measure::child::readable;

    use super::*;

    /// Runs a further process's work in a thread. What it works with ends when `use_it` has returned;
    /// it stays until the coordinator ends too.
    #[track_caller]
    fn stays(
        work: impl FnOnce(&Control) -> Result<()> + Send + 'static,
        use_it: impl FnOnce(&Control),
    ) {
        let (ours, theirs) = Control::pair().unwrap();
        let works = spawn(move || work(&theirs));
        use_it(&ours);
        // Readable is its end alone: there is nothing more to say.
        let moment = Some(Duration::from_millis(200));
        assert!(
            !readable(ours.as_fd(), moment).unwrap(),
            "it has ended by itself"
        );
        drop(ours);
        works.join().unwrap().unwrap();
    }

    fn address(control: &Control) -> SocketAddr {
        match control.receive().unwrap() {
            Some(Said::Listens(address)) => address,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_far_end_of_a_stream_stays_when_the_stream_has_ended() {
        stays(
            |control| raw(Wire::Loopback, false, control),
            |control| {
                let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
                let connection = dial(Wire::Loopback, address(control), &clock).unwrap();
                let (bytes, count, answers) = (64, u64::MAX, true);
                let order = Order {
                    bytes,
                    count,
                    answers,
                };
                control.send(&order).unwrap();
                drop(connection);
            },
        );
    }

    #[test]
    fn a_proxy_stays_when_its_link_has_ended() {
        let (_programs, its) = UnixStream::pair().unwrap();
        stays(
            |control| relay(Wire::Loopback, None, its, control),
            |control| {
                let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
                let connection = dial(Wire::Loopback, address(control), &clock).unwrap();
                assert!(matches!(control.receive().unwrap(), Some(Said::Linked)));
                drop(connection);
            },
        );
    }

    #[test]
    fn a_program_stays_when_its_proxy_has_ended() {
        let (proxy, its) = UnixStream::pair().unwrap();
        stays(
            move |control| beside(&its, control),
            |control| {
                assert!(matches!(control.receive().unwrap(), Some(Said::Bound)));
                drop(proxy);
            },
        );
    }
}
