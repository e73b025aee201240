//! Receive rights that move: bounced among five nodes under load, with cuts, stalls and deaths.

use portolan_sim::{Fault, Plan, run};
use std::time::Duration;

/// Five nodes whose programs give one another receive rights and send to the ports meanwhile. Connections are
/// cut, and no node is given up: so no message is lost.
fn bounced(seed: u64) -> Plan {
    Plan {
        nodes: 5,
        flows: 0,
        ports: 1,
        messages: 40,
        rights: 0,
        moves: 60_000,
        faults_per_second: 0,
        cuts_per_million: 10_000,
        chaos: Duration::from_secs(3),
        ..Plan::new(seed)
    }
}

#[test]
fn a_receive_right_is_bounced_among_five_nodes_and_nothing_is_lost() {
    let (mut moved, mut backlog, mut followed, mut renamed, mut home) = (0, 0, 0, 0, 0);
    for seed in 1..40 {
        let report = run(bounced(seed)).unwrap_or_else(|finding| panic!("{finding}"));
        moved += report.moved;
        backlog += report.backlog;
        followed += report.followed;
        renamed += report.renamed;
        home += report.came_home;
    }
    println!("{moved} {backlog} {followed} {renamed} {home}");
    assert!(
        moved > 1000 && backlog > 1000 && followed > 1000 && renamed > 100 && home > 100,
        "{moved} {backlog} {followed} {renamed} {home}"
    );
}

#[test]
fn nodes_stand_still_and_die_while_receive_rights_move() {
    let (mut restarts, mut not_moved) = (0, 0);
    for seed in 1..60 {
        let plan = Plan {
            nodes: 5 + usize::try_from(seed % 3).unwrap(),
            faults_per_second: 1000,
            ..bounced(seed)
        };
        let report = run(plan).unwrap_or_else(|finding| panic!("{finding}"));
        restarts += report.restarts;
        not_moved += report.not_moved;
    }
    assert!(restarts > 50 && not_moved > 50, "{restarts} {not_moved}");
}

#[test]
fn each_party_of_a_move_may_die_at_each_step() {
    let (mut runs, mut moved) = (0, 0);
    for victim in 0..3 {
        for seed in 1..3 {
            let plan = |kill| Plan {
                nodes: 3,
                messages: 6,
                moves: 300_000,
                cuts_per_million: 0,
                kill,
                ..bounced(seed)
            };
            let steps = run(plan(None)).unwrap_or_else(|finding| panic!("{finding}"));
            for step in (1..steps.steps.min(900)).step_by(3) {
                let report = run(plan(Some((victim, step))));
                let report = report.unwrap_or_else(|finding| panic!("{finding}"));
                runs += 1;
                moved += report.moved;
            }
        }
    }
    assert!(runs > 1000 && moved > 1000, "{runs} {moved}");
}

#[test]
fn each_planted_fault_of_moves_is_found() {
    let faults: [(Fault, &[&str]); 8] = [
        (Fault::LosesUnsent, &["N2", "N3"]),
        (Fault::LosesBacklog, &["N2", "N3"]),
        (Fault::EndsBacklogEarly, &["N1", "N2"]),
        (Fault::ServesBeforeBacklog, &["N1", "N2"]),
        // What is sent again comes again.
        (Fault::ForgetsDelivered, &["N1", "N2"]),
        (Fault::KeepsHome, &["N4"]),
        // What is sent to the old home is never taken.
        (Fault::HidesMove, &["N13", "N3"]),
        (Fault::ForgetsFollowers, &["N7"]),
    ];
    let mut missed = Vec::new();
    for (fault, expected) in faults {
        let found = (1..60).find_map(|seed| {
            let plan = Plan {
                fault: Some(fault),
                ..bounced(seed)
            };
            run(plan).err()
        });
        println!("{fault:?}: {found:?}");
        if !found.is_some_and(|finding| expected.contains(&finding.invariant)) {
            missed.push(fault);
        }
    }
    assert_eq!(
        missed,
        [],
        "faults that no run finds, or not as what they break"
    );
}
