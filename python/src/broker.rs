//! The thread that hands out what was put into a `portolan.multiprocessing.Queue`.
//!
//! A port is received by one process, and a queue is read by several. So the process that made the
//! queue has this thread, which needs no interpreter: processes *put* by sending to one port, and
//! *get* by a request to another, which the thread answers with the message itself. Nothing is
//! copied, and a request says how long it waits, so that the thread alone decides who gets what:
//!
//! - **B1** A message is the answer to one request, or stays here: an answer that cannot be given,
//!   because the client is gone, comes back and is the next one's.
//! - **B2** A request that waits in vain is answered, by an empty header. When the thread ends, it
//!   drops those that wait, and their clients are told so.
//! - **B3** If the queue is bounded, messages stay in their port until there is a request, so that a
//!   full queue is a full port.

use crate::error::Fault;
use portolan::{
    Access, Deadline, Domain, Message, ReceiveError, ReceiveRight, Request, Token, WaitSet,
    WaitSetError,
};
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a request asks for, by the first byte of its header.
const GET: u8 = b'g';
const SIZE: u8 = b's';
const STOP: u8 = b'x';

/// The handle of a queue's thread.
#[pyclass(frozen, module = "portolan")]
#[derive(Debug)]
pub(crate) struct Broker(Mutex<Option<JoinHandle<()>>>);

impl Broker {
    pub(crate) fn start(
        domain: Domain,
        puts: ReceiveRight,
        gets: ReceiveRight,
        unbounded: bool,
    ) -> Result<Self, Fault> {
        let mut set = WaitSet::new(&domain)?;
        let gets = set.add(gets).map_err(|refused| refused.why)?;
        let mut line = Line {
            set,
            gets,
            puts: Puts::Apart(Box::new(puts)),
            unbounded,
            here: VecDeque::new(),
            waiting: VecDeque::new(),
            stopped: false,
        };
        let thread = std::thread::Builder::new().name("portolan-queue".to_owned());
        let thread = thread.spawn(move || while let Ok(true) = line.turn() {});
        let thread = thread.map_err(|why| Fault::new("Error", format!("no thread: {why}")))?;
        Ok(Self(Mutex::new(Some(thread))))
    }
}

#[pymethods]
impl Broker {
    /// Waits until the thread has ended, which a request `"x"` to its port makes it do.
    fn join(&self, py: Python<'_>) {
        let thread = self.0.lock().ok().and_then(|mut thread| thread.take());
        py.detach(|| thread.map(JoinHandle::join));
    }
}

/// Where messages come in.
enum Puts {
    Apart(Box<ReceiveRight>),
    InSet(Token<ReceiveRight>),
    Gone,
}

struct Line {
    set: WaitSet,
    gets: Token<ReceiveRight>,
    puts: Puts,
    unbounded: bool,
    /// Messages that were taken from their port.
    here: VecDeque<Message>,
    /// Requests, and until when each waits.
    waiting: VecDeque<(Request, Deadline)>,
    stopped: bool,
}

impl Line {
    /// Does what there is to do, and waits for more; `false` once it was told to stop.
    fn turn(&mut self) -> Result<bool, WaitSetError> {
        self.hear();
        self.fetch();
        self.answer();
        self.expire();
        if self.stopped {
            return Ok(false);
        }
        self.choose()?;
        let due = self.waiting.iter().filter_map(|(_, due)| match *due {
            Deadline::NEVER => None,
            due => due.instant(),
        });
        let until = due.min().map_or(Deadline::NEVER, Deadline::at);
        drop(self.set.wait(until)?);
        Ok(true)
    }

    /// Takes the requests that have come.
    fn hear(&mut self) {
        while let Some(port) = self.set.get_mut(self.gets) {
            let request = match port.get_request(Access::Later, Deadline::NOW) {
                Ok(request) => request,
                Err(ReceiveError::TimedOut) => return,
                Err(_) => {
                    self.stopped = true;
                    return;
                }
            };
            match request.message.header() {
                [GET, time @ ..] => {
                    let due = deadline(time);
                    self.waiting.push_back((request, due));
                }
                [SIZE] => {
                    let size = self.size() as u64;
                    reply(request, &size.to_le_bytes());
                }
                [STOP] => self.stopped = true,
                // No program of this package asks so: its client is told that it was dropped.
                _ => drop(request),
            }
        }
    }

    /// Messages that wait, here and in the port.
    fn size(&self) -> usize {
        let in_port = match &self.puts {
            Puts::Apart(port) => port.depth(),
            Puts::InSet(token) => self.set.get(*token).map_or(0, ReceiveRight::depth),
            Puts::Gone => 0,
        };
        self.here.len() + in_port
    }

    /// The next message in the port.
    fn receive(&mut self) -> Option<Message> {
        let port = match &mut self.puts {
            Puts::Apart(port) => port,
            Puts::InSet(token) => self.set.get_mut(*token)?,
            Puts::Gone => return None,
        };
        port.receive(Access::Later, Deadline::NOW).ok()
    }

    /// Empties the port of an unbounded queue, so that no process waits for room.
    fn fetch(&mut self) {
        while self.unbounded
            && let Some(message) = self.receive()
        {
            self.here.push_back(message);
        }
    }

    /// Answers requests with messages, first come, first served (B1).
    fn answer(&mut self) {
        while !self.waiting.is_empty() {
            let Some(message) = self.here.pop_front().or_else(|| self.receive()) else {
                return;
            };
            if let Some((request, _)) = self.waiting.pop_front()
                && let Err(refused) = request.reply(message)
            {
                self.here.push_front(*refused.item);
            }
        }
    }

    /// Answers the requests whose time is over (B2).
    fn expire(&mut self) {
        for (request, due) in std::mem::take(&mut self.waiting) {
            match due.has_passed() {
                true => reply(request, b""),
                false => self.waiting.push_back((request, due)),
            }
        }
    }

    /// Has the set wait for messages while they are wanted (B3).
    fn choose(&mut self) -> Result<(), WaitSetError> {
        let wanted = self.unbounded || !self.waiting.is_empty();
        self.puts = match std::mem::replace(&mut self.puts, Puts::Gone) {
            Puts::Apart(port) if wanted => {
                let token = self.set.add(*port).map_err(|refused| refused.why)?;
                Puts::InSet(token)
            }
            Puts::InSet(token) if !wanted => match self.set.remove(token) {
                Some(port) => Puts::Apart(Box::new(port)),
                None => Puts::Gone,
            },
            other => other,
        };
        Ok(())
    }
}

/// How long a request waits: microseconds, or none for as long as it takes.
fn deadline(time: &[u8]) -> Deadline {
    match <[u8; 8]>::try_from(time) {
        Ok(micros) => {
            let time = Duration::from_micros(u64::from_le_bytes(micros));
            match Instant::now().checked_add(time) {
                Some(at) => Deadline::at(at),
                None => Deadline::NEVER,
            }
        }
        Err(_) => Deadline::NEVER,
    }
}

/// Answers with a header. A client that is gone needs none.
fn reply(request: Request, header: &[u8]) {
    if let Ok(message) = Message::new(header) {
        drop(request.reply(message));
    }
}
