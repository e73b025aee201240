//! Errors say why a process is not, or not cleanly, a member of a domain.

use super::Disowned;
use portolan_abi::limits::{MAX_DOMAIN_NAME, MAX_SPACES};
use portolan_sys::memory::{AllocateError, MapError, VerifyError};
use portolan_sys::socket::{Holder, SocketError};
use std::io;
use std::path::Path;
use std::time::Duration;

/// The user or group that the kernel names when it cannot say who it is.
pub(crate) const OVERFLOW_ID: u32 = 65_534;

/// Why a domain could not be joined or created. Nothing of the attempt is left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The caller's: a domain's name is part of a socket's name.
    #[error(
        "{name:?} is no domain name: use 1 to {MAX_DOMAIN_NAME} bytes without '/' and zero bytes"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// The caller's: the size of a domain is more than zero and at most 1 TiB.
    #[error("a domain cannot have a size of {size} bytes: choose 1 byte to 1 TiB")]
    BadSize {
        /// Bytes asked for.
        size: u64,
    },
    /// The caller's: copying is chosen for each port, not for a domain.
    #[error("a domain is trusted or guarded; copying is chosen when a port is bound")]
    BadProtection,
    /// The caller's: the list of users or groups has no room for so many.
    #[error("{count} {what} are permitted to join, and a domain keeps at most {max}")]
    TooManyPermitted {
        /// How many.
        count: usize,
        /// Users or groups.
        what: &'static str,
        /// The most.
        max: usize,
    },
    /// The caller's: this process was forked from a member.
    #[error(
        "this process was forked from a member, which has the domain's state: exec before joining"
    )]
    Forked,
    /// The state's: this process uses the addresses that the region has in every member.
    #[error(
        "the domain lies at addresses {base:#x}..{:#x}, which this process uses for {by}; {}",
        base + len, to_be_free(by)
    )]
    AddressTaken {
        /// First address.
        base: u64,
        /// Bytes.
        len: u64,
        /// What lies there.
        by: String,
    },
    /// The state's: this process has something wherever the region of a new domain was to lie.
    #[error(
        "this process has no {len:#x} bytes of addresses free that a new domain could have: {domains} \
         domains of this machine have reserved theirs, and this process uses some for {by}; leave \
         domains that it does not need, create smaller ones (`Builder::size`), or, where no other \
         process joins, private ones (`Builder::private`)"
    )]
    NoAddresses {
        /// Bytes.
        len: u64,
        /// Domains that have reserved addresses.
        domains: usize,
        /// What lies where it was tried last.
        by: String,
    },
    /// The caller's: it asked for a protection that the domain does not have.
    #[error(
        "the domain is {found}, and {wanted} was asked for: a domain's protection is set by the process that creates it"
    )]
    ProtectionMismatch {
        /// Asked for.
        wanted: &'static str,
        /// What the domain has.
        found: &'static str,
    },
    /// The caller's: this process is a guarded member already, and asked to be one to which
    /// everything is open.
    #[error(
        "this process has joined the domain already, guarded: only its first `join` decides whether its mapping stays open (`always_open`)"
    )]
    GuardedAlready,
    /// The state's: host and newcomer were built for different formats.
    #[error(
        "the domain has format {theirs} and this program speaks {ours}: use programs of one version"
    )]
    OtherVersion {
        /// The domain's format.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The caller's: its user may not join.
    #[error(
        "user {user} may not join this domain of user {owner}: the program that creates it must permit that user or one of its groups (Builder::allow_user, Builder::allow_group; `portolan port` has --allow-user and --allow-group)"
    )]
    NotPermitted {
        /// Our user, as the host sees it.
        user: u64,
        /// The domain's user.
        owner: u32,
    },
    /// The state's: all spaces are taken.
    #[error("the domain is full: {spaces} processes are in it")]
    Full {
        /// Most members.
        spaces: u64,
    },
    /// The host's: it has no descriptor left for another member.
    #[error("the domain's host is out of file descriptors{}: raise its `ulimit -n`", by(.host))]
    HostDescriptors {
        /// The host, if it can be told.
        host: Option<Holder>,
    },
    /// The host's: it cannot read `/proc`, and so not tell who a newcomer is.
    #[error("the domain's host cannot read /proc{}: mount it where that process runs", by(.host))]
    HostProc {
        /// The host, if it can be told.
        host: Option<Holder>,
    },
    /// Ours: this process has no descriptor left.
    #[error("this process is out of file descriptors: raise `ulimit -n`, which is {limit}")]
    Descriptors {
        /// Most descriptors of this process.
        limit: u64,
    },
    /// The state's: host and newcomer cannot see one another's process ids.
    #[error(
        "host and newcomer are in different process namespaces and could not see one another die: share one (for containers, --pid)"
    )]
    OtherNamespace,
    /// The state's: no process has this domain of another user, and only that user can create it.
    #[error("user {owner} has no domain {name:?} here, and only that user can create it")]
    Absent {
        /// The domain's name.
        name: String,
        /// Whose it would be.
        owner: u32,
    },
    /// The state's: there is no such domain, and an observer does not create one; nor does who
    /// was told not to ([`Builder::create`](super::Builder::create)).
    #[error(
        "user {owner} has no domain {name:?} running here: check the name (`portolan ls` lists those that run), or start a program that joins it"
    )]
    NotRunning {
        /// The domain's name.
        name: String,
        /// Whose it would be.
        owner: u32,
    },
    /// The state's: every process that was in the domain has left it or died, and an observer
    /// sees nothing any more.
    #[error("the domain {name:?} has ended: every process that was in it has left or died")]
    Ended {
        /// The domain's name.
        name: String,
    },
    /// The caller's: the directory of [`Builder::path`](super::Builder::path) is not one that
    /// this user may make a socket in.
    #[error(
        "the domain's socket cannot be in {directory}: {source}; make the directory, or let this user write to it"
    )]
    Directory {
        /// The directory.
        directory: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A stranger's: the socket of this name belongs to another user. Or the caller's, in a user
    /// namespace that has no number for the domain's user.
    #[error(
        "the socket of this domain belongs to user {found}{} instead of {owner}{}: not connected", nameless(*.found), by(.holder)
    )]
    Impostor {
        /// Whose domain it should be.
        owner: u32,
        /// Who listens.
        found: u32,
        /// The listener, if it can be told.
        holder: Option<Holder>,
    },
    /// The members', or a stranger's, who has a socket of the domain's name: no answer came in time.
    #[error("no host or other member answered within {waited:?}{}", silent(.holder))]
    TimedOut {
        /// How long we tried.
        waited: Duration,
        /// Who has the socket, if it can be told.
        holder: Option<Holder>,
    },
    /// A stranger's: something else than a domain has the name of the domain's socket.
    #[error(
        "the socket name {socket} is taken by {}, which answers no newcomer there: end it, or let the domain's members meet in a private directory (Builder::path)", occupier(.holder)
    )]
    Occupied {
        /// The socket's name.
        socket: String,
        /// Who has it, if it can be told.
        holder: Option<Holder>,
    },
    /// The host's: what it sent is not the sealed memory of a domain.
    #[error("the host sent no region of a Portolan domain: {0}")]
    NotARegion(#[source] VerifyError),
    /// The host's: what it sent does not fit together.
    #[error(
        "the host sent no region of a Portolan domain: its {what} is {found:#x} instead of {wanted:#x}"
    )]
    Garbled {
        /// What does not fit.
        what: &'static str,
        /// Its value.
        found: u64,
        /// What it should be.
        wanted: u64,
    },
    /// The state's: no node serves this user on this machine, and one is to span the domain
    /// ([`Builder::spanning`](super::Builder::spanning)).
    #[error(
        "no node serves this user's programs at {socket}: run one (`portolan node up`), or name its socket in PORTOLAN_NODE_SOCKET"
    )]
    NoNode {
        /// Where it would serve them.
        socket: String,
    },
    /// A stranger's: the node's socket belongs to a user who is neither this one nor root.
    #[error(
        "the node's socket {socket} belongs to user {found} and not to user {user} or root: not connected"
    )]
    StrangeNode {
        /// The socket.
        socket: String,
        /// Who listens.
        found: u32,
        /// Our user.
        user: u32,
    },
    /// The node's: it did not say in time that it spans the domain.
    #[error("this machine's node did not answer within {waited:?}{}", node_silent(.holder))]
    NodeSilent {
        /// How long we waited.
        waited: Duration,
        /// The node, if it can be told.
        holder: Option<Holder>,
    },
    /// The node's: it does not span the domain.
    #[error("this machine's node does not span the domain {domain:?}: {why}")]
    NodeRefused {
        /// The domain's name.
        domain: String,
        /// What it says.
        why: String,
    },
    /// The machine's: no memory for the domain's tables.
    #[error("no memory for the domain's tables: {0}")]
    Memory(#[source] AllocateError),
    /// The machine's: the region could not be mapped.
    #[error("cannot map the domain's region (is `ulimit -v` set?): {0}")]
    Map(#[source] MapError),
    /// The machine's: a kernel feature is missing or forbidden.
    #[error("this kernel does not let us {what}: {source} (`portolan doctor` tells more)")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The machine's: the domain is guarded, and a kernel feature that guards need is
    /// missing or forbidden (containers often forbid userfaultfd).
    #[error(
        "the domain is guarded, and this kernel does not let us {what}: {source} (`portolan doctor` tells more)"
    )]
    Unguarded {
        /// What was tried.
        what: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The machine's: the socket failed.
    #[error("cannot reach the domain's host: {0}")]
    Socket(#[source] SocketError),
}

/// What is to be said of the user that stands for all whom the kernel cannot name here.
fn nameless(user: u32) -> &'static str {
    if user == OVERFLOW_ID {
        " (whom this user namespace has no number for)"
    } else {
        ""
    }
}

/// `process 7, "name", of user 1000`.
fn process(
    Holder {
        pid, comm, user, ..
    }: &Holder,
) -> String {
    let of = user.map_or_else(String::new, |user| format!(", of user {user}"));
    format!("process {pid}, {comm:?}{of}")
}

/// ` (process 7, "name", of user 1000, has its socket)`, or nothing.
fn by(holder: &Option<Holder>) -> String {
    holder.as_ref().map_or_else(String::new, |holder| {
        format!(" ({}, has its socket)", process(holder))
    })
}

/// Why no answer may have come.
fn silent(holder: &Option<Holder>) -> String {
    match holder {
        Some(holder) if holder.stopped => format!(
            ": {}, has the domain's socket and is stopped; `kill -CONT {}` lets it go on",
            process(holder),
            holder.pid
        ),
        Some(holder) => format!(
            ": {}, has the domain's socket and does not answer; if it is no member of the domain, \
             end it, or let the members meet in a private directory (Builder::path)",
            process(holder)
        ),
        None => "; they may be stopped".to_owned(),
    }
}

/// Why a node may not have answered.
fn node_silent(holder: &Option<Holder>) -> String {
    match holder {
        Some(holder) if holder.stopped => format!(
            ": it is {}, which is stopped; `kill -CONT {}` lets it go on",
            process(holder),
            holder.pid
        ),
        Some(holder) => format!(": it is {}; its log may say more", process(holder)),
        None => String::new(),
    }
}

/// Who has a name that is not its own.
fn occupier(holder: &Option<Holder>) -> String {
    match holder {
        Some(holder) if holder.stopped => format!("{} (stopped)", process(holder)),
        Some(holder) => process(holder),
        None => "a process that this user may not look into (`ss -xap` tells root)".to_owned(),
    }
}

/// What to do about addresses that this process uses, by what it uses them for.
fn to_be_free(by: &str) -> &'static str {
    match by.contains("memfd:portolan:") {
        // Their creators could not see one another, or the machine has more domains than places.
        true => {
            "that is another domain: leave it before this one is joined, or create this one anew while \
             that one runs (with a smaller `Builder::size` if the machine has hundreds of domains)"
        }
        false => "join before that is mapped, or let this process create the domain",
    }
}

impl JoinError {
    /// A failed system call: out of descriptors, or a kernel that does not let us.
    pub(crate) fn system(what: &'static str, source: io::Error) -> Self {
        /// `EMFILE` and `ENFILE`.
        const NO_DESCRIPTORS: [i32; 2] = [24, 23];
        if source
            .raw_os_error()
            .is_some_and(|e| NO_DESCRIPTORS.contains(&e))
        {
            let limit = portolan_sys::machine::rlimit_nofile().soft;
            return Self::Descriptors {
                limit: limit.unwrap_or(u64::MAX),
            };
        }
        Self::Kernel { what, source }
    }

    /// A failed step with the directory that a socket is to be in.
    pub(crate) fn directory(socket: &Path, source: io::Error) -> Self {
        match Self::system("use the socket's directory", source) {
            Self::Kernel { source, .. } => {
                let directory = socket.parent().unwrap_or(Path::new("/"));
                let directory = directory.display().to_string();
                Self::Directory { directory, source }
            }
            other => other,
        }
    }

    /// A failed step of closing a guarded domain's pages.
    pub(crate) fn unguarded(what: &'static str, source: io::Error) -> Self {
        match Self::system(what, source) {
            Self::Kernel { what, source } => Self::Unguarded { what, source },
            other => other,
        }
    }

    /// A failed mapping of `len` bytes at `base`.
    pub(crate) fn map(error: MapError) -> Self {
        match error {
            MapError::Taken { base, len, by } => Self::AddressTaken {
                base: base as u64,
                len: len as u64,
                by,
            },
            other => Self::Map(other),
        }
    }

    /// A failed socket operation of ours.
    pub(crate) fn socket(error: SocketError) -> Self {
        match error {
            SocketError::DescriptorsExhausted { limit, .. } => Self::Descriptors { limit },
            other => Self::Socket(other),
        }
    }
}

/// Why leaving was not all that it could be. The process has left, or will have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaveError {
    /// The caller's: other handles of this membership live; it ends with the last of them. Or
    /// methods run yet, of a server that was dropped.
    #[error(
        "{handles} other handles (domains, ports, extents) keep this membership: drop them to leave"
    )]
    StillHeld {
        /// How many, at the least.
        handles: usize,
    },
    /// The host's: it did not answer. It returns what we held when it goes on, or its successor does.
    #[error(
        "the host did not answer within {waited:?}; what this process held is returned when it does"
    )]
    Unanswered {
        /// How long we waited.
        waited: Duration,
    },
    /// See [`Disowned`]. What a process held that has closed its descriptors is returned when it
    /// ends; a forked one has nothing to leave.
    #[error("{}", not_left(.0))]
    Disowned(Disowned),
}

fn not_left(why: &Disowned) -> &'static str {
    match why {
        Disowned::Forked => "this process was forked from a member and has nothing to leave",
        Disowned::Disconnected => {
            "this process has closed its descriptors: what it held is returned when it ends"
        }
    }
}

const _: () = assert!(MAX_SPACES == 256, "Full speaks of 255 members");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_the_way_decides_what_to_do() {
        let of = |by: &str| {
            let taken = JoinError::AddressTaken {
                base: 1 << 40,
                len: 1 << 30,
                by: by.to_owned(),
            };
            taken.to_string()
        };
        let domain = of("10000000000-10040000000 rw-s /memfd:portolan:cameras (deleted)");
        assert!(
            domain.contains("that is another domain: leave it"),
            "{domain}"
        );
        let other = of("10000000000-10040000000 ---p");
        assert!(other.contains("join before that is mapped"), "{other}");
    }

    #[test]
    fn a_user_without_a_number_is_said_to_be_one() {
        let (owner, holder) = (0, None);
        for (found, nameless) in [(1, false), (OVERFLOW_ID, true)] {
            let holder = holder.clone();
            let said = JoinError::Impostor {
                owner,
                found,
                holder,
            };
            assert_eq!(said.to_string().contains("user namespace"), nameless);
        }
    }
}
