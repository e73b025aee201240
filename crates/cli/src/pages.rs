//! `portolan completions` and `portolan man` print what the command line's own description yields.

use clap::{Command, CommandFactory as _};
use clap_complete::aot;
use portolan_measure::{out, pages};

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
        let written = pages::write_all(&command, directory);
        return written.map_err(|(path, source)| CliError::Output { path, source });
    }
    let mut chosen = &command;
    for name in &args.of {
        chosen = chosen
            .find_subcommand(name)
            .ok_or_else(|| CliError::NoCommand {
                name: args.of.join(" "),
            })?;
    }
    let page = pages::page(chosen).map_err(CliError::system("writing the page"))?;
    Ok(out::print(&String::from_utf8_lossy(&page))?)
}
