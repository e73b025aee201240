//! Stops workers at marks, one after another and several at once; all others must go on within a
//! second, but for what [`WAITS`] lists.

use super::super::Doing;
use super::super::board::Entry;
use super::Coordinator;
use crate::audit::process_state;
use crate::marks::{MARKS, Passer, passer};
use std::time::{Duration, Instant};

/// How long a worker is stopped.
pub(super) const STOPPED: Duration = Duration::from_secs(2);
/// How long a worker may get nowhere while others are stopped.
const HELD_UP: Duration = Duration::from_secs(1);
/// How long it may get nowhere all in all, where that is listed in [`WAITS`]: somewhat longer than
/// a leaving member waits for its own threads.
const HELD_UP_AT_MOST: Duration = Duration::from_secs(30);
/// Time that counts for one look at the most: where the coordinator waits for a processor,
/// workers that need each other do too.
const LOOK: Duration = Duration::from_millis(8);

/// Which workers are stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Anybody,
    /// The host, or a member that is about to become it.
    Host,
    /// An importer in the middle of a call by which the kernel writes to what it has imported.
    Writer,
}

/// Lists the waits that last until a stopped worker goes on, and why.
struct Wait {
    who: Who,
    what: &'static [Doing],
    why: &'static str,
}

/// All that waits. A worker that gets nowhere for a second, and does nothing that is listed
/// here for a stopped worker, is a finding; and so is one that does, for much longer.
static WAITS: [Wait; 5] = [
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
    Wait {
        who: Who::Anybody,
        what: &[Doing::Expecting],
        why: "what a client has sent before it left a bridge its own thread carries, which may be stopped",
    },
    Wait {
        who: Who::Writer,
        what: &[Doing::Unexporting],
        why: "memory is not given back while the kernel may write to it: the end of an export waits, and names the importer after five seconds",
    },
];

/// What is known of a worker beside others that are stopped.
#[derive(Default)]
pub(super) struct Beside {
    beats: u64,
    doing: Option<Doing>,
    looked: Option<Instant>,
    /// How long it has been asleep since it went on, while somebody was stopped for whom it need not
    /// wait.
    asleep: Duration,
    /// The same, for what is listed.
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

    /// Looks whether every worker goes on that is not stopped.
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
        let known = self.known_wait(doing, stopped);
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
        // Who waited for one thing, and now waits for another, has gone on in between.
        let is_where_it_was = beside.beats == beats && beside.doing == Some(doing);
        let Some(child) = is_there.filter(|_| !idle && is_where_it_was) else {
            *beside = Beside {
                beats,
                doing: Some(doing),
                looked: Some(now),
                ..Beside::default()
            };
            return;
        };
        if stopped.is_empty() {
            beside.asleep = Duration::ZERO;
            return;
        }
        // A worker that runs, or would if it had a processor, waits for no other worker.
        let pid = child.id();
        if !matches!(process_state(pid), Some('S' | 'D')) || is_in_the_kernels_work(pid) {
            return;
        }
        let since = since.min(LOOK);
        if let Some(wait) = known.filter(|_| beside.waited < HELD_UP_AT_MOST) {
            let before = beside.waited;
            beside.waited += since;
            if before < HELD_UP && beside.waited >= HELD_UP {
                *self.report.waits.entry(wait.why).or_default() += 1;
            }
            return;
        }
        beside.asleep += since;
        if beside.asleep >= HELD_UP && !beside.counted {
            self.held_up(worker, doing, stopped, &threads(pid));
        }
    }

    /// What is listed of those who do this while these are stopped.
    fn known_wait(
        &self,
        doing: Doing,
        stopped: &[(usize, Option<usize>)],
    ) -> Option<&'static Wait> {
        let who = self.who_is_stopped(stopped);
        let is_known = |wait: &&Wait| who.contains(&wait.who) && wait.what.contains(&doing);
        WAITS.iter().find(is_known)
    }

    /// Counts a worker that gets nowhere as a finding.
    fn held_up(
        &mut self,
        worker: usize,
        doing: Doing,
        stopped: &[(usize, Option<usize>)],
        threads: &str,
    ) {
        let beside = &mut self.places[worker].beside;
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
        let writes = |mark: usize| MARKS[mark] == "update.kernel";
        let is_host = |(at, mark): &(usize, Option<usize>)| {
            self.host == Some(*at) || mark.is_some_and(becomes)
        };
        let hosts = stopped.iter().any(is_host);
        let writers = stopped.iter().any(|(_, mark)| mark.is_some_and(writes));
        let who = [
            (Who::Anybody, true),
            (Who::Host, hosts),
            (Who::Writer, writers),
        ];
        who.into_iter()
            .filter_map(|(who, is)| is.then_some(who))
            .collect()
    }
}

/// Whether it waits for the kernel's own work, and so for no process, which may take seconds where
/// processors are busy. Before the kernel makes a huge page, each processor empties its lists of pages,
/// for one process of the machine after another. Before a process may have barriers for all its
/// threads, each processor has to have passed a point at which it runs no code of the kernel's.
fn is_in_the_kernels_work(pid: u32) -> bool {
    const WORKS: [&str; 4] = [
        "lru_add_drain_all",
        "flush_work",
        "synchronize_rcu",
        "wait_rcu_gp",
    ];
    let at = std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    WORKS.iter().any(|work| at.contains(work))
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
