//! Builds one test in the copy, runs it, and says what came of it.

use super::{Copy, Failure, Test};
use crate::built;
use crate::checks::{FEATURES, command};
use std::process::Command;
use std::time::Duration;

/// After so long a test is ended from outside, which finds nothing: the longest of the models
/// takes a minute or two.
const ENDLESS: Duration = Duration::from_secs(900);

/// What came of a test, with the end of what it said.
pub(super) enum Trial {
    Passed,
    Failed { said: String },
    NotBuilt { said: String },
    NotRun { said: String },
    Endless { said: String },
}

impl Trial {
    /// What the test, or the compiler, said.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Passed => None,
            Self::Failed { said }
            | Self::NotBuilt { said }
            | Self::NotRun { said }
            | Self::Endless { said } => Some(said),
        }
    }
}

/// Tries `test` on the copy as it is now.
pub(super) fn of(copy: &Copy, test: Test) -> Result<Trial, Failure> {
    let mut build = build(copy, test);
    let binaries = match built::binaries(&mut build)? {
        Ok(binaries) => binaries,
        Err(said) => return Ok(Trial::NotBuilt { said: end(&said) }),
    };
    let [binary] = &binaries[..] else {
        let said = format!("cargo built {} tests where one was named", binaries.len());
        return Ok(Trial::NotRun { said });
    };
    let mut run = binary.command();
    run.args(["--exact", test.name(), "--test-threads", "1"]);
    let ran = built::run(&mut run, ENDLESS)?;
    let (was_run, said) = (ran.output.contains("running 1 test\n"), end(&ran.output));
    Ok(match ran.status {
        None => Trial::Endless { said },
        Some(_) if !was_run => Trial::NotRun { said },
        Some(status) if status.success() => Trial::Passed,
        // A panic, or an end by a signal: both by the test's own doing.
        Some(_) => Trial::Failed { said },
    })
}

fn build(copy: &Copy, test: Test) -> Command {
    let mut build = command(&["cargo", "test", "--no-run", "--message-format", "json"]);
    build
        .current_dir(copy.root())
        // A mutant changes a line: what hangs on it is all that is built.
        .env("CARGO_INCREMENTAL", "1");
    let package = match test.folder() {
        "portolan" => "portolan".to_owned(),
        folder => format!("portolan-{folder}"),
    };
    build.args(["--package", &package]);
    if package == "portolan" {
        build.args(["--features", FEATURES]);
    }
    let target = match test {
        Test::Model { file, .. } => {
            // As `cargo xtask loom` does; and apart from the others, whose flags differ.
            build.args(["--release", "--test", file]);
            build.env("RUSTFLAGS", "--cfg loom");
            "loom"
        }
        Test::Of { target, .. } => {
            build.args(["--test", target]);
            "tests"
        }
        Test::Beside { .. } => {
            build.arg("--lib");
            "tests"
        }
    };
    build.arg("--target-dir").arg(copy.target().join(target));
    build
}

/// The last lines.
fn end(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
