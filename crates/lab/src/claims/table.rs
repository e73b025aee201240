//! Every claim that an experiment judges, with the one rule that decides it.
//!
//! Claims are in our words; figures are the papers'. *About n* and *n times* of a paper mean what
//! rounds to n, or more. A bound that the paper does not give stands with its reason.

use super::{Claim, Condition};
pub(crate) use super::{dash::*, mbm::*, nodes::*, vmmc::*};
use crate::unit::Unit;

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
    }
}

pub(super) const fn at_least(what: &'static str, unit: Unit, least: f64, paper: f64) -> Condition {
    Condition {
        what,
        unit,
        least: Some(least),
        most: None,
        paper: Some(paper),
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
    }
}

/// Of something for which the paper has no figure.
pub(super) const fn unstated(condition: Condition) -> Condition {
    Condition {
        paper: None,
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
