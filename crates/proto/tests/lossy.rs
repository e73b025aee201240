//! Calls over a way that loses, repeats, damages and delays: each ends in its result or an
//! error, and none runs twice.
// Miri would take hours: it has `small`.
#![cfg(not(miri))]
#![allow(clippy::cast_possible_truncation, reason = "small numbers, in a test")]

mod world;

use portolan_proto::Settings;
use proptest::prelude::*;
use std::time::Duration;
use world::{Faults, Plan, run};

#[test]
fn nothing_is_lost_and_nothing_is_asked_where_the_way_is_good() {
    let counts = run(Plan::new(1, Faults::default(), 2000));
    assert_eq!((counts.answered, counts.ran, counts.asked), (2000, 2000, 0));
}

#[test]
fn every_call_is_answered_at_1_10_and_50_percent_of_each_fault() {
    for share in [10, 100, 500] {
        for seed in 0..4 {
            let counts = run(Plan::new(seed, Faults::all(share), 200));
            assert_eq!((counts.answered, counts.ran), (200, 200), "{share} {seed}");
            assert!(counts.asked > 0, "{share}: nothing was asked for");
        }
    }
}

#[test]
fn with_deadlines_every_call_ends_in_its_result_or_in_that() {
    for share in [10, 100, 500] {
        let mut late = 0;
        for seed in 0..4 {
            let plan = Plan {
                deadline: Some(Duration::from_millis(35)),
                ..Plan::new(seed, Faults::all(share), 200)
            };
            let counts = run(plan);
            assert_eq!(counts.answered + counts.deadline, 200);
            late += counts.deadline;
        }
        assert!(share < 500 || late > 0, "a deadline was never tested");
    }
}

#[test]
fn who_was_stopped_goes_on_where_it_was_with_much_due_at_once() {
    for share in [0, 10, 100, 500] {
        for seed in 0..16 {
            let plan = Plan {
                deadline: Some(Duration::from_millis(35)),
                one_way: 200,
                stops: 50,
                ..Plan::new(seed, Faults::all(share), 300)
            };
            run(plan);
        }
    }
}

#[test]
fn messages_longer_than_the_channel_come_through() {
    for share in [0, 10, 100, 500] {
        let plan = Plan {
            longest: 20_000,
            settings: Settings {
                burst: 16,
                ..Settings::default()
            },
            ..Plan::new(share, Faults::all(share), 40)
        };
        assert_eq!(run(plan).answered, 40, "{share}");
    }
}

#[test]
fn calls_that_take_longer_than_the_period_are_acknowledged_and_seldom_asked_about() {
    let plan = Plan {
        work: Duration::from_secs(20),
        ..Plan::new(3, Faults::default(), 50)
    };
    let counts = run(plan);
    assert_eq!(counts.answered, 50);
    // Every 10 ms it would be 50,000.
    assert!(counts.asked < 2000, "{counts:?}");
}

#[test]
fn one_way_calls_run_once_each_although_nobody_waits() {
    for share in [0, 10, 100, 500] {
        let plan = Plan {
            one_way: 700,
            ..Plan::new(share, Faults::all(share), 300)
        };
        let counts = run(plan);
        assert_eq!(counts.ran, 300, "{counts:?}");
    }
}

#[test]
fn best_effort_is_never_asked_for() {
    let plan = Plan {
        best_effort: 1000,
        one_way: 500,
        ..Plan::new(5, Faults::all(100), 2000)
    };
    let counts = run(plan);
    // Only whether the server is still there, after a deadline.
    assert!(counts.asked <= counts.deadline, "{counts:?}");
    assert!(counts.deadline > 0 && counts.answered > 400, "{counts:?}");
}

#[test]
fn a_server_whose_state_moves_loses_nothing() {
    for share in [0, 100, 500] {
        let plan = Plan {
            moves: 20,
            longest: 200,
            ..Plan::new(share, Faults::all(share), 200)
        };
        let counts = run(plan);
        assert_eq!((counts.answered, counts.ran), (200, 200));
    }
}

#[test]
fn a_server_that_dies_ends_what_was_open_and_nothing_runs_twice() {
    for share in [0, 10, 100, 500] {
        let plan = Plan {
            deaths: 5,
            work: Duration::from_millis(5),
            ..Plan::new(share, Faults::all(share), 200)
        };
        let counts = run(plan);
        assert_eq!(counts.answered + counts.server_died, 200);
        assert!(counts.server_died > 0, "{counts:?}");
    }
}

/// 32, or what the environment says.
fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(32)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_no_call_runs_twice_and_each_ends(
        seed in any::<u32>(),
        faults in (0_u64..600, 0_u64..600, 0_u64..600, 0_u64..600),
        mix in (0_u64..300, 0_u64..300, 0_u64..300),
        longest in prop_oneof![Just(16_u64), Just(300), Just(3000)],
        packet in prop_oneof![Just(48_usize), Just(112), Just(1000)],
        burst in 1_u32..70,
        deadline in prop_oneof![Just(None), (1_u64..200).prop_map(Some)],
        work in prop_oneof![Just(10_u64), Just(30_000)],
        changes in (0_u64..4, 0_u64..4),
        stops in prop_oneof![Just(0_u64), 0_u64..100],
    ) {
        let plan = Plan {
            settings: Settings { packet, burst, ..Settings::default() },
            longest,
            best_effort: mix.0,
            one_way: mix.1,
            cancelled: mix.2,
            deadline: deadline.map(Duration::from_millis),
            work: Duration::from_micros(work),
            moves: changes.0,
            deaths: changes.1,
            stops,
            ..Plan::new(
                u64::from(seed),
                Faults { lost: faults.0, repeated: faults.1, damaged: faults.2, delayed: faults.3 },
                100,
            )
        };
        run(plan);
    }
}
