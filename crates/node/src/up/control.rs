//! The control socket: what the other commands ask of the running node. A line of JSON each way.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use portolan_abi::node::MAX_STATEMENT;
use serde::{Deserialize, Serialize};

use super::socket_file::{self, SocketFile};
use crate::state::State;
use crate::{NodeError, Result};

/// The socket's file.
pub(super) const SOCKET: &str = "control.sock";
/// Bytes of a request, at most.
const LONGEST: usize = 4096 + 2 * MAX_STATEMENT;
/// Commands that are being asked at once, at most.
const MOST: usize = 16;
/// How long a command has to say what it wants and to take the answer.
const WITHIN: Duration = Duration::from_secs(5);
/// Bytes of an answer, at most.
const LONGEST_ANSWER: u64 = 16 << 20;

/// What a command asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// How it is.
    Status,
    /// To look again at what it refuses, and at whose key it has.
    Reload,
    /// To accept what the authority states, and to pass it on.
    State {
        /// The statement, in hexadecimal digits.
        statement: String,
    },
    /// To end, and to give its sockets to the process that asks: not a line, but these.
    Replace,
    /// To end.
    Leave,
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    ask: Ask,
}

/// The node's side.
#[derive(Debug)]
pub(super) struct Control {
    listener: UnixListener,
    clients: Vec<Client>,
    file: SocketFile,
    /// The process that is to take over.
    replacing: Option<UnixStream>,
}

#[derive(Debug)]
struct Client {
    socket: UnixStream,
    came: Vec<u8>,
    until: Duration,
    answer: Option<Vec<u8>>,
    sent: usize,
    replaces: bool,
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
            clients: Vec::new(),
            file: SocketFile::at(path.clone()),
            replacing: None,
        })
    }

    /// The process that is to take over, if one waits for that and is not gone.
    pub(super) fn replacing(&mut self) -> Option<UnixStream> {
        let socket = self.replacing.take()?;
        let gone = (&socket).read(&mut [0]).is_ok();
        (!gone).then_some(socket)
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
        let waits = |client: &&Client| client.answer.is_none();
        let clients = self.clients.iter().filter(waits);
        // With so many the next ones wait in the backlog.
        let listener = (self.clients.len() < MOST).then(|| self.listener.as_fd());
        listener
            .into_iter()
            .chain(clients.map(|client| client.socket.as_fd()))
    }

    pub(super) fn wake_at(&self, now: Duration) -> Option<Duration> {
        let soon = |client: &Client| match client.answer {
            // An answer that did not fit into the socket.
            Some(_) => client.until.min(now + Duration::from_millis(10)),
            None => client.until,
        };
        self.clients.iter().map(soon).min()
    }

    /// Takes what came, and answers it by `act`.
    pub(super) fn step(&mut self, now: Duration, mut act: impl FnMut(Ask) -> String) {
        while self.clients.len() < MOST
            && let Ok((socket, _)) = self.listener.accept()
        {
            if socket.set_nonblocking(true).is_ok() {
                self.clients.push(Client {
                    socket,
                    came: Vec::new(),
                    until: now + WITHIN,
                    answer: None,
                    sent: 0,
                    replaces: false,
                });
            }
        }
        self.clients.retain_mut(|client| {
            let goes_on = client.step(&mut act);
            goes_on && now < client.until
        });
        if let Some(at) = self.clients.iter().position(|client| client.replaces) {
            self.replacing = Some(self.clients.swap_remove(at).socket);
        }
    }
}

impl Client {
    /// Goes on; whether it is not over.
    fn step(&mut self, act: &mut impl FnMut(Ask) -> String) -> bool {
        let mut room = [0; 1024];
        while self.answer.is_none() {
            match self.socket.read(&mut room) {
                Ok(0) => return false,
                Ok(bytes) => self.came.extend(&room[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
            if self.came.len() > LONGEST {
                return false;
            }
            if let Some(end) = self.came.iter().position(|byte| *byte == b'\n') {
                let Ok(request) = serde_json::from_slice::<Request>(&self.came[..end]) else {
                    return false;
                };
                if request.ask == Ask::Replace {
                    self.replaces = true;
                    return true;
                }
                let answer = act(request.ask) + "\n";
                self.answer = Some(answer.into_bytes());
            }
        }
        let answer = self.answer.as_deref().unwrap_or_default();
        while self.sent < answer.len() {
            match self.socket.write(&answer[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        false
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
    let mut socket = match UnixStream::connect(&path) {
        Ok(socket) => socket,
        Err(error)
            if [ErrorKind::NotFound, ErrorKind::ConnectionRefused].contains(&error.kind()) =>
        {
            return Err(not_running());
        }
        Err(error) => return Err(failed()(error)),
    };
    socket.set_read_timeout(Some(WITHIN)).map_err(failed())?;
    let request = serde_json::to_string(&Request { ask }).map_err(|e| failed()(e.into()))?;
    let end = Instant::now() + WITHIN;
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
