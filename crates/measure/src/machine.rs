//! What a run was measured on.

use std::fmt;
use std::fs;

use portolan_sys::machine;
use serde::Serialize;

use crate::cpus::Cpus;
use crate::sampler::clock_cost;

/// The head of every report.
#[derive(Debug, Serialize)]
pub struct Machine {
    cpu: String,
    cpus: usize,
    cpus_allowed: usize,
    virtual_machine: bool,
    kernel: String,
    memory_bytes: u64,
    huge_pages: String,
    shared_huge_pages: String,
    /// Where the measuring process and the first peer ran.
    pinned: [usize; 2],
    /// What reading the clock once costs; samples are less this.
    clock_ns: u64,
    /// One-minute load before the run. More than a little: something else was running.
    load_before: f64,
}

impl Machine {
    /// Looks at the machine, and at the load that others make.
    pub fn look(cpus: &Cpus) -> Self {
        let found = machine::describe();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            cpu: found.cpu_model,
            cpus: found.cpus,
            cpus_allowed: found.cpus_allowed,
            virtual_machine: found.virtual_machine,
            kernel: found.kernel,
            memory_bytes: found.memory,
            huge_pages: found.huge_pages,
            shared_huge_pages: found.shared_huge_pages,
            pinned: [cpus.ours, cpus.peer(0)],
            clock_ns: u64::try_from(clock_cost().as_nanos()).unwrap_or(0),
            load_before: load
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cpu,
            cpus,
            cpus_allowed,
            kernel,
            pinned: [ours, peer],
            clock_ns,
            load_before,
            ..
        } = self;
        let kind = if self.virtual_machine {
            " (virtual machine)"
        } else {
            ""
        };
        writeln!(
            f,
            "{cpu}{kind}, {cpus} CPUs, {cpus_allowed} usable; Linux {kernel}"
        )?;
        write!(
            f,
            "pinned to CPUs {ours} and {peer}; load before {load_before}; \
             reading the clock costs {clock_ns} ns, which is taken off"
        )
    }
}
