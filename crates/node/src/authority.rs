//! Keys and certificates: a cluster's authority, and what it says of nodes.
//!
//! The authority is *rotated* by a new key that the old one names as its successor
//! ([`crate::statements`]). The new key lies in `authority.key.next` until the node has accepted that;
//! then it takes the place of the old one. So a key that others believe is never lost, whatever dies.

use std::io::ErrorKind;
use std::time::Duration;

use portolan_abi::node::{Stated, to_sign};
use portolan_transport::tls::{Certificate, Cluster, Identity, key_id};
use portolan_transport::{Moment, NodeId};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
    SigningKey as _,
};

use crate::config::is_node_name;
use crate::state::State;
use crate::statements::{KeyId, Statements};
use crate::{NodeError, Result};

/// How long a node's certificate is valid.
pub const NODE_VALID: Duration = Duration::from_secs(30 * 86_400);
/// After how much of it a node's certificate is renewed.
pub const RENEW_AFTER: Duration = Duration::from_secs(20 * 86_400);
/// How long the authority's is.
const AUTHORITY_VALID: Duration = Duration::from_secs(3650 * 86_400);
/// How much earlier a certificate is valid, because clocks differ.
const CLOCKS_DIFFER: Duration = Duration::from_secs(300);
/// The authority's key, and the one that is to follow it.
const KEY: &str = "authority.key";
const NEXT: &str = "authority.key.next";

/// Who signs.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: Vec<u8>,
}

/// Certificates in the text form of files.
pub(crate) fn in_text(certificates: &[Vec<u8>]) -> String {
    let block = |der: &Vec<u8>| pem::encode(&pem::Pem::new("CERTIFICATE", der.clone()));
    certificates.iter().map(block).collect()
}

/// The blocks of a file with this tag.
pub(crate) fn blocks(text: &str, tag: &str, name: &str, state: &State) -> Result<Vec<Vec<u8>>> {
    let damaged = |what: String| NodeError::Damaged {
        path: state.file(name),
        what,
    };
    let blocks = pem::parse_many(text).map_err(|error| damaged(error.to_string()))?;
    let blocks = blocks.into_iter().filter(|block| block.tag() == tag);
    let contents: Vec<_> = blocks.map(pem::Pem::into_contents).collect();
    match contents.is_empty() {
        true => Err(damaged(format!("it has no {tag}"))),
        false => Ok(contents),
    }
}

fn new_key() -> Result<KeyPair> {
    KeyPair::generate().map_err(NodeError::certificate)
}

fn params(name: &str, now: Moment, valid: Duration) -> CertificateParams {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let at = |seconds: u64| epoch + Duration::from_secs(seconds);
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = at(now.seconds.saturating_sub(CLOCKS_DIFFER.as_secs()));
    params.not_after = at(now.seconds.saturating_add(valid.as_secs()));
    params
}

impl Authority {
    /// A new one, and its private key: the first of a cluster, or the one that follows another.
    ///
    /// The certificate of one that follows is issued by the other one. So it is of use to nodes that have
    /// not heard of it yet: it leads from a certificate that it has issued to the key that they believe.
    fn new(name: &str, follows: Option<&Self>, now: Moment) -> Result<(Self, KeyPair)> {
        let key = new_key()?;
        let mut params = params(name, now, AUTHORITY_VALID);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = match follows {
            None => params.self_signed(&key),
            Some(old) => {
                let cluster = Certificate::read(&old.certificate)?.cluster();
                let cluster = NodeId(cluster).to_string();
                let names = &mut params.distinguished_name;
                names.push(DnType::OrganizationName, cluster);
                params.use_authority_key_identifier_extension = true;
                params.signed_by(&key, &old.issuer)
            }
        };
        let certificate = certificate.map_err(NodeError::certificate)?;
        let certificate = certificate.der().to_vec();
        let again = KeyPair::try_from(key.serialize_der()).map_err(NodeError::certificate)?;
        let issuer = Issuer::new(params, again);
        Ok((
            Self {
                issuer,
                certificate,
            },
            key,
        ))
    }

    /// The one whose key a state directory has.
    ///
    /// # Errors
    ///
    /// [`NodeError::NoAuthority`], [`NodeError::Superseded`]; what reading a key can say.
    pub fn load(state: &State) -> Result<Self> {
        finish_rotation(state)?;
        let text = state.read_key(KEY)?.ok_or(NodeError::NoAuthority)?;
        let damaged = |what: String| NodeError::Damaged {
            path: state.file(KEY),
            what,
        };
        let key = KeyPair::from_pem(&text).map_err(|error| damaged(error.to_string()))?;
        let own = key_id(&key.subject_public_key_info());
        let mut known = certificates(state)?.into_iter();
        let certificate = known.find(|der| Certificate::read(der).is_ok_and(|c| c.key == own));
        let statements = Statements::load(state)?;
        let Some(certificate) = certificate.filter(|_| !statements.is_superseded(own)) else {
            return Err(match statements.is_superseded(own) {
                true => NodeError::Superseded { key: NodeId(own) },
                false => damaged("authority.crt has no certificate of this key".to_owned()),
            });
        };
        let issuer = Issuer::from_ca_cert_der(&certificate.clone().into(), key)
            .map_err(|error| damaged(error.to_string()))?;
        Ok(Self {
            issuer,
            certificate,
        })
    }

    /// Signs a statement.
    ///
    /// # Errors
    ///
    /// [`NodeError::Certificate`].
    pub fn state(&self, stated: Stated<'_>, now: Moment) -> Result<Vec<u8>> {
        let own = Certificate::read(&self.certificate)?;
        let mut bytes = to_sign(own.cluster(), own.key, now.seconds, stated);
        let signature = self.issuer.key().sign(&bytes);
        bytes.extend(signature.map_err(NodeError::certificate)?);
        Ok(bytes)
    }

    /// The id of its key.
    ///
    /// # Errors
    ///
    /// [`NodeError::Transport`]: its certificate cannot be read.
    pub fn key(&self) -> Result<[u8; 16]> {
        Ok(Certificate::read(&self.certificate)?.key)
    }

    /// Signs a certificate of a node's public key, in DER.
    ///
    /// # Errors
    ///
    /// [`NodeError::Certificate`].
    pub fn sign(&self, name: &str, key: &impl PublicKeyData, now: Moment) -> Result<Vec<u8>> {
        let mut params = params(name, now, NODE_VALID);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let signed = params.signed_by(key, &self.issuer);
        Ok(signed.map_err(NodeError::certificate)?.der().to_vec())
    }
}

/// What a signing request asks for, if it is signed by the key that it is for.
///
/// # Errors
///
/// [`NodeError::Wrong`]: it is none.
pub fn read_request(der: &[u8]) -> Result<impl PublicKeyData + use<>> {
    let wrong = |what: String| NodeError::Wrong {
        what: format!("this is no signing request: {what}"),
    };
    let der = der.to_vec().into();
    let read = CertificateSigningRequestParams::from_der(&der);
    // Of all that it says only the key counts: what a certificate says is the authority's.
    Ok(read.map_err(|error| wrong(error.to_string()))?.public_key)
}

/// A newcomer's key and its signing request, in DER.
///
/// # Errors
///
/// [`NodeError::Certificate`].
pub fn request(name: &str) -> Result<(KeyPair, Vec<u8>)> {
    let key = new_key()?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    let request = params
        .serialize_request(&key)
        .map_err(NodeError::certificate)?;
    Ok((key, request.der().to_vec()))
}

/// The certificates of the authorities that a node believes, by what it has heard and the time.
///
/// # Errors
///
/// [`NodeError::NotMade`], [`NodeError::Damaged`].
pub fn authorities(state: &State, now: Moment) -> Result<Vec<Vec<u8>>> {
    let believed = Statements::load(state)?.believed(now);
    match believed.is_empty() {
        true => Err(NodeError::Damaged {
            path: state.file("authority.crt"),
            what: "no authority in it is believed now".to_owned(),
        }),
        false => Ok(believed),
    }
}

/// The certificates in the file of those that a node believes.
pub(crate) fn certificates(state: &State) -> Result<Vec<Vec<u8>>> {
    let text = state.read("authority.crt")?;
    let text = text.ok_or_else(|| state.missing("authority.crt"))?;
    blocks(&text, "CERTIFICATE", "authority.crt", state)
}

/// A node's identity as it lies in its state directory.
///
/// # Errors
///
/// [`NodeError::NotMade`], [`NodeError::Readable`], [`NodeError::Owned`], [`NodeError::Damaged`].
pub fn identity(state: &State) -> Result<Identity> {
    let none = |name| move || state.missing(name);
    let key = state.read_key("node.key")?.ok_or_else(none("node.key"))?;
    let certificate = state.read("node.crt")?.ok_or_else(none("node.crt"))?;
    let first = |blocks: Vec<Vec<u8>>| blocks.into_iter().next().unwrap_or_default();
    let identity = Identity {
        key: first(blocks(&key, "PRIVATE KEY", "node.key", state)?),
        certificate: first(blocks(&certificate, "CERTIFICATE", "node.crt", state)?),
    };
    let damaged = |name, what: String| NodeError::Damaged {
        path: state.file(name),
        what,
    };
    let key = KeyPair::try_from(&identity.key[..])
        .map_err(|error| damaged("node.key", error.to_string()))?;
    let certificate = Certificate::read(&identity.certificate)
        .map_err(|_| damaged("node.crt", "it has no certificate of a node".to_owned()))?;
    match certificate.key == key_id(&key.subject_public_key_info()) {
        true => Ok(identity),
        false => Err(damaged(
            "node.crt",
            "it is of another key than node.key's".to_owned(),
        )),
    }
}

/// Looks at the authority's key, if it is here: others may not have it.
///
/// # Errors
///
/// [`NodeError::Readable`], [`NodeError::Owned`].
pub fn check_key(state: &State) -> Result<()> {
    for name in [KEY, NEXT] {
        // What else is wrong with it ends no node: it does its other work without it.
        if let Err(error @ (NodeError::Readable { .. } | NodeError::Owned { .. })) =
            state.read_key(name)
        {
            return Err(error);
        }
    }
    Ok(())
}

/// A node's place in its cluster, as its state directory says.
///
/// # Errors
///
/// As [`identity`] and [`authorities`].
pub fn cluster(state: &State, now: Moment) -> Result<Cluster> {
    let cluster = Cluster::new(&identity(state)?, &authorities(state, now)?)?;
    let stated = Statements::load(state)?.forgotten();
    cluster.forget(state.forgotten()?.into_iter().chain(stated));
    Ok(cluster)
}

/// The id of the node of a state directory.
///
/// # Errors
///
/// As [`identity`].
pub fn own_id(state: &State) -> Result<NodeId> {
    Ok(Certificate::read(&identity(state)?.certificate)?.node())
}

/// Makes the first node of a cluster: authority, key, certificate.
///
/// # Errors
///
/// [`NodeError::AlreadyMade`]; what writing can say.
pub fn make_first(state: &State, name: &str, now: Moment) -> Result<NodeId> {
    check_new(state, name)?;
    let (authority, authority_key) = Authority::new(&format!("{name}'s cluster"), None, now)?;
    let (key, _) = request(name)?;
    let certificate = authority.sign(name, &key, now)?;
    state.write(KEY, &authority_key.serialize_pem())?;
    keep(state, &key, &certificate, &[authority.certificate])
}

/// Whether a node can be made in a state directory.
///
/// # Errors
///
/// [`NodeError::AlreadyMade`], [`NodeError::Wrong`]; [`NodeError::Damaged`]: there was one.
pub fn check_new(state: &State, name: &str) -> Result<()> {
    if !is_node_name(name) {
        return Err(NodeError::Wrong {
            what: format!("{name:?} is no name of a node: 1 to 32 letters, digits, '-', '.', '_'"),
        });
    }
    if state.has("node.crt") {
        let identity = identity(state)?;
        return Err(NodeError::AlreadyMade {
            path: state.path().to_owned(),
            node: Certificate::read(&identity.certificate)?.node(),
        });
    }
    // Not over the keys of one that has lost its certificate.
    match state.has("incarnation") {
        true => Err(state.missing("node.crt")),
        false => Ok(()),
    }
}

/// Keeps a new node's key, its certificate, and whom it believes. The certificate comes last: with
/// it there is a node.
///
/// # Errors
///
/// What writing can say.
pub fn keep(
    state: &State,
    key: &KeyPair,
    certificate: &[u8],
    authorities: &[Vec<u8>],
) -> Result<NodeId> {
    state.write("node.key", &key.serialize_pem())?;
    state.write("authority.crt", &in_text(authorities))?;
    state.write("node.crt", &in_text(&[certificate.to_vec()]))?;
    Ok(Certificate::read(certificate)?.node())
}

/// When a certificate is to be renewed.
pub fn renew_at(certificate: &Certificate) -> Moment {
    let valid = certificate
        .not_after
        .seconds
        .saturating_sub(certificate.not_before.seconds);
    Moment {
        seconds: certificate.not_before.seconds + valid / 3 * 2,
    }
}

/// Keeps a certificate of the same key in place of the one that there is.
///
/// # Errors
///
/// [`NodeError::Wrong`]: it is of another key. What writing can say.
pub fn renew(state: &State, certificate: &[u8]) -> Result<Identity> {
    let mut identity = identity(state)?;
    let [old, new] = [&identity.certificate[..], certificate].map(Certificate::read);
    if old?.key != new?.key {
        return Err(NodeError::Wrong {
            what: "the new certificate is of another key".to_owned(),
        });
    }
    identity.certificate = certificate.to_vec();
    state.write("node.crt", &in_text(&[certificate.to_vec()]))?;
    Ok(identity)
}

/// Signs this node's own certificate again, with the authority's key that it has.
///
/// # Errors
///
/// [`NodeError::NoAuthority`]; what reading and writing can say.
pub fn renew_own(state: &State, now: Moment) -> Result<Identity> {
    renew(state, &sign_own(state, now)?)
}

/// The same, and does not keep it.
///
/// # Errors
///
/// [`NodeError::NoAuthority`]; what reading can say.
pub fn sign_own(state: &State, now: Moment) -> Result<Vec<u8>> {
    let authority = Authority::load(state)?;
    let own = identity(state)?;
    let name = Certificate::read(&own.certificate)?.name;
    let key = KeyPair::try_from(own.key).map_err(NodeError::certificate)?;
    authority.sign(&name, &key, now)
}

/// The authority's key and certificate as one text, to be kept in a safe place, or given to a
/// further node that may then let others in.
///
/// # Errors
///
/// [`NodeError::NoAuthority`].
pub fn copy(state: &State) -> Result<String> {
    let authority = Authority::load(state)?;
    let key = state.read_key(KEY)?;
    let key = key.ok_or(NodeError::NoAuthority)?;
    Ok(key + &in_text(&[authority.certificate]))
}

/// Takes the authority's key from such a text.
///
/// # Errors
///
/// [`NodeError::Wrong`]: it is of another cluster, or is none. [`NodeError::Superseded`].
pub fn install(state: &State, text: &str, now: Moment) -> Result<()> {
    let wrong = |what: &str| NodeError::Wrong {
        what: what.to_owned(),
    };
    let key = KeyPair::from_pem(text).map_err(|_| wrong("the file has no private key"))?;
    let id = key_id(&key.subject_public_key_info());
    let statements = Statements::load(state)?;
    if statements.is_superseded(id) {
        return Err(NodeError::Superseded { key: NodeId(id) });
    }
    if !statements.believes(id, now) {
        return Err(wrong(
            "this node does not believe the key's authority: it is of another cluster, or this node has not heard of it yet",
        ));
    }
    state.write(KEY, &key.serialize_pem())
}

/// How the old authority ends when a new one follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is believed for so long, as long as its certificates should be.
    After(Duration),
    /// It is believed no more from now on, nor those that it has followed: somebody else may have its
    /// key.
    Now,
}

/// Makes the authority's next key, which lies beside the one that there is; what is to be stated, in
/// this order. When this node has accepted that, [`finish_rotation`] puts the key in its place.
///
/// # Errors
///
/// As [`Authority::load`]; what writing can say.
pub fn rotate(state: &State, end: End, now: Moment) -> Result<Vec<Vec<u8>>> {
    let old = Authority::load(state)?;
    let statements = Statements::load(state)?;
    let name = Certificate::read(&old.certificate)?.name;
    let (new, key) = Authority::new(&name, Some(&old), now)?;
    let until = match end {
        End::After(time) => now.seconds.saturating_add(time.as_secs()),
        End::Now => now.seconds,
    };
    let certificate = &new.certificate;
    let mut stated = vec![old.state(Stated::Succeed { certificate, until }, now)?];
    // Who joins later knows the new key alone.
    for node in statements.forgotten() {
        stated.push(new.state(Stated::Forget(node), now)?);
    }
    if end == End::Now {
        // Those of before, too: they are believed for a while after a rotation, and a node that has a copy
        // of one could let nodes in.
        for key in statements.believed_line(old.key()?, now) {
            stated.push(new.state(Stated::Retire(key), now)?);
        }
    }
    state.write(NEXT, &key.serialize_pem())?;
    Ok(stated)
}

/// Puts the authority's next key in the place of the one of before, if this node believes it.
///
/// # Errors
///
/// What reading and writing can say.
pub fn finish_rotation(state: &State) -> Result<()> {
    let Some(text) = state.read_key(NEXT)? else {
        return Ok(());
    };
    let key = KeyPair::from_pem(&text).map_err(|error| NodeError::Damaged {
        path: state.file(NEXT),
        what: error.to_string(),
    })?;
    let id: KeyId = key_id(&key.subject_public_key_info());
    match Statements::load(state)?.knows(id) {
        true => match state.rename(NEXT, KEY) {
            // The running node, or the command, has done it meanwhile.
            Err(NodeError::File { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(()),
            renamed => renamed,
        },
        // Nobody has heard of it: it is made again.
        false => Ok(()),
    }
}

/// A signing request for this node's own key.
///
/// # Errors
///
/// What reading can say.
pub fn request_again(state: &State) -> Result<Vec<u8>> {
    let own = identity(state)?;
    let name = Certificate::read(&own.certificate)?.name;
    let key = KeyPair::try_from(own.key).map_err(NodeError::certificate)?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    let request = params
        .serialize_request(&key)
        .map_err(NodeError::certificate)?;
    Ok(request.der().to_vec())
}
