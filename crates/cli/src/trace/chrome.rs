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
struct Entry<'a> {
    name: &'a str,
    ph: &'static str,
    ts: f64,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    /// Which arrow.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    /// An arrow ends at the slice around it.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    /// How far an instant is drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Arguments<'a>>,
}

#[derive(Default, Serialize)]
struct Arguments<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sort_index: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    space: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<u32>,
}

impl<'a> Entry<'a> {
    fn new(name: &'a str, ph: &'static str, at: Point) -> Self {
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
#[derive(Clone, Copy)]
struct Point {
    time: u64,
    pid: u32,
    tid: u32,
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
fn micros(nanos: u64) -> f64 {
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
    halves: HashMap<(u16, u64), Half>,
    /// The same, the oldest first.
    order: VecDeque<(u16, u64)>,
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
                sort_index: Some(space.id),
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
        self.half((port, position), Half { sent, shared, at })
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
    fn half(&mut self, message: (u16, u64), half: Half) -> io::Result<()> {
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
        self.arrows += 1;
        let (id, cat) = (Some(self.arrows), Some("message"));
        self.entry(&Entry {
            id,
            cat,
            ..Entry::new("message", "s", from.at)
        })?;
        self.entry(&Entry {
            id,
            cat,
            bp: Some("e"),
            ..Entry::new("message", "f", to.at)
        })
    }

    fn remember(&mut self, message: (u16, u64), half: Half) {
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

    fn entry(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        if !std::mem::replace(&mut self.empty, false) {
            self.out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut self.out, entry)?;
        Ok(())
    }
}
