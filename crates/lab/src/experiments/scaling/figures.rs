//! Makes the tables, plots and verdicts of the model.

use super::model::{Distance, LONG_HOP, OPTIMISATIONS, PAPER, Parameters, QUEUE, Support};
use super::paper;
use crate::claims::{Claim, table};
use crate::clock::Timed;
use crate::lanes::{Beside, figure, shown};
use crate::outcome::{Axis, Cell, Origin, Plot, Table, Verdict};
use crate::unit::Unit;

/// Speeds of the processor, to what it is.
const SPEEDS: [f64; 8] = [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0];

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
         RPC, of two such messages: see the verdict. Here, the nearest cache that two processors share \
         stands for its L2, however large it is, and the loopback for a link.",
    )
}

fn shares(here: &[Parameters]) -> Table {
    let columns = [
        ("shared L2", Unit::Share),
        ("three hops", Unit::Share),
        ("three hops of 6.1 µs", Unit::Share),
        ("nearest common cache, here", Unit::Share),
        ("three hops of the loopback, here", Unit::Share),
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
    by_distance.series(
        "the model, the paper's parameters",
        Origin::Paper,
        0,
        paper(PAPER),
    );
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
    by_distance.series("the model, this machine's", Origin::Here, 2, ours);
    let by_speed = |id, title, distance| {
        let axis = Axis::linear("speed of the processor, to what it is", Unit::Times);
        let mut plot = Plot::new(id, title, axis, speedup());
        let paper = SPEEDS.map(|speed| (speed, PAPER.speedup(distance, speed)));
        plot.series("the model, the paper's parameters", Origin::Paper, 0, paper);
        let ours = |speed| middle(here, |p| p.speedup(distance, speed)).median();
        let ours = SPEEDS.map(|speed| (speed, ours(speed)));
        plot.series("the model, this machine's", Origin::Here, 2, ours);
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
        by_speed_over_a_link(here),
    ]
}

fn percents(shares: [f64; 3]) -> String {
    shares
        .map(|share| format!("{:.0}", share * 100.0))
        .join("/")
}

/// How near the model comes to the shares for which its queue was chosen.
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
        "Fitted was the queue in shared memory, which the paper does not describe: {} lines and {} \
         crossings are the whole numbers with which the model comes nearest to these six shares. \
         With them, and the paper's parameters, it gives {} % through a shared L2 and {} % over three \
         hops of 2 µs; the largest difference is {:.1} points. With the hop of 6.1 µs that the paper \
         names as well it gives {}, and no queue brings that near.",
        QUEUE.lines,
        QUEUE.crossings,
        percents(near),
        percents(hops),
        most * 100.0,
        percents(long),
    );
    let mut verdict = table::MODEL_SHARES.verdict(&[]).because(paragraph);
    for (at, (name, _)) in OPTIMISATIONS.into_iter().enumerate() {
        let figure = |share: [f64; 3], printed: [f64; 3]| Cell::here(share[at]).beside(printed[at]);
        verdict = verdict
            .figure(
                format!("by the model: {name}, shared L2"),
                Unit::Share,
                figure(near, paper::SHARES_NEAR),
            )
            .figure(
                format!("by the model: {name}, three hops"),
                Unit::Share,
                figure(hops, paper::SHARES_THREE_HOPS),
            );
    }
    verdict
}

/// What the model gives that the paper measured, and that took no part in choosing the queue.
fn null_rpc() -> Verdict {
    let rpc = |support| 2.0 * PAPER.message(support, Distance::NEAR, 1.0) + paper::RPC;
    let pairs = [
        (rpc(Support::FULL), paper::NULL_RPC),
        (rpc(Support::NONE), paper::NULL_RPC_SOFTWARE),
    ];
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
         the queue, which speaks for the model; nothing of this machine is in it.",
        Unit::Seconds.quote(paper::RPC),
        show(pairs[0]),
        show(pairs[1]),
    );
    let figure = |(model, printed): (f64, f64)| Cell::here(model).beside(printed);
    table::MODEL_NULL_RPC
        .verdict(&[])
        .because(paragraph)
        .figure(
            "by the model: null RPC, supported",
            Unit::Seconds,
            figure(pairs[0]),
        )
        .figure(
            "by the model: null RPC, software",
            Unit::Seconds,
            figure(pairs[1]),
        )
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
    let cell = |distance, at: usize| cell(here, |p| p.shares(distance)[at]);
    let words = |distance| {
        let middle = |at: usize| cell(distance, at).here.unwrap_or(f64::NAN);
        percents([middle(0), middle(1), middle(2)])
    };
    let paragraph = format!(
        "By the model, with parameters measured on this machine, signals, consistency and signal on \
         write have {} % of the speed-up through the nearest common cache and {} % over three hops of \
         the loopback. The model charges a message without address-valued signals with {} lines of a \
         queue and an interrupt, and one without the others with two lines and a system call: near, \
         no measurement could have made the share of signals a smaller one.",
        words(Distance::NEAR),
        words(Distance::THREE_HOPS),
        QUEUE.lines,
    );
    let verdict = table::SIGNALS_MOST.verdict(&[]).because(paragraph);
    let rest = OPTIMISATIONS.into_iter().enumerate();
    rest.fold(verdict, |verdict, (at, (name, _))| {
        let verdict = verdict.figure(
            format!("{name}, three hops"),
            Unit::Share,
            cell(Distance::THREE_HOPS, at).beside(paper::SHARES_THREE_HOPS[at]),
        );
        verdict.figure(
            format!("{name}, near"),
            Unit::Share,
            cell(Distance::NEAR, at).beside(paper::SHARES_NEAR[at]),
        )
    })
}

fn fold(here: &[Parameters]) -> Verdict {
    let speedup = |distance| beside(here, move |p| p.speedup(distance, 1.0), |_| 1.0);
    let there = |distance| Unit::Times.show(PAPER.speedup(distance, 1.0));
    let near = speedup(Distance::NEAR);
    let hops = speedup(Distance::THREE_HOPS);
    let time = |of: fn(&Parameters) -> f64| Unit::Seconds.show(middle(here, of).median());
    let paragraph = format!(
        "The model's speed-up with the paper's parameters is {} through a shared L2 and {} over \
         three hops; the paper draws these, and prints none. With parameters measured on this machine it is {} through the nearest common \
         cache and {} over three hops of the loopback, none of it a message that was measured. To wake a thread costs the waker {}, which \
         support saves, and {} until it runs, which it does not.",
        there(Distance::NEAR),
        there(Distance::THREE_HOPS),
        shown(near),
        shown(hops),
        time(|p| p.interrupt),
        time(|p| p.deliver),
    );
    let verdict = table::THREE_TO_FIVE.verdict(&[]).because(paragraph);
    let of = |name, ours, distance| (name, figure(ours), PAPER.speedup(distance, 1.0));
    modelled(
        verdict,
        [
            of("speed-up, near", near, Distance::NEAR),
            of("speed-up, three hops", hops, Distance::THREE_HOPS),
        ],
    )
}

/// One end of what rises: its name, and the speed-up there.
type End<'a> = (&'a str, &'a dyn Fn(&Parameters) -> f64);

/// What the model makes of something at one end and at the other. It charges software with more
/// transactions, and a processor's speed with none, so it can only rise.
fn rises(
    claim: &Claim,
    what: &str,
    here: &[Parameters],
    [(from_name, from), (to_name, to)]: [End<'_>; 2],
) -> Verdict {
    let ratio = beside(here, to, from);
    let paper = [from(&PAPER), to(&PAPER), to(&PAPER) / from(&PAPER)];
    let cells = [cell(here, from), cell(here, to)];
    let show = |cell: &Cell| Unit::Times.show(cell.here.unwrap_or(f64::NAN));
    let paragraph = format!(
        "{what} the speed-up is {} instead of {}, {} of it; with the paper's parameters {}. The \
         model charges a message in software with more transactions than a supported one, whatever \
         they cost.",
        show(&cells[1]),
        show(&cells[0]),
        shown(ratio),
        Unit::Times.show(paper[2]),
    );
    let verdict = claim.verdict(&[]).because(paragraph);
    let [from, to] = cells;
    let relative = format!("{to_name} to {from_name}");
    let [from_name, to_name] = [from_name, to_name].map(|name| format!("speed-up, {name}"));
    let named = [
        (&*from_name, from, paper[0]),
        (&*to_name, to, paper[1]),
        (&*relative, figure(ratio), paper[2]),
    ];
    modelled(verdict, named)
}

/// With what the model gives by this machine's parameters and by the paper's, which the paper does not
/// print.
fn modelled<'a>(
    verdict: Verdict,
    figures: impl IntoIterator<Item = (&'a str, Cell, f64)>,
) -> Verdict {
    figures
        .into_iter()
        .fold(verdict, |verdict, (name, here, paper)| {
            verdict
                .figure(
                    format!("{name}, by the model with this machine's parameters"),
                    Unit::Times,
                    here,
                )
                .figure(
                    format!("{name}, by the model with the paper's parameters"),
                    Unit::Times,
                    Cell::here(paper),
                )
        })
}

fn by_distance(here: &[Parameters]) -> Verdict {
    rises(
        &table::RISES_WITH_DISTANCE,
        "Over three hops of the loopback, not through the nearest common cache,",
        here,
        [
            ("near", &|p| p.speedup(Distance::NEAR, 1.0)),
            ("three hops", &|p| p.speedup(Distance::THREE_HOPS, 1.0)),
        ],
    )
}

fn by_speed(here: &[Parameters]) -> Verdict {
    rises(
        &table::RISES_WITH_SPEED,
        "Through the nearest common cache, with processors ten times as fast,",
        here,
        [
            ("processors as they are", &|p| {
                p.speedup(Distance::NEAR, 1.0)
            }),
            ("ten times as fast", &|p| p.speedup(Distance::NEAR, 10.0)),
        ],
    )
}

fn by_speed_over_a_link(here: &[Parameters]) -> Verdict {
    rises(
        &table::RISES_OVER_A_LINK,
        "Over one hop of the loopback, with processors ten times as fast,",
        here,
        [
            ("processors as they are", &|p| {
                p.speedup(Distance::ONE_HOP, 1.0)
            }),
            ("ten times as fast", &|p| p.speedup(Distance::ONE_HOP, 10.0)),
        ],
    )
}
