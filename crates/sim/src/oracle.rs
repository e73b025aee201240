//! What must hold, told apart from how the machines do it.

use crate::home::{Label, Payload};
use crate::rights::{Place, Right};
use portolan_proto::Time;
use portolan_proto::node::{Delivery, PortKey, RequestKey};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which: N1, N2, ...
    pub invariant: &'static str,
    /// What was seen.
    pub what: String,
    /// After which step.
    pub step: u64,
    /// Of which run: the seed, and all else that it was made of.
    pub replay: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} does not hold after step {}: {}\nreplay with: {}",
            self.invariant, self.step, self.what, self.replay
        )
    }
}

impl std::error::Error for Finding {}

/// A flow in one association, as the simulation counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instance {
    pub(crate) home: usize,
    pub(crate) port: PortKey,
    /// Numbers given.
    pub(crate) sent: u64,
    /// Numbers that are in the port, or were.
    pub(crate) entered: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Oracle {
    pub(crate) instances: Vec<Instance>,
    /// Requests that have not ended: of which node, and when they must.
    pub(crate) open: BTreeMap<(usize, RequestKey), Time>,
    /// All rights that there are, by their numbers.
    pub(crate) rights: BTreeMap<u64, Right>,
    last_right: u64,
    /// Ports that were closed while their node ran on.
    pub(crate) closed: BTreeSet<Place>,
    /// Nodes of which one has given the other up, or has met it anew.
    pub(crate) parted: BTreeSet<(usize, usize)>,
    pub(crate) finding: Option<(&'static str, String)>,
    pub(crate) delivered: u64,
    pub(crate) answered: u64,
    pub(crate) ended: HashMap<&'static str, u64>,
}

impl Oracle {
    /// Notes the first invariant that does not hold.
    pub(crate) fn found(&mut self, invariant: &'static str, what: String) {
        self.finding.get_or_insert((invariant, what));
    }

    /// A new right.
    pub(crate) fn new_right(&mut self, to: Place, holder: usize) -> u64 {
        self.last_right += 1;
        self.rights.insert(self.last_right, Right { to, holder });
        self.last_right
    }

    /// A node has started anew: the rights that it had are gone, and those on its ports.
    pub(crate) fn restarted(&mut self, node: usize) {
        let is_its = |right: &Right| right.holder == node || right.to.0 == node;
        self.rights.retain(|_, right| !is_its(right));
    }

    /// The number that is given next in a flow.
    pub(crate) fn sent_of(&self, instance: u64) -> u64 {
        let index = usize::try_from(instance).unwrap_or(usize::MAX);
        self.instances.get(index).map_or(0, |it| it.sent)
    }

    pub(crate) fn sends(&mut self, instance: u64) {
        let index = usize::try_from(instance).unwrap_or(usize::MAX);
        if let Some(instance) = self.instances.get_mut(index) {
            instance.sent += 1;
        }
    }

    /// A message enters a port: N1, N2, and that it is whole (N6).
    pub(crate) fn enters(&mut self, delivery: &Delivery<Payload>, is_intact: bool) {
        let Some(label) = Label::read(&delivery.message.header) else {
            return self.found("N12", "a message without a label".to_owned());
        };
        let index = usize::try_from(label.instance).unwrap_or(usize::MAX);
        let Some(instance) = self.instances.get_mut(index) else {
            return self.found("N12", format!("a message of no flow: {label:?}"));
        };
        let expected = instance.entered;
        self.delivered += 1;
        if label.number < expected {
            self.found("N1", format!("{label:?} enters again, after {expected}"));
        } else if label.number > expected {
            self.found("N2", format!("{label:?} enters before {expected}"));
        } else if delivery.port != instance.port {
            let port = delivery.port;
            self.found("N6", format!("{label:?} enters {port:?}"));
        } else if !is_intact {
            self.found(
                "N6",
                format!("{label:?} is not whole: {:?}", delivery.message),
            );
        } else {
            instance.entered += 1;
        }
    }

    /// A program takes a message from a port, wherever that is: N1, N2, N3. Where no node has died
    /// or was given up, none is missing.
    pub(crate) fn takes(&mut self, label: Label, is_intact: bool, exact: bool) {
        let index = usize::try_from(label.instance).unwrap_or(usize::MAX);
        let Some(instance) = self.instances.get_mut(index) else {
            return self.found("N12", format!("a message of no flow: {label:?}"));
        };
        let expected = instance.entered;
        self.delivered += 1;
        instance.entered = label.number + 1;
        if label.number < expected {
            self.found("N1", format!("{label:?} is taken again, after {expected}"));
        } else if label.number > expected && exact {
            self.found("N2", format!("{label:?} is taken before {expected}"));
        } else if !is_intact {
            self.found("N6", format!("{label:?} is not whole"));
        }
    }

    /// A request has ended: N11.
    pub(crate) fn ends(&mut self, node: usize, request: RequestKey, how: &'static str) {
        *self.ended.entry(how).or_default() += 1;
        if self.open.remove(&(node, request)).is_none() {
            self.found("N11", format!("{request:?} of node {node} ends twice"));
        }
    }
}
