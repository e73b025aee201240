//! A report holds a whole run: it is kept as JSON, shown, and compared with an earlier one.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::claims::{self, Claim};
use crate::error::{LabError, Result};
use crate::experiment::Experiment;
use crate::load;
use crate::machine::Machine;
use crate::outcome::{Answer, Figure, Outcome, Table, Verdict};
use crate::unit::Unit;

/// What a report's JSON looks like. It goes up when an older program could misread it.
pub(crate) const FORMAT: u32 = 2;

/// All that a run found out; the page is made from this alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) format: u32,
    /// The program's version.
    pub(crate) version: String,
    pub(crate) build: Build,
    pub(crate) made: String,
    pub(crate) quick: bool,
    pub(crate) machine: Machine,
    pub(crate) records: Vec<Record>,
    /// Experiments that the run had not come to when this was written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) to_come: Vec<String>,
}

/// What was built, of what, and by what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Build {
    pub(crate) commit: String,
    pub(crate) compiler: String,
    pub(crate) profile: String,
    /// Of this program; empty if there are none.
    pub(crate) features: Vec<String>,
}

impl Build {
    /// Of this program.
    pub(crate) fn this() -> Self {
        let features = [
            ("peers", cfg!(feature = "peers")),
            ("probes", cfg!(feature = "probes")),
        ];
        let features = features.into_iter().filter(|(_, on)| *on);
        Self {
            commit: env!("PORTOLAN_LAB_COMMIT").to_owned(),
            compiler: env!("PORTOLAN_LAB_COMPILER").to_owned(),
            profile: env!("PORTOLAN_LAB_PROFILE").to_owned(),
            features: features.map(|(name, _)| name.to_owned()).collect(),
        }
    }

    /// The features for people.
    pub(crate) fn features(&self) -> String {
        if self.features.is_empty() {
            "none".to_owned()
        } else {
            self.features.join(", ")
        }
    }
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
    /// Processors that others took meanwhile. Not known where the system does not tell.
    #[serde(default)]
    pub(crate) others: Option<f64>,
    /// Why it was done again, each time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) again: Vec<String>,
    /// What did it, if that is another build than the report's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<Build>,
    pub(crate) result: Ending,
}

/// Where a cache line takes so many times as long as at another moment, figures of the two
/// are not to be compared.
const PACE: f64 = 1.5;

/// Papers whose mechanisms the library has too, and by what part of their titles they are known: a page
/// without an experiment of one says so.
const ABSENT: [(&str, &str); 1] = [(
    "Milojević, Langerman, Black, Sears, Dominijanni, Dean: Concurrency, a Case Study in Remote Tasking \
     and Distributed IPC",
    "Remote Tasking and Distributed IPC",
)];

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

/// What a paper claims, for people who would know all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Stated {
    pub(crate) id: &'static str,
    pub(crate) paper: &'static str,
    pub(crate) section: &'static str,
    pub(crate) claim: &'static str,
    pub(crate) rule: String,
}

impl Stated {
    pub(crate) fn of(claim: &Claim) -> Self {
        Self {
            id: claim.id,
            paper: claim.paper,
            section: claim.section,
            claim: claim.says,
            rule: claim.rule.words(),
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

    /// Judges by the rules of today what this run measured, whichever rules were there then.
    pub(crate) fn judge_again(&mut self) {
        for record in &mut self.records {
            if let Ending::Done(outcome) = &mut record.result {
                outcome.verdicts.iter_mut().for_each(claims::judge_again);
            }
        }
        self.settle();
    }

    /// How many verdicts there are, on how many of the claims, and how many of each answer.
    pub(crate) fn summary(&self) -> Option<String> {
        let outcomes = self.records.iter().filter_map(Record::outcome);
        let verdicts: Vec<&Verdict> = outcomes.flat_map(|outcome| &outcome.verdicts).collect();
        let claims: BTreeSet<&str> = verdicts.iter().map(|verdict| verdict.id.as_str()).collect();
        let each = Answer::ALL.into_iter().filter_map(|answer| {
            let count = verdicts
                .iter()
                .filter(|verdict| verdict.holds == answer)
                .count();
            (count > 0).then(|| format!("{} {count}", answer.name()))
        });
        let several = if verdicts.len() > claims.len() {
            ", some of which are judged for several cases or by two experiments"
        } else {
            ""
        };
        (!verdicts.is_empty()).then(|| {
            format!(
                "{} verdicts on {} of {} claims{several}: {}.",
                verdicts.len(),
                claims.len(),
                claims::table::ALL.len(),
                each.collect::<Vec<_>>().join(", ")
            )
        })
    }

    /// Takes back the answers whose figures are in doubt: those measured beside others' work or
    /// while the machine's pace changed, and those of one claim on which two experiments differ.
    pub(crate) fn settle(&mut self) {
        let all: Vec<(String, Verdict)> = self
            .records
            .iter()
            .flat_map(|record| {
                let verdicts = record.outcome().map(|outcome| &outcome.verdicts[..]);
                let name = &record.about.name;
                let verdicts = verdicts.unwrap_or_default().iter();
                verdicts.map(move |verdict| (name.clone(), verdict.clone()))
            })
            .collect();
        let before = self.machine.facts.load_before;
        for record in &mut self.records {
            let (name, doubts) = (record.about.name.clone(), record.doubts(before));
            let Ending::Done(outcome) = &mut record.result else {
                continue;
            };
            for verdict in &mut outcome.verdicts {
                verdict.doubts.clear();
                verdict.holds = verdict.by_figures;
                if !verdict.by_figures.is_decided() {
                    continue;
                }
                let otherwise = all.iter().filter(|(other, found)| {
                    *other != name
                        && found.is_of(verdict)
                        && found.by_figures.is_decided()
                        && found.by_figures != verdict.by_figures
                });
                let otherwise = otherwise.map(|(other, found)| {
                    format!(
                        "by the same rule the figures of the experiment `{other}` say: {}",
                        found.by_figures.name()
                    )
                });
                verdict.doubts = doubts.iter().cloned().chain(otherwise).collect();
                if !verdict.doubts.is_empty() {
                    verdict.holds = Answer::CannotTell;
                }
            }
        }
    }

    /// Which papers the experiments of this run are of, and which of the known ones they leave out.
    pub(crate) fn covers(&self) -> String {
        let mut papers: Vec<&str> = Vec::new();
        for record in &self.records {
            let verdicts = record.outcome().map(|outcome| &outcome.verdicts[..]);
            let verdicts = verdicts.unwrap_or_default().iter();
            let of = std::iter::once(&record.about.paper).chain(verdicts.map(|it| &it.paper));
            for paper in of {
                if !papers.contains(&paper.as_str()) {
                    papers.push(paper);
                }
            }
        }
        let absent = ABSENT.iter().filter(|(_, title)| {
            let has = |paper: &&str| paper.contains(title);
            !papers.iter().any(has)
        });
        let absent = absent.map(|(whole, _)| format!(" Not in it: {whole}."));
        let absent: String = absent.collect();
        format!("Of these papers: {}.{absent}", papers.join("; "))
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
    /// How it was done, where that is not as all others were.
    pub(crate) fn how(&self) -> Option<String> {
        let mut how = Vec::new();
        if let Some(by) = &self.by {
            how.push(format!("It was done by a build with {}.", by.features()));
        }
        if !self.again.is_empty() {
            let before = self.again.join("; ");
            how.push(format!("It was done again, because at first {before}."));
        }
        (!how.is_empty()).then(|| how.join(" "))
    }

    /// Why none of its figures decides anything. `before`: the load before the run, where the
    /// system does not tell what others took during the experiment.
    pub(crate) fn doubts(&self, before: f64) -> Vec<String> {
        let mut doubts = Vec::new();
        let limit = Unit::Count.quote(load::BUSY);
        match self.others {
            Some(others) if others > load::BUSY => doubts.push(format!(
                "others took {} processors while it was measured, more than {limit}",
                Unit::Count.show(others)
            )),
            None if before > load::BUSY => doubts.push(format!(
                "the load before the run was {}, more than {limit}",
                Unit::Count.show(before)
            )),
            _ => {}
        }
        if let Some([before, after]) = self.line_seconds
            && changed([before, after].into_iter()).is_some()
        {
            doubts.push(format!(
                "a cache line took {} before the experiment and {} after it",
                Unit::Seconds.show(before),
                Unit::Seconds.show(after)
            ));
        }
        doubts
    }

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

    /// Its verdict on the same claim of the same case.
    fn verdict(self, verdict: &Verdict) -> Option<&'a Verdict> {
        self.0?.verdicts.iter().find(|v| v.is_of(verdict))
    }

    /// Its answer to a verdict's claim.
    pub(crate) fn answer(self, verdict: &Verdict) -> Option<Answer> {
        Some(self.verdict(verdict)?.holds)
    }

    /// Its figure of a verdict.
    pub(crate) fn figure(self, verdict: &Verdict, figure: &Figure) -> Option<f64> {
        let earlier = self.verdict(verdict)?;
        let same = earlier.figures.iter().find(|f| f.name == figure.name)?;
        (same.unit == figure.unit)
            .then_some(same.cell.here)
            .flatten()
    }
}

#[cfg(test)]
impl Report {
    /// A run of one experiment, which was left out, begun with a line of 100 ns.
    pub(crate) fn example() -> Self {
        let report = serde_json::json!({
            "format": FORMAT, "version": "1", "made": "now", "quick": false,
            "build": { "commit": "c", "compiler": "r", "profile": "p", "features": [] },
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
                "result": { "left_out": { "why": "w" } },
            }],
        });
        serde_json::from_value(report).unwrap()
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
    fn a_run_says_which_papers_it_is_of_and_which_it_leaves_out() {
        let mut report = Report::example();
        let covers = report.covers();
        let paper = report.records[0].about.paper.clone();
        assert!(covers.contains(&paper), "{covers}");
        let (whole, _) = ABSENT[0];
        assert!(covers.contains(&format!("Not in it: {whole}.")), "{covers}");
        // As soon as there is an experiment of it, it is one of them, once.
        let mut more = report.records[0].clone();
        more.about.paper = whole.to_owned();
        report.records.push(more.clone());
        report.records.push(more);
        let covers = report.covers();
        assert!(!covers.contains("Not in it"), "{covers}");
        assert_eq!(covers.matches(whole).count(), 1, "{covers}");
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

    fn of_pace(line: [f64; 2]) -> Report {
        let mut report = Report::example();
        report.records[0].line_seconds = Some(line);
        report
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

    /// A run in which each experiment finds such a ratio for one claim, and what was the matter
    /// meanwhile: the line before and after it, and the processors that others took.
    fn finding(found: &[(&str, f64, [f64; 2], Option<f64>)]) -> Report {
        let mut report = of_pace([100e-9, 100e-9]);
        let of = |&(name, ratio, line, others): &(&str, f64, [f64; 2], Option<f64>)| {
            let estimate = claims::Estimate::exact(ratio);
            let mut record = report.records[0].clone();
            name.clone_into(&mut record.about.name);
            (record.line_seconds, record.others) = (Some(line), others);
            record.result = Ending::Done(Outcome {
                verdicts: vec![
                    claims::table::PAYS.verdict(&[estimate]),
                    claims::table::MODEL_SHARES.verdict(&[]),
                ],
                ..Outcome::default()
            });
            record
        };
        report.records = found.iter().map(of).collect();
        report.settle();
        // What was settled once stays settled.
        let once = report.clone();
        report.settle();
        assert_eq!(once, report);
        report
    }

    fn verdicts(report: &Report, record: usize) -> &[Verdict] {
        &report.records[record].outcome().unwrap().verdicts
    }

    const STEADY: [f64; 2] = [100e-9, 120e-9];

    #[test]
    fn beside_others_work_or_at_a_changed_pace_nothing_can_be_told() {
        for (line, others, says) in [
            (STEADY, Some(0.5), None),
            (STEADY, None, None),
            (STEADY, Some(0.51), Some("others took 0.51 processors")),
            (
                [100e-9, 151e-9],
                Some(0.0),
                Some("took 100 ns before the experiment and 151 ns"),
            ),
            (
                [151e-9, 100e-9],
                Some(0.0),
                Some("took 151 ns before the experiment and 100 ns"),
            ),
        ] {
            for (ratio, by_figures) in [(0.5, Answer::Holds), (2.0, Answer::DoesNotHold)] {
                let report = finding(&[("pages", ratio, line, others)]);
                let [judged, fit] = verdicts(&report, 0) else {
                    panic!("two verdicts");
                };
                // What measurements do not decide they do not put in doubt.
                assert_eq!((fit.holds, fit.doubts.len()), (Answer::Fit, 0));
                assert_eq!(judged.by_figures, by_figures);
                let text = crate::text::report(&report, None);
                let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                let page = crate::page::render(&report, None);
                match says {
                    None => assert_eq!(judged.holds, by_figures),
                    Some(says) => {
                        assert_eq!(judged.holds, Answer::CannotTell);
                        let says = format!("by its figures it {}, but ", by_figures.name())
                            + &{
                                assert!(judged.doubts[0].contains(says), "{:?}", judged.doubts);
                                judged.doubts[0].clone()
                            };
                        assert!(text.contains(&says), "{text}");
                        assert!(page.contains(&says), "{page}");
                    }
                }
                assert_eq!(page.contains("class=\"doubt\""), says.is_some());
            }
        }
    }

    #[test]
    fn a_run_says_how_many_of_each_answer_it_has() {
        let mut report = finding(&[("pages", 0.5, STEADY, None), ("tables", 2.0, STEADY, None)]);
        report.settle();
        let summary = report.summary().unwrap();
        let all = claims::table::ALL.len();
        // Two experiments that differ on one claim, and a fit beside each.
        assert!(
            summary.starts_with(&format!("4 verdicts on 2 of {all} claims")),
            "{summary}"
        );
        assert!(summary.ends_with(": cannot tell 2, fit 2."), "{summary}");
        let page = crate::page::render(&report, None);
        let text = crate::text::report(&report, None);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let markdown = crate::markdown::verdicts(&report);
        for shown in [page, text, markdown] {
            assert!(shown.contains(&summary), "{shown}");
        }
        assert_eq!(Report::example().summary(), None);
    }

    #[test]
    fn judged_again_an_earlier_run_keeps_its_doubts() {
        let mut report = finding(&[("pages", 0.5, STEADY, Some(0.9))]);
        let Ending::Done(outcome) = &mut report.records[0].result else {
            panic!("it was done");
        };
        // As a rule of then answered.
        let by_figures = outcome.verdicts[0].by_figures;
        outcome.verdicts[0].by_figures = Answer::DoesNotHold;
        outcome.verdicts[0].rule = "another rule".to_owned();
        report.judge_again();
        let verdict = &verdicts(&report, 0)[0];
        assert_eq!(verdict.by_figures, by_figures);
        assert!(verdict.rule.starts_with("It holds if"), "{}", verdict.rule);
        assert_eq!(verdict.holds, Answer::CannotTell);
    }

    #[test]
    fn the_load_before_the_run_counts_where_the_system_does_not_tell_of_others() {
        let mut report = finding(&[("pages", 0.5, STEADY, None)]);
        report.machine.facts.load_before = 0.8;
        report.settle();
        assert_eq!(verdicts(&report, 0)[0].holds, Answer::CannotTell);
        // It was before; where what others took meanwhile is known, that counts.
        let mut report = finding(&[("pages", 0.5, STEADY, Some(0.1))]);
        report.machine.facts.load_before = 0.8;
        report.settle();
        assert_eq!(verdicts(&report, 0)[0].holds, Answer::Holds);
    }

    #[test]
    fn it_is_said_that_an_experiment_was_done_again_or_by_another_build() {
        let mut report = of_pace([100e-9, 100e-9]);
        assert_eq!(report.records[0].how(), None);
        report.records[0].again = vec!["others took 1 processors".to_owned()];
        report.records[0].by = Some(Build {
            features: vec!["probes".to_owned()],
            ..report.build.clone()
        });
        let text = crate::text::report(&report, None);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for shown in [text, crate::page::render(&report, None)] {
            for says in [
                "It was done by a build with probes.",
                "done again, because at first others took 1 processors.",
            ] {
                assert!(shown.contains(says), "{shown}");
            }
        }
    }

    #[test]
    fn experiments_that_judge_one_claim_say_the_same() {
        let quiet = Some(0.0);
        let differ = [
            ("pages", 0.5, STEADY, quiet),
            ("breakdown", 2.0, STEADY, quiet),
        ];
        let report = finding(&differ);
        for (record, other) in [(0, "breakdown"), (1, "pages")] {
            let judged = &verdicts(&report, record)[0];
            assert_eq!(judged.holds, Answer::CannotTell);
            assert!(
                judged.doubts[0].contains(&format!("`{other}`")),
                "{:?}",
                judged.doubts
            );
        }
        let agree = [
            ("pages", 0.5, STEADY, quiet),
            ("breakdown", 0.6, STEADY, quiet),
        ];
        let report = finding(&agree);
        for record in [0, 1] {
            assert_eq!(verdicts(&report, record)[0].holds, Answer::Holds);
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
