//! Makes a domain's tables: their columns, and the cells of a snapshot.

use super::cells::{
    Cell, Column, Key, Tables, age, bytes, cell, count, lost, name, number, rate, short, text,
};
use super::snapshot::{Connected, Exported, Extents, Port, Shared, Snapshot, Space};

/// Which table is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tab {
    #[default]
    Spaces,
    Ports,
    Shared,
    Calls,
    Exports,
    Bridges,
    Extents,
}

impl Tables<Snapshot> for Tab {
    const ALL: &'static [Self] = &[
        Self::Spaces,
        Self::Ports,
        Self::Shared,
        Self::Calls,
        Self::Exports,
        Self::Bridges,
        Self::Extents,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Spaces => "Spaces",
            Self::Ports => "Ports",
            Self::Shared => "Shared",
            Self::Calls => "Calls",
            Self::Exports => "Exports",
            Self::Bridges => "Bridges",
            Self::Extents => "Extents",
        }
    }

    fn columns(self) -> &'static [Column] {
        match self {
            Self::Spaces => SPACES,
            Self::Ports => PORTS,
            Self::Shared => SHARED,
            Self::Calls => CALLS,
            Self::Exports => EXPORTS,
            Self::Bridges => BRIDGES,
            Self::Extents => EXTENTS,
        }
    }

    fn first_column(self) -> &'static str {
        match self {
            Self::Spaces => "SENT/s",
            Self::Ports => "TAKEN/s",
            Self::Shared => "UNITS/s",
            Self::Calls => "CALLS/s",
            Self::Exports => "SIZE",
            Self::Bridges => "OUT/s",
            Self::Extents => "BYTES",
        }
    }

    fn rows(self, snapshot: &Snapshot) -> Vec<Vec<Cell>> {
        match self {
            Self::Spaces => snapshot.spaces.iter().map(space).collect(),
            Self::Ports => snapshot.ports.iter().map(port).collect(),
            Self::Shared => snapshot.segments.iter().map(shared).collect(),
            Self::Calls => {
                let spaces = snapshot.spaces.iter();
                spaces.map(|space| calls(space, snapshot)).collect()
            }
            Self::Exports => snapshot.exports.iter().map(export).collect(),
            Self::Bridges => snapshot.connections.iter().map(bridge).collect(),
            Self::Extents => snapshot.extents.iter().map(extents).collect(),
        }
    }
}

// With a blank after each column, a table is 80 wide at the most.
const SPACES: &[Column] = &[
    number("SPACE", 5),
    number("PROCESS", 7),
    text("NAME", 13),
    number("SENT/s", 7),
    number("BYTES/s", 8),
    number("TAKEN/s", 7),
    number("SPIN", 4),
    number("SLEEP", 5),
    number("ROOM", 4),
    number("OWNS", 8),
];
const PORTS: &[Column] = &[
    number("PORT", 5),
    text("NAME", 12),
    number("SPACE", 5),
    text("FOR", 3),
    number("QUEUE", 7),
    number("TAKEN/s", 7),
    number("BYTES/s", 8),
    number("SPIN", 4),
    number("SLEEP", 5),
    number("ROOM", 4),
    number("VOID", 4),
    number("DROP", 4),
];
const SHARED: &[Column] = &[
    number("NO", 5),
    text("NAME", 14),
    text("IS", 10),
    number("SIZE", 8),
    number("UNIT", 7),
    number("WRITER", 6),
    number("READ", 4),
    number("BEHIND", 6),
    number("UNITS/s", 7),
];
const CALLS: &[Column] = &[
    number("SPACE", 5),
    number("PROCESS", 7),
    text("NAME", 10),
    number("CALLS/s", 7),
    number("RUN/s", 7),
    number("SIGNAL/s", 8),
    number("TAKEN/s", 7),
    number("HANDLER", 7),
    number("WAIT", 6),
    number("DROP", 5),
];
const EXPORTS: &[Column] = &[
    number("SPACE", 5),
    text("NAME", 20),
    number("SIZE", 8),
    text("PERMITS", 11),
    text("BY", 6),
    number("IMPORTERS", 9),
    number("NOTES/s", 7),
];
const BRIDGES: &[Column] = &[
    number("SPACE", 5),
    text("IS", 8),
    text("NAME", 11),
    text("WITH", 12),
    number("PROCESS", 7),
    number("OUT/s", 6),
    number("BYTES/s", 8),
    number("IN/s", 6),
    number("BYTES/s", 8),
];
const EXTENTS: &[Column] = &[
    number("SPACE", 5),
    text("NAME", 12),
    number("SIZE", 8),
    number("COUNT", 5),
    number("BYTES", 8),
    number("<1s", 5),
    number("<10s", 5),
    number("<1m", 5),
    number("<1h", 5),
    number("OLDER", 5),
    number("OLDEST", 6),
];

fn space(space: &Space) -> Vec<Cell> {
    let id = if space.host {
        format!("*{}", space.id)
    } else {
        space.id.to_string()
    };
    let called = match space.state {
        "live" => name(&space.name),
        state => Cell {
            alarm: true,
            ..name(&format!("{} {state}", space.name))
        },
    };
    vec![
        cell(id, space.id.into()),
        cell(space.pid.to_string(), space.pid.into()),
        called,
        rate(space.sent_per_second),
        bytes(space.sent_bytes_per_second),
        rate(space.taken_per_second),
        count(space.spinning.into()),
        count(space.sleeping.into()),
        lost(space.awaiting_room.into()),
        bytes(space.owned_bytes as f64),
    ]
}

fn port(port: &Port) -> Vec<Cell> {
    let called = match (&port.name, port.state) {
        (Some(called), "open") => name(called),
        (Some(called), state) => name(&format!("{called} {state}")),
        (None, "open") => name("-"),
        (None, state) => name(state),
    };
    let full = port.slots > 0 && port.depth * 4 >= port.slots * 3;
    // A wait set or a task sleeps, which has no thread of its own at the port.
    let sleeping = match port.sleeping {
        0 if port.armed => cell("set".to_owned(), 0.5),
        threads => count(threads.into()),
    };
    vec![
        cell(port.index.to_string(), port.index.into()),
        called,
        cell(port.owner.to_string(), port.owner.into()),
        name(match port.kind {
            "requests" => "req",
            "replies" => "rep",
            _ => "msg",
        }),
        Cell {
            text: format!("{}/{}", short(port.depth as f64), short(port.slots as f64)),
            key: Key::Number(port.depth as f64),
            alarm: full,
        },
        rate(port.taken_per_second),
        bytes(port.taken_bytes_per_second),
        count(port.spinning.into()),
        sleeping,
        lost(port.awaiting_room.into()),
        lost(port.voids),
        lost(port.dropped),
    ]
}

fn shared(shared: &Shared) -> Vec<Cell> {
    let Shared {
        segment,
        units_per_second,
    } = shared;
    let kind = match segment.kind {
        "frame buffer" => "frames",
        "shared extent" => "extent",
        kind => kind,
    };
    let mut cells = vec![
        cell(segment.index.to_string(), segment.index.into()),
        name(segment.name.as_deref().unwrap_or("-")),
        name(kind),
        bytes(segment.bytes as f64),
    ];
    let Some(channel) = &segment.channel else {
        cells.extend((0..5).map(|_| cell("-".to_owned(), -1.0)));
        return cells;
    };
    // A message-consistent channel overwrites what is behind by a lap.
    let behind = segment.behind();
    let dropped = channel.readers.iter().any(|reader| reader.dropped);
    let writer = channel.writer.map_or(0.0, f64::from);
    cells.extend([
        bytes(channel.unit_bytes as f64),
        cell(channel.writers(), writer),
        count(channel.readers.len() as u64),
        Cell {
            alarm: dropped || behind * 4 >= channel.units * 3,
            ..count(behind)
        },
        rate(*units_per_second),
    ]);
    cells
}

fn calls(space: &Space, snapshot: &Snapshot) -> Vec<Cell> {
    let listeners = || snapshot.listeners.iter().filter(|l| l.space == space.id);
    let waiting: usize = listeners().map(|l| l.waiting).sum();
    vec![
        cell(space.id.to_string(), space.id.into()),
        cell(space.pid.to_string(), space.pid.into()),
        name(&space.name),
        rate(space.calls_per_second),
        rate(space.answers_per_second),
        rate(space.signals_per_second),
        rate(space.delivered_per_second),
        count(listeners().map(|l| u64::from(l.handlers)).sum()),
        count(waiting as u64),
        lost(listeners().map(|l| l.dropped).sum()),
    ]
}

fn export(exported: &Exported) -> Vec<Cell> {
    let export = &exported.export;
    let by = if export.kernel_mediated {
        "kernel"
    } else {
        "memory"
    };
    vec![
        cell(export.space.to_string(), export.space.into()),
        name(&export.name),
        bytes(export.bytes as f64),
        name(export.permits),
        name(by),
        count(export.importers),
        rate(exported.notifications_per_second),
    ]
}

fn bridge(connected: &Connected) -> Vec<Cell> {
    let bridge = &connected.bridge;
    vec![
        cell(bridge.space.to_string(), bridge.space.into()),
        name(bridge.kind),
        name(&bridge.offer),
        name(&bridge.with()),
        cell(bridge.pid.to_string(), bridge.pid.into()),
        rate(connected.out_per_second),
        bytes(connected.out_bytes_per_second),
        rate(connected.in_per_second),
        bytes(connected.in_bytes_per_second),
    ]
}

fn extents(held: &Extents) -> Vec<Cell> {
    let space = held.space.map_or("-".to_owned(), |id| id.to_string());
    let mut cells = vec![
        cell(space, held.space.unwrap_or(0).into()),
        name(&held.name),
        bytes(held.size_bytes as f64),
        count(held.count),
        bytes(held.bytes as f64),
    ];
    cells.extend(held.by_age.map(count));
    cells.push(cell(age(held.oldest_seconds), held.oldest_seconds as f64));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_fits_eighty_columns() {
        for tab in Tab::ALL {
            let widths: u16 = tab.columns().iter().map(|c| c.width + 1).sum();
            assert!(widths <= 80, "{tab:?}: {widths}");
        }
    }
}
