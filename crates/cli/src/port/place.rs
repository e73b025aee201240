//! Finds the domain and the port that a command names.

use std::time::{Duration, Instant};

use portolan::{
    BindError, Builder, ConnectError, Deadline, Domain, JoinError, PortOptions, ReceiveRight,
    SendRight,
};

use super::waiting::Waiting;
use crate::args::{BindArgs, MakeArgs, WhereArgs};
use crate::error::{CliError, Result};
use crate::ls;

/// How long the host of a domain may take to answer, at least and at most; between the two,
/// as long as the command may take.
const PATIENCE: (f64, f64) = (2.0, 5.0);
/// How long nodes have to find a port that is asked for on one of them, at least: whether it is there is
/// not known before they have answered.
const ASKING: Duration = Duration::from_secs(2);
/// Pause between two looks for a domain.
const PAUSE: Duration = Duration::from_millis(20);
/// What to do about a name that is none.
const ANOTHER_NAME: &str = "choose another name for the port";
/// What is being done when it fails.
const JOINING: &str = "joining the domain";
/// Domains that an error names.
const NAMED: usize = 8;

fn builder(place: &WhereArgs, what: &str) -> Builder {
    let mut builder = Domain::builder(&place.domain);
    // What it is called in `ls` and `top`.
    builder = builder.space_name(&format!("{what} {}", place.name));
    if let Some(user) = place.user {
        builder = builder.of_user(user);
    }
    builder
}

/// `--timeout`, from now on.
pub(super) fn deadline(seconds: Option<f64>) -> Deadline {
    seconds.map_or(Deadline::NEVER, |seconds| {
        Deadline::after(Duration::from_secs_f64(seconds))
    })
}

/// Joins the domain that a command names, and makes it if it is not there, for a port of its own.
pub(super) fn make(place: &WhereArgs, make: &MakeArgs, what: &str) -> Result<Domain> {
    if let Some((name, node)) = place.name.split_once('@') {
        return Err(CliError::Refused {
            what: format!(
                "a port is bound on this machine, and {name:?} is asked for on node {node:?}"
            ),
            to_do: "leave the node out; --spanned lets other machines find the port",
        });
    }
    let mut builder = builder(place, what);
    for user in &make.allow_user {
        builder = builder.allow_user(*user);
    }
    for group in &make.allow_group {
        builder = builder.allow_group(*group);
    }
    let permits = !(make.allow_user.is_empty() && make.allow_group.is_empty());
    if permits && builder.clone().observe().is_ok() {
        tell!(
            "portolan: the domain {:?} runs already: who may join it was decided when it was made, and --allow-user and --allow-group change nothing",
            place.domain
        );
    }
    let seconds = Some(PATIENCE.1);
    let name = place.domain.clone();
    let what = move || format!("the host of the domain {name:?}");
    let _waiting = Waiting::start(place.quiet, seconds, what);
    builder.join().map_err(CliError::join(JOINING))
}

/// A right on the port that a command names, in a domain that is there; waits for both.
pub(super) fn find(place: &WhereArgs, what: &str, seconds: f64) -> Result<(Domain, SendRight)> {
    let until = deadline(Some(seconds));
    let domain = find_domain(place, what, seconds, until)?;
    let until = match until.instant() {
        Some(at) if place.name.contains('@') => at.max(Instant::now() + ASKING).into(),
        _ => until,
    };
    let (port, of) = (place.name.clone(), place.domain.clone());
    let what = move || format!("a port named {port:?} in the domain {of:?}");
    let waiting = Waiting::start(place.quiet, Some(seconds), what);
    let found = domain.connect(&place.name, until);
    drop(waiting);
    let right = found.map_err(|error| match error {
        ConnectError::NoSuchPort { name } => CliError::NoPort {
            name,
            domain: place.domain.clone(),
        },
        ConnectError::Unreachable { name, node, since } => CliError::Unreachable {
            name,
            node,
            silent: since.elapsed(),
        },
        ConnectError::BadName { .. } => CliError::refused(&error, ANOTHER_NAME),
        ConnectError::Ambiguous { .. } => CliError::refused(&error, "name the node: name@node"),
        ConnectError::NoSuchNode { .. } => CliError::refused(&error, "check the node's name"),
        ConnectError::NoNode => CliError::Refused {
            what: format!("no node spans the domain {:?} on this machine", place.domain),
            to_do: "run one (`portolan node up`), and have it span the domain (`portolan node span`)",
        },
        other => CliError::library("connecting to the port")(other),
    })?;
    Ok((domain, right))
}

fn find_domain(place: &WhereArgs, what: &str, seconds: f64, until: Deadline) -> Result<Domain> {
    let patience = Duration::from_secs_f64(seconds.clamp(PATIENCE.0, PATIENCE.1));
    let builder = builder(place, what).create(false).deadline(patience);
    let name = place.domain.clone();
    let what = move || format!("a domain named {name:?} ({})", others());
    let _waiting = Waiting::start(place.quiet, Some(seconds), what);
    loop {
        match builder.clone().join() {
            Err(JoinError::NotRunning { .. }) if until.has_passed() => {
                return Err(CliError::NoDomainInTime {
                    name: place.domain.clone(),
                    others: others(),
                });
            }
            Err(JoinError::NotRunning { .. }) => pause(until),
            joined => return joined.map_err(CliError::join(JOINING)),
        }
    }
}

fn pause(until: Deadline) {
    let left = until
        .instant()
        .map(|until| until.saturating_duration_since(Instant::now()));
    std::thread::sleep(left.map_or(PAUSE, |left| left.min(PAUSE)));
}

/// Lists the domains that run, for a user who has mistyped one.
fn others() -> String {
    let us = portolan_sys::process::user();
    let Ok(there) = ls::running() else {
        return "`portolan ls` lists those that run".to_owned();
    };
    let count = there.len();
    let mut names: Vec<String> = there
        .into_iter()
        .take(NAMED)
        .map(|found| match found.user {
            user if user == us => format!("{:?}", found.name),
            user => format!("{:?} of user {user}", found.name),
        })
        .collect();
    if count > NAMED {
        names.push(format!("{} more", count - NAMED));
    }
    match &names[..] {
        [] => "none runs here".to_owned(),
        [only] => format!("{only} runs here"),
        [first @ .., last] => format!("{} and {last} run here", first.join(", ")),
    }
}

pub(super) fn bind(domain: &Domain, args: &BindArgs, options: PortOptions) -> Result<ReceiveRight> {
    let options = if args.spanned {
        options.spanned()
    } else {
        options
    };
    domain.bind(options).map_err(|error| match error {
        BindError::BadName { .. } => CliError::refused(&error, ANOTHER_NAME),
        BindError::NameTaken { .. } => CliError::refused(
            &error,
            "choose another name, or end the program that has it (`portolan ls` shows which)",
        ),
        BindError::Shape { .. } => {
            CliError::refused(&error, "choose another length of the queue (--queue)")
        }
        other => CliError::library("binding the port")(other),
    })
}

/// Tells that `what` is waited for at a port that this command has bound.
pub(super) fn awaiting(place: &WhereArgs, seconds: Option<f64>, what: &'static str) -> Waiting {
    let (port, domain) = (place.name.clone(), place.domain.clone());
    let what = move || format!("{what} to the port {port:?} of the domain {domain:?}");
    Waiting::start(place.quiet, seconds, what)
}
