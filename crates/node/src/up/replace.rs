//! `up --replace`: a new process takes over from the one that runs as the node.
//!
//! ```text
//! new                                          old
//!  | looks at its files: what is wrong is said now, and the old one goes on
//!  | Ask::Replace, on the control socket ------> delivers what programs have sent, says farewell,
//!  |                                             leaves its domains, lets go of its lock
//!  | <-- its listening sockets, and what programs have had it span; ends
//!  | takes the lock, goes on as the next incarnation
//! ```
//!
//! The sockets listen all the time, so nobody who connects is refused: who comes meanwhile waits in
//! their backlogs. What does not go over are *remote rights*: the new process is a new incarnation,
//! and rights on ports of other nodes, and theirs here, are dead, as after `leave`.
//!
//! # Invariants
//!
//! - **W1** At each moment at most one of the two holds the directory's lock.
//! - **W2** If the new one is gone before the old one begins to leave, the old one goes on. If it is
//!   gone later, no node runs: the sockets' files are removed, and the old one fails.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use portolan_sys::{socket, stream};
use serde::{Deserialize, Serialize};

use super::spans::Place;
use crate::state::State;
use crate::{NodeError, Result};

/// How long the old node has to leave: longer than it drains, and says farewell.
const WITHIN: Duration = Duration::from_secs(20);
/// Bytes of what is said with the sockets, at most.
const LONGEST: usize = 256 * 1024;
/// The version of what is said.
const VERSION: u32 = 1;
/// The sockets: the node's, that of commands, that of programs.
const SOCKETS: usize = 3;

/// A domain that a program has had spanned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Asked {
    domain: String,
    owner: u32,
    directory: Option<PathBuf>,
}

impl Asked {
    pub(super) fn new(domain: &str, place: &Place) -> Self {
        Self {
            domain: domain.to_owned(),
            owner: place.owner,
            directory: place.directory.clone(),
        }
    }

    pub(super) fn place(&self) -> (String, Place) {
        let place = Place {
            owner: self.owner,
            directory: self.directory.clone(),
        };
        (self.domain.clone(), place)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Handed {
    version: u32,
    asked: Vec<Asked>,
}

/// What a node takes over.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) listener: Option<OwnedFd>,
    pub(super) control: Option<OwnedFd>,
    pub(super) programs: Option<OwnedFd>,
    pub(super) asked: Vec<Asked>,
}

impl Taken {
    /// The listening socket, if it listens where this node is to.
    pub(super) fn listener_at(&mut self, wanted: SocketAddr) -> Option<OwnedFd> {
        let socket = self.listener.take()?;
        let bound = stream::bound_to(&socket).ok()?;
        let same_port = wanted.port() == 0 || wanted.port() == bound.port();
        (same_port && bound.ip() == wanted.ip()).then_some(socket)
    }
}

/// Asks the running node to let this process take over; nothing is taken if none runs.
///
/// # Errors
///
/// [`NodeError::NotReplaced`]: it did not leave in time, or does not know how.
pub(super) fn take(state: &State) -> Result<Taken> {
    let path = state.file(super::control::SOCKET);
    let end = Instant::now() + WITHIN;
    let failed = || NodeError::file("cannot ask at", &path);
    let Ok(mut socket) = UnixStream::connect(&path) else {
        return Ok(Taken::default());
    };
    socket
        .write_all(b"{\"ask\":\"replace\"}\n")
        .map_err(failed())?;
    let not_replaced = |why: &str| NodeError::NotReplaced {
        why: why.to_owned(),
    };
    let (mut said, mut sockets) = (Vec::new(), Vec::new());
    let mut bytes = [0; 4096];
    // The sockets come with the first bytes; a line ends what is said.
    while said.last() != Some(&b'\n') && said.len() < LONGEST {
        let received = socket::receive_by(&socket, &mut bytes, SOCKETS, Some(end));
        let received = received.map_err(|error| match error {
            socket::SocketError::TimedOut => not_replaced("it did not leave in time"),
            socket::SocketError::Closed => {
                not_replaced("it ended, or is of a version that cannot be replaced")
            }
            other => not_replaced(&other.to_string()),
        })?;
        said.extend(&bytes[..received.len]);
        sockets.extend(received.fds);
    }
    let handed: Handed = serde_json::from_slice(&said)
        .map_err(|_| not_replaced("what it has said cannot be read"))?;
    if handed.version != VERSION {
        return Err(not_replaced("it is of another version"));
    }
    let mut sockets = sockets.into_iter();
    Ok(Taken {
        listener: sockets.next(),
        control: sockets.next(),
        programs: sockets.next(),
        asked: handed.asked,
    })
}

/// Gives the sockets to the process that waits at the other end.
///
/// # Errors
///
/// [`NodeError::NotReplaced`]: it is gone.
pub(super) fn give(
    to: &UnixStream,
    sockets: [BorrowedFd<'_>; SOCKETS],
    asked: Vec<Asked>,
) -> Result<()> {
    let version = VERSION;
    let mut said = serde_json::to_vec(&Handed { version, asked }).unwrap_or_default();
    said.push(b'\n');
    let by = Some(Instant::now() + Duration::from_secs(1));
    socket::send_by(to.as_fd(), &said, &sockets, by).map_err(|error| NodeError::NotReplaced {
        why: format!("the process that was to take over is gone: {error}"),
    })
}
