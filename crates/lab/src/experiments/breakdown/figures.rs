//! Makes the tables and plots of the breakdown.

use portolan::probes::Letter;

use super::load::{Load, PAGE};
use super::pair::Kind;
use super::run::{FEWEST, Findings, MOST, USES};
use super::statistics::{Figures, Part, Segment, Spread, Time};
use super::tree::{self, GROUPS, MOVEMENT, TREE};
use super::verdicts;
use crate::claims::Estimate;
use crate::outcome::{Axis, Cell, Origin, Outcome, Plot, Table};
use crate::unit::Unit;

const MICRO: f64 = 1e-6;

/// The paper's letters, in microseconds.
pub(super) const LETTERS: [(Letter, &str, f64); 9] = [
    (Letter::A, "check a descriptor", 19.0),
    (Letter::B, "look up the owner word", 32.0),
    (Letter::C, "close the pages", 26.0),
    (Letter::D, "write owner words, and the rest", 23.0),
    (Letter::E, "ensure that the sender's access has ended", 16.0),
    (Letter::F, "fault, up to the handler", 24.0),
    (Letter::G, "look up the owner word in the handler", 55.0),
    (Letter::H, "open the pages", 32.0),
    (Letter::I, "return from the fault", 23.0),
];

/// The three sums: their letters, what the paper prints for them, and what it measured.
pub(super) const SUMS: [(&str, &[Letter], f64, f64); 3] = [
    (
        "A+B+D+E",
        &[Letter::A, Letter::B, Letter::D, Letter::E],
        90.0,
        87.0,
    ),
    (
        "A..E+G+H",
        &[
            Letter::A,
            Letter::B,
            Letter::C,
            Letter::D,
            Letter::E,
            Letter::G,
            Letter::H,
        ],
        205.0,
        208.0,
    ),
    ("A..I", &Letter::ALL, 250.0, 254.0),
];

/// The paper's shares of data movement at 8, 32 and 64 KB.
pub(super) const DATA_SHARES: [(usize, f64); 3] =
    [(PAGE, 0.435), (4 * PAGE, 0.655), (8 * PAGE, 0.771)];

/// The runs that have segments, by name.
pub(super) fn runs(findings: &Findings) -> Vec<(&'static str, &Figures)> {
    [
        ("two processes, guarded, asleep", Some(&findings.asleep)),
        ("two processes, guarded, awake", findings.polling.as_ref()),
        (
            "two processes, trusted, awake",
            findings.trusted_polling.as_ref(),
        ),
        ("one process, guarded, on demand", Some(&findings.guarded)),
        ("one process, guarded, at once", Some(&findings.opened)),
        ("one process, trusted", Some(&findings.trusted)),
    ]
    .into_iter()
    .filter_map(|(name, figures)| Some((name, figures?)))
    .collect()
}

pub(super) fn fill(findings: &Findings, outcome: &mut Outcome) {
    outcome.tables.push(whole(findings));
    outcome.tables.push(figure_5(findings));
    outcome.tables.push(figure_6(findings));
    outcome.tables.push(figure_7(findings));
    outcome.tables.push(letters(findings));
    outcome.tables.push(sums(findings));
    outcome.tables.push(data_movement(findings));
    for (at, (name, figures)) in runs(findings).into_iter().enumerate() {
        outcome.tables.push(segments(at, name, figures, findings));
    }
    outcome.plots.push(variation_plot(findings));
    outcome.plots.push(function_plot(findings));
    outcome.verdicts.extend(verdicts::all(findings));
}

/// The sum of the segments against the whole.
fn whole(findings: &Findings) -> Table {
    let columns = [
        ("sum", Unit::Seconds),
        ("first to last probe", Unit::Seconds),
        ("end to end", Unit::Seconds),
        ("sum to end", Unit::Share),
        ("sum, trimmed", Unit::Seconds),
        ("end to end, trimmed", Unit::Seconds),
        ("sum to end, trimmed", Unit::Share),
        ("ways", Unit::Count),
        ("rounds a repetition, fewest", Unit::Count),
        ("rounds, most", Unit::Count),
        ("left aside", Unit::Share),
    ];
    let mut table = Table::new("closure", "The sum of the segments", "run", &columns);
    for (name, figures) in runs(findings) {
        table.row(
            name,
            [
                Cell::here(figures.total_raw()),
                figures.whole.raw.cell(),
                figures.plain.raw.cell(),
                Cell::here(figures.total_raw() / figures.plain.raw.mean),
                Cell::here(figures.total()),
                figures.plain.trimmed.cell(),
                Cell::here(figures.total() / figures.plain.trimmed.mean),
                Cell::here(figures.ways as f64),
                Cell::here(figures.rounds[0]),
                Cell::here(figures.rounds[1]),
                Cell::here(figures.odd),
            ],
        );
    }
    table.note(format!(
        "The ways of all {} repetitions; a round of two processes is two ways, one of one process one. From first to last probe is one subtraction, less the \
         probes' price: by construction the sum. End to end is one way of a message with a probe \
         at either end only. A probe costs {}, which is taken off; the clock counts in steps of \
         {}. Left aside: ways on which the receiver was not asleep yet.{}",
        findings.repetitions,
        Unit::Seconds.show(findings.price.mean),
        Unit::Seconds.show(findings.step),
        if findings.on_one_processor() {
            " Both share one processor here: who is woken runs at once, and answers one that has \
             stood still and is not asleep."
        } else {
            ""
        }
    ))
}

/// Segments with a coefficient of variation below this are steady.
pub(super) const STEADY: f64 = 0.05;

/// How many segments are steady, of how many, and their share of the time.
pub(super) fn steady(figures: &Figures, pick: fn(&Segment) -> Spread) -> (usize, usize, f64) {
    let steady = |segment: &&Segment| {
        let spread = pick(segment);
        spread.mean > 0.0 && spread.variation() < STEADY
    };
    let found: Vec<&Segment> = figures.segments.iter().filter(steady).collect();
    let total: f64 = figures.segments.iter().map(|s| pick(s).mean).sum();
    let time: f64 = found.iter().map(|s| pick(s).mean).sum();
    (found.len(), figures.segments.len(), time / total)
}

fn figure_5(findings: &Findings) -> Table {
    let columns = [
        ("segments", Unit::Count),
        ("below 5 %", Unit::Count),
        ("share of time", Unit::Share),
        ("below 5 %, trimmed", Unit::Count),
        ("share, trimmed", Unit::Share),
    ];
    let mut table = Table::new(
        "figure-5",
        "Figure 5: coefficients of variation",
        "run",
        &columns,
    );
    for (at, (name, figures)) in runs(findings).into_iter().enumerate() {
        let (below, all, share) = steady(figures, |s| s.time.raw);
        let (trimmed, _, trimmed_share) = steady(figures, |s| s.time.trimmed);
        // The paper's run is the first.
        let paper = |value: f64| (at == 0).then_some(value);
        table.row(
            name,
            [
                Cell::here(all as f64).beside(paper(69.0)),
                Cell::here(below as f64).beside(paper(59.0)),
                Cell::here(share).beside(paper(0.97)),
                Cell::here(trimmed as f64),
                Cell::here(trimmed_share),
            ],
        );
    }
    table.note(
        "A segment's deviation over its mean, of the repetitions' means. Trimmed: of means \
         without the slowest twentieth of the ways.",
    )
}

fn figure_6(findings: &Findings) -> Table {
    let columns = [
        ("mean", Unit::Seconds),
        ("trimmed", Unit::Seconds),
        ("deviation", Unit::Seconds),
        ("variation", Unit::Share),
    ];
    let mut table = Table::new(
        "figure-6",
        "Figure 6: breakdown of the time of an 8 KiB message",
        "part",
        &columns,
    );
    for (at, line) in TREE.iter().enumerate() {
        let parts: Vec<Part> = tree::parts(at).collect();
        let found: Vec<&Segment> = findings
            .asleep
            .segments
            .iter()
            .filter(|segment| parts.contains(&segment.part))
            .collect();
        let paper = line.paper.map(|paper| paper * MICRO);
        // Two spaces a level, which a page shows as they are.
        let label = format!("{}{}", "\u{2003}".repeat(line.depth), line.name);
        let Some(spread) = together(&found, |s| s.time.raw) else {
            let nothing = Cell::default().beside(paper);
            table.row(label, [nothing]);
            continue;
        };
        let trimmed = together(&found, |s| s.time.trimmed).map_or(f64::NAN, |s| s.mean);
        table.row(
            label,
            [
                Cell::here(spread.mean).beside(paper),
                Cell::here(trimmed),
                Cell::here(spread.deviation),
                Cell::here(spread.variation()),
            ],
        );
    }
    let before = if findings.on_one_processor() {
        "so has this run, but only its ways to a receiver that is asleep count"
    } else {
        "ours does that on another one, while the sender is at work, so it is not in here: on one \
         processor, who is woken runs at once and answers one that is not asleep, and half of the ways \
         would have no wake"
    };
    table.note(format!(
        "Two processes in a guarded domain, pages opened by the touch, the receiver asleep. \
         The paper's system entered a kernel, we do not: those lines are empty. It had one \
         processor, so its total holds what its receiver did before it was blocked; {before}. A \
         deviation of several segments is that of independent ones.",
    ))
}

/// Several segments as one: means add, and so do variances.
fn together(segments: &[&Segment], pick: fn(&Segment) -> Spread) -> Option<Spread> {
    let spreads = || segments.iter().map(|segment| pick(segment));
    (!segments.is_empty()).then(|| Spread {
        mean: spreads().map(|s| s.mean).sum(),
        deviation: spreads()
            .map(|s| s.deviation * s.deviation)
            .sum::<f64>()
            .sqrt(),
        least: spreads().map(|s| s.least).sum(),
        most: spreads().map(|s| s.most).sum(),
    })
}

fn figure_7(findings: &Findings) -> Table {
    let columns: Vec<(&str, Unit)> = runs(findings)
        .into_iter()
        .map(|(name, _)| (name, Unit::Share))
        .collect();
    let mut table = Table::new(
        "figure-7",
        "Figure 7: the time by function",
        "function",
        &columns,
    );
    let shares = |which: &dyn Fn(Part) -> bool, paper: f64| -> Vec<Cell> {
        let cells = runs(findings)
            .into_iter()
            .enumerate()
            .map(|(at, (_, figures))| {
                let cell = Cell::here(figures.sum(which) / figures.total());
                // The paper's run is the first.
                cell.beside((at == 0).then_some(paper))
            });
        cells.collect()
    };
    for kind in tree::Kind::ALL {
        table.row(
            kind.name(),
            shares(&|part| tree::kind(part) == kind, kind.paper()),
        );
        for (group, of, name, paper) in GROUPS {
            if of != kind || of == tree::Kind::Misc {
                continue;
            }
            let half = MOVEMENT.iter().find(|(_, all, _)| all.contains(&group));
            if let Some((name, all, paper)) = half.filter(|(_, all, _)| all[0] == group) {
                table.row(
                    format!("\u{2003}{name}"),
                    shares(&|part| all.contains(&tree::group(part)), *paper),
                );
            }
            let depth = if half.is_some() { 2 } else { 1 };
            table.row(
                format!("{}{name}", "\u{2003}".repeat(depth)),
                shares(&|part| tree::group(part) == group, paper),
            );
        }
    }
    table
}

fn letters(findings: &Findings) -> Table {
    let columns = [
        ("two processes, raw", Unit::Seconds),
        ("two processes", Unit::Seconds),
        ("one process", Unit::Seconds),
        ("a further extent", Unit::Seconds),
    ];
    let mut table = Table::new(
        "letters",
        "What moving an extent of 8 KiB is made of",
        "letter",
        &columns,
    );
    for (letter, name, paper) in LETTERS {
        let raw = findings
            .asleep
            .segments
            .iter()
            .filter(|s| s.part.letter() == Some(letter))
            .map(|s| s.time.raw.mean);
        table.row(
            format!("{letter:?} {name}"),
            [
                Cell::here(raw.sum()).beside(paper * MICRO),
                Cell::here(findings.asleep.letter(letter)).beside(paper * MICRO),
                Cell::here(findings.guarded.letter(letter)),
                Cell::here(further(findings, &[letter])),
            ],
        );
    }
    table.note(
        "Guarded, on demand, accessed; trimmed but for the first column. A and D have a part on \
         either side. C returns when no processor can reach the pages, so what E had to ensure is \
         done with it; E is what is left, waiting for fault handlers that are at work. F holds \
         the exception, the kernel's way to the signal and our way to the handler of this domain; \
         I the way back and the touch. A further extent: half the difference between a message \
         of three and one of one.",
    )
}

/// The letters' part in what one more extent adds to a message.
pub(super) fn further(findings: &Findings, letters: &[Letter]) -> f64 {
    let more = findings.guarded_most.letters(letters) - findings.guarded.letters(letters);
    more / (MOST - FEWEST) as f64
}

/// The deviation of the same.
pub(super) fn further_deviation(findings: &Findings, letters: &[Letter]) -> f64 {
    let [most, fewest] =
        [&findings.guarded_most, &findings.guarded].map(|f| f.letters_deviation(letters));
    most.hypot(fewest) / (MOST - FEWEST) as f64
}

/// The three sums, against what a further extent costs end to end.
pub(super) struct Sum {
    pub(super) name: &'static str,
    /// Of the segments of a message with one extent, as the paper has it.
    pub(super) first: f64,
    /// Of what a further one adds to the segments.
    pub(super) further: f64,
    pub(super) measured: Spread,
    pub(super) paper: (f64, f64),
}

pub(super) fn three_sums(findings: &Findings) -> Vec<Sum> {
    let sums = SUMS.iter().zip(&findings.increments);
    sums.map(|(&(name, letters, printed, measured), slope)| {
        // What was opened by receive is touched without a fault: the segment that ends where
        // I does.
        let touch = match letters {
            [.., Letter::G, Letter::H] => findings.opened.letter(Letter::I),
            _ => 0.0,
        };
        Sum {
            name,
            first: findings.guarded.letters(letters) + touch,
            further: further(findings, letters) + touch,
            measured: *slope,
            paper: (printed * MICRO, measured * MICRO),
        }
    })
    .collect()
}

fn sums(findings: &Findings) -> Table {
    let columns = [
        ("sum, first extent", Unit::Seconds),
        ("sum, further extent", Unit::Seconds),
        ("measured", Unit::Seconds),
        ("first to measured", Unit::Share),
        ("further to measured", Unit::Share),
    ];
    let mut table = Table::new(
        "sums",
        "Cross-check: what a further extent of 8 KiB costs",
        "letters",
        &columns,
    );
    for (sum, (used, ..)) in three_sums(findings).into_iter().zip(USES) {
        let (printed, measured) = sum.paper;
        table.row(
            format!("{} ({used})", sum.name),
            [
                Cell::here(sum.first).beside(printed),
                Cell::here(sum.further),
                sum.measured.cell().beside(measured),
                Cell::here(sum.first / sum.measured.mean).beside(printed / measured),
                Cell::here(sum.further / sum.measured.mean),
            ],
        );
    }
    table.note(
        "Trimmed sums of segments of a round of one process; first: of a message with one extent, \
         as in the paper; further: half of what two more add to the same segments. Measured: half \
         the difference between messages of three extents and of one, end to end and without \
         probes. No extent is another's neighbour. Our second sum also has the touch of \
         an open page in it; the paper's adds up to 203.",
    )
}

/// Data movement's share of a message of `bytes`, in one extent or in the paper's pages.
pub(super) fn data_share(findings: &Findings, kind: Kind, bytes: usize, one: bool) -> Option<f64> {
    let figures = loaded(findings, kind, bytes, one)?;
    Some(data(figures) / figures.total())
}

/// The same of all that both sides do for a message, as in the paper's whole: with what they do beside
/// the way. None where both share one processor, and waiting for it is in that.
pub(super) fn data_share_of_all(findings: &Findings, kind: Kind, bytes: usize) -> Option<Estimate> {
    if findings.on_one_processor() {
        return None;
    }
    loaded(findings, kind, bytes, false)?.share_of_all(is_data)
}

fn data(figures: &Figures) -> f64 {
    figures.sum(is_data)
}

fn is_data(part: Part) -> bool {
    tree::kind(part) == tree::Kind::Data
}

/// The run of a message of `bytes`.
fn loaded(findings: &Findings, kind: Kind, bytes: usize, one: bool) -> Option<&Figures> {
    Some(match (bytes, kind) {
        (PAGE, Kind::GuardedAsleep) => &findings.asleep,
        (PAGE, _) => findings.polling.as_ref()?,
        _ => {
            let of = |load: &Load| load.total() == bytes && (load.extents == 1) == one;
            let mut found = findings.larger.iter();
            &found.find(|(k, load, _)| *k == kind && of(load))?.2
        }
    })
}

fn data_movement(findings: &Findings) -> Table {
    let all = [
        ("asleep, extents of 8 KiB", Kind::GuardedAsleep, false),
        ("asleep, one extent", Kind::GuardedAsleep, true),
        ("awake, extents of 8 KiB", Kind::GuardedAwake, false),
        ("awake, one extent", Kind::GuardedAwake, true),
    ];
    // None is awake where there is one processor.
    let measured = all.into_iter().filter(|(_, kind, one)| {
        DATA_SHARES
            .iter()
            .any(|&(bytes, _)| data_share(findings, *kind, bytes, *one).is_some())
    });
    let ways: Vec<_> = measured.collect();
    let columns: Vec<(&str, Unit)> = ways.iter().map(|(name, ..)| (*name, Unit::Share)).collect();
    let mut table = Table::new(
        "data-movement",
        "The share of data movement",
        "message",
        &columns,
    );
    for (bytes, paper) in DATA_SHARES {
        let share = |(at, &(_, kind, one)): (usize, &(&str, Kind, bool))| {
            let share = data_share(findings, kind, bytes, one);
            let cell = share.map_or_else(Cell::default, Cell::here);
            // The paper's way is the first.
            cell.beside((at == 0).then_some(paper))
        };
        let cells: Vec<Cell> = ways.iter().enumerate().map(share).collect();
        table.row(Unit::Bytes.show(bytes as f64), cells);
    }
    table.note(
        "Two processes, guarded, on demand, every page accessed. Asleep, the other process is \
         woken through the kernel; awake, it polls. Of the way alone: what both do beside it, which the \
         paper's one processor had in its whole, is not in here; the share with it stands at the verdict.",
    )
}

/// Every segment of one run, as it was measured.
fn segments(at: usize, name: &str, figures: &Figures, findings: &Findings) -> Table {
    let mut columns = vec![
        ("mean", Unit::Seconds),
        ("trimmed", Unit::Seconds),
        ("deviation", Unit::Seconds),
        ("variation", Unit::Share),
        ("share, trimmed", Unit::Share),
    ];
    let alone = std::ptr::eq(figures, &raw const findings.trusted);
    if alone {
        columns.push(("as a difference", Unit::Seconds));
    }
    let id = format!("segments-{}", at + 1);
    let mut table = Table::new(&id, &format!("Segments: {name}"), "segment", &columns);
    let total = figures.total();
    let row = |segment: &Segment, on_way: bool| {
        let Segment { part, time } = segment;
        let Time { raw, trimmed } = time;
        let mut cells = vec![
            raw.cell(),
            trimmed.cell(),
            Cell::here(raw.deviation),
            Cell::here(raw.variation()),
            if on_way {
                Cell::here(trimmed.mean / total)
            } else {
                Cell::default()
            },
        ];
        if alone {
            let difference = findings.differences.iter().find(|(p, _)| p == part);
            cells.push(difference.map_or_else(Cell::default, |(_, spread)| spread.cell()));
        }
        cells
    };
    for segment in &figures.segments {
        table.row(tree::name(segment.part), row(segment, true));
    }
    for segment in &figures.beside {
        table.row(
            format!("{}, beside the way", tree::name(segment.part)),
            row(segment, false),
        );
    }
    let below: Vec<String> = figures
        .segments
        .iter()
        .filter(|segment| !segment.time.trimmed.is_resolved())
        .map(|segment| tree::name(segment.part))
        .collect();
    let below = if below.is_empty() {
        "Every segment stands out from the noise.".to_owned()
    } else {
        format!("Not to be told from nothing: {}.", below.join(", "))
    };
    let difference = if alone {
        " As a difference: the same with one probe on at a time, from the round's beginning, less \
         the same up to the point before."
    } else {
        ""
    };
    let beside = if figures.beside.is_empty() {
        ""
    } else if findings.on_one_processor() {
        " Beside the way: what a process does after it has waked the other, or before it sleeps. Both \
         share one processor: the time in which the other runs instead is in it, so it can be longer \
         than the way."
    } else {
        " Beside the way: what a process does after it has waked the other, or before it sleeps, while \
         the other is at work on its own processor."
    };
    table.note(below + difference + beside)
}

/// Figure 5 as a line: with how much of the time the coefficient stays below what.
fn variation_plot(findings: &Findings) -> Plot {
    let mut plot = Plot::new(
        "figure-5",
        "Figure 5: coefficients of variation, steadiest segments first",
        Axis::linear("share of the time so far", Unit::Share),
        Axis::log("deviation / mean", Unit::Share),
    );
    plot.series(
        "paper: 59 of 69 segments",
        Origin::Paper,
        0,
        [(0.97, STEADY)],
    );
    for (colour, (name, figures)) in (0..).zip(runs(findings)) {
        let mut segments: Vec<(f64, f64)> = figures
            .segments
            .iter()
            // All rounds, as the verdict and the paper have it.
            .map(|s| (s.time.raw, s.time.raw.mean / figures.total_raw()))
            .filter(|(time, _)| time.mean > 0.0)
            .map(|(time, share)| (time.variation(), share))
            .collect();
        segments.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut share = 0.0;
        let points = segments.into_iter().map(|(variation, part)| {
            share += part;
            (share, variation)
        });
        plot.series(name, Origin::Here, colour, points.collect::<Vec<_>>());
    }
    plot
}

/// Figure 7 as bars: the paper's, then ours.
fn function_plot(findings: &Findings) -> Plot {
    let runs = runs(findings);
    let names = std::iter::once("the paper's").chain(runs.iter().map(|(name, _)| *name));
    let mut plot = Plot::new(
        "figure-7",
        "Figure 7: the time by function",
        Axis::linear("run", Unit::Count),
        Axis::linear("share of the time", Unit::Share),
    )
    .of_bars(names);
    for (colour, kind) in (0..).zip(tree::Kind::ALL) {
        let share =
            |figures: &Figures| figures.sum(|part| tree::kind(part) == kind) / figures.total();
        let shares = std::iter::once(kind.paper()).chain(runs.iter().map(|(_, f)| share(f)));
        let points = shares.enumerate().map(|(bar, share)| (bar as f64, share));
        plot.series(
            kind.name(),
            Origin::Here,
            colour,
            points.collect::<Vec<_>>(),
        );
    }
    plot
}

#[cfg(test)]
mod tests {
    use portolan::probes::Point;

    use super::super::statistics::Statistics;
    use super::super::trace::Passage;
    use super::super::trace::tests::trace;
    use super::*;

    #[test]
    fn the_share_of_all_counts_what_is_done_beside_the_way() {
        let figures = |repetitions: &[u64]| {
            let mut statistics = Statistics::new(2.0);
            for &later in repetitions {
                // Ten before the wake is due; then thirty beside the way, which the other does not wait for.
                let from = [
                    (Point::GuardClosed, 6),
                    (Point::WakeFound, 10),
                    (Point::WakeCalled, 40),
                ];
                let to = [(Point::SleepWoken, 15), (Point::AccessDone, 20 + later)];
                statistics.way(Passage::WAKE, 0, &trace(0, &from), &trace(0, &to));
                statistics.end_batch();
                statistics.close(0.0);
            }
            statistics.figures(1.0)
        };
        let one = figures(&[0]);
        let beside: f64 = one.beside.iter().map(|s| s.time.trimmed.mean).sum();
        assert_eq!((one.total(), beside), (20.0, 30.0));
        let share = one.share_of_all(is_data).unwrap();
        assert!(
            (share.middle() - data(&one) / 50.0).abs() < 1e-4,
            "{share:?}"
        );
        assert!(share.middle() > 0.0);
        // One repetition has no spread; what varies from one to the next is in the share's range.
        let range = |share: Estimate| share.cell().range.unwrap();
        let [lower, upper] = range(share);
        assert!(lower == upper, "{share:?}");
        let share = figures(&[0, 4]).share_of_all(is_data).unwrap();
        let [lower, upper] = range(share);
        assert!(
            lower < share.middle() && share.middle() < upper,
            "{share:?}"
        );
    }
}
