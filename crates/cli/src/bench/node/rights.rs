//! Rights that go to another node: a send right that is given and used, and a port that moves there and back, in
//! round trips of a null request over the same nodes.

use indicatif::ProgressBar;
use portolan::{
    Access, Deadline, Domain, Message, PortOptions, ReceiveRight, Right, SendRight, Waiting,
    WhenFull,
};
use portolan_measure::cpus;
use portolan_measure::sampler::Sampler;
use std::time::Duration;

use super::lanes::{self, Effort, Lane};
use super::places::{MEETING, Pair, Pinning, pin};
use super::server::{Brief, Server};
use super::table::{Row, Unit};
use super::trips::{Asker, rounds};
use crate::error::{CliError, Result};

/// What rows are called.
const REQUEST: &str = "null request and answer";
const GIVEN: &str = "a send right is given, and used";
const MOVED: &str = "a port moves there and back, a message behind it";

/// Lanes over one pair: a request, and these two.
pub(super) const LANES: usize = 3;

fn failed<E: Into<Box<dyn std::error::Error + Send + Sync>>>(error: E) -> CliError {
    CliError::library("giving a right to another node")(error)
}

/// One more right in a message that has few.
fn attached(mut message: Message, right: impl Into<Right>) -> Result<Message> {
    message.attach(right).map_err(failed)?;
    Ok(message)
}

fn sent(by: &SendRight, message: Message) -> Result<()> {
    by.send(message, Deadline::after(MEETING)).map_err(failed)
}

/// A port whose receiver sleeps.
fn asleep(domain: &Domain) -> Result<ReceiveRight> {
    let mut port = domain.bind(PortOptions::unnamed()).map_err(failed)?;
    port.set_waiting(Waiting::Sleep);
    Ok(port)
}

/// Gives a right on a port that no node knows: until it was used once, and is gone.
struct Giver {
    domain: Domain,
    way: SendRight,
    _server: Server,
}

impl Giver {
    fn round(&self) -> Result<()> {
        let mut port = asleep(&self.domain)?;
        sent(&self.way, attached(Message::default(), port.make_send())?)?;
        drop(port.receive(Access::Later, MEETING).map_err(failed)?);
        Ok(())
    }
}

/// Gives a port away, and sends to it: until that was received there, and the port is here again.
struct Mover {
    port: Option<ReceiveRight>,
    right: SendRight,
    inbox: ReceiveRight,
    way: SendRight,
    _server: Server,
}

impl Mover {
    fn round(&mut self) -> Result<()> {
        let Some(port) = self.port.take() else {
            return Err(failed("the port has not come back"));
        };
        let message = attached(Message::default(), port)?;
        sent(&self.way, attached(message, self.inbox.make_send())?)?;
        sent(&self.right, Message::default())?;
        let mut message = self.inbox.receive(Access::Later, MEETING).map_err(failed)?;
        self.port = message.take_rights().into_iter().find_map(received);
        Ok(())
    }
}

fn received(right: Right) -> Option<ReceiveRight> {
    match right {
        Right::Receive(port) => Some(port),
        _ => None,
    }
}

impl Lane for Giver {
    fn slice(&mut self, budget: Duration, sampler: &mut Sampler) -> Result<()> {
        rounds(budget, sampler, || self.round())
    }
}

impl Lane for Mover {
    fn slice(&mut self, budget: Duration, sampler: &mut Sampler) -> Result<()> {
        rounds(budget, sampler, || self.round())
    }
}

/// The far end's whole life: it uses each send right that comes once; a port that comes goes back by
/// the right beside it, once a message has followed it.
pub(super) fn serve(mut port: ReceiveRight) -> Result<()> {
    port.set_waiting(Waiting::Sleep);
    loop {
        let message = port.receive(Access::Later, Deadline::NEVER);
        let rights = message.map_err(failed)?.take_rights();
        let (mut moved, mut way) = (None, None);
        for right in rights {
            match right {
                Right::Receive(port) => moved = Some(port),
                Right::Send(right) => way = Some(right),
                _ => {}
            }
        }
        let Some(way) = way else { continue };
        let Some(mut moved) = moved else {
            // Who gave it may be gone.
            let _ = way.send(Message::default(), WhenFull::Fail);
            continue;
        };
        moved.set_waiting(Waiting::Sleep);
        drop(moved.receive(Access::Later, MEETING).map_err(failed)?);
        sent(&way, attached(Message::default(), moved)?)?;
    }
}

/// Pairs whose nodes know one another: secrets go over no other links.
pub(super) fn measure(
    pairs: &[Pair],
    pinning: Pinning,
    effort: Effort,
    progress: &ProgressBar,
) -> Result<Vec<Row>> {
    cpus::pin(pinning.near)?;
    let mut rows = Vec::new();
    for pair in pairs {
        progress.set_message(format!("{GIVEN}, {}", pair.over.name()));
        pinning.pin(pair)?;
        let serve = || {
            let (server, way) = pair.serve(|domain, port| Brief::Rights { domain, port })?;
            pin(server.id(), pinning.far)?;
            Ok::<_, CliError>((server, way))
        };
        let mut asker = Asker::of(pair, pinning.far)?;
        let domain = pair.domains[0].clone();
        let (server, way) = serve()?;
        let mut giver = Giver {
            domain: domain.clone(),
            way,
            _server: server,
        };
        let (server, way) = serve()?;
        let port = asleep(&domain)?;
        let mut mover = Mover {
            right: port.make_send(),
            port: Some(port),
            inbox: asleep(&domain)?,
            way,
            _server: server,
        };
        let measured = lanes::measure(&mut [&mut asker, &mut giver, &mut mover], effort, progress)?;
        let Some((base, lanes)) = measured.split_first() else {
            continue;
        };
        let over = pair.over.name();
        let sleeping = |row: Row| row.waiting("asleep", pinning.name());
        rows.push(sleeping(Row::of(REQUEST, over, Unit::Time, base)));
        for (name, measured) in [GIVEN, MOVED].into_iter().zip(lanes) {
            let row = sleeping(Row::of(name, over, Unit::Time, measured));
            rows.push(row.against("a null request", measured.to(base), None));
        }
    }
    Ok(rows)
}
