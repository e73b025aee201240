//! `up --replace`: a new process takes over from the one that runs as the node.
//!
//! ```text
//! new                                          old
//!  | looks at its files: what is wrong is said now, and the old one goes on
//!  | Ask::Replace, on the control socket ------> delivers what programs have sent, says farewell,
//!  |                                             leaves its domains, lets go of its lock
//!  | <-- its listening sockets, what programs have had it span, and commands and programs that
//!  |     it has accepted and not answered; ends once the answers that it has given are taken
//!  | takes the lock, goes on as the next incarnation
//! ```
//!
//! The sockets listen all the time, so nobody who connects is refused: who comes meanwhile waits in
//! their backlogs. A command or a program that was accepted gets its answer from one of the two.
//! What does not go over are *remote rights*: the new process is a new incarnation,
//! and rights on ports of other nodes, and theirs here, are dead, as after `leave`.
//!
//! # Invariants
//!
//! - **W1** At each moment at most one of the two holds the directory's lock.
//! - **W2** If the new one is gone before the old one begins to leave, the old one goes on. If it is
//!   gone later, no node runs: the sockets' files are removed, and the old one fails.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use portolan_sys::{socket, stream};
use serde::{Deserialize, Serialize};

use super::spans::{self, Place};
use super::{control, programs};
use crate::state::State;
use crate::{NodeError, Result};

/// How long the old node has to leave: longer than it drains, and says farewell.
const WITHIN: Duration = Duration::from_secs(20);
/// Bytes of what is said with the sockets, at most: domains that programs have asked for or wait
/// for, each with a name and a directory, and what commands have said, four characters a byte.
const LONGEST: usize = 1024 * (spans::MOST + programs::MOST) + control::MOST * 4 * control::LONGEST;
/// The version of what is said.
const VERSION: u32 = 2;
/// Sockets that listen: the node's, that of commands, that of programs.
const LISTENING: usize = 3;
/// Sockets at most.
const SOCKETS: usize = LISTENING + control::MOST + programs::MOST;
const _: () = assert!(SOCKETS <= socket::MAX_DESCRIPTORS);
/// Bytes that are sent and received at once.
const PART: usize = 4096;

/// A domain that a program has had spanned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Asked {
    domain: String,
    owner: u32,
    /// A path, which need not be text.
    directory: Option<Vec<u8>>,
}

impl Asked {
    pub(super) fn new(domain: &str, place: &Place) -> Self {
        Self {
            domain: domain.to_owned(),
            owner: place.owner,
            directory: place
                .directory
                .as_ref()
                .map(|it| it.as_os_str().as_bytes().to_vec()),
        }
    }

    pub(super) fn place(&self) -> (String, Place) {
        let place = Place {
            owner: self.owner,
            directory: self
                .directory
                .clone()
                .map(|it| OsString::from_vec(it).into()),
        };
        (self.domain.clone(), place)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Handed {
    version: u32,
    asked: Vec<Asked>,
    /// What each command has said so far that has no answer. Their sockets come behind those that
    /// listen, and then those of programs.
    commands: Vec<Vec<u8>>,
    /// What each program wants that has no answer, if it has said so.
    programs: Vec<Option<Asked>>,
}

/// Clients that have connected, and have no answer.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    pub(super) commands: Vec<(OwnedFd, Vec<u8>)>,
    pub(super) programs: Vec<(OwnedFd, Option<Asked>)>,
}

/// What a node takes over.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) listener: Option<OwnedFd>,
    pub(super) control: Option<OwnedFd>,
    pub(super) programs: Option<OwnedFd>,
    pub(super) asked: Vec<Asked>,
    pub(super) unanswered: Unanswered,
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
    let path = state.file(control::SOCKET);
    let end = Instant::now() + WITHIN;
    let failed = || NodeError::file("cannot ask at", &path);
    let Ok(mut socket) = UnixStream::connect(&path) else {
        return Ok(Taken::default());
    };
    socket
        .write_all(b"{\"ask\":\"replace\"}\n")
        .map_err(failed())?;
    receive(&socket, end)
}

fn receive(from: &UnixStream, end: Instant) -> Result<Taken> {
    let not_replaced = |why: &str| NodeError::NotReplaced {
        why: why.to_owned(),
    };
    let (mut said, mut sockets) = (Vec::new(), Vec::new());
    let mut bytes = [0; PART];
    // The sockets come with the first bytes; a line ends what is said.
    while said.last() != Some(&b'\n') && said.len() < LONGEST {
        let received = socket::receive_by(from, &mut bytes, SOCKETS, Some(end));
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
    let clients = handed.commands.len() + handed.programs.len();
    if sockets.len() != LISTENING + clients {
        let (came, said) = (sockets.len(), LISTENING + clients);
        return Err(not_replaced(&format!("{came} of its {said} sockets came")));
    }
    let mut sockets = sockets.into_iter();
    let mut socket = || sockets.next();
    let [listener, control, programs] = [socket(), socket(), socket()];
    Ok(Taken {
        listener,
        control,
        programs,
        asked: handed.asked,
        // In the order in which they were given.
        unanswered: Unanswered {
            commands: sockets.by_ref().zip(handed.commands).collect(),
            programs: sockets.zip(handed.programs).collect(),
        },
    })
}

/// Gives the sockets to the process that waits at the other end.
///
/// # Errors
///
/// [`NodeError::NotReplaced`]: it is gone.
pub(super) fn give(
    mut to: &UnixStream,
    listening: [BorrowedFd<'_>; LISTENING],
    asked: Vec<Asked>,
    unanswered: Unanswered,
) -> Result<()> {
    let Unanswered { commands, programs } = unanswered;
    let (commands, came): (Vec<_>, Vec<_>) = commands.into_iter().unzip();
    let (programs, wants): (Vec<_>, Vec<_>) = programs.into_iter().unzip();
    let mut said = serde_json::to_vec(&Handed {
        version: VERSION,
        asked,
        commands: came,
        programs: wants,
    })
    .unwrap_or_default();
    said.push(b'\n');
    let clients = commands.iter().chain(&programs).map(OwnedFd::as_fd);
    let sockets: Vec<_> = listening.into_iter().chain(clients).collect();
    let gone = |error: &dyn Display| NodeError::NotReplaced {
        why: format!("the process that was to take over is gone: {error}"),
    };
    let within = Duration::from_secs(1);
    let (first, rest) = said.split_at(said.len().min(PART));
    socket::send_by(to.as_fd(), first, &sockets, Some(Instant::now() + within))
        .map_err(|error| gone(&error))?;
    let sent = to
        .set_nonblocking(false)
        .and_then(|()| to.set_write_timeout(Some(within)))
        .and_then(|()| to.write_all(rest));
    sent.map_err(|error| gone(&error))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use portolan_abi::node::{SpanAnswer, SpanOutcome, SpanRequest};
    use portolan_proto::node::Settings;
    use portolan_sys::socket::Address;
    use portolan_testkit::unique;
    use portolan_transport::NodeId;

    use super::*;
    use crate::engine::Engine;
    use crate::up::control::Control;
    use crate::up::programs::Programs;
    use crate::up::spans::Spans;

    const NOW: Duration = Duration::ZERO;

    /// The sockets of a node that runs.
    struct Scene {
        control: Control,
        programs: Programs,
        spans: Spans,
        engine: Engine,
    }

    impl Scene {
        fn new(state: &State, taken: Taken) -> Self {
            let settings = Settings::new(NodeId([7; 16]), 1, [0; 16]);
            let mut scene = Self {
                control: Control::new(state, taken.control).unwrap(),
                programs: Programs::new(state, taken.programs).unwrap(),
                spans: Spans::new(&[]),
                engine: Engine::new(settings, "hall").unwrap(),
            };
            scene.control.adopt(taken.unanswered.commands, NOW);
            scene.programs.adopt(taken.unanswered.programs, NOW);
            scene
        }

        fn step(&mut self, answer: &str) {
            self.control.step(NOW, |_| answer.to_owned());
            self.programs.step(NOW, &mut self.spans, &self.engine);
        }
    }

    fn request(owner: u32) -> Vec<u8> {
        SpanRequest::new("hall", owner, None).encode()
    }

    #[test]
    fn clients_that_were_accepted_and_not_answered_are_answered_by_the_next_process() {
        let state = State::at(&std::env::temp_dir().join(unique("replace"))).unwrap();
        let mut old = Scene::new(&state, Taken::default());
        let connect = || UnixStream::connect(state.file(control::SOCKET)).unwrap();
        let (mut quiet, mut half, mut next) = (connect(), connect(), connect());
        half.write_all(b"{\"ask\":\"sta").unwrap();
        next.write_all(b"{\"ask\":\"replace\"}\n").unwrap();
        let programs = Address::Path(state.file("programs.sock"));
        let program = || socket::connect_by(&programs, None).unwrap();
        let (silent, asking) = (program(), program());
        let user = portolan_sys::process::user();
        socket::send(&asking, &request(user), &[]).unwrap();
        old.step("no answer of the first process is awaited");

        let (ours, theirs) = UnixStream::pair().unwrap();
        let unanswered = Unanswered {
            commands: old.control.unanswered(),
            programs: old.programs.unanswered(),
        };
        assert_eq!(unanswered.commands.len(), 3);
        assert_eq!(unanswered.programs.len(), 2);
        let listening = [theirs.as_fd(), old.control.socket(), old.programs.socket()];
        give(&ours, listening, Vec::new(), unanswered).unwrap();
        old.control.leave_file();
        old.programs.leave_file();
        drop(old);

        let mut new = Scene::new(&state, receive(&theirs, Instant::now() + WITHIN).unwrap());
        quiet.write_all(b"{\"ask\":\"status\"}\n").unwrap();
        half.write_all(b"tus\"}\n").unwrap();
        // Of another user's domain, which is refused at once unless this is root.
        socket::send(&silent, &request(user + 1), &[]).unwrap();
        new.step("second");
        for client in [&mut quiet, &mut half] {
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "second\n");
        }
        assert!(new.control.replacing().is_some(), "it takes over next");
        // Both programs are heard: one was before, and waits for its domain.
        assert_eq!(
            new.programs.unanswered().len(),
            if user == 0 { 2 } else { 1 }
        );
        if user != 0 {
            let mut bytes = [0; SpanAnswer::MOST];
            let received = socket::receive(&silent, &mut bytes, 0).unwrap();
            let answer = SpanAnswer::decode(&bytes[..received.len]).unwrap();
            assert_eq!(answer.outcome, SpanOutcome::NotPermitted);
        }
        drop(new);
        std::fs::remove_dir_all(state.path()).unwrap();
    }

    #[test]
    fn what_is_said_with_the_sockets_may_be_long_and_paths_are_bytes() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let commands = (0..control::MOST).map(|_| {
            let (socket, _) = UnixStream::pair().unwrap();
            (socket.into(), vec![0xff; control::LONGEST])
        });
        let unanswered = Unanswered {
            commands: commands.collect(),
            programs: Vec::new(),
        };
        let taker = std::thread::spawn(move || receive(&theirs, Instant::now() + WITHIN));
        let fd = ours.as_fd();
        let place = Place {
            owner: 7,
            directory: Some(OsString::from_vec(b"/no/\xff/text".to_vec()).into()),
        };
        let asked = vec![Asked::new("hall", &place)];
        give(&ours, [fd, fd, fd], asked, unanswered).unwrap();
        let taken = taker.join().unwrap().unwrap();
        assert_eq!(taken.asked[0].place(), ("hall".to_owned(), place));
        let commands = taken.unanswered.commands;
        assert_eq!(commands.len(), control::MOST);
        assert!(
            commands
                .iter()
                .all(|(_, came)| came.len() == control::LONGEST)
        );
    }
}
