//! Lines on standard error and output, which may be closed, or full: their reader has left, or the disk of
//! the log is full. That ends no node.

use std::io::{Write as _, stderr, stdout};

/// Writes a line on standard error, if it can be written.
pub fn tell(line: &str) {
    let _ = writeln!(stderr().lock(), "{line}");
}

/// Writes a line on standard output, if it can be written.
pub(crate) fn print(line: &str) {
    let _ = writeln!(stdout().lock(), "{line}");
}
