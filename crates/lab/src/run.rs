//! Runs the commands: lists the experiments, runs some, and writes their results.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use portolan_measure::cpus::{self, Cpus};
use portolan_measure::out;

use crate::args::{ClaimsArgs, ListArgs, RunArgs};
use crate::claims::table::ALL as ALL_CLAIMS;
use crate::error::{LabError, Result};
use crate::experiment::{Context, Experiment, Features};
use crate::experiments::ALL;
use crate::line;
use crate::load::Watch;
use crate::machine::{self, Machine};
use crate::page;
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
    let found = ALL.iter().find(|experiment| experiment.name == name);
    found.map(|experiment| vec![*experiment]).ok_or_else(|| {
        let known: Vec<&str> = ALL.iter().map(|experiment| experiment.name).collect();
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
        let load = report.machine.facts.load_before;
        let mut found = record(experiment, &context);
        while found.attempts < args.attempts && !found.doubts(load).is_empty() {
            let attempts = found.attempts + 1;
            found = record(experiment, &context);
            found.attempts = attempts;
        }
        report.records.push(found);
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
        attempts: 1,
        line_seconds: before.zip(pace(context)).map(<[f64; 2]>::from),
        others,
        result,
    }
}

/// What a cache line takes now.
fn pace(context: &Context<'_>) -> Option<f64> {
    let line = line::one_way(context.cpus, context.pick(2, 5));
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
fn write(path: &Path, text: &str) -> Result<()> {
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
