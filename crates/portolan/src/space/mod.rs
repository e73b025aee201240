//! This process's membership in a domain, and the memory that the members share.

pub(crate) mod descriptor;
mod disowned;
pub(crate) mod ending;
pub(crate) mod entry;
mod error;
pub(crate) mod extent;
pub(crate) mod guard;
mod member;
mod protection;
pub(crate) mod public;
pub(crate) mod record;
pub(crate) mod region;
pub(crate) mod tally;

pub(crate) use descriptor::Descriptor;
pub use disowned::Disowned;
pub(crate) use error::OVERFLOW_ID;
pub use error::{JoinError, LeaveError};
pub use extent::{AdoptError, AllocateError, Extent, OutOfPages, RawExtent};
pub(crate) use member::Member;
pub use protection::Protection;
