//! Judges the paper's claims by the breakdown.

use portolan::probes::Letter;

use super::figures::{
    DATA_SHARES, STEADY, data_share, data_share_of_all, further, further_deviation, runs, steady,
    three_sums,
};
use super::pair::Kind;
use super::run::Findings;
use super::statistics::{Figures, Part};
use crate::claims::{self, Estimate, table};
use crate::outcome::{Cell, Verdict};
use crate::unit::Unit;

pub(super) fn all(findings: &Findings) -> Vec<Verdict> {
    let mut all = Vec::from(closes(findings));
    all.extend([
        is_steady(findings),
        sums_agree(findings),
        data_dominates(findings),
        lazy(findings),
    ]);
    all
}

/// The paper's sequence, which is the first of the runs, and the furthest of the others.
fn closes(findings: &Findings) -> [Verdict; 2] {
    let off = |figures: &Figures| {
        // By how much the repetitions of the whole vary.
        let spread = 1.96 * figures.plain.trimmed.variation();
        let off = (figures.total() / figures.plain.trimmed.mean - 1.0).abs();
        Estimate::between(off, (off - spread).max(0.0), off + spread)
    };
    let ratios = |verdict: Verdict, runs: &[(&str, &Figures)]| {
        runs.iter().fold(verdict, |verdict, (name, figures)| {
            let trimmed = figures.total() / figures.plain.trimmed.mean;
            let raw = figures.total_raw() / figures.plain.raw.mean;
            verdict
                .figure(format!("{name}, trimmed"), Unit::Share, Cell::here(trimmed))
                .figure(format!("{name}, raw"), Unit::Share, Cell::here(raw))
        })
    };
    let all = runs(findings);
    let (papers, others) = all.split_at(1);
    let own = off(papers[0].1);
    let furthest = others
        .iter()
        .filter_map(|(name, figures)| Some((*name, off(figures)?)))
        .max_by(|(_, one), (_, other)| one.middle().total_cmp(&other.middle()));
    let own_words = format!(
        "The segments of the paper's sequence (two processes in a guarded domain, asleep; here each \
         on a processor of its own), added up, \
         are {} off the same way with a probe at either end only, without the slowest twentieth of \
         the ways.",
        claims::shown(own, Unit::Share),
    );
    let others_words = format!(
        "Of {} other runs the furthest ({}) is {} off. Probes keep apart what the processor would do at \
         once, and between processes that poll they delay what the other waits for.",
        others.len(),
        furthest.map_or("none", |(name, _)| name),
        claims::shown(furthest.map(|(_, off)| off), Unit::Share),
    );
    let own = table::CLOSURE.verdict(&[own]).because(own_words);
    let furthest = furthest.map(|(_, off)| off);
    let others_verdict = table::CLOSURE
        .verdict_of("the furthest of the other runs", &[furthest])
        .because(others_words);
    [ratios(own, papers), ratios(others_verdict, others)]
}

fn is_steady(findings: &Findings) -> Verdict {
    let (below, all, share) = steady(&findings.asleep, |s| s.time.raw);
    let (trimmed, _, trimmed_share) = steady(&findings.asleep, |s| s.time.trimmed);
    let segments = below as f64 / all as f64;
    let narrow = findings
        .asleep
        .segments
        .iter()
        .map(|s| s.time.raw)
        .filter(|s| s.mean > 0.0 && 1.96 * s.variation() < 0.10)
        .count();
    let paragraph = format!(
        "Of all rounds, as in the paper (whose two processes shared one processor; here each has its \
         own), {below} of {all} segments of the paper's sequence stay below \
         {}; they hold {} of the time. For {narrow} the 95 % interval lies within 10 % of the mean. \
         (Without the slowest twentieth of the ways it is {trimmed}, and {}.)",
        Unit::Share.show(STEADY),
        Unit::Share.show(share),
        Unit::Share.show(trimmed_share),
    );
    table::STEADY
        .verdict(&[Estimate::exact(segments), Estimate::exact(share)])
        .because(paragraph)
        .figure("segments", Unit::Count, Cell::here(all as f64).beside(69.0))
        .figure(
            "below 5 %",
            Unit::Count,
            Cell::here(below as f64).beside(59.0),
        )
        .figure("share, trimmed", Unit::Share, Cell::here(trimmed_share))
}

fn sums_agree(findings: &Findings) -> Verdict {
    let sums = three_sums(findings);
    let found: Vec<Option<Estimate>> = sums
        .iter()
        .map(|sum| {
            let measured = sum.measured;
            let spread = 1.96 * measured.deviation;
            let whole = Estimate::between(
                measured.mean,
                measured.mean - spread,
                measured.mean + spread,
            );
            claims::ratio(Estimate::exact(sum.further), whole)
        })
        .collect();
    let said: Vec<String> = sums
        .iter()
        .map(|sum| {
            format!(
                "{} is {} of a further one and {} of the first, against {} measured",
                sum.name,
                Unit::Seconds.show(sum.further),
                Unit::Seconds.show(sum.first),
                Unit::Seconds.show(sum.measured.mean)
            )
        })
        .collect();
    let verdict = table::SUMS
        .verdict(&found)
        .because(format!("Per extent of 8 KiB: {}.", said.join("; ")));
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
    let ((way_small, way_large), (_, large_awake)) = (ends(&asleep), ends(&awake));
    // Judged with what both do beside the way, or not at all: of the way alone it is another quantity.
    let of_all = |at: usize| data_share_of_all(findings, Kind::GuardedAsleep, DATA_SHARES[at].0);
    let (small, large) = (of_all(0), of_all(2));
    let grows = claims::ratio(large, small);
    let one = data_share(findings, Kind::GuardedAsleep, DATA_SHARES[2].0, true);
    let switch = findings.asleep.sum(|part| part == Part::Passage);
    let awake_words = large_awake.map_or_else(String::new, |share| {
        format!("; where it polls, {} of 64 KiB", percent(Some(share)))
    });
    let paragraph = format!(
        "In extents of 8 KiB, each opened by its own touch, data movement takes {} of an 8 KiB \
         message and {} of a 64 KiB one, where the receiver is asleep as in the paper and waking it \
         takes {}{awake_words}. That is of all that both sides do, as in the paper's whole (on one processor \
         it is not known, because each waits for the other meanwhile); of the way from one side to the other \
         alone it is {} and {}. In one extent of 64 KiB, asleep, it is \
         {} of the way, because what is closed and opened together is paid once.",
        claims::shown(small, Unit::Share),
        claims::shown(large, Unit::Share),
        Unit::Seconds.show(switch),
        percent(way_small),
        percent(way_large),
        percent(one),
    );
    let verdict = table::DATA_DOMINATES
        .verdict(&[large, grows])
        .because(paragraph);
    let figure = |verdict: Verdict, name: String, share, paper: Option<f64>| {
        verdict.figure(name, Unit::Share, Cell::here(share).beside(paper))
    };
    let size = |bytes: usize| Unit::Bytes.show(bytes as f64);
    let verdict = asleep
        .into_iter()
        .fold(verdict, |verdict, (bytes, share, paper)| {
            figure(
                verdict,
                format!("{}, of the way alone", size(bytes)),
                share,
                Some(paper),
            )
        });
    awake
        .into_iter()
        .fold(verdict, |verdict, (bytes, share, _)| {
            figure(verdict, format!("{}, awake", size(bytes)), share, None)
        })
}

/// As figures keep it, so that words and figures say the same.
fn percent(share: Option<f64>) -> String {
    let kept = share.and_then(|share| Cell::here(share).here);
    kept.map_or_else(|| "an unknown share".to_owned(), |s| Unit::Share.show(s))
}

fn lazy(findings: &Findings) -> Verdict {
    let of = |letters: &[Letter]| {
        let (mean, spread) = (
            further(findings, letters),
            1.96 * further_deviation(findings, letters),
        );
        Estimate::between(mean, mean - spread, mean + spread)
    };
    let saved = of(&[Letter::C, Letter::G, Letter::H]);
    let wasted = of(&[Letter::F, Letter::I]);
    let pays_from = claims::ratio(saved, wasted);
    // What a touch of one extent more costs end to end, on demand less opened by receive.
    let cheaper = match findings.increments.as_slice() {
        [_, opened, on_demand] => on_demand.mean - opened.mean,
        _ => f64::NAN,
    };
    let paragraph = format!(
        "A further extent that nobody touches saves closing, look-up and opening, C+G+H, {}; one \
         that is touched wastes the fault, F+I, {} (end to end and without probes, opening it at \
         once is {} cheaper): N is {}. In the experiment `pages` extents lie in a row and are closed \
         and opened together, while each still faults alone; here none is another's neighbour.",
        claims::shown(saved, Unit::Seconds),
        claims::shown(wasted, Unit::Seconds),
        Unit::Seconds.show(cheaper),
        claims::shown(pays_from, Unit::Times),
    );
    let cell = |found: Option<Estimate>| found.map_or_else(Cell::default, Estimate::cell);
    table::LAZY
        .verdict(&[pays_from])
        .because(paragraph)
        .figure("saved (C+G+H)", Unit::Seconds, cell(saved).beside(113e-6))
        .figure("wasted (F+I)", Unit::Seconds, cell(wasted).beside(47e-6))
        .figure(
            "opened at once, a further one cheaper by",
            Unit::Seconds,
            Cell::here(cheaper),
        )
}
