//! What a daemon costs that has nothing to do.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use portolan_measure::processor_time;

use super::lanes::Ratio;
use super::places::Pair;
use super::table::{Row, Unit};
use crate::bench::budget::{Budget, Measure};
use crate::error::{CliError, Result};

const IDLE: Budget = Budget::new(
    "idle node, share of a processor",
    Measure::Percent,
    0.5,
    Some(0.1),
);

/// The daemons of a pair, of which nothing is asked for so long.
pub(super) fn measure(pair: &Pair, time: Duration, progress: &ProgressBar) -> Result<Vec<Row>> {
    progress.set_message("idle nodes");
    let doing = "reading what a node has spent";
    let spent = |node: u32| {
        let spent = processor_time(node).ok_or(std::io::ErrorKind::NotFound);
        spent.map_err(CliError::system(doing))
    };
    let before = [spent(pair.nodes[0])?, spent(pair.nodes[1])?];
    let begun = Instant::now();
    std::thread::sleep(time);
    let elapsed = begun.elapsed().as_nanos() as f64;
    let mut shares = [0.0; 2];
    for ((node, before), share) in pair.nodes.into_iter().zip(before).zip(&mut shares) {
        *share = 100.0 * spent(node)?.saturating_sub(before) as f64 / elapsed;
    }
    progress.inc(1);
    let [lower, upper] = [shares[0].min(shares[1]), shares[0].max(shares[1])];
    let case = format!("nothing, for {:.0} s", time.as_secs_f64());
    let row = Row::figure(&case, pair.over.name(), Unit::Percent, upper);
    let row = row.waiting("asleep", "any processor").noted(format!(
        "of two linked daemons, {lower:.3} and {upper:.3} % of a processor"
    ));
    let both = Ratio {
        median: upper,
        range: [upper, upper],
    };
    Ok(vec![row.judged(both, IDLE)])
}
