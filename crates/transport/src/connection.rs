//! The traits: what a transport, a listener and a connection do.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use portolan_sys::stream::{Destination, Source};

use crate::{Address, NodeId, TransportError};

/// Makes connections of one kind.
pub trait Transport: fmt::Debug + Send {
    /// What its connections can do.
    fn limits(&self) -> Limits;

    /// Listens at `address`.
    ///
    /// # Errors
    ///
    /// [`TransportError::CannotListen`], [`TransportError::WrongAddress`].
    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>, TransportError>;

    /// Begins to connect to `address`. The connection is [`Connecting`](State::Connecting) at
    /// first; streams of it may be opened at once, and send later.
    ///
    /// # Errors
    ///
    /// [`TransportError::CannotConnect`], [`TransportError::WrongAddress`]. Most reasons are known
    /// only later, and are [`failure`](Connection::failure)s.
    fn connect(&self, address: &Address) -> Result<Box<dyn Connection>, TransportError>;
}

/// Takes connections that others begin.
pub trait Listener: fmt::Debug + Send {
    /// Readable when there is something to accept.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// When [`accept`](Self::accept) is to be called at the latest, by the transport's clock.
    fn wake_at(&self) -> Option<Duration>;

    /// Where it listens: with the port that the kernel has chosen.
    fn address(&self) -> Address;

    /// The socket that clients connect to, if it is one: another process can go on with it.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Goes on with the connections that are being made; the next that is up, if one is. Call it
    /// until it returns `None`.
    ///
    /// # Errors
    ///
    /// [`TransportError::Refused`]: a client was refused, and why; the listener goes on, and this
    /// is to be called again. [`TransportError::Descriptors`]: call it again when some are free.
    fn accept(&mut self) -> Result<Option<Box<dyn Connection>>, TransportError>;
}

/// One link to a peer: streams and datagrams.
pub trait Connection: fmt::Debug + Send {
    /// What it can do.
    fn limits(&self) -> Limits;

    /// Readable when [`progress`](Self::progress) is to be called, and then what it says. For
    /// waiting only, by level.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// When [`progress`](Self::progress) is to be called though the descriptor is not readable, by
    /// the transport's clock.
    fn wake_at(&self) -> Option<Duration>;

    /// Goes on with what lies inside: handshakes, bytes that wait to be sent, timers. Afterwards
    /// each stream is to be received from, and each that was blocked may be sent on, until they
    /// are [`Blocked`](Progress::Blocked).
    fn progress(&mut self) -> State;

    /// Why it has failed, if it has.
    fn failure(&self) -> Option<&TransportError>;

    /// Who is at the other end, as far as the transport knows; known once the state is
    /// [`Up`](State::Up).
    fn peer(&self) -> Peer;

    /// Where the other end is, if that is an address.
    fn remote(&self) -> Option<Address>;

    /// Opens the next stream of a class. The nth stream of a class that is opened here is the nth
    /// that is opened there.
    ///
    /// # Errors
    ///
    /// [`TransportError::NoMoreStreams`].
    fn open(&mut self, class: Class) -> Result<StreamId, TransportError>;

    /// Sends bytes of `parts`, from the front.
    fn send(&mut self, on: StreamId, parts: &[Source<'_>]) -> Progress;

    /// Receives bytes into `into`, from the front. Without room in `into` it receives
    /// [`Moved(0)`](Progress::Moved).
    fn receive(&mut self, on: StreamId, into: &[Destination<'_>]) -> Progress;

    /// Sends a datagram, which may be lost; `false` if it was not sent.
    fn datagram(&mut self, bytes: &[u8]) -> bool;

    /// Receives a datagram, if one is there.
    fn receive_datagram(&mut self) -> Option<Vec<u8>>;

    /// Sends nothing more on any stream: the peer receives what was sent, and then
    /// [`Ended`](Progress::Ended). What the transport has not passed on itself yet it does in
    /// [`progress`](Self::progress); so a caller goes on until the state is [`Over`](State::Over),
    /// or as long as it has patience, and drops the connection then.
    fn close(&mut self);

    /// A number that both ends have and nobody else, for a proof that is bound to this connection;
    /// `None` if the transport has none.
    fn binding(&self, label: &str) -> Option<[u8; 32]>;
}

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Records and short messages: little is under way, so that each is soon there.
    Records,
    /// Fragments of long messages.
    Bulk,
}

/// A stream of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId {
    pub(crate) class: Class,
    pub(crate) number: u16,
}

impl StreamId {
    /// What it is for.
    pub fn class(self) -> Class {
        self.class
    }
}

/// What connections of a transport can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most streams of each class.
    pub streams: u16,
    /// Longest datagram; 0 if there are none.
    pub datagram: usize,
    /// Most ranges that one call looks at. More are cut off, and count as not moved.
    pub ranges: usize,
    /// Whether an end of a stream is surely the peer's: nobody between can make one.
    pub authentic_ends: bool,
    /// Whether the peer is known by its key.
    pub authenticated: bool,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The peer has not been reached yet, or not been looked at.
    Connecting,
    /// Streams move.
    Up,
    /// Both sides have ended, and all has been received and passed on.
    Over,
    /// It has failed: [`Connection::failure`] says why.
    Failed,
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The transport cannot tell: anyone.
    Unknown,
    /// A client that has shown no certificate, and may do nothing but ask for one.
    Newcomer,
    /// The node whose key it has shown, with a certificate of our authority.
    Node(NodeId),
    /// The same, at the end of a connection that carries what nodes' directories say: one stream.
    Directory(NodeId),
}

/// What a call has moved.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a part of the bytes may not have been moved"]
pub enum Progress {
    /// So many bytes, from the front.
    Moved(usize),
    /// None: there is no room, or no byte, now.
    Blocked,
    /// Received all: the peer has closed. Sent nothing: we have.
    Ended,
    /// None, and none any more.
    Failed(TransportError),
}
