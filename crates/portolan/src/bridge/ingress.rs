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
use super::clients::{Admission, Bridge};
use super::codec::{Incoming, Outgoing, Preamble};
use super::connect::FIRST;
use super::error::{Over, ViolationKind};
use super::flows::{Flows, Turn};
use super::let_in::Asked;
use super::offered::OfferedTo;
use super::options::ring_bytes;
use super::port_ingress::{Act, PortIngress};
use super::sharing::{Coming, NewPort, Served};
use super::side::Side;
use crate::directory::Client;
use portolan_abi::bridge::{Ask, Denied, FrameHeader, FrameKind, Granted, RING_BYTES, Secret};
use portolan_sys::process;
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

/// Serves one client until its connection ends, or refuses it for want of a place.
pub(super) async fn serve(
    bridge: Arc<Bridge<OfferedTo>>,
    client: Client,
    admission: Admission,
    context: Rc<Context>,
) {
    let who = (client.peer.uid, client.peer.pid);
    let asked = Asked::hear(&bridge, client, &context).await;
    // Only after the request was read: an answer to a client that is still sending gets lost.
    let granted = asked.and_then(|asked| {
        let granted = grant(&bridge, &asked.ask, admission.has_place());
        asked.judged(granted)
    });
    let (asked, mut granted) = match granted {
        Ok(granted) => granted,
        Err(over) => return refused(bridge, admission, who, over),
    };
    let domain = bridge.domain.as_str();
    let (uid, pid) = who;
    tracing::info!(domain, uid, pid, "a client sends to an offered port");
    let member = Arc::clone(&bridge.what.right.to.member);
    let (alike, most) = (asked.alike(&granted), asked.ask.most);
    let (mut bridge, mut admission) = (bridge, admission);
    if let Some(served) = Served::find(&member, &asked.ask.named, who, alike) {
        match served.add(bridge, admission, most) {
            Ok(port) => {
                let (shares, secret) = (true, served.secret());
                let granted = Granted {
                    shares,
                    port,
                    secret,
                    ..granted
                };
                drop(member);
                if !asked.shares(granted, &context).await {
                    served.cancel(&context, port);
                }
                return;
            }
            Err(back) => (bridge, admission) = back,
        }
    }
    // Where the kernel gives none, it has no name.
    granted.secret = process::random().unwrap_or_default();
    let served = Served::new(&member, granted.secret, who, alike);
    drop(member);
    match asked.give(&bridge, granted, &context).await {
        Ok(side) => {
            carry(bridge, admission, side, most, served).await;
        }
        Err(over) => {
            served.end();
            refused(bridge, admission, who, over);
        }
    }
}

fn refused(bridge: Arc<Bridge<OfferedTo>>, admission: Admission, who: (u32, u32), over: Over) {
    bridge.ended(who.0, who.1, over);
    // The admission last.
    drop(bridge);
    drop(admission);
}

/// What a client gets for its request, if it gets a connection of its own.
fn grant(bridge: &Bridge<OfferedTo>, ask: &Ask, has_place: bool) -> Result<Granted, Denied> {
    match (has_place, bridge.what.right.is_live()) {
        (false, _) => Err(Denied::Full),
        (_, false) => Err(Denied::Over),
        _ => Ok(Granted {
            synchronous: bridge.what.synchronous,
            shares: false,
            most: bridge.most,
            there: ring_bytes(ask.there.min(bridge.ring_bytes)),
            back: *RING_BYTES.start(),
            window: bridge.what.window(),
            port: FIRST,
            secret: Secret::default(),
        }),
    }
}

/// Carries what a client sends, whose answers may take so many bytes, until the connection ends.
pub(super) async fn carry(
    bridge: Arc<Bridge<OfferedTo>>,
    admission: Admission,
    side: Side,
    most: u64,
    served: Arc<Served>,
) {
    let ingress = Ingress {
        flows: Flows::new(Rc::new(side)),
        who: served.who(),
        served,
        changes: RefCell::default(),
        reading: Cell::new(FIRST),
    };
    ingress.open(NewPort {
        bridge,
        admission,
        number: FIRST,
        most,
    });
    ingress.run().await;
    ingress.served.end();
}

/// The offering process's side of a connection, a task of the carrier.
struct Ingress {
    flows: Flows<PortIngress>,
    /// The client's user and process.
    who: (u32, u32),
    /// Where further ports come from.
    served: Arc<Served>,
    /// What is to be done about them.
    changes: RefCell<Vec<Change>>,
    /// The port that the last frame was for.
    reading: Cell<u32>,
}

/// What is new of a port.
enum Change {
    Open(Carried),
    Cancel(u32),
}

/// A port whose messages are sent on.
struct Carried {
    number: u32,
    // Dropped before the work, with which the admission is given back.
    bridge: Arc<Bridge<OfferedTo>>,
    work: Pin<Box<dyn Future<Output = Over>>>,
}

impl Ingress {
    /// Opens a port.
    fn open(&self, port: NewPort) {
        let port = Rc::new(PortIngress::new(
            port,
            Rc::clone(self.flows.side()),
            self.who,
        ));
        self.flows.open(port.number(), Rc::clone(&port));
        let carried = Carried {
            number: port.number(),
            bridge: Arc::clone(&port.bridge),
            work: Box::pin(async move { port.carry().await }),
        };
        self.changes.borrow_mut().push(Change::Open(carried));
    }

    /// Opens the ports that are new.
    fn open_new(&self) {
        for coming in self.served.take(self.flows.count()) {
            match coming {
                Coming::Open(port) => self.open(port),
                Coming::Cancel(number) => self.changes.borrow_mut().push(Change::Cancel(number)),
            }
        }
    }

    /// Carries messages until the connection ends, and all that came whole before is in its port.
    async fn run(&self) {
        let mut carried: Vec<Carried> = Vec::new();
        let mut halves = std::pin::pin!(either(self.read_all(), self.write_all()));
        let mut over = None;
        std::future::poll_fn(|context| {
            self.open_new();
            if over.is_none()
                && let Poll::Ready(why) = halves.as_mut().poll(context)
            {
                if matches!(why, Over::Gone) {
                    self.flows.ports().iter().for_each(|p| p.client_ended());
                }
                // It takes no further ports.
                self.served.end();
                over = Some(why);
            }
            let mut cancelled = Vec::new();
            for change in self.changes.borrow_mut().drain(..) {
                match change {
                    Change::Open(port) => carried.push(port),
                    Change::Cancel(number) => cancelled.push(number),
                }
            }
            carried.retain_mut(|it| {
                if it.bridge.stop.is_asked() || cancelled.contains(&it.number) {
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
                None => !carried.is_empty() || !self.served.end_if_unused(),
                Some(Over::Gone) => !carried.is_empty(),
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
        self.open_new();
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
                let mut outgoing = Outgoing::new(answer, false)?;
                outgoing.leaves(&port.bridge.what.right.to.member);
                drop(port);
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
