//! Errors say why a command of the node failed: what happened, whose fault it is, what to do.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use portolan_transport::{Moment, NodeId, TransportError};

use crate::config::ConfigError;
use crate::token::TokenError;

/// What ends a command, or refuses a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The caller's: node.toml.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The caller's: the token of an invitation.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A peer's, or the network's.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The state's: the disk is full.
    #[error("no room to write {path}: {source}")]
    NoRoom {
        /// Which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The state's or the caller's: a file of the state directory cannot be used.
    #[error("{doing} {path}: {source}")]
    File {
        /// What was tried.
        doing: &'static str,
        /// Which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The caller's: others may read a key.
    #[error("{path} has mode {mode:o}: others may read it, and it is a key")]
    Readable {
        /// Which file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The caller's: another user may read a key.
    #[error("{path} is owned by the user {owner}, who may read it, and it is a key")]
    Owned {
        /// Which file.
        path: PathBuf,
        /// The user.
        owner: u32,
    },
    /// The caller's: others may put files into the state directory.
    #[error("{path} has mode {mode:o}: others may replace what is in it, and it has a node's keys")]
    Writable {
        /// Which directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The caller's: the state directory is another user's.
    #[error(
        "{path} is owned by the user {owner}, who may replace what is in it, and it has a node's keys"
    )]
    Foreign {
        /// Which directory.
        path: PathBuf,
        /// The user.
        owner: u32,
    },
    /// The caller's: a file says something else than it should.
    #[error("{path} is damaged: {what}")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The caller's: another node has the state directory.
    #[error("{path} is in use: another portolan-node runs with it")]
    InUse {
        /// The state directory.
        path: PathBuf,
    },
    /// The caller's: another process listens at a socket's file, or it is no socket.
    #[error("{path} is in use: another process listens there, or it is no socket")]
    Listening {
        /// The file.
        path: PathBuf,
    },
    /// The running node's: it did not let this process take over.
    #[error("the running node was not replaced: {why}")]
    NotReplaced {
        /// Why.
        why: String,
    },
    /// The caller's: counters cannot be asked for there.
    #[error("cannot listen for metrics at {address}: {source}")]
    Metrics {
        /// `metrics` of node.toml.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The caller's: there is no identity yet.
    #[error("{path} has no node yet")]
    NotMade {
        /// The state directory.
        path: PathBuf,
    },
    /// The caller's: there is an identity already.
    #[error("{path} has a node already: {node}")]
    AlreadyMade {
        /// The state directory.
        path: PathBuf,
        /// Whose.
        node: NodeId,
    },
    /// The caller's: this node signs nothing.
    #[error("this node does not have the authority's key, so it cannot invite, sign or copy it")]
    NoAuthority,
    /// The caller's: another key has followed the one that is here.
    #[error("the authority's key {key} has a successor, and signs nothing more")]
    Superseded {
        /// The key.
        key: NodeId,
    },
    /// The caller's: what was to be stated is not believed.
    #[error("this node did not accept the statement: {why}")]
    NotAccepted {
        /// Why.
        why: String,
    },
    /// The state's: no node runs here.
    #[error("no portolan-node runs with {path}")]
    NotRunning {
        /// The state directory.
        path: PathBuf,
    },
    /// The caller's: this certificate of ours cannot be used any more.
    #[error("the certificate of this node expired at {not_after} and it is {now}")]
    Expired {
        /// Until when it was valid.
        not_after: Moment,
        /// What the clock says.
        now: Moment,
    },
    /// The inviter's: why a newcomer was not let in.
    #[error("{node} refused to let this node in: {why}")]
    Refused {
        /// Where it was asked.
        node: String,
        /// Its reason.
        why: String,
    },
    /// The caller's: a name that does not exist here.
    #[error("{what}")]
    Wrong {
        /// What is wrong, and what is allowed.
        what: String,
    },
    /// The command's: it failed beside a node of the lab.
    #[error("the command beside {node} failed: {status}")]
    Command {
        /// Which node.
        node: String,
        /// How it ended.
        status: String,
    },
    /// The peer's: it did not answer in time.
    #[error("{who} did not answer within {seconds} s")]
    Silent {
        /// Who.
        who: String,
        /// How long it had.
        seconds: u64,
    },
    /// The machine's: the system refused.
    #[error("{doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The state's: the running node is not as its files want it.
    #[error("not all is well: {what}")]
    NotWell {
        /// What is not.
        what: String,
    },
    /// Ours: a certificate could not be made.
    #[error("cannot make a certificate: {what}")]
    Certificate {
        /// The library's reason.
        what: String,
    },
}

/// Shorthand of this crate.
pub type Result<T> = std::result::Result<T, NodeError>;

/// ENOSPC and EDQUOT.
const NO_ROOM: [i32; 2] = [28, 122];

impl NodeError {
    /// For `map_err`: names what was being done with a file.
    pub fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.raw_os_error() {
            Some(code) if NO_ROOM.contains(&code) => Self::NoRoom { path, source },
            _ => Self::File {
                doing,
                path,
                source,
            },
        }
    }

    /// For `map_err`: names what was being done.
    pub(crate) fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { doing, source }
    }

    pub(crate) fn certificate(error: impl std::fmt::Display) -> Self {
        Self::Certificate {
            what: error.to_string(),
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Config(_) => "correct the line, and run it again",
            Self::Token(_) => {
                "copy the whole line that `portolan node invite` printed, or invite again"
            }
            Self::Transport(TransportError::CannotListen { .. }) => {
                "end what listens there, or choose another address (`listen` in node.toml, --listen)"
            }
            Self::Transport(
                TransportError::Expired { .. } | TransportError::NotYetValid { .. },
            ) => "look at the clocks of both machines",
            Self::Transport(TransportError::Descriptors { .. }) => "raise `ulimit -n`",
            Self::Transport(_) => "look whether the node runs there, and at the network between",
            Self::NoRoom { .. } => "free some room there; nothing was changed",
            Self::File { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
                "name another place, or take away what is there"
            }
            Self::File { .. } => "check that the path exists and that you may use it (--state)",
            Self::Readable { .. } => "chmod 600 it; if others may have read it, make a new node",
            Self::Owned { .. } => {
                "chown it to the user that the node runs as; if the other one may not know it, make a new node"
            }
            Self::Writable { .. } => {
                "chmod 700 it, or name a directory below it (--state), which is made; if others may have been there, make a new node"
            }
            Self::Foreign { .. } => {
                "run it as that user, chown it to this one, or name another directory (--state)"
            }
            Self::Damaged { .. } => {
                "restore it from a backup, or make a new node with another --state"
            }
            Self::InUse { .. } => "end the other one, or name another directory (--state)",
            Self::Listening { .. } => {
                "end the other one, or name another place (--state; PORTOLAN_NODE_SOCKET for programs)"
            }
            Self::Metrics { .. } => "name another address in node.toml, or leave `metrics` out",
            Self::NotReplaced { .. } => "`portolan node leave`, then `portolan node up`",
            Self::NotMade { .. } => {
                "`portolan node init` makes the first node of a cluster, `portolan node join` a further one"
            }
            Self::AlreadyMade { .. } => {
                "name another directory (--state), or use the node that is there"
            }
            Self::NoAuthority => {
                "ask a node that has it (where `portolan node init` ran, or `authority --install`)"
            }
            Self::Superseded { .. } => {
                "`authority --copy` on the node where it was rotated, then `authority --install` here"
            }
            Self::NotAccepted { .. } => {
                "`portolan node status` says which authorities are believed"
            }
            Self::NotRunning { .. } => "start it: `portolan node up`",
            Self::Expired { .. } => "set the clock, or join again with another --state",
            Self::Refused { .. } => "invite again: `portolan node invite`",
            Self::Wrong { .. } => "`portolan-node --help` says what there is",
            Self::Command { .. } => "look at what it has printed",
            Self::Silent { .. } => "look whether it hangs, and run it again",
            Self::System { .. } => "run `portolan doctor`; look at limits (ulimit -a)",
            Self::NotWell { .. } => "`portolan node status` says why",
            Self::Certificate { .. } => "report it with this output",
        }
    }

    /// 2: the caller's (as for a wrong argument); 1: the system's or a peer's; 3: ours.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Certificate { .. } => 3,
            Self::Transport(_)
            | Self::NoRoom { .. }
            | Self::Refused { .. }
            | Self::Command { .. }
            | Self::Silent { .. }
            | Self::NotRunning { .. }
            | Self::NotWell { .. }
            | Self::NotReplaced { .. }
            | Self::System { .. } => 1,
            _ => 2,
        }
    }

    /// Prints the whole error on standard error.
    pub fn report(&self) {
        let fault = match self.exit_code() {
            2 => "the command line's",
            3 => "a bug in portolan-node",
            _ => "this system's, or another node's",
        };
        let to_do = self.remedy();
        crate::output::tell(&format!(
            "portolan-node: {self}\n  fault: {fault}\n  to do: {to_do}"
        ));
    }
}
