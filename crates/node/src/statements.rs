//! What the cluster's authority has stated: which nodes are refused, and which key follows which.
//!
//! ```text
//! authority's key --signs--> statement --passed on, as it is, from node to node--> every node
//!
//! Forget(node)              the node's key is refused from now on
//! Succeed(certificate, t)   that authority is believed too; the key that signs this, until t
//! Retire(key)               that key is believed no more, nor what follows it beside the signer
//! ```
//!
//! A node keeps the statements that it has accepted in the file `statements`, and says them to each
//! peer on each connection. So a node hears them that was away, or joins later. Statements are only
//! ever added, and it does not matter in which order two of them are heard, but for keys: a
//! statement is accepted if its signer is believed then.
//!
//! A key that has a successor is *superseded*: it signs nothing more here, and a certificate that it
//! has issued is renewed by its successor.
//!
//! # Invariants
//!
//! - **B1** A statement changes something only if a key that is believed then has signed it.
//! - **B2** A key is retired only by a key that has followed it, so who has stolen an old key cannot
//!   retire a new one.
//! - **B3** Of what peers say a node keeps at most [`MOST`] statements, and of each node one.

use std::collections::{BTreeMap, BTreeSet};

use portolan_abi::node::{MAX_STATEMENT, NodeId, Stated, Statement};
use portolan_transport::Moment;
use portolan_transport::tls::{Certificate, check_authority};

use crate::authority::{blocks, certificates, in_text};
use crate::state::State;
use crate::{NodeError, Result};

/// The file.
const FILE: &str = "statements";
/// What a statement is called in it.
const TAG: &str = "PORTOLAN STATEMENT";
/// Statements that are kept, at most: more than nodes that are forgotten in a cluster's life.
pub const MOST: usize = 1024;
/// Authorities that a cluster has in its life, at most: one a month for five years.
pub const MOST_AUTHORITIES: usize = 64;

/// The id of a key.
pub type KeyId = [u8; 16];

/// An authority that is, or was, believed.
#[derive(Clone, Debug)]
struct Authority {
    der: Vec<u8>,
    certificate: Certificate,
    /// Whose key has said that it follows.
    follows: Option<KeyId>,
    /// Until when it is believed, if another one follows.
    until: Option<Moment>,
    is_retired: bool,
}

/// What an authority's key is worth to this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worth {
    /// Which.
    pub key: KeyId,
    /// The key that it follows.
    pub follows: Option<KeyId>,
    /// Another one follows it.
    pub is_superseded: bool,
    /// Until when it is believed, if not for good.
    pub until: Option<Moment>,
}

/// What a statement has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node is refused from now on.
    Forgotten(NodeId),
    /// A key is believed too.
    Believed(KeyId),
    /// A key is believed no more.
    Retired(KeyId),
}

/// Why a statement was not accepted. The fault of who has said it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Its bytes are none.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] portolan_abi::codec::DecodeError),
    /// It is of another cluster.
    #[error("it is of another cluster")]
    OtherCluster,
    /// Its signer is not believed here.
    #[error("its signer, the key {}, is not believed here", NodeId(*signer))]
    NotBelieved {
        /// The key.
        signer: KeyId,
    },
    /// Its signer has not signed it.
    #[error("its signature is not of the key {}", NodeId(*signer))]
    BadSignature {
        /// The key.
        signer: KeyId,
    },
    /// What it says cannot be.
    #[error("{what}")]
    Wrong {
        /// Why.
        what: String,
    },
    /// There are as many as may be.
    #[error("a node keeps {MOST} statements, and {MOST_AUTHORITIES} authorities, at most")]
    TooMany,
}

/// The statements that a node has accepted, and what follows from them.
#[derive(Clone, Debug)]
pub struct Statements {
    cluster: [u8; 16],
    authorities: Vec<Authority>,
    forgotten: BTreeMap<NodeId, KeyId>,
    kept: Vec<Vec<u8>>,
}

impl Statements {
    /// Those of a state directory.
    ///
    /// # Errors
    ///
    /// [`NodeError::NotMade`], [`NodeError::Damaged`].
    pub fn load(state: &State) -> Result<Self> {
        let damaged = |what: String| NodeError::Damaged {
            path: state.file(FILE),
            what,
        };
        let believed = certificates(state)?;
        let mut authorities = Vec::new();
        for der in believed {
            let certificate = Certificate::read(&der)?;
            authorities.push(Authority {
                der,
                certificate,
                follows: None,
                until: None,
                is_retired: false,
            });
        }
        let cluster = authorities.first().map(|it| it.certificate.cluster());
        let mut statements = Self {
            cluster: cluster.unwrap_or_default(),
            authorities,
            forgotten: BTreeMap::new(),
            kept: Vec::new(),
        };
        let Some(text) = state.read(FILE)? else {
            return Ok(statements);
        };
        // They were checked when they came, and nobody but this node's user writes the file.
        for bytes in blocks(&text, TAG, FILE, state)? {
            let statement =
                Statement::decode(&bytes).map_err(|error| damaged(error.to_string()))?;
            let change = statements.apply(&statement, &bytes);
            change.map_err(|why| damaged(why.to_string()))?;
        }
        Ok(statements)
    }

    /// Keeps them in the state directory, and whom a node believes by them now.
    ///
    /// # Errors
    ///
    /// What writing can say.
    pub fn keep(&self, state: &State, now: Moment) -> Result<()> {
        let block = |bytes: &Vec<u8>| pem::encode(&pem::Pem::new(TAG, bytes.clone()));
        let text: String = self.kept.iter().map(block).collect();
        if state.read(FILE)?.unwrap_or_default() != text {
            state.write(FILE, &text)?;
        }
        let believed = in_text(&self.believed(now));
        if state.read("authority.crt")?.as_ref() != Some(&believed) {
            state.write("authority.crt", &believed)?;
        }
        Ok(())
    }

    /// The cluster that they are of.
    pub fn cluster(&self) -> [u8; 16] {
        self.cluster
    }

    /// All that are kept: each comes behind those that it rests on.
    pub fn all(&self) -> &[Vec<u8>] {
        &self.kept
    }

    /// The nodes that are refused.
    pub fn forgotten(&self) -> BTreeSet<NodeId> {
        self.forgotten.keys().copied().collect()
    }

    /// The certificates of the authorities that are believed now, the latest first.
    pub fn believed(&self, now: Moment) -> Vec<Vec<u8>> {
        let mut all: Vec<&Authority> = self.believed_now(now).collect();
        all.sort_by_key(|it| std::cmp::Reverse(self.line(it.certificate.key).len()));
        all.into_iter().map(|it| it.der.clone()).collect()
    }

    /// What each key that is believed now is worth.
    pub fn worth(&self, now: Moment) -> Vec<Worth> {
        let worth = |it: &Authority| Worth {
            key: it.certificate.key,
            follows: it.follows,
            is_superseded: self.is_superseded(it.certificate.key),
            until: it.until,
        };
        self.believed_now(now).map(worth).collect()
    }

    /// The keys that this one has followed, one after the other, and that are believed now; it first.
    pub fn believed_line(&self, key: KeyId, now: Moment) -> Vec<KeyId> {
        let mut line = self.line(key);
        line.retain(|it| self.believes(*it, now));
        line
    }

    /// When the next key ends to be believed.
    pub fn next_end(&self, now: Moment) -> Option<Moment> {
        self.believed_now(now).filter_map(|it| it.until).min()
    }

    /// Whether a key is believed now.
    pub fn believes(&self, key: KeyId, now: Moment) -> bool {
        self.believed_now(now).any(|it| it.certificate.key == key)
    }

    /// Whether a key is, or was, an authority's.
    pub fn knows(&self, key: KeyId) -> bool {
        self.authorities.iter().any(|it| it.certificate.key == key)
    }

    /// Whether another key has followed it, or one that has followed that; of those in between some
    /// may be retired.
    pub fn is_superseded(&self, key: KeyId) -> bool {
        let mut all = self.authorities.iter().filter(|it| !it.is_retired);
        all.any(|it| it.certificate.key != key && self.line(it.certificate.key).contains(&key))
    }

    /// Whether a node's certificate is to be issued again: who has issued it is superseded, or not
    /// believed.
    pub fn is_outdated(&self, certificate: &Certificate, now: Moment) -> bool {
        let is_issuer = |it: &&Authority| certificate.is_issued_by(&it.certificate);
        let issuer = self.believed_now(now).find(is_issuer);
        issuer.is_none_or(|it| self.is_superseded(it.certificate.key))
    }

    /// Whether this statement is kept already.
    pub fn has(&self, bytes: &[u8]) -> bool {
        self.kept.iter().any(|kept| kept == bytes)
    }

    /// Accepts a statement, if it is to be believed now (B1); what it changes, if anything.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; then nothing has changed.
    pub fn accept(
        &mut self,
        bytes: &[u8],
        now: Moment,
    ) -> std::result::Result<Option<Change>, Refusal> {
        if self.has(bytes) {
            return Ok(None);
        }
        let statement = Statement::decode(bytes)?;
        let signer = statement.signer;
        if statement.cluster != self.cluster {
            return Err(Refusal::OtherCluster);
        }
        let is_it = |it: &&Authority| it.certificate.key == signer;
        let by = self.believed_now(now).find(is_it);
        let by = by.ok_or(Refusal::NotBelieved { signer })?;
        let by = &by.certificate;
        if !by.has_signed(statement.signed, statement.signature) {
            return Err(Refusal::BadSignature { signer });
        }
        self.apply(&statement, bytes)
    }

    /// Does what a statement says, and keeps it.
    fn apply(
        &mut self,
        statement: &Statement<'_>,
        bytes: &[u8],
    ) -> std::result::Result<Option<Change>, Refusal> {
        let signer = statement.signer;
        let change = match statement.stated {
            Stated::Forget(node) => return self.forget(node, signer, bytes),
            _ if self.kept.len() >= MOST => return Err(Refusal::TooMany),
            Stated::Succeed { certificate, until } => {
                self.succeed(signer, certificate, Moment { seconds: until })?
            }
            Stated::Retire(key) => self.retire(signer, key)?,
        };
        self.kept.push(bytes.to_vec());
        Ok(change)
    }

    fn forget(
        &mut self,
        node: NodeId,
        signer: KeyId,
        bytes: &[u8],
    ) -> std::result::Result<Option<Change>, Refusal> {
        match self.forgotten.get(&node) {
            None if self.kept.len() >= MOST => return Err(Refusal::TooMany),
            None => {}
            // One that a later key has signed takes the place of the one of before: who joins later
            // does not know the old key.
            Some(old) if *old != signer && self.line(signer).contains(old) => {
                let is_old = |kept: &Vec<u8>| {
                    let read = Statement::decode(kept);
                    read.is_ok_and(|it| it.stated == Stated::Forget(node))
                };
                self.kept.retain(|kept| !is_old(kept));
            }
            Some(_) => return Ok(None),
        }
        let is_new = self.forgotten.insert(node, signer).is_none();
        self.kept.push(bytes.to_vec());
        Ok(is_new.then_some(Change::Forgotten(node)))
    }

    fn succeed(
        &mut self,
        signer: KeyId,
        der: &[u8],
        until: Moment,
    ) -> std::result::Result<Option<Change>, Refusal> {
        let wrong = |what: String| Refusal::Wrong { what };
        check_authority(der).map_err(|error| wrong(error.to_string()))?;
        let certificate = Certificate::read(der).map_err(|error| wrong(error.to_string()))?;
        if certificate.cluster() != self.cluster {
            return Err(Refusal::OtherCluster);
        }
        let key = certificate.key;
        if self.line(signer).contains(&key) {
            return Err(wrong("a key cannot follow itself".to_owned()));
        }
        let mut authorities = self.authorities.iter_mut();
        let mut change = None;
        match authorities.find(|it| it.certificate.key == key) {
            Some(there) => there.follows = there.follows.or(Some(signer)),
            None => {
                if self.authorities.len() >= MOST_AUTHORITIES {
                    return Err(Refusal::TooMany);
                }
                self.authorities.push(Authority {
                    der: der.to_vec(),
                    certificate,
                    follows: Some(signer),
                    until: None,
                    is_retired: false,
                });
                change = Some(Change::Believed(key));
            }
        }
        let by = self.authorities.iter_mut();
        for by in by.filter(|it| it.certificate.key == signer) {
            by.until = Some(by.until.map_or(until, |sooner| sooner.min(until)));
        }
        Ok(change)
    }

    fn retire(
        &mut self,
        signer: KeyId,
        key: KeyId,
    ) -> std::result::Result<Option<Change>, Refusal> {
        let line = self.line(signer);
        // B2.
        if key == signer || !line.contains(&key) {
            let what = "a key is retired by one that has followed it".to_owned();
            return Err(Refusal::Wrong { what });
        }
        let mut change = None;
        for at in 0..self.authorities.len() {
            let it = self.authorities[at].certificate.key;
            let its_line = self.line(it);
            // What follows the key stays if it is of the signer's line.
            let is_of_line = it != key && (line.contains(&it) || its_line.contains(&signer));
            if its_line.contains(&key) && !is_of_line && !self.authorities[at].is_retired {
                self.authorities[at].is_retired = true;
                change = Some(Change::Retired(key));
            }
        }
        Ok(change)
    }

    fn believed_now(&self, now: Moment) -> impl Iterator<Item = &Authority> {
        let is_believed =
            move |it: &&Authority| !it.is_retired && it.until.is_none_or(|until| now < until);
        self.authorities.iter().filter(is_believed)
    }

    /// A key, the one that it follows, and so on.
    fn line(&self, key: KeyId) -> Vec<KeyId> {
        let mut line = vec![key];
        let mut at = key;
        while let Some(it) = self.authorities.iter().find(|it| it.certificate.key == at)
            && let Some(before) = it.follows
            && !line.contains(&before)
        {
            line.push(before);
            at = before;
        }
        line
    }
}

const _: () = assert!(MAX_STATEMENT <= 8192);
