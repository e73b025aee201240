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
//! (G5). The task ends with its last port.

use super::carrier::{self, Context, either};
use super::codec::{Incoming, Outgoing, Preamble};
use super::error::{ConnectToError, Over, ViolationKind};
use super::flows::{Flows, Turn};
use super::port_egress::{Act, PortEgress, Proxy};
use super::side::Side;
use super::wire::{Agreed, Wire};
use portolan_abi::bridge::{FrameHeader, FrameKind};
use std::rc::Rc;
use std::sync::Arc;

/// The client's side of a connection, a task of the carrier.
pub(super) struct Egress {
    flows: Flows<Proxy>,
}

/// Begins to carry the messages sent to the port over a connection that was made for it.
pub(super) fn launch(first: PortEgress, wire: Box<dyn Agreed>) -> Result<(), ConnectToError> {
    let member = Arc::clone(first.member());
    let (domain, drain) = (member.domain.clone(), first.launched());
    carrier::launch(&member, move |context| async move {
        let name = first.name.clone();
        let over = match wire.of_task(&context) {
            Ok(wire) => run(wire, first.open(&context, drain), &context).await,
            Err(error) => {
                first.forget(drain);
                Over::Io(error)
            }
        };
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

async fn run(wire: Box<dyn Wire>, first: Proxy, context: &Rc<Context>) -> Over {
    let egress = Egress {
        flows: Flows::new(Rc::new(Side::new(wire, context))),
    };
    egress.flows.open(first.number(), Rc::new(first));
    either(egress.send_all(), egress.take_answers()).await
}

impl Egress {
    /// Carries what is sent until no process can send any more; returns the reason.
    async fn send_all(&self) -> Over {
        let mut scratch = Vec::new();
        loop {
            let look = |arms: bool| {
                if self.flows.is_empty() {
                    return Err(Over::Stopped);
                }
                self.flows.next_turn(|port| port.next_act(arms))
            };
            let sent = async {
                let turn = self.flows.side().context().until(look).await?;
                self.write(turn, &mut scratch).await
            };
            if let Err(over) = sent.await {
                return over;
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
