//! Encodes and decodes by the serialisers that a structure is compared with. Each is used as its
//! users do: straight into the buffer that is sent, and out of the one that was received.

use std::collections::HashMap;

use rkyv::rancor::Error;
use rkyv::ser::writer::Buffer;
use serde::{Deserialize, Serialize};

use super::data::{Plain, Record};
use crate::error::CliError;

/// A serialiser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Codec {
    Postcard,
    Bincode,
    /// Read where it lies, after a check.
    Rkyv,
}

/// Room that one entry takes at the most, in any of them.
pub(crate) const ENTRY: u64 = 160;

/// What was decoded, or may be read as it is.
pub(crate) enum Decoded<'b> {
    Plain(Plain),
    Archived(&'b rkyv::Archived<Plain>),
}

/// A serialiser could not do its work.
pub(crate) fn failed(what: String) -> CliError {
    CliError::Refused {
        what,
        to_do: "leave its rows out: --filter names those to run",
    }
}

impl Codec {
    pub(crate) const ALL: [Self; 3] = [Self::Postcard, Self::Bincode, Self::Rkyv];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postcard => "postcard",
            Self::Bincode => "bincode 2",
            Self::Rkyv => "rkyv",
        }
    }

    /// Writes the map; how many bytes it takes.
    pub(crate) fn encode(self, map: &Plain, into: &mut [u8]) -> Result<usize, String> {
        match self {
            Self::Postcard => postcard::to_slice(map, into)
                .map(|used| used.len())
                .map_err(|e| e.to_string()),
            Self::Bincode => {
                bincode::serde::encode_into_slice(map, into, bincode::config::standard())
                    .map_err(|e| e.to_string())
            }
            Self::Rkyv => rkyv::api::high::to_bytes_in::<_, Error>(map, Buffer::from(into))
                .map(|used| used.len())
                .map_err(|e| e.to_string()),
        }
    }

    pub(crate) fn decode(self, bytes: &[u8]) -> Result<Decoded<'_>, String> {
        match self {
            Self::Postcard => postcard::from_bytes(bytes)
                .map(Decoded::Plain)
                .map_err(|e| e.to_string()),
            Self::Bincode => bincode::serde::decode_from_slice(bytes, bincode::config::standard())
                .map(|(map, _): (HashMap<String, Record>, usize)| Decoded::Plain(map))
                .map_err(|e| e.to_string()),
            Self::Rkyv => rkyv::access::<rkyv::Archived<Plain>, Error>(bytes)
                .map(Decoded::Archived)
                .map_err(|e| e.to_string()),
        }
    }
}

impl Decoded<'_> {
    /// The flags of the record at `key`.
    #[inline]
    pub(crate) fn flags(&self, key: &str) -> Option<u32> {
        match self {
            Self::Plain(map) => map.get(key).map(|r| r.flags),
            Self::Archived(map) => map.get(key).map(|r| r.flags.to_native()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::data::{key, plain, record};
    use super::*;

    #[test]
    fn every_serialiser_gives_back_what_it_was_given() {
        let map = plain(1000);
        for codec in Codec::ALL {
            // As aligned as an extent is.
            let mut buffer = rkyv::util::AlignedVec::<16>::new();
            buffer.resize(1000 * usize::try_from(ENTRY).unwrap(), 0);
            let used = codec.encode(&map, &mut buffer).unwrap();
            let decoded = codec.decode(&buffer[..used]).unwrap();
            for n in 0..1000 {
                let found = decoded.flags(&key(n));
                assert_eq!(found, Some(record(n).flags), "{} {n}", codec.name());
            }
            assert_eq!(decoded.flags("nobody"), None);
        }
    }
}
