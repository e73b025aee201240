//! The invariants, looked at from outside: what a step changed after each step, all of them now
//! and then.

use crate::world::{DOMAIN, World};
use portolan_proto::node::{FlowKey, PortKey};
use std::collections::BTreeMap;

impl World {
    /// Flows that wait at a node's ports, in turn.
    pub(crate) fn waiting(&self, index: usize) -> Vec<(PortKey, Vec<FlowKey>)> {
        let it = &self.nodes[index];
        let ports = it.machine.queues.keys();
        let waiting = ports.filter_map(|port| Some((*port, it.node.port_view(*port)?.2)));
        waiting.filter(|(_, flows)| !flows.is_empty()).collect()
    }

    fn found(&self, invariant: &'static str, what: String) {
        self.oracle.borrow_mut().found(invariant, what);
    }

    /// What a step of a node can have changed.
    pub(crate) fn check_step(&self, index: usize, before: &[(PortKey, Vec<FlowKey>)]) {
        let it = &self.nodes[index];
        // N3: what is acknowledged has entered its port.
        {
            let mut wrong = None;
            let oracle = self.oracle.borrow();
            for flow in it.flows.iter().filter(|flow| flow.lent.is_some()) {
                let Some(key) = flow.key else { continue };
                let Some(first) = it.node.first_kept(key) else {
                    continue;
                };
                let instance = &oracle.instances[usize::try_from(flow.instance).unwrap_or(0)];
                if first > instance.entered {
                    wrong = Some(format!(
                        "node {index} {key:?} to node {}: {first} acknowledged, {} entered",
                        instance.home, instance.entered
                    ));
                }
            }
            drop(oracle);
            if let Some(what) = wrong {
                self.found("N3", what);
            }
        }
        // N9: no port has promised what it has not.
        for (port, queue) in &it.machine.queues {
            let Some((promised, ..)) = it.node.port_view(*port) else {
                continue;
            };
            let taken = u32::try_from(queue.messages.len()).unwrap_or(u32::MAX);
            // A backlog may have all slots; others leave a quarter to local senders.
            let left = match self.plan.moves {
                0 => queue.slots / 4,
                _ => 0,
            };
            let most = queue.slots - left;
            if promised + taken > most {
                let what = format!(
                    "node {index} {port:?}: {taken} of {} slots are taken, {promised} promised",
                    queue.slots
                );
                self.found("N9", what);
            }
        }
        // N9: announced transfers keep to the domain's budget, but for one alone.
        let (granted, limit) = it.node.budget_view(DOMAIN);
        if granted > limit.max(self.plan.window / 2) {
            self.found(
                "N9",
                format!("node {index}: {granted} bytes granted of {limit}"),
            );
        }
        // N15: who is unreachable has no connection that has resumed.
        for peer in it.node.peers() {
            let is_unreachable = |peer| it.node.peer_view(peer).is_some_and(|v| v.is_unreachable);
            if it.node.has_resumed(peer) && is_unreachable(peer) {
                let what = format!("node {index}: {peer:?} is linked, and unreachable");
                self.found("N15", what);
            }
        }
        // N9: no link has more in flight than its window. (What would fill a window alone is
        // announced, and not counted.)
        for peer in it.node.peers() {
            if let Some((in_flight, window)) = it.node.in_flight(peer)
                && in_flight > window
            {
                let what =
                    format!("node {index} to {peer:?}: {in_flight} bytes in flight of {window}");
                self.found("N9", what);
            }
        }
        // N10: who was served was first.
        for (port, flows) in before {
            let after = it.node.port_view(*port).map_or(Vec::new(), |view| view.2);
            let served = flows.iter().rposition(|flow| {
                !after.contains(flow) && it.node.promised_to(*flow).is_some_and(|slots| slots > 0)
            });
            let Some(served) = served else { continue };
            let passed = flows[..served].iter().find(|flow| after.contains(flow));
            if let Some(passed) = passed {
                let what = format!(
                    "node {index} {port:?}: {:?} was served before {passed:?}, which waited longer",
                    flows[served]
                );
                self.found("N10", what);
            }
        }
    }

    /// All of them, on all nodes.
    pub(crate) fn check_all(&self) {
        if let Some(what) = self.overdue() {
            self.found("N11", what);
        }
        for (index, it) in self.nodes.iter().enumerate() {
            let mut promised: BTreeMap<PortKey, u64> = BTreeMap::new();
            for peer in it.node.peers() {
                let Some(view) = it.node.view(peer) else {
                    continue;
                };
                // N9: in flight is what the window admits, or one message alone.
                let fits = view.charged <= view.window || view.charged_messages <= 1;
                if !fits || view.charged != view.in_flight {
                    let what = format!(
                        "node {index} to {peer:?}: {} bytes in {} messages are in flight ({} counted) of {}",
                        view.charged, view.charged_messages, view.in_flight, view.window
                    );
                    self.found("N9", what);
                }
                for flow in &view.receiving {
                    *promised.entry(flow.port).or_default() += flow.promised;
                }
            }
            for port in it.machine.queues.keys() {
                let Some((counted, ..)) = it.node.port_view(*port) else {
                    continue;
                };
                let sum = promised.get(port).copied().unwrap_or(0);
                if sum != u64::from(counted) {
                    let what =
                        format!("node {index} {port:?}: {sum} slots promised, {counted} counted");
                    self.found("N9", what);
                }
            }
        }
    }

    /// N13 and N6, when all is healed and quiet: what is not so, if anything.
    pub(crate) fn unsettled(&self) -> Option<(&'static str, String)> {
        if !self.is_idle() {
            if let Some(index) = (0..self.nodes.len()).find(|index| !self.is_idle_at(*index))
                && self.plan.moves > 0
            {
                return Some(("N13", self.what_moves(index)));
            }
            let (index, flow) = self.nodes.iter().enumerate().find_map(|(index, it)| {
                Some((index, it.flows.iter().find(|flow| flow.left > 0)?))
            })?;
            let (here, there) = (&self.nodes[index], &self.nodes[flow.home]);
            let (ours, theirs) = (here.node.view(there.id), there.node.view(here.id));
            let port = there.node.port_view(flow.port);
            let what =
                format!("node {index} still sends: {flow:?}: {ours:?} / {theirs:?} / {port:?}");
            return Some(("N13", what));
        }
        if let Some(((node, request), _)) = self.oracle.borrow().open.first_key_value() {
            return Some(("N11", format!("{request:?} of node {node} has not ended")));
        }
        for (index, it) in self.nodes.iter().enumerate() {
            for flow in &it.flows {
                let home = &self.nodes[flow.home];
                let (Some(there), Some(here)) = (home.node.view(it.id), it.node.view(home.id))
                else {
                    return Some((
                        "N13",
                        format!("node {index} and {} have no association", flow.home),
                    ));
                };
                if there.id != here.id {
                    let what = format!(
                        "node {index} has {:?}, node {} {:?}",
                        here.id, flow.home, there.id
                    );
                    return Some(("N13", what));
                }
            }
            for peer in it.node.peers() {
                let Some(view) = it.node.view(peer) else {
                    continue;
                };
                let kept =
                    view.open_requests + view.answers_kept + view.transfers_out + view.control_kept;
                let is_even = view.sending.iter().all(|flow| flow.first == flow.next);
                if kept > 0 || view.in_flight > 0 || !is_even {
                    let other = self.by_id.get(&peer).map(|index| &self.nodes[*index]);
                    let there = other.and_then(|it| it.node.view(self.nodes[index].id));
                    return Some((
                        "N13",
                        format!("node {index} to {peer:?}: {view:?} / {there:?}"),
                    ));
                }
                if view.transfers_in > 0 || view.receiving.iter().any(|flow| flow.held > 0) {
                    return Some(("N6", format!("node {index} to {peer:?}: {view:?}")));
                }
                if view.receiving.iter().any(|flow| flow.promised > 0) {
                    return Some(("N13", format!("node {index} to {peer:?}: {view:?}")));
                }
                let Some(other) = self.by_id.get(&peer).map(|index| &self.nodes[*index]) else {
                    continue;
                };
                let Some(other) = other.node.view(it.id) else {
                    continue;
                };
                for flow in &view.sending {
                    let end = other.receiving.iter().find(|end| end.flow == flow.flow);
                    if end.is_none_or(|end| end.next != flow.next) {
                        return Some((
                            "N13",
                            format!("node {index} to {peer:?}: {flow:?} ends as {end:?}"),
                        ));
                    }
                }
            }
            if let Some(left) = self.unsettled_moves(index) {
                return Some(left);
            }
            if let Some(left) = self.unsettled_rights(index) {
                return Some(left);
            }
            let live = it.machine.ledger.live.get();
            if live > 0 {
                return Some(("N6", format!("node {index}: {live} payloads are nowhere")));
            }
            if it.node.budget_view(DOMAIN).0 > 0 || !self.waiting(index).is_empty() {
                return Some((
                    "N13",
                    format!("node {index}: {:?}", it.node.budget_view(DOMAIN)),
                ));
            }
        }
        None
    }
}
