//! Has the experiment that needs the library's probes done by another build of this program, in which
//! they are compiled: here nothing that is timed has any.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use portolan_measure::MeasureError;
use portolan_measure::cpus::Cpus;

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

    /// Has it do the experiment, on the processors of this run.
    pub(crate) fn record(
        &self,
        program: &Path,
        experiment: &Experiment,
        cpus: &Cpus,
    ) -> Result<Record> {
        let not = |why: String| LabError::NotTheProbes {
            path: program.to_owned(),
            why,
        };
        let mut command = Command::new(program);
        command
            .args(["run", experiment.name])
            .args(&self.arguments)
            // It says how far it is, as we do.
            .stderr(Stdio::inherit());
        let output = output(&mut command, cpus).map_err(|error| not(error.to_string()))?;
        let report: Report =
            serde_json::from_slice(&output.stdout).map_err(|error| not(error.to_string()))?;
        let record = taken(report, experiment.name, &Build::this());
        record.map_err(not)
    }
}

/// Runs a program that may use all processors of this run. A process has the processors of the thread
/// that starts it, and ours is pinned to one: another thread starts it.
fn output(command: &mut Command, cpus: &Cpus) -> Result<Output> {
    std::thread::scope(|scope| {
        let start = || {
            cpus.unpin()?;
            let output = command.output();
            Ok(output.map_err(MeasureError::system("running another build"))?)
        };
        // The thread does nothing that panics.
        scope.spawn(start).join().expect("it does not panic")
    })
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
    fn another_build_may_use_all_processors_of_the_run() {
        // A thread of its own, since it stays pinned.
        std::thread::spawn(|| {
            let cpus = Cpus::choose();
            let allowed = |output: Output| String::from_utf8(output.stdout).unwrap();
            let mut command = Command::new("grep");
            command.args(["Cpus_allowed_list", "/proc/self/status"]);
            let before = allowed(command.output().unwrap());
            portolan_measure::cpus::pin(cpus.ours).unwrap();
            assert_eq!(allowed(output(&mut command, &cpus).unwrap()), before);
            // The thread itself stays where it is.
            assert_eq!(
                portolan_sys::machine::cpus_allowed(),
                [cpus.ours],
                "{before}"
            );
        })
        .join()
        .unwrap();
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
