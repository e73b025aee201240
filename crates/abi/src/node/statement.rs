//! Lays out what a cluster's authority states to all of its nodes: a key is refused, a key follows
//! another, a key is void. Nodes pass statements on as they are, so each is signed for itself.
//!
//! ```text
//! [head 64][body: as long as the head says][signature: the rest]
//!  signed: head and body
//! ```
//!
//! A statement begins with another byte than a certificate, so one key signs both.

use super::greeting::MAX_CERTIFICATE;
use super::node_id::NodeId;
use crate::codec::{DecodeError, Reader};
use crate::{codes, record};

/// Bytes of a statement at the most: those of the longest certificate, and of what is around it.
pub const MAX_STATEMENT: usize = MAX_CERTIFICATE;
/// First bytes of a statement.
const STATEMENT_MAGIC: u32 = 0x5453_5450;
/// Bytes of a signature at the most: one of a curve of 256 bits takes 72.
const MAX_SIGNATURE: usize = 256;

codes! {
    /// What is stated.
    pub enum StatementKind: u32 {
        /// [`Stated::Forget`].
        Forget = 1,
        /// [`Stated::Succeed`].
        Succeed = 2,
        /// [`Stated::Retire`].
        Retire = 3,
    }
}

record! {
    /// The part that all statements have.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct StatementHead {
        magic STATEMENT_MAGIC,
        /// What follows.
        pub kind: StatementKind,
        /// The cluster, so that no statement holds in another one.
        pub cluster: [u8; 16],
        /// The id of the authority's key that signs.
        pub signer: [u8; 16],
        /// When it was stated, in seconds since 1970: for people.
        pub at: u64,
        /// When what it ends is over, in seconds since 1970; of [`Stated::Succeed`].
        pub until: u64,
        /// Bytes of the body.
        pub body: u32,
        _: 4,
    }
    check |it| (1..=MAX_STATEMENT).contains(&(it.body as usize))
}

const _: () = assert!(StatementHead::BYTES == 64);

/// What a statement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stated<'a> {
    /// The node with this id is refused from now on.
    Forget(NodeId),
    /// The authority of this certificate (DER) is believed too; the signer's until a time of day.
    Succeed {
        /// The new authority's certificate.
        certificate: &'a [u8],
        /// Until when the signer is believed, in seconds since 1970.
        until: u64,
    },
    /// The key with this id, which the signer has followed, is believed no more.
    Retire([u8; 16]),
}

/// A statement as it lies in bytes. Nothing of it is believed until its signature is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statement<'a> {
    /// The cluster.
    pub cluster: [u8; 16],
    /// Whose signature it has.
    pub signer: [u8; 16],
    /// When it was stated, in seconds since 1970.
    pub at: u64,
    /// What it says.
    pub stated: Stated<'a>,
    /// What is signed.
    pub signed: &'a [u8],
    /// The signature.
    pub signature: &'a [u8],
}

/// The bytes of a statement without its signature, which has to be put behind.
///
/// ```
/// use portolan_abi::node::{NodeId, Stated, Statement, to_sign};
/// let bytes = to_sign([1; 16], [2; 16], 3, Stated::Forget(NodeId([4; 16])));
/// let signed = [&bytes[..], b"signature"].concat();
/// let read = Statement::decode(&signed)?;
/// assert_eq!((read.stated, read.signed), (Stated::Forget(NodeId([4; 16])), &bytes[..]));
/// # Ok::<(), portolan_abi::codec::DecodeError>(())
/// ```
pub fn to_sign(cluster: [u8; 16], signer: [u8; 16], at: u64, stated: Stated<'_>) -> Vec<u8> {
    let (kind, until, body) = match &stated {
        Stated::Forget(node) => (StatementKind::Forget, 0, &node.0[..]),
        Stated::Succeed { certificate, until } => (StatementKind::Succeed, *until, *certificate),
        Stated::Retire(key) => (StatementKind::Retire, 0, &key[..]),
    };
    let head = StatementHead {
        kind,
        cluster,
        signer,
        at,
        until,
        body: u32::try_from(body.len()).unwrap_or(u32::MAX),
    };
    [&head.encode()[..], body].concat()
}

impl<'a> Statement<'a> {
    /// Reads one, whole or not at all.
    ///
    /// # Errors
    ///
    /// [`DecodeError`]: these bytes are none, or one of a later version.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let wrong = DecodeError::Check {
            record: "Statement",
        };
        if bytes.len() > MAX_STATEMENT {
            let (found, wanted) = (bytes.len(), MAX_STATEMENT);
            return Err(DecodeError::Length { found, wanted });
        }
        let mut reader = Reader::new(bytes);
        let head: StatementHead = reader.field("head")?;
        let body = reader.bytes(head.body as usize)?;
        let signature = reader.rest();
        let id = || <[u8; 16]>::try_from(body).map_err(|_| wrong);
        let stated = match head.kind {
            StatementKind::Forget => Stated::Forget(NodeId(id()?)),
            StatementKind::Retire => Stated::Retire(id()?),
            StatementKind::Succeed => Stated::Succeed {
                certificate: body,
                until: head.until,
            },
        };
        let says_when = matches!(stated, Stated::Succeed { .. });
        if (!says_when && head.until != 0) || !(1..=MAX_SIGNATURE).contains(&signature.len()) {
            return Err(wrong);
        }
        let signed = &bytes[..bytes.len() - signature.len()];
        Ok(Self {
            cluster: head.cluster,
            signer: head.signer,
            at: head.at,
            stated,
            signed,
            signature,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples() -> Vec<Vec<u8>> {
        let stated = [
            Stated::Forget(NodeId([3; 16])),
            Stated::Succeed {
                certificate: b"certificate",
                until: 9,
            },
            Stated::Retire([4; 16]),
        ];
        let sign = |stated| [&to_sign([1; 16], [2; 16], 7, stated)[..], b"signature"].concat();
        stated.map(sign).to_vec()
    }

    #[test]
    fn statements_are_read_whole_or_not_at_all() {
        for bytes in examples() {
            let read = Statement::decode(&bytes).unwrap();
            assert_eq!((read.cluster, read.signer, read.at), ([1; 16], [2; 16], 7));
            assert_eq!(read.signature, b"signature");
            let again = to_sign(read.cluster, read.signer, read.at, read.stated);
            assert_eq!(again, read.signed);
            for cut in 0..=read.signed.len() {
                assert!(Statement::decode(&bytes[..cut]).is_err(), "{cut}");
            }
            // A changed byte makes another statement, or none: never the same one.
            for at in 0..bytes.len() {
                let mut other = bytes.clone();
                other[at] ^= 0x10;
                assert_ne!(Statement::decode(&other).ok(), Some(read), "{at}");
            }
        }
        let long = [&examples()[0][..], &[0; MAX_SIGNATURE]].concat();
        assert!(Statement::decode(&long).is_err());
        assert!(Statement::decode(&vec![0; MAX_STATEMENT + 1]).is_err());
    }

    #[test]
    fn statements_have_these_bytes() {
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
        let [forget, succeed, retire] = &examples()[..] else {
            panic!("three");
        };
        let (ones, twos) = ("01".repeat(16), "02".repeat(16));
        let head = |kind: u8, until: u8, body: u8| {
            format!(
                "50545354{kind:02x}000000{ones}{twos}0700000000000000{until:02x}00000000000000{body:02x}00000000000000"
            )
        };
        let signature = hex(b"signature");
        let all = [
            (forget, head(1, 0, 16) + &"03".repeat(16)),
            (succeed, head(2, 9, 11) + &hex(b"certificate")),
            (retire, head(3, 0, 16) + &"04".repeat(16)),
        ];
        for (bytes, expected) in all {
            assert_eq!(hex(bytes), expected + &signature);
        }
    }
}
