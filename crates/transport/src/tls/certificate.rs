//! What a certificate says of itself. None of it is believed until a signature has been checked.

use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{Moment, NodeId, TransportError};

/// The first 16 bytes of the SHA-256 hash of a public key, as a certificate has it (DER).
pub fn key_id(public_key: &[u8]) -> [u8; 16] {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, public_key);
    let mut id = [0; 16];
    id.copy_from_slice(&hash.as_ref()[..16]);
    id
}

/// A certificate's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The id of its key: the node's, or the authority's.
    pub key: [u8; 16],
    /// Its name, for people.
    pub name: String,
    /// The name of who issued it, for people.
    pub issuer: String,
    /// From when it is valid.
    pub not_before: Moment,
    /// Until when.
    pub not_after: Moment,
}

impl Certificate {
    /// Reads one.
    ///
    /// # Errors
    ///
    /// [`TransportError::BadCertificate`].
    pub fn read(der: &[u8]) -> Result<Self, TransportError> {
        let bad = |what: String| TransportError::BadCertificate { what };
        let (rest, parsed) = X509Certificate::from_der(der).map_err(|e| bad(e.to_string()))?;
        if !rest.is_empty() {
            return Err(bad(format!("{} bytes stand behind it", rest.len())));
        }
        let moment = |time: x509_parser::time::ASN1Time| Moment {
            seconds: u64::try_from(time.timestamp()).unwrap_or_default(),
        };
        let validity = parsed.validity();
        Ok(Self {
            key: key_id(parsed.public_key().raw),
            name: common_name(parsed.subject()),
            issuer: common_name(parsed.issuer()),
            not_before: moment(validity.not_before),
            not_after: moment(validity.not_after),
        })
    }

    /// Whose it is, if it is a node's.
    pub fn node(&self) -> NodeId {
        NodeId(self.key)
    }
}

/// A name, as far as people should see what a stranger writes.
fn common_name(name: &x509_parser::x509::X509Name<'_>) -> String {
    let mut names = name.iter_common_name();
    let first = names.next().and_then(|name| name.as_str().ok());
    let readable = first.unwrap_or("a name that cannot be read").chars();
    let readable = readable.filter(|c| !c.is_control());
    readable.take(64).collect()
}
