//! Makes the JSON of a survey that `ls --json` and `top --json` share: the words for kinds and
//! states, the memory, and everything besides spaces and ports.

use portolan::vmmc::Reach;
use portolan::{
    ChannelSurvey, ConnectionKind, ConnectionSurvey, ExportSurvey, ListenerSurvey, MemorySurvey,
    PortKind, PortState, Protection, ReaderSurvey, SegmentKind, SegmentSurvey, SpaceState,
};
use serde::Serialize;

pub(crate) fn protection(protection: Protection) -> &'static str {
    match protection {
        Protection::Guarded => "guarded",
        _ => "trusted",
    }
}

pub(crate) fn space_state(state: SpaceState) -> &'static str {
    match state {
        SpaceState::Joining => "joining",
        SpaceState::Live => "live",
        SpaceState::Disconnected => "disconnected",
        _ => "dead",
    }
}

pub(crate) fn port_kind(kind: PortKind) -> &'static str {
    match kind {
        PortKind::Synchronous => "requests",
        PortKind::Replies => "replies",
        _ => "messages",
    }
}

pub(crate) fn port_state(state: PortState) -> &'static str {
    match state {
        PortState::Binding => "binding",
        PortState::Open => "open",
        PortState::Moving => "moving",
        _ => "closing",
    }
}

/// A domain's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Memory {
    pub(crate) limit_bytes: u64,
    pub(crate) taken_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) queued_bytes: u64,
    pub(crate) shared_bytes: u64,
}

/// Memory that several spaces have.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Segment {
    pub(crate) index: u16,
    pub(crate) name: Option<String>,
    pub(crate) kind: &'static str,
    /// The topic of a publisher's channel, and which publisher it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) topic: Option<Topic>,
    pub(crate) bytes: u64,
    /// Rights on it that exist.
    pub(crate) rights: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) channel: Option<Channel>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Topic {
    pub(crate) topic: String,
    pub(crate) publisher: Option<u8>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Channel {
    pub(crate) unit_bytes: usize,
    pub(crate) units: u64,
    pub(crate) reliable: bool,
    pub(crate) many_writers: bool,
    /// The space that writes, if one does; `None` for a channel of many writers.
    pub(crate) writer: Option<u8>,
    pub(crate) written_units: u64,
    /// How many readers can have an entry.
    pub(crate) entries: u64,
    /// Those that have one.
    pub(crate) readers: Vec<Reader>,
    pub(crate) asleep: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Reader {
    pub(crate) space: u8,
    pub(crate) behind_units: u64,
    pub(crate) dropped: bool,
}

/// A queue of signals.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Listener {
    pub(crate) fifo: u32,
    pub(crate) space: u8,
    pub(crate) handlers: u32,
    pub(crate) waiting: usize,
    pub(crate) depth: usize,
    pub(crate) dropped: u64,
    pub(crate) upcalls: bool,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Export {
    /// The exporter: its space, its process, and what it calls itself.
    pub(crate) space: u8,
    pub(crate) pid: u32,
    pub(crate) exporter: String,
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// What importers may do: "read", "write", or "read, write".
    pub(crate) permits: &'static str,
    pub(crate) kernel_mediated: bool,
    pub(crate) importers: u64,
    pub(crate) notifications: u64,
}

/// A connection with another domain.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Bridge {
    pub(crate) space: u8,
    pub(crate) kind: &'static str,
    pub(crate) offer: String,
    /// Known to the client only.
    pub(crate) domain: Option<String>,
    pub(crate) user: u32,
    pub(crate) pid: u32,
    /// The port or segment here.
    pub(crate) port: Option<u16>,
    pub(crate) out_messages: u64,
    pub(crate) out_bytes: u64,
    pub(crate) in_messages: u64,
    pub(crate) in_bytes: u64,
}

impl Memory {
    pub(crate) fn new(memory: &MemorySurvey) -> Self {
        Self {
            limit_bytes: memory.limit,
            taken_bytes: memory.taken,
            used_bytes: memory.used,
            free_bytes: memory.free,
            queued_bytes: memory.queued,
            shared_bytes: memory.shared,
        }
    }
}

impl Segment {
    pub(crate) fn new(segment: &SegmentSurvey) -> Self {
        let topic = match (segment.kind, &segment.name) {
            (SegmentKind::Topic | SegmentKind::Publishers, Some(name)) => topic_of(name),
            _ => None,
        };
        Self {
            index: segment.index,
            name: segment.name.clone(),
            kind: segment.kind.name(),
            topic,
            bytes: segment.bytes,
            rights: segment.rights,
            channel: segment.channel.as_ref().map(Channel::new),
        }
    }

    /// The reader that is farthest behind, in units.
    pub(crate) fn behind(&self) -> u64 {
        let readers = self.channel.iter().flat_map(|channel| &channel.readers);
        readers.map(|reader| reader.behind_units).max().unwrap_or(0)
    }
}

/// A topic's channels are named after it: `topic#0` for its first publisher, `topic#` for where
/// publishers announce themselves.
fn topic_of(name: &str) -> Option<Topic> {
    let (topic, publisher) = name.rsplit_once('#')?;
    Some(Topic {
        topic: topic.to_owned(),
        publisher: publisher.parse().ok(),
    })
}

impl Channel {
    fn new(channel: &ChannelSurvey) -> Self {
        let reader = |reader: &ReaderSurvey| Reader {
            space: reader.space,
            behind_units: reader.behind,
            dropped: reader.dropped,
        };
        Self {
            unit_bytes: channel.unit,
            units: channel.units,
            reliable: channel.reliable,
            many_writers: channel.many_writers,
            writer: channel.writer,
            written_units: channel.written,
            entries: channel.entries,
            readers: channel.readers.iter().map(reader).collect(),
            asleep: channel.asleep,
        }
    }

    /// Who writes, in a few letters.
    pub(crate) fn writers(&self) -> String {
        match (self.many_writers, self.writer) {
            (true, _) => "many".to_owned(),
            (false, Some(space)) => space.to_string(),
            (false, None) => "-".to_owned(),
        }
    }
}

impl Listener {
    pub(crate) fn new(listener: &ListenerSurvey) -> Self {
        Self {
            fifo: listener.fifo,
            space: listener.space,
            handlers: listener.handlers,
            waiting: listener.waiting,
            depth: listener.depth,
            dropped: listener.dropped,
            upcalls: listener.upcalls,
        }
    }
}

impl Export {
    pub(crate) fn new(export: &ExportSurvey) -> Self {
        Self {
            space: export.space,
            pid: export.pid,
            exporter: export.exporter.clone(),
            name: export.name.clone(),
            bytes: export.bytes,
            permits: match export.reach {
                Reach::Read => "read",
                Reach::Write => "write",
                Reach::ReadWrite => "read, write",
            },
            kernel_mediated: export.kernel_mediated,
            importers: export.importers,
            notifications: export.notifications,
        }
    }
}

impl Bridge {
    pub(crate) fn new(connection: &ConnectionSurvey) -> Self {
        Self {
            space: connection.space,
            kind: match connection.kind {
                ConnectionKind::ConnectedTo => "sends to",
                ConnectionKind::Client => "serves",
                ConnectionKind::Following => "follows",
                ConnectionKind::Follower => "tells",
                other => other.name(),
            },
            offer: connection.offer.clone(),
            domain: connection.domain.clone(),
            user: connection.user,
            pid: connection.pid,
            port: connection.port,
            out_messages: connection.out,
            out_bytes: connection.out_bytes,
            in_messages: connection.came,
            in_bytes: connection.came_bytes,
        }
    }

    /// The other side: the domain that was asked for, or whose process it is.
    pub(crate) fn with(&self) -> String {
        match &self.domain {
            Some(domain) => domain.clone(),
            None => format!("user {}", self.user),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_told_from_its_channels_names() {
        let topic = topic_of("a#b#7").unwrap();
        assert_eq!((topic.topic.as_str(), topic.publisher), ("a#b", Some(7)));
        let topic = topic_of("position#").unwrap();
        assert_eq!((topic.topic.as_str(), topic.publisher), ("position", None));
    }
}
