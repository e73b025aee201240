//! The server's half of a connection takes calls in, and keeps answers until the client has them.

mod order;

use crate::assembly::{Progress, first_burst};
use crate::call::{index, span};
use crate::end::{self, End, Side, plain};
use crate::entry::{Entry, Incoming, Looked, Stage};
use crate::packet::{exactly, is_right, words};
use crate::{Arrived, Closed, Misbehaved, PacketPath, Settings, Stale, Time};
use portolan_abi::rpc::{
    Flags, Header, Kind, NOT_WANTED, PLACES, Status, WINDOW, low_24, unpack_deadline,
};
use std::array;
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
    /// One-way calls that were handed out and refused: no thread was free to run them.
    pub refused: u64,
}

/// The server's half of a connection; see the [crate].
///
/// It has no timer: the client asks for what it misses.
#[derive(Debug)]
pub struct Server {
    pub(crate) end: End,
    pub(crate) incarnation: u64,
    pub(crate) entries: Box<[Entry; PLACES]>,
    /// Numbers below it were handed out, or will not come (T2).
    pub(crate) next: u64,
    /// The client waits for no number below it to arrive.
    pub(crate) floor: u64,
    /// Above every number that has been seen.
    pub(crate) seen: u64,
    /// Numbers from `next` on that will not come: a bit for each, at its place.
    pub(crate) cancelled_numbers: u64,
    /// Numbers that may be taken, in order.
    pub(crate) ready: VecDeque<u64>,
    /// Numbers that are running and that no client waits for any more.
    cancelled: VecDeque<u64>,
    /// One-way calls that have come since the client was last told.
    untold: u64,
    counts: ServerCounts,
}

impl Server {
    /// Where the one-way calls that were not told of make a packet of their own.
    const UNTOLD: u64 = WINDOW / 4;

    /// A server for the client of `session`. A later server for the same client has a higher
    /// `incarnation`, unless it is [thawed](Server::thaw) from the earlier one's state.
    pub fn new(settings: Settings, session: u64, incarnation: u64) -> Self {
        Self {
            end: End::new(settings, session, incarnation),
            incarnation,
            entries: Box::new(array::from_fn(|_| Entry::default())),
            next: 1,
            floor: 1,
            seen: 1,
            cancelled_numbers: 0,
            ready: VecDeque::new(),
            cancelled: VecDeque::new(),
            untold: 0,
            counts: ServerCounts::default(),
        }
    }

    /// Its client's session.
    pub fn session(&self) -> u64 {
        self.end.session
    }

    /// The number that it expects next: so many have been handed out, or will not come.
    pub fn expected(&self) -> u64 {
        self.next
    }

    /// What it has seen.
    pub fn counts(&self) -> ServerCounts {
        ServerCounts {
            damaged: self.end.damaged,
            ..self.counts
        }
    }

    /// Why it takes no more, if so.
    pub fn closed(&self) -> Option<Closed> {
        self.end.closed
    }

    /// Presents itself: a client of an older incarnation learns that its calls are lost.
    pub fn greet<L: PacketPath + ?Sized>(&mut self, link: &mut L) {
        let body = self.incarnation.to_le_bytes();
        self.send(link, Kind::Welcome, 0, &body);
    }

    /// Calls that were handed out and not answered.
    pub fn running(&self) -> usize {
        let runs = |e: &&Entry| e.stage == Stage::Running;
        self.entries.iter().filter(runs).count()
    }

    /// Leaves: the client is told, and its open calls end.
    pub fn close<L: PacketPath + ?Sized>(&mut self, link: &mut L) {
        if self.end.closed.is_none() {
            self.bye(link);
            self.shut(Closed::Here);
        }
    }

    /// The next call, in order, and its arguments in place of what `body` holds. Those whose
    /// deadline has passed are left out; once it is closed, all but one-way calls.
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

    /// Whether calls have come that were not [taken](Server::take).
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether the call with this number may still come, waits to be taken, or is running.
    pub fn awaits(&self, number: u64) -> bool {
        let entry = &self.entries[index(number)];
        let there = entry.number == number && matches!(entry.stage, Stage::Ready | Stage::Running);
        there || number >= self.next
    }

    /// A call that is running although its client has given it up.
    #[inline]
    pub fn take_cancelled(&mut self) -> Option<u64> {
        self.cancelled.pop_front()
    }

    /// Answers a call. `body` is empty afterwards. The answer to a one-way call is dropped.
    ///
    /// # Errors
    ///
    /// [`Stale`] if the client does not wait for it any more.
    #[inline(always)]
    pub fn answer<L: PacketPath + ?Sized>(
        &mut self,
        link: &mut L,
        number: u64,
        status: Status,
        body: &mut Vec<u8>,
    ) -> Result<(), Stale> {
        let longest = self.end.settings.longest();
        let entry = &mut self.entries[index(number)];
        if entry.number != number || entry.stage != Stage::Running || self.end.closed.is_some() {
            body.clear();
            return Err(Stale { number });
        }
        if entry.flags.has(Flags::ONE_WAY) {
            entry.stage = Stage::Over;
            self.counts.refused += u64::from(status == Status::Busy);
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
        if entry.body.len() <= self.end.short {
            self.transmit_whole(link, number);
        } else {
            self.transmit(link, number, 0, first_burst(&self.end.settings));
        }
        Ok(())
    }

    /// As [`Self::poll`]; but if what has come is the next call, and whole, and no other one waits
    /// to be taken, it is taken in a straight line, as [`Self::take`] would take it, with its
    /// arguments in place of what `body` holds. What the link leaves ([`PacketPath::receive_straight`]),
    /// `poll` reads.
    ///
    /// # Errors
    ///
    /// As [`Self::poll`].
    ///
    /// ```
    /// use portolan_proto::{Call, Client, Looked, Pipe, Server, Settings, Time};
    /// let (mut at_client, mut at_server) = Pipe::pair();
    /// let (settings, now) = (Settings::default(), Time::ZERO);
    /// let (mut client, mut server) = (Client::new(settings, 7), Server::new(settings, 7, 1));
    /// client.met(1);
    /// let mut body = b"ping".to_vec();
    /// client.call(now, &mut at_client, Call::new(0xfeed), &mut body)?;
    /// let Looked::Call(incoming) = server.poll_call(now, &mut at_server, &mut body)? else {
    ///     panic!("it is the first call, and whole");
    /// };
    /// assert_eq!((incoming.method, &body[..]), (0xfeed, &b"ping"[..]));
    /// assert_eq!(server.poll_call(now, &mut at_server, &mut body), Ok(Looked::Nothing));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn poll_call<L: PacketPath + ?Sized>(
        &mut self,
        now: Time,
        link: &mut L,
        body: &mut Vec<u8>,
    ) -> Result<Looked, Closed> {
        if let Some(closed) = self.end.closed {
            return Err(closed);
        }
        let Some(arrived) = link.receive_straight(body) else {
            return Ok(Looked::Nothing);
        };
        match self.called_straight(now, arrived, body.len()) {
            Some(incoming) => Ok(Looked::Call(incoming)),
            None => self.poll_any(now, link, arrived, body),
        }
    }

    #[inline(never)]
    fn poll_any<L: PacketPath + ?Sized>(
        &mut self,
        now: Time,
        link: &mut L,
        arrived: Arrived,
        body: &mut Vec<u8>,
    ) -> Result<Looked, Closed> {
        end::handle(self, now, link, &arrived, body).map(|()| Looked::Packet)
    }

    /// Reads one packet from the link; whether there was one.
    ///
    /// # Errors
    ///
    /// [`Closed`], once the connection is. Running calls may end; the client does not hear of it.
    #[inline]
    pub fn poll<L: PacketPath + ?Sized>(
        &mut self,
        now: Time,
        link: &mut L,
    ) -> Result<bool, Closed> {
        end::poll(self, now, link)
    }

    #[inline]
    fn called<L: PacketPath + ?Sized>(
        &mut self,
        now: Time,
        link: &mut L,
        header: Header,
        number: u64,
        body: &mut Vec<u8>,
    ) -> Result<(), Misbehaved> {
        self.raise_floor_behind(header, number)?;
        if number < self.next {
            self.counts.repeated += 1;
            return Ok(());
        }
        self.in_window(number)?;
        if self.is_cancelled(number) {
            self.counts.repeated += 1;
            return Ok(());
        }
        let (kind, len) = (header.kind, body.len());
        let settings = self.end.settings;
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
            std::mem::swap(&mut entry.body, body);
            entry.assembly.clear();
            entry.stage = Stage::Ready;
        }
        if ask {
            self.ask_for(link, number);
        }
        // A number that was left out, or stayed without its last piece: asked for once, when
        // a later one comes.
        for gap in self.next.max(self.seen - 1)..number {
            if !self.has(gap) && !self.is_cancelled(gap) {
                self.ask_for(link, gap);
            }
        }
        self.seen = self.seen.max(number + 1);
        self.deliver(link);
        Ok(())
    }

    /// The straight line of a call: whole, right, with an answer, in time, the number that is
    /// expected, while nothing else has come, waits or is given up. It is running then. `None`:
    /// nothing was changed.
    #[inline(always)]
    fn called_straight(&mut self, now: Time, arrived: Arrived, len: usize) -> Option<Incoming> {
        let Arrived {
            position,
            head,
            sum,
        } = arrived;
        let head = head.filter(|head| Header::begins_whole(*head, Kind::Call))?;
        let header = Header::of_whole(head, Kind::Call);
        let (number, behind) = (self.next, u64::from(header.behind));
        if header.number != low_24(number)
            || self.seen > number
            || self.cancelled_numbers != 0
            || !self.ready.is_empty()
            || behind >= WINDOW
            || behind >= number
            || header.flags.has(Flags::ONE_WAY)
        {
            return None;
        }
        let key = self.end.key_of(Kind::Call, number);
        if !is_right(key, position, head, len, sum) {
            return None;
        }
        let deadline = unpack_deadline(header.when, now.0).map(Time);
        let entry = &mut self.entries[index(number)];
        if entry.number == number
            || entry.stage == Stage::Running
            || !entry.assembly.is_empty()
            || deadline.is_some_and(|d| d < now)
        {
            return None;
        }
        self.end.in_a_row = 0;
        self.floor = self.floor.max(number - behind);
        self.next = number + 1;
        self.seen = number + 1;
        entry.number = number;
        entry.stage = Stage::Running;
        entry.method = header.what;
        entry.flags = header.flags;
        entry.deadline = deadline;
        entry.body.clear();
        Some(Incoming {
            number,
            method: header.what,
            flags: header.flags,
            deadline,
        })
    }

    #[inline]
    fn deliver<L: PacketPath + ?Sized>(&mut self, link: &mut L) {
        self.in_order();
        if self.untold >= Self::UNTOLD {
            self.tell(link);
        }
    }

    /// Tells the client what has arrived.
    fn tell<L: PacketPath + ?Sized>(&mut self, link: &mut L) {
        self.untold = 0;
        let mut bits = 0;
        for entry in &*self.entries {
            if entry.stage == Stage::Ready && entry.number >= self.next {
                bits |= 1_u64
                    .checked_shl(span(self.next, entry.number))
                    .unwrap_or(0);
            }
        }
        self.send(link, Kind::Arrived, self.next, &words::<1, 8>([bits]));
    }

    /// Asks for a number of which nothing, or not everything, has come.
    fn ask_for<L: PacketPath + ?Sized>(&mut self, link: &mut L, number: u64) {
        let settings = self.end.settings;
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
    fn asked<L: PacketPath + ?Sized>(
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
                if self.has(number) || self.is_cancelled(number) {
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
    fn repeat<L: PacketPath + ?Sized>(&mut self, link: &mut L, number: u64) -> bool {
        let entry = &self.entries[index(number)];
        if entry.number != number || entry.stage != Stage::Answered {
            return false;
        }
        self.counts.sent_again += 1;
        self.transmit(link, number, 0, first_burst(&self.end.settings));
        true
    }

    /// Sends an answer, or the pieces of it that are named.
    #[inline]
    fn transmit<L: PacketPath + ?Sized>(
        &mut self,
        link: &mut L,
        number: u64,
        first: u32,
        bits: u64,
    ) {
        let entry = &self.entries[index(number)];
        if entry.number != number || entry.stage != Stage::Answered {
            return;
        }
        let header = entry.header(self.next);
        self.untold = 0;
        self.end
            .send_message(link, header, number, &entry.body, (first, bits));
    }

    /// Sends the answer to this call, which has one that a packet holds.
    #[inline(always)]
    fn transmit_whole<L: PacketPath + ?Sized>(&mut self, link: &mut L, number: u64) {
        let entry = &self.entries[index(number)];
        let header = entry.header(self.next);
        self.untold = 0;
        self.end.send(link, header, number, &[], &entry.body);
    }

    fn send<L: PacketPath + ?Sized>(&mut self, link: &mut L, kind: Kind, number: u64, body: &[u8]) {
        let when = low_24(self.next);
        let header = Header {
            when,
            ..plain(kind)
        };
        self.end.send(link, header, number, &[], body);
    }
}

impl Side for Server {
    #[inline]
    fn end(&mut self) -> &mut End {
        &mut self.end
    }

    #[inline]
    fn near(&self) -> u64 {
        self.next
    }

    #[inline]
    fn handle<L: PacketPath + ?Sized>(
        &mut self,
        now: Time,
        link: &mut L,
        header: Header,
        number: u64,
        body: &mut Vec<u8>,
    ) -> Result<(), Misbehaved> {
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
            Kind::Cancel => {
                self.raise_floor_behind(header, number)?;
                self.cancel_number(number, header.what == NOT_WANTED)?;
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

    /// Perhaps a client that knows an earlier server, and never asks.
    fn puzzled<L: PacketPath + ?Sized>(&mut self, link: &mut L) {
        self.greet(link);
    }

    fn bye<L: PacketPath + ?Sized>(&mut self, link: &mut L) {
        self.send(link, Kind::Bye, self.next, &[]);
    }

    fn shut(&mut self, why: Closed) {
        self.end.closed = Some(why);
        // Of one-way calls the client knows that they have come, and may have left on that.
        let entries = &self.entries;
        self.ready.retain(|&number| {
            let entry = &entries[index(number)];
            entry.number == number && entry.flags.has(Flags::ONE_WAY)
        });
        for entry in &*self.entries {
            if entry.stage == Stage::Running {
                self.cancelled.push_back(entry.number);
            }
        }
    }
}
