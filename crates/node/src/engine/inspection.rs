//! What nodes ask one another about what happens there, and what they answer: pages of a recording.
//!
//! ```text
//! asks      Question, after event n ----> records from now on, or goes on; forgets all before n
//!           Page <----------------------- events from n on, as many as fit a record
//!           Question, after event m, ...
//!           Question, end --------------> records no more; what is left can still be asked for
//! ```
//!
//! A question that was not answered is asked again: that changes nothing. What comes from a peer is an
//! allegation; the command that has asked judges it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use portolan_abi::node::{MAX_INSPECTED, NodeId};
use portolan_proto::node::DomainKey;
use serde::{Deserialize, Serialize};

use super::recorder::{LEASE, MemberEvent, Recorder, Seen};
use super::{Engine, Happened};

/// Kinds of events that a question names, at most.
const MOST_KINDS: usize = 64;
/// Clocks that a page tells of, at most: those that are known best.
const MOST_CLOCKS: usize = 100;
/// Bytes of a page for a command on this machine.
const LOCAL_PAGE: usize = 512 << 10;

/// What a node asks about another one, or a command about the node beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Which questions belong together.
    pub session: u64,
    /// Which of them it is: its answer says so.
    pub number: u64,
    /// The domain that is traced, by its name among nodes.
    pub domain: String,
    /// Kinds of its members' events; all, if it names none.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// All events before this one have been read.
    pub after: u64,
    /// Clocks of peers are wanted, too.
    #[serde(default)]
    pub clocks: bool,
    /// Nothing is to be recorded from now on.
    #[serde(default)]
    pub end: bool,
}

/// The answer. Events are [`Seen`].
#[derive(Debug, Default, Serialize)]
struct Page<'a> {
    session: u64,
    number: u64,
    node: String,
    name: &'a str,
    /// The node's process, and its thread, which messages depart and arrive in.
    process: u32,
    thread: u32,
    /// Why nothing is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// Why there are no events of members.
    #[serde(skip_serializing_if = "Option::is_none")]
    without_members: Option<&'a str>,
    /// The number of the first event, and of the one behind the last.
    first: u64,
    next: u64,
    /// There are more by now.
    more: bool,
    /// Events that were lost: in the rings of members, and because nobody has asked in time.
    lost: (u64, u64),
    /// How far the clock that peers measure is ahead of the one that events have.
    ahead: i64,
    clocks: Vec<Clock>,
    spaces: Vec<(u8, u32, &'a str)>,
    ports: BTreeMap<u16, &'a str>,
    events: Vec<&'a Seen>,
}

/// How far the clock of a peer is ahead of this node's, and by how much that is wrong at the most.
#[derive(Clone, Debug, Serialize)]
struct Clock {
    node: String,
    ahead: i64,
    error: u64,
}

/// Bytes of something in JSON.
fn bytes_of(it: &impl Serialize) -> usize {
    serde_json::to_string(it).map_or(usize::MAX / 2, |text| text.len())
}

impl<'a> Page<'a> {
    /// Adds events of a recording, as many as fit.
    fn fill(&mut self, recorder: &'a Recorder, most: usize) {
        self.thread = recorder.thread;
        self.ahead = recorder.ahead();
        self.lost = recorder.lost();
        self.without_members = recorder.without_members.as_deref();
        let (first, kept) = recorder.kept();
        (self.first, self.next) = (first, first);
        // Numbers that grow in the head: so much is left for them.
        let mut bytes = bytes_of(self) + 64;
        let mut spaces = BTreeSet::new();
        for seen in kept {
            bytes += bytes_of(seen) + 1;
            let mut named = (None, None);
            if let Seen::Member(MemberEvent(_, _, _, space, process, _, port, ..)) = seen {
                let is_new = spaces.insert((*space, *process));
                named.0 = recorder.name_of_space(*space, *process).filter(|_| is_new);
                let port = port.filter(|port| !self.ports.contains_key(port));
                named.1 = port.and_then(|port| Some((port, recorder.name_of_port(port)?)));
                let space = named.0.map(|name| (*space, *process, name));
                bytes += space.map_or(0, |space| bytes_of(&space) + 1);
                bytes += named.1.map_or(0, |port| bytes_of(&port) + 4);
                if bytes <= most {
                    self.spaces.extend(space);
                    self.ports.extend(named.1);
                }
            }
            if bytes > most {
                self.more = true;
                break;
            }
            self.events.push(seen);
            self.next += 1;
        }
    }

    fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Engine {
    /// Asks a peer; whether it is linked. [`Happened::Inspected`] tells.
    pub fn inspect(&mut self, peer: NodeId, question: &Question) -> bool {
        if question.clocks {
            // Who looks at clocks wants to know them as they are now.
            self.node.measure_clock(peer);
        }
        let Ok(question) = serde_json::to_vec(question) else {
            return false;
        };
        let asked = self.node.inspect(peer, &question);
        self.speak();
        asked
    }

    /// Answers a command on this machine.
    pub fn inspect_here(&mut self, question: &Question) -> String {
        let own = self.node.settings().node;
        self.answer_to(own, question, LOCAL_PAGE)
    }

    /// A peer asks.
    pub(super) fn inspected_by(&mut self, peer: NodeId, question: &[u8]) {
        // What cannot be read is no question: a node of another version hears nothing, and says so.
        if let Ok(question) = serde_json::from_slice::<Question>(question) {
            let answer = self.answer_to(peer, &question, MAX_INSPECTED);
            self.node.inspected(peer, answer.as_bytes());
        }
    }

    fn answer_to(&mut self, by: NodeId, question: &Question, most: usize) -> String {
        let refused = self.record_for(by, question).err();
        let own = self.node.settings().node;
        let mut page = Page {
            session: question.session,
            number: question.number,
            node: own.to_string(),
            name: self.node.name(),
            process: std::process::id(),
            refused,
            ..Page::default()
        };
        if page.refused.is_none() {
            if question.clocks {
                page.clocks = self.clocks();
            }
            if let Some(recorder) = &self.machine.recorder {
                page.fill(recorder, most);
            }
        }
        page.text()
    }

    /// Records what is asked for, if it is not recorded yet.
    ///
    /// # Errors
    ///
    /// Why not.
    fn record_for(&mut self, by: NodeId, question: &Question) -> Result<(), String> {
        let now = self.machine.now;
        let own = self.node.settings().node;
        let called = self.machine.names.get(&by).cloned().unwrap_or_default();
        let mut spans = self.machine.spans.values();
        let span = spans.find(|span| span.settings.domain == question.domain);
        let span = span.ok_or("it does not span the domain")?;
        if by != own && !span.allows(by, &called) {
            return Err("it lets nothing of this node into the domain".to_owned());
        }
        let is_its =
            |it: &Recorder| (it.by, it.session, it.domain) == (by, question.session, span.key);
        match &mut self.machine.recorder {
            Some(recorder) if is_its(recorder) => {
                recorder.until = now + LEASE;
                recorder.read_until(question.after);
            }
            Some(recorder) if !recorder.ended && recorder.until > now => {
                let by = recorder.by;
                let by = match by == own {
                    true => self.node.name().to_owned(),
                    false => self.machine.name_of(by),
                };
                return Err(format!("a command beside {by} traces there already"));
            }
            _ if question.after > 0 || question.end => {
                return Err("its recording has ended: it was not asked in time".to_owned());
            }
            _ => {
                if question.kinds.len() > MOST_KINDS {
                    return Err("it was asked for more kinds of events than there are".to_owned());
                }
                // First: what ends with it switches off what this process traces.
                self.machine.recorder = None;
                let (domain, kinds) = (&span.domain, &question.kinds);
                let recorder = Recorder::new(span.key, domain, (by, question.session), kinds, now);
                let domain = question.domain.clone();
                self.happened.push(Happened::Traced { node: by, domain });
                self.machine.recorder = Some(Box::new(recorder));
                self.compare_clocks();
            }
        }
        if question.end {
            self.look_at_recording();
            if let Some(recorder) = &mut self.machine.recorder {
                recorder.end();
            }
        }
        Ok(())
    }

    /// Clocks of peers, as this node has measured them.
    fn clocks(&self) -> Vec<Clock> {
        let now = self.protocol_time();
        let clocks = self.node.peers().filter_map(|peer| {
            let clock = self.node.peer_view(peer)?.clock?;
            let error = u64::try_from(clock.error(now).as_nanos()).unwrap_or(u64::MAX);
            Some(Clock {
                node: peer.to_string(),
                ahead: clock.nanos(),
                error,
            })
        });
        let mut clocks: Vec<Clock> = clocks.collect();
        clocks.sort_by_key(|clock| clock.error);
        clocks.truncate(MOST_CLOCKS);
        clocks
    }

    /// Notes how the clock that peers are told of stands to the one that events have.
    pub(super) fn compare_clocks(&mut self) {
        let shown = self.node.shown_clock(self.protocol_time());
        if let Some(recorder) = &mut self.machine.recorder {
            recorder.compare(shown);
        }
    }

    /// Goes on with the recording, if there is one.
    pub(super) fn look_at_recording(&mut self) {
        let now = self.machine.now;
        let Some(mut recorder) = self.machine.recorder.take_if(|it| it.until > now) else {
            // Nobody has asked for it (I1).
            self.machine.recorder = None;
            return;
        };
        let (node, machine) = (&self.node, &self.machine);
        let own = node.settings().node;
        let association = |peer, serial| node.association(peer, serial);
        recorder.look(now, own, association, |peer| machine.name_of(peer));
        self.machine.recorder = Some(recorder);
    }

    /// A domain is not spanned any more.
    pub(super) fn record_no_more(&mut self, domain: DomainKey) {
        self.machine.recorder.take_if(|it| it.domain == domain);
    }

    /// When the recording is to be looked at.
    pub(super) fn records_at(&self) -> Option<Duration> {
        self.machine.recorder.as_ref().map(|it| it.wake_at())
    }
}
