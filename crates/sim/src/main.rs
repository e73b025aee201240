//! Runs one plan by its seed, and prints what happened. A finding's text says the words.

use portolan_sim::{Plan, run};
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let mut plan = Plan::new(1);
    let mut words = std::env::args().skip(1);
    while let Some(name) = words.next() {
        let value = words.next().unwrap_or_default();
        if plan.set(&name, &value).is_none() {
            eprintln!(
                "{name} {value} means nothing. All words: {}",
                everything().replay()
            );
            return ExitCode::FAILURE;
        }
    }
    let began = Instant::now();
    let result = run(plan);
    let took = began.elapsed();
    match result {
        Ok(report) => {
            println!("{report:#?}\n{took:?}");
            ExitCode::SUCCESS
        }
        Err(finding) => {
            println!("{finding}\n{took:?}");
            ExitCode::FAILURE
        }
    }
}

/// A plan whose every word is unusual.
fn everything() -> Plan {
    Plan {
        nodes: 2,
        flows: 9,
        homes: 1,
        ports: 9,
        messages: 9,
        burst: 9,
        faults_per_second: 9,
        cuts_per_million: 9,
        chaos: std::time::Duration::from_secs(9),
        rate: 9,
        window: 9,
        budget: 9,
        rights: 9,
        senders: false,
        moves: 9,
        group: 9,
        kill: Some((1, 9)),
        ..Plan::new(1)
    }
}
