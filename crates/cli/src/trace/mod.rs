//! `portolan trace` records what a domain does, event by event, into a file for Perfetto: here, or beside
//! all nodes that span it.

mod chrome;
mod nodes;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use portolan::{Domain, Event, EventKind, Trace, TraceError, TraceOptions};
use portolan_measure::MeasureError;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::args::TraceArgs;
use crate::error::{CliError, Result};
use crate::top;
use chrome::Chrome;

/// How long a domain may take to admit us: its host may be stopped.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pauses between two looks at the rings: while something happens, and while nothing does.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(20));
/// A ring so full, in percent, is looked at again without a pause.
const HASTE: u64 = 25;
/// How often progress is told.
const TELL: Duration = Duration::from_millis(250);

/// What is told at the end.
#[derive(Serialize)]
struct Summary {
    domain: String,
    file: PathBuf,
    seconds: f64,
    /// Why it ended: "time", "signal", or "domain".
    ended_by: &'static str,
    processes: usize,
    events: u64,
    lost: u64,
    /// Events by kind.
    kinds: HashMap<&'static str, u64>,
    /// Messages whose send and receive were both seen.
    arrows: u64,
}

pub(crate) fn run(args: &TraceArgs) -> Result<()> {
    // Before anything is switched on, so that it is switched off whenever we are told to end.
    let told = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&told))
            .map_err(CliError::system("listening to signals"))?;
    }
    if args.nodes {
        return nodes::run(args, &told);
    }
    let (name, user) = top::which(args.domain.as_deref(), args.user)?;
    let domain = join(&name, user)?;
    let path = args.output.clone().unwrap_or_else(|| default_path(&name));
    let failed = |source| failure(&path, source);
    let trace = domain
        .trace_with(options(args))
        .map_err(|error| match error {
            TraceError::Taken { .. } => CliError::Traced(error.to_string()),
            other => CliError::library("tracing the domain")(other),
        })?;
    // Not before the domain is ours: the file may be the one that another tracer writes.
    let file: Box<dyn Write> = if is_standard(&path) {
        Box::new(io::stdout())
    } else {
        Box::new(File::create(&path).map_err(failed)?)
    };
    let mut out = Chrome::new(BufWriter::new(file), now()).map_err(failed)?;
    let summary = Recording {
        trace,
        until: args.seconds.map(Duration::from_secs_f64),
        path: path.clone(),
        summary: Summary {
            domain: name,
            file: path.clone(),
            seconds: 0.0,
            ended_by: "domain",
            processes: 0,
            events: 0,
            lost: 0,
            kinds: HashMap::new(),
            arrows: 0,
        },
    }
    .record(&mut out, &told)?;
    out.finish().map_err(failed)?;
    tell(&summary);
    if args.json && is_standard(&path) {
        // Serialising our own plain structs to memory cannot fail.
        let text = serde_json::to_string(&crate::json::Versioned::new(&summary))
            .expect("plain data serialises");
        tell!("{text}");
    } else if args.json {
        crate::json::print(&summary)?;
    }
    Ok(())
}

/// Whether events go to standard output.
fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn failure(path: &Path, source: io::Error) -> CliError {
    if is_standard(path) && source.kind() == io::ErrorKind::BrokenPipe {
        return MeasureError::ReaderLeft.into();
    }
    CliError::Output {
        path: path.to_owned(),
        source,
    }
}

/// Joins a domain that others are in; it is not made.
fn join(name: &str, user: u32) -> Result<Domain> {
    let builder = || Domain::builder(name).of_user(user).deadline(PATIENCE);
    // An observer makes none, and keeps none.
    drop(top::observe(builder(), name)?);
    let domain = builder()
        .space_name("portolan trace")
        .join()
        .map_err(CliError::join("joining the domain"))?;
    let survey = domain
        .survey()
        .map_err(CliError::library("looking into the domain"))?;
    if survey.spaces.iter().all(|space| space.id == domain.space()) {
        // It ended between our two looks, and we have made it anew.
        let name = name.to_owned();
        return Err(CliError::Ended { name });
    }
    Ok(domain)
}

fn options(args: &TraceArgs) -> TraceOptions {
    let options = TraceOptions::default().ring(args.ring as usize);
    if args.events.is_empty() {
        return options;
    }
    options.only(args.events.iter().map(|name| EventKind::from(*name)))
}

/// `trace-DOMAIN.json`, here.
fn default_path(name: &str) -> PathBuf {
    let plain = |c: char| {
        if c.is_alphanumeric() || "-_.".contains(c) {
            c
        } else {
            '-'
        }
    };
    let name: String = name.chars().map(plain).collect();
    format!("trace-{name}.json").into()
}

/// The clock of the events.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

struct Recording {
    trace: Trace,
    until: Option<Duration>,
    path: PathBuf,
    summary: Summary,
}

impl Recording {
    /// Reads the rings until it is time, the user says so, or the domain ends.
    fn record(mut self, out: &mut Chrome<impl Write>, told: &AtomicBool) -> Result<Summary> {
        let begun = Instant::now();
        let progress = ProgressBar::new_spinner();
        let mut shown = begun;
        let mut events = Vec::new();
        loop {
            let drained = self.trace.drain(|event| events.push(event));
            let drained = drained.map_err(CliError::library("reading the trace"))?;
            self.write(out, &mut events)?;
            self.summary.lost = drained.lost;
            if told.load(Ordering::Relaxed) {
                self.summary.ended_by = "signal";
                break;
            }
            if self.until.is_some_and(|until| begun.elapsed() >= until) {
                self.summary.ended_by = "time";
                break;
            }
            if !drained.company {
                break;
            }
            if shown.elapsed() >= TELL {
                shown = Instant::now();
                out.flush().map_err(|source| self.failed(source))?;
                let Summary { events, lost, .. } = self.summary;
                progress.set_message(format!("{events} events, {lost} lost"));
                progress.tick();
            }
            if drained.fullest < HASTE {
                let pause = if drained.events > 0 {
                    PAUSES.0
                } else {
                    PAUSES.1
                };
                std::thread::sleep(pause);
            }
        }
        progress.finish_and_clear();
        self.summary.seconds = begun.elapsed().as_secs_f64();
        self.finish(out, events)
    }

    /// Switches it off, and reads what is left.
    fn finish(mut self, out: &mut Chrome<impl Write>, mut events: Vec<Event>) -> Result<Summary> {
        let drained = self.trace.finish(|event| events.push(event));
        let drained = drained.map_err(CliError::library("reading the trace"))?;
        self.write(out, &mut events)?;
        self.summary.lost = drained.lost;
        self.summary.processes = out.processes();
        self.summary.arrows = out.arrows;
        Ok(self.summary)
    }

    fn failed(&self, source: io::Error) -> CliError {
        failure(&self.path, source)
    }

    /// Writes events, and empties the list.
    fn write(&mut self, out: &mut Chrome<impl Write>, events: &mut Vec<Event>) -> Result<()> {
        let mut names: HashMap<u16, Option<String>> = HashMap::new();
        for space in self.trace.spaces() {
            out.space(space).map_err(|source| self.failed(source))?;
        }
        for event in events.drain(..) {
            let name = event.port.and_then(|port| {
                let name = names.entry(port);
                name.or_insert_with(|| self.trace.port_name(port))
                    .as_deref()
            });
            out.event(&event, name)
                .map_err(|source| self.failed(source))?;
            self.summary.events += 1;
            *self.summary.kinds.entry(event.kind.name()).or_default() += 1;
        }
        Ok(())
    }
}

/// The summary for people.
fn tell(summary: &Summary) {
    let Summary {
        domain,
        file,
        seconds,
        ended_by,
        processes,
        events,
        lost,
        arrows,
        ..
    } = summary;
    if *ended_by == "domain" {
        tell!("the domain {domain:?} has ended: every process that was in it has left or died");
    }
    tell!(
        "{events} events of {processes} processes in {seconds:.1} s, {arrows} messages from send to receive"
    );
    if *lost > 0 {
        tell!(
            "{lost} events were lost: the newest were kept; ask for larger rings (--ring) or fewer kinds (--events)"
        );
    }
    if !is_standard(file) {
        tell!(
            "{} is whole; open it in Perfetto (ui.perfetto.dev)",
            file.display()
        );
    }
}
