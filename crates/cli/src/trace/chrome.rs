//! Writes events in the Chrome trace event format, which Perfetto opens.
//!
//! The file is a JSON array. Readers take one without its end, so what a killed tracer
//! leaves is of use. Each space is a process and each of its threads a track; a message is
//! an arrow from the slice of its send to the slice of its receive, drawn once both are
//! known.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, Write};

use portolan::{Event, EventKind, TracedSpace};
use serde::Serialize;

/// Messages of which one half is known that are remembered: their other half may have been
/// lost, or lie outside the trace.
const HALVES: usize = 1 << 20;
/// Process number of a space whose process was gone before it was seen, plus its own.
const UNKNOWN: u32 = 1 << 30;

/// A trace event; only those fields are written that its phase has.
#[derive(Serialize)]
pub(super) struct Entry<'a> {
    pub(super) name: &'a str,
    pub(super) ph: &'static str,
    pub(super) ts: f64,
    pub(super) pid: u32,
    pub(super) tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dur: Option<f64>,
    /// Which arrow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<u64>,
    /// An arrow ends at the slice around it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bp: Option<&'static str>,
    /// How far an instant is drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) s: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) args: Option<Arguments<'a>>,
}

#[derive(Default, Serialize)]
pub(super) struct Arguments<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) labels: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sort_index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) port_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) position: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) space: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) process: Option<u32>,
    /// The node at the other side of a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peer: Option<&'a str>,
    /// Of a message that arrives: how long it was under way, by two clocks, and by how much that is wrong
    /// at the most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) flight_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) flight_error_us: Option<f64>,
}

/// An event of a member of a domain.
pub(super) struct Happened {
    pub(super) at: Point,
    /// Which domain, of several in one file: ports and positions are its own.
    pub(super) domain: u32,
    pub(super) kind: EventKind,
    pub(super) took: u64,
    pub(super) port: Option<u16>,
    pub(super) position: Option<u64>,
    pub(super) bytes: u64,
    pub(super) about: Option<(u8, u32)>,
}

impl<'a> Entry<'a> {
    pub(super) fn new(name: &'a str, ph: &'static str, at: Point) -> Self {
        Self {
            name,
            ph,
            ts: micros(at.time),
            pid: at.pid,
            tid: at.tid,
            cat: None,
            dur: None,
            id: None,
            bp: None,
            s: None,
            args: None,
        }
    }
}

/// A point on a thread's track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) time: u64,
    pub(super) pid: u32,
    pub(super) tid: u32,
}

/// A message of which one half is known.
#[derive(Clone, Copy)]
struct Half {
    sent: bool,
    /// Each of several readers gets it.
    shared: bool,
    at: Point,
}

/// Nanoseconds as the format counts: exact for months.
pub(super) fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

/// The writer of one file.
pub(crate) struct Chrome<W> {
    out: W,
    /// What is time 0 in the file.
    origin: u64,
    empty: bool,
    processes: HashSet<u32>,
    threads: HashSet<(u32, u32)>,
    halves: HashMap<(u32, u16, u64), Half>,
    /// The same, the oldest first.
    order: VecDeque<(u32, u16, u64)>,
    /// Messages of which both halves were seen.
    pub(crate) arrows: u64,
}

impl<W: Write> Chrome<W> {
    /// Begins a file; events before `origin` count as at its beginning.
    pub(crate) fn new(mut out: W, origin: u64) -> io::Result<Self> {
        out.write_all(b"[\n")?;
        Ok(Self {
            out,
            origin,
            empty: true,
            processes: HashSet::new(),
            threads: HashSet::new(),
            halves: HashMap::new(),
            order: VecDeque::new(),
            arrows: 0,
        })
    }

    /// Processes seen.
    pub(crate) fn processes(&self) -> usize {
        self.processes.len()
    }

    /// Names a space's process.
    pub(crate) fn space(&mut self, space: &TracedSpace) -> io::Result<()> {
        if !self.processes.insert(space.process) {
            return Ok(());
        }
        let at = Point {
            time: 0,
            pid: space.process,
            tid: 0,
        };
        let name = format!("{} (space {})", space.name, space.id);
        self.entry(&Entry {
            args: Some(Arguments {
                name: Some(&name),
                ..Arguments::default()
            }),
            ..Entry::new("process_name", "M", at)
        })?;
        self.entry(&Entry {
            args: Some(Arguments {
                sort_index: Some(space.id.into()),
                ..Arguments::default()
            }),
            ..Entry::new("process_sort_index", "M", at)
        })
    }

    /// Writes an event, and the arrow of the message that it completes.
    pub(crate) fn event(&mut self, event: &Event, port_name: Option<&str>) -> io::Result<()> {
        let at = Point {
            time: event.began.saturating_sub(self.origin),
            pid: match event.process {
                0 => UNKNOWN + u32::from(event.space),
                process => process,
            },
            tid: event.thread,
        };
        self.thread(at)?;
        let happened = Happened {
            at,
            domain: 0,
            kind: event.kind,
            took: event.took,
            port: event.port,
            position: event.position,
            bytes: event.bytes,
            about: event.about,
        };
        self.happened(&happened, port_name)
    }

    /// The same, of any domain.
    pub(super) fn happened(&mut self, event: &Happened, port_name: Option<&str>) -> io::Result<()> {
        let at = event.at;
        let kind = event.kind.name();
        let name = match (event.port, port_name, event.about) {
            (_, Some(port), _) => format!("{kind} {port}"),
            (Some(port), ..) => format!("{kind} port {port}"),
            (None, _, Some((space, process))) => format!("{kind} of {process} (space {space})"),
            (None, ..) => kind.to_owned(),
        };
        let args = Arguments {
            port: event.port,
            port_name,
            position: event.position,
            bytes: Some(event.bytes),
            space: event.about.map(|(space, _)| space),
            process: event.about.map(|(_, process)| process),
            ..Arguments::default()
        };
        let entry = Entry {
            cat: Some(kind),
            args: Some(args),
            ..Entry::new(&name, "X", at)
        };
        if event.kind == EventKind::Death {
            // A line across all tracks.
            let (ph, s) = ("i", Some("g"));
            return self.entry(&Entry { ph, s, ..entry });
        }
        let dur = Some(micros(event.took));
        self.entry(&Entry { dur, ..entry })?;
        let (Some(port), Some(position)) = (event.port, event.position) else {
            return Ok(());
        };
        use EventKind as Kind;
        let (sent, shared) = match event.kind {
            Kind::Send | Kind::Call => (true, false),
            Kind::Receive | Kind::Answer => (false, false),
            Kind::Write | Kind::Publish => (true, true),
            Kind::Read | Kind::Take => (false, true),
            _ => return Ok(()),
        };
        self.half((event.domain, port, position), Half { sent, shared, at })
    }

    /// Ends the file.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.out.write_all(b"\n]\n")?;
        self.out.flush()
    }

    /// Lets what was written be read.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Notes a message's half; draws its arrow if the other half is known.
    fn half(&mut self, message: (u32, u16, u64), half: Half) -> io::Result<()> {
        let other = match self.halves.get(&message) {
            Some(other) if other.sent != half.sent => *other,
            // A second reader before the writer: the first one's arrow is not drawn.
            _ => {
                self.remember(message, half);
                return Ok(());
            }
        };
        match (half.shared, half.sent) {
            // What is written stays known, for further readers.
            (true, true) => self.remember(message, half),
            (true, false) => {}
            (false, _) => _ = self.halves.remove(&message),
        }
        let (from, to) = if half.sent {
            (half, other)
        } else {
            (other, half)
        };
        self.arrow("message", from.at, to.at)
    }

    /// Draws an arrow from slice to slice.
    pub(super) fn arrow(&mut self, name: &str, from: Point, to: Point) -> io::Result<()> {
        self.arrows += 1;
        let (id, cat) = (Some(self.arrows), Some("message"));
        self.entry(&Entry {
            id,
            cat,
            ..Entry::new(name, "s", from)
        })?;
        self.entry(&Entry {
            id,
            cat,
            bp: Some("e"),
            ..Entry::new(name, "f", to)
        })
    }

    fn remember(&mut self, message: (u32, u16, u64), half: Half) {
        self.halves.insert(message, half);
        self.order.push_back(message);
        // Most of those in the order have found their other half long ago.
        while self.order.len() > HALVES
            && let Some(oldest) = self.order.pop_front()
        {
            self.halves.remove(&oldest);
        }
    }

    /// Names a thread when it is first seen, if it still is there; and a process that never was.
    fn thread(&mut self, at: Point) -> io::Result<()> {
        if !self.threads.insert((at.pid, at.tid)) {
            return Ok(());
        }
        if at.pid >= UNKNOWN && self.processes.insert(at.pid) {
            let name = format!("gone before it was seen (space {})", at.pid - UNKNOWN);
            self.entry(&Entry {
                args: Some(Arguments {
                    name: Some(&name),
                    ..Arguments::default()
                }),
                ..Entry::new(
                    "process_name",
                    "M",
                    Point {
                        time: 0,
                        tid: 0,
                        ..at
                    },
                )
            })?;
        }
        let path = format!("/proc/{}/task/{}/comm", at.pid, at.tid);
        let Ok(name) = std::fs::read_to_string(path) else {
            return Ok(());
        };
        self.entry(&Entry {
            args: Some(Arguments {
                name: Some(name.trim_end()),
                ..Arguments::default()
            }),
            ..Entry::new("thread_name", "M", Point { time: 0, ..at })
        })
    }

    pub(super) fn entry(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        if !std::mem::replace(&mut self.empty, false) {
            self.out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut self.out, entry)?;
        Ok(())
    }
}
