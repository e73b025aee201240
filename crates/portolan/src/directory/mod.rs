//! Members offer ports, channels and exports by name; clients of any process connect to them.
//!
//! | file | what it does |
//! |---|---|
//! | `permissions` | judges which processes may connect to an offer |
//! | `offer` | keeps the offers of this process, and accepts clients |
//! | `connect` | connects to an offer, from outside the domain or inside |
//! | `exporter` | names members that make offers |
//! | `error` | why something is not offered, or not connected to |
//!
//! The host's side is `hosting::handoff`.

mod connect;
mod error;
mod exporter;
mod offer;
mod permissions;
#[cfg(test)]
// They set limits.
#[allow(unsafe_code)]
mod tests;

#[cfg(test)]
pub(crate) use connect::connect_own;
pub(crate) use connect::{AcceptedConnection, Entrance, PendingConnection, connect};
pub use error::{OfferConnectError, OfferError};
pub use exporter::Exporter;
pub(crate) use offer::{Client, Offer, OfferInbox, OfferKind, Offers, delegate, maker, offer};
pub use permissions::{AccessToken, Permissions};
pub(crate) use permissions::{Verdict, judge, started};
