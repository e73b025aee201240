//! Lists mutants of the protocol of nodes: invariants of `proto/node`. Its simulation plants faults
//! of its own.

use super::{Mutant, Test};

pub(super) const MUTANTS: &[Mutant] = &[Mutant {
    name: "peer-heard-by-halves",
    breaks: "N15: a record that is none of the association keeps a connection alive, and not its peer",
    file: "crates/proto/src/node/greeting.rs",
    find: "        let met = connection.met;
        self.heard_on(now, id);",
    replace: "        let met = connection.met;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.heard = now;
        }",
    found_by: Test::Of {
        folder: "proto",
        target: "node",
        name: "traffic::who_says_anything_at_all_is_reachable",
    },
}];
