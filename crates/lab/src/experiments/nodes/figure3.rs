//! Tables, plots and verdicts of Figure 3.

use super::LINKS;
use super::throughput::{Found, MODES, WIRES};
use crate::claims::{Estimate, paired, shown, table, timed};
use crate::clock::Timed;
use crate::lanes::Beside;
use crate::nodes::{Mode, NORMA, Wire};
use crate::outcome::{Axis, Cell, Origin, Outcome, Plot, Table, Verdict};
use crate::unit::Unit;

/// Where transfers come near to what lies below.
const LONG: usize = 32 << 10;

pub(super) fn outcome(found: &Found) -> Outcome {
    let mut outcome = Outcome::default();
    for wire in WIRES {
        outcome.plots.push(plot(found, wire));
        outcome.tables.push(peaks(found, wire));
        outcome.tables.push(by_size(found, wire));
    }
    outcome.verdicts = verdicts(found);
    outcome
}

/// Bytes a second, slice by slice.
fn rates(found: &Found, wire: Wire, mode: Mode, size: usize) -> Timed {
    let times = found.times(wire, mode, size).iter();
    Timed::of(times.map(|time| size as f64 / time).collect())
}

/// The rates of one slice, by size.
fn curve(found: &Found, wire: Wire, mode: Mode, slice: usize) -> Option<Vec<(f64, f64)>> {
    let sizes = found.sizes.iter();
    sizes
        .map(|&size| {
            let time = found.times(wire, mode, size).get(slice)?;
            Some((size as f64, size as f64 / time))
        })
        .collect()
}

/// A figure of each slice's curve.
fn of_curves(found: &Found, wire: Wire, mode: Mode, figure: fn(&[(f64, f64)]) -> f64) -> Vec<f64> {
    (0..)
        .map_while(|slice| curve(found, wire, mode, slice).filter(|curve| !curve.is_empty()))
        .map(|curve| figure(&curve))
        .collect()
}

fn peak(curve: &[(f64, f64)]) -> f64 {
    curve.iter().map(|(_, rate)| *rate).fold(f64::NAN, f64::max)
}

/// The size from which a curve is above half of its peak; the smallest that was measured if it begins
/// above that.
fn half(curve: &[(f64, f64)]) -> f64 {
    let wanted = peak(curve) / 2.0;
    let Some(at) = curve.iter().position(|(_, rate)| *rate >= wanted) else {
        return f64::NAN;
    };
    let (size, rate) = curve[at];
    let Some((before, below)) = at.checked_sub(1).map(|before| curve[before]) else {
        return size;
    };
    // On a straight line, as the plot has it: sizes by their logarithms.
    let part = (wanted - below) / (rate - below);
    before * (size / before).powf(part)
}

fn plot(found: &Found, wire: Wire) -> Plot {
    let mut plot = Plot::new(
        &format!("nodes-figure-3-{}", wire.id()),
        &format!("Figure 3: bandwidth by size, {}", wire.name()),
        Axis::log("bytes of the extent", Unit::Bytes),
        Axis::linear("bandwidth", Unit::BytesPerSecond),
    );
    // As many as there are colours: blocks of 8 pages are in the table.
    let shown = MODES.into_iter();
    let shown = shown.filter(|mode| *mode != Mode::StopAndWait { pages: 8 });
    for (colour, mode) in (0..).zip(shown) {
        let points = found.sizes.iter().map(|&size| {
            let rate = rates(found, wire, mode, size).median();
            (size as f64, rate)
        });
        plot.series(mode.name(), Origin::Here, colour, points);
    }
    plot
}

fn by_size(found: &Found, wire: Wire) -> Table {
    let columns = MODES.map(|mode| (mode.name(), Unit::BytesPerSecond));
    let mut table = Table::new(
        &format!("bandwidth-{}", wire.id()),
        &format!("Bandwidth by size, {}", wire.name()),
        "one extent of",
        &columns,
    );
    for &size in &found.sizes {
        let cells = MODES.map(|mode| rates(found, wire, mode, size).cell());
        table.row(Unit::Bytes.show(size as f64), cells);
    }
    table.fold()
}

fn peaks(found: &Found, wire: Wire) -> Table {
    let columns = [
        ("peak", Unit::BytesPerSecond),
        ("peak, to bare", Unit::Share),
        ("half of it from", Unit::Bytes),
        ("least to DIPC", Unit::Times),
    ];
    let mut table = Table::new(
        &format!("peaks-{}", wire.id()),
        &format!("Peaks, and where half of them is reached, {}", wire.name()),
        "mode",
        &columns,
    );
    for mode in MODES {
        let paper = match (mode, wire) {
            (Mode::Bare, Wire::Fast) => Some(147e6),
            (Mode::Dipc, Wire::Fast) => Some(108e6),
            (Mode::Dipc, Wire::Slow) => Some(19.2e6),
            _ => None,
        };
        let to_bare = (mode, wire) == (Mode::Dipc, Wire::Fast);
        let most = Timed::of(of_curves(found, wire, mode, peak));
        let from = Timed::of(of_curves(found, wire, mode, half));
        let share = peak_to(found, wire, mode, Mode::Bare);
        let least = least(found, wire, mode, Mode::Dipc, 0);
        table.row(
            mode.name(),
            [
                most.cell().beside(paper),
                cell(share).beside(to_bare.then_some(108.0 / 147.0)),
                from.cell(),
                cell(least),
            ],
        );
    }
    table.note(format!(
        "{LINKS} The last column is the least of a mode's bandwidth to DIPC's over all sizes. Slices: {}.",
        found.slices(wire)
    ))
}

fn cell(beside: Option<Beside>) -> Cell {
    beside.map_or_else(Cell::default, Beside::cell)
}

/// The peak of one mode to that of another, slice by slice.
fn peak_to(found: &Found, wire: Wire, mode: Mode, other: Mode) -> Option<Beside> {
    let [mode, other] = [mode, other].map(|mode| of_curves(found, wire, mode, peak));
    Beside::ratio(&mode, &other)
}

/// The least of a mode's bandwidth to another's, over sizes from one up.
fn least(found: &Found, wire: Wire, mode: Mode, other: Mode, from: usize) -> Option<Beside> {
    let sizes = found.sizes.iter().filter(|&&size| size >= from);
    let all = sizes.filter_map(|&size| {
        let times = |mode| found.times(wire, mode, size);
        // The time of the other to that of this one.
        Beside::ratio(times(other), times(mode))
    });
    all.min_by(|one, other| one.middle.total_cmp(&other.middle))
}

fn verdicts(found: &Found) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let show = |estimate: Option<Estimate>, unit| shown(estimate, unit);
    for wire in WIRES {
        let of = wire.name();
        let near = paired(least(found, wire, Mode::Kkt, Mode::Bare, LONG));
        verdicts.push(table::KKT_NEAR_BARE.verdict_of(of, &[near]).because(format!(
            "From 32 KiB up transfers have at the least {} of the bandwidth of the same calls without \
             heads: a head of 32 bytes is all that they add.",
            show(near, Unit::Share)
        )));
        if wire == Wire::Slow {
            let rate = wire.shape().and_then(|shape| shape.rate).unwrap_or(1) as f64;
            let most = timed(&Timed::of(of_curves(found, wire, Mode::Dipc, peak)));
            let share = most.and_then(|most| most.times(1.0 / rate));
            verdicts.push(table::SLOW_SATURATED.verdict(&[share]).because(format!(
                "The best that messages reach is {} of what the link carries.",
                show(share, Unit::Share)
            )));
        } else {
            let share = paired(peak_to(found, wire, Mode::Dipc, Mode::Bare));
            verdicts.push(table::DIPC_PEAK.verdict_of(of, &[share]).because(format!(
                "The peak of messages is {} of that of the bare calls.",
                show(share, Unit::Share)
            )));
        }
    }
    verdicts.extend([above_norma(found), slower_attack(found)]);
    verdicts
}

/// What a block waits for on a shaped link is the delay that the lab chose: plain loopback decides.
fn above_norma(found: &Found) -> Verdict {
    let wire = Wire::Loopback;
    let above = |wire, pages| {
        let norma = Mode::StopAndWait { pages };
        least(found, wire, Mode::Dipc, norma, 0)
    };
    let show = |beside: Option<Beside>| shown(paired(beside), Unit::Times);
    let highest = peak_to(found, wire, Mode::Dipc, NORMA);
    let lowest = above(wire, 1);
    let verdict = table::ABOVE_NORMA
        .verdict(&[paired(highest), paired(lowest)])
        .because(format!(
            "On plain loopback DIPC has {} of the peak of NORMA, which waits after each page; at the size \
             that is worst for it, {}. With blocks of 8 pages that worst is {}, of 64 pages {}. Both are the \
             same engine, so the differences are what each block waits for. On the shaped links, where that \
             is the delay that the lab chose, the worst is {} at 175 MB/s, and {} at 19.2 MB/s.",
            show(highest),
            show(lowest),
            show(above(wire, 8)),
            show(above(wire, 64)),
            show(above(Wire::Fast, 1)),
            show(above(Wire::Slow, 1)),
        ));
    let beside = [
        ("least, with blocks of 8 pages", wire, 8),
        ("least, with blocks of 64 pages", wire, 64),
        ("least, 175 MB/s, shaped", Wire::Fast, 1),
        ("least, 19.2 MB/s, shaped", Wire::Slow, 1),
    ];
    beside
        .into_iter()
        .fold(verdict, |verdict, (name, wire, pages)| {
            verdict.figure(name, Unit::Times, cell(above(wire, pages)))
        })
}

/// The credit of a flow takes round trips: plain loopback decides.
fn slower_attack(found: &Found) -> Verdict {
    let halves = |wire, mode| of_curves(found, wire, mode, half);
    let attack = |wire| Beside::ratio(&halves(wire, Mode::Dipc), &halves(wire, Mode::Kkt));
    let words = |mode| Unit::Bytes.show(Timed::of(halves(Wire::Loopback, mode)).median());
    table::SLOWER_ATTACK
        .verdict(&[paired(attack(Wire::Loopback))])
        .because(format!(
            "On plain loopback messages reach half of their peak with {}, transfers with {}; NORMA with {}. \
             The smallest size that was measured stands for all below it.",
            words(Mode::Dipc),
            words(Mode::Kkt),
            words(NORMA),
        ))
        .figure("175 MB/s, shaped", Unit::Times, cell(attack(Wire::Fast)))
        .figure("19.2 MB/s, shaped", Unit::Times, cell(attack(Wire::Slow)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Curves of rate `most`, with so many seconds for each message beside.
    fn planted(curves: &[(Mode, f64, f64)]) -> Found {
        let mut found = Found {
            sizes: vec![1 << 10, 32 << 10, 1 << 20, 64 << 20],
            ..Found::default()
        };
        for wire in WIRES {
            for &(mode, most, each) in curves {
                for size in found.sizes.clone() {
                    for slice in 0..3 {
                        let time = each + size as f64 / most;
                        found.add(wire, mode, size, time * (1.0 + f64::from(slice) * 1e-3));
                    }
                }
            }
        }
        found
    }

    fn answers(found: &Found, of: &str) -> Vec<(String, &'static str)> {
        let all = verdicts(found).into_iter();
        let of = all.filter(|verdict| verdict.of == of || verdict.of.is_empty());
        of.map(|verdict| (verdict.id, verdict.by_figures.name()))
            .collect()
    }

    const RATE: f64 = 19.2e6;

    fn modes(dipc: f64, each: f64, norma: f64) -> Vec<(Mode, f64, f64)> {
        let mut all = vec![
            (Mode::Bare, RATE, 1e-6),
            (Mode::Kkt, RATE, 2e-6),
            (Mode::Dipc, dipc, each),
            (Mode::Relay, RATE / 3.0, 100e-6),
        ];
        for pages in [1, 8, 64] {
            all.push((Mode::StopAndWait { pages }, norma, each * 2.0));
        }
        all
    }

    #[test]
    fn the_papers_shapes_hold_by_curves_like_the_papers() {
        let found = planted(&modes(RATE * 0.99, 1e-3, RATE / 2.0));
        for (id, answer) in [
            answers(&found, Wire::Fast.name()),
            answers(&found, Wire::Slow.name()),
        ]
        .concat()
        {
            assert_eq!(answer, "holds", "{id}");
        }
    }

    #[test]
    fn they_do_not_hold_by_curves_of_another_kind() {
        // Messages are slow, rise at once, and NORMA is faster.
        let found = planted(&modes(RATE / 2.0, 1e-9, RATE));
        for (id, answer) in [
            answers(&found, Wire::Fast.name()),
            answers(&found, Wire::Slow.name()),
        ]
        .concat()
        {
            let expected = match id.as_str() {
                "kkt-near-bare" => "holds",
                _ => "does not hold",
            };
            assert_eq!(answer, expected, "{id}");
        }
    }

    #[test]
    fn what_the_delay_of_a_shaped_link_makes_decides_nothing() {
        // The shaped links say the opposite of plain loopback.
        for (on_loopback, on_others, answer) in [
            (
                modes(RATE, 1e-3, RATE / 2.0),
                modes(RATE / 2.0, 1e-9, RATE),
                "holds",
            ),
            (
                modes(RATE / 2.0, 1e-9, RATE),
                modes(RATE, 1e-3, RATE / 2.0),
                "does not hold",
            ),
        ] {
            let mut found = planted(&on_others);
            found
                .times
                .retain(|(wire, ..), _| *wire != Wire::Loopback.id());
            let loopback = planted(&on_loopback).times.into_iter();
            let loopback = loopback.filter(|((wire, ..), _)| *wire == Wire::Loopback.id());
            found.times.extend(loopback);
            for verdict in [above_norma(&found), slower_attack(&found)] {
                assert_eq!(verdict.by_figures.name(), answer, "{}", verdict.id);
            }
        }
    }

    #[test]
    fn half_of_a_peak_lies_between_two_sizes() {
        let curve = [(1024.0, 10.0), (4096.0, 90.0), (16384.0, 100.0)];
        // Half way up from 10 to 90, half way from 1 KiB to 4 KiB on a logarithmic axis.
        assert!((half(&curve) - 2048.0).abs() < 1e-6);
        assert!((half(&[(1024.0, 90.0), (4096.0, 100.0)]) - 1024.0).abs() < 1e-9);
        assert!((peak(&curve) - 100.0).abs() < 1e-9);
    }
}
