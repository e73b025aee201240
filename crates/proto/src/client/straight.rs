//! Calls of one packet, and their answers, go in a straight line: all checks first, and then what
//! changes. Whatever is out of the ordinary is left to the general way.

use super::Client;
use crate::call::{Call, CallId, Outcome, Phase, index};
use crate::packet::is_right;
use crate::{Arrived, PacketPath, Time, end};
use portolan_abi::rpc::{Flags, Header, Kind, Status, WINDOW, low_24};

impl Client {
    /// The straight line of [`Self::call`]: a call of one packet, with an answer, that goes out now
    /// and finds the place of the next number free. `None`: nothing was done, and
    /// [`Self::call`] makes the call, or says why not.
    #[inline(always)]
    pub fn call_straight<L: PacketPath + ?Sized>(
        &mut self,
        now: Time,
        link: &mut L,
        call: Call,
        arguments: &mut Vec<u8>,
    ) -> Option<CallId> {
        const ORDINARY: Flags = Flags::UNCHECKED;
        if self.end.closed.is_some()
            || self.incarnation.is_none()
            || call.flags.without(ORDINARY) != Flags(0)
            || arguments.len() > self.end.short
        {
            return None;
        }
        let (floor, number) = (self.floor(), self.next);
        let at = index(number);
        if number - floor >= WINDOW || self.places[at].phase != Phase::Free {
            return None;
        }
        let id = self.place_call(now, call, arguments, number);
        self.transmit_whole(now, link, at, number - floor);
        Some(id)
    }

    /// As [`Client::poll`] and then [`Client::take`] of this call, in a straight line if the packet
    /// is its answer. What `poll` would refuse, the next call or poll says; what the link leaves
    /// ([`PacketPath::receive_straight`]), `poll` reads.
    ///
    /// ```
    /// use portolan_proto::{Call, Client, Outcome, Pipe, Server, Settings, Status, Time};
    /// let (mut at_client, mut at_server) = Pipe::pair();
    /// let (settings, now) = (Settings::default(), Time::ZERO);
    /// let (mut client, mut server) = (Client::new(settings, 7), Server::new(settings, 7, 1));
    /// client.met(1);
    /// let mut body = b"ping".to_vec();
    /// let id = client.call(now, &mut at_client, Call::new(0xfeed), &mut body)?;
    /// assert_eq!(client.poll_for(now, &mut at_client, id, &mut body), None);
    /// while server.poll(now, &mut at_server)? {}
    /// let incoming = server.take(now, &mut body).ok_or("nothing came")?;
    /// server.answer(&mut at_server, incoming.number, Status::Returned, &mut b"pong".to_vec())?;
    ///
    /// let outcome = client.poll_for(now, &mut at_client, id, &mut body);
    /// assert_eq!((outcome, &body[..]), (Some(Outcome::Answered(Status::Returned)), &b"pong"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn poll_for<L: PacketPath + ?Sized>(
        &mut self,
        now: Time,
        link: &mut L,
        id: CallId,
        body: &mut Vec<u8>,
    ) -> Option<Outcome> {
        let arrived = match self.end.closed {
            None => link.receive_straight(body),
            Some(_) => None,
        };
        let Some(arrived) = arrived else {
            return self.take(id, body);
        };
        match self.answered_straight(arrived, id, body.len()) {
            Some(status) => Some(Outcome::Answered(status)),
            None => self.poll_any(now, link, arrived, id, body),
        }
    }

    #[inline(never)]
    fn poll_any<L: PacketPath + ?Sized>(
        &mut self,
        now: Time,
        link: &mut L,
        arrived: Arrived,
        id: CallId,
        body: &mut Vec<u8>,
    ) -> Option<Outcome> {
        // What is wrong is noted there.
        let _ = end::handle(self, now, link, &arrived, body);
        self.take(id, body)
    }

    /// The straight line of an answer: whole, right, and that of this open call, which has ended
    /// then and is taken; how it ended. `None`: nothing that a second look at the packet would
    /// not find again.
    #[inline(always)]
    fn answered_straight(&mut self, arrived: Arrived, id: CallId, len: usize) -> Option<Status> {
        let Arrived {
            position,
            head,
            sum,
        } = arrived;
        let head = head.filter(|head| Header::begins_whole(*head, Kind::Answer))?;
        let header = Header::of_whole(head, Kind::Answer);
        let place = self.places.get(id.place)?;
        let number = place.number;
        // Of all numbers near the next one it is the only one with these bits.
        if place.serial != id.serial
            || place.phase != Phase::Open
            || place.is_one_way()
            || header.number != low_24(number)
            || self.next.wrapping_sub(number) > WINDOW
        {
            return None;
        }
        let key = self.end.key_of(Kind::Answer, number);
        if !is_right(key, position, head, len, sum) {
            return None;
        }
        let status = Status::from_code(header.what)?;
        // As in `arrived`, where this is the one number that it would tell of.
        if self.floor == number && header.when == low_24(number + 1) {
            self.floor = number + 1;
        } else if self.arrived(header.when, number, 0).is_err() {
            return None;
        }
        self.end.in_a_row = 0;
        self.free(id.place);
        Some(status)
    }

    /// Sends a call that one packet holds, so many numbers above the floor.
    #[inline(always)]
    fn transmit_whole<L: PacketPath + ?Sized>(
        &mut self,
        now: Time,
        link: &mut L,
        at: usize,
        behind: u64,
    ) {
        let place = &self.places[at];
        let header = place.header(now, behind);
        self.end.send(link, header, place.number, &[], &place.body);
    }
}
