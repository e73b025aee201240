//! This crate builds data structures inside a message: the arena, the types that may lie in it, and
//! collections.
//!
//! A region has one address in every member of its domain, so a structure whose parts
//! all lie in a message's extents is valid wherever the message arrives. This crate
//! makes such structures; `portolan::structure` puts them into messages. The *arena* is the
//! allocator that hands out memory of the message's extents; the *root* is the value from which a
//! program reaches all others.
//!
//! | module | what |
//! |---|---|
//! | [`header`] | the head of an arena: where memory is handed out, who the root is |
//! | [`growth`] | how an arena asks its holder for more memory, in the middle of an insertion |
//! | [`handle`] | the allocator that collections hold, and [`Arena`], which programs hold |
//! | [`handover`] | [`Handover`]: what may lie in an arena; [`Root`]: what may be asked for |
//! | [`root`] | the three ways into an arena: build, read, edit |
//! | [`list`], [`text`], [`map`], [`tree`], [`boxed`] | the collections |
//!
//! # Invariants
//!
//! - **S1** Whatever lies in an arena points into that arena, or nowhere: no collection
//!   ever holds a pointer into a program's own data, whether new, cleared, shrunk or taken.
//! - **S2** Nothing that owns memory of an arena outlives the closure in which the arena
//!   is open: it carries the arena's lifetime, which no caller can name ([`root::edit`]).
//! - **S3** Through a shared reference nothing is allocated or freed, so many threads may
//!   read a structure at once.
//! - **S4** Running out of memory is an error that hands the value back, and leaves the
//!   collection as it was.
//! - **S5** A reference into an arena is made only after build and type were compared.
//!
//! No system calls, no shared words: this crate runs under Miri. Hand-written `unsafe` lies
//! in `header`, `handle`, `growth` (one trait), `root`, `handover` (the promises) and
//! `text` (one conversion); the collections are safe code.

pub mod boxed;
pub mod growth;
pub mod handle;
pub mod handover;
pub mod header;
pub mod list;
pub mod map;
pub mod root;
pub mod text;
pub mod tree;

pub use boxed::Boxed;
pub use growth::{Full, NoRoom};
pub use handle::Arena;
pub use handover::{Describe, Handover, Root};
pub use list::List;
pub use map::Map;
pub use text::Text;
pub use tree::Tree;
