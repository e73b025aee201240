//! Provides TCP sockets that never block: byte streams between machines, sent from and received
//! into many ranges of memory by one system call.
//!
//! | file | holds |
//! |---|---|
//! | `range` | [`Source`] and [`Destination`]: checked ranges of memory |
//! | `tcp` | sockets: listen, connect, accept, send, receive |
//! | `readiness` | one descriptor for the readiness of several sockets |

mod range;
mod readiness;
mod tcp;

pub use range::{BadRange, Destination, Source, skip_destinations, skip_sources};
pub use readiness::{Interest, Readiness};
pub use tcp::{
    MOST_RANGES, NOT_SENT_LOW_WATER, SOCKET_BUFFER, accept, bound_to, connect, connected, finish,
    listen, receive, remote, send,
};
