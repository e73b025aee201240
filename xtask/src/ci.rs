//! `cargo xtask ci` runs every check for a change, goes on after a failure, and says what each
//! took.
//!
//! A step is a command line that can be run by itself in the same words. The short steps are
//! what `.ci/run` runs; the long ones need an hour, and a nightly compiler. Tests wait for
//! processes and deadlines most of the time, so that compilers work beside them: once the tests
//! are built, cargo's lock on the target directory is free.

use crate::built;
use crate::checks::{FEATURES, code, command, step};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// What the tests of features are run with that nothing else builds.
const MORE: &str =
    "portolan/tokio,portolan/marks,portolan/metrics,portolan-lab/probes,portolan-cli/serialisers";

/// A check: what it is called in the table, and the command line, whose words have no blanks.
type Step = (&'static str, String);

/// What the README tells newcomers to run.
fn tests() -> String {
    format!("cargo test --workspace --features {FEATURES}")
}

/// The directory over Zenoh, which nothing else builds: the same scenes as over the static one.
const ZENOH: &str = "cargo test -p portolan-node --features zenoh --test directory";

/// Steps that run one after another; those `beside` them too, at the same time.
struct Stage {
    steps: Vec<Step>,
    beside: Vec<Step>,
}

impl Stage {
    fn alone(steps: Vec<Step>) -> Self {
        Self {
            steps,
            beside: Vec::new(),
        }
    }
}

/// Seconds to minutes each.
fn short() -> Vec<Stage> {
    let more = format!("cargo test --workspace --features {MORE}");
    vec![
        Stage::alone(vec![("tests, built", format!("{} --no-run", tests()))]),
        Stage {
            steps: vec![("tests", tests())],
            beside: vec![
                ("lint", "cargo xtask lint".to_owned()),
                ("zenoh, built", format!("{ZENOH} --no-run")),
            ],
        },
        Stage::alone(vec![
            (
                "probes, breakdown",
                format!("{more} --test probes --test breakdown"),
            ),
            ("serialisers", format!("{more} --test bench structures")),
            ("zenoh", ZENOH.to_owned()),
            ("python", "cargo xtask python".to_owned()),
            (
                "instructions",
                "cargo xtask instructions --check".to_owned(),
            ),
            (
                "packages",
                "cargo xtask publish --dry-run --quick".to_owned(),
            ),
        ]),
    ]
}

/// The simulation of nodes, of a size that no short step has.
const LONG_SIMULATION: &str =
    "cargo test -p portolan-sim --test simulation --test moves -- --ignored";

/// Minutes each.
fn long() -> Vec<Stage> {
    let torture = "cargo xtask torture --seconds 600 --least 1000";
    vec![Stage::alone(vec![
        (
            "packages, built",
            "cargo xtask publish --dry-run".to_owned(),
        ),
        ("platforms", "cargo xtask platforms".to_owned()),
        ("loom", "cargo xtask loom".to_owned()),
        ("nodes, 10,000", LONG_SIMULATION.to_owned()),
        ("mutants", "cargo xtask mutants".to_owned()),
        (
            "repeat",
            "cargo xtask repeat --times 3 --load 8 --together 12".to_owned(),
        ),
        ("miri", "cargo xtask miri".to_owned()),
        ("fuzz", "cargo xtask fuzz".to_owned()),
        ("torture", torture.to_owned()),
        ("torture, guarded", format!("{torture} --guarded")),
        ("torture, stops", format!("{torture} --stop")),
        ("torture, nodes", format!("{torture} --nodes")),
    ])]
}

/// What became of a step.
struct Done {
    step: Step,
    passed: bool,
    took: Duration,
}

impl Done {
    fn of(step: Step, run: impl FnOnce(&Step) -> bool) -> Self {
        let began = Instant::now();
        let passed = run(&step);
        Self {
            step,
            passed,
            took: began.elapsed(),
        }
    }
}

/// Runs the short steps, or the long ones.
pub(crate) fn run(slow: bool) -> ExitCode {
    let stages = if slow { long() } else { short() };
    let done: Vec<Done> = stages.into_iter().flat_map(staged).collect();
    println!("\n{:<18} {:>10}", "check", "took");
    for Done { step, passed, took } in &done {
        let seconds = took.as_secs();
        let took = format!("{}:{:02} min", seconds / 60, seconds % 60);
        let said = match passed {
            true => "passed".to_owned(),
            false => format!("FAILED: {}", step.1),
        };
        println!("{:<18} {took:>10}  {said}", step.0);
    }
    code(done.iter().all(|d| d.passed))
}

/// Tests at once: as they wait most of the time, more than there are processors.
fn test_threads() -> usize {
    2 * thread::available_parallelism().map_or(1, usize::from)
}

/// What runs beside other steps says what it has to say once they are done.
fn staged(stage: Stage) -> Vec<Done> {
    let line = |step: &Step| {
        let words: Vec<&str> = step.1.split(' ').collect();
        let mut line = command(&words);
        // Each step builds once: what serves the next build only fills the disk.
        line.env("CARGO_INCREMENTAL", "0");
        line.env("RUST_TEST_THREADS", test_threads().to_string());
        line
    };
    let quietly = |step: Step| {
        let mut said = String::new();
        let done = Done::of(step, |step| match built::captured(&mut line(step)) {
            Ok((status, output)) => {
                said = output;
                status.success()
            }
            Err(error) => {
                said = format!("{} could not be run: {error}\n", step.1);
                false
            }
        });
        (done, said)
    };
    thread::scope(|scope| {
        let beside = stage.beside;
        let beside = scope.spawn(move || beside.into_iter().map(quietly).collect::<Vec<_>>());
        let steps = stage.steps.into_iter();
        let mut done: Vec<Done> = steps
            .map(|it| Done::of(it, |it| step(&mut line(it))))
            .collect();
        for (step, said) in beside.join().expect("a step that fails is no panic") {
            eprintln!("==> {}\n{said}", step.step.1);
            done.push(step);
        }
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::root;

    /// What newcomers are told to run is what runs.
    #[test]
    fn the_readme_and_ci_name_the_same_commands() {
        let text = |file| std::fs::read_to_string(root().join(file)).unwrap();
        let readme = text("README.md");
        assert!(readme.contains(&tests()), "the test command");
        assert!(MORE.starts_with(FEATURES), "{MORE}");
        for file in [
            "README.md",
            "CONTRIBUTING.md",
            ".ci/run",
            ".github/workflows/ci.yml",
        ] {
            assert!(text(file).contains("cargo xtask ci"), "{file}");
        }
        assert!(text("CONTRIBUTING.md").contains(ZENOH), "the directory's");
    }

    /// What is released has the directory that nothing else builds.
    #[test]
    fn what_is_released_has_zenoh() {
        let text = |file| std::fs::read_to_string(root().join(file)).unwrap();
        for (file, line) in [
            (
                "README.md",
                "cargo install --path crates/node --features zenoh",
            ),
            ("deploy/Containerfile", "--features portolan-node/zenoh"),
            ("xtask/src/release.rs", "\"portolan-node/zenoh\""),
        ] {
            assert!(text(file).contains(line), "{file}");
        }
        assert!(
            !tests().contains("zenoh"),
            "the README's tests do not wait for it"
        );
    }
}
