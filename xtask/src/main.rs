//! This program runs the checks of Portolan: `cargo xtask ci` for a change, and the slower ones
//! beside it.
#![forbid(unsafe_code)]

mod audit;
mod built;
mod capi;
mod checks;
mod ci;
mod error_types;
mod instructions;
mod marks;
mod mutants;
mod paths;
mod python;
mod release;
mod repeat;
mod rooms;
mod stage;
mod torture;
mod unsafe_code;
mod words;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use serde::Serialize;
use stage::{Part, SCENES, Scene};
use std::fmt::Debug;
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
        after_help = "Example:\n  cargo xtask torture --seconds 600 --json\n  cargo xtask torture --seconds 30 --sabotage extents\n  cargo xtask torture --nodes --seconds 600"
    )]
    Torture(TortureArgs),
    /// One process of a torture run
    #[command(hide = true)]
    TortureWorker(WorkerArgs),
    /// One node of a torture run
    #[command(hide = true)]
    TortureNode {
        #[arg(long)]
        board: PathBuf,
        #[arg(long)]
        place: usize,
        #[arg(long)]
        state: PathBuf,
        #[arg(long)]
        sabotage: Option<String>,
    },
    /// One program of a torture run of nodes
    #[command(hide = true)]
    TortureProgram {
        #[arg(long)]
        board: PathBuf,
        #[arg(long)]
        ledger: PathBuf,
        #[arg(long)]
        place: usize,
        #[arg(long)]
        domain: String,
        #[arg(long)]
        seed: u64,
        #[arg(long)]
        nodes: usize,
        #[arg(long)]
        programs: usize,
    },
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
        /// Only these test targets, as `port` or `portolan/port`; all, if there are none
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
    /// Install the C ABI below a prefix, or write its header
    #[command(
        after_help = "Example:\n  cargo xtask capi --install /usr/local\n  cargo xtask capi --header"
    )]
    Capi {
        /// Build the libraries and install them, headers, pkg-config file and CMake package
        #[arg(long, value_name = "PREFIX", required_unless_present = "header")]
        install: Option<PathBuf>,
        /// Write crates/capi/include/portolan.h from the sources
        #[arg(long, conflicts_with = "install")]
        header: bool,
    },
    /// Build the Python package in a virtual environment, and run its tests; skipped without Python
    #[command(
        after_help = "Example:\n  cargo xtask python\n  cargo xtask python python/tests/test_port.py"
    )]
    Python {
        /// Only these files of tests
        tests: Vec<String>,
    },
    /// Pack every crate that is published, and build each from its package
    #[command(
        after_help = "Example:\n  cargo xtask publish --dry-run\n  cargo xtask publish --dry-run --quick"
    )]
    Publish {
        /// Upload nothing
        #[arg(long)]
        dry_run: bool,
        /// Pack, and do not build
        #[arg(long, requires = "dry_run")]
        quick: bool,
    },
    /// Make the Debian package: programs without benchmarks, manual pages, completions, unit
    #[command(after_help = "Example:\n  cargo xtask deb && dpkg -c target/debian/portolan_*.deb")]
    Deb,
    /// Check the build by the oldest compiler that the manifest names, and for aarch64
    #[command(after_help = "Example:\n  cargo xtask platforms")]
    Platforms,
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
    /// Switch one rule of the recovery off, or with `--nodes` of their protocol; the audit is to notice
    #[arg(long, value_name = "RULE", value_parser = PossibleValuesParser::new(rules()))]
    sabotage: Option<String>,
    /// Workers have this fault now and then; they, or others, are to notice
    #[arg(long, value_name = "FAULT", value_parser = PossibleValuesParser::new(torture::worker::PLANTS))]
    plant: Option<String>,
    /// Several nodes with programs on each, and wires between them that are cut
    #[arg(long, num_args = 0..=1, default_missing_value = "4",
        value_parser = clap::value_parser!(u8).range(2..=torture::nodes::MAX_NODES as i64),
        conflicts_with_all = ["plant", "processes", "mark", "stop", "guarded"])]
    nodes: Option<u8>,
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
    /// Go on until so many have died, or with `--stop` stopped, with `--nodes` died, stopped and been cut: four times as long at the most
    #[arg(long, value_name = "N", default_value_t = 0)]
    least: u64,
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

/// The rules that can be switched off.
fn rules() -> impl Iterator<Item = &'static str> {
    let of_nodes = portolan_node::sabotage::RULES;
    portolan::sabotage::RULES.into_iter().chain(of_nodes)
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
        Task::TortureNode {
            board,
            place,
            state,
            sabotage,
        } => torture::nodes::daemon::run(&torture::nodes::daemon::Task {
            board: &board,
            place,
            state: &state,
            sabotage: sabotage.as_deref(),
        }),
        Task::TortureProgram {
            board,
            ledger,
            place,
            domain,
            seed,
            nodes,
            programs,
        } => torture::nodes::program::run(&torture::nodes::program::Task {
            board: &board,
            ledger: &ledger,
            place,
            domain: &domain,
            seed,
            nodes,
            programs,
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
        Task::Capi { install, .. } => match install {
            Some(prefix) => capi::install(&prefix),
            None => capi::header(),
        },
        Task::Python { tests } => python::run(&tests),
        Task::Publish { dry_run, quick } => release::publish(dry_run, quick),
        Task::Deb => release::deb(),
        Task::Platforms => release::platforms(),
        Task::Lint => checks::lint(),
    }
}

fn torture(args: TortureArgs) -> ExitCode {
    let clock = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let (time, seed) = (
        Duration::from_secs(args.seconds),
        args.seed.unwrap_or(clock.as_secs()),
    );
    let of_nodes = |rule: &String| portolan_node::sabotage::RULES.contains(&rule.as_str());
    if args.sabotage.as_ref().is_some_and(of_nodes)
        != (args.sabotage.is_some() && args.nodes.is_some())
    {
        eprintln!(
            "this rule is not followed in such a run: those of nodes need --nodes, the others go without"
        );
        return ExitCode::from(2);
    }
    if let Some(nodes) = args.nodes {
        let report = torture::nodes::run(torture::nodes::Plan {
            time,
            seed,
            nodes: usize::from(nodes),
            sabotage: args.sabotage,
            until_found: args.until_found,
            least: args.least,
        });
        return conclude(report, args.json, torture::nodes::Report::is_clean);
    }
    let report = torture::run(torture::Plan {
        time,
        seed,
        processes: usize::from(args.processes),
        sabotage: args.sabotage,
        plant: args.plant,
        marks: args.mark,
        stop: args.stop,
        guarded: args.guarded,
        until_found: args.until_found,
        least: args.least,
    });
    conclude(report, args.json, torture::Report::is_clean)
}

/// Says what came of a run.
fn conclude<R: Debug + Serialize>(
    report: std::io::Result<R>,
    json: bool,
    is_clean: fn(&R) -> bool,
) -> ExitCode {
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            eprintln!("the torture run could not go on: {error}");
            return ExitCode::FAILURE;
        }
    };
    if json {
        // Cannot fail: strings, numbers, and maps by strings.
        println!("{}", serde_json::to_string(&report).unwrap_or_default());
    } else {
        println!("{report:#?}");
    }
    if is_clean(&report) {
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
