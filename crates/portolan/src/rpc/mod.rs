//! A service is a trait that one process implements and other processes call.
//!
//! ```
//! use portolan::rpc::{self, CallError, Schema};
//! use portolan::{Deadline, Domain};
//! use serde::{Deserialize, Serialize};
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! #[portolan::service]
//! pub trait Account {
//!     /// What there is afterwards.
//!     fn withdraw(&self, amount: u64) -> Result<u64, Refused>;
//!     #[rpc(one_way)]
//!     fn note(&self, text: &str);
//! }
//!
//! #[derive(Debug, PartialEq, Schema, Serialize, Deserialize)]
//! pub enum Refused {
//!     TooLittle { there: u64 },
//! }
//!
//! struct Purse(AtomicU64);
//! impl Account for Purse {
//!     fn withdraw(&self, amount: u64) -> Result<u64, Refused> {
//!         let there = self.0.load(Ordering::Relaxed);
//!         let rest = there.checked_sub(amount).ok_or(Refused::TooLittle { there })?;
//!         self.0.store(rest, Ordering::Relaxed);
//!         Ok(rest)
//!     }
//!     fn note(&self, _text: &str) {}
//! }
//!
//! let domain = Domain::private()?; // Domain::join("name")? among processes
//! let purse = AccountService(Purse(AtomicU64::new(100)));
//! let _server = rpc::serve(&domain, "purse", purse, &Default::default())?;
//!
//! let client = AccountClient::connect(&domain, "purse", Deadline::NEVER)?;
//! client.note("for the flight")?;
//! assert_eq!(client.withdraw(30), Ok(70));
//! let refused = CallError::Method(Refused::TooLittle { there: 70 });
//! assert_eq!(client.withdraw(90), Err(refused));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What becomes of a call
//!
//! A connection is two message-consistent channels, which lose what their reader is too slow
//! for; on them stands a whole transport (`portolan-proto`). So a call ends in its
//! result or an error, and its method runs at most once. [`RpcError`] says what happened,
//! and whether it may have run.
//!
//! | | |
//! |---|---|
//! | per method | `#[rpc(one_way)]`, `#[rpc(best_effort)]`, `#[rpc(no_checksum)]` |
//! | one way | it returns when it is under way; [`Stub::flush`] waits until all have arrived, and so does the drop of the last stub |
//! | time | each call has a deadline ([`ClientOptions::limit`], `client.within(..)`), which the method can ask for ([`Context`]) |
//! | async | `client.method_async(..)` is awaited ([`Awaited`]), under any runtime or none |
//! | giving up | `client.begin_method(..)` returns a [`Pending`]; dropped, it is cancelled; so is a future |
//! | large data | [`Loan`]: plain data, filled and read in place; [`Large`]: an extent; both move |
//! | threads | [`Concurrency`]: one a client, one a call, a pool; too many calls are refused |
//! | tasks | [`ServerOptions::tasks`]: each call is one, of any runtime; methods may be `async` |
//! | many clients | those that call seldom may share channels ([`ClientOptions::sharing`]) |
//! | versions | a method is called by the hash of its name and its types ([`Schema`]); others give [`RpcError::OtherVersion`] or [`RpcError::UnknownMethod`] |
//! | a server that moves | [`Server::move_to`], [`take_over`]: its clients notice nothing |
//! | deaths | [`RpcError::ServerDied`] at once, by the channel and the server's port |
//!
//! The client makes both channels and presents them at the server's port, or over a channel
//! with a well-known name ([`ClientOptions::over_channel`]). Arguments and
//! results are written by `serde` in the `postcard` format, but for lists of bytes, which are
//! copied in one go (those inside other types by `serde_bytes`, if need be); extents go
//! through a port.

mod awaited;
#[doc(hidden)]
pub mod carried;
mod client;
mod client_end;
mod connect;
mod connection;
mod door;
mod error;
mod handoff_lock;
mod hello;
mod link;
mod loan;
mod method;
mod moving;
mod parcel;
mod room;
mod serve;
mod shared_channels;
mod sharing;
mod task;
mod work;

#[doc(hidden)]
pub use crate::schema::{Bulk, Pack, Unpack};
pub use crate::schema::{Hash, Schema};
pub use awaited::Awaited;
pub use client::{Pending, Stub};
pub use connect::ClientOptions;
pub use error::{CallError, ClientError, RpcError, ServeError};
pub use loan::Loan;
pub use method::{Dispatch, Method, NotDispatched, Service};
pub use moving::take_over;
pub use parcel::Large;
pub use portolan_derive::Schema;
pub use portolan_proto::{ClientCounts, Closed, Misbehaved, ServerCounts};
pub use serve::{Concurrency, Server, ServerOptions, serve};
pub use task::{MethodFuture, OwnedCall, Task, wait_for};
pub use work::Context;
