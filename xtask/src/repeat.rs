//! Runs the tests that start processes again and again, from their built binaries, while all
//! processors are busy. A test that fails once in so many runs has a cause that a quiet run hides.

use crate::built::{self, Binary};
use crate::checks::{FEATURES, code, command, root};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Packages whose tests start no processes, by their folders: what they do is the same in each run, or a
/// matter of threads, which their models try in all orders.
const LEFT_OUT: [&str; 7] = ["abi", "arena", "derive", "proto", "shm", "sim", "twin"];

/// What to run, and how often.
pub(crate) struct Plan<'a> {
    /// How often each.
    pub(crate) times: u32,
    /// How many threads do nothing but turn round.
    pub(crate) load: u32,
    /// How many binaries run at once.
    pub(crate) together: u32,
    /// After so long a run is ended, and has failed.
    pub(crate) limit: Duration,
    /// Targets, as `port` or `portolan/port`; all, if there are none.
    pub(crate) tests: &'a [String],
}

/// How often a binary ran and failed.
#[derive(Default)]
struct Record {
    name: String,
    runs: u32,
    failures: u32,
    longest: Duration,
}

impl Record {
    fn ran(&mut self, took: Duration, failed: bool) {
        self.runs += 1;
        self.failures += u32::from(failed);
        self.longest = self.longest.max(took);
    }
}

pub(crate) fn run(plan: &Plan<'_>) -> ExitCode {
    let binaries = match binaries(plan.tests) {
        Ok(binaries) => binaries,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let over = AtomicBool::new(false);
    let records = thread::scope(|scope| {
        for _ in 0..plan.load {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let records = all(plan, &binaries);
        over.store(true, Ordering::Relaxed);
        records
    });
    println!(
        "{:<36} {:>5} {:>8} {:>9}",
        "test", "runs", "failures", "longest"
    );
    for record in &records {
        let longest = record.longest.as_secs_f64();
        println!(
            "{:<36} {:>5} {:>8} {longest:>7.1} s",
            record.name, record.runs, record.failures
        );
    }
    code(records.iter().all(|t| t.failures == 0))
}

fn binaries(tests: &[String]) -> Result<Vec<Binary>, String> {
    // As the README's command builds them, so that it is done once.
    let mut build = command(&["cargo", "test", "--no-run", "--message-format", "json"]);
    build.args(["--workspace", "--features", FEATURES]);
    let built = built::binaries(&mut build).map_err(|e| format!("cargo cannot be run: {e}"))?;
    let mut all = built.map_err(|said| format!("the tests do not compile:\n{said}"))?;
    all.retain(|b| !is_left_out(b));
    if tests.is_empty() {
        return Ok(all);
    }
    let is_named = |b: &Binary, test: &str| b.name == test || b.name.ends_with(&format!("/{test}"));
    if let Some(unknown) = tests.iter().find(|t| !all.iter().any(|b| is_named(b, t))) {
        let names: Vec<&str> = all.iter().map(|b| b.name.as_str()).collect();
        return Err(format!(
            "there is no test {unknown}, but: {}",
            names.join(", ")
        ));
    }
    let chosen = all
        .into_iter()
        .filter(|b| tests.iter().any(|t| is_named(b, t)));
    Ok(chosen.collect())
}

fn is_left_out(binary: &Binary) -> bool {
    let folder = binary.name.split_once('/').map(|(folder, _)| folder);
    folder.is_some_and(|folder| LEFT_OUT.contains(&folder))
}

/// In rounds, so that a run that is broken off has tried each about as often. Who has no binary
/// left in a round begins the next one, so that as many run at once until the end.
fn all(plan: &Plan<'_>, binaries: &[Binary]) -> Vec<Record> {
    let record = |b: &Binary| Record {
        name: b.name.clone(),
        ..Record::default()
    };
    let records: Mutex<Vec<Record>> = Mutex::new(binaries.iter().map(record).collect());
    let runs = (1..=plan.times).flat_map(|round| (0..binaries.len()).map(move |at| (round, at)));
    let next = Mutex::new(runs);
    thread::scope(|scope| {
        for _ in 0..plan.together.max(1) {
            scope.spawn(|| {
                loop {
                    let Some((round, at)) = lock(&next).next() else {
                        return;
                    };
                    let (took, failed) = once(plan, round, &binaries[at]);
                    let mut records = lock(&records);
                    records[at].ran(took, failed);
                    if at + 1 == binaries.len() {
                        let failures: u32 = records.iter().map(|t| t.failures).sum();
                        let times = plan.times;
                        eprintln!("round {round} of {times}: {failures} failures so far");
                    }
                }
            });
        }
    });
    records.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long it took, and whether it failed.
fn once(plan: &Plan<'_>, round: u32, binary: &Binary) -> (Duration, bool) {
    let began = Instant::now();
    // As many of a binary's tests at once as there are processors, whatever cargo was told.
    let mut command = binary.command();
    let ran = built::run(command.env_remove("RUST_TEST_THREADS"), plan.limit);
    let took = began.elapsed();
    let (what, output) = match ran {
        Ok(ran) if ran.status.is_some_and(|s| s.success()) => return (took, false),
        Ok(ran) => match ran.status {
            Some(status) => (status.to_string(), ran.output),
            None => (format!("no end within {:?}", plan.limit), ran.output),
        },
        Err(error) => (format!("it could not be run: {error}"), String::new()),
    };
    let folder = root().join("target/repeat");
    let file = folder.join(format!("{}-{round}.txt", binary.name.replace('/', "-")));
    let kept = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&file, &output));
    let said = match kept {
        Ok(()) => format!("its output lies in {}", file.display()),
        Err(error) => format!("{} cannot be written ({error}):\n{output}", file.display()),
    };
    eprintln!("round {round}: {} fails ({what}); {said}", binary.name);
    (took, true)
}
