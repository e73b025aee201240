//! Errors say why a command failed: what happened, whose fault it is, what to do.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use portolan::JoinError;
use portolan_measure::MeasureError;
use portolan_measure::error::{Blame, FOLLOWED};

/// Exit code of a wait that came to nothing in time.
const IN_VAIN: u8 = 5;
/// Exit code of a message for which there was no room.
const FULL: u8 = 6;
/// Exit code of a message or request whose port died or which was dropped.
const DEAD: u8 = 7;

/// What ends a command. [`CliError::blame`] and [`CliError::remedy`] complete the text.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// Caller's: the input cannot be opened.
    #[error("cannot open {path}: {source}")]
    Input { path: PathBuf, source: io::Error },
    /// Caller's: the input is a directory, a device or a pipe.
    #[error("{path} is not a regular file")]
    NotAFile { path: PathBuf },
    /// Caller's: the output cannot be made.
    #[error("cannot write {path}: {source}")]
    Output { path: PathBuf, source: io::Error },
    /// Caller's: no row contains the filter's word.
    #[cfg_attr(not(feature = "bench"), allow(dead_code, reason = "of benchmarks"))]
    #[error("no row of this benchmark contains {word:?}")]
    NothingMatches { word: String },
    /// Caller's: a screen was asked for where none is.
    #[error("`portolan top` needs a terminal for its screen, and this is none")]
    NoTerminal,
    /// Caller's: no domain was named, and none runs.
    #[error("no domain runs on this machine")]
    NoDomain,
    /// Caller's: no domain was named, and several run.
    #[error("several domains run on this machine: {names}")]
    WhichDomain { names: String },
    /// Caller's: the domain that was named does not run.
    #[error("no domain named {name:?} runs on this machine")]
    NotRunning { name: String },
    /// A peer's: another process traces the domain; the library's reason says who.
    #[error("{0}")]
    Traced(String),
    /// A peer's: the domain ended while it was looked at.
    #[error("the domain {name:?} has ended: every process that was in it has left or died")]
    Ended { name: String },
    /// Caller's: the library's reason says what is wrong with what was asked for.
    #[error("{what}")]
    Refused { what: String, to_do: &'static str },
    /// Why a domain could not be joined, or looked into.
    #[error("{}", joined(.doing, .source))]
    Join {
        doing: &'static str,
        source: JoinError,
    },
    /// Caller's: requests cannot be answered by what cannot be run.
    #[error("cannot run {program:?}: {reason}")]
    NotRunnable { program: String, reason: String },
    /// The system's: the program that the command is for is not installed.
    #[error("there is no program portolan-node, neither beside this one nor in PATH")]
    NoNodeProgram,
    /// Caller's: no node runs with this state directory.
    #[error("no node runs with the state directory {}", .state.display())]
    NoNode { state: PathBuf },
    /// A peer's: the node ended while it was looked at.
    #[error("the node with the state directory {} has ended", .state.display())]
    NodeEnded { state: PathBuf },
    /// Caller's: no node of this machine has that name.
    #[error("{}", no_node_named(.name, .others))]
    NoNodeNamed { name: String, others: Vec<String> },
    /// A peer's: the node does not answer.
    #[error("the node with the state directory {} does not answer in {seconds} s", .state.display())]
    NodeSilent { state: PathBuf, seconds: u64 },
    /// The system's, or a node's of another version: its answer cannot be had, or read.
    #[error("cannot ask the node with the state directory {}: {source}", .state.display())]
    NodeUnreadable { state: PathBuf, source: io::Error },
    /// Caller's: there is no such subcommand.
    #[error("there is no command `portolan {name}`")]
    NoCommand { name: String },
    /// The system's: what Portolan needs is missing.
    #[error("Portolan does not work here: {because}")]
    Unfit { because: String },
    /// The state's: there was no such domain in time.
    #[error("no domain named {name:?} in time: {others}")]
    NoDomainInTime { name: String, others: String },
    /// The state's: there was no such port in time.
    #[error("{}", no_port(.name, .domain))]
    NoPort { name: String, domain: String },
    /// The state's: no message came in time.
    #[error("nothing came to the port {name:?} in time")]
    NothingCame { name: String },
    /// The peer's: it did not answer in time.
    #[error("no answer from the port {name:?} in time; the request may still be served")]
    NoAnswer { name: String },
    /// The state's: the queue is full.
    #[error("the queue of the port {name:?} is full ({slots} messages)")]
    Full { name: String, slots: usize },
    /// The peer's: the port is gone.
    #[error(
        "the port {name:?} died: its owner closed it or died, or a node between ended or spans the domain no more"
    )]
    PortDied { name: String },
    /// The peer's: the port is gone, and a request is on the way.
    #[error(
        "the port {name:?} died before it answered: its owner closed it or died, or a node between ended or spans the domain no more; the request may have been served"
    )]
    ServerDead { name: String },
    /// The state's: its node has not said in time that it has the message.
    #[error(
        "the message to the port {name:?} was sent, and it is not known in time whether it is there; it may still arrive"
    )]
    Unacknowledged { name: String },
    /// The peer's: its node was given up, or the port died, before the message was there.
    #[error("the message to the port {name:?} was sent, and is lost unless it had arrived: {why}")]
    MessageLost { name: String, why: String },
    /// The peer's: it dropped the request.
    #[error("the server of the port {name:?} dropped the request unanswered")]
    Unanswered { name: String },
    /// The peer's: its node is silent.
    #[error(
        "the port {name:?} is on node {node:?}, which has been silent for {:.1} s",
        .silent.as_secs_f64()
    )]
    Unreachable {
        name: String,
        node: String,
        silent: Duration,
    },
    /// The peer's: its node was given up.
    #[error(
        "node {node:?} was given up before the port {name:?} answered; the request may have been served"
    )]
    NodeLost { name: String, node: String },
    /// What also befalls other programs that start further processes.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// A peer's: a neighbour in the chain closed its end in the middle of the work.
    #[error("the {role} lost its neighbour: {source}")]
    NeighbourLost {
        role: &'static str,
        source: io::Error,
    },
    /// The system's: nodes, or the programs beside them, failed.
    #[error("the nodes failed:\n{}", .said.trim_end())]
    Lab { said: String },
    /// Ours: the data that arrived is not the data that was sent.
    #[error("{carrier}: {what} has digest {found}, expected {expected}")]
    WrongDigest {
        carrier: &'static str,
        what: &'static str,
        found: String,
        expected: String,
    },
    /// Ours: blocks arrived out of order, or without a stamp.
    #[error("the writer expected block {expected} and got block {found}")]
    OutOfOrder { expected: u64, found: u64 },
}

/// Shorthand of this crate.
pub(crate) type Result<T> = std::result::Result<T, CliError>;

impl CliError {
    /// For `map_err`: names what was being done.
    pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| MeasureError::system(doing)(source).into()
    }

    /// The same for an error of the library.
    pub(crate) fn library<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        doing: &'static str,
    ) -> impl FnOnce(E) -> Self {
        move |source| MeasureError::library(doing)(source).into()
    }

    /// For `map_err`: why a domain could not be joined, or looked into.
    pub(crate) fn join(doing: &'static str) -> impl FnOnce(JoinError) -> Self {
        move |source| Self::Join { doing, source }
    }

    /// What was asked for cannot be had: the library's reason, and what to do.
    pub(crate) fn refused(error: &dyn std::error::Error, to_do: &'static str) -> Self {
        let what = error.to_string();
        Self::Refused { what, to_do }
    }

    pub(crate) fn blame(&self) -> Blame {
        match self {
            Self::Input { .. }
            | Self::NotAFile { .. }
            | Self::Output { .. }
            | Self::NothingMatches { .. }
            | Self::NoTerminal
            | Self::Refused { .. }
            | Self::NotRunnable { .. }
            | Self::NoCommand { .. }
            | Self::NoNode { .. }
            | Self::NoNodeNamed { .. }
            | Self::NoDomain
            | Self::NoDomainInTime { .. }
            | Self::WhichDomain { .. }
            | Self::NotRunning { .. } => Blame::Caller,
            Self::Measure(error) => error.blame(),
            Self::Join { source, .. } => blame_of(source),
            Self::Unfit { .. }
            | Self::NoNodeProgram
            | Self::NodeUnreadable { .. }
            | Self::Lab { .. } => Blame::System,
            Self::NeighbourLost { .. }
            | Self::NodeSilent { .. }
            | Self::NodeEnded { .. }
            | Self::Ended { .. }
            | Self::Traced(_)
            | Self::NoPort { .. }
            | Self::NothingCame { .. }
            | Self::NoAnswer { .. }
            | Self::Full { .. }
            | Self::PortDied { .. }
            | Self::ServerDead { .. }
            | Self::Unacknowledged { .. }
            | Self::MessageLost { .. }
            | Self::Unreachable { .. }
            | Self::NodeLost { .. }
            | Self::Unanswered { .. } => Blame::Peer,
            Self::WrongDigest { .. } | Self::OutOfOrder { .. } => Blame::Portolan,
        }
    }

    fn remedy(&self) -> Cow<'static, str> {
        match self {
            Self::Join { source, .. } => to_join(source),
            other => other.standing_remedy().into(),
        }
    }

    /// What to do about what the values of an error do not change.
    fn standing_remedy(&self) -> &'static str {
        match self {
            Self::Input { .. } => "name a file that exists and that you may read",
            Self::NotAFile { .. } => "name a regular file, or none for generated data",
            Self::Output { .. } => {
                "choose a directory that you may write and that has room (-o FILE)"
            }
            Self::NothingMatches { .. } => "run without --filter to see the columns to choose from",
            Self::Refused { to_do, .. } => to_do,
            // Said above.
            Self::Join { .. } => "",
            Self::NotRunnable { .. } => {
                "name a program that is there and that you may run, after `--`"
            }
            Self::NoCommand { .. } => "`portolan --help` lists the commands",
            Self::Unfit { .. } => {
                "use a newer kernel, or have the container or the limits permit what is missing"
            }
            Self::Lab { .. } => "run it again; if it repeats, report it with this output",
            Self::NoNodeProgram => {
                "build it beside this one: cargo build --release -p portolan-node (or cargo install --path crates/node --features zenoh)"
            }
            Self::NoNode { .. } => {
                "start it: `portolan node up` (`portolan node init` makes the first of a cluster, `join` the next); PORTOLAN_NODE_STATE names another state directory"
            }
            Self::NodeEnded { .. } => "start it again: `portolan node up`",
            Self::NoNodeNamed { .. } => {
                "name its state directory, if it is in another network namespace; `portolan node up` starts one"
            }
            Self::NodeSilent { .. } => {
                "look whether its process is stopped, and continue or end it (`kill -CONT`, `kill`)"
            }
            Self::NodeUnreadable { .. } => {
                "use a command of the node's version, as the node's user"
            }
            Self::NoDomainInTime { .. } => {
                "check the name (--domain), start a program that makes it (`portolan port receive` does), or wait longer (--timeout)"
            }
            Self::NoPort { .. } => {
                "start the program that binds it (with --spanned, or `.spanned()`, for other machines), name its domain (--domain), or wait longer (--timeout); `portolan node status` says which nodes are silent"
            }
            Self::NothingCame { .. } => "wait longer (--timeout), or look whether its senders run",
            Self::NoAnswer { .. } => "wait longer (--timeout), or look whether its server hangs",
            Self::Full { .. } => "let the receiver catch up, wait longer (--timeout), or --drop",
            Self::PortDied { .. } | Self::ServerDead { .. } => {
                "start its owner again, or span the domain again (`portolan node span`), and repeat the command"
            }
            Self::Unacknowledged { .. } => {
                "wait longer (--timeout); `portolan node status` says what waits for whom"
            }
            Self::MessageLost { .. } => {
                "look at that machine and at the network (`portolan node status`), and send it again if it may come twice"
            }
            Self::Unreachable { .. } => {
                "try again later; look at that machine and at the network (`portolan node status`)"
            }
            Self::NodeLost { .. } => {
                "look at that machine and at the network (`portolan node status`), and repeat the command"
            }
            Self::Unanswered { .. } => "look at the server's own messages",
            Self::NoTerminal => "run it in a terminal, or add --json for one snapshot",
            Self::NoDomain => "start a program that joins one (`portolan port receive` does)",
            Self::WhichDomain { .. } => "name one of them (and --user UID, if names are alike)",
            Self::NotRunning { .. } => "`portolan ls` lists the domains that run",
            Self::Traced(_) => "a domain has one tracer at a time: wait, or end that process",
            Self::Ended { .. } => "start a program that joins it, and look again",
            Self::Measure(MeasureError::NoCoordinator) => {
                "run `portolan bench` or `portolan demo`, which start it themselves"
            }
            Self::Measure(error) => error.remedy(),
            Self::NeighbourLost { .. } => "run it again; if it repeats, report it",
            Self::WrongDigest { .. } | Self::OutOfOrder { .. } => {
                "if the file changed during the run, run it again; otherwise report it with this output"
            }
        }
    }

    /// 2: the caller's (as for a wrong argument); 1: the system's or a peer's; 3: ours.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::NeighbourLost { .. } => FOLLOWED,
            Self::NoDomainInTime { .. }
            | Self::NoPort { .. }
            | Self::NothingCame { .. }
            | Self::Unreachable { .. }
            | Self::Unacknowledged { .. }
            | Self::NoAnswer { .. } => IN_VAIN,
            Self::Full { .. } => FULL,
            Self::PortDied { .. }
            | Self::ServerDead { .. }
            | Self::MessageLost { .. }
            | Self::NodeLost { .. }
            | Self::Unanswered { .. } => DEAD,
            _ => self.blame().exit_code(),
        }
    }

    /// Prints the whole error on standard error.
    pub(crate) fn report(&self) {
        if matches!(self, Self::NeighbourLost { .. }) {
            // The coordinator says which neighbour, and why.
            return;
        }
        self.blame().report(self, &self.remedy());
    }
}

/// That no node of this name runs here, and which do.
fn no_node_named(name: &str, others: &[String]) -> String {
    match others {
        [] => format!("no node named {name:?} runs here, and no other one"),
        _ => {
            // Quoted: other users' nodes may have names that a terminal would obey.
            let others: Vec<String> = others.iter().map(|other| format!("{other:?}")).collect();
            let others = others.join(", ");
            format!("no node named {name:?} runs here, but {others}")
        }
    }
}

/// That no port of this name was found.
fn no_port(name: &str, domain: &str) -> String {
    match name.split_once('@') {
        Some((port, node)) => {
            format!(
                "node {node:?} lets out no port named {port:?} of the domain {domain:?} in time"
            )
        }
        None => format!("no port named {name:?} in the domain {domain:?} in time"),
    }
}

/// Why a domain could not be joined, in this command's terms.
fn joined(doing: &str, error: &JoinError) -> String {
    match error {
        // The library's text is for who writes programs.
        JoinError::NotPermitted { user, owner } => {
            format!("user {user} may not join this domain of user {owner}: permission denied")
        }
        other if blame_of(other) == Blame::System => format!("{doing}: {other}"),
        other => other.to_string(),
    }
}

/// Whose fault it is that a domain could not be joined.
fn blame_of(error: &JoinError) -> Blame {
    match error {
        JoinError::BadName { .. }
        | JoinError::TooManyPermitted { .. }
        | JoinError::NotPermitted { .. }
        | JoinError::NotRunning { .. }
        | JoinError::Absent { .. } => Blame::Caller,
        JoinError::TimedOut { .. }
        | JoinError::Occupied { .. }
        | JoinError::Impostor { .. }
        | JoinError::OtherVersion { .. }
        | JoinError::Full { .. }
        | JoinError::HostDescriptors { .. }
        | JoinError::NotARegion(_)
        | JoinError::Garbled { .. } => Blame::Peer,
        _ => Blame::System,
    }
}

/// What to do about a domain that could not be joined.
fn to_join(error: &JoinError) -> Cow<'static, str> {
    let to_do = match error {
        JoinError::NotPermitted { user, .. } => {
            return format!(
                "let the command that makes the domain say --allow-user {user}, or --allow-group with one of that user's groups (in a program: Builder::allow_user, Builder::allow_group)"
            )
            .into();
        }
        JoinError::BadName { .. } => "name the domain otherwise",
        JoinError::TooManyPermitted { .. } => "permit a group of these users instead",
        JoinError::NotRunning { .. } => "`portolan ls` lists the domains that run",
        JoinError::Absent { .. } => {
            "have that user start a program of the domain, or leave out --user for a domain of your own"
        }
        JoinError::TimedOut {
            holder: Some(_), ..
        } => "continue or end the process that it names (`kill -CONT`, `kill`)",
        JoinError::TimedOut { .. } => "look at its processes (`portolan ls`), and try again",
        JoinError::Impostor { .. } | JoinError::Occupied { .. } => {
            "end the process that has the socket, or choose another name for the domain"
        }
        JoinError::OtherVersion { .. } => "use programs of one version of Portolan",
        JoinError::Full { .. } => "end one of its processes, or use another domain",
        JoinError::HostDescriptors { .. } | JoinError::Descriptors { .. } => {
            "raise the limit of open files (`ulimit -n`), there and here"
        }
        JoinError::OtherNamespace => "run both in one process namespace (for containers: --pid)",
        JoinError::NotARegion(_) | JoinError::Garbled { .. } => {
            "end the process that has the domain's socket: it is no program of Portolan's"
        }
        JoinError::AddressTaken { .. } => "run it again: addresses are dealt out anew",
        JoinError::NoAddresses { .. } => {
            "end domains that are not needed: `portolan ls` lists them"
        }
        _ => "run `portolan doctor`; look at limits (ulimit -a) and at free memory",
    };
    to_do.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_follow_the_blame() {
        let no_file = CliError::Input {
            path: "/x".into(),
            source: io::Error::from_raw_os_error(2),
        };
        assert_eq!((no_file.blame(), no_file.exit_code()), (Blame::Caller, 2));
        let late = CliError::OutOfOrder {
            expected: 1,
            found: 2,
        };
        assert_eq!((late.blame(), late.exit_code()), (Blame::Portolan, 3));
    }
}
