//! Instructions that a node spends on a message's bytes, by stepping through it: none, but for its
//! fragments.

use std::time::Duration;

use indicatif::ProgressBar;
use portolan_measure::{cpus, out, stepped};
use portolan_sys::process::ThreadFd;

use super::lanes::Ratio;
use super::places::{Over, Pair, Pinning, pin};
use super::server::{Brief, CALL, LAST};
use super::streams;
use super::table::{Row, Unit};
use crate::bench::budget::{Budget, Measure};
use crate::error::{CliError, Result};

const FRAGMENTS: Budget = Budget::new(
    "a fragment more, to a fragment of 1 MiB, instructions",
    Measure::Yardstick,
    1.0,
    None,
);

/// The Unix signal of a mark, which does nothing else.
const MARK: i32 = 23;
/// How long a node has for what comes behind a message.
const SETTLED: Duration = Duration::from_millis(200);
const SMALL: u64 = 1 << 20;

/// A pair's nodes: who sends, who receives.
const SIDES: [&str; 2] = ["node that sends", "node that receives"];

/// Messages of 1 MiB and of so many bytes; or why nothing was counted.
pub(super) fn measure(
    pinning: Pinning,
    large: u64,
    progress: &ProgressBar,
) -> Result<std::result::Result<Vec<Row>, String>> {
    if cfg!(debug_assertions) {
        let why =
            "a build without optimisation takes so many that stepping through them has no end";
        return Ok(Err(why.to_owned()));
    }
    let size = out::size(large);
    progress.set_message(format!("instructions of a message of {size}"));
    cpus::pin(pinning.near)?;
    let limit = 4 * large.max(32 << 20);
    // A copy would be a loop, and not one instruction that repeats itself.
    let plain = Some(portolan_measure::instructions::PLAIN);
    let pair = Pair::engines(Over::Tcp, [limit, limit], plain)?;
    pinning.pin(&pair)?;
    let (mut server, right) = pair.serve(|domain, port| Brief::Sink { domain, port })?;
    pin(server.id(), pinning.far)?;
    let length = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut send = |bytes: u64| {
        streams::send(&pair.domains[0], &right, length(bytes), LAST)?;
        server.done()
    };
    let mut rows = Vec::new();
    for (side, node) in SIDES.into_iter().zip(pair.nodes) {
        let mut counted = [0; 2];
        for (bytes, counted) in [SMALL, large].into_iter().zip(&mut counted) {
            send(bytes)?;
            match count(node, pinning, || send(bytes))? {
                Ok(instructions) => *counted = instructions,
                Err(why) => return Ok(Err(why)),
            }
            progress.inc(1);
        }
        let fragments = |bytes: u64| (bytes / CALL as u64) as f64;
        let [few, many] = counted.map(|count| count as f64);
        let more = (many - few) / (fragments(large) - fragments(SMALL));
        let of_few = few / fragments(SMALL);
        let case = format!("256 KiB more, {} to {size}: {side}", out::size(SMALL));
        let row = Row::figure(&case, Over::Tcp.name(), Unit::Instructions, more);
        let row = row.waiting("asleep", pinning.name()).noted(format!(
            "{few:.0} of 1 MiB, {many:.0} of {size}, in user mode; a copy of 256 KiB takes 16,384 stores of 16 bytes"
        ));
        let ratio = Ratio {
            median: more / of_few,
            range: [more / of_few; 2],
        };
        let to = "a fragment of 1 MiB";
        rows.push(row.against(to, Some(ratio), Some(FRAGMENTS)));
    }
    Ok(Ok(rows))
}

/// Instructions of a node's thread in user mode, from before `work` until all that comes behind it is done.
fn count(
    node: u32,
    pinning: Pinning,
    work: impl FnOnce() -> Result<()> + Send,
) -> Result<stepped::Counted<u64>> {
    let doing = "marking where a count begins";
    let thread = ThreadFd::open(node).map_err(CliError::system(doing))?;
    let mark = || thread.send(MARK, 0).map_err(CliError::system(doing));
    let mut stepper = match stepped::seize(node) {
        Ok(stepper) => stepper,
        Err(why) => return Ok(Err(why)),
    };
    mark()?;
    if let Err(why) = stepper.run_to_mark() {
        return Ok(Err(stepped::refused(why)));
    }
    std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            cpus::pin(pinning.near)?;
            let done = work();
            std::thread::sleep(SETTLED);
            // Also if it has failed: otherwise the count would not end.
            mark().and(done)
        });
        let counted = stepped::to_mark(&mut stepper, stepped::What::Instructions);
        let done = working.join();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(counted)
    })
}
