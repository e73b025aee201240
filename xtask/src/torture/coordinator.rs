//! The coordinator: spawns workers, kills them everywhere, and lets the auditor look.

use super::Doing;
use super::board::{Board, Entry, Journal, MAX_WORKERS, Word};
use super::kills::Marked;
use super::random::Random;
use super::worker::Failure;
use crate::audit::{self, Findings, Image};
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
/// How long a finding must last to count: somebody may be about to deal with it, on a
/// machine that is busy with other things.
const LASTING: Duration = Duration::from_secs(30);
/// The same with a rule switched off, where findings are wanted.
const LASTING_SABOTAGED: Duration = Duration::from_secs(2);
/// How long somebody stays armed for a mark that it does not reach.
const ARMED: Duration = Duration::from_secs(2);
/// Between two audits.
const AUDITS: Duration = Duration::from_secs(3);
/// The same with a rule switched off: the next message to a port, or the death of whoever
/// waits, often mends what the rule would have, so it must be looked for at once.
const AUDITS_SABOTAGED: Duration = Duration::from_millis(200);
/// Workers that are neither armed nor stopped, at the least: the domain must live on.
const SPARE: usize = 3;
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
    /// Die only at these marks; at all, if there are none.
    pub(crate) marks: Vec<String>,
    /// End with the first audit that finds something.
    pub(crate) until_found: bool,
}

/// What came of it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) seconds: u64,
    pub(crate) kills: u64,
    pub(crate) kills_by_mark: BTreeMap<&'static str, u64>,
    pub(crate) kills_by_role: BTreeMap<String, u64>,
    pub(crate) double_kills: u64,
    pub(crate) stops: u64,
    pub(crate) takeovers: u64,
    pub(crate) audits: u64,
    pub(crate) leaked_extents: u64,
    pub(crate) double_owned: u64,
    pub(crate) hung_waiters: u64,
    pub(crate) unreleased_rights: u64,
    pub(crate) failed_takeovers: u64,
    pub(crate) crashes: u64,
    pub(crate) messages: u64,
    /// How often each mark was passed, whether or not somebody died there.
    pub(crate) passes_by_mark: BTreeMap<&'static str, u64>,
    /// The findings in words, the first of them.
    pub(crate) findings: Vec<String>,
}

impl Report {
    /// Nothing was lost.
    pub(crate) fn is_clean(&self) -> bool {
        let found = [
            self.leaked_extents,
            self.double_owned,
            self.hung_waiters,
            self.unreleased_rights,
            self.failed_takeovers,
            self.crashes,
        ];
        found.iter().all(|n| *n == 0)
    }
}

/// One worker's place.
#[derive(Default)]
struct Place {
    child: Option<Child>,
    /// When somebody takes the place next.
    again: Option<Instant>,
    /// When it was armed.
    armed: Option<Instant>,
    /// Until when it is stopped.
    stopped: Option<Instant>,
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
    /// Armed for whoever joins next.
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
        ..Report::default()
    };
    let mut coordinator = Coordinator {
        domain: format!("torture-{}", std::process::id()),
        random: Random::new(plan.seed),
        places: (0..plan.processes).map(|_| Place::default()).collect(),
        marked: Marked::new(&plan.marks),
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
        let audits = if self.plan.sabotage.is_none() {
            AUDITS
        } else {
            AUDITS_SABOTAGED
        };
        let mut audit = Instant::now() + audits;
        let mut line = Instant::now();
        while self.began.elapsed() < self.plan.time {
            self.look_around()?;
            self.disturb()?;
            if Instant::now() >= audit {
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

    fn finish(mut self) -> Report {
        self.report.seconds = self.began.elapsed().as_secs();
        self.report.messages = (0..MAX_WORKERS)
            .map(|w| self.board.get(w, Entry::Received))
            .sum();
        for (at, name) in MARKS.iter().enumerate() {
            let passes = (0..MAX_WORKERS)
                .map(|w| self.board.hits(w, at).load(Ordering::Relaxed))
                .sum();
            self.report.passes_by_mark.insert(name, passes);
            self.report
                .kills_by_mark
                .insert(name, self.marked.kills[at]);
        }
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
        self.report
    }

    fn progress(&self) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        let least = self.marked.kills.iter().min().copied().unwrap_or(0);
        let messages: u64 = (0..MAX_WORKERS)
            .map(|w| self.board.get(w, Entry::Received))
            .sum();
        let r = &self.report;
        eprint!(
            "\r{:>4} s of {}: {} kills (every mark {least} times), {} takeovers, {} audits, {messages} messages, {} findings  ",
            self.began.elapsed().as_secs(),
            self.plan.time.as_secs(),
            r.kills,
            r.takeovers,
            r.audits,
            r.findings.len(),
        );
        // A progress line that cannot be written is no reason to stop.
        let _ = std::io::stderr().flush();
    }

    // Processes.

    fn command(&mut self, worker: usize, domain: &str) -> Command {
        // Also when the file was replaced by a newer build meanwhile.
        let mut command = Command::new("/proc/self/exe");
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
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn spawn(&mut self, worker: usize) -> std::io::Result<()> {
        self.board.renew(worker);
        if let Some(mark) = self.newcomer.take() {
            self.board.arm(worker, mark, 1, 1);
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
            self.marked.kills[mark] += 1;
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

    /// A worker ended, and nobody killed it.
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
        let pid = self.places[worker]
            .child
            .as_ref()
            .and_then(|c| Pid::from_raw(i32::try_from(c.id()).ok()?));
        if let Some(pid) = pid {
            // Cannot fail: it is our child, and was not waited for.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Lets a stopped worker go on, once it is time or at once.
    fn resume(&mut self, worker: usize, now: bool) {
        if self
            .board
            .of(worker, Entry::StoppedAt)
            .swap(0, Ordering::SeqCst)
            != 0
        {
            self.report.stops += 1;
            let millis = 200 + u64::try_from(self.random.below(1500)).unwrap_or(0);
            self.places[worker].stopped = Some(Instant::now() + Duration::from_millis(millis));
        }
        if self.places[worker]
            .stopped
            .is_some_and(|until| now || Instant::now() >= until)
        {
            self.signal(worker, Signal::CONT);
            self.places[worker].stopped = None;
            self.places[worker].beat = None;
        }
    }

    /// Whether it makes progress.
    fn watch(&mut self, worker: usize) {
        if self.places[worker].child.is_none() || self.places[worker].stopped.is_some() {
            return;
        }
        let beats = self.board.get(worker, Entry::Beat);
        let doing = Doing::of(self.board.get(worker, Entry::Doing));
        let now = Instant::now();
        match self.places[worker].beat {
            Some((before, since)) if before == beats => {
                let bound = match doing {
                    Doing::Waiting | Doing::Pausing => return,
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
        self.note(what.to_owned());
        self.kill(worker);
    }

    // Disturbances.

    fn is_at_work(&self, worker: usize) -> bool {
        let place = &self.places[worker];
        place.child.is_some()
            && !place.killed
            && place.stopped.is_none()
            && self.board.get(worker, Entry::Space) != 0
    }

    fn is_free(&self, worker: usize) -> bool {
        self.is_at_work(worker)
            && !self.board.is_armed(worker)
            && self.board.get(worker, Entry::StoppedAt) == 0
    }

    fn free(&self) -> Vec<usize> {
        (0..self.places.len())
            .filter(|w| self.is_free(*w))
            .collect()
    }

    fn someone(&mut self, but: Option<usize>) -> Option<usize> {
        let free: Vec<usize> = self
            .free()
            .into_iter()
            .filter(|w| Some(*w) != but)
            .collect();
        free.get(self.random.below(free.len())).copied()
    }

    fn kill(&mut self, worker: usize) {
        let Some(child) = &mut self.places[worker].child else {
            return;
        };
        // Cannot fail: the child was not waited for.
        let _ = child.kill();
        if !self.places[worker].killed {
            self.places[worker].killed = true;
            let doing = Doing::of(self.board.get(worker, Entry::Doing));
            if self.died_at(worker).is_none() {
                self.count_kill(worker, doing);
            }
        }
    }

    fn arm(&mut self, worker: usize, mark: usize, action: u64) {
        let passes: u64 = (0..self.places.len())
            .map(|w| self.board.hits(w, mark).load(Ordering::Relaxed))
            .sum();
        let most = match passes {
            0..1000 => 1,
            1000..100_000 => 8,
            _ => 60,
        };
        let countdown = 1 + u64::try_from(self.random.below(most)).unwrap_or(0);
        self.board.arm(worker, mark, countdown, action);
        self.places[worker].armed = Some(Instant::now());
    }

    fn disturb(&mut self) -> std::io::Result<()> {
        if self.free().len() <= SPARE || !self.random.once_in(8) {
            return Ok(());
        }
        if !self.plan.marks.is_empty() {
            return self.die_at_a_mark();
        }
        match self.random.below(20) {
            0 => {
                if let Some(worker) = self.someone(None) {
                    self.kill(worker);
                }
            }
            1 => {
                let both = [self.someone(None), self.host];
                let second = self.someone(both[0]);
                let second = if self.random.once_in(2) {
                    both[1]
                } else {
                    second
                };
                if let (Some(first), Some(second)) = (both[0], second)
                    && first != second
                    && self.free().len() > SPARE + 1
                {
                    self.kill(first);
                    self.kill(second);
                    self.report.double_kills += 1;
                }
            }
            2 => {
                if let Some(host) = self.host.filter(|h| self.is_free(*h)) {
                    self.kill(host);
                }
            }
            3 => {
                if let Some(worker) = self.someone(None) {
                    let mark = STOPS[self.random.below(STOPS.len())];
                    if let Some(mark) = crate::marks::index(mark) {
                        self.arm(worker, mark, 2);
                    }
                    self.expect_a_passing();
                }
            }
            4 => {
                if let Some(worker) = self.someone(None) {
                    self.signal(worker, Signal::STOP);
                    self.board.set(worker, Entry::StoppedAt, 1);
                }
            }
            _ => self.die_at_a_mark()?,
        }
        Ok(())
    }

    fn die_at_a_mark(&mut self) -> std::io::Result<()> {
        let host_is_free = self.host.is_some_and(|h| self.is_free(h));
        let newcomer_is_free = self.newcomer.is_none();
        // Much is asked of the host, and there is one.
        let host_first = host_is_free && !self.random.once_in(3);
        let wanted = |passer| match passer {
            Passer::Host | Passer::LeavingHost => host_is_free,
            Passer::Any | Passer::Leaver | Passer::Creator if host_first => false,
            Passer::Newcomer => newcomer_is_free,
            _ => true,
        };
        let Some(mark) = self.marked.next(&mut self.random, wanted) else {
            return Ok(());
        };
        match passer(MARKS[mark]) {
            Passer::Any => {
                if let Some(worker) = self.someone(None) {
                    self.arm(worker, mark, 1);
                }
                if MARKS[mark] == "receive.passed" {
                    self.arrange_a_passing(mark);
                }
            }
            Passer::Host => {
                if let Some(host) = self.host {
                    self.arm(host, mark, 1);
                    if let Some(worker) = self.someone(Some(host)) {
                        match bait(MARKS[mark]).and_then(crate::marks::index) {
                            Some(bait) => self.arm(worker, bait, 1),
                            None => self.kill_or_dismiss(worker),
                        }
                    }
                }
            }
            Passer::Successor => {
                let host = self.host;
                for _ in 0..3 {
                    if let Some(worker) = self.someone(host)
                        && self.free().len() > SPARE + 1
                    {
                        self.arm(worker, mark, 1);
                    }
                }
                if let Some(host) = host {
                    self.kill(host);
                }
            }
            Passer::Leaver => {
                if let Some(worker) = self.someone(self.host) {
                    self.arm(worker, mark, 1);
                    self.board.set(worker, Entry::Order, 1);
                }
            }
            Passer::LeavingHost => {
                if let Some(host) = self.host {
                    self.arm(host, mark, 1);
                    self.board.set(host, Entry::Order, 1);
                }
            }
            Passer::Newcomer => {
                self.newcomer = Some(mark);
                if let Some(worker) = self.someone(None) {
                    self.kill(worker);
                }
            }
            Passer::Creator => self.create(mark)?,
        }
        Ok(())
    }

    /// Receivers pass only senders that have stopped in the middle. So one stops, as soon
    /// as it sends; and whoever passes it dies.
    fn arrange_a_passing(&mut self, passed: usize) {
        if let (Some(worker), Some(claimed)) =
            (self.someone(None), crate::marks::index("send.claimed"))
        {
            self.arm(worker, claimed, 2);
            self.board.set(worker, Entry::Countdown, 1);
        }
        while self.free().len() > SPARE
            && let Some(worker) = self.someone(None)
        {
            self.board.arm(worker, passed, 1, 1);
            self.places[worker].armed = Some(Instant::now());
        }
    }

    /// While somebody is stopped: the others may pass it, which is rare otherwise.
    fn expect_a_passing(&mut self) {
        let Some(passed) = crate::marks::index("receive.passed") else {
            return;
        };
        while self.marked.is_behind(passed)
            && self.free().len() > SPARE
            && let Some(worker) = self.someone(None)
        {
            self.board.arm(worker, passed, 1, 1);
            self.places[worker].armed = Some(Instant::now());
        }
    }

    /// Gives the host something to do.
    fn kill_or_dismiss(&mut self, worker: usize) {
        match self.random.below(3) {
            0 => self.board.set(worker, Entry::Order, 1),
            1 => self.board.set(worker, Entry::Order, 2),
            _ => self.kill(worker),
        }
    }

    /// The creator of another domain dies at `mark`; a second process must get in.
    fn create(&mut self, mark: usize) -> std::io::Result<()> {
        let domain = format!("{}-{}", self.domain, self.random.next());
        let [creator, second] = CREATORS;
        self.board.renew(creator);
        self.board.renew(second);
        self.board.arm(creator, mark, 1, 1);
        let mut children = [
            self.command(creator, &domain).spawn()?,
            self.command(second, &domain).spawn()?,
        ];
        let end = Instant::now() + LONG_BOUND;
        let mut joined = false;
        while !joined && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
            joined = self.board.get(second, Entry::Space) != 0;
            if children[1].try_wait()?.is_some() {
                break;
            }
        }
        for child in &mut children {
            // Cannot fail: the child was not waited for, or is dead.
            let _ = child.kill();
            child.wait()?;
        }
        if self.died_at(creator).is_some() {
            self.marked.kills[mark] += 1;
            self.count_kill(creator, Doing::Joining);
        }
        if !joined {
            self.found_failed_takeover(&format!(
                "a second process could not join after the creator died at {}",
                MARKS[mark]
            ));
        }
        Ok(())
    }

    // Audits.

    /// Lets everybody hold still, and looks at what they hold.
    fn pause_and_audit(&mut self) -> std::io::Result<()> {
        for worker in 0..self.places.len() {
            self.board.disarm(worker);
            self.places[worker].armed = None;
        }
        self.newcomer = None;
        self.pauses += 1;
        let pause = self.pauses;
        self.board.word(Word::Pause).store(pause, Ordering::SeqCst);
        let asleep = |c: &Self, w: usize| Doing::of(c.board.get(w, Entry::Doing)) == Doing::Waiting;
        self.wait(LONG_BOUND, |c, w| {
            c.board.get(w, Entry::Paused) == pause || asleep(c, w)
        })?;
        self.settle()?;
        self.find_sleepers()?;
        let awake = (0..self.places.len()).find(|w| self.board.get(*w, Entry::Paused) == pause);
        self.board
            .word(Word::Pinger)
            .store(awake.map_or(0, |w| w as u64 + 1), Ordering::SeqCst);
        self.wait(BOUND, |c, w| c.board.get(w, Entry::Paused) == pause)?;
        // Who was killed for not answering is buried first.
        self.settle()?;
        self.board.word(Word::Count).store(pause, Ordering::SeqCst);
        self.wait(BOUND, |c, w| c.board.get(w, Entry::Counted) == pause)?;
        self.conclude()?;
        for worker in 0..self.places.len() {
            self.take_corrupt(worker);
            self.places[worker].beat = None;
        }
        for word in [Word::Count, Word::Pinger, Word::Pause] {
            self.board.word(word).store(0, Ordering::SeqCst);
        }
        self.report.audits += 1;
        Ok(())
    }

    /// Waits until all living workers are `ready`; who is not in time hangs.
    fn wait(
        &mut self,
        bound: Duration,
        ready: impl Fn(&Self, usize) -> bool,
    ) -> std::io::Result<()> {
        let end = Instant::now() + bound;
        loop {
            self.look_around()?;
            for worker in 0..self.places.len() {
                self.resume(worker, true);
            }
            let late: Vec<usize> = (0..self.places.len())
                .filter(|w| self.places[*w].child.is_none() || !ready(self, *w))
                .collect();
            if late.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                for worker in late {
                    let doing = Doing::of(self.board.get(worker, Entry::Doing));
                    self.hang(
                        worker,
                        &format!("worker {worker} is {doing:?} and does not answer"),
                    );
                }
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// How long a finding must last to count.
    fn lasting(&self) -> Duration {
        if self.plan.sabotage.is_none() {
            LASTING
        } else {
            LASTING_SABOTAGED
        }
    }

    /// Waits until the dead are buried and somebody hosts.
    fn settle(&mut self) -> std::io::Result<()> {
        // With a rule off, nobody may ever be buried; the auditor will say so.
        let bound = if self.plan.sabotage.is_none() {
            BOUND
        } else {
            LASTING_SABOTAGED
        };
        let end = Instant::now() + bound;
        loop {
            self.look_around()?;
            let Some(image) = &self.image else {
                return Ok(());
            };
            let before = image.reclaims()?;
            if audit::is_settled(image)? && image.reclaims()? == before {
                return Ok(());
            }
            if Instant::now() > end {
                // The auditor will say what is wrong.
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn journals(&self) -> Vec<(u32, Journal)> {
        let of = |worker: usize| {
            Some((
                self.places[worker].child.as_ref()?.id(),
                self.board.journal(worker),
            ))
        };
        (0..self.places.len()).filter_map(of).collect()
    }

    /// Nobody sleeps although a message waits for it.
    fn find_sleepers(&mut self) -> std::io::Result<()> {
        let end = Instant::now() + self.lasting();
        let mut first: Option<BTreeSet<u16>> = None;
        while let Some(image) = &self.image {
            let now = audit::audit(image, &[])?.sleeping;
            let still: BTreeSet<u16> = first
                .take()
                .map_or(now.clone(), |f| f.intersection(&now).copied().collect());
            if still.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                self.report.hung_waiters += still.len() as u64;
                self.note(format!("hung: {}", audit::sleepers(&still)));
                return Ok(());
            }
            first = Some(still);
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The audit proper: what it finds must last to count.
    fn conclude(&mut self) -> std::io::Result<()> {
        let end = Instant::now() + self.lasting();
        let journals = self.journals();
        while let Some(image) = &self.image {
            let found = audit::audit(image, &journals)?;
            let news = found.all().any(|f| !self.seen.contains(&f));
            if found.is_clean() || !news {
                return Ok(());
            }
            if Instant::now() > end {
                self.count(&found);
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn count(&mut self, found: &Findings) {
        let r = &mut self.report;
        r.leaked_extents += found.leaked.len() as u64;
        r.double_owned += found.double_owned.len() as u64;
        r.unreleased_rights += found.unreleased.len() as u64;
        r.hung_waiters += found.hung.len() as u64;
        r.failed_takeovers += found.leaderless.len() as u64;
        for finding in found.all() {
            if self.seen.insert(finding.clone()) {
                self.note(finding);
            }
        }
    }
}
