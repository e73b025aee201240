//! `portolan port`: bytes and files in and out of a port by name, for scripts.
//!
//! | file | what it does |
//! |---|---|
//! | `payload` | bytes into extents and out of them, without a copy between |
//! | `serve` | a command that answers each request |

mod payload;
mod serve;

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use portolan::{
    Access, BindError, ConnectError, Deadline, Domain, Message, PortOptions, ReceiveError,
    ReceiveRight, RequestError, SendRight, Unsent, WhenFull,
};
use serde::Serialize;

use crate::args::{CallArgs, MessageArgs, PortCommand, ReceiveArgs, SendArgs, WhereArgs};
use crate::error::{CliError, Result};

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

/// The least and the most seconds that joining may take, whatever `--timeout` says: a domain's
/// host may need a moment to answer, and one that needs longer than that is worth a word.
const JOIN: (f64, f64) = (1.0, 5.0);

/// Joins the domain that a command names, within `--timeout`.
fn join(place: &WhereArgs, what: &str, timeout: Option<f64>) -> Result<Domain> {
    let (least, most) = JOIN;
    let seconds = timeout.unwrap_or(most).clamp(least, most);
    let mut builder = Domain::builder(&place.domain).deadline(Duration::from_secs_f64(seconds));
    // What it is called in `ls` and `top`.
    builder = builder.space_name(&format!("{what} {}", place.name));
    if let Some(user) = place.user {
        builder = builder.of_user(user);
    }
    builder.join().map_err(CliError::join("joining the domain"))
}

/// `--timeout`, from now on.
fn deadline(seconds: Option<f64>) -> Deadline {
    seconds.map_or(Deadline::NEVER, |seconds| {
        Deadline::after(Duration::from_secs_f64(seconds))
    })
}

fn connect(domain: &Domain, place: &WhereArgs, until: Deadline) -> Result<SendRight> {
    domain
        .connect(&place.name, until)
        .map_err(|error| match error {
            ConnectError::NoSuchPort { name } => CliError::NoPort {
                name,
                domain: place.domain.clone(),
            },
            ConnectError::BadName { .. } => CliError::Refused(error.to_string()),
            other => CliError::library("connecting to the port")(other),
        })
}

fn bind(domain: &Domain, options: PortOptions) -> Result<ReceiveRight> {
    domain.bind(options).map_err(|error| match error {
        BindError::BadName { .. } | BindError::NameTaken { .. } | BindError::Shape { .. } => {
            CliError::Refused(error.to_string())
        }
        other => CliError::library("binding the port")(other),
    })
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
            (None, Some(path)) => std::fs::read(path).map_err(|source| CliError::Input {
                path: path.clone(),
                source,
            })?,
            (None, None) => Vec::new(),
        };
        let named = args.file.as_ref().filter(|path| path.as_os_str() != "-");
        let file = named.map(|path| payload::open(path)).transpose()?;
        Ok(Self { args, header, file })
    }
}

/// The message that a command line describes.
fn compose(domain: &Domain, sources: Sources<'_>) -> Result<Message> {
    let mut message = domain
        .message(&sources.header)
        .map_err(|error| CliError::Refused(error.to_string()))?;
    let extents = match (&sources.args.data, sources.file, &sources.args.file) {
        (Some(text), ..) => payload::load(domain, &mut text.as_bytes(), Some(text.len() as u64))?,
        (None, Some(file), _) => payload::load_file(domain, file)?,
        (None, None, Some(_)) => payload::load(domain, &mut io::stdin().lock(), None)?,
        (None, None, None) => Vec::new(),
    };
    for extent in extents {
        message
            .push(extent)
            .map_err(|refused| CliError::Refused(refused.error.to_string()))?;
    }
    Ok(message)
}

fn send(args: &SendArgs) -> Result<()> {
    let sources = Sources::open(&args.message)?;
    let until = deadline(Some(args.timeout));
    let domain = join(&args.place, "send", Some(args.timeout))?;
    let right = connect(&domain, &args.place, until)?;
    let message = compose(&domain, sources)?;
    // Anew: what was read may have come slowly.
    let until = deadline(Some(args.timeout));
    let when_full = if args.fail {
        WhenFull::Fail
    } else if args.drop {
        WhenFull::Drop
    } else {
        WhenFull::Wait(until)
    };
    right
        .send(message, when_full)
        .map_err(|error| unsent(error.reason, &args.place))
}

/// Why a message was not sent, with an exit code that scripts can tell apart.
fn unsent(reason: Unsent, place: &WhereArgs) -> CliError {
    let name = place.name.clone();
    match reason {
        Unsent::Full { slots } => CliError::Full { name, slots },
        Unsent::DeadName => CliError::PortDied { name },
        Unsent::WrongKind("synchronous", _) => CliError::Refused(format!(
            "the port {name:?} takes requests: use `portolan port call`"
        )),
        Unsent::WrongKind(..) => CliError::Refused(format!(
            "the port {name:?} takes messages: use `portolan port send`"
        )),
        other => CliError::library("sending")(other),
    }
}

fn call(args: &CallArgs) -> Result<()> {
    let sources = Sources::open(&args.message)?;
    let until = deadline(Some(args.timeout));
    let domain = join(&args.place, "call", Some(args.timeout))?;
    let right = connect(&domain, &args.place, until)?;
    let message = compose(&domain, sources)?;
    // A request is served once: not if there is nowhere to put its answer.
    let mut output = Output::open(args.output.out.as_ref())?;
    // As in `send`.
    let until = deadline(Some(args.timeout));
    let name = args.place.name.clone();
    let answer = right
        .request_reply(message, Access::Now, until)
        .map_err(|error| match error {
            RequestError::Unsent(error) => unsent(error.reason, &args.place),
            RequestError::TimedOut => CliError::NoAnswer { name },
            RequestError::Dropped => CliError::Unanswered { name },
            RequestError::ServerDead => CliError::PortDied { name },
            other => CliError::library("calling")(other),
        })?;
    output.message(&answer, args.output.header_only, args.output.json)
}

fn receive(args: &ReceiveArgs) -> Result<()> {
    let domain = join(&args.place, "receive", args.timeout)?;
    let queue = args.queue.map_or(QUEUE, usize::from);
    let options = PortOptions::named(&args.place.name).queue(queue);
    let mut port = bind(&domain, options)?;
    let mut output = Output::open(args.output.out.as_ref())?;
    let mut left = args.count;
    while args.follow || left > 0 {
        let received = port.receive(Access::Now, deadline(args.timeout));
        let message = received.map_err(|error| match error {
            ReceiveError::TimedOut => CliError::NothingCame {
                name: args.place.name.clone(),
            },
            other => CliError::library("receiving")(other),
        })?;
        if message.notice().is_none() {
            output.message(&message, args.output.header_only, args.output.json)?;
            left = left.saturating_sub(1);
        }
    }
    Ok(())
}

/// What `--json` says of a message.
#[derive(Serialize)]
struct Described {
    /// As text; what is not text is replaced.
    header: String,
    header_hex: String,
    bytes: usize,
    extents: usize,
}

/// Where received bytes go.
struct Output {
    file: Option<(File, PathBuf)>,
}

impl Output {
    fn open(path: Option<&PathBuf>) -> Result<Self> {
        let open = |path: &PathBuf| {
            let file = File::create(path).map_err(|source| CliError::Output {
                path: path.clone(),
                source,
            })?;
            Ok::<_, CliError>((file, path.clone()))
        };
        Ok(Self {
            file: path.map(open).transpose()?,
        })
    }

    fn message(&mut self, message: &Message, header_only: bool, json: bool) -> Result<()> {
        if let Some((file, path)) = &mut self.file {
            payload::store(message, file).map_err(|source| CliError::Output {
                path: path.clone(),
                source,
            })?;
        }
        let mut stdout = io::stdout().lock();
        let printed = if json {
            let described = Described {
                header: String::from_utf8_lossy(message.header()).into_owned(),
                header_hex: message
                    .header()
                    .iter()
                    .map(|b| format!("{b:02x}"))
                    .collect(),
                bytes: message.len(),
                extents: message.extents().len(),
            };
            // Serialising our own plain struct to memory cannot fail.
            let line = serde_json::to_string(&described).expect("plain data serialises");
            writeln!(stdout, "{line}")
        } else if header_only {
            stdout
                .write_all(message.header())
                .and_then(|()| stdout.write_all(b"\n"))
        } else if self.file.is_none() {
            payload::store(message, &mut stdout)
        } else {
            Ok(())
        };
        printed.and_then(|()| stdout.flush()).map_err(|error| {
            if error.kind() == io::ErrorKind::BrokenPipe {
                portolan_measure::MeasureError::ReaderLeft.into()
            } else {
                CliError::system("writing to standard output")(error)
            }
        })
    }
}
