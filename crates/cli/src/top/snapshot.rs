//! What a domain looked like at one time, and how fast things went since the time before.

use std::collections::HashMap;
use std::time::Duration;

use portolan::{
    AGES, Holder, HoldingSurvey, PortKind, PortState, PortSurvey, Protection, SpaceState,
    SpaceSurvey, Survey,
};
use serde::Serialize;

/// A domain at one time. Rates are those since the survey before, and 0 for what was not
/// there then.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Snapshot {
    pub(crate) domain: String,
    pub(crate) user: u32,
    pub(crate) protection: &'static str,
    /// The space that hosts, 0 for none.
    pub(crate) host: u8,
    pub(crate) takeovers: u64,
    /// Between the two surveys that the rates come from.
    pub(crate) seconds: f64,
    pub(crate) memory: Memory,
    pub(crate) totals: Totals,
    pub(crate) spaces: Vec<Space>,
    pub(crate) ports: Vec<Port>,
    pub(crate) extents: Vec<Extents>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Memory {
    pub(crate) limit_bytes: u64,
    pub(crate) taken_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) queued_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Totals {
    pub(crate) sent_per_second: f64,
    pub(crate) sent_bytes_per_second: f64,
    /// Also what was sent by spaces that have come and gone between two looks.
    pub(crate) taken_per_second: f64,
    pub(crate) taken_bytes_per_second: f64,
    pub(crate) queued_messages: u64,
    pub(crate) spinning: u32,
    pub(crate) sleeping: u32,
    pub(crate) awaiting_room: u32,
    pub(crate) voids: u64,
    pub(crate) dropped: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Space {
    pub(crate) id: u8,
    pub(crate) pid: u32,
    pub(crate) user: u32,
    pub(crate) name: String,
    pub(crate) host: bool,
    pub(crate) state: &'static str,
    pub(crate) sent_messages: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) sent_per_second: f64,
    pub(crate) sent_bytes_per_second: f64,
    /// From the ports that it has now.
    pub(crate) taken_per_second: f64,
    /// Threads that wait, by how.
    pub(crate) spinning: u32,
    pub(crate) sleeping: u32,
    pub(crate) awaiting_room: u32,
    pub(crate) found_full: u64,
    pub(crate) dropped: u64,
    pub(crate) owned_extents: u64,
    pub(crate) owned_bytes: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Port {
    pub(crate) index: u16,
    pub(crate) name: Option<String>,
    pub(crate) owner: u8,
    pub(crate) kind: &'static str,
    pub(crate) state: &'static str,
    pub(crate) depth: usize,
    pub(crate) slots: usize,
    pub(crate) senders: u32,
    pub(crate) taken: u64,
    pub(crate) taken_bytes: u64,
    pub(crate) taken_per_second: f64,
    pub(crate) taken_bytes_per_second: f64,
    /// Threads that wait at it, by how.
    pub(crate) spinning: u32,
    pub(crate) sleeping: u32,
    pub(crate) awaiting_room: u32,
    /// Whether the next sender has to wake somebody.
    pub(crate) armed: bool,
    pub(crate) found_full: u64,
    pub(crate) voids: u64,
    pub(crate) dropped: u64,
}

/// Extents of one size in one holder's hands.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Extents {
    /// A space, or none for what is in queues or being sent.
    pub(crate) space: Option<u8>,
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    /// How many are younger than a second, ten, a minute, an hour; and all older ones.
    pub(crate) by_age: [u64; AGES.len() + 1],
    pub(crate) oldest_seconds: u64,
}

impl Snapshot {
    /// What `now` says, with rates since `before`.
    pub(crate) fn new(now: &Survey, before: Option<(&Survey, Duration)>) -> Self {
        let rates = Rates::new(before);
        let ports: Vec<Port> = now.ports.iter().map(|port| rates.port(port)).collect();
        let mut spaces: Vec<Space> = now.spaces.iter().map(|space| rates.space(space)).collect();
        for space in &mut spaces {
            space.host = space.id == now.host;
            let own = ports.iter().filter(|port| port.owner == space.id);
            space.taken_per_second = own.map(|port| port.taken_per_second).sum();
        }
        let totals = Totals {
            sent_per_second: spaces.iter().map(|s| s.sent_per_second).sum(),
            sent_bytes_per_second: spaces.iter().map(|s| s.sent_bytes_per_second).sum(),
            taken_per_second: ports.iter().map(|p| p.taken_per_second).sum(),
            taken_bytes_per_second: ports.iter().map(|p| p.taken_bytes_per_second).sum(),
            queued_messages: ports.iter().map(|p| p.depth as u64).sum(),
            spinning: spaces.iter().map(|s| s.spinning).sum(),
            sleeping: spaces.iter().map(|s| s.sleeping).sum(),
            awaiting_room: spaces.iter().map(|s| s.awaiting_room).sum(),
            voids: ports.iter().map(|p| p.voids).sum(),
            dropped: ports.iter().map(|p| p.dropped).sum(),
        };
        let extents = now.holdings.iter().map(|held| extents(held, &spaces));
        Self {
            domain: now.domain.clone(),
            user: now.user,
            protection: match now.protection {
                Protection::Guarded => "guarded",
                _ => "trusted",
            },
            host: now.host,
            takeovers: now.takeovers,
            seconds: rates.seconds,
            memory: Memory {
                limit_bytes: now.memory.limit,
                taken_bytes: now.memory.taken,
                used_bytes: now.memory.used,
                free_bytes: now.memory.free,
                queued_bytes: now.memory.queued,
            },
            totals,
            extents: extents.collect(),
            spaces,
            ports,
        }
    }
}

/// Counts of the survey before.
struct Rates {
    seconds: f64,
    /// Sent messages and bytes, by space and incarnation.
    spaces: HashMap<(u8, u32), (u64, u64)>,
    /// Taken messages and bytes, by port. They go on when another port gets its number.
    ports: HashMap<u16, (u64, u64)>,
}

impl Rates {
    fn new(before: Option<(&Survey, Duration)>) -> Self {
        let Some((survey, time)) = before else {
            return Self {
                seconds: 0.0,
                spaces: HashMap::new(),
                ports: HashMap::new(),
            };
        };
        let of_space = |s: &SpaceSurvey| ((s.id, s.incarnation), (s.sent, s.sent_bytes));
        let of_port = |p: &PortSurvey| (p.index, (p.taken, p.taken_bytes));
        Self {
            seconds: time.as_secs_f64(),
            spaces: survey.spaces.iter().map(of_space).collect(),
            ports: survey.ports.iter().map(of_port).collect(),
        }
    }

    fn rate(&self, now: u64, before: Option<u64>) -> f64 {
        match before {
            Some(before) if self.seconds > 0.0 => now.saturating_sub(before) as f64 / self.seconds,
            _ => 0.0,
        }
    }

    fn space(&self, space: &SpaceSurvey) -> Space {
        let before = self.spaces.get(&(space.id, space.incarnation));
        Space {
            id: space.id,
            pid: space.pid,
            user: space.user,
            name: space.name.clone(),
            host: false,
            state: match space.state {
                SpaceState::Joining => "joining",
                SpaceState::Live => "live",
                SpaceState::Disconnected => "disconnected",
                _ => "dead",
            },
            sent_messages: space.sent,
            sent_bytes: space.sent_bytes,
            sent_per_second: self.rate(space.sent, before.map(|b| b.0)),
            sent_bytes_per_second: self.rate(space.sent_bytes, before.map(|b| b.1)),
            taken_per_second: 0.0,
            spinning: space.spinning,
            sleeping: space.sleeping,
            awaiting_room: space.awaiting_room,
            found_full: space.full,
            dropped: space.dropped,
            owned_extents: space.extents,
            owned_bytes: space.owned,
        }
    }

    fn port(&self, port: &PortSurvey) -> Port {
        let before = self.ports.get(&port.index);
        Port {
            index: port.index,
            name: port.name.clone(),
            owner: port.owner,
            kind: match port.kind {
                PortKind::Synchronous => "requests",
                PortKind::Replies => "replies",
                _ => "messages",
            },
            state: match port.state {
                PortState::Binding => "binding",
                PortState::Open => "open",
                PortState::Moving => "moving",
                _ => "closing",
            },
            depth: port.depth,
            slots: port.slots,
            senders: port.senders,
            taken: port.taken,
            taken_bytes: port.taken_bytes,
            taken_per_second: self.rate(port.taken, before.map(|b| b.0)),
            taken_bytes_per_second: self.rate(port.taken_bytes, before.map(|b| b.1)),
            spinning: port.spinning,
            sleeping: port.sleeping,
            awaiting_room: port.awaiting_room,
            armed: port.armed,
            found_full: port.full,
            voids: port.voids,
            dropped: port.dropped,
        }
    }
}

fn extents(held: &HoldingSurvey, spaces: &[Space]) -> Extents {
    let space = match held.holder {
        Holder::Space(id) => Some(id),
        _ => None,
    };
    let named = spaces.iter().find(|s| Some(s.id) == space);
    Extents {
        space,
        name: match space {
            None => "(in queues)".to_owned(),
            Some(_) => named.map_or_else(String::new, |s| s.name.clone()),
        },
        size_bytes: held.size,
        count: held.extents,
        bytes: held.extents * held.size,
        by_age: held.by_age,
        oldest_seconds: held.oldest.as_secs(),
    }
}
