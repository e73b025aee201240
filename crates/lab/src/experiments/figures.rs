//! Figures 3 and 4 plot latency and throughput against size, and show where moving overtakes
//! copying.

use std::time::Duration;

use crate::claims::{self, Estimate, table};
use crate::clock::Timed;
use crate::error::Result;
use crate::experiment::{Context, DASH, Experiment, Need, Source};
use crate::grid::{Grid, Plan, Temper, Waits, Way, size};
use crate::outcome::{Axis, Bound, Cell, Mark, Origin, Outcome, Plot, Table, Verdict};
use crate::pair::{Effort, Layout, Load, Use};
use crate::paper;
use crate::unit::Unit;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "figures",
    title: "Figures 3 and 4: latency and throughput against copying",
    source: Source {
        paper: DASH,
        section: "Measurement results, Figures 3 and 4",
    },
    hypothesis: "Moving overtakes copying at some size. On the Sun 3/50 that was below one page; \
        here caches make copies cheap and guards are dear, so it lies higher, lower for huge \
        pages than for small ones, and lower for cold data than for hot.",
    method: "As for Tables I and II, by the same two processes, asleep on one processor and then \
        polling on two; verdicts are made of the former. With messages on 4 KiB pages \
        (extents of up to 1 MiB) and on 2 MiB pages (one extent of at least one such page, looked at \
        before it is measured). The \
        whole (hot and cold, moves and copies) is gone through twice, thirty batches each time, \
        so that no curve has a pace of the machine to itself. Hot: the same message again and again. Cold: many messages in turn, together at least four \
        times the largest cache, and in each turn another cache line of every page, so that a \
        line comes round only when all has gone by; copies go round buffers of that size. Copy \
        lines hold only the copy, by one process, as in the paper. The crossover is where the \
        curves cross, by straight lines between the points of the logarithmic plot, and after \
        which moving stays the faster.",
    needs: &[Need::Memory(2 << 30)],
    run,
};

/// The paper's curves: their names, mapped at once, accessed, and colour.
const CURVES: [(&str, bool, bool, u8); 3] = [
    ("on demand, not accessed", false, false, 0),
    ("by receive, all accessed", true, true, 1),
    ("on demand, all accessed", false, true, 2),
];
const COPIES: [(&str, u8, u8); 2] = [("copy once", 1, 3), ("copy twice", 2, 4)];
const TRUSTED: (&str, u8) = ("trusted, all accessed", 5);
const LAYOUTS: [(Layout, &str, &str); 2] = [
    (Layout::Small, "small", "4 KiB pages"),
    (Layout::Huge, "huge", "2 MiB pages"),
];
const TEMPERS: [(Temper, &str); 2] = [(Temper::Hot, "hot"), (Temper::Cold, "cold")];
/// Where the paper's figures end.
const LARGEST: u64 = 8 * paper::PAGE;

fn run(context: &Context<'_>) -> Result<Outcome> {
    let effort = context.pick(
        Effort {
            slices: 2,
            slice: Duration::from_micros(100),
        },
        Effort {
            slices: 3,
            slice: Duration::from_millis(20),
        },
    );
    let passes = context.pick(1, 2);
    let sizes: Vec<u64> = context.pick(
        [12, 13, 16, 21, 23].map(|power| 1 << power).into(),
        (12..=26).map(|power| 1 << power).collect(),
    );
    let plans = plans(&sizes);
    let mut outcome = Outcome::default();
    let mut grid = Grid::default();
    context
        .progress
        .begin((plans.len() * 2 + sizes.len()) * TEMPERS.len() * passes);
    for _ in 0..passes {
        for (temper, _) in TEMPERS {
            grid.moves(context, &mut outcome, temper, &plans, effort)?;
            grid.copies(context, temper, &sizes, effort)?;
        }
    }

    let of = |waits| View {
        grid: &grid,
        sizes: &sizes,
        waits,
    };
    for waits in Waits::here(context, &mut outcome) {
        let view = of(waits);
        for layout in LAYOUTS {
            for temper in TEMPERS {
                outcome.plots.push(view.latency_plot(layout, temper));
            }
            outcome.plots.push(view.throughput_plot(layout));
        }
        outcome.tables.push(view.crossover_table());
        outcome.tables.push(view.throughput_table());
        for layout in LAYOUTS {
            for temper in TEMPERS {
                outcome.tables.push(view.latency_table(layout, temper));
            }
        }
    }
    // The papers' machine had one processor.
    outcome.verdicts = of(Waits::Asleep).verdicts();
    Ok(outcome)
}

fn plans(sizes: &[u64]) -> Vec<Plan> {
    let null = Plan {
        load: load(Layout::Small, 0),
        uses: vec![usage(0, false, false)],
    };
    let plan = |layout: Layout, bytes: u64| Plan {
        load: load(layout, bytes),
        uses: CURVES.map(|(_, now, all, _)| usage(bytes, now, all)).into(),
    };
    let loads = LAYOUTS
        .iter()
        .flat_map(|(layout, ..)| sizes.iter().map(|&bytes| plan(*layout, bytes)));
    std::iter::once(null).chain(loads).collect()
}

fn load(layout: Layout, bytes: u64) -> Load {
    Load { layout, bytes }
}

fn usage(bytes: u64, now: bool, all: bool) -> Use {
    Use {
        now,
        accessed: if all { bytes } else { 0 },
    }
}

/// Plots, tables and verdicts of what was measured.
struct View<'a> {
    grid: &'a Grid,
    sizes: &'a [u64],
    waits: Waits,
}

type Named<T> = (T, &'static str);
type Laid = (Layout, &'static str, &'static str);

impl View<'_> {
    fn moved(&self, way: Way, temper: Temper, load: Load, now: bool, all: bool) -> Option<&Timed> {
        let usage = usage(load.bytes, now, all);
        self.grid.moved((self.waits, way), temper, load, usage)
    }

    /// The paper's curve of this kind.
    fn paper(bytes: u64, now: bool, all: bool) -> Option<f64> {
        paper::one_way(now, bytes, if all { bytes } else { 0 })
    }

    /// Whether these rounds are the paper's: its figures stand beside them.
    fn is_papers(&self, layout: Layout, temper: Temper) -> bool {
        self.waits == Waits::Asleep && layout == Layout::Small && temper == Temper::Hot
    }

    /// An id and a title of these rounds.
    fn named(&self, id: &str, title: &str) -> [String; 2] {
        [
            format!("{id}{}", self.waits.suffix()),
            format!("{title}, {}", self.waits.name()),
        ]
    }

    fn latency_plot(&self, (layout, id, pages): Laid, (temper, name): Named<Temper>) -> Plot {
        let title = format!("Figure 3: latency, {pages}, {name}");
        let id = format!("figure-3-{id}-{name}");
        let y = Axis::log("one way", Unit::Seconds);
        let mut plot = self.plot(&id, &title, y, layout, temper, |_, seconds| seconds);
        let crossing = self.crossing(layout, temper, true, true, 1, false);
        if let Some(Crossing::At(x)) = crossing {
            plot.marks.push(Mark {
                name: format!("{}: by receive overtakes one copy", Unit::Bytes.show(x)),
                x,
            });
        }
        plot
    }

    fn throughput_plot(&self, (layout, id, pages): Laid) -> Plot {
        let title = format!("Figure 4: throughput, {pages}, hot");
        let id = format!("figure-4-{id}");
        let y = Axis::log("throughput", Unit::BytesPerSecond);
        let rate = |bytes, seconds| bytes / seconds;
        self.plot(&id, &title, y, layout, Temper::Hot, rate)
    }

    /// All curves, ours and the paper's; `of` makes a point's height of size and delay.
    fn plot(
        &self,
        id: &str,
        title: &str,
        y: Axis,
        layout: Layout,
        temper: Temper,
        of: fn(f64, f64) -> f64,
    ) -> Plot {
        let [id, title] = self.named(id, title);
        let y_is_time = y.unit == Unit::Seconds;
        let mut plot = Plot::new(&id, &title, Axis::log("message", Unit::Bytes), y);
        let points = |delay: &dyn Fn(u64) -> Option<f64>| -> Vec<(f64, f64)> {
            let point = |&bytes: &u64| Some((bytes as f64, of(bytes as f64, delay(bytes)?)));
            self.sizes.iter().filter_map(point).collect()
        };
        let here = |way, now, all| {
            points(&|bytes| {
                let moved = self.moved(way, temper, load(layout, bytes), now, all);
                Some(moved?.median())
            })
        };
        for (name, now, all, colour) in CURVES {
            // One descriptor, whatever it stands for, is no rate.
            if all || layout != Layout::Huge || y_is_time {
                plot.series(name, Origin::Here, colour, here(Way::Guarded, now, all));
            }
        }
        let (name, colour) = TRUSTED;
        plot.series(name, Origin::Here, colour, here(Way::Trusted, true, true));
        for (name, times, colour) in COPIES {
            let copied = |bytes| Some(self.grid.copied(temper, bytes, times)?.median());
            plot.series(name, Origin::Here, colour, points(&copied));
        }
        // The paper's measurements are of one page size, and of one temper.
        if self.is_papers(layout, temper) {
            for (name, now, all, colour) in CURVES {
                let delay = |bytes| Self::paper(bytes, now, all);
                let name = format!("paper: {name}");
                plot.series(name, Origin::Paper, colour, points(&delay));
            }
            for (name, times, colour) in COPIES {
                let delay = |bytes| paper::copy(bytes, times);
                let name = format!("paper: {name}");
                plot.series(name, Origin::Paper, colour, points(&delay));
            }
        }
        plot
    }

    fn latency_table(&self, (layout, id, pages): Laid, (temper, name): Named<Temper>) -> Table {
        let names: Vec<&str> = CURVES
            .iter()
            .map(|(name, ..)| *name)
            .chain([TRUSTED.0])
            .chain(COPIES.iter().map(|(name, ..)| *name))
            .collect();
        let columns: Vec<(&str, Unit)> = names.iter().map(|&name| (name, Unit::Seconds)).collect();
        let title = format!("One way, {pages}, {name}");
        let [id, title] = self.named(&format!("latency-{id}-{name}"), &title);
        let mut table = Table::new(&id, &title, "message", &columns);
        let shown = |timed: Option<&Timed>| timed.map_or_else(Cell::default, Timed::cell);
        let null = self.moved(Way::Guarded, temper, load(Layout::Small, 0), false, false);
        let papers = self.is_papers(layout, temper);
        let null_paper = papers.then(|| Self::paper(0, false, false)).flatten();
        table.row(size(0), [shown(null).beside(null_paper)]);
        for &bytes in self.sizes {
            let load = load(layout, bytes);
            let mut cells: Vec<Cell> = CURVES
                .iter()
                .map(|&(_, now, all, _)| {
                    let paper = papers.then(|| Self::paper(bytes, now, all)).flatten();
                    shown(self.moved(Way::Guarded, temper, load, now, all)).beside(paper)
                })
                .collect();
            cells.push(shown(self.moved(Way::Trusted, temper, load, true, true)));
            cells.extend(COPIES.iter().map(|&(_, times, _)| {
                let paper = papers.then(|| paper::copy(bytes, times)).flatten();
                shown(self.grid.copied(temper, bytes, times)).beside(paper)
            }));
            table.row(size(bytes), cells);
        }
        let note = match (layout, temper) {
            (Layout::Small, _) => {
                "On 4 KiB pages a message has an extent for each 1 MiB. Up to 8 of them are described in \
                 the message's slot, more of them apart from it: hence the step from 8 to 16 MiB where \
                 nothing is accessed."
            }
            _ => "A message on 2 MiB pages is one extent, whatever its size.",
        };
        let cold = match temper {
            Temper::Hot => "",
            Temper::Cold => {
                " Cold, a small message costs more than a hot one in what is not its bytes: its record, \
                 its owner's words and the page tables that lead to it are in no cache either."
            }
        };
        table.note(format!("{note}{cold}")).fold()
    }

    /// Where a guarded curve gets below a copy's, with a null message added to the copy or
    /// without, as in the paper.
    fn crossing(
        &self,
        layout: Layout,
        temper: Temper,
        now: bool,
        all: bool,
        times: u8,
        with_null: bool,
    ) -> Option<Crossing> {
        let null = self.moved(Way::Guarded, temper, load(Layout::Small, 0), false, false);
        let added = if with_null { null?.median() } else { 0.0 };
        let point = |&bytes: &u64| {
            let moved = self.moved(Way::Guarded, temper, load(layout, bytes), now, all)?;
            let copied = self.grid.copied(temper, bytes, times)?;
            Some((bytes as f64, moved.median(), copied.median() + added))
        };
        let points: Vec<_> = self.sizes.iter().filter_map(point).collect();
        Crossing::of(&points)
    }

    fn crossover_table(&self) -> Table {
        let columns = [
            ("copy once", Unit::Bytes),
            ("copy twice", Unit::Bytes),
            ("once + null message", Unit::Bytes),
            ("twice + null message", Unit::Bytes),
        ];
        let title = "Crossover: the size from which moving is faster than copying";
        let [id, title] = self.named("crossover", title);
        let mut table = Table::new(&id, &title, "guarded, moved", &columns);
        for (layout, _, pages) in LAYOUTS {
            for (temper, name) in TEMPERS {
                for (curve, now, all, _) in CURVES {
                    let against = [(1, false), (2, false), (1, true), (2, true)];
                    let cells = against.map(|(times, with_null)| {
                        let crossing = self.crossing(layout, temper, now, all, times, with_null);
                        crossing.map_or_else(Cell::default, Crossing::cell)
                    });
                    table.row(format!("{pages}, {name}, {curve}"), cells);
                }
            }
        }
        table.note(
            "The first two columns hold the whole move against the bare copy, as the paper's \
             Figure 3 does; the others add a null message to the copy, which a copying system \
             has to send, too. The paper's crossovers all lie below its first page of 8 KiB.",
        )
    }

    fn rate(&self, layout: Layout, bytes: u64, now: bool, all: bool) -> Option<f64> {
        let moved = self.moved(Way::Guarded, Temper::Hot, load(layout, bytes), now, all)?;
        Some(bytes as f64 / moved.median())
    }

    fn copy_rate(&self, bytes: u64, times: u8) -> Option<f64> {
        let copied = self.grid.copied(Temper::Hot, bytes, times)?;
        Some(bytes as f64 / copied.median())
    }

    fn largest(&self) -> u64 {
        self.sizes.iter().copied().max().unwrap_or(LARGEST)
    }

    fn throughput_table(&self) -> Table {
        let largest = self.largest();
        let names = [
            "64 KiB".to_owned(),
            format!("{} on 4 KiB pages", size(largest)),
            format!("{} on 2 MiB pages", size(largest)),
        ];
        let columns: Vec<(&str, Unit)> = names
            .iter()
            .map(|name| (name.as_str(), Unit::BytesPerSecond))
            .collect();
        let [id, title] = self.named("throughput", "Throughput, hot");
        let mut table = Table::new(&id, &title, "how it is moved", &columns);
        let cell = |rate: Option<f64>| rate.map_or_else(Cell::default, Cell::here);
        let places = [
            (Layout::Small, LARGEST),
            (Layout::Small, largest),
            (Layout::Huge, largest),
        ];
        for (name, now, all, _) in CURVES {
            // Of a large message that nobody touches a few descriptors move, however many bytes they
            // stand for: no rate.
            let mut cells = places.map(|(layout, bytes)| {
                let rate = self.rate(layout, bytes, now, all);
                cell(rate.filter(|_| all || bytes == LARGEST))
            });
            let papers = self.is_papers(Layout::Small, Temper::Hot);
            let paper = Self::paper(LARGEST, now, all).filter(|_| papers);
            let paper = paper.map(|delay| LARGEST as f64 / delay);
            cells[0] = cells[0].beside(paper);
            table.row(name, cells);
        }
        let trusted = places.map(|(layout, bytes)| {
            let moved = self.moved(Way::Trusted, Temper::Hot, load(layout, bytes), true, true);
            cell(moved.map(|moved| bytes as f64 / moved.median()))
        });
        table.row(TRUSTED.0, trusted);
        for (name, times, _) in COPIES {
            let mut cells = places.map(|(_, bytes)| cell(self.copy_rate(bytes, times)));
            let paper = paper::copy(LARGEST, times).map(|delay| LARGEST as f64 / delay);
            cells[0] = cells[0].beside(paper);
            table.row(name, cells);
        }
        table.note(
            "A message that is not accessed moves its descriptors and no byte: beyond the paper's 64 KiB \
             that is no rate, and left out.",
        )
    }

    fn verdicts(&self) -> Vec<Verdict> {
        let largest = self.largest();
        vec![
            self.faster(Layout::Small, LARGEST, "4 KiB pages"),
            self.faster(Layout::Small, largest, "4 KiB pages"),
            self.faster(Layout::Huge, largest, "2 MiB pages"),
            self.rates(),
            self.more_than_30(),
            self.magnitude(),
        ]
    }

    /// A guarded message's delay, hot.
    fn estimate(&self, layout: Layout, bytes: u64, now: bool, all: bool) -> Option<Estimate> {
        let moved = self.moved(Way::Guarded, Temper::Hot, load(layout, bytes), now, all);
        claims::timed(moved?)
    }

    fn copied(&self, bytes: u64) -> Option<Estimate> {
        claims::timed(self.grid.copied(Temper::Hot, bytes, 1)?)
    }

    /// Bytes a second.
    fn moves(&self, now: bool, all: bool) -> Option<Estimate> {
        let moved = self.estimate(Layout::Small, LARGEST, now, all);
        claims::ratio(Estimate::exact(LARGEST as f64), moved)
    }

    fn faster(&self, layout: Layout, bytes: u64, pages: &str) -> Verdict {
        let of = format!("{} on {pages}", size(bytes));
        let moved = self.estimate(layout, bytes, true, true);
        let ratio = claims::ratio(self.copied(bytes), moved);
        let crossings = TEMPERS.map(|(temper, name)| {
            let crossing = self.crossing(layout, temper, true, true, 1, false);
            (name, crossing)
        });
        let words: Vec<String> = crossings
            .iter()
            .filter_map(|(name, crossing)| Some(format!("{}, {name}", (*crossing)?.words())))
            .collect();
        let paragraph = format!(
            "A message of {} on {pages}, guarded, mapped by receive, all accessed, hot, takes {}; one \
             bare copy takes {} of that. On these pages moving overtakes the copy {}.",
            size(bytes),
            claims::shown(moved, Unit::Seconds),
            claims::shown(ratio, Unit::Times),
            if words.is_empty() {
                "where it was not measured".to_owned()
            } else {
                words.join("; ")
            },
        );
        let verdict = table::FASTER_THAN_COPYING
            .verdict_of(&of, &[ratio])
            .because(paragraph);
        crossings
            .into_iter()
            .fold(verdict, |verdict, (name, crossing)| {
                let cell = crossing.map_or_else(Cell::default, Crossing::cell);
                verdict.figure(format!("overtakes one copy at, {name}"), Unit::Bytes, cell)
            })
    }

    fn rates(&self) -> Verdict {
        let rates = [self.moves(false, false), self.moves(true, true)];
        let copy = self.copy_rate(LARGEST, 1);
        let show = |rate| claims::shown(rate, Unit::BytesPerSecond);
        let copy_words = copy.map_or_else(String::new, |rate| {
            format!(" One copy runs at {}.", Unit::BytesPerSecond.show(rate))
        });
        table::RATES
            .verdict(&rates)
            .because(format!(
                "Messages of 64 KiB on 4 KiB pages, guarded, hot: {} if they are not accessed, {} if \
                 all is, mapped by receive.{copy_words} (The bounds are those of a machine of 1989: how \
                 moving compares with copying is in the other claims.)",
                show(rates[0]),
                show(rates[1]),
            ))
            .figure(
                "copy once",
                Unit::BytesPerSecond,
                copy.map_or_else(Cell::default, Cell::here).beside(3.9e6),
            )
    }

    /// Paper 002's first claim.
    fn more_than_30(&self) -> Verdict {
        let rate = self.moves(false, false);
        table::MORE_THAN_30.verdict(&[rate]).because(format!(
            "Messages of 64 KiB on 4 KiB pages, guarded, hot, not accessed: {}.",
            claims::shown(rate, Unit::BytesPerSecond)
        ))
    }

    /// Paper 002's second claim.
    fn magnitude(&self) -> Verdict {
        let copy = self.copied(LARGEST);
        let untouched = claims::ratio(copy, self.estimate(Layout::Small, LARGEST, false, false));
        let accessed = claims::ratio(copy, self.estimate(Layout::Small, LARGEST, true, true));
        let largest = self.largest();
        let first = |layout| {
            let tenfold = |bytes: &&u64| {
                let moved = self.estimate(layout, **bytes, true, true);
                let ratio = claims::ratio(self.copied(**bytes), moved);
                ratio.is_some_and(|ratio| ratio.middle() >= 10.0)
            };
            self.sizes.iter().find(tenfold)
        };
        let from = LAYOUTS.map(|(layout, _, pages)| match first(layout) {
            Some(&bytes) => format!("on {pages} from {} on", size(bytes)),
            None => format!("on {pages} at no size up to {}", size(largest)),
        });
        let paragraph = format!(
            "At 64 KiB, the paper's largest message, one copy takes {} of a message that nobody \
             accesses, and {} of one that is all accessed, mapped by receive. Accessed, it is ten \
             times: {}, {}.",
            claims::shown(untouched, Unit::Times),
            claims::shown(accessed, Unit::Times),
            from[0],
            from[1],
        );
        let cell = |ratio: Option<Estimate>| ratio.map_or_else(Cell::default, Estimate::cell);
        table::ORDER_OF_MAGNITUDE
            .verdict(&[untouched])
            .because(paragraph)
            .figure(
                "one copy of 64 KiB, to a message that is all accessed",
                Unit::Times,
                cell(accessed).beside(24.8 / 3.9),
            )
    }
}

/// Where one curve gets below another, for good.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Crossing {
    /// It is below from the first size on.
    Before(f64),
    At(f64),
    /// It is not below at the last size.
    After(f64),
}

impl Crossing {
    /// Of points (size, moved, copied) by ascending size; none if there are none.
    fn of(points: &[(f64, f64, f64)]) -> Option<Self> {
        let below = |&(_, moved, copied): &(f64, f64, f64)| moved <= copied;
        let (first, last) = (points.first()?, points.last()?);
        if !below(last) {
            return Some(Self::After(last.0));
        }
        let Some(at) = points.iter().rposition(|point| !below(point)) else {
            return Some(Self::Before(first.0));
        };
        // Straight lines between the logarithms.
        let ((x0, moved0, copied0), (x1, moved1, copied1)) = (points[at], points[at + 1]);
        let (above, under) = ((moved0 / copied0).ln(), (copied1 / moved1).ln());
        let share = above / (above + under);
        Some(Self::At(x0 * (x1 / x0).powf(share)))
    }

    fn words(self) -> String {
        match self {
            Self::Before(size) => format!("at every size from {} on", Unit::Bytes.show(size)),
            Self::At(size) => format!("at {}", Unit::Bytes.show(size)),
            Self::After(size) => format!("at no size up to {}", Unit::Bytes.show(size)),
        }
    }

    fn cell(self) -> Cell {
        match self {
            Self::Before(size) => Cell::here(size).bounded(Bound::AtMost),
            Self::At(size) => Cell::here(size),
            Self::After(size) => Cell::here(size).bounded(Bound::MoreThan),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_cross_where_they_cross_for_good() {
        let crossing = |points: &[(f64, f64, f64)]| Crossing::of(points).unwrap();
        // Constant 4 against x: they meet at 4, halfway from 2 to 8.
        let found = crossing(&[(1.0, 4.0, 1.0), (2.0, 4.0, 2.0), (8.0, 4.0, 8.0)]);
        assert!(matches!(found, Crossing::At(x) if (x - 4.0).abs() < 1e-9));
        assert_eq!(
            crossing(&[(1.0, 1.0, 2.0), (2.0, 1.0, 2.0)]),
            Crossing::Before(1.0)
        );
        assert_eq!(
            crossing(&[(1.0, 1.0, 2.0), (2.0, 3.0, 2.0)]),
            Crossing::After(2.0)
        );
        // Once below and above again does not count.
        let again = crossing(&[(1.0, 1.0, 2.0), (2.0, 3.0, 2.0), (4.0, 1.0, 2.0)]);
        assert!(matches!(again, Crossing::At(x) if x > 2.0 && x < 4.0));
        assert_eq!(Crossing::of(&[]), None);
    }
}
