//! What a newcomer and the node that lets it in say to one another.
//!
//! ```text
//! newcomer                                                   node (has the authority's key)
//!    | TLS: the chain must have an authority with the token's key id
//!    | JoinRequest { number of the invitation, proof, name, signing request } --->
//!    |            proof = HMAC(secret, what both ends of this TLS session have)    redeems: once
//!    | <------------------------- JoinAnswer { certificate, authorities }          signs
//! ```
//!
//! # Invariants
//!
//! - **J1** An invitation is used up before a certificate is signed ([`crate::invitations`], I1).
//! - **J2** A proof is good on one TLS session: who relays it has nothing.
//! - **J3** What is let in stands in the audit log first; what cannot be written there is refused.
//! - **J4** Requests are bounded in bytes, and in number for each address and for all.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_abi::join::{
    JOIN_MAGIC, JOIN_VERSION, JoinAnswer, JoinOutcome, JoinRequest, MAX_AUTHORITIES,
    MAX_SIGNING_REQUEST,
};
use portolan_abi::limits::MAX_NODE_NAME;
use portolan_sys::process::poll;
use portolan_transport::clock::Clock;
use portolan_transport::tls::{Certificate, newcomer};
use portolan_transport::{
    Address, Class, Connection, Destination, Moment, NodeId, Progress, Source, State as LinkState,
    Transport, TransportError,
};

use crate::audit::{self, Event};
use crate::authority::{self, Authority};
use crate::config::is_node_name;
use crate::invitations::{self, NotGood};
use crate::state::State;
use crate::token::Token;
use crate::{NodeError, Result};

/// Bytes of a request, at most.
pub const LONGEST: usize = JoinRequest::BYTES + MAX_NODE_NAME + MAX_SIGNING_REQUEST;
/// How long a newcomer waits for its answer, and a node for a newcomer's request.
pub const WITHIN: Duration = Duration::from_secs(10);
/// What the TLS exporter is asked for.
const BINDING: &str = "EXPORTER-portolan-join-1";

/// Requests that one address may make at once; further ones come in at [`EACH`].
const AT_ONCE: u32 = 8;
/// How often one address may ask.
const EACH: Duration = Duration::from_secs(5);
/// The same for all addresses.
const ALL_AT_ONCE: u32 = 32;
const ALL: Duration = Duration::from_millis(500);
/// Addresses that are remembered; beyond that all others count as one.
const MOST_ADDRESSES: usize = 1024;

/// How many requests are still allowed (J4).
#[derive(Debug, Default)]
pub struct Rates {
    all: Bucket,
    each: BTreeMap<IpAddr, Bucket>,
    others: Bucket,
}

/// How often something may be done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    /// When all that was used has come back.
    full_at: Duration,
}

impl Bucket {
    /// Whether all that was used has come back.
    pub(crate) fn is_full(&self, now: Duration) -> bool {
        self.full_at <= now
    }

    pub(crate) fn take(&mut self, now: Duration, most: u32, every: Duration) -> bool {
        let full_at = self.full_at.max(now) + every;
        let has_room = full_at - now <= every * most;
        if has_room {
            self.full_at = full_at;
        }
        has_room
    }
}

impl Rates {
    /// Whether a request from this address may be looked at now.
    pub fn allow(&mut self, from: IpAddr, now: Duration) -> bool {
        self.each.retain(|_, bucket| !bucket.is_full(now));
        let bucket = match self.each.contains_key(&from) || self.each.len() < MOST_ADDRESSES {
            true => self.each.entry(from).or_default(),
            false => &mut self.others,
        };
        bucket.take(now, AT_ONCE, EACH) && self.all.take(now, ALL_AT_ONCE, ALL)
    }
}

/// A request as it comes.
#[derive(Debug)]
struct Request<'a> {
    head: JoinRequest,
    name: &'a str,
    signing: &'a [u8],
}

/// What the bytes that have come are.
#[derive(Debug)]
enum Come<'a> {
    /// The beginning of a request.
    More,
    Whole(Request<'a>),
    Wrong(JoinOutcome),
}

fn read(bytes: &[u8]) -> Come<'_> {
    let version = bytes.get(4..8).and_then(|b| <[u8; 4]>::try_from(b).ok());
    let magic = bytes.get(..4);
    if magic.is_some_and(|magic| magic != JOIN_MAGIC.to_le_bytes()) {
        return Come::Wrong(JoinOutcome::BadRequest);
    }
    if version.is_some_and(|version| u32::from_le_bytes(version) != JOIN_VERSION) {
        return Come::Wrong(JoinOutcome::Version);
    }
    let Some(head) = bytes.get(..JoinRequest::BYTES) else {
        return Come::More;
    };
    let Ok(head) = JoinRequest::decode(head) else {
        return Come::Wrong(JoinOutcome::BadRequest);
    };
    let name_end = JoinRequest::BYTES + usize::from(head.name);
    let end = name_end + usize::from(head.request);
    if bytes.len() > end {
        return Come::Wrong(JoinOutcome::BadRequest);
    }
    let (Some(name), Some(signing)) = (
        bytes.get(JoinRequest::BYTES..name_end),
        bytes.get(name_end..end),
    ) else {
        return Come::More;
    };
    match std::str::from_utf8(name) {
        Ok(name) if is_node_name(name) => Come::Whole(Request {
            head,
            name,
            signing,
        }),
        _ => Come::Wrong(JoinOutcome::BadRequest),
    }
}

/// What a node answers to the bytes of a newcomer; `None` as long as they are not all there.
///
/// `binding` is the TLS session's, `from` is for the log.
pub fn answer(
    state: &State,
    bytes: &[u8],
    binding: &[u8; 32],
    from: &str,
    now: Moment,
) -> Option<Vec<u8>> {
    let outcome = match read(bytes) {
        Come::More => return None,
        Come::Wrong(outcome) => Err(outcome),
        Come::Whole(request) => let_in(state, &request, binding, from, now),
    };
    Some(match outcome {
        Ok(welcome) => welcome,
        Err(outcome) => {
            let why = in_words(outcome).to_owned();
            let event = Event::Refused {
                from: from.to_owned(),
                why,
            };
            // It is refused whether or not there is room to say so.
            let _ = audit::note(state, now, &event);
            refusal(outcome)
        }
    })
}

/// An answer that lets nobody in.
pub fn refusal(outcome: JoinOutcome) -> Vec<u8> {
    head(outcome, 0, 0).encode().to_vec()
}

fn head(outcome: JoinOutcome, authorities: u8, certificate: u16) -> JoinAnswer {
    JoinAnswer {
        magic: JOIN_MAGIC,
        version: JOIN_VERSION,
        outcome,
        authorities,
        certificate,
    }
}

fn let_in(
    state: &State,
    request: &Request<'_>,
    binding: &[u8; 32],
    from: &str,
    now: Moment,
) -> std::result::Result<Vec<u8>, JoinOutcome> {
    // All that can fail without the invitation comes before it.
    let authority = Authority::load(state).map_err(|error| match error {
        NodeError::NoAuthority => JoinOutcome::NoAuthority,
        _ => JoinOutcome::Failed,
    })?;
    let failed = |_| JoinOutcome::Failed;
    let authorities = authority::authorities(state, now).map_err(failed)?;
    let key = authority::read_request(request.signing).map_err(|_| JoinOutcome::BadRequest)?;
    let JoinRequest {
        invitation, proof, ..
    } = &request.head;
    let redeemed = invitations::redeem(
        state,
        *invitation,
        proof,
        binding,
        request.name,
        request.signing,
        now,
    );
    match redeemed.map_err(failed)? {
        Ok(()) => {}
        Err(NotGood::Unknown) => return Err(JoinOutcome::Unknown),
        Err(NotGood::Expired { .. }) => return Err(JoinOutcome::Expired),
        Err(NotGood::WrongProof) => return Err(JoinOutcome::WrongProof),
    }
    // From here on the invitation is used up (J1).
    let certificate = authority.sign(request.name, &key, now).map_err(failed)?;
    let node = Certificate::read(&certificate)
        .map_err(|_| JoinOutcome::Failed)?
        .node();
    let event = Event::Joined {
        node: audit::id(node),
        name: request.name.to_owned(),
        from: from.to_owned(),
        invitation: invitations::in_words(*invitation),
    };
    // J3.
    audit::note(state, now, &event).map_err(failed)?;
    welcome(&certificate, &authorities).ok_or(JoinOutcome::Failed)
}

fn welcome(certificate: &[u8], authorities: &[Vec<u8>]) -> Option<Vec<u8>> {
    // The latest come first: what it does not learn of older ones it need not believe.
    let authorities = &authorities[..authorities.len().min(MAX_AUTHORITIES)];
    let count = u8::try_from(authorities.len()).ok()?;
    let head = head(
        JoinOutcome::Welcome,
        count,
        u16::try_from(certificate.len()).ok()?,
    );
    let mut bytes = head.encode().to_vec();
    bytes.extend(certificate);
    for authority in authorities {
        bytes.extend(u16::try_from(authority.len()).ok()?.to_le_bytes());
        bytes.extend(authority);
    }
    // What cannot be read there is not sent.
    JoinAnswer::decode(&bytes[..JoinAnswer::BYTES]).ok()?;
    Some(bytes)
}

/// What an outcome means, for people.
pub fn in_words(outcome: JoinOutcome) -> &'static str {
    match outcome {
        JoinOutcome::Welcome => "welcome",
        JoinOutcome::Unknown => "the token was used already, or comes from another node",
        JoinOutcome::Expired => "the token has expired, by its clock",
        JoinOutcome::WrongProof => "the proof of the token is wrong",
        JoinOutcome::BadRequest => "the request cannot be read",
        JoinOutcome::Busy => "too many have asked; try again in a minute",
        JoinOutcome::Failed => "it cannot let anybody in now; its own log says why",
        JoinOutcome::NoAuthority => "it does not have the authority's key",
        JoinOutcome::Version => "it speaks another version of Portolan",
    }
}

/// What a newcomer was given.
#[derive(Debug)]
struct Welcome {
    certificate: Vec<u8>,
    authorities: Vec<Vec<u8>>,
}

/// Reads an answer; `Ok(None)` as long as it is not all there.
fn read_answer(bytes: &[u8], node: &str) -> Result<Option<Welcome>> {
    let garbled = || {
        NodeError::Transport(TransportError::NotPortolan {
            what: "its answer cannot be read".to_owned(),
        })
    };
    let Some(first) = bytes.get(..JoinAnswer::BYTES) else {
        return Ok(None);
    };
    let head = JoinAnswer::decode(first).map_err(|_| garbled())?;
    if head.outcome != JoinOutcome::Welcome {
        return Err(NodeError::Refused {
            node: node.to_owned(),
            why: in_words(head.outcome).to_owned(),
        });
    }
    let mut rest = &bytes[JoinAnswer::BYTES..];
    let mut take = |len: usize| {
        let (taken, left) = rest.split_at_checked(len)?;
        rest = left;
        Some(taken.to_vec())
    };
    let Some(certificate) = take(usize::from(head.certificate)) else {
        return Ok(None);
    };
    let mut authorities = Vec::new();
    for _ in 0..head.authorities {
        let len = take(2).and_then(|len| <[u8; 2]>::try_from(len).ok());
        let len = len.map(u16::from_le_bytes);
        let Some(authority) = len.and_then(|len| take(usize::from(len))) else {
            return Ok(None);
        };
        authorities.push(authority);
    }
    Ok(Some(Welcome {
        certificate,
        authorities,
    }))
}

/// Joins the cluster that a token leads to: makes a key, has it signed, and keeps both. Tries the
/// addresses one after the other.
///
/// # Errors
///
/// [`NodeError::AlreadyMade`]; [`NodeError::Token`]: it has expired; [`NodeError::Refused`]: the
/// node does not let us in; [`NodeError::Transport`]: it cannot be reached, or is of another
/// cluster.
pub fn join(
    state: &State,
    token: &Token,
    name: &str,
    addresses: &[Address],
    clock: Arc<dyn Clock>,
) -> Result<NodeId> {
    authority::check_new(state, name)?;
    let now = Moment {
        seconds: clock.of_day().as_secs(),
    };
    token.check_time(now)?;
    let (key, request) = authority::request(name)?;
    let transport = newcomer(token.authority, clock);
    let mut last = NodeError::Wrong {
        what: format!("{} has no address", token.address),
    };
    for address in addresses {
        match ask(&transport, address, token, name, &request) {
            Ok(welcome) => {
                // What was signed must be for our key, by the authority that the token names.
                let is_named =
                    |der: &Vec<u8>| Certificate::read(der).is_ok_and(|c| c.key == token.authority);
                let ours = portolan_transport::tls::key_id(
                    &rcgen::PublicKeyData::subject_public_key_info(&key),
                );
                let signed = Certificate::read(&welcome.certificate)?;
                if signed.key != ours || !welcome.authorities.iter().any(is_named) {
                    return Err(NodeError::Transport(TransportError::NotPortolan {
                        what: "it signed another key, or for another authority".to_owned(),
                    }));
                }
                return authority::keep(state, &key, &welcome.certificate, &welcome.authorities);
            }
            // Another address leads to the same refusal.
            Err(error @ NodeError::Refused { .. }) => return Err(error),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn ask(
    transport: &impl Transport,
    address: &Address,
    token: &Token,
    name: &str,
    request: &[u8],
) -> Result<Welcome> {
    let end = Instant::now() + WITHIN;
    let mut connection = transport.connect(address)?;
    let on = connection.open(Class::Records)?;
    wait(
        &mut *connection,
        end,
        &token.address,
        |connection| match connection.progress() {
            LinkState::Up => Ok(Some(())),
            _ => Ok(None),
        },
    )?;
    let binding = connection
        .binding(BINDING)
        .ok_or(TransportError::Truncated)?;
    let bytes = say(token, &binding, name, request)?;
    let mut sent = 0;
    let mut came = Vec::new();
    let node = address.to_string();
    wait(&mut *connection, end, &token.address, |connection| {
        connection.progress();
        while sent < bytes.len() {
            match connection.send(on, &[Source::from(&bytes[sent..])]) {
                Progress::Moved(moved) => sent += moved,
                _ => break,
            }
        }
        let mut room = [0; 4096];
        loop {
            match connection.receive(on, &[Destination::from(&mut room[..])]) {
                Progress::Moved(moved) => came.extend(&room[..moved]),
                Progress::Blocked => return Ok(None),
                Progress::Ended => return Err(TransportError::Truncated.into()),
                Progress::Failed(why) => return Err(why.into()),
            }
            if let Some(welcome) = read_answer(&came, &node)? {
                return Ok(Some(welcome));
            }
        }
    })
}

/// The bytes of a request.
fn say(token: &Token, binding: &[u8; 32], name: &str, request: &[u8]) -> Result<Vec<u8>> {
    let too_long = |_| NodeError::Wrong {
        what: "the name or the signing request is too long".to_owned(),
    };
    let head = JoinRequest {
        magic: JOIN_MAGIC,
        version: JOIN_VERSION,
        invitation: invitations::number(&token.secret),
        proof: invitations::proof(&token.secret, binding, name, request),
        name: u16::try_from(name.len()).map_err(too_long)?,
        request: u16::try_from(request.len()).map_err(too_long)?,
    };
    Ok([&head.encode()[..], name.as_bytes(), request].concat())
}

/// Waits at a connection until `done` says so.
fn wait<T>(
    connection: &mut dyn Connection,
    end: Instant,
    who: &str,
    mut done: impl FnMut(&mut dyn Connection) -> Result<Option<T>>,
) -> Result<T> {
    loop {
        if let Some(value) = done(connection)? {
            return Ok(value);
        }
        if let Some(why) = connection.failure() {
            return Err(why.clone().into());
        }
        if Instant::now() >= end {
            return Err(NodeError::Silent {
                who: who.to_owned(),
                seconds: WITHIN.as_secs(),
            });
        }
        poll(&[connection.descriptor().as_fd()], Some(end))
            .map_err(NodeError::system("cannot wait for a connection"))?;
    }
}

/// A newcomer's connection at the node that lets it in.
#[derive(Debug)]
pub struct Guest {
    connection: Box<dyn Connection>,
    on: portolan_transport::StreamId,
    from: String,
    came: Vec<u8>,
    has_asked: bool,
    answer: Option<Vec<u8>>,
    sent: usize,
    until: Duration,
}

/// What a newcomer's connection has come to.
#[derive(Debug)]
pub enum Met {
    /// Nothing yet.
    Waits,
    /// It has asked, and is to be [answered](Guest::answer).
    Asks(Asked),
    /// It is over.
    Over,
}

/// A newcomer's request.
#[derive(Debug)]
pub struct Asked {
    bytes: Vec<u8>,
    binding: [u8; 32],
    from: String,
}

impl Asked {
    /// What a node answers, once that is written down (J1, J3).
    pub fn answer(&self, state: &State, now: Moment) -> Vec<u8> {
        let answer = answer(state, &self.bytes, &self.binding, &self.from, now);
        answer.unwrap_or_else(|| refusal(JoinOutcome::BadRequest))
    }
}

impl Guest {
    /// Of a connection that a listener has accepted.
    ///
    /// # Errors
    ///
    /// [`NodeError::Transport`]: it has failed already.
    pub fn new(mut connection: Box<dyn Connection>, from: String, now: Duration) -> Result<Self> {
        Ok(Self {
            on: connection.open(Class::Records)?,
            connection,
            from,
            came: Vec::new(),
            has_asked: false,
            answer: None,
            sent: 0,
            until: now + WITHIN,
        })
    }

    /// What is to be waited for.
    pub fn connection(&self) -> &dyn Connection {
        &*self.connection
    }

    /// Until when it must be done.
    pub fn until(&self) -> Duration {
        self.until
    }

    /// Whether it was answered that it is a node now.
    pub fn is_let_in(&self) -> bool {
        let head = self
            .answer
            .as_deref()
            .and_then(|it| it.get(..JoinAnswer::BYTES));
        let head = head.and_then(|head| JoinAnswer::decode(head).ok());
        head.is_some_and(|head| head.outcome == JoinOutcome::Welcome)
    }

    /// Goes on.
    pub fn step(&mut self, now: Duration) -> Met {
        let up = self.connection.progress();
        if up == LinkState::Failed || now >= self.until {
            return Met::Over;
        }
        let mut room = [0; 4096];
        while self.answer.is_none() {
            let into = [Destination::from(&mut room[..])];
            match self.connection.receive(self.on, &into) {
                // It has asked already: there is nothing more that it could say.
                Progress::Moved(_) if self.has_asked => return Met::Waits,
                Progress::Moved(moved) => self.came.extend(&room[..moved]),
                Progress::Blocked => return Met::Waits,
                Progress::Ended | Progress::Failed(_) => return Met::Over,
            }
            if self.came.len() > LONGEST {
                self.refuse(JoinOutcome::BadRequest);
                break;
            }
            if matches!(read(&self.came), Come::More) {
                continue;
            }
            let Some(binding) = self.connection.binding(BINDING) else {
                return Met::Over;
            };
            self.has_asked = true;
            return Met::Asks(Asked {
                bytes: std::mem::take(&mut self.came),
                binding,
                from: self.from.clone(),
            });
        }
        match self.say() {
            true => Met::Over,
            false => Met::Waits,
        }
    }

    /// Answers at once, whatever it has to ask.
    pub fn refuse(&mut self, outcome: JoinOutcome) {
        self.answer(refusal(outcome));
    }

    /// Answers what it has asked, from the next step on.
    pub fn answer(&mut self, answer: Vec<u8>) {
        self.answer = Some(answer);
    }

    /// Says the answer; whether it is over.
    fn say(&mut self) -> bool {
        let answer = self.answer.as_deref().unwrap_or_default();
        while self.sent < answer.len() {
            match self
                .connection
                .send(self.on, &[Source::from(&answer[self.sent..])])
            {
                Progress::Moved(moved) => self.sent += moved,
                Progress::Blocked => return false,
                Progress::Ended | Progress::Failed(_) => return true,
            }
        }
        self.connection.close();
        // The newcomer ends its side when it has the answer.
        let mut rest = [0; 256];
        loop {
            match self
                .connection
                .receive(self.on, &[Destination::from(&mut rest[..])])
            {
                Progress::Moved(_) => {}
                Progress::Blocked => return false,
                Progress::Ended | Progress::Failed(_) => return true,
            }
        }
    }
}
