//! This crate defines the bytes that cross a process: layouts, limits and packed words of a
//! Portolan region.
//!
//! Everything here is plain data and arithmetic. The algorithms over these
//! words live in `portolan-shm`; what maps them into memory lives in `portolan`.
//!
//! | module | what it lays out |
//! |---|---|
//! | [`codec`] | how records and words are declared, written and read |
//! | [`limits`] | every bound, with a line for each user of it |
//! | [`region`] | where each table lies in a region's file |
//! | [`signal`] | the slots of signal FIFOs, and how ranges are found |
//! | [`slot`] | the state and meta words of a queue's slot |
//! | [`owner`] | owner words, allocation words and chunk words |
//! | [`port`] | a port's status word and the names of rights |
//! | [`thread`] | what a thread waits for |
//! | [`space`] | a space's status word and the host word |
//! | [`trace`] | the switch of a trace, and the words of an event |
//! | [`channel`] | a channel's memory: stamps, metas, readers |
//! | [`bridge`] | the memory and the records of a connection between two domains |
//! | [`beside`] | what stands for a payload that goes beside a ring |
//! | [`rpc`] | the packets of calls and answers |
//! | [`sum`] | the checksum of units and packets |
//! | [`handshake`] | the form of a request and its answer, which opens a connection |
//! | [`hello`] | what a newcomer and the host say to one another |
//! | [`control`] | what a member and its host say to one another |
//! | [`connect`] | what a client from outside and the host say to one another |
//! | [`denied`] | why a client is not let in |
//! | [`node`] | what two nodes send to one another |
//! | [`vmmc`] | what importers and exporters say to one another, and the pages they share |
//! | [`preface`] | what a transport between nodes says first on a connection |
//! | [`join`] | what a newcomer and the node that lets it in say to one another |
//! | [`delegate`] | the records between exporter, host and importer where the host copies |
//!
//! ```
//! use portolan_abi::slot::{SlotState, Phase};
//! let free = SlotState::free(7);
//! assert_eq!((free.phase(), free.position()), (Phase::Free, 7));
//! ```
#![forbid(unsafe_code)]

pub mod beside;
pub mod bridge;
pub mod channel;
pub mod codec;
pub mod connect;
pub mod control;
pub mod delegate;
pub mod denied;
pub mod handshake;
pub mod hello;
pub mod join;
pub mod limits;
pub mod name;
pub mod node;
pub mod owner;
pub mod port;
pub mod preface;
pub mod public;
pub mod region;
pub mod rpc;
pub mod signal;
pub mod slot;
pub mod space;
pub mod sum;
pub mod thread;
pub mod trace;
pub mod vmmc;

/// The format of a region. A member that speaks another one is refused at the door.
pub const FORMAT_VERSION: u32 = 6;
