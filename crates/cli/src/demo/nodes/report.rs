//! Prints what the demo has seen.

use std::time::Duration;

use portolan_measure::out::{self, Align, Table};
use serde::Serialize;

use super::super::files::Input;
use super::{Said, Way};
use crate::error::Result;

/// All that was said.
#[derive(Debug, Default)]
pub(super) struct Report {
    ways: Vec<Carried>,
    round_trip: Option<Duration>,
    killed: Option<Duration>,
    unreachable: Option<(Duration, String)>,
    given_up: Option<(Duration, String)>,
    no_senders: Option<Duration>,
    beside: Option<(u64, Duration)>,
}

/// The file, carried one way.
#[derive(Debug)]
struct Carried {
    way: Way,
    began: Duration,
    ended: Duration,
    cpu: Duration,
    digests: Vec<String>,
}

/// Says what happens, while it does.
pub(super) fn progress(node: &str, said: &Said) {
    match said {
        Said::Began { way, .. } => tell!("{node} reads the file: {}", way.label()),
        Said::Killed { .. } => tell!("{node} is killed"),
        Said::Unreachable { node, .. } => tell!("{node} is unreachable"),
        Said::GivenUp { .. } => tell!("it is given up"),
        _ => {}
    }
}

impl Report {
    /// Takes in what one has said. The stages of a way end in any order.
    pub(super) fn note(&mut self, said: Said) {
        match said {
            Said::Began { way, at } => self.way(way).began = at,
            Said::Done {
                way,
                at,
                cpu,
                digest,
            } => {
                let carried = self.way(way);
                carried.ended = carried.ended.max(at);
                carried.cpu += cpu;
                // The reader has none.
                carried
                    .digests
                    .extend(Some(digest).filter(|d| !d.is_empty()));
            }
            Said::Answered { median, .. } => self.round_trip = Some(median),
            Said::Killed { at } => self.killed = Some(at),
            Said::Unreachable { at, node } => self.unreachable = Some((at, node)),
            Said::GivenUp { at, why } => self.given_up = Some((at, why)),
            Said::NoSenders { at } => self.no_senders = Some(at),
            Said::Beside { answered, longest } => self.beside = Some((answered, longest)),
        }
    }

    fn way(&mut self, way: Way) -> &mut Carried {
        let at = self.ways.iter().position(|carried| carried.way == way);
        let at = at.unwrap_or_else(|| {
            self.ways.push(Carried {
                way,
                began: Duration::ZERO,
                ended: Duration::ZERO,
                cpu: Duration::ZERO,
                digests: Vec::new(),
            });
            self.ways.len() - 1
        });
        &mut self.ways[at]
    }

    /// What the hasher and the writer have come to.
    pub(super) fn digests(&self, way: Way) -> impl Iterator<Item = &str> {
        let carried = self.ways.iter().filter(move |carried| carried.way == way);
        carried.flat_map(|carried| carried.digests.iter().map(String::as_str))
    }

    pub(super) fn print(&self, input: &Input, digest: &str, json: bool) -> Result<()> {
        let seconds = |from: Option<Duration>, to: Option<Duration>| {
            Some(to?.saturating_sub(from?).as_secs_f64())
        };
        let after = |at| seconds(self.killed, at);
        let ways = self.ways.iter().map(|carried| Row {
            way: carried.way.label(),
            gb_per_s: input.len() as f64
                / 1e9
                / carried.ended.saturating_sub(carried.began).as_secs_f64(),
            cpu_s_per_gb: carried.cpu.as_secs_f64() / (input.len() as f64 / 1e9),
        });
        let page = Page {
            input: input.name(),
            bytes: input.len(),
            blake3: digest,
            ways: ways.collect(),
            round_trip_us: self.round_trip.map(|time| time.as_secs_f64() * 1e6),
            unreachable_after_s: after(self.unreachable.as_ref().map(|(at, _)| *at)),
            given_up_after_s: after(self.given_up.as_ref().map(|(at, _)| *at)),
            given_up_as: self.given_up.as_ref().map(|(_, why)| why.as_str()),
            no_senders_after_s: after(self.no_senders),
            answered_beside: self.beside.map(|(answered, _)| answered),
            longest_beside_ms: self.beside.map(|(_, longest)| longest.as_secs_f64() * 1e3),
        };
        match json {
            true => Ok(crate::json::print(&page)?),
            false => Ok(out::print(&page.text())?),
        }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    way: &'static str,
    gb_per_s: f64,
    cpu_s_per_gb: f64,
}

#[derive(Debug, Serialize)]
struct Page<'a> {
    input: &'a str,
    bytes: u64,
    blake3: &'a str,
    ways: Vec<Row>,
    round_trip_us: Option<f64>,
    unreachable_after_s: Option<f64>,
    given_up_after_s: Option<f64>,
    given_up_as: Option<&'a str>,
    no_senders_after_s: Option<f64>,
    answered_beside: Option<u64>,
    longest_beside_ms: Option<f64>,
}

impl Page<'_> {
    fn text(&self) -> String {
        let mut table = Table::new(&[
            ("way", Align::Left),
            ("GB/s", Align::Right),
            ("CPU s/GB", Align::Right),
        ]);
        for row in &self.ways {
            table.row(vec![
                row.way.to_owned(),
                format!("{:.2}", row.gb_per_s),
                format!("{:.2}", row.cpu_s_per_gb),
            ]);
        }
        let mut text = format!(
            "{}, {}, reader (lab1) -> hasher (lab2) -> writer (lab3)\nBLAKE3 {}\n\
             the same in the input, on the way and in the output, either way\n\n{}\n\
             The links between nodes are TLS 1.3; plain TCP is not encrypted. The CPU time is the\n\
             programs': the nodes' own is not in it.\n",
            self.input,
            out::size(self.bytes),
            self.blake3,
            table.render(),
        );
        let mut line = |words: String| text += &format!("\n{words}");
        if let Some(time) = self.round_trip_us {
            line(format!(
                "a request from lab1 to lab3 and its answer: {time:.0} us"
            ));
        }
        line("lab3's node was killed:".to_owned());
        if let Some(after) = self.no_senders_after_s {
            line(format!(
                "  after {after:.1} s  the program beside it heard that nobody sends to it any more, and goes on"
            ));
        }
        if let Some(after) = self.unreachable_after_s {
            line(format!(
                "  after {after:.1} s  sends to its ports came back as unreachable, with the message"
            ));
        }
        if let (Some(after), Some(why)) = (self.given_up_after_s, self.given_up_as) {
            line(format!("  after {after:.1} s  it was given up: {why}"));
        }
        if let (Some(answered), Some(longest)) = (self.answered_beside, self.longest_beside_ms) {
            line(format!(
                "  all the time   lab2 answered: {answered} requests, the slowest in {longest:.0} ms"
            ));
        }
        text + "\n"
    }
}
