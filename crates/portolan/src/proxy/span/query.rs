//! A query: what a program asks its domain's node.

use crate::port::{check_node, monotonic_nanos, wake_waiters};
use crate::proxy::time_left;
use crate::{BindError, Message, SendOnceRight, SendRight};
use portolan_abi::node::{NamesAnswer, NamesQuestion, NodeEntry, NodeName, Says};
use portolan_shm::mark;
use std::time::{Duration, Instant};

/// "Who has a port of this name?"
///
/// Dropped unanswered, its program asks again after a while; until then, and if nothing is ever
/// found, it waits for a port of its own domain.
#[must_use = "a dropped query is asked again"]
pub struct Query {
    name: String,
    node: Option<String>,
    until: Option<Instant>,
    answer: Option<SendOnceRight>,
}

impl Query {
    pub(super) fn new(
        message: &Message,
        question: NamesQuestion,
        answer: SendOnceRight,
    ) -> Option<Self> {
        Some(Self {
            name: question.name?.as_str().to_owned(),
            node: question.node.map(|node| node.as_str().to_owned()),
            until: time_left(message).and_then(|left| Instant::now().checked_add(left)),
            answer: Some(answer),
        })
    }

    /// The name: one that a port can have.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node that the program has named, as in `upper@hall`: one that a node can have.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// How long the program waits yet; `None` for ever.
    pub fn time_left(&self) -> Option<Duration> {
        let until = self.until?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// Whether the program waits still: it has not died, given up, or found a port of its own domain.
    pub fn is_wanted(&self) -> bool {
        self.answer.as_ref().is_some_and(SendOnceRight::is_live)
    }

    /// Gives the program a right on the proxy port of the port that it asks for, which is on this
    /// node. If the program does not wait any more the right is dropped.
    ///
    /// # Errors
    ///
    /// [`BindError::BadNode`]; the program asks again.
    pub fn found(self, right: SendRight, node: &str) -> Result<(), BindError> {
        check_node(node)?;
        self.say(Says::Found, &[(node, 0)], Some(right));
        Ok(())
    }

    /// Tells the program that these nodes have such a port, one at least. Of very many it is told
    /// some.
    ///
    /// # Errors
    ///
    /// [`BindError::BadNode`]; the program asks again.
    pub fn ambiguous(self, nodes: &[&str]) -> Result<(), BindError> {
        nodes.iter().try_for_each(|node| check_node(node))?;
        // Of none it is not told: it asks again.
        if !nodes.is_empty() {
            let nodes: Vec<_> = nodes.iter().map(|node| (*node, 0)).collect();
            self.say(Says::Ambiguous, &nodes, None);
        }
        Ok(())
    }

    /// Tells the program that no node of the name that it has given is known.
    pub fn no_such_node(self) {
        self.say(Says::NoSuchNode, &[], None);
    }

    /// Tells the program that the node that it has named is silent since then. It asks again after a
    /// while; if its deadline passes meanwhile, that is what it says.
    pub fn unreachable(self, since: Instant) {
        let node = self.node.clone().unwrap_or_default();
        // 0 says that it is not.
        let since = monotonic_nanos(since).max(1);
        self.say(Says::Unreachable, &[(&node, since)], None);
    }

    /// The nodes are told of with since when they are silent.
    fn say(mut self, says: Says, nodes: &[(&str, u64)], right: Option<SendRight>) {
        let entry = |(node, silent_since): &(&str, u64)| {
            let (name, silent_since) = (NodeName::new(node)?, *silent_since);
            Some(NodeEntry { name, silent_since })
        };
        let answer = NamesAnswer {
            says,
            all: 0,
            entries: nodes.iter().filter_map(entry).collect(),
        };
        // An answer that cannot be sent is dropped, and so is the query.
        let Ok(mut message) = Message::new(&answer.encode()) else {
            return;
        };
        if let Some(right) = right
            && message.attach(right).is_err()
        {
            return;
        }
        if let Some(once) = self.answer.take() {
            let member = once.member().clone();
            let _ = once.send(message);
            mark!("span.answered");
            wake_waiters(&member);
        }
    }
}

impl Drop for Query {
    fn drop(&mut self) {
        if let Some(once) = self.answer.take() {
            let member = once.member().clone();
            drop(once);
            // In a forked child it tells nobody.
            if member.present().is_ok() {
                wake_waiters(&member);
            }
        }
    }
}

impl std::fmt::Debug for Query {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Query")
            .field("name", &self.name)
            .field("node", &self.node)
            .field("time_left", &self.time_left())
            .finish_non_exhaustive()
    }
}
