//! Parses the command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

/// The papers' experiments, done again on this machine.
#[derive(Debug, Parser)]
#[command(
    name = "portolan-lab",
    version,
    arg_required_else_help = true,
    after_help = "Example:\n  portolan-lab run all --out lab     every experiment; the page is lab/index.html"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    List(ListArgs),
    Claims(ClaimsArgs),
    Run(RunArgs),
    Verdicts(VerdictsArgs),
    /// A further process of a running experiment. Not for users.
    #[command(name = portolan_measure::child::ARGUMENT, hide = true)]
    Peer,
}

/// List the experiments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  portolan-lab list")]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// List what the papers claim, and the rule that decides each claim.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  portolan-lab claims")]
pub(crate) struct ClaimsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print the verdicts of an earlier run as Markdown, with the figures that decide them and the reasons.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  portolan-lab verdicts lab/report.json\n  portolan-lab verdicts lab/report.json --docs docs"
)]
pub(crate) struct VerdictsArgs {
    /// A report.json that `run --out DIR` left
    pub(crate) report: PathBuf,
    /// Write them into DIR/lab.md, below its line that says so, and the run's Figure 3 into DIR/figure-3.svg
    #[arg(long, value_name = "DIR")]
    pub(crate) docs: Option<PathBuf>,
}

/// Run one experiment, some, or all of them.
///
/// Prints the tables and verdicts. With --out (and always for `all`) it leaves a page
/// that needs nothing else, the same as JSON, and each plot as a file.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  portolan-lab run tables\n  portolan-lab run all --out after --compare before/report.json\n  portolan-lab run all --attempts 3"
)]
pub(crate) struct RunArgs {
    /// An experiment's name, "nodes" for all whose names begin so, or "all"
    pub(crate) name: String,
    /// Leave index.html, report.json and the plots in this directory
    /// (default for `all`: portolan-lab)
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The smallest run that shows every row; its figures say little
    #[arg(long)]
    pub(crate) quick: bool,
    /// Show an earlier run's report.json beside this one
    #[arg(long, value_name = "FILE")]
    pub(crate) compare: Option<PathBuf>,
    /// Do an experiment so many times at the most, until neither others' work nor a change of the
    /// machine's pace takes its answers back; the last time counts
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempts: u32,
    /// This program built with the feature `probes`, which does `breakdown` for a build without
    /// (default: portolan-lab-probes beside this program, if there is one)
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) probes: Option<PathBuf>,
    /// Run as if this machine lacked a feature
    #[arg(long, value_enum, value_name = "FEATURE")]
    pub(crate) without: Vec<FeatureName>,
}

/// What a machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FeatureName {
    /// Guarded domains: userfaultfd with minor faults on shared memory
    Guarded,
    /// Other libraries, of which a build may have rows
    Peers,
}
