//! The other slow checks: each runs a tool, and says what to install if it is missing.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// The workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A command in the workspace; variables that this process's own cargo has set for it
/// would speak of another toolchain.
fn command(line: &[&str]) -> Command {
    let (program, arguments) = line.split_first().unwrap_or((&"true", &[]));
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(root())
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO")
        .env_remove("RUSTC");
    command
}

/// Runs a command and says which; whether it succeeded.
fn step(command: &mut Command) -> bool {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|w| w.to_string_lossy().into_owned())
        .collect();
    eprintln!("==> {}", words.join(" "));
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("{} could not be run: {error}", words[0]);
            false
        }
    }
}

/// Whether a tool answers.
fn is_there(line: &[&str]) -> bool {
    command(line)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

fn code(success: bool) -> ExitCode {
    if success {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

pub(crate) fn loom(tests: &[String]) -> ExitCode {
    let mut all = tests.to_vec();
    if all.is_empty() {
        let files = std::fs::read_dir(root().join("crates/shm/tests"))
            .into_iter()
            .flatten()
            .flatten();
        let names = files.filter_map(|f| Some(f.path().file_stem()?.to_str()?.to_owned()));
        all.extend(names.filter(|n| n.starts_with("loom")));
        all.sort();
    }
    code(all.iter().all(|test| {
        // Loom's models are slow without optimisation.
        let mut run = command(&[
            "cargo",
            "test",
            "--release",
            "-p",
            "portolan-shm",
            "--target-dir",
            "target/loom",
            "--test",
            test,
        ]);
        step(run.env("RUSTFLAGS", "--cfg loom"))
    }))
}

pub(crate) fn miri() -> ExitCode {
    if !is_there(&["cargo", "+nightly", "miri", "--version"]) {
        eprintln!("Miri is missing: rustup toolchain install nightly --component miri,rust-src");
        return ExitCode::FAILURE;
    }
    // The examples of the last send what they build, which Miri cannot.
    let crates: [(&str, &[&str]); 3] = [
        ("portolan-abi", &[]),
        ("portolan-shm", &[]),
        ("portolan-arena", &["--lib", "--tests"]),
    ];
    code(crates.iter().all(|(name, targets)| {
        let mut run = command(&[
            "cargo",
            "+nightly",
            "miri",
            "test",
            "-p",
            name,
            "--target-dir",
            "target/miri",
        ]);
        run.args(*targets);
        // Tests against an oracle do fewer rounds; files of regressions cannot be read in isolation.
        step(
            run.env("PROPTEST_CASES", "8")
                .env("MIRIFLAGS", "-Zmiri-disable-isolation"),
        )
    }))
}

pub(crate) fn fuzz(seconds: u64) -> ExitCode {
    if !root().join("fuzz/Cargo.toml").exists() {
        eprintln!("there are no fuzz targets: fuzz/Cargo.toml is missing");
        return ExitCode::FAILURE;
    }
    if !is_there(&["cargo", "+nightly", "fuzz", "--version"]) {
        eprintln!(
            "cargo-fuzz is missing: cargo install cargo-fuzz, and rustup toolchain install nightly"
        );
        return ExitCode::FAILURE;
    }
    let list = command(&["cargo", "+nightly", "fuzz", "list"]).output();
    let list = list
        .map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
        .unwrap_or_default();
    let time = format!("-max_total_time={seconds}");
    code(
        !list.is_empty()
            && list.lines().all(|target| {
                step(&mut command(&[
                    "cargo", "+nightly", "fuzz", "run", target, "--", &time,
                ]))
            }),
    )
}

pub(crate) fn lint() -> ExitCode {
    let mut lines = vec![
        command(&["cargo", "fmt", "--all", "--check"]),
        command(&[
            "cargo",
            "clippy",
            "--workspace",
            "--all-targets",
            // Those that the tests are run with.
            "--features",
            "portolan/tokio,portolan/marks,portolan/metrics",
            "--",
            "-D",
            "warnings",
        ]),
        // The probes, which nothing else builds: compiled in, and at work.
        command(&[
            "cargo",
            "clippy",
            "--workspace",
            "--all-targets",
            "--features",
            "portolan-lab/probes",
            "--",
            "-D",
            "warnings",
        ]),
        command(&[
            "cargo",
            "test",
            "--package",
            "portolan",
            "--features",
            "probes",
            "--lib",
            "--test",
            "probes",
        ]),
        command(&[
            "cargo",
            "test",
            "--package",
            "portolan-lab",
            "--features",
            "probes",
            "--test",
            "breakdown",
        ]),
        command(&["cargo", "doc", "--workspace", "--no-deps"]),
    ];
    lines[5].env("RUSTDOCFLAGS", "-D warnings");
    if is_there(&["cargo", "deny", "--version"]) {
        lines.push(command(&["cargo", "deny", "check"]));
    } else {
        eprintln!("cargo-deny is missing and left out: cargo install cargo-deny");
    }
    // All of them, to see everything that is wrong.
    let done: Vec<bool> = lines.iter_mut().map(step).collect();
    code(!done.contains(&false))
}
