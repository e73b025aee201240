//! What members offer by name to visitors, and asking for it.
//!
//! | file | what it does |
//! |---|---|
//! | `permissions` | who may visit what a member offers |
//! | `offer` | what this process offers to visitors |
//! | `visit` | asking for what is offered, from outside or inside |
//!
//! The host's side is `hosting::introduce`.

mod offer;
mod permissions;
#[cfg(test)]
mod tests;
mod visit;

pub use offer::OfferError;
pub(crate) use offer::{Desk, Offer, OfferKind, Offers, Visitor, delegate, offer};
pub use permissions::{AccessToken, GrantError, Permissions};
pub(crate) use permissions::{Verdict, judge, started};
pub use visit::VisitError;
#[cfg(test)]
pub(crate) use visit::visit_own;
pub(crate) use visit::{Entrance, Introduction, PendingVisit, visit};
