//! Serves clients that ask once and get one answer, over sockets that never block: commands at the
//! control socket, and readers of the counters.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// How long a client has to say what it wants and to take the answer.
pub(super) const WITHIN: Duration = Duration::from_secs(5);
/// Between two looks whether an answer fits into a socket by now.
const CROWDED: Duration = Duration::from_millis(10);

/// What the bytes of a client are so far.
pub(super) enum Heard {
    /// A part of a question.
    Part,
    /// A question, with this answer, which ends the connection.
    Answer(Vec<u8>),
    /// Nothing that is answered.
    Wrong,
    /// One that wants more than an answer: [`Clients::step`] returns its socket.
    Keeps,
}

/// The clients of one listener.
#[derive(Debug)]
pub(super) struct Clients<S> {
    most: usize,
    all: Vec<Client<S>>,
}

#[derive(Debug)]
struct Client<S> {
    socket: S,
    came: Vec<u8>,
    until: Duration,
    answer: Option<Vec<u8>>,
    sent: usize,
    keeps: bool,
}

impl<S: Read + Write + AsFd> Clients<S> {
    /// At most so many at once; the next ones wait in the backlog.
    pub(super) fn new(most: usize) -> Self {
        let all = Vec::new();
        Self { most, all }
    }

    /// What is to be watched: the listener while there is room, and the clients that have not asked.
    pub(super) fn descriptors<'a>(
        &'a self,
        listener: BorrowedFd<'a>,
    ) -> impl Iterator<Item = BorrowedFd<'a>> {
        let listener = (self.all.len() < self.most).then_some(listener);
        let asking = self.all.iter().filter(|client| client.answer.is_none());
        let asking = asking.map(|client| client.socket.as_fd());
        listener.into_iter().chain(asking)
    }

    pub(super) fn wake_at(&self, now: Duration) -> Option<Duration> {
        let soon = |client: &Client<S>| match client.answer {
            Some(_) => client.until.min(now + CROWDED),
            None => client.until,
        };
        self.all.iter().map(soon).min()
    }

    /// Takes whom `accept` has, in sockets that do not block, and goes on with all: `hear` is given
    /// all bytes of a client. Returns the socket of one that it keeps.
    pub(super) fn step(
        &mut self,
        now: Duration,
        mut accept: impl FnMut() -> io::Result<S>,
        mut hear: impl FnMut(&[u8]) -> Heard,
    ) -> Option<S> {
        while self.all.len() < self.most
            && let Ok(socket) = accept()
        {
            self.all.push(Client {
                socket,
                came: Vec::new(),
                until: now + WITHIN,
                answer: None,
                sent: 0,
                keeps: false,
            });
        }
        self.all
            .retain_mut(|client| client.step(&mut hear) && now < client.until);
        let at = self.all.iter().position(|client| client.keeps)?;
        Some(self.all.swap_remove(at).socket)
    }
}

impl<S: Read + Write> Client<S> {
    /// Goes on; whether it is not over.
    fn step(&mut self, hear: &mut impl FnMut(&[u8]) -> Heard) -> bool {
        let mut room = [0; 1024];
        while self.answer.is_none() {
            match self.socket.read(&mut room) {
                Ok(0) => return false,
                Ok(bytes) => self.came.extend(&room[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return false,
            }
            match hear(&self.came) {
                Heard::Part => {}
                Heard::Answer(answer) => self.answer = Some(answer),
                Heard::Wrong => return false,
                Heard::Keeps => {
                    self.keeps = true;
                    return true;
                }
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
