//! `portolan bench instructions` counts the instructions and system calls of one operation, by
//! stepping.
//!
//! A count is no time: it is the same each time, on every machine, in builds of one kind. So
//! it may be asserted, and is (`cargo xtask instructions --check`).

use portolan_measure::cpus::{self, Cpus};
use portolan_measure::instructions::{self, Build, Row};
use portolan_measure::out::{self, Align, Table};
use portolan_measure::stepped::WHAT;
use serde::Serialize;

use super::report::LeftOut;
use crate::args::BenchArgs;
use crate::error::{CliError, Result};
use crate::json;

#[derive(Serialize)]
struct Report {
    build: Build,
    counted: &'static str,
    rows: Vec<Row>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<LeftOut>,
}

pub(super) fn run(args: &BenchArgs) -> Result<()> {
    let cpus = Cpus::choose();
    cpus::pin(cpus.ours)?;
    let matches = |operation: &str, system: &str| {
        let word = args.filter.as_deref().unwrap_or("");
        operation.contains(word) || system.contains(word)
    };
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    for (number, scene) in instructions::scenes().iter().enumerate() {
        if !scene.parts.iter().any(|part| matches(part, scene.system)) {
            continue;
        }
        match instructions::count(number, &cpus)? {
            Ok(counted) => rows.extend(counted),
            Err(why) => left_out.push(LeftOut {
                what: scene.parts.first().copied().unwrap_or(scene.system),
                why: why.into(),
            }),
        }
    }
    rows.retain(|row| matches(row.operation, row.system));
    if let (true, Some(word)) = (rows.is_empty() && left_out.is_empty(), &args.filter) {
        return Err(CliError::NothingMatches { word: word.clone() });
    }
    let report = Report {
        build: Build::ours(),
        counted: WHAT,
        rows,
        left_out,
    };
    if args.json {
        json::print(&report)?;
    } else {
        out::print(&text(&report))?;
    }
    Ok(())
}

fn text(report: &Report) -> String {
    let Build {
        rustc,
        target,
        flags,
        profile,
        libc,
        processor,
    } = &report.build;
    let flags = if flags.is_empty() { "none" } else { flags };
    let mut text = format!(
        "{rustc}, {target}, profile {profile}; flags: {flags}; {libc}; sums made with: {processor}\n"
    );
    if !report.build.is_optimised() {
        text += "A debug build: its counts say nothing about a release build's.\n";
    }
    text += "\n";
    let mut table = Table::new(&[
        ("system", Align::Left),
        ("operation", Align::Left),
        ("instructions", Align::Right),
        ("system calls", Align::Right),
        ("the fewest in", Align::Right),
        ("", Align::Left),
    ]);
    for row in &report.rows {
        table.row(vec![
            row.system.to_owned(),
            row.operation.to_owned(),
            row.instructions.to_string(),
            row.system_calls.to_string(),
            format!("{} of {} counts", row.fewest, row.counts),
            if row.copies { "without the copy" } else { "" }.to_owned(),
        ]);
    }
    text += &table.render();
    text += &format!("\nInstructions {WHAT}.\n");
    for LeftOut { what, why } in &report.left_out {
        text += &format!("left out: {what}: {why}\n");
    }
    text
}
