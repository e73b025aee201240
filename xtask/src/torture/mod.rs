//! The torture run has processes do everything at once and kills them everywhere; an auditor that
//! shares no code with the library's recovery says whether anything was lost.
//!
//! | file | what it does |
//! |---|---|
//! | `coordinator` | spawns, and counts; `disturb`: kills and stops; `stops`: whether all others go on beside the stopped; `quiet`: all hold still, and the audit |
//! | `last_acts` | what some do last in such a moment, to die in the midst of it |
//! | `kills` | which mark is to be died or stopped at next, and by whom |
//! | `worker` | one process's random mix of operations; `dying`: what it does last; `memory`: on extents; `messages`: on ports; `sharing`: on segments and signals; `bells`: signals that interrupt; `channels`, `freight` (beside them), `flows` (streams of bytes), `frames` and `topics`: on those; `calls`, `awaited`; `exports`, `ordinary`: memory shown to others, and what `notes` tell of it; `bridges` and `connections`: what goes to other domains |
//! | `payload` | what stands in every extent, so that a page with two owners shows |
//! | `stream`, `flow`, `picture` | what stands in every message of a channel, in a stream and in a frame buffer, so that what is torn, lost or doubled shows |
//! | `nodes` | the run of several nodes, with an audit of its own |
//! | `board` | memory outside the region: orders, and the workers' journals |
//! | [`crate::audit`] | the auditor |

pub(crate) mod board;
mod coordinator;
mod flow;
mod kills;
mod last_acts;
pub(crate) mod nodes;
mod payload;
mod picture;
mod random;
mod stream;
pub(crate) mod worker;

pub(crate) use coordinator::{LONGER, Plan, Report, run};

/// Bytes of addresses of each part of a run's domain.
pub(crate) const SIZE: u64 = 64 << 20;
/// Bytes of memory that the domain may have: little, so that it runs out now and then.
pub(crate) const MEMORY_LIMIT: u64 = 64 << 20;

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Doing {
    Starting = 0,
    Joining,
    Leaving,
    Allocating,
    Freeing,
    Sending,
    Receiving,
    /// Sleeping for a message; only that ends it.
    Waiting,
    Forwarding,
    Requesting,
    Serving,
    Binding,
    Closing,
    Connecting,
    Pausing,
    Sharing,
    /// At channels.
    Streaming,
    /// Sleeping for what comes in a channel; only that ends it.
    Listening,
    /// Publishing, or subscribed.
    Publishing,
    /// Calling, or serving, a service.
    Calling,
    /// Exporting memory, or writing to what others export.
    Exporting,
    /// Ending an export of ordinary memory.
    Unexporting,
    /// At bridges between domains, its own or others'.
    Bridging,
    /// Waiting for what others say that they have sent over a bridge.
    Expecting,
}

impl Doing {
    const ALL: [Self; 24] = [
        Self::Starting,
        Self::Joining,
        Self::Leaving,
        Self::Allocating,
        Self::Freeing,
        Self::Sending,
        Self::Receiving,
        Self::Waiting,
        Self::Forwarding,
        Self::Requesting,
        Self::Serving,
        Self::Binding,
        Self::Closing,
        Self::Connecting,
        Self::Pausing,
        Self::Sharing,
        Self::Streaming,
        Self::Listening,
        Self::Publishing,
        Self::Calling,
        Self::Exporting,
        Self::Unexporting,
        Self::Bridging,
        Self::Expecting,
    ];

    /// Whether it sleeps until something comes, however long.
    pub(crate) fn is_asleep(self) -> bool {
        matches!(self, Self::Waiting | Self::Listening)
    }

    pub(crate) fn of(word: u64) -> Self {
        Self::ALL
            .into_iter()
            .find(|d| *d as u64 == word)
            .unwrap_or(Self::Starting)
    }
}
