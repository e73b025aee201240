//! A snapshot holds a domain's state at one time, and its rates since the snapshot before.

use std::collections::HashMap;
use std::time::Duration;

use portolan::{
    AGES, ConnectionSurvey, ExportSurvey, Holder, HoldingSurvey, PortKind, PortSurvey,
    SegmentSurvey, SpaceSurvey, Survey,
};
use serde::Serialize;

use crate::seen::{self, Bridge, Export, Listener, Memory, Segment};

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
    pub(crate) segments: Vec<Shared>,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) exports: Vec<Exported>,
    pub(crate) connections: Vec<Connected>,
    pub(crate) extents: Vec<Extents>,
    /// Whether nothing is missing: of a domain with very many entries an observer sees some.
    pub(crate) whole: bool,
}

/// A segment, and how fast it is written.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Shared {
    #[serde(flatten)]
    pub(crate) segment: Segment,
    /// Units of a channel.
    pub(crate) units_per_second: f64,
}

/// An export, and how often its exporter is notified.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Exported {
    #[serde(flatten)]
    pub(crate) export: Export,
    pub(crate) notifications_per_second: f64,
}

/// A connection with another domain, and how much goes over it.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Connected {
    #[serde(flatten)]
    pub(crate) bridge: Bridge,
    pub(crate) out_per_second: f64,
    pub(crate) out_bytes_per_second: f64,
    pub(crate) in_per_second: f64,
    pub(crate) in_bytes_per_second: f64,
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
    /// Units written to channels and topics; those of calls and answers are calls.
    pub(crate) units_per_second: f64,
    pub(crate) calls_per_second: f64,
    pub(crate) signals_per_second: f64,
    /// Messages that went to other domains, and came from there.
    pub(crate) passed_per_second: f64,
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
    pub(crate) calls: u64,
    pub(crate) answers: u64,
    pub(crate) signals: u64,
    pub(crate) delivered: u64,
    pub(crate) calls_per_second: f64,
    pub(crate) answers_per_second: f64,
    pub(crate) signals_per_second: f64,
    pub(crate) delivered_per_second: f64,
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
    /// Whether the next sender has to make a wake.
    pub(crate) armed: bool,
    pub(crate) found_full: u64,
    pub(crate) voids: u64,
    pub(crate) dropped: u64,
}

/// Extents of one size in one holder's hands.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Extents {
    /// A space, or none for what is in queues or being sent, or shared.
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
        let ports = now.ports.iter().filter(|p| p.kind != PortKind::Segment);
        let ports: Vec<Port> = ports.map(|port| rates.port(port)).collect();
        let segments: Vec<Shared> = now.segments.iter().map(|s| rates.segment(s)).collect();
        let connections = now.connections.iter().map(|c| rates.connection(c));
        let connections: Vec<Connected> = connections.collect();
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
            units_per_second: segments
                .iter()
                .filter(|s| !matches!(s.segment.kind, "calls" | "answers"))
                .map(|s| s.units_per_second)
                .sum(),
            // Of calls between spaces that have come and gone, only one side tells.
            calls_per_second: f64::max(
                spaces.iter().map(|s| s.calls_per_second).sum(),
                spaces.iter().map(|s| s.answers_per_second).sum(),
            ),
            signals_per_second: spaces.iter().map(|s| s.signals_per_second).sum(),
            passed_per_second: connections
                .iter()
                .map(|c| c.out_per_second + c.in_per_second)
                .sum(),
        };
        let extents = now.holdings.iter().map(|held| extents(held, &spaces));
        Self {
            domain: now.domain.clone(),
            user: now.user,
            protection: seen::protection(now.protection),
            host: now.host,
            takeovers: now.takeovers,
            seconds: rates.seconds,
            memory: Memory::new(&now.memory),
            totals,
            extents: extents.collect(),
            spaces,
            ports,
            segments,
            listeners: now.listeners.iter().map(Listener::new).collect(),
            exports: now.exports.iter().map(|e| rates.export(e)).collect(),
            connections,
            whole: now.whole,
        }
    }
}

/// Counts of the survey before.
#[derive(Default)]
struct Rates {
    seconds: f64,
    /// Sent messages and bytes, calls, answers, signals sent and handled, by space and
    /// incarnation.
    spaces: HashMap<(u8, u32), [u64; 6]>,
    /// Taken messages and bytes, by port. They go on when another port gets its number.
    ports: HashMap<u16, (u64, u64)>,
    /// Units written, by segment and generation.
    segments: HashMap<(u16, u32), u64>,
    /// Notifications, by space and name.
    exports: HashMap<(u8, String), u64>,
    /// What went out and came in, messages and bytes, by all that tells one from others.
    connections: HashMap<Ends, [u64; 4]>,
}

/// Space, offer, process and port of a connection.
type Ends = (u8, String, u32, Option<u16>);

fn ends(connection: &ConnectionSurvey) -> Ends {
    let offer = connection.offer.clone();
    (connection.space, offer, connection.pid, connection.port)
}

fn passed(connection: &ConnectionSurvey) -> [u64; 4] {
    let ConnectionSurvey {
        out,
        out_bytes,
        came,
        came_bytes,
        ..
    } = *connection;
    [out, out_bytes, came, came_bytes]
}

fn counts(space: &SpaceSurvey) -> [u64; 6] {
    let SpaceSurvey {
        sent,
        sent_bytes,
        calls,
        answers,
        signals,
        delivered,
        ..
    } = *space;
    [sent, sent_bytes, calls, answers, signals, delivered]
}

fn written(segment: &SegmentSurvey) -> u64 {
    segment
        .channel
        .as_ref()
        .map_or(0, |channel| channel.written)
}

impl Rates {
    fn new(before: Option<(&Survey, Duration)>) -> Self {
        let Some((survey, time)) = before else {
            return Self {
                seconds: 0.0,
                ..Self::default()
            };
        };
        let of_space = |s: &SpaceSurvey| ((s.id, s.incarnation), counts(s));
        let of_segment = |s: &SegmentSurvey| ((s.index, s.generation), written(s));
        let of_export = |e: &ExportSurvey| ((e.space, e.name.clone()), e.notifications);
        let of_connection = |c: &ConnectionSurvey| (ends(c), passed(c));
        let of_port = |p: &PortSurvey| (p.index, (p.taken, p.taken_bytes));
        Self {
            seconds: time.as_secs_f64(),
            spaces: survey.spaces.iter().map(of_space).collect(),
            ports: survey.ports.iter().map(of_port).collect(),
            segments: survey.segments.iter().map(of_segment).collect(),
            exports: survey.exports.iter().map(of_export).collect(),
            connections: survey.connections.iter().map(of_connection).collect(),
        }
    }

    fn rate(&self, now: u64, before: Option<u64>) -> f64 {
        match before {
            Some(before) if self.seconds > 0.0 => now.saturating_sub(before) as f64 / self.seconds,
            _ => 0.0,
        }
    }

    fn segment(&self, segment: &SegmentSurvey) -> Shared {
        let before = self.segments.get(&(segment.index, segment.generation));
        Shared {
            segment: Segment::new(segment),
            units_per_second: self.rate(written(segment), before.copied()),
        }
    }

    fn export(&self, export: &ExportSurvey) -> Exported {
        let before = self.exports.get(&(export.space, export.name.clone()));
        Exported {
            export: Export::new(export),
            notifications_per_second: self.rate(export.notifications, before.copied()),
        }
    }

    fn connection(&self, connection: &ConnectionSurvey) -> Connected {
        let before = self.connections.get(&ends(connection));
        let now = passed(connection);
        let rate = |which: usize| self.rate(now[which], before.map(|before| before[which]));
        Connected {
            bridge: Bridge::new(connection),
            out_per_second: rate(0),
            out_bytes_per_second: rate(1),
            in_per_second: rate(2),
            in_bytes_per_second: rate(3),
        }
    }

    fn space(&self, space: &SpaceSurvey) -> Space {
        let before = self.spaces.get(&(space.id, space.incarnation));
        let now = counts(space);
        let rate = |which: usize| self.rate(now[which], before.map(|before| before[which]));
        Space {
            id: space.id,
            pid: space.pid,
            user: space.user,
            name: space.name.clone(),
            host: false,
            state: seen::space_state(space.state),
            sent_messages: space.sent,
            sent_bytes: space.sent_bytes,
            sent_per_second: rate(0),
            sent_bytes_per_second: rate(1),
            calls: space.calls,
            answers: space.answers,
            signals: space.signals,
            delivered: space.delivered,
            calls_per_second: rate(2),
            answers_per_second: rate(3),
            signals_per_second: rate(4),
            delivered_per_second: rate(5),
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
            kind: seen::port_kind(port.kind),
            state: seen::port_state(port.state),
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
            None if held.holder == Holder::Segments => "(shared)".to_owned(),
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
