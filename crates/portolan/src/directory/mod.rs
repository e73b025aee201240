//! Members offer ports, channels and exports by name; visitors ask for them.
//!
//! | file | what it does |
//! |---|---|
//! | `permissions` | judge who may visit an offer |
//! | `offer` | keeps the offers of this process, and accepts visitors |
//! | `error` | why not, of both sides |
//! | `visit` | asks for an offer, from outside or inside |
//!
//! The host's side is `hosting::handoff`.

mod error;
mod offer;
mod permissions;
#[cfg(test)]
// They set limits.
#[allow(unsafe_code)]
mod tests;
mod visit;

pub use error::{OfferError, VisitError};
pub(crate) use offer::{Offer, OfferInbox, OfferKind, Offers, Visitor, delegate, offer};
pub use permissions::{AccessToken, Permissions};
pub(crate) use permissions::{Verdict, judge, started};
#[cfg(test)]
pub(crate) use visit::visit_own;
pub(crate) use visit::{AcceptedVisit, Entrance, PendingVisit, visit};
