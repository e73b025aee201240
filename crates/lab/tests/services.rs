//! The chain of services and the neighbour: every row is there, and verdicts follow from
//! the figures beside them.
//!
//! Experiments run in their quick size; what is checked is structure, never a time.

mod support;

use support::{
    array, cell, figures_are_sound, follows_from, quick, rows, table, verdict, why_left_out,
};

#[test]
fn a_chain_has_every_length_for_every_carrier() {
    let outcome = quick("chain", &[]);
    figures_are_sound(&outcome);
    for id in ["chain-64k", "chain-2m"] {
        let table = table(&outcome, id).unwrap();
        assert_eq!(
            rows(table),
            [
                "guarded, opened by the client",
                "guarded, opened by everybody",
                "guarded, opened by touch",
                "trusted",
                "pipes",
                "unix sockets",
            ]
        );
        for row in rows(table) {
            for column in ["no forwarder", "1", "2", "3", "4", "each forwarder"] {
                assert!(cell(table, row, column)["here"].is_f64(), "{row}, {column}");
            }
        }
        let plots = array(&outcome["plots"]);
        let plot = plots.iter().find(|plot| plot["id"] == id).unwrap();
        for series in array(&plot["series"]) {
            assert_eq!(array(&series["points"]).len(), 5, "{series}");
        }
    }
    let amplified = verdict(&outcome, "copying-amplified");
    follows_from(amplified, "2 MiB, guarded less copied", 0.0);
    let hint = verdict(&outcome, "forwarders-pass-false");
    follows_from(hint, "64 KiB, closed less opened", 0.0);
}

#[test]
fn a_chain_without_guarded_domains_hands_over_and_copies() {
    let outcome = quick("chain", &["--without", "guarded"]);
    assert!(why_left_out(&outcome, "guarded domains").contains("--without guarded"));
    let table = table(&outcome, "chain-64k").unwrap();
    assert_eq!(rows(table), ["trusted", "pipes", "unix sockets"]);
    assert_eq!(
        verdict(&outcome, "copying-amplified")["holds"],
        "cannot tell"
    );
}
