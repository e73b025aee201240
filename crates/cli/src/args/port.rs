//! Parses the command line of `portolan port`.

use std::path::PathBuf;

use clap::Subcommand;
use portolan_abi::limits::{MAX_NAME, MAX_NODE_NAME};
use portolan_abi::name::{RULE, is_name};

use super::{exit_codes, timeout};

/// Bytes and files in and out of a port by name, for scripts.
///
/// A message is a header of up to 4096 bytes, empty unless given, and any number of
/// bytes. Files are read straight into shared pages and written straight out of them.
///
/// `receive` and `serve` make their domain if it is not there; `send` and `call` find theirs,
/// and wait for it, and for the port, as long as --timeout says. What is waited for for longer
/// than a second is told on standard error.
///
/// Where this machine's node spans the domain (`portolan node span`), `send` and `call` find ports of
/// other machines, too, that were bound there with --spanned. `upper@hall` is the port upper on
/// the node hall; nodes have two seconds to find it, however short --timeout is.
#[derive(Debug, clap::Args)]
#[command(
    after_help = concat!(
        "Example:\n  portolan port receive frames --output copy.iso &\n  portolan port send frames big.iso\n  portolan port serve upper -- tr a-z A-Z &\n  portolan port call upper --data hello",
        exit_codes!(
            "5  nothing came, nobody answered, or there was no such domain or port in time",
            "6  the queue is full",
            "7  the port died, or the request was dropped",
        ),
    )
)]
pub(crate) struct PortArgs {
    #[command(subcommand)]
    pub(crate) command: PortCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PortCommand {
    Send(SendArgs),
    Receive(ReceiveArgs),
    Call(CallArgs),
    Serve(ServeArgs),
}

/// Which port of which domain.
#[derive(Debug, clap::Args)]
pub(crate) struct WhereArgs {
    /// The port's name; to send and call, also with its node: name@node
    #[arg(value_parser = port_name)]
    pub(crate) name: String,
    /// The domain's name
    #[arg(
        long,
        short,
        value_name = "NAME",
        env = "PORTOLAN_DOMAIN",
        default_value = "default"
    )]
    pub(crate) domain: String,
    /// The user whose domain it is, by number (default: you)
    #[arg(long, value_name = "UID")]
    pub(crate) user: Option<u32>,
    /// Do not tell what is waited for
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// What a domain is like that a command makes.
#[derive(Debug, clap::Args)]
pub(crate) struct MakeArgs {
    /// Permit this user, by number, to join the domain that this command makes; may be repeated
    #[arg(long, value_name = "UID")]
    pub(crate) allow_user: Vec<u32>,
    /// Permit this group, by number, to join the domain that this command makes; may be repeated
    #[arg(long, value_name = "GID")]
    pub(crate) allow_group: Vec<u32>,
}

/// What a port is like that a command binds.
#[derive(Debug, clap::Args)]
pub(crate) struct BindArgs {
    /// Let programs on other machines find the port by its name, where nodes span the domain
    #[arg(long)]
    pub(crate) spanned: bool,
}

/// What is in a message.
#[derive(Debug, clap::Args)]
pub(crate) struct MessageArgs {
    /// The file with its bytes; - for standard input, none for no bytes
    pub(crate) file: Option<PathBuf>,
    /// This text as its bytes
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    pub(crate) data: Option<String>,
    /// Its header, of 4096 bytes at the most
    #[arg(long, value_name = "TEXT")]
    pub(crate) header: Option<String>,
    /// The file with its header
    #[arg(long, value_name = "FILE", conflicts_with = "header")]
    pub(crate) header_file: Option<PathBuf>,
}

/// What is printed of a message.
#[derive(Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// Write the bytes to this file instead of standard output, one message after another
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print the header and a newline instead of the bytes
    #[arg(long)]
    pub(crate) header_only: bool,
    /// Print a line of JSON for each message instead of the bytes
    ///
    /// In it are `header` as text and `header_hex`, the number of `bytes` and of their
    /// `extents`, and unless --output takes them the bytes: `data_base64`, and `data_text`,
    /// which is null where they are not UTF-8.
    #[arg(long, conflicts_with = "header_only")]
    pub(crate) json: bool,
}

/// Send one message to a port.
///
/// Waits until there is a domain and a port of these names, and until the port has room. It succeeds
/// when the message is in the port's queue; for a port on another machine: when this machine's node
/// has it, which keeps it until the other node has it too, and loses it if that is given up. With
/// --flush it succeeds when the other node has put it into the port's queue.
#[derive(Debug, clap::Args)]
#[command(
    after_help = concat!(
        "Example:\n  portolan port send frames big.iso --header big.iso\n  tar c . | portolan port send backup - --timeout 600\n  portolan port send log --data hello --drop",
        exit_codes!(
            "5  there was no such domain or port in time, or its node is silent, or it is not known in time whether the message is there (--flush)",
            "6  the queue is full",
            "7  the port died, or the message is lost with its node (--flush)",
        ),
    )
)]
pub(crate) struct SendArgs {
    #[command(flatten)]
    pub(crate) place: WhereArgs,
    #[command(flatten)]
    pub(crate) message: MessageArgs,
    /// Wait for room if the queue is full (the default)
    #[arg(long, conflicts_with_all = ["fail", "drop"])]
    pub(crate) wait: bool,
    /// Fail at once if the queue is full
    #[arg(long, conflicts_with = "drop")]
    pub(crate) fail: bool,
    /// Drop the message if the queue is full, and call it sent
    #[arg(long)]
    pub(crate) drop: bool,
    /// Wait until the message is in the port's queue on its own machine, or say that it was lost
    #[arg(long, conflicts_with = "drop")]
    pub(crate) flush: bool,
    /// Wait this long for the domain and the port together, then for room, then for --flush
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS", value_parser = timeout)]
    pub(crate) timeout: f64,
}

/// Bind a port and print what comes.
///
/// Makes the domain if it is not there.
#[derive(Debug, clap::Args)]
#[command(
    after_help = concat!(
        "Example:\n  portolan port receive frames --output copy.iso\n  portolan port receive log --follow --json\n  portolan port receive frames --allow-user 1000",
        exit_codes!("5  nothing came in time"),
    )
)]
pub(crate) struct ReceiveArgs {
    #[command(flatten)]
    pub(crate) place: WhereArgs,
    #[command(flatten)]
    pub(crate) make: MakeArgs,
    #[command(flatten)]
    pub(crate) bind: BindArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// End after so many messages
    #[arg(long, short = 'n', default_value_t = 1, value_name = "N")]
    pub(crate) count: u64,
    /// Go on for ever
    #[arg(long, short, conflicts_with = "count")]
    pub(crate) follow: bool,
    /// Wait this long for each message (default: for ever)
    #[arg(long, value_name = "SECONDS", value_parser = timeout)]
    pub(crate) timeout: Option<f64>,
    /// Messages that the queue holds at least, from 1 on (default: 63)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) queue: Option<u16>,
}

/// Send a request to a port and print the answer.
///
/// Waits until there is a domain and a port of these names, and then for the answer.
#[derive(Debug, clap::Args)]
#[command(
    after_help = concat!(
        "Example:\n  portolan port call upper --data hello\n  portolan port call upper --data hello --json | jq -r .data_text\n  portolan port call resize photo.raw --output small.raw --timeout 10\n  portolan port call upper@hall --domain cameras --data hello",
        exit_codes!(
            "5  there was no such domain or port in time, or no answer; or its node is silent",
            "6  the queue is full",
            "7  the port died or its node was given up, or the server dropped the request: its command failed",
        ),
    )
)]
pub(crate) struct CallArgs {
    #[command(flatten)]
    pub(crate) place: WhereArgs,
    #[command(flatten)]
    pub(crate) message: MessageArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Wait this long for the domain and the port together, and then for room and the answer
    /// together
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS", value_parser = timeout)]
    pub(crate) timeout: f64,
}

/// Bind a port that takes requests, and answer each with a command's output.
///
/// Makes the domain if it is not there. The command must be one that can be run; this is looked
/// at before the port is bound.
///
/// The command gets the request's bytes as standard input, and its header in
/// PORTOLAN_HEADER. Its standard output is the answer. If it cannot be started, fails, or takes
/// longer than --limit, its request is dropped, which is told on standard error; the client
/// exits with 7, and serving goes on. The command runs in a process group of its own. When `serve` is ended by Ctrl-C,
/// SIGTERM or SIGHUP, the whole group is killed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = concat!(
        "Example:\n  portolan port serve upper -- tr a-z A-Z\n  portolan port serve greet -- sh -c 'echo hello $PORTOLAN_HEADER'\n  portolan port serve upper --domain cameras --spanned -- tr a-z A-Z",
        exit_codes!("5  no request came in time"),
    )
)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) place: WhereArgs,
    #[command(flatten)]
    pub(crate) make: MakeArgs,
    #[command(flatten)]
    pub(crate) bind: BindArgs,
    /// End after so many requests (default: never)
    #[arg(long, short = 'n', value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Wait this long for each request (default: for ever)
    #[arg(long, value_name = "SECONDS", value_parser = timeout)]
    pub(crate) timeout: Option<f64>,
    /// Kill a command that takes longer than this, and drop its request (default: never)
    #[arg(long, value_name = "SECONDS", value_parser = limit)]
    pub(crate) limit: Option<f64>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// A name that no port can have would be waited for in vain.
fn port_name(text: &str) -> Result<String, String> {
    let (name, node) = match text.split_once('@') {
        Some((name, node)) => (name, Some(node)),
        None => (text, None),
    };
    if !is_name(name, MAX_NAME) {
        return Err(format!("a port's name has 1 to {MAX_NAME} bytes {RULE}"));
    }
    if node.is_some_and(|node| !is_name(node, MAX_NODE_NAME)) {
        return Err(format!(
            "a node's name has 1 to {MAX_NODE_NAME} bytes {RULE}"
        ));
    }
    Ok(text.to_owned())
}

fn limit(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=1e9).contains(&seconds) => Ok(seconds),
        _ => Err("say how many seconds, at least 0.001".to_owned()),
    }
}
