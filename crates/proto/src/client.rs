//! The client's half of a connection makes calls, and asks for answers that it misses.

mod straight;

use crate::assembly::{Progress, first_burst};
use crate::call::{Call, CallId, ClientCounts, Outcome, Phase, Place, index, span};
use crate::end::{self, End, Side, plain};
use crate::packet::{exactly, words};
use crate::time::nanos;
use crate::{Closed, Misbehaved, NotCalled, PacketPath, Settings, Time};
use portolan_abi::rpc::{
    Flags, Header, Kind, NOT_COMING, NOT_WANTED, PLACES, Status, WINDOW, expand,
};
use std::array;

/// The client's half of a connection; see the [crate].
#[derive(Debug)]
pub struct Client {
    end: End,
    /// The server's, once it has presented itself.
    incarnation: Option<u64>,
    /// How long a call waits before it is asked about, in nanoseconds.
    period: u64,
    places: Box<[Place; PLACES]>,
    next: u64,
    /// No number below it is waited for by the server.
    floor: u64,
    serial: u64,
    /// Places whose call is open: a bit each.
    open: u64,
    counts: ClientCounts,
}

impl Client {
    /// A client whose session is `session`: a number that no other client of the server has.
    pub fn new(settings: Settings, session: u64) -> Self {
        Self {
            end: End::new(settings, session, 0),
            incarnation: None,
            period: nanos(settings.period),
            places: Box::new(array::from_fn(|_| Place::default())),
            next: 1,
            floor: 1,
            serial: 0,
            open: 0,
            counts: ClientCounts::default(),
        }
    }

    /// Its session.
    pub fn session(&self) -> u64 {
        self.end.session
    }

    /// The server's incarnation, once it has presented itself.
    pub fn incarnation(&self) -> Option<u64> {
        self.incarnation
    }

    /// Why it takes no more calls, if so.
    pub fn closed(&self) -> Option<Closed> {
        self.end.closed
    }

    /// What it has seen.
    pub fn counts(&self) -> ClientCounts {
        ClientCounts {
            damaged: self.end.damaged,
            ..self.counts
        }
    }

    /// Calls that are open.
    pub fn open(&self) -> usize {
        self.open.count_ones() as usize
    }

    /// One-way calls that are open: of which it is not known yet that they have arrived.
    pub fn posted(&self) -> usize {
        let posted = |p: &&Place| p.phase == Phase::Open && p.flags.has(Flags::ONE_WAY);
        self.places.iter().filter(posted).count()
    }

    /// Has the next [`Client::review`] ask about one-way calls at once: a caller waits for them.
    pub fn hasten(&mut self, now: Time) {
        for place in &mut *self.places {
            if place.phase == Phase::Open && place.flags.has(Flags::ONE_WAY) {
                place.review = place.review.min(now);
            }
        }
    }

    /// Presents itself. Calls made before the server has answered go out when it does.
    pub fn greet<L: PacketPath + ?Sized>(&mut self, link: &mut L) {
        self.send(link, Kind::Hello, 0, &[]);
    }

    /// Takes for granted that the server of `incarnation` is there and knows this connection,
    /// as when both met elsewhere: no greeting is needed.
    pub fn met(&mut self, incarnation: u64) {
        self.incarnation = Some(incarnation);
        self.end.meet(incarnation);
    }

    /// Makes a call. `arguments` is empty afterwards, with capacity of an earlier use.
    ///
    /// # Errors
    ///
    /// [`NotCalled`]; the arguments are untouched.
    #[inline]
    pub fn call<L: PacketPath + ?Sized>(
        &mut self,
        now: Time,
        link: &mut L,
        call: Call,
        arguments: &mut Vec<u8>,
    ) -> Result<CallId, NotCalled> {
        match self.call_straight(now, link, call, arguments) {
            Some(id) => Ok(id),
            None => self.call_any(now, link, call, arguments),
        }
    }

    #[inline(never)]
    fn call_any<L: PacketPath + ?Sized>(
        &mut self,
        now: Time,
        link: &mut L,
        call: Call,
        arguments: &mut Vec<u8>,
    ) -> Result<CallId, NotCalled> {
        self.accepts(arguments.len())?;
        let (number, at) = self.vacant()?;
        let id = self.place_call(now, call, arguments, number);
        if self.incarnation.is_some() {
            self.transmit(now, link, at, 0, first_burst(&self.end.settings));
            let place = &self.places[at];
            if place.may_be_lost() && place.flags.has(Flags::ONE_WAY) {
                self.free(at);
            }
        }
        Ok(id)
    }

    /// Opens the place of this number, which is free, for a call.
    #[inline(always)]
    fn place_call(
        &mut self,
        now: Time,
        call: Call,
        arguments: &mut Vec<u8>,
        number: u64,
    ) -> CallId {
        let at = index(number);
        let place = &mut self.places[at];
        self.serial += 1;
        std::mem::swap(&mut place.body, arguments);
        arguments.clear();
        place.serial = self.serial;
        place.number = number;
        place.phase = Phase::Open;
        place.method = call.method;
        place.flags = call.flags.without(Flags::PIECE);
        place.deadline = call.deadline;
        place.arrived = false;
        place.period = self.period;
        place.review = now.after_nanos(self.period);
        place.answer.clear();
        self.next = number + 1;
        self.open |= 1 << at;
        CallId {
            place: at,
            serial: self.serial,
        }
    }

    /// Whether a call with so many bytes of arguments is made as soon as there is a place.
    ///
    /// # Errors
    ///
    /// [`NotCalled`]: it never will be.
    pub fn accepts(&self, len: usize) -> Result<(), NotCalled> {
        if let Some(closed) = self.end.closed {
            return Err(closed.into());
        }
        let most = self.end.settings.longest();
        if len > most {
            return Err(NotCalled::TooLong { len, most });
        }
        Ok(())
    }

    /// Whether a call would find a place.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        self.next_number().is_some()
    }

    /// How many calls would find a place.
    pub fn room(&mut self) -> usize {
        let end = self.floor().min(self.next) + WINDOW;
        let is_free = |number: &u64| self.places[index(*number)].phase == Phase::Free;
        (self.next..end).filter(is_free).count()
    }

    /// The number that the next call will have, if it finds a place now.
    #[inline]
    pub fn next_number(&mut self) -> Option<u64> {
        self.vacant().ok().map(|(number, _)| number)
    }

    /// Whether the call with this number has not ended, or no caller has taken its outcome.
    pub fn awaits(&self, number: u64) -> bool {
        // Of another server's answers the numbers are not known any more.
        let known = |p: &&Place| p.number == number || p.number == 0;
        let mut taken = self.places.iter().filter(|p| p.phase != Phase::Free);
        taken.any(|p| known(&p))
    }

    /// The next number whose place is free.
    #[inline]
    fn vacant(&mut self) -> Result<(u64, usize), NotCalled> {
        let end = self.floor().min(self.next) + WINDOW;
        let mut number = self.next;
        while number < end {
            let at = index(number);
            if self.places[at].phase == Phase::Free {
                return Ok((number, at));
            }
            number += 1;
        }
        Err(NotCalled::WindowFull { open: self.open() })
    }

    /// The lowest number that may still come (T2).
    #[inline(always)]
    fn floor(&mut self) -> u64 {
        while self.floor < self.next {
            let place = &self.places[index(self.floor)];
            if place.is_open(self.floor) && !place.arrived && !place.may_be_lost() {
                break;
            }
            self.floor += 1;
        }
        self.floor
    }

    /// Gives a call up: the server is told, and no outcome will come. `false` if it has ended;
    /// its outcome is thrown away.
    pub fn cancel<L: PacketPath + ?Sized>(&mut self, link: &mut L, id: CallId) -> bool {
        let Some(place) = self.place(id) else {
            return false;
        };
        let (number, was_open) = (place.number, place.phase == Phase::Open);
        self.free(id.place);
        if was_open {
            self.cancel_number(link, number, NOT_WANTED);
        }
        was_open
    }

    /// How a call ended, and its answer in place of what `body` holds; `None` while it is
    /// open. Told once.
    #[inline]
    pub fn take(&mut self, id: CallId, body: &mut Vec<u8>) -> Option<Outcome> {
        let place = self.place(id)?;
        let Phase::Ended(outcome) = place.phase else {
            return None;
        };
        std::mem::swap(&mut place.body, body);
        self.free(id.place);
        Some(outcome)
    }

    /// Whether a call is open: neither ended, nor a one-way call of which it is known that it
    /// has arrived.
    pub fn is_open(&self, id: CallId) -> bool {
        self.places
            .get(id.place)
            .is_some_and(|p| p.serial == id.serial && p.phase == Phase::Open)
    }

    /// The number of a call whose outcome no caller has taken.
    pub fn number(&self, id: CallId) -> Option<u64> {
        let place = self.places.get(id.place)?;
        (place.serial == id.serial && place.phase != Phase::Free).then_some(place.number)
    }

    #[inline]
    fn place(&mut self, id: CallId) -> Option<&mut Place> {
        self.places
            .get_mut(id.place)
            .filter(|p| p.serial == id.serial && p.phase != Phase::Free)
    }

    #[inline(always)]
    fn free(&mut self, at: usize) {
        let place = &mut self.places[at];
        self.open &= !(1 << at);
        place.phase = Phase::Free;
        place.body.clear();
        place.answer.clear();
    }

    #[inline]
    fn end(&mut self, at: usize, outcome: Outcome) {
        let place = &mut self.places[at];
        if place.phase != Phase::Open {
            return;
        }
        if place.flags.has(Flags::ONE_WAY) {
            self.counts.unconfirmed += 1;
            self.free(at);
            return;
        }
        self.open &= !(1 << at);
        place.phase = Phase::Ended(outcome);
        if !matches!(outcome, Outcome::Answered(_)) {
            place.body.clear();
        }
    }

    /// Leaves: open calls end as [`Outcome::Closed`], and the server is told.
    pub fn close<L: PacketPath + ?Sized>(&mut self, link: &mut L) {
        if self.end.closed.is_none() {
            self.bye(link);
            self.shut(Closed::Here);
        }
    }

    /// The server is known to be dead: open calls end as [`Outcome::ServerDied`].
    pub fn server_died(&mut self) {
        for at in 0..self.places.len() {
            self.end(at, Outcome::ServerDied);
        }
    }

    /// When [`Client::review`] is due; `None` while nothing is open (T4).
    pub fn next_timeout(&self) -> Option<Time> {
        let due = |p: &Place| {
            let review = (!p.may_be_lost()).then_some(p.review);
            review.into_iter().chain(p.deadline).min()
        };
        let mut open = self.open;
        let mut soonest = None;
        while open != 0 {
            let place = &self.places[open.trailing_zeros() as usize];
            open &= open - 1;
            soonest = soonest.into_iter().chain(due(place)).min();
        }
        soonest
    }

    /// Ends what is past its deadline, and asks about what has been open for a period.
    pub fn review<L: PacketPath + ?Sized>(&mut self, now: Time, link: &mut L) {
        // Only a question tells whether the server is still the same.
        let mut ask = self.end_late(now, link);
        // What has just ended raises it, so only now: the bits count from it.
        let floor = self.floor();
        let patience = nanos(self.end.settings.patience);
        let (mut numbers, mut by_place) = (0, 0);
        for at in 0..self.places.len() {
            let place = &mut self.places[at];
            if place.phase != Phase::Open || place.review > now || place.may_be_lost() {
                continue;
            }
            let number = place.number;
            ask = true;
            place.review = now.after_nanos(place.period);
            if place.arrived {
                place.period = place.period.saturating_mul(2).min(patience);
            }
            if !place.answer.is_empty() {
                let (first, bits) = place.answer.wanted(&self.end.settings);
                let body = words::<2, 16>([u64::from(first), bits]);
                self.send(link, Kind::Missing, number, &body);
            } else if place.arrived {
                by_place |= 1 << at;
            } else {
                // Below WINDOW: a number that has not arrived is not below the floor.
                numbers |= 1_u64.checked_shl(span(floor, number)).unwrap_or(0);
            }
        }
        if ask {
            self.counts.asked += 1;
            match self.incarnation {
                Some(incarnation) => {
                    let body = words::<4, 32>([incarnation, floor, numbers, by_place]);
                    self.send(link, Kind::Ask, 0, &body);
                }
                None => self.greet(link),
            }
        }
    }

    /// Ends what is past its deadline; whether there was anything.
    fn end_late<L: PacketPath + ?Sized>(&mut self, now: Time, link: &mut L) -> bool {
        let mut any = false;
        for at in 0..self.places.len() {
            let place = &self.places[at];
            if place.phase == Phase::Open && place.deadline.is_some_and(|d| d <= now) {
                any = true;
                let number = place.number;
                self.end(at, Outcome::Deadline);
                self.cancel_number(link, number, NOT_WANTED);
            }
        }
        any
    }

    /// Reads one packet from the link; whether there was one.
    ///
    /// # Errors
    ///
    /// [`Closed`], once the connection is; its calls have ended.
    #[inline]
    pub fn poll<L: PacketPath + ?Sized>(
        &mut self,
        now: Time,
        link: &mut L,
    ) -> Result<bool, Closed> {
        end::poll(self, now, link)
    }

    #[inline]
    fn answered<L: PacketPath + ?Sized>(
        &mut self,
        now: Time,
        link: &mut L,
        header: Header,
        number: u64,
        body: &mut Vec<u8>,
    ) -> Result<(), Misbehaved> {
        let what = header.what;
        let status = Status::from_code(what).ok_or(Misbehaved::Status { what })?;
        self.arrived(header.when, number, 0)?;
        let at = index(number);
        let place = &mut self.places[at];
        if !place.is_open(number) {
            self.counts.late += 1;
            return Ok(());
        }
        place.arrived = true;
        if !header.flags.has(Flags::PIECE) {
            std::mem::swap(&mut place.body, body);
            self.end(at, Outcome::Answered(status));
            return Ok(());
        }
        let Some((where_, piece)) = body.split_first_chunk::<8>() else {
            let (kind, len) = (header.kind, body.len());
            return Err(Misbehaved::Body { kind, len });
        };
        if !place.answer.is_empty() && place.status != what {
            return Err(Misbehaved::Status { what });
        }
        place.status = what;
        // More of it is on its way: no hurry to ask.
        place.review = now.after_nanos(place.period);
        let where_ = u64::from_le_bytes(*where_);
        match place.answer.add(&self.end.settings, where_, piece)? {
            Progress::Complete => {
                place.body = place.answer.take();
                self.end(at, Outcome::Answered(status));
                self.send(link, Kind::Done, number, &[]);
            }
            Progress::Ask => {
                let (first, bits) = place.answer.wanted(&self.end.settings);
                let body = words::<2, 16>([u64::from(first), bits]);
                self.send(link, Kind::Missing, number, &body);
            }
            Progress::Known | Progress::Waiting => {}
        }
        Ok(())
    }

    /// Everything before `before` has arrived, and what the bits say from `number` on.
    #[inline]
    fn arrived(&mut self, before: u32, number: u64, bits: u64) -> Result<(), Misbehaved> {
        let expected = self.next;
        let before = expand(before, expected);
        if before > expected {
            let number = before;
            return Err(Misbehaved::Number { number, expected });
        }
        while self.floor() < before {
            let at = index(self.floor);
            self.has_arrived(at);
        }
        let mut bits = bits;
        while bits != 0 {
            let there = number + u64::from(bits.trailing_zeros());
            bits &= bits - 1;
            let at = index(there);
            let place = &self.places[at];
            // It may be held up by a number before it, about which only a question from us
            // will tell: we go on asking about one-way calls until that is settled.
            if place.is_open(there) && !place.flags.has(Flags::ONE_WAY) {
                self.has_arrived(at);
            }
        }
        Ok(())
    }

    #[inline]
    fn has_arrived(&mut self, at: usize) {
        let place = &mut self.places[at];
        place.arrived = true;
        if place.flags.has(Flags::ONE_WAY) {
            self.free(at);
        }
    }

    /// The server presents itself (T6).
    fn welcomed<L: PacketPath + ?Sized>(&mut self, now: Time, link: &mut L, incarnation: u64) {
        match self.incarnation {
            Some(known) if incarnation <= known => return,
            Some(_) => {
                self.server_died();
                self.next = 1;
                self.floor = 1;
                for place in &mut *self.places {
                    // Ended, and not taken yet: of no number of this term.
                    place.number = 0;
                }
                self.met(incarnation);
                return;
            }
            None => self.met(incarnation),
        }
        for number in 1..self.next {
            let at = index(number);
            if !self.places[at].is_open(number) {
                continue;
            }
            self.transmit(now, link, at, 0, first_burst(&self.end.settings));
            let place = &self.places[at];
            if place.may_be_lost() && place.flags.has(Flags::ONE_WAY) {
                self.free(at);
            }
        }
    }

    /// Sends a call, or the pieces of it that are named.
    #[inline]
    fn transmit<L: PacketPath + ?Sized>(
        &mut self,
        now: Time,
        link: &mut L,
        at: usize,
        first: u32,
        bits: u64,
    ) {
        let floor = self.floor();
        let place = &self.places[at];
        let behind = place.number.saturating_sub(floor);
        let header = place.header(now, behind);
        let (number, which) = (place.number, (first, bits));
        self.end
            .send_message(link, header, number, &place.body, which);
    }

    fn cancel_number<L: PacketPath + ?Sized>(&mut self, link: &mut L, number: u64, why: u32) {
        self.send_what(link, Kind::Cancel, why, number, &[]);
    }

    fn send<L: PacketPath + ?Sized>(&mut self, link: &mut L, kind: Kind, number: u64, body: &[u8]) {
        self.send_what(link, kind, 0, number, body);
    }

    fn send_what<L: PacketPath + ?Sized>(
        &mut self,
        link: &mut L,
        kind: Kind,
        what: u32,
        number: u64,
        body: &[u8],
    ) {
        let behind = if kind == Kind::Cancel {
            number.saturating_sub(self.floor())
        } else {
            0
        };
        let header = Header {
            what,
            behind: u8::try_from(behind).unwrap_or(u8::MAX),
            ..plain(kind)
        };
        self.end.send(link, header, number, &[], body);
    }
}

impl Side for Client {
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
            Kind::Answer => return self.answered(now, link, header, number, body),
            Kind::Arrived => {
                let bits = exactly::<1>(body).ok_or(Misbehaved::Body { kind, len })?;
                self.arrived(header.when, number, bits[0])?;
            }
            Kind::Welcome => {
                let [incarnation] = exactly::<1>(body).ok_or(Misbehaved::Body { kind, len })?;
                self.welcomed(now, link, incarnation);
            }
            Kind::Missing => {
                let [first, bits] = exactly::<2>(body).ok_or(Misbehaved::Body { kind, len })?;
                let first = u32::try_from(first).map_err(|_| Misbehaved::Body { kind, len })?;
                let expected = self.next;
                if number >= expected {
                    // To cancel it would be to cancel a call to come.
                    return Err(Misbehaved::Number { number, expected });
                }
                let at = index(number);
                let place = &self.places[at];
                if place.is_open(number) && !place.may_be_lost() {
                    self.counts.sent_again += 1;
                    self.transmit(now, link, at, first, bits);
                } else {
                    self.cancel_number(link, number, NOT_COMING);
                }
            }
            Kind::Bye => self.shut(Closed::Left),
            Kind::Hello | Kind::Call | Kind::Ask | Kind::Cancel | Kind::Done => {
                return Err(Misbehaved::WrongSide { kind });
            }
        }
        Ok(())
    }

    /// What was under way when the server changed looks damaged: we ask in time.
    fn puzzled<L: PacketPath + ?Sized>(&mut self, _: &mut L) {}

    fn bye<L: PacketPath + ?Sized>(&mut self, link: &mut L) {
        self.send(link, Kind::Bye, self.next, &[]);
    }

    fn shut(&mut self, why: Closed) {
        self.end.closed = Some(why);
        let outcome = match why {
            Closed::Left => Outcome::ServerDied,
            other => Outcome::Closed(other),
        };
        for at in 0..self.places.len() {
            self.end(at, outcome);
        }
    }
}
