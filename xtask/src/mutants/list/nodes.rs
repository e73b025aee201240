//! Lists mutants of nodes: invariants of `proto/node`, whose simulation plants faults of its own, and
//! of what a node writes.

use super::{Mutant, Test};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
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
    },
    Mutant {
        name: "command-answered-before-it-lasts",
        breaks: "K2: a command is answered before what it says is on the disk",
        file: "crates/node/src/up/trust.rs",
        find: "refused.is_some() || self.disk.is_idle()",
        replace: "refused.is_some() || !self.disk.is_idle()",
        found_by: Test::Of {
            folder: "node",
            target: "processes",
            name: "disk::no_command_is_answered_before_what_it_says_is_written_down",
        },
    },
];
