//! The ports of a connection share its wire: in each direction one frame follows another, of
//! whichever port, and a message passes in fragments.
//!
//! ```text
//!   open --this side ends it--> ended --Closed is written--> said --Closed comes--> gone
//!    |                            ^                                                   ^
//!    +--Closed comes--> ended, heard -----------Closed is written--------------------+
//! ```
//!
//! # Invariants
//!
//! - **F1** The reader waits for no port: what comes for a port is within its window, or a violation.
//! - **F2** The writer gives ports their turn after each frame, which has at most one fragment.
//! - **F3** No future that reads or writes holds a port while it waits. So a port can end at any time,
//!   in the middle of a fragment too: what is left of the fragment passes for nothing.
//! - **F4** Each side says once that it closes a port, behind all that it has for the port. A number is
//!   free again when both have said it.

use super::codec::{self, Incoming, Outgoing, Step};
use super::error::{Over, ViolationKind};
use super::side::Side;
use portolan_abi::bridge::{FrameHeader, FrameKind, MAX_PORTS};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The ports of a connection on this side of it.
pub(super) struct Flows<P> {
    side: Rc<Side>,
    slots: RefCell<BTreeMap<u32, Slot<P>>>,
    /// The port that had its turn.
    turn: Cell<u32>,
}

/// What one side has of a port of the connection.
struct Slot<P> {
    /// `None`: it has ended here.
    port: Option<Rc<P>>,
    incoming: Option<Incoming>,
    outgoing: Option<Outgoing>,
    /// This side has said that it closes it; the other one has.
    said: bool,
    heard: bool,
}

impl<P> Slot<P> {
    /// One that has ended here, and nothing was said of it.
    const fn ended() -> Self {
        Self {
            port: None,
            incoming: None,
            outgoing: None,
            said: false,
            heard: false,
        }
    }
}

/// What is to be written next.
pub(super) enum Turn<T> {
    /// A fragment of a message that has begun.
    Fragment(u32),
    /// The end of a port.
    Closed(u32),
    /// Something else of a port.
    Port(u32, T),
}

impl<P> Flows<P> {
    pub(super) fn new(side: Rc<Side>) -> Self {
        Self {
            side,
            slots: RefCell::default(),
            turn: Cell::new(0),
        }
    }

    pub(super) fn side(&self) -> &Rc<Side> {
        &self.side
    }

    /// Opens a port.
    pub(super) fn open(&self, number: u32, port: Rc<P>) {
        let slot = Slot {
            port: Some(port),
            ..Slot::ended()
        };
        self.slots.borrow_mut().insert(number, slot);
    }

    /// The open ports.
    pub(super) fn ports(&self) -> Vec<Rc<P>> {
        let slots = self.slots.borrow();
        slots.values().filter_map(|s| s.port.clone()).collect()
    }

    /// Opens a port that has ended here already.
    pub(super) fn open_ended(&self, number: u32) -> Result<(), Over> {
        let mut slots = self.slots.borrow_mut();
        // As many as were closed and as many as are open.
        if slots.len() > 2 * MAX_PORTS {
            return Err(ViolationKind::Port { port: number }.into());
        }
        slots.insert(number, Slot::ended());
        Ok(())
    }

    /// Whether a number is in use.
    pub(super) fn knows(&self, number: u32) -> bool {
        self.slots.borrow().contains_key(&number)
    }

    /// The numbers that are in use.
    pub(super) fn count(&self) -> usize {
        self.slots.borrow().len()
    }

    /// An open port.
    pub(super) fn port(&self, number: u32) -> Option<Rc<P>> {
        self.slots.borrow().get(&number)?.port.clone()
    }

    /// Whether no port is open.
    pub(super) fn none_is_open(&self) -> bool {
        self.slots.borrow().values().all(|s| s.port.is_none())
    }

    /// The port that a frame is for; `None` if it has ended here.
    pub(super) fn of_frame(&self, frame: &FrameHeader) -> Result<Option<Rc<P>>, Over> {
        let port = frame.port;
        match self.slots.borrow().get(&port) {
            Some(slot) if !slot.heard => Ok(slot.port.clone()),
            _ => Err(ViolationKind::Port { port }.into()),
        }
    }

    /// Ends a port here (F3).
    pub(super) fn end(&self, number: u32) {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(&number) else {
            return;
        };
        if let Some(incoming) = &mut slot.incoming {
            incoming.abandon();
        }
        slot.outgoing = slot.outgoing.take().and_then(Outgoing::abandon);
        let port = slot.port.take();
        drop(slots);
        // Which may tell others.
        drop(port);
        self.side.context().again();
    }

    /// The other side has said that it closes a port (F4).
    pub(super) fn hear_closed(&self, number: u32) {
        let mut slots = self.slots.borrow_mut();
        if let Some(slot) = slots.get_mut(&number) {
            slot.heard = true;
            // Half a message is none.
            slot.incoming = None;
            if slot.said {
                slots.remove(&number);
            }
        }
    }

    /// A message of a port has begun to come; one at a time does.
    pub(super) fn comes(&self, incoming: Incoming) -> Result<(), Over> {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(&incoming.frame.port);
        let slot = slot.filter(|slot| slot.incoming.is_none());
        let slot = slot.ok_or(ViolationKind::FrameHeader)?;
        slot.incoming = Some(incoming);
        Ok(())
    }

    /// A further fragment of a port's message begins to come.
    pub(super) fn goes_on(&self, number: u32) -> Result<(), Over> {
        let mut slots = self.slots.borrow_mut();
        let incoming = slots.get_mut(&number).and_then(|s| s.incoming.as_mut());
        let incoming = incoming.filter(|incoming| !incoming.is_whole());
        incoming.ok_or(ViolationKind::FrameHeader)?.fragment();
        Ok(())
    }

    /// Reads the fragment that has begun; the message, once it is whole.
    pub(super) async fn read_fragment(&self, number: u32) -> Result<Option<Incoming>, Over> {
        loop {
            self.side.context().turn().await;
            let step = match self.slots.borrow_mut().get_mut(&number) {
                Some(Slot {
                    incoming: Some(incoming),
                    ..
                }) => incoming.step(&self.side)?,
                _ => return Ok(None),
            };
            match step {
                Step::Moved => {}
                Step::Waits => self.side.more(|_| Ok(())).await?,
                Step::Pause(time) => self.side.context().pause(time).await,
                Step::Done => break,
            }
        }
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(&number);
        Ok(slot.and_then(|slot| slot.incoming.take_if(|it| it.is_whole())))
    }

    /// Reads the next frame header, waiting for it.
    pub(super) async fn next_frame(&self) -> Result<FrameHeader, Over> {
        self.side.more(|_| Ok(())).await?;
        codec::read_frame_header(&self.side).await
    }

    /// What is to be written next, in turn; `of` says what else a port has to write (F2).
    pub(super) fn next_turn<T>(
        &self,
        mut of: impl FnMut(&Rc<P>) -> Result<Option<T>, Over>,
    ) -> Result<Option<Turn<T>>, Over> {
        let slots = self.slots.borrow();
        let turn = self.turn.get();
        let behind = slots.range(turn.saturating_add(1)..);
        for (number, slot) in behind.chain(slots.range(..=turn)) {
            let next = match (&slot.outgoing, &slot.port) {
                (Some(_), _) => Some(Turn::Fragment(*number)),
                (None, Some(port)) => of(port)?.map(|what| Turn::Port(*number, what)),
                (None, None) if !slot.said => Some(Turn::Closed(*number)),
                (None, None) => None,
            };
            if next.is_some() {
                self.turn.set(*number);
                return Ok(next);
            }
        }
        Ok(None)
    }

    /// Begins to write a message of a port, with its first fragment; the message, if that is all of
    /// it.
    pub(super) async fn begin(
        &self,
        mut outgoing: Outgoing,
        as_what: impl FnOnce(FrameHeader) -> FrameHeader,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<Outgoing>, Over> {
        let (number, sealed) = outgoing.begin(as_what, scratch);
        match self.slots.borrow_mut().get_mut(&number) {
            Some(slot) => slot.outgoing = Some(outgoing),
            None => return Ok(None),
        }
        if !sealed.is_empty() {
            // Before the frame header that speaks of them.
            self.side.show(&sealed).await?;
            portolan_shm::mark!("bridge.shown");
        }
        self.side.write(scratch).await?;
        portolan_shm::mark!("bridge.announced");
        self.write_pieces(number).await
    }

    /// Writes the next fragment of a port's message; the message, if that is its end.
    pub(super) async fn write_fragment(&self, number: u32) -> Result<Option<Outgoing>, Over> {
        let frame = match self.slots.borrow_mut().get_mut(&number) {
            Some(Slot {
                outgoing: Some(outgoing),
                ..
            }) => outgoing.fragment(),
            _ => return Ok(None),
        };
        self.side.write(&frame.encode()).await?;
        self.write_pieces(number).await
    }

    async fn write_pieces(&self, number: u32) -> Result<Option<Outgoing>, Over> {
        loop {
            self.side.context().turn().await;
            let step = match self.slots.borrow_mut().get_mut(&number) {
                Some(Slot {
                    outgoing: Some(outgoing),
                    ..
                }) => outgoing.step(&self.side)?,
                _ => return Ok(None),
            };
            match step {
                Step::Moved | Step::Pause(_) => {}
                Step::Waits => self.side.room().await?,
                Step::Done => break,
            }
        }
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(&number);
        let over = slot.and_then(|slot| slot.outgoing.take_if(|it| it.is_over()));
        Ok(over.filter(|it| !it.is_abandoned()))
    }

    /// Writes the end of a port (F4).
    pub(super) async fn write_closed(&self, number: u32) -> Result<(), Over> {
        self.say_closed(number);
        self.write_bare(number, FrameKind::Closed, 0).await
    }

    fn say_closed(&self, number: u32) {
        let mut slots = self.slots.borrow_mut();
        if let Some(slot) = slots.get_mut(&number) {
            slot.said = true;
            if slot.heard {
                slots.remove(&number);
            }
        }
    }

    /// Writes a frame that holds nothing.
    pub(super) async fn write_bare(
        &self,
        port: u32,
        kind: FrameKind,
        accepted: u64,
    ) -> Result<(), Over> {
        let frame = FrameHeader {
            port,
            accepted,
            ..FrameHeader::new(kind)
        };
        self.side.write(&frame.encode()).await
    }
}
