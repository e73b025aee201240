//! Breaks named invariants, each in a listed way, and checks that a named test fails.
//!
//! Each is applied in turn to a copy of the workspace, with a target directory of its own, so
//! that a mutant costs the build of one crate and one test. Before the first one every named
//! test has to pass on the copy as it is: a test that fails anyway finds nothing.
//!
//! | file | what it does |
//! |---|---|
//! | `list`, `list/*` | the mutants, by room |
//! | `copy` | the copy, and changes of it |
//! | `trial` | builds a test, runs it, and says what came of it |
//!
//! # How to add one
//!
//! Put a [`Mutant`] into the file of its room in `list/`: the invariant that it breaks, a piece
//! of the source that stands there once, what to put in its place, and the one test that must
//! fail. Then `cargo xtask mutants NAME` must say *found*. If it says *survived*, the invariant
//! has no test: write it, in the same change. The list is compared with the sources by a test of
//! the usual test command, which says so when a piece has changed.

mod copy;
mod list;
mod trial;

use crate::checks::{code, root};
use copy::Copy;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use trial::Trial;

/// One way to break the library.
#[derive(Debug)]
struct Mutant {
    /// What it is called on the command line: room and what is wrong.
    name: &'static str,
    /// The named invariant that it breaks, and how.
    breaks: &'static str,
    /// Its file, from the workspace.
    file: &'static str,
    /// What stands there, exactly once.
    find: &'static str,
    /// What is put in its place.
    replace: &'static str,
    /// Which test must fail.
    found_by: Test,
}

/// A test by its exact name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Test {
    /// A model in `crates/shm/tests/FILE.rs`, under loom.
    Model {
        file: &'static str,
        name: &'static str,
    },
    /// A test in `crates/FOLDER/tests`, in the target of this name.
    Of {
        folder: &'static str,
        target: &'static str,
        name: &'static str,
    },
    /// A test beside the code of `crates/FOLDER`, with its modules; the file that it stands in.
    Beside {
        folder: &'static str,
        file: &'static str,
        name: &'static str,
    },
}

impl Test {
    fn name(self) -> &'static str {
        match self {
            Self::Model { name, .. } | Self::Of { name, .. } | Self::Beside { name, .. } => name,
        }
    }

    fn folder(self) -> &'static str {
        match self {
            Self::Model { .. } => "shm",
            Self::Of { folder, .. } | Self::Beside { folder, .. } => folder,
        }
    }
}

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Model { file, name } => write!(f, "{file} {name}"),
            Self::Of {
                folder,
                target,
                name,
            } => write!(f, "{folder}/{target} {name}"),
            Self::Beside { folder, name, .. } => write!(f, "{folder} {name}"),
        }
    }
}

/// What came of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// The named test fails.
    Found,
    /// It passes.
    Survived,
    /// The mutant is no program.
    DoesNotCompile,
    /// The test did not end by itself.
    Hangs,
    /// The test was not run: there is none of that name, or it fails without the mutant.
    NoTest,
}

#[derive(Debug, Serialize)]
struct Verdict {
    name: &'static str,
    breaks: &'static str,
    file: &'static str,
    test: String,
    outcome: Outcome,
    seconds: f64,
}

/// Why no mutant could be tried.
type Failure = Box<dyn std::error::Error>;

/// Runs the named mutants, or all; or lists them.
pub(crate) fn run(names: &[String], only_list: bool, json: bool) -> ExitCode {
    let chosen = match choose(names) {
        Ok(chosen) => chosen,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    if only_list {
        chosen
            .iter()
            .for_each(|m| println!("{:<36} {}\n{:<36} {}", m.name, m.breaks, "", m.found_by));
        return ExitCode::SUCCESS;
    }
    let stale = stale(&root());
    if !stale.is_empty() {
        stale.iter().for_each(|line| eprintln!("{line}"));
        return ExitCode::from(2);
    }
    match try_all(&chosen) {
        Ok(verdicts) => {
            say(&verdicts, json);
            code(verdicts.iter().all(|v| v.outcome == Outcome::Found))
        }
        Err(error) => {
            eprintln!("the mutants could not be tried: {error}");
            ExitCode::from(2)
        }
    }
}

fn choose(names: &[String]) -> Result<Vec<&'static Mutant>, String> {
    if names.is_empty() {
        return Ok(list::all().collect());
    }
    // A prefix names all of a room.
    let mut chosen = Vec::new();
    for name in names {
        let before = chosen.len();
        chosen.extend(list::all().filter(|m| m.name.starts_with(name.as_str())));
        if chosen.len() == before {
            return Err(format!("there is no mutant {name}; --list shows all"));
        }
    }
    Ok(chosen)
}

fn try_all(chosen: &[&'static Mutant]) -> Result<Vec<Verdict>, Failure> {
    let copy = Copy::make(&root(), &root().join("target/mutants"))?;
    let tests: BTreeSet<Test> = chosen.iter().map(|m| m.found_by).collect();
    let mut passes = BTreeMap::new();
    for (at, test) in tests.iter().enumerate() {
        let began = Instant::now();
        eprint!("[test {}/{}] {test} ... ", at + 1, tests.len());
        let trial = trial::of(&copy, *test)?;
        let passed = matches!(trial, Trial::Passed);
        let said = if passed { "passes" } else { "DOES NOT PASS" };
        eprintln!("{said}, {:.1?}", began.elapsed());
        if let Some(why) = trial.text().filter(|_| !passed) {
            eprintln!("{why}");
        }
        passes.insert(*test, passed);
    }
    let mut verdicts = Vec::new();
    for (at, mutant) in chosen.iter().enumerate() {
        eprint!("[{}/{}] {} ... ", at + 1, chosen.len(), mutant.name);
        let began = Instant::now();
        let outcome = if passes[&mutant.found_by] {
            try_one(&copy, mutant)?
        } else {
            Outcome::NoTest
        };
        let seconds = began.elapsed().as_secs_f64();
        eprintln!("{}, {seconds:.1} s", words(outcome));
        verdicts.push(Verdict {
            name: mutant.name,
            breaks: mutant.breaks,
            file: mutant.file,
            test: mutant.found_by.to_string(),
            outcome,
            seconds,
        });
    }
    Ok(verdicts)
}

fn try_one(copy: &Copy, mutant: &Mutant) -> Result<Outcome, Failure> {
    let was = copy.change(mutant.file, mutant.find, mutant.replace)?;
    let trial = trial::of(copy, mutant.found_by);
    copy.restore(mutant.file, &was)?;
    let trial = trial?;
    let outcome = match &trial {
        Trial::Failed { .. } => Outcome::Found,
        Trial::Passed => Outcome::Survived,
        Trial::NotBuilt { .. } => Outcome::DoesNotCompile,
        Trial::Endless { .. } => Outcome::Hangs,
        Trial::NotRun { .. } => Outcome::NoTest,
    };
    if let Some(text) = trial.text().filter(|_| outcome != Outcome::Found) {
        eprintln!("{text}");
    }
    Ok(outcome)
}

fn words(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Found => "found",
        Outcome::Survived => "SURVIVED",
        Outcome::DoesNotCompile => "DOES NOT COMPILE",
        Outcome::Hangs => "HANGS: the test has no deadline of its own",
        Outcome::NoTest => "NOT TRIED: its test does not run, or fails without it",
    }
}

fn say(verdicts: &[Verdict], json: bool) {
    if json {
        // Cannot fail: strings and numbers.
        println!("{}", serde_json::to_string(verdicts).unwrap_or_default());
        return;
    }
    let missed = verdicts.iter().filter(|v| v.outcome != Outcome::Found);
    missed.for_each(|v| {
        println!(
            "{}: {}; {} ({})",
            v.name,
            words(v.outcome),
            v.breaks,
            v.test
        )
    });
    let found = verdicts.iter().filter(|v| v.outcome == Outcome::Found);
    let seconds: f64 = verdicts.iter().map(|v| v.seconds).sum();
    let (found, all) = (found.count(), verdicts.len());
    println!("{found} of {all} mutants are found, in {seconds:.0} s");
}

/// What of the list does not agree with the sources below `root`, a line each.
fn stale(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut names = BTreeSet::new();
    for mutant in list::all() {
        let name = mutant.name;
        if !names.insert(name) {
            lines.push(format!("two mutants are called {name}"));
        }
        match std::fs::read_to_string(root.join(mutant.file)) {
            Ok(text) => lines.extend(copy::occurs_once(&text, mutant.find).err().map(|count| {
                let file = mutant.file;
                format!("the list of mutants is stale: what {name} looks for stands {count} times in {file}, not once")
            })),
            Err(error) => lines.push(format!("{name}: {}: {error}", mutant.file)),
        }
        if mutant.find == mutant.replace {
            lines.push(format!("{name} changes nothing"));
        }
        if !is_there(root, mutant.found_by) {
            lines.push(format!(
                "the list of mutants is stale: {name} names the test {}, which is not there",
                mutant.found_by
            ));
        }
    }
    lines
}

/// Whether the sources have the test.
fn is_there(root: &Path, test: Test) -> bool {
    let last = test.name().rsplit("::").next().unwrap_or_default();
    let function = format!("fn {last}(");
    let has = |path: &Path| std::fs::read_to_string(path).is_ok_and(|t| t.contains(&function));
    let tests = root.join("crates").join(test.folder()).join("tests");
    match test {
        Test::Model { file, .. } => has(&tests.join(file).with_extension("rs")),
        Test::Beside { folder, file, .. } => has(&root.join("crates").join(folder).join(file)),
        // One file, or a folder of them.
        Test::Of { target, .. } => {
            let folder = std::fs::read_dir(tests.join(target)).into_iter().flatten();
            has(&tests.join(target).with_extension("rs"))
                || folder.flatten().any(|entry| has(&entry.path()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_agrees_with_the_sources() {
        let stale = stale(&root());
        assert!(stale.is_empty(), "{}", stale.join("\n"));
    }

    #[test]
    fn names_choose_mutants() {
        assert_eq!(choose(&[]).unwrap().len(), list::all().count());
        let queue = choose(&["queue".to_owned()]).unwrap();
        assert!(queue.len() > 1 && queue.iter().all(|m| m.name.starts_with("queue")));
        assert!(choose(&["no-such-mutant".to_owned()]).is_err());
    }
}
