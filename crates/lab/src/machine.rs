//! On what machine, and when, a report was made.

use std::fmt;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use portolan_measure::cpus::Cpus;
use portolan_measure::sampler;
use portolan_sys::machine;
use serde::{Deserialize, Serialize};

/// The head of every report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) cpus_allowed: usize,
    pub(crate) virtual_machine: bool,
    pub(crate) kernel: String,
    pub(crate) memory_bytes: u64,
    /// The settings of transparent huge pages, for private and for shared memory.
    pub(crate) huge_pages: String,
    pub(crate) shared_huge_pages: String,
    /// Where the measuring process and the first other ran.
    pub(crate) pinned: [usize; 2],
    /// What a cache line takes from one of these to the other; tells a near pair of
    /// processors from a far one. Not known with one processor.
    pub(crate) line_seconds: Option<f64>,
    /// What reading the clock once costs.
    pub(crate) clock_seconds: f64,
    /// One-minute load before the run. More than a little: something else was running.
    pub(crate) load_before: f64,
}

impl Machine {
    pub(crate) fn look(cpus: &Cpus) -> Self {
        let found = machine::describe();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            cpu: found.cpu_model,
            cpus: found.cpus,
            // We are pinned by now, and may use but one.
            cpus_allowed: cpus.count(),
            virtual_machine: found.virtual_machine,
            kernel: found.kernel,
            memory_bytes: found.memory,
            huge_pages: found.huge_pages,
            shared_huge_pages: found.shared_huge_pages,
            pinned: [cpus.ours, cpus.peer(0)],
            line_seconds: crate::line::one_way(cpus, 5).map(|line| line.median()),
            clock_seconds: sampler::clock_cost().as_secs_f64(),
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
        match self.line_seconds {
            Some(line) => write!(
                f,
                "pinned to CPUs {ours} and {peer}, {} a cache line apart",
                crate::unit::Unit::Seconds.show(line)
            )?,
            None => write!(f, "pinned to CPU {ours}")?,
        }
        write!(f, "; load before {load_before}")
    }
}

/// This moment, as "2026-02-28 13:05 UTC".
pub(crate) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    utc(since.map_or(0, |since| since.as_secs()))
}

/// A moment in seconds since 1970.
fn utc(seconds: u64) -> String {
    let (days, minutes) = (seconds / 86_400, seconds / 60 % 1440);
    // Years that begin in March, so that a leap day is a year's last; 400 of them have
    // 146,097 days (Hinnant, chrono-compatible low-level date algorithms).
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    format!(
        "{}-{month:02}-{day:02} {:02}:{:02} UTC",
        era * 400 + year + next,
        minutes / 60,
        minutes % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(utc(1_735_689_599), "2024-12-31 23:59 UTC");
    }
}
