//! Asks peers, on behalf of commands on this machine, what happens there.
//!
//! A command asks again and again until it is told: a peer's answer takes its time, and this node waits
//! for nothing. An answer that does not come is asked for again, because the link may have been cut.

use std::collections::BTreeMap;
use std::time::Duration;

use portolan_transport::NodeId;
use serde::{Deserialize, Serialize};

use super::Node;
use crate::engine::Question;

/// Peers that are being asked, at most, by all commands.
const MOST: usize = 512;
/// After so long without an answer a peer is asked again.
const AGAIN: Duration = Duration::from_millis(300);
/// What a command has not asked for so long is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

/// What a command is told.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Told {
    /// What the node says: nothing of a peer's was checked.
    Answer(String),
    /// It has not answered yet.
    Pending,
    /// There is no link with it.
    Unlinked,
}

impl Told {
    fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The part of an answer that says to which question it belongs.
#[derive(Deserialize)]
struct Echo {
    session: u64,
    number: u64,
}

#[derive(Debug)]
struct Inspection {
    question: Question,
    /// When the peer was asked last, and the command.
    asked: Duration,
    wanted: Duration,
    answer: Option<String>,
}

/// Questions that are open, by who is asked and which belong together.
#[derive(Debug, Default)]
pub(super) struct Inspections {
    all: BTreeMap<(NodeId, u64), Inspection>,
}

impl Inspections {
    /// A command asks. What it is told, but for [`Told::Unlinked`], and whether the peer is to be asked.
    fn wanted(&mut self, now: Duration, peer: NodeId, question: &Question) -> (Told, bool) {
        self.all
            .retain(|_, it| now.saturating_sub(it.wanted) < FORGOTTEN_AFTER);
        let key = (peer, question.session);
        if let Some(it) = self.all.get_mut(&key)
            && it.question == *question
        {
            if let Some(answer) = it.answer.clone() {
                return (Told::Answer(answer), false);
            }
            let again = now.saturating_sub(it.asked) >= AGAIN;
            (it.wanted, it.asked) = (now, if again { now } else { it.asked });
            return (Told::Pending, again);
        }
        if self.all.len() >= MOST && !self.all.contains_key(&key) {
            return (Told::Pending, false);
        }
        let inspection = Inspection {
            question: question.clone(),
            asked: now,
            wanted: now,
            answer: None,
        };
        self.all.insert(key, inspection);
        (Told::Pending, true)
    }

    /// A peer has answered.
    pub(super) fn answered(&mut self, peer: NodeId, answer: Vec<u8>) {
        let Ok(answer) = String::from_utf8(answer) else {
            return;
        };
        let Ok(Echo { session, number }) = serde_json::from_str(&answer) else {
            return;
        };
        // What nobody asks any more is thrown away.
        if let Some(it) = self.all.get_mut(&(peer, session))
            && it.question.number == number
        {
            it.answer = Some(answer);
        }
    }
}

impl Node {
    /// What a command is told that asks about this node, or about a peer.
    pub(super) fn inspect(&mut self, peer: Option<&str>, question: &Question) -> String {
        let now = self.clock.now();
        let peer = match peer.map(str::parse::<NodeId>) {
            None => return Told::Answer(self.engine.inspect_here(question)).text(),
            Some(Ok(peer)) if peer == self.id => {
                return Told::Answer(self.engine.inspect_here(question)).text();
            }
            Some(Ok(peer)) => peer,
            Some(Err(_)) => return Told::Unlinked.text(),
        };
        let (told, asks) = self.inspections.wanted(now, peer, question);
        if asks && !self.engine.inspect(peer, question) {
            return Told::Unlinked.text();
        }
        told.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(session: u64, number: u64) -> Question {
        Question {
            session,
            number,
            domain: "frames".to_owned(),
            kinds: Vec::new(),
            after: 0,
            clocks: false,
            end: false,
        }
    }

    const PEER: NodeId = NodeId([1; 16]);
    const AT: Duration = Duration::from_secs(1);

    #[test]
    fn a_question_is_asked_once_and_again_if_no_answer_comes() {
        let mut all = Inspections::default();
        let asked = question(7, 1);
        assert_eq!(all.wanted(AT, PEER, &asked), (Told::Pending, true));
        assert_eq!(all.wanted(AT, PEER, &asked), (Told::Pending, false));
        assert_eq!(all.wanted(AT + AGAIN, PEER, &asked), (Told::Pending, true));
        assert_eq!(all.wanted(AT + AGAIN, PEER, &asked), (Told::Pending, false));
        let answer = r#"{"session":7,"number":1,"more":false}"#;
        all.answered(PEER, answer.into());
        let told = Told::Answer(answer.to_owned());
        assert_eq!(all.wanted(AT + AGAIN, PEER, &asked), (told, false));
        // The next one is another question.
        let next = question(7, 2);
        assert_eq!(all.wanted(AT + AGAIN, PEER, &next), (Told::Pending, true));
    }

    #[test]
    fn what_nobody_has_asked_is_no_answer_and_what_is_given_up_is_forgotten() {
        let mut all = Inspections::default();
        let asked = question(7, 1);
        all.wanted(AT, PEER, &asked);
        let strange = [
            &b"\xff"[..],
            b"{}",
            br#"{"session":7,"number":2}"#,
            br#"{"session":8,"number":1}"#,
        ];
        for answer in strange {
            all.answered(PEER, answer.to_vec());
        }
        all.answered(NodeId([2; 16]), br#"{"session":7,"number":1}"#.to_vec());
        assert_eq!(all.wanted(AT, PEER, &asked), (Told::Pending, false));
        for session in 0..MOST as u64 + 100 {
            all.wanted(AT, PEER, &question(session, 1));
        }
        assert_eq!(all.all.len(), MOST);
        let later = AT + FORGOTTEN_AFTER;
        assert_eq!(
            all.wanted(later, PEER, &question(9999, 1)),
            (Told::Pending, true)
        );
        assert_eq!(all.all.len(), 1);
    }
}
