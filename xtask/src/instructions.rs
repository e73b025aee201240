//! `cargo xtask instructions` compares the instructions of each operation with the counts in the
//! repository.
//!
//! The counts of `portolan bench instructions` stand in `docs/instructions.json`, a row a line,
//! under the build that they were counted with. A row that grows by more than [`LEEWAY`] fails
//! the check; a change that means it to grow changes the file too (`--update`), so that its
//! reviewer sees by how much. Another compiler, other flags or another C library make other
//! instructions: there the counts are printed, and nothing fails.
//!
//! What the C ABI takes beside the library is counted by a test of `portolan-capi`, which is asserted in
//! release builds alone; so it runs here, and not with the other tests.

use crate::checks::{code, command, root, step};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};

/// Where the counts stand, below the root.
const FILE: &str = "docs/instructions.json";
/// Counts what the C ABI takes.
const C: &str = "cargo test --quiet --release -p portolan-capi --test instructions -- --nocapture";
/// A row may grow by this part of itself.
const LEEWAY: f64 = 0.02;

/// What `portolan bench instructions --json` says, as far as it is compared.
#[derive(Deserialize)]
struct Report {
    build: Build,
    rows: Vec<Counted>,
    #[serde(default)]
    left_out: Vec<LeftOut>,
}

/// All that a count depends on.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Build {
    rustc: String,
    target: String,
    flags: String,
    profile: String,
    libc: String,
    /// Sums are made with what it has, so rows with payloads depend on it.
    processor: String,
}

#[derive(Deserialize)]
struct Counted {
    system: String,
    operation: String,
    instructions: u64,
    system_calls: u64,
    counts: usize,
    fewest: usize,
    copies: bool,
}

#[derive(Deserialize)]
struct LeftOut {
    what: String,
    why: String,
}

/// The file.
#[derive(Deserialize)]
struct Allowed {
    build: Build,
    /// By operation: instructions, and system calls.
    rows: BTreeMap<String, [u64; 2]>,
}

/// What is to be done with the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Print them beside the file's.
    Print,
    /// And fail if one has grown.
    Check,
    /// Write them to the file.
    Update,
}

pub(crate) fn run(task: Task) -> ExitCode {
    let done = counted().and_then(|report| match task {
        Task::Update => update(&report),
        Task::Print => compare(&report).map(|_| true),
        Task::Check => compare(&report),
    });
    let holds = done.unwrap_or_else(|failure| {
        eprintln!("instructions: {failure}");
        false
    });
    // Also where the others have grown, to see everything that has.
    let c_holds = task == Task::Update || {
        let words: Vec<&str> = C.split(' ').collect();
        step(&mut command(&words)) || task == Task::Print
    };
    code(holds && c_holds)
}

fn file() -> PathBuf {
    root().join(FILE)
}

/// Builds the command in release, and has it count.
fn counted() -> Result<Report, String> {
    let mut bench = command(&["cargo", "run", "--quiet", "--release", "-p", "portolan-cli"]);
    bench.args(["--", "bench", "instructions", "--json"]);
    let output = bench.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo could not be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("the benchmark failed ({})", output.status));
    }
    let mut report: Report = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("the benchmark printed something else: {error}"))?;
    report.rows.retain(|row| row.system == "Portolan");
    Ok(report)
}

fn update(report: &Report) -> Result<bool, String> {
    if let Some(LeftOut { what, why }) = report.left_out.first() {
        return Err(format!(
            "{what} was not counted, so {FILE} stays as it is: {why}"
        ));
    }
    std::fs::write(file(), text(report)).map_err(|error| format!("{FILE}: {error}"))?;
    println!("{FILE} has {} rows", report.rows.len());
    Ok(true)
}

/// As the file has it: a row a line, in the order in which they were counted.
fn text(report: &Report) -> String {
    // Cannot fail: strings and numbers.
    let json = |text: &str| serde_json::to_string(text).unwrap_or_default();
    let build = &report.build;
    let mut text = "{\n  \"build\": {\n".to_owned();
    let fields = [
        ("rustc", &build.rustc),
        ("target", &build.target),
        ("flags", &build.flags),
        ("profile", &build.profile),
        ("libc", &build.libc),
        ("processor", &build.processor),
    ];
    let lines = fields.map(|(name, value)| format!("    {}: {}", json(name), json(value)));
    text += &lines.join(",\n");
    text += "\n  },\n  \"rows\": {\n";
    let rows = report.rows.iter().map(|row| {
        let (name, counts) = (json(&row.operation), (row.instructions, row.system_calls));
        format!("    {name}: [{}, {}]", counts.0, counts.1)
    });
    text += &rows.collect::<Vec<_>>().join(",\n");
    text + "\n  }\n}\n"
}

/// Prints what differs; whether nothing has grown, as far as that can be said.
fn compare(report: &Report) -> Result<bool, String> {
    let read = std::fs::read_to_string(file()).map_err(|error| format!("{FILE}: {error}"))?;
    let allowed: Allowed =
        serde_json::from_str(&read).map_err(|error| format!("{FILE}: {error}"))?;
    let (text, holds) = verdict(report, &allowed);
    print!("{text}");
    Ok(holds)
}

/// What is to be said of the counts, and whether they may stand.
fn verdict(report: &Report, allowed: &Allowed) -> (String, bool) {
    let differs = difference(&report.build, &allowed.build);
    let (mut text, mut grown) = (String::new(), 0);
    for row in &report.rows {
        let name = &row.operation;
        let counts = [row.instructions, row.system_calls];
        let Some(may) = allowed.rows.get(name) else {
            let _ = writeln!(
                text,
                "new: {name}: {counts:?} instructions and system calls"
            );
            grown += 1;
            continue;
        };
        // Sums take what the processor has.
        let of_another = row.copies && report.build.processor != allowed.build.processor;
        for ((what, count), may) in ["instructions", "system calls"].iter().zip(counts).zip(may) {
            let (count, may) = (count as f64, *may as f64);
            if count == may {
                continue;
            }
            let percent = 100.0 * (count - may) / may.max(1.0);
            let too_many = count > may * (1.0 + LEEWAY) && !of_another;
            grown += usize::from(too_many);
            let word = match (count > may, too_many) {
                (_, true) => "GROWN",
                (true, false) => "more",
                (false, _) => "fewer",
            };
            let (fewest, all) = (row.fewest, row.counts);
            let _ = writeln!(
                text,
                "{word}: {name}: {count} {what}, {FILE} says {may} ({percent:+.1} %; \
                 the fewest in {fewest} of {all} counts)"
            );
        }
    }
    let counted = |name: &&String| report.rows.iter().any(|row| row.operation == **name);
    for name in allowed.rows.keys().filter(|name| !counted(name)) {
        let _ = writeln!(text, "not counted: {name}");
        grown += 1;
    }
    for LeftOut { what, why } in &report.left_out {
        let _ = writeln!(text, "left out: {what} and what goes with it: {why}");
    }
    if let Some(differs) = differs {
        let _ = writeln!(text, "nothing is asserted: {differs}");
        return (text, true);
    }
    if !report.left_out.is_empty() {
        let _ = writeln!(
            text,
            "nothing is asserted: this system does not let us count"
        );
        return (text, true);
    }
    let rows = report.rows.len();
    let _ = match grown {
        0 => writeln!(text, "{rows} rows, none grown"),
        _ => writeln!(
            text,
            "{grown} of {rows} rows grown by more than {} %, new or gone: if that is meant, \
             `cargo xtask instructions --update` and commit {FILE} with the change",
            100.0 * LEEWAY
        ),
    };
    (text, grown == 0)
}

/// What makes the counts of two builds different, if something does.
fn difference(ours: &Build, theirs: &Build) -> Option<String> {
    let pairs = [
        ("compiler", &ours.rustc, &theirs.rustc),
        ("target", &ours.target, &theirs.target),
        ("flags", &ours.flags, &theirs.flags),
        ("profile", &ours.profile, &theirs.profile),
        ("libc", &ours.libc, &theirs.libc),
    ];
    let (what, ours, theirs) = pairs.iter().find(|(_, ours, theirs)| ours != theirs)?;
    Some(format!(
        "the {what} is {ours:?}, {FILE} was counted with {theirs:?}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build() -> Build {
        Build {
            rustc: "rustc 1".into(),
            target: "here".into(),
            flags: String::new(),
            profile: "release".into(),
            libc: "glibc 2".into(),
            processor: "aes".into(),
        }
    }

    fn report(instructions: u64, system_calls: u64) -> Report {
        let row = Counted {
            system: "Portolan".into(),
            operation: "send".into(),
            instructions,
            system_calls,
            counts: 12,
            fewest: 12,
            copies: false,
        };
        Report {
            build: build(),
            rows: vec![row],
            left_out: Vec::new(),
        }
    }

    fn allowed() -> Allowed {
        serde_json::from_str(&text(&report(1000, 1))).unwrap()
    }

    #[test]
    fn what_grows_by_more_than_the_leeway_fails_and_is_named() {
        assert!(verdict(&report(1000, 1), &allowed()).1);
        assert!(verdict(&report(1020, 1), &allowed()).1);
        assert!(verdict(&report(500, 0), &allowed()).1);
        let (text, holds) = verdict(&report(1021, 1), &allowed());
        assert!(!holds);
        assert!(
            text.contains(
                "GROWN: send: 1021 instructions, docs/instructions.json says 1000 (+2.1 %"
            )
        );
        assert!(!verdict(&report(1000, 2), &allowed()).1);
    }

    #[test]
    fn a_row_that_is_new_or_gone_fails() {
        let mut renamed = report(1000, 1);
        renamed.rows[0].operation = "send, too".into();
        let (text, holds) = verdict(&renamed, &allowed());
        assert!(!holds);
        assert!(text.contains("new: send, too") && text.contains("not counted: send\n"));
    }

    #[test]
    fn another_build_is_printed_only() {
        for change in [
            |build: &mut Build| build.rustc = "rustc 2".into(),
            |build: &mut Build| build.flags = "-C target-cpu=native".into(),
            |build: &mut Build| build.libc = "glibc 3".into(),
        ] {
            let mut other = report(2000, 1);
            change(&mut other.build);
            let (text, holds) = verdict(&other, &allowed());
            assert!(holds);
            assert!(text.contains("GROWN") && text.contains("nothing is asserted: the "));
        }
    }

    #[test]
    fn another_processor_is_asserted_but_for_rows_with_sums() {
        let mut other = report(2000, 1);
        other.build.processor = "aes vaes".into();
        assert!(!verdict(&other, &allowed()).1);
        other.rows[0].copies = true;
        assert!(verdict(&other, &allowed()).1);
    }

    #[test]
    fn the_file_is_one_row_a_line() {
        let text = text(&report(1000, 1));
        assert!(text.contains("\n    \"send\": [1000, 1]\n"));
        assert_eq!(allowed().build, build());
    }

    #[test]
    fn the_file_of_the_repository_can_be_read() {
        let text = std::fs::read_to_string(file()).unwrap();
        let allowed: Allowed = serde_json::from_str(&text).unwrap();
        assert!(allowed.build.profile.starts_with("release"));
        assert!(allowed.rows.len() > 40);
        assert!(
            allowed
                .rows
                .values()
                .all(|[instructions, _]| *instructions > 0)
        );
    }
}
