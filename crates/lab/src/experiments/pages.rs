//! Table III measures what one page more costs, and when it pays to map it at once.

use std::time::Duration;

use crate::clock::Timed;
use crate::error::Result;
use crate::experiment::{Context, DASH, Experiment, Need, Source};
use crate::grid::{Grid, Plan, Temper, Way, size};
use crate::outcome::{Cell, Outcome, Table, Verdict};
use crate::pair::{Effort, HUGE_PAGE, Layout, Load, Use};
use crate::paper;
use crate::unit::Unit;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "pages",
    title: "Table III: what a page costs, and when to map it at once",
    source: Source {
        paper: DASH,
        section: "Measurement results, Table III; The effectiveness of the DASH design",
    },
    hypothesis: "Remapping has a low initial cost, so it pays from the first page. Mapping at \
        once pays when the pages accessed are at least N times those that are not; the paper's N \
        is 3.",
    method: "As for Tables I and II, by the same two processes. The first page costs what a \
        message of one page takes longer than a null message; a later page what a message of \
        many takes longer than one of one, for each page more. What mapping on demand saves for \
        a page that is not accessed is the difference between the two methods when nothing is; \
        what it wastes for one that is, their difference when all is; N is saved over wasted.",
    needs: &[Need::Memory(512 << 20)],
    run,
};

/// A page of some kind: how one page is sent, how many are, and their size.
struct Kind {
    id: &'static str,
    name: &'static str,
    layout: Layout,
    page: u64,
    pages: u64,
}

const KINDS: [Kind; 3] = [
    Kind {
        id: "table-3",
        name: "8 KiB, each an extent of its own",
        layout: Layout::Pages,
        page: paper::PAGE,
        pages: 8,
    },
    Kind {
        id: "table-3-one",
        name: "8 KiB, in one extent of up to 1 MiB",
        layout: Layout::One,
        page: paper::PAGE,
        pages: 128,
    },
    Kind {
        id: "table-3-huge",
        name: "2 MiB, in one extent of up to 64 MiB",
        layout: Layout::One,
        page: HUGE_PAGE,
        pages: 32,
    },
];

impl Kind {
    fn load(&self, pages: u64) -> Load {
        Load {
            layout: self.layout,
            bytes: pages * self.page,
        }
    }
}

/// The ways of moving that are remapping: Table III's first three, and the one that the paper's
/// Table II has besides.
const MOVES: [(&str, bool, bool); 4] = [
    ("mapped on demand, not accessed", false, false),
    ("mapped by receive, not accessed", true, false),
    ("mapped by receive, accessed", true, true),
    ("mapped on demand, accessed", false, true),
];

fn run(context: &Context<'_>) -> Result<Outcome> {
    let effort = context.pick(
        Effort {
            slices: 2,
            slice: Duration::from_micros(100),
        },
        Effort {
            slices: 5,
            slice: Duration::from_millis(40),
        },
    );
    let passes = context.pick(1, 3);
    let plans: Vec<Plan> = KINDS
        .iter()
        .flat_map(|kind| [0, 1, kind.pages].map(|pages| plan(kind.load(pages))))
        .collect();
    let sizes: Vec<u64> = KINDS
        .iter()
        .flat_map(|kind| [kind.page, kind.page * kind.pages])
        .collect();
    context
        .progress
        .begin((plans.len() * 2 + sizes.len()) * passes);
    let mut outcome = Outcome::default();
    let mut grid = Grid::default();
    for _ in 0..passes {
        for way in [Way::Guarded, Way::Trusted] {
            let way = (way, Temper::Hot);
            grid.moves(context, &mut outcome, way, &plans, effort)?;
        }
        grid.copies(context, Temper::Hot, &sizes, effort)?;
    }
    let view = View(&grid);
    outcome.tables = KINDS.iter().map(|kind| view.table(kind)).collect();
    outcome.tables.push(view.lazy_table());
    outcome.verdicts = vec![view.first_page(), view.pays(), view.lazy()];
    Ok(outcome)
}

fn plan(load: Load) -> Plan {
    let uses = MOVES.map(|(_, now, all)| usage(load, now, all));
    Plan {
        load,
        uses: uses.into(),
    }
}

fn usage(load: Load, now: bool, all: bool) -> Use {
    Use {
        now,
        accessed: if all { load.bytes } else { 0 },
    }
}

/// A cost of a page, and what it lies between; a difference of two figures.
#[derive(Clone, Copy, Debug)]
struct Cost {
    seconds: f64,
    /// The figures that it is the difference of are clearly apart.
    clear: bool,
}

impl Cost {
    /// What `more` takes longer than `less`, for each of `pages`.
    fn of(more: &Timed, less: &Timed, pages: u64) -> Self {
        Self {
            seconds: (more.median() - less.median()) / pages as f64,
            clear: more.clear_of(less),
        }
    }

    fn cell(cost: Option<Self>) -> Cell {
        cost.map_or_else(Cell::default, |cost| Cell::here(cost.seconds))
    }
}

/// What mapping on demand saves and wastes, a page.
struct Lazy {
    saved: Cost,
    wasted: Cost,
}

impl Lazy {
    /// Pages accessed for one not accessed from which mapping at once pays.
    fn ratio(&self) -> Option<f64> {
        let ratio = self.saved.seconds / self.wasted.seconds;
        (self.saved.clear && self.wasted.clear && ratio > 0.0).then_some(ratio)
    }
}

/// Tables and verdicts of what was measured.
struct View<'a>(&'a Grid);

impl View<'_> {
    fn at(&self, way: Way, load: Load, now: bool, all: bool) -> Option<&Timed> {
        self.0.moved(way, Temper::Hot, load, usage(load, now, all))
    }

    /// The first page's cost, and a later one's.
    fn moved(&self, way: Way, kind: &Kind, now: bool, all: bool) -> [Option<Cost>; 2] {
        let at = |pages: u64| self.at(way, kind.load(pages), now, all);
        let cost = |more: u64, less: u64| Some(Cost::of(at(more)?, at(less)?, more - less));
        [cost(1, 0), cost(kind.pages, 1)]
    }

    fn copied(&self, kind: &Kind, times: u8) -> [Option<Cost>; 2] {
        let at = |pages: u64| self.0.copied(Temper::Hot, pages * kind.page, times);
        let first = at(1).map(|one| Cost {
            seconds: one.median(),
            clear: true,
        });
        let later = at(kind.pages).zip(at(1));
        [
            first,
            later.map(|(all, one)| Cost::of(all, one, kind.pages - 1)),
        ]
    }

    fn table(&self, kind: &Kind) -> Table {
        let columns = [
            ("first page", Unit::Seconds),
            ("later pages", Unit::Seconds),
        ];
        let title = format!("Table III: one page more, {}", kind.name);
        let mut table = Table::new(kind.id, &title, "how the page is moved", &columns);
        let mut row = |label: &str, [first, later]: [Option<Cost>; 2]| {
            let papers = paper::TABLE_3.iter().find(|(name, ..)| *name == label);
            let papers = papers.filter(|_| matches!(kind.layout, Layout::Pages));
            let cells = [
                Cost::cell(first).beside(papers.map(|(_, first, _)| *first)),
                Cost::cell(later).beside(papers.map(|(.., later)| *later)),
            ];
            table.row(label, cells);
        };
        for (label, now, all) in MOVES {
            row(label, self.moved(Way::Guarded, kind, now, all));
        }
        row(
            "trusted, not accessed",
            self.moved(Way::Trusted, kind, false, false),
        );
        row(
            "trusted, accessed",
            self.moved(Way::Trusted, kind, false, true),
        );
        row("copy once", self.copied(kind, 1));
        row("copy twice", self.copied(kind, 2));
        table.note(format!(
            "A later page is the difference between {} and {}, for each page more. Where that \
             difference is smaller than the spread of the figures it may come out below zero.",
            size(kind.page * kind.pages),
            size(kind.page)
        ))
    }

    fn lazy_of(&self, kind: &Kind) -> Option<Lazy> {
        let load = kind.load(kind.pages);
        let at = |now, all| self.at(Way::Guarded, load, now, all);
        Some(Lazy {
            saved: Cost::of(at(true, false)?, at(false, false)?, kind.pages),
            wasted: Cost::of(at(false, true)?, at(true, true)?, kind.pages),
        })
    }

    fn lazy_table(&self) -> Table {
        let columns = [
            ("saved, not accessed", Unit::Seconds),
            ("wasted, accessed", Unit::Seconds),
            ("N", Unit::Times),
        ];
        let mut table = Table::new(
            "lazy",
            "What mapping on demand saves and wastes, for each page",
            "pages of",
            &columns,
        );
        for kind in &KINDS {
            let lazy = self.lazy_of(kind);
            let cost = |pick: fn(&Lazy) -> Cost| Cost::cell(lazy.as_ref().map(pick));
            let ratio = lazy.as_ref().and_then(Lazy::ratio);
            let mut cells = [
                cost(|lazy| lazy.saved),
                cost(|lazy| lazy.wasted),
                ratio.map_or_else(Cell::default, Cell::here),
            ];
            if matches!(kind.layout, Layout::Pages) {
                cells[0] = cells[0].beside(paper::SAVES);
                cells[1] = cells[1].beside(paper::WASTES);
                cells[2] = cells[2].beside(paper::SAVES / paper::WASTES);
            }
            table.row(kind.name, cells);
        }
        table.note(
            "The paper's are its operations C, G and H, which a page that is not accessed is \
             spared, and F and I, the fault of one that is. In one extent one fault opens up to \
             64 KiB, or all huge pages. There is no N where either figure is within the spread, \
             or below zero.",
        )
    }

    fn first_page(&self) -> Verdict {
        let kind = &KINDS[0];
        let [first, later] = self.moved(Way::Guarded, kind, false, true);
        let surplus = first
            .zip(later)
            .map(|(first, later)| first.seconds - later.seconds);
        let copy = self.copied(kind, 1)[0].map(|copy| copy.seconds);
        let (_, paper_first, paper_later) = paper::TABLE_3[2];
        let holds = surplus.zip(copy).map(|(surplus, copy)| surplus < copy);
        let paragraph = match first.zip(later).zip(copy) {
            None => "It could not be measured.".to_owned(),
            Some(((first, later), copy)) => format!(
                "Mapped on demand and accessed, the first page of 8 KiB costs {} here and a later \
                 one {}: the first is {} dearer. Copying one takes {}. The initial cost is low if \
                 it is less than that.",
                Unit::Seconds.show(first.seconds),
                Unit::Seconds.show(later.seconds),
                Unit::Seconds.show(first.seconds - later.seconds),
                Unit::Seconds.show(copy),
            ),
        };
        let cell = |seconds: Option<f64>| seconds.map_or_else(Cell::default, Cell::here);
        Verdict::new(
            "first-page",
            "The initial cost is low: the first page costs about 30 µs more than a later one",
            holds,
        )
        .because(paragraph)
        .figure(
            "first page",
            Unit::Seconds,
            Cost::cell(first).beside(paper_first),
        )
        .figure(
            "later page",
            Unit::Seconds,
            Cost::cell(later).beside(paper_later),
        )
        .figure(
            "dearer by",
            Unit::Seconds,
            cell(surplus).beside(paper_first - paper_later),
        )
        .figure("copy once", Unit::Seconds, cell(copy).beside(paper::COPY))
    }

    fn pays(&self) -> Verdict {
        let kind = &KINDS[0];
        let first = |way| self.moved(way, kind, false, true)[0].map(|cost| cost.seconds);
        let (guarded, trusted) = (first(Way::Guarded), first(Way::Trusted));
        let [once, twice] = [1, 2].map(|times| self.copied(kind, times)[0].map(|c| c.seconds));
        let holds = guarded.zip(once).map(|(guarded, once)| guarded < once);
        let against = |name: &str, moved: Option<f64>| {
            let (Some(moved), Some(once), Some(twice)) = (moved, once, twice) else {
                return format!("In a {name} domain it could not be measured. ");
            };
            format!(
                "In a {name} domain the first page, mapped on demand and accessed, costs {}, which \
                 is {} one copy and {} two. ",
                Unit::Seconds.show(moved),
                Unit::Times.show(moved / once),
                Unit::Times.show(moved / twice)
            )
        };
        let paragraph = against("guarded", guarded)
            + &against("trusted", trusted)
            + "It holds if the guarded page costs less than one copy.";
        let cell = |seconds: Option<f64>| seconds.map_or_else(Cell::default, Cell::here);
        Verdict::new(
            "pays-from-one-page",
            "Remapping is beneficial even when a message contains only one page",
            holds,
        )
        .because(paragraph)
        .figure(
            "guarded",
            Unit::Seconds,
            cell(guarded).beside(paper::TABLE_3[2].1),
        )
        .figure("trusted", Unit::Seconds, cell(trusted))
        .figure("copy once", Unit::Seconds, cell(once).beside(paper::COPY))
        .figure(
            "copy twice",
            Unit::Seconds,
            cell(twice).beside(2.0 * paper::COPY),
        )
    }

    fn lazy(&self) -> Verdict {
        let lazy = self.lazy_of(&KINDS[0]);
        let ratio = lazy.as_ref().and_then(Lazy::ratio);
        let paragraph = match &lazy {
            None => "It could not be measured.".to_owned(),
            Some(lazy) => {
                let found = match ratio {
                    Some(ratio) => format!(
                        "so mapping at once pays when the pages accessed are at least {} times \
                         those that are not",
                        format!("{ratio:.1}").trim_end_matches(".0")
                    ),
                    None if !lazy.wasted.clear => {
                        "and what it wastes is within the spread of the figures".to_owned()
                    }
                    None if !lazy.saved.clear => {
                        "and what it saves is within the spread of the figures".to_owned()
                    }
                    None => "so one of the two methods is always the better".to_owned(),
                };
                format!(
                    "Mapping on demand saves {} here for each page of 8 KiB that is not accessed \
                     (operations C, G, H) and wastes {} for each that is (F, I), {found}. By the \
                     paper's own parts its N is {:.1}, which it rounds up to 3.",
                    Unit::Seconds.show(lazy.saved.seconds),
                    Unit::Seconds.show(lazy.wasted.seconds),
                    paper::SAVES / paper::WASTES,
                )
            }
        };
        // Both signs are known and the ratio is not above zero: the rule has no N here.
        let decided = lazy
            .as_ref()
            .is_some_and(|l| l.saved.clear && l.wasted.clear);
        let holds = decided.then(|| ratio.is_some_and(|ratio| (2.0..=4.0).contains(&ratio)));
        let cost = |pick: fn(&Lazy) -> Cost| Cost::cell(lazy.as_ref().map(pick));
        Verdict::new(
            "three-times",
            "Mapping at once pays only when the pages accessed are at least three times those not",
            holds,
        )
        .because(paragraph + " It holds if N here lies between 2 and 4.")
        .figure(
            "saved",
            Unit::Seconds,
            cost(|lazy| lazy.saved).beside(paper::SAVES),
        )
        .figure(
            "wasted",
            Unit::Seconds,
            cost(|lazy| lazy.wasted).beside(paper::WASTES),
        )
        .figure(
            "N",
            Unit::Times,
            ratio
                .map_or_else(Cell::default, Cell::here)
                .beside(paper::SAVES / paper::WASTES),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_no_ratio_of_what_is_not_known() {
        let cost = |seconds, clear| Cost { seconds, clear };
        let ratio = |saved, wasted| Lazy { saved, wasted }.ratio();
        assert_eq!(ratio(cost(6.0, true), cost(2.0, true)), Some(3.0));
        assert_eq!(ratio(cost(6.0, true), cost(2.0, false)), None);
        assert_eq!(ratio(cost(6.0, true), cost(-2.0, true)), None);
    }
}
