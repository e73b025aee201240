//! Shows progress on standard error: a bar on a terminal, else a line an experiment, and one now
//! and then within a long one.

use std::cell::Cell;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Where there is no terminal, a long experiment says so often how far it is.
const EVERY: Duration = Duration::from_secs(30);

/// One bar, used by one experiment after the other.
///
/// It is drawn when an experiment makes a step, never by a thread of its own, which would
/// disturb what is measured.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    lines: bool,
    /// When something was last said, where there is no terminal.
    said: Cell<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len}  {msg}")
            .expect("a valid template");
        bar.set_style(style);
        Self {
            bar,
            lines: !std::io::stderr().is_terminal(),
            said: Cell::new(Instant::now()),
        }
    }

    /// Another experiment begins.
    pub(crate) fn experiment(&self, name: &str) {
        self.bar.reset();
        self.bar.set_length(1);
        self.bar.set_prefix(name.to_owned());
        self.bar.set_message("");
        self.said.set(Instant::now());
    }

    /// It will make so many steps.
    pub(crate) fn begin(&self, steps: usize) {
        self.bar.reset();
        self.bar.set_length(steps as u64);
    }

    /// It is about to do `what`.
    pub(crate) fn step(&self, what: impl Into<String>) {
        let what = what.into();
        if self.lines && self.said.get().elapsed() >= EVERY {
            let (prefix, at) = (self.bar.prefix(), self.bar.position());
            let of = self.bar.length().unwrap_or_default();
            eprintln!("{prefix}: {at} of {of} steps done, now {what}");
            self.said.set(Instant::now());
        }
        self.bar.set_message(what);
        self.bar.inc(1);
    }

    /// It does `what`, as a part of a step.
    pub(crate) fn note(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
    }

    /// It is done.
    pub(crate) fn done(&self, name: &str, took: Duration, how: &str) {
        let line = format!("{name}: {how} after {:.1} s", took.as_secs_f64());
        if self.lines {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
