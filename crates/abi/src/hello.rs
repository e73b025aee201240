//! Lays out the records that a newcomer and the host exchange over the rendezvous socket.
//!
//! Fixed-size little-endian records over a sequenced-packet socket, each with a
//! magic and the format version first, so that members of another version can
//! still be told what is wrong.
//!
//! ```text
//! newcomer -> host   Hello                         "let me in"
//! host -> newcomer   Welcome + region fd + both listening sockets, or Refusal
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

use crate::connect::ConnectRequest;
use crate::limits::{MAX_DOMAIN_NAME, MAX_NAME};

/// First bytes of every record but those of other beginners.
pub const MAGIC: u32 = 0x4e4c_5450;
/// First bytes of a [`Return`].
pub const RETURN_MAGIC: u32 = 0x524c_5450;
/// First bytes of a [`Look`].
pub const LOOK_MAGIC: u32 = 0x4b4c_5450;

/// "Let me in."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The format that the newcomer speaks.
    pub version: u32,
    /// The newcomer's own name for `portolan ls`, zero-padded.
    pub name: [u8; MAX_NAME + 1],
}

/// "Welcome", sent with three descriptors: the region, the host's listening socket and the
/// fallback one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The format of the region.
    pub version: u32,
    /// The newcomer's space.
    pub space: u8,
    /// Its incarnation.
    pub incarnation: u32,
    /// Where the region lies in every member.
    pub base: u64,
    /// Bytes of the region's file.
    pub len: u64,
    /// Whether the sender hosts, and so knows the newcomer. A newcomer that another member has
    /// admitted makes itself known to the host.
    pub by_host: bool,
}

/// Why the host did not admit a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
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

/// A member of a host that is gone makes itself known to the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return {
    /// Its space.
    pub space: u8,
    /// Its incarnation.
    pub incarnation: u32,
}

/// "Let me read the tables": an observer, which gets no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The format that the observer speaks.
    pub version: u32,
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
    /// Of a client that speaks this other format.
    OtherConnect(u32),
}

impl Greeting {
    /// Reads any of the records.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if let Some(version) = ConnectRequest::version_of(bytes) {
            if version != crate::FORMAT_VERSION {
                return Some(Self::OtherConnect(version));
            }
            return ConnectRequest::decode(bytes).map(Self::Connect);
        }
        Return::decode(bytes)
            .map(Self::Return)
            .or_else(|| Look::decode(bytes).map(Self::Look))
            .or_else(|| Hello::decode(bytes).map(Self::Hello))
    }
}

impl Look {
    /// Bytes on the wire.
    pub const BYTES: usize = 8;

    /// The record's bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&LOOK_MAGIC.to_le_bytes());
        out[4..].copy_from_slice(&self.version.to_le_bytes());
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        (word32(bytes, 0)? == LOOK_MAGIC).then_some(Self {
            version: word32(bytes, 4)?,
        })
    }
}

impl Return {
    /// Bytes on the wire.
    pub const BYTES: usize = 16;

    /// The record's bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&RETURN_MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&crate::FORMAT_VERSION.to_le_bytes());
        out[8] = self.space;
        out[12..].copy_from_slice(&self.incarnation.to_le_bytes());
        out
    }

    /// Reads a record of this format's version; no other can be a member.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if word32(bytes, 0)? != RETURN_MAGIC || word32(bytes, 4)? != crate::FORMAT_VERSION {
            return None;
        }
        Some(Self {
            space: *bytes.get(8)?,
            incarnation: word32(bytes, 12)?,
        })
    }
}

/// "No", with the reason and two numbers that explain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The format of the region.
    pub version: u32,
    /// Why.
    pub reason: Reason,
    /// The value that was refused (version, user id, number of spaces).
    pub value: u64,
}

/// What a host answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Come in.
    Welcome(Welcome),
    /// Stay out.
    Refusal(Refusal),
}

impl Hello {
    /// Bytes on the wire.
    pub const BYTES: usize = 8 + MAX_NAME + 1;

    /// The record's bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&self.version.to_le_bytes());
        out[8..].copy_from_slice(&self.name);
        out
    }

    /// Reads a record. The first eight bytes stay the same in every version.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if word32(bytes, 0)? != MAGIC {
            return None;
        }
        let version = word32(bytes, 4)?;
        let mut name = [0; MAX_NAME + 1];
        if let Some(rest) = bytes.get(8..Self::BYTES) {
            name.copy_from_slice(rest);
        }
        name[MAX_NAME] = 0;
        Some(Self { version, name })
    }
}

impl Answer {
    /// Bytes on the wire.
    pub const BYTES: usize = 40;

    /// The record's bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&MAGIC.to_le_bytes());
        match self {
            Self::Welcome(w) => {
                out[4..8].copy_from_slice(&w.version.to_le_bytes());
                out[12] = w.space;
                out[13] = w.by_host.into();
                out[16..20].copy_from_slice(&w.incarnation.to_le_bytes());
                out[24..32].copy_from_slice(&w.base.to_le_bytes());
                out[32..40].copy_from_slice(&w.len.to_le_bytes());
            }
            Self::Refusal(r) => {
                out[4..8].copy_from_slice(&r.version.to_le_bytes());
                out[8..12].copy_from_slice(&(r.reason as u32).to_le_bytes());
                out[24..32].copy_from_slice(&r.value.to_le_bytes());
            }
        }
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if word32(bytes, 0)? != MAGIC {
            return None;
        }
        let version = word32(bytes, 4)?;
        let reason = match word32(bytes, 8)? {
            0 => {
                return Some(Self::Welcome(Welcome {
                    version,
                    space: *bytes.get(12)?,
                    incarnation: word32(bytes, 16)?,
                    base: word64(bytes, 24)?,
                    len: word64(bytes, 32)?,
                    by_host: flag(bytes, 13)?,
                }));
            }
            1 => Reason::Version,
            2 => Reason::Permission,
            3 => Reason::Full,
            4 => Reason::Descriptors,
            6 => Reason::Namespace,
            7 => Reason::Stranger,
            8 => Reason::Token,
            9 => Reason::Busy,
            10 => Reason::Proc,
            _ => Reason::Garbled,
        };
        Some(Self::Refusal(Refusal {
            version,
            reason,
            value: word64(bytes, 24)?,
        }))
    }
}

/// A byte that says yes or no, and nothing else.
pub(crate) fn flag(bytes: &[u8], at: usize) -> Option<bool> {
    match bytes.get(at)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

pub(crate) fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_wire() {
        let mut name = [0; MAX_NAME + 1];
        name[..3].copy_from_slice(b"abc");
        let hello = Hello { version: 1, name };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        let welcome = Answer::Welcome(Welcome {
            version: 1,
            space: 9,
            incarnation: 4,
            base: 1 << 45,
            len: 1 << 35,
            by_host: true,
        });
        assert_eq!(Answer::decode(&welcome.encode()), Some(welcome));
        let refusal = Answer::Refusal(Refusal {
            version: 2,
            reason: Reason::Full,
            value: 255,
        });
        assert_eq!(Answer::decode(&refusal.encode()), Some(refusal));
        let back = Return {
            space: 7,
            incarnation: 9,
        };
        assert_eq!(
            Greeting::decode(&back.encode()),
            Some(Greeting::Return(back))
        );
        assert_eq!(
            Greeting::decode(&hello.encode()),
            Some(Greeting::Hello(hello))
        );
        let look = Look { version: 3 };
        assert_eq!(Greeting::decode(&look.encode()), Some(Greeting::Look(look)));
    }

    #[test]
    fn garbage_is_not_a_greeting() {
        assert_eq!(Hello::decode(b""), None);
        assert_eq!(Hello::decode(&[0xff; 100]), None);
        assert_eq!(Answer::decode(&[0; 40]), None);
    }
}
