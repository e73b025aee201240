//! `portolan top` shows a domain, or a node, on a screen, over and over.
//!
//! | file | what it does |
//! |---|---|
//! | `screen` | what is drawn, and what the keys do |
//! | `cells` | columns and cells, of which tables are made |
//! | `snapshot` | a domain: two surveys become one snapshot with rates; also what `--json` prints |
//! | `table`, `head` | the domain's tables, and the lines above them |
//! | `node` | the same of a node |
//!
//! The domain is looked into as an observer: no member knows, and it ends when its
//! last process does. The node is asked how it is, as `portolan node status` does.

mod cells;
mod head;
mod node;
mod screen;
mod snapshot;
mod table;

pub(crate) use cells::{age, short, short_bytes};

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyEventKind};
use portolan::{Builder, Domain, JoinError, Observer, Survey};
use portolan_measure::out;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::args::TopArgs;
use crate::error::{CliError, Result};
use crate::ls;
use screen::{Screen, Shown, Wish};
use snapshot::Snapshot;

/// How long a domain or a node may take to let us look: its host, or the node, may be stopped.
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon a signal ends the screen, and a key is heeded, though there is no answer.
const LOOK_UP: Duration = Duration::from_millis(250);
/// How long what has come to the terminal may take to be read.
const A_MOMENT: Duration = Duration::from_millis(1);

pub(crate) fn run(args: &TopArgs) -> Result<()> {
    if let Some(named) = &args.node {
        return run_with(node::Watch::new(named.as_deref())?, args);
    }
    let (name, user) = which(args.domain.as_deref(), args.user)?;
    let builder = Domain::builder(&name).of_user(user).deadline(PATIENCE);
    run_with(observe(builder, &name)?, args)
}

/// Name and user of the domain that was named, or of the only one there is.
pub(crate) fn which(domain: Option<&str>, user: Option<u32>) -> Result<(String, u32)> {
    let us = portolan_sys::process::user();
    let mut there: Vec<_> = ls::running()?.into_iter().collect();
    if let Some(wanted) = domain {
        there.retain(|found| found.name == *wanted);
    }
    if let Some(user) = user {
        there.retain(|found| found.user == user);
    } else if there.len() > 1 && there.iter().any(|found| found.user == us) {
        there.retain(|found| found.user == us);
    }
    match (&there[..], domain) {
        ([only], _) => Ok((only.name.clone(), only.user)),
        ([], Some(wanted)) => Ok((wanted.to_owned(), user.unwrap_or(us))),
        ([], None) => Err(CliError::NoDomain),
        (several, _) => {
            let names = several
                .iter()
                .map(|f| format!("{} (user {})", f.name, f.user));
            let names = names.collect::<Vec<_>>().join(", ");
            Err(CliError::WhichDomain { names })
        }
    }
}

/// Looks into a domain that runs.
pub(crate) fn observe(builder: Builder, name: &str) -> Result<Observer> {
    builder.observe().map_err(|error| match error {
        JoinError::NotRunning { .. } => CliError::NotRunning {
            name: name.to_owned(),
        },
        other => CliError::join("looking into the domain")(other),
    })
}

/// What `top` looks at again and again.
pub(crate) trait Watched {
    /// What one look sees.
    type Seen;
    type Shown: Shown + Serialize;

    /// Looks, and waits so long for an answer.
    fn look(&mut self, within: Duration) -> Result<Look<Self::Seen>>;

    /// A look, with rates since the one before.
    fn show(now: &Self::Seen, before: Option<(&Self::Seen, Duration)>) -> Self::Shown;

    /// That it has ended.
    fn ended(&self) -> CliError;

    /// That it does not answer.
    fn late(&self) -> CliError;
}

/// What came of a look.
pub(crate) enum Look<T> {
    Seen(T),
    /// No answer yet.
    Late,
    /// It has ended.
    Over,
}

impl Watched for Observer {
    type Seen = Survey;
    type Shown = Snapshot;

    fn look(&mut self, _within: Duration) -> Result<Look<Survey>> {
        // It reads memory, and asks nobody.
        Ok(self.survey().map_or(Look::Over, Look::Seen))
    }

    fn show(now: &Survey, before: Option<(&Survey, Duration)>) -> Snapshot {
        Snapshot::new(now, before)
    }

    fn ended(&self) -> CliError {
        CliError::Ended {
            name: self.name().to_owned(),
        }
    }

    fn late(&self) -> CliError {
        // It never is.
        self.ended()
    }
}

/// Prints one snapshot as JSON, or shows the screen.
fn run_with<W: Watched>(mut watched: W, args: &TopArgs) -> Result<()> {
    // Asked last: what is not there is not there for any terminal.
    let terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !args.json && !terminal {
        return Err(CliError::NoTerminal);
    }
    let interval = Duration::from_secs_f64(args.interval);
    match args.json {
        true => once(&mut watched, interval),
        false => watch(&mut watched, interval),
    }
}

/// A look that is there, or why not.
fn seen<W: Watched>(watched: &mut W) -> Result<W::Seen> {
    match watched.look(PATIENCE)? {
        Look::Seen(seen) => Ok(seen),
        Look::Late => Err(watched.late()),
        Look::Over => Err(watched.ended()),
    }
}

/// One snapshot, as JSON.
fn once<W: Watched>(watched: &mut W, interval: Duration) -> Result<()> {
    let before = seen(watched)?;
    let begun = Instant::now();
    std::thread::sleep(interval);
    let now = seen(watched)?;
    let snapshot = W::show(&now, Some((&before, begun.elapsed())));
    Ok(crate::json::print(&snapshot)?)
}

/// The screen, until the user quits or what is watched ends.
fn watch<W: Watched>(watched: &mut W, interval: Duration) -> Result<()> {
    let told = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&told))
            .map_err(CliError::system("listening to signals"))?;
    }
    let first = seen(watched)?;
    // Puts the terminal back if anything panics, too.
    let mut terminal = ratatui::try_init().map_err(CliError::system("using the terminal"))?;
    let outcome = show(watched, first, interval, &mut terminal, &told);
    if matches!(outcome, Ok(End::Gone)) {
        // Nothing to put back, and no one to tell when that fails.
        std::mem::forget(terminal);
        return Ok(());
    }
    ratatui::restore();
    match outcome {
        Ok(End::Quit | End::Gone) => Ok(()),
        Ok(End::Over) => Ok(out::print(&format!("{}\n", watched.ended()))?),
        Ok(End::Failed(error)) => Err(error),
        Err(error) => Err(CliError::system("using the terminal")(error)),
    }
}

/// Why the screen closes.
enum End {
    Quit,
    /// What was watched has ended.
    Over,
    /// It cannot be looked at any more.
    Failed(CliError),
    /// The terminal has hung up.
    Gone,
}

/// The last look that saw something, and when it was.
struct Last<T> {
    seen: T,
    at: Instant,
}

fn show<W: Watched>(
    watched: &mut W,
    first: W::Seen,
    interval: Duration,
    terminal: &mut ratatui::DefaultTerminal,
    told: &AtomicBool,
) -> io::Result<End> {
    // https://no-color.org: set to anything but nothing.
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut screen = Screen::new(W::show(&first, None), interval, colour);
    let at = Instant::now();
    let mut last = Last { seen: first, at };
    let mut looked = at;
    loop {
        if let Err(error) = terminal.draw(|frame| screen.draw(frame)) {
            return if terminal_stirs(Duration::ZERO)? {
                Err(error)
            } else {
                Ok(End::Gone)
            };
        }
        let Some(wish) = await_wish(&mut screen, looked, told)? else {
            return Ok(End::Gone);
        };
        match wish {
            Wish::Quit => return Ok(End::Quit),
            Wish::Stay => continue,
            Wish::Look => {}
        }
        // Paused or not: whether it is still there is worth knowing.
        let seen = match watched.look(LOOK_UP) {
            Ok(Look::Seen(seen)) => Some(seen),
            Ok(Look::Late) => None,
            Ok(Look::Over) => return Ok(End::Over),
            Err(error) => return Ok(End::Failed(error)),
        };
        looked = Instant::now();
        screen.late = seen.is_none();
        if let Some(seen) = seen
            && !screen.paused
        {
            screen.snapshot = W::show(&seen, Some((&last.seen, looked - last.at)));
            last = Last { seen, at: looked };
        }
    }
}

/// Waits for a key, a new size, a signal, or the time to look again; `None` if the
/// terminal is gone.
fn await_wish<S: Shown>(
    screen: &mut Screen<S>,
    since: Instant,
    told: &AtomicBool,
) -> io::Result<Option<Wish>> {
    loop {
        if told.load(Ordering::Relaxed) {
            return Ok(Some(Wish::Quit));
        }
        let left = (since + screen.interval).saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Some(Wish::Look));
        }
        if !terminal_stirs(left.min(LOOK_UP))? {
            return Ok(None);
        }
        // With no time at all the library does not look.
        if !event::poll(A_MOMENT)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                return Ok(Some(screen.key(key)));
            }
            Event::Resize(..) => return Ok(Some(Wish::Stay)),
            _ => {}
        }
    }
}

/// Waits for the terminal; `false` once it is gone. Not left to the library of events,
/// which reads from a terminal that has hung up for ever.
fn terminal_stirs(most: Duration) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut terminal = [PollFd::new(&stdin, PollFlags::IN)];
    let most = Timespec::try_from(most).map_err(io::Error::other)?;
    match rustix::event::poll(&mut terminal, Some(&most)) {
        // A signal: a new size, perhaps, or one that tells us to end.
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    Ok(!terminal[0].revents().intersects(gone))
}
