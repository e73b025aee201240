//! Kills and stops processes, at random and at marks, and cuts and holds wires.

use super::super::super::board::{DIE, Entry};
use super::{Coordinator, Trouble};
use crate::marks::MARKS;
use rustix::process::Signal;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Kinds of disturbances.
pub(super) const KINDS: usize = 7;
/// Milliseconds between two of each kind, on average.
const PAUSES: [usize; KINDS] = [
    700,   // a program is killed
    500,   // a process dies at a mark
    8_000, // a node is killed
    700,   // a program is stopped
    1_000, // a node is stopped
    300,   // a pair of nodes is cut
    4_000, // a program is told to leave
];
/// Nodes that go on undisturbed, at the least.
const SPARE: usize = 1;

impl Coordinator {
    /// Does whatever is due.
    pub(super) fn disturb(&mut self) {
        for (kind, pause) in PAUSES.into_iter().enumerate() {
            if Instant::now() < self.due[kind] {
                continue;
            }
            let pause = self.random.below(2 * pause);
            self.due[kind] = Instant::now() + millis(pause);
            match kind {
                0 => self.kill_some(false),
                1 => self.arm_some(),
                2 => self.kill_some(true),
                3 => self.stop_some(false),
                4 => self.stop_some(true),
                5 => self.cut_some(),
                _ => self.dismiss_some(),
            }
        }
    }

    /// A place whose process is at work: a node's, or a program's.
    fn someone(&mut self, is_node: bool) -> Option<usize> {
        let is_free = |at: &usize| {
            let place = &self.places[*at];
            let is_there = place.child.is_some() && !place.killed && !place.told;
            let is_calm = place.stopped.is_none() && place.armed.is_none();
            let has_begun = is_node || place.has_begun;
            self.shape.is_node(*at) == is_node && is_there && is_calm && has_begun
        };
        let free: Vec<usize> = (0..self.places.len()).filter(is_free).collect();
        if is_node && free.len() <= SPARE {
            return None;
        }
        free.get(self.random.below(free.len())).copied()
    }

    pub(super) fn kill(&mut self, at: usize) {
        if self.places[at].killed || self.places[at].child.is_none() {
            return;
        }
        self.count_kill(at);
        self.write(&format!("place {at} is killed"));
        let place = &mut self.places[at];
        place.killed = true;
        if let Some(child) = &mut place.child {
            // Cannot fail: the child was not waited for.
            let _ = child.kill();
        }
    }

    fn kill_some(&mut self, is_node: bool) {
        if let Some(at) = self.someone(is_node) {
            self.kill(at);
        }
    }

    /// A process dies at a mark that such processes pass: the one at which the fewest have died.
    fn arm_some(&mut self) {
        let is_node = self.random.once_in(12);
        let Some(at) = self.someone(is_node) else {
            return;
        };
        let alike = |place: &usize| self.shape.is_node(*place) == is_node;
        let alike: Vec<usize> = (0..self.places.len()).filter(alike).collect();
        let passes = |mark: usize| -> u64 {
            let hits = alike.iter().map(|place| self.board.hits(*place, mark));
            hits.map(|hits| hits.load(Ordering::Relaxed)).sum()
        };
        let random = &mut self.random;
        let passed = (0..MARKS.len()).filter(|mark| passes(*mark) > 0);
        let least = passed
            .map(|mark| (self.deaths[mark], random.next(), mark))
            .min();
        let Some((_, _, mark)) = least else { return };
        // Not always in the first operation, where it is passed often.
        let most = if passes(mark) > 10_000 { 40 } else { 2 };
        let times = 1 + u64::try_from(self.random.below(most)).unwrap_or(0);
        self.board.arm(at, &[(mark, times)], DIE);
        self.places[at].armed = Some(Instant::now());
    }

    fn dismiss_some(&mut self) {
        if let Some(at) = self.someone(false) {
            self.places[at].told = true;
            self.board.set(at, Entry::Order, 2);
        }
    }

    fn stop_some(&mut self, is_node: bool) {
        let Some(at) = self.someone(is_node) else {
            return;
        };
        // Some so long that a node is given up.
        let time = match self.random.below(25) {
            0 => 6_000 + self.random.below(2_500),
            1..8 => 1_000 + self.random.below(1_500),
            _ => 20 + self.random.below(600),
        };
        let role = self.role(at);
        self.signal(at, Signal::STOP);
        self.places[at].stopped = Some(Instant::now() + millis(time));
        self.report.stops += 1;
        *self.report.stops_by_role.entry(role).or_default() += 1;
        self.write(&format!("place {at} is stopped for {time} ms"));
    }

    /// Lets a stopped process go on, once it is time or at once.
    pub(super) fn resume(&mut self, at: usize, at_once: bool) {
        let until = self.places[at].stopped;
        if until.is_some_and(|until| at_once || Instant::now() >= until) {
            self.signal(at, Signal::CONT);
            self.places[at].stopped = None;
            self.places[at].beat = None;
            self.write(&format!("place {at} goes on"));
        }
    }

    // Wires.

    /// Something happens to the wires between two nodes: `ways` are from the smaller one, and back.
    fn cut_some(&mut self) {
        let first = self.random.below(self.shape.nodes);
        let second = (first + 1 + self.random.below(self.shape.nodes - 1)) % self.shape.nodes;
        let pair = (first.min(second), first.max(second));
        if self.trouble.contains_key(&pair) || !self.is_wired(pair) {
            return;
        }
        let one_way = match self.random.below(2) {
            0 => [true, false],
            _ => [false, true],
        };
        let brief = 10 + self.random.below(300);
        let long = 300 + self.random.below(1_800);
        let (time, ends) = match self.random.below(20) {
            // At once, and it may come back at once.
            0..7 => {
                self.cut(pair, false, "at once");
                return;
            }
            // Somewhere in what is being written.
            7..12 => {
                let fuse = match self.random.below(3) {
                    0 => 1 + self.random.below(600),
                    _ => 1 + self.random.below(200_000),
                };
                let fuse = u64::try_from(fuse).unwrap_or(1);
                self.wires_of(pair).for_each(|wire| wire.light(fuse));
                return;
            }
            // For a while.
            12..14 => {
                self.cut(pair, true, "for a while");
                (long, None)
            }
            14..16 => {
                self.hold(pair, one_way);
                (brief, Some("after one direction was held"))
            }
            16..18 => {
                self.hold(pair, [true; 2]);
                (brief, Some("after both directions were held"))
            }
            both => {
                self.report.holds += 1;
                self.hold(pair, if both == 18 { one_way } else { [true; 2] });
                (long, None)
            }
        };
        let until = Instant::now() + millis(time);
        self.trouble.insert(pair, Trouble { until, ends });
    }

    fn wires_of(&self, pair: (usize, usize)) -> impl Iterator<Item = &super::Wire> {
        let is_its = move |wire: &&std::sync::Arc<super::Wire>| {
            wire.ends == pair || wire.ends == (pair.1, pair.0)
        };
        self.wires.iter().filter(is_its).map(|wire| &**wire)
    }

    fn is_wired(&self, pair: (usize, usize)) -> bool {
        self.wires_of(pair).any(super::Wire::is_open)
    }

    fn cut(&mut self, pair: (usize, usize), refuses: bool, way: &'static str) {
        if self.is_wired(pair) {
            self.count_cut(pair, way);
        }
        self.wires_of(pair).for_each(|wire| wire.cut(refuses));
    }

    fn count_cut(&mut self, pair: (usize, usize), way: &'static str) {
        self.report.cuts += 1;
        *self.report.cuts_by_way.entry(way).or_default() += 1;
        self.write(&format!("nodes {pair:?} are cut {way}"));
    }

    fn hold(&mut self, pair: (usize, usize), ways: [bool; 2]) {
        self.write(&format!("nodes {pair:?} are held {ways:?}"));
        for wire in self.wires_of(pair) {
            let [there, back] = ways;
            wire.hold(match wire.ends == pair {
                true => [there, back],
                false => [back, there],
            });
        }
    }

    /// Ends the troubles whose time is over, and counts wires that have cut themselves.
    pub(super) fn mind_wires(&mut self) {
        for wire in self.wires.clone() {
            let (a, b) = wire.ends;
            for _ in 0..wire.own_cuts() {
                self.count_cut((a.min(b), a.max(b)), "in what was being written");
            }
        }
        let over = |trouble: &Trouble| Instant::now() >= trouble.until;
        let over = self.trouble.iter().filter(|(_, trouble)| over(trouble));
        let over: Vec<_> = over.map(|(pair, trouble)| (*pair, *trouble)).collect();
        for (pair, trouble) in over {
            self.trouble.remove(&pair);
            if let Some(way) = trouble.ends {
                self.cut(pair, false, way);
            }
            self.wires_of(pair).for_each(super::Wire::heal);
        }
    }

    /// Nothing is armed, stopped or held any more.
    pub(super) fn heal(&mut self) {
        for at in 0..self.places.len() {
            self.board.disarm(at);
            self.places[at].armed = None;
            self.resume(at, true);
        }
        self.trouble.clear();
        for wire in &self.wires {
            wire.heal();
        }
        self.write("all heals");
    }
}

fn millis(count: usize) -> Duration {
    Duration::from_millis(u64::try_from(count).unwrap_or(0))
}
