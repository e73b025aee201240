//! Why something is not offered, or an offer was not had.

use super::Exporter;
use crate::space::OVERFLOW_ID;
use crate::{Disowned, JoinError, NoDescriptor};
use portolan_abi::limits::{MAX_GRANTS, MAX_NAME};
use portolan_abi::name::RULE;

/// Why something is not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OfferError {
    /// The caller's: the name is too long, empty, or has a zero byte or an `@`.
    #[error("no name for an offer: use 1 to {MAX_NAME} bytes {RULE}")]
    BadName,
    /// The caller's: the list of permitted users, groups or processes is too long.
    #[error(
        "{count} users, groups or processes are permitted, and an offer keeps at most {MAX_GRANTS} of each: use a group, or a token"
    )]
    TooManyPermitted {
        /// How many.
        count: usize,
    },
    /// The caller's: there is no such process.
    #[error("process {pid} is permitted, and there is none: permit processes that live")]
    NoProcess {
        /// Its id.
        pid: u32,
    },
    /// The caller's: the user or group that stands for all whom the kernel cannot name.
    #[error(
        "user or group {OVERFLOW_ID} is permitted, which stands for everybody whom the kernel cannot name: nobody is admitted by it"
    )]
    OverflowId,
    /// The caller's: a channel that is offered cannot be read as messages.
    #[error("the channel is raw: offer one of messages")]
    Raw,
    /// The caller's: this channel's writer wakes no reader, so an egress would have to poll.
    #[error("the channel's writer signals nobody: make it with another `Signalling`")]
    NeverSignals,
    /// The state's: parcels go beside this channel's messages, and cannot leave the domain.
    #[error(
        "a writer of this channel sends parcels, which cannot leave their domain: write to another channel, or offer a port"
    )]
    Parcels,
    /// The state's: the domain has another offer of this name and kind.
    #[error(
        "the domain has another offer of this name and kind: choose another name, or wait until that one is withdrawn"
    )]
    NameTaken,
    /// The caller's: this process offers too much, or the domain does.
    #[error("{most} things are offered, and there is no room for another: withdraw some")]
    TooMany {
        /// The most that there may be.
        most: usize,
    },
    /// The host's: it did not answer in time. The offer is withdrawn.
    #[error("the host did not answer in time; it may be stopped")]
    Unanswered,
    /// The caller's: this process is no member that the host knows.
    #[error(transparent)]
    Disowned(#[from] Disowned),
    /// See [`NoDescriptor`].
    #[error(transparent)]
    NoDescriptor(#[from] NoDescriptor),
}

/// Why there is no connection to an offer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OfferConnectError {
    /// The caller's: nothing is offered by such a name.
    #[error("{name:?} is no name of an offer: use 1 to {MAX_NAME} bytes {RULE}")]
    BadName {
        /// The name.
        name: String,
    },
    /// The caller's: the offer's permissions do not admit this process.
    #[error(
        "user {user} may not have the {kind} {name:?}: its offer must permit that user, one of its groups, or this process (Permissions)"
    )]
    NotPermitted {
        /// What was asked for.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Our user, as the host sees it.
        user: u64,
    },
    /// The caller's: the offer asks for a token, and this is not it.
    #[error("the {kind} {name:?} asks for a token, and {} was shown: get it from the offering process", if *.shown { "another" } else { "none" })]
    WrongToken {
        /// What was asked for.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Whether we have shown one.
        shown: bool,
    },
    /// The state's: the domain is there, and no member offers that; or not the one that was meant.
    #[error("{} offers the {kind} {name:?}: check the name, or wait longer", nobody(.exporter.as_ref()))]
    NotOffered {
        /// What was asked for.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The exporter that was meant, if it was said.
        exporter: Option<Exporter>,
    },
    /// The caller's: several members offer that. It must say which it means
    /// ([`ImportOptions::exporter`](crate::vmmc::ImportOptions::exporter)).
    #[error("several members offer the {kind} {name:?} ({}): say which one is meant (ImportOptions::exporter)", listed(.exporters))]
    Ambiguous {
        /// What was asked for.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Those that admit this process; eight at the most. Each can be used as it is to say which
        /// one is meant.
        exporters: Vec<Exporter>,
    },
    /// The caller's: no member can be called so, or have that number.
    #[error(
        "no member can be {exporter}: a name has 1 to {MAX_NAME} bytes, and numbers are as in `portolan ls`"
    )]
    NoSuchExporter {
        /// What was said.
        exporter: Exporter,
    },
    /// The offering process's: it does not take clients.
    #[error("the process that offers the {kind} {name:?} takes no clients now; it may be stopped")]
    NotMet {
        /// What was asked for.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The state's: there is no such domain.
    #[error(
        "user {owner} has no domain {domain:?} here: check name and user, or start the program that offers something in it"
    )]
    NotRunning {
        /// The domain's name.
        domain: String,
        /// Whose it would be.
        owner: u32,
    },
    /// The caller's or the domain's: this user may not connect to the socket's file.
    #[error(
        "this user may not connect to {socket}: the directory must be open to it (mode +x), and the socket (mode +w), which is so once a member offers something to other users"
    )]
    Forbidden {
        /// The socket.
        socket: String,
    },
    /// The host's: it has as many clients as it can keep, of this user or of all.
    #[error("the domain's host has too many clients, of this user or of all: try again later")]
    Busy,
    /// The host's or the offering process's: no answer came in time.
    #[error(
        "neither the domain's host nor the offering process answered by the deadline: allow more time, or see whether one of them is stopped"
    )]
    Unanswered,
    /// The domain's: what stands in the way of everybody who connects to it.
    #[error(transparent)]
    Domain(#[from] JoinError),
    /// The caller's: this process is no member of the domain any more.
    #[error(transparent)]
    Disowned(#[from] Disowned),
}

/// Who does not.
fn nobody(exporter: Option<&Exporter>) -> String {
    exporter.map_or_else(
        || "nobody in the domain".to_owned(),
        |exporter| format!("no member that is {exporter}"),
    )
}

fn listed(exporters: &[Exporter]) -> String {
    let all: Vec<String> = exporters.iter().map(Exporter::to_string).collect();
    all.join("; ")
}
