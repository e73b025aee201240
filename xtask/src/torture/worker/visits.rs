//! What a worker does at others' bridges, from a domain of its own.

use super::super::Doing;
use super::super::board::{Entry, MAX_WORKERS};
use super::super::payload;
use super::super::stream::{self, LEAST};
use super::bridges::{BATCH, LATEST, PARTS, names, read, seed};
use super::{PATIENCE, SHORT, Worker};
use portolan::channel::{ReadError, Reader, ReaderOptions};
use portolan::{
    Access, ConnectOptions, ConnectToError, Deadline, Domain, Followed, Message, PendingReply,
    Protection, RequestError, SendRight, Unsealed, Unsent, WhenFull,
};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What a worker has of others' bridges.
#[derive(Default)]
pub(super) struct Visits {
    /// At most one of each.
    sends: Option<Visit<SendRight>>,
    asks: Option<Visit<Asks>>,
    follows: Option<Visit<Follows>>,
    // After what belongs to it.
    abroad: Option<Domain>,
}

/// A visit at a bridge.
struct Visit<T> {
    what: T,
    to: usize,
    bridge: u64,
    who: u64,
    /// Messages so far.
    number: u64,
    sealed: bool,
}

struct Asks {
    right: SendRight,
    /// Not answered yet.
    open: Option<Asked>,
}

struct Asked {
    pending: PendingReply,
    /// Bytes of its parts.
    len: usize,
}

struct Follows {
    followed: Followed,
    reader: Reader,
    /// The number of the last message.
    last: Option<u64>,
    /// Messages that did not come, and units that its reader says it missed.
    lacks: u64,
    missed: u64,
    heard: u64,
    wrong: Option<String>,
}

impl Follows {
    fn new(followed: Followed) -> Option<Self> {
        // Entries and memory run out.
        let reader = followed.channel().bind_reader(ReaderOptions::default());
        Some(Self {
            reader: reader.ok()?,
            followed,
            last: None,
            lacks: 0,
            missed: 0,
            heard: 0,
            wrong: None,
        })
    }

    /// Looks for the next message; whether there was anything.
    fn look(&mut self) -> bool {
        match self.next() {
            Ok(any) => {
                self.heard += u64::from(any);
                any
            }
            Err(what) => {
                self.wrong = Some(what);
                false
            }
        }
    }

    fn next(&mut self) -> Result<bool, String> {
        let news = match self.reader.receive(Deadline::NOW) {
            Ok(news) => news,
            Err(ReadError::TimedOut | ReadError::WriterGone) => return Ok(false),
            Err(ReadError::Missed(missed)) => {
                self.missed += missed.units();
                return Ok(true);
            }
            Err(other) => return Err(other.to_string()),
        };
        let Some((_, number, waits)) = stream::read(&news, true) else {
            return Err(format!("{} bytes of news are torn", news.len()));
        };
        if let Some(last) = self.last.replace(number) {
            let lacks = number.checked_sub(last + 1);
            self.lacks += lacks.ok_or_else(|| format!("news {number} came after {last}"))?;
        }
        // Each is one unit; what was missed is told before what comes after it.
        let missed = self.missed + self.followed.missed();
        let told = if waits == 1 { 0 } else { missed };
        if self.lacks > told {
            return Err(format!(
                "before news {number} {} others did not come, and {missed} were told",
                self.lacks
            ));
        }
        Ok(true)
    }
}

impl<T> Visit<T> {
    /// The same visit, with what it has made of what it found, if it could.
    fn make<U>(self, make: impl FnOnce(T) -> Option<U>) -> Option<Visit<U>> {
        Some(Visit {
            what: make(self.what)?,
            to: self.to,
            bridge: self.bridge,
            who: self.who,
            number: self.number,
            sealed: self.sealed,
        })
    }
}

/// Why it is not there.
fn not_in(error: ConnectToError) -> Option<String> {
    match error {
        ConnectToError::Protection { .. }
        | ConnectToError::Sealed
        | ConnectToError::Version { .. }
        | ConnectToError::Garbled
        | ConnectToError::TooLarge { .. } => Some(error.to_string()),
        // Closed, stopped or dying; or something runs out.
        _ => None,
    }
}

impl Worker {
    pub(super) fn visit(&mut self) {
        self.doing(Doing::Visiting);
        match self.random.below(20) {
            0 => self.leave_bridge(),
            1 => self.holds.visits.asks = None,
            2 => self.holds.visits.follows = None,
            3..10 => self.send_abroad(),
            10..15 => self.ask_abroad(),
            _ => self.follow_news(),
        }
    }

    /// The domain from which it visits: of nobody else.
    fn abroad(&mut self) -> Option<Domain> {
        if self.holds.visits.abroad.is_none() {
            let builder = Domain::builder("abroad")
                .size(16 << 20)
                .protection(self.protection)
                .deadline(PATIENCE);
            // Descriptors and memory run out.
            self.holds.visits.abroad = builder.private().ok();
        }
        self.holds.visits.abroad.clone()
    }

    /// Somebody who has a bridge, and its number.
    fn somebody(&mut self) -> Option<(usize, u64)> {
        let bridge = |worker| self.board.get(worker, Entry::Bridge);
        let open = (0..MAX_WORKERS).map(|worker| (worker, bridge(worker)));
        let open: Vec<_> = open.filter(|(_, bridge)| *bridge != 0).collect();
        open.get(self.random.below(open.len())).copied()
    }

    /// Visits a bridge by one of the names under which it is offered.
    fn go<T>(
        &mut self,
        name: usize,
        protection: Protection,
        enter: impl FnOnce(&Domain, &str, ConnectOptions) -> Result<T, ConnectToError>,
    ) -> Option<Visit<T>> {
        let abroad = self.abroad()?;
        let (to, bridge) = self.somebody()?;
        let options = ConnectOptions::default().ring_bytes(64 << 10).queue(7);
        let options = options
            .protection(protection)
            .deadline(Deadline::after(SHORT));
        let (who, sealed) = (self.random.next(), protection == Protection::Sealed);
        match enter(&abroad, &names(to)[name], options) {
            // It may have been another bridge of this name.
            Ok(what) => (self.board.get(to, Entry::Bridge) == bridge).then_some(Visit {
                what,
                to,
                bridge,
                who,
                number: 0,
                sealed,
            }),
            Err(error) => {
                if let Some(why) = not_in(error) {
                    self.corrupt(&format!("a visit: {why}"));
                }
                None
            }
        }
    }

    fn connect_abroad(&mut self, name: usize) -> Option<Visit<SendRight>> {
        let other = Domain::builder(&self.name);
        let protection = [Protection::Copied, Protection::Sealed][self.random.below(2)];
        self.go(name, protection, |abroad, name, options| {
            abroad.connect_to(&other, name, options)
        })
    }

    /// Whether a bridge is closed; then its visits have to end.
    fn is_closed(&self, to: usize, bridge: u64, mut is_live: impl FnMut() -> bool) -> bool {
        if self.board.get(to, Entry::Bridge) == bridge {
            return false;
        }
        let end = Instant::now() + LATEST;
        while is_live() {
            if Instant::now() > end {
                self.corrupt("a visit: its bridge has closed, and it goes on");
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// The message after the last one of this visit.
    fn letter(&mut self, who: u64, number: u64, bridge: u64, sealed: bool) -> Option<Message> {
        let abroad = self.abroad()?;
        let header = stream::message(who, number, bridge, LEAST);
        let mut message = Message::new(&header).ok()?;
        // Sealed memory comes behind extents, which become one part of it.
        let extents = self.random.below(if sealed { 2 } else { 4 });
        for part in 0..extents {
            let bytes = PARTS[self.random.below(PARTS.len())];
            if self.plants("bridge-hold") {
                std::mem::forget(abroad.allocate(bytes));
            }
            let mut extent = abroad.allocate(bytes).ok()?;
            payload::stamp(&mut extent, seed(who, number, part));
            message.push(extent).ok()?;
        }
        if sealed && self.random.once_in(2) {
            let bytes = PARTS[self.random.below(PARTS.len())];
            let mut blank = Unsealed::new(bytes).ok()?;
            payload::stamp(&mut blank, seed(who, number, extents));
            message.push_sealed(blank.seal().ok()?).ok()?;
        }
        Some(message)
    }

    fn send_abroad(&mut self) {
        if self.holds.visits.sends.is_none() {
            self.holds.visits.sends = self.connect_abroad(0);
        }
        let Some(mut visit) = self.holds.visits.sends.take() else {
            return;
        };
        if self.is_closed(visit.to, visit.bridge, || visit.what.is_live()) {
            return;
        }
        for _ in 0..=self.random.below(BATCH) {
            if self.plants("bridge-lost") {
                visit.number += 1;
            }
            let (number, bridge) = (visit.number + 1, visit.bridge);
            let Some(letter) = self.letter(visit.who, number, bridge, visit.sealed) else {
                break;
            };
            let when_full = self.when_full_abroad();
            match visit.what.send(letter, when_full).map_err(|e| e.reason) {
                Ok(()) => visit.number += 1,
                Err(Unsent::Full { .. } | Unsent::Allocate(_)) => break,
                // It is about to close, or its process has died.
                Err(Unsent::DeadName) => return,
                Err(other) => return self.corrupt(&format!("a visit: {other}")),
            }
        }
        self.holds.visits.sends = Some(visit);
    }

    fn when_full_abroad(&mut self) -> WhenFull {
        match self.random.below(3) {
            0 => WhenFull::Wait(Deadline::after(SHORT)),
            _ => WhenFull::Fail,
        }
    }

    /// Leaves the bridge to which it sends in order: what it has sent will come.
    fn leave_bridge(&mut self) {
        let Some(visit) = self.holds.visits.sends.take() else {
            return;
        };
        let more = u64::from(self.plants("bridge-end"));
        self.board.set(self.at, Entry::LeftBridge, 0);
        self.board.set(self.at, Entry::LeftAs, visit.who);
        self.board.set(self.at, Entry::LeftAt, visit.number + more);
        if visit.what.is_live() {
            self.board.set(self.at, Entry::LeftBridge, visit.bridge);
        }
    }

    fn ask_abroad(&mut self) {
        if self.holds.visits.asks.is_none() {
            let visit = self.connect_abroad(1);
            let asks = |right| Some(Asks { right, open: None });
            self.holds.visits.asks = visit.and_then(|visit| visit.make(asks));
        }
        let Some(mut visit) = self.holds.visits.asks.take() else {
            return;
        };
        if self.is_closed(visit.to, visit.bridge, || visit.what.right.is_live()) {
            return;
        }
        let going = match visit.what.open.take() {
            Some(asked) => self.take_answer_abroad(&mut visit, asked),
            None => self.question(&mut visit),
        };
        match going {
            Ok(true) => self.holds.visits.asks = Some(visit),
            Ok(false) => {}
            Err(why) => self.corrupt(&format!("a visit: {why}")),
        }
    }

    /// Asks something; whether the visit goes on.
    fn question(&mut self, visit: &mut Visit<Asks>) -> Result<bool, String> {
        let number = visit.number + 1;
        let question = self.letter(visit.who, number, visit.bridge, visit.sealed);
        let Some(question) = question else {
            return Ok(true);
        };
        let len = question.len();
        match visit.what.right.request(question, WhenFull::Fail) {
            Ok(pending) => {
                visit.number = number;
                visit.what.open = Some(Asked { pending, len });
                Ok(true)
            }
            Err(RequestError::Unsent(unsent)) => match unsent.reason {
                Unsent::Full { .. } | Unsent::Allocate(_) => Ok(true),
                Unsent::DeadName => Ok(false),
                other => Err(other.to_string()),
            },
            // Descriptors run out.
            Err(RequestError::NoReplyPort(..) | RequestError::NoDescriptor(_)) => Ok(true),
            Err(other) => Err(other.to_string()),
        }
    }

    /// Looks for the answer to what it has asked; whether the visit goes on.
    fn take_answer_abroad(
        &mut self,
        visit: &mut Visit<Asks>,
        mut asked: Asked,
    ) -> Result<bool, String> {
        match asked.pending.wait(Access::Later, Deadline::after(SHORT)) {
            Ok(answer) => {
                let (who, number) = read(&answer, visit.bridge)?;
                if (who, number, answer.len()) != (visit.who, visit.number, asked.len) {
                    let wanted = visit.number;
                    return Err(format!("the answer to {wanted} is one to {number}"));
                }
                let answered = self.board.of(self.at, Entry::Answered);
                answered.fetch_add(1, Ordering::Relaxed);
                Ok(true)
            }
            Err(RequestError::TimedOut) => {
                // Sometimes it is not waited for.
                visit.what.open = (!self.random.once_in(8)).then_some(asked);
                Ok(true)
            }
            Err(RequestError::Dropped | RequestError::NoDescriptor(_)) => Ok(true),
            Err(RequestError::ServerDead) => Ok(false),
            Err(other) => Err(other.to_string()),
        }
    }

    fn follow_news(&mut self) {
        if self.holds.visits.follows.is_none() {
            let other = Domain::builder(&self.name);
            self.holds.visits.follows = self
                .go(2, Protection::Copied, |abroad, name, options| {
                    abroad.follow(&other, name, options)
                })
                .and_then(|visit| visit.make(Follows::new));
        }
        let Some(mut visit) = self.holds.visits.follows.take() else {
            return;
        };
        let news = &mut visit.what;
        let most = 1 + self.random.below(3 * BATCH);
        let all = (0..most).take_while(|_| news.look()).count() < most;
        // What has come is handed on also from who is gone, and waits to be read.
        let over = self.is_closed(visit.to, visit.bridge, || {
            news.look();
            news.followed.is_live()
        }) || all && !news.followed.is_live();
        let followed = self.board.of(self.at, Entry::Followed);
        followed.fetch_add(std::mem::take(&mut news.heard), Ordering::Relaxed);
        match news.wrong.take() {
            Some(what) => self.corrupt(&format!("news: {what}")),
            None if over => {}
            None => self.holds.visits.follows = Some(visit),
        }
    }

    /// Ends all visits. Others may wait for what it has sent.
    pub(super) fn end_visits(&mut self) {
        self.leave_bridge();
        self.holds.visits.asks = None;
        self.holds.visits.follows = None;
    }

    /// Once its visits are over its own domain has all of its memory again.
    pub(super) fn check_abroad(&mut self) {
        let Some(abroad) = &self.holds.visits.abroad else {
            return;
        };
        let end = Instant::now() + LATEST;
        while let Ok(survey) = abroad.survey()
            && survey.memory.used > 0
        {
            if Instant::now() > end {
                return self.corrupt(&format!(
                    "a visit: all are over, and {:?} is held: {:?}",
                    survey.memory, survey.holdings
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Leaves its own domain; that it can says that no thread works for it any more.
    pub(super) fn leave_abroad(&mut self) {
        if let Some(abroad) = self.holds.visits.abroad.take()
            && let Err(error) = abroad.leave()
        {
            self.corrupt(&format!("a visit: {error}"));
        }
    }
}
