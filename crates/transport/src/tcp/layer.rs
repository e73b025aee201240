//! What may lie between a socket and its streams: TLS, or nothing.

use std::fmt;
use std::os::fd::BorrowedFd;

use portolan_sys::stream::{Destination, Source};

use crate::{Peer, TransportError};

/// Makes layers for the sockets of a transport.
pub(crate) trait Secure: fmt::Debug + Send + Sync {
    /// Of a socket that was connected from here.
    fn client(&self) -> Result<Box<dyn Layer>, TransportError>;
    /// Of a socket that was accepted here.
    fn server(&self) -> Result<Box<dyn Layer>, TransportError>;
    /// Whether it makes connections that have one stream only: of newcomers, of directories.
    fn has_one_stream(&self) -> bool;
}

/// What a layer has moved: bytes, `Some(0)` at the authentic end, `None` if none can be moved now.
pub(crate) type Moved = Result<Option<usize>, TransportError>;

/// Turns the bytes of streams into others, and back.
pub(crate) trait Layer: fmt::Debug + Send {
    /// Goes on with the handshake; whether it is done.
    fn advance(&mut self, socket: BorrowedFd<'_>) -> Result<bool, TransportError>;
    /// Takes bytes of `parts`, which it sends now or at the next flush.
    fn send(&mut self, socket: BorrowedFd<'_>, parts: &[Source<'_>]) -> Moved;
    /// Gives bytes that have arrived whole and unchanged.
    fn receive(&mut self, socket: BorrowedFd<'_>, into: &[Destination<'_>]) -> Moved;
    /// Sends what it has taken, as far as there is room.
    fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<(), TransportError>;
    /// Whether it has taken bytes that are not sent yet.
    fn has_to_send(&self) -> bool;
    /// Whether it has bytes, or an end, to give though the socket may have none.
    fn has_received(&self) -> bool;
    /// Takes no more bytes, and says so to the peer at the next flush.
    fn finish(&mut self);
    /// Who the peer is.
    fn peer(&self) -> Peer;
    /// What both ends of this connection have in common, and nobody else.
    fn binding(&self, label: &str) -> Option<[u8; 32]>;
}
