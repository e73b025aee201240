//! Connects to other workers' bridges, from a domain of the worker's own.

use super::super::Doing;
use super::super::board::{Entry, MAX_WORKERS};
use super::super::payload;
use super::super::stream::{self, LEAST};
use super::bridges::{BATCH, LATEST, PARTS, names, read, seed};
use super::{PATIENCE, SHORT, Worker};
use portolan::channel::{ReadError, Reader, ReaderOptions};
use portolan::{
    Access, ConnectOptions, ConnectToError, Deadline, Domain, Followed, Message, PendingReply,
    Protection, RequestError, SendError, SendRight, Unsealed, WhenFull,
};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A worker's connections to other workers' bridges.
#[derive(Default)]
pub(super) struct Connections {
    /// At most one of each.
    sends: Option<Connection<SendRight>>,
    asks: Option<Connection<Asks>>,
    follows: Option<Connection<Follows>>,
    // After what belongs to it.
    abroad: Option<Domain>,
}

/// A connection at a bridge.
struct Connection<T> {
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
                // The first: what follows from it is no finding of its own.
                self.wrong.get_or_insert(what);
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

impl<T> Connection<T> {
    /// The same connection, with the value that `make` returns, if it returns one.
    fn make<U>(self, make: impl FnOnce(T) -> Option<U>) -> Option<Connection<U>> {
        Some(Connection {
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
    pub(super) fn use_bridges(&mut self) {
        self.doing(Doing::Bridging);
        match self.random.below(20) {
            0 => self.leave_bridge(),
            1 => self.holds.connections.asks = None,
            2 => self.holds.connections.follows = None,
            3..10 => self.send_abroad(),
            10..15 => self.ask_abroad(),
            _ => self.follow_news(),
        }
    }

    /// The domain from which it connects; no other process is in it.
    fn abroad(&mut self) -> Option<Domain> {
        if self.holds.connections.abroad.is_none() {
            let builder = Domain::builder("abroad")
                .size(16 << 20)
                .protection(self.protection)
                .deadline(PATIENCE);
            // Descriptors and memory run out.
            self.holds.connections.abroad = builder.private().ok();
        }
        self.holds.connections.abroad.clone()
    }

    /// Somebody who has a bridge, and its number.
    fn somebody(&mut self) -> Option<(usize, u64)> {
        let bridge = |worker| self.board.get(worker, Entry::Bridge);
        let open = (0..MAX_WORKERS).map(|worker| (worker, bridge(worker)));
        let open: Vec<_> = open.filter(|(_, bridge)| *bridge != 0).collect();
        open.get(self.random.below(open.len())).copied()
    }

    /// Connects to a bridge by one of the names under which it is offered.
    fn go<T>(
        &mut self,
        name: usize,
        protection: Protection,
        enter: impl FnOnce(&Domain, &str, ConnectOptions) -> Result<T, ConnectToError>,
    ) -> Option<Connection<T>> {
        let abroad = self.abroad()?;
        let (to, bridge) = self.somebody()?;
        let options = ConnectOptions::default().ring_bytes(64 << 10).queue(7);
        let options = options
            .protection(protection)
            .deadline(Deadline::after(SHORT));
        let (who, sealed) = (self.random.next(), protection == Protection::Sealed);
        match enter(&abroad, &names(to)[name], options) {
            // It may have been another bridge of this name.
            Ok(what) => (self.board.get(to, Entry::Bridge) == bridge).then_some(Connection {
                what,
                to,
                bridge,
                who,
                number: 0,
                sealed,
            }),
            Err(error) => {
                if let Some(why) = not_in(error) {
                    self.corrupt(&format!("a connection: {why}"));
                }
                None
            }
        }
    }

    fn connect_abroad(&mut self, name: usize) -> Option<Connection<SendRight>> {
        let other = Domain::builder(&self.name);
        let protection = [Protection::Copied, Protection::Sealed][self.random.below(2)];
        self.go(name, protection, |abroad, name, options| {
            abroad.connect_to(&other, name, options)
        })
    }

    /// Whether a bridge is closed; then its connections have to end.
    fn is_closed(&self, to: usize, bridge: u64, mut is_live: impl FnMut() -> bool) -> bool {
        if self.board.get(to, Entry::Bridge) == bridge {
            return false;
        }
        let end = Instant::now() + LATEST;
        while is_live() {
            if Instant::now() > end {
                self.corrupt("a connection: its bridge has closed, and it goes on");
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// The message after the last one of this connection.
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
        if self.holds.connections.sends.is_none() {
            self.holds.connections.sends = self.connect_abroad(0);
        }
        let Some(mut connection) = self.holds.connections.sends.take() else {
            return;
        };
        if self.is_closed(connection.to, connection.bridge, || {
            connection.what.is_live()
        }) {
            return;
        }
        for _ in 0..=self.random.below(BATCH) {
            if self.plants("bridge-lost") {
                connection.number += 1;
            }
            let (number, bridge) = (connection.number + 1, connection.bridge);
            let Some(letter) = self.letter(connection.who, number, bridge, connection.sealed)
            else {
                break;
            };
            let when_full = self.when_full_abroad();
            match connection.what.send(letter, when_full).map_err(|e| e.why) {
                Ok(()) => connection.number += 1,
                Err(SendError::Full { .. } | SendError::Allocate(_)) => break,
                // It is about to close, or its process has died.
                Err(SendError::DeadName) => return,
                Err(other) => return self.corrupt(&format!("a connection: {other}")),
            }
        }
        self.holds.connections.sends = Some(connection);
    }

    fn when_full_abroad(&mut self) -> WhenFull {
        match self.random.below(3) {
            0 => WhenFull::Wait(Deadline::after(SHORT)),
            _ => WhenFull::Fail,
        }
    }

    /// Leaves the bridge to which it sends in order: what it has sent will come.
    fn leave_bridge(&mut self) {
        let Some(connection) = self.holds.connections.sends.take() else {
            return;
        };
        let more = u64::from(self.plants("bridge-end"));
        self.board.set(self.at, Entry::LeftBridge, 0);
        self.board.set(self.at, Entry::LeftAs, connection.who);
        self.board
            .set(self.at, Entry::LeftAt, connection.number + more);
        if connection.what.is_live() {
            self.board
                .set(self.at, Entry::LeftBridge, connection.bridge);
        }
    }

    fn ask_abroad(&mut self) {
        if self.holds.connections.asks.is_none() {
            let connection = self.connect_abroad(1);
            let asks = |right| Some(Asks { right, open: None });
            self.holds.connections.asks = connection.and_then(|connection| connection.make(asks));
        }
        let Some(mut connection) = self.holds.connections.asks.take() else {
            return;
        };
        if self.is_closed(connection.to, connection.bridge, || {
            connection.what.right.is_live()
        }) {
            return;
        }
        let going = match connection.what.open.take() {
            Some(asked) => self.take_answer_abroad(&mut connection, asked),
            None => self.question(&mut connection),
        };
        match going {
            Ok(true) => self.holds.connections.asks = Some(connection),
            Ok(false) => {}
            Err(why) => self.corrupt(&format!("a connection: {why}")),
        }
    }

    /// Asks something; whether the connection goes on.
    fn question(&mut self, connection: &mut Connection<Asks>) -> Result<bool, String> {
        let number = connection.number + 1;
        let question = self.letter(connection.who, number, connection.bridge, connection.sealed);
        let Some(question) = question else {
            return Ok(true);
        };
        let len = question.len();
        match connection
            .what
            .right
            .begin_request(question, WhenFull::Fail)
        {
            Ok(pending) => {
                connection.number = number;
                connection.what.open = Some(Asked { pending, len });
                Ok(true)
            }
            Err(RequestError::Unsent(unsent)) => match unsent.why {
                SendError::Full { .. } | SendError::Allocate(_) => Ok(true),
                SendError::DeadName => Ok(false),
                other => Err(other.to_string()),
            },
            // Descriptors run out.
            Err(RequestError::NoReplyPort(..) | RequestError::NoDescriptor(_)) => Ok(true),
            Err(other) => Err(other.to_string()),
        }
    }

    /// Looks for the answer to what it has asked; whether the connection goes on.
    fn take_answer_abroad(
        &mut self,
        connection: &mut Connection<Asks>,
        mut asked: Asked,
    ) -> Result<bool, String> {
        match asked.pending.wait(Access::Later, Deadline::after(SHORT)) {
            Ok(answer) => {
                let (who, number) = read(&answer, connection.bridge)?;
                if (who, number, answer.len()) != (connection.who, connection.number, asked.len) {
                    let wanted = connection.number;
                    return Err(format!("the answer to {wanted} is one to {number}"));
                }
                let answered = self.board.of(self.at, Entry::Answered);
                answered.fetch_add(1, Ordering::Relaxed);
                Ok(true)
            }
            Err(RequestError::TimedOut) => {
                // Sometimes it is not waited for.
                connection.what.open = (!self.random.once_in(8)).then_some(asked);
                Ok(true)
            }
            Err(RequestError::Dropped | RequestError::NoDescriptor(_)) => Ok(true),
            Err(RequestError::ServerDead) => Ok(false),
            Err(other) => Err(other.to_string()),
        }
    }

    fn follow_news(&mut self) {
        if self.holds.connections.follows.is_none() {
            let other = Domain::builder(&self.name);
            self.holds.connections.follows = self
                .go(2, Protection::Copied, |abroad, name, options| {
                    abroad.follow(&other, name, options)
                })
                .and_then(|connection| connection.make(Follows::new));
        }
        let Some(mut connection) = self.holds.connections.follows.take() else {
            return;
        };
        let news = &mut connection.what;
        let most = 1 + self.random.below(3 * BATCH);
        let all = (0..most).take_while(|_| news.look()).count() < most;
        // Messages of a client that is gone are delivered too, and wait to be read.
        let over = self.is_closed(connection.to, connection.bridge, || {
            news.look();
            news.followed.is_live()
        }) || all && !news.followed.is_live();
        let followed = self.board.of(self.at, Entry::Followed);
        followed.fetch_add(std::mem::take(&mut news.heard), Ordering::Relaxed);
        match news.wrong.take() {
            Some(what) => self.corrupt(&format!("news: {what}")),
            None if over => {}
            None => self.holds.connections.follows = Some(connection),
        }
    }

    /// Ends all connections. Others may wait for what it has sent.
    pub(super) fn end_connections(&mut self) {
        self.leave_bridge();
        self.holds.connections.asks = None;
        self.holds.connections.follows = None;
    }

    /// Once its connections are over its own domain has all of its memory again.
    pub(super) fn check_abroad(&mut self) {
        let Some(abroad) = &self.holds.connections.abroad else {
            return;
        };
        let end = Instant::now() + self.latest("bridge-hold", LATEST);
        while let Ok(survey) = abroad.survey()
            && survey.memory.used > 0
        {
            if Instant::now() > end {
                return self.corrupt(&format!(
                    "a connection: all are over, and {:?} is held: {:?}",
                    survey.memory, survey.holdings
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Leaves its own domain; that it can says that no thread works for it any more.
    pub(super) fn leave_abroad(&mut self) {
        if let Some(abroad) = self.holds.connections.abroad.take()
            && let Err(error) = abroad.leave()
        {
            self.corrupt(&format!("a connection: {error}"));
        }
    }
}
