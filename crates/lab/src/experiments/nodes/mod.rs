//! The first half of the paper on distributed IPC: messages between nodes, by this library and by
//! systems of the past, which are modes of one engine over one transport ([`crate::nodes`]).
//!
//! | file | holds |
//! |---|---|
//! | `rpc` | Table 1: null requests, local and remote |
//! | `senders` | Figure 8's cause: what is said because a port wants to know its senders |
//! | `throughput`, `figure3` | Figure 3: bandwidth by size, by mode and link; its tables, plots and verdicts |
//! | `concurrency` | what goes on at the same time, with up to 56 nodes |
//! | `flow` | a thousand senders to one port |

pub(crate) mod concurrency;
mod figure3;
pub(crate) mod flow;
pub(crate) mod rpc;
mod senders;
pub(crate) mod throughput;

/// What is said of all rows.
const LINKS: &str = "Links are TCP over this machine's loopback: plain, or shaped, that is with the \
    paper's rate, a delay of 100 µs and 10 µs for each piece of 64 KiB at either end. The paper does \
    not state delays. Nothing else is slowed down. No row is of a real network, and none is simulated.";
