//! Tables I and II measure messages of several sizes, of which a part is accessed.

use std::time::Duration;

use crate::clock::Timed;
use crate::error::Result;
use crate::experiment::{Context, DASH, Experiment, Need, Source};
use crate::grid::{Grid, Plan, Temper, Way, size};
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
    method: "Two processes on two processors send a message back and forth and poll for it; half \
        the mean of a round is one way. The median of sixty batches of up to 200 rounds, thirty \
        each time the whole, copies included, is gone through. Either side accesses the message before it sends \
        it on: one word in every 4 KiB of the part accessed. On one processor they sleep \
        instead of polling. Guarded domains stand for remapping: who does not own a page cannot \
        reach it. Trusted domains change the owner and leave page tables alone. Copies hold the \
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
    let trusted: Vec<Plan> = plans.iter().map(ends).collect();
    let sizes: Vec<u64> = plans.iter().map(|plan| plan.load.bytes).collect();
    context
        .progress
        .begin((plans.len() + trusted.len() + sizes.len()) * passes);
    let mut outcome = Outcome::default();
    let mut grid = Grid::default();
    for _ in 0..passes {
        for (way, plans) in [(Way::Guarded, &plans), (Way::Trusted, &trusted)] {
            let way = (way, Temper::Hot);
            grid.moves(context, &mut outcome, way, plans, effort)?;
        }
        grid.copies(context, Temper::Hot, &sizes, effort)?;
    }

    let view = View(&grid);
    for (id, title, now) in [
        (
            "table-1",
            "Table I: mapped on reference, in extents of 8 KiB",
            false,
        ),
        (
            "table-2",
            "Table II: mapped by receive, in extents of 8 KiB",
            true,
        ),
    ] {
        outcome.tables.push(view.paged_table(id, title, now));
    }
    for (id, title, now) in [
        (
            "table-1-large",
            "Table I, continued: one extent, mapped on reference",
            false,
        ),
        (
            "table-2-large",
            "Table II, continued: one extent, mapped by receive",
            true,
        ),
    ] {
        outcome.tables.push(view.large_table(id, title, now));
    }
    outcome.tables.push(view.gains());
    outcome.verdicts = vec![
        view.gain(),
        view.only_when_all(),
        view.linear(),
        view.dominates(),
    ];
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

/// The same load with nothing accessed, and with everything.
fn ends(plan: &Plan) -> Plan {
    let bytes = plan.load.bytes;
    Plan {
        load: plan.load,
        uses: if bytes == 0 {
            uses(&[0])
        } else {
            uses(&[0, bytes])
        },
    }
}

/// Tables and verdicts of what was measured.
struct View<'a>(&'a Grid);

impl View<'_> {
    fn at(&self, way: Way, load: Load, now: bool, accessed: u64) -> Option<&Timed> {
        self.0.moved(way, Temper::Hot, load, Use { now, accessed })
    }

    fn cell(&self, way: Way, load: Load, now: bool, accessed: u64) -> Cell {
        let timed = self.at(way, load, now, accessed);
        timed.map_or_else(Cell::default, Timed::cell)
    }

    fn paged_table(&self, id: &str, title: &str, now: bool) -> Table {
        let sizes = paper::PAGES.map(|pages| pages * paper::PAGE);
        let mut table = sized(id, title, &sizes);
        for accessed in sizes {
            let cell = |bytes: u64| {
                self.cell(Way::Guarded, pages_of(bytes), now, accessed)
                    .beside(paper::one_way(now, bytes, accessed))
            };
            let label = match accessed {
                0 => "nothing".to_owned(),
                accessed => size(accessed),
            };
            table.row(label, sizes.map(cell));
        }
        self.beside(&mut table, &sizes, pages_of, now);
        table.note(
            "One way, in a guarded domain unless the row says otherwise. Rows are what the \
             receiver accesses.",
        )
    }

    fn large_table(&self, id: &str, title: &str, now: bool) -> Table {
        let mut table = sized(id, title, &LARGE);
        for (part, of, label) in SHARES {
            let cell = |bytes: u64| self.cell(Way::Guarded, one_of(bytes), now, bytes / of * part);
            table.row(label, LARGE.map(cell));
        }
        self.beside(&mut table, &LARGE, one_of, now);
        table.note(
            "Up to 1 MiB on 4 KiB pages; from 2 MiB on 2 MiB pages, where the kernel has them.",
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
                let copied = self.0.copied(Temper::Hot, bytes, times);
                copied
                    .map_or_else(Cell::default, Timed::cell)
                    .beside(paper::copy(bytes, times))
            };
            table.row(label, sizes.iter().map(cell).collect::<Vec<_>>());
        }
    }

    /// What mapping by receive gains over mapping on reference when all is accessed.
    fn gain_at(&self, load: Load) -> Option<(f64, bool)> {
        let later = self.at(Way::Guarded, load, false, load.bytes)?;
        let now = self.at(Way::Guarded, load, true, load.bytes)?;
        Some((1.0 - now.median() / later.median(), now.clear_of(later)))
    }

    fn gains(&self) -> Table {
        let mut table = Table::new(
            "gain",
            "Gain of mapping by receive over mapping on reference, when all is accessed",
            "message",
            &[("gain", Unit::Share)],
        );
        let gain = |load: Load| {
            let gain = self.gain_at(load);
            gain.map_or_else(Cell::default, |(gain, _)| Cell::here(gain))
        };
        for pages in &paper::PAGES[1..] {
            let bytes = pages * paper::PAGE;
            let of = |now| paper::one_way(now, bytes, bytes);
            let paper = of(true)
                .zip(of(false))
                .map(|(now, later)| 1.0 - now / later);
            let label = format!("{} in extents of 8 KiB", size(bytes));
            table.row(label, [gain(pages_of(bytes)).beside(paper)]);
        }
        for bytes in LARGE {
            let label = format!("{} in one extent", size(bytes));
            table.row(label, [gain(one_of(bytes))]);
        }
        table
    }

    fn gain(&self) -> Verdict {
        let gain = self.gain_at(pages_of(LARGEST));
        let mut paragraph = match gain {
            None => "It could not be measured.".to_owned(),
            Some((gain, clear)) => format!(
                "When all of 64 KiB in extents of 8 KiB is accessed, mapping by receive gains {} \
                 here{}.",
                Unit::Share.show(gain),
                if clear {
                    ""
                } else {
                    ", which is within the spread of the figures"
                }
            ),
        };
        if let Some((gain, _)) = self.gain_at(one_of(LARGEST)) {
            let gain = Unit::Share.show(gain);
            paragraph += &format!(" As one extent, which one fault opens whole, it gains {gain}.");
        }
        paragraph += " It holds if there is a gain.";
        let cell = |gain: Option<(f64, bool)>| {
            gain.map_or_else(Cell::default, |(gain, _)| Cell::here(gain))
        };
        let holds = gain.and_then(|(gain, clear)| clear.then_some(gain > 0.0));
        Verdict::new(
            "gain",
            "Mapping by receive gains about 12.6 per cent for 64 KB messages that are accessed",
            holds,
        )
        .because(paragraph)
        .figure("8 extents of 8 KiB", Unit::Share, cell(gain).beside(0.126))
        .figure(
            "one extent of 64 KiB",
            Unit::Share,
            cell(self.gain_at(one_of(LARGEST))),
        )
        .figure(
            "one extent of 64 MiB",
            Unit::Share,
            cell(self.gain_at(one_of(64 << 20))),
        )
    }

    /// Whether mapping by receive is better exactly where all pages are accessed.
    fn only_when_all(&self) -> Verdict {
        let (mut places, mut as_said, mut clear_exceptions) = (0, 0, Vec::new());
        for pages in &paper::PAGES[1..] {
            for accessed in paper::PAGES.iter().filter(|accessed| *accessed <= pages) {
                let (load, accessed) = (pages_of(pages * paper::PAGE), accessed * paper::PAGE);
                let later = self.at(Way::Guarded, load, false, accessed);
                let now = self.at(Way::Guarded, load, true, accessed);
                let Some((later, now)) = later.zip(now) else {
                    continue;
                };
                let all = accessed == load.bytes;
                places += 1;
                if (now.median() < later.median()) == all {
                    as_said += 1;
                } else if now.clear_of(later) {
                    clear_exceptions.push(format!("{} of {}", size(accessed), size(load.bytes)));
                }
            }
        }
        let exceptions = if clear_exceptions.is_empty() {
            String::new()
        } else {
            format!(
                " It is clearly otherwise at {}.",
                clear_exceptions.join(", ")
            )
        };
        let holds = match (places, as_said, clear_exceptions.len()) {
            (0, ..) => None,
            (places, as_said, _) if places == as_said => Some(true),
            (_, _, 0) => None,
            _ => Some(false),
        };
        Verdict::new(
            "only-when-all",
            "Mapping by receive performs better only when the receiver accesses all pages",
            holds,
        )
        .because(format!(
            "Of {places} places of the two tables, {as_said} have the better method where the \
             paper has it.{exceptions} It holds if all have."
        ))
        .figure(
            "places",
            Unit::Count,
            Cell::here(f64::from(places)).beside(14.0),
        )
        .figure(
            "as in the paper",
            Unit::Count,
            Cell::here(f64::from(as_said)).beside(14.0),
        )
    }

    fn linear(&self) -> Verdict {
        let curves = [
            ("on demand, not accessed", false, false),
            ("by receive, all accessed", true, true),
            ("on demand, all accessed", false, true),
        ];
        let mut verdict = Verdict::new(
            "linear",
            "The time to move a message increases linearly with the number of pages",
            None,
        );
        let mut fits = Vec::new();
        for (name, now, all) in curves {
            let accessed = |bytes: u64| if all { bytes } else { 0 };
            let sizes = || paper::PAGES.iter().map(|pages| pages * paper::PAGE);
            let here = |bytes: u64| {
                let timed = self.at(Way::Guarded, pages_of(bytes), now, accessed(bytes))?;
                Some((bytes as f64, timed.median()))
            };
            let paper =
                |bytes: u64| Some((bytes as f64, paper::one_way(now, bytes, accessed(bytes))?));
            // The null message is apart: it has no extents at all.
            let here = bend(sizes().skip(1).filter_map(here).collect());
            let cell = here.map_or_else(Cell::default, Cell::here);
            let paper = bend(sizes().skip(1).filter_map(paper).collect());
            let name = format!("off the line, {name}");
            verdict = verdict.figure(name, Unit::Share, cell.beside(paper));
            fits.extend(here);
        }
        let worst = fits.iter().copied().reduce(f64::max);
        verdict.holds = worst.map(|worst| worst <= LINEAR).into();
        let found = worst.map_or_else(
            || "It could not be measured.".to_owned(),
            |worst| {
                format!(
                    "From one page of 8 KiB to eight, no delay is further than {} from the straight \
                     line through its curve.",
                    Unit::Share.show(worst)
                )
            },
        );
        verdict.because(format!(
            "{found} It holds if none of the three curves is further off than {}.",
            Unit::Share.show(LINEAR)
        ))
    }

    fn dominates(&self) -> Verdict {
        let null = self.at(Way::Guarded, pages_of(0), false, 0);
        let whole = self.at(Way::Guarded, pages_of(LARGEST), false, LARGEST);
        let share = null
            .zip(whole)
            .map(|(null, whole)| 1.0 - null.median() / whole.median());
        let of = |bytes| paper::one_way(false, bytes, bytes).unwrap_or(f64::NAN);
        let paper = 1.0 - of(0) / of(LARGEST);
        let found = share.map_or_else(
            || "It could not be measured.".to_owned(),
            |share| {
                format!(
                    "Of a 64 KiB message in extents of 8 KiB, mapped on demand and accessed, {} of \
                     the delay is not there when the message is empty; by the paper's table it \
                     is {}.",
                    Unit::Share.show(share),
                    Unit::Share.show(paper)
                )
            },
        );
        Verdict::new(
            "data-dominates",
            "Data movement dominates the cost of passing large messages",
            share.map(|share| share > 0.5),
        )
        .because(format!("{found} It holds if that is more than half."))
        .figure(
            "share at 64 KiB",
            Unit::Share,
            share.map_or_else(Cell::default, Cell::here).beside(paper),
        )
    }
}

/// How far a delay may be from the straight line.
const LINEAR: f64 = 0.1;

/// A table of one-way delays with a column for each size.
fn sized(id: &str, title: &str, sizes: &[u64]) -> Table {
    let names: Vec<String> = sizes.iter().map(|&bytes| size(bytes)).collect();
    let columns: Vec<(&str, Unit)> = names
        .iter()
        .map(|name| (name.as_str(), Unit::Seconds))
        .collect();
    Table::new(id, title, "accessed", &columns)
}

/// How far a point is from the straight line through all of them at the most, as a part of
/// what the line says; none for two points.
fn bend(points: Vec<(f64, f64)>) -> Option<f64> {
    let count = points.len() as f64;
    if points.len() < 3 {
        return None;
    }
    let mean = |pick: fn(&(f64, f64)) -> f64| points.iter().map(pick).sum::<f64>() / count;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let sum = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
    let slope = sum(&|p| (p.0 - x) * (p.1 - y)) / sum(&|p| (p.0 - x).powi(2));
    let line = |at: f64| y + slope * (at - x);
    let off = points
        .iter()
        .map(|(x, y)| ((y - line(*x)) / line(*x)).abs())
        .fold(0.0, f64::max);
    off.is_finite().then_some(off)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_straight_and_a_step_is_not() {
        let line = |f: fn(f64) -> f64| {
            let points = (0..5).map(|x| (f64::from(x), f(f64::from(x))));
            bend(points.collect()).unwrap()
        };
        assert!(line(|x| 3.0 * x + 1.0) < 1e-9);
        assert!(line(|_| 2.0) < 1e-9);
        assert!(line(|x| if x < 4.0 { 1.0 } else { 9.0 }) > 0.5);
        assert_eq!(bend(vec![(0.0, 1.0), (1.0, 2.0)]), None);
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
