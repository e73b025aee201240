//! Stops workers at marks, one after another and several at once; all others must go on within a
//! second, but for what [`WAITS`] lists.

use super::super::Doing;
use super::super::board::Entry;
use super::Coordinator;
use crate::audit::process_state;
use crate::marks::{MARKS, Passer, passer};
use std::time::{Duration, Instant};

/// How long somebody is stopped.
pub(super) const STOPPED: Duration = Duration::from_secs(2);
/// How long a worker may get nowhere while others are stopped.
const HELD_UP: Duration = Duration::from_secs(1);
/// How long it may get nowhere all in all, where that is listed in [`WAITS`]: somewhat longer than
/// a leaving member waits for its own threads.
const HELD_UP_AT_MOST: Duration = Duration::from_secs(30);
/// Time that counts for one look at the most: where the coordinator waits for a processor,
/// workers that need each other do too.
const LOOK: Duration = Duration::from_millis(8);

/// Who is stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Anybody,
    /// The host, or a member that is about to become it.
    Host,
}

/// What has to wait until somebody goes on who is stopped, and why.
struct Wait {
    who: Who,
    what: &'static [Doing],
    why: &'static str,
}

/// All that waits. A worker that gets nowhere for a second, and does nothing that is listed
/// here for somebody who is stopped, is a finding; and so is one that does, for much longer.
static WAITS: [Wait; 3] = [
    Wait {
        who: Who::Host,
        what: &[Doing::Joining, Doing::Leaving],
        why: "the host is asked to admit, and another member after a second; it returns what a member held that leaves",
    },
    Wait {
        who: Who::Host,
        what: &[Doing::Binding],
        why: "a dead member's names are taken until the host has returned them",
    },
    Wait {
        who: Who::Anybody,
        what: &[Doing::Leaving],
        why: "threads of who leaves end first, and one may have something for who is stopped",
    },
];

/// What is known of a worker beside others that are stopped.
#[derive(Default)]
pub(super) struct Beside {
    beats: u64,
    /// How long it has been asleep since, while somebody was stopped.
    asleep: Duration,
    looked: Option<Instant>,
    /// How long it has waited since for what is listed.
    waited: Duration,
    counted: bool,
}

impl Coordinator {
    pub(super) fn is_anybody_stopped(&self) -> bool {
        self.places.iter().any(|place| place.stopped.is_some())
    }

    /// Lets one more worker come to a mark and stop there, while enough others are left.
    pub(super) fn stop_at_a_mark(&mut self) -> std::io::Result<()> {
        let is_meant = |place: &super::Place| place.stopped.is_some() || place.armed.is_some();
        let meant = self.places.iter().filter(|place| is_meant(place)).count();
        // Most are armed for marks that they do not come to.
        if meant >= self.places.len() * 3 / 5 {
            return Ok(());
        }
        self.hit_a_mark()
    }

    /// Looks whether everybody goes on who is not stopped.
    pub(super) fn look_beside_the_stopped(&mut self) {
        let all = self.places.iter().enumerate();
        let stopped = all.filter_map(|(at, place)| Some((at, place.stopped?.1)));
        let stopped: Vec<(usize, Option<usize>)> = stopped.collect();
        let now = Instant::now();
        for worker in 0..self.places.len() {
            self.look_beside(worker, &stopped, now);
        }
    }

    fn look_beside(&mut self, worker: usize, stopped: &[(usize, Option<usize>)], now: Instant) {
        let beats = self.board.get(worker, Entry::Beat);
        let doing = Doing::of(self.board.get(worker, Entry::Doing));
        let place = &mut self.places[worker];
        let beside = &mut place.beside;
        let since = beside
            .looked
            .replace(now)
            .map_or(LOOK, |before| now - before);
        let is_there = place
            .child
            .as_ref()
            .filter(|_| !place.killed && place.stopped.is_none());
        let idle = doing.is_asleep() || doing == Doing::Pausing;
        let Some(child) = is_there.filter(|_| !idle && beside.beats == beats) else {
            *beside = Beside {
                beats,
                looked: Some(now),
                ..Beside::default()
            };
            return;
        };
        if stopped.is_empty() {
            beside.asleep = Duration::ZERO;
            return;
        }
        // Who runs, or would if there were a processor for it, is held up by nobody.
        if !matches!(process_state(child.id()), Some('S' | 'D')) {
            return;
        }
        beside.asleep += since.min(LOOK);
        if beside.asleep < HELD_UP || beside.counted {
            return;
        }
        let threads = threads(child.id());
        self.held_up(worker, doing, stopped, &threads);
    }

    /// Counts a worker that gets nowhere: as one that has to wait, or as a finding.
    fn held_up(
        &mut self,
        worker: usize,
        doing: Doing,
        stopped: &[(usize, Option<usize>)],
        threads: &str,
    ) {
        let who = self.who_is_stopped(stopped);
        let is_known = |wait: &&Wait| who.contains(&wait.who) && wait.what.contains(&doing);
        let known = WAITS.iter().find(is_known);
        let beside = &mut self.places[worker].beside;
        if let Some(wait) = known.filter(|_| beside.waited < HELD_UP_AT_MOST) {
            if beside.waited.is_zero() {
                *self.report.waits.entry(wait.why).or_default() += 1;
            }
            beside.waited += std::mem::take(&mut beside.asleep);
            return;
        }
        beside.counted = true;
        let waited = (beside.waited + beside.asleep).as_secs();
        let stopped = stopped.iter().map(|(at, mark)| {
            let host = if self.host == Some(*at) {
                ", the host,"
            } else {
                ""
            };
            let mark = mark.map_or("no mark", |mark| MARKS[mark]);
            format!("worker {at}{host} at {mark}")
        });
        let stopped = stopped.collect::<Vec<_>>().join(", ");
        self.report.hung_waiters += 1;
        self.note(format!(
            "worker {worker} gets nowhere for {waited} s while {doing:?}, and stopped is {stopped}; its threads: {threads}"
        ));
    }
    /// In which roles they are stopped.
    fn who_is_stopped(&self, stopped: &[(usize, Option<usize>)]) -> Vec<Who> {
        let becomes = |mark: usize| {
            let passer = passer(MARKS[mark]);
            matches!(
                passer,
                Passer::Host | Passer::Successor | Passer::LeavingHost
            )
        };
        let mut all = stopped.iter();
        let hosts = all.any(|(at, mark)| self.host == Some(*at) || mark.is_some_and(becomes));
        let who = [(Who::Anybody, true), (Who::Host, hosts)];
        who.into_iter()
            .filter_map(|(who, is)| is.then_some(who))
            .collect()
    }
}

/// Where a process's threads are in the kernel.
pub(super) fn threads(pid: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let one = |task: std::fs::DirEntry| {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let (name, at, call) = (read("comm"), read("wchan"), read("syscall"));
        let call = call.split(' ').next().unwrap_or("").to_owned();
        format!("{} in {} (call {})", name.trim(), at.trim(), call.trim())
    };
    let all = tasks.into_iter().flatten().flatten().map(one);
    all.collect::<Vec<_>>().join(", ")
}
