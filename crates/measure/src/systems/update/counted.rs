//! Counts the instructions and system calls of the process that does an operation.
//!
//! A further process does the operation with an exporter of its own, and is stepped through.

use std::os::fd::AsFd;
use std::time::Duration;

use portolan_sys::process;
use serde::{Deserialize, Serialize};

use super::meter::Meter;
use super::work::Work;
use crate::case::{Case, System};
use crate::child::{Child, Control, readable};
use crate::cpus::{self, Cpus};
use crate::error::{MeasureError, Result};
use crate::run::{Counted, start_server};
use crate::stepped::{self, ROUNDS, instructions, refused, seize, system_calls};
use crate::systems::portolan::join;

/// What the process that is stepped through does.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CountedBrief {
    case: Case,
    cpus: Cpus,
}

/// To the coordinator: what to step through, and how many operations a part has.
#[derive(Debug, Serialize, Deserialize)]
struct Ready {
    thread: u32,
    operations: u64,
}

/// To the child: begin.
#[derive(Debug, Serialize, Deserialize)]
struct Go;

/// Instructions and system calls of a row's operation, each on average; why not, if this system
/// does not let us.
pub(super) fn count(case: &Case, cpus: &Cpus) -> Result<stepped::Counted<Vec<Counted>>> {
    let brief = CountedBrief {
        case: case.clone(),
        cpus: cpus.clone(),
    };
    let mut child = Child::start_counted("counted process", brief)?;
    let Ready { thread, operations } = child.expect()?;
    let counted = seize(thread).and_then(|mut stepper| {
        child.send(&Go).map_err(refused)?;
        let [_, calls] = system_calls(&mut stepper)?;
        let [_, instructions] = instructions(&mut stepper)?;
        Ok([("instructions", instructions), ("system calls", calls)])
    });
    // It says nothing more, so if there is something it is the end.
    let ended = readable(child.control().as_fd(), Some(Duration::ZERO));
    if counted.is_err() && ended.unwrap_or(true) {
        return Err(child.died());
    }
    child.dismiss()?;
    let each = |(what, all): (&str, f64)| Counted {
        what: what.to_owned(),
        value: all / operations.max(1) as f64,
    };
    Ok(counted.map(|both| both.map(each).into()))
}

/// The whole life of the process that is stepped through.
pub(crate) fn serve(brief: &CountedBrief, control: &Control) -> Result<()> {
    let CountedBrief { case, cpus } = brief;
    let System::Update(operation) = case.system else {
        return Err(MeasureError::Gone);
    };
    cpus::pin(cpus.ours)?;
    let domain = join(case, std::process::id())?;
    let mut exporter = start_server(case, cpus)?;
    let mut work = Work::new(case, operation, domain, &mut exporter, cpus)?;
    let (_, operations) = work.sample(&mut exporter, Meter::Marks)?;
    let thread = process::thread();
    control.send(&Ready { thread, operations })?;
    let told: Option<Go> = control.receive()?;
    if told.is_some() {
        // Once for the system calls, and once for the instructions.
        for _ in 0..2 * ROUNDS {
            Meter::Marks.begin().end();
            work.sample(&mut exporter, Meter::Marks)?;
        }
        // Until the coordinator leaves.
        let _: Option<Go> = control.receive()?;
    }
    exporter.dismiss()?;
    drop(work);
    Ok(())
}
