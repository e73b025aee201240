//! Tables I and II measure messages of several sizes, of which a part is accessed.

use std::time::Duration;

use crate::claims::{self, Estimate, table};
use crate::clock::Timed;
use crate::error::Result;
use crate::experiment::{Context, DASH, Experiment, Need, Source};
use crate::grid::{Grid, Plan, Temper, Waits, Way, size};
use crate::outcome::{Cell, Outcome, Table, Verdict};
use crate::pair::{Effort, Layout, Load, Use};
use crate::paper;
use crate::unit::Unit;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "tables",
    title: "Tables I and II: mapped on reference, and mapped by receive",
    source: Source {
        paper: DASH,
        section: "Measurement results, Tables I and II",
    },
    hypothesis: "A message's delay grows with its pages, and with those accessed. Mapping on \
        reference is cheaper while some pages are not accessed, mapping by the receive \
        operation when all are.",
    method: "As in the paper, two processes send a message back and forth on one processor and \
        sleep between: half the mean of a round, with two context switches, is one way. Verdicts \
        are made of these; then again on two processors that poll. The median of sixty batches of up \
        to 200 rounds, thirty each time the whole, copies included, is gone through; guarded and trusted \
        domains slice by slice in turn. Either side accesses the message before it sends \
        it on: one word in every 4 KiB of the part accessed. Guarded domains stand for remapping: \
        a process that does not own a page cannot \
        reach it. Trusted domains change the owner and close no page; mapped by receive, they still ask the \
        kernel, for each extent, to see that its pages are mapped. What lies on 2 MiB pages is looked at \
        before it is measured, in both processes; memory that the kernel left on 4 KiB pages is asked \
        for anew, up to five times, and else measured not at all. Copies hold the \
        copy and nothing else, as in the paper.",
    needs: &[Need::Memory(512 << 20)],
    run,
};

/// Messages of one extent, in bytes.
const LARGE: [u64; 6] = [64 << 10, 256 << 10, 1 << 20, 2 << 20, 8 << 20, 64 << 20];
/// Shares of them that are accessed.
const SHARES: [(u64, u64, &str); 5] = [
    (0, 1, "nothing"),
    (1, 8, "1/8"),
    (1, 4, "1/4"),
    (1, 2, "1/2"),
    (1, 1, "all"),
];
/// The paper's largest message.
const LARGEST: u64 = 8 * paper::PAGE;

fn run(context: &Context<'_>) -> Result<Outcome> {
    let effort = context.pick(
        Effort {
            slices: 2,
            slice: Duration::from_micros(100),
        },
        Effort {
            slices: 3,
            slice: Duration::from_millis(25),
        },
    );
    let passes = context.pick(1, 2);
    let (paged, large) = (paged(), large());
    let plans = [paged.clone(), large].concat();
    let sizes: Vec<u64> = plans.iter().map(|plan| plan.load.bytes).collect();
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
        outcome.tables.extend(of(waits).tables());
    }
    // The papers' machine had one processor.
    outcome.verdicts = of(Waits::Asleep).verdicts();
    Ok(outcome)
}

fn uses(accessed: &[u64]) -> Vec<Use> {
    let both = |&accessed: &u64| [false, true].map(|now| Use { now, accessed });
    accessed.iter().flat_map(both).collect()
}

/// The paper's messages: pages of 8 KiB, each an extent.
fn paged() -> Vec<Plan> {
    let plan = |pages: u64| {
        let accessed = paper::PAGES
            .into_iter()
            .filter(|&accessed| accessed <= pages);
        let accessed: Vec<u64> = accessed.map(|accessed| accessed * paper::PAGE).collect();
        Plan {
            load: pages_of(pages * paper::PAGE),
            uses: uses(&accessed),
        }
    };
    paper::PAGES.map(plan).into()
}

fn pages_of(bytes: u64) -> Load {
    Load {
        layout: Layout::Pages,
        bytes,
    }
}

fn one_of(bytes: u64) -> Load {
    Load {
        layout: Layout::One,
        bytes,
    }
}

/// Larger messages, each one extent.
fn large() -> Vec<Plan> {
    let plan = |bytes: u64| Plan {
        load: one_of(bytes),
        uses: uses(&SHARES.map(|(part, of, _)| bytes / of * part)),
    };
    LARGE.map(plan).into()
}

/// Tables and verdicts of what was measured.
struct View<'a> {
    grid: &'a Grid,
    waits: Waits,
}

impl View<'_> {
    fn tables(&self) -> Vec<Table> {
        vec![
            self.paged_table(
                "table-1",
                "Table I: mapped on reference, in extents of 8 KiB",
                false,
            ),
            self.paged_table(
                "table-2",
                "Table II: mapped by receive, in extents of 8 KiB",
                true,
            ),
            self.large_table(
                "table-1-large",
                "Table I, continued: one extent, mapped on reference",
                false,
            ),
            self.large_table(
                "table-2-large",
                "Table II, continued: one extent, mapped by receive",
                true,
            ),
            self.gains(),
            self.beyond_empty(),
        ]
    }

    fn verdicts(&self) -> Vec<Verdict> {
        vec![self.gain(), self.only_when_all(), self.linear()]
    }

    /// A table of these rounds.
    fn table(&self, id: &str, title: &str, corner: &str, columns: &[(&str, Unit)]) -> Table {
        let id = format!("{id}{}", self.waits.suffix());
        Table::new(
            &id,
            &format!("{title}, {}", self.waits.name()),
            corner,
            columns,
        )
    }

    /// The paper's figure, beside what is measured as it did.
    fn paper(&self, figure: Option<f64>) -> Option<f64> {
        figure.filter(|_| self.waits == Waits::Asleep)
    }

    fn at(&self, way: Way, load: Load, now: bool, accessed: u64) -> Option<&Timed> {
        let usage = Use { now, accessed };
        self.grid.moved((self.waits, way), Temper::Hot, load, usage)
    }

    fn estimate(&self, load: Load, now: bool, accessed: u64) -> Option<Estimate> {
        claims::timed(self.at(Way::Guarded, load, now, accessed)?)
    }

    fn cell(&self, way: Way, load: Load, now: bool, accessed: u64) -> Cell {
        let timed = self.at(way, load, now, accessed);
        timed.map_or_else(Cell::default, Timed::cell)
    }

    fn paged_table(&self, id: &str, title: &str, now: bool) -> Table {
        let sizes = paper::PAGES.map(|pages| pages * paper::PAGE);
        let mut table = self.sized(id, title, &sizes);
        for accessed in sizes {
            let cell = |bytes: u64| {
                self.cell(Way::Guarded, pages_of(bytes), now, accessed)
                    .beside(self.paper(paper::one_way(now, bytes, accessed)))
            };
            let label = match accessed {
                0 => "nothing".to_owned(),
                accessed => size(accessed),
            };
            table.row(label, sizes.map(cell));
        }
        self.beside(&mut table, &sizes, pages_of, now);
        table.note(
            if now {
                "One way, in a guarded domain unless the row says otherwise. Rows are what the \
                 receiver accesses. In a trusted domain nothing is closed or opened, but a receive that \
                 maps has the kernel make sure that the pages are mapped, by a system call for each \
                 extent: hence its times grow with the extents."
            } else {
                "One way, in a guarded domain unless the row says otherwise. Rows are what the \
                 receiver accesses."
            },
        )
    }

    fn large_table(&self, id: &str, title: &str, now: bool) -> Table {
        let mut table = self.sized(id, title, &LARGE);
        for (part, of, label) in SHARES {
            let cell = |bytes: u64| self.cell(Way::Guarded, one_of(bytes), now, bytes / of * part);
            table.row(label, LARGE.map(cell));
        }
        self.beside(&mut table, &LARGE, one_of, now);
        table.note(
            "Up to 1 MiB on 4 KiB pages; from 2 MiB on 2 MiB pages, of which no slice on smaller ones is \
             in here but where \u{201c}left out\u{201d} says so.",
        )
    }

    /// The rows of trusted domains and of copies.
    fn beside(&self, table: &mut Table, sizes: &[u64], load: fn(u64) -> Load, now: bool) {
        for (label, all) in [("trusted, nothing", false), ("trusted, all", true)] {
            let cell = |&bytes: &u64| {
                let accessed = if all { bytes } else { 0 };
                self.cell(Way::Trusted, load(bytes), now, accessed)
            };
            table.row(label, sizes.iter().map(cell).collect::<Vec<_>>());
        }
        for (label, times) in [("copy once", 1), ("copy twice", 2)] {
            let cell = |&bytes: &u64| {
                let copied = self.grid.copied(Temper::Hot, bytes, times);
                copied
                    .map_or_else(Cell::default, Timed::cell)
                    .beside(paper::copy(bytes, times))
            };
            table.row(label, sizes.iter().map(cell).collect::<Vec<_>>());
        }
    }

    /// What mapping by receive gains over mapping on reference when all is accessed.
    fn gain_at(&self, load: Load) -> Option<Estimate> {
        let later = self.estimate(load, false, load.bytes)?;
        let now = self.estimate(load, true, load.bytes)?;
        Estimate::exact(1.0)?.less(now.to(later)?)
    }

    fn gains(&self) -> Table {
        let mut table = self.table(
            "gain",
            "Gain of mapping by receive over mapping on reference, when all is accessed",
            "message",
            &[("gain", Unit::Share)],
        );
        let gain = |load: Load| {
            let gain = self.gain_at(load);
            gain.map_or_else(Cell::default, Estimate::cell)
        };
        for pages in &paper::PAGES[1..] {
            let bytes = pages * paper::PAGE;
            let of = |now| paper::one_way(now, bytes, bytes);
            let paper = of(true)
                .zip(of(false))
                .map(|(now, later)| 1.0 - now / later);
            let label = format!("{} in extents of 8 KiB", size(bytes));
            table.row(label, [gain(pages_of(bytes)).beside(self.paper(paper))]);
        }
        for bytes in LARGE {
            let label = format!("{} in one extent", size(bytes));
            table.row(label, [gain(one_of(bytes))]);
        }
        table
    }

    fn gain(&self) -> Verdict {
        let at = |load| self.gain_at(load);
        let gain = at(pages_of(LARGEST));
        let paragraph = format!(
            "When all of 64 KiB in extents of 8 KiB is accessed, mapping by receive gains {}. As one \
             extent, which one fault opens whole, it gains {}.",
            claims::shown(gain, Unit::Share),
            claims::shown(at(one_of(LARGEST)), Unit::Share),
        );
        let cell = |gain: Option<Estimate>| gain.map_or_else(Cell::default, Estimate::cell);
        table::GAIN
            .verdict(&[gain])
            .because(paragraph)
            .figure(
                "one extent of 64 KiB",
                Unit::Share,
                cell(at(one_of(LARGEST))),
            )
            .figure(
                "one extent of 64 MiB",
                Unit::Share,
                cell(at(one_of(64 << 20))),
            )
    }

    /// Whether mapping by receive is better exactly where all pages are accessed.
    fn only_when_all(&self) -> Verdict {
        let (mut places, mut as_said, mut clearly) = (0_u32, 0_u32, 0_u32);
        let mut missing = 0_u32;
        let mut exceptions = Vec::new();
        for pages in &paper::PAGES[1..] {
            for accessed in paper::PAGES.iter().filter(|accessed| *accessed <= pages) {
                let (load, accessed) = (pages_of(pages * paper::PAGE), accessed * paper::PAGE);
                let later = self.at(Way::Guarded, load, false, accessed);
                let now = self.at(Way::Guarded, load, true, accessed);
                let Some((later, now)) = later.zip(now) else {
                    missing += 1;
                    continue;
                };
                let all = accessed == load.bytes;
                let so = (now.median() < later.median()) == all;
                let clear = now.clear_of(later);
                places += 1;
                as_said += u32::from(so);
                clearly += u32::from(so && clear);
                if !so && clear {
                    exceptions.push(format!("{} of {}", size(accessed), size(load.bytes)));
                }
            }
        }
        let otherwise = if exceptions.is_empty() {
            String::new()
        } else {
            format!(" It is clearly otherwise at {}.", exceptions.join(", "))
        };
        // From those that are clearly so to those that are not clearly otherwise.
        let most = f64::from(places) - exceptions.len() as f64;
        let found = Estimate::between(f64::from(as_said), f64::from(clearly), most);
        table::ONLY_WHEN_ALL
            .verdict(&[found.filter(|_| missing == 0)])
            .because(format!(
                "Of {places} places of the two tables, {as_said} have the better method where the \
                 paper has it, {clearly} of them clearly.{otherwise}"
            ))
    }

    fn linear(&self) -> Verdict {
        let curves = [(false, false), (true, true), (false, true)];
        let off = curves.map(|(now, all)| {
            let points = paper::PAGES[1..].iter().map(|pages| {
                let bytes = pages * paper::PAGE;
                let accessed = if all { bytes } else { 0 };
                let timed = self.at(Way::Guarded, pages_of(bytes), now, accessed)?;
                Some((bytes as f64, timed))
            });
            // The null message is apart: it has no extents at all.
            let points: Vec<(f64, &Timed)> = points.collect::<Option<_>>()?;
            let middles = points.iter().map(|(x, timed)| (*x, timed.median()));
            let Bend { off, rise } = Bend::of(&middles.collect::<Vec<_>>())?;
            // What the figures' own spread could make of it.
            let spread = points.iter().map(|(_, timed)| {
                let [lower, upper] = timed.quartiles();
                (upper - lower) / 2.0
            });
            let spread = spread.fold(0.0, f64::max);
            let of_rise = |off: f64| off.max(0.0) / rise;
            Estimate::between(of_rise(off), of_rise(off - spread), of_rise(off + spread))
        });
        let paragraph = straightness(&off);
        table::LINEAR.verdict(&off).because(paragraph)
    }

    /// What a message takes longer than an empty one, of what it takes. Not what the paper calls data
    /// movement, which the breakdown has: what an empty message spends on its header is none of it.
    fn beyond_empty(&self) -> Table {
        let mut table = self.table(
            "beyond-empty",
            "What is not there when the message is empty, of the delay",
            "message, mapped on reference, all accessed",
            &[("whole less empty, of the whole", Unit::Share)],
        );
        let null = self.estimate(pages_of(0), false, 0);
        for bytes in paper::PAGES[1..].iter().map(|pages| pages * paper::PAGE) {
            let whole = self.estimate(pages_of(bytes), false, bytes);
            let share = claims::ratio(null, whole)
                .zip(Estimate::exact(1.0))
                .and_then(|(rest, one)| one.less(rest));
            let of = |bytes| paper::one_way(false, bytes, bytes);
            let paper = of(0).zip(of(bytes)).map(|(null, whole)| 1.0 - null / whole);
            let cell = share.map_or_else(Cell::default, Estimate::cell);
            let label = format!("{} in extents of 8 KiB", size(bytes));
            table.row(label, [cell.beside(self.paper(paper))]);
        }
        table.note(
            "The paper's by its Table I. Its claim that data movement dominates is of the segments of \
             Figure 7, which count what a message spends on its header, too: the breakdown judges that.",
        )
    }

    /// A table of one-way delays with a column for each size.
    fn sized(&self, id: &str, title: &str, sizes: &[u64]) -> Table {
        let names: Vec<String> = sizes.iter().map(|&bytes| size(bytes)).collect();
        let columns: Vec<(&str, Unit)> = names
            .iter()
            .map(|name| (name.as_str(), Unit::Seconds))
            .collect();
        self.table(id, title, "accessed", &columns)
    }
}

/// How far curves are off their lines, in words: nothing accessed, mapped by receive, and all accessed on
/// demand. There is none where the line does not rise.
fn straightness(off: &[Option<Estimate>; 3]) -> String {
    let names = [
        "mapped on demand and not accessed",
        "mapped by receive and accessed",
        "mapped on demand and accessed",
    ];
    let flat: Vec<&str> = names
        .into_iter()
        .zip(off)
        .filter(|(_, off)| off.is_none())
        .map(|(name, _)| name)
        .collect();
    let flat = if flat.is_empty() {
        String::new()
    } else {
        format!(
            " Where pages are {} the line does not rise, so nothing can be told of it.",
            flat.join(", or ")
        )
    };
    let worst = off.iter().flatten().map(|off| off.middle());
    let worst = worst.reduce(f64::max).map_or_else(
        || "No curve rises from one page of 8 KiB to eight.".to_owned(),
        |worst| {
            format!(
                "From one page of 8 KiB to eight, no delay is further from the straight line through its \
                 curve than {} of what that line rises by.",
                Unit::Share.show(worst)
            )
        },
    );
    worst + &flat
}

/// The straight line through some points.
struct Bend {
    /// How far a point is from it at the most.
    off: f64,
    /// What it rises by from the first point to the last.
    rise: f64,
}

impl Bend {
    /// None for two points, and for a line that does not rise.
    fn of(points: &[(f64, f64)]) -> Option<Self> {
        let count = points.len() as f64;
        let (first, last) = match points {
            [first, _, .., last] => (first.0, last.0),
            _ => return None,
        };
        let mean = |pick: fn(&(f64, f64)) -> f64| points.iter().map(pick).sum::<f64>() / count;
        let (x, y) = (mean(|p| p.0), mean(|p| p.1));
        let sum = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
        let slope = sum(&|p| (p.0 - x) * (p.1 - y)) / sum(&|p| (p.0 - x).powi(2));
        let off = points
            .iter()
            .map(|p| (p.1 - y - slope * (p.0 - x)).abs())
            .fold(0.0, f64::max);
        let rise = slope * (last - first);
        (rise > 0.0).then_some(Self { off, rise })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_rise(points: &[(f64, f64)]) -> Option<f64> {
        Bend::of(points).map(|Bend { off, rise }| off / rise)
    }

    #[test]
    fn a_line_is_straight_and_a_step_is_not() {
        let curve = |f: fn(f64) -> f64| {
            let points = (0..5).map(|x| (f64::from(x), f(f64::from(x))));
            of_rise(&points.collect::<Vec<_>>())
        };
        assert!(curve(|x| 3.0 * x + 1.0).unwrap() < 1e-9);
        assert!(curve(|x| if x < 4.0 { 1.0 } else { 9.0 }).unwrap() > 0.4);
        // What lies on a large empty message is as bent as without it.
        assert!(curve(|x| if x < 4.0 { 1001.0 } else { 1009.0 }).unwrap() > 0.4);
        // What does not rise does not rise linearly.
        assert_eq!((curve(|_| 2.0), curve(|x| -x)), (None, None));
        assert_eq!(of_rise(&[(0.0, 1.0), (1.0, 2.0)]), None);
    }

    #[test]
    fn a_curve_that_does_not_rise_is_named() {
        let off = Estimate::exact;
        let said = straightness(&[None, off(0.02), off(0.008)]);
        assert_eq!(
            said,
            "From one page of 8 KiB to eight, no delay is further from the straight line through its curve \
             than 2.0 % of what that line rises by. Where pages are mapped on demand and not accessed the line \
             does not rise, so nothing can be told of it."
        );
        let verdict = table::LINEAR.verdict(&[None, off(0.02), off(0.008)]);
        assert_eq!(verdict.by_figures.name(), "cannot tell");
        assert!(
            verdict.open[0].contains("does not rise"),
            "{:?}",
            verdict.open
        );
        assert!(!straightness(&[off(0.1); 3]).contains("rise, so"));
    }

    #[test]
    fn the_papers_own_tables_are_as_straight_as_the_rule_says() {
        let curves = [(false, false), (true, true), (false, true)];
        let conditions = table::LINEAR.rule.conditions().iter();
        for ((now, all), condition) in curves.into_iter().zip(conditions) {
            let points = paper::PAGES[1..].iter().map(|pages| {
                let bytes = pages * paper::PAGE;
                let time = paper::one_way(now, bytes, if all { bytes } else { 0 });
                (*pages as f64, time.unwrap())
            });
            let off = of_rise(&points.collect::<Vec<_>>()).unwrap();
            let stated = condition.paper.unwrap();
            assert!((off - stated).abs() < 1e-5, "{}: {off}", condition.what);
        }
    }

    #[test]
    fn the_plan_has_every_place_of_the_papers_tables() {
        let places: usize = paged().iter().map(|plan| plan.uses.len()).sum();
        assert_eq!(places, 2 * 15);
        for Plan { load, uses } in paged() {
            for Use { now, accessed } in uses {
                assert!(paper::one_way(now, load.bytes, accessed).is_some());
            }
        }
    }
}
