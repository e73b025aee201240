//! The control socket: what the other commands ask of the running node. A line of JSON each way.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use portolan_abi::node::MAX_STATEMENT;
use portolan_transport::clock::Clock;
use serde::{Deserialize, Serialize};

use super::clients::{Clients, Heard, WITHIN};
use super::socket_file::{self, SocketFile};
use crate::engine::Question;
use crate::state::State;
use crate::{NodeError, Result};

/// The socket's file.
pub(super) const SOCKET: &str = "control.sock";
/// Bytes of a request, at most.
pub(super) const LONGEST: usize = 4096 + 2 * MAX_STATEMENT;
/// Commands that are being asked at once, at most.
pub(super) const MOST: usize = 16;
/// Bytes of an answer, at most.
const LONGEST_ANSWER: u64 = 16 << 20;

/// What a command asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// How it is.
    Status,
    /// To look again at what it refuses, at whose key it has, and at node.toml.
    Reload,
    /// To accept what the authority states, and to pass it on.
    State {
        /// The statement, in hexadecimal digits.
        statement: String,
    },
    /// What happens in a domain, here or at a peer.
    Inspect {
        /// The peer's id; this node, if there is none.
        #[serde(default)]
        node: Option<String>,
        /// The question.
        question: Question,
    },
    /// To end, and to give its sockets to the process that asks: not a line, but these.
    Replace,
    /// To end.
    Leave,
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    ask: Ask,
    /// Of a process that is to take over: the version by which it keeps rights; 0 if it does not.
    #[serde(default)]
    keeps: u32,
}

/// What a process says that is to take over.
pub(super) fn asks_to_replace(keeps: u32) -> String {
    let ask = Ask::Replace;
    let line = serde_json::to_string(&Request { ask, keeps });
    line.unwrap_or_default() + "\n"
}

/// The node's side.
#[derive(Debug)]
pub(super) struct Control {
    listener: UnixListener,
    clients: Clients<UnixStream>,
    file: SocketFile,
}

impl Control {
    /// Listens in the state directory, whose lock this process has; on the socket of the process of
    /// before, if that has handed it over.
    pub(super) fn new(state: &State, taken: Option<OwnedFd>) -> Result<Self> {
        let path = state.file(SOCKET);
        let failed = || NodeError::file("cannot listen at", &path);
        let listener = match taken {
            Some(socket) => UnixListener::from(socket),
            None => {
                socket_file::clear(&path, || UnixStream::connect(&path).map(drop))?;
                UnixListener::bind(&path).map_err(failed())?
            }
        };
        listener.set_nonblocking(true).map_err(failed())?;
        Ok(Self {
            listener,
            clients: Clients::new(MOST),
            file: SocketFile::at(path.clone()),
        })
    }

    /// Goes on with clients that the process of before has accepted, and has not answered.
    pub(super) fn adopt(&mut self, unanswered: Vec<(OwnedFd, Vec<u8>)>, now: Duration) {
        for (socket, came) in unanswered {
            let socket = UnixStream::from(socket);
            // The one that accepted it has made it so already.
            if socket.set_nonblocking(true).is_ok() {
                self.clients.adopt(socket, came, now);
            }
        }
    }

    /// Whether a process waits that is to take over.
    pub(super) fn is_to_go(&self) -> bool {
        self.clients.keeps()
    }

    /// The process that is to take over, if one waits for that and is not gone, and the version by which it
    /// keeps rights.
    pub(super) fn replacing(&mut self) -> Option<(UnixStream, u32)> {
        let is_there = |mut socket: &UnixStream| socket.read(&mut [0]).is_err();
        let mut kept = std::iter::from_fn(|| self.clients.kept());
        let (socket, came) = kept.find(|(socket, _)| is_there(socket))?;
        let request = serde_json::from_slice::<Request>(&came);
        Some((socket, request.map_or(0, |request| request.keeps)))
    }

    /// Those that have no answer yet, with what they have said, for the process that takes over. One
    /// that is to take over itself then takes over from that process.
    pub(super) fn unanswered(&mut self) -> Vec<(OwnedFd, Vec<u8>)> {
        let unanswered = self.clients.unanswered().into_iter();
        unanswered
            .map(|(socket, came)| (socket.into(), came))
            .collect()
    }

    /// Waits until those that were answered have their answers, for so long.
    pub(super) fn finish(&mut self, clock: &dyn Clock, within: Duration) {
        let until = clock.now() + within;
        while self.clients.finish(clock.now()) && clock.now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The socket, for the process that takes over.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Another process listens now.
    pub(super) fn leave_file(&mut self) {
        self.file.leave();
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.clients.descriptors(self.listener.as_fd())
    }

    pub(super) fn wake_at(&self, now: Duration) -> Option<Duration> {
        self.clients.wake_at(now)
    }

    /// Takes what came, and answers it by `act`, which is asked again if it has no answer yet.
    pub(super) fn step(&mut self, now: Duration, mut act: impl FnMut(Ask) -> Option<String>) {
        let accept = || {
            let (socket, _) = self.listener.accept()?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        self.clients.step(now, accept, |came| heard(came, &mut act));
    }
}

/// What a command has said so far, and the answer to it.
fn heard(came: &[u8], act: &mut impl FnMut(Ask) -> Option<String>) -> Heard {
    if came.len() > LONGEST {
        return Heard::Wrong;
    }
    let Some(end) = came.iter().position(|byte| *byte == b'\n') else {
        return Heard::Part;
    };
    match serde_json::from_slice::<Request>(&came[..end]) {
        Ok(Request {
            ask: Ask::Replace, ..
        }) => Heard::Keeps,
        Ok(Request { ask, .. }) => match act(ask) {
            Some(answer) => Heard::Answer((answer + "\n").into_bytes()),
            None => Heard::Part,
        },
        Err(_) => Heard::Wrong,
    }
}

/// Asks the node that runs with this state directory; its answer, in JSON.
///
/// # Errors
///
/// [`NodeError::NotRunning`], [`NodeError::Silent`].
pub fn ask(state: &State, ask: Ask) -> Result<String> {
    let path = state.file(SOCKET);
    let not_running = || NodeError::NotRunning {
        path: state.path().to_owned(),
    };
    let failed = || NodeError::file("cannot ask at", &path);
    let request =
        serde_json::to_string(&Request { ask, keeps: 0 }).map_err(|e| failed()(e.into()))?;
    let mut socket = UnixStream::connect(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => not_running(),
        _ => failed()(error),
    })?;
    let end = Instant::now() + WITHIN;
    socket.set_read_timeout(Some(WITHIN)).map_err(failed())?;
    socket
        .write_all(format!("{request}\n").as_bytes())
        .map_err(failed())?;
    let mut answer = String::new();
    match socket.take(LONGEST_ANSWER).read_to_string(&mut answer) {
        Ok(0) => Err(not_running()),
        Ok(_) => Ok(answer),
        Err(_) if Instant::now() >= end => Err(NodeError::Silent {
            who: "the node".to_owned(),
            seconds: WITHIN.as_secs(),
        }),
        Err(error) => Err(failed()(error)),
    }
}
