//! Ports receive messages: one space receives at a port, and any number of spaces send to it.
//!
//! A port is bound to one space. What a program holds is a right: the
//! [`ReceiveRight`] of the space that it is bound to, and any number of
//! [`SendRight`]s and [`SendOnceRight`]s anywhere in the domain. Rights travel in
//! messages.

mod bind;
pub(crate) mod close;
mod elsewhere;
pub(crate) mod entry;
mod flush;
pub(crate) mod kept;
mod lent;
pub(crate) mod message;
mod names;
mod prepare;
mod receive;
mod request;
mod rights;
mod room;
pub(crate) mod sealed;
pub(crate) mod segment;
mod send;
mod senders;
mod shared;
pub(crate) mod shared_entries;
pub(crate) mod shared_extent;
#[cfg(feature = "tokio")]
mod tokio;
pub(crate) mod unreachable;
pub(crate) mod watches;
pub(crate) mod wire;

pub use bind::{BindError, PortOptions};
pub use names::ConnectError;
pub(crate) use receive::Bell;
pub use receive::{Access, ReceiveError, ReceiveRight, Straight};
pub use request::{PendingReply, Request, RequestError};
pub use rights::{Right, RightState, SendOnceRight, SendRight};
pub use room::Room;
pub use send::{Given, SendError, Unfinished, WhenFull};
pub use shared::SharedReceiver;

use crate::space::extent::Relief;

pub(crate) use bind::bind as bind_port;
pub(crate) use elsewhere::{check_node, may_travel, node_of};
pub(crate) use message::{from_monotonic_nanos, monotonic_nanos};
pub(crate) use names::connect as connect_port;
pub(crate) use names::{
    changes as name_changes, look as look_for_port, shown as shown_names, taken as taken_name,
    wake_waiters,
};
pub(crate) use prepare::may_leave;
pub(crate) use request::answer_for_dead;
pub(crate) use rights::check_senders;
pub(crate) use send::{wake, wake_senders};
pub(crate) use senders::{is_unused, settle_doubts};

/// What ports give back for want of memory.
pub(crate) const RELIEF: Relief = Relief {
    empty_spare: entry::empty_spare,
    close_unreachable: unreachable::close,
};
