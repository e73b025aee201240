//! The command `portolan-node`, which `portolan node` executes: a node's identity, and the node.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod pages;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    match commands::run(&args::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.report();
            ExitCode::from(error.exit_code())
        }
    }
}
