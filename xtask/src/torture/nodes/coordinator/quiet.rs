//! Has all heal, and audits: what was sent has arrived, and nothing is left over.

use super::super::super::board::{Entry, Word};
use super::super::ledger::{Count, End, Kind, Stream};
use super::setting::is_well;
use super::{Coordinator, Excuse, Found};
use crate::audit::{self, Image};
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long nodes have to be linked again, and programs to have no request open.
const HEALED_WITHIN: Duration = Duration::from_secs(75);
/// Between two times that it is written down what they lack meanwhile.
const TOLD: Duration = Duration::from_secs(10);
/// How long what is lacking or left over must last to count: something may be about to be done about
/// it, on a machine that is busy with other things.
const LASTING: Duration = Duration::from_secs(30);
/// The same with a rule switched off, where findings are wanted.
const LASTING_SABOTAGED: Duration = Duration::from_secs(4);
/// Between two looks at what lasts.
const LOOK: Duration = Duration::from_millis(20);

/// What is not as it must be in the end: a kind, and words.
type Lack = (Found, String);

impl Coordinator {
    /// All holds still, and is looked at.
    pub(super) fn pause_and_audit(&mut self) -> io::Result<()> {
        self.heal();
        self.pauses += 1;
        let pause = self.pauses;
        self.board.word(Word::Pause).store(pause, Ordering::SeqCst);
        self.wait_until_healed(pause)?;
        self.hold_a_round()?;
        self.conclude(pause)?;
        self.board.word(Word::Pause).store(0, Ordering::SeqCst);
        for place in &mut self.places {
            place.beat = None;
        }
        self.report.audits += 1;
        Ok(())
    }

    fn wait_until_healed(&mut self, pause: u64) -> io::Result<()> {
        let end = Instant::now() + HEALED_WITHIN;
        let mut told = Instant::now();
        loop {
            self.look_around()?;
            let lacks = self.lacking(pause);
            if lacks.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                for what in lacks {
                    self.found(Found::Hung, &what);
                }
                return Ok(());
            }
            if told.elapsed() > TOLD {
                told = Instant::now();
                for what in lacks {
                    self.write(&format!("still {what}"));
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    /// What is not as it was before all disturbances.
    fn lacking(&self, pause: u64) -> Vec<String> {
        let mut lacks = Vec::new();
        let peers = self.shape.nodes - 1;
        for node in 0..self.shape.nodes {
            let status = self.status(node);
            if !is_well(status.as_ref(), peers) {
                let peers = status.map(|status| status.peers);
                lacks.push(format!("node {node} is not linked: {peers:?}"));
            }
        }
        for at in self.shape.nodes..self.places.len() {
            let is_there = self.places[at].child.is_some();
            if !is_there || self.board.get(at, Entry::Paused) != pause {
                lacks.push(format!("program {at} has requests open, or is not there"));
            }
        }
        lacks
    }

    /// The audit proper: what it finds must last to count.
    fn conclude(&mut self, pause: u64) -> io::Result<()> {
        let lasting = match self.plan.sabotage {
            Some(_) => LASTING_SABOTAGED,
            None => LASTING,
        };
        let end = Instant::now() + lasting;
        let mut news = self.ledger.news(&mut self.last_stream);
        self.streams.append(&mut news);
        loop {
            self.look_around()?;
            let mut lacks = self.missing();
            if lacks.is_empty() {
                lacks = self.left_over()?;
            }
            lacks.retain(|(_, what)| !self.seen.contains(what));
            if lacks.is_empty() {
                break;
            }
            if Instant::now() > end {
                // Where what is missing lies, if it is not lost.
                let left = self.left_over()?;
                for (_, what) in left.iter().filter(|it| !lacks.contains(it)) {
                    self.write(&format!("besides: {what}"));
                }
                for (kind, what) in lacks {
                    self.found(kind, &format!("{what} (audit {pause})"));
                    self.seen.insert(what);
                }
                break;
            }
            std::thread::sleep(LOOK);
        }
        self.settle_streams();
        Ok(())
    }

    // What was sent.

    /// Whether something has happened since it began that may lose what was sent, or kill the right.
    fn is_excused(&self, stream: &Stream) -> bool {
        let [from, to] = [stream.from, stream.to].map(|at| self.shape.node_of(at));
        let is_reason = |excuse: Excuse| match excuse {
            // Its port may have been anywhere.
            _ if stream.kind == Kind::Roams => true,
            Excuse::Ended(at) => at == stream.to || (from != to && (at == from || at == to)),
            Excuse::Over(a, b) => (a, b) == (from, to) || (b, a) == (from, to),
        };
        let since = self.excuses.iter().rev();
        since
            .take_while(|(at, _)| *at >= stream.opened)
            .any(|(_, excuse)| is_reason(*excuse))
    }

    /// Streams of which not all has come that must.
    fn missing(&self) -> Vec<Lack> {
        let mut lacks = Vec::new();
        for id in &self.streams {
            let Some(stream) = self.ledger.stream(*id) else {
                continue;
            };
            if self.is_excused(&stream) {
                continue;
            }
            // One that roams may have been dead when the right came.
            if stream.end == End::Dead && stream.kind != Kind::Roams {
                let what = format!("a right is dead, and nothing that it leads over: {stream:?}");
                lacks.push((Found::Lost, what));
            }
            if stream.kind != Kind::Requests && stream.received < stream.sent {
                let what = format!("what was sent has not come: {stream:?}");
                lacks.push((Found::Lost, what));
            }
        }
        lacks
    }

    /// Streams that are over need no further look, and neither do excuses for those.
    fn settle_streams(&mut self) {
        let mut open = Vec::new();
        for id in std::mem::take(&mut self.streams) {
            let Some(stream) = self.ledger.stream(id) else {
                continue;
            };
            let is_excused = self.is_excused(&stream);
            let its = self.ledger.get(stream.from, Count::Process);
            let goes_on = stream.end == End::Open && its == stream.process;
            match (goes_on && !is_excused, is_excused) {
                (true, _) => open.push(id),
                (false, true) => self.report.excused += 1,
                (false, false) => self.report.complete += 1,
            }
        }
        let oldest = open.iter().filter_map(|id| self.ledger.stream(*id));
        let oldest = oldest.map(|stream| stream.opened).min();
        let oldest = oldest.unwrap_or(u64::MAX);
        // One that begins just now is younger than the pause.
        let before = super::now().saturating_sub(60_000_000_000);
        self.excuses
            .retain(|(at, _)| *at >= oldest || *at >= before);
        self.streams = open;
    }

    // What is left.

    /// What should have been given back, or taken, by now.
    fn left_over(&self) -> io::Result<Vec<Lack>> {
        let mut lacks = Vec::new();
        for node in 0..self.shape.nodes {
            self.left_at(node, &mut lacks);
            self.left_in_domain(node, &mut lacks)?;
        }
        for at in self.shape.nodes..self.places.len() {
            let silent = self.ledger.get(at, Count::Silent);
            if silent > 0 {
                let what = format!("program {at} has {silent} rights whose nodes are silent");
                lacks.push((Found::Hung, what));
            }
        }
        Ok(lacks)
    }

    /// What a node still has to do.
    fn left_at(&self, node: usize, lacks: &mut Vec<Lack>) {
        let Some(status) = self.status(node) else {
            let what = format!("node {node} does not answer");
            return lacks.push((Found::Hung, what));
        };
        let mut lack = |what: String| lacks.push((Found::LeftOver, format!("node {node}: {what}")));
        // A right may be given to a node that is given up just then.
        if status.left_behind > status.rights.given {
            lack(format!("{} messages could not travel", status.left_behind));
        }
        for peer in status.peers.iter().filter(|peer| peer.in_flight_bytes > 0) {
            let (bytes, name) = (peer.in_flight_bytes, &peer.name);
            lack(format!("{bytes} bytes to {name:?} are in flight"));
        }
        for span in &status.spans {
            let report = &span.report;
            if report.asking + report.serving > 0 {
                let (asking, serving) = (report.asking, report.serving);
                lack(format!("{asking} requests are open, {serving} are served"));
            }
            let proxies = report.proxies.iter();
            for proxy in proxies.filter(|it| it.depth as u64 + it.unacknowledged > 0 || it.waits) {
                lack(format!("a proxy holds messages: {proxy:?}"));
            }
            for lent in report.lent.iter().filter(|it| !it.waiting.is_empty()) {
                lack(format!("flows wait for room: {lent:?}"));
            }
        }
    }

    /// Extents that are in use although no program has one, and whatever else an audit finds.
    fn left_in_domain(&self, node: usize, lacks: &mut Vec<Lack>) -> io::Result<()> {
        let domain = self.domain(node);
        let pid = self.places[node].child.as_ref().map(|child| child.id());
        // Fails when the node has ended just now.
        let image = pid.and_then(|pid| Image::of_process(pid, &domain).ok());
        let Some(image) = image.flatten() else {
            let what = format!("node {node} is not in its domain");
            lacks.push((Found::Hung, what));
            return Ok(());
        };
        if !audit::is_settled(&image)? {
            let what = format!("in the domain of node {node} somebody is not reclaimed");
            lacks.push((Found::LeftOver, what));
            return Ok(());
        }
        let found = audit::audit(&image, &[])?;
        let (_, held, sent) = found.extents;
        if held + sent > 0 {
            let what = format!("domain {node}: {held} extents are held, {sent} are in messages");
            lacks.push((Found::LeftOver, what));
        }
        let found = found.all();
        lacks.extend(found.map(|what| (Found::LeftOver, format!("domain {node}: {what}"))));
        Ok(())
    }
}
