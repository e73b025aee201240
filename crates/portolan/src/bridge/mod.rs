//! A bridge joins two domains: a process of one domain sends to a port of the other, or reads
//! its channel.
//!
//! ```text
//!   connecting process (domain A)                      offering process (domain B)
//!   SendRight                                                         ReceiveRight
//!      | send                                                              ^ receive
//!      v                                                                   |
//!   proxy port --> egress ==[ connection: two byte rings  ]==> ingress --> real port
//!   (bound in A)   a task   [ control socket: wakes, fds  ]    a task      (bound in B)
//!                  of A's carrier                              of B's carrier
//! ```
//!
//! [`Domain::connect_to`](crate::Domain::connect_to) returns a right on a *proxy port* of the
//! sender's own domain. So a send to the other domain is a send as any other: the extents change
//! owner, the queue may be full, the port may be a dead name. The connection's *egress* takes
//! messages out of the proxy port and writes them into the connection's memory. Its *ingress*,
//! in the offering process and one for each client, reads them from there into extents of its own
//! domain, and sends them to the real port. Neither process maps the other domain's region.
//!
//! Several ports share a connection (`flows`), if the same process offers them to the same
//! process (`sharing`).
//!
//! Egresses and ingresses are tasks of the *carrier* (`carrier`), one thread of a membership, which
//! runs all its connections in turn.
//!
//! # Invariants
//!
//! - **G1** A hostile peer can corrupt only its own messages. The library copies everything that a
//!   peer writes, decodes it whole or not at all, and checks it against a limit before use. A
//!   record that fails is a [`Violation`], which ends this connection and nothing else. No task
//!   waits in the carrier's thread, and each has a bounded turn.
//! - **G2** No message is received in part: the ingress sends a message on once all of it has come.
//! - **G3** A receiver that does not receive holds up its senders alone: a full real port fills its
//!   window in the connection, that fills the proxy port, and then `WhenFull` decides. Other ports of
//!   the connection go on.
//! - **G4** The messages of one sender to one port keep their order: each side takes one after
//!   another. Requests begin in that order, and are answered in any.
//! - **G5** A port of a connection ends when either process dies, when the offer is withdrawn, when the
//!   real port is closed, or when the last right on the proxy port is dropped and all messages sent
//!   before have gone over. In the last two cases requests that are with the server are answered
//!   first. Then the proxy port is a dead name. The connection ends with its last port.
//! - **G6** A client does not slow a channel's writer, unless the offer says so: the egress skips
//!   whole units that the client was too slow for, counts them, and sends the count before the
//!   next message.
//!
//! # Channels
//!
//! ```text
//!   offering process (domain B)                         following process (domain A)
//!   channel --> egress ==[ connection: ring back ]==> ingress --> channel of its own
//!   one more    for each                              its          (made in A, like the
//!   reader      client                                writer        offered one)
//! ```
//!
//! The connection is the same, and data flows the other way. The first record describes the
//! channel; after it each message comes as one extent, and the tag of its frame header counts the
//! units that were missed before it. An empty frame of the kind *dropped* says that the writer has
//! gone.
//!
//! # What it costs
//!
//! `Copied`: the bytes are copied twice, into the byte ring and out of it, in pieces of 64 KiB, so
//! that the two copies go on at the same time on two processors and a piece is still in the
//! cache when it is copied out. (A Unix socket copies twice as well, into memory that is
//! taken from the kernel and given back for every message, and in system calls.) While both
//! sides are awake there is no system call; a side that sleeps gets one wake.
//!
//! `Sealed`: memory that is sealed already is not copied: one packet with its descriptor, and in
//! the receiver three system calls to verify it and one to map it; pages are mapped as they are
//! read. The extents of a message are copied once, into memory that is then sealed.
//!
//! A message to a port whose receiver sleeps wakes three threads, one after another: the carriers
//! of both sides, and the receiver; inside a domain it wakes one. The connections of a membership
//! share a processor: two that copy at the same time go half as fast each.

mod carrier;
mod clients;
mod codec;
mod connect;
mod control_socket;
mod egress;
mod error;
mod flows;
mod follow;
mod ingress;
mod let_in;
mod memory;
mod offered;
mod offered_channel;
mod options;
mod port_egress;
mod port_ingress;
mod sharing;
mod side;
#[cfg(test)]
mod tests;
mod window;
mod wire;

pub use error::{ConnectToError, Violation, ViolationKind};
pub use follow::{Followed, Skipped};
pub use offered::OfferedPort;
pub use offered_channel::OfferedChannel;
pub use options::{ConnectOptions, OfferOptions};
