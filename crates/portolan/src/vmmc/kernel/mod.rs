//! A kernel-mediated export shows ordinary memory, to the byte, into which the kernel copies.
//!
//! ```text
//! importer                                                exporter
//!   opens the exporter's memory, if the kernel lets it  <-- Granted: address, status page's address
//!   is the status page mapped there? so it is the exporter's
//!   count a call under way; still open? maps permit it? write or read; count it off
//!                                                         closing; nothing under way? closed
//! ```
//!
//! Importers of other users, those that the kernel does not let in, and those that cannot see
//! the exporter, in another process namespace, have the domain's host copy (`hosting/copy_broker`):
//!
//! ```text
//! importer                       host                                 exporter
//!   Granted: a capability  <-------------------------------------------- |
//!                                 | <-- delegation, its memory's files --- on the first such
//!   shows the capability -------->|
//!   puts bytes, requests -------->| within the delegation? maps permit it? write or read
//!                                 | <-- withdrawn; nothing is copied ----- closing, closed
//! ```
//!
//! # Invariants
//!
//! - **K1** A call writes the memory of the process that granted it, and of the program that this
//!   process ran then: the descriptor belongs to a memory, not to a process id, and the memory has
//!   the export's status page mapped. After exec or death the descriptor reaches nothing.
//! - **K2** When an export has ended, no call of an importer that keeps to the library is under
//!   way, and none begins. The importer counts, then loads the state; the exporter stores
//!   *closing*, then reads the counts; there is a full barrier in between on both sides.
//! - **K3** An importer can write only memory that the kernel lets it write anyway. The exporter
//!   gives its memory to the host, if the host is of the same user or root.
//! - **K4** When an export has ended, the host copies nothing of it and has forgotten its
//!   descriptors: this host, or its successor, has answered the withdrawal.

mod brokered;
mod direct;
mod lent;
mod memory;
mod range;

pub(super) use brokered::Brokered;
pub(super) use direct::{Direct, Failed, Ordinary, UnderWay, Unopened};
pub(super) use lent::{Lent, busy};
pub use memory::{Exportable, OrdinaryMemory};
