//! Binds a new port: takes its entry, its name and its queue, and makes the receive right.

use super::{ReceiveRight, entry, names, unreachable};
use crate::space::Member;
use crate::space::region::Attached;
use crate::{AllocateError, Disowned, Domain, SendError};
use portolan_abi::limits::{
    LINE, MAX_NAME, MAX_NODE_NAME, MAX_PORTS, MAX_SLOT_LINES, MAX_SLOTS, MIN_SLOTS,
};
use portolan_abi::name::RULE;
use portolan_abi::node::NODE_PORT;
use portolan_abi::port::{ANY_BYTES, Leaving, PortName, PortPhase, PortStatus};
use portolan_abi::slot::inline_capacity;
use portolan_shm::mark;
use portolan_shm::queue::Home;
use portolan_shm::region::write_text;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How a port is made.
///
/// ```
/// use portolan::{Domain, PortOptions};
/// let domain = Domain::private()?;
/// let port = domain.bind(PortOptions::named("frames").queue(256).inline_bytes(48))?;
/// assert_eq!(port.name().as_deref(), Some("frames"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PortOptions {
    name: Option<String>,
    queue: usize,
    inline_bytes: usize,
    synchronous: bool,
    by_urgency: bool,
    copied: bool,
    replies: bool,
    spanned: bool,
    /// See [`Self::for_another_domain`].
    most: u64,
    /// See [`Self::of_node`].
    asked: Option<Home>,
    /// See [`Self::titled`].
    title: Option<String>,
}

/// Why a port could not be bound, a segment not made, or no death notification arranged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The caller's: the name is empty, too long, or holds a zero byte or an `@`.
    #[error("{name:?} is no port name: use 1 to {MAX_NAME} bytes {RULE}")]
    BadName {
        /// The name.
        name: String,
    },
    /// The caller's: no node can have this name.
    #[error("{name:?} is no node name: use 1 to {MAX_NODE_NAME} bytes {RULE}")]
    BadNode {
        /// The name.
        name: String,
    },
    /// The caller's: a port of this name is open.
    #[error("a port named {name:?} is bound already, by space {owner}")]
    NameTaken {
        /// The name.
        name: String,
        /// Whose it is.
        owner: u8,
    },
    /// The state's: another node spans the domain.
    #[error(
        "node {node:?}, space {space} of this domain, spans it: a domain has one node on a machine; end that one first (`portolan node unspan` or `leave`)"
    )]
    Spanned {
        /// Its name.
        node: String,
        /// Its space.
        space: u8,
    },
    /// The caller's: no such queue.
    #[error("a queue holds 1 to {} messages and 48 to {} inline bytes, not {messages} and {inline_bytes}", MAX_SLOTS - 1, inline_capacity(MAX_SLOT_LINES))]
    Shape {
        /// Messages asked for.
        messages: usize,
        /// Inline bytes asked for.
        inline_bytes: usize,
    },
    /// The state's: all ports, or all addresses for queues of this width, are in use.
    #[error(
        "the domain has no room for another port ({MAX_PORTS} entries, 4 GiB of queues of each width of slot): close some, or use smaller queues"
    )]
    NoRoom,
    /// The state's: the domain's limit is reached, or the machine has no memory.
    #[error(
        "no memory for a queue of {bytes} bytes in a domain of {limit} bytes: drop extents or ports, use a smaller queue, or create the domain with a larger limit"
    )]
    OutOfMemory {
        /// Bytes that the queue would take.
        bytes: u64,
        /// Bytes that the domain may take for extents and queues.
        limit: u64,
    },
    /// The state's: as many death notifications are asked for as the domain keeps.
    #[error(
        "the domain's {limit} death notifications are all in use: drop ports that wait for some"
    )]
    NoWatch {
        /// How many there are.
        limit: usize,
    },
    /// No memory for a segment.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The memory of a segment could not be handed over.
    #[error(transparent)]
    Unsent(#[from] SendError),
    /// See [`Disowned`].
    #[error(transparent)]
    Disowned(#[from] Disowned),
}

impl Default for PortOptions {
    fn default() -> Self {
        Self {
            name: None,
            queue: 63,
            inline_bytes: inline_capacity(2),
            synchronous: false,
            by_urgency: false,
            copied: false,
            replies: false,
            spanned: false,
            most: ANY_BYTES,
            asked: None,
            title: None,
        }
    }
}

impl PortOptions {
    /// A port without a name: reached only by rights that are sent.
    pub fn unnamed() -> Self {
        Self::default()
    }

    /// A port that others find by name ([`Domain::connect`]).
    pub fn named(name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            ..Self::default()
        }
    }

    /// Messages that the queue holds at least; 63 if not said. One slot more is kept for
    /// the message that the receiver is reading.
    #[must_use]
    pub fn queue(self, messages: usize) -> Self {
        Self {
            queue: messages,
            ..self
        }
    }

    /// Bytes of header and descriptors that travel in the slot itself; 112 if not said.
    /// With 48 a slot is one cache line.
    #[must_use]
    pub fn inline_bytes(self, bytes: usize) -> Self {
        Self {
            inline_bytes: bytes,
            ..self
        }
    }

    /// A synchronous port: it takes requests, which are answered.
    #[must_use]
    pub fn synchronous(self) -> Self {
        Self {
            synchronous: true,
            ..self
        }
    }

    /// Hand out the message with the earliest deadline first, then by priority, then in order.
    #[must_use]
    pub fn by_urgency(self) -> Self {
        Self {
            by_urgency: true,
            ..self
        }
    }

    /// Give the receiver a copy of what is sent ([`crate::Protection::Copied`]).
    #[must_use]
    pub fn copied(self) -> Self {
        Self {
            copied: true,
            ..self
        }
    }

    /// Lets the port's name out: where a node spans the domain, programs on other nodes find the
    /// port by its name, too. Nothing else lets a name out, but for the list `ports` in the
    /// settings of this machine's node. See [`Span`](crate::proxy::Span).
    ///
    /// ```
    /// use portolan::{Domain, PortOptions};
    /// let domain = Domain::private()?;
    /// let port = domain.bind(PortOptions::named("upper").synchronous().spanned())?;
    /// assert!(domain.survey()?.ports[0].spanned);
    /// # drop(port);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn spanned(self) -> Self {
        Self {
            spanned: true,
            ..self
        }
    }

    /// The port at which the node of this home is asked. Its name is none that a program can give.
    pub(crate) fn of_node(home: Home) -> Self {
        Self {
            asked: Some(home),
            ..Self::named(NODE_PORT).synchronous()
        }
    }

    /// A port that is not found by its name: the name is only shown to observers.
    pub(crate) fn titled(self, name: &str) -> Self {
        Self {
            name: None,
            title: Some(name.to_owned()),
            ..self
        }
    }

    /// A port whose messages go on to another domain.
    pub(crate) fn for_another_domain(self, leaving: Leaving) -> Self {
        Self {
            most: leaving.pack(),
            ..self
        }
    }

    /// A client's own port for answers: not listed.
    pub(super) fn for_replies(self) -> Self {
        Self {
            replies: true,
            ..self
        }
    }

    /// Slots (a power of two) and lines a slot.
    fn shape(&self) -> Result<(usize, usize), BindError> {
        let fits = (1..MAX_SLOTS).contains(&self.queue)
            && self.inline_bytes <= inline_capacity(MAX_SLOT_LINES);
        if !fits {
            return Err(BindError::Shape {
                messages: self.queue,
                inline_bytes: self.inline_bytes,
            });
        }
        let lines = (self.inline_bytes.max(1) + 16).div_ceil(LINE);
        // By urgency, messages are taken out of order, and their slots may miss a lap.
        let spare = if self.by_urgency { self.queue + 1 } else { 1 };
        Ok((
            (self.queue + spare)
                .next_power_of_two()
                .clamp(MIN_SLOTS, MAX_SLOTS),
            lines,
        ))
    }
}

impl Domain {
    /// Binds a port to this space.
    ///
    /// # Errors
    ///
    /// See [`BindError`]; nothing is left behind.
    pub fn bind(&self, options: PortOptions) -> Result<ReceiveRight, BindError> {
        bind(self.member(), &options)
    }
}

pub(crate) fn bind(member: &Arc<Member>, options: &PortOptions) -> Result<ReceiveRight, BindError> {
    member.present()?;
    member.host_connection.connected()?;
    let (slots, lines) = options.shape()?;
    match &options.name {
        Some(name) if options.asked.is_some() => names::check_free(member, name)?,
        Some(name) => names::check(member, name)?,
        None => {}
    }
    let port = match open(member, options, slots, lines) {
        Err(BindError::NoRoom | BindError::OutOfMemory { .. }) if unreachable::close(member) => {
            open(member, options, slots, lines)?
        }
        other => other?,
    };
    mark!("bind.done");
    let attached = Attached::new(member, port).ok_or(BindError::NoRoom)?;
    Ok(ReceiveRight::new(attached, options.by_urgency))
}

/// Takes an entry, its name and memory, and opens the port: its name.
fn open(
    member: &Member,
    options: &PortOptions,
    slots: usize,
    lines: usize,
) -> Result<PortName, BindError> {
    let taken = entry::take(member).ok_or(BindError::NoRoom)?;
    mark!("bind.entry_taken");
    let (index, generation, entry) = (taken.index, taken.generation, taken.entry);
    let text = options.name.as_ref().or(options.title.as_ref());
    write_text(&entry.name.words, text.map_or("", String::as_str));
    if let Some(home) = &options.asked {
        // Before another one can lose the name to us, and asks which node has it.
        entry.set_home(home);
    }
    // No space has heard of the entry: it is given back if another one wins the name.
    let won = match &options.name {
        Some(name) => Some(names::win(member, index, name)?),
        None => None,
    };
    entry.control.transit.store(0, Ordering::Relaxed);
    entry.control.most.store(options.most, Ordering::Relaxed);
    entry.sleep.clear_events(generation);
    entry.sleep.wanted.store(0, Ordering::Relaxed);
    entry.sleep.wait_set.store(0, Ordering::Relaxed);
    entry.room.waiting.store(0, Ordering::Relaxed);
    taken.queue(slots, lines)?;
    mark!("bind.queue_open");
    let status = PortStatus {
        phase: PortPhase::Open,
        owner: member.space,
        synchronous: options.synchronous,
        by_urgency: options.by_urgency,
        copied: options.copied,
        replies: options.replies,
        shared: false,
        kept: false,
        spanned: options.spanned,
        generation,
        proxied: false,
        unreachable: false,
    };
    // Release: everything above comes before the port is open.
    entry.control.status.store(status.pack(), Ordering::Release);
    taken.keep();
    if let Some(won) = won {
        won.show();
    }
    Ok(PortName { index, generation })
}
