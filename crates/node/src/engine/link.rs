//! A connection to a peer: what the protocol says is written to its two streams, and what comes by
//! them is read, records whole, and the bytes of fragments to where the protocol wants them.

use std::time::Duration;

use portolan_abi::node::{FragmentHead, RecordHead};
use portolan_proto::Time;
use portolan_proto::node::{ConnectionId, Node, Place};
use portolan_transport::{
    Class, Connection, Destination, NodeId, Progress, State, StreamId, TransportError,
};

use super::machine::Machine;
use super::outgoing::Outgoing;
use super::payload::Payload;

/// Bytes that are read at once: more than two of the longest record.
const BUFFER: usize = 80 * 1024;
/// Reads of each stream in one turn: a peer that says much has to wait for the others.
const READS: usize = 16;
/// Bytes that wait to be written on a stream before the protocol is asked for more.
const AHEAD: u64 = 64 * 1024;
/// How often the protocol is asked for more in one turn.
const WRITES: usize = 8;
/// Turns, at most, in which a bulk stream that was still is not looked at because records have come: if
/// it has something, the descriptor says so again.
const PASSED_OVER: u32 = 8;

const _: () = assert!(portolan_abi::node::MAX_RECORD as usize <= BUFFER / 2);

/// What the bytes on the bulk stream are that come next.
#[derive(Debug)]
enum Bulk {
    /// The rest of a head.
    Head,
    /// The rest of a record that opens a transfer.
    Record(Vec<u8>, usize),
    /// The rest of a fragment.
    Into(Payload, u64),
    /// The same, which nobody wants; whether the protocol waits for its end.
    Nowhere(u64, bool),
}

/// A connection to a peer.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: ConnectionId,
    pub(super) peer: NodeId,
    pub(super) connection: Box<dyn Connection>,
    records: StreamId,
    bulk: StreamId,
    record_out: Outgoing,
    bulk_out: Outgoing,
    buffer: Vec<u8>,
    filled: usize,
    coming: Bulk,
    /// The head that is coming, or the one behind what is coming.
    head: [u8; FragmentHead::BYTES],
    head_filled: usize,
    /// The head of what is coming.
    opens: [u8; FragmentHead::BYTES],
    pub(super) since: Duration,
    /// It ends by then, once all was said.
    pub(super) closing: Option<Duration>,
    /// Why, for people.
    pub(super) closing_why: &'static str,
    closed: bool,
    /// Why it is over, if it is.
    pub(super) over: Option<String>,
    /// There is more to write, and the connection may take it.
    pub(super) again: bool,
    /// Whether its descriptor was readable, if it was polled since the last turn.
    pub(super) polled: Option<bool>,
    /// Nothing is read until then: the peer has sent as many bytes as are taken.
    pub(super) held: Option<Duration>,
    /// Something came by the bulk stream when it was looked at last.
    is_bulk_busy: bool,
    /// Turns since then.
    passed_over: u32,
    read: u64,
}

impl Link {
    pub(super) fn new(
        mut connection: Box<dyn Connection>,
        id: ConnectionId,
        peer: NodeId,
        now: Duration,
    ) -> Result<Self, TransportError> {
        Ok(Self {
            id,
            peer,
            records: connection.open(Class::Records)?,
            bulk: connection.open(Class::Bulk)?,
            connection,
            record_out: Outgoing::default(),
            bulk_out: Outgoing::default(),
            buffer: vec![0; BUFFER],
            filled: 0,
            coming: Bulk::Head,
            head: [0; FragmentHead::BYTES],
            head_filled: 0,
            opens: [0; FragmentHead::BYTES],
            since: now,
            closing: None,
            closing_why: "it was closed here",
            closed: false,
            over: None,
            again: true,
            polled: None,
            held: None,
            is_bulk_busy: false,
            passed_over: 0,
            read: 0,
        })
    }

    /// Bytes that were written, and read.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.record_out.written + self.bulk_out.written, self.read)
    }

    /// When it wants to be looked at again.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        [self.connection.wake_at(), self.closing, self.held]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether it is as it was made: nothing was said on it.
    fn is_over(&mut self, done: Result<(), TransportError>) {
        if let Err(why) = done {
            self.over.get_or_insert(why.to_string());
        }
    }

    /// Whether something may have come, or may go on.
    pub(super) fn may_have(&mut self, now: Duration) -> bool {
        if self.held.is_some() {
            return self.held.is_some_and(|at| at <= now);
        }
        let is_due = || self.connection.wake_at().is_some_and(|at| at <= now);
        self.polled.take().unwrap_or(true) || is_due()
    }

    /// Reads what has come.
    pub(super) fn receive(&mut self, node: &mut Node<Payload>, machine: &mut Machine, now: Time) {
        self.held = None;
        match self.connection.progress() {
            State::Failed => {
                let why = self.connection.failure().cloned();
                let why = why.unwrap_or(TransportError::Truncated);
                return self.is_over(Err(why));
            }
            State::Over => {
                self.over.get_or_insert("it was closed".to_owned());
                return;
            }
            State::Connecting | State::Up => {}
        }
        let before = self.read;
        let done = self.read_records(node, machine, now);
        self.is_over(done);
        if self.held.is_some() {
            return;
        }
        // Mostly records are all that has come, and to ask for more costs a system call.
        let is_all = self.read > before && !self.is_bulk_busy && self.passed_over < PASSED_OVER;
        if is_all {
            self.passed_over += 1;
            return;
        }
        let before = self.read;
        let done = self.read_bulk(node, machine, now);
        self.is_over(done);
        (self.is_bulk_busy, self.passed_over) = (self.read > before, 0);
    }

    /// How many bytes may be read now.
    fn may_read(&mut self, node: &mut Node<Payload>, now: Time) -> Option<usize> {
        let most = node.may_take(now, self.id);
        self.held = most.err().map(|at| Duration::from_nanos(at.0));
        most.ok()
    }

    /// So many of those were read.
    fn has_read(&mut self, node: &mut Node<Payload>, now: Time, moved: usize, most: usize) {
        self.read += moved as u64;
        // Without a rate nobody counts them.
        if most < usize::MAX {
            node.took(now, self.id, moved);
        }
    }

    fn read_records(
        &mut self,
        node: &mut Node<Payload>,
        machine: &mut Machine,
        now: Time,
    ) -> Result<(), TransportError> {
        for _ in 0..READS {
            let Some(most) = self.may_read(node, now) else {
                return Ok(());
            };
            let room = most.min(self.buffer.len() - self.filled);
            let into = &mut self.buffer[self.filled..][..room];
            let all = match (self.connection).receive(self.records, &[Destination::from(into)]) {
                Progress::Moved(moved) => {
                    self.has_read(node, now, moved, most);
                    self.filled += moved;
                    // There was no more; what has come since makes the descriptor readable (T4).
                    moved < room
                }
                Progress::Blocked => return Ok(()),
                Progress::Ended => {
                    self.over.get_or_insert("the peer has closed it".to_owned());
                    return Ok(());
                }
                Progress::Failed(why) => return Err(why),
            };
            let mut at = 0;
            while let Some(head) = self.buffer[at..self.filled].get(..RecordHead::BYTES) {
                // Of what is no head the protocol says what is wrong.
                let length = match RecordHead::decode(head) {
                    Ok(head) => head.length as usize,
                    Err(_) => RecordHead::BYTES,
                };
                let Some(record) = self.buffer[at..self.filled].get(..length) else {
                    break;
                };
                node.receive(now, self.id, record, machine);
                at += length;
            }
            self.buffer.copy_within(at..self.filled, 0);
            self.filled -= at;
            if all {
                break;
            }
        }
        Ok(())
    }

    fn read_bulk(
        &mut self,
        node: &mut Node<Payload>,
        machine: &mut Machine,
        now: Time,
    ) -> Result<(), TransportError> {
        for _ in 0..READS {
            let Some(most) = self.may_read(node, now) else {
                return Ok(());
            };
            let (connection, bulk) = (&mut self.connection, self.bulk);
            let mut receive = |into: &[Destination<'_>]| {
                let progress = connection.receive(bulk, into);
                let moved = match &progress {
                    Progress::Moved(moved) => *moved,
                    _ => 0,
                };
                (progress, moved)
            };
            // What has moved, and how much of it belongs to what is coming.
            let (progress, its) = match &mut self.coming {
                // A head is so short that it may owe that.
                Bulk::Head => receive(&[Destination::from(&mut self.head[self.head_filled..])]),
                Bulk::Record(bytes, filled) => {
                    let room = most.min(bytes.len() - *filled);
                    receive(&[Destination::from(&mut bytes[*filled..][..room])])
                }
                Bulk::Into(payload, left) => {
                    let part = (*left).min(most as u64);
                    let behind = if part < *left { 0 } else { self.head.len() };
                    match payload.receive(part, &mut self.head[..behind], &mut receive) {
                        Some(received) => received,
                        None => {
                            self.coming = Bulk::Nowhere(*left, true);
                            continue;
                        }
                    }
                }
                Bulk::Nowhere(left, _) => {
                    let mut nowhere = [0; 16 * 1024];
                    let room = usize::try_from(*left).unwrap_or(usize::MAX);
                    let room = room.min(nowhere.len()).min(most);
                    receive(&[Destination::from(&mut nowhere[..room])])
                }
            };
            let moved = match progress {
                Progress::Moved(moved) => moved,
                Progress::Blocked => return Ok(()),
                Progress::Ended => {
                    self.over.get_or_insert("the peer has closed it".to_owned());
                    return Ok(());
                }
                Progress::Failed(why) => return Err(why),
            };
            self.has_read(node, now, moved, most);
            self.came(node, machine, now, its, moved - its);
        }
        Ok(())
    }

    /// So many bytes of what was coming are there, and so many of the head behind it.
    fn came(
        &mut self,
        node: &mut Node<Payload>,
        machine: &mut Machine,
        now: Time,
        its: usize,
        of_next: usize,
    ) {
        match &mut self.coming {
            Bulk::Head => {
                self.head_filled += its;
            }
            Bulk::Record(bytes, filled) => {
                *filled += its;
                if *filled < bytes.len() {
                    return;
                }
                let record = std::mem::take(bytes);
                node.opened(now, self.id, &self.opens, &record, machine);
                self.next_head(0);
            }
            Bulk::Into(_, left) => {
                *left -= its as u64;
                if *left > 0 {
                    return;
                }
                // The protocol may hand the message on now: nobody else has it.
                self.coming = Bulk::Head;
                node.fragment_received(now, self.id, &self.opens, machine);
                self.next_head(of_next);
            }
            Bulk::Nowhere(left, is_waited_for) => {
                *left = left.saturating_sub(its as u64);
                if *left > 0 {
                    return;
                }
                if *is_waited_for {
                    node.fragment_received(now, self.id, &self.opens, machine);
                }
                self.next_head(0);
            }
        }
        if self.head_filled < self.head.len() {
            return;
        }
        self.opens = self.head;
        let (length, place) = node.fragment(now, self.id, &self.head);
        self.coming = match place {
            _ if length == 0 => Bulk::Head,
            Place::Into(payload, _) => Bulk::Into(payload, u64::from(length)),
            Place::Discard => Bulk::Nowhere(u64::from(length), false),
            Place::Record => Bulk::Record(vec![0; length as usize], 0),
        };
        self.head_filled = 0;
    }

    fn next_head(&mut self, filled: usize) {
        self.coming = Bulk::Head;
        self.head_filled = filled;
    }

    /// Writes what the protocol has to say, as far as the connection takes it.
    pub(super) fn send(&mut self, node: &mut Node<Payload>, now: Time, clock: Duration) {
        if self.over.is_some() {
            return;
        }
        let done = self.write(node, now);
        self.is_over(done);
        let said = self.record_out.left() == 0 && self.bulk_out.left() == 0;
        if let Some(until) = self.closing {
            if said && !std::mem::replace(&mut self.closed, true) {
                self.connection.close();
            }
            if clock >= until {
                self.over.get_or_insert(self.closing_why.to_owned());
            }
        }
    }

    fn write(&mut self, node: &mut Node<Payload>, now: Time) -> Result<(), TransportError> {
        self.again = false;
        for _ in 0..WRITES {
            while self.record_out.left() < AHEAD
                && let Some(record) = node.poll_record(now, self.id)
            {
                let payload = record.payload.map(|(payload, length)| (payload, 0..length));
                self.record_out.push(record.bytes, payload);
            }
            while self.bulk_out.left() < AHEAD
                && let Some(fragment) = node.poll_fragment(now, self.id)
            {
                let mut bytes = fragment.head.encode().to_vec();
                bytes.extend(fragment.record);
                self.bulk_out.push(bytes, fragment.payload);
            }
            if self.record_out.left() == 0 && self.bulk_out.left() == 0 {
                return Ok(());
            }
            let written = self.bytes().0;
            let connection = &mut *self.connection;
            let records = self.record_out.write(connection, self.records)?;
            let bulk = self.bulk_out.write(connection, self.bulk)?;
            // The descriptor says when a stream that is blocked takes more.
            if (!records && !bulk) || self.bytes().0 == written {
                return Ok(());
            }
        }
        self.again = true;
        Ok(())
    }
}
