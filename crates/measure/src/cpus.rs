//! Chooses the processors on which the processes of a benchmark run.

use std::fs;

use portolan_sys::machine;
use serde::{Deserialize, Serialize};

use crate::error::{MeasureError, Result};

/// The CPUs of a run. The measuring process has one to itself if there are two.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cpus {
    /// Where the measuring process runs.
    pub ours: usize,
    /// Where the peers go, by seat; never empty.
    others: Vec<usize>,
}

impl Cpus {
    /// Chooses among the CPUs that this process may use. The first peer gets another
    /// core, not our core's second thread, where there is one.
    pub fn choose() -> Self {
        let allowed = machine::cpus_allowed();
        let ours = allowed.first().copied().unwrap_or(0);
        let siblings = siblings(ours);
        let mut others: Vec<usize> = allowed.iter().copied().filter(|&cpu| cpu != ours).collect();
        others.sort_by_key(|cpu| siblings.contains(cpu));
        if others.is_empty() {
            others.push(ours);
        }
        Self { ours, others }
    }

    /// Where the peer of seat `seat` runs; seats share CPUs once there are no more.
    pub fn peer(&self, seat: u32) -> usize {
        let seat = usize::try_from(seat).unwrap_or(0);
        self.others[seat % self.others.len()]
    }

    /// One that shares no cache with ours, if there is one that this process may use.
    pub fn far(&self) -> Option<usize> {
        let shared = sharing(self.ours);
        let far = |cpu: &&usize| !shared.is_empty() && !shared.contains(cpu);
        self.others.iter().find(far).copied()
    }

    /// How many this process may use.
    pub fn count(&self) -> usize {
        if self.single() {
            1
        } else {
            1 + self.others.len()
        }
    }

    /// Lets the calling thread, and processes that it starts, run on all of them again.
    pub fn unpin(&self) -> Result<()> {
        let mut all = self.others.clone();
        all.push(self.ours);
        machine::keep_on(&all).map_err(MeasureError::system("letting a process run on all CPUs"))
    }

    /// Whether everything must share one CPU.
    pub fn single(&self) -> bool {
        self.others == [self.ours]
    }
}

/// Keeps this process (its calling thread, before it starts others) on `cpu`.
pub fn pin(cpu: usize) -> Result<()> {
    machine::pin(cpu).map_err(MeasureError::system("pinning a process to a CPU"))
}

/// The threads of `cpu`'s core, itself included; empty where the kernel does not tell.
fn siblings(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    parse_list(&fs::read_to_string(path).unwrap_or_default())
}

/// Those that share the largest cache of `cpu`, itself included; empty where the kernel does
/// not tell.
fn sharing(cpu: usize) -> Vec<usize> {
    let list = |index: u32| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{index}/shared_cpu_list");
        fs::read_to_string(path).ok()
    };
    // They are numbered from the smallest.
    let largest = (0..8).rev().find_map(list);
    parse_list(&largest.unwrap_or_default())
}

/// A kernel list such as `0-1,8`.
fn parse_list(list: &str) -> Vec<usize> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            cpus.extend(first..=last);
        }
    }
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_lists_parse() {
        assert_eq!(parse_list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(parse_list(""), Vec::<usize>::new());
    }
}
