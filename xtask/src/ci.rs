//! `cargo xtask ci` runs every check for a change, goes on after a failure, and says what each
//! took.
//!
//! A step is a command line that can be run by itself in the same words. The short steps are
//! what `.ci/run` runs; the long ones need an hour, and a nightly compiler. Tests wait for
//! processes and deadlines most of the time, so that compilers work beside them: once the tests
//! are built, cargo's lock on the target directory is free.

use crate::built;
use crate::checks::{FEATURES, code, command};
use std::io::{self, Write};
use std::process::{Command, ExitCode};
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
    /// All that it said.
    said: String,
}

impl Done {
    /// Runs a step; what it says is handed on as it comes.
    fn of(step: Step, hand_on: impl FnMut(&[u8])) -> Self {
        let began = Instant::now();
        let (passed, said) = match built::captured(&mut line(&step), hand_on) {
            Ok((status, said)) => (status.success(), said),
            Err(error) => (false, format!("{} could not be run: {error}\n", step.1)),
        };
        Self {
            step,
            passed,
            took: began.elapsed(),
            said,
        }
    }
}

/// The lines of a failed step that say why, at most: the first of them, and the last.
const WHY: (usize, usize) = (120, 30);

/// Why a step failed: what it said from the first failure on, or else its last lines.
fn why(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    let last = lines.len().saturating_sub(WHY.0 + WHY.1);
    let from = lines.iter().position(|l| *l == "failures:").unwrap_or(last);
    let lines = &lines[from..];
    let out = lines.len().saturating_sub(WHY.0 + WHY.1);
    if out == 0 {
        return lines.join("\n");
    }
    let (first, rest) = lines.split_at(WHY.0);
    let (first, rest) = (first.join("\n"), rest[out..].join("\n"));
    format!("{first}\n[{out} lines are left out]\n{rest}")
}

/// Runs the short steps, or the long ones.
pub(crate) fn run(slow: bool) -> ExitCode {
    let stages = if slow { long() } else { short() };
    let done: Vec<Done> = stages.into_iter().flat_map(staged).collect();
    println!("\n{:<18} {:>10}", "check", "took");
    for Done {
        step, passed, took, ..
    } in &done
    {
        let seconds = took.as_secs();
        let took = format!("{}:{:02} min", seconds / 60, seconds % 60);
        let said = match passed {
            true => "passed".to_owned(),
            false => format!("FAILED: {}", step.1),
        };
        println!("{:<18} {took:>10}  {said}", step.0);
    }
    // Behind all else, where who has only the end of a long log finds it.
    for failed in done.iter().filter(|d| !d.passed) {
        println!("\nFAILED: {}\n{}", failed.step.1, why(&failed.said));
    }
    code(done.iter().all(|d| d.passed))
}

/// The command of a step.
fn line(step: &Step) -> Command {
    let words: Vec<&str> = step.1.split(' ').collect();
    let mut line = command(&words);
    // Each step builds once: what serves the next build only fills the disk.
    line.env("CARGO_INCREMENTAL", "0");
    line
}

/// What runs beside other steps says what it has to say once they are done.
fn staged(stage: Stage) -> Vec<Done> {
    thread::scope(|scope| {
        let beside = stage.beside.into_iter();
        let beside = scope.spawn(|| {
            beside
                .map(|step| Done::of(step, |_| {}))
                .collect::<Vec<_>>()
        });
        let aloud = |step: Step| {
            eprintln!("==> {}", step.1);
            // Who does not listen any more does not end the checks.
            Done::of(step, |said| _ = io::stderr().write_all(said))
        };
        let mut done: Vec<Done> = stage.steps.into_iter().map(aloud).collect();
        for quiet in beside.join().expect("a step that fails is no panic") {
            eprintln!("==> {}\n{}", quiet.step.1, quiet.said);
            done.push(quiet);
        }
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::root;

    #[test]
    fn why_a_step_failed_is_what_it_said_from_the_first_failure_on() {
        let passed = "test a ... ok\n".repeat(1_000);
        let short = "failures:\n\n---- b stdout ----\nno\n\nfailures:\n    b";
        assert_eq!(why(&format!("{passed}{short}\n")), short);
        let long = format!("{passed}failures:\n{}    b", "no\n".repeat(1_000));
        let long = why(&long);
        assert!(long.starts_with("failures:\nno\n"), "{long}");
        assert!(long.ends_with("no\n    b"), "{long}");
        assert!(long.contains("[852 lines are left out]"), "{long}");
        let lints = why(&"warning\n".repeat(1_000));
        assert_eq!(lints.lines().count(), WHY.0 + WHY.1);
    }

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
