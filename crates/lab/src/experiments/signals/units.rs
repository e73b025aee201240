//! Measures how a channel's writes are signalled: by unit, by a store that traps, and with the push
//! hint.

use std::time::Duration;

use portolan_instruments::push;
use portolan_measure::case::{Case, Mode, Pattern, Payload, Protection, Shape, Signal, System};

use crate::error::Result;
use crate::experiment::Context;
use crate::lanes::{Beside, Effort, Lanes, Track, figure};
use crate::outcome::{Cell, Outcome, Table};
use crate::unit::Unit;

/// Bytes of messages: for people, and how many.
const SIZES: [(&str, u64); 3] = [("1 KiB", 1 << 10), ("4 KiB", 4 << 10), ("64 KiB", 64 << 10)];
/// When a message is signalled. Its reader polls: in a stream there is always something to read, so none
/// would sleep.
const WAYS: [(&str, Signal); 4] = [
    ("none", Signal::Never),
    ("one a message", Signal::Message),
    ("one a page", Signal::Bytes(4096)),
    ("one a line", Signal::Bytes(64)),
];
/// What a channel's writer counts.
const SIGNALS: &str = "signals";

const LINE: &str = "a line";
const SIGNALLED: &str = "a signal, polled, between processes";
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
        let message = |bytes, shape| Case {
            protection: Protection::Trusted,
            payload: Payload::Untouched,
            pattern: Pattern::Stream,
            shape,
            mode: Mode::Poll,
            ..Case::new(System::Channel, bytes)
        };
        let mut streams = Vec::new();
        for (_, bytes) in SIZES {
            let mut lanes = Lanes::new();
            for (name, signal) in WAYS {
                let case = message(bytes, Shape::Signalled(signal));
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
            "Signals of a message over units of a line, and what it takes in a stream that is polled",
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
             for readers that sleep, and here none does: what signals cost that interrupt is in the table \
             above. A unit of a line holds 48 bytes beside its stamp, so 4 KiB are 86 of them. A writer \
             that has to wait for room signals, too, as happens in messages of 64 KiB, of which its \
             channel holds six. Both sides copy the message.",
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
             processor to move a line that was written towards the others. A signal here goes to and fro as \
             signals, and is half of a round; in Table 1 its answer comes back by a line, and what is left \
             of the round without that is shown.",
        )
    }
}
