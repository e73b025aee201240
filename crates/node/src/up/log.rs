//! What a running node says of what happens, on standard error: lines for people, or, with
//! `log = "json"` in node.toml, one JSON object a line.
//!
//! ```text
//! 2026-01-01T00:00:00Z linked with roof (6f1c..)
//! {"at":"2026-01-01T00:00:00Z","node":"hall","what":"linked with roof (6f1c..)","peer":"6f1c.."}
//! ```

use portolan_transport::{Moment, NodeId};
use serde::Serialize;

/// How lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object each.
    Json,
}

#[derive(Serialize)]
struct Line<'a> {
    at: String,
    node: &'a str,
    what: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
}

/// A line: when, by which node, what, and about which peer.
pub(super) fn line(
    format: LogFormat,
    at: Moment,
    node: &str,
    what: &str,
    peer: Option<NodeId>,
) -> String {
    let line = Line {
        at: at.to_string(),
        node,
        what,
        peer: peer.map(|peer| peer.to_string()),
    };
    match format {
        LogFormat::Text => format!("{} {what}", line.at),
        // Texts can always be written.
        LogFormat::Json => serde_json::to_string(&line).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_for_people_or_one_object() {
        let at = Moment { seconds: 0 };
        let said = |format| line(format, at, "hall", "says \"so\"\n", Some(NodeId([1; 16])));
        assert_eq!(said(LogFormat::Text), "1970-01-01T00:00:00Z says \"so\"\n");
        let json = said(LogFormat::Json);
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json.lines().count(), 1);
        assert_eq!(
            (&read["node"], &read["what"]),
            (&"hall".into(), &"says \"so\"\n".into())
        );
        assert_eq!(read["peer"], "01".repeat(16));
    }
}
