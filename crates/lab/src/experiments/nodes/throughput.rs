//! Figure 3: the bandwidth of messages with one extent, by its size, in each mode over each link.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::figure3;
use crate::error::Result;
use crate::experiment::{Context, DIPC, Experiment, Need, Source};
use crate::nodes::far::Punctual;
use crate::nodes::pair::Way;
use crate::nodes::{Mode, NORMA, Wire};
use crate::outcome::Outcome;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "nodes-throughput",
    title: "Bandwidth to another node",
    source: Source {
        paper: DIPC,
        section: "2, Figure 3",
    },
    hypothesis: "No mode but the relay copies a byte that the transport does not, so what they differ \
        in is what they wait for. On a link that takes longer to send a block than to acknowledge it, \
        stopping and waiting costs little once blocks are long; on a faster one each block costs a \
        round trip. Messages cost more than transfers by what is done for each, so their bandwidth \
        should rise later and end at the same height.",
    method: "Messages with one extent of 1 KiB to 64 MiB, or as many bytes in the modes without \
        messages, one behind the other as fast as they are taken: as many as are 4 MiB together, from \
        1 to 256. The time is from the first one until the receiver has the last one. Nobody looks \
        at the bytes. Bare is what the transport's own calls carry, into one prepared range of \
        memory; KKT the same with a head of 32 bytes for each transfer; DIPC the node's engine as it \
        is, from a program's extents into another program's; NORMA the same engine with one message \
        at a time between two nodes and an acknowledgement for each block of 1, 8 or 64 pages; relay \
        a user-level proxy at each end between Unix sockets and KKT's stream, which copies each byte \
        twice. Near and far each have a processor. Each slice has all sizes of all modes of a link; a link \
        has five slices, or as many as begin within 40 seconds and at least three (the page says how many); \
        medians, and ratios within a slice. The size of half of the peak lies on a line between two sizes.",
    needs: &[Need::Cpus(2), Need::Memory(4 << 30)],
    run,
};

pub(super) const WIRES: [Wire; 3] = [Wire::Fast, Wire::Slow, Wire::Loopback];
pub(super) const MODES: [Mode; 7] = [
    Mode::Bare,
    Mode::Kkt,
    Mode::Dipc,
    NORMA,
    Mode::StopAndWait { pages: 8 },
    Mode::StopAndWait { pages: 64 },
    Mode::Relay,
];

/// Bytes of an extent.
const SIZES: [usize; 10] = [
    1 << 10,
    4 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
];
/// Of a quick run.
const QUICK: [usize; 3] = [1 << 10, 32 << 10, 256 << 10];
/// How many slices a link has.
const BOUND: Bound = Bound {
    least: 3,
    most: 5,
    within: Duration::from_secs(40),
};

/// How often something is done: so many times, or as often as it can begin within a time, but a few times
/// at the least.
#[derive(Clone, Copy, Debug)]
struct Bound {
    least: usize,
    most: usize,
    within: Duration,
}

impl Bound {
    /// Whether another one is to begin, after so many that took so long.
    fn goes_on(self, done: usize, elapsed: Duration) -> bool {
        done < self.least || (done < self.most && elapsed < self.within)
    }
}

/// Bytes that go in one measurement, at least, and messages at the most.
const LOT: usize = 4 << 20;
const MESSAGES: usize = 256;
/// Memory of each domain: some of the longest messages.
const LIMIT: u64 = 512 << 20;

/// Seconds that a message takes, by link, mode and size: one figure a slice.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) sizes: Vec<usize>,
    pub(super) times: BTreeMap<(&'static str, &'static str, usize), Vec<f64>>,
}

impl Found {
    /// Of a link and a mode, at a size.
    pub(super) fn times(&self, wire: Wire, mode: Mode, size: usize) -> &[f64] {
        let found = self.times.get(&(wire.id(), mode.name(), size));
        found.map_or(&[], Vec::as_slice)
    }

    /// How many slices a link had.
    pub(super) fn slices(&self, wire: Wire) -> usize {
        let size = self.sizes.first().copied().unwrap_or(0);
        self.times(wire, Mode::Bare, size).len()
    }

    pub(super) fn add(&mut self, wire: Wire, mode: Mode, size: usize, seconds: f64) {
        let key = (wire.id(), mode.name(), size);
        self.times.entry(key).or_default().push(seconds);
    }
}

fn run(context: &Context<'_>) -> Result<Outcome> {
    let _punctual = Punctual::begin();
    let bound = context.pick(
        Bound {
            least: 2,
            most: 2,
            ..BOUND
        },
        BOUND,
    );
    let mut found = Found {
        sizes: context.pick(QUICK.to_vec(), SIZES.to_vec()),
        ..Found::default()
    };
    // At the most.
    context
        .progress
        .begin(WIRES.len() * bound.most * MODES.len());
    for wire in WIRES {
        let ways: Result<Vec<(Mode, Way)>> = MODES
            .into_iter()
            .map(|mode| Ok((mode, Way::start(mode, wire, LIMIT, context.cpus)?)))
            .collect();
        let mut ways = ways?;
        for (_, way) in &mut ways {
            // Memory that was never touched, and windows that were never opened.
            way.stream(*found.sizes.last().unwrap_or(&LOT), 1)?;
        }
        let (mut done, begun) = (0, Instant::now());
        while bound.goes_on(done, begun.elapsed()) {
            done += 1;
            for (mode, way) in &mut ways {
                context
                    .progress
                    .step(format!("{}, {}", mode.name(), wire.name()));
                for size in found.sizes.clone() {
                    let count = context.pick(2, (LOT / size).clamp(1, MESSAGES));
                    let took = way.stream(size, count as u64)?;
                    found.add(wire, *mode, size, took.as_secs_f64() / count as f64);
                }
            }
        }
        for (_, way) in ways {
            way.finish()?;
        }
    }
    Ok(figure3::outcome(&found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_link_has_fewer_slices_and_never_too_few() {
        let slices = |each: Duration| {
            let mut done = 0;
            while BOUND.goes_on(done, each * u32::try_from(done).unwrap()) {
                done += 1;
            }
            done
        };
        assert_eq!(slices(Duration::from_secs(1)), BOUND.most);
        assert_eq!(slices(Duration::from_secs(11)), 4);
        assert_eq!(slices(Duration::from_secs(600)), BOUND.least);
    }
}
