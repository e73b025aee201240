//! Measures what clients cost beside their calls: the memory of idle ones, channels of their own for
//! busy ones, and the transport's timer.

use std::time::Duration;

use portolan_measure::case::{Case, Mode, Pattern, Payload, Protection, Shape, System};

use crate::claims::{self, Estimate, table};
use crate::clock::Timed;
use crate::error::Result;
use crate::experiment::Context;
use crate::lanes::{Effort, Lanes, Track};
use crate::outcome::{Cell, Table, Verdict};
use crate::unit::Unit;

const OWN: &str = "an idle client, channels of its own";
const SHARING: &str = "an idle client that shares channels";
const PROMOTED: &str = "a busy client is given channels of its own";
const DEMOTED: &str = "another loses them for it, its next call";
const TIMER: &str = "the timer, each period (P)";

/// Rows of memory, and rows of time.
const MEMORY: [(&str, Shape); 2] = [
    (OWN, Shape::IdleClient { sharing: false }),
    (SHARING, Shape::IdleClient { sharing: true }),
];
const TIMES: [(&str, Shape); 3] = [
    (PROMOTED, Shape::Promotion),
    (DEMOTED, Shape::Demotion),
    (TIMER, Shape::Timer),
];
/// What a row of the timer counts: the share of a processor that it took.
const SHARE: &str = "P/T";
/// And how often the timer asked, of a call.
const ASKS: &str = "asks";

/// Steps of progress.
pub(super) const STEPS: usize = MEMORY.len() + TIMES.len();
/// The timer's period unless a client asks for another (`ClientOptions::period`).
const PERIOD: Duration = Duration::from_millis(10);
/// Rows count bytes where others count picoseconds.
const BYTE: f64 = 1e-12;

pub(super) struct Clients {
    memory: Vec<Track>,
    times: Vec<Track>,
}

impl Clients {
    pub(super) fn measure(context: &Context<'_>) -> Result<Self> {
        let of = |slices, millis| Effort {
            slices,
            slice: Duration::from_millis(millis),
        };
        let measure = |rows: &[(&'static str, Shape)], effort: Effort| {
            let mut lanes = Lanes::new();
            for &(name, shape) in rows {
                let case = Case {
                    mode: Mode::Block,
                    protection: Protection::Trusted,
                    payload: Payload::Untouched,
                    pattern: Pattern::RoundTrip { one_way: false },
                    shape,
                    ..Case::new(System::Call, 0)
                };
                lanes.start(name, &case, context)?;
            }
            lanes.measure(effort, context)
        };
        Ok(Self {
            // Each slice connects fifty clients more.
            memory: measure(&MEMORY, of(context.pick(1, 3), 1))?,
            times: measure(&TIMES, context.pick(of(1, 1), of(10, 20)))?,
        })
    }

    fn timed(&self, row: &str) -> Option<Timed> {
        Some(Track::find(&self.times, row)?.timed())
    }

    pub(super) fn table(&self) -> Table {
        let columns = [("memory", Unit::Bytes), ("time", Unit::Seconds)];
        let title = "Clients beside their calls, and the transport's timer";
        let mut table = Table::new("rpc-clients", title, "what", &columns);
        for (row, _) in MEMORY {
            let track = Track::find(&self.memory, row);
            let bytes = track.map(|track| {
                let bytes = track.times.iter().map(|time| time / BYTE);
                Timed::of(bytes.collect()).cell()
            });
            table.row(row, [bytes.unwrap_or_default()]);
        }
        for (row, _) in TIMES {
            let time = self.timed(row).map(|timed| timed.cell());
            table.row(row, [Cell::default(), time.unwrap_or_default()]);
        }
        table.note(
            "The paper has no figures of these: its channels take virtual memory, which is paged out \
             while they are idle, it experiments with sharing them, and its timer takes P every T. A client that \
             loses its channels has its next call answered after the transport's period of 10 ms, when the \
             timer asks: that is most of its row.",
        )
    }

    pub(super) fn timer(&self) -> Verdict {
        let cost = self.timed(TIMER).and_then(|timed| claims::timed(&timed));
        let share = claims::ratio(cost, Estimate::exact(PERIOD.as_secs_f64()));
        let short = Track::find(&self.times, TIMER).and_then(|track| track.count(SHARE));
        let asks = Track::find(&self.times, TIMER).and_then(|track| track.count(ASKS));
        let paragraph = format!(
            "Each time that its period passes the timer takes {} of processor time, of both sides \
             together; of its period unless a client asks for another, {}, that is {}. It takes that \
             only while a call has no answer; a call that is answered before takes none.",
            claims::shown(cost, Unit::Seconds),
            Unit::Seconds.quote(PERIOD.as_secs_f64()),
            claims::shown(share, Unit::Share),
        );
        table::TIMER
            .verdict(&[share])
            .because(paragraph)
            .figure(
                "P",
                Unit::Seconds,
                cost.map_or_else(Cell::default, Estimate::cell),
            )
            .figure(
                "times that a timer asks whose period is 250 µs and doubles, in a call answered after 2 ms",
                Unit::Count,
                asks.map_or_else(Cell::default, Cell::here),
            )
            .figure(
                "what these take, of the 2 ms",
                Unit::Share,
                short.map_or_else(Cell::default, Cell::here),
            )
    }
}
