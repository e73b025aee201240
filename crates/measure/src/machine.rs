//! Describes the machine that a run was measured on.

use std::fmt;
use std::fs;

use portolan_sys::machine;
use serde::{Deserialize, Serialize};

use crate::cpus::Cpus;
use crate::sampler::clock_cost;

/// A machine, and where on it a run was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// What the processor calls itself.
    pub cpu: String,
    /// How many there are.
    pub cpus: usize,
    /// How many may be used.
    pub cpus_allowed: usize,
    /// It is not a real machine.
    pub virtual_machine: bool,
    /// The kernel's version.
    pub kernel: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The setting of transparent huge pages, for private memory.
    pub huge_pages: String,
    /// The same, for shared memory.
    pub shared_huge_pages: String,
    /// Where the measuring process and the first other ran.
    pub pinned: [usize; 2],
    /// One-minute load before the run. More than a little: something else was running.
    pub load_before: f64,
}

impl Facts {
    /// Looks at the machine, and at the load that others make.
    pub fn look(cpus: &Cpus) -> Self {
        let found = machine::describe();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            cpu: found.cpu_model,
            cpus: found.cpus,
            // We may be pinned by now, and use but one.
            cpus_allowed: cpus.count(),
            virtual_machine: found.virtual_machine,
            kernel: found.kernel,
            memory_bytes: found.memory,
            huge_pages: found.huge_pages,
            shared_huge_pages: found.shared_huge_pages,
            pinned: [cpus.ours, cpus.peer(0)],
            load_before: load
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
        }
    }
}

/// One line: processor, processors, kernel.
impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cpu,
            cpus,
            cpus_allowed,
            kernel,
            ..
        } = self;
        let kind = if self.virtual_machine {
            " (virtual machine)"
        } else {
            ""
        };
        write!(
            f,
            "{cpu}{kind}, {cpus} CPUs, {cpus_allowed} usable; Linux {kernel}"
        )
    }
}

/// The head of every report of `portolan bench`.
#[derive(Debug, Serialize)]
pub struct Machine {
    #[serde(flatten)]
    facts: Facts,
    /// What reading the clock once costs; samples are less this.
    clock_ns: u64,
}

impl Machine {
    /// Looks at the machine, and at its clock.
    pub fn look(cpus: &Cpus) -> Self {
        Self {
            facts: Facts::look(cpus),
            clock_ns: u64::try_from(clock_cost().as_nanos()).unwrap_or(0),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { facts, clock_ns } = self;
        let ([ours, peer], load_before) = (facts.pinned, facts.load_before);
        write!(
            f,
            "{facts}\npinned to CPUs {ours} and {peer}; load before {load_before}; \
             reading the clock costs {clock_ns} ns, which is taken off"
        )
    }
}
