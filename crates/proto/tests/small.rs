//! A small world of each kind. What `lossy` does at length, in a size that Miri has the
//! time for.
#![allow(clippy::cast_possible_truncation, reason = "small numbers, in a test")]

// Of a larger room: not all of it is used here.
#[allow(dead_code, reason = "shared with tests that use the rest")]
mod world;

use portolan_proto::Settings;
use std::time::Duration;
use world::{Faults, Plan, run};

const CALLS: u64 = if cfg!(miri) { 5 } else { 12 };

#[test]
fn all_is_answered_where_the_way_is_good_and_where_it_is_not() {
    for share in [0, 300] {
        let counts = run(Plan::new(1, Faults::all(share), CALLS));
        assert_eq!((counts.answered, counts.ran), (CALLS, CALLS), "{share}");
    }
}

#[test]
fn pieces_one_way_calls_and_deadlines() {
    let plan = Plan {
        longest: 200,
        one_way: 300,
        best_effort: 200,
        cancelled: 100,
        deadline: Some(Duration::from_millis(35)),
        settings: Settings {
            burst: 3,
            ..Settings::default()
        },
        ..Plan::new(2, Faults::all(200), CALLS)
    };
    let counts = run(plan);
    let ended = counts.answered + counts.deadline + counts.cancelled + counts.one_way;
    assert_eq!(ended, CALLS, "{counts:?}");
}

#[test]
fn a_server_moves_and_another_takes_its_place() {
    let plan = Plan {
        moves: 2,
        deaths: 2,
        work: Duration::from_millis(5),
        ..Plan::new(3, Faults::all(100), CALLS)
    };
    let counts = run(plan);
    assert_eq!(counts.answered + counts.server_died, CALLS, "{counts:?}");
}
