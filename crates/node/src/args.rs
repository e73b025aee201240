//! Parses the command line. Every command's help ends in an example and its exit codes.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Parser, Subcommand};
use portolan_node::config::{LISTEN, time};
use portolan_node::lab::Plan;
use portolan_transport::NodeId;

/// What a command exits with.
macro_rules! exit_codes {
    () => {
        concat!(
            "\n\nExit codes:",
            "\n  0  done",
            "\n  1  this system, or another node, failed",
            "\n  2  the command line, or a file of the state directory, is wrong",
            "\n  3  a bug in portolan-node",
        )
    };
}

/// One daemon a machine, which links its domains to those of other machines.
#[derive(Debug, Parser)]
#[command(
    name = "portolan-node",
    bin_name = "portolan node",
    version,
    arg_required_else_help = true,
    after_help = concat!(
        "Example:\n  portolan node init && portolan node up &\n  portolan node invite\n  portolan node join 192.0.2.10:7411/K3V9-...",
        exit_codes!()
    )
)]
pub(crate) struct Args {
    /// The state directory: key, certificate, node.toml (default: $PORTOLAN_NODE_STATE, an absolute
    /// path, or else /var/lib/portolan-node of root, ~/.local/state/portolan-node of others)
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Init(InitArgs),
    Invite(InviteArgs),
    Join(JoinArgs),
    Forget(ForgetArgs),
    Span(SpanArgs),
    Unspan(UnspanArgs),
    Authority(AuthorityArgs),
    Up(UpArgs),
    /// Ask the running node to say farewell to its peers, and to end
    ///
    /// It delivers what programs have sent, for 5 s. Then all rights on ports of other nodes end, and theirs on
    /// ports here; requests under way end too. `portolan node up --replace` keeps them for another process.
    #[command(after_help = concat!("Example:\n  portolan node leave", exit_codes!()))]
    Leave,
    /// Have the running node take over what node.toml says by now
    ///
    /// Spans, peers, rates, `advertise` and `log` hold at once. What else has changed is named, and holds
    /// from the node's next start on. Links stay as they are.
    #[command(after_help = concat!("Example:\n  portolan node reload", exit_codes!()))]
    Reload,
    Status(StatusArgs),
    Lab(LabArgs),
    Man(ManArgs),
}

/// Run the node until it is asked to end.
#[derive(Debug, clap::Args)]
#[command(after_help = concat!("Example:\n  portolan node up\n  portolan node up --replace", exit_codes!()))]
pub(crate) struct UpArgs {
    /// Take over from the node that runs with the state directory, if one does
    ///
    /// That one gives its listening sockets and the rights that programs have to this process, which goes on
    /// as the same incarnation: to other nodes it looks like a link that was cut for a moment. Nobody who
    /// connects meanwhile is refused, and commands wait. What cannot go over ends, and is said here and in
    /// the log: receive rights that are on their way, domains that this process does not span, and everything,
    /// if one of the two builds does not know what the other one tells.
    #[arg(long)]
    pub(crate) replace: bool,
}

/// Make the first node of a cluster: its authority, its key, its node.toml.
///
/// Where `portolan-node` was built with Zenoh (feature `zenoh`), node.toml has `directory = "zenoh"`: nodes tell one
/// another of members and names, over the links' port and certificates. With "static" each peer is asked.
#[derive(Debug, clap::Args)]
#[command(after_help = concat!("Example:\n  portolan node init --name hall", exit_codes!()))]
pub(crate) struct InitArgs {
    #[command(flatten)]
    pub(crate) new: NewArgs,
}

/// What a new node is like.
#[derive(Debug, clap::Args)]
pub(crate) struct NewArgs {
    /// The node's name (default: this machine's)
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Where it listens
    #[arg(long, value_name = "ADDRESS", default_value = LISTEN)]
    pub(crate) listen: SocketAddr,
}

/// Print one line that lets a newcomer in, once, for ten minutes.
///
/// Give it to nobody else: a reader of the line can join in the newcomer's place.
#[derive(Debug, clap::Args)]
#[command(after_help = concat!("Example:\n  portolan node invite --address hall.example:7411", exit_codes!()))]
pub(crate) struct InviteArgs {
    /// Where the newcomer reaches this node (default: `advertise` of node.toml, else what it listens at)
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) address: Option<String>,
}

/// Join the cluster that a token leads to.
///
/// The key is made here and stays here; the node that has printed the token signs it.
#[derive(Debug, clap::Args)]
#[command(after_help = concat!("Example:\n  portolan node join 192.0.2.10:7411/K3V9-...", exit_codes!()))]
pub(crate) struct JoinArgs {
    /// The line that `portolan node invite` has printed
    pub(crate) token: String,
    #[command(flatten)]
    pub(crate) new: NewArgs,
}

/// Refuse a node's key from now on, and end the links with it.
///
/// Said on a node that has the authority's key, it holds in the whole cluster: nodes pass it on, also
/// to those that are away now. Said on another node it holds there alone.
#[derive(Debug, clap::Args)]
#[command(after_help = concat!("Example:\n  portolan node forget 6f1c0a2be5d94b7f8a3e5c21d07b9e44", exit_codes!()))]
pub(crate) struct ForgetArgs {
    /// The node's id, as `portolan node status` shows it
    #[arg(value_name = "NODE")]
    pub(crate) node: NodeId,
}

/// Share a domain with other nodes: ports of either are found from both.
///
/// Only ports that were bound as spanned are let out, and those that are named here. It is written to
/// node.toml, in place of what it said of the domain, and holds at once if the node runs.
#[derive(Debug, clap::Args)]
#[command(after_help = concat!("Example:\n  portolan node span cameras\n  portolan node span cameras --local cameras.1 --nodes roof --ports upper", exit_codes!()))]
pub(crate) struct SpanArgs {
    /// The name that all nodes call it
    pub(crate) domain: String,
    /// This machine's name for it (default: the same)
    #[arg(long, value_name = "NAME")]
    pub(crate) local: Option<String>,
    /// Nodes whose programs come in, by name or id (default: all)
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    pub(crate) nodes: Vec<String>,
    /// Names of ports that are let out though they were not bound as spanned
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    pub(crate) ports: Vec<String>,
}

/// Share a domain no more: rights on ports elsewhere are dead, here and there.
#[derive(Debug, clap::Args)]
#[command(after_help = concat!("Example:\n  portolan node unspan cameras", exit_codes!()))]
pub(crate) struct UnspanArgs {
    /// The name that all nodes call it
    pub(crate) domain: String,
}

/// Back up the authority's key, have it on this node too, or exchange it for another.
///
/// --rotate: a new key signs from now on. Linked nodes get new certificates at once, the others when
/// they are linked; all believe both keys until the old one ends (--keep-old), and then the new one
/// alone. Other nodes that have the old key need a copy of the new one.
///
/// --revoke: the same, if somebody else may have the old key. It is believed no more, nor are those
/// of before, and what they have signed is refused: linked nodes have ten seconds to get new
/// certificates, and nodes that are away now must join again, with another state directory. Forget
/// nodes that you do not know first.
#[derive(Debug, clap::Args)]
#[command(after_help = concat!("Example:\n  portolan node authority --copy authority.pem\n  portolan node authority --install authority.pem\n  portolan node authority --rotate", exit_codes!()))]
#[command(group = ArgGroup::new("what").required(true).args(["copy", "install", "rotate", "revoke"]))]
#[group(skip)]
pub(crate) struct AuthorityArgs {
    /// Write the key and its certificate to this file, which must not be there
    #[arg(long, value_name = "FILE")]
    pub(crate) copy: Option<PathBuf>,
    /// Take them from this file, so that this node may let others in
    #[arg(long, value_name = "FILE")]
    pub(crate) install: Option<PathBuf>,
    /// Make a new key, which follows the old one
    #[arg(long)]
    pub(crate) rotate: bool,
    /// Make a new key, and have the old one believed no more
    #[arg(long)]
    pub(crate) revoke: bool,
    /// With --rotate: how long the old key is believed
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = read_time, conflicts_with_all = ["copy", "install", "revoke"])]
    pub(crate) keep_old: Duration,
}

fn read_time(text: &str) -> Result<Duration, String> {
    time(text).ok_or_else(|| "a time such as \"12h\" (units: ms, s, m, h, d)".to_owned())
}

/// Show the running node, its directory and its peers.
///
/// The directory tells it which members there are and who has which name ("zenoh"), or there is none, and peers
/// are asked ("static"). If it is silent or has ended, peers are asked as well, and links go on.
#[derive(Debug, clap::Args)]
#[command(after_help = concat!("Example:\n  portolan node status --json", exit_codes!()))]
pub(crate) struct StatusArgs {
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Exit with 1 unless each peer of node.toml is linked and each domain spanned
    #[arg(long)]
    pub(crate) check: bool,
}

/// Start nodes on this machine, run a command beside each of them, and end them.
///
/// Each node is in a network namespace of its own where this user may make them (root may), as if
/// it were a machine of its own; else all are side by side, and the domain has another name at each.
/// The command finds that name in PORTOLAN_LAB_DOMAIN, its node's number from 1 on in
/// PORTOLAN_LAB_NODE, how many there are in PORTOLAN_LAB_NODES, and the node's state directory in
/// PORTOLAN_NODE_STATE; the node's address and process are in PORTOLAN_LAB_ADDRESS and
/// PORTOLAN_LAB_PID. What it prints comes with its node's name before each line.
#[derive(Debug, clap::Args)]
#[command(after_help = concat!("Example:\n  portolan node lab 3 -- sh -c 'portolan node status'", exit_codes!()))]
pub(crate) struct LabArgs {
    /// How many nodes
    #[arg(value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) nodes: u8,
    /// The domain that all of them span
    #[arg(long, default_value = "lab")]
    pub(crate) domain: String,
    /// Make no network namespaces
    #[arg(long)]
    pub(crate) names: bool,
    /// After how much silence a peer is unreachable, such as "1s" (default: node.toml's)
    #[arg(long, value_name = "TIME")]
    pub(crate) silent_after: Option<String>,
    /// After how much silence it is given up: a time, or "never" (default: node.toml's)
    #[arg(long, value_name = "TIME")]
    pub(crate) dead_after: Option<String>,
    /// The command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Print a manual page, of this command or of one of its subcommands
///
/// A page is roff, as `man` reads it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = concat!(
        "Example:\n  portolan node man | man -l -\n  portolan node man up | man -l -",
        exit_codes!()
    )
)]
pub(crate) struct ManArgs {
    /// Whose page, such as `up` (default: the whole command's)
    #[arg(value_name = "COMMAND", conflicts_with = "output")]
    pub(crate) of: Option<String>,
    /// Write the pages of all commands into this directory, each as portolan-node-COMMAND.1
    #[arg(long, short, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

impl LabArgs {
    pub(crate) fn plan(&self) -> Plan {
        Plan {
            nodes: self.nodes,
            domain: self.domain.clone(),
            names: self.names,
            silent_after: self.silent_after.clone(),
            dead_after: self.dead_after.clone(),
            command: self.command.clone(),
        }
    }
}
