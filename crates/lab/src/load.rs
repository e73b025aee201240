//! Measures how much of the machine others take while an experiment runs.

use std::fs;
use std::time::Instant;

use portolan_sys::machine;

/// Processors that others may take before a figure decides nothing.
pub(crate) const BUSY: f64 = 0.5;

/// A moment, and the processor time until then.
pub(crate) struct Watch {
    since: Instant,
    /// Seconds of all processes, if the system tells.
    all: Option<f64>,
    /// Seconds of this program and of its ended children.
    ours: f64,
}

impl Watch {
    pub(crate) fn start() -> Self {
        Self {
            since: Instant::now(),
            all: all(),
            ours: ours(),
        }
    }

    /// Processors that others took since the start, on average. None where the system does not
    /// tell.
    pub(crate) fn others(&self) -> Option<f64> {
        let all = all()? - self.all?;
        Some(part(
            all,
            ours() - self.ours,
            self.since.elapsed().as_secs_f64(),
        ))
    }
}

/// What others have of so many seconds: the counters of all are coarse, and may lag behind ours.
fn part(all: f64, ours: f64, seconds: f64) -> f64 {
    ((all - ours) / seconds.max(1e-3)).max(0.0)
}

fn ours() -> f64 {
    (machine::cpu_time() + machine::children_cpu_time()).as_secs_f64()
}

fn all() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    Some(busy(&stat)? / rustix::param::clock_ticks_per_second() as f64)
}

/// Ticks that all processors were at work for processes, or taken away by a hypervisor. Interrupts
/// are left out: those that our own work causes are charged to no process.
fn busy(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<f64> = line
        .split_ascii_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    // User, nice, system; idle, waiting, interrupts, soft interrupts; stolen.
    let [user, nice, system, ..] = ticks[..] else {
        return None;
    };
    Some(user + nice + system + ticks.get(7).unwrap_or(&0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_busy_is_neither_idle_nor_an_interrupt() {
        let stat = "cpu  10 20 30 1000 500 7 8 40 5 5\ncpu0 1 1 1 1\nintr 5\n";
        assert_eq!(busy(stat), Some(100.0));
        assert_eq!(busy("cpu  1 2 3 4\n"), Some(6.0));
        assert_eq!(busy("cpu0 1 2 3 4\n"), None);
    }

    #[test]
    fn what_is_ours_is_not_the_others() {
        assert_eq!(part(3.0, 1.0, 4.0), 0.5);
        assert_eq!(part(0.9, 1.0, 4.0), 0.0);
        // This machine tells, or it does not; we are not the others.
        let watch = Watch::start();
        if let Some(others) = watch.others() {
            assert!(others >= 0.0, "{others}");
        }
    }
}
