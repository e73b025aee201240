//! Reads, judges and sends packets, alike for client and server.

use crate::assembly::pieces;
use crate::packet::{Seal, Unsealed, check};
use crate::{Arrived, Closed, Misbehaved, PacketPath, Settings, Time};
use portolan_abi::rpc::{Flags, Header, Kind};

/// One end of a connection, whichever.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) settings: Settings,
    pub(crate) session: u64,
    pub(crate) key: Seal,
    /// Of numbers that begin with these bits, what `key` says.
    era: (u64, u32),
    /// Bytes that a message may have that one packet holds.
    pub(crate) short: usize,
    /// Why it takes no more, if so.
    pub(crate) closed: Option<Closed>,
    /// Packets that were damaged, or of another time.
    pub(crate) damaged: u64,
    /// Of those, how many came in a row.
    pub(crate) in_a_row: u32,
    /// Their memory is kept.
    inbox: Vec<u8>,
    outbox: Vec<u8>,
}

/// What is different about the two.
pub(crate) trait Side {
    /// What is not.
    fn end(&mut self) -> &mut End;

    /// A number near those that may come.
    fn near(&self) -> u64;

    /// Does what a packet asks for. It may take the body, and leave other memory.
    fn handle<L: PacketPath + ?Sized>(
        &mut self,
        now: Time,
        link: &mut L,
        header: Header,
        number: u64,
        body: &mut Vec<u8>,
    ) -> Result<(), Misbehaved>;

    /// Many packets in a row were damaged.
    fn puzzled<L: PacketPath + ?Sized>(&mut self, link: &mut L);

    /// Tells the other side that it goes.
    fn bye<L: PacketPath + ?Sized>(&mut self, link: &mut L);

    /// Takes no more.
    fn shut(&mut self, why: Closed);
}

impl End {
    /// Damaged packets in a row after which a side does something about it.
    const PUZZLING: u32 = 16;

    pub(crate) fn new(settings: Settings, session: u64, incarnation: u64) -> Self {
        let key = Seal::new(session, incarnation);
        Self {
            settings,
            session,
            key,
            era: (0, key.of(Kind::Call, 0)),
            short: settings.whole().min(settings.longest()),
            closed: None,
            damaged: 0,
            in_a_row: 0,
            inbox: Vec::new(),
            outbox: Vec::new(),
        }
    }

    /// From now on the server is that of this incarnation.
    pub(crate) fn meet(&mut self, incarnation: u64) {
        self.key = Seal::new(self.session, incarnation);
        self.era = (0, self.key.of(Kind::Call, 0));
    }

    /// What goes into the checksum of a packet of this kind about this number.
    #[inline(always)]
    pub(crate) fn key_of(&mut self, kind: Kind, number: u64) -> u32 {
        let (bits, key) = self.era;
        if number >> 24 == bits && !kind.is_greeting() {
            return key;
        }
        self.other_key_of(kind, number)
    }

    #[cold]
    #[inline(never)]
    fn other_key_of(&mut self, kind: Kind, number: u64) -> u32 {
        let key = self.key.of(kind, number);
        if !kind.is_greeting() {
            self.era = (number >> 24, key);
        }
        key
    }

    /// Sends a packet.
    #[inline(always)]
    pub(crate) fn send<L: PacketPath + ?Sized>(
        &mut self,
        link: &mut L,
        header: Header,
        number: u64,
        place: &[u8],
        body: &[u8],
    ) {
        let key = self.key_of(header.kind, number);
        let packet = Unsealed::new(key, link.position(), header, number, place, body);
        link.send_unsealed(&packet, &mut self.outbox);
    }

    /// Sends a message whole, if a packet holds it; if not, the pieces of it that are named.
    #[inline]
    pub(crate) fn send_message<L: PacketPath + ?Sized>(
        &mut self,
        link: &mut L,
        header: Header,
        number: u64,
        message: &[u8],
        (first, bits): (u32, u64),
    ) {
        if message.len() <= self.settings.whole() {
            self.send(link, header, number, &[], message);
            return;
        }
        let flags = header.flags.with(Flags::PIECE);
        let header = Header { flags, ..header };
        let settings = self.settings;
        for (place, bytes) in pieces(&settings, message, first, bits) {
            self.send(link, header, number, &place.to_le_bytes(), bytes);
        }
    }
}

/// Reads one packet from the link; whether there was one.
#[inline]
pub(crate) fn poll<S: Side, L: PacketPath + ?Sized>(
    side: &mut S,
    now: Time,
    link: &mut L,
) -> Result<bool, Closed> {
    let end = side.end();
    if let Some(closed) = end.closed {
        return Err(closed);
    }
    let mut body = std::mem::take(&mut end.inbox);
    let arrived = link.receive_summed(&mut body);
    let handled = match &arrived {
        Some(arrived) => handle(side, now, link, arrived, &mut body),
        None => Ok(()),
    };
    side.end().inbox = body;
    handled.map(|()| arrived.is_some())
}

/// Handles a packet that has come, with this body.
pub(crate) fn handle<S: Side, L: PacketPath + ?Sized>(
    side: &mut S,
    now: Time,
    link: &mut L,
    arrived: &Arrived,
    body: &mut Vec<u8>,
) -> Result<(), Closed> {
    if let Err(why) = read(side, now, link, arrived, body) {
        side.bye(link);
        side.shut(why.into());
        return Err(why.into());
    }
    side.end().closed.map_or(Ok(()), Err)
}

#[inline]
fn read<S: Side, L: PacketPath + ?Sized>(
    side: &mut S,
    now: Time,
    link: &mut L,
    &Arrived {
        position,
        head,
        sum,
    }: &Arrived,
    body: &mut Vec<u8>,
) -> Result<(), Misbehaved> {
    let near = side.near();
    let end = side.end();
    if let Some(head) = head
        && let Ok((header, number)) = check(&end.key, position, near, head, body, sum)
    {
        end.in_a_row = 0;
        return side.handle(now, link, header, number, body);
    }
    end.damaged += 1;
    end.in_a_row += 1;
    let packets = end.in_a_row;
    if packets >= end.settings.most_damaged {
        return Err(Misbehaved::Garbage { packets });
    }
    if packets.is_multiple_of(End::PUZZLING) {
        side.puzzled(link);
    }
    Ok(())
}

/// A packet without a number's flags.
#[inline]
pub(crate) const fn plain(kind: Kind) -> Header {
    Header {
        kind,
        flags: Flags(0),
        what: 0,
        number: 0,
        behind: 0,
        when: 0,
    }
}
