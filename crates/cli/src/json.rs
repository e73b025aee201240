//! Prints JSON on standard output: every value has the version of this command at its top.

use portolan_measure::{Result, out};
use serde::Serialize;

/// A value, and the version of the command that says so.
#[derive(Serialize)]
pub(crate) struct Versioned<T> {
    version: &'static str,
    #[serde(flatten)]
    value: T,
}

impl<T: Serialize> Versioned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            value,
        }
    }
}

/// Prints an object, indented.
pub(crate) fn print<T: Serialize>(value: &T) -> Result<()> {
    out::print_json(&Versioned::new(value))
}
