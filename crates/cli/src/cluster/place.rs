//! Finds the state directory of a node: named, this user's, or that of a running node with a name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use portolan_measure::MeasureError;
use portolan_sys::socket;

use super::{Came, Node, QUESTION, SOCKET, Status};
use crate::error::{CliError, Result};

/// How long all nodes together have to say their names, where one is looked for by that.
const SAY_THEIR_NAMES: Duration = Duration::from_secs(1);
/// How long each of them has to take the question: one that is stopped takes it at once, unless many
/// wait for it.
const TAKES: Duration = Duration::from_millis(50);

/// The state directory of the node that was named, or of this user's.
pub(super) fn state(named: Option<&OsStr>) -> Result<PathBuf> {
    let Some(named) = named else {
        return portolan::proxy::state_directory().ok_or_else(|| CliError::Refused {
            what: "PORTOLAN_NODE_STATE is no absolute path, or there is no home directory"
                .to_owned(),
            to_do: "name the node's state directory",
        });
    };
    // No name of a node has a slash.
    let path = Path::new(named);
    if named.as_bytes().contains(&b'/') || path.is_dir() {
        return Ok(path.to_owned());
    }
    let mut found = Vec::new();
    let mut others = Vec::new();
    for (state, name) in names(running()?) {
        match OsStr::new(&name) == named {
            true => found.push(state),
            false => others.push(name),
        }
    }
    let named = named.to_string_lossy().into_owned();
    match &found[..] {
        [only] => Ok(only.clone()),
        [] => Err(CliError::NoNodeNamed {
            name: named,
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

/// What nodes are called, by their state directories. All are asked before the first answer is waited for:
/// one that is stopped holds up no other. One that does not answer, or may not be asked, has no name here.
fn names(states: Vec<PathBuf>) -> Vec<(PathBuf, String)> {
    let asked = states.into_iter().filter_map(|state| {
        let node = Node { state, asked: None };
        let asked = node.begin(QUESTION, TAKES).ok()?;
        Some((node, asked))
    });
    let asked: Vec<_> = asked.collect();
    let end = Instant::now() + SAY_THEIR_NAMES;
    let named = asked.into_iter().filter_map(|(node, asked)| {
        // Behind the deadline, what has come by then is still read.
        let left = end.saturating_duration_since(Instant::now());
        let left = left.max(Duration::from_millis(1));
        let Ok(Some(Came::Answer(came))) = node.hear(Some(asked), QUESTION, left) else {
            return None;
        };
        let status: Status = serde_json::from_slice(&came).ok()?;
        Some((node.state, status.name))
    });
    named.collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    #[test]
    fn all_nodes_are_asked_before_any_has_to_answer() {
        let folder = std::env::temp_dir().join(portolan_testkit::unique("names"));
        let states: Vec<PathBuf> = ["one", "two", "three"].map(|it| folder.join(it)).into();
        let listen = |state: &PathBuf| {
            std::fs::create_dir_all(state).unwrap();
            UnixListener::bind(state.join(SOCKET)).unwrap()
        };
        let mut listeners: Vec<UnixListener> = states.iter().map(listen).collect();
        // The third never answers, and keeps nobody from it.
        let silent = listeners.pop();
        let answers = std::thread::spawn(move || {
            let asked: Vec<_> = listeners.iter().map(|it| it.accept().unwrap().0).collect();
            for (mut socket, name) in asked.into_iter().zip(["hall", "roof"]) {
                // A socket that is closed with something unread in it takes back what it has said.
                assert!(socket.read(&mut [0; 100]).unwrap() > 0);
                write!(socket, "{{\"name\":{name:?}}}").unwrap();
            }
        });
        let found: Vec<String> = names(states).into_iter().map(|(_, name)| name).collect();
        assert_eq!(found, ["hall", "roof"]);
        answers.join().unwrap();
        drop(silent);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
