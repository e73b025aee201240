//! A row of operations: one process does them, and times the part that the row is about; what
//! they are done to is exported by another, which is parked meanwhile.

use std::time::{Duration, Instant};

use super::work::Work;
use crate::case::Case;
use crate::case::update::Update;
use crate::child::Child;
use crate::cpus::Cpus;
use crate::error::Result;
use crate::run::{Counted, Run, start_server};
use crate::sampler::Sampler;
use crate::systems::portolan::join;

/// Processor time of the exporter, in nanoseconds.
pub(super) const EXPORTER: &str = "exporter ns";

struct Operations {
    work: Work,
    exporter: Child,
}

/// Starts the exporter, imports its memory, and does the operation once.
pub(crate) fn start(case: &Case, operation: Update, cpus: &Cpus) -> Result<Box<dyn Run>> {
    let domain = join(case, std::process::id())?;
    let mut exporter = start_server(case, cpus)?;
    let mut work = Work::new(case, operation, domain, &mut exporter, cpus)?;
    work.sample(&mut exporter)?;
    work.begin();
    Ok(Box::new(Operations { work, exporter }))
}

impl Run for Operations {
    fn rounds(&mut self, rounds: u64) -> Result<()> {
        for _ in 0..rounds {
            self.work.sample(&mut self.exporter)?;
        }
        Ok(())
    }

    fn slice(&mut self, budget: Duration, sampler: &mut Sampler) -> Result<()> {
        let start = Instant::now();
        // Once unrecorded: others have had the caches meanwhile.
        self.work.sample(&mut self.exporter)?;
        loop {
            let (elapsed, operations) = self.work.sample(&mut self.exporter)?;
            sampler.typical(elapsed, operations);
            sampler.tail(elapsed, operations);
            if start.elapsed() >= budget {
                return Ok(());
            }
        }
    }

    fn counted(&self) -> Vec<Counted> {
        let count = self.work.exporters_time();
        count
            .map(|value| Counted {
                what: EXPORTER.to_owned(),
                value,
            })
            .into_iter()
            .collect()
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self { work, exporter } = *self;
        exporter.dismiss()?;
        drop(work);
        Ok(())
    }
}
