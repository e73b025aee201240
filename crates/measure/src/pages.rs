//! Manual pages: what a command line's own description yields.

use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;

/// The page of one command.
///
/// # Errors
///
/// The system's.
pub fn page(command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone())
        .source(concat!("portolan ", env!("CARGO_PKG_VERSION")))
        .manual("Portolan")
        .render(&mut page)?;
    Ok(page)
}

/// The pages of a command and of all its subcommands, each in its file.
///
/// # Errors
///
/// The file that could not be written, and why.
pub fn write_all(command: &Command, directory: &Path) -> Result<(), (PathBuf, io::Error)> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let path = directory.join(format!("{name}.1"));
    let written = page(command).and_then(|page| std::fs::write(&path, page));
    written.map_err(|error| (path, error))?;
    command
        .get_subcommands()
        .try_for_each(|sub| write_all(sub, directory))
}
