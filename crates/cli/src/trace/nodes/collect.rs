//! Asks all nodes for their events, page by page, until all have told theirs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::clocks::{Clocks, Offset, Places};
use crate::cluster::{self, Page, Question, Seen, Told};
use crate::error::Result;
use crate::trace::{TELL, now};

/// A node that has not answered for so long is left out from then on.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// A node that had nothing is asked again after so long.
const PAUSE: Duration = Duration::from_millis(15);
/// Between two looks whether answers have come.
const LOOK: Duration = Duration::from_millis(1);
/// How often clocks are asked for.
const CLOCKS: Duration = Duration::from_millis(500);
/// Events of all nodes that are kept, at most: some 300 megabytes.
const MOST_EVENTS: usize = 2 << 20;
/// Names of ports, and of processes, that are kept of each node at most.
const MOST_NAMES: usize = 1 << 16;

/// A node that is asked.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// Its id; that of the node beside this command is not said to it.
    pub(super) id: String,
    pub(super) name: String,
    is_here: bool,
    /// The node's process, and its thread in which messages depart and arrive.
    pub(super) process: u32,
    pub(super) thread: u32,
    pub(super) spaces: HashMap<(u8, u32), String>,
    pub(super) ports: HashMap<u16, String>,
    pub(super) events: Vec<Seen>,
    pub(super) without_members: Option<String>,
    /// Events that were lost: in the rings of members, because they were not asked for in time, and
    /// because there was no place for them here.
    pub(super) lost: (u64, u64),
    pub(super) cut: u64,
    /// How far the clock that nodes measure is ahead of the one of its events.
    pub(super) ahead: i64,
    pub(super) places: Places,
    /// Over which nodes its clock is known.
    pub(super) via: Vec<String>,
    /// Why it is asked no more, or was not asked at all.
    pub(super) left_out: Option<String>,
    /// It has told all.
    is_done: bool,
    open: Option<Question>,
    /// When it was asked for what is open, or has answered last.
    since: Option<Instant>,
    clocks_at: Option<Instant>,
    number: u64,
    after: u64,
    more: bool,
}

impl Source {
    /// The node beside this command.
    pub(super) fn here(id: &str, name: &str) -> Self {
        Self {
            is_here: true,
            ..Self::peer(id, name)
        }
    }

    pub(super) fn peer(id: &str, name: &str) -> Self {
        Self {
            id: id.to_owned(),
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// One that is not asked.
    pub(super) fn left_out(self, why: String) -> Self {
        Self {
            left_out: Some(why),
            ..self
        }
    }

    fn is_asked(&self) -> bool {
        !self.is_done && self.left_out.is_none()
    }

    /// What it is to be asked now, if anything.
    fn question(&mut self, plan: &Plan, ends: bool) -> Option<Question> {
        if let Some(open) = &self.open {
            return Some(open.clone());
        }
        let waits = self.since.is_some_and(|since| since.elapsed() < PAUSE);
        if waits && !self.more && !ends {
            return None;
        }
        let clocks = ends || self.clocks_at.is_none_or(|at| at.elapsed() >= CLOCKS);
        if clocks {
            self.clocks_at = Some(Instant::now());
        }
        self.number += 1;
        let question = Question {
            session: plan.session,
            number: self.number,
            domain: plan.domain.clone(),
            kinds: plan.kinds.clone(),
            after: self.after,
            clocks,
            // One that was never asked has nothing to end.
            end: ends && self.number > 1,
        };
        self.since = Some(Instant::now());
        self.open = Some(question.clone());
        Some(question)
    }

    /// It has answered. `room` is for how many events there is a place.
    fn take(&mut self, page: Page, room: usize) {
        let question = self.open.take();
        self.since = Some(Instant::now());
        if let Some(why) = page.refused {
            self.left_out = Some(why);
            return;
        }
        if page.next < self.after {
            self.left_out = Some("it says what cannot be".to_owned());
            return;
        }
        (self.after, self.more) = (page.next, page.more);
        self.is_done = question.is_some_and(|question| question.end) && !page.more;
        if !page.name.is_empty() && !self.is_here {
            self.name = page.name;
        }
        (self.process, self.thread) = (page.process, page.thread);
        (self.ahead, self.lost) = (page.ahead, page.lost);
        self.without_members = page.without_members;
        for (space, process, name) in page.spaces {
            if self.spaces.len() < MOST_NAMES {
                self.spaces.insert((space, process), name);
            }
        }
        for (port, name) in page.ports {
            self.ports.insert(port, name);
        }
        let kept = page.events.len().min(room);
        self.cut += (page.events.len() - kept) as u64;
        self.events.extend(page.events.into_iter().take(kept));
    }
}

/// What is asked for.
pub(super) struct Plan {
    pub(super) session: u64,
    pub(super) domain: String,
    pub(super) kinds: Vec<String>,
    pub(super) until: Option<Duration>,
}

/// What has come.
pub(super) struct Collected {
    pub(super) sources: Vec<Source>,
    /// When it began, by the clock of the node beside this command.
    pub(super) began: i128,
    pub(super) seconds: f64,
    /// Why it ended: "time", "signal", "node" (the one beside this command has), or "refused" (by that).
    pub(super) ended_by: &'static str,
}

/// Asks all sources, the first of which is the node beside this command.
pub(super) fn collect(
    node: &cluster::Node,
    plan: &Plan,
    mut sources: Vec<Source>,
    told: &AtomicBool,
) -> Result<Collected> {
    let (begun, began) = (Instant::now(), now());
    let progress = ProgressBar::new_spinner();
    let mut shown = begun;
    let mut clocks = Clocks::new(&sources[0].id);
    let mut placed_at: Option<Instant> = None;
    let mut ended_by = None;
    let mut ended_at = None;
    loop {
        if told.load(Ordering::Relaxed) {
            ended_by.get_or_insert("signal");
        }
        if plan.until.is_some_and(|until| begun.elapsed() >= until) {
            ended_by.get_or_insert("time");
        }
        if ended_by.is_some() {
            ended_at.get_or_insert_with(Instant::now);
        }
        // The node beside this command ends last: it measures the clocks of the others until then.
        let waits = ended_at.is_some_and(|at| at.elapsed() < PATIENCE)
            && (sources[1..].iter().any(Source::is_asked) || !all_placed(&clocks, &sources));
        let mut has_moved = false;
        for at in 0..sources.len() {
            let ends = ended_at.is_some() && (at > 0 || !waits);
            let asked = match ask(node, plan, &mut sources, at, ends) {
                Ok(asked) => asked,
                // What has come is written all the same.
                Err(why) if sources.iter().any(|it| !it.events.is_empty()) => {
                    sources[0].left_out = Some(why.to_string());
                    ended_by = Some("node");
                    break;
                }
                Err(why) => return Err(why),
            };
            match asked {
                Asked::Nothing => {}
                Asked::Came(measured) => {
                    has_moved = true;
                    let (by, at) = (sources[at].id.clone(), now());
                    for clock in measured {
                        let (ahead, error) = (clock.ahead, clock.error);
                        clocks.measured(&by, &clock.node, Offset { ahead, error }, at);
                    }
                }
                Asked::NotRunning => {
                    ended_by = Some("node");
                    for source in sources.iter_mut().filter(|it| it.is_asked()) {
                        source.left_out = Some("the node beside this command has ended".to_owned());
                    }
                }
            }
        }
        // Without the node beside this command there is no clock, and no way to the others.
        let is_done = !sources.iter().any(Source::is_asked) || sources[0].left_out.is_some();
        if is_done || placed_at.is_none_or(|at| at.elapsed() >= CLOCKS) {
            // Before all have told their clocks, there is nothing to place.
            let have_told = sources
                .iter()
                .all(|it| !it.is_asked() || it.after > 0 || it.number > 1);
            if is_done || have_told {
                placed_at = Some(Instant::now());
                place(&clocks, &mut sources);
            }
        }
        if is_done {
            break;
        }
        if shown.elapsed() >= TELL {
            shown = Instant::now();
            let events: usize = sources.iter().map(|it| it.events.len()).sum();
            progress.set_message(format!("{events} events"));
            progress.tick();
        }
        if !has_moved {
            std::thread::sleep(LOOK);
        }
    }
    progress.finish_and_clear();
    let ahead = sources[0].ahead;
    Ok(Collected {
        sources,
        began: i128::from(began) + i128::from(ahead),
        seconds: begun.elapsed().as_secs_f64(),
        ended_by: ended_by.unwrap_or("refused"),
    })
}

/// Whether the clocks of all that have told something are known.
fn all_placed(clocks: &Clocks, sources: &[Source]) -> bool {
    let placed = clocks.placed(now());
    let mut told = sources.iter().filter(|it| !it.events.is_empty());
    told.all(|it| placed.contains_key(&it.id))
}

/// Notes where all clocks stand now.
fn place(clocks: &Clocks, sources: &mut [Source]) {
    let ahead = sources[0].ahead;
    let at = now();
    let by_origin = i128::from(at) + i128::from(ahead);
    let by_origin = u64::try_from(by_origin).unwrap_or(at);
    let names: HashMap<String, String> = sources
        .iter()
        .map(|it| (it.id.clone(), it.name.clone()))
        .collect();
    let placed = clocks.placed(at);
    for source in sources {
        if let Some((offset, via)) = placed.get(&source.id) {
            source.places.add(by_origin, *offset);
            let via = via.iter().map(|id| names.get(id).unwrap_or(id).clone());
            source.via = via.collect();
        }
    }
}

/// What came of a look at a source.
enum Asked {
    Nothing,
    Came(Vec<cluster::Clock>),
    NotRunning,
}

fn ask(
    node: &cluster::Node,
    plan: &Plan,
    sources: &mut [Source],
    at: usize,
    ends: bool,
) -> Result<Asked> {
    let kept: usize = sources.iter().map(|it| it.events.len()).sum();
    let room = MOST_EVENTS.saturating_sub(kept);
    let source = &mut sources[at];
    if !source.is_asked() {
        return Ok(Asked::Nothing);
    }
    let Some(question) = source.question(plan, ends) else {
        return Ok(Asked::Nothing);
    };
    let peer = (!source.is_here).then_some(source.id.as_str());
    let why = match node.inspect(peer, &question)? {
        Told::Page(mut page) => {
            let clocks = std::mem::take(&mut page.clocks);
            source.take(*page, room);
            return Ok(Asked::Came(clocks));
        }
        Told::NotRunning => return Ok(Asked::NotRunning),
        Told::Pending => "it has not answered for",
        Told::Unlinked => "there was no link with it for",
        Told::Unreadable => {
            source.left_out = Some("its answer cannot be read: is it another version?".to_owned());
            return Ok(Asked::Nothing);
        }
    };
    if source
        .since
        .is_some_and(|since| since.elapsed() >= PATIENCE)
    {
        let seconds = PATIENCE.as_secs();
        source.left_out = Some(format!("{why} {seconds} s"));
    }
    Ok(Asked::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Passage;

    fn plan() -> Plan {
        Plan {
            session: 1,
            domain: "frames".to_owned(),
            kinds: Vec::new(),
            until: None,
        }
    }

    fn page(next: u64, more: bool, events: usize) -> Page {
        let passage = Passage {
            began: 1,
            took: 1,
            key: 1,
            what: "message".to_owned(),
            peer: "roof".to_owned(),
            port: "log".to_owned(),
            bytes: 1,
        };
        Page {
            next,
            more,
            events: vec![Seen::Depart(passage); events],
            ..Page::default()
        }
    }

    #[test]
    fn a_source_is_asked_for_page_after_page_until_it_has_told_all() {
        let mut source = Source::peer("ab", "roof");
        let first = source.question(&plan(), false).unwrap();
        assert_eq!(
            (first.number, first.after, first.clocks, first.end),
            (1, 0, true, false)
        );
        // Not answered: asked for the same, also when it is to end.
        assert_eq!(source.question(&plan(), true).unwrap(), first);
        source.take(page(10, true, 10), 100);
        let second = source.question(&plan(), false).unwrap();
        assert_eq!((second.number, second.after, second.clocks), (2, 10, false));
        source.take(page(12, false, 2), 100);
        let third = source.question(&plan(), true).unwrap();
        assert_eq!((third.after, third.clocks, third.end), (12, true, true));
        source.take(page(15, true, 3), 100);
        assert!(source.is_asked());
        let last = source.question(&plan(), true).unwrap();
        assert!(last.end);
        source.take(page(15, false, 0), 100);
        assert!(!source.is_asked());
        assert_eq!(source.events.len(), 15);
    }

    #[test]
    fn what_has_no_place_is_counted_and_what_cannot_be_ends_it() {
        let mut source = Source::peer("ab", "roof");
        source.question(&plan(), false).unwrap();
        source.take(page(10, true, 10), 4);
        assert_eq!((source.events.len(), source.cut), (4, 6));
        source.question(&plan(), false).unwrap();
        source.take(page(9, true, 10), 100);
        assert_eq!((source.events.len(), source.is_asked()), (4, false));
        let mut refused = Source::peer("cd", "hall");
        refused.question(&plan(), false).unwrap();
        let why = Some("it does not span the domain".to_owned());
        let answer = Page {
            refused: why.clone(),
            ..page(3, true, 3)
        };
        refused.take(answer, 100);
        assert_eq!((refused.left_out, refused.events.len()), (why, 0));
    }
}
