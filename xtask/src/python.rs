//! `cargo xtask python` builds the Python package in a virtual environment, and runs its tests there.
//!
//! The package is a workspace of its own, so that a machine without Python runs every other check.

use crate::checks::{code, command, is_there, root, step};
use std::process::{Command, ExitCode};

/// Below the workspace: the environment, and what cargo builds.
const ROOM: &str = "target/python";

/// What a machine must have: the first Python whose stable interface has buffers, and the modules
/// that make an environment.
const NEEDED: &str = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))";

/// Format, clippy, build and tests of the package. Where no Python can run them, it says so and
/// succeeds.
pub(crate) fn run(tests: &[String]) -> ExitCode {
    if !is_there(&["python3", "-c", NEEDED]) {
        println!(
            "skipped: there is no python3 of at least 3.11 with venv here (Debian: python3-venv), so the Python package is not tested"
        );
        return ExitCode::SUCCESS;
    }
    let environment = format!("{ROOM}/venv");
    let python = root().join(&environment).join("bin/python");
    let python = python.to_string_lossy().into_owned();
    let manifest = ["--manifest-path", "python/Cargo.toml"];
    let mut format = command(&["cargo", "fmt", "--check"]);
    let mut clippy = command(&["cargo", "clippy"]);
    let mut make = command(&["python3", "-m", "venv", &environment]);
    // As a user installs it.
    let mut install = command(&[&python, "-m", "pip", "install", "--quiet"]);
    let mut test = command(&[&python, "-m", "pytest", "-q", "--rootdir", "python"]);
    let steps: [&mut Command; 5] = [
        format.args(manifest),
        built_apart(&mut clippy)
            .args(manifest)
            .args(["--", "-D", "warnings"]),
        &mut make,
        built_apart(&mut install).args(["--disable-pip-version-check", "./python[test]"]),
        match tests {
            [] => test.arg("python/tests"),
            some => test.args(some),
        },
    ];
    code(steps.into_iter().all(step))
}

/// The command, whose cargo builds into a folder of its own: it has other features.
fn built_apart(command: &mut Command) -> &mut Command {
    command.env("CARGO_TARGET_DIR", root().join(ROOM).join("cargo"))
}
