//! Passes a file request through several processes, which is the paper's reason to care.

mod links;
mod processes;

use std::time::Duration;

use crate::claims;
use crate::clock::Timed;
use crate::error::Result;
use crate::experiment::{Context, DASH, Experiment, Need, Source};
use crate::lanes::{Beside, Effort, Lanes, Track};
use crate::outcome::{Axis, Cell, Origin, Outcome, Plot, Table, Verdict};
use crate::unit::Unit;
use links::Hint;
pub(crate) use processes::{Brief, serve};
use processes::{Carrier, Chain};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "chain",
    title: "A file request through several processes",
    source: Source {
        paper: DASH,
        section: "Introduction; message-passing abstractions",
    },
    hypothesis: "Each process on the way copies a block twice more where blocks are copied, and \
        nothing where they change owner. So the cost of one more forwarder should not grow with \
        the block, unless it opens pages that it does not look at.",
    method: "A client asks a file server for one block after the other, through 0 to 4 \
        forwarders (the paper's transaction manager, and a network manager at each end). Client, \
        forwarders and server are processes of their own, asleep until asked, all on one \
        processor. The server reads the block from a file in memory, the forwarders look at \
        nothing, the client reads every word. Forwarders take requests and blocks up unopened, \
        and the client opens a block at once; and then everybody does, and nobody. Pipes and \
        sockets have buffers of 1 MiB; a forwarder has the whole block before it passes it on. \
        All chains of one size of block are measured in turn, slice by slice; medians. What a \
        further forwarder takes is the slope of a straight line from one forwarder to four, slice \
        by slice. The time without any is no point of that line. The kernel moves blocks of 2 MiB to huge \
        pages if it can: a chain of which it left a block on 4 KiB pages is started anew, up to five \
        times, and a row with a chain that has such a block still has no slope that is judged.",
    needs: &[Need::Memory(512 << 20)],
    run,
};

/// Forwarders between client and file server.
const LENGTHS: [u32; 5] = [0, 1, 2, 3, 4];
/// The first length on the line of which the slope is taken.
const FIRST: usize = 1;
const SLOPE: &str = "each further one";

const HINTED: &str = "guarded, opened by the client";
const EVERYBODY: &str = "guarded, opened by everybody";
const PIPES: &str = "pipes";
const SOCKETS: &str = "unix sockets";

const ROWS: [(&str, Carrier); 6] = [
    (HINTED, extents(true, Hint::Client)),
    (EVERYBODY, extents(true, Hint::Everybody)),
    ("guarded, opened by touch", extents(true, Hint::Nobody)),
    ("trusted", extents(false, Hint::Client)),
    (PIPES, Carrier::Pipes),
    (SOCKETS, Carrier::Sockets),
];

const fn extents(guarded: bool, hint: Hint) -> Carrier {
    Carrier::Extents { guarded, hint }
}

/// For a table's id, and its bytes.
const BLOCKS: [(&str, usize); 2] = [("64k", 64 << 10), ("2m", 2 << 20)];

fn run(context: &Context<'_>) -> Result<Outcome> {
    let effort = context.pick(
        Effort {
            slices: 2,
            // One round.
            slice: Duration::ZERO,
        },
        Effort {
            slices: 20,
            slice: Duration::from_millis(25),
        },
    );
    let mut outcome = Outcome::default();
    let unguarded = context.lacks(Need::Guarded);
    let rows: Vec<(&str, Carrier)> = ROWS
        .into_iter()
        .filter(|(_, carrier)| match carrier {
            Carrier::Extents { guarded: true, .. } => unguarded.is_none(),
            _ => true,
        })
        .collect();
    if let Some(why) = unguarded {
        outcome.leave_out("guarded domains", why);
    }
    context
        .progress
        .begin(BLOCKS.len() * LENGTHS.len() * rows.len());
    let mut slopes = Vec::new();
    let mut small_pages = Vec::new();
    for (id, bytes) in BLOCKS {
        let mut lanes = Lanes::new();
        let mut pages = Vec::new();
        for forwarders in LENGTHS {
            for &(name, carrier) in &rows {
                context
                    .progress
                    .note(format!("preparing {name}, {forwarders}"));
                let chain = Chain::start(carrier, forwarders, bytes, context.cpus)?;
                pages.push((name, forwarders, chain.huge));
                lanes.add(name, Box::new(chain));
            }
        }
        // By length, each with all rows.
        let mut tracks = lanes.measure(effort, context)?.into_iter();
        let lengths: Vec<Vec<Track>> = LENGTHS
            .iter()
            .map(|_| tracks.by_ref().take(rows.len()).collect())
            .collect();
        let slope: Vec<Track> = rows.iter().map(|(name, _)| slope(name, &lengths)).collect();
        outcome
            .tables
            .push(table(id, bytes, &rows, &lengths, &slope));
        outcome.plots.push(plot(id, bytes, &rows, &lengths));
        for (name, _) in &rows {
            let of_row = pages.iter().filter(|(row, ..)| row == name);
            let small: Vec<String> = of_row
                .clone()
                .filter(|(.., huge)| *huge == Some(false))
                .map(|(_, forwarders, _)| forwarders.to_string())
                .collect();
            if !small.is_empty() {
                small_pages.push(*name);
                outcome.leave_out(
                    format!("the slope of `{name}`, {}", Unit::Bytes.show(bytes as f64)),
                    format!(
                        "with {} forwarders its blocks lie on 4 KiB pages, wholly or in part",
                        small.join(" and ")
                    ),
                );
            }
        }
        slopes.push(slope);
    }
    // What is judged by blocks of 2 MiB, of chains whose blocks all lie on huge pages.
    slopes[1].retain(|track| !small_pages.contains(&track.name.as_str()));
    outcome.verdicts.extend(amplified(&slopes));
    outcome.verdicts.extend(hint(&slopes));
    Ok(outcome)
}

/// What a further forwarder takes, slice by slice: a straight line through the lengths that have
/// one.
fn slope(name: &str, lengths: &[Vec<Track>]) -> Track {
    let tracks: Vec<&Track> = lengths
        .iter()
        .filter_map(|tracks| Track::find(tracks, name))
        .collect();
    let slices = tracks.iter().map(|track| track.times.len()).min();
    let times = (0..slices.unwrap_or(0)).map(|slice| {
        let points = LENGTHS
            .iter()
            .zip(&tracks)
            .skip(FIRST)
            .map(|(&forwarders, track)| (f64::from(forwarders), track.times[slice]));
        line(points)
    });
    Track {
        times: times.collect(),
        ..Track::new(name)
    }
}

/// The slope of the straight line that fits best.
fn line(points: impl Iterator<Item = (f64, f64)> + Clone) -> f64 {
    let count = points.clone().count() as f64;
    let mean = |pick: fn((f64, f64)) -> f64| points.clone().map(pick).sum::<f64>() / count;
    let (x, y) = (mean(|(x, _)| x), mean(|(_, y)| y));
    let above: f64 = points.clone().map(|p| (p.0 - x) * (p.1 - y)).sum();
    let below: f64 = points.map(|p| (p.0 - x) * (p.0 - x)).sum();
    above / below
}

fn table(
    id: &str,
    bytes: usize,
    rows: &[(&str, Carrier)],
    lengths: &[Vec<Track>],
    slopes: &[Track],
) -> Table {
    let names = LENGTHS.map(|forwarders| match forwarders {
        0 => "no forwarder".to_owned(),
        one_or_more => one_or_more.to_string(),
    });
    let mut columns: Vec<(&str, Unit)> = names
        .iter()
        .map(|name| (name.as_str(), Unit::Seconds))
        .collect();
    columns.push((SLOPE, Unit::Seconds));
    let mut table = Table::new(
        &format!("chain-{id}"),
        &format!("A request for {}", Unit::Bytes.show(bytes as f64)),
        "blocks travel by",
        &columns,
    );
    for (name, _) in rows {
        let times = |tracks: &[Track]| {
            let track = Track::find(tracks, name);
            track.map_or_else(Cell::default, |track| track.timed().cell())
        };
        let mut cells: Vec<Cell> = lengths.iter().map(|tracks| times(tracks)).collect();
        cells.push(times(slopes));
        table.row(*name, cells);
    }
    table.note(
        "The server's reading of the file and the client's of the block are in all rows. Each further \
         one: the median of the slices' slopes, which is not the slope of the medians.",
    )
}

fn plot(id: &str, bytes: usize, rows: &[(&str, Carrier)], lengths: &[Vec<Track>]) -> Plot {
    let mut plot = Plot::new(
        &format!("chain-{id}"),
        &format!("A request for {}", Unit::Bytes.show(bytes as f64)),
        Axis::linear("forwarders", Unit::Count),
        Axis::linear("time", Unit::Seconds),
    );
    for (colour, (name, _)) in (0..).zip(rows) {
        let points = LENGTHS.iter().zip(lengths).filter_map(|(&k, tracks)| {
            let time = Track::find(tracks, name)?.timed().median();
            Some((f64::from(k), time))
        });
        plot.series(*name, Origin::Here, colour, points.collect::<Vec<_>>());
    }
    plot
}

/// The slopes of one size, by name.
fn timed(slopes: &[Track], name: &str) -> Option<Timed> {
    Track::find(slopes, name).map(Track::timed)
}

fn cell(slopes: &[Track], name: &str) -> Cell {
    timed(slopes, name).map_or_else(Cell::default, |timed| timed.cell())
}

fn show(slopes: &[Track], name: &str) -> String {
    timed(slopes, name).map_or_else(
        || "nothing that was measured".into(),
        |timed| Unit::Seconds.show(timed.median()),
    )
}

/// How much more a forwarder of one row takes than one of another.
fn against(slopes: &[Track], row: &str, to: &str) -> Option<Beside> {
    let (row, to) = (Track::find(slopes, row)?, Track::find(slopes, to)?);
    Beside::difference(&row.times, &to.times)
}

fn more(difference: Option<Beside>) -> String {
    difference.map_or_else(
        || "which was not measured".into(),
        |difference| {
            format!(
                "slice by slice a difference of {}, which is the median of differences and not the \
                 difference of the medians",
                difference.show()
            )
        },
    )
}

/// The better of the two that copy.
fn cheaper(slopes: &[Track]) -> &'static str {
    let median = |name| timed(slopes, name).map_or(f64::INFINITY, |timed| timed.median());
    if median(SOCKETS) < median(PIPES) {
        SOCKETS
    } else {
        PIPES
    }
}

/// No process more makes a request faster: what is there is not the forwarder's.
fn faster(slopes: &[Track]) -> &'static str {
    match timed(slopes, HINTED) {
        Some(timed) if timed.median() < 0.0 => {
            " (Less than nothing: the client and the server, which are in every chain, differ by more from \
             chain to chain than a forwarder takes. The cause is not known.)"
        }
        _ => "",
    }
}

/// One verdict for each size of block: what holds of large ones need not hold of small ones.
fn amplified(slopes: &[Vec<Track>]) -> Vec<Verdict> {
    let verdict = |((_, bytes), slopes): ((&str, usize), &Vec<Track>)| {
        let size = &*Unit::Bytes.show(bytes as f64);
        let copied = cheaper(slopes);
        let saved = against(slopes, HINTED, copied);
        let faster = faster(slopes);
        let paragraph = format!(
            "With blocks of {size} a further forwarder adds {} by {copied}, and {} where the block \
             changes owner in a guarded domain: {}.{faster}",
            show(slopes, copied),
            show(slopes, HINTED),
            more(saved),
        );
        claims::table::COPYING_AMPLIFIED
            .verdict_of(size, &[claims::paired(saved)])
            .because(paragraph)
            .figure(
                "copied, each forwarder",
                Unit::Seconds,
                cell(slopes, copied),
            )
            .figure(
                "guarded, each forwarder",
                Unit::Seconds,
                cell(slopes, HINTED),
            )
    };
    BLOCKS.into_iter().zip(slopes).map(verdict).collect()
}

fn hint(slopes: &[Vec<Track>]) -> Vec<Verdict> {
    let verdict = |((_, bytes), slopes): ((&str, usize), &Vec<Track>)| {
        let size = &*Unit::Bytes.show(bytes as f64);
        let saved = against(slopes, HINTED, EVERYBODY);
        let paragraph = format!(
            "With blocks of {size} a further forwarder that leaves pages closed adds {}, one that opens \
             them {}: {}.{}",
            show(slopes, HINTED),
            show(slopes, EVERYBODY),
            more(saved),
            faster(slopes),
        );
        let closed = timed(slopes, HINTED);
        claims::table::FORWARDERS_PASS_FALSE
            .verdict_of(
                size,
                &[
                    claims::paired(saved),
                    closed.and_then(|closed| claims::timed(&closed)),
                ],
            )
            .because(paragraph)
            .figure(
                "opened, each forwarder",
                Unit::Seconds,
                cell(slopes, EVERYBODY),
            )
    };
    BLOCKS.into_iter().zip(slopes).map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straight_line_is_found() {
        let points = LENGTHS.map(|k| (f64::from(k), 5.0 + 3.0 * f64::from(k)));
        assert!((line(points.into_iter()) - 3.0).abs() < 1e-12);
    }

    #[test]
    fn the_length_without_a_forwarder_is_no_point_of_the_line() {
        let track = |k: u32| Track {
            times: vec![if k == 0 { 1000.0 } else { f64::from(k) }],
            ..Track::new("a")
        };
        let lengths: Vec<Vec<Track>> = LENGTHS.iter().map(|&k| vec![track(k)]).collect();
        assert!((slope("a", &lengths).times[0] - 1.0).abs() < 1e-12);
        assert!(slope("none", &lengths).times.is_empty());
    }

    #[test]
    fn each_size_of_block_is_judged_by_itself() {
        let slopes = |moved: f64, opened: f64, copied: f64| {
            let track = |(name, time): (&str, f64)| Track {
                times: vec![time; 3],
                ..Track::new(name)
            };
            let all = [(HINTED, moved), (EVERYBODY, opened), (PIPES, copied)];
            all.map(track).to_vec()
        };
        // Small blocks are copied faster than moved, and large ones moved; closed or opened, the other way.
        let slopes = [slopes(20e-6, 30e-6, 5e-6), slopes(20e-6, 10e-6, 400e-6)];
        let answers = |verdicts: Vec<Verdict>| -> Vec<(String, &'static str)> {
            let answer = |it: Verdict| (it.of, it.by_figures.name());
            verdicts.into_iter().map(answer).collect()
        };
        let [small, large] = ["64 KiB", "2 MiB"].map(str::to_owned);
        let (no, yes) = ("does not hold", "holds");
        assert_eq!(
            answers(amplified(&slopes)),
            [(small.clone(), no), (large.clone(), yes)]
        );
        assert_eq!(answers(hint(&slopes)), [(small, yes), (large, no)]);
    }

    #[test]
    fn a_forwarder_that_takes_less_than_nothing_decides_nothing_about_pages_left_closed() {
        let track = |(name, time): (&str, f64)| Track {
            times: vec![time; 3],
            ..Track::new(name)
        };
        let of = |closed: f64| {
            [(HINTED, closed), (EVERYBODY, 7e-6), (PIPES, 400e-6)]
                .map(track)
                .to_vec()
        };
        let slopes = [of(5e-6), of(-16e-6)];
        let [small, large]: [Verdict; 2] = hint(&slopes).try_into().unwrap();
        assert_eq!(small.by_figures.name(), "holds");
        assert_eq!(large.by_figures.name(), "cannot tell");
        assert!(large.open[0].contains("left closed"), "{:?}", large.open);
        for verdict in [&large, &amplified(&slopes)[1]] {
            assert!(
                verdict.paragraph.contains("Less than nothing"),
                "{}",
                verdict.paragraph
            );
        }
        assert!(!small.paragraph.contains("Less than nothing"));
    }

    #[test]
    fn slopes_are_taken_slice_by_slice() {
        let track = |k: u32| Track {
            times: vec![f64::from(k), 10.0 * f64::from(k)],
            ..Track::new("a")
        };
        let lengths: Vec<Vec<Track>> = LENGTHS.iter().map(|&k| vec![track(k)]).collect();
        let slope = slope("a", &lengths);
        assert!((slope.times[0] - 1.0).abs() < 1e-12 && (slope.times[1] - 10.0).abs() < 1e-12);
    }
}
