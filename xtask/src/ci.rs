//! One command for a change: runs every check, goes on after a failure, and says what each took.
//!
//! A step is a command line that can be run by itself in the same words. The short steps are
//! what `.ci/run` runs; the long ones need an hour, and a nightly compiler.

use crate::checks::{FEATURES, code, command, step};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What the tests of features are run with that nothing else builds.
const MORE: &str =
    "portolan/tokio,portolan/marks,portolan/metrics,portolan-lab/probes,portolan-cli/serialisers";

/// A check.
struct Step {
    /// What it is called in the table.
    name: &'static str,
    /// The command line.
    line: &'static [&'static str],
}

/// Seconds to minutes each. The second one is the README's test command.
const SHORT: [Step; 5] = [
    Step {
        name: "lint",
        line: &["cargo", "xtask", "lint"],
    },
    Step {
        name: "tests",
        line: &["cargo", "test", "--workspace", "--features", FEATURES],
    },
    Step {
        name: "probes, breakdown",
        line: &[
            "cargo",
            "test",
            "--workspace",
            "--features",
            MORE,
            "--test",
            "probes",
            "--test",
            "breakdown",
        ],
    },
    Step {
        name: "serialisers",
        line: &[
            "cargo",
            "test",
            "--workspace",
            "--features",
            MORE,
            "--test",
            "bench",
            "structures",
        ],
    },
    Step {
        name: "instructions",
        line: &["cargo", "xtask", "instructions", "--check"],
    },
];

/// Minutes each.
const LONG: [Step; 7] = [
    Step {
        name: "loom",
        line: &["cargo", "xtask", "loom"],
    },
    Step {
        name: "mutants",
        line: &["cargo", "xtask", "mutants"],
    },
    Step {
        name: "miri",
        line: &["cargo", "xtask", "miri"],
    },
    Step {
        name: "fuzz",
        line: &["cargo", "xtask", "fuzz"],
    },
    Step {
        name: "torture",
        line: &["cargo", "xtask", "torture", "--seconds", "600"],
    },
    Step {
        name: "torture, guarded",
        line: &["cargo", "xtask", "torture", "--seconds", "600", "--guarded"],
    },
    Step {
        name: "torture, stops",
        line: &["cargo", "xtask", "torture", "--seconds", "600", "--stop"],
    },
];

/// Runs the short steps, or the long ones.
pub(crate) fn run(long: bool) -> ExitCode {
    let steps: &[Step] = if long { &LONG } else { &SHORT };
    let done: Vec<(&Step, bool, Duration)> = steps
        .iter()
        .map(|check| {
            let began = Instant::now();
            let passed = step(&mut command(check.line));
            (check, passed, began.elapsed())
        })
        .collect();
    println!("\n{:<18} {:>8}  ", "check", "took");
    for (check, passed, took) in &done {
        let seconds = took.as_secs();
        let took = format!("{}:{:02} min", seconds / 60, seconds % 60);
        let said = match passed {
            true => "passed".to_owned(),
            false => format!("FAILED: {}", check.line.join(" ")),
        };
        println!("{:<18} {took:>10}  {said}", check.name);
    }
    code(done.iter().all(|(_, passed, _)| *passed))
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
        assert!(
            readme.contains(&SHORT[1].line.join(" ")),
            "the test command"
        );
        assert!(MORE.starts_with(FEATURES), "{MORE}");
        for file in [
            "README.md",
            "CONTRIBUTING.md",
            ".ci/run",
            ".github/workflows/ci.yml",
        ] {
            assert!(text(file).contains("cargo xtask ci"), "{file}");
        }
    }
}
