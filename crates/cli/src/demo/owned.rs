//! Carries blocks in extents of a Portolan domain: they change owner, and their bytes stay.
//!
//! ```text
//! reader ──port "hasher"──> hasher ──port "writer"──> writer
//!   ^ allocates the extent, read(2) fills it      drops it │
//!   └────────────── the same pages again <────────────────┘
//! ```
//!
//! The stamp is the message's header, 40 bytes that lie in the queue's slot. A
//! message without an extent says that no block follows: no more senders without it
//! is a neighbour that died.
//!
//! Memory is bounded by the queues: [`QUEUE`] blocks wait before each of two stages,
//! and each stage holds one.

use std::io;
use std::time::Duration;

use portolan::{
    Access, Deadline, Domain, Message, Notice, PortOptions, ReceiveRight, SendError, SendRight,
};

use super::carrier::{Block, Carrier, Stamp};
use super::stages::Role;
use crate::error::{CliError, Result};

/// Blocks that wait before a stage; with one slot more it is a power of two.
const QUEUE: usize = 7;
/// Blocks at one time: in two queues (each with a slot that is being read), in three stages.
const BLOCKS: u64 = 2 * (QUEUE as u64 + 1) + 3;
/// The domain takes memory in such pieces.
const CHUNK: u64 = 2 << 20;
/// How long a stage looks for the next one's port, while all of them start.
const MEETING: Duration = Duration::from_secs(60);

/// One stage's ends.
#[derive(Debug)]
pub(crate) struct Owned {
    role: Role,
    domain: Domain,
    from: Option<ReceiveRight>,
    to: Option<SendRight>,
    /// Whether we have asked to be told when no sender is left.
    asked: bool,
}

/// A block: a message with one extent.
#[derive(Debug)]
pub(crate) struct Held(Message);

impl Owned {
    /// Joins `domain`, binds this stage's port and finds the next stage's.
    pub(crate) fn new(role: Role, domain: &str, block: usize) -> Result<Self> {
        Self::with(role, domain, block, false)
    }

    /// The same in a domain that is spanned by nodes, where the next stage is another machine's.
    pub(crate) fn over_nodes(role: Role, domain: &str, block: usize) -> Result<Self> {
        Self::with(role, domain, block, true)
    }

    fn with(role: Role, domain: &str, block: usize, spanned: bool) -> Result<Self> {
        let doing = "joining the demo's domain";
        let mut builder = Domain::builder(domain).space_name(&format!("demo {}", role.name()));
        if spanned {
            // Each node keeps what it has sent until it is there: there is no limit to speak of.
            builder = builder.spanning();
        } else {
            // Blocks up to half a chunk share chunks; larger ones take whole ones.
            let limit = (BLOCKS * (block as u64).next_power_of_two()).next_multiple_of(CHUNK);
            builder = builder.limit(limit.max(BLOCKS * CHUNK));
        }
        let domain = builder.join().map_err(CliError::library(doing))?;
        let from = match role {
            Role::Reader => None,
            Role::Hasher | Role::Writer => {
                let mut options = PortOptions::named(role.name()).queue(QUEUE);
                if spanned {
                    options = options.spanned();
                }
                let port = domain.bind(options);
                Some(port.map_err(CliError::library("binding a port of the demo"))?)
            }
        };
        let to = match role {
            Role::Reader => Some(Role::Hasher),
            Role::Hasher => Some(Role::Writer),
            Role::Writer => None,
        };
        let to = to
            .map(|next| domain.connect(next.name(), MEETING))
            .transpose();
        Ok(Self {
            role,
            from,
            to: to.map_err(CliError::library("finding the next stage's port"))?,
            domain,
            // Who sends from another node comes later, and its death is the node's to tell.
            asked: spanned,
        })
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    fn lost(&self) -> CliError {
        CliError::NeighbourLost {
            role: self.role.name(),
            source: io::ErrorKind::BrokenPipe.into(),
        }
    }

    fn post(&self, message: Message) -> Result<()> {
        let to = self
            .to
            .as_ref()
            .expect("only a stage with a successor sends");
        match to.send(message, Deadline::NEVER) {
            Ok(()) => Ok(()),
            Err(error) if matches!(error.why, SendError::DeadName) => Err(self.lost()),
            Err(error) => Err(CliError::library("sending a block")(error)),
        }
    }
}

impl Carrier for Owned {
    type Block = Held;

    fn blank(&mut self, room: usize) -> Result<Held> {
        let extent = self.domain.allocate(room);
        let extent = extent.map_err(CliError::library("allocating a block"))?;
        let mut message = Message::default();
        message
            .push(extent)
            .expect("an empty message takes one extent");
        Ok(Held(message))
    }

    fn send(&mut self, mut block: Held, len: usize) -> Result<()> {
        let extents = block.0.extents_mut();
        extents[0]
            .set_len(len)
            .expect("a block holds no more than it has room for");
        self.post(block.0)
    }

    fn receive(&mut self) -> Result<Option<Held>> {
        let lost = self.lost();
        let from = self
            .from
            .as_mut()
            .expect("only a stage with a predecessor receives");
        if !self.asked {
            // Not before the start: by then the sender has its right.
            from.request_no_more_senders();
            self.asked = true;
        }
        let message = from
            .receive(Access::Now, Deadline::NEVER)
            .map_err(CliError::library("receiving a block"))?;
        match message.notice() {
            Some(Notice::NoMoreSenders) => Err(lost),
            _ if message.extents().is_empty() => Ok(None),
            _ => Ok(Some(Held(message))),
        }
    }

    fn retire(&mut self, block: Held) {
        // Its extent goes back to the reader, whose it was first.
        drop(block);
    }

    fn finish(&mut self) -> Result<()> {
        self.post(Message::default())
    }
}

impl Block for Held {
    fn bytes(&self) -> &[u8] {
        &self.0.extents()[0]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0.extents_mut()[0]
    }

    fn stamp(&self) -> Stamp {
        match self.0.header().split_first_chunk() {
            Some((sequence, digest)) => Stamp {
                sequence: u64::from_ne_bytes(*sequence),
                digest: digest.try_into().unwrap_or_default(),
            },
            None => Stamp::default(),
        }
    }

    fn set_stamp(&mut self, stamp: Stamp) {
        let mut header = [0; 40];
        header[..8].copy_from_slice(&stamp.sequence.to_ne_bytes());
        header[8..].copy_from_slice(&stamp.digest);
        self.0
            .set_header(&header)
            .expect("40 bytes are within the limit");
    }
}
