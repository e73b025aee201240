//! This program runs the checks of Portolan: `cargo xtask ci` for a change, and the slower ones
//! beside it.
#![forbid(unsafe_code)]

mod audit;
mod built;
mod checks;
mod ci;
mod error_types;
mod instructions;
mod marks;
mod mutants;
mod paths;
mod repeat;
mod rooms;
mod stage;
mod torture;
mod unsafe_code;
mod words;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use stage::{Part, SCENES, Scene};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Checks of Portolan
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    arg_required_else_help = true,
    after_help = "Example:\n  cargo xtask torture --seconds 600 --json"
)]
struct Args {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run everything short, and say what each check took: what a change must pass
    #[command(after_help = "Example:\n  cargo xtask ci\n  cargo xtask ci --long")]
    Ci {
        /// The slow checks instead, which take hours: loom, mutants, Miri, fuzz, torture
        #[arg(long)]
        long: bool,
    },
    /// Kill processes of a domain everywhere, and audit what is left
    #[command(
        after_help = "Example:\n  cargo xtask torture --seconds 600 --json\n  cargo xtask torture --seconds 30 --sabotage extents"
    )]
    Torture(TortureArgs),
    /// One process of a torture run
    #[command(hide = true)]
    TortureWorker(WorkerArgs),
    /// Stage the one death that a rule of the recovery is for, and audit what is left
    #[command(after_help = "Example:\n  cargo xtask stage wakes\n  cargo xtask stage wakes --off")]
    Stage(StageArgs),
    /// One process of a staged death
    #[command(hide = true)]
    StageActor {
        #[arg(long)]
        domain: String,
        #[arg(long)]
        part: Part,
        #[command(flatten)]
        stage: StageArgs,
    },
    /// Check the lock-free structures under loom
    #[command(after_help = "Example:\n  cargo xtask loom\n  cargo xtask loom loom_queue")]
    Loom {
        /// Only the tests in these files of crates/shm/tests
        tests: Vec<String>,
    },
    /// Break named invariants one at a time, in a copy, and see that the named tests fail
    #[command(after_help = "Example:\n  cargo xtask mutants\n  cargo xtask mutants queue --json")]
    Mutants {
        /// Only these, or those whose names begin so
        names: Vec<String>,
        /// List them, and try none
        #[arg(long)]
        list: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Run the tests that start processes many times, beside threads that keep processors busy
    #[command(
        after_help = "Example:\n  cargo xtask repeat\n  cargo xtask repeat --times 100 port planted"
    )]
    Repeat {
        /// Only these test targets of `portolan` and `xtask`
        tests: Vec<String>,
        /// How often each is run
        #[arg(long, default_value_t = 20)]
        times: u32,
        /// How many threads keep processors busy
        #[arg(long, default_value_t = 8)]
        load: u32,
        /// How many binaries run at once
        #[arg(long, default_value_t = 1)]
        together: u32,
        /// A run that takes longer is ended, and has failed
        #[arg(long, value_name = "SECONDS", default_value_t = 1200)]
        limit: u64,
    },
    /// Run the tests of crates without system calls under Miri
    #[command(after_help = "Example:\n  cargo xtask miri")]
    Miri,
    /// Run the fuzz targets, each for a while; needs a nightly compiler
    #[command(
        after_help = "Example:\n  cargo xtask fuzz\n  cargo xtask fuzz --seconds 600 channel"
    )]
    Fuzz {
        /// Only these targets: the files in fuzz/src/targets
        targets: Vec<String>,
        /// How long each target runs
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Count the instructions of one operation, and compare them with docs/instructions.json
    #[command(
        after_help = "Example:\n  cargo xtask instructions --check\n  cargo xtask instructions --update"
    )]
    Instructions {
        /// Fail if a row has grown by more than 2 %
        #[arg(long, conflicts_with = "update")]
        check: bool,
        /// Write what was counted to the file
        #[arg(long)]
        update: bool,
    },
    /// Format, clippy, rustdoc, which files have unsafe, arrows between rooms, retired words, error types, paths in ARCHITECTURE, and cargo-deny if it is installed
    #[command(after_help = "Example:\n  cargo xtask lint")]
    Lint,
}

#[derive(Debug, clap::Args)]
struct TortureArgs {
    /// How long it runs
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Repeats a run's choices, though not its timing
    #[arg(long)]
    seed: Option<u64>,
    /// Switch one rule of the recovery off; the audit is to notice
    #[arg(long, value_name = "RULE", value_parser = PossibleValuesParser::new(portolan::sabotage::RULES))]
    sabotage: Option<String>,
    /// Workers have this fault now and then; they, or others, are to notice
    #[arg(long, value_name = "FAULT", value_parser = PossibleValuesParser::new(torture::worker::PLANTS))]
    plant: Option<String>,
    /// Workers
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u8).range(5..=30))]
    processes: u8,
    /// Die at these marks only, and nowhere else
    #[arg(long, value_name = "MARK", value_parser = PossibleValuesParser::new(marks::MARKS))]
    mark: Vec<String>,
    /// Stop at marks for two seconds, instead of dying there; all others are to go on
    #[arg(long)]
    stop: bool,
    /// In a guarded domain: an extent is open only where it is owned
    #[arg(long)]
    guarded: bool,
    /// End with the first audit that finds something
    #[arg(long)]
    until_found: bool,
}

#[derive(Debug, clap::Args)]
struct WorkerArgs {
    #[arg(long)]
    board: PathBuf,
    #[arg(long)]
    worker: usize,
    #[arg(long)]
    domain: String,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    sabotage: Option<String>,
    #[arg(long)]
    plant: Option<String>,
    #[arg(long)]
    guarded: bool,
}

#[derive(Debug, clap::Args)]
struct StageArgs {
    /// Which death
    #[arg(value_parser = scene_names())]
    scene: &'static Scene,
    /// Switch the rule off; the audit is to notice
    #[arg(long)]
    off: bool,
}

fn scene_names() -> impl TypedValueParser<Value = &'static Scene> {
    PossibleValuesParser::new(SCENES.iter().map(|s| s.name))
        .try_map(|name: String| Scene::of(&name).ok_or("there is no such scene"))
}

fn main() -> ExitCode {
    match Args::parse().command {
        Task::Ci { long } => ci::run(long),
        Task::Torture(args) => torture(args),
        Task::TortureWorker(args) => torture::worker::run(&torture::worker::Task {
            board: &args.board,
            worker: args.worker,
            domain: &args.domain,
            seed: args.seed,
            sabotage: args.sabotage.as_deref(),
            plant: args.plant.as_deref(),
            guarded: args.guarded,
        }),
        Task::Stage(args) => stage(&args),
        Task::StageActor {
            domain,
            part,
            stage: StageArgs { scene, off },
        } => stage::act(scene, part, &domain, off),
        Task::Loom { tests } => checks::loom(&tests),
        Task::Mutants { names, list, json } => mutants::run(&names, list, json),
        Task::Repeat {
            tests,
            times,
            load,
            together,
            limit,
        } => repeat::run(&repeat::Plan {
            times,
            load,
            together,
            limit: Duration::from_secs(limit),
            tests: &tests,
        }),
        Task::Miri => checks::miri(),
        Task::Fuzz { targets, seconds } => checks::fuzz(&targets, seconds),
        Task::Instructions { check, update } => instructions::run(match (check, update) {
            (true, _) => instructions::Task::Check,
            (_, true) => instructions::Task::Update,
            _ => instructions::Task::Print,
        }),
        Task::Lint => checks::lint(),
    }
}

fn torture(args: TortureArgs) -> ExitCode {
    let clock = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let report = torture::run(torture::Plan {
        time: Duration::from_secs(args.seconds),
        seed: args.seed.unwrap_or(clock.as_secs()),
        processes: usize::from(args.processes),
        sabotage: args.sabotage,
        plant: args.plant,
        marks: args.mark,
        stop: args.stop,
        guarded: args.guarded,
        until_found: args.until_found,
    });
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            eprintln!("the torture run could not go on: {error}");
            return ExitCode::FAILURE;
        }
    };
    if args.json {
        // Cannot fail: strings, numbers, and maps by strings.
        println!("{}", serde_json::to_string(&report).unwrap_or_default());
    } else {
        println!("{report:#?}");
    }
    if report.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Says what was found, a line each. Fails with 1 if something was, with 2 if the scene
/// could not be played.
fn stage(args: &StageArgs) -> ExitCode {
    match stage::run(args.scene, args.off) {
        Ok(found) => {
            found.iter().for_each(|finding| println!("{finding}"));
            ExitCode::from(u8::from(!found.is_empty()))
        }
        Err(failure) => {
            eprintln!("the scene could not be played: {failure}");
            ExitCode::from(2)
        }
    }
}
