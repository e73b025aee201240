//! Says on what machine, and when, a report was made.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use portolan_measure::cpus::Cpus;
use portolan_measure::machine::Facts;
use portolan_measure::sampler;
use serde::{Deserialize, Serialize};

/// The head of every report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    #[serde(flatten)]
    pub(crate) facts: Facts,
    /// What a cache line takes from one of our processors to the other; tells a near pair
    /// from a far one. Not known with one processor.
    pub(crate) line_seconds: Option<f64>,
    /// What reading the clock once costs.
    pub(crate) clock_seconds: f64,
}

impl Machine {
    pub(crate) fn look(cpus: &Cpus) -> Self {
        Self {
            facts: Facts::look(cpus),
            line_seconds: crate::line::one_way(cpus, 5).map(|line| line.median()),
            clock_seconds: sampler::clock_cost().as_secs_f64(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ours, peer] = self.facts.pinned;
        writeln!(f, "{}", self.facts)?;
        match self.line_seconds {
            Some(line) => write!(
                f,
                "pinned to CPUs {ours} and {peer}, {} a cache line apart",
                crate::unit::Unit::Seconds.show(line)
            )?,
            None => write!(f, "pinned to CPU {ours}")?,
        }
        write!(f, "; load before {}", self.facts.load_before)
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
