//! A simulated machine's memory and ports, and the oracle of what may enter them.

use crate::oracle::Oracle;
use portolan_proto::Time;
use portolan_proto::node::{
    Delivery, Destination, FlowKey, Given, Home, Message, PortKey, RequestKey,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// How much memory of a machine is in use.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) live: Cell<u64>,
    pub(crate) bytes: Cell<u64>,
}

/// Memory for a payload: a reference, counted by its machine. Its bytes are all the same number.
#[derive(Clone, Debug)]
pub(crate) struct Payload(Rc<Memory>);

#[derive(Debug)]
struct Memory {
    ledger: Rc<Ledger>,
    bytes: u64,
    filled: Cell<u64>,
    content: Cell<u64>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.ledger.live.set(self.ledger.live.get() - 1);
        self.ledger.bytes.set(self.ledger.bytes.get() - self.bytes);
    }
}

impl Payload {
    pub(crate) fn new(ledger: &Rc<Ledger>, bytes: u64) -> Self {
        ledger.live.set(ledger.live.get() + 1);
        ledger.bytes.set(ledger.bytes.get() + bytes);
        Self(Rc::new(Memory {
            ledger: Rc::clone(ledger),
            bytes,
            filled: Cell::new(0),
            content: Cell::new(0),
        }))
    }

    pub(crate) fn with(ledger: &Rc<Ledger>, bytes: u64, content: u64) -> Self {
        let payload = Self::new(ledger, bytes);
        payload.0.filled.set(bytes);
        payload.0.content.set(content);
        payload
    }

    pub(crate) fn content(&self) -> u64 {
        self.0.content.get()
    }

    /// Bytes arrive; whether they continue what is there.
    pub(crate) fn receive(&self, offset: u64, bytes: u64, content: u64) -> bool {
        let fits = offset == self.0.filled.get() && offset + bytes <= self.0.bytes;
        let is_same = offset == 0 || self.0.content.get() == content;
        self.0.filled.set(offset + bytes);
        self.0.content.set(content);
        fits && is_same
    }

    fn is_whole(&self, content: u64) -> bool {
        self.0.filled.get() == self.0.bytes && self.0.content.get() == content
    }
}

/// What stands in a message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    /// The flow, in one association: a number of the simulation's.
    pub(crate) instance: u64,
    pub(crate) number: u64,
}

impl Label {
    pub(crate) const BYTES: usize = 16;

    pub(crate) fn bytes(self) -> Vec<u8> {
        [self.instance.to_le_bytes(), self.number.to_le_bytes()].concat()
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Self {
            instance: word(0)?,
            number: word(8)?,
        })
    }

    /// The content of its payload.
    pub(crate) fn content(self) -> u64 {
        self.instance.wrapping_mul(1_000_003) ^ self.number
    }
}

/// Whether a message's payload is what its label says.
pub(crate) fn is_intact(message: &Message<Payload>) -> bool {
    let Some(label) = Label::read(&message.header) else {
        return false;
    };
    message
        .payload
        .as_ref()
        .is_none_or(|payload| payload.is_whole(label.content()))
}

/// A port's queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) slots: u32,
    pub(crate) synchronous: bool,
    pub(crate) messages: VecDeque<Option<Delivery<Payload>>>,
}

impl Queue {
    pub(crate) fn free(&self) -> u32 {
        let taken = u32::try_from(self.messages.len()).unwrap_or(u32::MAX);
        self.slots.saturating_sub(taken)
    }
}

/// A machine.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) ledger: Rc<Ledger>,
    pub(crate) queues: BTreeMap<PortKey, Queue>,
    /// Flows that were lent, and to which port.
    pub(crate) lent: BTreeMap<FlowKey, PortKey>,
    /// Peers that say anything: only their flows are judged.
    pub(crate) hostile: BTreeSet<portolan_abi::node::NodeId>,
    pub(crate) oracle: Rc<RefCell<Oracle>>,
    /// Bytes that it may have at a time.
    pub(crate) memory: u64,
    pub(crate) now: Time,
    /// Rights that have come, by their numbers.
    pub(crate) arrived: Vec<(u64, Given)>,
    /// Receive rights move: messages are judged when they are taken.
    pub(crate) moves: bool,
}

/// The rights of a message with their numbers, which stand behind so many bytes of its header.
pub(crate) fn rights_of(message: &Message<Payload>, behind: usize) -> Vec<(u64, Given)> {
    let numbers = message.header.get(behind..).unwrap_or_default();
    let numbers = numbers
        .chunks_exact(8)
        .map(|it| it.try_into().map_or(0, u64::from_le_bytes));
    let numbers = numbers.chain(std::iter::repeat(0));
    numbers.zip(message.rights.iter().copied()).collect()
}

impl Home<Payload> for Machine {
    fn allocate(&mut self, _: Destination, lengths: &[u64]) -> Option<Payload> {
        let bytes = lengths.iter().sum();
        let fits = self.ledger.bytes.get() + bytes <= self.memory;
        fits.then(|| Payload::new(&self.ledger, bytes))
    }

    fn fill(&mut self, payload: &Payload, bytes: &[u8]) {
        let mut content = [0; 8];
        let len = bytes.len().min(8);
        content[..len].copy_from_slice(&bytes[..len]);
        payload.receive(0, bytes.len() as u64, u64::from_le_bytes(content));
    }

    fn deliver(&mut self, delivery: Delivery<Payload>) -> Result<(), Delivery<Payload>> {
        let Some(queue) = self.queues.get_mut(&delivery.port) else {
            return Err(delivery);
        };
        if queue.free() == 0 {
            return Err(delivery);
        }
        let mut oracle = self.oracle.borrow_mut();
        if self.lent.get(&delivery.from) != Some(&delivery.port) {
            oracle.found(
                "N12",
                format!("{:?} reached {:?} unlent", delivery.from, delivery.port),
            );
        } else if self.moves {
            drop(oracle);
            queue.messages.push_back(Some(delivery));
            return Ok(());
        } else if !self.hostile.contains(&delivery.from.peer) {
            oracle.enters(&delivery, is_intact(&delivery.message));
        }
        self.arrived
            .extend(rights_of(&delivery.message, Label::BYTES));
        queue.messages.push_back(Some(delivery));
        Ok(())
    }
}

/// A request that a server has taken.
pub(crate) type Taken = (Time, RequestKey, u64, PortKey);
