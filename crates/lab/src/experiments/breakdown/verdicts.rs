//! Judges the paper's claims by the breakdown.

use portolan::probes::Letter;

use super::figures::{
    DATA_SHARES, STEADY, data_share, further, further_deviation, runs, steady, three_sums,
};
use super::pair::Kind;
use super::run::Findings;
use super::statistics::Part;
use crate::outcome::{Answer, Cell, Verdict};
use crate::unit::Unit;

/// How near a sum must come to what it is the sum of.
const NEAR: f64 = 0.10;
/// Of the time, what the steady segments must have for their rest not to matter.
const NEARLY_ALL: f64 = 0.90;

pub(super) fn all(findings: &Findings) -> Vec<Verdict> {
    vec![
        closes(findings),
        is_steady(findings),
        sums_agree(findings),
        data_dominates(findings),
        lazy(findings),
    ]
}

fn closes(findings: &Findings) -> Verdict {
    let ratios: Vec<(&str, f64, f64)> = runs(findings)
        .into_iter()
        .map(|(name, figures)| {
            let trimmed = figures.total() / figures.plain.trimmed.mean;
            (name, trimmed, figures.total_raw() / figures.plain.raw.mean)
        })
        .collect();
    let off = |ratio: f64| (ratio - 1.0).abs();
    let missed: Vec<String> = ratios
        .iter()
        .filter(|(_, trimmed, _)| off(*trimmed) > NEAR)
        .map(|(name, trimmed, _)| format!("{name} ({})", Unit::Share.show(*trimmed)))
        .collect();
    let worst = ratios.iter().map(|(_, trimmed, _)| off(*trimmed));
    let worst_raw = ratios.iter().map(|(.., raw)| off(*raw));
    let paragraph = format!(
        "The segments of a way, added up, against the same way with a probe at either end only: \
         the furthest of {} runs is {} off ({} with the slowest twentieth of the ways in it). It \
         holds if every run closes within {}{}",
        ratios.len(),
        Unit::Share.show(worst.fold(0.0, f64::max)),
        Unit::Share.show(worst_raw.fold(0.0, f64::max)),
        Unit::Share.show(NEAR),
        if missed.is_empty() {
            ".".to_owned()
        } else {
            format!(
                "; not so: {}. Probes keep apart what the processor would do at once, and between \
                 processes they delay what the other waits for.",
                missed.join("; ")
            )
        },
    );
    let verdict = Verdict::new(
        "closure",
        "Numbers are accurate to within ±10 per cent (Figure 6)",
        Some(missed.is_empty()),
    );
    ratios.into_iter().fold(
        verdict.because(paragraph),
        |verdict, (name, trimmed, raw)| {
            verdict
                .figure(format!("{name}, trimmed"), Unit::Share, Cell::here(trimmed))
                .figure(format!("{name}, raw"), Unit::Share, Cell::here(raw))
        },
    )
}

fn is_steady(findings: &Findings) -> Verdict {
    let (raw, _, raw_share) = steady(&findings.asleep, |s| s.time.raw);
    let (below, all, share) = steady(&findings.asleep, |s| s.time.trimmed);
    let narrow = findings
        .asleep
        .segments
        .iter()
        .map(|s| s.time.trimmed)
        .filter(|s| s.mean > 0.0 && 1.96 * s.variation() < 0.10)
        .count();
    let paragraph = format!(
        "Without the slowest twentieth of the ways {below} of {all} segments of the paper's \
         sequence stay below {}; they hold {} of the time (with them {raw}, and {}). For {narrow} \
         the 95 % interval lies within 10 % of the mean. It holds if the steady ones have at least \
         {} of the time: segments of a few nanoseconds vary more, and matter less.",
        Unit::Share.show(STEADY),
        Unit::Share.show(share),
        Unit::Share.show(raw_share),
        Unit::Share.show(NEARLY_ALL),
    );
    Verdict::new(
        "steady",
        "The coefficient of variation is less than 5 per cent for 59 of 69 intervals, which \
         account for 97 per cent of the time (Figure 5)",
        Some(share >= NEARLY_ALL),
    )
    .because(paragraph)
    .figure("segments", Unit::Count, Cell::here(all as f64).beside(69.0))
    .figure(
        "below 5 %",
        Unit::Count,
        Cell::here(below as f64).beside(59.0),
    )
    .figure("their share", Unit::Share, Cell::here(share).beside(0.97))
    .figure("their share, raw", Unit::Share, Cell::here(raw_share))
}

fn sums_agree(findings: &Findings) -> Verdict {
    let sums = three_sums(findings);
    // Off by more than a tenth, and not for want of precision.
    let off = |sum: f64, measured: f64| (sum - measured).abs() / measured.abs();
    let mut answer = Answer::Holds;
    let mut said = Vec::new();
    for sum in &sums {
        let off = off(sum.further, sum.measured.mean);
        let difference = (sum.further - sum.measured.mean).abs();
        let within_spread = difference <= 1.96 * sum.measured.deviation;
        if off > NEAR {
            answer = match answer {
                Answer::Holds | Answer::CannotTell if within_spread => Answer::CannotTell,
                _ => Answer::DoesNotHold,
            };
        }
        said.push(format!(
            "{} is {} of a further one and {} of the first, against {} measured",
            sum.name,
            Unit::Seconds.show(sum.further),
            Unit::Seconds.show(sum.first),
            Unit::Seconds.show(sum.measured.mean)
        ));
    }
    let paragraph = format!(
        "Per extent of 8 KiB: {}. It holds if each sum of a further extent is within {} of what \
         one is measured to cost, and cannot be told where the difference lies within that measurement's \
         own spread.",
        said.join("; "),
        Unit::Share.show(NEAR),
    );
    let claim = "The parts of moving a page add up to 90, 205 and 250 µs, where 87, 208 and 254 \
        were measured";
    let verdict = Verdict::new("sums", claim, answer).because(paragraph);
    sums.into_iter().fold(verdict, |verdict, sum| {
        let (printed, measured) = sum.paper;
        verdict
            .figure(
                format!("{}, first", sum.name),
                Unit::Seconds,
                Cell::here(sum.first).beside(printed),
            )
            .figure(
                format!("{}, further", sum.name),
                Unit::Seconds,
                Cell::here(sum.further),
            )
            .figure(
                format!("{} measured", sum.name),
                Unit::Seconds,
                sum.measured.cell().beside(measured),
            )
    })
}

fn data_dominates(findings: &Findings) -> Verdict {
    let shares = |kind| -> Vec<(usize, f64, f64)> {
        let shares = DATA_SHARES.iter().filter_map(|&(bytes, paper)| {
            Some((bytes, data_share(findings, kind, bytes, false)?, paper))
        });
        shares.collect()
    };
    let (asleep, awake) = (shares(Kind::GuardedAsleep), shares(Kind::GuardedAwake));
    let ends = |shares: &[(usize, f64, f64)]| {
        let share = |at: Option<&(usize, f64, f64)>| at.map(|(_, share, _)| *share);
        (share(shares.first()), share(shares.last()))
    };
    let ((small, large), (_, large_awake)) = (ends(&asleep), ends(&awake));
    let grows = asleep.is_sorted_by(|a, b| a.1 < b.1);
    let one = data_share(findings, Kind::GuardedAsleep, DATA_SHARES[2].0, true);
    let switch = findings.asleep.sum(|part| part == Part::Passage);
    let paragraph = format!(
        "In extents of 8 KiB, each opened by its own touch, data movement takes {} of an 8 KiB \
         message and {} of a 64 KiB one, where the receiver is asleep and waking it takes {}; \
         where it polls, {} of 64 KiB. In one extent of 64 KiB, asleep, it is {}, because what is \
         closed and opened together is paid once. It holds if the share grows with the size and \
         is more than half at 64 KiB, the receiver asleep as in the paper.",
        percent(small),
        percent(large),
        Unit::Seconds.show(switch),
        percent(large_awake),
        percent(one),
    );
    let verdict = Verdict::new(
        "data-dominates",
        "Data movement dominates the delay of moving large messages: 43.5, 65.5 and 77.1 per \
         cent of 8, 32 and 64 KB",
        large.map(|large| grows && large > 0.5),
    )
    .because(paragraph);
    let figure = |verdict: Verdict, name: String, share, paper: Option<f64>| {
        verdict.figure(name, Unit::Share, Cell::here(share).beside(paper))
    };
    let size = |bytes: usize| Unit::Bytes.show(bytes as f64);
    let verdict = asleep
        .into_iter()
        .fold(verdict, |verdict, (bytes, share, paper)| {
            figure(verdict, size(bytes), share, Some(paper))
        });
    awake
        .into_iter()
        .fold(verdict, |verdict, (bytes, share, _)| {
            figure(verdict, format!("{}, awake", size(bytes)), share, None)
        })
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "an unknown share".to_owned(), |s| Unit::Share.show(s))
}

fn lazy(findings: &Findings) -> Verdict {
    let saved = further(findings, &[Letter::C, Letter::G, Letter::H]);
    let wasted = further(findings, &[Letter::F, Letter::I]);
    let all = [Letter::C, Letter::F, Letter::G, Letter::H, Letter::I];
    let clear = (saved - wasted).abs() > 1.96 * further_deviation(findings, &all);
    let pays_from = saved / wasted;
    // What a touch of one extent more costs end to end, on demand less opened by receive.
    let cheaper = match findings.increments.as_slice() {
        [_, opened, on_demand] => on_demand.mean - opened.mean,
        _ => f64::NAN,
    };
    let paragraph = format!(
        "A further extent that nobody touches saves closing, look-up and opening, C+G+H, {}; one \
         that is touched wastes the fault, F+I, {} (end to end and without probes, opening it at \
         once is {} cheaper). So the hint pays from {} touched to 1 untouched. The experiment \
         `pages` finds another N, because its extents lie in a row and are closed and opened \
         together, while each still faults alone; here none is another's neighbour. It holds if a \
         fault wastes less than an untouched extent saves, as on the Sun, and cannot be told \
         where the difference lies within the spread.",
        Unit::Seconds.show(saved),
        Unit::Seconds.show(wasted),
        Unit::Seconds.show(cheaper),
        Unit::Times.show(pays_from),
    );
    Verdict::new(
        "lazy",
        "Lazy evaluation saves 113 µs for a page that is not accessed and wastes 47 µs for one \
         that is: overriding it pays from three accessed pages to one that is not",
        clear.then_some(wasted < saved),
    )
    .because(paragraph)
    .figure(
        "saved (C+G+H)",
        Unit::Seconds,
        Cell::here(saved).beside(113e-6),
    )
    .figure(
        "wasted (F+I)",
        Unit::Seconds,
        Cell::here(wasted).beside(47e-6),
    )
    .figure(
        "the hint pays from, accessed to not",
        Unit::Times,
        Cell::here(pays_from).beside(113.0 / 47.0),
    )
    .figure(
        "opened at once, a further one cheaper by",
        Unit::Seconds,
        Cell::here(cheaper),
    )
}
