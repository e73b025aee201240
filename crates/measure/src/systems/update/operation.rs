//! Measures a row of operations: one process does them, and times the part that the row is about;
//! another, parked meanwhile, exports the memory.

use std::time::{Duration, Instant};

use super::counted::count;
use super::meter::Meter;
use super::spent::processor_time;
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
    /// What the exporter's processor time is counted of: since when, and for how many updates.
    spent: Option<Spent>,
    /// The same of the last slice, by update.
    received: Option<f64>,
    /// What is counted by stepping, and where.
    stepped: Option<(Case, Cpus)>,
    /// What was.
    counted: Vec<Counted>,
    uncounted: Option<String>,
}

struct Spent {
    before: Option<u64>,
    updates: u64,
}

/// Starts the exporter, imports its memory, and does the operation once.
pub(crate) fn start(case: &Case, operation: Update, cpus: &Cpus) -> Result<Box<dyn Run>> {
    let domain = join(case, std::process::id())?;
    let mut exporter = start_server(case, cpus)?;
    let mut work = Work::new(case, operation, domain, &mut exporter, cpus)?;
    work.sample(&mut exporter, Meter::Clock)?;
    let spent = (operation == Update::Receiver).then(|| Spent {
        before: processor_time(exporter.id()),
        updates: 0,
    });
    Ok(Box::new(Operations {
        work,
        exporter,
        spent,
        received: None,
        stepped: operation
            .is_counted(case.bytes)
            .then(|| (case.clone(), cpus.clone())),
        counted: Vec::new(),
        uncounted: None,
    }))
}

impl Operations {
    fn sample(&mut self) -> Result<(Duration, u64)> {
        let sample = self.work.sample(&mut self.exporter, Meter::Clock)?;
        if let Some(spent) = &mut self.spent {
            spent.updates += sample.1;
        }
        Ok(sample)
    }

    /// What the exporter has spent on each update, in nanoseconds.
    fn exporters_time(&self) -> Option<f64> {
        let Spent { before, updates } = self.spent.as_ref()?;
        let all = processor_time(self.exporter.id())?.saturating_sub((*before)?);
        Some(all as f64 / (*updates).max(1) as f64)
    }
}

impl Run for Operations {
    fn rounds(&mut self, rounds: u64) -> Result<()> {
        for _ in 0..rounds {
            self.sample()?;
        }
        Ok(())
    }

    fn slice(&mut self, budget: Duration, sampler: &mut Sampler) -> Result<()> {
        let before = processor_time(self.exporter.id());
        let start = Instant::now();
        // Once unrecorded: others have had the caches meanwhile.
        let (_, mut all) = self.sample()?;
        loop {
            let (elapsed, operations) = self.sample()?;
            sampler.typical(elapsed, operations);
            sampler.tail(elapsed, operations);
            all += operations;
            if start.elapsed() >= budget {
                break;
            }
        }
        let after = processor_time(self.exporter.id());
        let spent = after.zip(before).map(|(a, b)| a.saturating_sub(b));
        self.received = spent.map(|spent| spent as f64 / all as f64);
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        if let Some((case, cpus)) = &self.stepped {
            match count(case, cpus)? {
                Ok(counts) => self.counted = counts,
                Err(why) => self.uncounted = Some(why),
            }
        }
        Ok(())
    }

    fn counted(&self) -> Vec<Counted> {
        let exporters = self.exporters_time().map(|value| Counted {
            what: EXPORTER.to_owned(),
            value,
        });
        exporters.into_iter().chain(self.counted.clone()).collect()
    }

    fn received(&self) -> Option<f64> {
        self.received
    }

    fn uncounted(&self) -> Option<String> {
        self.uncounted.clone()
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self { work, exporter, .. } = *self;
        exporter.dismiss()?;
        drop(work);
        Ok(())
    }
}
