//! The node: one daemon a machine, which links its domains to those of other machines.
//!
//! This crate has a node's identity, its links, and the engine that carries messages over them.
//!
//! | module | holds |
//! |---|---|
//! | [`config`] | node.toml |
//! | [`directory`] | which members there are, and who has which name |
//! | [`state`] | the state directory: one user, whole files, keys that only their owner reads |
//! | [`authority`] | keys and certificates: made, signed, renewed |
//! | [`statements`] | what the authority has stated to all nodes: who is refused, which key follows which |
//! | [`token`] | the line that lets a newcomer in |
//! | [`invitations`] | tokens that were given out, each good once |
//! | [`join`] | what a newcomer and the node that lets it in say to one another |
//! | [`engine`] | what carries messages between this machine's domains and those of others |
//! | [`span_table`] | the domains in node.toml, as commands change them |
//! | [`audit`] | who was let in, refused, forgotten |
//! | [`lab`] | nodes on one machine, and a command beside each |
//! | [`rates`] | how many bytes a second peers are sent, and may send |
//! | [`output`] | lines for people, whose reader may have left |
//! | `sabotage` | rules of the protocol, switched off for an audit (feature `sabotage`) |
//! | [`up`] | a running node: its listener, its links, its control socket |
#![forbid(unsafe_code)]

pub mod audit;
pub mod authority;
pub mod config;
pub mod directory;
mod ending;
pub mod engine;
mod error;
pub mod invitations;
pub mod join;
pub mod lab;
pub mod output;
pub mod rates;
#[cfg(feature = "sabotage")]
pub mod sabotage;
pub mod span_table;
pub mod state;
pub mod statements;
pub mod token;
pub mod up;

pub use error::{NodeError, Result};
