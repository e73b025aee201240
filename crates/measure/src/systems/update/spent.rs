//! Reads what another process's threads spend, without their help.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::error::{MeasureError, Result};

/// How long a thread may take to fall asleep.
const PATIENCE: Duration = Duration::from_secs(60);

/// Nanoseconds that all threads of a process have run.
pub fn processor_time(pid: u32) -> Option<u64> {
    let each = threads(pid).ok()?.map(|thread| {
        let line = fs::read_to_string(thread.ok()?.join("schedstat")).ok()?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    });
    each.sum()
}

/// Waits until `so`, and then until all threads of a process sleep.
pub(super) fn asleep(pid: u32, mut so: impl FnMut() -> bool) -> Result<()> {
    let doing = "waiting for another process of this run to sleep";
    let end = Instant::now() + PATIENCE;
    while !(so() && sleep(pid).map_err(MeasureError::system(doing))?) {
        if Instant::now() > end {
            let late = io::Error::from(io::ErrorKind::TimedOut);
            return Err(MeasureError::system(doing)(late));
        }
        std::hint::spin_loop();
    }
    Ok(())
}

fn sleep(pid: u32) -> io::Result<bool> {
    for thread in threads(pid)? {
        let line = fs::read_to_string(thread?.join("stat"))?;
        // Behind the name, which may hold anything.
        let state = line
            .rsplit(')')
            .next()
            .and_then(|rest| rest.trim().get(..1));
        if state != Some("S") {
            return Ok(false);
        }
    }
    Ok(true)
}

fn threads(pid: u32) -> io::Result<impl Iterator<Item = io::Result<PathBuf>>> {
    let all = fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(all.map(|thread| Ok(thread?.path())))
}
