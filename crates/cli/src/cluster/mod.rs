//! Asks a node of this machine how it is, as `portolan node status` does, and what happens in a domain
//! here and at its peers.
//!
//! A running node answers a line of JSON at a socket in its state directory. What this command shows
//! of that is declared here once more, so that the command builds neither TLS nor names.
//!
//! | file | holds |
//! |---|---|
//! | `status` | what a node says of itself |
//! | `inspection` | what happens in a domain, here and at peers |
//! | `place` | which node: the state directory that was named, or that of a node with a name |

mod inspection;
mod place;
mod status;

pub(crate) use inspection::{Clock, MemberEvent, Page, Passage, Question, Seen, Told};
pub(crate) use status::{Lent, Lost, Peer, Proxy, Rights, Span, Status, called};

use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::error::{CliError, Result};

/// A node's socket for commands, in its state directory.
const SOCKET: &str = "control.sock";
/// What it is asked.
const QUESTION: &[u8] = b"{\"ask\":\"status\"}\n";
/// Bytes of an answer at the most: another user's process may have such a socket, too.
const MOST_BYTES: usize = 64 << 20;
/// How long a node has to answer a command.
pub(crate) const WITHIN: Duration = Duration::from_secs(5);

/// A node of this machine, by its state directory.
#[derive(Debug)]
pub(crate) struct Node {
    state: PathBuf,
    /// A question without its answer so far: the node is asked nothing else meanwhile.
    asked: Option<Asked>,
}

#[derive(Debug)]
struct Asked {
    socket: UnixStream,
    came: Vec<u8>,
}

/// What came of a question.
enum Came {
    Answer(Vec<u8>),
    Late(Asked),
    /// No node runs with this state directory, or it has ended before it answered.
    Nothing,
}

/// What came of asking a node.
#[derive(Debug)]
pub(crate) enum Answer {
    Is(Box<Status>),
    /// Nothing in time. Asked again, it is waited for on.
    Late,
    /// No node runs with this state directory.
    NotRunning,
}

impl Node {
    /// The node that was named, by its name or its state directory, or the one of this user.
    pub(crate) fn named(name: Option<&OsStr>) -> Result<Self> {
        let state = place::state(name)?;
        Ok(Self { state, asked: None })
    }

    /// Its state directory.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// Asks it how it is. An error says what to do.
    pub(crate) fn status(&mut self) -> Result<Status> {
        match self.ask(WITHIN)? {
            Answer::Is(status) => Ok(*status),
            Answer::Late => Err(self.silent()),
            Answer::NotRunning => Err(CliError::NoNode {
                state: self.state.clone(),
            }),
        }
    }

    /// The same, and waits so long.
    pub(crate) fn ask(&mut self, within: Duration) -> Result<Answer> {
        let asked = self.asked.take();
        match self.hear(asked, QUESTION, within)? {
            None => Ok(Answer::Late),
            Some(Came::Nothing) => Ok(Answer::NotRunning),
            Some(Came::Late(asked)) => {
                self.asked = Some(asked);
                Ok(Answer::Late)
            }
            Some(Came::Answer(came)) => {
                let status = serde_json::from_slice(&came);
                let status = status.map_err(|error| self.failed(error.into()))?;
                Ok(Answer::Is(status))
            }
        }
    }

    /// Asks on, or anew; `None` if it does not even take the question in time.
    fn hear(
        &self,
        asked: Option<Asked>,
        question: &[u8],
        within: Duration,
    ) -> Result<Option<Came>> {
        let end = Instant::now() + within;
        let asked = match asked.map_or_else(|| self.begin(question, within), Ok) {
            Ok(asked) => asked,
            Err(error) if is_absence(&error) => return Ok(Some(Came::Nothing)),
            // A node that is stopped has as many questions waiting as its socket takes.
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(self.failed(error)),
        };
        let came = wait(asked, end).map_err(|error| self.failed(error))?;
        Ok(Some(came))
    }

    fn silent(&self) -> CliError {
        CliError::NodeSilent {
            state: self.state.clone(),
            seconds: WITHIN.as_secs(),
        }
    }

    fn begin(&self, question: &[u8], within: Duration) -> io::Result<Asked> {
        let address = SocketAddrUnix::new(self.state.join(SOCKET))?;
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The kernel waits in `connect` itself, for as long as a send may take.
        set_socket_timeout(&socket, Timeout::Send, Some(within))?;
        retry_on_intr(|| rustix::net::connect(&socket, &address))?;
        let mut socket = UnixStream::from(socket);
        socket.write_all(question)?;
        let came = Vec::new();
        Ok(Asked { socket, came })
    }

    fn failed(&self, source: io::Error) -> CliError {
        CliError::NodeUnreadable {
            state: self.state.clone(),
            source,
        }
    }
}

fn wait(mut asked: Asked, end: Instant) -> io::Result<Came> {
    let mut room = [0; 8192];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Came::Late(asked));
        }
        asked.socket.set_read_timeout(Some(left))?;
        match asked.socket.read(&mut room) {
            // It has ended before it answered.
            Ok(0) if asked.came.is_empty() => return Ok(Came::Nothing),
            Err(error) if asked.came.is_empty() && is_absence(&error) => {
                return Ok(Came::Nothing);
            }
            Ok(0) => return Ok(Came::Answer(asked.came)),
            Ok(_) if asked.came.len() >= MOST_BYTES => {
                return Err(io::Error::other("its answer has no end"));
            }
            Ok(bytes) => asked.came.extend(&room[..bytes]),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
}

/// Whether an error says that no node runs there.
fn is_absence(error: &io::Error) -> bool {
    [
        ErrorKind::NotFound,
        ErrorKind::ConnectionRefused,
        ErrorKind::ConnectionReset,
        ErrorKind::BrokenPipe,
    ]
    .contains(&error.kind())
}
