//! Table V compares what other systems take for a message, then and now.

use portolan_instruments::sysv;
use portolan_measure::case::{Case, Pattern, Payload, Protection as Protected, System};

use crate::claims::{self, table};
use crate::error::Result;
use crate::experiment::{Context, DASH, Experiment, Need, Source};
use crate::lanes::{ASLEEP, Beside, Effort, Lanes, POLLING, Track, Way};
use crate::outcome::{Axis, Cell, Origin, Outcome, Plot, Table, Verdict};
use crate::unit::Unit;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "table-5",
    title: "Other systems, then and now",
    source: Source {
        paper: DASH,
        section: "Table V",
    },
    hypothesis: "A null message is as fast as in systems that copy, because whatever remapping \
        costs is paid by the page. With 64 KiB the copying systems pay for two copies and their \
        buffers, and remapping does not.",
    method: "Two processes send a message back and forth; the time is half of a round, as in the \
        paper. A null message has no bytes, or 8 where a system has no empty message. \"Used\" \
        is written in full by the sender and read in full by the receiver; otherwise nobody \
        looks at the bytes. Every row of a column in turn, slice by slice; medians. All systems \
        sleep on one CPU, each message a context switch as on the paper's machines, and then \
        again poll on two. Pipes and Unix sockets have buffers of 1 MiB for messages of 64 KiB. (A \
        run that is killed leaves its System V queues behind; the next one removes them.)",
    needs: &[],
    run,
};

/// System, machine, seconds for a small and for a large message, and what these are.
const PAPER: [(&str, f64, f64); 6] = [
    ("DASH, Sun 3/50 (null, 8 KB; remaps)", 0.96e-3, 1.08e-3),
    (
        "Accent, PERQ (send only, large: 1 KB; remaps)",
        1.15e-3,
        10e-3,
    ),
    ("Mach, Sun 3/160 (null, 8 KB; remaps)", 0.9e-3, 7e-3),
    (
        "Amoeba, 16.7 MHz 68020 (RPC, 8 KB request; copies)",
        0.8e-3,
        2.5e-3,
    ),
    (
        "Quicksilver, IBM RT/PC (RPC, 1 KB request; copies)",
        0.66e-3,
        1.16e-3,
    ),
    (
        "V, 10 MHz 68000 (RPC, 1 KB request; copies)",
        0.94e-3,
        2.12e-3,
    ),
];

/// A row: its name, whether it copies, and what it needs.
struct Row {
    name: &'static str,
    system: System,
    protection: Protected,
    copies: bool,
    needs: Option<Need>,
    /// Bytes of the smallest message.
    least: u64,
    /// The largest message, and what says so.
    most: Option<(u64, &'static str)>,
}

const GUARDED: &str = "portolan, guarded";
const TRUSTED: &str = "portolan, trusted";
const NULL: &str = "null";
const PAGE: &str = "8 KiB";
const LARGE: &str = "64 KiB";
const LARGE_USED: &str = "64 KiB, used";

/// Name, bytes, and whether they are written and read.
const COLUMNS: [(&str, u64, bool); 5] = [
    (NULL, 0, false),
    (PAGE, 8 << 10, false),
    ("8 KiB, used", 8 << 10, true),
    (LARGE, 64 << 10, false),
    (LARGE_USED, 64 << 10, true),
];

fn rows() -> Vec<Row> {
    let row = |name, system| Row {
        name,
        system,
        protection: Protected::None,
        copies: true,
        needs: None,
        least: 0,
        most: None,
    };
    // What an unprivileged process may ask for, unless the system was set otherwise.
    let posix = limit("/proc/sys/fs/mqueue/msgsize_max");
    let system_v = sysv::Queue::longest().map_or(8 << 10, |longest| longest as u64);
    vec![
        Row {
            protection: Protected::Guarded,
            copies: false,
            needs: Some(Need::Guarded),
            ..row(GUARDED, System::Portolan)
        },
        Row {
            protection: Protected::Trusted,
            copies: false,
            ..row(TRUSTED, System::Portolan)
        },
        Row {
            least: 8,
            ..row("pipe", System::Pipe)
        },
        Row {
            least: 8,
            ..row("unix stream", System::UnixStream)
        },
        row("unix seqpacket", System::UnixSeqpacket),
        Row {
            least: 8,
            ..row("tcp loopback", System::Tcp)
        },
        Row {
            least: 8,
            most: Some((posix, "/proc/sys/fs/mqueue/msgsize_max")),
            ..row("posix queue", System::MessageQueue)
        },
        Row {
            most: Some((system_v, "/proc/sys/kernel/msgmax")),
            ..row("system v queue", System::SystemV)
        },
        #[cfg(feature = "peers")]
        Row {
            copies: false,
            needs: Some(Need::Peers),
            least: 8,
            ..row("iceoryx2", System::Iceoryx)
        },
    ]
}

/// A limit that the system tells in a file, or what it is by default.
fn limit(path: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or(8 << 10)
}

fn run(context: &Context<'_>) -> Result<Outcome> {
    let effort = Effort::beside_others(context);
    let mut outcome = Outcome::default();
    let rows = usable(rows(), context, &mut outcome);
    let mut ways = vec![ASLEEP];
    match context.lacks(Need::Cpus(2)) {
        None => ways.push(POLLING),
        Some(why) => outcome.leave_out(POLLING.1, why),
    }
    context
        .progress
        .begin(ways.len() * COLUMNS.len() * rows.len());
    outcome.tables.push(paper());
    for way in ways {
        let mut columns = Vec::new();
        for (column, bytes, used) in COLUMNS {
            let lanes = start(&rows, (column, bytes, used), way, context, &mut outcome)?;
            columns.push((column, lanes.measure(effort, context)?));
        }
        outcome.tables.push(today(&rows, &columns, way));
        if way.0 == ASLEEP.0 {
            outcome.plots.push(plot(&rows, &columns));
            outcome.verdicts.extend(null(&rows, &columns));
            outcome.verdicts.push(large(&rows, &columns));
        }
    }
    Ok(outcome)
}

/// Those whose needs are met; of the others it is said why not.
fn usable(rows: Vec<Row>, context: &Context<'_>, outcome: &mut Outcome) -> Vec<Row> {
    if !cfg!(feature = "peers")
        && let Some(why) = context.lacks(Need::Peers)
    {
        outcome.leave_out("iceoryx2", why);
    }
    let met = |row: &Row| {
        let lacking = row.needs.and_then(|need| context.lacks(need));
        if let Some(why) = &lacking {
            outcome.leave_out(row.name, why.as_str());
        }
        lacking.is_none()
    };
    rows.into_iter().filter(met).collect()
}

/// The rows of one column. One that the system refuses is left out, with the reason.
fn start(
    rows: &[Row],
    (column, bytes, used): (&str, u64, bool),
    (id, _, mode, placement): Way,
    context: &Context<'_>,
    outcome: &mut Outcome,
) -> Result<Lanes> {
    let mut lanes = Lanes::new();
    for row in rows {
        if let Some((most, path)) = row.most.filter(|(most, _)| *most < bytes) {
            // Once for all ways and uses.
            if id == ASLEEP.0 && !used {
                let why = format!(
                    "the longest message that it takes has {} ({path})",
                    Unit::Bytes.show(most as f64)
                );
                outcome.leave_out(format!("{}, {column}", row.name), why);
            }
            continue;
        }
        let case = Case {
            mode,
            protection: row.protection,
            payload: if used {
                Payload::Touched
            } else {
                Payload::Untouched
            },
            pattern: Pattern::RoundTrip { one_way: true },
            placement,
            ..Case::new(row.system, bytes.max(row.least))
        };
        match lanes.start(row.name, &case, context) {
            Ok(()) => {}
            Err(error) if row.system == System::Portolan => return Err(error),
            Err(error) => {
                outcome.leave_out(format!("{}, {column}, {id}", row.name), error.to_string());
            }
        }
    }
    Ok(lanes)
}

type Columns = [(&'static str, Vec<Track>)];

/// The times of `row` in `column`.
fn times<'a>(columns: &'a Columns, column: &str, row: &str) -> Option<&'a Track> {
    let (_, tracks) = columns.iter().find(|(name, _)| *name == column)?;
    Track::find(tracks, row)
}

fn paper() -> Table {
    let columns = [("small", Unit::Seconds), ("large", Unit::Seconds)];
    let mut table = Table::new(
        "table-5",
        "What the paper compares with",
        "system",
        &columns,
    );
    for (name, small, large) in PAPER {
        table.row(name, [Cell::paper(small), Cell::paper(large)]);
    }
    table.note(
        "As the paper says, its numbers should not be compared directly: the systems ran on \
         different hardware, and were measured in different ways.",
    )
}

fn today(rows: &[Row], columns: &Columns, (id, title, ..): Way) -> Table {
    let heading: Vec<(&str, Unit)> = columns
        .iter()
        .map(|&(name, _)| (name, Unit::Seconds))
        .collect();
    let mut table = Table::new(
        &format!("table-5-{id}"),
        &format!("One message, {title}"),
        "system",
        &heading,
    )
    .note(
        "Each column was measured after the other, all rows of it in turn: rows of a column compare, and \
         columns do not. That a message which is used can seem no dearer than one that is not is the \
         machine's pace, which changed between.",
    );
    for row in rows {
        let cell = |&(column, _): &(&'static str, Vec<Track>)| {
            let cell = times(columns, column, row.name).map(|track| track.timed().cell());
            let cell = cell.unwrap_or_default();
            match (row.name, column, id) {
                (GUARDED, NULL, "asleep") => cell.beside(PAPER[0].1),
                (GUARDED, PAGE, "asleep") => cell.beside(PAPER[0].2),
                _ => cell,
            }
        };
        table.row(row.name, columns.iter().map(cell).collect::<Vec<Cell>>());
    }
    table
}

/// Time by size, of what is used.
fn plot(rows: &[Row], columns: &Columns) -> Plot {
    let mut plot = Plot::new(
        "table-5",
        "One message that is written and read, asleep on one CPU",
        Axis::log("size", Unit::Bytes),
        Axis::log("time", Unit::Seconds),
    );
    for (colour, row) in (0..).zip(rows) {
        let used = COLUMNS
            .iter()
            .filter(|&&(_, bytes, used)| used || bytes == 0);
        let points = used.filter_map(|&(column, bytes, _)| {
            let time = times(columns, column, row.name)?.timed().median();
            // Null has no place on a logarithmic axis; eight bytes are as good as none.
            Some((bytes.max(8) as f64, time))
        });
        plot.series(row.name, Origin::Here, colour, points.collect::<Vec<_>>());
    }
    plot
}

/// The guarded row against the fastest of those that copy.
struct Fastest<'a> {
    name: &'a str,
    guarded: Cell,
    fastest: Cell,
    ratio: Option<Beside>,
}

impl<'a> Fastest<'a> {
    fn of(rows: &'a [Row], columns: &Columns, column: &str) -> Self {
        let track = |name| times(columns, column, name);
        let median = |row: &Row| track(row.name).map(|track| track.timed().median());
        let copying = rows.iter().filter(|row| row.copies);
        let fastest = copying
            .filter_map(|row| Some((row.name, median(row)?)))
            .min_by(|one, other| one.1.total_cmp(&other.1));
        let name = fastest.map_or("", |(name, _)| name);
        let cell = |name| track(name).map_or_else(Cell::default, |track| track.timed().cell());
        let ratio = track(GUARDED).zip(track(name));
        Self {
            name,
            guarded: cell(GUARDED),
            fastest: cell(name),
            ratio: ratio
                .and_then(|(guarded, fastest)| Beside::ratio(&guarded.times, &fastest.times)),
        }
    }

    fn sentence(&self) -> String {
        let show = |cell: &Cell| Unit::Seconds.show(cell.here.unwrap_or(f64::NAN));
        match self.ratio {
            None => "was not measured in a guarded domain here".into(),
            Some(ratio) => format!(
                "takes {} in a guarded domain, and {} by the fastest system that copies ({}): {}",
                show(&self.guarded),
                show(&self.fastest),
                self.name,
                ratio.show()
            ),
        }
    }

    fn cell(&self) -> Cell {
        self.ratio.map_or_else(Cell::default, Beside::cell)
    }
}

fn null(rows: &[Row], columns: &Columns) -> [Verdict; 2] {
    let null = Fastest::of(rows, columns, NULL);
    let time = times(columns, NULL, GUARDED).and_then(|track| claims::timed(&track.timed()));
    let below = table::NULL_BELOW.verdict(&[time]).because(format!(
        "In a guarded domain, asleep on one CPU, a null message takes {}. (The bound is that of a \
         machine of 1989: what is said of the mechanism is the claim below.)",
        claims::shown(time, Unit::Seconds)
    ));
    let comparable = table::NULL_COMPARABLE
        .verdict(&[claims::paired(null.ratio)])
        .because(format!("A null message {}.", null.sentence()))
        .figure(GUARDED, Unit::Seconds, null.guarded.beside(PAPER[0].1))
        .figure("fastest that copies", Unit::Seconds, null.fastest);
    [below, comparable]
}

/// What is passed on unread is shown, and decides nothing: somebody looks at it in the end.
fn large(rows: &[Row], columns: &Columns) -> Verdict {
    let of = |column| Fastest::of(rows, columns, column);
    let (used, unread, page) = (of(LARGE_USED), of(LARGE), of(PAGE));
    let trusted = times(columns, LARGE_USED, TRUSTED);
    let copying = times(columns, LARGE_USED, used.name).zip(times(columns, LARGE_USED, GUARDED));
    let copying = copying.and_then(|(copy, moved)| Beside::ratio(&copy.times, &moved.times));
    let paragraph = format!(
        "A message of 64 KiB that is written and read in full {}. (In a trusted domain, which \
         protects nobody, {}.) One that nobody looks at {}, one of 8 KiB {}. Below 2 MiB access is \
         ended and begun page by page.",
        used.sentence(),
        trusted.map_or_else(
            || "it was not measured".into(),
            |track| Unit::Seconds.show(track.timed().median())
        ),
        unread.sentence(),
        page.sentence(),
    );
    table::FASTER_THAN_COPYING
        .verdict_of("64 KiB, by the fastest system", &[claims::paired(copying)])
        .because(paragraph)
        .figure("64 KiB used, guarded", Unit::Seconds, used.guarded)
        .figure(
            "64 KiB used, fastest that copies",
            Unit::Seconds,
            used.fastest,
        )
        .figure(
            "64 KiB unread, guarded to fastest",
            Unit::Times,
            unread.cell(),
        )
        .figure("8 KiB unread, guarded to fastest", Unit::Times, page.cell())
}
