//! Writes the events of several nodes into one file, by one clock, with an arrow for each message from node
//! to node.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use portolan::EventKind;

use super::collect::Source;
use crate::cluster::{MemberEvent, Passage, Seen};
use crate::trace::chrome::{Arguments, Chrome, Entry, Happened, Point, micros};

/// What was written.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Merged {
    pub(super) events: u64,
    pub(super) kinds: BTreeMap<String, u64>,
    pub(super) processes: usize,
    /// Arrows between nodes, and those between members of one.
    pub(super) between: u64,
    pub(super) within: u64,
    /// Messages between nodes that were under way for less than their clocks may be wrong by; and those of
    /// them that seem to arrive before they depart, for which no arrow can be drawn.
    pub(super) uncertain: u64,
    pub(super) undrawn: u64,
    /// Messages that arrive before they depart by more than that: a clock was set, or a node lies.
    pub(super) impossible: u64,
    /// Departures and arrivals whose other half is not there.
    pub(super) departed: u64,
    pub(super) arrived: u64,
    /// Events of nodes whose clock nobody knows, and of kinds that this command does not know.
    pub(super) unplaced: u64,
    pub(super) unknown: u64,
}

/// Half of a message that goes from node to node.
#[derive(Clone, Copy)]
struct Half {
    at: Point,
    /// By the clock of the origin.
    time: i128,
    error: u64,
}

/// Numbers of processes and threads in the file: those of several machines may be alike.
#[derive(Default)]
struct Numbers {
    processes: HashMap<(usize, u32, u8), u32>,
    threads: HashMap<(u32, u32), u32>,
}

/// Writes all; times begin with `began`, by the clock of the origin.
pub(super) fn merge<W: Write>(
    out: &mut Chrome<W>,
    sources: &[Source],
    began: i128,
) -> io::Result<Merged> {
    let mut merged = Merged::default();
    let mut numbers = Numbers::default();
    // The first of several with one key counts: only a node that lies has more.
    let mut departures: HashMap<u64, Half> = HashMap::new();
    for (at, source) in sources.iter().enumerate() {
        for seen in &source.events {
            let Seen::Depart(passage) = seen else {
                continue;
            };
            if let Some((time, error)) = time_of(source, passage.began) {
                let at = numbers.point(out, (at, source), source.process, 0, source.thread)?;
                let at = Point {
                    time: from(began, time),
                    ..at
                };
                departures
                    .entry(passage.key)
                    .or_insert(Half { at, time, error });
            }
        }
    }
    for (at, source) in sources.iter().enumerate() {
        for seen in &source.events {
            let when = match seen {
                Seen::Member(event) => event.began,
                Seen::Depart(passage) | Seen::Arrive(passage) => passage.began,
            };
            let Some((time, error)) = time_of(source, when) else {
                merged.unplaced += 1;
                continue;
            };
            let (process, space, thread) = match seen {
                Seen::Member(event) => (event.process, event.space, event.thread),
                _ => (source.process, 0, source.thread),
            };
            let point = numbers.point(out, (at, source), process, space, thread)?;
            let point = Point {
                time: from(began, time),
                ..point
            };
            let here = Half {
                at: point,
                time,
                error,
            };
            match seen {
                Seen::Member(event) => merged.member(out, (at, source), point, event)?,
                Seen::Depart(passage) => merged.passage(out, "depart", point, passage, None)?,
                Seen::Arrive(passage) => merged.arrive(out, &mut departures, here, passage)?,
            }
        }
    }
    merged.departed = departures.len() as u64;
    merged.processes = numbers.processes.len();
    merged.within = out.arrows - merged.between;
    Ok(merged)
}

/// When it was, by the clock of the origin, and by how much that is wrong at the most.
fn time_of(source: &Source, time: u64) -> Option<(i128, u64)> {
    let shown = i128::from(time) + i128::from(source.ahead);
    source.places.by_origin(shown)
}

/// What was before the trace counts as at its beginning.
fn from(began: i128, time: i128) -> u64 {
    u64::try_from((time - began).max(0)).unwrap_or(u64::MAX)
}

impl Merged {
    fn member<W: Write>(
        &mut self,
        out: &mut Chrome<W>,
        (at, source): (usize, &Source),
        point: Point,
        event: &MemberEvent,
    ) -> io::Result<()> {
        let mut kinds = EventKind::ALL.iter();
        let Some(kind) = kinds.find(|kind| kind.name() == event.kind) else {
            self.unknown += 1;
            return Ok(());
        };
        self.count(kind.name());
        let port = event.port.and_then(|port| source.ports.get(&port));
        let happened = Happened {
            at: point,
            domain: u32::try_from(at).unwrap_or(u32::MAX),
            kind: *kind,
            took: event.took,
            port: event.port,
            position: event.position,
            bytes: event.bytes,
            about: event.about,
        };
        out.happened(&happened, port.map(String::as_str))
    }

    fn arrive<W: Write>(
        &mut self,
        out: &mut Chrome<W>,
        departures: &mut HashMap<u64, Half>,
        here: Half,
        passage: &Passage,
    ) -> io::Result<()> {
        let Some(there) = departures.remove(&passage.key) else {
            self.arrived += 1;
            return self.passage(out, "arrive", here.at, passage, None);
        };
        let error = here.error.saturating_add(there.error);
        let flight = here.time - there.time;
        self.passage(out, "arrive", here.at, passage, Some((flight, error)))?;
        if flight < -i128::from(error) {
            self.impossible += 1;
            return Ok(());
        }
        self.uncertain += u64::from(flight < i128::from(error));
        if flight < 0 {
            self.undrawn += 1;
            return Ok(());
        }
        self.between += 1;
        out.arrow(harmless_name(&passage.what), there.at, here.at)
    }

    fn passage<W: Write>(
        &mut self,
        out: &mut Chrome<W>,
        kind: &'static str,
        at: Point,
        passage: &Passage,
        flight: Option<(i128, u64)>,
    ) -> io::Result<()> {
        self.count(kind);
        let way = if kind == "depart" { "to" } else { "from" };
        let what = harmless_name(&passage.what);
        let name = match passage.port.as_str() {
            "" => format!("{kind} {what} {way} {}", passage.peer),
            port => format!("{kind} {what} {way} {}: {port}", passage.peer),
        };
        let args = Arguments {
            port_name: Some(passage.port.as_str()).filter(|port| !port.is_empty()),
            bytes: Some(passage.bytes),
            peer: Some(&passage.peer),
            flight_us: flight.map(|(flight, _)| flight as f64 / 1000.0),
            flight_error_us: flight.map(|(_, error)| micros(error)),
            ..Arguments::default()
        };
        out.entry(&Entry {
            cat: Some(kind),
            dur: Some(micros(passage.took)),
            args: Some(args),
            ..Entry::new(&name, "X", at)
        })
    }

    fn count(&mut self, kind: &str) {
        self.events += 1;
        *self.kinds.entry(kind.to_owned()).or_default() += 1;
    }
}

/// What a message is, if it is one of these.
fn harmless_name(what: &str) -> &'static str {
    let names = ["message", "request", "answer"];
    let mut names = names.into_iter();
    names.find(|name| *name == what).unwrap_or("message")
}

impl Numbers {
    /// The numbers of a thread in the file; names it and its process when they are first seen.
    fn point<W: Write>(
        &mut self,
        out: &mut Chrome<W>,
        (at, source): (usize, &Source),
        process: u32,
        space: u8,
        thread: u32,
    ) -> io::Result<Point> {
        // Of a process that was gone before it was seen only the space is known.
        let key = (at, process, if process == 0 { space } else { 0 });
        let next = u32::try_from(self.processes.len() + 1).unwrap_or(u32::MAX);
        let pid = *self.processes.entry(key).or_insert(next);
        if pid == next {
            name_process(out, source, pid, process, space)?;
        }
        let next = u32::try_from(self.threads.len() + 1).unwrap_or(u32::MAX);
        let tid = *self.threads.entry((pid, thread)).or_insert(next);
        let point = Point { time: 0, pid, tid };
        if tid == next {
            let name = match (process, thread) == (source.process, source.thread) {
                true => format!("links ({thread})"),
                false => format!("thread {thread}"),
            };
            let args = Arguments {
                name: Some(&name),
                ..Arguments::default()
            };
            out.entry(&Entry {
                args: Some(args),
                ..Entry::new("thread_name", "M", point)
            })?;
        }
        Ok(point)
    }
}

fn name_process<W: Write>(
    out: &mut Chrome<W>,
    source: &Source,
    pid: u32,
    process: u32,
    space: u8,
) -> io::Result<()> {
    let mut spaces = source.spaces.iter();
    let known = spaces.find(|((_, its), _)| *its == process);
    let node = &source.name;
    let name = match known {
        Some(((space, _), name)) => format!("{node}: {name} (space {space}, process {process})"),
        None if process == source.process => format!("{node}: node (process {process})"),
        None if process == 0 => format!("{node}: gone before it was seen (space {space})"),
        None => format!("{node}: process {process}"),
    };
    let clock = source.places.last().map(|offset| {
        let (ahead, error) = (offset.ahead as f64 / 1000.0, micros(offset.error));
        format!("clock {ahead:+.1} us, wrong by {error:.1} us at the most")
    });
    let at = Point {
        time: 0,
        pid,
        tid: 0,
    };
    let mut say = |what: &str, args: Arguments<'_>| {
        out.entry(&Entry {
            args: Some(args),
            ..Entry::new(what, "M", at)
        })
    };
    say(
        "process_name",
        Arguments {
            name: Some(&name),
            ..Arguments::default()
        },
    )?;
    if let Some(clock) = &clock {
        say(
            "process_labels",
            Arguments {
                labels: Some(clock),
                ..Arguments::default()
            },
        )?;
    }
    say(
        "process_sort_index",
        Arguments {
            sort_index: Some(pid),
            ..Arguments::default()
        },
    )
}

#[cfg(test)]
mod tests {
    use super::super::clocks::Offset;
    use super::*;
    use serde_json::Value;

    fn source(name: &str, ahead: i64, error: u64, events: Vec<Seen>) -> Source {
        let mut source = Source::peer(name, name);
        (source.process, source.thread) = (100, 101);
        source.spaces.insert((3, 100), "portolan-node".to_owned());
        source.places.add(0, Offset { ahead, error });
        source.events = events;
        source
    }

    fn passage(began: u64, key: u64) -> Passage {
        Passage {
            began,
            took: 1000,
            key,
            what: "message".to_owned(),
            peer: "peer".to_owned(),
            port: "log".to_owned(),
            bytes: 5,
        }
    }

    fn member(kind: &str, began: u64, position: u64) -> Seen {
        Seen::Member(MemberEvent {
            kind: kind.to_owned(),
            began,
            took: 10,
            space: 4,
            process: 200,
            thread: 201,
            port: Some(1),
            position: Some(position),
            bytes: 0,
            about: None,
        })
    }

    fn merged(sources: &[Source], began: i128) -> (Merged, Vec<Value>) {
        let mut file = Vec::new();
        let mut out = Chrome::new(&mut file, 0).unwrap();
        let merged = merge(&mut out, sources, began).unwrap();
        out.finish().unwrap();
        (merged, serde_json::from_slice(&file).unwrap())
    }

    fn of<'a>(all: &'a [Value], ph: &'a str) -> impl Iterator<Item = &'a Value> {
        all.iter().filter(move |event| event["ph"] == ph)
    }

    #[test]
    fn times_are_by_one_clock_and_arrows_join_departures_and_arrivals() {
        let here = source(
            "hall",
            0,
            0,
            vec![
                Seen::Depart(passage(10_000, 1)),
                Seen::Depart(passage(11_000, 2)),
            ],
        );
        // Its clock is a million ahead; and it sends one back.
        let there = source(
            "roof",
            1_000_000,
            100,
            vec![
                Seen::Arrive(passage(1_012_000, 1)),
                Seen::Depart(passage(1_013_000, 3)),
            ],
        );
        let mut far = source("far", -5_000, 50, vec![Seen::Arrive(passage(10_000, 3))]);
        // Its events have another clock than the one that is measured.
        far.ahead = 2_000;
        let (merged, all) = merged(&[here, there, far], 9_000);
        assert_eq!((merged.between, merged.within, merged.events), (2, 0, 5));
        assert_eq!((merged.departed, merged.arrived), (1, 0));
        assert_eq!(
            (merged.uncertain, merged.undrawn, merged.impossible),
            (0, 0, 0)
        );
        let ends: Vec<(f64, f64)> = of(&all, "s")
            .zip(of(&all, "f"))
            .map(|(s, f)| (s["ts"].as_f64().unwrap(), f["ts"].as_f64().unwrap()))
            .collect();
        assert_eq!(ends, [(1.0, 3.0), (4.0, 8.0)]);
        // An arrow begins and ends where a slice does, on its track.
        for end in of(&all, "s").chain(of(&all, "f")) {
            let same = |it: &&Value| ["pid", "tid", "ts"].iter().all(|key| it[key] == end[key]);
            assert!(of(&all, "X").any(|slice| same(&slice)), "{end}");
        }
        let flights: Vec<f64> = of(&all, "X")
            .filter_map(|it| it["args"]["flight_us"].as_f64())
            .collect();
        assert_eq!(flights, [2.0, 4.0]);
        // Each machine's process 100 is one of its own.
        let pids: std::collections::HashSet<u64> = of(&all, "X")
            .map(|it| it["pid"].as_u64().unwrap())
            .collect();
        assert_eq!((pids.len(), merged.processes), (3, 3));
    }

    #[test]
    fn an_order_that_the_clocks_do_not_tell_is_said() {
        let here = source(
            "hall",
            0,
            0,
            (1..=4)
                .map(|key| Seen::Depart(passage(10_000, key)))
                .collect(),
        );
        let arrives = [10_900, 10_100, 9_900, 8_000];
        let arrives = arrives
            .iter()
            .zip(1..)
            .map(|(at, key)| Seen::Arrive(passage(*at, key)));
        let there = source("roof", 0, 500, arrives.collect());
        let (merged, all) = merged(&[here, there], 0);
        // One is certain, one is not, one would go back within the error, one goes back beyond it.
        assert_eq!((merged.between, merged.uncertain), (2, 2));
        assert_eq!((merged.undrawn, merged.impossible), (1, 1));
        assert_eq!((merged.departed, merged.arrived), (0, 0));
        let errors = of(&all, "X").filter_map(|it| it["args"]["flight_error_us"].as_f64());
        assert!(errors.into_iter().all(|error| (0.5..0.51).contains(&error)));
        assert_eq!(of(&all, "s").count(), 2);
    }

    #[test]
    fn messages_within_a_node_have_arrows_and_those_of_another_one_are_others() {
        let events = || vec![member("send", 100, 7), member("receive", 300, 7)];
        let mut one = source("hall", 0, 0, events());
        one.ports.insert(1, "log".to_owned());
        let two = source("roof", 0, 0, events());
        let lonely = source(
            "far",
            0,
            0,
            vec![member("send", 100, 8), member("nonsense", 100, 8)],
        );
        let (merged, all) = merged(&[one, two, lonely], 0);
        assert_eq!((merged.within, merged.between, merged.unknown), (2, 0, 1));
        for (s, f) in of(&all, "s").zip(of(&all, "f")) {
            assert_eq!(s["pid"], f["pid"]);
        }
        let names: Vec<&str> = of(&all, "X")
            .map(|it| it["name"].as_str().unwrap())
            .collect();
        assert_eq!(names[..3], ["send log", "receive log", "send port 1"]);
    }

    #[test]
    fn a_node_whose_clock_nobody_knows_and_times_that_cannot_be_spoil_nothing() {
        let here = source(
            "hall",
            i64::MIN,
            u64::MAX,
            vec![Seen::Depart(passage(u64::MAX, 1))],
        );
        let mut there = source("roof", i64::MAX, 0, vec![Seen::Arrive(passage(0, 1))]);
        there.ahead = i64::MIN;
        let mut unplaced = Source::peer("x", "x");
        unplaced.events = vec![member("send", 1, 1)];
        let (merged, all) = merged(&[here, there, unplaced], i128::from(i64::MAX));
        assert_eq!((merged.unplaced, merged.events), (1, 2));
        assert!(of(&all, "X").all(|it| it["ts"].as_f64().unwrap() >= 0.0));
    }
}
