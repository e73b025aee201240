//! Whom a running node believes and refuses: what the authority states, certificates and their
//! renewal.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portolan_transport::tls::{Certificate, Identity};
use portolan_transport::{Moment, NodeId};

use super::disk::Written;
use super::status::AuthorityStatus;
use super::{Ask, LOOK, Node, ask};
use crate::audit::{self, Event};
use crate::authority::{self, Authority, renew_at};
use crate::join::Bucket;
use crate::state::State;
use crate::statements::{Change, Refusal, Statements};
use crate::{NodeError, Result};

/// How long peers have to get a new certificate once an authority is believed no more. Then their
/// links end, and only those with a certificate that is believed come back.
const GRACE: Duration = Duration::from_secs(10);
/// Certificates that a peer may ask for at once, and how often: each costs a signature and a line in
/// the audit log.
const RENEWALS: (u32, Duration) = (4, Duration::from_secs(60));
/// Signatures of statements that were found wrong, of one peer, between two looks.
const MOST_WRONG: u32 = 16;
/// How long a command waits for a node that starts or ends.
const PATIENCE: Duration = Duration::from_secs(5);
/// Who has said what comes from this machine.
const COMMAND: &str = "a command";

/// Whom a node believes.
#[derive(Debug)]
pub(super) struct Trust {
    pub(super) statements: Statements,
    /// Its own, that is on the disk.
    pub(super) certificate: Certificate,
    /// What connections are made with.
    identity: Identity,
    /// A certificate is being written.
    is_renewing: bool,
    /// The authorities that links are checked by.
    believed: Vec<Vec<u8>>,
    /// All links are checked anew then.
    pub(super) cuts_at: Option<Duration>,
    /// Statements are being written.
    is_keeping: bool,
    /// What is neither on the disk nor being written: it came later, or there was no room.
    is_unkept: bool,
    renewals: BTreeMap<NodeId, Bucket>,
    asks_too_often: BTreeSet<NodeId>,
    wrong: BTreeMap<NodeId, u32>,
}

impl Trust {
    pub(super) fn new(state: &State, now: Moment) -> Result<Self> {
        let identity = authority::identity(state)?;
        Ok(Self {
            statements: Statements::load(state)?,
            certificate: Certificate::read(&identity.certificate)?,
            identity,
            is_renewing: false,
            believed: authority::authorities(state, now)?,
            cuts_at: None,
            is_keeping: false,
            is_unkept: false,
            renewals: BTreeMap::new(),
            asks_too_often: BTreeSet::new(),
            wrong: BTreeMap::new(),
        })
    }
}

impl Node {
    /// Says all statements to peers, when they come; refuses whom they name.
    pub(super) fn state_all(&mut self) {
        for statement in self.trust.statements.all() {
            self.engine.state(statement);
        }
        self.refuse_forgotten();
    }

    /// A peer has passed on a statement.
    pub(super) fn hear(&mut self, peer: NodeId, statement: &[u8]) {
        let wrong = self.trust.wrong.get(&peer).copied().unwrap_or_default();
        if wrong >= MOST_WRONG {
            return;
        }
        match self.accept(&peer.to_string(), statement) {
            Ok(()) => {}
            // One of an authority whose time was over before this node came.
            Err(Refusal::NotBelieved { .. }) => {}
            Err(why) => {
                self.trust.wrong.insert(peer, wrong + 1);
                self.refused(&peer.to_string(), &format!("a statement: {why}"));
            }
        }
    }

    /// A command has a statement; the answer, which it has once all that follows is on the disk.
    pub(super) fn told(&mut self, digits: &str) -> Option<String> {
        let accepted = match bytes_of(digits) {
            Some(bytes) => self.accept(COMMAND, &bytes).map_err(|why| why.to_string()),
            None => Err("it is not in hexadecimal digits".to_owned()),
        };
        let refused = accepted.err();
        let is_kept = refused.is_some() || self.disk.is_idle();
        is_kept.then(|| serde_json::json!({ "refused": refused }).to_string())
    }

    fn accept(&mut self, from: &str, bytes: &[u8]) -> std::result::Result<(), Refusal> {
        let now = self.today();
        if self.trust.statements.has(bytes) {
            return Ok(());
        }
        let change = self.trust.statements.accept(bytes, now)?;
        if !self.trust.statements.has(bytes) {
            return Ok(());
        }
        self.engine.state(bytes);
        self.keep_statements();
        if let Some(event) = change.as_ref().and_then(|change| event_of(change, from)) {
            self.say_and_note(event);
        }
        self.refuse_forgotten();
        self.believe_anew();
        Ok(())
    }

    /// Keeps the statements. They hold whether or not there is room to keep them: it is tried again.
    fn keep_statements(&mut self) {
        // What comes while they are written is written then.
        self.trust.is_unkept = self.trust.is_keeping;
        if self.trust.is_unkept {
            return;
        }
        self.trust.is_keeping = true;
        let (statements, today) = (self.trust.statements.clone(), self.today());
        self.disk
            .ask(move |state| Written::Statements(statements.keep(state, today)));
    }

    /// The statements are on the disk, or cannot be.
    pub(super) fn statements_kept(&mut self, kept: Result<()>) {
        self.trust.is_keeping = false;
        match kept {
            Ok(()) if self.trust.is_unkept => self.keep_statements(),
            Ok(()) => {}
            Err(error) => {
                self.trust.is_unkept = true;
                self.log(&format!(
                    "cannot keep what the authority has stated: {error}"
                ));
            }
        }
    }

    fn say_and_note(&mut self, event: Event) {
        self.log(&in_words(&event));
        self.note(event);
    }

    /// The nodes that this one refuses.
    pub(super) fn forgotten(&self) -> Vec<NodeId> {
        let mut nodes = self.trust.statements.forgotten();
        nodes.extend(self.state.forgotten().unwrap_or_default());
        nodes.into_iter().collect()
    }

    pub(super) fn refuse_forgotten(&mut self) {
        let forgotten = self.forgotten();
        if forgotten.contains(&self.id) {
            self.log("the authority has stated that this node is refused");
        }
        self.cluster.forget(forgotten.iter().copied());
        let (now, own) = (self.clock.now(), self.id);
        for node in forgotten.into_iter().filter(|node| *node != own) {
            self.engine.forget(now, node);
            self.member_is_gone(node, false);
        }
    }

    /// Checks links by the authorities that are believed now.
    fn believe_anew(&mut self) {
        let now = self.today();
        let believed = self.trust.statements.believed(now);
        if believed == self.trust.believed {
            return;
        }
        if let Err(error) = self.cluster.replace(&self.trust.identity, &believed) {
            return self.log(&format!("cannot believe other authorities: {error}"));
        }
        self.keep_statements();
        let old = std::mem::replace(&mut self.trust.believed, believed);
        let gone: Vec<Certificate> = old
            .iter()
            .filter(|it| !self.trust.believed.contains(it))
            .filter_map(|it| Certificate::read(it).ok())
            .collect();
        for authority in &gone {
            let key = NodeId(authority.key).to_string();
            self.say_and_note(Event::Retired { key });
        }
        if !gone.is_empty() {
            self.trust.cuts_at = Some(self.clock.now() + GRACE);
        }
        // The certificate may have to be issued again.
        self.looks_at = self.clock.now();
    }

    /// An authority is believed no more: peers show their certificates again.
    pub(super) fn check_links_anew(&mut self) {
        self.trust.cuts_at = None;
        self.engine.cut("certificates are checked anew");
    }

    /// What each authority is that is believed.
    pub(super) fn authorities(&self) -> Vec<AuthorityStatus> {
        let worth = self.trust.statements.worth(self.today()).into_iter();
        let status = worth.map(|it| AuthorityStatus {
            key: NodeId(it.key).to_string(),
            follows: it.follows.map(|key| NodeId(key).to_string()),
            until: it.until.map(|until| until.to_string()),
        });
        status.collect()
    }

    // Certificates.

    /// A peer wants its key signed again.
    pub(super) fn renew_peer(&mut self, node: NodeId, request: &[u8]) {
        let now = self.clock.now();
        let bucket = self.trust.renewals.entry(node).or_default();
        if !bucket.take(now, RENEWALS.0, RENEWALS.1) {
            // Said once, or the log of refusals would be full of it.
            if self.trust.asks_too_often.insert(node) {
                self.refused(&node.to_string(), "it asks for too many certificates");
            }
            return;
        }
        let (name, today) = (self.engine.name_of(node), self.today());
        let request = request.to_vec();
        self.disk
            .ask(move |state| Written::Signed(node, sign(state, node, &name, &request, today)));
    }

    /// A peer's new certificate, which is in the audit log now.
    pub(super) fn signed(&mut self, node: NodeId, signed: Result<Vec<u8>>) {
        match signed {
            Ok(certificate) => self.engine.renewed(node, &certificate),
            // Another node has the key.
            Err(NodeError::NoAuthority) => {}
            Err(error) => self.log(&format!("cannot renew {node}: {error}")),
        }
    }

    /// Has this certificate from now on, and keeps it.
    pub(super) fn keep_renewed(&mut self, certificate: &[u8]) -> Result<()> {
        let mut identity = self.trust.identity.clone();
        identity.certificate = certificate.to_vec();
        let new = Certificate::read(certificate)?;
        // It must be one that peers accept: of an authority that this node believes, and no older
        // than the one that there is.
        if self.trust.statements.is_outdated(&new, self.today()) {
            return Err(NodeError::Wrong {
                what: "it is of an authority that has a successor, or is not believed".to_owned(),
            });
        }
        self.cluster.replace(&identity, &self.trust.believed)?;
        let certificate = identity.certificate.clone();
        self.trust.identity = identity;
        self.trust.is_renewing = true;
        self.disk.ask(move |state| {
            let kept = authority::renew(state, &certificate);
            Written::Renewed(kept.map(|_| new))
        });
        Ok(())
    }

    /// This node's new certificate is on the disk, or cannot be; then it is asked for again.
    pub(super) fn renewed(&mut self, renewed: Result<Certificate>) {
        self.trust.is_renewing = false;
        match renewed {
            Ok(certificate) => {
                self.trust.certificate = certificate;
                self.log("the certificate was renewed");
            }
            Err(error) => self.log(&format!("cannot keep a certificate: {error}")),
        }
    }

    /// Whether the certificate is to be issued again: two thirds of its time are over, or another
    /// authority has followed its own.
    pub(super) fn is_to_renew(&self) -> bool {
        let now = self.today();
        let certificate = &self.trust.certificate;
        now >= renew_at(certificate) || self.trust.statements.is_outdated(certificate, now)
    }

    /// Looks at what changes with time: authorities, the certificate, invitations.
    pub(super) fn look(&mut self) {
        let clock = self.clock.now();
        self.looks_at = clock + LOOK;
        self.refusals = 0;
        self.sweep_members();
        self.trust.wrong.clear();
        self.trust.asks_too_often.clear();
        self.trust
            .renewals
            .retain(|_, bucket| !bucket.is_full(clock));
        let now = self.today();
        // What cannot be swept now is refused by its time.
        let _ = crate::invitations::sweep(&self.state, now);
        if self.trust.is_unkept {
            self.keep_statements();
        }
        self.believe_anew();
        if self.is_to_renew() && !self.trust.is_renewing {
            self.renew();
        }
        // A look comes when the next authority ends, too.
        let next_end = self.trust.statements.next_end(now);
        let left = next_end.map(|at| Duration::from_secs(at.seconds.saturating_sub(now.seconds)));
        let at = clock + left.map_or(LOOK, |left| left.min(LOOK));
        self.looks_at = self
            .looks_at
            .min(at.max(clock + Duration::from_millis(100)));
    }

    fn renew(&mut self) {
        let own = authority::sign_own(&self.state, self.today());
        let renewed = match own {
            Ok(certificate) => self.keep_renewed(&certificate),
            Err(NodeError::NoAuthority | NodeError::Superseded { .. }) => self.ask_renewal(),
            Err(error) => Err(error),
        };
        if let Err(error) = renewed {
            self.log(&format!(
                "the certificate expires at {} and cannot be renewed: {error}",
                self.trust.certificate.not_after
            ));
        }
    }

    /// Asks all peers; those that have the authority's key answer.
    fn ask_renewal(&mut self) -> Result<()> {
        let request = authority::request_again(&self.state)?;
        self.engine.ask_renewal(&request);
        Ok(())
    }
}

/// Signs a peer's key again. It is the key that it has shown, and no other.
fn sign(state: &State, node: NodeId, name: &str, request: &[u8], now: Moment) -> Result<Vec<u8>> {
    let authority = Authority::load(state)?;
    let key = authority::read_request(request)?;
    let certificate = authority.sign(name, &key, now)?;
    if Certificate::read(&certificate)?.node() != node {
        return Err(NodeError::Wrong {
            what: "it asks for the certificate of another key than its own".to_owned(),
        });
    }
    let event = Event::Renewed {
        node: audit::id(node),
    };
    audit::note(state, now, &event)?;
    Ok(certificate)
}

/// What the audit log says of a change. That a key is retired it says when it is.
fn event_of(change: &Change, from: &str) -> Option<Event> {
    let from = from.to_owned();
    match change {
        Change::Forgotten(node) => Some(Event::Forgotten {
            node: audit::id(*node),
            from,
        }),
        Change::Believed(key) => Some(Event::Believed {
            key: NodeId(*key).to_string(),
            from,
        }),
        Change::Retired(_) => None,
    }
}

/// What the log says of one of them.
fn in_words(event: &Event) -> String {
    match event {
        Event::Forgotten { node, from } => {
            format!("refuses the node {node} from now on: {from} has said so")
        }
        Event::Believed { key, from } => {
            format!("believes the authority {key} too: {from} has said so")
        }
        Event::Retired { key } => format!("believes the authority {key} no more"),
        other => format!("{other:?}"),
    }
}

/// Has the node of a state directory accept a statement, whether it runs or not; a running one
/// passes it on at once, and another one when it runs.
///
/// # Errors
///
/// [`NodeError::NotAccepted`]; what reading and writing can say.
pub fn state_in(state: &State, statement: &[u8], now: Moment) -> Result<()> {
    let digits: String = statement.iter().map(|byte| format!("{byte:02x}")).collect();
    let end = Instant::now() + PATIENCE;
    loop {
        let asked = Ask::State {
            statement: digits.clone(),
        };
        match ask(state, asked) {
            Ok(answer) => return was_accepted(&answer),
            Err(NodeError::NotRunning { .. }) => {}
            Err(error) => return Err(error),
        }
        // As long as the lock is ours no node runs, and none writes.
        match state.lock() {
            Ok(_lock) => return state_directly(state, statement, now),
            Err(NodeError::InUse { .. }) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(error),
        }
    }
}

fn was_accepted(answer: &str) -> Result<()> {
    let read: std::result::Result<serde_json::Value, _> = serde_json::from_str(answer);
    let not_accepted = |why: &str| NodeError::NotAccepted {
        why: why.to_owned(),
    };
    match read.as_ref().map(|answer| &answer["refused"]) {
        Ok(serde_json::Value::Null) => Ok(()),
        Ok(why) => Err(not_accepted(why.as_str().unwrap_or_default())),
        Err(_) => Err(not_accepted("the running node is of another version")),
    }
}

fn state_directly(state: &State, statement: &[u8], now: Moment) -> Result<()> {
    let mut statements = Statements::load(state)?;
    let accepted = statements.accept(statement, now);
    let change = accepted.map_err(|why| NodeError::NotAccepted {
        why: why.to_string(),
    })?;
    // What cannot be logged does not happen.
    if let Some(event) = change.as_ref().and_then(|it| event_of(it, COMMAND)) {
        audit::note(state, now, &event)?;
    }
    statements.keep(state, now)
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.as_bytes();
    let pairs = digits.chunks(2);
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).ok().filter(|it| it.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    };
    pairs.map(byte).collect()
}
