//! `portolan node man` prints what the command line's own description yields.

use std::io::Write as _;

use clap::CommandFactory as _;
use portolan_measure::pages;
use portolan_node::{NodeError, Result};

use crate::args::{Args, ManArgs};

pub(crate) fn man(args: &ManArgs) -> Result<()> {
    // The help command has no page: each page is help.
    let mut command = Args::command().disable_help_subcommand(true);
    // Names subcommands in full: `portolan-node-up`.
    command.build();
    if let Some(directory) = &args.output {
        let written = pages::write_all(&command, directory);
        return written.map_err(|(path, source)| NodeError::File {
            doing: "writing",
            path,
            source,
        });
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
    let printed = pages::page(chosen).and_then(|page| std::io::stdout().write_all(&page));
    printed.map_err(|source| NodeError::File {
        doing: "writing the page to",
        path: "standard output".into(),
        source,
    })
}
