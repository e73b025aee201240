//! `portolan demo nodes` carries one file through programs on three nodes of this machine, kills a
//! node, and shows what happened.
//!
//! ```text
//! lab1: reader ──port──> lab2: hasher ──port──> lab3: writer
//!   FILE -> block        digest, stamp          block -> output
//! ```
//!
//! `portolan-node lab` starts the nodes, and this program again beside each of them; what that
//! says comes back as lines of JSON.
//!
//! | file | holds |
//! |---|---|
//! | `stage` | what the program beside each node does |
//! | `loss` | what it sees of a node that is killed |
//! | `report` | what is printed |

mod loss;
mod report;
mod stage;

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::AsRawFd as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use stage::main as stage_main;

use super::files::{self, Input, Output};
use crate::args::NodesArgs;
use crate::error::{CliError, Result};
use report::Report;

/// Nodes: one for each stage.
const NODES: u8 = 3;

/// What the program beside a node says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "snake_case")]
enum Said {
    /// The first block is about to be read.
    Began { way: Way, at: Duration },
    /// All has gone through this stage.
    Done {
        way: Way,
        at: Duration,
        cpu: Duration,
        digest: String,
    },
    /// So many requests were answered; a round trip took so long, in the middle.
    Answered { requests: u64, median: Duration },
    /// The node beside it was killed.
    Killed { at: Duration },
    /// Sends to that node's port come back.
    Unreachable { at: Duration, node: String },
    /// The right on that node's port is dead.
    GivenUp { at: Duration, why: String },
    /// What was asked of the other node meanwhile, and the longest that an answer took.
    Beside { answered: u64, longest: Duration },
    /// The program beside the killed node has heard that nobody sends to it any more.
    NoSenders { at: Duration },
}

/// How blocks are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Way {
    Portolan,
    Tcp,
}

impl Way {
    const ALL: [Self; 2] = [Self::Portolan, Self::Tcp];

    fn label(self) -> &'static str {
        match self {
            Self::Portolan => "ports of three nodes",
            Self::Tcp => "plain TCP",
        }
    }
}

pub(crate) fn run(args: &NodesArgs) -> Result<()> {
    let input = match &args.file {
        Some(path) => Input::open(path)?,
        None => Input::generate()?,
    };
    let directory = files::output_directory(None, None);
    // One for each way, so that both can be looked at when all is done.
    let outputs = [Output::create(&directory)?, Output::create(&directory)?];
    let expected = files::rehearse(&input, &outputs[0])?;
    let own = std::env::current_exe().map_err(CliError::system("cannot find this program"))?;
    let from = input.reopen()?;
    let [first, second] = &outputs;
    let to = [first.reopen()?, second.reopen()?];
    let path =
        |file: &std::fs::File| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut words = vec!["lab".to_owned(), NODES.to_string()];
    if args.names {
        words.push("--names".to_owned());
    }
    words.extend(["--silent-after", "1s", "--dead-after", "5s", "--"].map(str::to_owned));
    let files = [&from, &to[0], &to[1]].map(path);
    let started = crate::node::start(&words, |command| {
        command
            .arg(&own)
            .arg("__node-stage")
            .args(&files)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
    });
    let mut lab = Lab(started?);
    let report = lab.follow(args)?;
    for (way, output) in Way::ALL.into_iter().zip(&outputs) {
        let written = files::verify(output, input.len(), false)?;
        super::check(way.label(), "what was written", &written, &expected)?;
        for seen in report.digests(way) {
            super::check(way.label(), "what a stage saw", seen, &expected)?;
        }
    }
    report.print(&input, &expected, args.json)
}

/// The nodes and the programs beside them, which end with it.
struct Lab(Child);

impl Lab {
    /// Reads what the programs say until all have ended.
    fn follow(&mut self, args: &NodesArgs) -> Result<Report> {
        let (out, errors) = (self.0.stdout.take(), self.0.stderr.take());
        // Read beside, so that neither fills up.
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            // What cannot be read was not said.
            let _ = errors.map(|mut errors| errors.read_to_string(&mut text));
            text
        });
        let mut report = Report::default();
        for line in out.into_iter().flat_map(|out| BufReader::new(out).lines()) {
            let line = line.map_err(CliError::system("cannot read what the nodes say"))?;
            let Some((node, said)) = parse(&line) else {
                continue;
            };
            if !args.json {
                report::progress(&node, &said);
            }
            report.note(said);
        }
        let status = self
            .0
            .wait()
            .map_err(CliError::system("cannot wait for the nodes"))?;
        let said = errors.join().unwrap_or_default();
        if !status.success() {
            return Err(CliError::Lab { said });
        }
        Ok(report)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id()).ok();
        let pid = pid.and_then(rustix::process::Pid::from_raw);
        if let (Some(pid), Ok(None)) = (pid, self.0.try_wait()) {
            // It ends its nodes, and then itself.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = self.0.wait();
        }
    }
}

/// A line of the lab: `[lab2] {"said": ...}`.
fn parse(line: &str) -> Option<(String, Said)> {
    let (node, said) = line.strip_prefix('[')?.split_once("] ")?;
    Some((node.to_owned(), serde_json::from_str(said).ok()?))
}

/// The time since the machine was started, which is the same for all processes.
fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanos)
}
