//! Receive rights that move: bounced among five nodes under load, with cuts, stalls and deaths.

use portolan_sim::{Fault, Plan, run, run_with_liar};
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
    let (mut restarts, mut not_moved, mut found) = (0, 0, 0);
    for seed in 1..60 {
        let plan = Plan {
            nodes: 5 + usize::try_from(seed % 3).unwrap(),
            faults_per_second: 1000,
            ..bounced(seed)
        };
        let report = run(plan).unwrap_or_else(|finding| panic!("{finding}"));
        restarts += report.restarts;
        not_moved += report.not_moved;
        found += report.found;
    }
    println!("{restarts} {not_moved} {found}");
    assert!(restarts > 50 && not_moved > 50, "{restarts} {not_moved}");
    assert!(found > 20, "{found}");
}

#[test]
fn each_party_of_a_move_may_die_at_each_step() {
    let (mut runs, mut moved, mut sought, mut found) = (0, 0, 0, 0);
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
                sought += report.sought;
                found += report.found;
            }
        }
    }
    println!("{runs} {moved} {sought} {found}");
    assert!(runs > 1000 && moved > 1000, "{runs} {moved}");
    // Some had not heard that the port has moved, when its old home died.
    assert!(sought > 1000 && found > 50, "{sought} {found}");
}

/// As many groups of five as there may be: a minute or so; `cargo xtask ci --long`.
#[test]
#[ignore = "takes minutes: one of the long checks"]
fn receive_rights_move_among_ten_thousand_nodes() {
    let plan = Plan {
        nodes: 10_000,
        group: 5,
        messages: 6,
        moves: 300_000,
        faults_per_second: 4000,
        cuts_per_million: 500,
        ..bounced(1)
    };
    let report = run(plan).unwrap_or_else(|finding| panic!("{finding}"));
    println!("{report:#?}");
    assert!(report.moved > 10_000 && report.found > 100, "{report:#?}");
}

#[test]
fn receive_rights_move_in_groups_of_a_thousand_nodes() {
    let plan = Plan {
        nodes: 1000,
        group: 5,
        messages: 6,
        moves: 300_000,
        faults_per_second: 1000,
        cuts_per_million: 500,
        chaos: Duration::from_secs(1),
        ..bounced(1)
    };
    let report = run(plan).unwrap_or_else(|finding| panic!("{finding}"));
    println!("{report:#?}");
    assert!(report.moved > 1000 && report.found > 10, "{report:#?}");
}

/// A node that dies while ports move and others ask where they are, and one that lies to all of them.
fn lied_to(seed: u64) -> Plan {
    Plan {
        moves: 300_000,
        cuts_per_million: 0,
        kill: Some((usize::try_from(seed % 5).unwrap(), 300 + 7 * seed)),
        ..bounced(seed)
    }
}

#[test]
fn a_liar_is_told_nothing_and_gets_no_port() {
    let (mut sought, mut found) = (0, 0);
    for seed in 1..60 {
        let report = run_with_liar(lied_to(seed), 2000);
        let report = report.unwrap_or_else(|finding| panic!("{finding}"));
        sought += report.sought;
        found += report.found;
    }
    println!("{sought} {found}");
    assert!(sought > 100 && found > 10, "{sought} {found}");
}

#[test]
fn each_planted_fault_of_questions_is_found() {
    let faults: [(Fault, &str); 5] = [
        (Fault::ForgetsToAsk, "N5"),
        (Fault::HidesPorts, "N5"),
        (Fault::SendsTwice, "N1"),
        (Fault::TellsAnyone, "N12"),
        (Fault::BelievesAnyone, "N4"),
    ];
    let mut missed = Vec::new();
    for (fault, expected) in faults {
        let found = (1..200).find_map(|seed| {
            let plan = Plan {
                fault: Some(fault),
                ..lied_to(seed)
            };
            match fault {
                Fault::TellsAnyone | Fault::BelievesAnyone => run_with_liar(plan, 2000).err(),
                _ => run(plan).err(),
            }
        });
        println!("{fault:?}: {found:?}");
        if found.is_none_or(|finding| finding.invariant != expected) {
            missed.push(fault);
        }
    }
    assert_eq!(
        missed,
        [],
        "faults that no run finds, or not as what they break"
    );
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
