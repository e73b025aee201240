//! A node of its own: the engine of the daemon, over plain TCP on this machine, in a mode.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan::Domain;
use portolan_abi::node::NodeId;
use portolan_measure::child::Control;
use portolan_node::config;
use portolan_node::engine::{Engine, Happened};
use portolan_proto::node::Settings;
use portolan_sys::process::{poll, random};
use portolan_transport::clock::{Clock, SystemClock};
use portolan_transport::{Address, Connection, Listener, State};
use serde::{Deserialize, Serialize};

use super::far::Said;
use super::stop_and_wait::StopAndWait;
use super::vouched::Vouched;
use super::{Mode, PAGE, PATIENCE, Wire};
use crate::error::{LabError, Result};

/// The name that all nodes have for the domain that they span.
const DOMAIN: &str = "lab";
const CLUSTER: [u8; 16] = *b"portolan lab\0\0\0\0";
/// Bytes in flight where one message at a time bounds them: none is announced for its length.
const UNBOUNDED: u64 = 1 << 30;

/// What an engine is to be.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Brief {
    /// Its number: 1 listens, all others connect to it.
    pub(crate) number: u8,
    /// Its domain, by its name on this machine.
    pub(crate) local: String,
    pub(crate) mode: Mode,
    pub(crate) wire: Wire,
    /// Where the first one listens.
    pub(crate) connect: Option<SocketAddr>,
    /// Nodes that it is linked with.
    pub(crate) links: u8,
}

/// The id of a node, which shows no certificate.
pub(crate) fn id(number: u8) -> NodeId {
    NodeId([number; 16])
}

/// An engine in a mode, which spans a domain.
pub(crate) fn engine(number: u8, local: &str, mode: Mode) -> Result<Engine> {
    let mut settings = Settings::new(id(number), 1, CLUSTER);
    settings.run = random().map_err(system("drawing a number"))?;
    settings.silent_after = PATIENCE;
    settings.ping_after = PATIENCE / 4;
    settings.dead_after = Some(2 * PATIENCE);
    if matches!(mode, Mode::StopAndWait { .. }) {
        settings.one_at_a_time = true;
        (settings.window_at_first, settings.window_at_most) = (UNBOUNDED, UNBOUNDED);
    }
    let doing = "starting a node";
    let mut engine =
        Engine::new(settings, &format!("node{number}")).map_err(LabError::library(doing))?;
    let domain = Domain::builder(local).always_open().space_name("node");
    let domain = domain
        .deadline(PATIENCE)
        .join()
        .map_err(LabError::library(doing))?;
    let span = config::Span {
        domain: DOMAIN.to_owned(),
        local: local.to_owned(),
        nodes: vec!["*".to_owned()],
        ports: Vec::new(),
    };
    engine
        .span(span, domain)
        .map_err(LabError::library(doing))?;
    Ok(engine)
}

/// A connection in a mode.
pub(crate) fn connection(mode: Mode, connection: Box<dyn Connection>) -> Box<dyn Connection> {
    match mode {
        Mode::StopAndWait { pages } => Box::new(StopAndWait::new(connection, pages * PAGE)),
        _ => connection,
    }
}

/// The whole life of a node: it listens or connects, says when it is linked with all, and goes on until
/// the coordinator is done with it.
pub(crate) fn serve(brief: &Brief, control: &Control) -> Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let mut engine = engine(brief.number, &brief.local, brief.mode)?;
    let transport = brief.wire.transport(&clock);
    let mut door = match brief.connect {
        Some(address) => {
            let connection = transport.connect(&Address::Internet(address));
            Door::Connects(connection.map_err(linking)?)
        }
        None => {
            let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let listener = transport.listen(&Address::Internet(any));
            let listener = listener.map_err(linking)?;
            if let Address::Internet(address) = listener.address() {
                control.send(&Said::Listens(address))?;
            }
            Door::Listens(listener, 0)
        }
    };
    let mut linked = BTreeSet::new();
    loop {
        door = door.step(&mut engine, brief.mode, clock.now())?;
        engine.step(clock.now());
        for happened in engine.happened() {
            match happened {
                Happened::Linked { node, .. } => {
                    linked.insert(node);
                    if linked.len() == usize::from(brief.links) {
                        door = Door::Closed;
                        control.send(&Said::Linked)?;
                    }
                }
                Happened::Lost { why, .. }
                | Happened::Refused { why, .. }
                | Happened::Over { why, .. }
                | Happened::SpanLost { why, .. } => {
                    // Its peers are told to end before it or after it.
                    return match control.receive::<Said>()? {
                        None => Ok(()),
                        Some(_) => Err(linking(why)),
                    };
                }
                _ => {}
            }
        }
        let mut fds = vec![control.as_fd()];
        fds.extend(door.descriptor());
        fds.extend(engine.descriptors());
        let wake = engine.wake_at().into_iter().chain(door.wake_at()).min();
        if wait(&fds, wake, &*clock)?.first() == Some(&true) {
            if control.receive::<Said>()?.is_none() {
                return Ok(());
            }
            let rights = engine.report(clock.now()).rights;
            control.send(&Said::Senders {
                asked: rights.senders_asked,
                told: rights.senders_told,
            })?;
        }
    }
}

/// Waits for descriptors until a time; which are ready.
pub(crate) fn wait(
    fds: &[BorrowedFd<'_>],
    wake: Option<Duration>,
    clock: &dyn Clock,
) -> Result<Vec<bool>> {
    let by = wake.map(|at| Instant::now() + at.saturating_sub(clock.now()));
    let ready = poll(fds, by).map_err(system("waiting"))?;
    Ok(ready.iter().map(|fd| fd.any()).collect())
}

fn linking<E: Into<Box<dyn std::error::Error + Send + Sync>>>(error: E) -> LabError {
    LabError::library("linking two nodes")(error)
}

pub(crate) fn system(doing: &'static str) -> impl FnOnce(std::io::Error) -> LabError {
    move |error| portolan_measure::MeasureError::system(doing)(error).into()
}

/// Where links come from.
enum Door {
    /// From others, of whom so many have come.
    Listens(Box<dyn Listener>, u8),
    Connects(Box<dyn Connection>),
    Closed,
}

impl Door {
    fn step(self, engine: &mut Engine, mode: Mode, now: Duration) -> Result<Self> {
        let mut adopt = |it: Box<dyn Connection>, peer: u8, dialed| {
            let it = Box::new(Vouched::new(connection(mode, it), id(peer)));
            let adopted = engine.adopt(now, it, id(peer), dialed);
            adopted.map_err(linking)
        };
        match self {
            Self::Listens(mut listener, mut come) => {
                while let Some(connection) = listener.accept().map_err(linking)? {
                    come += 1;
                    // They come in their order.
                    adopt(connection, come + 1, false)?;
                }
                Ok(Self::Listens(listener, come))
            }
            Self::Connects(mut connection) => match connection.progress() {
                State::Up => {
                    adopt(connection, 1, true)?;
                    Ok(Self::Closed)
                }
                State::Connecting => Ok(Self::Connects(connection)),
                State::Over | State::Failed => {
                    let why = connection.failure().map(ToString::to_string);
                    let why = why.unwrap_or_else(|| "it was closed".to_owned());
                    Err(linking(why))
                }
            },
            Self::Closed => Ok(Self::Closed),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Listens(listener, _) => Some(listener.descriptor()),
            Self::Connects(connection) => Some(connection.descriptor()),
            Self::Closed => None,
        }
    }

    fn wake_at(&self) -> Option<Duration> {
        match self {
            Self::Listens(listener, _) => listener.wake_at(),
            Self::Connects(connection) => connection.wake_at(),
            Self::Closed => None,
        }
    }
}
