//! This room holds this process's membership in a domain, and the memory that the members share.
//! It is the lowest room: every other one has a [`Member`], and this one names none of them.
//!
//! | file | what it has |
//! |---|---|
//! | `domain` | the handle of a membership |
//! | `refused` | what a call gives back, and why |
//! | `settings` | how a domain is to be: the builder |
//! | `member` | what all handles share |
//! | `part` | what higher rooms keep with a membership |
//! | `host_connection` | this process's tie to its host, and leaving |
//! | `host` | who hosts |
//! | `answer` | what a host's socket answers, and how much of it is believed |
//! | `handshake` | a request and its answer over a socket: the driver of the state machine |
//! | `entry` | the entry of a space: its process, its status |
//! | `region` | the region, mapped: the unsafe code |
//! | `extent` | memory of the region: taking it, giving it back |
//! | `guard` | closing and opening pages in a guarded domain |
//! | `descriptor` | descriptors that the program may have closed |
//! | `drain` | threads that outlive their handle |
//! | `counters`, `record`, `public` | what observers see: counts, events, what is shown |

pub(crate) mod answer;
pub(crate) mod counters;
pub(crate) mod descriptor;
mod disowned;
mod domain;
pub(crate) mod drain;
pub(crate) mod entry;
mod error;
pub(crate) mod extent;
pub(crate) mod guard;
pub(crate) mod handshake;
pub(crate) mod host;
pub(crate) mod host_connection;
mod member;
mod part;
mod protection;
pub(crate) mod public;
pub(crate) mod record;
mod refused;
pub(crate) mod region;
mod settings;

pub(crate) use descriptor::Descriptor;
pub use disowned::Disowned;
pub use domain::Domain;
pub(crate) use error::OVERFLOW_ID;
pub use error::{JoinError, LeaveError};
pub use extent::{AllocateError, Extent, RawExtent};
pub(crate) use member::Member;
pub(crate) use part::{Part, Parts};
pub use protection::Protection;
pub(crate) use protection::protection_of;
pub use refused::Refused;
pub use settings::Builder;
