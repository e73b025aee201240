//! A whole run: what is kept as JSON, shown, and compared with an earlier one.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{LabError, Result};
use crate::experiment::Experiment;
use crate::machine::Machine;
use crate::outcome::{Figure, Outcome, Table};

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
}

/// One experiment in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) about: About,
    pub(crate) seconds: f64,
    pub(crate) result: Ending,
}

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
