//! Messages between domains, with a stranger at one end that follows no rule: a visitor at an
//! offered port, or a process that offers one. Real domains of this process, a real socket,
//! and memory that the stranger writes as a file.

use arbitrary::{Result, Unstructured};
use portolan::{
    Access, ConnectOptions, Deadline, Domain, Message, OfferOptions, OfferedPort, Permissions,
    PortOptions, Protection, ReceiveRight, SendRight, WhenFull,
};
use portolan_abi::FORMAT_VERSION;
use portolan_abi::gate::{
    Answer, Ask, DESCRIPTORS, Denied, Granted, LANE_BYTES, Manifest, RING, SEALED, control, pair_bytes,
};
use portolan_abi::hello::socket_name;
use portolan_abi::limits::{LINE, MAX_EXTENTS, MAX_HEADER, PAGE};
use portolan_abi::slot::Kind;
use portolan_abi::visit::{OfferKind, OfferName, Visit, VisitAnswer};
use portolan_sys::memory;
use portolan_sys::process::PidFd;
use portolan_sys::socket::{self, Address, SocketError};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long anybody may take before that is a finding.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a message that is let in, and of an answer.
const MOST: u64 = 1 << 20;
/// What the honest visitor says.
const HELLO: &[u8] = b"hello";
/// The port that takes messages, and the one that takes requests.
const PORTS: [&str; 2] = ["messages", "requests"];

/// A domain that offers ports, one that visits it and follows the rules, and the place where
/// one that does not offers others.
struct Place {
    messages: ReceiveRight,
    offered: [OfferedPort; 2],
    address: Address,
    ours: Domain,
    rights: [SendRight; 2],
    host: OwnedFd,
    hosted: String,
    _offering: Domain,
}

fn by() -> Option<Instant> {
    Some(Instant::now() + PATIENCE)
}

fn long() -> Deadline {
    Deadline::after(PATIENCE)
}

fn address(domain: &str) -> Address {
    let user = rustix::process::getuid().as_raw();
    Address::Abstract(socket_name(user, domain).unwrap_or_default().into_bytes())
}

impl Place {
    fn make() -> std::result::Result<Self, Box<dyn std::error::Error>> {
        let names = ["offers", "visits", "hosts"];
        let [offers, visits, hosts] = names.map(|n| format!("fuzz-{n}-{}", std::process::id()));
        let offering = Domain::builder(&offers).size(64 << 20).join()?;
        let ours = Domain::builder(&visits).size(64 << 20).private()?;
        let messages = offering.bind(PortOptions::unnamed())?;
        let mut requests = offering.bind(PortOptions::unnamed().synchronous())?;
        let offer = |port: &ReceiveRight, name| {
            let options = OfferOptions::default().most_bytes(MOST).most_visitors(4);
            port.offer(name, &Permissions::own_user(), options)
        };
        let offered = [offer(&messages, PORTS[0])?, offer(&requests, PORTS[1])?];
        let connect = |name| {
            let other = Domain::builder(&offers);
            ours.connect_to(&other, name, ConnectOptions::default().most_bytes(MOST))
        };
        let rights = [connect(PORTS[0])?, connect(PORTS[1])?];
        // Sends back what it gets.
        thread::spawn(move || {
            while let Ok(mut request) = requests.get_request(Access::Later, Deadline::NEVER) {
                examine(&request.message);
                // Its client may be gone.
                let _ = request.reply_from();
            }
        });
        let host = socket::listen(&address(&hosts), 16)?;
        Ok(Self {
            messages,
            offered,
            address: address(&offers),
            ours,
            rights,
            host,
            hosted: hosts,
            _offering: offering,
        })
    }
}

/// What comes from a stranger is within the limits, and all of it can be read.
fn examine(message: &Message) -> u64 {
    assert!(message.len() as u64 <= MOST);
    assert!(message.header().len() <= MAX_HEADER);
    assert!(message.extents().len() <= MAX_EXTENTS);
    let bytes = message.slices().flatten();
    bytes.fold(0, |sum, byte| sum.wrapping_add(u64::from(*byte)))
}

/// Waits until it is so.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_micros(50));
    }
}

pub(super) fn run(data: &[u8]) {
    static PLACE: OnceLock<Mutex<Place>> = OnceLock::new();
    let place = PLACE.get_or_init(|| match Place::make() {
        Ok(place) => Mutex::new(place),
        Err(error) => panic!("there is nothing to fuzz: {error}"),
    });
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    let mut u = Unstructured::new(data);
    // They end where the bytes do.
    let _ = match u.arbitrary() {
        Ok(true) => place.host(&mut u),
        _ => place.visit(&mut u),
    };
}

impl Place {
    fn visit(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let port = usize::from(u.arbitrary::<bool>()?);
        let Some(socket) = self.introduced(PORTS[port]) else {
            return Ok(());
        };
        let visited = visitor(u, socket, port == 1);
        self.messages_until_gone(port);
        self.serves_others();
        visited
    }

    /// A connection that leads to the offering side.
    fn introduced(&self, port: &str) -> Option<OwnedFd> {
        let socket = socket::connect_by(&self.address, by()).ok()?;
        let visit = Visit {
            version: FORMAT_VERSION,
            kind: OfferKind::Port,
            name: OfferName::new(port)?,
            token: None,
        };
        socket::send_by(&socket, &visit.encode(), &[], by()).ok()?;
        loop {
            let mut answer = [0; VisitAnswer::BYTES];
            // Its host is busy, or out of descriptors.
            let came = socket::receive_by(&socket, &mut answer, 0, by()).ok()?;
            match VisitAnswer::decode(&answer[..came.len]) {
                Some(VisitAnswer::Introduced) => return Some(socket),
                Some(VisitAnswer::Wait | VisitAnswer::Queue) => {}
                other => panic!("not introduced to {port}: {other:?}"),
            }
        }
    }

    /// Takes what has come, until the stranger's visit is over.
    fn messages_until_gone(&mut self, port: usize) {
        let (offered, messages) = (&self.offered[port], &mut self.messages);
        until("a visit does not end", || {
            while let Ok(message) = messages.receive(Access::Later, Deadline::NOW) {
                examine(&message);
            }
            offered.visitors() == 1
        });
        offered.take_breaches();
        while let Ok(message) = self.messages.receive(Access::Later, Deadline::NOW) {
            examine(&message);
        }
    }

    /// Whoever follows the rules is not hurt by those who do not.
    fn serves_others(&mut self) {
        let hello = || Message::new(HELLO).unwrap_or_default();
        if let Err(error) = self.rights[0].send(hello(), long()) {
            panic!("the honest visitor cannot send: {error}");
        }
        match self.messages.receive(Access::Later, long()) {
            Ok(message) => assert_eq!(message.header(), HELLO),
            Err(error) => panic!("what the honest visitor sent did not come: {error}"),
        }
        match self.rights[1].request_reply(hello(), Access::Later, long()) {
            Ok(answer) => assert_eq!(answer.header(), HELLO),
            Err(error) => panic!("the honest visitor is not answered: {error}"),
        }
    }

    /// Offers a port, to a connecting side that follows the rules.
    fn host(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (there, back) = (lane(u)?, lane(u)?);
        let granted = Granted {
            version: FORMAT_VERSION,
            synchronous: u.arbitrary()?,
            most: if u.arbitrary()? { MOST } else { u.arbitrary()? },
            there,
            back,
        };
        let protection = if u.arbitrary()? {
            Protection::Sealed
        } else {
            Protection::Copied
        };
        let mut answer = match u.int_in_range(0..=7)? {
            0 => Answer::Denied(Denied::Full, u.arbitrary()?),
            _ => Answer::Granted(granted),
        }
        .encode();
        if u.ratio(1, 8)? {
            answer[u.choose_index(answer.len())?] = u.arbitrary()?;
        }
        let bytes = pair_bytes(there, back).unwrap_or(0);
        let (shown, process) = (descriptor(u, bytes)?, process(u)?);
        let (ours, hosted, listener) = (&self.ours, &self.hosted, &self.host);
        thread::scope(|scope| {
            let options = ConnectOptions::default()
                .most_bytes(MOST)
                .protection(protection)
                .deadline(long());
            let connecting =
                scope.spawn(move || ours.connect_to(&Domain::builder(hosted), "any", options));
            let introduced = welcome(listener);
            let fds: Vec<_> = shown.iter().chain(&process).map(AsFd::as_fd).collect();
            let told = socket::send_by(&introduced, &answer, &fds, by());
            let right = match connecting.join() {
                Ok(right) => right,
                Err(_) => panic!("connecting panicked"),
            };
            let (Ok(right), Some(pair), Ok(())) = (right, shown, told) else {
                return Ok(());
            };
            let synchronous = granted.synchronous;
            let asking = scope.spawn({
                let right = right.clone();
                move || send(ours, &right, synchronous)
            });
            let mut stranger = Stranger {
                socket: introduced,
                pair: File::from(pair),
                lanes: [there, back],
                out: 1,
                at: 0,
            };
            let done = stranger.go_on(u);
            drop(stranger);
            assert!(asking.join().is_ok());
            until("a right on a port that is gone lives", || !right.is_live());
            done
        })
    }
}

/// Sends what goes over.
fn send(ours: &Domain, right: &SendRight, synchronous: bool) {
    for bytes in [0, 100, 100_000] {
        let mut message = Message::new(HELLO).unwrap_or_default();
        if let Ok(extent) = ours.allocate(bytes) {
            // There is room in it.
            let _ = message.push(extent);
        }
        if synchronous {
            if let Ok(answer) = right.request_reply(message, Access::Later, long()) {
                examine(&answer);
            }
        } else {
            let _ = right.send(message, WhenFull::Fail);
        }
    }
}

/// Lets the connecting side in, and hears what it asks for.
fn welcome(listener: &OwnedFd) -> OwnedFd {
    let heard = || -> std::result::Result<OwnedFd, SocketError> {
        let socket = socket::accept_by(listener, by())?;
        let mut packet = [0; Visit::BYTES];
        let came = socket::receive_by(&socket, &mut packet, 0, by())?;
        assert!(Visit::decode(&packet[..came.len]).is_some());
        socket::send_by(&socket, &VisitAnswer::Introduced.encode(), &[], by())?;
        let mut packet = [0; Ask::BYTES];
        let came = socket::receive_by(&socket, &mut packet, 0, by())?;
        assert!(Ask::decode(&packet[..came.len]).is_some());
        Ok(socket)
    };
    match heard() {
        Ok(socket) => socket,
        Err(error) => panic!("nobody connects: {error}"),
    }
}

/// Asks to be let in, and sends what no library does.
fn visitor(u: &mut Unstructured<'_>, socket: OwnedFd, synchronous: bool) -> Result<()> {
    let ask = Ask {
        version: FORMAT_VERSION,
        sealed: u.arbitrary()?,
        most: if u.arbitrary()? { MOST } else { u.arbitrary()? },
        there: u.arbitrary()?,
    };
    let mut ask = ask.encode();
    if u.ratio(1, 8)? {
        ask[u.choose_index(ask.len())?] = u.arbitrary()?;
    }
    let shown = if u.ratio(1, 8)? {
        descriptor(u, PAGE as u64)?
    } else {
        None
    };
    let fds: Vec<_> = shown.iter().map(AsFd::as_fd).collect();
    let len = if u.ratio(1, 8)? {
        u.int_in_range(1..=ask.len())?
    } else {
        ask.len()
    };
    let _ = socket::send_by(&socket, &ask[..len], &fds, by());
    let mut answer = [0; Answer::BYTES];
    let received = socket::receive_by(&socket, &mut answer, DESCRIPTORS, by());
    let Ok(received) = received else {
        return Ok(());
    };
    let Some(Answer::Granted(granted)) = Answer::decode(&answer[..received.len]) else {
        return Ok(());
    };
    assert_eq!(granted.synchronous, synchronous);
    let Ok([pair, _]) = <[_; DESCRIPTORS]>::try_from(received.fds) else {
        panic!("let in without memory, or without a process");
    };
    let mut stranger = Stranger {
        socket,
        pair: File::from(pair),
        lanes: [granted.there, granted.back],
        out: 0,
        at: 0,
    };
    stranger.go_on(u)
}

fn lane(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(LANE_BYTES.start() << u.int_in_range(0..=3)?)
}

/// Memory of `bytes` as it should be, or almost, or nothing.
fn descriptor(u: &mut Unstructured<'_>, bytes: u64) -> Result<Option<OwnedFd>> {
    let made = match u.int_in_range(0..=9)? {
        0 => return Ok(None),
        1 => memory::create("fuzz", bytes / 2),
        2 => memory::create_unsealed("fuzz", bytes),
        3 => File::open("/dev/null").map(OwnedFd::from),
        4 => sealed(bytes),
        _ => memory::create("fuzz", bytes),
    };
    Ok(made.ok())
}

/// What says when a process is dead, most often.
fn process(u: &mut Unstructured<'_>) -> Result<Option<OwnedFd>> {
    Ok(match u.int_in_range(0..=9)? {
        0 => None,
        1 => File::open("/dev/null").map(OwnedFd::from).ok(),
        _ => PidFd::open(std::process::id()).map(OwnedFd::from).ok(),
    })
}

/// Memory that nobody can change.
fn sealed(bytes: u64) -> std::io::Result<OwnedFd> {
    let fd = memory::create_unsealed("fuzz", bytes)?;
    memory::seal(&fd).map_err(std::io::Error::other)?;
    Ok(fd)
}

/// One end of a pair.
struct Stranger {
    socket: OwnedFd,
    pair: File,
    /// Bytes of the lanes there and back.
    lanes: [u64; 2],
    /// The lane that it writes.
    out: usize,
    at: u64,
}

impl Stranger {
    fn go_on(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        while !u.is_empty() {
            match u.int_in_range(0..=9)? {
                0..=4 => self.write_message(u)?,
                5 => self.rewrite_count(u)?,
                6 => self.rewrite_bytes(u)?,
                7 => self.say(u)?,
                8 => self.take(),
                _ => self.announce(u, 1)?,
            }
        }
        Ok(())
    }

    fn ring(&self) {
        // Where there is no room for it, enough wait there.
        let _ = socket::send_by(&self.socket, &[RING], &[], Some(Instant::now()));
    }

    fn set(&self, lane: usize, word: usize, value: u64) {
        let at = (lane * control::LANE + word) * 8;
        let written = self.pair.write_all_at(&value.to_le_bytes(), at as u64);
        assert!(written.is_ok());
    }

    fn get(&self, lane: usize, word: usize) -> u64 {
        let at = (lane * control::LANE + word) * 8;
        let mut value = [0; 8];
        assert!(self.pair.read_exact_at(&mut value, at as u64).is_ok());
        u64::from_le_bytes(value)
    }

    /// Writes bytes into the lane, a line's beginning each, as if there were room.
    fn write(&mut self, bytes: &[u8]) {
        let start = control::BYTES as u64 + if self.out == 0 { 0 } else { self.lanes[0] };
        for line in bytes.chunks(LINE) {
            let at = start + self.at % self.lanes[self.out];
            assert!(self.pair.write_all_at(line, at).is_ok());
            self.at = self.at.wrapping_add(LINE as u64);
        }
        self.set(self.out, control::HEAD, self.at);
    }

    /// A message that is one, or almost.
    fn write_message(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let lengths: Vec<u64> = (0..u.int_in_range(0..=3)?)
            .map(|_| match u.int_in_range(0..=9)? {
                0 => u.arbitrary(),
                1 => Ok(MOST),
                _ => u.int_in_range(0..=5000),
            })
            .collect::<Result<_>>()?;
        let shown = u.int_in_range(0..=lengths.len())?;
        let right = if self.out == 1 {
            Kind::Reply
        } else {
            *u.choose(&[Kind::Message, Kind::Request])?
        };
        let kinds = [right, right, right, Kind::Dropped, Kind::ServerDead];
        let header = u.int_in_range(0..=200)?;
        let manifest = Manifest {
            header,
            extents: lengths.len() - shown,
            sealed: shown,
            urgency: u.arbitrary()?,
            tag: u.int_in_range(0..=3)?,
            ..Manifest::new(*u.choose(&kinds)?)
        };
        let mut bytes = manifest.encode().to_vec();
        if u.ratio(1, 16)? {
            bytes[u.choose_index(LINE)?] = u.arbitrary()?;
        }
        bytes.extend(lengths.iter().flat_map(|len| len.to_le_bytes()));
        bytes.resize(bytes.len() + header, 7);
        if shown > 0 {
            let (_, shown) = lengths.split_at(lengths.len() - shown);
            self.show(u, shown)?;
        }
        self.write(&bytes);
        for len in &lengths[..manifest.extents] {
            // What is announced longer than this does not come.
            let len = usize::try_from(*len).unwrap_or(0).min(5000);
            self.write(&vec![9; len]);
        }
        self.ring();
        Ok(())
    }

    /// Says about either lane what may be true, almost true, or anything.
    fn rewrite_count(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let words = [
            control::HEAD,
            control::TAIL,
            control::DELIVERED,
            control::WRITER_SLEEPS,
            control::READER_SLEEPS,
        ];
        let (lane, word) = (u.int_in_range(0..=1)?, *u.choose(&words)?);
        let away = u64::from(u.arbitrary::<u16>()?) * LINE as u64;
        let says = match u.int_in_range(0..=3)? {
            0 => self.get(lane, word).wrapping_add(away),
            1 => self.get(lane, word).wrapping_sub(away),
            2 => u64::from(u.arbitrary::<u8>()?),
            _ => u.arbitrary()?,
        };
        self.set(lane, word, says);
        self.ring();
        Ok(())
    }

    fn rewrite_bytes(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let all = control::BYTES as u64 + self.lanes[0] + self.lanes[1];
        let len = u.int_in_range(0..=64)?.min(u.len());
        let bytes = u.bytes(len)?;
        let at = u.int_in_range(0..=all - 64)?;
        assert!(self.pair.write_all_at(bytes, at).is_ok());
        Ok(())
    }

    /// Any packet.
    fn say(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let packets: [&[u8]; 5] = [&[RING], &[SEALED], b"RR", b"X", &[0; 100]];
        let packet = *u.choose(&packets)?;
        let _ = socket::send_by(&self.socket, packet, &[], Some(Instant::now()));
        Ok(())
    }

    /// Reads all that was written for it, without a look.
    fn take(&mut self) {
        let other = 1 - self.out;
        self.set(other, control::TAIL, self.get(other, control::HEAD));
        self.ring();
        let mut packet = [0; 2];
        while let Ok(Some(_)) = socket::try_receive(&self.socket, &mut packet, 16) {}
    }

    /// Hands descriptors over that no manifest speaks of.
    fn announce(&mut self, u: &mut Unstructured<'_>, most: usize) -> Result<()> {
        let count = u.int_in_range(0..=most)?;
        self.show(u, &vec![PAGE as u64; count])
    }

    /// Hands over what should be sealed memory of these lengths.
    fn show(&mut self, u: &mut Unstructured<'_>, lengths: &[u64]) -> Result<()> {
        let mut fds = Vec::new();
        for len in lengths {
            let whole = (*len).min(MOST).next_multiple_of(PAGE as u64);
            fds.extend(if u.ratio(1, 8)? {
                descriptor(u, whole)?
            } else {
                sealed(whole).ok()
            });
        }
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let packet = if u.ratio(1, 16)? { RING } else { SEALED };
        let _ = socket::send_by(&self.socket, &[packet], &fds, Some(Instant::now()));
        Ok(())
    }
}
