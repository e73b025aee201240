//! Every claim that an experiment judges, with the one rule that decides it.
//!
//! Claims are in our words; figures are the papers'. What *about n* and *n times* of a paper mean is said
//! once, by [`ABOUT`]. A bound that the paper does not give stands with its reason.

use super::{Claim, Condition};
pub(crate) use super::{dash::*, mbm::*, nodes::*, vmmc::*};
use crate::unit::Unit;

/// How far off a figure may be that a paper calls *about n*, or *n times as much*: a quarter of n, or of
/// what *n times* is more than once. The papers themselves are as free: one calls 37 µs about 30, and 2.4
/// about 3.
pub(super) const ABOUT: f64 = 0.25;
/// How much slower is still comparable, or not significant: a tenth.
pub(super) const COMPARABLE: f64 = 1.1;
/// How many times as fast is significantly, or clearly, faster.
pub(super) const SIGNIFICANTLY: f64 = 2.0;
/// How much slower a computation is that notices something: a twentieth.
pub(super) const NOTICED: f64 = 1.05;

pub(super) const fn at_most(what: &'static str, unit: Unit, most: f64, paper: f64) -> Condition {
    Condition {
        what,
        unit,
        least: None,
        most: Some(most),
        paper: Some(paper),
        absent: "",
        presumed: false,
    }
}

pub(super) const fn at_least(what: &'static str, unit: Unit, least: f64, paper: f64) -> Condition {
    Condition {
        what,
        unit,
        least: Some(least),
        most: None,
        paper: Some(paper),
        absent: "",
        presumed: false,
    }
}

pub(super) const fn within(
    what: &'static str,
    unit: Unit,
    [least, most]: [f64; 2],
    paper: f64,
) -> Condition {
    Condition {
        what,
        unit,
        least: Some(least),
        most: Some(most),
        paper: Some(paper),
        absent: "",
        presumed: false,
    }
}

/// *About n.*
pub(super) const fn about(what: &'static str, unit: Unit, n: f64, paper: f64) -> Condition {
    within(what, unit, [n * (1.0 - ABOUT), n * (1.0 + ABOUT)], paper)
}

/// *N times as much*, or more.
pub(super) const fn times(what: &'static str, n: f64, paper: f64) -> Condition {
    at_least(what, Unit::Times, 1.0 + (n - 1.0) * (1.0 - ABOUT), paper)
}

/// *About n times as much*, and no more.
pub(super) const fn about_times(what: &'static str, n: f64, paper: f64) -> Condition {
    let more = n - 1.0;
    let bounds = [1.0 + more * (1.0 - ABOUT), 1.0 + more * (1.0 + ABOUT)];
    within(what, Unit::Times, bounds, paper)
}

/// *Only n times as much*, or less.
pub(super) const fn only_times(what: &'static str, n: f64, paper: f64) -> Condition {
    at_most(what, Unit::Times, 1.0 + (n - 1.0) * (1.0 + ABOUT), paper)
}

/// Of something for which the paper has no figure.
pub(super) const fn unstated(condition: Condition) -> Condition {
    Condition {
        paper: None,
        ..condition
    }
}

/// Of which there is no figure, although all was measured, where this is so.
pub(super) const fn unless(condition: Condition, absent: &'static str) -> Condition {
    Condition {
        absent,
        ..condition
    }
}

/// Without which the rule's other figures say nothing.
pub(super) const fn presumed(condition: Condition) -> Condition {
    Condition {
        presumed: true,
        ..condition
    }
}

/// All of them.
pub(crate) const ALL: &[Claim] = &[
    COPY_AGAINST_GUARD,
    GAIN,
    ONLY_WHEN_ALL,
    LINEAR,
    DATA_DOMINATES,
    FIRST_PAGE,
    PAYS,
    LAZY,
    FASTER_THAN_COPYING,
    RATES,
    MORE_THAN_30,
    ORDER_OF_MAGNITUDE,
    SYNCHRONOUS,
    ALWAYS_OPEN,
    NULL_BELOW,
    NULL_COMPARABLE,
    CLOSURE,
    STEADY,
    SUMS,
    STRUCTURE_PAYS,
    COPYING_AMPLIFIED,
    FORWARDERS_PASS_FALSE,
    COPYING_SLOWS,
    UNMAPPING_DEAR,
    ASYNCHRONOUS_UNMAPPING,
    HALF_OF_SOFTWARE,
    FEWER_TRANSACTIONS,
    POLLING_MANY,
    SIGNAL_EACH_LINE,
    RPC_FASTER,
    TRANSPORT,
    TIMER,
    SOFTWARE_SLOWER_NEAR,
    SOFTWARE_SLOWER_FAR,
    MARSHALLING,
    AMORTISE,
    MODEL_SHARES,
    MODEL_NULL_RPC,
    SIGNALS_MOST,
    THREE_TO_FIVE,
    RISES_WITH_DISTANCE,
    RISES_WITH_SPEED,
    RISES_OVER_A_LINK,
    LATENCY_THIRD,
    BANDWIDTH_THREEFOLD,
    BANDWIDTH_TWOFOLD,
    OVERHEAD_QUARTER,
    RECEIVE_NOTHING,
    OVERLAP,
    CLOSE_TO_HARDWARE,
    FEW_INSTRUCTIONS,
    REMOTE_FASTER,
    REMOTE_TO_LOCAL,
    REMOTE_TO_LOCAL_SLOW,
    SLOWER_LOCALLY,
    WITHOUT_HOT_PATH,
    KKT_NEAR_BARE,
    DIPC_PEAK,
    SLOW_SATURATED,
    ABOVE_NORMA,
    SLOWER_ATTACK,
    FOUR_CONCURRENCIES,
    OVERLAP_TO_NODES,
    NOT_OVERWHELMED,
    COUNT_RECORDS,
];

#[cfg(test)]
mod tests {
    use super::super::{Estimate, Rule};
    use super::*;
    use crate::outcome::Answer;

    #[test]
    fn about_is_within_a_quarter_of_what_the_paper_says() {
        let answer = |condition: Condition, value: f64| {
            let rule = Rule::All(Box::leak(Box::new([condition])));
            let claim = Claim { rule, ..GAIN };
            claim.verdict(&[Estimate::exact(value)]).by_figures
        };
        let cases = [
            (
                about("x", Unit::Share, 0.2, 0.2),
                [0.151, 0.249],
                [0.14, 0.26],
            ),
            // Of what is more than once; and no more than about, where the paper means no more.
            (about_times("x", 5.0, 5.0), [4.0, 6.0], [3.9, 6.1]),
            (times("x", 3.0, 3.0), [2.5, 100.0], [2.4, 1.0]),
            (only_times("x", 1.2, 1.2), [1.25, 0.5], [1.26, 3.0]),
        ];
        for (condition, holds, fails) in cases {
            for value in holds {
                assert_eq!(
                    answer(condition, value),
                    Answer::Holds,
                    "{condition:?} {value}"
                );
            }
            for value in fails {
                assert_eq!(
                    answer(condition, value),
                    Answer::DoesNotHold,
                    "{condition:?} {value}"
                );
            }
        }
    }
}
