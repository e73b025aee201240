//! `portolan demo` carries one file through three processes in several ways.
//!
//! ```text
//! reader ──hop──> hasher ──hop──> writer
//! FILE -> block   digest, stamp   block -> output
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `carrier` | what a way of carrying blocks must do |
//! | `owned` | extents of a Portolan domain |
//! | `stream` | pipes and Unix sockets |
//! | `stages` | the work of the three processes |
//! | `chain` | starting them, watching them, ending them |
//! | `files` | input, output, digests |
//! | `report` | the table and the JSON |
//! | `nodes` | the same over three nodes, one of which is killed |
//!
//! # Invariants
//!
//! - **D1** An output file appears under its name only when its digest is right.
//! - **D2** When the command ends, for whatever reason, no process of it is left.

mod carrier;
mod chain;
mod files;
mod nodes;
mod owned;
mod report;
mod stages;
mod stream;

use std::io::IsTerminal as _;

use clap::ValueEnum as _;

pub(crate) use nodes::stage_main as node_stage_main;
pub(crate) use stages::{StageBrief, stage_main};

use self::files::{Input, Output};
use self::report::Outcome;
use crate::args::{CarrierName, DemoArgs, DemoCommand};
use crate::error::{CliError, Result};

pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    if let Some(DemoCommand::Nodes(args)) = &args.command {
        return nodes::run(args);
    }
    let input = match &args.file {
        Some(path) => Input::open(path)?,
        None => Input::generate()?,
    };
    let output = Output::create(&files::output_directory(
        args.file.as_deref(),
        args.output.as_deref(),
    ))?;
    let expected = files::rehearse(&input, &output)?;

    let mut carriers = args.carrier.clone();
    if carriers.is_empty() {
        carriers = CarrierName::value_variants().to_vec();
    }
    let mut outcomes = Vec::new();
    for (index, &carrier) in carriers.iter().enumerate() {
        let totals = chain::run(carrier, &input, &output, args.block)?;
        check(
            carrier.label(),
            "what the hasher saw",
            &totals.digest,
            &expected,
        )?;
        let last = index + 1 == carriers.len();
        let written = files::verify(&output, input.len(), !last)?;
        check(carrier.label(), "what was written", &written, &expected)?;
        outcomes.push(Outcome::new(carrier, &input, &totals));
    }
    if let Some(path) = &args.output {
        output.keep(path)?;
    }
    Ok(report::print(&input, &expected, &outcomes, args.json)?)
}

fn check(carrier: &'static str, what: &'static str, found: &str, expected: &str) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let (found, expected) = (found.to_owned(), expected.to_owned());
    Err(CliError::WrongDigest {
        carrier,
        what,
        found,
        expected,
    })
}

/// A bar on a terminal, nothing elsewhere.
fn progress(bytes: u64, message: &str) -> indicatif::ProgressBar {
    if !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let template =
        "{msg:24} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
    let style = indicatif::ProgressStyle::with_template(template).expect("a valid template");
    indicatif::ProgressBar::new(bytes)
        .with_style(style)
        .with_message(message.to_owned())
}
