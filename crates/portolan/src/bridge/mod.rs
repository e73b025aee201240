//! Between domains: a port that processes of other domains send to, a channel that they read.
//!
//! ```text
//!   connecting process (domain A)                    offering process (domain B)
//!   SendRight                                                       ReceiveRight
//!      | send                                                            ^ receive
//!      v                                                                 |
//!   proxy port --> egress ==[ connection's memory: two byte rings  ]==> ingress --> real port
//!   (bound in A)   thread    [ socket: rings, descriptors]   thread      (bound in B)
//! ```
//!
//! The right that [`Domain::connect_to`](crate::Domain::connect_to) gives is one on a *proxy
//! port* of the sender's own domain, so sending is what it always is: the extents change owner,
//! the queue may be full, the port may be a dead name. The port's *egress*, a thread of the connecting
//! process, takes messages out of it and writes them into the connection's memory; an *ingress*, a
//! thread of the offering process for each client, takes them out there, into extents of its
//! own domain, and sends them on. Neither domain's region is ever seen by the other.
//!
//! # Invariants
//!
//! - **G1** What a stranger may be wrong about is its own messages. All that comes from it is
//!   copied, decoded whole or not at all, and held against a limit before it is used; what
//!   fails is a [`Violation`], which ends this connection and nothing else.
//! - **G2** Nothing is half-received: a message is sent on once all of it is here.
//! - **G3** Whoever does not take holds up whoever sends to it, and nobody else: a full real
//!   port fills the byte ring, that fills the proxy port, and then `WhenFull` decides.
//! - **G4** The order of one sender's messages is kept: there is one thread on each side.
//! - **G5** A connection ends when either process dies, when the offer is withdrawn, when the real
//!   port is closed, or when the last right on the proxy port is dropped and what was sent
//!   has gone over. Then the proxy port is a dead name.
//! - **G6** A stranger does not slow a channel's writer, unless the offer says so: what it was
//!   too slow for is left out whole, counted, and told before what comes after it.
//!
//! # Channels
//!
//! ```text
//!   offering process (domain B)                        following process (domain A)
//!   channel --> egress ==[ connection's memory: byte ring back ]==> ingress --> channel of its own
//!   one more    thread for                               thread,      (made in A, like the
//!   reader      each client                             its writer    offered one)
//! ```
//!
//! The same connection, the other way round. First goes what the channel is like, then each message as
//! one extent; the frame header's tag counts the units that were missed before it. An empty frame header
//! of the kind *dropped* says that the writer has gone.
//!
//! # What it costs
//!
//! `Copied`: the bytes are copied twice, into the byte ring and out of it, in pieces of 64 KiB, so
//! that the two copies go on at the same time on two processors and a piece is still in the
//! cache when it is copied out. (A Unix socket copies twice as well, into memory that is
//! taken from the kernel and given back for every message, and in system calls.) While both
//! sides are awake there is no system call; a side that sleeps is rung for once.
//!
//! `Sealed`: memory that is sealed already is not copied: one packet with its descriptor, and in
//! the receiver three system calls to verify it and one to map it; pages are mapped as they are
//! read. The extents of a message are copied once, into memory that is then sealed.
//!
//! A message that finds everybody asleep wakes three threads, one after another: egress, ingress,
//! and receiver; inside a domain there is one.

mod clients;
mod codec;
mod connect;
mod control_socket;
mod error;
mod follow;
mod memory;
mod offered;
mod offered_channel;
mod options;
mod port_egress;
mod port_ingress;
mod side;
#[cfg(test)]
mod tests;

pub use error::{ConnectToError, Violation, ViolationKind};
pub use follow::{Followed, Skipped};
pub use offered::OfferedPort;
pub use offered_channel::{OfferChannelError, OfferedChannel};
pub use options::{ConnectOptions, OfferOptions};
