//! `portolan bench watched` measures messages while `portolan top` looks at their domain, and while
//! a trace of it is recorded.
//!
//! One pair of processes exchanges messages; a `top` comes and goes, on a terminal of its
//! own and at its default interval. A look is rare beside a message, so medians would not
//! show it: a slice is several seconds, and its figure is its whole time by its messages.
//! The order of a pair of slices, with and without, changes from pair to pair, and each
//! slice with is held against the one without beside it.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use portolan::{Domain, Trace};
use portolan_measure::case::{Case, Pattern, Shape};
use portolan_measure::cpus::{self, Cpus};
use portolan_measure::harness::progress;
use portolan_measure::run::{self, Run};
use portolan_measure::sampler::{Sampler, median};
use portolan_measure::{MeasureError, domain_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::{Group, Measured};
use crate::error::{CliError, Result};

/// How long and how often to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Slices with and without.
    pub(crate) pairs: usize,
    /// The time of one; `top` looks about once a second.
    pub(crate) slice: Duration,
}

/// The rows of `groups`: of each the limit, its first row alone, and the second, which is
/// the first while `top` watches.
pub(crate) fn measure(
    groups: &[Group],
    effort: Effort,
    allowed: &[usize],
    cpus: &Cpus,
) -> Result<Vec<Measured>> {
    let progress = progress(groups.len() * effort.pairs);
    let mut rows = Vec::new();
    for group in groups {
        rows.extend(measure_group(group, effort, allowed, cpus, &progress)?);
    }
    progress.finish_and_clear();
    Ok(rows)
}

/// A case's run, and how many rounds its slices have.
struct Lane {
    run: Box<dyn Run>,
    /// How long a slice is to take.
    slice: Duration,
    rounds: u64,
    /// Events of one round.
    events: u64,
    /// Times of an event in the slices, in picoseconds.
    times: Vec<f64>,
    sampler: Sampler,
}

impl Lane {
    fn start(case: &Case, slice: Duration, cpus: &Cpus) -> Result<Self> {
        let mut run = run::start(case, cpus)?;
        let mut rounds: u64 = 1000;
        // A quarter of a slice tells the pace.
        loop {
            let begun = Instant::now();
            run.rounds(rounds)?;
            let elapsed = begun.elapsed();
            if elapsed * 4 >= slice {
                rounds = paced(rounds, elapsed, slice);
                break;
            }
            rounds *= 2;
        }
        let events = match case.pattern {
            Pattern::RoundTrip { one_way: true } => 2,
            _ => 1,
        };
        Ok(Self {
            run,
            slice,
            rounds,
            events,
            times: Vec::new(),
            sampler: Sampler::new(Duration::ZERO),
        })
    }

    /// One slice, its time noted in `times` and `sampler`.
    fn slice(&mut self) -> Result<f64> {
        let begun = Instant::now();
        self.run.rounds(self.rounds)?;
        let elapsed = begun.elapsed();
        self.sampler.typical(elapsed, self.rounds * self.events);
        self.sampler.close_slice();
        let time = elapsed.as_secs_f64() * 1e12 / (self.rounds * self.events) as f64;
        self.times.push(time);
        self.keep_pace(elapsed);
        Ok(time)
    }

    /// Fewer rounds in the next slice, or more, where the machine's pace has changed: a virtual
    /// one takes some times as long for a line when its processors are moved apart.
    fn keep_pace(&mut self, elapsed: Duration) {
        if elapsed > self.slice * 2 || elapsed < self.slice / 2 {
            self.rounds = paced(self.rounds, elapsed, self.slice);
        }
    }
}

/// How many rounds take as long as a slice, if `rounds` took `elapsed`.
fn paced(rounds: u64, elapsed: Duration, slice: Duration) -> u64 {
    let parts = u64::try_from(slice.as_nanos() * 16 / elapsed.as_nanos().max(1));
    (rounds.saturating_mul(parts.unwrap_or(16)) / 16).max(1)
}

fn measure_group(
    group: &Group,
    effort: Effort,
    allowed: &[usize],
    cpus: &Cpus,
    progress: &ProgressBar,
) -> Result<Vec<Measured>> {
    let [alone, watched] = &group.rows[..] else {
        // The filter has left the limit only, or half of a pair.
        return Ok(Vec::new());
    };
    progress.set_message(watched.case.name());
    let mut limit = Lane::start(&group.limit, effort.slice / 4, cpus)?;
    let mut lane = Lane::start(&alone.case, effort.slice, cpus)?;
    let domain = domain_of(&alone.case);
    let mut beside = Sampler::new(Duration::ZERO);
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for pair in 0..effort.pairs {
        limit.slice()?;
        for second in [false, true] {
            // With and without, then without and with.
            if (pair % 2 == 0) == second {
                without.push(lane.slice()?);
            } else {
                let watcher = Watcher::start(watched.case.shape, &domain, allowed, cpus)?;
                let own = std::mem::replace(&mut lane.sampler, beside);
                with.push(lane.slice()?);
                beside = std::mem::replace(&mut lane.sampler, own);
                watcher.finish()?;
            }
        }
        progress.inc(1);
    }
    let bound = median(limit.times.clone()).unwrap_or(f64::NAN);
    let ratio = |times: &[f64]| median(times.to_vec()).unwrap_or(f64::NAN) / bound;
    let pairs = with.iter().zip(&without).map(|(w, wo)| w / wo);
    let cost = median(pairs.collect()).unwrap_or(f64::NAN);
    let row = |case: &Case, sampler: &Sampler, ratio_to_limit| {
        Some(Measured {
            case: case.clone(),
            figures: sampler.figures()?,
            ratio_to_limit,
            yardstick: None,
            counted: Vec::new(),
            uncounted: None,
            tag: None,
        })
    };
    let rows = [
        row(&group.limit, &limit.sampler, 1.0),
        row(&alone.case, &lane.sampler, ratio(&without)),
        row(&watched.case, &beside, ratio(&with)).map(|row| Measured {
            yardstick: Some((alone.case.clone(), cost)),
            tag: watched.tag,
            ..row
        }),
    ];
    limit.run.finish()?;
    lane.run.finish()?;
    Ok(rows.into_iter().flatten().collect())
}

/// Who looks at a domain during a slice.
enum Watcher {
    Top(Top),
    /// A trace of ours. The rings are not read, so this is what recording costs.
    Trace(Trace),
}

impl Watcher {
    fn start(shape: Shape, domain: &str, allowed: &[usize], cpus: &Cpus) -> Result<Self> {
        if shape != Shape::Traced {
            return Ok(Self::Top(Top::start(domain, allowed, cpus)?));
        }
        let joined = Domain::join(domain).map_err(CliError::library("joining a domain"))?;
        let trace = joined.trace();
        Ok(Self::Trace(
            trace.map_err(CliError::library("tracing a domain"))?,
        ))
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Top(top) => top.finish(),
            Self::Trace(trace) => {
                drop(trace);
                Ok(())
            }
        }
    }
}

/// A `portolan top` on a terminal that no user looks at.
struct Top {
    process: Child,
    terminal: File,
}

impl Top {
    /// Starts it, on any CPU that this run may use, and waits until it has drawn.
    fn start(domain: &str, allowed: &[usize], cpus: &Cpus) -> Result<Self> {
        let (master, slave) = terminal().map_err(CliError::system("making a terminal"))?;
        let end = || {
            slave
                .try_clone()
                .map_err(CliError::system("sharing a terminal"))
        };
        let program =
            std::env::current_exe().map_err(CliError::system("finding this program's file"))?;
        let mut command = Command::new(program);
        command
            .args(["top", domain])
            .env("TERM", "xterm")
            .stdin(end()?)
            .stdout(end()?)
            .stderr(end()?);
        let mut everywhere = CpuSet::new();
        allowed.iter().for_each(|cpu| everywhere.set(*cpu));
        sched_setaffinity(None, &everywhere).map_err(CliError::system("unpinning a process"))?;
        let process = command.spawn();
        cpus::pin(cpus.ours)?;
        let mut top = Self {
            process: process.map_err(CliError::system("starting `portolan top`"))?,
            terminal: master.into(),
        };
        drop(slave);
        top.drawn()?;
        Ok(top)
    }

    /// Waits for the first screen, of which the foot is drawn last.
    fn drawn(&mut self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(30);
        let mut seen = Vec::new();
        while !seen.windows(4).any(|word| word == b"quit") {
            if !self.drain(&mut seen, Duration::from_millis(100)) || Instant::now() >= end {
                let text = String::from_utf8_lossy(&seen).into_owned();
                let source = std::io::Error::other(format!("it draws nothing: {text}"));
                return Err(CliError::system("starting `portolan top`")(source));
            }
        }
        Ok(())
    }

    /// Reads what has been drawn; `false` once no process draws.
    fn drain(&mut self, into: &mut Vec<u8>, wait: Duration) -> bool {
        let nanos = i64::try_from(wait.as_nanos()).unwrap_or(0);
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: nanos,
        };
        let mut fds = [PollFd::new(&self.terminal, PollFlags::IN)];
        match poll(&mut fds, Some(&wait)) {
            Ok(0) => true,
            _ => {
                let mut bytes = [0; 4096];
                let read = self.terminal.read(&mut bytes).unwrap_or(0);
                into.extend_from_slice(&bytes[..read]);
                read > 0
            }
        }
    }

    /// Ends it. It must have been there to the end, or the slice was not watched.
    fn finish(mut self) -> Result<()> {
        let early = self
            .process
            .try_wait()
            .map_err(CliError::system("looking at `portolan top`"))?;
        let _ = self.process.kill();
        let _ = self.process.wait();
        match early {
            None => Ok(()),
            Some(status) => {
                let source = std::io::Error::other(format!("it ended early: {status}"));
                Err(CliError::Measure(MeasureError::System {
                    doing: "watching with `portolan top`",
                    source,
                }))
            }
        }
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Both ends of a terminal of 80x24.
fn terminal() -> std::io::Result<(OwnedFd, File)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let path = ptsname(&master, Vec::new())?;
    let path = String::from_utf8_lossy(path.as_bytes()).into_owned();
    let slave = File::options().read(true).write(true).open(path)?;
    let size = Winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&slave, size)?;
    Ok((master, slave))
}
