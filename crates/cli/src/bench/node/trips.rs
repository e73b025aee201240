//! Round trips: a null request to another node, and a ping-pong over TCP beside it; all sleep while
//! they wait.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use indicatif::ProgressBar;
use portolan::{Access, Message, SendRight, Waiting};
use portolan_measure::cpus;
#[cfg(feature = "peers")]
use portolan_measure::{
    case::{Case, Mode, Placement, System},
    cpus::Cpus,
    run::{self, Run},
    sampler::Sampler,
};

use super::lanes::{self, Effort, Lane, Round};
use super::places::{Linked, MEETING, Over, Pair, Pinning, pin};
use super::server::{Brief, PING, Server};
use super::table::{Row, Unit};
use crate::bench::budget::{Budget, Measure};
use crate::error::{CliError, Result};

const TWO: Budget = Budget::new(
    "request on two processors, to a TCP ping-pong",
    Measure::Yardstick,
    1.5,
    Some(1.3),
);
const ONE: Budget = Budget::new(
    "request on one processor, to a TCP ping-pong",
    Measure::Yardstick,
    2.0,
    Some(1.5),
);
const TLS: Budget = Budget::new(
    "request with TLS, to one without",
    Measure::Yardstick,
    1.35,
    Some(1.2),
);

/// What rows are called.
const REQUEST: &str = "null request and answer";
const PING_PONG: &str = "ping-pong of 64 B";

/// A ping-pong over TCP.
pub(super) struct Ping {
    stream: TcpStream,
    _server: Server,
}

impl Ping {
    pub(super) fn new(server: Server) -> Result<Self> {
        Ok(Self {
            stream: server.connect()?,
            _server: server,
        })
    }

    pub(super) fn ping(&mut self) -> Result<()> {
        let mut bytes = [1; PING];
        let done = self.stream.write_all(&bytes);
        let done = done.and_then(|()| self.stream.read_exact(&mut bytes));
        done.map_err(CliError::system("a ping over TCP"))
    }
}

/// A client of a port on another node.
pub(super) struct Asker {
    right: SendRight,
    message: Message,
    _server: Server,
}

impl Asker {
    pub(super) fn new(server: Server, right: SendRight) -> Self {
        Self {
            right,
            message: Message::default(),
            _server: server,
        }
    }

    /// One whose server is on the far node, on this processor.
    pub(super) fn of<const N: usize>(linked: &Linked<N>, cpu: usize) -> Result<Self> {
        let (server, right) = linked.serve(|domain, port| Brief::Echo { domain, port })?;
        pin(server.id(), cpu)?;
        Ok(Self::new(server, right))
    }

    pub(super) fn ask(&mut self) -> Result<()> {
        let asked = self.right.request_reply_in_place(
            &mut self.message,
            Access::Later,
            MEETING,
            Waiting::Sleep,
        );
        asked.map_err(CliError::library("asking another node"))
    }
}

impl Round for Ping {
    fn round(&mut self) -> Result<Option<Duration>> {
        self.ping().map(|()| None)
    }
}

impl Round for Asker {
    fn round(&mut self) -> Result<Option<Duration>> {
        self.ask().map(|()| None)
    }
}

/// A ping-pong whose answers come from this processor.
pub(super) fn ping(cpu: usize) -> Result<Ping> {
    let server = Server::start(&Brief::EchoTcp)?;
    pin(server.id(), cpu)?;
    Ping::new(server)
}

/// Another library's call.
#[cfg(feature = "peers")]
struct Competitor(Box<dyn Run>);

#[cfg(feature = "peers")]
impl Lane for Competitor {
    fn slice(&mut self, budget: Duration, sampler: &mut Sampler) -> Result<()> {
        Ok(self.0.slice(budget, sampler)?)
    }
}

/// Null calls by other libraries, which are measured through a Unix socket.
#[cfg(feature = "peers")]
fn competitors(pinning: Pinning) -> Result<Vec<(&'static str, Competitor)>> {
    let systems = [System::Tonic, System::Capnp];
    let started = systems.map(|system| {
        let case = Case {
            mode: Mode::Block,
            placement: match pinning.is_one() {
                true => Placement::OneCpu,
                false => Placement::TwoCpus,
            },
            ..Case::new(system, 0)
        };
        let run = run::start(&case, &Cpus::choose())?;
        Ok((case.system_name(), Competitor(run)))
    });
    started.into_iter().collect()
}

/// Pairs of nodes, by what they link by; one pinning after another.
pub(super) fn measure(
    pairs: &[Pair],
    pinnings: &[Pinning],
    effort: Effort,
    progress: &ProgressBar,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for pinning in pinnings {
        progress.set_message(format!("{REQUEST}, {}", pinning.name()));
        cpus::pin(pinning.near)?;
        let mut ping = ping(pinning.far)?;
        let mut askers = Vec::new();
        for pair in pairs {
            pinning.pin(pair)?;
            askers.push(Asker::of(pair, pinning.far)?);
        }
        #[cfg(feature = "peers")]
        let mut competitors = competitors(*pinning)?;
        let mut all: Vec<&mut dyn Lane> = vec![&mut ping];
        all.extend(askers.iter_mut().map(|asker| asker as &mut dyn Lane));
        #[cfg(feature = "peers")]
        all.extend(
            competitors
                .iter_mut()
                .map(|(_, lane)| lane as &mut dyn Lane),
        );
        let measured = lanes::measure(&mut all, effort, progress)?;
        let Some((base, nodes)) = measured.split_first() else {
            continue;
        };
        let sleeping = |row: Row| row.waiting("asleep", pinning.name());
        rows.push(sleeping(Row::of(PING_PONG, "TCP", Unit::Time, base)));
        let by_tcp = pairs.iter().position(|pair| pair.over == Over::Tcp);
        for (pair, measured) in pairs.iter().zip(nodes) {
            let row = sleeping(Row::of(REQUEST, pair.over.name(), Unit::Time, measured));
            let budget = match (pair.over, pinning.is_one()) {
                (Over::Tcp, false) => Some(TWO),
                (Over::Tcp, true) => Some(ONE),
                _ => None,
            };
            let row = row.against("TCP", measured.to(base), budget);
            rows.push(row);
            if let (Over::Tls, Some(plain)) = (pair.over, by_tcp.and_then(|at| nodes.get(at))) {
                let row = sleeping(Row::of(REQUEST, pair.over.name(), Unit::Time, measured));
                rows.push(row.against(Over::Tcp.name(), measured.to(plain), Some(TLS)));
            }
        }
        #[cfg(feature = "peers")]
        for ((name, _), measured) in competitors.iter().zip(&nodes[pairs.len()..]) {
            let row = Row::of("null call, Unix socket", name, Unit::Time, measured);
            rows.push(sleeping(row).against("TCP", measured.to(base), None));
        }
    }
    Ok(rows)
}
