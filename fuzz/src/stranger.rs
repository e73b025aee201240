//! What targets share that play a stranger between domains: a client of something that is
//! offered, or a process that offers it.

use arbitrary::{Result, Unstructured};
use portolan::Deadline;
use portolan_abi::bridge::{
    Ask, FRAGMENT, FrameHeader, FrameKind, RING_BYTES, SEALED, WAKE, control,
};
use portolan_abi::connect::{ConnectAnswer, ConnectRequest, Maker, OfferKind, OfferName};
use portolan_abi::hello::socket_name;
use portolan_abi::limits::{LINE, PAGE};
use portolan_sys::memory;
use portolan_sys::process::PidFd;
use portolan_sys::socket::{self, Address, SocketError};
use std::fmt::Display;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What a target plays in: made for its first input, and kept.
pub(crate) fn taken<P, E: Display>(
    place: &'static OnceLock<Mutex<P>>,
    make: impl FnOnce() -> std::result::Result<P, E>,
) -> MutexGuard<'static, P> {
    let place = place.get_or_init(|| match make() {
        Ok(place) => Mutex::new(place),
        Err(error) => panic!("there is nothing to fuzz: {error}"),
    });
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long anybody may take before that is a finding.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a message that is let in, and of an answer.
pub(crate) const MOST: u64 = 1 << 20;
pub(crate) fn by() -> Option<Instant> {
    Some(Instant::now() + PATIENCE)
}

pub(crate) fn long() -> Deadline {
    Deadline::after(PATIENCE)
}

pub(crate) fn address(domain: &str) -> Address {
    let user = rustix::process::getuid().as_raw();
    Address::Abstract(socket_name(user, domain).unwrap_or_default().into_bytes())
}

/// Waits until it is so.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_micros(50));
    }
}

/// A connection that leads to the offering side.
pub(crate) fn accepted(address: &Address, kind: OfferKind, name: &str) -> Option<OwnedFd> {
    match connect(address, kind, OfferName::new(name)?, None)? {
        (socket, ConnectAnswer::Accepted) => Some(socket),
        (_, other) => panic!("not accepted by {name}: {other:?}"),
    }
}

/// A connection to a host, and what it says in the end; nothing, if it has no room or hangs up.
pub(crate) fn connect(
    address: &Address,
    kind: OfferKind,
    name: OfferName,
    token: Option<[u8; 16]>,
) -> Option<(OwnedFd, ConnectAnswer)> {
    let socket = socket::connect_by(address, by()).ok()?;
    let request = ConnectRequest {
        kind,
        name,
        token,
        maker: Maker::ANY,
    };
    socket::send_by(&socket, &request.encode(), &[], by()).ok()?;
    loop {
        let mut answer = [0; ConnectAnswer::MAX_BYTES];
        // Its host is busy, or out of descriptors.
        let came = socket::receive_by(&socket, &mut answer, 0, by()).ok()?;
        match ConnectAnswer::decode(&answer[..came.len]) {
            Ok(ConnectAnswer::Wait | ConnectAnswer::Queue) => {}
            Ok(answer) => return Some((socket, answer)),
            Err(error) => panic!("a host says what none says: {error}"),
        }
    }
}

/// Lets the connecting side in, and hears what it asks for.
pub(crate) fn welcome(listener: &OwnedFd) -> OwnedFd {
    let heard = || -> std::result::Result<OwnedFd, SocketError> {
        let socket = socket::accept_by(listener, by())?;
        let mut packet = [0; ConnectRequest::BYTES];
        let came = socket::receive_by(&socket, &mut packet, 0, by())?;
        assert!(ConnectRequest::decode(&packet[..came.len]).is_ok());
        socket::send_by(&socket, &ConnectAnswer::Accepted.encode(), &[], by())?;
        let mut packet = [0; Ask::BYTES];
        let came = socket::receive_by(&socket, &mut packet, 0, by())?;
        assert!(Ask::decode(&packet[..came.len]).is_ok());
        Ok(socket)
    };
    match heard() {
        Ok(socket) => socket,
        Err(error) => panic!("nobody connects: {error}"),
    }
}

pub(crate) fn ring_bytes(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(RING_BYTES.start() << u.int_in_range(0..=3)?)
}

/// Memory of `bytes` as it should be, or almost, or nothing.
pub(crate) fn descriptor(u: &mut Unstructured<'_>, bytes: u64) -> Result<Option<OwnedFd>> {
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
pub(crate) fn process(u: &mut Unstructured<'_>) -> Result<Option<OwnedFd>> {
    Ok(match u.int_in_range(0..=9)? {
        0 => None,
        1 => File::open("/dev/null").map(OwnedFd::from).ok(),
        _ => PidFd::open(std::process::id()).map(OwnedFd::from).ok(),
    })
}

/// Memory that nobody can change.
pub(crate) fn sealed(bytes: u64) -> std::io::Result<OwnedFd> {
    let fd = memory::create_unsealed("fuzz", bytes)?;
    memory::seal(&fd).map_err(std::io::Error::other)?;
    Ok(fd)
}

/// One end of a connection.
pub(crate) struct Stranger {
    socket: OwnedFd,
    memory: File,
    /// Bytes of the byte rings there and back.
    rings: [u64; 2],
    /// The byte ring that it writes.
    out: usize,
    at: u64,
}

impl Stranger {
    /// One end of a connection with this memory, whose byte rings have so many bytes; it writes
    /// the one numbered `out`.
    pub(crate) fn new(socket: OwnedFd, memory: OwnedFd, rings: [u64; 2], out: usize) -> Self {
        Self {
            socket,
            memory: File::from(memory),
            rings,
            out,
            at: 0,
        }
    }

    /// Whatever a stranger may do; most often it writes by `write`.
    pub(crate) fn go_on(
        &mut self,
        u: &mut Unstructured<'_>,
        mut write: impl FnMut(&mut Self, &mut Unstructured<'_>) -> Result<()>,
    ) -> Result<()> {
        while !u.is_empty() {
            match u.int_in_range(0..=9)? {
                0..=4 => write(self, u)?,
                5 => self.rewrite_count(u)?,
                6 => self.rewrite_bytes(u)?,
                7 => self.say(u)?,
                8 => self.take(),
                _ => self.announce(u, 1)?,
            }
        }
        Ok(())
    }

    pub(crate) fn wake(&self) {
        // Where there is no room for it, enough wait there.
        let _ = socket::send_by(&self.socket, &[WAKE], &[], Some(Instant::now()));
    }

    fn set(&self, ring: usize, word: usize, value: u64) {
        let at = (ring * control::STRIDE + word) * 8;
        // As in `write`.
        let _ = self.memory.write_all_at(&value.to_le_bytes(), at as u64);
    }

    fn get(&self, ring: usize, word: usize) -> u64 {
        let at = (ring * control::STRIDE + word) * 8;
        let mut value = [0; 8];
        assert!(self.memory.read_exact_at(&mut value, at as u64).is_ok());
        u64::from_le_bytes(value)
    }

    /// Writes bytes into the byte ring, a line's beginning each, as if there were room.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let start = control::BYTES as u64 + if self.out == 0 { 0 } else { self.rings[0] };
        for line in bytes.chunks(LINE) {
            let at = start + self.at % self.rings[self.out];
            // What should be the connection's memory and is not takes nothing.
            let _ = self.memory.write_all_at(line, at);
            self.at = self.at.wrapping_add(LINE as u64);
        }
        self.set(self.out, control::HEAD, self.at);
    }

    /// A message that is one, or almost.
    pub(crate) fn write_message(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let lengths: Vec<u64> = (0..u.int_in_range(0..=3)?)
            .map(|_| match u.int_in_range(0..=9)? {
                0 => u.arbitrary(),
                1 => Ok(MOST),
                _ => u.int_in_range(0..=5000),
            })
            .collect::<Result<_>>()?;
        let shown = u.int_in_range(0..=lengths.len())?;
        let right = if self.out == 1 {
            FrameKind::Reply
        } else {
            *u.choose(&[FrameKind::Message, FrameKind::Request])?
        };
        if u.ratio(1, 4)? {
            return self.write_bare(u);
        }
        let kinds = [right, right, right, FrameKind::Dropped];
        let header = u.int_in_range(0..=200)?;
        let frame = FrameHeader {
            header,
            extents: lengths.len() - shown,
            sealed: shown,
            urgency: u.arbitrary()?,
            tag: u.int_in_range(0..=3)?,
            port: if u.ratio(1, 8)? { u.arbitrary()? } else { 0 },
            ..FrameHeader::new(*u.choose(&kinds)?)
        };
        let mut bytes = frame.encode().to_vec();
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
        for len in &lengths[..frame.extents] {
            // What is announced longer than this does not come.
            let len = usize::try_from(*len).unwrap_or(0).min(5000);
            self.write(&vec![9; len]);
        }
        self.wake();
        Ok(())
    }

    /// A frame without a message, or more of one.
    fn write_bare(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let kinds = [
            FrameKind::Fragment,
            FrameKind::Accepted,
            FrameKind::Blocked,
            FrameKind::Closed,
        ];
        let frame = FrameHeader {
            port: u.int_in_range(0..=1)?,
            accepted: u.int_in_range(0..=2)?,
            ..FrameHeader::new(*u.choose(&kinds)?)
        };
        self.write(&frame.encode());
        if frame.kind == FrameKind::Fragment {
            self.write(&vec![9; u.int_in_range(0..=FRAGMENT)?]);
        }
        self.wake();
        Ok(())
    }

    /// News of a channel, or almost: how many units were missed before, and a message.
    pub(crate) fn write_news(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let news = FrameHeader {
            extents: 1,
            tag: if u.ratio(1, 8)? {
                u.arbitrary()?
            } else {
                u.int_in_range(0..=3)?
            },
            ..FrameHeader::new(FrameKind::Message)
        };
        let (frame, len) = match u.int_in_range(0..=7)? {
            0 => (FrameHeader::new(FrameKind::Dropped), None),
            1 => (news, Some(u.arbitrary()?)),
            _ => (news, Some(u.int_in_range(0..=300)?)),
        };
        let mut bytes = frame.encode().to_vec();
        if u.ratio(1, 16)? {
            bytes[u.choose_index(LINE)?] = u.arbitrary()?;
        }
        self.write(&bytes);
        if let Some(len) = len {
            let len: u64 = len;
            self.write(&len.to_le_bytes());
            // What is announced longer than this does not come.
            self.write(&vec![9; usize::try_from(len).unwrap_or(0).min(5000)]);
        }
        self.wake();
        Ok(())
    }

    /// Says about either byte ring what may be true, almost true, or anything.
    fn rewrite_count(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let words = [
            control::HEAD,
            control::TAIL,
            control::DELIVERED,
            control::WRITER_SLEEPS,
            control::READER_SLEEPS,
        ];
        let (ring, word) = (u.int_in_range(0..=1)?, *u.choose(&words)?);
        let away = u64::from(u.arbitrary::<u16>()?) * LINE as u64;
        let says = match u.int_in_range(0..=3)? {
            0 => self.get(ring, word).wrapping_add(away),
            1 => self.get(ring, word).wrapping_sub(away),
            2 => u64::from(u.arbitrary::<u8>()?),
            _ => u.arbitrary()?,
        };
        self.set(ring, word, says);
        self.wake();
        Ok(())
    }

    fn rewrite_bytes(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let all = control::BYTES as u64 + self.rings[0] + self.rings[1];
        let len = u.int_in_range(0..=64)?.min(u.len());
        let bytes = u.bytes(len)?;
        let at = u.int_in_range(0..=all - 64)?;
        assert!(self.memory.write_all_at(bytes, at).is_ok());
        Ok(())
    }

    /// Any packet.
    fn say(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let packets: [&[u8]; 5] = [&[WAKE], &[SEALED], b"RR", b"X", &[0; 100]];
        let packet = *u.choose(&packets)?;
        let _ = socket::send_by(&self.socket, packet, &[], Some(Instant::now()));
        Ok(())
    }

    /// Reads all that was written for it, without a look.
    pub(crate) fn take(&mut self) {
        let other = 1 - self.out;
        self.set(other, control::TAIL, self.get(other, control::HEAD));
        self.wake();
        let mut packet = [0; 2];
        while let Ok(Some(_)) = socket::try_receive(&self.socket, &mut packet, 16) {}
    }

    /// Hands descriptors over that no frame header speaks of.
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
        let packet = if u.ratio(1, 16)? { WAKE } else { SEALED };
        let _ = socket::send_by(&self.socket, &[packet], &fds, Some(Instant::now()));
        Ok(())
    }
}
