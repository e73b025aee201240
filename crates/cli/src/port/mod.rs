//! `portolan port` moves bytes and files into and out of a port by name, for scripts.
//!
//! | file | what it does |
//! |---|---|
//! | `place` | finds or makes the domain, finds or binds the port |
//! | `waiting` | tells what is waited for |
//! | `payload` | bytes into extents and out of them, without a copy between |
//! | `output` | where received bytes go, and how they are described |
//! | `serve` | a command that answers each request |

mod output;
mod payload;
mod place;
mod serve;
mod waiting;

use std::fs::File;
use std::io::{self, Read as _};

use portolan::{
    Access, Domain, Message, MessageError, PortOptions, ReceiveError, RequestError, SendError,
    SendRight, WhenFull,
};

use crate::args::{CallArgs, MessageArgs, PortCommand, ReceiveArgs, SendArgs, WhereArgs};
use crate::error::{CliError, Result};
use output::Output;
use place::deadline;
use waiting::Waiting;

/// A header is read as far as this, which is longer than any may be.
const FAR: u64 = 16 << 20;
/// What a port that is served or received from holds unless told otherwise.
const QUEUE: usize = 63;

pub(crate) fn run(command: &PortCommand) -> Result<()> {
    match command {
        PortCommand::Send(args) => send(args),
        PortCommand::Receive(args) => receive(args),
        PortCommand::Call(args) => call(args),
        PortCommand::Serve(args) => serve::run(args),
    }
}

/// The files that a command line names, opened before anything is waited for.
struct Sources<'a> {
    args: &'a MessageArgs,
    header: Vec<u8>,
    file: Option<File>,
}

impl<'a> Sources<'a> {
    fn open(args: &'a MessageArgs) -> Result<Self> {
        let header = match (&args.header, &args.header_file) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(path)) => {
                let mut header = Vec::new();
                // However long it is, or however endless.
                let read = payload::open(path)?.take(FAR).read_to_end(&mut header);
                read.map_err(|source| CliError::Input {
                    path: path.clone(),
                    source,
                })?;
                header
            }
            (None, None) => Vec::new(),
        };
        // Known now, and not after a wait.
        if let Err(MessageError::Header { len, limit }) = Message::new(&header) {
            return Err(CliError::Refused {
                what: format!("a header of {len} bytes is over the limit of {limit}"),
                to_do: "shorten it, or send the rest as bytes (FILE or --data)",
            });
        }
        let named = args.file.as_ref().filter(|path| path.as_os_str() != "-");
        let file = named.map(|path| payload::open(path)).transpose()?;
        Ok(Self { args, header, file })
    }
}

/// The message that a command line describes.
fn compose(domain: &Domain, sources: Sources<'_>) -> Result<Message> {
    let mut message = domain
        .message(&sources.header)
        .map_err(CliError::library("taking memory for the message"))?;
    let extents = match (&sources.args.data, sources.file, &sources.args.file) {
        (Some(text), ..) => payload::load(domain, &mut text.as_bytes(), Some(text.len() as u64))?,
        (None, Some(file), _) => payload::load_file(domain, file)?,
        (None, None, Some(_)) => payload::load(domain, &mut io::stdin().lock(), None)?,
        (None, None, None) => Vec::new(),
    };
    for extent in extents {
        message
            .push(extent)
            .map_err(|refused| CliError::refused(&refused.why, "send fewer bytes at once"))?;
    }
    Ok(message)
}

fn send(args: &SendArgs) -> Result<()> {
    let sources = Sources::open(&args.message)?;
    let (domain, right) = place::find(&args.place, "send", args.timeout)?;
    let message = compose(&domain, sources)?;
    let when_full = if args.fail {
        WhenFull::Fail
    } else if args.drop {
        WhenFull::Drop
    } else {
        // Anew: what was read may have come slowly.
        WhenFull::Wait(deadline(Some(args.timeout)))
    };
    let name = args.place.name.clone();
    let what = move || format!("room in the queue of the port {name:?}");
    let waiting = Waiting::start(args.place.quiet, Some(args.timeout), what);
    right
        .send(message, when_full)
        .map_err(|error| unsent(error.why, &args.place))?;
    drop(waiting);
    match args.flush {
        true => flush(&right, args),
        false => Ok(()),
    }
}

/// Waits until what was sent is in the port's queue, wherever that is.
fn flush(right: &SendRight, args: &SendArgs) -> Result<()> {
    let name = args.place.name.clone();
    let of = name.clone();
    let what = move || format!("the node of the port {of:?} to have the message");
    let _waiting = Waiting::start(args.place.quiet, Some(args.timeout), what);
    let lost = |why: String| CliError::MessageLost {
        name: name.clone(),
        why,
    };
    right
        .flush(deadline(Some(args.timeout)))
        .map_err(|error| match error {
            RequestError::TimedOut | RequestError::Dropped => {
                CliError::Unacknowledged { name: name.clone() }
            }
            RequestError::Unsent(error) => match error.why {
                SendError::Full { .. } => CliError::Unacknowledged { name: name.clone() },
                why => lost(why.to_string()),
            },
            RequestError::NodeLost { node } => lost(format!("node {node:?} was given up")),
            RequestError::ServerDead => lost("the port died".to_owned()),
            other => CliError::library("waiting for the acknowledgement")(other),
        })
}

/// Why a message was not sent, with an exit code that scripts can tell apart.
fn unsent(reason: SendError, place: &WhereArgs) -> CliError {
    let name = place.name.clone();
    match reason {
        SendError::Full { slots } => CliError::Full { name, slots },
        SendError::DeadName => CliError::PortDied { name },
        SendError::WrongKind("synchronous", _) => CliError::Refused {
            what: format!("the port {name:?} takes requests"),
            to_do: "use `portolan port call`",
        },
        SendError::WrongKind(..) => CliError::Refused {
            what: format!("the port {name:?} takes messages, and answers none"),
            to_do: "use `portolan port send`",
        },
        SendError::Unreachable { node, since } => CliError::Unreachable {
            name,
            node,
            silent: since.elapsed(),
        },
        other => CliError::library("sending")(other),
    }
}

fn call(args: &CallArgs) -> Result<()> {
    let sources = Sources::open(&args.message)?;
    let (domain, right) = place::find(&args.place, "call", args.timeout)?;
    let message = compose(&domain, sources)?;
    // A request is served once: not if there is nowhere to put its answer.
    let mut output = Output::open(&args.output)?;
    let name = args.place.name.clone();
    let what = move || format!("the answer of the port {name:?}");
    let waiting = Waiting::start(args.place.quiet, Some(args.timeout), what);
    // As in `send`.
    let until = deadline(Some(args.timeout));
    let answered = right.request_reply(message, Access::Now, until);
    drop(waiting);
    let name = args.place.name.clone();
    let answer = answered.map_err(|error| match error {
        RequestError::Unsent(error) => unsent(error.why, &args.place),
        RequestError::TimedOut => CliError::NoAnswer { name },
        RequestError::Dropped => CliError::Unanswered { name },
        RequestError::ServerDead => CliError::ServerDead { name },
        RequestError::NodeLost { node } => CliError::NodeLost { name, node },
        other => CliError::library("calling")(other),
    })?;
    output.message(&answer)
}

fn receive(args: &ReceiveArgs) -> Result<()> {
    let domain = place::make(&args.place, &args.make, "receive")?;
    let queue = args.queue.map_or(QUEUE, usize::from);
    let options = PortOptions::named(&args.place.name).queue(queue);
    let mut port = place::bind(&domain, &args.bind, options)?;
    let mut output = Output::open(&args.output)?;
    let mut left = args.count;
    let mut waiting = Some(place::awaiting(&args.place, args.timeout, "a message"));
    while args.follow || left > 0 {
        let received = port.receive(Access::Now, deadline(args.timeout));
        // Told once, and not of each message.
        drop(waiting.take());
        let message = received.map_err(|error| match error {
            ReceiveError::TimedOut => CliError::NothingCame {
                name: args.place.name.clone(),
            },
            other => CliError::library("receiving")(other),
        })?;
        if message.notice().is_none() {
            output.message(&message)?;
            left = left.saturating_sub(1);
        }
    }
    Ok(())
}
