//! Rounds: one program of each other node presses on the port of one program, which receives slowly.
//! All flows wait for room there, and must be served in turn.
//!
//! The port's queue has two slots, so at most two flows are served at a time, however late the node
//! looks at it: of three flows one would wait for ever if another came before it each time.

use super::super::ledger::{Count, Kind, Word};
use super::{Coordinator, Found};
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Nodes of a run with rounds, at the least: more flows than slots.
const NODES: usize = 4;
/// A round is held before one audit in so many; before each where it is to find something.
const ONE_IN: u64 = 4;
/// How long the flows have to press, and what comes then to arrive. A round that is slower is none.
const WITHIN: Duration = Duration::from_secs(20);
/// Messages that a flow must have ready when the counting begins: it is not short of them later.
const READY: u64 = 24;
/// Messages that arrive, of all flows together, while it is counted.
const COUNTED: u64 = 120;
/// Of these a flow gets so many, at the least. Each would have a third of them or, of seven, a seventh.
const LEAST: u64 = 6;
/// A flow must go short in so many counts, one after another: a node may have been asleep in one.
const COUNTS: usize = 2;

impl Coordinator {
    /// Holds a round, if it is time for one; nodes are linked, and nothing else is sent.
    pub(super) fn hold_a_round(&mut self) -> io::Result<()> {
        let is_time = match self.plan.sabotage.as_deref() {
            None => self.pauses % ONE_IN == 1,
            Some(rule) => rule == "fair-queue",
        };
        if self.shape.nodes < NODES || !is_time {
            return Ok(());
        }
        let node = self.random.below(self.shape.nodes);
        let programs = self.shape.programs_of(node);
        let target = programs.start + self.random.below(programs.len());
        for node in 0..self.shape.nodes {
            self.ledger.arrived(target, node).store(0, Ordering::SeqCst);
        }
        let round = self.pauses;
        let word = |word| self.ledger.word(word);
        word(Word::Target).store(target as u64, Ordering::SeqCst);
        word(Word::Round).store(round, Ordering::SeqCst);
        self.write(&format!("round {round}: all press on place {target}"));
        let counted = self.count_turns(round, target);
        self.ledger.word(Word::Round).store(0, Ordering::SeqCst);
        if counted? {
            self.report.rounds += 1;
        }
        Ok(())
    }

    /// Counts who gets how many turns; whether it came to that.
    fn count_turns(&mut self, round: u64, target: usize) -> io::Result<bool> {
        let is_other = |node: &usize| *node != self.shape.node_of(target);
        let others: Vec<usize> = (0..self.shape.nodes).filter(is_other).collect();
        let ready = |c: &Self| {
            let all =
                |node: &usize| c.presses(round, target, *node) && c.backlog(target, *node) >= READY;
            others.iter().all(all)
        };
        if !self.wait_for(ready)? {
            return Ok(false);
        }
        let mut short: Vec<usize> = others.clone();
        for _ in 0..COUNTS {
            let arrived = |c: &Self| -> Vec<u64> {
                let of = |node: &usize| c.ledger.arrived(target, *node).load(Ordering::SeqCst);
                others.iter().map(of).collect()
            };
            let before = arrived(self);
            let backlog: Vec<u64> = others.iter().map(|it| self.backlog(target, *it)).collect();
            let enough =
                |c: &Self| arrived(c).iter().sum::<u64>() >= before.iter().sum::<u64>() + COUNTED;
            if !self.wait_for(enough)? {
                return Ok(false);
            }
            let after = arrived(self);
            let turns: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
            self.write(&format!(
                "round {round}: nodes {others:?} had {turns:?} turns of {backlog:?}"
            ));
            let goes_short = |node: &usize| {
                let at = others.iter().position(|other| other == node).unwrap_or(0);
                turns[at] < LEAST && backlog[at] >= READY
            };
            short.retain(goes_short);
        }
        for node in short {
            self.found(
                Found::Unfair,
                &format!("node {node} waits in round {round}, and place {target} serves others"),
            );
        }
        Ok(true)
    }

    fn wait_for(&mut self, is: impl Fn(&Self) -> bool) -> io::Result<bool> {
        let end = Instant::now() + WITHIN;
        while !is(self) {
            self.look_around()?;
            if Instant::now() > end {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(true)
    }

    /// The program of a node that presses on the target.
    fn presser(&self, node: usize) -> usize {
        self.shape.programs_of(node).start
    }

    fn presses(&self, round: u64, target: usize, node: usize) -> bool {
        let presser = self.presser(node);
        self.shape.presses(presser, target) && self.ledger.get(presser, Count::Presses) == round
    }

    /// Messages that a node's presser has sent, and that have not come.
    fn backlog(&self, target: usize, node: usize) -> u64 {
        let presser = self.presser(node);
        let process = self.ledger.get(presser, Count::Process);
        let newest = self.ledger.word(Word::LastStream).load(Ordering::SeqCst);
        let streams = (self.last_stream + 1..=newest).filter_map(|id| self.ledger.stream(id));
        let its = streams.filter(|it| {
            let is_its = it.from == presser && it.process == process && it.to == target;
            is_its && it.kind == Kind::Short
        });
        its.map(|stream| stream.sent - stream.received.min(stream.sent))
            .sum()
    }
}
