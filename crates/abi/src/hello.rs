//! Lays out the records that a newcomer and the host exchange over the rendezvous socket.
//!
//! Fixed-size little-endian records over a sequenced-packet socket, each with a magic number and
//! the format's version first, so that members of another version can still be told what is wrong.
//!
//! ```text
//! newcomer -> host   Hello                         "let me in"
//! host -> newcomer   Welcome + region fd + both listening sockets + the socket that
//!                    reserves the region's addresses, or Refusal
//! newcomer -> host   Arrived, and from here on what [`crate::control`] lays out
//!
//! newcomer -> member Hello                         "let me in, the host does not answer"
//! member -> newcomer Welcome, likewise, or Refusal; the newcomer then sends a Return
//!
//! member   -> host   Return                        "I was your predecessor's; tell me when you go"
//! host     -> member Back, likewise, or Refusal
//!
//! observer -> host   Look                          "let me read the tables"
//! host -> observer   Welcome as nobody + region fd to read, or Refusal
//!
//! client   -> host   ConnectRequest                see [`crate::connect`]
//! ```

use crate::codec::{DecodeError, Reader};
use crate::connect::{CONNECT_MAGIC, ConnectRequest};
use crate::handshake::{self, Ask, Grant, Request, Why};
use crate::limits::{MAX_DOMAIN_NAME, MAX_NAME};
use crate::region::{BASE_HIGHEST, BASE_LOWEST};
use crate::{codes, record};
use std::ops::Range;

/// First bytes of a [`Hello`], and of answers.
pub const MAGIC: u32 = 0x4e4c_5450;
/// First bytes of a [`Return`].
pub const RETURN_MAGIC: u32 = 0x524c_5450;
/// First bytes of a [`Look`].
pub const LOOK_MAGIC: u32 = 0x4b4c_5450;

record! {
    /// "Let me in."
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Hello {
        opens MAGIC,
        /// The newcomer's own name for `portolan ls`, padded with at least one zero.
        pub name: [u8; MAX_NAME + 1],
    }
    check |it| it.name.ends_with(&[0])
}

record! {
    /// "Welcome", sent with three descriptors: the region, the host's listening socket and the
    /// fallback one. An observer gets the first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Welcome {
        opens MAGIC,
        _: 4,
        /// The newcomer's space.
        pub space: u8,
        /// Whether the sender hosts, and so knows the newcomer. A newcomer that another member has
        /// admitted makes itself known to the host.
        pub by_host: bool,
        _: 2,
        /// Its incarnation.
        pub incarnation: u32,
        _: 4,
        /// Where the region lies in every member.
        pub base: u64,
        /// Bytes of the region's file.
        pub len: u64,
    }
}

codes! {
    /// Why the host did not admit a newcomer.
    pub enum Reason: u32 {
        /// Another format version.
        Version = 1,
        /// The newcomer's user or group is not on the list.
        Permission = 2,
        /// All spaces are taken.
        Full = 3,
        /// The host is out of descriptors.
        Descriptors = 4,
        /// The greeting was not one.
        Garbled = 5,
        /// Host and newcomer are in different process namespaces.
        Namespace = 6,
        /// The space that wants back in is no member.
        Stranger = 7,
        /// The client shows another token than the offer asks for, or none.
        Token = 8,
        /// Too many clients wait.
        Busy = 9,
        /// The host cannot read `/proc`.
        Proc = 10,
    }
    unknown => Garbled
}

/// "No", with the reason and the value that was refused (version, user id, number of spaces).
pub type Refusal = handshake::Refusal<Reason>;

/// What a host answers.
pub type Answer = handshake::Answer<Welcome>;

impl Why for Reason {
    const VERSION: Self = Self::Version;
    const GARBLED: Self = Self::Garbled;
}

impl Grant for Welcome {
    const MAGIC: u32 = MAGIC;
    type Why = Reason;
}

impl Ask for Hello {
    type Granted = Welcome;
    const DESCRIPTORS: usize = 4;

    fn descriptors(_: &Welcome) -> usize {
        Self::DESCRIPTORS
    }
}

impl Ask for Look {
    type Granted = Welcome;
    const DESCRIPTORS: usize = 1;

    fn descriptors(_: &Welcome) -> usize {
        Self::DESCRIPTORS
    }
}

record! {
    /// A member of a host that is gone makes itself known to the new one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Return {
        opens RETURN_MAGIC,
        /// Its space.
        pub space: u8,
        _: 3,
        /// Its incarnation.
        pub incarnation: u32,
    }
}

record! {
    /// "Let me read the tables": an observer, which gets no space.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Look {
        opens LOOK_MAGIC,
    }
}

/// What opens a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// Of a newcomer.
    Hello(Hello),
    /// Of a member.
    Return(Return),
    /// Of an observer.
    Look(Look),
    /// Of a client.
    Connect(ConnectRequest),
}

impl Greeting {
    /// Reads any of the records.
    ///
    /// # Errors
    ///
    /// [`DecodeError`]; of what begins as none of them does, that it is no [`Hello`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::read(bytes)
    }
}

impl Request for Greeting {
    type Why = Reason;
    /// That of a client is the longest.
    const BYTES: usize = ConnectRequest::BYTES;

    fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        match Reader::new(bytes).field("magic") {
            Ok(RETURN_MAGIC) => Return::decode(bytes).map(Self::Return),
            Ok(LOOK_MAGIC) => Look::decode(bytes).map(Self::Look),
            Ok(CONNECT_MAGIC) => ConnectRequest::decode(bytes).map(Self::Connect),
            _ => Hello::decode(bytes).map(Self::Hello),
        }
    }
}

const _: () =
    assert!(Hello::BYTES <= ConnectRequest::BYTES && Return::BYTES <= ConnectRequest::BYTES);

/// The abstract socket's name of a user's domain, without the leading zero byte.
///
/// ```
/// assert_eq!(portolan_abi::hello::socket_name(1000, "demo").as_deref(), Some("portolan/1000/demo"));
/// ```
pub fn socket_name(user: u32, domain: &str) -> Option<String> {
    let fits =
        !domain.is_empty() && domain.len() <= MAX_DOMAIN_NAME && !domain.contains(['/', '\0']);
    fits.then(|| format!("portolan/{user}/{domain}"))
}

/// The name of the socket at which any member admits newcomers whom the host has not answered.
///
/// ```
/// use portolan_abi::hello::fallback_name;
/// assert_eq!(fallback_name(1000, "demo").as_deref(), Some("portolan-any/1000/demo"));
/// ```
pub fn fallback_name(user: u32, domain: &str) -> Option<String> {
    let name = socket_name(user, domain)?;
    Some(name.replacen("portolan", "portolan-any", 1))
}

/// What the name of a reserved range begins with.
const RANGE: &str = "portolan-at/";

/// The name of the socket that reserves a region's addresses among the domains of a machine.
///
/// ```
/// use portolan_abi::hello::range_name;
/// let range = 0x2000_0000_0000..0x2018_0000_0000;
/// assert_eq!(range_name(&range), "portolan-at/200000000000-201800000000");
/// ```
pub fn range_name(range: &Range<u64>) -> String {
    format!("{RANGE}{:x}-{:x}", range.start, range.end)
}

/// The addresses that a socket of this name reserves; `None` if it reserves none. Anyone may bind
/// any name, so a range that no region may have is none.
///
/// ```
/// use portolan_abi::hello::{range_name, reserved_range};
/// let range = 0x2000_0000_0000..0x2018_0000_0000;
/// assert_eq!(reserved_range(range_name(&range).as_bytes()), Some(range));
/// assert_eq!(reserved_range(b"portolan-at/0-ffffffffffffffff"), None);
/// ```
pub fn reserved_range(name: &[u8]) -> Option<Range<u64>> {
    let (from, to) = str::from_utf8(name)
        .ok()?
        .strip_prefix(RANGE)?
        .split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    let range = address(from)?..address(to)?;
    let within = BASE_LOWEST <= range.start && range.end <= BASE_HIGHEST;
    (within && !range.is_empty()).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_not_a_greeting() {
        for garbage in [&[][..], &[0; 40], &[0xff; 100]] {
            assert!(Greeting::decode(garbage).is_err());
            assert!(Answer::decode(garbage).is_err());
        }
    }
}
