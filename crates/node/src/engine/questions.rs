//! Names that programs ask for: linked peers of the span are asked, again and again until one has the
//! name or the program has stopped to wait.
//!
//! Without a directory that knows names all are asked. With one, those that are said to have the name,
//! and those that announce nothing. That is a hint: if it comes to nothing for a while, all are asked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_abi::node::{Lent, NodeId, ResolveFailure};
use portolan_proto::node::{DomainKey, FlowKey, Unsent};

use portolan::proxy::Query;
use portolan::{Deadline, SendRight};

use super::Engine;
use super::machine::time;
use crate::directory::Holders;

/// How long it waits between two rounds: at first, and at the most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// A node that was not seen for so long after a program has named it is none. The program is told
/// before it has stopped to wait: [`unknown_at`].
const UNKNOWN_AFTER: Duration = Duration::from_secs(1);

/// How long only those are asked that a directory names, before all are; and then the longest time.
const HINTED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));

/// The answer to a question.
enum Found {
    /// A right on the port, which is on this node.
    Port(SendRight, String),
    /// Several nodes have it.
    Ambiguous(Vec<String>),
    /// There is no such node.
    NoSuchNode,
    /// The node that was named is silent since then.
    Unreachable(Instant),
    /// Nobody waits for it any more.
    Nothing,
}

/// A question that is open.
#[derive(Debug)]
struct Question {
    domain: DomainKey,
    query: Query,
    since: Duration,
    /// When the program stops to wait.
    until: Duration,
    /// Peers that were asked in this round, and have not answered.
    asked: BTreeMap<FlowKey, NodeId>,
    /// Rights on the ports that were found: one may be dead by now.
    found: Vec<(NodeId, SendRight)>,
    /// When the next round is.
    again: Duration,
    pause: Duration,
    /// The node that was named is linked.
    knows_node: bool,
    /// When all are asked, whatever a directory says, and how long it is until that is so again.
    all_at: Duration,
    all_pause: Duration,
}

/// All that are open.
#[derive(Debug, Default)]
pub(super) struct Questions {
    all: BTreeMap<u64, Question>,
    by_flow: BTreeMap<FlowKey, u64>,
    last: u64,
    /// Who is said to have which name; `None` if no directory knows.
    holders: Option<Arc<Holders>>,
    /// How often peers were asked.
    asked: u64,
}

impl Questions {
    pub(super) fn wake_at(&self) -> Option<Duration> {
        let at = |question: &Question| {
            if question.asked.is_empty() {
                question.until.min(question.again)
            } else {
                question.until
            }
        };
        self.all.values().map(at).min()
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// How often peers were asked.
    pub(super) fn asked(&self) -> u64 {
        self.asked
    }
}

/// When the node that a question names is none, if it was not seen by then: the question was asked at
/// `since`, and its program waits until `until`.
fn unknown_at(since: Duration, until: Duration) -> Duration {
    let half = until.saturating_sub(since) / 2;
    since.saturating_add(UNKNOWN_AFTER.min(half))
}

impl Engine {
    /// Who is said to have which name, from now on; `None` if that is not known, and all are asked.
    pub fn set_holders(&mut self, holders: Option<Arc<Holders>>) {
        self.questions.holders = holders;
        self.ask_again();
    }

    /// A program asks for a port.
    pub(super) fn question(&mut self, domain: DomainKey, query: Query) {
        let now = self.machine.now;
        self.questions.last += 1;
        let question = Question {
            domain,
            since: now,
            until: now.saturating_add(query.time_left().unwrap_or(Duration::MAX)),
            query,
            asked: BTreeMap::new(),
            found: Vec::new(),
            again: now,
            pause: PAUSES.0,
            knows_node: false,
            all_at: now.saturating_add(HINTED.0),
            all_pause: HINTED.0,
        };
        let id = self.questions.last;
        self.questions.all.insert(id, question);
        self.ask_peers(id);
    }

    /// Goes on with the questions whose time has come.
    pub(super) fn go_on_asking(&mut self) {
        let now = self.machine.now;
        let is_due = |question: &Question| {
            now >= question.until || (question.asked.is_empty() && now >= question.again)
        };
        let all = self.questions.all.iter();
        let due: Vec<u64> = all
            .filter(|(_, question)| is_due(question))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            let over = self.questions.all.get(&id).is_none_or(|it| now >= it.until);
            match over {
                true => self.decide(id, true),
                false => self.ask_peers(id),
            }
        }
    }

    /// All questions begin another round soon: a peer is there that was not.
    pub(super) fn ask_again(&mut self) {
        let now = self.machine.now;
        for question in self.questions.all.values_mut() {
            question.again = now;
        }
    }

    /// Begins a round.
    fn ask_peers(&mut self, id: u64) {
        let now = self.machine.now;
        let Some(question) = self.questions.all.get_mut(&id) else {
            return;
        };
        question.again = now.saturating_add(question.pause);
        question.pause = (2 * question.pause).min(PAUSES.1);
        let Some(span) = self.machine.spans.get(&question.domain) else {
            return self.answer(id, Found::Nothing);
        };
        if !question.query.is_wanted() {
            return self.answer(id, Found::Nothing);
        }
        let domain = span.settings.domain.clone();
        let name = question.query.name().to_owned();
        let wanted = question.query.node().map(str::to_owned);
        if wanted.as_deref() == Some(self.node.name()) {
            let right = span.domain.connect(&name, Deadline::NOW);
            if let (Ok(right), Some(own)) = (right, wanted) {
                self.answer(id, Found::Port(right, own));
            }
            return;
        }
        let mut silent = None;
        // Where the node is named nobody else is asked anyway.
        let is_hinted = now < question.all_at && wanted.is_none();
        if now >= question.all_at {
            question.all_pause = (2 * question.all_pause).min(HINTED.1);
            question.all_at = now.saturating_add(question.all_pause);
        }
        let holders = self.questions.holders.clone().filter(|_| is_hinted);
        let may_have = |peer: NodeId| {
            holders.as_ref().is_none_or(|holders| {
                !holders.announces(peer) || holders.of(&domain, &name).any(|it| it == peer)
            })
        };
        let peers: Vec<NodeId> = self.node.peers().filter(|it| may_have(*it)).collect();
        for peer in peers {
            let called = self.machine.names.get(&peer).cloned().unwrap_or_default();
            let is_it = |wanted: &String| *wanted == called || *wanted == peer.to_string();
            let is_wanted = wanted.as_ref().is_none_or(is_it);
            let is_allowed = span.allows(peer, &called);
            if !is_wanted || !is_allowed {
                continue;
            }
            let Some(question) = self.questions.all.get_mut(&id) else {
                return;
            };
            question.knows_node = true;
            match self.node.resolve(peer, &domain, &name) {
                Ok(flow) => {
                    question.asked.insert(flow, peer);
                    self.questions.asked += 1;
                    self.questions.by_flow.insert(flow, id);
                }
                // One that is silent is asked when it is there again.
                Err(Unsent::Unreachable { since, .. }) => {
                    silent = Instant::now().checked_sub(time(now).since(since));
                }
                Err(_) => {}
            }
        }
        // Looked at last: this may be the first round, and late.
        if let (Some(wanted), Some(question)) = (&wanted, self.questions.all.get_mut(&id))
            && !question.knows_node
        {
            let at = unknown_at(question.since, question.until);
            if now >= at || !span.may_allow(wanted) {
                return self.answer(id, Found::NoSuchNode);
            }
            question.again = question.again.min(at);
        }
        // Its program asks again; if its deadline passes meanwhile, it says why nothing was found.
        if let Some(since) = silent.filter(|_| wanted.is_some())
            && self
                .questions
                .all
                .get(&id)
                .is_some_and(|it| it.asked.is_empty())
        {
            self.answer(id, Found::Unreachable(since));
        }
    }

    /// A peer has answered.
    pub(super) fn resolved(&mut self, flow: FlowKey, lent: Result<Lent, ResolveFailure>) {
        let Some(id) = self.questions.by_flow.remove(&flow) else {
            // Nobody waits for it any more.
            let _ = self.node.close(flow);
            return;
        };
        let Some(question) = self.questions.all.get_mut(&id) else {
            return;
        };
        if let Some(peer) = question.asked.remove(&flow)
            && let Ok(lent) = lent
        {
            // At once, because the port may move, and its proxy knows where it is.
            let (domain, name) = (question.domain, question.query.name().to_owned());
            let right = self.right_on(domain, &name, flow, &lent);
            match (right, self.questions.all.get_mut(&id)) {
                (Some(right), Some(question)) => question.found.push((peer, right)),
                // The domain has no place for another port: it is asked again.
                (None, _) => drop(self.node.close(flow)),
                (Some(_), None) => {}
            }
        }
        self.decide(id, false);
    }

    /// What a peer was asked will not be answered, and what it has answered is void.
    pub(super) fn is_silent(&mut self, peer: NodeId, is_over: bool) {
        let all: Vec<u64> = self.questions.all.keys().copied().collect();
        for id in all {
            let Some(question) = self.questions.all.get_mut(&id) else {
                continue;
            };
            let before = question.asked.len() + question.found.len();
            let by_flow = &mut self.questions.by_flow;
            question.asked.retain(|flow, node| {
                let stays = *node != peer;
                if !stays {
                    by_flow.remove(flow);
                }
                stays
            });
            if is_over {
                question.found.retain(|(node, _)| *node != peer);
            }
            if question.asked.len() + question.found.len() != before {
                self.decide(id, false);
            }
        }
    }

    /// Answers a question, if all that were asked have answered, or its time is over.
    fn decide(&mut self, id: u64, is_over: bool) {
        let Some(question) = self.questions.all.get_mut(&id) else {
            return;
        };
        if !question.asked.is_empty() && !is_over {
            return;
        }
        let mut found = std::mem::take(&mut question.found);
        found.retain(|(_, right)| right.is_live());
        match found.pop() {
            None if !is_over => {}
            None => self.answer(id, Found::Nothing),
            Some((peer, right)) if found.is_empty() => {
                let node = self.machine.name_of(peer);
                self.answer(id, Found::Port(right, node));
            }
            Some((peer, _)) => {
                let others = found.iter().map(|(peer, _)| *peer);
                let names = others.chain([peer]).map(|peer| self.machine.name_of(peer));
                let names = names.collect();
                self.answer(id, Found::Ambiguous(names));
            }
        }
    }

    fn answer(&mut self, id: u64, found: Found) {
        if let Some(question) = self.questions.all.remove(&id) {
            for flow in question.asked.keys() {
                self.questions.by_flow.remove(flow);
                // Its answer, when it comes, closes it.
                let _ = self.node.close(*flow);
            }
            let query = question.query;
            // Names of nodes are names. If not, the program asks again.
            match found {
                Found::Port(right, node) => drop(query.found(right, &node)),
                Found::Ambiguous(names) => {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    let _ = query.ambiguous(&names);
                }
                Found::NoSuchNode => query.no_such_node(),
                Found::Unreachable(since) => query.unreachable(since),
                Found::Nothing => {}
            }
        }
    }

    /// Nobody waits for answers in this domain any more.
    pub(super) fn drop_questions_of(&mut self, domain: DomainKey) {
        let all = self.questions.all.iter();
        let its = all.filter(|(_, question)| question.domain == domain);
        let its: Vec<u64> = its.map(|(id, _)| *id).collect();
        for id in its {
            self.answer(id, Found::Nothing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_told_that_a_node_is_none_while_it_waits() {
        let ms = Duration::from_millis;
        for (until, at) in [(40, 30), (1_220, 620), (5_000, 1_020)] {
            assert_eq!(unknown_at(ms(20), ms(until)), ms(at));
        }
        assert_eq!(unknown_at(ms(20), Duration::MAX), ms(1_020));
    }
}
