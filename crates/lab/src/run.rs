//! Runs the commands: lists the experiments, runs some, and writes their results.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use portolan_measure::cpus::{self, Cpus};
use portolan_measure::out;

use crate::args::{ClaimsArgs, ListArgs, RunArgs, VerdictsArgs};
use crate::claims::table::ALL as ALL_CLAIMS;
use crate::docs;
use crate::error::{LabError, Result};
use crate::experiment::{Context, Experiment, Features};
use crate::experiments::{ALL, GROUPS};
use crate::line;
use crate::load::Watch;
use crate::machine::{self, Machine};
use crate::markdown;
use crate::page;
use crate::probed::Probed;
use crate::progress::Progress;
use crate::report::{About, Build, Ending, FORMAT, Record, Report, Stated};
use crate::text;

/// Where `run all` leaves its page unless told otherwise.
const OUT: &str = "portolan-lab";

pub(crate) fn list(args: &ListArgs) -> Result<()> {
    let all: Vec<About> = ALL.iter().map(|experiment| About::of(experiment)).collect();
    if args.json {
        out::print_json(&all)?;
    } else {
        out::print(&text::list(&all))?;
    }
    Ok(())
}

pub(crate) fn claims(args: &ClaimsArgs) -> Result<()> {
    let all: Vec<Stated> = ALL_CLAIMS.iter().map(Stated::of).collect();
    if args.json {
        out::print_json(&all)?;
    } else {
        out::print(&text::claims(&all))?;
    }
    Ok(())
}

pub(crate) fn verdicts(args: &VerdictsArgs) -> Result<()> {
    let mut report = Report::read(&args.report)?;
    report.judge_again();
    match &args.docs {
        Some(directory) => docs::write(directory, &report),
        None => Ok(out::print(&markdown::verdicts(&report))?),
    }
}

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let chosen = choose(&args.name)?;
    // Before hours are spent on a report that nothing can be compared with.
    let earlier = args.compare.as_deref().map(Report::read).transpose()?;
    let directory = match (&args.out, args.name.as_str()) {
        (Some(out), _) => Some(out.clone()),
        (None, "all") => Some(PathBuf::from(OUT)),
        (None, _) => None,
    };
    if let Some(directory) = &directory {
        fs::create_dir_all(directory).map_err(unwritable(directory))?;
    }
    let report = measure(&chosen, args, |report| match &directory {
        Some(directory) => leave(directory, report, earlier.as_ref()),
        None => Ok(()),
    })?;
    if args.json {
        out::print(&report.to_json())?;
    } else {
        out::print(&text::report(&report, earlier.as_ref()))?;
    }
    let failed: Vec<&str> = report
        .records
        .iter()
        .filter(|record| matches!(record.result, Ending::Failed { .. }))
        .map(|record| record.about.name.as_str())
        .collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(LabError::Failed {
            names: failed.join(", "),
        })
    }
}

fn choose(name: &str) -> Result<Vec<&'static Experiment>> {
    if name == "all" {
        return Ok(ALL.to_vec());
    }
    if let Some((_, group)) = GROUPS.iter().find(|(group, _)| *group == name) {
        return Ok(group.to_vec());
    }
    let found = ALL.iter().find(|experiment| experiment.name == name);
    found.map(|experiment| vec![*experiment]).ok_or_else(|| {
        let names = ALL.iter().map(|experiment| experiment.name);
        let known: Vec<&str> = names
            .chain(GROUPS.iter().map(|(group, _)| *group))
            .collect();
        LabError::UnknownExperiment {
            name: name.to_owned(),
            known: known.join(", "),
        }
    })
}

/// Runs them one after the other; one that fails does not keep the others from running. What
/// is there after each is `left`, so that a run that is interrupted loses no more than one.
fn measure(
    chosen: &[&Experiment],
    args: &RunArgs,
    left: impl Fn(&Report) -> Result<()>,
) -> Result<Report> {
    let cpus = Cpus::choose();
    cpus::pin(cpus.ours)?;
    let features = Features::probe(&args.without);
    let probed = Probed::of(args);
    let progress = Progress::new();
    let context = Context {
        quick: args.quick,
        cpus: &cpus,
        features: &features,
        progress: &progress,
    };
    let mut report = Report {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        build: Build::this(),
        made: machine::now(),
        quick: args.quick,
        machine: Machine::look(&cpus),
        records: Vec::new(),
        to_come: Vec::new(),
    };
    for (done, experiment) in chosen.iter().enumerate() {
        let before = report.machine.facts.load_before;
        let record = undoubted(args.attempts, before, || match probed.program(experiment) {
            Some(program) => elsewhere(&probed, program, experiment, &context),
            None => record(experiment, &context),
        });
        report.records.push(record);
        report.settle();
        let to_come = chosen[done + 1..].iter();
        report.to_come = to_come
            .map(|experiment| experiment.name.to_owned())
            .collect();
        left(&report)?;
    }
    progress.finish();
    Ok(report)
}

/// Does an experiment up to so many times, until nothing takes its answers back. Whether it is done
/// again does not depend on what it found.
fn undoubted(attempts: u32, before: f64, mut attempt: impl FnMut() -> Record) -> Record {
    let mut again = Vec::new();
    loop {
        let mut record = attempt();
        let doubts = record.doubts(before);
        let left = again.len() + 1 < attempts as usize;
        // Another build of this program has made its own attempts.
        if doubts.is_empty() || !left || record.outcome().is_none() || record.by.is_some() {
            record.again.extend(again);
            return record;
        }
        again.push(doubts.join(" and "));
    }
}

/// What another build of this program found.
fn elsewhere(
    probed: &Probed,
    program: &Path,
    experiment: &Experiment,
    context: &Context<'_>,
) -> Record {
    context.progress.experiment(experiment.name);
    let start = Instant::now();
    probed
        .record(program, experiment, context.cpus)
        .unwrap_or_else(|error| {
            let took = start.elapsed();
            context.progress.done(experiment.name, took, "failed");
            Record {
                about: About::of(experiment),
                seconds: took.as_secs_f64(),
                line_seconds: None,
                others: None,
                again: Vec::new(),
                by: None,
                result: Ending::Failed {
                    error: error.to_string(),
                },
            }
        })
}

fn record(experiment: &Experiment, context: &Context<'_>) -> Record {
    context.progress.experiment(experiment.name);
    let before = pace(context);
    let watch = Watch::start();
    let start = Instant::now();
    let lacking: Vec<String> = experiment
        .needs
        .iter()
        .filter_map(|&need| context.lacks(need))
        .collect();
    let (result, how) = if lacking.is_empty() {
        match (experiment.run)(context) {
            Ok(outcome) => (Ending::Done(outcome), "done"),
            Err(error) => {
                let error = error.to_string();
                (Ending::Failed { error }, "failed")
            }
        }
    } else {
        let why = lacking.join("; ");
        (Ending::LeftOut { why }, "left out")
    };
    let (took, others) = (start.elapsed(), watch.others());
    context.progress.done(experiment.name, took, how);
    Record {
        about: About::of(experiment),
        seconds: took.as_secs_f64(),
        line_seconds: before.zip(pace(context)).map(<[f64; 2]>::from),
        others,
        again: Vec::new(),
        by: None,
        result,
    }
}

/// What a cache line takes now: over long enough that a moment's change is none of the pace.
fn pace(context: &Context<'_>) -> Option<f64> {
    let line = line::one_way(context.cpus, context.pick(2, 25));
    line.map(|line| line.median())
}

/// Writes the run's files: the page, what it was made from, and each plot by itself.
fn leave(directory: &Path, report: &Report, earlier: Option<&Report>) -> Result<()> {
    // The report comes last, so that its files are there when a reader sees it.
    for outcome in report.records.iter().filter_map(Record::outcome) {
        for plot in &outcome.plots {
            if let Some(svg) = page::plot_file(plot) {
                write(&directory.join(format!("{}.svg", plot.id)), &svg)?;
            }
        }
    }
    write(
        &directory.join("index.html"),
        &page::render(report, earlier),
    )?;
    write(&directory.join("report.json"), &report.to_json())
}

/// Writes a file whole or not at all, whenever we are killed.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".part");
    let partial = PathBuf::from(partial);
    fs::write(&partial, text).map_err(unwritable(&partial))?;
    fs::rename(&partial, path).map_err(unwritable(path))
}

fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> LabError {
    let path = path.to_owned();
    move |source| LabError::Output { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Outcome;

    fn attempt(others: f64, result: Ending) -> Record {
        Record {
            about: About::of(ALL[0]),
            seconds: 1.0,
            line_seconds: Some([100e-9, 100e-9]),
            others: Some(others),
            again: Vec::new(),
            by: None,
            result,
        }
    }

    /// Attempts beside others that take so much; how many are made, and what the last one says.
    fn made(attempts: u32, others: &[f64], result: fn() -> Ending) -> (usize, Record) {
        let mut made = 0;
        let record = undoubted(attempts, 0.0, || {
            made += 1;
            attempt(others[made - 1], result())
        });
        (made, record)
    }

    #[test]
    fn an_experiment_is_done_again_until_nothing_takes_its_answers_back() {
        let done = || Ending::Done(Outcome::default());
        let (attempts, record) = made(3, &[0.9, 0.0, 0.0], done);
        assert_eq!((attempts, record.others), (2, Some(0.0)));
        assert_eq!(record.again.len(), 1);
        assert!(record.again[0].contains("others took 0.9"), "{record:?}");
        // No more often than was asked for; and the last counts, however it was.
        let (attempts, record) = made(2, &[0.9, 0.8], done);
        assert_eq!((attempts, record.others), (2, Some(0.8)));
        assert_eq!(made(1, &[0.9], done).0, 1);
        // What was not done is not done again.
        let failed = || Ending::Failed {
            error: "e".to_owned(),
        };
        assert_eq!(made(3, &[0.9], failed).0, 1);
    }
}
