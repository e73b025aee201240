//! The audit log: who was let in, who was refused, who was forgotten. One JSON object a line.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

use portolan_transport::{Moment, NodeId};
use serde::Serialize;

use crate::state::{AT_ONCE, State};
use crate::{NodeError, Result};

/// What happened.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A token was given out.
    Invited {
        /// Its number.
        invitation: String,
    },
    /// A newcomer was let in.
    Joined {
        /// Its id.
        node: String,
        /// Its name.
        name: String,
        /// Where it came from.
        from: String,
        /// By which token.
        invitation: String,
    },
    /// A newcomer, or a connection, was refused.
    Refused {
        /// Where it came from.
        from: String,
        /// Why.
        why: String,
    },
    /// A node is refused from now on.
    Forgotten {
        /// Its id.
        node: String,
        /// Who has passed it on: a peer's id, or "a command".
        from: String,
    },
    /// An authority is believed too.
    Believed {
        /// The id of its key.
        key: String,
        /// Who has passed it on.
        from: String,
    },
    /// An authority is believed no more.
    Retired {
        /// The id of its key.
        key: String,
    },
    /// A certificate was signed again.
    Renewed {
        /// Whose.
        node: String,
    },
}

#[derive(Serialize)]
struct Line<'a> {
    at: String,
    #[serde(flatten)]
    event: &'a Event,
}

/// Adds a line, which lasts when this returns.
///
/// # Errors
///
/// [`NodeError::NoRoom`], [`NodeError::File`]: what is not in the log must not happen.
pub fn note(state: &State, now: Moment, event: &Event) -> Result<()> {
    let path = state.file("audit.log");
    let failed = || NodeError::file("cannot write", &path);
    let line = Line {
        at: now.to_string(),
        event,
    };
    let mut line = serde_json::to_string(&line).map_err(|error| NodeError::Wrong {
        what: error.to_string(),
    })?;
    line.push('\n');
    let mut options = OpenOptions::new();
    let options = options.read(true).append(true).create(true).mode(0o600);
    let file = options.custom_flags(AT_ONCE).open(&path);
    let mut file = file.map_err(failed())?;
    // A part of a line is what a full disk, or an end in the middle, has left: what it is about has not
    // happened. It is a line of its own, and joined with no other.
    if !ends_a_line(&file).map_err(failed())? {
        line.insert(0, '\n');
    }
    file.write_all(line.as_bytes()).map_err(failed())?;
    file.sync_data().map_err(failed())
}

fn ends_a_line(file: &File) -> std::io::Result<bool> {
    let metadata = file.metadata()?;
    // Of a pipe nobody can tell.
    let Some(last) = metadata.len().checked_sub(1).filter(|_| metadata.is_file()) else {
        return Ok(true);
    };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last)?;
    Ok(byte == *b"\n")
}

/// A node's id as the log has it.
pub fn id(node: NodeId) -> String {
    node.to_string()
}

#[cfg(test)]
mod tests {
    use portolan_testkit::unique;

    use super::*;

    #[test]
    fn a_part_of_a_line_is_joined_with_no_other() {
        let state = State::at(&std::env::temp_dir().join(unique("audit"))).unwrap();
        let path = state.file("audit.log");
        let now = Moment { seconds: 1 };
        let event = Event::Renewed {
            node: "hall".to_owned(),
        };
        note(&state, now, &event).unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        let (part, _) = whole.split_at(whole.len() / 2);
        std::fs::write(&path, format!("{whole}{part}")).unwrap();
        for _ in 0..2 {
            note(&state, now, &event).unwrap();
        }
        let log = std::fs::read_to_string(&path).unwrap();
        assert_eq!(log, format!("{whole}{part}\n{whole}{whole}"));
        std::fs::remove_dir_all(state.path()).unwrap();
    }
}
