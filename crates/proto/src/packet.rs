//! Seals packets with a checksum, and opens them (T1).

use portolan_abi::rpc::{Flags, HEADER_BYTES, Header, Kind, PIECE_BYTES, expand, low_24};
use portolan_abi::sum;

/// What goes into the checksums of one connection beside position and content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    greeting: u64,
    term: u64,
}

impl Seal {
    /// For packets between the client of `session` and the server of `incarnation`.
    pub fn new(session: u64, incarnation: u64) -> Self {
        let greeting = mix(session);
        Self {
            greeting,
            term: mix(greeting ^ incarnation),
        }
    }

    #[inline(always)]
    pub(crate) fn of(&self, kind: Kind, number: u64) -> u32 {
        let key = if kind.is_greeting() {
            self.greeting
        } else {
            mix(self.term ^ (number >> 24))
        };
        let [a, b, c, d, ..] = key.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

/// The finaliser of splitmix64: every bit of the input moves every bit of the output.
#[inline]
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Why a packet is dropped: the way's fault, or that of a peer of another time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damaged {
    /// Not even a header.
    #[error("{len} bytes are too few for a header")]
    Short {
        /// Its bytes.
        len: usize,
    },
    /// No such kind.
    #[error("there is no such kind of packet")]
    Kind,
    /// The checksum is not right.
    #[error("the checksum is {found:#x} and should be {expected:#x}")]
    Checksum {
        /// What it says.
        found: u32,
        /// What it should say.
        expected: u32,
    },
}

/// Writes a packet to `out`, in place of what was there.
///
/// ```
/// use portolan_proto::{open, seal, Flags, Header, Kind, Seal};
/// let header = Header { kind: Kind::Call, flags: Flags(0), what: 5, number: 0, behind: 0, when: 0 };
/// let (key, position, number) = (Seal::new(1, 1), 17, 3);
/// let mut packet = Vec::new();
/// seal(&key, position, header, number, b"arguments", &mut packet);
/// let opened = open(&key, position, number, &packet).unwrap();
/// assert_eq!((opened.1, opened.2), (number, &b"arguments"[..]));
/// assert!(open(&key, position + 1, number, &packet).is_err());
/// assert!(open(&Seal::new(1, 2), position, number, &packet).is_err());
/// ```
pub fn seal(
    key: &Seal,
    position: u64,
    header: Header,
    number: u64,
    body: &[u8],
    out: &mut Vec<u8>,
) {
    let (place, body) = apart(header.flags, body);
    let key = key.of(header.kind, number);
    let unsealed = Unsealed::new(key, position, header, number, place, body);
    unsealed.write(sum_of(header.flags, body), out);
}

/// A packet without its checksum, which the copy of its body computes.
#[derive(Clone, Copy, Debug)]
pub struct Unsealed<'a> {
    key: u32,
    position: u64,
    /// Before all else, without the checksum.
    words: [u64; 2],
    place: &'a [u8],
    body: &'a [u8],
}

impl<'a> Unsealed<'a> {
    #[inline(always)]
    pub(crate) fn new(
        key: u32,
        position: u64,
        header: Header,
        number: u64,
        place: &'a [u8],
        body: &'a [u8],
    ) -> Self {
        let header = Header {
            number: low_24(number),
            ..header
        };
        Self {
            key,
            position,
            words: header.pack(0),
            place,
            body,
        }
    }

    /// What lies between its head and its body: of a piece, its place in the whole.
    #[inline(always)]
    pub fn place(&self) -> &'a [u8] {
        self.place
    }

    /// Its body.
    #[inline(always)]
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Whether its body has a sum; if not, any will do.
    #[inline(always)]
    pub fn is_summed(&self) -> bool {
        !Header::flags(self.words).has(Flags::UNCHECKED)
    }

    /// The words before all else, for a body of this sum ([`portolan_abi::sum::of`]).
    #[inline(always)]
    pub fn head(&self, sum: u64) -> [u64; 2] {
        let len = self.place.len() + self.body.len();
        let place = word(self.place, 0);
        let sum = if self.is_summed() { sum } else { 0 };
        let checksum = self.key ^ checksum(self.position, self.words, len, place, sum);
        let [first, second] = self.words;
        [first | u64::from(checksum), second]
    }

    /// Writes it to `out`, in place of what was there.
    pub fn write(&self, sum: u64, out: &mut Vec<u8>) {
        let head: [u8; HEADER_BYTES] = words(self.head(sum));
        out.clear();
        for part in [&head, self.place, self.body] {
            out.extend_from_slice(part);
        }
    }
}

/// What is summed of the body of a packet with such a head: nothing, or all that it carries.
///
/// `None` if it is no head.
#[inline]
pub fn summed(head: [u64; 2], body: &[u8]) -> Option<&[u8]> {
    let (header, _) = Header::unpack(head)?;
    let (_, summed) = apart(header.flags, body);
    Some(if header.flags.has(Flags::UNCHECKED) {
        &[]
    } else {
        summed
    })
}

/// A body's place, if it is that of a piece, and the rest.
#[inline]
fn apart(flags: Flags, body: &[u8]) -> (&[u8], &[u8]) {
    if flags.has(Flags::PIECE) {
        return body.split_at(body.len().min(PIECE_BYTES));
    }
    (&[], body)
}

fn sum_of(flags: Flags, body: &[u8]) -> u64 {
    if flags.has(Flags::UNCHECKED) {
        return 0;
    }
    sum::of(body)
}

/// The checksum of a packet with these words before all else, without the key, which is not in it
/// yet, and a body of this sum.
#[inline(always)]
fn checksum(
    position: u64,
    [first, second]: [u64; 2],
    len: usize,
    place: Option<u64>,
    sum: u64,
) -> u32 {
    let sum = match place {
        Some(place) => sum::with(sum, [first, second, len as u64, place]),
        None => sum::with(sum, [first, second, len as u64]),
    };
    sum::finish(position, sum)
}

/// Checks a packet: its header, its whole number (near `near`), its body.
///
/// # Errors
///
/// [`Damaged`]: the receiver drops the packet.
pub fn open<'p>(
    key: &Seal,
    position: u64,
    near: u64,
    packet: &'p [u8],
) -> Result<(Header, u64, &'p [u8]), Damaged> {
    let (head, body) = behead(packet).ok_or(Damaged::Short { len: packet.len() })?;
    let sum = summed(head, body).map_or(0, sum::of);
    let (header, number) = check(key, position, near, head, body, sum)?;
    Ok((header, number, body))
}

/// A packet's head, and the rest.
#[inline]
pub(crate) fn behead(packet: &[u8]) -> Option<([u64; 2], &[u8])> {
    let (head, body) = packet.split_first_chunk::<HEADER_BYTES>()?;
    Some(([word(head, 0)?, word(head, 8)?], body))
}

/// As [`open`], of a packet whose body has this sum.
#[inline]
pub(crate) fn check(
    key: &Seal,
    position: u64,
    near: u64,
    head: [u64; 2],
    body: &[u8],
    sum: u64,
) -> Result<(Header, u64), Damaged> {
    let (header, found) = Header::unpack(head).ok_or(Damaged::Kind)?;
    let number = if header.kind.is_greeting() {
        u64::from(header.number)
    } else {
        expand(header.number, near)
    };
    let (place, _) = apart(header.flags, body);
    let sum = if header.flags.has(Flags::UNCHECKED) {
        0
    } else {
        sum
    };
    let (words, _) = Header::split_checksum(head);
    let sum = checksum(position, words, body.len(), word(place, 0), sum);
    let expected = key.of(header.kind, number) ^ sum;
    if found != expected {
        return Err(Damaged::Checksum { found, expected });
    }
    Ok((header, number))
}

/// The straight line of [`check`]: whether a packet that begins a whole message, of `len` bytes
/// after these words, is right.
#[inline(always)]
pub(crate) fn is_right(key: u32, position: u64, head: [u64; 2], len: usize, sum: u64) -> bool {
    let sum = if Header::flags(head).has(Flags::UNCHECKED) {
        0
    } else {
        sum
    };
    let (words, found) = Header::split_checksum(head);
    found == key ^ checksum(position, words, len, None, sum)
}

/// The word at byte `at`, if there is one.
#[inline]
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}

/// Words as a body.
#[inline]
pub(crate) fn words<const N: usize, const B: usize>(words: [u64; N]) -> [u8; B] {
    let mut bytes = [0; B];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    bytes
}

/// A body of exactly `N` words.
pub(crate) fn exactly<const N: usize>(body: &[u8]) -> Option<[u64; N]> {
    if body.len() != N * 8 {
        return None;
    }
    let mut words = [0; N];
    for (i, place) in words.iter_mut().enumerate() {
        *place = word(body, i * 8)?;
    }
    Some(words)
}
