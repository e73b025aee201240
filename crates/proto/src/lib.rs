//! This crate is the transport of calls: over a channel that loses packets it makes calls that end
//! in their result or an error, and never run twice.
//!
//! Everything here is state and arithmetic. Time is handed in ([`Time`]), packets go through
//! a [`PacketPath`] that the caller provides, and nothing is random, so a whole world of clients,
//! servers and faults runs in a test from one seed.
//!
//! ```text
//!   Client                                 Server
//!   call ----- Call n ------------------->  take, in order
//!              ...                          (runs)
//!   take <---- Answer n ------------------  answer
//!
//!   nothing came in a period:
//!        ----- Ask n -------------------->
//!        <---- Missing n | Arrived | Answer n
//!        ----- Call n ------------------->
//! ```
//!
//! Beside it, [`node`] is the protocol of two machines, in the same way and with nothing in common.
//!
//! # Invariants
//!
//! - **T1** A number is given to one call of one *term* (a session and an incarnation of the
//!   server). A packet of another term, of another position, or damaged, fails its checksum.
//! - **T2** The server hands a number out at most once: numbers below `next` are never handed
//!   out again, and `next` only grows. Numbers are handed out in order.
//! - **T3** An answer is kept until its number's place (number mod [`WINDOW`]) is used by a
//!   later call, or the client says *done*. The client uses a place again only when the call
//!   in it has ended.
//! - **T4** Each side asks for what it misses; nothing is sent again unasked. The client
//!   asks after a period without an answer, and waits longer once it knows that the call has
//!   arrived. Neither asks for a number that no call has been given. While no call is open the
//!   client asks nothing and has no timeout.
//! - **T5** Whatever a peer sends, a machine answers with packets of bounded number and keeps
//!   bounded memory; what no honest peer sends closes the connection ([`Misbehaved`]).
//! - **T6** A term ends only when a server with a higher incarnation presents itself. Calls
//!   that are open then end as [`Outcome::ServerDied`]: they may have run. This crate does not
//!   find out that a server is dead. The library's end of the connection does, and calls
//!   [`Client::server_died`], which ends the open calls in the same way.
//!
//! Most calls go in *straight lines* ([`Client::call_straight`], [`Client::poll_for`],
//! [`Server::poll_call`]). A straight line makes all checks before it changes anything, and leaves
//! whatever is out of the ordinary to the general way: [`Client::call`], and `poll` with `take`.
//!
//! The scheme is Cheriton and Kutter's (*Optimized Memory-Based Messaging*, section 3): the
//! position that seeds the checksum, the timer that reviews open calls apart from the calls
//! themselves, the transport under local calls too.
//!
//! ```
//! use portolan_proto::{Call, Client, Outcome, Pipe, Server, Settings, Status, Time};
//!
//! let (mut at_client, mut at_server) = Pipe::pair();
//! let settings = Settings::default();
//! let mut client = Client::new(settings, 7);
//! let mut server = Server::new(settings, 7, 1);
//! let now = Time::ZERO;
//!
//! let mut arguments = b"ping".to_vec();
//! client.greet(&mut at_client);
//! let id = client.call(now, &mut at_client, Call::new(0xfeed), &mut arguments)?;
//! while server.poll(now, &mut at_server)? {}   // the greeting
//! while client.poll(now, &mut at_client)? {}   // the call goes out
//! while server.poll(now, &mut at_server)? {}
//!
//! let mut body = Vec::new();
//! let incoming = server.take(now, &mut body).ok_or("nothing came")?;
//! assert_eq!((incoming.method, &body[..]), (0xfeed, &b"ping"[..]));
//! body.reverse();
//! server.answer(&mut at_server, incoming.number, Status::Returned, &mut body)?;
//!
//! while client.poll(now, &mut at_client)? {}
//! let outcome = client.take(id, &mut body);
//! assert_eq!(outcome, Some(Outcome::Answered(Status::Returned)));
//! assert_eq!((&body[..], client.next_timeout()), (&b"gnip"[..], None));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod assembly;
mod call;
mod client;
mod end;
mod entry;
mod error;
mod frozen;
pub mod handshake;
pub mod node;
mod packet;
mod packet_path;
mod server;
mod time;

pub use call::{Call, CallId, ClientCounts, Outcome};
pub use client::Client;
pub use entry::{Incoming, Looked};
pub use error::{Closed, Misbehaved, NotCalled, NotFrozen, Stale};
pub use packet::{Damaged, Seal, Unsealed, open, seal, summed};
pub use packet_path::{Arrived, PacketPath, Pipe};
pub use portolan_abi::rpc::{Flags, Header, Kind, Status, WINDOW};
pub use server::{Server, ServerCounts};
pub use time::Time;

use core::time::Duration;

/// What both ends of a connection agree on.
///
/// ```
/// use portolan_proto::Settings;
/// let settings = Settings { packet: 4096, ..Settings::default() };
/// assert!(settings.longest > settings.packet);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of a packet at most; at least [`Settings::LEAST_PACKET`]. Longer calls and
    /// answers travel in pieces.
    pub packet: usize,
    /// Pieces that are sent unasked, or for one request, at most 64: what the link can take
    /// in one go.
    pub burst: u32,
    /// Bytes of a call's arguments, or of an answer, at most.
    pub longest: usize,
    /// How long a client waits for an answer before it asks.
    pub period: Duration,
    /// How long it waits at most between two questions about a call that has arrived.
    pub patience: Duration,
    /// Damaged packets in a row after which a peer is not believed to be honest. More than the
    /// link holds: when the server changes, all that was under way looks damaged.
    pub most_damaged: u32,
}

impl Settings {
    /// Bytes of a packet at least: a unit of a channel that is one line of cache.
    pub const LEAST_PACKET: usize = 48;

    /// Bytes that a packet of one piece carries.
    #[inline]
    fn whole(&self) -> usize {
        self.packet.max(Self::LEAST_PACKET) - portolan_abi::rpc::HEADER_BYTES
    }

    /// Bytes that a piece of a longer message carries, a multiple of eight.
    fn piece(&self) -> usize {
        (self.whole() - portolan_abi::rpc::PIECE_BYTES) & !7
    }

    #[inline]
    fn burst(&self) -> u32 {
        self.burst.clamp(1, portolan_abi::rpc::MAX_ASKED)
    }

    /// Offsets within a message have 32 bits.
    #[inline]
    fn longest(&self) -> usize {
        self.longest.min(u32::MAX as usize)
    }
}

impl Default for Settings {
    /// Packets of one line; messages up to a MiB; a question after 10 ms, then every second.
    fn default() -> Self {
        Self {
            packet: Self::LEAST_PACKET,
            burst: 32,
            longest: 1 << 20,
            period: Duration::from_millis(10),
            patience: Duration::from_secs(1),
            most_damaged: 1 << 16,
        }
    }
}
