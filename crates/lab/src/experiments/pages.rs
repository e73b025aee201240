//! Table III measures what one page more costs, and when it pays to map it at once.

use std::time::Duration;

use crate::claims::{self, Estimate, table};
use crate::clock::Timed;
use crate::error::Result;
use crate::experiment::{Context, DASH, Experiment, Need, Source};
use crate::grid::{Grid, Plan, Temper, Waits, Way, size};
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
        is about 3.",
    method: "As for Tables I and II, by the same two processes, asleep on one processor and then \
        polling on two, huge pages looked at before; verdicts are made of the former. The first page costs what a \
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
        grid.moves(context, &mut outcome, Temper::Hot, &plans, effort)?;
        grid.copies(context, Temper::Hot, &sizes, effort)?;
    }
    let of = |waits| View { grid: &grid, waits };
    for waits in Waits::here(context, &mut outcome) {
        let view = of(waits);
        outcome
            .tables
            .extend(KINDS.iter().map(|kind| view.table(kind)));
        outcome.tables.push(view.lazy_table());
    }
    // The papers' machine had one processor.
    let view = of(Waits::Asleep);
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

/// What `more` takes longer than `less`, for each of `pages`; measured apart.
fn cost(more: &Timed, less: &Timed, pages: u64) -> Option<Estimate> {
    let longer = claims::timed(more)?.less(claims::timed(less)?)?;
    longer.times(1.0 / pages as f64)
}

fn cell(cost: Option<Estimate>) -> Cell {
    cost.map_or_else(Cell::default, Estimate::cell)
}

/// What mapping on demand saves and wastes, a page.
struct Lazy {
    saved: Option<Estimate>,
    wasted: Option<Estimate>,
}

impl Lazy {
    /// Pages accessed for one not accessed from which mapping at once pays. None where nothing
    /// may be wasted.
    fn ratio(&self) -> Option<Estimate> {
        claims::ratio(self.saved, self.wasted)
    }
}

/// Tables and verdicts of what was measured.
struct View<'a> {
    grid: &'a Grid,
    waits: Waits,
}

impl View<'_> {
    fn at(&self, way: Way, load: Load, now: bool, all: bool) -> Option<&Timed> {
        let usage = usage(load, now, all);
        self.grid.moved((self.waits, way), Temper::Hot, load, usage)
    }

    /// The first page's cost, and a later one's.
    fn moved(&self, way: Way, kind: &Kind, now: bool, all: bool) -> [Option<Estimate>; 2] {
        let at = |pages: u64| self.at(way, kind.load(pages), now, all);
        let between = |more: u64, less: u64| cost(at(more)?, at(less)?, more - less);
        [between(1, 0), between(kind.pages, 1)]
    }

    fn copied(&self, kind: &Kind, times: u8) -> [Option<Estimate>; 2] {
        let at = |pages: u64| self.grid.copied(Temper::Hot, pages * kind.page, times);
        let later = at(kind.pages).zip(at(1));
        [
            at(1).and_then(claims::timed),
            later.and_then(|(all, one)| cost(all, one, kind.pages - 1)),
        ]
    }

    fn table(&self, kind: &Kind) -> Table {
        let columns = [
            ("first page", Unit::Seconds),
            ("later pages", Unit::Seconds),
        ];
        let waits = self.waits;
        let title = format!("Table III: one page more, {}, {}", kind.name, waits.name());
        let id = format!("{}{}", kind.id, waits.suffix());
        let mut table = Table::new(&id, &title, "how the page is moved", &columns);
        let mut row = |label: &str, [first, later]: [Option<Estimate>; 2]| {
            let papers = paper::TABLE_3.iter().find(|(name, ..)| *name == label);
            let as_papers = matches!(kind.layout, Layout::Pages) && waits == Waits::Asleep;
            let papers = papers.filter(|_| as_papers);
            let cells = [
                cell(first).beside(papers.map(|(_, first, _)| *first)),
                cell(later).beside(papers.map(|(.., later)| *later)),
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
             difference is smaller than the spread of the figures it may come out below zero. A trusted \
             page that is not touched costs nothing: only its owner changes.",
            size(kind.page * kind.pages),
            size(kind.page)
        ))
    }

    fn lazy_of(&self, kind: &Kind) -> Option<Lazy> {
        let load = kind.load(kind.pages);
        let at = |now, all| self.at(Way::Guarded, load, now, all);
        Some(Lazy {
            saved: cost(at(true, false)?, at(false, false)?, kind.pages),
            wasted: cost(at(false, true)?, at(true, true)?, kind.pages),
        })
    }

    fn lazy_table(&self) -> Table {
        let columns = [
            ("saved, not accessed", Unit::Seconds),
            ("wasted, accessed", Unit::Seconds),
            ("N", Unit::Times),
        ];
        let mut table = Table::new(
            &format!("lazy{}", self.waits.suffix()),
            &format!(
                "What mapping on demand saves and wastes, for each page, {}",
                self.waits.name()
            ),
            "pages of",
            &columns,
        );
        for kind in &KINDS {
            let lazy = self.lazy_of(kind);
            let of = |pick: fn(&Lazy) -> Option<Estimate>| cell(lazy.as_ref().and_then(pick));
            let mut cells = [
                of(|lazy| lazy.saved),
                of(|lazy| lazy.wasted),
                of(Lazy::ratio),
            ];
            if matches!(kind.layout, Layout::Pages) && self.waits == Waits::Asleep {
                cells[0] = cells[0].beside(paper::SAVES);
                cells[1] = cells[1].beside(paper::WASTES);
                cells[2] = cells[2].beside(paper::SAVES / paper::WASTES);
            }
            table.row(kind.name, cells);
        }
        table.note(
            "The paper's are its operations C, G and H, which a page that is not accessed is \
             spared, and F and I, the fault of one that is. In one extent one fault opens up to \
             64 KiB, or all huge pages. There is no N where what is wasted may be nothing.",
        )
    }

    /// What the first page of 8 KiB costs: measured twice, since in an extent of its own and as the
    /// first of one large extent it is the same message.
    fn first(&self, way: Way) -> [Option<Estimate>; 3] {
        let [own, one] = [0, 1].map(|kind| self.moved(way, &KINDS[kind], false, true)[0]);
        let both = own.zip(one).and_then(|(own, one)| own.and(one));
        [both.or(own).or(one), own, one]
    }

    fn first_page(&self) -> Verdict {
        let kind = &KINDS[0];
        let [_, later] = self.moved(Way::Guarded, kind, false, true);
        let [first, own, one] = self.first(Way::Guarded);
        let dearer = first
            .zip(later)
            .and_then(|(first, later)| first.less(later));
        let ratio = claims::ratio(first, later);
        let copy = self.copied(kind, 1)[0];
        let (_, paper_first, paper_later) = paper::TABLE_3[2];
        let show = |estimate| claims::shown(estimate, Unit::Seconds);
        let paragraph = format!(
            "Mapped on demand and accessed, the first page of 8 KiB costs {}, measured twice: {} and {} in \
             two of the tables below, which are the same by definition. A later one, in an extent of its \
             own, costs {}: the first is {} dearer, {} of a later one. (Copying one takes {}.)",
            show(first),
            show(own),
            show(one),
            show(later),
            show(dearer),
            claims::shown(ratio, Unit::Times),
            show(copy),
        );
        table::FIRST_PAGE
            .verdict(&[ratio])
            .because(paragraph)
            .figure("first page", Unit::Seconds, cell(first).beside(paper_first))
            .figure("later page", Unit::Seconds, cell(later).beside(paper_later))
            .figure(
                "dearer by",
                Unit::Seconds,
                cell(dearer).beside(paper_first - paper_later),
            )
    }

    fn pays(&self) -> Verdict {
        let kind = &KINDS[0];
        let first = |way| self.first(way)[0];
        let (guarded, trusted) = (first(Way::Guarded), first(Way::Trusted));
        let [once, twice] = [1, 2].map(|times| self.copied(kind, times)[0]);
        let against = |name: &str, moved: Option<Estimate>| {
            let costs = format!(
                "In a {name} domain the first page, mapped on demand and accessed, costs {}",
                claims::shown(moved, Unit::Seconds)
            );
            // What may be nothing is no multiple of anything.
            match moved.filter(|moved| moved.is_positive()) {
                Some(_) => format!(
                    "{costs}, which is {} one copy and {} two.",
                    claims::shown(claims::ratio(moved, once), Unit::Times),
                    claims::shown(claims::ratio(moved, twice), Unit::Times),
                ),
                None => format!("{costs}: not to be told from nothing."),
            }
        };
        let paragraph = format!(
            "{} {}",
            against("guarded", guarded),
            against("trusted", trusted)
        );
        table::PAYS
            .verdict(&[claims::ratio(guarded, once)])
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
        let of = |pick: fn(&Lazy) -> Option<Estimate>| lazy.as_ref().and_then(pick);
        let (saved, wasted) = (of(|lazy| lazy.saved), of(|lazy| lazy.wasted));
        let ratio = of(Lazy::ratio);
        let paragraph = format!(
            "Mapping on demand saves {} for each page of 8 KiB that is not accessed (operations C, G, \
             H) and wastes {} for each that is (F, I), end to end: N is {}. By the paper's own parts \
             it is {:.1}, by its tables 2.6, which it rounds up to 3.",
            claims::shown(saved, Unit::Seconds),
            claims::shown(wasted, Unit::Seconds),
            claims::shown(ratio, Unit::Times),
            paper::SAVES / paper::WASTES,
        );
        table::LAZY
            .verdict(&[ratio])
            .because(paragraph)
            .figure("saved", Unit::Seconds, cell(saved).beside(paper::SAVES))
            .figure("wasted", Unit::Seconds, cell(wasted).beside(paper::WASTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_no_ratio_of_what_may_be_nothing() {
        let cost =
            |seconds: f64, spread| Estimate::between(seconds, seconds - spread, seconds + spread);
        let ratio = |saved, wasted| Lazy { saved, wasted }.ratio().map(Estimate::middle);
        assert_eq!(ratio(cost(6.0, 1.0), cost(2.0, 1.0)), Some(3.0));
        assert_eq!(ratio(cost(6.0, 1.0), cost(2.0, 3.0)), None);
        assert_eq!(ratio(cost(6.0, 1.0), cost(-2.0, 1.0)), None);
        assert_eq!(ratio(cost(6.0, 1.0), None), None);
    }
}
