//! `portolan completions` and `portolan man` print what the command line's own description yields.

use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_complete::aot;
use clap_mangen::Man;
use portolan_measure::out;

use crate::args::{Args, CompletionsArgs, ManArgs, Shell};
use crate::error::{CliError, Result};

/// The command line as users see it.
fn command() -> Command {
    let whole = Args::command();
    let shown = whole.get_subcommands().filter(|sub| !sub.is_hide_set());
    let shown: Vec<Command> = shown.cloned().collect();
    // There is no taking away of subcommands.
    let mut command = Command::new("portolan")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(shown)
        .subcommand_required(true);
    if let Some(about) = whole.get_about() {
        command = command.about(about.clone());
    }
    if let Some(after) = whole.get_after_help() {
        command = command.after_help(after.clone());
    }
    command
}

pub(crate) fn completions(args: &CompletionsArgs) -> Result<()> {
    let shell = match args.shell {
        Shell::Bash => aot::Shell::Bash,
        Shell::Zsh => aot::Shell::Zsh,
        Shell::Fish => aot::Shell::Fish,
    };
    let mut script = Vec::new();
    aot::generate(shell, &mut command(), "portolan", &mut script);
    Ok(out::print(&String::from_utf8_lossy(&script))?)
}

pub(crate) fn man(args: &ManArgs) -> Result<()> {
    // The help command has no page: each page is help.
    let mut command = command().disable_help_subcommand(true);
    let subs = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned());
    for sub in subs.collect::<Vec<_>>() {
        command = command.mut_subcommand(sub, |sub| sub.disable_help_subcommand(true));
    }
    // Names subcommands in full: `portolan-port-send`.
    command.build();
    if let Some(directory) = &args.output {
        return write_all(&command, directory);
    }
    let mut chosen = &command;
    for name in &args.of {
        chosen = chosen
            .find_subcommand(name)
            .ok_or_else(|| CliError::NoCommand {
                name: args.of.join(" "),
            })?;
    }
    let page = page(chosen).map_err(CliError::system("writing the page"))?;
    Ok(out::print(&String::from_utf8_lossy(&page))?)
}

fn page(command: &Command) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone())
        .source(concat!("portolan ", env!("CARGO_PKG_VERSION")))
        .manual("Portolan")
        .render(&mut page)?;
    Ok(page)
}

/// The pages of a command and of all its subcommands, each in its file.
fn write_all(command: &Command, directory: &Path) -> Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let path = directory.join(format!("{name}.1"));
    let written = page(command).and_then(|page| std::fs::write(&path, page));
    written.map_err(|source| CliError::Output { path, source })?;
    for sub in command.get_subcommands() {
        write_all(sub, directory)?;
    }
    Ok(())
}
