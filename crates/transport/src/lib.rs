//! Bytes between nodes: one trait, and what implements it.
//!
//! A [`Transport`] makes [`Connection`]s to other machines. A connection has *streams* of reliable,
//! ordered bytes, each of the class [`Records`](Class::Records) or [`Bulk`](Class::Bulk), and
//! datagrams that may be lost. No call blocks. What a connection needs of its caller is one
//! descriptor to wait at, and one time.
//!
//! ```text
//!  node ── open, send, receive, datagram ──> Connection
//!            parts: &[Source]   into: &[Destination]     ranges of memory: no byte is copied in
//!            descriptor() readable, or wake_at() come    user mode where the kernel moves it
//!              => progress()
//! ```
//!
//! | implementation | what it is | streams | datagrams | peer is known |
//! |---|---|---|---|---|
//! | [`Memory`] | queues in this process | several of each class | yes | no |
//! | [`Tcp`] | two TCP connections a link: one for records, one for bulk | one of each class | no | no |
//! | [`Tcp`] with [`tls`] (feature `tls`) | the same with TLS 1.3 and certificates of a cluster | one of each class | no | by its key |
//! | [`Shaped`] | a delay, a rate, a window, gaps, stalls, cuts and losses around any other | the other's | the other's | as the other |
//!
//! Over a transport without datagrams its user puts them into the records, and drops them where
//! those have no room.
//!
//! # What every implementation promises
//!
//! `tests/conformance` holds each of them to these.
//!
//! - **T1** No call waits for a peer, for room or for time.
//! - **T2** The bytes of a stream arrive in order, each once, or not any more: what a receiver gets
//!   is a prefix of what was sent.
//! - **T3** A send that returns [`Blocked`](Progress::Blocked) took nothing. Once there is room
//!   again, the descriptor is readable, or `wake_at` comes.
//! - **T4** While a stream that was opened has bytes to receive, or an end that has not been
//!   received, the descriptor is readable, or `wake_at` comes.
//! - **T5** [`Ended`](Progress::Ended) comes after all bytes of a peer that has closed. Where the
//!   limits say that ends are authentic, it comes in no other case.
//! - **T6** A failure of one stream fails the connection, each further call says the same failure,
//!   and a quiet connection that has failed and has said so does not keep the descriptor readable.
//! - **T7** What a peer, or a stranger, sends costs bounded memory, and a bounded time of half-open
//!   connections; it panics nothing, and harms no other connection.
//!
//! # Example
//!
//! ```
//! use portolan_transport::{Address, Class, Destination, Memory, Progress, Source, Transport};
//!
//! let transport = Memory::default();
//! let mut listener = transport.listen(&Address::named("hall"))?;
//! let mut client = transport.connect(&Address::named("hall"))?;
//! let mut server = listener.accept()?.expect("a client waits");
//!
//! let records = client.open(Class::Records)?;
//! let sent = client.send(records, &[Source::from(b"hello".as_slice())]);
//! assert_eq!(sent, Progress::Moved(5));
//!
//! let records = server.open(Class::Records)?;
//! let mut bytes = [0; 8];
//! let got = server.receive(records, &[Destination::from(&mut bytes[..])]);
//! assert_eq!((got, &bytes[..5]), (Progress::Moved(5), b"hello".as_slice()));
//! # Ok::<(), portolan_transport::TransportError>(())
//! ```
#![forbid(unsafe_code)]

mod address;
pub mod clock;
mod connection;
mod error;
mod memory;
mod shaped;
mod tcp;
#[cfg(feature = "tls")]
pub mod tls;

pub use address::Address;
pub use connection::{
    Class, Connection, Limits, Listener, Peer, Progress, State, StreamId, Transport,
};
pub use error::{Blame, Moment, TransportError};
pub use memory::{Memory, MemoryOptions};
pub use portolan_abi::node::{NodeId, NodeIdError};
pub use portolan_sys::stream::{
    BadRange, Destination, MOST_RANGES, Source, skip_destinations, skip_sources,
};
pub use shaped::{Faults, Shape, Shaped};
pub use tcp::{HANDSHAKE_WITHIN, MOST_HALF_OPEN, MOST_HALF_OPEN_EACH, Tcp};
