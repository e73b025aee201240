//! An authenticated link to a peer: a hello, pings, renewal of certificates, a farewell.
//!
//! Records of 112 bytes, some with a body, on the records stream. The bulk stream is kept up, and
//! carries nothing yet.

use std::time::Duration;

use portolan_abi::{codes, record};
use portolan_transport::{
    Class, Connection, Destination, NodeId, Progress, Source, State, StreamId, TransportError,
};

use crate::config::{MAX_NODE_NAME, is_node_name};

/// First bytes of a [`Record`].
const MAGIC: u32 = 0x504c_5450;
/// The version of records.
const VERSION: u32 = 1;
/// A link that was silent for so long is pinged.
pub(super) const PING_AFTER: Duration = Duration::from_secs(1);
/// Bytes of a body, at most.
const LONGEST_BODY: usize = 8192;
/// Bytes that wait to be sent, at most: beyond that the peer does not read.
const MOST_WAITING: usize = 64 * 1024;

codes! {
    /// What a record says.
    enum Kind: u8 {
        /// "This is me": first, each way.
        Hello = 1,
        /// "Are you there?" The clock comes back.
        Ping = 2,
        /// "I am": with the clock of the ping.
        Pong = 3,
        /// "I end."
        Bye = 4,
        /// "Sign my key again": a signing request.
        Renew = 5,
        /// Its certificate.
        Renewed = 6,
    }
}

record! {
    /// What a node says on a link. The body follows.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Record {
        magic MAGIC,
        /// [`VERSION`] of the sender.
        pub version: u32,
        /// What it says.
        pub kind: Kind,
        _: 1,
        /// Bytes of the body.
        pub body: u16,
        _: 4,
        /// How often the sender was started.
        pub incarnation: u64,
        /// A clock that goes only here.
        pub clock: u64,
        /// A random number of the sender's present run.
        pub run: [u8; 16],
        /// Its name, with zeros behind.
        pub name: [u8; MAX_NODE_NAME + 1],
    }
    check |it| usize::from(it.body) <= LONGEST_BODY
}

/// Who a node says that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) name: String,
    pub(super) incarnation: u64,
    pub(super) run: [u8; 16],
}

/// What a link asks of its node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The peer has said who it is.
    Hello(Hello),
    /// It leaves.
    Bye,
    /// It wants its key signed again.
    Renew(Vec<u8>),
    /// It has signed ours.
    Renewed(Vec<u8>),
}

/// A link to a peer.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) connection: Box<dyn Connection>,
    pub(super) node: NodeId,
    /// This node has connected it.
    pub(super) ours: bool,
    pub(super) hello: Option<Hello>,
    pub(super) since: Duration,
    pub(super) heard: Duration,
    pub(super) round_trip: Option<Duration>,
    own: Hello,
    records: StreamId,
    bulk: StreamId,
    came: Vec<u8>,
    waiting: Vec<u8>,
    pinged: Duration,
    closing: bool,
}

impl Link {
    /// A link to `node`, to whom this node says `own`.
    pub(super) fn new(
        mut connection: Box<dyn Connection>,
        node: NodeId,
        ours: bool,
        own: Hello,
        now: Duration,
    ) -> Result<Self, TransportError> {
        let mut link = Self {
            records: connection.open(Class::Records)?,
            bulk: connection.open(Class::Bulk)?,
            connection,
            node,
            ours,
            hello: None,
            since: now,
            heard: now,
            round_trip: None,
            own,
            came: Vec::new(),
            waiting: Vec::new(),
            pinged: now,
            closing: false,
        };
        link.say(Kind::Hello, 0, &[]);
        Ok(link)
    }

    fn say(&mut self, kind: Kind, clock: u64, body: &[u8]) {
        let mut name = [0; MAX_NODE_NAME + 1];
        let len = self.own.name.len().min(MAX_NODE_NAME);
        name[..len].copy_from_slice(&self.own.name.as_bytes()[..len]);
        let record = Record {
            version: VERSION,
            kind,
            body: u16::try_from(body.len()).unwrap_or_default(),
            incarnation: self.own.incarnation,
            clock,
            run: self.own.run,
            name,
        };
        self.waiting.extend(record.encode());
        self.waiting.extend(body);
    }

    /// Asks the peer to sign our key again.
    pub(super) fn ask_renewal(&mut self, request: &[u8]) {
        if request.len() <= LONGEST_BODY {
            self.say(Kind::Renew, 0, request);
        }
    }

    /// Gives the peer its certificate.
    pub(super) fn renewed(&mut self, certificate: &[u8]) {
        if certificate.len() <= LONGEST_BODY {
            self.say(Kind::Renewed, 0, certificate);
        }
    }

    /// Says that this node ends, and ends the link behind that.
    pub(super) fn leave(&mut self) {
        if !self.closing {
            self.say(Kind::Bye, 0, &[]);
            self.closing = true;
        }
    }

    /// Whether all that was said has been sent.
    pub(super) fn has_said(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When it wants to be looked at again.
    pub(super) fn wake_at(&self) -> Duration {
        let ping = self.pinged.max(self.heard) + PING_AFTER;
        self.connection
            .wake_at()
            .map_or(ping, |wake| wake.min(ping))
    }

    /// Goes on. The link is over if this is an error.
    pub(super) fn step(&mut self, now: Duration) -> Result<Vec<Asked>, TransportError> {
        if self.connection.progress() == State::Failed {
            return Err(self.why());
        }
        let mut asked = Vec::new();
        self.receive(now, &mut asked)?;
        self.quiet_bulk()?;
        if now >= self.pinged.max(self.heard) + PING_AFTER && !self.closing {
            self.pinged = now;
            // A peer that does not read is not asked again and again.
            if self.waiting.is_empty() {
                let clock = u64::try_from(now.as_nanos()).unwrap_or_default();
                self.say(Kind::Ping, clock, &[]);
            }
        }
        self.send()?;
        Ok(asked)
    }

    fn why(&self) -> TransportError {
        let failure = self.connection.failure().cloned();
        failure.unwrap_or(TransportError::Truncated)
    }

    fn send(&mut self) -> Result<(), TransportError> {
        while !self.waiting.is_empty() {
            let parts = [Source::from(&self.waiting)];
            match self.connection.send(self.records, &parts) {
                Progress::Moved(moved) => drop(self.waiting.drain(..moved)),
                Progress::Blocked => break,
                Progress::Ended => return Ok(()),
                Progress::Failed(why) => return Err(why),
            }
        }
        if self.waiting.len() > MOST_WAITING {
            return Err(violation("it asks and does not read the answers"));
        }
        if self.closing && self.waiting.is_empty() {
            self.connection.close();
        }
        Ok(())
    }

    fn receive(&mut self, now: Duration, asked: &mut Vec<Asked>) -> Result<(), TransportError> {
        let mut room = [0; 4096];
        // A peer that says much has to wait for the others.
        for _ in 0..16 {
            let into = [Destination::from(&mut room[..])];
            match self.connection.receive(self.records, &into) {
                Progress::Moved(moved) => {
                    self.came.extend(&room[..moved]);
                    self.heard = now;
                }
                Progress::Blocked => break,
                Progress::Ended => {
                    asked.push(Asked::Bye);
                    break;
                }
                Progress::Failed(why) => return Err(why),
            }
            while let Some(one) = self.hear(now)? {
                asked.extend(one);
            }
        }
        Ok(())
    }

    /// The next whole record, and what it asks for.
    fn hear(&mut self, now: Duration) -> Result<Option<Option<Asked>>, TransportError> {
        let Some(head) = self.came.get(..Record::BYTES) else {
            return Ok(None);
        };
        let record = Record::decode(head).map_err(|error| violation(&error.to_string()))?;
        if record.version != VERSION {
            return Err(TransportError::OtherVersion {
                theirs: record.version,
                ours: VERSION,
            });
        }
        let end = Record::BYTES + usize::from(record.body);
        if self.came.len() < end {
            return Ok(None);
        }
        let body = self.came[Record::BYTES..end].to_vec();
        self.came.drain(..end);
        if (record.kind == Kind::Hello) != self.hello.is_none() {
            return Err(violation("a hello comes first, and once"));
        }
        let has_body = matches!(record.kind, Kind::Renew | Kind::Renewed);
        if !has_body && !body.is_empty() {
            return Err(violation("a record has a body that it may not have"));
        }
        let asked = match record.kind {
            Kind::Hello => {
                let hello = said(&record)?;
                self.hello = Some(hello.clone());
                Some(Asked::Hello(hello))
            }
            Kind::Ping => {
                self.say(Kind::Pong, record.clock, &[]);
                None
            }
            Kind::Pong => {
                let sent = Duration::from_nanos(record.clock);
                // A peer may say any number; one of the future tells nothing.
                self.round_trip = now.checked_sub(sent).or(self.round_trip);
                None
            }
            Kind::Bye => Some(Asked::Bye),
            Kind::Renew => Some(Asked::Renew(body)),
            Kind::Renewed => Some(Asked::Renewed(body)),
        };
        Ok(Some(asked))
    }

    /// Nothing comes on the bulk stream yet; its end is the link's.
    fn quiet_bulk(&mut self) -> Result<(), TransportError> {
        let mut room = [0; 1];
        let into = [Destination::from(&mut room[..])];
        match self.connection.receive(self.bulk, &into) {
            Progress::Blocked | Progress::Ended => Ok(()),
            Progress::Moved(_) => Err(violation("it sends bulk that nobody has asked for")),
            Progress::Failed(why) => Err(why),
        }
    }
}

fn violation(what: &str) -> TransportError {
    TransportError::NotPortolan {
        what: what.to_owned(),
    }
}

fn said(record: &Record) -> Result<Hello, TransportError> {
    let end = record.name.iter().position(|byte| *byte == 0);
    let name = end.and_then(|end| std::str::from_utf8(&record.name[..end]).ok());
    match name.filter(|name| is_node_name(name)) {
        Some(name) => Ok(Hello {
            name: name.to_owned(),
            incarnation: record.incarnation,
            run: record.run,
        }),
        None => Err(violation("its name is none")),
    }
}
