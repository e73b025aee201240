//! How many slots of ports are free: the protocol is told, and room is waited for where flows wait.
//!
//! ```text
//! all free <---all are free--- looked at, backlogged
//!
//! all free, backlogged ---delivered to, or a flow waits---> looked at
//! looked at ---no flow waits, and this turn has brought nothing---> backlogged
//! ```
//!
//! Ports that are looked at are counted each time; of those with a backlog a few, in turn. What the protocol
//! knows of these may be out of date, and neither error stays:
//!
//! - too many: a message is let in that finds no room, as if a program of this machine had been faster.
//! - too few: a message is refused that would find some.
//!
//! In both cases its flow waits from then on, so the port is looked at in the same turn, and the message is sent
//! again. So thousands of ports that nobody empties cost no turn more than a few of them.

use std::collections::BTreeSet;
use std::ops::Bound;

use portolan_proto::node::{Node, PortKey};

use super::super::payload::Payload;
use super::super::spans::Thing;
use super::{Machine, time};

/// Ports with a backlog that are counted at once: the others have their turn then.
const BACKLOGS: usize = 64;

impl Machine {
    /// Tells the protocol how many slots of ports are free, and waits for more where flows wait.
    pub(in crate::engine) fn count_slots(&mut self, node: &mut Node<Payload>) {
        let now = self.now;
        while let Some((at, key)) = self.short.first().copied()
            && at <= now
        {
            self.short.pop_first();
            if let Some(lent) = self.lent.get_mut(&key) {
                lent.again = None;
                self.looked_at.insert(key);
            }
        }
        while let Some(key) = node.poll_waited() {
            self.looked_at.insert(key);
        }
        let mut keys = self.next_backlogged();
        keys.extend(&self.looked_at);
        for key in keys {
            self.count_slots_of(key, node);
        }
    }

    /// The ports with a backlog whose turn it is.
    fn next_backlogged(&mut self) -> Vec<PortKey> {
        let last = PortKey(self.last_backlogged);
        let behind = (Bound::Excluded(last), Bound::Unbounded);
        let behind = self.backlogged.range(behind);
        let all = behind.chain(self.backlogged.range(..=last));
        let keys: Vec<PortKey> = all.take(BACKLOGS).copied().collect();
        self.last_backlogged = keys.last().map_or(0, |key| key.0);
        let is_its_turn = |key: &PortKey| !self.looked_at.contains(key);
        keys.into_iter().filter(is_its_turn).collect()
    }

    fn count_slots_of(&mut self, key: PortKey, node: &mut Node<Payload>) {
        let now = self.now;
        let Some(lent) = self.lent.get_mut(&key) else {
            self.looked_at.remove(&key);
            return;
        };
        if lent.again.is_some() {
            return;
        }
        let Some(right) = &lent.right else {
            self.looked_at.remove(&key);
            return;
        };
        let free = u32::try_from(right.room().free()).unwrap_or(u32::MAX);
        node.room(time(now), key, free);
        let (promised, usable, waits) = match node.port_view(key) {
            Some((promised, usable, waiting)) => (promised, usable, !waiting.is_empty()),
            None => (0, 0, false),
        };
        // Until nobody can have taken a message since.
        let has_backlog = free < lent.slots;
        let is_looked_at = waits || has_backlog && lent.delivered_at == Some(now);
        put(&mut self.looked_at, key, is_looked_at);
        put(&mut self.backlogged, key, has_backlog && !is_looked_at);
        let Some(span) = self.spans.get_mut(&lent.domain) else {
            return;
        };
        // More slots than are promised and left to others. If that is more than is ever waited
        // for, then some flow has credit, and what it sends comes here.
        let wanted = promised + lent.slots / 4 + 1;
        let is_waited_for = waits && usable <= promised && wanted <= (lent.slots / 2).max(1);
        match (lent.room, is_waited_for) {
            (None, true) => {
                let room = right.room().for_messages(wanted as usize);
                lent.room = span.add(room, Thing::Room(key));
            }
            (Some(room), false) => {
                span.remove(room);
                lent.room = None;
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    /// A wait has named the room of a port.
    pub(in crate::engine) fn has_room(&mut self, key: PortKey) {
        self.looked_at.insert(key);
        if let Some(lent) = self.lent.get_mut(&key)
            && let Some(room) = lent.room.take()
            && let Some(span) = self.spans.get_mut(&lent.domain)
        {
            span.remove(room);
        }
    }
}

/// Has a port among others, or not.
fn put(all: &mut BTreeSet<PortKey>, key: PortKey, is_there: bool) {
    if is_there {
        all.insert(key);
    } else {
        all.remove(&key);
    }
}
