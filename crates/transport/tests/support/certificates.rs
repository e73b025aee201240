//! A cluster's certificates.

use std::time::Duration;

use portolan_transport::tls::{Cluster, Identity};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// The time of day at which tests begin, in seconds.
pub(crate) const TODAY: u64 = 1_800_000_000;
/// A day, in seconds.
pub(crate) const DAY: u64 = 86_400;

/// An authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) certificate: Vec<u8>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = params(name, TODAY - DAY, TODAY + 1_000 * DAY);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key).unwrap().der().to_vec();
        let issuer = Issuer::new(params, key);
        Self {
            issuer,
            certificate,
        }
    }

    /// A new node's identity, valid from and until these times of day.
    pub(crate) fn identity(&self, name: &str, from: u64, until: u64) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = params(name, from, until);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity {
            certificate: certificate.der().to_vec(),
            key: key.serialize_der(),
        }
    }

    /// A new node, whose certificate is valid for 30 days from a day ago.
    pub(crate) fn node(&self, name: &str) -> Cluster {
        self.node_valid(name, TODAY - DAY, TODAY + 29 * DAY)
    }

    pub(crate) fn node_valid(&self, name: &str, from: u64, until: u64) -> Cluster {
        let identity = self.identity(name, from, until);
        Cluster::new(&identity, std::slice::from_ref(&self.certificate)).unwrap()
    }
}

fn params(name: &str, from: u64, until: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(from);
    params.not_after = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(until);
    params
}
