//! Parses the command line. Every command's help ends in an example and its exit codes.

mod port;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use portolan_measure::words;

pub(crate) use port::{
    BindArgs, CallArgs, MakeArgs, MessageArgs, OutputArgs, PortArgs, PortCommand, ReceiveArgs,
    SendArgs, ServeArgs, WhereArgs,
};

/// What a command exits with: what holds for all, then what is its own.
macro_rules! exit_codes {
    ($($own:literal),* $(,)?) => {
        concat!(
            "\n\nExit codes:",
            "\n  0  done, or the reader of the output has left",
            "\n  1  this system, or another process, failed",
            "\n  2  the command line is wrong, or what it names cannot be had",
            "\n  3  a bug in portolan",
            $("\n  ", $own),*
        )
    };
}
use exit_codes;

/// Processes that hand memory over instead of copying it.
#[derive(Debug, Parser)]
#[command(
    name = "portolan",
    version,
    arg_required_else_help = true,
    after_help = concat!(
        "Example:\n  portolan demo            hand 256 MiB through three processes, three ways\n  portolan top             what the domains of this machine do\n  portolan port send --help",
        exit_codes!("5 and more: see `portolan port --help`"),
    )
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// What this process was started with. Ends it, with a message, if that makes no sense.
    pub(crate) fn parsed() -> Self {
        let mut args = Self::parse_from(words::arguments());
        if let Command::Ls(LsArgs { domain, named, .. })
        | Command::Top(TopArgs { domain, named, .. })
        | Command::Trace(TraceArgs { domain, named, .. }) = &mut args.command
            && let Some(name) = named.domain.take()
        {
            *domain = Some(name);
        }
        args
    }
}

/// A domain by its flag, as in `portolan port`.
#[derive(Debug, clap::Args)]
pub(crate) struct NamedArgs {
    /// The same as DOMAIN
    #[arg(
        long,
        short,
        id = "named",
        value_name = "NAME",
        conflicts_with = "domain"
    )]
    domain: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(DemoArgs),
    #[command(hide = !cfg!(feature = "bench"))]
    Bench(BenchArgs),
    Ls(LsArgs),
    Top(TopArgs),
    Trace(TraceArgs),
    Port(PortArgs),
    Node(NodeArgs),
    Doctor(DoctorArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    /// A further process of a running command. Not for users.
    #[command(name = "__peer", hide = true)]
    Peer,
    /// The program beside a node of `demo nodes`. Not for users.
    #[command(name = "__node-stage", hide = true)]
    NodeStage(NodeStageArgs),
    /// The program beside a node of `bench node`. Not for users.
    #[cfg(feature = "bench")]
    #[command(name = "__beside-node", hide = true)]
    BesideNode(BesideNodeArgs),
}

/// Run the node, which links this machine's domains to those of other machines.
///
/// Everything behind `node` goes to the program `portolan-node`, which lies beside this one or in
/// PATH: init, invite, join, forget, span, unspan, authority, up, reload, leave, status, lab, man. `portolan
/// node help` shows its own help.
#[derive(Debug, clap::Args)]
#[command(
    after_help = concat!("Example:\n  portolan node init && portolan node up &\n  portolan node invite\n  portolan node join 192.0.2.10:7411/K3V9-...", exit_codes!())
)]
pub(crate) struct NodeArgs {
    /// What portolan-node is to do
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub(crate) words: Vec<OsString>,
}

/// Send a file through three processes (read, digest and stamp, write) and compare.
///
/// One process reads FILE in blocks, one computes its BLAKE3 digest and stamps
/// each block, one writes the result. The digest is checked against the file
/// that was written. Portolan hands the blocks over from process to process; the
/// same work is then done over pipes and over Unix sockets. Prints throughput, processor time, and how often each byte was copied.
///
/// `portolan demo nodes` does it over three nodes, and kills one.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_value_name = "nodes",
    after_help = concat!("Example:\n  portolan demo /var/lib/big.iso\n  portolan demo big.iso --output copy.iso --carrier portolan", exit_codes!())
)]
pub(crate) struct DemoArgs {
    #[command(subcommand)]
    pub(crate) command: Option<DemoCommand>,
    /// The file to send; 256 MiB of generated data if none is given
    pub(crate) file: Option<PathBuf>,
    /// Keep what was written, in this file (otherwise it is discarded)
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Only these ways of carrying the blocks (default: all)
    #[arg(long, value_enum, value_name = "WAY")]
    pub(crate) carrier: Vec<CarrierName>,
    /// Size of a block in KiB, 4 to 65536
    #[arg(long, default_value_t = 2048, value_name = "KIB", value_parser = clap::value_parser!(u32).range(4..=65_536))]
    pub(crate) block: u32,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DemoCommand {
    Nodes(NodesArgs),
}

/// Send a file through programs on three nodes of this machine, kill a node, and show what happened.
///
/// Each node is in a network namespace of its own where this user may make them, else all are side by
/// side. The file goes from port to port over links that are encrypted, and then over plain TCP
/// between the same programs; its digest is checked on the way and at the end. Then one node is
/// killed: what the programs beside the others see of that is printed. Takes less than a minute.
#[derive(Debug, clap::Args)]
#[command(after_help = concat!("Example:\n  portolan demo nodes\n  portolan demo nodes /var/lib/big.iso", exit_codes!()))]
pub(crate) struct NodesArgs {
    /// The file to send; 256 MiB of generated data if none is given
    pub(crate) file: Option<PathBuf>,
    /// Make no network namespaces
    #[arg(long)]
    pub(crate) names: bool,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where the program beside a node finds what it is to read and write.
#[derive(Debug, clap::Args)]
pub(crate) struct NodeStageArgs {
    pub(crate) input: PathBuf,
    pub(crate) by_ports: PathBuf,
    pub(crate) by_tcp: PathBuf,
}

/// What the program beside a node of a benchmark is told.
#[cfg(feature = "bench")]
#[derive(Debug, clap::Args)]
pub(crate) struct BesideNodeArgs {
    /// The process that measures
    pub(crate) coordinator: u32,
}

/// A way to carry blocks from one process of the demo to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CarrierName {
    /// Extents of a Portolan domain, handed over
    Portolan,
    /// Two pipes
    Pipe,
    /// Two Unix stream sockets
    Socket,
}

/// Measure messages between processes on this machine, beside its limit.
///
/// Separate processes, pinned to two CPUs if there are two. The limit is measured
/// in slices between the slices of the other rows; the ratio of a row is the
/// median over its slices of its median to that of the limit's neighbouring
/// slices.
///
/// The limit is one cache line from core to core for `latency`, `signal`, `update` and calls
/// that poll (`rpc`); a bare futex ping-pong for `wake`, and for calls and samples
/// (`pubsub`) that sleep; a bare ring in shared memory for `throughput`, `fanin`
/// and streams (`channel`, `pubsub`, `watched`), where single messages have the
/// line; a process that has joined nothing for `memory`, and for idle clients of `rpc`.
/// `structures` has none: its ways stand side by side, and handing over is held against
/// a null message. `rights` has none: each operation stands beside few others and beside
/// many. `instructions` has none either: it counts, and times nothing. `node` has bare TCP
/// beside each of its rows, which waits in the same way on the same processors.
///
/// p50 is the median over batches of 16 rounds where a round takes less than
/// 2 us, over single rounds otherwise; p99, p99.9 and max are always over single
/// rounds, less the time it takes to read the clock. One way is half of a round
/// trip. For rates the sample is a batch of messages, and p99 is the rate that
/// 99 % of the batches reached. The limit's rows are printed whatever the filter.
///
/// A row may be held against another of the same run, too (its yardstick). What
/// Portolan's rows must reach is listed after the table, with what was measured:
/// of several rows the worst.
#[derive(Debug, clap::Args)]
#[command(
    after_help = concat!("Example:\n  portolan bench latency --quick\n  portolan bench wake --filter pipe --json > wake.json", exit_codes!())
)]
#[cfg_attr(
    not(feature = "bench"),
    allow(dead_code, reason = "parsed, and refused as a whole")
)]
pub(crate) struct BenchArgs {
    /// What to measure
    #[arg(value_enum)]
    pub(crate) kind: BenchKind,
    /// Every kind of row, few sizes, short slices
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only rows that contain this word in any of their columns
    #[arg(long, value_name = "WORD")]
    pub(crate) filter: Option<String>,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchKind {
    /// One message there and back, by size
    Latency,
    /// Messages one after another from one sender
    Throughput,
    /// Processor time per message from many senders to one receiver
    Fanin,
    /// Waking a process that sleeps, on one CPU and on two
    Wake,
    /// A signal of an address, by how the receiver is told of it
    Signal,
    /// Streams over channels: to a bare ring, to memcpy, to many readers, by when they are signalled
    Channel,
    /// Samples by topic: latency, and what many, idle and stopped subscribers cost a publisher
    Pubsub,
    /// What messages cost while `portolan top` looks at their domain, and while it is traced
    Watched,
    /// What stays resident in a process that has joined a domain and does nothing
    Memory,
    /// Calls of a service in another process, polling and blocking; the checksum in their copies;
    /// what idle and busy clients cost, and the transport's timer
    Rpc,
    /// Exported memory: deliberate and automatic update, notifications, revocation, set-up, and
    /// instructions and system calls of each; messages between domains
    Update,
    /// A map of a million keys from one process to another, beside serialisers
    Structures,
    /// What must not grow: binding, dropping a last right, receiving by urgency, beside thousands of
    /// ports and messages
    Rights,
    /// Instructions and system calls of one operation, by stepping: no time, the same each run
    Instructions,
    /// Requests and streams to another node, beside bare TCP and rustls in the same run; what nodes
    /// cost local messages, and while idle
    Node,
}

/// List domains, their spaces and ports, queues, and who owns how much.
///
/// A domain is found by its socket's name, and looked into without joining it; one of
/// another user must permit that. Ports in use: `queue` is messages that wait and
/// slots there are; `lost` is what was dropped because the queue was full, or what a
/// dying sender left unfinished.
///
/// Shared memory: what each segment is (a channel, a topic's or a service's, a frame buffer),
/// who writes it, how many read, and how many units the slowest is behind. Then calls and
/// signals, exported memory, and connections with other domains.
///
/// With --nodes: the cluster as this machine's node sees it. Each node with its link (`up`;
/// `unreachable`: silent; `connecting`; `waiting`: tried again soon), for how long, and its address; the
/// domains that the node spans; ports of other nodes that programs here have rights on, and ports here
/// that others have. The node is the one of `portolan node status`.
#[derive(Debug, clap::Args)]
#[command(after_help = concat!("Example:\n  portolan ls\n  portolan ls frames --json\n  portolan ls --nodes", exit_codes!()))]
pub(crate) struct LsArgs {
    /// Only the domain of this name
    pub(crate) domain: Option<String>,
    #[command(flatten)]
    pub(crate) named: NamedArgs,
    /// List the nodes of the cluster, and what goes between them
    #[arg(long, conflicts_with_all = ["domain", "named"])]
    pub(crate) nodes: bool,
    /// Print the list as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Watch a domain on a screen: spaces, ports, channels, calls, exports, bridges, extents.
///
/// The domain is only read: nobody in it notices, and it ends as if nobody watched. Rates
/// are per second, over the last interval. Press ? for the keys. NO_COLOR is respected.
///
/// SPIN, SLEEP and ROOM count threads: those that look for a message again and again,
/// those that sleep until one comes, and those that wait for room in a queue.
///
/// With --node: a node of this machine. Its links with rates each way, ports there and here with what
/// waits and for whom, the domains that it spans, and what was lost with nodes that were given up.
#[derive(Debug, clap::Args)]
#[command(
    after_help = concat!("Example:\n  portolan top\n  portolan top frames --interval 0.5\n  portolan top --node\n  portolan top frames --json | jq '.ports[] | {name, depth}'", exit_codes!())
)]
pub(crate) struct TopArgs {
    /// The domain; may be left out if only one runs
    pub(crate) domain: Option<String>,
    #[command(flatten)]
    pub(crate) named: NamedArgs,
    /// The user whose domain it is, by number (default: you, unless only another has one)
    #[arg(long, value_name = "UID")]
    pub(crate) user: Option<u32>,
    /// Watch a node: by its name, or its state directory (default: the one of `portolan node status`)
    #[arg(long, value_name = "NAME|DIRECTORY", num_args = 0..=1, conflicts_with_all = ["domain", "named", "user"])]
    #[expect(clippy::option_option, reason = "the flag may stand alone")]
    pub(crate) node: Option<Option<OsString>>,
    /// Seconds between two looks, 0.05 to 3600
    #[arg(long, short, default_value_t = 1.0, value_name = "SECONDS", value_parser = interval)]
    pub(crate) interval: f64,
    /// Print one snapshot as JSON, with rates over one interval
    #[arg(long)]
    pub(crate) json: bool,
}

fn timeout(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=1e9).contains(&seconds) => Ok(seconds),
        _ => Err("say how many seconds, 0 to look once".to_owned()),
    }
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("say how many seconds, from 0.05 to 3600".to_owned()),
    }
}

/// Record what a running domain does, event by event, into a file for Perfetto.
///
/// Joins the domain, switches recording on in every process of it, and off again at the
/// end: after --seconds, at Ctrl-C, or when the domain ends. Nothing has to be restarted,
/// and nothing stays on if this command is killed. The file is in the Chrome trace event
/// format: a process for each space, a track for each thread, an arrow from each message's
/// send to its receive, from each write to its reads, from each call to its answer. What the rings could not keep is counted as lost.
///
/// With --nodes: this machine's node asks its peers for what happens in the domain there. The file has a
/// process for each space beside each node, by one clock, and an arrow from where a message departs to
/// where it arrives. How far the clocks of the nodes are apart is measured, and told with its error; so is
/// what is uncertain because of it. A node that does not answer is told, and left out.
#[derive(Debug, clap::Args)]
#[command(
    after_help = concat!("Example:\n  portolan trace frames --seconds 2\n  portolan trace frames --events send,receive,wake --output frames.json\n  portolan trace --nodes --seconds 2", exit_codes!())
)]
pub(crate) struct TraceArgs {
    /// The domain; may be left out if there is only one
    pub(crate) domain: Option<String>,
    #[command(flatten)]
    pub(crate) named: NamedArgs,
    /// The user whose domain it is, by number (default: you, unless only another has one)
    #[arg(long, value_name = "UID")]
    pub(crate) user: Option<u32>,
    /// Trace a domain that nodes span, at all of them; the node is the one of `portolan node status`
    #[arg(long, conflicts_with_all = ["user", "ring"])]
    pub(crate) nodes: bool,
    /// End after so long (default: at Ctrl-C)
    #[arg(long, value_name = "SECONDS", value_parser = timeout)]
    pub(crate) seconds: Option<f64>,
    /// Write this file; - for standard output (default: trace-DOMAIN.json)
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Only these kinds of events (default: all)
    #[arg(long, value_enum, value_name = "KIND", value_delimiter = ',')]
    pub(crate) events: Vec<EventName>,
    /// Events that each process keeps until they are read, 64 bytes each: 16 to 65536, rounded
    /// up to a power of two
    #[arg(long, default_value_t = 8192, value_name = "EVENTS", value_parser = clap::value_parser!(u32).range(16..=65_536))]
    pub(crate) ring: u32,
    /// Print a summary as JSON; on standard error, if events go to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// A kind of event, as `--events` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventName {
    /// A message was sent
    Send,
    /// A message was taken
    Receive,
    /// A message's pages were mapped or opened at once
    Map,
    /// A first touch opened pages (guarded domains), or was refused
    Fault,
    /// A sender woke a receiver
    Wake,
    /// A receiver, or a sender without room, slept
    Sleep,
    /// A message was written to a channel
    Write,
    /// A message was read from a channel
    Read,
    /// A sample was published
    Publish,
    /// A sample was taken
    Take,
    /// A client called, until it had its answer
    Call,
    /// A server ran a call
    Answer,
    /// An address was signalled
    Signal,
    /// Handlers ran for a signal
    Deliver,
    /// Imported memory was written
    Update,
    /// A notification of an importer was taken
    Notify,
    /// A message went to another domain
    Depart,
    /// A message came from another domain
    Arrive,
    /// A process died
    Death,
    /// What a process had held was returned
    Reclaim,
}

impl From<EventName> for portolan::EventKind {
    fn from(name: EventName) -> Self {
        match name {
            EventName::Send => Self::Send,
            EventName::Receive => Self::Receive,
            EventName::Map => Self::Map,
            EventName::Fault => Self::Fault,
            EventName::Wake => Self::Wake,
            EventName::Sleep => Self::Sleep,
            EventName::Write => Self::Write,
            EventName::Read => Self::Read,
            EventName::Publish => Self::Publish,
            EventName::Take => Self::Take,
            EventName::Call => Self::Call,
            EventName::Answer => Self::Answer,
            EventName::Signal => Self::Signal,
            EventName::Deliver => Self::Deliver,
            EventName::Update => Self::Update,
            EventName::Notify => Self::Notify,
            EventName::Depart => Self::Depart,
            EventName::Arrive => Self::Arrive,
            EventName::Death => Self::Death,
            EventName::Reclaim => Self::Reclaim,
        }
    }
}

/// Which kernel features are there, what is lost without each, and whether Portolan works here.
///
/// Each feature is tried, here and now, with your rights; and a message is sent through a
/// domain that is made for it. The last line is the verdict: everything works; it works, without
/// what is missing; or it does not work, with the reason.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  portolan doctor\n  portolan doctor --json | jq .verdict\n\nExit codes:\n  0  Portolan works here, perhaps without something\n  1  it does not"
)]
pub(crate) struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print a shell's completions for this command.
///
/// They complete commands, flags, and values that are known beforehand; not the names of
/// domains and ports.
#[derive(Debug, clap::Args)]
#[command(
    after_help = concat!(
        "Example:\n  portolan completions bash > ~/.local/share/bash-completion/completions/portolan\n  portolan completions zsh > ~/.zfunc/_portolan     (a directory of $fpath)\n  portolan completions fish > ~/.config/fish/completions/portolan.fish",
        exit_codes!(),
    )
)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// The Bourne again shell
    Bash,
    /// The Z shell
    Zsh,
    /// The friendly interactive shell
    Fish,
}

/// Print a manual page, of this command or of one of its subcommands.
///
/// A page is roff, as `man` reads it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = concat!(
        "Example:\n  portolan man | man -l -\n  portolan man port send | man -l -\n  portolan man --output ~/.local/share/man/man1",
        exit_codes!(),
    )
)]
pub(crate) struct ManArgs {
    /// Whose page, such as `port send` (default: the whole command's)
    #[arg(value_name = "COMMAND", conflicts_with = "output")]
    pub(crate) of: Vec<String>,
    /// Write the pages of all commands into this directory, each as portolan-COMMAND.1
    #[arg(long, short, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}
