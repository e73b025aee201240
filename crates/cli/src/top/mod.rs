//! `portolan top` shows a domain on a screen, over and over.
//!
//! | file | what it does |
//! |---|---|
//! | `snapshot` | two surveys become one snapshot with rates; also what `--json` prints |
//! | `table` | the cells of the tables |
//! | `screen` | what is drawn, and what the keys do |
//!
//! The domain is looked into as an observer: no member knows, and it ends when its
//! last process does.

mod screen;
mod snapshot;
mod table;

pub(crate) use table::{short, short_bytes};

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use portolan::{Builder, Domain, JoinError, Observer, Survey};
use portolan_measure::out;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::args::TopArgs;
use crate::error::{CliError, Result};
use crate::ls;
use screen::{Screen, Wish};
use snapshot::Snapshot;

/// How long a domain may take to let us look: its host may be stopped.
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon a signal ends the screen.
const LOOK_UP: Duration = Duration::from_millis(250);

pub(crate) fn run(args: &TopArgs) -> Result<()> {
    let (name, user) = which(args.domain.as_deref(), args.user)?;
    let builder = Domain::builder(&name).of_user(user).deadline(PATIENCE);
    let observer = observe(builder, &name)?;
    // Asked last: a domain that is not there is not there for any terminal.
    let terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !args.json && !terminal {
        return Err(CliError::NoTerminal);
    }
    let interval = Duration::from_secs_f64(args.interval);
    if args.json {
        return once(&observer, interval);
    }
    watch(&observer, interval)
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

/// One snapshot, as JSON.
fn once(observer: &Observer, interval: Duration) -> Result<()> {
    let ended = |_| CliError::Ended {
        name: observer.name().to_owned(),
    };
    let before = observer.survey().map_err(ended)?;
    let begun = Instant::now();
    std::thread::sleep(interval);
    let now = observer.survey().map_err(ended)?;
    let snapshot = Snapshot::new(&now, Some((&before, begun.elapsed())));
    Ok(crate::json::print(&snapshot)?)
}

/// The screen, until the user quits or the domain ends.
fn watch(observer: &Observer, interval: Duration) -> Result<()> {
    let told = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&told))
            .map_err(CliError::system("listening to signals"))?;
    }
    // Puts the terminal back if anything panics, too.
    let mut terminal = ratatui::try_init().map_err(CliError::system("using the terminal"))?;
    let outcome = show(observer, interval, &mut terminal, &told);
    if matches!(outcome, Ok(End::Gone)) {
        // Nothing to put back, and no one to tell when that fails.
        std::mem::forget(terminal);
        return Ok(());
    }
    ratatui::restore();
    match outcome {
        Ok(End::Quit | End::Gone) => Ok(()),
        Ok(End::Over) => Ok(out::print(&format!(
            "the domain {:?} has ended: every process that was in it has left or died\n",
            observer.name()
        ))?),
        Err(error) => Err(CliError::system("using the terminal")(error)),
    }
}

/// Why the screen closes.
enum End {
    Quit,
    Over,
    /// The terminal has hung up.
    Gone,
}

/// The last survey, and when it was taken.
struct Last {
    survey: Survey,
    at: Instant,
}

fn show(
    observer: &Observer,
    interval: Duration,
    terminal: &mut ratatui::DefaultTerminal,
    told: &AtomicBool,
) -> io::Result<End> {
    // https://no-color.org: set to anything but nothing.
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let Ok(survey) = observer.survey() else {
        return Ok(End::Over);
    };
    let mut screen = Screen::new(Snapshot::new(&survey, None), interval, colour);
    let mut last = Last {
        survey,
        at: Instant::now(),
    };
    loop {
        if let Err(error) = terminal.draw(|frame| screen.draw(frame)) {
            return if terminal_stirs(Duration::ZERO)? {
                Err(error)
            } else {
                Ok(End::Gone)
            };
        }
        let Some(wish) = await_wish(&mut screen, last.at, told)? else {
            return Ok(End::Gone);
        };
        match wish {
            Wish::Quit => return Ok(End::Quit),
            Wish::Stay => continue,
            Wish::Look => {}
        }
        // Paused or not: whether the domain is still there is worth knowing.
        let Ok(survey) = observer.survey() else {
            return Ok(End::Over);
        };
        let at = Instant::now();
        if !screen.paused {
            screen.snapshot = Snapshot::new(&survey, Some((&last.survey, at - last.at)));
            last.survey = survey;
        }
        last.at = at;
    }
}

/// Waits for a key, a new size, a signal, or the time to look again; `None` if the
/// terminal is gone.
fn await_wish(screen: &mut Screen, since: Instant, told: &AtomicBool) -> io::Result<Option<Wish>> {
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
        if !event::poll(Duration::ZERO)? {
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
