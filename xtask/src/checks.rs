//! Runs the other slow checks: each runs a tool, and says what to install if it is missing.

use crate::{error_types, paths, rooms, unsafe_code, words};
use portolan_sys::process::dies_with_us;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Features of the library that the tests are run with.
pub(crate) const FEATURES: &str = "portolan/tokio,portolan/marks,portolan/metrics";

/// The workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A command in the workspace; variables that this process's own cargo has set for it
/// would speak of another toolchain.
pub(crate) fn command(line: &[&str]) -> Command {
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

/// This program again, also when its file was replaced by a newer build meanwhile. It dies with us.
pub(crate) fn ourselves() -> Command {
    let mut command = Command::new("/proc/self/exe");
    dies_with_us(&mut command);
    command
}

/// The command line.
fn words_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// Runs a command and says which; whether it succeeded.
pub(crate) fn step(command: &mut Command) -> bool {
    let line = words_of(command);
    eprintln!("==> {line}");
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("{line} could not be run: {error}");
            false
        }
    }
}

/// Whether a tool answers.
pub(crate) fn is_there(line: &[&str]) -> bool {
    command(line)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

pub(crate) fn code(success: bool) -> ExitCode {
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
    // All are run, also after one has failed.
    let failed: Vec<_> = all
        .iter()
        .filter(|test| !step(loom_command("test").args(["--test", test])))
        .collect();
    if !failed.is_empty() {
        eprintln!("models fail: {failed:?}");
    }
    code(failed.is_empty())
}

/// Cargo on the crate of the models, built as loom needs it. Models are slow without optimisation.
fn loom_command(task: &str) -> Command {
    let mut cargo = command(&["cargo", task, "--release", "-p", "portolan-shm"]);
    cargo
        .args(["--target-dir", "target/loom"])
        .env("RUSTFLAGS", "--cfg loom");
    cargo
}

pub(crate) fn miri() -> ExitCode {
    if !is_there(&["cargo", "+nightly", "miri", "--version"]) {
        eprintln!("Miri is missing: rustup toolchain install nightly --component miri,rust-src");
        return ExitCode::FAILURE;
    }
    // The examples of the last send what they build, which Miri cannot.
    let crates: [(&str, &[&str]); 4] = [
        ("portolan-abi", &[]),
        ("portolan-proto", &[]),
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

/// What a fuzzer needs of the code: counters at its branches, and a sanitizer.
const INSTRUMENTED: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0 \
    -Ccodegen-units=1 -Zsanitizer=address";
const HOST: &str = "x86_64-unknown-linux-gnu";

/// Runs the named fuzz targets, or all of them, each for some seconds. What is interesting,
/// and what is found, stays in `target/fuzz`.
pub(crate) fn fuzz(targets: &[String], seconds: u64) -> ExitCode {
    let tools: [(&[&str], &str); 2] = [
        (
            &["cargo", "+nightly", "--version"],
            "a nightly compiler is missing, which alone can instrument code: rustup toolchain install nightly",
        ),
        (
            &["c++", "--version"],
            "a C++ compiler is missing, for LLVM's fuzzer: apt-get install g++, or the like",
        ),
    ];
    for (tool, message) in tools {
        if !is_there(tool) {
            eprintln!("{message}");
            return ExitCode::FAILURE;
        }
    }
    let all = fuzz_targets();
    if let Some(unknown) = targets.iter().find(|t| !all.contains(t)) {
        eprintln!("there is no fuzz target {unknown}, but: {}", all.join(", "));
        return ExitCode::FAILURE;
    }
    let named = if targets.is_empty() { &all } else { targets };
    let mut build = command(&[
        "cargo",
        "+nightly",
        "build",
        "--release",
        "--manifest-path",
        "fuzz/Cargo.toml",
        "--features",
        "libfuzzer",
        "--target-dir",
        "target/fuzz",
        // Or else build scripts and macros would be instrumented as well.
        "--target",
        HOST,
    ]);
    if !step(build.env("RUSTFLAGS", INSTRUMENTED)) {
        return ExitCode::FAILURE;
    }
    let room = root().join("target/fuzz");
    let program = room.join(HOST).join("release/portolan-fuzz");
    // All of them, to see everything that is found.
    let done: Vec<bool> = named
        .iter()
        .map(|target| {
            let (corpus, found) = (
                room.join("corpus").join(target),
                room.join("found").join(target),
            );
            for folder in [&corpus, &found] {
                if let Err(error) = std::fs::create_dir_all(folder) {
                    eprintln!("{} cannot be made: {error}", folder.display());
                    return false;
                }
            }
            let mut run = command(&[&program.to_string_lossy()]);
            run.arg(format!("-max_total_time={seconds}"))
                .arg(format!("-artifact_prefix={}/", found.display()))
                // A hang is a finding, and so is memory without bound.
                .args(["-timeout=30", "-rss_limit_mb=4096", "-max_len=8192"])
                .args(["-print_final_stats=1", "-verbosity=0"])
                .arg(&corpus)
                .env("PORTOLAN_FUZZ", target)
                .env("ASAN_OPTIONS", "detect_leaks=0");
            let clean = step(&mut run);
            if !clean {
                eprintln!(
                    "{target}: something was found, and lies in {}; once it is mended, keep it in fuzz/found/{target}",
                    found.display()
                );
            }
            clean
        })
        .collect();
    code(!done.contains(&false))
}

/// The files in `fuzz/src/targets`.
fn fuzz_targets() -> Vec<String> {
    let files = std::fs::read_dir(root().join("fuzz/src/targets"));
    let files = files.into_iter().flatten().flatten();
    let mut names: Vec<_> = files
        .filter_map(|f| Some(f.path().file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    names
}

/// A step of cargo's in the workspace of the fuzz targets.
fn fuzz_room(line: &[&str]) -> Command {
    let mut command = command(&["cargo"]);
    command
        .args(line)
        .current_dir(root().join("fuzz"))
        .env("CARGO_TARGET_DIR", root().join("target/fuzz"));
    command
}

pub(crate) fn lint() -> ExitCode {
    let mut lines = vec![
        command(&["cargo", "fmt", "--all", "--check"]),
        command(&[
            "cargo",
            "clippy",
            "--workspace",
            "--all-targets",
            "--features",
            FEATURES,
            "--",
            "-D",
            "warnings",
        ]),
        // The probes, which nothing else builds.
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
        // The command without its benchmarks, as packages have it.
        command(&[
            "cargo",
            "clippy",
            "-p",
            "portolan-cli",
            "--all-targets",
            "--no-default-features",
            "--",
            "-D",
            "warnings",
        ]),
        // The fuzz targets, as functions that stand noise; instrumented they are by `fuzz` alone.
        fuzz_room(&["fmt", "--check"]),
        fuzz_room(&["clippy", "--all-targets", "--", "-D", "warnings"]),
        fuzz_room(&["test", "--quiet"]),
        command(&["cargo", "doc", "--workspace", "--no-deps"]),
    ];
    if let Some(doc) = lines.last_mut() {
        doc.env("RUSTDOCFLAGS", "-D warnings");
    }
    // The models, which are compiled under loom alone.
    let mut models = loom_command("clippy");
    models.args(["--tests", "--", "-D", "warnings"]);
    lines.push(models);
    if is_there(&["cargo", "deny", "--version"]) {
        lines.push(command(&["cargo", "deny", "check"]));
    } else {
        eprintln!("cargo-deny is missing and left out: cargo install cargo-deny");
    }
    // All of them, to see everything that is wrong.
    let done: Vec<bool> = lines.iter_mut().map(step).collect();
    eprintln!("==> files with unsafe code");
    let differences = unsafe_code::differences(&root());
    differences.iter().for_each(|line| eprintln!("{line}"));
    eprintln!("==> arrows between the rooms of the library");
    let rooms = rooms::report(&root());
    eprintln!("{}", rooms.table);
    rooms.wrong.iter().for_each(|line| eprintln!("{line}"));
    eprintln!("==> retired words");
    let retired = words::retired(&root());
    retired.iter().for_each(|line| eprintln!("{line}"));
    eprintln!("==> terms of the glossary");
    let glossary = words::glossary(&root());
    glossary.iter().for_each(|line| eprintln!("{line}"));
    eprintln!("==> error types of the library");
    let errors = error_types::too_many(&root());
    errors.iter().for_each(|line| eprintln!("{line}"));
    eprintln!("==> paths in ARCHITECTURE.md");
    let dead = paths::dead(&root());
    dead.iter().for_each(|line| eprintln!("{line}"));
    let lists = [
        &differences,
        &rooms.wrong,
        &retired,
        &glossary,
        &errors,
        &dead,
    ];
    // Once more, because a difference of format is easily missed above.
    let failed = lines.iter().zip(&done).filter(|(_, passed)| !**passed);
    failed.for_each(|(line, _)| eprintln!("failed: {}", words_of(line)));
    code(lists.iter().all(|wrong| wrong.is_empty()) && !done.contains(&false))
}
