//! Provides sequenced-packet Unix sockets: messages with descriptors, between known users.
//!
//! A socket keeps message boundaries, hands over descriptors and names the process at
//! the other end. Nothing here blocks in the kernel beyond a deadline: sockets are
//! driven without blocking, and waiting is a poll.

mod address;
mod connect;
mod error;
mod message;
mod names;
mod peer;

pub use address::Address;
pub use connect::{accept, accept_by, connect, connect_by, listen, reserve, try_accept, unbound};
pub use error::SocketError;
pub use message::{
    MAX_DESCRIPTORS, Received, close_entrance, pair, receive, receive_by, send, send_by,
    try_receive,
};
pub use names::{abstract_names, bound_paths};
pub use peer::{
    Holder, Occupant, Peer, accept_descriptors, holder, occupant, peer, refuse_descriptors,
};
pub(crate) use peer::{credentials, option};
