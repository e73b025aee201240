//! What a node has of its cluster, which may change while links are up.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use super::certificate::Certificate;
use super::{owned, provider};
use crate::{NodeId, TransportError};

/// A node's key, and what the authority says of it.
#[derive(Clone)]
pub struct Identity {
    /// The certificate, in DER.
    pub certificate: Vec<u8>,
    /// The private key, in PKCS #8.
    pub key: Vec<u8>,
}

impl std::fmt::Debug for Identity {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// A node's place in its cluster: its identity, the authorities that it believes, and the nodes
/// that it refuses. Clones share it; new connections go by what it is then.
#[derive(Clone, Debug)]
pub struct Cluster {
    shared: Arc<RwLock<Shared>>,
}

#[derive(Debug)]
struct Shared {
    node: NodeId,
    resolver: Arc<SingleCertAndKey>,
    roots: Arc<RootCertStore>,
    /// The authorities' names, for people.
    authorities: String,
    forgotten: BTreeSet<NodeId>,
}

impl Cluster {
    /// The place of a node with this identity, among the nodes of these authorities: one, or two
    /// while it is exchanged; certificates in DER, of which the first has issued the identity.
    ///
    /// # Errors
    ///
    /// [`TransportError::BadCertificate`]: they cannot be read, or key and certificate differ.
    pub fn new(identity: &Identity, authorities: &[Vec<u8>]) -> Result<Self, TransportError> {
        let shared = Shared::new(identity, authorities)?;
        Ok(Self {
            shared: Arc::new(RwLock::new(shared)),
        })
    }

    /// Has another certificate, or other authorities, from now on. Whom it refuses stays.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new); then nothing has changed.
    pub fn replace(
        &self,
        identity: &Identity,
        authorities: &[Vec<u8>],
    ) -> Result<(), TransportError> {
        let mut new = Shared::new(identity, authorities)?;
        let mut shared = self.write();
        new.forgotten = std::mem::take(&mut shared.forgotten);
        *shared = new;
        Ok(())
    }

    /// The node's id.
    pub fn node(&self) -> NodeId {
        self.read().node
    }

    /// Refuses these nodes from now on, and no others. Connections that are up are their owner's
    /// to close.
    pub fn forget(&self, nodes: impl IntoIterator<Item = NodeId>) {
        self.write().forgotten = nodes.into_iter().collect();
    }

    /// Whether a node is refused, whatever it shows.
    pub fn is_forgotten(&self, node: NodeId) -> bool {
        self.read().forgotten.contains(&node)
    }

    pub(super) fn resolver(&self) -> Arc<SingleCertAndKey> {
        Arc::clone(&self.read().resolver)
    }

    pub(super) fn roots(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.read().roots)
    }

    pub(super) fn authorities(&self) -> String {
        self.read().authorities.clone()
    }

    fn read(&self) -> RwLockReadGuard<'_, Shared> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Shared> {
        self.shared.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a certificate (DER) can be an authority's.
///
/// # Errors
///
/// [`TransportError::BadCertificate`]: what is wrong with it.
pub fn check_authority(certificate: &[u8]) -> Result<(), TransportError> {
    Certificate::read(certificate)?;
    let certificate = CertificateDer::from(certificate.to_vec());
    let added = RootCertStore::empty().add(certificate);
    added.map_err(|error| TransportError::BadCertificate {
        what: error.to_string(),
    })
}

impl Shared {
    fn new(identity: &Identity, authorities: &[Vec<u8>]) -> Result<Self, TransportError> {
        let bad = |error: rustls::Error| TransportError::BadCertificate {
            what: error.to_string(),
        };
        let mut roots = RootCertStore::empty();
        let mut names = Vec::new();
        for authority in authorities {
            names.push(format!("{:?}", Certificate::read(authority)?.name));
            let authority = CertificateDer::from(authority.clone());
            roots.add(authority).map_err(bad)?;
        }
        let node = Certificate::read(&identity.certificate)?.node();
        let key = PrivateKeyDer::Pkcs8(identity.key.clone().into());
        // The authority's comes along, for newcomers, who know its key alone.
        let mut chain = vec![CertificateDer::from(identity.certificate.clone())];
        chain.extend(owned(authorities));
        let key = CertifiedKey::from_der(chain, key, &provider()).map_err(bad)?;
        Ok(Self {
            node,
            resolver: Arc::new(key.into()),
            roots: Arc::new(roots),
            authorities: names.join(" and "),
            forgotten: BTreeSet::new(),
        })
    }
}
