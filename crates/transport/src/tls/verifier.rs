//! Whether a peer's certificate is accepted, and if not, why.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};

use super::certificate::Certificate;
use super::cluster::Cluster;
use crate::clock::Clock;
use crate::{Moment, NodeId, TransportError};

/// Why a certificate was refused, for the session whose verifier it was.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdict(Arc<Mutex<Option<TransportError>>>);

impl Verdict {
    pub(super) fn take(&self) -> Option<TransportError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn set(&self, why: TransportError) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }
}

/// Who is believed.
#[derive(Clone, Debug)]
pub(super) enum Trust {
    /// Nodes of the cluster, but for those that are forgotten.
    Cluster(Cluster),
    /// Nodes whose chain has an authority with this key.
    Key([u8; 16]),
}

/// Looks at the certificate of one session.
pub(super) struct Verifier {
    pub(super) trust: Trust,
    pub(super) only: Option<NodeId>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) provider: Arc<CryptoProvider>,
    pub(super) verdict: Verdict,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").finish_non_exhaustive()
    }
}

/// Which end of a session a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

impl Verifier {
    /// Accepts a certificate, or notes why not and says so to the peer in TLS's own terms.
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        side: Side,
    ) -> Result<(), Error> {
        self.judge(certificate, chain, side).map_err(|why| {
            let said = match &why {
                TransportError::Expired { .. } => CertificateError::Expired,
                TransportError::NotYetValid { .. } => CertificateError::NotValidYet,
                TransportError::Foreign { .. } => CertificateError::UnknownIssuer,
                TransportError::Forgotten { .. } => CertificateError::Revoked,
                TransportError::BadCertificate { .. } => CertificateError::BadEncoding,
                _ => CertificateError::ApplicationVerificationFailure,
            };
            self.verdict.set(why);
            Error::InvalidCertificate(said)
        })
    }

    fn judge(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        side: Side,
    ) -> Result<(), TransportError> {
        let says = Certificate::read(certificate)?;
        let node = says.node();
        let of_day = self.clock.of_day();
        let now = Moment {
            seconds: of_day.as_secs(),
        };
        let (roots, ours) = self.roots(chain)?;
        let valid = self.is_signed(certificate, chain, &roots, of_day, side);
        match valid {
            Ok(()) => {}
            Err(
                CertificateError::UnknownIssuer
                | CertificateError::BadSignature
                | CertificateError::UnhandledCriticalExtension,
            ) => {
                return Err(TransportError::Foreign {
                    node,
                    theirs: format!("{:?}", says.issuer),
                    ours,
                });
            }
            Err(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
                return Err(TransportError::Expired {
                    node,
                    not_after: says.not_after,
                    now,
                });
            }
            Err(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
                return Err(TransportError::NotYetValid {
                    node,
                    not_before: says.not_before,
                    now,
                });
            }
            Err(other) => {
                return Err(TransportError::BadCertificate {
                    what: format!("{other:?}"),
                });
            }
        }
        if let Trust::Cluster(cluster) = &self.trust
            && cluster.is_forgotten(node)
        {
            return Err(TransportError::Forgotten { node });
        }
        match self.only {
            Some(wanted) if wanted != node => Err(TransportError::OtherNode {
                wanted,
                found: node,
            }),
            _ => Ok(()),
        }
    }

    /// Which authorities are believed, and what people call them.
    fn roots(
        &self,
        chain: &[CertificateDer<'_>],
    ) -> Result<(Arc<RootCertStore>, String), TransportError> {
        let wanted = match &self.trust {
            Trust::Cluster(cluster) => return Ok((cluster.roots(), cluster.authorities())),
            Trust::Key(wanted) => wanted,
        };
        let mut roots = RootCertStore::empty();
        for certificate in chain {
            let is_wanted = Certificate::read(certificate).is_ok_and(|c| c.key == *wanted);
            if is_wanted {
                // One that cannot be a root is none; then nothing is signed by it.
                let _ = roots.add(certificate.clone().into_owned());
            }
        }
        let ours = format!("the authority with the key {}", NodeId(*wanted));
        Ok((Arc::new(roots), ours))
    }

    fn is_signed(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        roots: &Arc<RootCertStore>,
        of_day: Duration,
        side: Side,
    ) -> Result<(), CertificateError> {
        if roots.is_empty() {
            return Err(CertificateError::UnknownIssuer);
        }
        let now = UnixTime::since_unix_epoch(of_day);
        let algorithms = self.provider.signature_verification_algorithms;
        let checked = match side {
            Side::Server => ParsedCertificate::try_from(certificate).and_then(|parsed| {
                let algorithms = algorithms.all;
                verify_server_cert_signed_by_trust_anchor(&parsed, roots, chain, now, algorithms)
            }),
            Side::Client => {
                let provider = Arc::clone(&self.provider);
                let builder =
                    WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider);
                let verifier = builder
                    .build()
                    .map_err(|_| CertificateError::UnknownIssuer)?;
                let checked = verifier.verify_client_cert(certificate, chain, now);
                checked.map(|_| ())
            }
        };
        checked.map_err(|error| match error {
            Error::InvalidCertificate(why) => why,
            _ => CertificateError::BadEncoding,
        })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity, intermediates, Side::Server)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A node has one certificate, and needs no hint which.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity, intermediates, Side::Client)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls12_signature(self, message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls13_signature(self, message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ServerCertVerifier::supported_verify_schemes(self)
    }
}
