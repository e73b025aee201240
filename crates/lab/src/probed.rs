//! Has the experiment that needs the library's probes done by another build of this program, in which
//! they are compiled: here nothing that is timed has any.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::args::{FeatureName, RunArgs};
use crate::error::{LabError, Result};
use crate::experiment::{Experiment, Need};
use crate::report::{Build, Record, Report};

/// What it is called where no argument names it.
const NAME: &str = "portolan-lab-probes";

/// The other build, if there is one.
pub(crate) struct Probed {
    program: Option<PathBuf>,
    /// What it is told beside the experiment.
    arguments: Vec<String>,
}

impl Probed {
    pub(crate) fn of(args: &RunArgs) -> Self {
        let mut arguments = vec!["--json".to_owned()];
        if args.quick {
            arguments.push("--quick".to_owned());
        }
        if args.attempts > 1 {
            arguments.extend(["--attempts".to_owned(), args.attempts.to_string()]);
        }
        for feature in &args.without {
            let name = match feature {
                FeatureName::Guarded => "guarded",
                FeatureName::Peers => "peers",
            };
            arguments.extend(["--without".to_owned(), name.to_owned()]);
        }
        let program = args.probes.clone().or_else(beside);
        Self { program, arguments }
    }

    /// The program, where the experiment needs probes and this build has none.
    pub(crate) fn program(&self, experiment: &Experiment) -> Option<&Path> {
        let needs = experiment.needs.contains(&Need::Probes) && !portolan::probes::COMPILED;
        self.program.as_deref().filter(|_| needs)
    }

    /// Has it do the experiment.
    pub(crate) fn record(&self, program: &Path, experiment: &Experiment) -> Result<Record> {
        let not = |why: String| LabError::NotTheProbes {
            path: program.to_owned(),
            why,
        };
        let output = Command::new(program)
            .args(["run", experiment.name])
            .args(&self.arguments)
            // It says how far it is, as we do.
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| not(error.to_string()))?;
        let report: Report =
            serde_json::from_slice(&output.stdout).map_err(|error| not(error.to_string()))?;
        let record = taken(report, experiment.name, &Build::this());
        record.map_err(not)
    }
}

/// The experiment's record, if it was made by a build with probes of the same sources; why not, else.
fn taken(report: Report, name: &str, ours: &Build) -> std::result::Result<Record, String> {
    let by = report.build;
    if by.commit != ours.commit || by.profile != ours.profile {
        return Err(format!(
            "it is of commit {} ({}), this one of {} ({})",
            by.commit, by.profile, ours.commit, ours.profile
        ));
    }
    if !by.features.iter().any(|feature| feature == "probes") {
        return Err("it has no probes".to_owned());
    }
    let record = report.records.into_iter().find(|r| r.about.name == name);
    let record = record.ok_or_else(|| format!("it did not do {name}"))?;
    Ok(Record {
        by: Some(by),
        ..record
    })
}

/// The one beside this program.
fn beside() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.with_file_name(NAME);
    program.is_file().then_some(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(commit: &str, features: &[&str]) -> Report {
        let mut report = Report::example();
        report.build.commit = commit.to_owned();
        report.build.features = features.iter().map(|it| (*it).to_owned()).collect();
        report.records[0].about.name = "breakdown".to_owned();
        report
    }

    #[test]
    fn a_record_is_taken_from_a_build_with_probes_of_the_same_sources_only() {
        let ours = report("abc", &[]).build;
        let taken = |commit, features: &[&str], name| taken(report(commit, features), name, &ours);
        let record = taken("abc", &["probes"], "breakdown").unwrap();
        assert_eq!(record.by.unwrap().features, ["probes"]);
        for (commit, features, name, says) in [
            ("abd", &["probes"][..], "breakdown", "of commit abd"),
            ("abc", &[], "breakdown", "no probes"),
            ("abc", &["probes"], "tables", "did not do tables"),
        ] {
            let why = taken(commit, features, name).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }
}
