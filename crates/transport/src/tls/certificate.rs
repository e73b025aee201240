//! What a certificate says of itself. None of it is believed until a signature has been checked.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use x509_parser::extensions::ParsedExtension;
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
    /// Which cluster an authority is of, if it is not the first one.
    organization: Option<[u8; 16]>,
    /// The key itself.
    public_key: Vec<u8>,
    /// What it calls its own key, and its issuer's.
    identifiers: [Option<Vec<u8>>; 2],
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
            organization: organization(parsed.subject()),
            public_key: parsed.public_key().subject_public_key.data.to_vec(),
            identifiers: identifiers(&parsed),
        })
    }

    /// Of an authority: the id of its cluster, which is that of the first authority's key. Those
    /// that follow it name it as their organization.
    pub fn cluster(&self) -> [u8; 16] {
        self.organization.unwrap_or(self.key)
    }

    /// Whether it says that this authority has issued it: to know when it is to be issued again.
    /// The signature is looked at when a peer shows it.
    pub fn is_issued_by(&self, authority: &Self) -> bool {
        let ([own, _], [_, issuer]) = (&authority.identifiers, &self.identifiers);
        own.is_some() && own == issuer
    }

    /// Whether its key has signed a message, by ECDSA over P-256, as keys of nodes and authorities
    /// do.
    pub fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.public_key);
        key.verify(message, signature).is_ok()
    }

    /// Whose it is, if it is a node's.
    pub fn node(&self) -> NodeId {
        NodeId(self.key)
    }
}

/// The id of a cluster, where an authority names it.
fn organization(name: &x509_parser::x509::X509Name<'_>) -> Option<[u8; 16]> {
    let named = name.iter_organization().next()?;
    // An id of a cluster has the form of a node's.
    let id: NodeId = named.as_str().ok()?.parse().ok()?;
    Some(id.0)
}

/// What a certificate calls its own key, and its issuer's.
fn identifiers(certificate: &X509Certificate<'_>) -> [Option<Vec<u8>>; 2] {
    let mut found = [None, None];
    for extension in certificate.extensions() {
        match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(own) => found[0] = Some(own.0.to_vec()),
            ParsedExtension::AuthorityKeyIdentifier(issuer) => {
                found[1] = issuer.key_identifier.as_ref().map(|it| it.0.to_vec());
            }
            _ => {}
        }
    }
    found
}

/// A name, as far as people should see what a stranger writes.
fn common_name(name: &x509_parser::x509::X509Name<'_>) -> String {
    let mut names = name.iter_common_name();
    let first = names.next().and_then(|name| name.as_str().ok());
    let readable = first.unwrap_or("a name that cannot be read").chars();
    let readable = readable.filter(|c| !c.is_control());
    readable.take(64).collect()
}
