//! This process's membership in a domain, and the memory that the members share.

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
pub(crate) mod host;
pub(crate) mod host_connection;
mod member;
mod part;
mod protection;
pub(crate) mod public;
pub(crate) mod record;
pub(crate) mod region;
mod settings;

pub(crate) use descriptor::Descriptor;
pub use disowned::Disowned;
pub use domain::Domain;
pub(crate) use error::OVERFLOW_ID;
pub use error::{JoinError, LeaveError};
pub use extent::{AdoptError, AllocateError, Extent, OutOfPages, RawExtent};
pub(crate) use member::Member;
pub(crate) use part::{Part, Parts};
pub use protection::Protection;
pub(crate) use protection::protection_of;
pub use settings::Builder;
