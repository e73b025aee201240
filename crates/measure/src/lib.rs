//! This crate holds what the programs `portolan`, `portolan-node` and `portolan-lab` share. With the
//! feature `bench` that is all of the table but `pages`, which has a feature of its own; without both,
//! `child`, `error`, `out` and `words`.
//!
//! | module | holds |
//! |---|---|
//! | [`case`] | what a row measures and how it is named |
//! | `systems` | the mechanisms, each an endpoint; chosen by [`case::System`] |
//! | [`run`] | one row's processes and its slices of work |
//! | [`harness`] | turns between rows and the limit, ratios |
//! | [`payload`] | what is done to the bytes of a message |
//! | [`sampler`] | percentiles |
//! | [`stepped`] | instructions and system calls, counted by stepping through a process |
//! | [`instructions`] | of one operation at a time, scene by scene |
//! | [`child`] | further processes of one run, their briefs, their ends |
//! | [`cpus`] | which processor each process runs on |
//! | [`machine`] | what a run was measured on |
//! | [`out`] | text that survives a reader who leaves, tables, sizes |
//! | [`words`] | the command line |
//! | `pages` | manual pages |
//! | [`error`] | why a run failed |
//!
//! Which rows there are, what they must reach and how they are printed is each
//! program's own. A program that uses this crate runs itself again for its further
//! processes, so it must answer the argument [`child::ARGUMENT`] with
//! [`child::main`].

#![forbid(unsafe_code)]

#[cfg(feature = "bench")]
pub mod case;
pub mod child;
#[cfg(feature = "bench")]
pub mod cpus;
pub mod error;
#[cfg(feature = "bench")]
pub mod harness;
#[cfg(feature = "bench")]
pub mod instructions;
#[cfg(feature = "bench")]
pub mod machine;
pub mod out;
#[cfg(feature = "pages")]
pub mod pages;
#[cfg(feature = "bench")]
pub mod payload;
#[cfg(feature = "bench")]
pub mod run;
#[cfg(feature = "bench")]
pub mod sampler;
#[cfg(feature = "bench")]
pub mod stepped;
#[cfg(feature = "bench")]
mod systems;
pub mod words;

pub use error::{MeasureError, Result};
#[cfg(feature = "bench")]
pub use systems::{domain_of, extents, processor_time};
