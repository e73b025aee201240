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
    /// A part of a question, or one that has no answer yet.
    Part,
    /// A question, with this answer, which ends the connection.
    Answer(Vec<u8>),
    /// Nothing that is answered.
    Wrong,
    /// One that wants more than an answer: [`Clients::kept`] returns its socket.
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
    /// all bytes of a client.
    pub(super) fn step(
        &mut self,
        now: Duration,
        mut accept: impl FnMut() -> io::Result<S>,
        mut hear: impl FnMut(&[u8]) -> Heard,
    ) {
        while self.all.len() < self.most
            && let Ok(socket) = accept()
        {
            self.all.push(Client::new(socket, Vec::new(), now));
        }
        self.all.retain_mut(|client| {
            if client.keeps {
                return true;
            }
            let goes_on = client.step(&mut hear);
            // One that is kept now waits until it is taken.
            goes_on && (client.keeps || now < client.until)
        });
    }

    /// Whether there is one that wants more than an answer.
    pub(super) fn keeps(&self) -> bool {
        self.all.iter().any(|client| client.keeps)
    }

    /// Takes the socket of one that wants more than an answer, and what it has said.
    pub(super) fn kept(&mut self) -> Option<(S, Vec<u8>)> {
        let at = self.all.iter().position(|client| client.keeps)?;
        let client = self.all.remove(at);
        Some((client.socket, client.came))
    }

    /// Takes those that have no answer yet, with what each has said so far.
    pub(super) fn unanswered(&mut self) -> Vec<(S, Vec<u8>)> {
        let unanswered = self.all.extract_if(.., |client| client.answer.is_none());
        unanswered
            .map(|client| (client.socket, client.came))
            .collect()
    }

    /// Goes on with one that another process has accepted, in a socket that does not block.
    pub(super) fn adopt(&mut self, socket: S, came: Vec<u8>, now: Duration) {
        self.all.push(Client::new(socket, came, now));
    }

    /// Goes on with those that have not taken all of their answers; whether there are any left.
    pub(super) fn finish(&mut self, now: Duration) -> bool {
        self.all.retain(|client| client.answer.is_some());
        self.step(now, || Err(ErrorKind::WouldBlock.into()), |_| Heard::Wrong);
        !self.all.is_empty()
    }
}

impl<S: Read + Write> Client<S> {
    fn new(socket: S, came: Vec<u8>, now: Duration) -> Self {
        Self {
            socket,
            came,
            until: now + WITHIN,
            answer: None,
            sent: 0,
            keeps: false,
        }
    }

    /// Goes on; whether it is not over.
    fn step(&mut self, hear: &mut impl FnMut(&[u8]) -> Heard) -> bool {
        let mut room = [0; 1024];
        while self.answer.is_none() {
            // What was adopted may be a whole question, so it is heard before more is read.
            match hear(&self.came) {
                Heard::Part => match self.socket.read(&mut room) {
                    Ok(0) => return false,
                    Ok(bytes) => self.came.extend(&room[..bytes]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return false,
                },
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn pair() -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (ours, theirs)
    }

    fn nobody() -> io::Result<UnixStream> {
        Err(ErrorKind::WouldBlock.into())
    }

    fn line(came: &[u8]) -> Heard {
        match came.last() {
            Some(b'\n') if came == b"keep\n" => Heard::Keeps,
            Some(b'\n') => Heard::Answer(came.to_vec()),
            _ => Heard::Part,
        }
    }

    #[test]
    fn what_an_adopted_client_said_before_is_the_begin_of_its_question() {
        let mut clients = Clients::new(2);
        let ((half, mut its), (whole, mut others)) = (pair(), pair());
        clients.adopt(half, b"ha".to_vec(), NOW);
        clients.adopt(whole, b"whole\n".to_vec(), NOW);
        its.write_all(b"lf\n").unwrap();
        clients.step(NOW, nobody, line);
        let (mut first, mut second) = (String::new(), String::new());
        its.read_to_string(&mut first).unwrap();
        others.read_to_string(&mut second).unwrap();
        assert_eq!([first, second], ["half\n", "whole\n"]);
    }

    #[test]
    fn a_client_that_is_kept_stays_until_it_is_taken() {
        let mut clients = Clients::new(1);
        let (ours, _theirs) = pair();
        clients.adopt(ours, b"keep\n".to_vec(), NOW);
        for now in [NOW, 2 * WITHIN] {
            clients.step(now, nobody, line);
        }
        assert!(clients.kept().is_some() && clients.kept().is_none());
    }

    #[test]
    fn a_long_answer_is_taken_whole_after_the_others_have_gone() {
        let mut clients = Clients::new(2);
        let ((ours, mut theirs), (quiet, mut silent)) = (pair(), pair());
        clients.adopt(ours, b"?\n".to_vec(), NOW);
        clients.adopt(quiet, Vec::new(), NOW);
        let long = |came: &[u8]| match came {
            b"" => Heard::Part,
            _ => Heard::Answer(vec![b'x'; 4 << 20]),
        };
        clients.step(NOW, nobody, long);
        let gone = clients.unanswered();
        assert_eq!(gone.len(), 1, "the one that has asked nothing");
        drop(gone);
        assert_eq!(silent.read(&mut [0]).unwrap(), 0);
        let reads = std::thread::spawn(move || {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).map(|_| all.len())
        });
        while clients.finish(NOW) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(reads.join().unwrap().unwrap(), 4 << 20);
    }
}
