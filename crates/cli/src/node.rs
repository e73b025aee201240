//! `portolan node`: executes `portolan-node`, so that this command builds neither TLS nor names.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::args::NodeArgs;
use crate::error::{CliError, Result};

/// The program's file.
const PROGRAM: &str = "portolan-node";

pub(crate) fn run(args: &NodeArgs) -> Result<()> {
    let own = std::env::current_exe().map_err(CliError::system("cannot find this program"))?;
    // The one beside it is of the same version; then what the path has.
    let beside = own.with_file_name(PROGRAM).into_os_string();
    for program in [beside, OsString::from(PROGRAM)] {
        let failed = Command::new(program).args(&args.words).exec();
        if failed.kind() != io::ErrorKind::NotFound {
            return Err(CliError::system("cannot execute portolan-node")(failed));
        }
    }
    Err(CliError::NoNodeProgram)
}
