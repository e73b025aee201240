//! Rights that go to another node, in round trips of a null request over the same nodes: a send right that is
//! given and used, on a port of the giver's or of a third node, and a port that moves there and back; and how
//! long a client of a port waits because that moves.

use indicatif::ProgressBar;
use portolan::{
    Access, Deadline, Domain, Message, PortOptions, ReceiveRight, Request, Right, SendRight,
    Waiting, WhenFull,
};
use portolan_measure::cpus;
use std::time::{Duration, Instant};

use super::lanes::{self, Effort, Lane, Round};
use super::places::{MEETING, Pinning, Trio, pin};
use super::server::{Brief, Server};
use super::table::{Row, Unit};
use super::trips::Asker;
use crate::error::{CliError, Result};

/// What rows are called.
const REQUEST: &str = "null request and answer";
const GIVEN: &str = "a send right is given, and used";
const HANDED: &str = "a send right on a third node's port is given, and used";
const MOVED: &str = "a port moves there and back, a message behind it";
const PAUSE: &str = "the longest of 8 requests, the port moves behind the first";
const NO_PAUSE: &str = "the longest of 8 requests";

/// Lanes over three nodes: a request, and these.
pub(super) const LANES: usize = 6;

/// Requests while a port moves: the first of them, or the next, waits for that.
const STREAM: usize = 8;
/// The header of a request behind which the port moves to the other server.
const MOVES: &[u8] = b"moves";
/// The header of one that is answered with a right on a new port.
const OFFERS: &[u8] = b"offers";

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

impl Round for Giver {
    fn round(&mut self) -> Result<Option<Duration>> {
        let mut port = asleep(&self.domain)?;
        sent(&self.way, attached(Message::default(), port.make_send())?)?;
        drop(port.receive(Access::Later, MEETING).map_err(failed)?);
        Ok(None)
    }
}

/// Gives a right on a port of a third node, which no other node knows: until it was used there, and that was said here.
struct Introducer {
    /// Who is given it, and whose port it is.
    borrower: SendRight,
    home: SendRight,
    inbox: ReceiveRight,
    /// On the port, for the next round.
    right: Option<SendRight>,
    _servers: [Server; 2],
}

impl Round for Introducer {
    fn prepare(&mut self) -> Result<()> {
        let mut message = Message::new(OFFERS).map_err(failed)?;
        message.attach(self.inbox.make_send()).map_err(failed)?;
        let mut offer = asked(&self.home, message)?;
        self.right = offer.take_rights().into_iter().find_map(send);
        // Its answer is behind the loan of the port to this node.
        asked(&self.home, Message::default()).map(drop)
    }

    fn round(&mut self) -> Result<Option<Duration>> {
        let Some(right) = self.right.take() else {
            return Err(failed("the third node has offered no port"));
        };
        sent(&self.borrower, attached(Message::default(), right)?)?;
        drop(self.inbox.receive(Access::Later, MEETING).map_err(failed)?);
        Ok(None)
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

impl Round for Mover {
    fn round(&mut self) -> Result<Option<Duration>> {
        let Some(port) = self.port.take() else {
            return Err(failed("the port has not come back"));
        };
        let message = attached(Message::default(), port)?;
        sent(&self.way, attached(message, self.inbox.make_send())?)?;
        sent(&self.right, Message::default())?;
        let mut message = self.inbox.receive(Access::Later, MEETING).map_err(failed)?;
        self.port = message.take_rights().into_iter().find_map(received);
        Ok(None)
    }
}

/// A client of a port that moves from one of two nodes to the other in each round, or stays.
struct Client {
    right: SendRight,
    moves: bool,
    _servers: [Server; 2],
}

impl Round for Client {
    fn round(&mut self) -> Result<Option<Duration>> {
        let mut longest = Duration::ZERO;
        for number in 0..STREAM {
            let moves = self.moves && number == 0;
            let header = if moves { MOVES } else { &[] };
            let message = Message::new(header).map_err(failed)?;
            let began = Instant::now();
            drop(asked(&self.right, message)?);
            longest = longest.max(began.elapsed());
        }
        Ok(Some(longest))
    }
}

fn received(right: Right) -> Option<ReceiveRight> {
    match right {
        Right::Receive(port) => Some(port),
        _ => None,
    }
}

fn send(right: Right) -> Option<SendRight> {
    match right {
        Right::Send(right) => Some(right),
        _ => None,
    }
}

fn asked(right: &SendRight, mut message: Message) -> Result<Message> {
    let asked = right.request_reply_in_place(&mut message, Access::Later, MEETING, Waiting::Sleep);
    asked.map(|()| message).map_err(failed)
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

/// The whole life of a node's program whose ports others are given rights on: each is used once, which is said to
/// who has asked for it.
pub(super) fn offer(domain: &Domain, mut port: ReceiveRight) -> Result<()> {
    port.set_waiting(Waiting::Sleep);
    let mut offered = None;
    loop {
        let request = port.get_request(Access::Later, Deadline::NEVER);
        let mut request = request.map_err(failed)?;
        if request.message.header() == OFFERS {
            let new = asleep(domain)?;
            let right = new.make_send();
            let way = request.message.take_rights().into_iter().find_map(send);
            offered = way.map(|way| (new, way));
            let reply = attached(Message::default(), right)?;
            request.reply(reply).map_err(failed)?;
            continue;
        }
        request.reply_in_place().map_err(failed)?;
        if let Some((mut new, way)) = offered.take() {
            drop(new.receive(Access::Later, MEETING).map_err(failed)?);
            sent(&way, Message::default())?;
        }
    }
}

/// The whole life of one between whom a port moves: it answers requests there until one says that it moves.
pub(super) fn bounce(mut inbox: ReceiveRight) -> Result<()> {
    inbox.set_waiting(Waiting::Sleep);
    let (mut request, mut other) = (Request::default(), None);
    loop {
        let message = inbox.receive(Access::Later, Deadline::NEVER);
        let mut came = None;
        for right in message.map_err(failed)?.take_rights() {
            match right {
                Right::Receive(port) => came = Some(port),
                Right::Send(right) => other = Some(right),
                _ => {}
            }
        }
        let Some(mut port) = came else { continue };
        port.set_waiting(Waiting::Sleep);
        let mut moves = false;
        while !moves {
            let got = port.get_request_into(&mut request, Access::Later, Deadline::NEVER);
            got.map_err(failed)?;
            moves = request.message.header() == MOVES;
            request.reply_from().map_err(failed)?;
        }
        if let Some(other) = &other {
            sent(other, attached(Message::default(), port)?)?;
        }
    }
}

/// Three nodes, and the processor of the programs on the second and the third.
struct Places<'a> {
    trio: &'a Trio,
    far: usize,
}

impl Places<'_> {
    fn serve(
        &self,
        node: usize,
        brief: impl FnOnce(String, String) -> Brief,
    ) -> Result<(Server, SendRight)> {
        let (server, way) = self.trio.serve_at(node, brief)?;
        pin(server.id(), self.far)?;
        Ok((server, way))
    }

    fn asker(&self) -> Result<Asker> {
        Asker::of(self.trio, self.far)
    }

    fn giver(&self) -> Result<Giver> {
        let (server, way) = self.serve(1, |domain, port| Brief::Rights { domain, port })?;
        Ok(Giver {
            domain: self.trio.domains[0].clone(),
            way,
            _server: server,
        })
    }

    fn introducer(&self) -> Result<Introducer> {
        let (its, borrower) = self.serve(1, |domain, port| Brief::Rights { domain, port })?;
        let (offers, home) = self.serve(2, |domain, port| Brief::Offers { domain, port })?;
        Ok(Introducer {
            borrower,
            home,
            inbox: asleep(&self.trio.domains[0])?,
            right: None,
            _servers: [its, offers],
        })
    }

    fn mover(&self) -> Result<Mover> {
        let (server, way) = self.serve(1, |domain, port| Brief::Rights { domain, port })?;
        let domain = &self.trio.domains[0];
        let port = asleep(domain)?;
        Ok(Mover {
            right: port.make_send(),
            port: Some(port),
            inbox: asleep(domain)?,
            way,
            _server: server,
        })
    }

    fn client(&self, moves: bool) -> Result<Client> {
        let brief = |domain, port| Brief::Bounces { domain, port };
        let (one, first) = self.serve(1, brief)?;
        let (other, second) = self.serve(2, brief)?;
        let port = PortOptions::unnamed().synchronous();
        let port = self.trio.domains[0].bind(port).map_err(failed)?;
        let right = port.make_send();
        sent(&second, attached(Message::default(), first.clone())?)?;
        sent(
            &first,
            attached(attached(Message::default(), port)?, second)?,
        )?;
        Ok(Client {
            right,
            moves,
            _servers: [one, other],
        })
    }
}

/// Nodes that know one another: secrets go over no other links.
pub(super) fn measure(
    trios: &[Trio],
    pinning: Pinning,
    effort: Effort,
    progress: &ProgressBar,
) -> Result<Vec<Row>> {
    cpus::pin(pinning.near)?;
    let mut rows = Vec::new();
    for trio in trios {
        progress.set_message(format!("{GIVEN}, {}", trio.over.name()));
        pinning.pin(trio)?;
        let far = pinning.far;
        let places = Places { trio, far };
        let (mut asker, mut giver) = (places.asker()?, places.giver()?);
        let (mut introducer, mut mover) = (places.introducer()?, places.mover()?);
        let (mut stays, mut moves) = (places.client(false)?, places.client(true)?);
        let all: &mut [&mut dyn Lane; LANES] = &mut [
            &mut asker,
            &mut giver,
            &mut introducer,
            &mut mover,
            &mut stays,
            &mut moves,
        ];
        let measured = lanes::measure(all, effort, progress)?;
        let [base, given, handed, moved, stays, moves] = &measured[..] else {
            continue;
        };
        let row = |name, measured| {
            let row = Row::of(name, trio.over.name(), Unit::Time, measured);
            row.waiting("asleep", pinning.name())
        };
        rows.push(row(REQUEST, base));
        for (name, lane) in [(GIVEN, given), (HANDED, handed), (MOVED, moved)] {
            rows.push(row(name, lane).against("a null request", lane.to(base), None));
        }
        rows.push(row(NO_PAUSE, stays));
        rows.push(row(PAUSE, moves).against(NO_PAUSE, moves.to(stays), None));
    }
    Ok(rows)
}
