//! A client and a server whose peers say anything: well sealed, garbled, or heard before.

use arbitrary::{Result, Unstructured};
use portolan_proto::{
    Call, CallId, Client, Closed, Flags, Header, Kind, PacketPath, Pipe, Seal, Server, Settings,
    Status, Time, seal,
};
use std::time::Duration;

const SESSION: u64 = 77;
const INCARNATION: u64 = 3;

/// Packets are taken down on their way, and others put in between.
struct Tapped {
    pipe: Pipe,
    sent: Vec<Vec<u8>>,
}

impl PacketPath for Tapped {
    fn position(&self) -> u64 {
        self.pipe.position()
    }

    fn send(&mut self, packet: &[u8]) {
        if self.sent.len() < 64 {
            self.sent.push(packet.to_vec());
        }
        self.pipe.send(packet);
    }

    fn receive(&mut self, packet: &mut Vec<u8>) -> Option<u64> {
        self.pipe.receive(packet)
    }
}

struct World {
    now: Time,
    settings: Settings,
    client: Client,
    server: Server,
    /// The client's end, and the server's.
    ends: [Tapped; 2],
    calls: Vec<CallId>,
    running: Vec<u64>,
    /// The last number that was handed out (T2).
    last: u64,
}

pub(super) fn run(data: &[u8]) {
    let u = &mut Unstructured::new(data);
    let Ok(mut world) = World::new(u) else { return };
    while !u.is_empty() && world.step(u).is_ok() {}
    world.check();
}

impl World {
    fn new(u: &mut Unstructured<'_>) -> Result<Self> {
        let settings = Settings {
            packet: *u.choose(&[0, 48, 64, 256])?,
            burst: u.arbitrary()?,
            longest: *u.choose(&[0, 100, 4096])?,
            most_damaged: u.int_in_range(1..=300)?,
            ..Settings::default()
        };
        let (here, there) = Pipe::pair();
        let ends = [here, there].map(|pipe| Tapped {
            pipe,
            sent: Vec::new(),
        });
        let mut client = Client::new(settings, SESSION);
        if u.arbitrary()? {
            client.met(INCARNATION);
        }
        Ok(Self {
            now: Time(u.arbitrary::<u32>()?.into()),
            settings,
            client,
            server: Server::new(settings, SESSION, INCARNATION),
            ends,
            calls: Vec::new(),
            running: Vec::new(),
            last: 0,
        })
    }

    fn step(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=11)? {
            0..=2 => self.forge(u)?,
            3 => self.replay(u)?,
            4 => self.garble(u)?,
            5 | 6 => self.poll(),
            7 => self.call(u)?,
            8 => self.serve(u)?,
            9 => {
                self.now = self
                    .now
                    .after(Duration::from_millis(u.int_in_range(0..=2000)?));
                self.client.review(self.now, &mut self.ends[0]);
            }
            10 => self.end(u)?,
            _ => self.relocate(),
        }
        Ok(())
    }

    /// Puts a packet with a right checksum on the way to one of both.
    fn forge(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let kinds = [
            Kind::Hello,
            Kind::Welcome,
            Kind::Call,
            Kind::Answer,
            Kind::Ask,
            Kind::Arrived,
            Kind::Missing,
            Kind::Cancel,
            Kind::Done,
            Kind::Bye,
        ];
        let header = Header {
            kind: *u.choose(&kinds)?,
            flags: Flags(u.int_in_range(0..=15)?),
            what: low(small(u)?),
            number: 0,
            behind: u.arbitrary()?,
            when: low(small(u)?),
        };
        let number = small(u)?;
        let mut body = Vec::new();
        match u.int_in_range(0..=2)? {
            0 => {
                for _ in 0..u.int_in_range(0..=5)? {
                    body.extend(small(u)?.to_le_bytes());
                }
            }
            1 => {
                // A piece that may fit.
                let piece = (self.settings.packet.max(48) - 24) as u64;
                let total = u.int_in_range(0..=4100_u64)?;
                let offset = piece * u.int_in_range(0..=90)?;
                let len = total.saturating_sub(offset).min(piece);
                body.extend((offset | total << 32).to_le_bytes());
                body.resize(8 + usize::try_from(len).unwrap_or(0), 5);
            }
            _ => {
                let len = u.int_in_range(0..=255)?.min(u.len());
                body.extend(u.bytes(len)?);
            }
        }
        let incarnation = INCARNATION + u64::from(u.ratio(1, 16)?);
        let to_server: bool = u.arbitrary()?;
        let from = &mut self.ends[usize::from(!to_server)].pipe;
        let key = Seal::new(SESSION, incarnation);
        let mut packet = Vec::new();
        seal(&key, from.position(), header, number, &body, &mut packet);
        from.send(&packet);
        Ok(())
    }

    /// Says again what was said, to whom it was said or to who said it.
    fn replay(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (from, to) = (u.int_in_range(0..=1)?, u.int_in_range(0..=1)?);
        let said: &Tapped = &self.ends[from];
        if !said.sent.is_empty() {
            let packet = u.choose(&said.sent)?.clone();
            self.ends[to].pipe.send(&packet);
        }
        Ok(())
    }

    fn garble(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let to = u.int_in_range(0..=1)?;
        let len = u.int_in_range(0..=100)?;
        let packet = u.bytes(len)?;
        self.ends[to].pipe.send(packet);
        Ok(())
    }

    fn poll(&mut self) {
        let [here, there] = &mut self.ends;
        for _ in 0..8 {
            let server = self.server.poll(self.now, there);
            if let Err(closed) = server {
                assert_eq!(
                    self.server.poll(self.now, there),
                    Err(closed),
                    "it stays closed"
                );
            }
            let client = self.client.poll(self.now, here);
            if let Err(closed) = client {
                assert_eq!(
                    self.client.poll(self.now, here),
                    Err(closed),
                    "it stays closed"
                );
                assert_eq!(self.client.next_timeout(), None, "what was open has ended");
            }
        }
    }

    fn call(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let mut call = Call::new(u.arbitrary()?);
        call.flags = Flags(u.int_in_range(0..=15)?);
        if u.arbitrary()? {
            call.deadline = Some(Time(u.arbitrary()?));
        }
        let mut arguments = vec![3; u.int_in_range(0..=4100)?];
        let made = self
            .client
            .call(self.now, &mut self.ends[0], call, &mut arguments);
        if let Ok(id) = made {
            assert!(arguments.is_empty());
            self.calls.push(id);
        }
        Ok(())
    }

    fn serve(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let mut body = Vec::new();
        while let Some(incoming) = self.server.take(self.now, &mut body) {
            assert!(
                incoming.number > self.last,
                "{} after {}",
                incoming.number,
                self.last
            );
            assert!(body.len() <= self.settings.longest.max(256));
            self.last = incoming.number;
            self.running.push(incoming.number);
        }
        while self.server.take_cancelled().is_some() {}
        if let Some(number) = self.running.pop() {
            let mut result = vec![4; u.int_in_range(0..=4100)?];
            let end = &mut self.ends[1];
            let _ = self
                .server
                .answer(end, number, Status::Returned, &mut result);
            assert!(result.is_empty());
        }
        Ok(())
    }

    fn end(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        if self.calls.is_empty() {
            return Ok(());
        }
        let which = u.choose_index(self.calls.len())?;
        let id = self.calls[which];
        if u.arbitrary()? {
            self.client.cancel(&mut self.ends[0], id);
        } else if self.client.take(id, &mut Vec::new()).is_none() {
            return Ok(());
        }
        assert!(!self.client.is_open(id));
        self.calls.swap_remove(which);
        Ok(())
    }

    /// The server goes on elsewhere.
    fn relocate(&mut self) {
        if self.server.closed().is_some() {
            return;
        }
        if let Ok(state) = self.server.freeze() {
            match Server::thaw(self.settings, &state) {
                Ok(thawed) => self.server = thawed,
                Err(error) => panic!("its own state is refused: {error}"),
            }
        }
    }

    fn check(&mut self) {
        assert!(self.client.open() as u64 <= portolan_proto::WINDOW);
        self.client.close(&mut self.ends[0]);
        assert!(matches!(
            self.client.closed(),
            Some(Closed::Here | Closed::Left | Closed::Misbehaved(_))
        ));
    }
}

/// Most often near the beginning, where numbers mean something.
fn small(u: &mut Unstructured<'_>) -> Result<u64> {
    if u.ratio(3, 4)? {
        u.int_in_range(0..=200)
    } else {
        u.arbitrary()
    }
}

fn low(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
