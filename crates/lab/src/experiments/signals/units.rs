//! Measures how a channel's writes are signalled: by unit, by a store that traps, and with the push
//! hint.

use std::time::Duration;

use portolan_instruments::push;
use portolan_measure::case::{Case, Mode, Pattern, Payload, Protection, Shape, Signal, System};

use crate::claims::{self, table};
use crate::error::Result;
use crate::experiment::Context;
use crate::lanes::{Beside, Effort, Lanes, Track, figure, shown};
use crate::outcome::{Cell, Outcome, Table, Verdict};
use crate::unit::Unit;

/// Bytes of messages: for people, and how many.
const SIZES: [(&str, u64); 3] = [("1 KiB", 1 << 10), ("4 KiB", 4 << 10), ("64 KiB", 64 << 10)];
/// The size by which the paper's claim is judged.
const JUDGED: &str = SIZES[1].0;

const EACH_MESSAGE: &str = "one a message, asleep";
const EACH_LINE: &str = "one a line, asleep";
/// When a message is signalled, and how its reader waits. No writer would wake a reader of what is
/// never signalled, or of a message that ends within a page.
const WAYS: [(&str, Signal, Mode); 6] = [
    ("none, polling", Signal::Never, Mode::Poll),
    ("one a message, polling", Signal::Message, Mode::Poll),
    ("one a page, polling", Signal::Bytes(4096), Mode::Poll),
    ("one a line, polling", Signal::Bytes(64), Mode::Poll),
    (EACH_MESSAGE, Signal::Message, Mode::Block),
    (EACH_LINE, Signal::Bytes(64), Mode::Block),
];
/// What a channel's writer counts.
const SIGNALS: &str = "signals";

const LINE: &str = "a line";
const SIGNALLED: &str = "a signal, polled";
const TRAPPED: &str = "a store to a protected page";
const PUSHED: &str = "a line with the push hint";

/// Steps of progress.
pub(super) const STEPS: usize = SIZES.len() * WAYS.len() + 4;

/// What was measured.
pub(super) struct Written {
    /// By size.
    streams: Vec<Vec<Track>>,
    ways: Vec<Track>,
}

impl Written {
    pub(super) fn measure(context: &Context<'_>, outcome: &mut Outcome) -> Result<Self> {
        let effort = context.pick(
            Effort {
                slices: 3,
                slice: Duration::from_millis(1),
            },
            Effort {
                slices: 20,
                slice: Duration::from_millis(5),
            },
        );
        let message = |bytes, shape, mode| Case {
            protection: Protection::Trusted,
            payload: Payload::Untouched,
            pattern: Pattern::Stream,
            shape,
            mode,
            ..Case::new(System::Channel, bytes)
        };
        let mut streams = Vec::new();
        for (_, bytes) in SIZES {
            let mut lanes = Lanes::new();
            for (name, signal, mode) in WAYS {
                let case = message(bytes, Shape::Signalled(signal), mode);
                lanes.start(name, &case, context)?;
            }
            streams.push(lanes.measure(effort, context)?);
        }
        let line = Case::new(System::Line, 8);
        let polled = |system| Case {
            protection: Protection::Trusted,
            payload: Payload::Untouched,
            ..Case::new(system, 0)
        };
        let mut lanes = Lanes::new();
        lanes.start(LINE, &line, context)?;
        lanes.start(SIGNALLED, &polled(System::Signal), context)?;
        lanes.start(TRAPPED, &polled(System::SignalOnWrite), context)?;
        if push::is_there() {
            let pushed = Case {
                shape: Shape::Pushed,
                ..line
            };
            lanes.start(PUSHED, &pushed, context)?;
        } else {
            outcome.leave_out(
                PUSHED,
                "the processor, or its hypervisor, does not offer cldemote",
            );
        }
        Ok(Self {
            streams,
            ways: lanes.measure(effort, context)?,
        })
    }

    pub(super) fn tables(&self) -> [Table; 2] {
        [self.units(), self.on_write()]
    }

    fn units(&self) -> Table {
        let names: Vec<String> = SIZES
            .iter()
            .flat_map(|(size, _)| [size.to_string(), format!("{size}, signals")])
            .collect();
        let columns: Vec<(&str, Unit)> = names
            .iter()
            .zip([Unit::Seconds, Unit::Count].into_iter().cycle())
            .map(|(name, unit)| (name.as_str(), unit))
            .collect();
        let mut table = Table::new(
            "signals-units",
            "Signals of a message over units of a line, and what it takes in a stream",
            "signals",
            &columns,
        );
        for (name, ..) in WAYS {
            let cells = self.streams.iter().flat_map(|tracks| {
                let Some(track) = Track::find(tracks, name) else {
                    return [Cell::default(); 2];
                };
                let counted = track.count(SIGNALS).map(Cell::here);
                [track.timed().cell(), counted.unwrap_or_default()]
            });
            table.row(name, cells.collect::<Vec<_>>());
        }
        table.note(
            "The paper has no figures: its prototype interrupted the receiver for each line, and it \
             proposes one signal a message. Signals are counted by the writer, by message; one is a look \
             for readers that sleep, and wakes those. Both sides copy the message.",
        )
    }

    fn on_write(&self) -> Table {
        let columns = [("one way", Unit::Seconds), ("in lines", Unit::Times)];
        let mut table = Table::new(
            "signals-on-write",
            "Signal on write, and the push hint",
            "way",
            &columns,
        );
        let line = Track::find(&self.ways, LINE);
        for track in &self.ways {
            let lines = line.and_then(|line| Beside::ratio(&track.times, &line.times));
            table.row(track.name.clone(), [track.timed().cell(), figure(lines)]);
        }
        table.note(
            "A store to a page that is protected against stores traps; the trap's handler opens the page \
             and signals, as the paper says that its mechanism can be emulated. The push hint asks the \
             processor to move a line that was written towards the others.",
        )
    }

    pub(super) fn verdict(&self) -> Verdict {
        let ratio = |at: usize| {
            let of = |name| Track::find(&self.streams[at], name);
            Beside::ratio(&of(EACH_LINE)?.times, &of(EACH_MESSAGE)?.times)
        };
        let judged = SIZES.iter().position(|(size, _)| *size == JUDGED);
        let judged = judged.and_then(ratio);
        let paragraph = format!(
            "With a signal at each line a message of {JUDGED} in a stream takes its reader, which sleeps \
             where it has nothing to do, {} of one with a signal at its end; of {}, {}; of {}, {}.",
            shown(judged),
            SIZES[0].0,
            shown(ratio(0)),
            SIZES[2].0,
            shown(ratio(2)),
        );
        table::SIGNAL_EACH_LINE
            .verdict(&[claims::paired(judged)])
            .because(paragraph)
            .figure("1 KiB, a line to a message", Unit::Times, figure(ratio(0)))
            .figure("64 KiB, a line to a message", Unit::Times, figure(ratio(2)))
    }
}
