//! An importer has the domain's host copy into and out of the exporter's memory.
//!
//! ```text
//! away --connect with the capability--> at a host: staging memory
//!  ^                                    | put a part, request it; replies come in order
//!  +--- the host dies or resigns: the next one does what was not begun
//! ```
//!
//! A write that a host may have done in part, without an answer, is not repeated: that could undo
//! another process's later write. The call fails with [`UpdateError::Unanswered`].
//!
//! The importer trusts the host no more than the exporter. Hosts that do not copy count as no host.

use crate::directory::{AcceptedConnection, Entrance, PendingConnection};
use crate::space::Descriptor;
use crate::vmmc::UpdateError;
use crate::vmmc::access::{put, take};
use crate::vmmc::place::Place;
use crate::{Deadline, OfferConnectError};
use portolan_abi::delegate::{
    Act, Capability, Outcome, PART, PARTS, Ready, Reply, Request, STAGING,
};
use portolan_sys::memory::{self, Mapping};
use portolan_sys::socket::{self, SocketError};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a call looks for a host that copies, and how long it waits for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// The pause between two looks whether the export is still there.
const LOOK: Duration = Duration::from_millis(50);

/// Memory of another process, which the host of its domain copies for us.
pub(crate) struct Brokered {
    entrance: Entrance,
    capability: Capability,
    len: usize,
    patience: Duration,
    line: Mutex<Option<Line>>,
}

/// A connection to the host, with its copy slot.
struct Line {
    connection: Descriptor,
    staging: Place,
    /// Requests so far.
    asked: u32,
}

/// What is to be copied, here.
enum Bytes<'a> {
    Write(&'a [u8]),
    Read(&'a mut [u8]),
}

/// A request that has not been answered: its number, the bytes of the whole.
type Asked = (u32, Range<usize>);

impl Bytes<'_> {
    fn act(&self) -> Act {
        match self {
            Self::Write(_) => Act::Write,
            Self::Read(_) => Act::Read,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Write(bytes) => bytes.len(),
            Self::Read(bytes) => bytes.len(),
        }
    }
}

impl Brokered {
    pub(crate) fn new(entrance: Entrance, capability: Capability, len: usize) -> Self {
        Self {
            entrance,
            capability,
            len,
            patience: PATIENCE,
            line: Mutex::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Has `bytes` written to `offset` and the following. Within bounds. `there` says whether
    /// the export is.
    pub(crate) fn write(
        &self,
        offset: usize,
        bytes: &[u8],
        there: &dyn Fn() -> Result<(), UpdateError>,
    ) -> Result<(), UpdateError> {
        self.copy(offset, Bytes::Write(bytes), there)
    }

    /// Has `bytes` read from `offset` on. Within bounds.
    pub(crate) fn read(
        &self,
        offset: usize,
        bytes: &mut [u8],
        there: &dyn Fn() -> Result<(), UpdateError>,
    ) -> Result<(), UpdateError> {
        self.copy(offset, Bytes::Read(bytes), there)
    }

    fn copy(
        &self,
        offset: usize,
        mut bytes: Bytes<'_>,
        there: &dyn Fn() -> Result<(), UpdateError>,
    ) -> Result<(), UpdateError> {
        let mut kept = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let len = bytes.len();
        let starts = (0..len).step_by(PART);
        let mut todo: VecDeque<Range<usize>> =
            starts.map(|start| start..len.min(start + PART)).collect();
        let mut end = Instant::now() + self.patience;
        while !todo.is_empty() {
            there()?;
            let line = match kept.take() {
                Some(line) => line,
                None => self.connect(end, there)?,
            };
            let left = todo.len();
            *kept = line.work(offset, &mut bytes, &mut todo, there)?;
            if todo.len() < left {
                end = Instant::now() + self.patience;
            } else if Instant::now() >= end {
                return Err(UpdateError::NoHost);
            }
        }
        Ok(())
    }

    /// Finds the host until `end`, and gets the memory through which the bytes go.
    fn connect(
        &self,
        end: Instant,
        there: &dyn Fn() -> Result<(), UpdateError>,
    ) -> Result<Line, UpdateError> {
        let connect = || self.entrance.to_memory(&self.capability);
        let mut pending = connect().ok_or(UpdateError::NoHost)?;
        loop {
            let accepted = accepted(&mut pending)?;
            if let Some(AcceptedConnection { connection }) = accepted {
                if let Some(line) = Line::new(connection, end) {
                    portolan_shm::mark!("brokered.connected");
                    return Ok(line);
                }
                // It has gone, or has just been told that the export ends.
                std::thread::sleep(LOOK);
                pending = connect().ok_or(UpdateError::NoHost)?;
            }
            there()?;
            if Instant::now() >= end {
                return Err(UpdateError::NoHost);
            }
        }
    }
}

/// Waits a moment for the host.
fn accepted(pending: &mut PendingConnection) -> Result<Option<AcceptedConnection>, UpdateError> {
    match pending.wait(Deadline::after(LOOK)) {
        Ok(accepted) => Ok(Some(accepted)),
        // There is no host yet, or the exporter has not delegated to it yet.
        Err(
            OfferConnectError::NotOffered { .. }
            | OfferConnectError::NotMet { .. }
            | OfferConnectError::NotRunning { .. }
            | OfferConnectError::Busy
            | OfferConnectError::Unanswered,
        ) => Ok(None),
        Err(_) => Err(UpdateError::NoHost),
    }
}

impl Line {
    /// Receives the staging memory from the host.
    fn new(connection: Descriptor, end: Instant) -> Option<Self> {
        let mut bytes = [0; Ready::BYTES + 1];
        let received = socket::receive_by(&connection, &mut bytes, 1, Some(end)).ok()?;
        bytes
            .get(..received.len)
            .and_then(|b| Ready::decode(b).ok())?;
        let fd = received.fds.into_iter().next()?;
        if memory::verify(&fd, STAGING as u64).is_err() {
            return None;
        }
        let _ = socket::refuse_descriptors(&connection);
        let mapping = Mapping::shared_anywhere(&fd, STAGING).and_then(Mapping::not_in_children);
        Some(Self {
            connection,
            staging: Place::new(mapping.ok()?),
            asked: 0,
        })
    }

    /// Has as much of `todo` copied as this host does; the line, if it can go on.
    fn work(
        mut self,
        offset: usize,
        bytes: &mut Bytes<'_>,
        todo: &mut VecDeque<Range<usize>>,
        there: &dyn Fn() -> Result<(), UpdateError>,
    ) -> Result<Option<Self>, UpdateError> {
        let mut asked: VecDeque<Asked> = VecDeque::with_capacity(PARTS);
        // What the host has given back, and whether it takes no more.
        let mut back: Vec<Range<usize>> = Vec::new();
        let mut over = false;
        let mut failed = None;
        loop {
            while !over && failed.is_none() && asked.len() < PARTS {
                let Some(piece) = todo.pop_front() else { break };
                if let Some(number) = self.ask(offset, bytes, &piece) {
                    asked.push_back((number, piece));
                } else {
                    // It was not sent, so it was not done.
                    back.push(piece);
                    over = true;
                }
            }
            let Some((number, piece)) = asked.pop_front() else {
                break;
            };
            match self.hear(number, there) {
                Some(Outcome::Done) => self.fetch(number, bytes, piece),
                Some(Outcome::Away) => {
                    back.push(piece);
                    over = true;
                }
                Some(outcome) => {
                    failed = failed.or(Some(explain(outcome, offset, &piece)));
                }
                None => {
                    // A read that is not answered may be repeated.
                    there()?;
                    if bytes.act() == Act::Write {
                        return Err(UpdateError::Unanswered);
                    }
                    back.push(piece);
                    back.extend(asked.drain(..).map(|(_, piece)| piece));
                    over = true;
                }
            }
        }
        if let Some(failed) = failed {
            there()?;
            return Err(failed);
        }
        // In order, before what has not been asked for at all.
        back.sort_unstable_by_key(|piece| piece.start);
        for piece in back.into_iter().rev() {
            todo.push_front(piece);
        }
        Ok((!over).then_some(self))
    }

    /// Asks for a piece; its number, if the host is to get it.
    fn ask(&mut self, offset: usize, bytes: &Bytes<'_>, piece: &Range<usize>) -> Option<u32> {
        let number = self.asked;
        self.asked = number.wrapping_add(1);
        if let Bytes::Write(bytes) = bytes {
            let piece = bytes.get(piece.clone()).unwrap_or_default();
            put(self.staging.words(), place(number), piece);
        }
        let request = Request {
            number,
            act: bytes.act(),
            offset: (offset + piece.start) as u64,
            len: u32::try_from(piece.len()).ok()?,
            part: u32::try_from(place(number) / PART).ok()?,
        };
        let end = Some(Instant::now() + PATIENCE);
        let sent = socket::send_by(&self.connection, &request.encode(), &[], end);
        portolan_shm::mark!("brokered.asked");
        sent.ok().map(|()| number)
    }

    /// The answer to a request; nothing if there is none, nor will be.
    fn hear(&self, number: u32, there: &dyn Fn() -> Result<(), UpdateError>) -> Option<Outcome> {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut bytes = [0; Reply::BYTES + 1];
            let soon = Some(end.min(Instant::now() + LOOK * 10));
            let received = match socket::receive_by(&self.connection, &mut bytes, 0, soon) {
                Ok(received) if !received.truncated => received,
                Err(SocketError::TimedOut) if Instant::now() < end && there().is_ok() => continue,
                Ok(_) | Err(_) => return None,
            };
            let reply = bytes
                .get(..received.len)
                .and_then(|b| Reply::decode(b).ok());
            return reply
                .filter(|reply| reply.number == number)
                .map(|reply| reply.outcome);
        }
    }

    /// Copies what was read to where it was wanted.
    fn fetch(&self, number: u32, bytes: &mut Bytes<'_>, piece: Range<usize>) {
        if let Bytes::Read(bytes) = bytes
            && let Some(piece) = bytes.get_mut(piece)
        {
            take(self.staging.words(), place(number), piece);
        }
    }
}

/// Where in the staging memory a request's bytes lie.
fn place(number: u32) -> usize {
    number as usize % PARTS * PART
}

fn explain(outcome: Outcome, offset: usize, piece: &Range<usize>) -> UpdateError {
    let first = offset + piece.start;
    match outcome {
        Outcome::Protected => UpdateError::Protected {
            offset: first,
            len: piece.len(),
        },
        Outcome::Unmapped { offset: at } => UpdateError::Unmapped {
            offset: usize::try_from(at).unwrap_or(first),
        },
        // It lives, as far as is known, and has another memory.
        Outcome::Gone => UpdateError::Disconnected,
        Outcome::Failed { errno } => UpdateError::System { errno },
        // The exporter has sent the host another delegation than it granted us.
        _ => UpdateError::OutOfRanges {
            offset: first,
            len: piece.len(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Domain;
    use portolan_abi::connect::{ConnectAnswer, ConnectRequest};
    use portolan_sys::process::user;
    use portolan_sys::socket::Address;
    use portolan_testkit::unique;
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// Accepts any importer; answers all requests with `outcome`, and counts them. An error means
    /// that the importer has gone.
    fn host(socket: &OwnedFd, outcome: Outcome, asked: &AtomicUsize) -> Result<(), SocketError> {
        let soon = || Some(Instant::now() + Duration::from_millis(100));
        let late = || Some(Instant::now() + portolan_testkit::PATIENCE);
        let connection = socket::accept_by(socket, soon())?;
        let _ = socket::receive_by(&connection, &mut [0; ConnectRequest::BYTES], 0, late())?;
        socket::send_by(&connection, &ConnectAnswer::Accepted.encode(), &[], late())?;
        let ready = Ready {}.encode();
        let staging = memory::create("staging", STAGING as u64).unwrap();
        socket::send_by(&connection, &ready, &[staging.as_fd()], late())?;
        loop {
            let mut bytes = [0; Request::BYTES];
            let _ = socket::receive_by(&connection, &mut bytes, 0, late())?;
            let number = Request::decode(&bytes).unwrap().number;
            asked.fetch_add(1, Ordering::Relaxed);
            let reply = Reply { number, outcome }.encode();
            socket::send_by(&connection, &reply, &[], late())?;
        }
    }

    /// Writes and reads where hosts answer so; how often they were asked.
    fn copied(outcome: Outcome, patience: Duration) -> ([Result<(), UpdateError>; 2], usize) {
        let domain = unique("hosts");
        let name = portolan_abi::hello::socket_name(user(), &domain).unwrap();
        let socket = socket::listen(&Address::Abstract(name.into_bytes()), 16).unwrap();
        let capability = Capability {
            number: [1; 16],
            token: [2; 16],
        };
        let entrance = Entrance::from_outside(&Domain::builder(&domain));
        let (over, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
        let results = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let _ = host(&socket, outcome, &asked);
                }
            });
            // Gone when this is over, so that the host does not wait for more.
            let brokered = Brokered {
                patience,
                ..Brokered::new(entrance, capability, 3 * PART)
            };
            let mut bytes = vec![7; 3 * PART];
            let there = || Ok(());
            let results = [
                brokered.write(0, &bytes, &there),
                brokered.read(0, &mut bytes, &there),
            ];
            over.store(true, Ordering::Relaxed);
            results
        });
        (results, asked.into_inner())
    }

    #[test]
    fn hosts_that_copy_nothing_one_after_another_are_none() {
        let mut patience = Duration::from_millis(200);
        loop {
            let (results, asked) = copied(Outcome::Away, patience);
            assert_eq!(results, [Err(UpdateError::NoHost); 2]);
            if asked > 0 {
                break;
            }
            // None has come to it, on a busy machine.
            patience *= 2;
            assert!(patience < portolan_testkit::PATIENCE, "nobody was asked");
        }
    }

    #[test]
    fn a_host_that_copies_is_asked_for_every_part() {
        let (results, asked) = copied(Outcome::Done, PATIENCE);
        assert_eq!(results, [Ok(()); 2]);
        assert_eq!(asked, 6);
    }
}
