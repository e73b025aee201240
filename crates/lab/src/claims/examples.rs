//! For every rule, figures at which it holds, and figures at which it does not.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::table::ALL;
use super::{Claim, Condition, Estimate, Rule};
use crate::outcome::Answer;

/// A claim's id, figures at which it holds, and figures at which it does not, for each condition at
/// least one.
type Example = (
    &'static str,
    &'static [&'static [f64]],
    &'static [&'static [f64]],
);

const EXAMPLES: &[Example] = &[
    (
        "copy-against-guard",
        &[&[36.3], &[10.0]],
        &[&[1.1], &[0.03]],
    ),
    ("gain", &[&[0.126], &[0.1]], &[&[0.07], &[-0.2], &[0.16]]),
    ("only-when-all", &[&[14.0]], &[&[13.0], &[0.0]]),
    (
        "linear",
        &[&[0.05, 0.02, 0.1]],
        &[&[0.2, 0.0, 0.0], &[0.0, 0.11, 0.0], &[0.0, 0.0, 0.3]],
    ),
    (
        "data-dominates",
        &[&[0.771, 1.77], &[0.6, 1.1]],
        // Less than half; more than half, but less than of a small message.
        &[&[0.4, 2.0], &[0.6, 0.9]],
    ),
    ("first-page", &[&[1.1457], &[0.9]], &[&[1.2], &[3.0]]),
    (
        "pays-from-one-page",
        &[&[0.138], &[0.99]],
        &[&[1.01], &[30.0]],
    ),
    ("lazy", &[&[2.4], &[3.0]], &[&[0.5], &[-1.0], &[4.0]]),
    ("faster-than-copying", &[&[6.4], &[2.0]], &[&[1.5], &[0.4]]),
    (
        "throughput",
        &[&[39e6, 24.8e6], &[10e9, 2e9]],
        &[&[30e6, 24.8e6], &[39e6, 20e6]],
    ),
    ("more-than-30", &[&[39e6]], &[&[29e6]]),
    ("order-of-magnitude", &[&[10.0], &[8.0]], &[&[7.0], &[0.5]]),
    (
        "synchronous-faster",
        &[&[0.866, 0.84]],
        &[&[1.01, 0.84], &[0.866, 1.02]],
    ),
    (
        "always-open-faster",
        &[&[0.6, 0.6]],
        &[&[1.1, 0.6], &[0.6, 1.1]],
    ),
    (
        "null-below-a-millisecond",
        &[&[0.957e-3], &[5e-6]],
        &[&[1.2e-3]],
    ),
    ("null-comparable", &[&[1.0], &[1.45]], &[&[1.5], &[3.0]]),
    ("closure", &[&[0.01], &[0.1]], &[&[0.17]]),
    (
        "steady",
        &[&[0.855, 0.97]],
        // Few segments with most of the time; many with little of it.
        &[&[0.5, 0.997], &[0.9, 0.6]],
    ),
    (
        "sums",
        &[&[1.034, 0.986, 0.984]],
        &[&[1.2, 1.0, 1.0], &[1.0, 0.8, 1.0], &[1.0, 1.0, 1.11]],
    ),
    ("structure-pays", &[&[162e-6], &[0.0]], &[&[-1e-6]]),
    ("copying-amplified", &[&[-200e-6]], &[&[1e-6]]),
    (
        "forwarders-pass-false",
        &[&[-10e-6, 9e-6], &[-1e-6, 0.0]],
        &[&[10e-6, 9e-6]],
    ),
    (
        "copying-slows-neighbours",
        &[&[1.2, 0.85]],
        // Copying that nobody notices; and moving that slows as much.
        &[&[1.02, 0.99], &[1.2, 1.05]],
    ),
    // Busy siblings that slow what is not unmapped as much are no price of unmapping.
    ("unmapping-beside-siblings", &[&[1.6]], &[&[1.0], &[1.05]]),
    // Places that are found as fast as one address in a queue.
    (
        "polling-many-clients",
        &[&[1.2], &[8.0]],
        &[&[0.7], &[0.99]],
    ),
    ("signal-each-line", &[&[1.2]], &[&[1.0], &[1.05]]),
    // Faster, but not clearly.
    (
        "rpc-faster-than-copying",
        &[&[0.1], &[0.5]],
        &[&[0.97], &[1.02]],
    ),
    (
        "transport-insignificant",
        &[&[1.08, 1.05], &[0.99, 1.1]],
        // It shows in a call that waits for another processor; and in one that never waits.
        &[&[1.17, 1.05], &[1.01, 1.13]],
    ),
    ("timer-small-percentage", &[&[0.0065]], &[&[0.02]]),
    ("mostly-marshalling", &[&[0.571]], &[&[0.2]]),
    ("calls-to-amortise", &[&[432.0]], &[&[4.5], &[99.0]]),
    ("latency-third", &[&[3.27], &[6.4]], &[&[2.4], &[1.0]]),
    (
        "bandwidth-threefold",
        &[&[2.875, 2.875]],
        // One of the two implementations is not enough.
        &[&[0.3, 4.6], &[2.875, 2.4]],
    ),
    (
        "bandwidth-twofold",
        &[&[1.917, 1.917]],
        &[&[0.3, 4.6], &[1.917, 1.6]],
    ),
    ("overhead-quarter", &[&[4.25]], &[&[3.0]]),
    (
        "receive-nothing",
        &[&[1.0, 1.01, 0.99]],
        &[&[1.2, 1.0, 1.0], &[1.0, 1.2, 1.0], &[1.0, 1.0, 1.2]],
    ),
    ("overlap", &[&[0.52], &[0.7]], &[&[0.85], &[1.67]]),
    (
        "close-to-hardware",
        &[&[1.95, 0.697], &[1.6, 0.8]],
        // A call that takes twice what the line does; and a third of the bandwidth.
        &[&[2.1, 0.9], &[1.1, 0.4]],
    ),
    (
        "few-instructions",
        &[&[12.0, 1.0, 0.0]],
        &[&[80.0, 1.0, 0.0], &[12.0, 100.0, 0.0], &[12.0, 1.0, 1.0]],
    ),
    ("dipc-remote-faster", &[&[1.627], &[2.4]], &[&[1.4], &[1.0]]),
    (
        "remote-to-local",
        &[&[9.41, 4.0]],
        // A processor that has become faster than its links, and one that is slower.
        &[&[40.0, 4.0], &[9.41, 31.0], &[2.0, 4.0]],
    ),
    ("slower-locally", &[&[1.445], &[2.0]], &[&[1.0], &[1.25]]),
    ("without-hot-path", &[&[1.9], &[3.0]], &[&[1.0], &[1.5]]),
    ("kkt-near-bare", &[&[0.75], &[0.99]], &[&[0.7]]),
    ("dipc-peak", &[&[0.735], &[1.0]], &[&[0.7], &[0.31]]),
    ("slow-link-saturated", &[&[0.96], &[1.0]], &[&[0.9]]),
    (
        "dipc-above-norma",
        &[&[1.6, 1.01]],
        // Nowhere less, and nowhere noticeably more; and less at some size.
        &[&[1.02, 1.0], &[1.6, 0.9]],
    ),
    ("slower-attack", &[&[2.0], &[20.0]], &[&[1.0], &[0.4]]),
    (
        "four-concurrencies",
        &[&[1.0, 1.1, 1.2, 1.0, 1.25]],
        &[
            &[8.0, 1.0, 1.0, 1.0, 1.0],
            &[1.0, 2.0, 1.0, 1.0, 1.0],
            &[1.0, 1.0, 1.4, 1.0, 1.0],
            &[1.0, 1.0, 1.0, 1.4, 1.0],
            &[1.0, 1.0, 1.0, 1.0, 3.0],
        ],
    ),
    (
        "overlap-to-nodes-only",
        &[&[1.0, 8.0]],
        // One after the other to all; and at once to all.
        &[&[8.0, 8.0], &[1.0, 1.0]],
    ),
    // A notice for which nobody counts; and counting for who did not ask.
    (
        "count-records",
        &[&[2.0, 0.0], &[1.0, 0.0]],
        &[&[0.0, 0.0], &[2.0, 2.0]],
    ),
    (
        "not-overwhelmed",
        &[&[1.1, 0.99, 0.95]],
        &[&[3.0, 0.99, 0.95], &[1.1, 0.5, 0.95], &[1.1, 0.99, 0.2]],
    ),
];

fn points(figures: &[f64]) -> Vec<Option<Estimate>> {
    figures
        .iter()
        .map(|&value| Estimate::exact(value))
        .collect()
}

/// Claims that measurements decide, each with its example.
fn judged() -> Vec<(&'static Claim, Example)> {
    let judged = ALL
        .iter()
        .filter(|claim| matches!(claim.rule, Rule::All(_)));
    judged
        .map(|claim| {
            let example = EXAMPLES.iter().find(|(id, ..)| *id == claim.id);
            let example = example.unwrap_or_else(|| panic!("{} has no example", claim.id));
            (claim, *example)
        })
        .collect()
}

#[test]
fn every_rule_holds_somewhere_and_fails_somewhere() {
    for (claim, (id, holds, fails)) in judged() {
        for (examples, answer) in [(holds, Answer::Holds), (fails, Answer::DoesNotHold)] {
            assert!(!examples.is_empty(), "{id}");
            for figures in examples {
                assert_eq!(figures.len(), claim.rule.conditions().len(), "{id}");
                let verdict = claim.verdict(&points(figures));
                assert_eq!(verdict.by_figures, answer, "{id}: {figures:?}");
                assert_eq!(verdict.holds, answer);
            }
        }
    }
    assert_eq!(judged().len(), EXAMPLES.len(), "an example of no claim");
}

/// Whether nothing can be told by any of these examples where this condition is missed.
fn unfounded(claim: &Claim, at: usize, examples: &[&[f64]]) -> bool {
    let Condition { least, most, .. } = claim.rule.conditions()[at];
    let beyond = least
        .map(|least| least - 1.0)
        .or(most.map(|most| most + 1.0));
    examples.iter().all(|figures| {
        let mut missed = figures.to_vec();
        missed[at] = beyond.expect("every condition has a bound");
        claim.verdict(&points(&missed)).by_figures == Answer::CannotTell
    })
}

#[test]
fn every_condition_can_be_what_a_rule_fails_by() {
    for (claim, (id, holds, fails)) in judged() {
        for (at, condition) in claim.rule.conditions().iter().enumerate() {
            if condition.presumed {
                // It decides nothing: without it nothing is decided.
                assert!(
                    unfounded(claim, at, holds) && unfounded(claim, at, fails),
                    "{id}"
                );
                continue;
            }
            let alone = fails.iter().any(|figures| {
                let mut mended = figures.to_vec();
                mended[at] = holds[0][at];
                claim.verdict(&points(&mended)).by_figures == Answer::Holds
            });
            assert!(alone, "{id}: no example fails by condition {at} alone");
        }
    }
}

#[test]
fn every_rule_cannot_tell_where_measurements_lie_on_both_sides_or_are_missing() {
    for (claim, (id, holds, _)) in judged() {
        for (at, condition) in claim.rule.conditions().iter().enumerate() {
            for bound in [condition.least, condition.most].into_iter().flatten() {
                let mut found = points(holds[0]);
                let spread = bound.abs() * 0.01 + 1e-9;
                found[at] = Estimate::between(bound, bound - spread, bound + spread);
                let verdict = claim.verdict(&found);
                assert_eq!(verdict.by_figures, Answer::CannotTell, "{id}: {bound}");
            }
            let mut found = points(holds[0]);
            found[at] = None;
            assert_eq!(claim.verdict(&found).by_figures, Answer::CannotTell, "{id}");
        }
        assert_eq!(claim.verdict(&[]).by_figures, Answer::CannotTell, "{id}");
    }
}

/// A rule that the paper's own figures do not meet is not the paper's.
#[test]
fn every_claim_holds_by_the_papers_own_figures() {
    for claim in ALL {
        for condition in claim.rule.conditions() {
            if let Some(paper) = condition.paper {
                let met = condition.is_met(Estimate::exact(paper).unwrap());
                assert_eq!(met, Some(true), "{}: {}", claim.id, condition.what);
            }
        }
    }
}

#[test]
fn no_condition_is_met_by_whatever_is_measured() {
    for claim in ALL {
        for Condition {
            what, least, most, ..
        } in claim.rule.conditions()
        {
            assert!(least.is_some() || most.is_some(), "{}: {what}", claim.id);
        }
    }
}

#[test]
fn no_claim_stands_in_the_table_twice() {
    let ids: BTreeSet<&str> = ALL.iter().map(|claim| claim.id).collect();
    assert_eq!(ids.len(), ALL.len(), "an id stands twice");
    let words = |text: &str| {
        text.to_lowercase()
            .replace(|c: char| !c.is_alphanumeric(), "")
    };
    let says: BTreeSet<String> = ALL.iter().map(|claim| words(claim.says)).collect();
    assert_eq!(says.len(), ALL.len(), "a claim stands twice");
    // What decides one claim decides no other: two rules for one figure are two rules for one
    // claim.
    let mut decided = BTreeSet::new();
    for claim in ALL {
        for condition in claim.rule.conditions() {
            assert!(
                decided.insert(condition.what),
                "{} decides two claims",
                condition.what
            );
        }
    }
}

/// Every source file below `directory`, with its text.
fn sources(directory: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path.display().to_string(), text));
        }
    }
}

/// What each experiment is stands in the crate's own place, with every claim.
#[test]
fn the_readme_names_every_experiment_and_every_claim() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let experiments = crate::experiments::ALL.iter().map(|e| e.name);
    for name in experiments {
        assert!(readme.contains(&format!("| `{name}` |")), "{name}");
    }
    for claim in ALL {
        assert!(readme.contains(claim.id), "{}", claim.id);
    }
}

/// An experiment that answered a claim by itself could do it by another rule.
#[test]
fn experiments_make_verdicts_of_claims_of_the_table_only() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/experiments");
    let mut all = Vec::new();
    sources(&directory, &mut all);
    assert!(all.len() > 20);
    for (path, text) in &all {
        for made in ["Verdict {", "Answer::", "Condition {", "Claim {", "Rule::"] {
            let found = text.match_indices(made).any(|(at, _)| {
                // The type of a function's answer is no value.
                !text[..at].ends_with("-> ")
            });
            assert!(!found, "{path} makes a {made} of its own");
        }
    }
    // And each claim of the table is judged by some experiment.
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/claims/table.rs");
    let table = fs::read_to_string(table).unwrap();
    let listed = table.split("const ALL").nth(1).unwrap();
    let listed = listed.split("];").next().unwrap();
    let constants: Vec<&str> = listed
        .split(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'))
        .filter(|word| word.len() > 2)
        .collect();
    assert_eq!(constants.len(), ALL.len());
    for constant in constants {
        let used = format!("table::{constant}");
        assert!(
            all.iter().any(|(_, text)| text.contains(&used)),
            "no experiment judges {constant}"
        );
    }
}
