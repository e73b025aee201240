//! Measures what lies beside the paper's Tables 1 and 2: what it takes to begin an update, and the
//! modes that Table 1 has no row for: a log, tracked pages, notifications.

use portolan_measure::case::update::{Target, Update, Way};
use portolan_measure::case::{Case, Mode, System};

use super::{AUTOMATIC, DELIBERATE, MEDIATED, OVERLAPPED, WORD, operation};
use crate::error::Result;
use crate::experiment::Context;
use crate::lanes::{Beside, Effort, Lanes, Track, figure};
use crate::outcome::{Cell, Table};
use crate::unit::Unit;

/// Bytes of a page.
const PAGE: u64 = 4 << 10;

const ALIAS_WORD: &str = "a word, stored to an alias";
const BARE: &str = "of this, the bare system call";
const COPY: &str = "of this, the copy of 8 bytes";
const BEGUN: &str = "a deliberate update of 1 MiB, begun and not waited for";

/// What the sender does until an update is on its way: the row, what is done, and the paper's figure.
const INITIATION: [(&str, Update, u64, Option<f64>); 6] = [
    (MEDIATED, Update::Mediated, WORD, Some(6.7e-6)),
    (BARE, Update::Bare, WORD, None),
    (DELIBERATE, Update::Write, WORD, Some(2.8e-6)),
    (COPY, Update::Copy, WORD, None),
    (AUTOMATIC, super::STORES, WORD, Some(0.01e-6)),
    (BEGUN, Update::Initiate, OVERLAPPED, None),
];

/// A word one way.
const WORDS: [(&str, Way, Mode); 4] = [
    (ALIAS_WORD, Way::Alias, Mode::Poll),
    ("a word, through a log", Way::Log, Mode::Poll),
    (
        "a word with a notification, awake",
        Way::Notified,
        Mode::Poll,
    ),
    (
        "a word with a notification, asleep",
        Way::Notified,
        Mode::Block,
    ),
];

const fn stores(to: Target, scattered: bool) -> Update {
    Update::Stores { to, scattered }
}

/// What the sender does: one of many.
const OPERATIONS: [(&str, Update, u64); 11] = [
    ("a consecutive store, to an alias", super::STORES, WORD),
    (
        "a consecutive store, through a log",
        stores(Target::Log, false),
        WORD,
    ),
    (
        "a consecutive store, to tracked pages, with its flush",
        stores(Target::Tracked, false),
        WORD,
    ),
    (
        "a scattered store, to an alias",
        stores(Target::Alias, true),
        WORD,
    ),
    (
        "a scattered store, through a log",
        stores(Target::Log, true),
        WORD,
    ),
    (
        "a scattered store, to tracked pages, with its flush",
        stores(Target::Tracked, true),
        WORD,
    ),
    (
        "tracked, the first store to a page",
        Update::FirstStore,
        PAGE,
    ),
    ("tracked, a flush, by page written", Update::FlushPage, PAGE),
    ("tracked, a flush of one page", Update::Flush, PAGE),
    (
        "telling an exporter that is awake",
        Update::Notify { asleep: false },
        WORD,
    ),
    (
        "telling an exporter that sleeps",
        Update::Notify { asleep: true },
        WORD,
    ),
];

/// Steps of progress.
pub(super) const STEPS: usize = INITIATION.len() + WORDS.len() + OPERATIONS.len();

/// What was measured.
pub(super) struct Modes {
    initiation: Vec<Track>,
    words: Vec<Track>,
    operations: Vec<Track>,
}

impl Modes {
    pub(super) fn measure(effort: Effort, context: &Context<'_>) -> Result<Self> {
        let tracks = |rows: Vec<(&'static str, Case)>| {
            let mut lanes = Lanes::new();
            for (name, case) in &rows {
                lanes.start(name, case, context)?;
            }
            lanes.measure(effort, context)
        };
        let initiation =
            INITIATION.map(|(name, update, bytes, _)| (name, operation(update, bytes)));
        let words = WORDS.map(|(name, way, mode)| {
            let case = Case {
                mode,
                ..Case::new(System::Word(way), WORD)
            };
            (name, case)
        });
        let operations = OPERATIONS.map(|(name, update, bytes)| (name, operation(update, bytes)));
        Ok(Self {
            initiation: tracks(initiation.into())?,
            words: tracks(words.into())?,
            operations: tracks(operations.into())?,
        })
    }

    pub(super) fn tables(&self) -> [Table; 2] {
        [self.initiation(), self.modes()]
    }

    fn initiation(&self) -> Table {
        let columns = [("time", Unit::Seconds)];
        let title = "What it takes to begin an update";
        let mut table = Table::new("update-initiation", title, "what", &columns);
        for (name, .., paper) in INITIATION {
            let track = Track::find(&self.initiation, name);
            let cell = track.map_or_else(Cell::default, |track| track.timed().cell());
            let label = if [BARE, COPY].contains(&name) {
                format!("\u{2003}{name}")
            } else {
                name.to_owned()
            };
            table.row(label, [cell.beside(paper)]);
        }
        table.note(
            "Of a word, unless a row says otherwise. Where an update of 1 MiB is begun in the table above, a \
             computation and waiting updates take turns with it, and its thread may sleep meanwhile; here \
             updates are begun one after the other, and that takes less. The paper's: a system call in SHRIMP-I; in SHRIMP-II two \
             references to the interface, and some instructions that look for page boundaries; one \
             store.",
        )
    }

    fn modes(&self) -> Table {
        let columns = [("time", Unit::Seconds), ("to an alias", Unit::Times)];
        let title = "Updates through a log, of tracked pages, and with notifications";
        let mut table = Table::new("update-modes", title, "what", &columns);
        let mut rows = |tracks: &[Track]| {
            // The first row of each kind is the alias.
            let alias = tracks.first();
            for (at, track) in tracks.iter().enumerate() {
                let to = alias.and_then(|alias| Beside::ratio(&track.times, &alias.times));
                let to = to.filter(|_| at > 0);
                table.row(track.name.clone(), [track.timed().cell(), figure(to)]);
            }
        };
        rows(&self.words);
        rows(&self.operations);
        table.note(
            "Rows of a word are one way, the exporter looking or asleep; to an alias: to the same by one. \
             The others are what the sender spends, without the exporter; to an alias: to a consecutive \
             store. The paper has neither of these modes nor figures of notifications: its automatic \
             update is snooped off the bus, which an alias comes nearest to.",
        )
    }
}
