//! Members offer ports, channels and exports by name; visitors ask for them.
//!
//! | file | what it does |
//! |---|---|
//! | `permissions` | judge who may visit an offer |
//! | `offer` | keeps the offers of this process, and accepts visitors |
//! | `visit` | asks for an offer, from outside or inside |
//!
//! The host's side is `hosting::handoff`.

mod offer;
mod permissions;
#[cfg(test)]
// They set limits.
#[allow(unsafe_code)]
mod tests;
mod visit;

pub use offer::OfferError;
pub(crate) use offer::{Offer, OfferInbox, OfferKind, Offers, Visitor, delegate, offer};
pub use permissions::{AccessToken, GrantError, Permissions};
pub(crate) use permissions::{Verdict, judge, started};
pub use visit::VisitError;
#[cfg(test)]
pub(crate) use visit::visit_own;
pub(crate) use visit::{AcceptedVisit, Entrance, PendingVisit, visit};
