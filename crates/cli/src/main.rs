//! The command `portolan` demonstrates, measures, and shows the machine and the domains that run on
//! it.
//!
//! Nothing here decides anything about messages: that is the library's. Several
//! commands start further processes; each is this program again, with a hidden
//! subcommand (see [`portolan_measure::child`]).

#![forbid(unsafe_code)]

/// Writes a line on standard error. Where nobody reads that, or its disk is full, the line is lost and the
/// command goes on.
macro_rules! tell {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr().lock(), $($text)*);
    }};
}

mod args;
#[cfg(feature = "bench")]
mod bench;
mod cluster;
mod demo;
mod doctor;
mod error;
mod json;
mod ls;
mod node;
mod pages;
mod port;
mod seen;
mod top;
mod trace;

use std::process::ExitCode;

use portolan_measure::{MeasureError, child};

use crate::args::{Args, Command};
use crate::error::CliError;

/// What a further process of this program may be for.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum Own {
    /// A stage of the demo.
    Stage(demo::StageBrief),
    /// The receiver of `bench structures`.
    #[cfg(feature = "bench")]
    Structures(bench::structures::Brief),
    /// The far end of `bench node`.
    #[cfg(feature = "bench")]
    Node(bench::node::Brief),
}

fn main() -> ExitCode {
    let outcome = match Args::parsed().command {
        Command::Demo(args) => demo::run(&args),
        #[cfg(feature = "bench")]
        Command::Bench(args) => bench::run(&args),
        #[cfg(not(feature = "bench"))]
        Command::Bench(_) => Err(CliError::Refused {
            what: "this build of the command has no benchmarks".to_owned(),
            to_do: "build it with them: cargo install portolan-cli",
        }),
        Command::Ls(args) => ls::run(&args),
        Command::Node(args) => node::run(&args),
        Command::Port(args) => port::run(&args.command),
        Command::Top(args) => top::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => pages::completions(&args),
        Command::Man(args) => pages::man(&args),
        Command::NodeStage(args) => demo::node_stage_main(&args),
        #[cfg(feature = "bench")]
        Command::BesideNode(args) => bench::node::beside_main(args.coordinator),
        Command::Peer => child::main(|own, control, descriptors| match own {
            Own::Stage(brief) => demo::stage_main(brief, control, descriptors),
            #[cfg(feature = "bench")]
            Own::Structures(brief) => bench::structures::peer_main(&brief, control, descriptors),
            #[cfg(feature = "bench")]
            Own::Node(brief) => bench::node::peer_main(brief, control),
        }),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output has closed it (`portolan ls | head -1`).
        Err(CliError::Measure(MeasureError::ReaderLeft)) => ExitCode::SUCCESS,
        Err(error) => {
            error.report();
            ExitCode::from(error.exit_code())
        }
    }
}
