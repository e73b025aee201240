//! The coordinator makes nodes and programs, disturbs them, and has all heal and be audited.

mod disturb;
mod quiet;
mod rounds;
mod setting;

use super::super::board::{Board, Entry};
use super::super::random::Random;
use super::ledger::{Count, Ledger, now};
use super::wires::Wire;
use super::{CORRUPT, DISORDER, DOMAIN, HUNG, LOST, Plan, Report, Shape};
use crate::checks::ourselves;
use crate::marks::MARKS;
use portolan_node::state::State;
use rustix::process::{Pid, Signal};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// How long a program may go without progress.
const BOUND: Duration = Duration::from_secs(75);
/// How long a process stays armed for a mark that it does not reach.
const ARMED: Duration = Duration::from_secs(2);
/// How long there are disturbances between two audits, at the least; up to twice as long.
const DISTURBED: Duration = Duration::from_secs(5);
/// The same with a rule switched off.
const DISTURBED_SABOTAGED: Duration = Duration::from_secs(3);
/// Findings that are said in words.
const SAID: usize = 50;

/// A finding's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Lost,
    Disorder,
    Corrupt,
    Hung,
    LeftOver,
    Unfair,
    Crash,
}

/// Why what was sent need not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Excuse {
    /// The process in a place has ended.
    Ended(usize),
    /// The association of two nodes is over.
    Over(usize, usize),
}

/// A place, and the process in it.
#[derive(Default)]
struct Place {
    child: Option<Child>,
    /// It has joined its domain, and has bound its names.
    has_begun: bool,
    /// When a process takes the place next.
    again: Option<Instant>,
    armed: Option<Instant>,
    /// Until when it is stopped.
    stopped: Option<Instant>,
    /// Its operations, and when they last became more.
    beat: Option<(u64, Instant)>,
    /// We have killed it ourselves.
    killed: bool,
    /// We have told it to leave.
    told: bool,
}

/// What a process has said, and its place.
type Line = (usize, String);

/// What goes wrong with a pair of nodes, and until when.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    until: Instant,
    /// How it is cut then, if it is.
    ends: Option<&'static str>,
}

struct Coordinator {
    plan: Plan,
    shape: Shape,
    random: Random,
    board: Board,
    ledger: Ledger,
    directory: PathBuf,
    places: Vec<Place>,
    states: Vec<State>,
    /// The nodes' ids, as their logs name them.
    ids: Vec<String>,
    wires: Vec<Arc<Wire>>,
    trouble: BTreeMap<(usize, usize), Trouble>,
    /// When the next disturbance of each kind is.
    due: [Instant; disturb::KINDS],
    /// Deaths at each mark.
    deaths: Vec<u64>,
    excuses: Vec<(u64, Excuse)>,
    /// Streams that were not settled by the last audit, and the last one that is known.
    streams: Vec<u64>,
    last_stream: u64,
    pauses: u64,
    seen: BTreeSet<String>,
    lines: (Sender<Line>, Receiver<Line>),
    journal: File,
    report: Report,
    began: Instant,
}

/// Runs nodes and programs until the time is over.
pub(crate) fn run(plan: Plan) -> std::io::Result<Report> {
    let mut coordinator = Coordinator::new(plan)?;
    let outcome = coordinator.run();
    for place in 0..coordinator.places.len() {
        if let Some(mut child) = coordinator.places[place].child.take() {
            // Cannot fail: the child was not waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
    let report = coordinator.finish();
    outcome.map(|()| report)
}

impl Coordinator {
    fn run(&mut self) -> std::io::Result<()> {
        self.set_up()?;
        let between = match self.plan.sabotage {
            Some(_) => DISTURBED_SABOTAGED,
            None => DISTURBED,
        };
        let mut line = Instant::now();
        let mut audit = Instant::now() + between;
        // What is found while they still begin is found all the same; time counts from here.
        self.began = Instant::now();
        while self.began.elapsed() < self.plan.time || self.goes_on() {
            self.look_around()?;
            self.disturb();
            if Instant::now() >= audit {
                self.pause_and_audit()?;
                let more = u64::try_from(self.random.below(1000)).unwrap_or(0);
                audit = Instant::now() + between + between.mul_f64(more as f64 / 1000.0);
            }
            if self.plan.until_found && !self.report.is_clean() {
                return Ok(());
            }
            if line.elapsed() > Duration::from_millis(500) {
                line = Instant::now();
                self.progress();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.pause_and_audit()
    }

    /// The time is over, and too little has happened.
    fn goes_on(&self) -> bool {
        let most = super::super::LONGER * self.plan.time;
        !self.is_enough() && self.began.elapsed() < most
    }

    /// Whether there was as much of everything as was asked for.
    fn is_enough(&self) -> bool {
        let gave = [Count::Moves, Count::Handoffs].map(|count| self.ledger.sum(count));
        self.report.is_enough(&self.plan) && gave.iter().all(|count| *count >= self.plan.least)
    }

    fn finish(mut self) -> Report {
        self.report.too_few = !self.is_enough();
        let sum = |count| self.ledger.sum(count);
        let report = &mut self.report;
        report.seconds = self.began.elapsed().as_secs();
        report.messages = (sum(Count::Sent), sum(Count::Received));
        report.bytes = sum(Count::Bytes);
        report.streams = self.last_stream;
        report.requests = (sum(Count::Ran), sum(Count::Answered));
        report.requests_by_error = [
            ("timed out", sum(Count::TimedOut)),
            ("dropped", sum(Count::Dropped)),
            ("server dead", sum(Count::ServerDead)),
            ("node lost", sum(Count::NodeLost)),
        ]
        .into();
        report.unreachable = sum(Count::Unreachable);
        report.moves = sum(Count::Moves);
        report.handoffs = sum(Count::Handoffs);
        let marks = MARKS.iter().zip(&self.deaths);
        let died = marks.filter(|(_, deaths)| **deaths > 0);
        report.kills_by_mark = died.map(|(mark, deaths)| (*mark, *deaths)).collect();
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
        if report.is_clean() {
            // What cannot be removed is in the directory for such things.
            let _ = std::fs::remove_dir_all(&self.directory);
        } else {
            report.logs = Some(self.directory.display().to_string());
        }
        self.report
    }

    fn progress(&self) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        let r = &self.report;
        eprint!(
            "\r{:>4} s of {}: {} kills, {} stops, {} cuts, {} moves, {} audits, {} messages, {} findings  ",
            self.began.elapsed().as_secs(),
            self.plan.time.as_secs(),
            r.kills,
            r.stops,
            r.cuts,
            self.ledger.sum(Count::Moves),
            r.audits,
            self.ledger.sum(Count::Received),
            r.findings.len(),
        );
        // A progress line that cannot be written is no reason to stop.
        let _ = std::io::stderr().flush();
    }

    // What is found, and what is written down.

    /// Notes a finding; the same words count once.
    fn found(&mut self, kind: Found, what: &str) {
        if !self.seen.insert(what.to_owned()) {
            return;
        }
        let r = &mut self.report;
        *match kind {
            Found::Lost => &mut r.lost,
            Found::Disorder => &mut r.twice_or_out_of_order,
            Found::Corrupt => &mut r.corrupt,
            Found::Hung => &mut r.hung,
            Found::LeftOver => &mut r.left_over,
            Found::Unfair => &mut r.unfair,
            Found::Crash => &mut r.crashes,
        } += 1;
        eprintln!("{kind:?}: {what}");
        if r.findings.len() < SAID {
            r.findings.push(format!("{kind:?}: {what}"));
        }
        self.write(&format!("FOUND {kind:?}: {what}"));
    }

    /// Writes down what happens, for who traces a finding.
    fn write(&mut self, what: &str) {
        let at = self.began.elapsed().as_secs_f64();
        // The run goes on without.
        let _ = writeln!(self.journal, "{at:9.3} {what}");
    }

    fn excuse(&mut self, excuse: Excuse) {
        self.excuses.push((now(), excuse));
    }

    // Processes.

    /// What a process of this run is called by.
    fn command(&mut self, place: usize) -> Command {
        let mut command = ourselves();
        let node = self.shape.node_of(place);
        let state = self.states[node].path().to_owned();
        let (board, number) = (self.board.path(), place.to_string());
        if self.shape.is_node(place) {
            command.arg("torture-node").arg("--state").arg(state);
            if let Some(rule) = &self.plan.sabotage {
                command.args(["--sabotage", rule]);
            }
        } else {
            let ledger = self.ledger.path();
            let domain = self.domain(node);
            let seed = self.random.next().to_string();
            let (nodes, programs) = (self.shape.nodes, self.shape.programs);
            command
                .args(["torture-program", "--ledger", &ledger])
                .args(["--domain", &domain, "--seed", &seed])
                .args(["--nodes", &nodes.to_string()])
                .args(["--programs", &programs.to_string()])
                .env("PORTOLAN_NODE_STATE", state);
        }
        command
            .args(["--board", &board, "--place", &number])
            .env_remove("PORTOLAN_NODE_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    /// A node's own name for the domain.
    fn domain(&self, node: usize) -> String {
        format!("{DOMAIN}-{}.{node}", std::process::id())
    }

    fn spawn(&mut self, at: usize) -> std::io::Result<()> {
        self.board.renew(at);
        let process = self.ledger.count(at, Count::Process);
        process.fetch_add(1, Ordering::SeqCst);
        for count in [Count::Silent, Count::Presses] {
            self.ledger.count(at, count).store(0, Ordering::SeqCst);
        }
        let mut child = self.command(at).spawn()?;
        if let Some(said) = child.stderr.take() {
            let log = self.directory.join(format!("{at}.log"));
            let log = File::options().append(true).create(true).open(log)?;
            let (lines, is_node) = (self.lines.0.clone(), self.shape.is_node(at));
            let hears = std::thread::Builder::new().name("hears".to_owned());
            hears.spawn(move || hear(at, said, log, &lines, is_node))?;
        }
        self.write(&format!("place {at} is process {}", child.id()));
        self.places[at] = Place {
            child: Some(child),
            ..Place::default()
        };
        Ok(())
    }

    fn look_around(&mut self) -> std::io::Result<()> {
        self.hear();
        for place in 0..self.places.len() {
            self.reap(place)?;
            let again = self.places[place].again;
            if again.is_some_and(|again| Instant::now() >= again) {
                self.spawn(place)?;
            }
            let has_begun = self.board.get(place, Entry::Space) != 0;
            if has_begun && !self.places[place].has_begun {
                self.has_begun(place);
            }
            self.resume(place, false);
            self.watch(place);
        }
        self.mind_wires();
        Ok(())
    }

    fn reap(&mut self, at: usize) -> std::io::Result<()> {
        let Some(child) = &mut self.places[at].child else {
            return Ok(());
        };
        let Some(status) = child.try_wait()? else {
            return Ok(());
        };
        let died_at = usize::try_from(self.board.get(at, Entry::DiedAt)).unwrap_or(0);
        if let Some(mark) = died_at.checked_sub(1) {
            self.deaths[mark] += 1;
            self.write(&format!("place {at} died at {}", MARKS[mark]));
            self.count_kill(at);
        } else if self.places[at].told && status.success() {
            self.write(&format!("place {at} has left"));
            self.report.leaves += 1;
        } else if !self.places[at].killed {
            self.ended(at, status);
        }
        self.excuse(Excuse::Ended(at));
        let pause = u64::try_from(self.random.below(80)).unwrap_or(0);
        self.places[at] = Place {
            again: Some(Instant::now() + Duration::from_millis(pause)),
            ..Place::default()
        };
        Ok(())
    }

    /// A process has the names of its place: until now they led to the one before, which is dead.
    fn has_begun(&mut self, at: usize) {
        self.places[at].has_begun = true;
        self.excuse(Excuse::Ended(at));
    }

    /// A process has ended that was to go on.
    fn ended(&mut self, at: usize, status: ExitStatus) {
        let signal = status.signal();
        self.found(
            Found::Crash,
            &format!("place {at} has ended: {status}, signal {signal:?}"),
        );
    }

    fn count_kill(&mut self, at: usize) {
        self.report.kills += 1;
        let role = self.role(at);
        *self.report.kills_by_role.entry(role).or_default() += 1;
    }

    /// What a process is: a node that hosts its domain is both.
    fn role(&self, at: usize) -> &'static str {
        let node = self.shape.node_of(at);
        let pid = self.places[at].child.as_ref().map(Child::id);
        let image =
            pid.and_then(|pid| crate::audit::Image::of_process(pid, &self.domain(node)).ok());
        let host = image.flatten().and_then(|it| crate::audit::host_pid(&it));
        match (self.shape.is_node(at), host.is_some() && host == pid) {
            (true, true) => "node and host",
            (true, false) => "node",
            (false, true) => "program and host",
            (false, false) => "program",
        }
    }

    fn signal(&self, at: usize, signal: Signal) {
        let child = self.places[at].child.as_ref();
        let pid = child.and_then(|child| i32::try_from(child.id()).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // Cannot fail: it is our child.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Whether a program makes progress, and whether an armed process has died in time.
    fn watch(&mut self, at: usize) {
        let place = &self.places[at];
        let now = Instant::now();
        if place.armed.is_some_and(|since| now - since > ARMED) {
            self.board.disarm(at);
            self.places[at].armed = None;
        }
        let place = &self.places[at];
        let is_watched = !self.shape.is_node(at) && place.child.is_some() && !place.killed;
        if !is_watched || place.stopped.is_some() {
            return;
        }
        let beats = self.board.get(at, Entry::Beat);
        match self.places[at].beat {
            Some((before, since)) if before == beats => {
                if now - since > BOUND {
                    let doing = super::super::Doing::of(self.board.get(at, Entry::Doing));
                    let seconds = (now - since).as_secs();
                    self.found(
                        Found::Hung,
                        &format!("place {at} has been {doing:?} for {seconds} s"),
                    );
                    self.kill(at);
                }
            }
            _ => self.places[at].beat = Some((beats, now)),
        }
    }

    // What processes say.

    fn hear(&mut self) {
        while let Ok((at, line)) = self.lines.1.try_recv() {
            match self.shape.is_node(at) {
                true => self.node_said(at, &line),
                false => self.program_said(at, &line),
            }
        }
    }

    fn program_said(&mut self, at: usize, line: &str) {
        let kinds = [
            (LOST, Found::Lost),
            (DISORDER, Found::Disorder),
            (CORRUPT, Found::Corrupt),
            (HUNG, Found::Hung),
        ];
        let mut kinds = kinds.into_iter();
        match kinds.find_map(|(begins, kind)| Some((kind, line.strip_prefix(begins)?))) {
            Some((kind, what)) => self.found(kind, &format!("program {at}: {what}")),
            None => self.write(&format!("program {at} said: {line}")),
        }
    }

    fn node_said(&mut self, at: usize, line: &str) {
        self.write(&format!("node {at} said: {line}"));
        if line.ends_with(&format!(" spans {DOMAIN}")) {
            self.has_begun(at);
        }
        if let Some((_, rest)) = line.split_once("the association with ")
            && let Some((id, why)) = rest.split_once(" is over: ")
        {
            let peer = self.ids.iter().position(|own| own == id);
            if let Some(peer) = peer {
                self.excuse(Excuse::Over(at, peer));
            }
            let over = self.report.associations_over.entry(why.to_owned());
            *over.or_default() += 1;
        }
        // What honest nodes never say of one another.
        const NEVER: [&str; 4] = [
            "violated the protocol",
            "two nodes have",
            "lost the domain",
            "panicked",
        ];
        if NEVER.iter().any(|never| line.contains(never)) {
            self.found(Found::Crash, &format!("node {at} said: {line}"));
        }
    }
}

/// Writes down what a process says, and hands it on.
fn hear(at: usize, said: ChildStderr, mut log: File, lines: &Sender<Line>, is_node: bool) {
    for line in BufReader::new(said).lines().map_while(Result::ok) {
        if is_node {
            // The run goes on without.
            let _ = writeln!(log, "{line}");
        }
        if lines.send((at, line)).is_err() {
            return;
        }
    }
}
