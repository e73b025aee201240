//! This crate holds lock-free structures over memory that the caller placed.
//!
//! No system calls and no clocks: what must sleep or wake says so in its return
//! value. The same code runs over a shared mapping, under loom and under Miri.
//!
//! | module | structure |
//! |---|---|
//! | [`queue`] | a port's queue: many senders, one space receiving |
//! | [`names`] | names of ports: who gets one |
//! | [`queue_memory`] | which port's queue lies where, and what has memory |
//! | [`ports`] | which entries of ports are in use, and which comes next |
//! | [`owner`] | owner rows and allocation words of extents |
//! | [`chunk`] | the chunks that extents are cut from |
//! | [`rights`] | each space's counts of rights |
//! | [`lent`] | which ports that a node has lent have closed, or want to know their senders |
//! | [`signal`] | address-valued signals: ranges, handlers, FIFOs |
//! | [`watch`] | who wants to be told when a port has died |
//! | [`space`] | the status of a member: who takes a free entry, who frees it |
//! | [`wait_set`] | ready bits of many ports, summarised upwards |
//! | [`trace`] | each space's ring of events |
//! | [`channel`] | streams: one writer, many readers, with or without flow control |
//! | [`byte_ring`] | a stream of bytes between two that do not trust each other |
//! | [`bulk`] | copies between private bytes and shared words |
//! | [`region`] | the tables of a region as references |
//!
//! Every word here is shared with processes that may die at any instruction.
//! Each module names its invariants and the step at which an operation becomes
//! irrevocable (its *commit point*).

pub mod atomic;
pub mod bulk;
pub mod byte_ring;
pub mod channel;
pub mod chunk;
pub mod lent;
pub mod mark;
pub mod names;
pub mod owner;
pub mod ports;
pub mod queue;
pub mod queue_memory;
pub mod region;
pub mod rights;
pub mod signal;
pub mod space;
pub mod trace;
pub mod wait_set;
pub mod watch;
