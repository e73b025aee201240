//! This crate holds the steps that two programs take in turn over one structure.
//!
//! This crate is optimised where everything else in a test build is not; the test compiles
//! `steps.rs` once more, as a module of its own. So the two programs share the source, and
//! neither code nor addresses.

pub mod steps;
