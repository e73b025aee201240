//! The rows of `bench node`, and how they are printed.

use portolan_measure::machine::Machine;
use portolan_measure::out::{self, Align, Table};
use serde::Serialize;

use super::lanes::{Measured, Ratio};
use crate::bench::budget::{Budget, Measure, Verdict};
use crate::bench::report::{self, LeftOut};
use crate::error::Result;

/// What a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Of an operation; nanoseconds.
    Time,
    /// Of messages of so many bytes; GB/s.
    Rate { bytes: u64 },
    /// Of an operation, in user mode.
    Instructions,
    /// Of a processor.
    Percent,
    /// Between none and one.
    Index,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Time => "ns",
            Self::Rate { .. } => "GB/s",
            Self::Instructions => "instructions",
            Self::Percent => "%",
            Self::Index => "",
        }
    }

    /// Of a time in picoseconds.
    fn of(self, picos: f64) -> f64 {
        match self {
            Self::Rate { bytes } => bytes as f64 * 1e3 / picos,
            _ => picos / 1e3,
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Self::Time => report::nanos(value),
            Self::Rate { .. } => format!("{value:.2}"),
            Self::Instructions => format!("{value:.0}"),
            Self::Percent | Self::Index => format!("{value:.3}"),
        }
    }
}

/// A row.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    case: String,
    /// What carries it.
    over: String,
    /// How all of its processes wait.
    waiting: &'static str,
    /// On which processors they run.
    processors: &'static str,
    unit: &'static str,
    /// The median, or the one figure that there is.
    p50: f64,
    /// 99 % of all are better.
    #[serde(skip_serializing_if = "Option::is_none")]
    p99: Option<f64>,
    /// What it is held against.
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<String>,
    /// The ratio to that: the median over the slices of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    /// What the middle half of the slices' ratios lies between.
    #[serde(skip_serializing_if = "Option::is_none")]
    middle_half: Option<[f64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(skip)]
    shown: Unit,
    #[serde(skip)]
    judged: Option<(Ratio, Budget)>,
}

impl Row {
    /// Of what was measured in slices.
    pub(super) fn of(case: &str, over: &str, unit: Unit, measured: &Measured) -> Self {
        let figures = &measured.figures;
        Self {
            p99: Some(unit.of(figures.p99)),
            ..Self::figure(case, over, unit, unit.of(figures.p50))
        }
    }

    /// Of one figure.
    pub(super) fn figure(case: &str, over: &str, unit: Unit, figure: f64) -> Self {
        Self {
            case: case.to_owned(),
            over: over.to_owned(),
            waiting: "",
            processors: "",
            unit: unit.name(),
            p50: figure,
            p99: None,
            against: None,
            ratio: None,
            middle_half: None,
            note: None,
            shown: unit,
            judged: None,
        }
    }

    pub(super) fn waiting(self, waiting: &'static str, processors: &'static str) -> Self {
        Self {
            waiting,
            processors,
            ..self
        }
    }

    /// Held against another row of this run.
    pub(super) fn against(self, other: &str, ratio: Option<Ratio>, budget: Option<Budget>) -> Self {
        Self {
            against: Some(other.to_owned()),
            ratio: ratio.map(|ratio| ratio.median),
            middle_half: ratio.map(|ratio| ratio.range),
            judged: ratio.zip(budget),
            ..self
        }
    }

    /// What is judged is the figure itself, or what it is more than another.
    pub(super) fn judged(self, figure: Ratio, budget: Budget) -> Self {
        Self {
            judged: Some((figure, budget)),
            ..self
        }
    }

    pub(super) fn noted(self, note: String) -> Self {
        Self {
            note: Some(note),
            ..self
        }
    }
}

#[derive(Serialize)]
struct Report<'a> {
    machine: &'a Machine,
    rows: &'a [Row],
    budgets: Vec<Verdict>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    left_out: &'a [LeftOut],
}

/// The budgets of these rows: of several rows the worst.
fn judge(rows: &[Row]) -> Vec<Verdict> {
    let mut budgets: Vec<(Budget, Vec<Ratio>)> = Vec::new();
    for (ratio, budget) in rows.iter().filter_map(|row| row.judged) {
        match budgets.iter_mut().find(|(one, _)| one.what == budget.what) {
            Some((_, ratios)) => ratios.push(ratio),
            None => budgets.push((budget, vec![ratio])),
        }
    }
    let verdicts = budgets.iter().map(|(budget, ratios)| {
        let least = matches!(budget.measure, Measure::Rate | Measure::Index);
        let worst = ratios.iter().copied().reduce(|one, other| {
            match (one.median < other.median) == least {
                true => one,
                false => other,
            }
        });
        let Some(Ratio { median, range }) = worst else {
            return budget.verdict_of(f64::NAN, 0);
        };
        let mut verdict = budget.verdict_of(median, ratios.len());
        let is_met = |figure: f64| budget.verdict_of(figure, 1).verdict != "missed";
        // The middle half of the slices says both.
        if is_met(range[0]) != is_met(range[1]) {
            verdict.verdict = "cannot tell";
        }
        verdict
    });
    verdicts.collect()
}

pub(super) fn print(
    machine: &Machine,
    rows: &[Row],
    left_out: &[LeftOut],
    json: bool,
) -> Result<()> {
    let budgets = judge(rows);
    if json {
        return Ok(crate::json::print(&Report {
            machine,
            rows,
            budgets,
            left_out,
        })?);
    }
    let mut text = format!("{machine}\n");
    let mut units: Vec<&str> = rows.iter().map(|row| row.unit).collect();
    units.dedup();
    let mut printed: Vec<&str> = Vec::new();
    for unit in units {
        if printed.contains(&unit) {
            continue;
        }
        printed.push(unit);
        let heading = if unit.is_empty() { "an index" } else { unit };
        let of_unit = rows.iter().filter(|row| row.unit == unit);
        text += &format!("\n{heading}\n{}", table(of_unit));
    }
    text += "\nratio: to what is in the last column, the median over the slices of this run; beside it, what\n\
             the middle half of them lies between. A budget that lies between cannot be told.\n";
    let mut notes: Vec<String> = Vec::new();
    for row in rows {
        if let Some(note) = &row.note {
            notes.push(format!("{}: {note}\n", row.case));
        }
    }
    if !notes.is_empty() {
        text += &format!("\n{}", notes.concat());
    }
    for LeftOut { what, why } in left_out {
        text += &format!("\nleft out: {what}: {why}\n");
    }
    if !budgets.is_empty() {
        text += &format!("\n{}", report::verdicts(&budgets));
    }
    Ok(out::print(&text)?)
}

fn table<'a>(rows: impl Iterator<Item = &'a Row>) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("", Left),
        ("over", Left),
        ("waiting", Left),
        ("on", Left),
        ("p50", Right),
        ("p99", Right),
        ("ratio", Right),
        ("middle half", Right),
        ("to", Left),
    ]);
    for row in rows {
        let times = |ratio: f64| format!("{ratio:.2}");
        let half = |[lower, upper]: [f64; 2]| format!("{lower:.2}-{upper:.2}");
        table.row(vec![
            row.case.clone(),
            row.over.clone(),
            row.waiting.to_owned(),
            row.processors.to_owned(),
            row.shown.show(row.p50),
            row.p99.map_or(String::new(), |p99| row.shown.show(p99)),
            row.ratio.map_or(String::new(), times),
            row.middle_half.map_or(String::new(), half),
            row.against.clone().unwrap_or_default(),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(median: f64, range: [f64; 2], budget: Budget) -> Row {
        let ratio = Some(Ratio { median, range });
        let row = Row::figure("a case", "TCP", Unit::Time, 1.0);
        row.against("another", ratio, Some(budget))
    }

    #[test]
    fn the_worst_of_several_rows_is_judged_and_a_bound_between_slices_is_not() {
        let most = Budget::new("at most", Measure::Yardstick, 1.5, Some(1.2));
        let least = Budget::new("at least", Measure::Rate, 0.8, None);
        let rows = [
            row(1.1, [1.0, 1.1], most),
            row(1.3, [1.25, 1.4], most),
            row(0.9, [0.9, 0.9], least),
            row(0.7, [0.6, 0.75], least),
        ];
        let verdicts = judge(&rows);
        let found: Vec<_> = verdicts
            .iter()
            .map(|v| (v.measured, v.verdict, v.rows))
            .collect();
        assert_eq!(found, [(1.3, "met", 2), (0.7, "missed", 2)]);
        let between = judge(&[row(1.45, [1.4, 1.6], most)]);
        assert_eq!(between[0].verdict, "cannot tell");
    }

    #[test]
    fn a_rate_is_of_bytes_in_a_time() {
        // 1 MiB in 1 ms.
        let rate = Unit::Rate { bytes: 1 << 20 };
        assert!((rate.of(1e9) - 1.048_576).abs() < 1e-9);
        assert!((Unit::Time.of(1500.0) - 1.5).abs() < 1e-9);
    }
}
