//! `portolan node man` prints what the command line's own description yields.

use std::io::Write as _;
use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use portolan_node::{NodeError, Result};

use crate::args::{Args, ManArgs};

pub(crate) fn man(args: &ManArgs) -> Result<()> {
    // The help command has no page: each page is help.
    let mut command = Args::command().disable_help_subcommand(true);
    // Names subcommands in full: `portolan-node-up`.
    command.build();
    if let Some(directory) = &args.output {
        return write_all(&command, directory);
    }
    let chosen = match &args.of {
        None => &command,
        Some(name) => command
            .find_subcommand(name)
            .ok_or_else(|| NodeError::Wrong {
                what: format!(
                    "there is no command `portolan node {name}`: `portolan node --help` lists them"
                ),
            })?,
    };
    let printed = page(chosen).and_then(|page| std::io::stdout().write_all(&page));
    printed.map_err(|source| NodeError::File {
        doing: "writing the page to",
        path: "standard output".into(),
        source,
    })
}

fn page(command: &Command) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone())
        .source(concat!("portolan ", env!("CARGO_PKG_VERSION")))
        .manual("Portolan")
        .render(&mut page)?;
    Ok(page)
}

/// The page of the whole command and those of its subcommands, each in its file.
fn write_all(command: &Command, directory: &Path) -> Result<()> {
    for command in std::iter::once(command).chain(command.get_subcommands()) {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let path = directory.join(format!("{name}.1"));
        let written = page(command).and_then(|page| std::fs::write(&path, page));
        written.map_err(|source| NodeError::File {
            doing: "writing",
            path,
            source,
        })?;
    }
    Ok(())
}
