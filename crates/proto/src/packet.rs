//! Packets are sealed with a checksum, and opened (T1).

use portolan_abi::rpc::{HEADER_BYTES, Header, expand, low_24};
use portolan_abi::sum::{self, Sum};

/// What goes into the checksums of one connection beside position and content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    greeting: u64,
    epoch: u64,
}

impl Seal {
    /// For packets between the client of `session` and the server of `incarnation`.
    pub fn new(session: u64, incarnation: u64) -> Self {
        let greeting = mix(session);
        Self {
            greeting,
            epoch: mix(greeting ^ incarnation),
        }
    }

    #[inline]
    fn of(&self, header: &Header, number: u64) -> u32 {
        let key = if header.kind.is_greeting() {
            self.greeting
        } else {
            mix(self.epoch ^ (number >> 24))
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
/// seal(&key, position, header, number, &[b"argu", b"ments"], &mut packet);
/// let opened = open(&key, position, number, &packet).unwrap();
/// assert_eq!((opened.1, opened.2), (number, &b"arguments"[..]));
/// assert!(open(&key, position + 1, number, &packet).is_err());
/// assert!(open(&Seal::new(1, 2), position, number, &packet).is_err());
/// ```
#[inline]
pub fn seal(
    key: &Seal,
    position: u64,
    header: Header,
    number: u64,
    parts: &[&[u8]; 2],
    out: &mut Vec<u8>,
) {
    let head = head(key, position, header, number, parts);
    out.clear();
    for part in [&head, parts[0], parts[1]] {
        out.extend_from_slice(part);
    }
}

/// The words of a packet before its body, which is `parts` one after the other.
#[inline]
pub(crate) fn head(
    key: &Seal,
    position: u64,
    mut header: Header,
    number: u64,
    parts: &[&[u8]; 2],
) -> [u8; HEADER_BYTES] {
    header.number = low_24(number);
    let len = parts[0].len() + parts[1].len();
    let [w0, w1] = header.pack(checksum(key, position, header, number, len, || {
        match parts {
            [[], body] | [body, []] => sum::of(body),
            [first, second] if first.len().is_multiple_of(8) => {
                let mut sum = Sum::new();
                sum.bytes(first);
                sum.bytes(second);
                sum.fold()
            }
            // Nobody in a hurry sends such.
            parts => sum::of(&parts.concat()),
        }
    }));
    words([w0, w1])
}

#[inline]
fn checksum(
    key: &Seal,
    position: u64,
    header: Header,
    number: u64,
    len: usize,
    body: impl FnOnce() -> u64,
) -> u32 {
    let unchecked = header.flags.has(portolan_abi::rpc::Flags::UNCHECKED);
    let sum = if unchecked { 0 } else { body() };
    let [w0, w1] = header.pack(0);
    let sum = sum::with(sum, [w0, w1, len as u64]);
    sum::finish(position, sum) ^ key.of(&header, number)
}

/// Checks a packet: its header, its whole number (near `near`), its body.
///
/// # Errors
///
/// [`Damaged`]: whoever receives it drops it.
#[inline]
pub fn open<'p>(
    key: &Seal,
    position: u64,
    near: u64,
    packet: &'p [u8],
) -> Result<(Header, u64, &'p [u8]), Damaged> {
    let Some((words, body)) = packet.split_first_chunk::<HEADER_BYTES>() else {
        return Err(Damaged::Short { len: packet.len() });
    };
    let (Some(w0), Some(w1)) = (word(words, 0), word(words, 8)) else {
        return Err(Damaged::Short { len: packet.len() });
    };
    let (header, found) = Header::unpack([w0, w1]).ok_or(Damaged::Kind)?;
    let number = if header.kind.is_greeting() {
        u64::from(header.number)
    } else {
        expand(header.number, near)
    };
    let sum = || sum::of(body);
    let expected = checksum(key, position, header, number, body.len(), sum);
    if found != expected {
        return Err(Damaged::Checksum { found, expected });
    }
    Ok((header, number, body))
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
