//! A connection's egress takes messages out of proxy ports and writes them to the other domain.
//!
//! ```text
//! proxy port --message----------------------> byte ring
//!            --request, noted by its number--> byte ring
//!  client <-------- its answer ------------- byte ring back
//! ```
//!
//! It is a task with two halves: one sends, the other takes answers. So many requests are under way
//! at a time, and their answers come in any order. A message waits here until its port's window
//! has room; the other ports go on.
//!
//! The egress of a port ends with the last right on the proxy port, once everything sent before has
//! gone over and is answered, or with the other side; then the proxy port is closed, and a dead name
//! (G5). Ports come and go; the task ends with the last one.

use super::carrier::{self, Context, either};
use super::codec::{Incoming, Outgoing, Preamble};
use super::error::{ConnectToError, Over, ViolationKind};
use super::flows::{Flows, Turn};
use super::port_egress::{Act, PortEgress, Proxy};
use super::sharing::Used;
use super::side::Side;
use super::wire::{Agreed, Wire};
use portolan_abi::bridge::{FrameHeader, FrameKind, MAX_PORTS};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// The client's side of a connection, a task of the carrier.
struct Egress<'u> {
    flows: Flows<Proxy>,
    /// Where further ports come from.
    used: &'u Used,
    /// Ports that were closed before they came from there; the last ones.
    early: RefCell<VecDeque<u32>>,
}

/// Begins to carry the messages sent to the port over a connection that was made for it.
pub(super) fn launch(
    first: PortEgress,
    wire: Box<dyn Agreed>,
    used: Arc<Used>,
) -> Result<(), ConnectToError> {
    let member = Arc::clone(first.member());
    let (domain, drain) = (member.domain.clone(), first.launched());
    carrier::launch(&member, move |context| async move {
        let name = first.name.clone();
        let over = match wire.of_task(&context) {
            Ok(wire) => run(wire, first.open(&context, drain), &context, &used).await,
            Err(error) => {
                first.forget(drain);
                Over::Io(error)
            }
        };
        used.end();
        match over {
            Over::Stopped => tracing::debug!(domain, name, "all that was sent has gone over"),
            Over::Gone => tracing::info!(domain, name, "the other side is gone"),
            Over::Violation(error) => {
                tracing::warn!(domain, name, %error, "the other side breaks the rules");
            }
            Over::Io(error) => tracing::warn!(domain, name, %error, "cannot carry on"),
        }
    })?;
    Ok(())
}

async fn run(wire: Box<dyn Wire>, first: Proxy, context: &Rc<Context>, used: &Used) -> Over {
    let egress = Egress {
        flows: Flows::new(Rc::new(Side::new(wire, context))),
        used,
        early: RefCell::default(),
    };
    egress.flows.open(first.number(), Rc::new(first));
    either(egress.send_all(), egress.take_answers()).await
}

impl Egress<'_> {
    /// Opens the ports that are new.
    fn open_new(&self) {
        for (port, drain) in self.used.take() {
            let mut early = self.early.borrow_mut();
            if let Some(at) = early.iter().position(|number| *number == port.number) {
                early.remove(at);
                port.forget(drain);
                continue;
            }
            let port = port.open(self.flows.side().context(), drain);
            self.flows.open(port.number(), Rc::new(port));
        }
    }

    /// The other side has closed a port that has not come from the program yet, or never will,
    /// because the program has given up.
    fn closed_early(&self, number: u32) -> Result<(), Over> {
        let mut early = self.early.borrow_mut();
        early.push_back(number);
        if early.len() > MAX_PORTS {
            early.pop_front();
        }
        self.flows.open_ended(number)
    }

    /// Carries what is sent until no process can send any more; returns the reason.
    async fn send_all(&self) -> Over {
        let mut scratch = Vec::new();
        loop {
            let look = |arms: bool| {
                self.open_new();
                if self.flows.none_is_open() && self.used.end_if_unused() {
                    return Err(Over::Stopped);
                }
                self.flows.next_turn(|port| port.next_act(arms))
            };
            let sent = async {
                let turn = self.flows.side().context().until(look).await?;
                self.write(turn, &mut scratch).await
            };
            match sent.await {
                Ok(()) => {}
                // What the server has answered before it went is read yet.
                Err(Over::Gone) => return std::future::pending().await,
                Err(over) => return over,
            }
        }
    }

    async fn write(&self, turn: Turn<Act>, scratch: &mut Vec<u8>) -> Result<(), Over> {
        let flows = &self.flows;
        let (number, sent) = match turn {
            Turn::Closed(number) => return flows.write_closed(number).await,
            Turn::Port(number, Act::Blocked) => {
                return flows.write_bare(number, FrameKind::Blocked, 0).await;
            }
            Turn::Port(number, Act::End) => {
                flows.end(number);
                return Ok(());
            }
            Turn::Fragment(number) => (number, flows.write_fragment(number).await?),
            Turn::Port(number, Act::Send { message, tag }) => {
                let kind = match tag {
                    Some(_) => FrameKind::Request,
                    None => FrameKind::Message,
                };
                let as_what = |frame| FrameHeader {
                    kind,
                    port: number,
                    tag: tag.unwrap_or(0),
                    ..frame
                };
                (number, flows.begin(*message, as_what, scratch).await?)
            }
        };
        if let Some(sent) = sent {
            self.went(number, sent);
        }
        Ok(())
    }

    /// A message has gone over.
    fn went(&self, number: u32, sent: Outgoing) {
        if let Some(port) = self.flows.port(number) {
            let asks = sent.kind() == FrameKind::Request;
            port.went(sent);
            if asks {
                portolan_shm::mark!("bridge.requested");
            } else {
                portolan_shm::mark!("bridge.carried");
            }
        }
    }

    /// Takes answers until the other side ends; returns the reason.
    async fn take_answers(&self) -> Over {
        let mut scratch = Vec::new();
        loop {
            if let Err(over) = self.take_next(&mut scratch).await {
                return over;
            }
        }
    }

    async fn take_next(&self, scratch: &mut Vec<u8>) -> Result<(), Over> {
        let frame = self.flows.next_frame().await?;
        self.open_new();
        if frame.kind == FrameKind::Closed && !self.flows.knows(frame.port) {
            self.closed_early(frame.port)?;
        }
        let port = self.flows.of_frame(&frame)?;
        match (frame.kind, port) {
            (FrameKind::Closed, _) => {
                self.flows.end(frame.port);
                self.flows.hear_closed(frame.port);
                Ok(())
            }
            // What was sent there before it ended.
            (FrameKind::Accepted, None) => Ok(()),
            (FrameKind::Accepted, Some(port)) => port.accepted(frame.accepted),
            (FrameKind::Dropped, Some(port)) => {
                port.accepted(frame.accepted)?;
                port.answered(frame.tag, None)
            }
            (FrameKind::Reply, Some(port)) => {
                port.accepted(frame.accepted)?;
                port.has_asked(frame.tag)?;
                drop(port);
                let preamble = Preamble::read(self.flows.side(), frame, scratch).await?;
                self.flows.comes(self.incoming(preamble)?)?;
                self.read_fragment(frame.port).await
            }
            (FrameKind::Fragment, port) => {
                drop(port);
                self.flows.goes_on(frame.port)?;
                self.read_fragment(frame.port).await
            }
            _ => Err(ViolationKind::FrameHeader.into()),
        }
    }

    /// An answer that has begun.
    fn incoming(&self, preamble: Preamble<'_>) -> Result<Incoming, Over> {
        let side = self.flows.side();
        let Some(port) = self.flows.port(preamble.frame.port) else {
            return Incoming::thrown_away(side, preamble);
        };
        // Before a byte is taken for it (G1).
        preamble.taken(port.back)?;
        Incoming::new(side, &port.member, preamble)
    }

    async fn read_fragment(&self, number: u32) -> Result<(), Over> {
        let Some(whole) = self.flows.read_fragment(number).await? else {
            return Ok(());
        };
        let Some(port) = self.flows.port(number) else {
            return Ok(());
        };
        let tag = whole.frame.tag;
        let Some(answer) = whole.came(port.at.index) else {
            return Ok(());
        };
        portolan_shm::mark!("bridge.answer_came");
        port.answered(tag, Some(answer))
    }
}
