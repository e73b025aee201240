//! The server's half.

use crate::assembly::{Progress, first_burst, pieces};
use crate::call::{index, span};
use crate::entry::{Entry, Incoming, Stage};
use crate::packet::{Seal, exactly, open, seal, words};
use crate::{Closed, Link, Misbehaved, Settings, Stale, Time};
use portolan_abi::rpc::{
    Flags, Header, Kind, NOT_WANTED, PLACES, Status, WINDOW, low_24, unpack_deadline,
};
use std::collections::VecDeque;

/// What a server has seen, for people and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerCounts {
    /// Packets that were dropped because they were damaged, or of another time.
    pub damaged: u64,
    /// Calls that came again, and were not handed out again.
    pub repeated: u64,
    /// Calls that came after their deadline, and were not handed out.
    pub too_late: u64,
    /// Packets that were sent again because the client asked.
    pub sent_again: u64,
}

/// The server's half of a connection; see the [crate].
///
/// It has no timer: whoever misses something is the client, and asks.
#[derive(Debug)]
pub struct Server {
    pub(crate) settings: Settings,
    pub(crate) session: u64,
    pub(crate) incarnation: u64,
    key: Seal,
    pub(crate) entries: Box<[Entry]>,
    /// Numbers below it were handed out, or will not come (T2).
    pub(crate) next: u64,
    /// The client waits for no number below it to arrive.
    pub(crate) floor: u64,
    /// Above every number that has been seen.
    pub(crate) seen: u64,
    /// Numbers from `next` on that will not come: a bit for each, at its place.
    pub(crate) withdrawn: u64,
    /// Numbers that may be taken, in order.
    pub(crate) ready: VecDeque<u64>,
    /// Numbers that are running and that nobody waits for any more.
    cancelled: VecDeque<u64>,
    /// One-way calls that have come since the client was last told.
    untold: u64,
    bad: u32,
    closed: Option<Closed>,
    counts: ServerCounts,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
}

impl Server {
    /// Where the one-way calls that were not told of make a packet of their own.
    const UNTOLD: u64 = WINDOW / 4;
    /// Best-effort calls in a row that may be lost: a quarter of what 24 bits tell apart.
    const MOST_LOST: u64 = 1 << 22;
    /// Numbers in a list at most: twice those that can be live.
    const MOST_LISTED: usize = 2 * PLACES;

    /// A server for the client of `session`. A later server for the same client has a higher
    /// `incarnation`, unless it is [thawed](Server::thaw) from the earlier one's state.
    pub fn new(settings: Settings, session: u64, incarnation: u64) -> Self {
        Self {
            settings,
            session,
            incarnation,
            key: Seal::new(session, incarnation),
            entries: (0..PLACES).map(|_| Entry::default()).collect(),
            next: 1,
            floor: 1,
            seen: 1,
            withdrawn: 0,
            ready: VecDeque::new(),
            cancelled: VecDeque::new(),
            untold: 0,
            bad: 0,
            closed: None,
            counts: ServerCounts::default(),
            inbox: Vec::new(),
            outbox: Vec::new(),
        }
    }

    /// Its client's session.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// What it has seen.
    pub fn counts(&self) -> ServerCounts {
        self.counts
    }

    /// Why it takes no more, if so.
    pub fn closed(&self) -> Option<Closed> {
        self.closed
    }

    /// Presents itself: a client of an older incarnation learns that its calls are lost.
    pub fn greet<L: Link + ?Sized>(&mut self, link: &mut L) {
        let body = self.incarnation.to_le_bytes();
        self.send(link, Kind::Welcome, 0, &body);
    }

    /// Calls that were handed out and not answered.
    pub fn running(&self) -> usize {
        let runs = |e: &&Entry| e.stage == Stage::Running;
        self.entries.iter().filter(runs).count()
    }

    /// Leaves: the client is told, and its open calls end.
    pub fn close<L: Link + ?Sized>(&mut self, link: &mut L) {
        if self.closed.is_none() {
            self.send(link, Kind::Bye, self.next, &[]);
            self.shut(Closed::Here);
        }
    }

    fn shut(&mut self, why: Closed) {
        self.closed = Some(why);
        self.ready.clear();
        for entry in &self.entries {
            if entry.stage == Stage::Running {
                self.cancelled.push_back(entry.number);
            }
        }
    }

    /// The next call, in order, and its arguments in place of what `body` holds. Those whose
    /// deadline has passed are left out.
    #[inline]
    pub fn take(&mut self, now: Time, body: &mut Vec<u8>) -> Option<Incoming> {
        while let Some(number) = self.ready.pop_front() {
            let entry = &mut self.entries[index(number)];
            if entry.number != number || entry.stage != Stage::Ready {
                continue;
            }
            if entry.deadline.is_some_and(|d| d < now) {
                self.counts.too_late += 1;
                entry.stage = Stage::Answered;
                entry.status = Status::TooLate as u32;
                entry.body.clear();
                continue;
            }
            entry.stage = Stage::Running;
            std::mem::swap(&mut entry.body, body);
            entry.body.clear();
            return Some(Incoming {
                number,
                method: entry.method,
                flags: entry.flags,
                deadline: entry.deadline,
            });
        }
        None
    }

    /// A call that is running although its client has given it up.
    pub fn take_cancelled(&mut self) -> Option<u64> {
        self.cancelled.pop_front()
    }

    /// Answers a call. `body` is empty afterwards. The answer to a one-way call is dropped.
    ///
    /// # Errors
    ///
    /// [`Stale`] if nobody waits for it any more.
    #[inline]
    pub fn answer<L: Link + ?Sized>(
        &mut self,
        link: &mut L,
        number: u64,
        status: Status,
        body: &mut Vec<u8>,
    ) -> Result<(), Stale> {
        let longest = self.settings.longest();
        let entry = &mut self.entries[index(number)];
        if entry.number != number || entry.stage != Stage::Running || self.closed.is_some() {
            body.clear();
            return Err(Stale { number });
        }
        if entry.flags.has(Flags::ONE_WAY) {
            entry.stage = Stage::Over;
            body.clear();
            return Ok(());
        }
        entry.stage = Stage::Answered;
        entry.status = status as u32;
        if body.len() > longest {
            entry.status = Status::TooLong as u32;
            body.clear();
        }
        std::mem::swap(&mut entry.body, body);
        body.clear();
        self.transmit(link, number, 0, first_burst(&self.settings));
        Ok(())
    }

    /// Reads one packet from the link; whether there was one.
    ///
    /// # Errors
    ///
    /// [`Closed`], once the connection is. What is running may end; nobody hears of it.
    #[inline]
    pub fn poll<L: Link + ?Sized>(&mut self, now: Time, link: &mut L) -> Result<bool, Closed> {
        if let Some(closed) = self.closed {
            return Err(closed);
        }
        let mut packet = std::mem::take(&mut self.inbox);
        let position = link.receive(&mut packet);
        let handled = match position {
            Some(position) => self.handle(now, link, position, &packet),
            None => Ok(()),
        };
        self.inbox = packet;
        if let Err(why) = handled {
            self.send(link, Kind::Bye, self.next, &[]);
            self.shut(why.into());
            return Err(why.into());
        }
        self.closed.map_or(Ok(position.is_some()), Err)
    }

    fn handle<L: Link + ?Sized>(
        &mut self,
        now: Time,
        link: &mut L,
        position: u64,
        packet: &[u8],
    ) -> Result<(), Misbehaved> {
        let Ok((header, number, body)) = open(&self.key, position, self.next, packet) else {
            self.counts.damaged += 1;
            self.bad += 1;
            if self.bad >= self.settings.most_damaged {
                return Err(Misbehaved::Garbage { packets: self.bad });
            }
            if self.bad.is_multiple_of(16) {
                // Perhaps a client that knows an earlier server, and never asks.
                self.greet(link);
            }
            return Ok(());
        };
        self.bad = 0;
        let kind = header.kind;
        let len = body.len();
        match kind {
            Kind::Call => return self.called(now, link, header, number, body),
            Kind::Hello => self.greet(link),
            Kind::Ask => {
                let words = exactly::<4>(body).ok_or(Misbehaved::Body { kind, len })?;
                self.asked(link, words)?;
            }
            Kind::Missing => {
                let [first, bits] = exactly::<2>(body).ok_or(Misbehaved::Body { kind, len })?;
                let first = u32::try_from(first).map_err(|_| Misbehaved::Body { kind, len })?;
                self.counts.sent_again += 1;
                self.transmit(link, number, first, bits);
            }
            Kind::Withdraw => {
                self.raise_floor_behind(header, number)?;
                self.withdraw(number, header.what == NOT_WANTED)?;
            }
            Kind::Done => {
                let entry = &mut self.entries[index(number)];
                if entry.number == number && entry.stage == Stage::Answered {
                    entry.stage = Stage::Over;
                    entry.body = Vec::new();
                }
            }
            Kind::Bye => self.shut(Closed::Left),
            Kind::Welcome | Kind::Answer | Kind::Arrived => {
                return Err(Misbehaved::WrongSide { kind });
            }
        }
        Ok(())
    }

    #[inline]
    fn called<L: Link + ?Sized>(
        &mut self,
        now: Time,
        link: &mut L,
        header: Header,
        number: u64,
        body: &[u8],
    ) -> Result<(), Misbehaved> {
        self.raise_floor_behind(header, number)?;
        if number < self.next {
            self.counts.repeated += 1;
            return Ok(());
        }
        self.in_window(number)?;
        if self.is_withdrawn(number) {
            self.counts.repeated += 1;
            return Ok(());
        }
        let (kind, len) = (header.kind, body.len());
        let settings = self.settings;
        let entry = self.enter(number);
        match entry.stage {
            Stage::Vacant | Stage::Partial => {}
            _ => {
                self.counts.repeated += 1;
                return Ok(());
            }
        }
        entry.method = header.what;
        entry.flags = header.flags.without(Flags::PIECE);
        entry.deadline = unpack_deadline(header.when, now.0).map(Time);
        let mut ask = false;
        if header.flags.has(Flags::PIECE) {
            let Some((place, piece)) = body.split_first_chunk::<8>() else {
                return Err(Misbehaved::Body { kind, len });
            };
            entry.stage = Stage::Partial;
            let place = u64::from_le_bytes(*place);
            match entry.assembly.add(&settings, place, piece)? {
                Progress::Complete => {
                    entry.body = entry.assembly.take();
                    entry.stage = Stage::Ready;
                }
                Progress::Ask => ask = true,
                Progress::Known | Progress::Waiting => {}
            }
        } else {
            entry.body.clear();
            entry.body.extend_from_slice(body);
            entry.assembly.clear();
            entry.stage = Stage::Ready;
        }
        if ask {
            self.ask_for(link, number);
        }
        // A number that was left out, or stayed without its last piece: asked for once, when
        // a later one comes.
        for gap in self.next.max(self.seen - 1)..number {
            if !self.has(gap) && !self.is_withdrawn(gap) {
                self.ask_for(link, gap);
            }
        }
        self.seen = self.seen.max(number + 1);
        self.hand_on(link);
        Ok(())
    }

    fn raise_floor_behind(&mut self, header: Header, number: u64) -> Result<(), Misbehaved> {
        let behind = u64::from(header.behind);
        let expected = self.next;
        if behind >= WINDOW || behind >= number {
            return Err(Misbehaved::Number { number, expected });
        }
        self.raise_floor(number - behind)
    }

    /// The client will send nothing below `floor` that has not arrived.
    fn raise_floor(&mut self, floor: u64) -> Result<(), Misbehaved> {
        let expected = self.next;
        if floor > self.next.saturating_add(Self::MOST_LOST) {
            let number = floor;
            return Err(Misbehaved::Number { number, expected });
        }
        if floor > self.next + WINDOW {
            // No entry lies beyond a window: step over those, and leap.
            self.floor = self.next + WINDOW;
            self.in_order();
            self.next = self.next.max(floor);
        }
        self.floor = self.floor.max(floor);
        self.in_order();
        Ok(())
    }

    fn in_window(&self, number: u64) -> Result<(), Misbehaved> {
        if number >= self.next + WINDOW {
            let expected = self.next;
            return Err(Misbehaved::Number { number, expected });
        }
        Ok(())
    }

    /// The entry of a number that has not been handed out, taken from an earlier number: the
    /// client has used its place again, so nobody waits for that one (T3).
    #[inline]
    fn enter(&mut self, number: u64) -> &mut Entry {
        let entry = &mut self.entries[index(number)];
        if entry.number != number {
            let earlier = (entry.stage == Stage::Running).then_some(entry.number);
            entry.number = number;
            entry.stage = Stage::Vacant;
            entry.body.clear();
            entry.assembly.clear();
            self.cancel(earlier);
        }
        &mut self.entries[index(number)]
    }

    fn cancel(&mut self, number: Option<u64>) {
        if let Some(number) = number {
            // Who does not take them need not hear of all.
            self.cancelled.truncate(Self::MOST_LISTED);
            self.cancelled.push_back(number);
        }
    }

    fn is_withdrawn(&self, number: u64) -> bool {
        number >= self.next && self.withdrawn & 1 << index(number) != 0
    }

    /// Whether a number that was not handed out has come whole.
    fn has(&self, number: u64) -> bool {
        let entry = &self.entries[index(number)];
        entry.number == number && entry.stage == Stage::Ready
    }

    /// Moves on over what has come, and what will not come (T2).
    #[inline]
    fn in_order(&mut self) {
        loop {
            let (next, at) = (self.next, index(self.next));
            let entry = &mut self.entries[at];
            let known = entry.number == next;
            if known && entry.stage == Stage::Ready {
                self.untold += u64::from(entry.flags.has(Flags::ONE_WAY));
                self.list(next);
            } else if self.withdrawn & 1 << at != 0 || next < self.floor {
                if known {
                    entry.stage = Stage::Over;
                    entry.assembly.clear();
                }
            } else {
                return;
            }
            self.withdrawn &= !(1 << at);
            self.next += 1;
        }
    }

    #[inline]
    fn list(&mut self, number: u64) {
        if self.ready.len() >= Self::MOST_LISTED {
            let entries = &self.entries;
            self.ready.retain(|&n| {
                let entry = &entries[index(n)];
                entry.number == n && entry.stage == Stage::Ready
            });
        }
        self.ready.push_back(number);
    }

    #[inline]
    fn hand_on<L: Link + ?Sized>(&mut self, link: &mut L) {
        self.in_order();
        if self.untold >= Self::UNTOLD {
            self.tell(link);
        }
    }

    /// Tells the client what has arrived.
    fn tell<L: Link + ?Sized>(&mut self, link: &mut L) {
        self.untold = 0;
        let mut bits = 0;
        for entry in &self.entries {
            if entry.stage == Stage::Ready && entry.number >= self.next {
                bits |= 1_u64
                    .checked_shl(span(self.next, entry.number))
                    .unwrap_or(0);
            }
        }
        self.send(link, Kind::Arrived, self.next, &words::<1, 8>([bits]));
    }

    /// Asks for a number of which nothing, or not everything, has come.
    fn ask_for<L: Link + ?Sized>(&mut self, link: &mut L, number: u64) {
        let settings = self.settings;
        let entry = &mut self.entries[index(number)];
        let (first, bits) = if entry.number == number && entry.stage == Stage::Partial {
            entry.assembly.wanted(&settings)
        } else {
            (0, first_burst(&settings))
        };
        let body = words::<2, 16>([u64::from(first), bits]);
        self.send(link, Kind::Missing, number, &body);
    }

    /// The client asks about the numbers from `floor` on whose bits are set, and about the
    /// calls in the places whose bits are set, of which it knows that they have arrived.
    fn asked<L: Link + ?Sized>(
        &mut self,
        link: &mut L,
        [incarnation, floor, numbers, places]: [u64; 4],
    ) -> Result<(), Misbehaved> {
        if incarnation != self.incarnation {
            self.greet(link);
            return Ok(());
        }
        self.raise_floor(floor)?;
        let mut tell = false;
        for bit in (0..WINDOW).filter(|b| numbers & 1 << b != 0) {
            let number = floor + bit;
            if number >= self.next {
                self.in_window(number)?;
                if self.has(number) || self.is_withdrawn(number) {
                    tell = true;
                } else {
                    self.ask_for(link, number);
                }
                self.seen = self.seen.max(number + 1);
            } else {
                tell |= !self.repeat(link, number);
            }
        }
        for at in (0..self.entries.len()).filter(|at| places & 1 << at != 0) {
            let number = self.entries[at].number;
            tell |= !self.repeat(link, number);
        }
        if tell {
            self.tell(link);
        }
        Ok(())
    }

    /// Sends an answer again, if there is one.
    fn repeat<L: Link + ?Sized>(&mut self, link: &mut L, number: u64) -> bool {
        let entry = &self.entries[index(number)];
        if entry.number != number || entry.stage != Stage::Answered {
            return false;
        }
        self.counts.sent_again += 1;
        self.transmit(link, number, 0, first_burst(&self.settings));
        true
    }

    /// A number will not come; or, if it has, is not wanted any more.
    fn withdraw(&mut self, number: u64, unwanted: bool) -> Result<(), Misbehaved> {
        if number >= self.next {
            self.in_window(number)?;
            if self.has(number) && !unwanted {
                // We asked, and it came meanwhile.
                return Ok(());
            }
            let entry = &mut self.entries[index(number)];
            if entry.number == number {
                entry.stage = Stage::Over;
                entry.assembly.clear();
            }
            self.withdrawn |= 1 << index(number);
            self.seen = self.seen.max(number + 1);
            self.in_order();
            return Ok(());
        }
        let entry = &mut self.entries[index(number)];
        if entry.number != number || !unwanted {
            return Ok(());
        }
        match entry.stage {
            Stage::Running => {
                entry.stage = Stage::Over;
                self.cancel(Some(number));
            }
            Stage::Ready | Stage::Answered => {
                entry.stage = Stage::Over;
                entry.body.clear();
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends an answer, or the pieces of it that are named.
    #[inline]
    fn transmit<L: Link + ?Sized>(&mut self, link: &mut L, number: u64, first: u32, bits: u64) {
        let entry = &self.entries[index(number)];
        if entry.number != number || entry.stage != Stage::Answered {
            return;
        }
        let header = Header {
            kind: Kind::Answer,
            flags: entry.flags.without(Flags::ONE_WAY),
            what: entry.status,
            number: 0,
            behind: 0,
            when: low_24(self.next),
        };
        self.untold = 0;
        let out = &mut self.outbox;
        if entry.body.len() <= self.settings.whole() {
            let parts = &[&entry.body[..], &[]];
            seal(&self.key, link.position(), header, number, parts, out);
            link.send(out);
            return;
        }
        let flags = header.flags.with(Flags::PIECE);
        let header = Header { flags, ..header };
        for (place, bytes) in pieces(&self.settings, &entry.body, first, bits) {
            let parts = &[&place.to_le_bytes()[..], bytes];
            seal(&self.key, link.position(), header, number, parts, out);
            link.send(out);
        }
    }

    fn send<L: Link + ?Sized>(&mut self, link: &mut L, kind: Kind, number: u64, body: &[u8]) {
        let header = Header {
            kind,
            flags: Flags(0),
            what: 0,
            number: 0,
            behind: 0,
            when: low_24(self.next),
        };
        let (parts, out) = (&[body, &[]], &mut self.outbox);
        seal(&self.key, link.position(), header, number, parts, out);
        link.send(out);
    }
}
