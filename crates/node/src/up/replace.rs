//! `up --replace`: a new process takes over from the one that runs as the node.
//!
//! ```text
//! new                                          old
//!  | looks at its files: what is wrong is said now, and the old one goes on
//!  | Ask::Replace, on the control socket ------> goes on
//!  | <------------------------------ Offer: the domains that it spans
//!  | joins them, binds a port in each
//!  | Joined: the ports' numbers ---------------> takes nothing new of programs, ends what cannot go
//!  |                                             over, ends its connections
//!  | <----------------- Told: what it has in common with peers and programs; what has ended
//!  | looks whether it can go on with that
//!  | Answer ------------------------------------> gives its rights to those ports (the point of no
//!  |                                             return), leaves its domains, lets go of its lock
//!  | <-- Handed: its listening sockets, what programs have had it span, and commands and programs
//!  |     that it has accepted and not answered; ends once the answers that it has given are taken
//!  | takes the lock, goes on as the same incarnation
//! ```
//!
//! To peers it looks like a link that was cut and is there again; programs notice nothing. The sockets listen
//! all the time, so nobody who connects is refused: who comes meanwhile waits in their backlogs. A
//! command or a program that was accepted gets its answer from one of the two.
//!
//! What is on the move does not go over: receive rights on their way between nodes end the associations
//! by which they go. In a domain that the new process has not joined, all remote rights end. And if one of
//! the two is of another version of [what is told](KEEPS), or cannot read it, the old one delivers what
//! programs have sent, and leaves, and the new one is the next incarnation: all remote rights end,
//! as after `leave`. What has ended is in both logs.
//!
//! # Invariants
//!
//! - **W1** At each moment at most one of the two holds the directory's lock, and at most one carries
//!   messages as one incarnation: the old one carries none from before it is told of.
//! - **W2** If the new one is gone before the old one has given rights away, the old one goes on. If it is
//!   gone later, no node runs: the sockets' files are removed, and the old one fails.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use portolan::proxy::KnownPort;
use portolan::{Domain, PortOptions, ReceiveRight};
use portolan_proto::node::Settings;
use portolan_sys::{socket, stream};
use serde::{Deserialize, Serialize};

use super::spans::{self, Place};
use super::{control, programs};
use crate::config::{self, Config};
use crate::engine::{Coming, SavedEngine};
use crate::state::State;
use crate::{NodeError, Result};

/// How long the old node has to leave: longer than it drains, and says farewell.
const WITHIN: Duration = Duration::from_secs(20);
/// Bytes of what is said with the sockets, at most: domains that programs have asked for or wait
/// for, each with a name and a directory, and what commands have said, four characters a byte.
const LONGEST: usize = 1024 * (spans::MOST + programs::MOST) + control::MOST * 4 * control::LONGEST;
/// The version of what is said with the sockets.
const VERSION: u32 = 2;
/// The version of what is told so that rights are kept: the new process names its own, and the old one goes by
/// it only if it is its own too. To be increased with each change of [`SavedEngine`] or of what it means.
pub(super) const KEEPS: u32 = 1;
/// Bytes of what is told, at most: a node that has more in common with its peers ends it.
const MOST_TOLD: usize = 256 << 20;
/// How long the new process has to join the domains.
const JOINS: Duration = Duration::from_secs(10);
/// How long it has for each other step.
const STEP: Duration = Duration::from_secs(5);
/// Slots of the port at which rights come in.
const SLOTS: usize = 255;
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
    /// What has ended, beside what was told.
    #[serde(default)]
    ended: Vec<String>,
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

/// A domain that the old process spans.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Offered {
    /// As nodes call it, and this machine.
    pub(super) domain: String,
    pub(super) local: String,
    /// A program has asked for it.
    pub(super) asked: Option<Asked>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    offered: Vec<Offered>,
}

/// The new process is a member of these domains, and receives rights there at ports of these numbers.
#[derive(Debug, Serialize, Deserialize)]
struct Joined {
    joined: BTreeMap<String, u64>,
}

/// What the old process has come to.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    /// If rights are kept.
    told: Option<SavedEngine>,
    /// What has ended.
    ended: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answered {
    /// Why the new process cannot go on with that, if it cannot.
    refused: Option<String>,
}

/// What a node takes over.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Rights, with the incarnation of before, if there are some.
    pub(super) kept: Option<Coming>,
    /// What has ended meanwhile.
    pub(super) ended: Vec<String>,
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

/// Asks the running node to let this process take over; nothing is taken if none runs. The settings are this
/// process's, without an incarnation.
///
/// # Errors
///
/// [`NodeError::NotReplaced`]: it did not leave in time, or does not know how.
pub(super) fn take(state: &State, config: &Config, settings: Settings) -> Result<Taken> {
    let path = state.file(control::SOCKET);
    let failed = || NodeError::file("cannot ask at", &path);
    let Ok(mut socket) = UnixStream::connect(&path) else {
        return Ok(Taken::default());
    };
    socket
        .write_all(control::asks_to_replace(KEEPS).as_bytes())
        .map_err(failed())?;
    let (first, sockets) = receive_line(&socket, LONGEST)?;
    // One that does not keep rights, or of an earlier build, gives its sockets at once.
    let Ok(Offer { offered }) = serde_json::from_slice(&first) else {
        return taken(&first, sockets);
    };
    let domains = join(&offered, config);
    let joined = domains.iter().map(|(settings, _, port)| {
        let number = KnownPort::at(port).number();
        (settings.domain.clone(), number)
    });
    let joined = joined.collect();
    say(&socket, &Joined { joined }).map_err(failed())?;
    let (told, _) = receive_line(&socket, MOST_TOLD)?;
    let (mut ended, mut refused) = (Vec::new(), None);
    let mut kept = None;
    match serde_json::from_slice(&told) {
        Ok(Told { told, ended: says }) => {
            ended = says;
            let coming = told.map(|told| Coming::prepare(told, settings, domains));
            match coming.transpose() {
                Ok(coming) => kept = coming,
                Err(why) => refused = Some(why),
            }
        }
        Err(why) => refused = Some(why.to_string()),
    }
    if let Some(why) = &refused {
        ended.push(format!("all remote rights end: {why}"));
    }
    say(&socket, &Answered { refused }).map_err(failed())?;
    if let Some(coming) = &mut kept
        && let Err(why) = coming.receive()
    {
        ended.push(format!("all remote rights end: {why}"));
        kept = None;
    }
    let (last, sockets) = receive_line(&socket, LONGEST)?;
    let mut taken = taken(&last, sockets)?;
    taken.kept = kept;
    ended.append(&mut taken.ended);
    taken.ended = ended;
    Ok(taken)
}

/// Joins those domains that this process is to span too, and binds a port in each.
fn join(offered: &[Offered], config: &Config) -> Vec<(config::Span, Domain, ReceiveRight)> {
    let wanted = offered.iter().filter_map(|offered| match &offered.asked {
        Some(asked) => {
            let (domain, place) = asked.place();
            Some((spans::settings_of(&domain), Some(place)))
        }
        None => {
            let is_it =
                |it: &&config::Span| it.domain == offered.domain && it.local == offered.local;
            Some((config.spans.iter().find(is_it)?.clone(), None))
        }
    });
    let joins = wanted.filter_map(|(settings, place)| {
        let joined = spans::join(&settings, place.as_ref(), || ()).ok()?;
        Some((settings, joined))
    });
    let joins: Vec<_> = joins.collect();
    let end = Instant::now() + JOINS;
    let all = joins.into_iter().filter_map(|(settings, joined)| {
        let left = end.saturating_duration_since(Instant::now());
        let domain = joined.recv_timeout(left).ok()?.ok()?;
        let port = domain.bind(PortOptions::unnamed().queue(SLOTS)).ok()?;
        Some((settings, domain, port))
    });
    all.collect()
}

fn not_replaced(why: &str) -> NodeError {
    NodeError::NotReplaced {
        why: why.to_owned(),
    }
}

/// Says something in one line.
fn say(mut to: &UnixStream, what: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    if line.len() >= MOST_TOLD {
        return Err(ErrorKind::FileTooLarge.into());
    }
    line.push(b'\n');
    to.set_nonblocking(false)?;
    to.set_write_timeout(Some(STEP))?;
    to.write_all(&line)
}

/// A line, and the sockets that come with its first bytes.
fn receive_line(from: &UnixStream, most: usize) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let end = Instant::now() + WITHIN;
    let (mut said, mut sockets) = (Vec::new(), Vec::new());
    let mut bytes = [0; PART];
    while said.last() != Some(&b'\n') && said.len() < most {
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
    Ok((said, sockets))
}

/// What is taken over beside rights.
fn taken(said: &[u8], sockets: Vec<OwnedFd>) -> Result<Taken> {
    let handed: Handed = serde_json::from_slice(said)
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
        kept: None,
        ended: handed.ended,
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

/// A process that is to take over, and joins the domains.
#[derive(Debug)]
pub(super) struct Replacing {
    socket: UnixStream,
    came: Vec<u8>,
    /// Until then.
    pub(super) until: Duration,
}

/// What such a process has come to.
pub(super) enum Met {
    /// Nothing yet.
    Waits,
    /// It is gone, or late, or says what it should not.
    Gone,
    /// It has joined domains, with ports of these numbers.
    Joined(BTreeMap<String, u64>),
}

impl Replacing {
    /// Tells it which domains this process spans.
    ///
    /// # Errors
    ///
    /// It is gone.
    pub(super) fn offer(
        socket: UnixStream,
        offered: Vec<Offered>,
        now: Duration,
    ) -> std::io::Result<Self> {
        say(&socket, &Offer { offered })?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            came: Vec::new(),
            until: now + JOINS + STEP,
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What it has said by now.
    pub(super) fn step(&mut self, now: Duration) -> Met {
        let mut bytes = [0; PART];
        loop {
            match (&self.socket).read(&mut bytes) {
                Ok(0) => return Met::Gone,
                Ok(count) => self.came.extend(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return Met::Gone,
            }
            if self.came.len() > LONGEST {
                return Met::Gone;
            }
        }
        match self.came.last() {
            Some(b'\n') => match serde_json::from_slice(&self.came) {
                Ok(Joined { joined }) => Met::Joined(joined),
                Err(_) => Met::Gone,
            },
            _ if now >= self.until => Met::Gone,
            _ => Met::Waits,
        }
    }

    /// Tells it what goes over, if something does, and what has ended; whether it goes on with that.
    ///
    /// # Errors
    ///
    /// It is gone.
    pub(super) fn tell(
        &self,
        told: Option<&SavedEngine>,
        ended: &[String],
    ) -> std::io::Result<std::result::Result<(), String>> {
        let (told, ended) = (told.cloned(), ended.to_vec());
        say(&self.socket, &Told { told, ended })?;
        self.socket.set_read_timeout(Some(STEP))?;
        let mut line = Vec::new();
        let mut bytes = [0; PART];
        while line.last() != Some(&b'\n') {
            match (&self.socket).read(&mut bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => line.extend(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if line.len() > LONGEST {
                return Err(ErrorKind::InvalidData.into());
            }
        }
        let Answered { refused } = serde_json::from_slice(&line)?;
        Ok(refused.map_or(Ok(()), Err))
    }

    pub(super) fn into_socket(self) -> UnixStream {
        self.socket
    }
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
    ended: Vec<String>,
    unanswered: Unanswered,
) -> Result<()> {
    let Unanswered { commands, programs } = unanswered;
    let (commands, came): (Vec<_>, Vec<_>) = commands.into_iter().unzip();
    let (programs, wants): (Vec<_>, Vec<_>) = programs.into_iter().unzip();
    let mut said = serde_json::to_vec(&Handed {
        version: VERSION,
        asked,
        ended,
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
    use portolan_abi::node::{SpanAnswer, SpanOutcome, SpanRequest};
    use portolan_sys::socket::Address;
    use portolan_testkit::unique;
    use portolan_transport::NodeId;

    use super::*;
    use crate::engine::Engine;
    use crate::up::control::Control;
    use crate::up::programs::Programs;
    use crate::up::spans::Spans;

    const NOW: Duration = Duration::ZERO;

    fn receive(from: &UnixStream) -> Result<Taken> {
        let (said, sockets) = receive_line(from, LONGEST)?;
        taken(&said, sockets)
    }

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
            self.control.step(NOW, |_| Some(answer.to_owned()));
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
        give(&ours, listening, Vec::new(), Vec::new(), unanswered).unwrap();
        old.control.leave_file();
        old.programs.leave_file();
        drop(old);

        let mut new = Scene::new(&state, receive(&theirs).unwrap());
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
        let taker = std::thread::spawn(move || receive(&theirs));
        let fd = ours.as_fd();
        let place = Place {
            owner: 7,
            directory: Some(OsString::from_vec(b"/no/\xff/text".to_vec()).into()),
        };
        let asked = vec![Asked::new("hall", &place)];
        give(&ours, [fd, fd, fd], asked, Vec::new(), unanswered).unwrap();
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
