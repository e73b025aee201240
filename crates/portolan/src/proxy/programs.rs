//! A program asks the node of its machine to span a domain that it has joined
//! ([`Builder::spanning`]), at a socket that the node serves.
//!
//! # Where the socket is
//!
//! `$PORTOLAN_NODE_SOCKET` if that is set, else `programs.sock` in the node's state directory. That is
//! `$PORTOLAN_NODE_STATE` if set; of root `/var/lib/portolan-node`; of other users `portolan-node` in
//! `$XDG_STATE_HOME` or in `~/.local/state`. A relative path in one of the first two names nothing,
//! because it means another place for each process; the command of the node goes by the same.
//!
//! # What the node does
//!
//! It listens for sequenced packets, takes one [`SpanRequest`] of each client, and
//! answers it by one [`SpanAnswer`] when it spans the domain, or does not. Whether
//! the client may have it span anything is the node's to judge, by the user whom the kernel names.

use crate::Domain;
use crate::space::{Builder, JoinError, OVERFLOW_ID};
use portolan_abi::FORMAT_VERSION;
use portolan_abi::node::{MAX_DIRECTORY, SpanAnswer, SpanOutcome, SpanRequest};
use portolan_sys::socket::{self, Address, SocketError};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The socket's file in the state directory.
const SOCKET: &str = "programs.sock";
/// Names the socket.
const SOCKET_VARIABLE: &str = "PORTOLAN_NODE_SOCKET";
/// Names the state directory.
const STATE_VARIABLE: &str = "PORTOLAN_NODE_STATE";

/// Where the state of this user's node lies, unless its command line says otherwise; `None` without a
/// home directory, and if `PORTOLAN_NODE_STATE` is no absolute path.
///
/// ```
/// if let Some(state) = portolan::proxy::state_directory() {
///     assert!(state.is_absolute());
/// }
/// ```
pub fn state_directory() -> Option<PathBuf> {
    state_directory_by(
        &|name| std::env::var_os(name),
        portolan_sys::process::user(),
    )
}

/// Where the node serves programs whose state lies there, or in [`state_directory`].
///
/// ```
/// use std::path::Path;
/// # if std::env::var_os("PORTOLAN_NODE_SOCKET").is_none() {
/// let socket = portolan::proxy::programs_socket(Some(Path::new("/srv/node")));
/// assert_eq!(socket.as_deref(), Some(Path::new("/srv/node/programs.sock")));
/// # }
/// ```
pub fn programs_socket(state: Option<&Path>) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name);
    programs_socket_by(&variable, portolan_sys::process::user(), state)
}

/// What the environment says.
type Variable<'a> = &'a dyn Fn(&str) -> Option<OsString>;

fn absolute(variable: Variable<'_>, name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(variable(name)?);
    path.is_absolute().then_some(path)
}

fn state_directory_by(variable: Variable<'_>, user: u32) -> Option<PathBuf> {
    if variable(STATE_VARIABLE).is_some() {
        return absolute(variable, STATE_VARIABLE);
    }
    if user == 0 {
        return Some("/var/lib/portolan-node".into());
    }
    let home = || Some(absolute(variable, "HOME")?.join(".local/state"));
    let state = absolute(variable, "XDG_STATE_HOME").or_else(home)?;
    Some(state.join("portolan-node"))
}

fn programs_socket_by(variable: Variable<'_>, user: u32, state: Option<&Path>) -> Option<PathBuf> {
    if variable(SOCKET_VARIABLE).is_some() {
        return absolute(variable, SOCKET_VARIABLE);
    }
    let state = state.map(Path::to_owned);
    let state = state.or_else(|| state_directory_by(variable, user))?;
    Some(state.join(SOCKET))
}

/// Has this machine's node span the domain, which this process has joined by these settings.
pub(crate) fn span(
    settings: &Builder,
    domain: &Domain,
    deadline: Instant,
) -> Result<(), JoinError> {
    let begun = Instant::now();
    let Some(path) = programs_socket(None) else {
        return Err(JoinError::NoNode {
            socket: format!(
                "{SOCKET} (no home directory, or {STATE_VARIABLE} or {SOCKET_VARIABLE} is no absolute path)"
            ),
        });
    };
    let address = Address::Path(path);
    let silent = || JoinError::NodeSilent {
        waited: begun.elapsed(),
        holder: socket::holder(&address),
    };
    let connection = connect(settings, &address, deadline, &silent)?;
    let directory =
        match &settings.directory {
            // The node has another working directory.
            Some(directory) => Some(std::path::absolute(directory).map_err(|source| {
                JoinError::system("tell where the domain's directory is", source)
            })?),
            None => None,
        };
    let directory = directory.as_ref().map(|path| path.as_os_str().as_bytes());
    if directory.is_some_and(|bytes| bytes.len() > MAX_DIRECTORY) {
        let why = format!("the path of its socket's directory has more than {MAX_DIRECTORY} bytes");
        return Err(refused(domain, why));
    }
    let request = SpanRequest::new(domain.name(), settings.owner, directory).encode();
    let outcome = socket::send_by(&connection, &request, &[], Some(deadline)).and_then(|()| {
        let mut bytes = [0; SpanAnswer::MOST];
        let received = socket::receive_by(&connection, &mut bytes, 0, Some(deadline))?;
        // One that was cut short is none.
        let whole = bytes.get(..received.len).filter(|_| !received.truncated);
        Ok(SpanAnswer::decode(whole.unwrap_or_default()))
    });
    match outcome {
        Ok(Ok(answer)) => match said(&answer) {
            None => Ok(()),
            Some(why) => Err(refused(domain, why)),
        },
        Ok(Err(why)) => Err(refused(domain, format!("its answer is none: {why}"))),
        Err(SocketError::TimedOut) => Err(silent()),
        // It ends just now, or takes no more programs.
        Err(SocketError::Closed) => Err(refused(domain, "it closed the connection".to_owned())),
        Err(error) => Err(JoinError::socket(error)),
    }
}

/// A connection to the node, which is this user's or root's.
fn connect(
    settings: &Builder,
    address: &Address,
    deadline: Instant,
    silent: &dyn Fn() -> JoinError,
) -> Result<OwnedFd, JoinError> {
    let connection = match socket::connect_by(address, Some(deadline)) {
        Ok(connection) => connection,
        Err(SocketError::Refused { .. } | SocketError::NotFound { .. }) => {
            return Err(JoinError::NoNode {
                socket: address.to_string(),
            });
        }
        Err(SocketError::BacklogFull { .. }) => return Err(silent()),
        Err(error) => return Err(JoinError::socket(error)),
    };
    let found = socket::peer(&connection).map_err(JoinError::socket)?.uid;
    let ours = found == settings.user && found != OVERFLOW_ID;
    if ours || found == 0 {
        return Ok(connection);
    }
    Err(JoinError::StrangeNode {
        socket: address.to_string(),
        found,
        user: settings.user,
    })
}

/// Why the node does not span the domain; `None` if it does.
fn said(answer: &SpanAnswer) -> Option<String> {
    let SpanAnswer {
        outcome,
        format,
        version,
        reason,
    } = answer;
    let what = match outcome {
        SpanOutcome::Spans => return None,
        SpanOutcome::NotPermitted => "that is not permitted".to_owned(),
        SpanOutcome::Failed => "it could not".to_owned(),
        SpanOutcome::Format => format!(
            "it was built for format {format} of domains, and this one has {FORMAT_VERSION}: use a node and programs of one version"
        ),
        SpanOutcome::Version => {
            format!(
                "it speaks version {version} of this request: use a node and programs of one version"
            )
        }
        SpanOutcome::Spanned => "another node spans it".to_owned(),
        SpanOutcome::Busy => "too many programs ask it: try again".to_owned(),
    };
    // From another process: as it may be printed.
    let reason = reason.escape_debug();
    Some(match reason.clone().next() {
        None => what,
        Some(_) => format!("{what} ({reason})"),
    })
}

fn refused(domain: &Domain, why: String) -> JoinError {
    JoinError::NodeRefused {
        domain: domain.name().to_owned(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(set: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        move |name| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        }
    }

    #[test]
    fn the_socket_is_where_the_environment_or_the_state_directory_says() {
        let all = [
            ("PORTOLAN_NODE_SOCKET", "/run/node.sock"),
            ("PORTOLAN_NODE_STATE", "/srv/state"),
            ("XDG_STATE_HOME", "/home/x/state"),
            ("HOME", "/home/x"),
        ];
        for (from, user, wanted) in [
            (0, 1000, "/run/node.sock"),
            (1, 1000, "/srv/state/programs.sock"),
            (1, 0, "/srv/state/programs.sock"),
            (2, 0, "/var/lib/portolan-node/programs.sock"),
            (2, 1000, "/home/x/state/portolan-node/programs.sock"),
            (3, 1000, "/home/x/.local/state/portolan-node/programs.sock"),
        ] {
            let found = programs_socket_by(&of(&all[from..]), user, None);
            assert_eq!(found, Some(wanted.into()));
        }
        let none = programs_socket_by(&of(&all[4..]), 1000, None);
        assert_eq!(none, None);
        // One that is given counts more than a default, and less than a socket that is named.
        let given = Some(Path::new("/given"));
        let found = |from| programs_socket_by(&of(&all[from..]), 1000, given);
        assert_eq!(found(1), Some("/given/programs.sock".into()));
        assert_eq!(found(0), Some("/run/node.sock".into()));
        // A relative path means another place for each process: it does not lead to the default.
        for relative in ["PORTOLAN_NODE_STATE", "PORTOLAN_NODE_SOCKET"] {
            let set = [(relative, "state"), ("HOME", "/home/x")];
            assert_eq!(programs_socket_by(&of(&set), 1000, None), None);
        }
        let set = [("XDG_STATE_HOME", "state"), ("HOME", "/home/x")];
        let found = programs_socket_by(&of(&set), 1000, None);
        let wanted = "/home/x/.local/state/portolan-node/programs.sock";
        assert_eq!(found, Some(wanted.into()));
    }

    #[test]
    fn what_the_node_says_is_told_as_it_may_be_printed() {
        let said = |outcome, reason: &str| said(&SpanAnswer::new(outcome, reason));
        assert_eq!(said(SpanOutcome::Spans, ""), None);
        let failed = said(SpanOutcome::Failed, "no\x1b[31m").unwrap();
        assert_eq!(failed, "it could not (no\\u{1b}[31m)");
        assert_eq!(
            said(SpanOutcome::Spanned, "").unwrap(),
            "another node spans it"
        );
    }
}
