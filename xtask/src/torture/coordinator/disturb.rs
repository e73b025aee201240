//! The coordinator kills, stops and dismisses workers, at marks and at random.

use super::super::Doing;
use super::super::board::{DIE, Entry, STOP};
use super::stops::STOPPED;
use super::{CREATORS, Coordinator, LONG_BOUND, SPARE, STOPS, bait, signal_to};
use crate::marks::{MARKS, Passer, passer};
use rustix::process::Signal;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Stands for the mark plus one where a worker is stopped at none.
const AT_RANDOM: u64 = MARKS.len() as u64 + 1;

impl Coordinator {
    /// Whether it is at work, and nothing is to happen to it.
    fn is_free(&self, worker: usize) -> bool {
        let place = &self.places[worker];
        place.child.is_some()
            && !place.killed
            && place.stopped.is_none()
            && self.board.get(worker, Entry::Space) != 0
            && !self.board.is_armed(worker)
            // Who has come to its mark, or was dismissed, is there for a while on a busy machine.
            && self.board.get(worker, Entry::StoppedAt) == 0
            && self.died_at(worker).is_none()
            && self.board.get(worker, Entry::Order) == 0
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

    pub(super) fn kill(&mut self, worker: usize) {
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

    /// Something is to happen to a worker at the first of these marks.
    fn arm(&mut self, worker: usize, marks: &[usize], action: u64) {
        let times: Vec<(usize, u64)> = marks.iter().map(|m| (*m, self.times(*m))).collect();
        self.board.arm(worker, &times, action);
        self.places[worker].armed = Some(Instant::now());
    }

    /// How often a mark is passed before something happens there: not always in the first
    /// operation, where it is passed often.
    fn times(&mut self, mark: usize) -> u64 {
        let passes: u64 = (0..self.places.len())
            .map(|w| self.board.hits(w, mark).load(Ordering::Relaxed))
            .sum();
        let most = match passes {
            0..1000 => 1,
            1000..100_000 => 8,
            _ => 60,
        };
        1 + u64::try_from(self.random.below(most)).unwrap_or(0)
    }

    /// Something is to happen to a worker as soon as it comes to a mark.
    pub(super) fn arm_at_once(&mut self, worker: usize, mark: usize, action: u64) {
        self.board.arm(worker, &[(mark, 1)], action);
        self.places[worker].armed = Some(Instant::now());
    }

    pub(super) fn disturb(&mut self) -> std::io::Result<()> {
        if self.free().len() <= SPARE || !self.random.once_in(8) {
            return Ok(());
        }
        if self.plan.stop {
            return self.stop_at_a_mark();
        }
        if !self.plan.marks.is_empty() {
            return self.hit_a_mark();
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
                        self.arm(worker, &[mark], STOP);
                    }
                    self.expect_a_passing();
                }
            }
            4 => {
                if let Some(worker) = self.someone(None) {
                    self.signal(worker, Signal::STOP);
                    self.board.set(worker, Entry::StoppedAt, AT_RANDOM);
                }
            }
            _ => self.hit_a_mark()?,
        }
        Ok(())
    }

    /// What happens to a worker that comes to its mark.
    pub(super) fn action(&self) -> u64 {
        if self.plan.stop { STOP } else { DIE }
    }

    /// Lets a worker come to a mark, and die or stop there.
    pub(super) fn hit_a_mark(&mut self) -> std::io::Result<()> {
        let host_is_free = self.host.is_some_and(|h| self.is_free(h));
        let newcomer_is_free = self.newcomer.is_none();
        // Much is asked of the host, and there is one.
        let host_first = host_is_free && !self.random.once_in(3);
        let wanted = |passer| match passer {
            Passer::Host | Passer::LeavingHost => host_is_free,
            Passer::Any | Passer::Leaver | Passer::Creator if host_first => false,
            Passer::Newcomer => newcomer_is_free,
            Passer::Tests => false,
            _ => true,
        };
        let Some(mark) = self.marked.next(&mut self.random, wanted) else {
            return Ok(());
        };
        let action = self.action();
        match passer(MARKS[mark]) {
            Passer::Any => {
                let marks = self.marked.beside(mark);
                if let Some(worker) = self.someone(None) {
                    self.arm(worker, &marks, action);
                }
                if MARKS[mark] == "receive.passed" {
                    self.arrange_a_passing(mark);
                }
            }
            Passer::Host => {
                let bait = bait(MARKS[mark]).and_then(crate::marks::index);
                let marks = match bait {
                    // Not earlier, at something else.
                    Some(_) => vec![mark],
                    None => self.marked.beside(mark),
                };
                if let Some(host) = self.host {
                    self.arm(host, &marks, action);
                    if let Some(worker) = self.someone(Some(host)) {
                        match bait {
                            Some(bait) => self.arm(worker, &[bait], DIE),
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
                        self.arm(worker, &[mark], action);
                    }
                }
                if let Some(host) = host {
                    self.kill(host);
                }
            }
            Passer::Leaver => {
                if let Some(worker) = self.someone(self.host) {
                    self.arm(worker, &[mark], action);
                    self.board.set(worker, Entry::Order, 1);
                }
            }
            Passer::LeavingHost => {
                if let Some(host) = self.host {
                    self.arm(host, &[mark], action);
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
            Passer::Tests => {}
        }
        Ok(())
    }

    /// Receivers pass only senders that have stopped in the middle. So one stops, as soon
    /// as it sends; and the receiver that passes it dies.
    fn arrange_a_passing(&mut self, passed: usize) {
        if let (Some(worker), Some(claimed)) =
            (self.someone(None), crate::marks::index("send.claimed"))
        {
            self.arm_at_once(worker, claimed, STOP);
        }
        while self.free().len() > SPARE
            && let Some(worker) = self.someone(None)
        {
            self.arm_at_once(worker, passed, self.action());
        }
    }

    /// While a worker is stopped: the others may pass it, which is rare otherwise.
    fn expect_a_passing(&mut self) {
        let Some(passed) = crate::marks::index("receive.passed") else {
            return;
        };
        while self.marked.is_behind(passed)
            && self.free().len() > SPARE
            && let Some(worker) = self.someone(None)
        {
            self.arm_at_once(worker, passed, self.action());
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

    /// The creator of another domain dies or stops at `mark`; a second process must get in, or
    /// does when the creator goes on.
    pub(super) fn create(&mut self, mark: usize) -> std::io::Result<()> {
        let domain = format!("{}-{}", self.domain, self.random.next());
        let [creator, second] = CREATORS;
        self.board.renew(creator);
        self.board.renew(second);
        self.board.arm(creator, &[(mark, 1)], self.action());
        let mut children = [
            self.command(creator, &domain).spawn()?,
            self.command(second, &domain).spawn()?,
        ];
        let end = Instant::now() + LONG_BOUND;
        let mut joined = false;
        let mut stopped = None;
        while !joined && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
            // Others may wait for who is dead or stopped by now.
            self.look_around()?;
            if self.board.get(creator, Entry::StoppedAt) != 0 {
                let since = *stopped.get_or_insert_with(Instant::now);
                if since.elapsed() > STOPPED {
                    self.board.set(creator, Entry::StoppedAt, 0);
                    signal_to(&children[0], Signal::CONT);
                }
            }
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
        let died_at = self.died_at(creator);
        // Nobody wakes them any more, should they have slept.
        self.board.renew(creator);
        self.board.renew(second);
        if stopped.is_some() {
            self.marked.hits[mark] += 1;
            self.stops[mark] += 1;
            self.report.stops += 1;
        }
        if died_at.is_some() {
            self.marked.hits[mark] += 1;
            self.deaths[mark] += 1;
            self.count_kill(creator, Doing::Joining);
        }
        if !joined {
            self.found_failed_takeover(&format!(
                "a second process could not join after the creator died or stopped at {}",
                MARKS[mark]
            ));
        }
        Ok(())
    }
}
