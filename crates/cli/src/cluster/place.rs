//! Finds the state directory of a node: named, this user's, or that of a running node with a name.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use portolan_measure::MeasureError;
use portolan_sys::socket;

use super::{Answer, Node, SOCKET};
use crate::error::{CliError, Result};

/// How long each node has to say its name, where one is looked for by that.
const SAYS_ITS_NAME: Duration = Duration::from_secs(1);

/// The state directory of the node that was named, or of this user's.
pub(super) fn state(named: Option<&str>) -> Result<PathBuf> {
    let Some(named) = named else {
        return portolan::proxy::state_directory().ok_or_else(|| CliError::Refused {
            what: "PORTOLAN_NODE_STATE is no absolute path, or there is no home directory"
                .to_owned(),
            to_do: "name the node's state directory",
        });
    };
    // No name of a node has a slash.
    let path = Path::new(named);
    if named.contains('/') || path.is_dir() {
        return Ok(path.to_owned());
    }
    let all = running()?;
    let mut found = Vec::new();
    let mut others = Vec::new();
    for state in all {
        let mut node = Node { state, asked: None };
        // One that does not answer, or may not be asked, has no name here.
        let Ok(Answer::Is(status)) = node.ask(SAYS_ITS_NAME) else {
            continue;
        };
        match status.name == named {
            true => found.push(node.state),
            false => others.push(status.name.clone()),
        }
    }
    match &found[..] {
        [only] => Ok(only.clone()),
        [] => Err(CliError::NoNodeNamed {
            name: named.to_owned(),
            others,
        }),
        several => {
            let several = several.iter().map(|state| format!("{state:?}"));
            let several = several.collect::<Vec<_>>().join(", ");
            Err(CliError::Refused {
                what: format!("several nodes named {named:?} run here: {several}"),
                to_do: "name the state directory of one of them",
            })
        }
    }
}

/// State directories of nodes that run in this network namespace: a socket for commands, beside the
/// file that says what the node is to do.
fn running() -> Result<Vec<PathBuf>> {
    let paths = socket::bound_paths()
        .map_err(MeasureError::system("reading /proc/thread-self/net/unix"))?;
    let states = paths.iter().filter_map(|path| {
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let state = path.parent()?;
        let is_node = path.file_name()? == SOCKET && state.join("node.toml").is_file();
        is_node.then(|| state.to_owned())
    });
    Ok(states.collect())
}
