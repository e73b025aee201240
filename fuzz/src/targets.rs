//! The targets, a file each.

mod arena;
mod bridge;
mod byte_ring;
mod calls;
mod channel;
mod export;
mod follow;
mod fragments;
mod frozen;
mod import;
mod join;
mod names;
mod records;
mod rendezvous;
mod topic;
mod words;

use crate::Target;

/// Every target, by the name of its file.
pub const TARGETS: &[(&str, Target)] = &[
    ("arena", arena::run),
    ("calls", calls::run),
    ("channel", channel::run),
    ("export", export::run),
    ("follow", follow::run),
    ("fragments", fragments::run),
    ("frozen", frozen::run),
    ("bridge", bridge::run),
    ("import", import::run),
    ("join", join::run),
    ("names", names::run),
    ("records", records::run),
    ("byte_ring", byte_ring::run),
    ("rendezvous", rendezvous::run),
    ("topic", topic::run),
    ("words", words::run),
];
