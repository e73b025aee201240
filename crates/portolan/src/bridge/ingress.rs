//! A connection's ingress reads one client's messages from the connection's memory, and writes the
//! answers back.
//!
//! ```text
//! byte ring --message, request--> staged, in its port    the first half, one after another
//! byte ring back <------ answers, what was accepted      the second half, in turn
//! staged ----------------------------> real port         a future for each port
//! ```
//!
//! It is one task. A port whose real port is full, or whose server has as many requests as it
//! may have, holds up none of the others: what comes for it waits in its window.

use super::carrier::{Context, either};
use super::clients::{Bridge, Seat};
use super::codec::{Incoming, Outgoing, Preamble};
use super::connect::FIRST;
use super::error::{Over, ViolationKind};
use super::flows::{Flows, Turn};
use super::let_in::let_in;
use super::offered::OfferedTo;
use super::options::ring_bytes;
use super::port_ingress::{Act, PortIngress};
use super::side::Side;
use crate::directory::Client;
use portolan_abi::bridge::{Ask, Denied, FrameHeader, FrameKind, Granted, RING_BYTES};
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

/// Serves one client until its connection ends, or refuses it for want of a place.
pub(super) async fn serve(
    bridge: Arc<Bridge<OfferedTo>>,
    client: Client,
    seat: Seat,
    context: Rc<Context>,
) {
    let (uid, pid) = (client.peer.uid, client.peer.pid);
    match grant(&bridge, client, seat.has_place(), &context).await {
        Ok((ask, side)) => {
            let domain = bridge.domain.as_str();
            tracing::info!(domain, uid, pid, "a client sends to an offered port");
            carry(bridge, seat, side, ask.most, (uid, pid)).await;
        }
        Err(over) => {
            bridge.ended(uid, pid, over);
            drop(bridge);
            drop(seat);
        }
    }
}

/// Reads a client's request, and answers it.
async fn grant(
    bridge: &Bridge<OfferedTo>,
    client: Client,
    has_place: bool,
    context: &Rc<Context>,
) -> Result<(Ask, Side), Over> {
    let granted = |ask: &Ask| {
        if !bridge.what.right.is_live() {
            return Err(Denied::Over);
        }
        Ok(Granted {
            synchronous: bridge.what.synchronous,
            most: bridge.most,
            there: ring_bytes(ask.there.min(bridge.ring_bytes)),
            back: *RING_BYTES.start(),
            window: bridge.what.window(),
        })
    };
    let_in(bridge, client, has_place, context, granted).await
}

/// Carries what a client sends, whose answers may take so many bytes, until the connection ends.
pub(super) async fn carry(
    bridge: Arc<Bridge<OfferedTo>>,
    seat: Seat,
    side: Side,
    most: u64,
    who: (u32, u32),
) {
    let side = Rc::new(side);
    let first = PortIngress::new(bridge, seat, FIRST, Rc::clone(&side), most, who);
    let ingress = Ingress {
        flows: Flows::new(side),
        who,
        reading: Cell::new(FIRST),
    };
    ingress.run(vec![first]).await;
}

/// The offering process's side of a connection, a task of the carrier.
struct Ingress {
    flows: Flows<PortIngress>,
    /// The client's user and process.
    who: (u32, u32),
    /// The port that the last frame was for.
    reading: Cell<u32>,
}

/// A port of which messages are sent on.
struct Carried {
    number: u32,
    // Dropped before the work, with which the seat is given back.
    bridge: Arc<Bridge<OfferedTo>>,
    work: Pin<Box<dyn Future<Output = Over>>>,
}

impl Ingress {
    /// Opens a port.
    fn open(&self, port: PortIngress) -> Carried {
        let port = Rc::new(port);
        self.flows.open(port.number(), Rc::clone(&port));
        Carried {
            number: port.number(),
            bridge: Arc::clone(&port.bridge),
            work: Box::pin(async move { port.carry().await }),
        }
    }

    /// Carries messages until the connection ends, and all that came whole before is in its port.
    async fn run(&self, ports: Vec<PortIngress>) {
        let mut carried: Vec<_> = ports.into_iter().map(|port| self.open(port)).collect();
        let mut halves = std::pin::pin!(either(self.read_all(), self.write_all()));
        let mut over = None;
        std::future::poll_fn(|context| {
            if over.is_none()
                && let Poll::Ready(why) = halves.as_mut().poll(context)
            {
                if matches!(why, Over::Gone) {
                    self.flows.ports().iter().for_each(|p| p.client_ended());
                }
                over = Some(why);
            }
            carried.retain_mut(|it| {
                if it.bridge.stop.is_asked() {
                    self.ended(it, Over::Stopped);
                    return false;
                }
                match it.work.as_mut().poll(context) {
                    Poll::Ready(why) => self.ended(it, why),
                    Poll::Pending => return true,
                }
                false
            });
            let goes_on = match &over {
                None | Some(Over::Gone) => !carried.is_empty(),
                Some(_) => false,
            };
            match goes_on {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        })
        .await;
        // The port that it was about, or any.
        let reading = self.reading.get();
        carried.sort_by_key(|it| it.number != reading);
        for mut it in carried {
            let why = over.take().unwrap_or(Over::Gone);
            self.ended(&mut it, why);
        }
    }

    /// A port ends, for this reason. What it had is given back once `it` is dropped.
    fn ended(&self, it: &mut Carried, why: Over) {
        it.bridge.ended(self.who.0, self.who.1, why);
        self.flows.end(it.number);
    }

    /// Reads messages until the connection ends; returns the reason.
    async fn read_all(&self) -> Over {
        let mut scratch = Vec::new();
        loop {
            if let Err(over) = self.read_next(&mut scratch).await {
                return over;
            }
        }
    }

    async fn read_next(&self, scratch: &mut Vec<u8>) -> Result<(), Over> {
        let frame = self.flows.next_frame().await?;
        let number = frame.port;
        self.reading.set(number);
        let port = self.flows.of_frame(&frame)?;
        match frame.kind {
            FrameKind::Closed => {
                if let Some(port) = port {
                    port.client_ended();
                }
                self.flows.hear_closed(number);
                Ok(())
            }
            FrameKind::Blocked => {
                if let Some(port) = port {
                    port.window.borrow_mut().ask();
                }
                Ok(())
            }
            FrameKind::Fragment => {
                drop(port);
                self.flows.goes_on(number)?;
                self.read_fragment(number).await
            }
            // Of a port that has ended, whatever comes is thrown away.
            _ if port.is_some_and(|port| !port.takes(frame.kind)) => {
                Err(ViolationKind::FrameHeader.into())
            }
            FrameKind::Message | FrameKind::Request => {
                let preamble = Preamble::read(self.flows.side(), frame, scratch).await?;
                self.flows.comes(self.incoming(preamble)?)?;
                self.read_fragment(number).await
            }
            _ => Err(ViolationKind::FrameHeader.into()),
        }
    }

    /// A message that has begun, if its port's window has room for it.
    fn incoming(&self, preamble: Preamble<'_>) -> Result<Incoming, Over> {
        let number = preamble.frame.port;
        let Some(port) = self.flows.port(number) else {
            return Incoming::thrown_away(self.flows.side(), preamble);
        };
        // Before a byte is taken for it (G1).
        let taken = preamble.taken(port.bridge.most)?;
        if !port.window.borrow_mut().begin(taken) {
            return Err(ViolationKind::Window { port: number }.into());
        }
        let member = &port.bridge.what.right.to.member;
        Incoming::new(self.flows.side(), member, preamble)
    }

    async fn read_fragment(&self, number: u32) -> Result<(), Over> {
        let Some(whole) = self.flows.read_fragment(number).await? else {
            return Ok(());
        };
        let Some(port) = self.flows.port(number) else {
            return Ok(());
        };
        let tag = whole.frame.tag;
        if let Some(message) = whole.came(port.index()) {
            port.stage(message, tag);
        }
        Ok(())
    }

    /// Writes answers back until the connection ends; returns the reason.
    async fn write_all(&self) -> Over {
        let mut scratch = Vec::new();
        loop {
            let written = async {
                let look = |arms| self.flows.next_turn(|port| port.next_act(arms));
                let turn = self.flows.side().context().until(look).await?;
                self.write(turn, &mut scratch).await
            };
            match written.await {
                Ok(()) => {}
                // What the client has written before it went is read yet.
                Err(Over::Gone) => return std::future::pending().await,
                Err(over) => return over,
            }
        }
    }

    async fn write(&self, turn: Turn<Act>, scratch: &mut Vec<u8>) -> Result<(), Over> {
        let flows = &self.flows;
        let (number, act) = match turn {
            Turn::Closed(number) => return flows.write_closed(number).await,
            Turn::Fragment(number) => {
                let written = flows.write_fragment(number).await?;
                self.answered(number, written);
                return Ok(());
            }
            Turn::Port(number, act) => (number, act),
        };
        let Some(port) = flows.port(number) else {
            return Ok(());
        };
        let accepted = port.window.borrow_mut().say();
        match act {
            Act::Accepted => {
                drop(port);
                flows
                    .write_bare(number, FrameKind::Accepted, accepted)
                    .await
            }
            Act::Answer(tag, Some(answer)) => {
                let member = Arc::clone(&port.bridge.what.right.to.member);
                let outgoing = Outgoing::new(&member, answer, false)?;
                drop((port, member));
                let as_what = |frame| FrameHeader {
                    kind: FrameKind::Reply,
                    port: number,
                    tag,
                    accepted,
                    ..frame
                };
                let written = flows.begin(outgoing, as_what, scratch).await?;
                self.answered(number, written);
                Ok(())
            }
            Act::Answer(tag, None) => {
                drop(port);
                let frame = FrameHeader {
                    port: number,
                    tag,
                    accepted,
                    ..FrameHeader::new(FrameKind::Dropped)
                };
                flows.side().write(&frame.encode()).await?;
                if let Some(port) = flows.port(number) {
                    port.answered(0);
                }
                Ok(())
            }
        }
    }

    /// An answer is written, if it is.
    fn answered(&self, number: u32, written: Option<Outgoing>) {
        if let (Some(port), Some(written)) = (self.flows.port(number), written) {
            let member = &port.bridge.what.right.to.member;
            port.answered(written.left(member, port.index()));
        }
    }
}
