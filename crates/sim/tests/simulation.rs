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

/// Three nodes or so whose programs give one another rights with nearly every message. Connections are
/// cut, and no node is given up: so what is said of senders is exact.
fn giving(seed: u64) -> Plan {
    Plan {
        nodes: 3 + usize::try_from(seed % 4).unwrap(),
        flows: 3,
        messages: 20,
        rights: 600_000,
        faults_per_second: 0,
        cuts_per_million: 20_000,
        chaos: Duration::from_secs(3),
        ..Plan::new(seed)
    }
}

#[test]
fn a_thousand_nodes_keep_their_invariants() {
    let report = run(Plan::new(1)).unwrap_or_else(|finding| panic!("{finding}"));
    println!("{report:#?}");
    assert!(report.cuts > 100 && report.stalls > 100 && report.restarts > 50);
    assert!(report.delivered > 20_000, "{report:#?}");
    assert!(
        report.rights_came > 2000 && report.borrowed > 1000,
        "{report:#?}"
    );
}

#[test]
fn rights_are_given_and_given_on_and_each_leads_where_it_should() {
    let (mut borrowed, mut told, mut asked) = (0, 0, 0);
    for seed in 1..60 {
        let report = run(giving(seed)).unwrap_or_else(|finding| panic!("{finding}"));
        borrowed += report.borrowed;
        told += report.told_unused;
        asked += report.senders_asked;
    }
    assert!(
        borrowed > 2000 && told > 200 && asked > 200,
        "{borrowed} {told} {asked}"
    );
}

#[test]
fn nobody_is_asked_for_senders_if_no_port_wants_to_know() {
    for seed in 1..20 {
        let plan = Plan {
            senders: false,
            ..giving(seed)
        };
        let report = run(plan).unwrap_or_else(|finding| panic!("{finding}"));
        assert_eq!((report.senders_asked, report.told_unused), (0, 0));
        assert!(report.borrowed > 0);
    }
}

#[test]
fn each_party_of_a_handoff_may_die_at_each_step() {
    let (mut runs, mut dead) = (0, 0);
    for victim in 0..3 {
        for seed in 1..3 {
            let plan = |kill| Plan {
                nodes: 3,
                flows: 2,
                messages: 4,
                cuts_per_million: 0,
                kill,
                ..giving(seed)
            };
            let steps = run(plan(None)).unwrap_or_else(|finding| panic!("{finding}"));
            // The programs of all are done by then.
            for step in (1..steps.steps.min(900)).step_by(3) {
                let plan = plan(Some((victim, step)));
                let report = run(plan).unwrap_or_else(|finding| panic!("{finding}"));
                runs += 1;
                dead += report.rights_dead;
            }
        }
    }
    assert!(runs > 1000 && dead > 100, "{runs} {dead}");
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
            Fault::ForgetsKeep => &["N7"],
            Fault::GivesUpClaims => &["N5"],
            // What is sent to a port whose end was not told is never taken.
            Fault::HidesDeath => &["N5", "N13"],
            // A borrower that is lent another port than it has claimed takes the right for dead.
            Fault::LendsAnyPort => &["N4", "N5"],
            Fault::CountsUnasked => &["N8"],
            Fault::LosesRights => &["N13"],
            // `moves.rs`.
            Fault::LosesUnsent
            | Fault::LosesBacklog
            | Fault::EndsBacklogEarly
            | Fault::ServesBeforeBacklog
            | Fault::ForgetsDelivered
            | Fault::KeepsHome
            | Fault::HidesMove
            | Fault::ForgetsFollowers
            | Fault::ForgetsToAsk
            | Fault::HidesPorts
            | Fault::TellsAnyone
            | Fault::BelievesAnyone
            | Fault::SendsTwice => continue,
            Fault::ForgetsToResend
            | Fault::KeepsAnswers
            | Fault::KeepsCredit
            | Fault::WithholdsAcknowledgements => &["N13"],
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
            match fault {
                Fault::ForgetsKeep
                | Fault::GivesUpClaims
                | Fault::LendsAnyPort
                | Fault::LosesRights => {
                    plan = Plan {
                        fault: Some(fault),
                        ..giving(seed)
                    };
                }
                Fault::HidesDeath => {
                    plan = Plan {
                        fault: Some(fault),
                        cuts_per_million: 0,
                        ..giving(seed)
                    };
                }
                Fault::CountsUnasked => {
                    plan = Plan {
                        fault: Some(fault),
                        senders: false,
                        ..giving(seed)
                    };
                }
                _ => {}
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
