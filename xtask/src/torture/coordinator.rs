//! The coordinator spawns workers, kills them everywhere, and lets the auditor look.

mod disturb;
mod quiet;
mod stops;

use super::Doing;
use super::board::{Board, Entry, MAX_WORKERS};
use super::kills::Marked;
use super::random::Random;
use super::worker::Failure;
use crate::audit::{self, Image};
use crate::checks::ourselves;
use crate::marks::{MARKS, Passer, passer};
use rustix::process::{Pid, Signal};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a survivor may go without progress, and a recovery without an end.
const BOUND: Duration = Duration::from_secs(60);
/// The same for those who join or leave, which have a deadline of their own.
const LONG_BOUND: Duration = Duration::from_secs(150);
/// How long a finding must last to count: a process may be about to deal with it, on a
/// machine that is busy with other things.
const LASTING: Duration = Duration::from_secs(30);
/// The same with a rule switched off, where findings are wanted.
const LASTING_SABOTAGED: Duration = Duration::from_secs(2);
/// The same with a fault planted that lasts.
const LASTING_PLANTED: Duration = Duration::from_secs(10);
/// How long a worker stays armed for a mark that it does not reach.
const ARMED: Duration = Duration::from_secs(2);
/// Between two audits.
const AUDITS: Duration = Duration::from_secs(3);
/// The same with a rule switched off: the next message to a port, or the death of the waiting
/// worker, often mends what the rule would have, so the audit must come at once.
const AUDITS_SABOTAGED: Duration = Duration::from_millis(200);
/// The same where a worker is stopped most of the time, for as long as it takes.
const AUDITS_STOPPING: Duration = Duration::from_secs(15);
/// Workers that are neither armed nor stopped, at the least: the domain must live on.
const SPARE: usize = 3;
/// How many times as long a run goes on at the most.
pub(crate) const LONGER: u32 = 4;
/// The places for the processes that create domains of their own.
const CREATORS: [usize; 2] = [MAX_WORKERS - 2, MAX_WORKERS - 1];
/// Marks at which a sender is stopped for a while.
const STOPS: [&str; 5] = [
    "send.claimed",
    "send.noted",
    "send.written",
    "send.before_publish",
    "send.published",
];

/// What to do.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    pub(crate) processes: usize,
    pub(crate) sabotage: Option<String>,
    /// A fault that workers have, one of [`super::worker::PLANTS`].
    pub(crate) plant: Option<String>,
    /// Die only at these marks; at all, if there are none.
    pub(crate) marks: Vec<String>,
    /// Stop at marks, and do not die there.
    pub(crate) stop: bool,
    /// The domain, and those that workers make beside it, are guarded.
    pub(crate) guarded: bool,
    /// End with the first audit that finds something.
    pub(crate) until_found: bool,
    /// Deaths, or stops, that there must be.
    pub(crate) least: u64,
}

/// What came of it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) seconds: u64,
    pub(crate) guarded: bool,
    pub(crate) kills: u64,
    pub(crate) kills_by_mark: BTreeMap<&'static str, u64>,
    pub(crate) kills_by_role: BTreeMap<String, u64>,
    pub(crate) double_kills: u64,
    pub(crate) stops: u64,
    pub(crate) stops_by_mark: BTreeMap<&'static str, u64>,
    /// Workers that waited for a stopped worker, as they must: by the reason.
    pub(crate) waits: BTreeMap<&'static str, u64>,
    pub(crate) takeovers: u64,
    pub(crate) audits: u64,
    pub(crate) leaked_extents: u64,
    pub(crate) double_owned: u64,
    pub(crate) hung_waiters: u64,
    pub(crate) unreleased_rights: u64,
    pub(crate) failed_takeovers: u64,
    pub(crate) crashes: u64,
    /// Fewer have died or stopped than were asked for.
    pub(crate) too_few: bool,
    pub(crate) messages: u64,
    /// Written to channels, and read there (or told to have been missed).
    pub(crate) channel_messages: (u64, u64),
    /// Received of topics.
    pub(crate) samples: u64,
    /// Answered, and ended without an answer.
    pub(crate) calls: (u64, u64),
    /// Of those that were answered: over channels that clients share, by clients that were let
    /// in over a channel, and awaited.
    pub(crate) shared_calls: u64,
    pub(crate) presented_calls: u64,
    pub(crate) awaited_calls: u64,
    /// Clients that shared, and were given channels of their own.
    pub(crate) promotions: u64,
    /// Servers that moved to another process in the middle of calls.
    pub(crate) moves: u64,
    /// Bytes read of streams.
    pub(crate) streamed: u64,
    /// Frames put, and looks at them.
    pub(crate) frames: (u64, u64),
    /// Updates of exported memory that have landed.
    pub(crate) updates: u64,
    /// Notes of imports that exporters took.
    pub(crate) notes: u64,
    /// Messages and requests that came to bridges between domains, requests answered there, and
    /// news of their channels.
    pub(crate) connections: (u64, u64, u64),
    /// Signals that interrupted their handler's thread.
    pub(crate) upcalls: u64,
    /// How often each mark was passed, whether or not a worker died there.
    pub(crate) passes_by_mark: BTreeMap<&'static str, u64>,
    /// The findings in words, the first of them.
    pub(crate) findings: Vec<String>,
}

impl Report {
    /// Whether there were as many deaths as were asked for, or stops.
    pub(crate) fn is_enough(&self, plan: &Plan) -> bool {
        plan.least <= if plan.stop { self.stops } else { self.kills }
    }

    /// Nothing was lost.
    pub(crate) fn is_clean(&self) -> bool {
        let found = [
            self.leaked_extents,
            self.double_owned,
            self.hung_waiters,
            self.unreleased_rights,
            self.failed_takeovers,
            self.crashes,
            u64::from(self.too_few),
        ];
        found.iter().all(|n| *n == 0)
    }
}

/// One worker's place.
#[derive(Default)]
struct Place {
    child: Option<Child>,
    /// When a worker takes the place next.
    again: Option<Instant>,
    /// When it was armed.
    armed: Option<Instant>,
    /// Until when it is stopped, and at which mark; at none, at random.
    stopped: Option<(Instant, Option<usize>)>,
    /// Whether it makes progress while others are stopped.
    beside: stops::Beside,
    /// Its operations, and when they last became more.
    beat: Option<(u64, Instant)>,
    /// We have killed it ourselves.
    killed: bool,
}

struct Coordinator {
    plan: Plan,
    domain: String,
    board: Board,
    random: Random,
    places: Vec<Place>,
    image: Option<Image>,
    /// The worker that hosted when we last looked.
    host: Option<usize>,
    marked: Marked,
    /// Deaths and stops at each mark.
    deaths: Vec<u64>,
    stops: Vec<u64>,
    /// Armed for the next worker that joins.
    newcomer: Option<usize>,
    pauses: u64,
    seen: BTreeSet<String>,
    report: Report,
    began: Instant,
}

/// Runs workers until the time is over.
pub(crate) fn run(plan: Plan) -> std::io::Result<Report> {
    let board = Board::create().map_err(std::io::Error::other)?;
    let report = Report {
        seed: plan.seed,
        guarded: plan.guarded,
        ..Report::default()
    };
    let mut coordinator = Coordinator {
        domain: format!("torture-{}", std::process::id()),
        random: Random::new(plan.seed),
        places: (0..plan.processes).map(|_| Place::default()).collect(),
        marked: Marked::new(&plan.marks),
        deaths: vec![0; MARKS.len()],
        stops: vec![0; MARKS.len()],
        board,
        image: None,
        host: None,
        newcomer: None,
        pauses: 0,
        seen: BTreeSet::new(),
        report,
        began: Instant::now(),
        plan,
    };
    let outcome = coordinator.run();
    for place in &mut coordinator.places {
        if let Some(mut child) = place.child.take() {
            // Cannot fail: the child was not waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
    outcome?;
    Ok(coordinator.finish())
}

/// Sends a signal to a child that was not waited for.
fn signal_to(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // Cannot fail: it is our child.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Where another has to die for the host to pass a mark.
fn bait(mark: &str) -> Option<&'static str> {
    match mark {
        "host.reclaim.unsent" => Some("send.noted"),
        "host.reclaim.punched" => Some("chunk.claimed"),
        "host.reclaim.watch" => Some("watch.taken"),
        "host.reclaim.answered" => Some("receive.taken"),
        _ => None,
    }
}

impl Coordinator {
    fn run(&mut self) -> std::io::Result<()> {
        self.spawn(0)?;
        let end = Instant::now() + BOUND;
        while self.image.is_none() {
            if Instant::now() > end {
                self.found_failed_takeover("the first worker did not join");
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
            self.find_region();
        }
        for place in 1..self.places.len() {
            self.spawn(place)?;
        }
        let audits = match &self.plan {
            plan if plan.sabotage.is_some() => AUDITS_SABOTAGED,
            plan if plan.stop => AUDITS_STOPPING,
            _ => AUDITS,
        };
        let mut audit = Instant::now() + audits;
        let mut line = Instant::now();
        while self.began.elapsed() < self.plan.time || self.goes_on() {
            self.look_around()?;
            let due = Instant::now() >= audit;
            if self.plan.stop {
                self.look_beside_the_stopped();
            }
            if !due {
                self.disturb()?;
            }
            if due && !(self.plan.stop && self.is_anybody_stopped()) {
                self.pause_and_audit()?;
                audit = Instant::now() + audits;
                if self.plan.until_found && !self.report.is_clean() {
                    return Ok(());
                }
            }
            if line.elapsed() > Duration::from_millis(500) {
                line = Instant::now();
                self.progress();
            }
            std::thread::sleep(Duration::from_millis(3));
        }
        self.pause_and_audit()
    }

    /// The time is over, and too little has happened.
    fn goes_on(&self) -> bool {
        !self.report.is_enough(&self.plan) && self.began.elapsed() < LONGER * self.plan.time
    }

    fn finish(mut self) -> Report {
        if !self.report.is_enough(&self.plan) {
            self.note(format!(
                "fewer than {} have died or stopped",
                self.plan.least
            ));
            self.report.too_few = true;
        }
        self.report.seconds = self.began.elapsed().as_secs();
        self.report.messages = self.sum(Entry::Received);
        self.report.channel_messages = (self.sum(Entry::Written), self.sum(Entry::Read));
        self.report.samples = self.sum(Entry::Sampled);
        self.report.calls = (self.sum(Entry::Called), self.sum(Entry::Uncalled));
        self.report.shared_calls = self.sum(Entry::Shared);
        self.report.presented_calls = self.sum(Entry::Presented);
        self.report.awaited_calls = self.sum(Entry::Awaited);
        self.report.promotions = self.sum(Entry::Promoted);
        self.report.moves = self.sum(Entry::Moved);
        self.report.streamed = self.sum(Entry::Drunk);
        self.report.frames = (self.sum(Entry::Put), self.sum(Entry::Looked));
        self.report.updates = self.sum(Entry::Updated);
        self.report.notes = self.sum(Entry::Noted);
        let counts = [Entry::ClientsHeard, Entry::Answered, Entry::Followed];
        self.report.connections = counts.map(|count| self.sum(count)).into();
        self.report.upcalls = self.sum(Entry::Heard);
        for (at, name) in MARKS.iter().enumerate() {
            let passes = (0..MAX_WORKERS)
                .map(|w| self.board.hits(w, at).load(Ordering::Relaxed))
                .sum();
            self.report.passes_by_mark.insert(name, passes);
            self.report.kills_by_mark.insert(name, self.deaths[at]);
            self.report.stops_by_mark.insert(name, self.stops[at]);
        }
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
        self.report
    }

    /// What all workers have counted.
    fn sum(&self, entry: Entry) -> u64 {
        (0..MAX_WORKERS).map(|w| self.board.get(w, entry)).sum()
    }

    fn progress(&self) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        let of_runs = MARKS.iter().zip(&self.marked.hits);
        let of_runs = of_runs.filter(|(mark, _)| passer(mark) != Passer::Tests);
        let least = of_runs.map(|(_, kills)| *kills).min().unwrap_or(0);
        let messages = self.sum(Entry::Received) + self.sum(Entry::Read) + self.sum(Entry::Called);
        let r = &self.report;
        eprint!(
            "\r{:>4} s of {}: {} kills, {} stops (every mark {least} times), {} takeovers, {} audits, {messages} messages, {} findings  ",
            self.began.elapsed().as_secs(),
            self.plan.time.as_secs(),
            r.kills,
            r.stops,
            r.takeovers,
            r.audits,
            r.findings.len(),
        );
        // A progress line that cannot be written is no reason to stop.
        let _ = std::io::stderr().flush();
    }

    // Processes.

    fn command(&mut self, worker: usize, domain: &str) -> Command {
        let mut command = ourselves();
        command.args([
            "torture-worker",
            "--board",
            &self.board.path(),
            "--domain",
            domain,
        ]);
        command.args([
            "--worker",
            &worker.to_string(),
            "--seed",
            &self.random.next().to_string(),
        ]);
        if let Some(rule) = &self.plan.sabotage {
            command.args(["--sabotage", rule]);
        }
        if let Some(fault) = &self.plan.plant {
            command.args(["--plant", fault]);
        }
        if self.plan.guarded {
            command.arg("--guarded");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn spawn(&mut self, worker: usize) -> std::io::Result<()> {
        self.board.renew(worker);
        if let Some(mark) = self.newcomer.take() {
            let action = self.action();
            self.board.arm(worker, &[(mark, 1)], action);
            self.places[worker].armed = Some(Instant::now());
        }
        let domain = self.domain.clone();
        let child = self.command(worker, &domain).spawn()?;
        let place = &mut self.places[worker];
        place.child = Some(child);
        place.again = None;
        place.stopped = None;
        place.killed = false;
        place.beat = None;
        Ok(())
    }

    fn find_region(&mut self) {
        let Some(child) = &self.places[0].child else {
            return;
        };
        if self.board.get(0, Entry::Space) == 0 {
            return;
        }
        // Fails while the worker is about to begin, or was killed.
        if let Ok(image) = Image::of_process(child.id(), &self.domain) {
            self.image = image;
        }
    }

    fn look_around(&mut self) -> std::io::Result<()> {
        let pid = self.image.as_ref().and_then(audit::host_pid);
        let host = pid.and_then(|pid| {
            self.places
                .iter()
                .position(|p| p.child.as_ref().is_some_and(|c| c.id() == pid))
        });
        if host.is_some() && host != self.host {
            self.report.takeovers += 1;
        }
        self.host = host.or(self.host);
        for worker in 0..self.places.len() {
            self.reap(worker)?;
            if self.places[worker]
                .again
                .is_some_and(|again| Instant::now() >= again)
            {
                self.spawn(worker)?;
            }
            self.resume(worker, false);
            self.watch(worker);
        }
        Ok(())
    }

    fn reap(&mut self, worker: usize) -> std::io::Result<()> {
        let Some(child) = &mut self.places[worker].child else {
            return Ok(());
        };
        let Some(status) = child.try_wait()? else {
            return Ok(());
        };
        let doing = Doing::of(self.board.get(worker, Entry::Doing));
        if let Some(mark) = self.died_at(worker) {
            self.marked.hits[mark] += 1;
            self.deaths[mark] += 1;
            self.count_kill(worker, doing);
        } else if !self.places[worker].killed {
            self.ended(worker, doing, status);
        }
        self.take_corrupt(worker);
        self.places[worker] = Place::default();
        let pause = u64::try_from(self.random.below(60)).unwrap_or(0);
        self.places[worker].again = Some(Instant::now() + Duration::from_millis(pause));
        Ok(())
    }

    fn died_at(&self, worker: usize) -> Option<usize> {
        usize::try_from(self.board.get(worker, Entry::DiedAt))
            .ok()?
            .checked_sub(1)
    }

    fn count_kill(&mut self, worker: usize, doing: Doing) {
        self.report.kills += 1;
        let role = if self.host == Some(worker) {
            "host".to_owned()
        } else {
            format!("{doing:?}").to_lowercase()
        };
        *self.report.kills_by_role.entry(role).or_default() += 1;
    }

    /// A worker ended that was not killed.
    fn ended(&mut self, worker: usize, doing: Doing, status: ExitStatus) {
        let failure = Failure::of(self.board.get(worker, Entry::Failure));
        let what = format!(
            "worker {worker} ended while {doing:?}: {failure:?}, {status}, signal {:?}",
            status.signal()
        );
        match failure {
            None if status.success() => {}
            None => {
                self.report.crashes += 1;
                self.note(what);
            }
            Some(Failure::Join) => self.found_failed_takeover(&what),
            Some(Failure::Leave) => {
                self.report.hung_waiters += 1;
                self.note(what);
            }
            Some(Failure::Bind) => {
                self.report.unreleased_rights += 1;
                self.note(what);
            }
        }
    }

    fn found_failed_takeover(&mut self, what: &str) {
        self.report.failed_takeovers += 1;
        self.note(what.to_owned());
    }

    fn note(&mut self, what: String) {
        eprintln!("{what}");
        if self.report.findings.len() < 50 {
            self.report.findings.push(what);
        }
    }

    fn take_corrupt(&mut self, worker: usize) {
        let corrupt = self
            .board
            .of(worker, Entry::Corrupt)
            .swap(0, Ordering::SeqCst);
        if corrupt > 0 {
            self.report.double_owned += corrupt;
            self.note(format!(
                "worker {worker} found {corrupt} messages that were not what was sent"
            ));
        }
    }

    fn signal(&self, worker: usize, signal: Signal) {
        if let Some(child) = &self.places[worker].child {
            signal_to(child, signal);
        }
    }

    /// Lets a stopped worker go on, once it is time or at once.
    fn resume(&mut self, worker: usize, now: bool) {
        let stopped_at = self.board.of(worker, Entry::StoppedAt);
        let stopped_at = stopped_at.swap(0, Ordering::SeqCst);
        if stopped_at != 0 {
            let mark = usize::try_from(stopped_at - 1).ok();
            let mark = mark.filter(|mark| *mark < MARKS.len());
            if let Some(mark) = mark {
                self.marked.hits[mark] += u64::from(self.plan.stop);
                self.stops[mark] += 1;
            }
            self.report.stops += 1;
            let time = if self.plan.stop {
                stops::STOPPED
            } else {
                Duration::from_millis(200 + u64::try_from(self.random.below(1500)).unwrap_or(0))
            };
            self.places[worker].stopped = Some((Instant::now() + time, mark));
        }
        if self.places[worker]
            .stopped
            .is_some_and(|(until, _)| now || Instant::now() >= until)
        {
            self.signal(worker, Signal::CONT);
            self.places[worker].stopped = None;
            self.places[worker].beat = None;
        }
    }

    /// Whether it makes progress.
    fn watch(&mut self, worker: usize) {
        let place = &self.places[worker];
        if place.child.is_none() || place.killed || place.stopped.is_some() {
            return;
        }
        let beats = self.board.get(worker, Entry::Beat);
        let doing = Doing::of(self.board.get(worker, Entry::Doing));
        let now = Instant::now();
        match self.places[worker].beat {
            Some((before, since)) if before == beats => {
                let bound = match doing {
                    Doing::Waiting | Doing::Listening | Doing::Pausing => return,
                    Doing::Joining | Doing::Leaving | Doing::Binding | Doing::Starting => {
                        LONG_BOUND
                    }
                    _ => BOUND,
                };
                if now - since > bound {
                    self.hang(
                        worker,
                        &format!(
                            "worker {worker} has been {doing:?} for {} s",
                            (now - since).as_secs()
                        ),
                    );
                }
            }
            _ => self.places[worker].beat = Some((beats, now)),
        }
        if self.places[worker]
            .armed
            .is_some_and(|since| now - since > ARMED)
        {
            self.board.disarm(worker);
            self.places[worker].armed = None;
        }
    }

    fn hang(&mut self, worker: usize, what: &str) {
        self.report.hung_waiters += 1;
        let child = self.places[worker].child.as_ref();
        let threads = child.map_or(String::new(), |child| stops::threads(child.id()));
        self.note(format!("{what}; its threads: {threads}"));
        self.kill(worker);
    }
}
