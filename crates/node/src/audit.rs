//! The audit log: who was let in, who was refused, who was forgotten. One JSON object a line.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;

use portolan_transport::{Moment, NodeId};
use serde::Serialize;

use crate::state::State;
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
    let options = options.append(true).create(true).mode(0o600);
    let mut file = options.open(&path).map_err(failed())?;
    file.write_all(line.as_bytes()).map_err(failed())?;
    file.sync_data().map_err(failed())
}

/// A node's id as the log has it.
pub fn id(node: NodeId) -> String {
    node.to_string()
}
