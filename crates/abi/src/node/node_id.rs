//! A node id names a node for life: it is made of the node's key.

use crate::codec::{DecodeError, Field, Reader, Writer};
use std::fmt;
use std::str::FromStr;

/// 16 bytes of the hash of a node's public key.
///
/// ```
/// use portolan_abi::node::NodeId;
/// let id = NodeId([0xab; 16]);
/// assert_eq!(id.to_string(), "ab".repeat(16));
/// assert_eq!(id.to_string().parse(), Ok(id));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub [u8; 16]);

/// Why a text is no node id. Its writer's fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIdError {
    /// The text.
    pub text: String,
}

impl fmt::Display for NodeIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text } = self;
        write!(f, "{text:?} is no node id, which is 32 hexadecimal digits")
    }
}

impl std::error::Error for NodeIdError {}

impl Field for NodeId {
    const BYTES: usize = 16;

    fn put(&self, to: &mut Writer<'_>) {
        to.bytes(&self.0);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        <[u8; 16]>::get(from).map(Self)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for NodeId {
    /// The first four bytes: enough to tell nodes apart.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "{a:02x}{b:02x}{c:02x}{d:02x}")
    }
}

impl FromStr for NodeId {
    type Err = NodeIdError;

    fn from_str(text: &str) -> Result<Self, NodeIdError> {
        let refused = || NodeIdError {
            text: text.chars().take(64).collect(),
        };
        let digits: Option<Vec<u8>> = text
            .chars()
            .map(|digit| digit.to_digit(16).and_then(|d| u8::try_from(d).ok()))
            .collect();
        let digits = digits.filter(|digits| digits.len() == 32);
        let digits = digits.ok_or_else(refused)?;
        let mut id = [0; 16];
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(Self(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_id_is_refused() {
        for text in ["", "ab", &"g".repeat(32), &"a".repeat(33), &"é".repeat(16)] {
            assert!(text.parse::<NodeId>().is_err(), "{text}");
        }
    }
}
