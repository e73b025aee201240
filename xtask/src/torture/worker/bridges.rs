//! Offers three things to other domains: a port, one for requests, and a channel. The clients of
//! these are in `connections`.
//!
//! A *bridge* is the three together, open under a number that stands on the board. Each connection
//! has a number too, and its messages are numbered from one on. So a message that is lost, doubled
//! or out of order shows in the next message; and messages lost at the end show when the bridge
//! closes, because a client that leaves in order says on the board how many it sent.

use super::super::board::{Entry, MAX_WORKERS};
use super::super::stream::{self, LEAST};
use super::super::{Doing, payload};
use super::{KEPT_EXTENTS, SHORT, Worker};
use portolan::channel::{Channel, ChannelOptions, Lagging, WriteError, Writer};
use portolan::{
    Access, Deadline, Domain, Message, OfferError, OfferOptions, OfferedChannel, OfferedPort,
    Permissions, PortOptions, ReceiveRight,
};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long the library may take to notice that something has ended, or to carry what it has.
pub(super) const LATEST: Duration = Duration::from_secs(30);
/// Most messages in one go.
pub(super) const BATCH: usize = 8;
/// Bytes of parts; the largest does not fit into a byte ring at once.
pub(super) const PARTS: [usize; 5] = [32, 100, 5000, 40_000, 200_000];

/// Under which the port of a worker's bridge is offered, the one for requests, and the channel.
pub(super) fn names(worker: usize) -> [String; 3] {
    ["messages", "requests", "news"].map(|what| format!("{what} of {worker}"))
}

/// The seed of a part of a message.
pub(super) fn seed(who: u64, number: u64, part: usize) -> u64 {
    who ^ number.rotate_left(24) ^ (part as u64) << 56
}

/// Who sent a message to a bridge, and its number, if all of it is as it was sent.
pub(super) fn read(message: &Message, bridge: u64) -> Result<(u64, u64), String> {
    let Some((who, number, to)) = stream::read(message.header(), true) else {
        return Err(format!("a header is torn: {:?}", message.header()));
    };
    if to != bridge {
        return Err(format!("a message to bridge {to:#x} came to {bridge:#x}"));
    }
    for (part, bytes) in message.slices().enumerate() {
        payload::verify(bytes)?;
        let wanted = seed(who, number, part).to_le_bytes();
        if !bytes.starts_with(&wanted) {
            return Err(format!("part {part} of message {number} is another's"));
        }
    }
    Ok((who, number))
}

/// A worker's bridge, while it is open.
pub(super) struct Bridge {
    id: u64,
    // Offers before what they offer.
    offered: [OfferedPort; 2],
    told: OfferedChannel,
    messages: ReceiveRight,
    requests: ReceiveRight,
    channel: Channel,
    writer: Option<Writer>,
    /// Who it is in the channel, and the number of its last message there.
    who: u64,
    number: u64,
    /// Clients are waited for.
    waits: bool,
    /// Of each connection, the number of the last message.
    heard: BTreeMap<u64, u64>,
}

impl Bridge {
    fn open(worker: &mut Worker, domain: &Domain) -> Result<Self, Option<String>> {
        let id = worker.random.next() | 1;
        let messages = domain.bind(PortOptions::unnamed().queue(7));
        let messages = messages.map_err(|_| None)?;
        let requests = domain.bind(PortOptions::unnamed().queue(3).synchronous());
        let requests = requests.map_err(|_| None)?;
        let waits = worker.random.once_in(2);
        let shape = ChannelOptions::unnamed().unit(256).units(32);
        let shape = if waits { shape.reliable() } else { shape };
        let channel = domain.make_channel(&shape).map_err(|_| None)?;
        let writer = Some(channel.bind_writer().map_err(|e| Some(e.to_string()))?);
        let permissions = Permissions::own_user();
        let options = || {
            let lagging = if waits { Lagging::Wait } else { Lagging::Skip };
            let options = OfferOptions::default().lagging(lagging);
            options.most_bytes(1 << 20).deadline(Deadline::after(SHORT))
        };
        // Before it is open, and until it is closed.
        worker.board.set(worker.at, Entry::Bridge, id);
        let [port, asks, news] = names(worker.at);
        let refused = |error: OfferError| match error {
            // The host is away; or it has not heard yet that another process had the name.
            OfferError::Unanswered | OfferError::NameTaken | OfferError::NoDescriptor(_) => None,
            other => Some(other.to_string()),
        };
        let offered = [
            messages
                .offer(&port, &permissions, options())
                .map_err(refused)?,
            requests
                .offer(&asks, &permissions, options())
                .map_err(refused)?,
        ];
        let told = channel.offer(&news, &permissions, options());
        let told = told.map_err(refused)?;
        Ok(Self {
            id,
            offered,
            told,
            messages,
            requests,
            channel,
            writer,
            who: worker.random.next(),
            number: 0,
            waits,
            heard: BTreeMap::new(),
        })
    }

    /// A connection's message must be the one after its last.
    fn hear(&mut self, message: &Message) -> Result<(), String> {
        let (who, number) = read(message, self.id)?;
        let before = self.heard.insert(who, number).unwrap_or(0);
        if number != before + 1 {
            return Err(format!(
                "message {number} of a connection came after {before}"
            ));
        }
        Ok(())
    }

    /// Writes to the channel.
    fn write(&mut self, bytes: usize, spoil: bool) -> Result<(), WriteError> {
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        let len = bytes.min(self.channel.unit_payload());
        let mut news = stream::message(self.who, self.number + 1, u64::from(self.waits), len);
        news[LEAST - 1] ^= u8::from(spoil);
        writer.write(&news, Deadline::NOW)?;
        self.number += 1;
        Ok(())
    }
}

impl Worker {
    /// Opens its bridge, or serves who came.
    pub(super) fn serve_bridge(&mut self) {
        self.doing(Doing::Bridging);
        let Some(domain) = self.domain.clone() else {
            return;
        };
        if self.holds.bridge.is_none() {
            match Bridge::open(self, &domain) {
                Ok(bridge) => self.holds.bridge = Some(bridge),
                Err(why) => {
                    self.board.set(self.at, Entry::Bridge, 0);
                    if let Some(why) = why {
                        self.corrupt(&format!("a bridge: {why}"));
                    }
                }
            }
            return;
        }
        self.answer_clients();
        match self.random.below(3) {
            0 => drop(self.hear_clients()),
            _ => self.write_news(),
        }
    }

    /// Takes messages of clients; whether there were any.
    fn hear_clients(&mut self) -> bool {
        let access = [Access::Now, Access::Later][self.random.below(2)];
        let mut any = false;
        for _ in 0..BATCH {
            let Some(bridge) = &mut self.holds.bridge else {
                break;
            };
            let Ok(message) = bridge.messages.receive(access, Deadline::NOW) else {
                break;
            };
            any = true;
            let heard = bridge.hear(&message);
            self.count_heard();
            if let Err(what) = heard {
                self.corrupt(&format!("a bridge: {what}"));
            }
            self.keep_extents(message);
        }
        any
    }

    fn count_heard(&self) {
        let heard = self.board.of(self.at, Entry::ClientsHeard);
        heard.fetch_add(1, Ordering::Relaxed);
    }

    /// Some of a message's extents become its own, as if they had never been elsewhere.
    fn keep_extents(&mut self, mut message: Message) {
        for extent in message.split_off(0) {
            if self.random.once_in(4) && self.holds.extents.len() < KEPT_EXTENTS {
                self.holds.extents.push(extent);
            }
        }
    }

    fn answer_clients(&mut self) {
        for _ in 0..BATCH {
            let Some(bridge) = &mut self.holds.bridge else {
                return;
            };
            let request = bridge.requests.get_request(Access::Now, Deadline::NOW);
            let Ok(request) = request else { return };
            if let Err(what) = read(&request.message, bridge.id) {
                self.corrupt(&format!("a bridge: {what}"));
            }
            self.count_heard();
            if !self.random.once_in(8) {
                // The client may be gone.
                let _ = request.reply_in_place();
            }
        }
    }

    fn write_news(&mut self) {
        for _ in 0..=self.random.below(2 * BATCH) {
            let (bytes, spoil) = (self.random.below(300), self.plants("bridge-news"));
            let Some(bridge) = &mut self.holds.bridge else {
                return;
            };
            match bridge.write(bytes, spoil) {
                Ok(()) => {}
                Err(WriteError::Full { .. }) => break,
                Err(error) => return self.corrupt(&format!("news: {error}")),
            }
        }
        // Its readers are told that the writer has gone, and that it is back.
        let changes = self.random.once_in(8);
        if let Some(bridge) = self.holds.bridge.as_mut().filter(|_| changes) {
            bridge.writer = match bridge.writer.take() {
                Some(_) => None,
                None => bridge.channel.bind_writer().ok(),
            };
        }
    }

    /// Closes the bridge, once all has come of those who have left.
    pub(super) fn close_bridge(&mut self) {
        let Some(id) = self.holds.bridge.as_ref().map(|g| g.id) else {
            return;
        };
        let before = self.board.get(self.at, Entry::Doing);
        self.doing(Doing::Expecting);
        for client in 0..MAX_WORKERS {
            self.await_rest(client, id);
        }
        self.doing(Doing::of(before));
        if let Some(bridge) = &self.holds.bridge {
            let [messages, requests] = &bridge.offered;
            let mut violations = messages.take_violations();
            violations.extend(requests.take_violations());
            violations.extend(bridge.told.take_violations());
            for violation in violations {
                self.corrupt(&format!("a bridge: {violation}"));
            }
        }
        self.holds.bridge = None;
        self.board.set(self.at, Entry::Bridge, 0);
    }

    /// Hears all that a client has sent, if it says that it has left, and lives.
    fn await_rest(&mut self, client: usize, id: u64) {
        let end = Instant::now() + self.latest("bridge-end", LATEST);
        loop {
            let is_ours = || self.board.get(client, Entry::LeftBridge) == id;
            let (who, number) = (
                self.board.get(client, Entry::LeftAs),
                self.board.get(client, Entry::LeftAt),
            );
            if !is_ours() {
                return;
            }
            let bridge = self.holds.bridge.as_ref();
            let heard = bridge.and_then(|g| g.heard.get(&who)).map_or(0, |n| *n);
            if heard >= number {
                return;
            }
            if self.hear_clients() {
                continue;
            }
            // What came may be waiting for memory.
            self.holds.extents.clear();
            if Instant::now() > end {
                if self.can_allocate() {
                    let doing = Doing::of(self.board.get(client, Entry::Doing));
                    let bridge = self.holds.bridge.as_ref();
                    let inside = bridge.map_or(0, |g| g.offered[0].clients());
                    self.corrupt(&format!(
                        "a bridge: of {number} messages of a connection {heard} came before it left; worker {client} is {doing:?}, {inside} are inside"
                    ));
                }
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn can_allocate(&self) -> bool {
        let domain = self.domain.as_ref();
        let all = domain.map(|d| PARTS.map(|bytes| d.allocate(bytes).is_ok()));
        all.is_some_and(|all| all.into_iter().all(|can| can))
    }
}
