//! What programs see when a node is killed: the reader asks the other two stages again and again, and
//! the writer kills the node beside it.

use std::time::{Duration, Instant};

use portolan::{
    Access, Domain, Message, Notice, PortOptions, ReceiveRight, RequestError, SendError, SendRight,
};

use super::super::stages::Role;
use super::stage::{Place, say};
use super::{Said, now};
use crate::error::{CliError, Result};

/// Requests whose round trip is measured.
const MEASURED: usize = 500;
/// Requests after which the writer kills its node.
const UNTIL_KILLED: u64 = MEASURED as u64 + 50;
/// Between two requests.
const PAUSE: Duration = Duration::from_millis(20);
/// How long an answer may take before the next request goes.
const ANSWER: Duration = Duration::from_millis(200);
/// How long each wait may take: for the next request, for its answer, for a node to be given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// The header after which a stage need not answer any more.
const END: &[u8] = b"end";

/// The port at which a stage is asked.
pub(super) struct Asked(Option<ReceiveRight>);

fn name(role: Role) -> String {
    format!("{} asked", role.name())
}

impl Asked {
    pub(super) fn bind(place: &Place, domain: &Domain) -> Result<Self> {
        if place.role == Role::Reader {
            return Ok(Self(None));
        }
        let options = PortOptions::named(&name(place.role))
            .synchronous()
            .spanned();
        let port = domain.bind(options);
        Ok(Self(Some(port.map_err(CliError::library(
            "binding a port of the demo",
        ))?)))
    }
}

pub(super) fn watch(place: &Place, domain: &Domain, asked: Asked) -> Result<()> {
    match (place.role, asked.0) {
        (Role::Writer, Some(port)) => answer(port, Some(place)),
        (_, Some(port)) => answer(port, None),
        (_, None) => ask(domain),
    }
}

/// Answers until nobody asks any more. The writer kills the node beside it meanwhile.
fn answer(mut port: ReceiveRight, kills: Option<&Place>) -> Result<()> {
    let mut answered = 0;
    loop {
        let request = port.get_request(Access::Later, PATIENCE);
        let request = request.map_err(CliError::library("waiting for requests"))?;
        if let Some(Notice::NoMoreSenders) = request.message.notice() {
            return say(&Said::NoSenders { at: now() });
        }
        let is_last = request.message.header() == END;
        let reply = Message::new(request.message.header());
        let reply = reply.map_err(CliError::library("making an answer"))?;
        // Who has asked may be given up by now.
        let _ = request.reply(reply);
        answered += 1;
        if is_last {
            return Ok(());
        }
        if let Some(place) = kills.filter(|_| answered == UNTIL_KILLED) {
            port.request_no_more_senders();
            kill(place.node)?;
            say(&Said::Killed { at: now() })?;
        }
    }
}

fn kill(node: i32) -> Result<()> {
    let pid = rustix::process::Pid::from_raw(node).ok_or(rustix::io::Errno::SRCH);
    pid.and_then(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL))
        .map_err(CliError::system("cannot kill the node"))
}

/// Asks both, until one of them is given up.
fn ask(domain: &Domain) -> Result<()> {
    let find = |role| {
        let right = domain.connect(&name(role), PATIENCE);
        right.map_err(CliError::library("finding a port of the demo"))
    };
    let (hasher, writer) = (find(Role::Hasher)?, find(Role::Writer)?);
    say(&measure(&writer)?)?;
    let end = Instant::now() + PATIENCE;
    let (mut beside, mut longest) = (0, Duration::ZERO);
    let mut is_unreachable = false;
    while Instant::now() < end {
        let began = Instant::now();
        let answer = request(&hasher, b"are you there?", PATIENCE);
        drop(answer.map_err(CliError::library("asking the other node"))?);
        (beside, longest) = (beside + 1, longest.max(began.elapsed()));
        match request(&writer, b"are you there?", ANSWER) {
            Ok(_) | Err(RequestError::TimedOut) => {}
            Err(error) => match gone(&error) {
                Some(node) if !is_unreachable => {
                    is_unreachable = true;
                    say(&Said::Unreachable { at: now(), node })?;
                }
                Some(_) => {}
                None => {
                    say(&Said::GivenUp {
                        at: now(),
                        why: error.to_string(),
                    })?;
                    break;
                }
            },
        }
        std::thread::sleep(PAUSE);
    }
    say(&Said::Beside {
        answered: beside,
        longest,
    })?;
    let last = request(&hasher, END, PATIENCE);
    drop(last.map_err(CliError::library("asking the other node"))?);
    Ok(())
}

/// The node that is silent, if a message came back because of that.
fn gone(error: &RequestError) -> Option<String> {
    match error {
        RequestError::Unsent(unsent) => match &unsent.why {
            SendError::Unreachable { node, .. } => Some(node.clone()),
            _ => None,
        },
        _ => None,
    }
}

fn request(
    to: &SendRight,
    header: &[u8],
    patience: Duration,
) -> std::result::Result<Message, RequestError> {
    let message = Message::new(header).map_err(|_| RequestError::Dropped)?;
    to.request_reply(message, Access::Later, patience)
}

/// Requests one after another.
fn measure(to: &SendRight) -> Result<Said> {
    let mut times = Vec::with_capacity(MEASURED);
    for _ in 0..MEASURED {
        let began = Instant::now();
        let answer = request(to, b"", PATIENCE);
        drop(answer.map_err(CliError::library("asking the writer"))?);
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(Said::Answered {
        requests: MEASURED as u64,
        median: times[MEASURED / 2],
    })
}
