//! Makes the tables, plots and verdicts of the model.

use super::model::{Distance, LONG_HOP, OPTIMISATIONS, PAPER, Parameters, Support};
use super::paper;
use crate::clock::Timed;
use crate::lanes::{Beside, figure, shown};
use crate::outcome::{Axis, Cell, Origin, Plot, Table, Verdict};
use crate::unit::Unit;

/// Speeds of the processor, to what it is.
const SPEEDS: [f64; 8] = [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0];
/// How far a share may be off and still be the paper's.
const NEAR_ENOUGH: f64 = 0.03;

/// The paper's, with the longer hop.
const PAPER_LONG: Parameters = Parameters {
    hop: LONG_HOP,
    ..PAPER
};

/// The middle of what `of` makes of every slice's parameters.
fn middle(here: &[Parameters], of: impl Fn(&Parameters) -> f64) -> Timed {
    Timed::of(here.iter().map(of).collect())
}

fn cell(here: &[Parameters], of: impl Fn(&Parameters) -> f64) -> Cell {
    if here.is_empty() {
        return Cell::default();
    }
    middle(here, of).cell()
}

/// Those distances that this machine has.
fn distances(here: &[Parameters]) -> impl Iterator<Item = Distance> + '_ {
    Distance::ALL
        .into_iter()
        .filter(|&distance| here.iter().all(|p| p.reaches(distance)))
}

pub(super) fn tables(here: &[Parameters]) -> Vec<Table> {
    vec![parameters(here), messages(here), shares(here)]
}

type Step = (&'static str, fn(&Parameters) -> f64, bool);

/// The model's parameters; false for one that is not told apart here.
const STEPS: [Step; 14] = [
    ("system call", |p| p.trap, true),
    ("sender's address looked up", |p| p.translate, true),
    ("receiving processors found", |p| p.find, false),
    ("inserted into a locked queue", |p| p.insert, true),
    ("interrupt generated", |p| p.interrupt, true),
    ("removed from the queue", |p| p.remove, true),
    ("taken from the FIFO", |p| p.fifo, false),
    ("receiver's address looked up", |p| p.reverse, true),
    ("L1 invalidated", |p| p.invalidate, false),
    ("kernel the receiver?", |p| p.check, false),
    ("handler scheduled, return, restore", |p| p.deliver, true),
    ("a line from the nearest common cache", |p| p.fill, true),
    (
        "crossing the next, larger cache",
        |p| p.far.unwrap_or(f64::NAN),
        true,
    ),
    ("crossing a link", |p| p.hop, true),
];

fn parameters(here: &[Parameters]) -> Table {
    let mut table = Table::new(
        "scaling-parameters",
        "The model's parameters",
        "step",
        &[("time", Unit::Seconds)],
    );
    for (name, of, told) in STEPS {
        let measured = if told {
            cell(here, of)
        } else {
            Cell::default()
        };
        table.row(name, [measured.beside(of(&PAPER))]);
    }
    table.note(
        "What has no figure of ours is in another one: who receives is found by the look-up; \
         taking an address from the FIFO, finding its handler and calling it are one; caches are kept \
         coherent by the machine; the kernel receives nothing.",
    )
}

fn messages(here: &[Parameters]) -> Table {
    let columns = [
        ("software, the paper's parameters", Unit::Seconds),
        ("supported, the paper's parameters", Unit::Seconds),
        ("speed-up, the paper's parameters", Unit::Times),
        ("software, here", Unit::Seconds),
        ("supported, here", Unit::Seconds),
        ("speed-up, here", Unit::Times),
    ];
    let mut table = Table::new(
        "scaling-messages",
        "A message of a line, as the model has it",
        "distance",
        &columns,
    );
    for distance in Distance::ALL {
        let takes = |p: &Parameters, support| p.message(support, distance, 1.0);
        let mut cells = vec![
            Cell::here(takes(&PAPER, Support::NONE)),
            Cell::here(takes(&PAPER, Support::FULL)),
            Cell::here(PAPER.speedup(distance, 1.0)),
        ];
        if distances(here).any(|found| found == distance) {
            cells.push(cell(here, |p| takes(p, Support::NONE)));
            cells.push(cell(here, |p| takes(p, Support::FULL)));
            cells.push(cell(here, |p| p.speedup(distance, 1.0)));
        }
        table.row(distance.name(), cells);
    }
    table.note(
        "The paper prints none of these; its Figure 6 is a drawing. What it measured is a null \
         RPC, of two such messages: see the verdict.",
    )
}

fn shares(here: &[Parameters]) -> Table {
    let columns = [
        ("shared L2", Unit::Share),
        ("three hops", Unit::Share),
        ("three hops of 6.1 µs", Unit::Share),
        ("shared L2, here", Unit::Share),
        ("three hops, here", Unit::Share),
    ];
    let mut table = Table::new(
        "scaling-shares",
        "Who has what share of the speed-up",
        "optimisation",
        &columns,
    );
    for (at, (name, _)) in OPTIMISATIONS.into_iter().enumerate() {
        let model = |distance| Cell::here(PAPER.shares(distance)[at]);
        let ours = |distance| cell(here, |p| p.shares(distance)[at]);
        let cells = [
            model(Distance::NEAR).beside(paper::SHARES_NEAR[at]),
            model(Distance::THREE_HOPS).beside(paper::SHARES_THREE_HOPS[at]),
            Cell::here(PAPER_LONG.shares(Distance::THREE_HOPS)[at]),
            ours(Distance::NEAR),
            ours(Distance::THREE_HOPS),
        ];
        table.row(name, cells);
    }
    table.note(
        "The first three columns are the model with the paper's parameters, beside what the \
         paper prints; the last two the same model with ours.",
    )
}

pub(super) fn plots(here: &[Parameters]) -> Vec<Plot> {
    let speedup = || Axis::linear("speed-up", Unit::Times);
    let mut by_distance = Plot::new(
        "scaling-6",
        "Figure 6: speed-up by distance (2: shared L2; 3: shared L3; 4 to 6: one to three hops)",
        Axis::linear("memory levels", Unit::Count),
        speedup(),
    );
    let at = |p: &Parameters, distance: Distance| (f64::from(distance.0), p.speedup(distance, 1.0));
    let paper = |p: Parameters| Distance::ALL.map(move |distance| at(&p, distance));
    by_distance.series("the paper's parameters", Origin::Paper, 0, paper(PAPER));
    by_distance.series(
        "the same, a hop of 6.1 µs",
        Origin::Paper,
        1,
        paper(PAPER_LONG),
    );
    let ours = distances(here).map(|distance| {
        let speedup = middle(here, |p| p.speedup(distance, 1.0)).median();
        (f64::from(distance.0), speedup)
    });
    by_distance.series("this machine's", Origin::Here, 2, ours);
    let by_speed = |id, title, distance| {
        let axis = Axis::linear("speed of the processor, to what it is", Unit::Times);
        let mut plot = Plot::new(id, title, axis, speedup());
        let paper = SPEEDS.map(|speed| (speed, PAPER.speedup(distance, speed)));
        plot.series("the paper's parameters", Origin::Paper, 0, paper);
        let ours = |speed| middle(here, |p| p.speedup(distance, speed)).median();
        let ours = SPEEDS.map(|speed| (speed, ours(speed)));
        plot.series("this machine's", Origin::Here, 2, ours);
        plot
    };
    vec![
        by_distance,
        by_speed(
            "scaling-7",
            "Figure 7: speed-up by the processor's speed, through the nearest common cache",
            Distance::NEAR,
        ),
        by_speed(
            "scaling-8",
            "Figure 8: speed-up by the processor's speed, over one link",
            Distance::ONE_HOP,
        ),
    ]
}

pub(super) fn verdicts(here: &[Parameters]) -> Vec<Verdict> {
    vec![
        reproduced(),
        null_rpc(),
        largest_share(here),
        fold(here),
        by_distance(here),
        by_speed(here),
    ]
}

fn percents(shares: [f64; 3]) -> String {
    shares
        .map(|share| format!("{:.0}", share * 100.0))
        .join("/")
}

/// Whether the model is the paper's.
fn reproduced() -> Verdict {
    let near = PAPER.shares(Distance::NEAR);
    let hops = PAPER.shares(Distance::THREE_HOPS);
    let long = PAPER_LONG.shares(Distance::THREE_HOPS);
    let off = |model: [f64; 3], printed: [f64; 3]| {
        let pairs = model.into_iter().zip(printed);
        pairs.fold(0.0, |most: f64, (m, p)| most.max((m - p).abs()))
    };
    let most = off(near, paper::SHARES_NEAR).max(off(hops, paper::SHARES_THREE_HOPS));
    let paragraph = format!(
        "With the paper's parameters the model gives {} % through a shared L2 and {} % over three \
         hops of 2 µs; the largest difference is {:.1} points. (Over three hops of 6.1 µs, with the same \
         queue, it would be {}.) It holds if no share is more than {:.0} points off. The queue \
         was chosen for this, so it says that the model can be the paper's, not that it is.",
        percents(near),
        percents(hops),
        most * 100.0,
        percents(long),
        NEAR_ENOUGH * 100.0
    );
    let claim = "79 % of the speed-up through an L2 cache is due to address-valued signals, 6 % to \
        message-oriented consistency, 15 % to signal on write; through three hops 56, 37 and 7 %";
    let mut verdict =
        Verdict::new("model-shares", claim, Some(most <= NEAR_ENOUGH)).because(paragraph);
    for (at, (name, _)) in OPTIMISATIONS.into_iter().enumerate() {
        let figure = |share: [f64; 3], printed: [f64; 3]| Cell::here(share[at]).beside(printed[at]);
        verdict = verdict
            .figure(
                format!("{name}, shared L2"),
                Unit::Share,
                figure(near, paper::SHARES_NEAR),
            )
            .figure(
                format!("{name}, three hops"),
                Unit::Share,
                figure(hops, paper::SHARES_THREE_HOPS),
            );
    }
    verdict
}

/// Whether the model gives what the paper measured, and took no part in choosing the queue.
fn null_rpc() -> Verdict {
    let rpc = |support| 2.0 * PAPER.message(support, Distance::NEAR, 1.0) + paper::RPC;
    let pairs = [
        (rpc(Support::FULL), paper::NULL_RPC),
        (rpc(Support::NONE), paper::NULL_RPC_SOFTWARE),
    ];
    let off = pairs.map(|(model, printed)| (model / printed - 1.0).abs());
    let most = off[0].max(off[1]);
    let show = |(model, printed): (f64, f64)| {
        format!(
            "{} (the paper: {})",
            Unit::Seconds.show(model),
            Unit::Seconds.quote(printed)
        )
    };
    let paragraph = format!(
        "Two messages of the model with the paper's parameters, and the {} that its Table 2 gives \
         for the RPC library, are {} supported and {} in software. Neither took part in choosing \
         the queue. It holds if both are within {:.0} % of what the paper measured.",
        Unit::Seconds.quote(paper::RPC),
        show(pairs[0]),
        show(pairs[1]),
        NEAR_ENOUGH * 100.0
    );
    let claim = "A null RPC through a shared L2 takes 44 µs with hardware support, 121 µs without";
    let figure = |(model, printed): (f64, f64)| Cell::here(model).beside(printed);
    Verdict::new("model-null-rpc", claim, Some(most <= NEAR_ENOUGH))
        .because(paragraph)
        .figure("null RPC, supported", Unit::Seconds, figure(pairs[0]))
        .figure("null RPC, software", Unit::Seconds, figure(pairs[1]))
}

/// `of` every slice's parameters, beside `to` of them.
fn beside(
    here: &[Parameters],
    of: impl Fn(&Parameters) -> f64,
    to: impl Fn(&Parameters) -> f64,
) -> Option<Beside> {
    let all = |f: &dyn Fn(&Parameters) -> f64| here.iter().map(f).collect::<Vec<f64>>();
    Beside::ratio(&all(&of), &all(&to))
}

fn largest_share(here: &[Parameters]) -> Verdict {
    let share = |distance, at: usize| beside(here, move |p| p.shares(distance)[at], |_| 1.0);
    let near = share(Distance::NEAR, 0);
    let cell = |distance, at: usize| cell(here, |p| p.shares(distance)[at]);
    let words = |distance| {
        let middle = |at: usize| cell(distance, at).here.unwrap_or(f64::NAN);
        percents([middle(0), middle(1), middle(2)])
    };
    let paragraph = format!(
        "With this machine's parameters signals, consistency and signal on write have {} % of the \
         speed-up through the nearest common cache and {} % over three hops of the loopback. It \
         holds if signals have more than half through the cache, in the middle half of the slices; \
         it cannot be told where that lies on both sides.",
        words(Distance::NEAR),
        words(Distance::THREE_HOPS)
    );
    let claim = "Most of the speed-up through a shared cache is due to address-valued signals";
    let holds = near.and_then(|near| near.below(0.5)).map(|below| !below);
    let mut verdict = Verdict::new("signals-most", claim, holds).because(paragraph);
    for (at, (name, _)) in OPTIMISATIONS.into_iter().enumerate() {
        verdict = verdict
            .figure(
                format!("{name}, near"),
                Unit::Share,
                cell(Distance::NEAR, at).beside(paper::SHARES_NEAR[at]),
            )
            .figure(
                format!("{name}, three hops"),
                Unit::Share,
                cell(Distance::THREE_HOPS, at).beside(paper::SHARES_THREE_HOPS[at]),
            );
    }
    verdict
}

fn fold(here: &[Parameters]) -> Verdict {
    let [low, high] = paper::FOLD;
    let speedup = |distance| beside(here, move |p| p.speedup(distance, 1.0), |_| 1.0);
    let all: Vec<Distance> = distances(here).collect();
    // In it, outside, or neither surely, at each distance.
    let inside = |distance| {
        let speedup = speedup(distance)?;
        match (speedup.below(low), speedup.below(high)) {
            (Some(false), Some(true)) => Some(true),
            (Some(true), _) | (_, Some(false)) => Some(false),
            _ => None,
        }
    };
    let answers: Vec<Option<bool>> = all.iter().map(|&distance| inside(distance)).collect();
    let holds = if here.is_empty() {
        None
    } else if answers.contains(&Some(false)) {
        Some(false)
    } else {
        answers
            .iter()
            .all(|answer| *answer == Some(true))
            .then_some(true)
    };
    let there = |distance| Unit::Times.show(PAPER.speedup(distance, 1.0));
    let near = speedup(Distance::NEAR);
    let hops = speedup(Distance::THREE_HOPS);
    let time = |of: fn(&Parameters) -> f64| Unit::Seconds.show(middle(here, of).median());
    let paragraph = format!(
        "The model's speed-up with the paper's parameters is {} through a shared L2 and {} over \
         three hops. With this machine's it is {} through the nearest common cache and {} over three \
         hops of the loopback. To wake a thread costs the waker {}, which support saves, and {} \
         until it runs, which it does not. It holds if all distances that this machine has lie between {low} and {high}. (In \
         brackets: where the middle half of the slices lies; it cannot be told where that is on \
         both sides of a bound.)",
        there(Distance::NEAR),
        there(Distance::THREE_HOPS),
        shown(near),
        shown(hops),
        time(|p| p.interrupt),
        time(|p| p.deliver),
    );
    let claim = "Hardware-supported memory-based messages would offer approximately a \
        three-to-five fold improvement in performance for basic communication operations";
    Verdict::new("three-to-five", claim, holds)
        .because(paragraph)
        .figure(
            "speed-up, near",
            Unit::Times,
            figure(near).beside(PAPER.speedup(Distance::NEAR, 1.0)),
        )
        .figure(
            "speed-up, three hops",
            Unit::Times,
            figure(hops).beside(PAPER.speedup(Distance::THREE_HOPS, 1.0)),
        )
}

/// Whether something of each slice's parameters is more at one end than at the other.
fn rises(
    (id, claim): (&str, &str),
    what: &str,
    here: &[Parameters],
    [from, to]: [&dyn Fn(&Parameters) -> f64; 2],
) -> Verdict {
    let ratio = beside(here, to, from);
    let holds = ratio.and_then(Beside::less).map(|less| !less);
    let paper = to(&PAPER) / from(&PAPER);
    let cells = [cell(here, from), cell(here, to)];
    let show = |cell: &Cell| Unit::Times.show(cell.here.unwrap_or(f64::NAN));
    let paragraph = format!(
        "{what} the speed-up is {} instead of {}, {} of it; with the paper's parameters {}. It \
         holds if it rises. (In brackets: where the middle half of the slices lies. Unless \
         all of that is on one side of 1 it cannot be told.)",
        show(&cells[1]),
        show(&cells[0]),
        shown(ratio),
        Unit::Times.show(paper),
    );
    Verdict::new(id, claim, holds)
        .because(paragraph)
        .figure("speed-up, from", Unit::Times, cells[0].beside(from(&PAPER)))
        .figure("speed-up, to", Unit::Times, cells[1].beside(to(&PAPER)))
        .figure(
            "to, relative to from",
            Unit::Times,
            figure(ratio).beside(paper),
        )
}

fn by_distance(here: &[Parameters]) -> Verdict {
    rises(
        (
            "rises-with-distance",
            "The speed-up is more significant for processors widely separated in the memory system",
        ),
        "Over three hops of the loopback, not through the nearest common cache,",
        here,
        [&|p| p.speedup(Distance::NEAR, 1.0), &|p| {
            p.speedup(Distance::THREE_HOPS, 1.0)
        }],
    )
}

fn by_speed(here: &[Parameters]) -> Verdict {
    rises(
        (
            "rises-with-speed",
            "The speed-up increases with processor speed",
        ),
        "Through the nearest common cache, with processors ten times as fast,",
        here,
        [&|p| p.speedup(Distance::NEAR, 1.0), &|p| {
            p.speedup(Distance::NEAR, 10.0)
        }],
    )
}
