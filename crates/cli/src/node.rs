//! `portolan node`: executes `portolan-node`, so that this command builds neither TLS nor names.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

use crate::args::NodeArgs;
use crate::error::{CliError, Result};

/// The program's file.
const PROGRAM: &str = "portolan-node";

pub(crate) fn run(args: &NodeArgs) -> Result<()> {
    for program in programs(PROGRAM)? {
        let failed = Command::new(program).args(&args.words).exec();
        if failed.kind() != io::ErrorKind::NotFound {
            return Err(CliError::system("cannot execute portolan-node")(failed));
        }
    }
    Err(CliError::NoNodeProgram)
}

/// The one beside this program, which is of the same version; then what the path has.
fn programs(name: &str) -> Result<[OsString; 2]> {
    let own = std::env::current_exe().map_err(CliError::system("cannot find this program"))?;
    let beside = own.with_file_name(name).into_os_string();
    Ok([beside, OsString::from(name)])
}

/// Starts it with these words, and what `with` adds.
pub(crate) fn start(
    words: &[impl AsRef<OsStr>],
    with: impl Fn(&mut Command) -> &mut Command,
) -> Result<Child> {
    start_program(PROGRAM, words, with)
}

/// The same for a program that is built with it.
pub(crate) fn start_program(
    name: &str,
    words: &[impl AsRef<OsStr>],
    with: impl Fn(&mut Command) -> &mut Command,
) -> Result<Child> {
    for program in programs(name)? {
        match with(Command::new(program).args(words)).spawn() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            started => return started.map_err(CliError::system("cannot start portolan-node")),
        }
    }
    Err(CliError::NoNodeProgram)
}
