//! Nodes keep their invariants, whatever breaks; and what would break each of them is found.

use portolan_sim::{Fault, Plan, run, run_hostile};
use std::time::Duration;

/// A world in which many flows lead to few ports.
fn crowded(seed: u64) -> Plan {
    Plan {
        nodes: 24,
        flows: 6,
        homes: 3,
        ports: 2,
        messages: 30,
        burst: 8,
        faults_per_second: 4000,
        cuts_per_million: 2000,
        chaos: Duration::from_secs(3),
        budget: 600_000,
        ..Plan::new(seed)
    }
}

#[test]
fn a_thousand_nodes_keep_their_invariants() {
    let report = run(Plan::new(1)).unwrap_or_else(|finding| panic!("{finding}"));
    println!("{report:#?}");
    assert!(report.cuts > 100 && report.stalls > 100 && report.restarts > 50);
    assert!(report.delivered > 20_000, "{report:#?}");
}

#[test]
fn small_worlds_keep_their_invariants() {
    for nodes in [2, 3, 10] {
        for seed in 1..40 {
            let plan = Plan {
                nodes,
                faults_per_second: 20_000 / nodes as u64,
                cuts_per_million: 20_000,
                ..Plan::new(seed)
            };
            run(plan).unwrap_or_else(|finding| panic!("{finding}"));
        }
    }
}

#[test]
fn crowds_at_few_ports_keep_their_invariants() {
    for seed in 1..12 {
        run(crowded(seed)).unwrap_or_else(|finding| panic!("{finding}"));
    }
}

#[test]
fn a_hostile_node_ends_its_own_association_alone() {
    let mut violations = 0;
    for seed in 1..6 {
        let plan = Plan {
            nodes: 8,
            messages: 200,
            ..crowded(seed)
        };
        let report = run_hostile(plan, 4000).unwrap_or_else(|finding| panic!("{finding}"));
        violations += report.violations;
    }
    assert!(violations > 500, "{violations}");
}

#[test]
fn the_same_plan_gives_the_same_run() {
    let plan = Plan {
        nodes: 50,
        ..Plan::new(7)
    };
    let (one, other) = (run(plan), run(plan));
    assert_eq!(one, other);
    let another = run(Plan { seed: 8, ..plan });
    assert_ne!(one.unwrap().digest, another.unwrap().digest);
    // A finding too, to the step.
    let broken = Plan {
        fault: Some(Fault::PromisesTwice),
        ..crowded(1)
    };
    let finding = run(broken).unwrap_err();
    assert_eq!(run(broken).unwrap_err(), finding);
    assert!(finding.to_string().contains("replay with"), "{finding}");
}

#[test]
fn each_planted_fault_is_found() {
    let mut missed = Vec::new();
    for fault in Fault::ALL {
        let expected: &[&str] = match fault {
            Fault::DeliversTwice => &["N1"],
            Fault::DeliversAhead => &["N2"],
            Fault::AcknowledgesRefused => &["N3", "N2"],
            // Where what is left over stops the flow for good, that shows first.
            Fault::KeepsPartial => &["N6", "N13"],
            Fault::PromisesTwice | Fault::IgnoresWindow | Fault::GrantsAll => &["N9"],
            Fault::ServesLast => &["N10"],
            Fault::ForgetsRequests => &["N11"],
            Fault::BelievesFlows => &["N12"],
            Fault::MixesTransfers => &["N14"],
            Fault::ForgetsToResend | Fault::KeepsAnswers | Fault::KeepsCredit => &["N13"],
        };
        // The rarest shows in one plan of some fifty.
        let found = (1..300).find_map(|seed| {
            let mut plan = Plan {
                fault: Some(fault),
                ..crowded(seed)
            };
            if fault == Fault::IgnoresWindow {
                // Many flows on each link, over slow wires with a narrow window.
                (plan.nodes, plan.flows, plan.homes) = (4, 30, 1);
                (plan.rate, plan.window) = (2_000_000, 100_000);
            }
            if fault == Fault::BelievesFlows {
                run_hostile(plan, 1000).err()
            } else {
                run(plan).err()
            }
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

/// A minute and a half, and 400 MiB: `cargo xtask ci --long`.
#[test]
#[ignore = "takes minutes: one of the long checks"]
fn ten_thousand_nodes_keep_their_invariants() {
    let plan = Plan {
        nodes: 10_000,
        ..Plan::new(1)
    };
    let report = run(plan).unwrap_or_else(|finding| panic!("{finding}"));
    println!("{report:#?}");
}
