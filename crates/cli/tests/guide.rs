//! The guide is as it says: every shell command in it stands behind a comment that says how it is run
//! here, or why not, and the tutorial comes about as it is written.
//!
//! | comment | the block that follows |
//! |---|---|
//! | `<!-- terminal NAME -->` | is started, and runs on as NAME |
//! | `<!-- run: TEXT -->` | is run to its end, which is good, and prints TEXT |
//! | `<!-- kill NAME -->` | stands for SIGKILL to NAME |
//! | `<!-- not run: WHY -->` | is not run |
//!
//! `<!-- sees NAME: TEXT -->` waits until NAME prints TEXT.

mod support;

use portolan_testkit::unique;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use support::succeeds;

/// How long a terminal may take to print what the page says.
const PATIENCE: Duration = Duration::from_secs(60);

fn pages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../portolan/guide")
}

fn page(name: &str) -> String {
    let path = pages().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What a page asks for, in order.
#[derive(Debug)]
enum Step {
    Start { name: String, command: String },
    Run { text: String, command: String },
    Kill { name: String },
    Sees { name: String, text: String },
    NotRun,
}

/// The steps of a page. A shell block without a comment of its own is a mistake.
fn steps(page: &str, text: &str) -> Vec<Step> {
    let (mut steps, mut comment) = (Vec::new(), None);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(said) = line
            .strip_prefix("<!-- ")
            .and_then(|l| l.strip_suffix(" -->"))
        {
            match said.strip_prefix("sees ").and_then(|s| s.split_once(": ")) {
                Some((name, text)) => steps.push(Step::Sees {
                    name: name.to_owned(),
                    text: text.to_owned(),
                }),
                None => comment = Some(said),
            }
        } else if line == "```sh" {
            let block: Vec<&str> = lines.by_ref().take_while(|l| *l != "```").collect();
            let command = block.join("\n");
            let said = comment.take().unwrap_or_else(|| {
                panic!(
                    "{page}: how is this run, or why not? See {}\n{command}",
                    file!()
                )
            });
            steps.push(step(said, command));
        } else if !line.is_empty() {
            comment = None;
        }
    }
    steps
}

fn step(said: &str, command: String) -> Step {
    if let Some(name) = said.strip_prefix("terminal ") {
        let name = name.to_owned();
        return Step::Start { name, command };
    }
    if let Some(text) = said.strip_prefix("run: ") {
        let text = text.to_owned();
        return Step::Run { text, command };
    }
    if let Some(name) = said.strip_prefix("kill ") {
        assert!(command.starts_with("kill -9 "), "{command}");
        let name = name.to_owned();
        return Step::Kill { name };
    }
    assert!(said.starts_with("not run: "), "{said}");
    Step::NotRun
}

/// A program of the tutorial, which runs until it is killed.
struct Terminal {
    process: Child,
    lines: Receiver<String>,
}

impl Terminal {
    /// Starts `cargo run -p portolan --example NAME` of a page, as it was built, in this domain.
    fn start(command: &str, domain: &str) -> Self {
        let example = command.strip_prefix("cargo run -p portolan --example ");
        let example = example.unwrap_or_else(|| panic!("no example: {command}"));
        let beside = Path::new(env!("CARGO_BIN_EXE_portolan")).with_file_name("examples");
        let program = beside.join(example);
        let process = Command::new(&program)
            .arg(domain)
            .stdout(Stdio::piped())
            .spawn();
        let mut process = process.unwrap_or_else(|error| {
            panic!("{}: {error} (cargo build --examples)", program.display())
        });
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        // It ends when the process has.
        std::thread::spawn(move || {
            output
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Self { process, lines }
    }

    /// Waits until it prints this.
    fn sees(&self, name: &str, text: &str) {
        let end = Instant::now() + PATIENCE;
        let mut seen = String::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(text) => return,
                Ok(line) => _ = writeln!(seen, "{line}"),
                Err(_) => panic!("{name} did not print {text:?}, but:\n{seen}"),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Fails only if it is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn the_tutorial_comes_about() {
    let domain = unique("tutorial");
    let mut terminals: HashMap<String, Terminal> = HashMap::new();
    let text = page("tutorial.md");
    for step in steps("tutorial.md", &text) {
        match step {
            Step::Start { name, command } => {
                let started = Terminal::start(&command, &domain);
                terminals.insert(name, started);
            }
            Step::Sees { name, text } => terminals[&name].sees(&name, &text),
            // SIGKILL, and its end.
            Step::Kill { name } => drop(terminals.remove(&name).unwrap()),
            Step::Run { text, command } => {
                let words = command.strip_prefix("portolan ").unwrap();
                let of = |word: &str| match word {
                    "tutorial" => domain.clone(),
                    other => other.to_owned(),
                };
                let words: Vec<String> = words.split(' ').map(of).collect();
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let said = succeeds(&words);
                assert!(
                    said.contains(&text),
                    "{command} did not print {text}:\n{said}"
                );
            }
            Step::NotRun => {}
        }
    }
}

/// Pages whose commands belong to no tutorial say of each why it is not run.
#[test]
fn every_other_shell_command_says_why_it_is_not_run() {
    for entry in std::fs::read_dir(pages()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name != "tutorial.md" {
            let run = steps(&name, &page(&name));
            assert!(
                run.iter().all(|s| matches!(s, Step::NotRun)),
                "{name}: {run:?}"
            );
        }
    }
}

/// The book has each page once, and each chapter of the documentation is a page.
#[test]
fn the_book_and_the_documentation_have_the_same_chapters() {
    let summary = page("SUMMARY.md");
    let links = summary.split("](").skip(1);
    let mut listed: Vec<&str> = links.map(|l| l.split(')').next().unwrap()).collect();
    listed.sort_unstable();
    let files = std::fs::read_dir(pages()).unwrap();
    let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<String> = files.filter(|name| name != "SUMMARY.md").collect();
    files.sort();
    assert_eq!(listed, files);
    let source = |file: &str| {
        let path = pages().join("../src").join(file);
        std::fs::read_to_string(path).unwrap()
    };
    let documented = source("lib.rs") + &source("guide.rs");
    for file in files {
        let included = format!("include_str!(\"../guide/{file}\")");
        assert_eq!(documented.matches(&included).count(), 1, "{file}");
    }
}

/// Pages are read as a book and as documentation, so they link to nothing that only one of them has.
#[test]
fn pages_have_no_links_but_to_the_web() {
    for entry in std::fs::read_dir(pages()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name != "SUMMARY.md" {
            for link in page(&name).split("](").skip(1) {
                assert!(link.starts_with("https://"), "{name}: {link:.40}");
            }
        }
    }
}
