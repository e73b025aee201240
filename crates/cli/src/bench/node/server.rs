//! The process at the far end: what answers and receives, at a port or at a TCP connection.

use std::io::{IoSliceMut, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use portolan::{Access, Deadline, Domain, PortOptions, ReceiveRight, Waiting};
use portolan_measure::child::{Child, Control};
use portolan_sys::memory::PAGE;
use serde::{Deserialize, Serialize};

use super::places::MEETING;
use crate::error::{CliError, Result};

/// Bytes of a ping, and of its answer.
pub(super) const PING: usize = 64;
/// Bytes of one system call of a bare stream, as of a fragment between nodes.
pub(super) const CALL: usize = 256 << 10;
/// Bytes before them, as of a fragment's head.
pub(super) const HEAD: usize = 32;
/// The header of the last message of a lot.
pub(super) const LAST: &[u8] = b"last";

/// What a server is to do, until it is killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Brief {
    /// Answer requests at a port of a domain.
    Echo { domain: String, port: String },
    /// Use the rights that come there.
    Rights { domain: String, port: String },
    /// Offer rights on new ports to who asks there.
    Offers { domain: String, port: String },
    /// Answer requests at a port that comes there, until it moves to another such server.
    Bounces { domain: String, port: String },
    /// Receive messages there, and say when the last one of a lot has come.
    Sink { domain: String, port: String },
    /// Receive messages there, one in so many nanoseconds, and say of each sender how many have come in so many
    /// milliseconds, after as many again.
    Count {
        domain: String,
        port: String,
        senders: u32,
        each_nanos: u64,
        millis: u64,
    },
    /// Answer pings over TCP.
    EchoTcp,
    /// Receive lots of bytes over TCP, and say when one has come.
    SinkTcp {
        /// Of the memory that they are received into.
        bytes: u64,
    },
}

/// Server to coordinator.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    /// The port is bound.
    Bound,
    /// Here it listens.
    Listens(SocketAddr),
    /// All of a lot has come.
    Done,
    /// So many messages of each sender.
    Counts(Vec<u64>),
}

/// A server. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    address: Option<SocketAddr>,
}

impl Server {
    /// Starts it; it is ready.
    pub(super) fn start(brief: &Brief) -> Result<Self> {
        let own = crate::Own::Node(brief.clone());
        let mut child = Child::start("server of bench node", &own, &[])?;
        let address = match child.expect()? {
            Said::Listens(address) => Some(address),
            _ => None,
        };
        child.watch()?;
        Ok(Self { child, address })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// A connection to one that listens.
    pub(super) fn connect(&self) -> Result<TcpStream> {
        let failed = || CliError::system("connecting over loopback");
        let address = self.address.ok_or(std::io::ErrorKind::NotConnected.into());
        let address = address.map_err(failed())?;
        let stream = TcpStream::connect(address).map_err(failed())?;
        stream.set_nodelay(true).map_err(failed())?;
        Ok(stream)
    }

    /// Waits until a lot has come.
    pub(super) fn done(&mut self) -> Result<()> {
        let _: Said = self.child.expect()?;
        Ok(())
    }

    /// Waits for its counts.
    pub(super) fn counts(&mut self) -> Result<Vec<u64>> {
        match self.child.expect()? {
            Said::Counts(counts) => Ok(counts),
            _ => Ok(Vec::new()),
        }
    }
}

/// The whole life of a server.
pub(crate) fn main(brief: Brief, control: &Control) -> Result<()> {
    match brief {
        Brief::Echo { domain, port } => {
            let (_domain, port) = bind(&domain, PortOptions::named(&port).synchronous(), control)?;
            echo(port)
        }
        Brief::Rights { domain, port } => {
            let (_domain, port) = bind(&domain, PortOptions::named(&port), control)?;
            super::rights::serve(port)
        }
        Brief::Offers { domain, port } => {
            let (domain, port) = bind(&domain, PortOptions::named(&port).synchronous(), control)?;
            super::rights::offer(&domain, port)
        }
        Brief::Bounces { domain, port } => {
            let (_domain, port) = bind(&domain, PortOptions::named(&port), control)?;
            super::rights::bounce(port)
        }
        Brief::Sink { domain, port } => {
            let (_domain, port) = bind(&domain, PortOptions::named(&port), control)?;
            sink(port, control)
        }
        Brief::Count {
            domain,
            port,
            senders,
            each_nanos,
            millis,
        } => {
            let (_domain, port) = bind(&domain, PortOptions::named(&port), control)?;
            let each = Duration::from_nanos(each_nanos);
            count(port, senders, each, Duration::from_millis(millis), control)
        }
        Brief::EchoTcp => {
            echo_tcp(accept(control)?)?;
            until_over(control)
        }
        Brief::SinkTcp { bytes } => {
            sink_tcp(&accept(control)?, bytes, control)?;
            until_over(control)
        }
    }
}

/// Waits for the coordinator. Its connections may end before it says that this server is not needed any more, and a
/// server that ends by itself ends the whole command.
fn until_over(control: &Control) -> Result<()> {
    while control.receive::<()>()?.is_some() {}
    Ok(())
}

fn bind(domain: &str, options: PortOptions, control: &Control) -> Result<(Domain, ReceiveRight)> {
    let builder = Domain::builder(domain).space_name("bench far");
    let domain = builder.deadline(MEETING).join();
    let domain = domain.map_err(CliError::library("joining a domain of this benchmark"))?;
    let port = domain.bind(options.spanned());
    let port = port.map_err(CliError::library("binding a port of this benchmark"))?;
    control.send(&Said::Bound)?;
    Ok((domain, port))
}

fn echo(mut port: ReceiveRight) -> Result<()> {
    port.set_waiting(Waiting::Sleep);
    let mut request = portolan::Request::default();
    loop {
        let got = port.get_request_into(&mut request, Access::Later, Deadline::NEVER);
        got.map_err(CliError::library("receiving a benchmark's request"))?;
        let answered = request.reply_from();
        answered.map_err(CliError::library("answering in a benchmark"))?;
    }
}

fn receiving<E: Into<Box<dyn std::error::Error + Send + Sync>>>(error: E) -> CliError {
    CliError::library("receiving a benchmark's message")(error)
}

fn sink(mut port: ReceiveRight, control: &Control) -> Result<()> {
    port.set_waiting(Waiting::Sleep);
    loop {
        let message = port.receive(Access::Later, Deadline::NEVER);
        if message.map_err(receiving)?.header() == LAST {
            control.send(&Said::Done)?;
        }
    }
}

fn count(
    mut port: ReceiveRight,
    senders: u32,
    each: Duration,
    time: Duration,
    control: &Control,
) -> Result<()> {
    let mut counts = vec![0_u64; senders as usize];
    let mut receive = |counts: Option<&mut Vec<u64>>| {
        let message = port
            .receive(Access::Later, Deadline::NEVER)
            .map_err(receiving)?;
        // A receiver that works on each, so that senders wait for it and not it for them.
        let until = Instant::now() + each;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        let sender = message.header().try_into().map(u32::from_le_bytes);
        if let (Some(counts), Ok(sender)) = (counts, sender)
            && let Some(count) = counts.get_mut(sender as usize)
        {
            *count += 1;
        }
        Ok::<(), CliError>(())
    };
    receive(None)?;
    let begun = Instant::now();
    while begun.elapsed() < time {
        receive(None)?;
    }
    while begun.elapsed() < 2 * time {
        receive(Some(&mut counts))?;
    }
    control.send(&Said::Counts(counts))?;
    loop {
        receive(None)?;
    }
}

fn accept(control: &Control) -> Result<TcpStream> {
    let failed = || CliError::system("listening over loopback");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed())?;
    control.send(&Said::Listens(listener.local_addr().map_err(failed())?))?;
    let (stream, _) = listener.accept().map_err(failed())?;
    stream.set_nodelay(true).map_err(failed())?;
    Ok(stream)
}

fn echo_tcp(mut stream: TcpStream) -> Result<()> {
    let mut bytes = [0; PING];
    while stream.read_exact(&mut bytes).is_ok() {
        let written = stream.write_all(&bytes);
        written.map_err(CliError::system("answering over TCP"))?;
    }
    Ok(())
}

/// Receives what the bare stream sends, by as many system calls as a node: each a `readv` of the rest of 256 KiB
/// and the next head, into memory as a message's.
fn sink_tcp(stream: &TcpStream, bytes: u64, control: &Control) -> Result<()> {
    let failed = || CliError::system("receiving over TCP");
    let (_domain, mut memory) = memory(bytes)?;
    let mut head = [0; HEAD];
    loop {
        // How much comes, in a head of its own.
        if (&*stream).read_exact(&mut head).is_err() {
            return Ok(());
        }
        let (lot, _) = head.split_at(8);
        let mut left = u64::from_le_bytes(lot.try_into().unwrap_or_default());
        let mut at = 0;
        while left > 0 {
            let part = CALL.min(memory.len() - at).min(clamped(left));
            let into = &mut memory[at..at + part];
            exactly(stream, into, &mut head).map_err(failed())?;
            left -= part as u64;
            at = (at + part) % memory.len();
        }
        control.send(&Said::Done)?;
    }
}

fn clamped(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// All of a fragment, and the head behind it.
fn exactly(stream: &TcpStream, mut into: &mut [u8], head: &mut [u8]) -> std::io::Result<()> {
    let mut head = head;
    while !into.is_empty() || !head.is_empty() {
        let parts = &mut [IoSliceMut::new(into), IoSliceMut::new(head)];
        let read = rustix::io::retry_on_intr(|| rustix::io::readv(stream, parts))?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let its = read.min(into.len());
        into = &mut into[its..];
        head = &mut head[read - its..];
    }
    Ok(())
}

/// Memory of the kind that messages have, all of it there.
pub(super) fn memory(bytes: u64) -> Result<(Domain, portolan::Extent)> {
    let domain = Domain::builder("bench-bare").limit(2 * bytes + (8 << 20));
    let domain = domain.private();
    let domain = domain.map_err(CliError::library("making a domain of this benchmark"))?;
    let extent = domain.allocate(clamped(bytes));
    let mut extent = extent.map_err(CliError::library("allocating a benchmark's memory"))?;
    extent.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    Ok((domain, extent))
}
