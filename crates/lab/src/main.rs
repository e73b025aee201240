//! The program `portolan-lab` repeats the papers' experiments on this machine.
//!
//! ```text
//! portolan-lab list                    what there is
//! portolan-lab claims                  what the papers claim, and by which rules it is judged
//! portolan-lab run tables              one experiment, as text
//! portolan-lab run all --out DIR       every one, as a page, as JSON and as plots
//! portolan-lab run all --compare OLD   beside an earlier run
//! portolan-lab verdicts REPORT         an earlier run's verdicts, as Markdown
//! portolan-lab verdicts REPORT --docs DIR   the same, and its Figure 3, into documents
//! ```
//!
//! | module | what is there |
//! |---|---|
//! | [`experiment`] | what an experiment is, and how to add one |
//! | [`experiments`] | all of them, one file each |
//! | [`claims`] | what the papers claim, and the rule that decides each claim |
//! | [`outcome`] | what one finds out: tables, plots, verdicts, and what was left out |
//! | [`report`] | a whole run: kept as JSON, compared with another |
//! | [`pair`], [`copies`], [`grid`] | two spaces that pass messages to and fro, the copies beside them, and the figures of both |
//! | [`nodes`] | messages between nodes, by modes of one engine over one transport |
//! | [`huge`] | whether memory lies on huge pages |
//! | [`calls`] | a service in another process, and its clients |
//! | [`steps`] | steps of telling another thread, measured alone |
//! | [`counter`], [`stepped`] | instructions, by the processor's counters or by stepping |
//! | [`load`] | what others take of the machine meanwhile |
//! | [`probed`] | another build of this program, for the experiment that needs the library's probes |
//! | [`paper`] | figures of the papers that several experiments use |
//! | [`child`] | what its further processes do |
//! | [`docs`] | what documents quote of a run |
//! | [`text`], [`page`], [`markdown`] | a report for a terminal, for a browser, and its verdicts for documents |
//!
//! An experiment only measures and judges; none prints. What is printed, drawn and
//! compared is all in the report, so a page can be made from its JSON alone.

#![forbid(unsafe_code)]

mod args;
mod calls;
mod child;
mod claims;
mod clock;
mod copies;
mod counter;
mod docs;
mod error;
mod experiment;
mod experiments;
mod grid;
mod huge;
mod lanes;
mod line;
mod load;
mod machine;
mod markdown;
mod nodes;
mod outcome;
mod page;
mod pair;
mod paper;
mod probed;
mod progress;
mod report;
mod run;
mod stepped;
mod steps;
mod text;
mod unit;

use std::process::ExitCode;

use clap::Parser;
use portolan_measure::{MeasureError, words};

use crate::args::{Args, Command};
use crate::error::LabError;

fn main() -> ExitCode {
    let done = match Args::parse_from(words::arguments()).command {
        Command::List(args) => run::list(&args),
        Command::Claims(args) => run::claims(&args),
        Command::Run(args) => run::run(&args),
        Command::Verdicts(args) => run::verdicts(&args),
        Command::Peer => portolan_measure::child::main(child::serve),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output has closed it (`portolan-lab list | head -1`).
        Err(LabError::Measure(MeasureError::ReaderLeft)) => ExitCode::SUCCESS,
        Err(error) => {
            error.report();
            ExitCode::from(error.exit_code())
        }
    }
}
