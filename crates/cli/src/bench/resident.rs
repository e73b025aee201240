//! `portolan bench memory` measures the memory of a process that has joined a domain and does
//! nothing.
//!
//! Peers are this program, parked on their control sockets: some have joined a domain,
//! the others have not. Each says how much of its memory is resident.

use std::time::Duration;

use portolan_measure::Result;
use portolan_measure::case::{Case, Shape};
use portolan_measure::cpus::Cpus;
use portolan_measure::run::{self, Resident};
use portolan_measure::sampler::{Sampler, median};

use super::{Entry, Measured};

/// Processes of each kind; the median of one kind counts.
const PROCESSES: usize = 5;

/// The rows of `limit` and `entries`; all of them are of [`Shape::Idle`].
pub(crate) fn measure(limit: &Case, entries: &[Entry], cpus: &Cpus) -> Result<Vec<Measured>> {
    let (empty, first) = one(&Entry::new(limit.clone()), None, cpus)?;
    let mut rows = vec![first];
    for entry in entries {
        rows.push(one(entry, Some(empty), cpus)?.1);
    }
    Ok(rows)
}

fn one(entry: &Entry, empty: Option<f64>, cpus: &Cpus) -> Result<(f64, Measured)> {
    assert_eq!(entry.case.shape, Shape::Idle);
    // It counts whatever it is given; here bytes instead of picoseconds.
    let mut sampler = Sampler::new(Duration::ZERO);
    let mut all = Vec::new();
    for _ in 0..PROCESSES {
        let Resident { bytes } = run::resident(&entry.case, cpus)?;
        all.push(bytes as f64);
        sampler.count(bytes);
    }
    sampler.close_slice();
    let middle = median(all).unwrap_or(f64::NAN);
    let measured = Measured {
        case: entry.case.clone(),
        figures: sampler.figures().expect("one process at least"),
        ratio_to_limit: empty.map_or(1.0, |empty| middle / empty),
        yardstick: None,
        counted: Vec::new(),
        uncounted: None,
        tag: entry.tag,
    };
    Ok((middle, measured))
}
