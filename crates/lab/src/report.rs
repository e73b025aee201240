//! A report holds a whole run: it is kept as JSON, shown, and compared with an earlier one.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{LabError, Result};
use crate::experiment::Experiment;
use crate::machine::Machine;
use crate::outcome::{Answer, Figure, Outcome, Table};
use crate::unit::Unit;

/// What a report's JSON looks like. It goes up when an older program could misread it.
pub(crate) const FORMAT: u32 = 1;

/// All that a run found out; the page is made from this alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) format: u32,
    /// The program's version.
    pub(crate) version: String,
    pub(crate) made: String,
    pub(crate) quick: bool,
    pub(crate) machine: Machine,
    pub(crate) records: Vec<Record>,
    /// Experiments that the run had not come to when this was written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) to_come: Vec<String>,
}

/// One experiment in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) about: About,
    pub(crate) seconds: f64,
    /// What a cache line took from processor to processor before and after it: the
    /// machine's pace. Not known with one processor.
    #[serde(default)]
    pub(crate) line_seconds: Option<[f64; 2]>,
    pub(crate) result: Ending,
}

/// Where a cache line takes so many times as long as at another moment, figures of the two
/// are not to be compared.
const PACE: f64 = 1.5;

/// What an experiment asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) paper: String,
    pub(crate) section: String,
    pub(crate) hypothesis: String,
    pub(crate) method: String,
}

impl About {
    pub(crate) fn of(experiment: &Experiment) -> Self {
        Self {
            name: experiment.name.to_owned(),
            title: experiment.title.to_owned(),
            paper: experiment.source.paper.to_owned(),
            section: experiment.source.section.to_owned(),
            hypothesis: experiment.hypothesis.to_owned(),
            method: experiment.method.to_owned(),
        }
    }
}

/// Whether a quick run is shown, or beside one.
pub(crate) const QUICK: &str = "A quick run: it shows every row, and its figures say little.";

/// How an experiment ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ending {
    Done(Outcome),
    /// Something that it needs is not here.
    LeftOut {
        why: String,
    },
    Failed {
        error: String,
    },
}

impl Report {
    pub(crate) fn record(&self, name: &str) -> Option<&Record> {
        self.records.iter().find(|record| record.about.name == name)
    }

    /// Says so if the machine's pace changed while the run lasted.
    pub(crate) fn pace(&self) -> Option<String> {
        let records = self.records.iter().filter_map(|record| record.line_seconds);
        let lines = self.machine.line_seconds.into_iter();
        let [least, most] = changed(lines.chain(records.flatten()))?;
        Some(format!(
            "The machine's pace changed during this run: a cache line took from {} to {}. Figures \
             of different experiments are not to be compared without a look at it.",
            Unit::Seconds.show(least),
            Unit::Seconds.show(most)
        ))
    }

    /// Says so if an experiment was made at another pace than the run began with, or if the
    /// pace changed meanwhile.
    pub(crate) fn pace_of(&self, record: &Record) -> Option<String> {
        let [before, after] = record.line_seconds?;
        changed(self.machine.line_seconds.into_iter().chain([before, after]))?;
        let began = self.machine.line_seconds.map_or_else(String::new, |line| {
            format!(", where the run began with {}", Unit::Seconds.show(line))
        });
        Some(format!(
            "The machine's pace changed: a cache line took {} before this experiment and {} \
             after it{began}.",
            Unit::Seconds.show(before),
            Unit::Seconds.show(after)
        ))
    }

    /// Names what the run had not come to.
    pub(crate) fn unfinished(&self) -> Option<String> {
        (!self.to_come.is_empty()).then(|| {
            let names = self.to_come.join(", ");
            format!("The run was not finished when this was written. Not in it: {names}.")
        })
    }

    /// When an earlier run was made, and on what.
    pub(crate) fn origin(&self) -> String {
        let machine = &self.machine.facts;
        let quick = if self.quick { "quick " } else { "" };
        format!(
            "a {quick}run of {}, on {}, Linux {}",
            self.made, machine.cpu, machine.kernel
        )
    }

    /// Reads what an earlier run left.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|source| LabError::Earlier {
            path: path.to_owned(),
            source,
        })?;
        let not_a_report = |source| LabError::NotAReport {
            path: path.to_owned(),
            source,
        };
        // The format first: another one may not parse as this.
        let Format { format } = serde_json::from_str(&text).map_err(not_a_report)?;
        if format != FORMAT {
            return Err(LabError::OtherFormat {
                path: path.to_owned(),
                found: format,
                expected: FORMAT,
            });
        }
        serde_json::from_str(&text).map_err(not_a_report)
    }

    pub(crate) fn to_json(&self) -> String {
        // Serialising our own plain structs to memory cannot fail.
        serde_json::to_string_pretty(self).expect("plain data serialises") + "\n"
    }
}

/// The least and the most of these, if they are too far apart.
fn changed(lines: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    let ends = lines.fold(None, |ends, line| {
        let [least, most] = ends.unwrap_or([line; 2]);
        Some([f64::min(least, line), f64::max(most, line)])
    });
    ends.filter(|[least, most]| *most > least * PACE)
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

impl Record {
    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        match &self.result {
            Ending::Done(outcome) => Some(outcome),
            Ending::LeftOut { .. } | Ending::Failed { .. } => None,
        }
    }
}

/// An earlier run's figures for one experiment, found by name.
#[derive(Clone, Copy, Default)]
pub(crate) struct Earlier<'a>(Option<&'a Outcome>);

impl<'a> Earlier<'a> {
    pub(crate) fn of(report: Option<&'a Report>, experiment: &str) -> Self {
        Self(report.and_then(|report| report.record(experiment)?.outcome()))
    }

    /// Its figure in the cell of `table` with this row and column, if the unit is the same.
    pub(crate) fn cell(self, table: &Table, row: &str, column: usize) -> Option<f64> {
        let column = table.columns.get(column)?;
        let earlier = self.0?.tables.iter().find(|t| t.id == table.id)?;
        let same = earlier.columns.iter().find(|c| c.name == column.name)?;
        (same.unit == column.unit)
            .then(|| earlier.cell(row, &column.name)?.here)
            .flatten()
    }

    /// Its answer to a verdict's claim.
    pub(crate) fn answer(self, verdict: &str) -> Option<Answer> {
        let earlier = self.0?.verdicts.iter().find(|v| v.id == verdict)?;
        Some(earlier.holds)
    }

    /// Its figure of a verdict.
    pub(crate) fn figure(self, verdict: &str, figure: &Figure) -> Option<f64> {
        let earlier = self.0?.verdicts.iter().find(|v| v.id == verdict)?;
        let same = earlier.figures.iter().find(|f| f.name == figure.name)?;
        (same.unit == figure.unit)
            .then_some(same.cell.here)
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Cell;
    use crate::unit::Unit;

    fn outcome(unit: Unit, value: f64) -> Outcome {
        let mut table = Table::new("t", "T", "way", &[("cost", unit)]);
        table.row("copy", [Cell::here(value)]);
        Outcome {
            tables: vec![table],
            ..Outcome::default()
        }
    }

    #[test]
    fn a_change_of_pace_is_told_from_none() {
        assert_eq!(changed([].into_iter()), None);
        assert_eq!(changed([100e-9, 149e-9, 120e-9].into_iter()), None);
        assert_eq!(
            changed([100e-9, 74e-9, 210e-9].into_iter()),
            Some([74e-9, 210e-9])
        );
    }

    /// A run of one experiment, begun with a line of 100 ns.
    fn of_pace(line: [f64; 2]) -> Report {
        let report = serde_json::json!({
            "format": FORMAT, "version": "1", "made": "now", "quick": false,
            "machine": {
                "cpu": "some", "cpus": 2, "cpus_allowed": 2, "virtual_machine": false,
                "kernel": "6", "memory_bytes": 1, "huge_pages": "", "shared_huge_pages": "",
                "pinned": [0, 1], "load_before": 0.0,
                "line_seconds": 100e-9, "clock_seconds": 20e-9,
            },
            "records": [{
                "about": {
                    "name": "n", "title": "t", "paper": "p", "section": "s",
                    "hypothesis": "h", "method": "m",
                },
                "seconds": 1.0,
                "line_seconds": line,
                "result": { "left_out": { "why": "w" } },
            }],
        });
        serde_json::from_value(report).unwrap()
    }

    #[test]
    fn a_change_of_pace_is_said_in_text_and_on_the_page() {
        let [steady, changed] = [[149e-9, 120e-9], [60e-9, 90e-9]].map(of_pace);
        for (report, says) in [(&steady, false), (&changed, true)] {
            let text = crate::text::report(report, None);
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            for shown in [text, crate::page::render(report, None)] {
                assert_eq!(
                    shown.contains("pace changed during this run"),
                    says,
                    "{shown}"
                );
                let each = "took 60.0 ns before this experiment and 90.0 ns after it, where \
                            the run began with 100 ns";
                assert_eq!(shown.contains(each), says, "{shown}");
            }
        }
    }

    #[test]
    fn earlier_figures_are_found_by_name_and_unit() {
        let (now, then) = (outcome(Unit::Seconds, 1.0), outcome(Unit::Seconds, 2.0));
        let earlier = Earlier(Some(&then));
        assert_eq!(earlier.cell(&now.tables[0], "copy", 0), Some(2.0));
        assert_eq!(earlier.cell(&now.tables[0], "move", 0), None);
        let other = outcome(Unit::Bytes, 2.0);
        assert_eq!(Earlier(Some(&other)).cell(&now.tables[0], "copy", 0), None);
        assert_eq!(Earlier(None).cell(&now.tables[0], "copy", 0), None);
    }
}
