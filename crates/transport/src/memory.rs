//! Connections within this process: queues of bytes behind a lock.

mod queues;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portolan_sys::process::EventFd;
use portolan_sys::stream::{Destination, Source};

use crate::{
    Address, Class, Connection, Limits, Listener, Peer, Progress, State, StreamId, Transport,
    TransportError,
};
use queues::Queues;

/// What [`Memory`] connections hold.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// Most streams of each class.
    pub streams: u16,
    /// Bytes that a stream holds each way before a send is blocked.
    pub room: usize,
    /// Longest datagram; 0 for none.
    pub datagram: usize,
    /// Datagrams that wait each way before further ones are lost.
    pub datagrams: usize,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            streams: 4,
            room: 256 * 1024,
            datagram: 8 * 1024,
            datagrams: 64,
        }
    }
}

/// Connections within this process, by names of its own. Clones have the same names.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    options: MemoryOptions,
    listeners: Arc<Mutex<HashMap<String, Arc<Backlog>>>>,
}

/// Connections that were begun and not accepted.
#[derive(Debug)]
struct Backlog {
    waiting: Mutex<VecDeque<MemoryConnection>>,
    event: EventFd,
}

/// Connections that wait to be accepted before further ones are refused.
const BACKLOG: usize = 128;

impl Memory {
    /// The same with other limits.
    pub fn new(options: MemoryOptions) -> Self {
        Self {
            options,
            listeners: Arc::default(),
        }
    }
}

impl Transport for Memory {
    fn limits(&self) -> Limits {
        limits(&self.options)
    }

    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>, TransportError> {
        let name = name(address)?;
        let mut listeners = locked(&self.listeners);
        if listeners.contains_key(name) {
            return Err(TransportError::CannotListen {
                address: address.clone(),
                reason: "another listener has the name".to_owned(),
            });
        }
        let backlog = Arc::new(Backlog {
            waiting: Mutex::default(),
            event: event()?,
        });
        listeners.insert(name.to_owned(), Arc::clone(&backlog));
        Ok(Box::new(MemoryListener {
            name: name.to_owned(),
            backlog,
            listeners: Arc::clone(&self.listeners),
        }))
    }

    fn connect(&self, address: &Address) -> Result<Box<dyn Connection>, TransportError> {
        let refused = |reason: &str| TransportError::CannotConnect {
            address: address.clone(),
            reason: reason.to_owned(),
        };
        let name = name(address)?;
        let listeners = locked(&self.listeners);
        let backlog = listeners
            .get(name)
            .ok_or_else(|| refused("nobody listens"))?;
        let mut waiting = locked(&backlog.waiting);
        if waiting.len() >= BACKLOG {
            return Err(refused("too many wait to be accepted"));
        }
        let events = [event()?, event()?];
        let queues = Arc::new(Mutex::new(Queues::new(self.options, events)?));
        let [ours, theirs] = [0, 1].map(|end| MemoryConnection::new(&queues, end, self.options));
        let (ours, theirs) = (ours?, theirs?);
        waiting.push_back(theirs);
        backlog
            .event
            .notify()
            .map_err(TransportError::system("cannot wake a listener"))?;
        Ok(Box::new(ours))
    }
}

fn limits(options: &MemoryOptions) -> Limits {
    Limits {
        streams: options.streams,
        datagram: options.datagram,
        ranges: usize::MAX,
        authentic_ends: true,
        authenticated: false,
    }
}

fn name(address: &Address) -> Result<&str, TransportError> {
    match address {
        Address::Named(name) => Ok(name),
        Address::Internet(_) => Err(TransportError::WrongAddress {
            transport: "memory",
            address: address.clone(),
        }),
    }
}

fn event() -> Result<EventFd, TransportError> {
    EventFd::new().map_err(TransportError::system("cannot make a descriptor"))
}

/// What a panic left behind is whole: no lock is held over a call that can.
fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct MemoryListener {
    name: String,
    backlog: Arc<Backlog>,
    listeners: Arc<Mutex<HashMap<String, Arc<Backlog>>>>,
}

impl Listener for MemoryListener {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.backlog.event.as_fd()
    }

    fn wake_at(&self) -> Option<Duration> {
        None
    }

    fn address(&self) -> Address {
        Address::Named(self.name.clone())
    }

    fn accept(&mut self) -> Result<Option<Box<dyn Connection>>, TransportError> {
        let mut waiting = locked(&self.backlog.waiting);
        let next = waiting.pop_front();
        if waiting.is_empty() {
            self.backlog
                .event
                .drain()
                .map_err(TransportError::system("cannot look for clients"))?;
        }
        Ok(next.map(|connection| Box::new(connection) as Box<dyn Connection>))
    }
}

impl Drop for MemoryListener {
    fn drop(&mut self) {
        locked(&self.listeners).remove(&self.name);
    }
}

/// One end of a connection.
#[derive(Debug)]
struct MemoryConnection {
    queues: Arc<Mutex<Queues>>,
    /// Which end this is.
    end: usize,
    /// The descriptor of this end, which the queues set.
    event: std::os::fd::OwnedFd,
    options: MemoryOptions,
    failure: Option<TransportError>,
}

impl MemoryConnection {
    fn new(
        queues: &Arc<Mutex<Queues>>,
        end: usize,
        options: MemoryOptions,
    ) -> Result<Self, TransportError> {
        let event = locked(queues)
            .event(end)
            .try_clone_to_owned()
            .map_err(TransportError::system("cannot make a descriptor"))?;
        Ok(Self {
            queues: Arc::clone(queues),
            end,
            event,
            options,
            failure: None,
        })
    }

    /// Does something to the queues, and notes why they have failed.
    fn with(&mut self, act: impl FnOnce(&mut Queues, usize) -> Progress) -> Progress {
        if let Some(failure) = &self.failure {
            return Progress::Failed(failure.clone());
        }
        let mut queues = locked(&self.queues);
        let progress = act(&mut queues, self.end);
        if let Progress::Failed(why) = &progress {
            self.failure = Some(why.clone());
            queues.fail(self.end);
        }
        queues.show();
        progress
    }
}

impl Connection for MemoryConnection {
    fn limits(&self) -> Limits {
        limits(&self.options)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn wake_at(&self) -> Option<Duration> {
        None
    }

    fn progress(&mut self) -> State {
        let mut state = State::Failed;
        let progress = self.with(|queues, end| {
            let (now, progress) = queues.progress(end);
            state = now;
            progress
        });
        match progress {
            Progress::Failed(_) => State::Failed,
            _ => state,
        }
    }

    fn failure(&self) -> Option<&TransportError> {
        self.failure.as_ref()
    }

    fn peer(&self) -> Peer {
        Peer::Unknown
    }

    fn remote(&self) -> Option<Address> {
        None
    }

    fn open(&mut self, class: Class) -> Result<StreamId, TransportError> {
        let mut queues = locked(&self.queues);
        let opened = queues.open(self.end, class);
        queues.show();
        opened.ok_or(TransportError::NoMoreStreams {
            class,
            most: self.options.streams,
        })
    }

    fn send(&mut self, on: StreamId, parts: &[Source<'_>]) -> Progress {
        self.with(|queues, end| queues.send(end, on, parts))
    }

    fn receive(&mut self, on: StreamId, into: &[Destination<'_>]) -> Progress {
        self.with(|queues, end| queues.receive(end, on, into))
    }

    fn datagram(&mut self, bytes: &[u8]) -> bool {
        let mut queues = locked(&self.queues);
        let sent = self.failure.is_none() && queues.datagram(self.end, bytes);
        queues.show();
        sent
    }

    fn receive_datagram(&mut self) -> Option<Vec<u8>> {
        let mut queues = locked(&self.queues);
        let datagram = queues.receive_datagram(self.end);
        queues.show();
        datagram
    }

    fn close(&mut self) {
        let mut queues = locked(&self.queues);
        queues.close(self.end);
        queues.show();
    }

    fn binding(&self, _label: &str) -> Option<[u8; 32]> {
        None
    }
}

impl Drop for MemoryConnection {
    fn drop(&mut self) {
        let mut queues = locked(&self.queues);
        queues.leave(self.end);
        queues.show();
    }
}
