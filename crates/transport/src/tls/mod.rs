//! TCP with TLS 1.3: both sides show a certificate of the cluster's authority.
//!
//! A node's id is made of its public key ([`key_id`]), so a certificate says who a peer is and
//! nothing else has to be believed. Names in certificates are for people.
//!
//! | file | holds |
//! |---|---|
//! | `cluster` | what a node has: key, certificate, authorities, the nodes that it refuses |
//! | `certificate` | what a certificate says of itself |
//! | `verifier` | whether a peer's certificate is accepted, and if not, why |
//! | `session` | one TLS session as a layer of a TCP connection |
//!
//! What a client wants is said by the protocol's name in its first packet (ALPN): a *link*, or a
//! connection of *directories*, for which it must show a certificate, or to *join*, for which it has
//! none yet. The latter two have one stream, and their [`peer`](crate::Connection::peer) is
//! [`Directory`](crate::Peer::Directory) or [`Newcomer`](crate::Peer::Newcomer).
//!
//! Nothing is resumed: each connection shows and checks certificates anew, so a node that is
//! forgotten, or whose certificate has expired, cannot come back by a session of before.

mod certificate;
mod cluster;
mod session;
mod verifier;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::server::ServerConfig;
use rustls::{ClientConfig, ServerConnection};

pub use certificate::{Certificate, key_id};
pub use cluster::{Cluster, Identity, check_authority};

use crate::clock::Clock;
use crate::tcp::layer::{Layer, Secure};
use crate::{NodeId, Tcp, TransportError};
use session::Session;
use verifier::{Trust, Verdict, Verifier};

/// The protocol's name of a link.
const LINK: &[u8] = b"portolan-link/1";
/// The protocol's name of a newcomer's connection.
const JOIN: &[u8] = b"portolan-join/1";
/// The protocol's name of a connection between directories.
const DIRECTORY: &[u8] = b"portolan-directory/1";

/// What a node's connections are like: by default without newcomers, to any node of the cluster.
#[derive(Clone, Debug, Default)]
pub struct LinkOptions {
    /// Clients without a certificate are let in, to ask for one.
    pub newcomers: bool,
    /// Connections go to this node alone.
    pub only: Option<NodeId>,
    /// Connections that are made here are between directories. Those that are accepted are what their
    /// clients say.
    pub directories: bool,
}

/// Links between nodes of a cluster.
pub fn links(cluster: &Cluster, options: LinkOptions, clock: Arc<dyn Clock>) -> Tcp {
    let secure = Links {
        cluster: cluster.clone(),
        options,
        clock: Arc::clone(&clock),
        provider: Arc::new(provider()),
    };
    Tcp::secured(clock, Arc::new(secure))
}

/// Connections of a node that has no certificate yet, to a node whose authority's key has this id.
pub fn newcomer(authority: [u8; 16], clock: Arc<dyn Clock>) -> Tcp {
    let secure = Newcomer {
        authority,
        clock: Arc::clone(&clock),
        provider: Arc::new(provider()),
    };
    Tcp::secured(clock, Arc::new(secure))
}

fn provider() -> CryptoProvider {
    rustls::crypto::aws_lc_rs::default_provider()
}

/// Links of a node that has a certificate.
#[derive(Debug)]
struct Links {
    cluster: Cluster,
    options: LinkOptions,
    clock: Arc<dyn Clock>,
    provider: Arc<CryptoProvider>,
}

impl Links {
    fn verifier(&self, only: Option<NodeId>, verdict: &Verdict) -> Verifier {
        Verifier {
            trust: Trust::Cluster(self.cluster.clone()),
            only,
            clock: Arc::clone(&self.clock),
            provider: Arc::clone(&self.provider),
            verdict: verdict.clone(),
        }
    }
}

impl Secure for Links {
    fn client(&self) -> Result<Box<dyn Layer>, TransportError> {
        let verdict = Verdict::default();
        let verifier = Arc::new(self.verifier(self.options.only, &verdict));
        let config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unusable(&error))?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(self.cluster.resolver());
        let protocol = if self.options.directories {
            DIRECTORY
        } else {
            LINK
        };
        client(config, protocol, verdict)
    }

    fn server(&self) -> Result<Box<dyn Layer>, TransportError> {
        let verdict = Verdict::default();
        let chosen = {
            let verifier: Arc<Verifier> = Arc::new(self.verifier(None, &verdict));
            let (provider, cluster) = (Arc::clone(&self.provider), self.cluster.clone());
            let newcomers = self.options.newcomers;
            move |protocol: &[u8]| {
                let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
                    .with_protocol_versions(&[&rustls::version::TLS13])
                    .map_err(|error| unusable(&error))?;
                let is_join = newcomers && protocol == JOIN;
                let builder = match is_join {
                    true => builder.with_no_client_auth(),
                    false => builder.with_client_cert_verifier(verifier.clone()),
                };
                let mut config = builder.with_cert_resolver(cluster.resolver());
                let name = match protocol {
                    _ if is_join => JOIN,
                    DIRECTORY => DIRECTORY,
                    _ => LINK,
                };
                config.alpn_protocols = vec![name.to_vec()];
                config.send_tls13_tickets = 0;
                config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
                Ok(Arc::new(config))
            }
        };
        Ok(Box::new(Session::server(Box::new(chosen), verdict)))
    }

    fn has_one_stream(&self) -> bool {
        self.options.directories
    }
}

/// Connections of a node that has no certificate.
#[derive(Debug)]
struct Newcomer {
    authority: [u8; 16],
    clock: Arc<dyn Clock>,
    provider: Arc<CryptoProvider>,
}

impl Secure for Newcomer {
    fn client(&self) -> Result<Box<dyn Layer>, TransportError> {
        let verdict = Verdict::default();
        let verifier = Verifier {
            trust: Trust::Key(self.authority),
            only: None,
            clock: Arc::clone(&self.clock),
            provider: Arc::clone(&self.provider),
            verdict: verdict.clone(),
        };
        let config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unusable(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        client(config, JOIN, verdict)
    }

    fn server(&self) -> Result<Box<dyn Layer>, TransportError> {
        Err(TransportError::NoCertificate)
    }

    fn has_one_stream(&self) -> bool {
        true
    }
}

fn client(
    mut config: ClientConfig,
    protocol: &[u8],
    verdict: Verdict,
) -> Result<Box<dyn Layer>, TransportError> {
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    // The verifier looks at keys, not at names.
    config.enable_sni = false;
    let name = rustls::pki_types::ServerName::try_from("node.portolan")
        .map_err(|error| unusable(&error))?;
    let connection =
        rustls::ClientConnection::new(Arc::new(config), name).map_err(|error| unusable(&error))?;
    Ok(Box::new(Session::client(connection, verdict)))
}

fn unusable(error: &dyn std::error::Error) -> TransportError {
    TransportError::System {
        doing: "cannot set up TLS",
        reason: error.to_string(),
    }
}

/// The configuration for a protocol's name.
type Chosen = Box<dyn Fn(&[u8]) -> Result<Arc<ServerConfig>, TransportError> + Send>;

/// Whether a server's session is a newcomer's.
fn is_join(connection: &ServerConnection) -> bool {
    connection.alpn_protocol() == Some(JOIN)
}

/// Whether a session is between directories.
fn is_directory(connection: &rustls::Connection) -> bool {
    connection.alpn_protocol() == Some(DIRECTORY)
}

fn owned(certificates: &[Vec<u8>]) -> Vec<CertificateDer<'static>> {
    let owned = certificates.iter().cloned().map(CertificateDer::from);
    owned.collect()
}
