//! Making a port.

use super::{ReceiveRight, names};
use crate::member::Member;
use crate::region::Attached;
use crate::{Disowned, Domain};
use portolan_abi::limits::{MAX_NAME, MAX_PORTS, MAX_SLOT_LINES, MAX_SLOTS, MIN_SLOTS};
use portolan_abi::name::RULE;
use portolan_abi::port::{ANY_BYTES, Leaving, PortName, PortPhase, PortStatus};
use portolan_abi::slot::inline_capacity;
use portolan_shm::mark;
use portolan_shm::queue::PortEntry;
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
    /// See [`Self::for_another_domain`].
    most: u64,
}

/// Why a port could not be bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The caller's: the name is empty, too long, or holds a zero byte or an `@`.
    #[error("{name:?} is no port name: use 1 to {MAX_NAME} bytes {RULE}")]
    BadName {
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
    /// The caller's: no such queue.
    #[error("a queue holds 1 to {} messages and 48 to {} inline bytes, not {messages} and {inline_bytes}", MAX_SLOTS - 1, inline_capacity(MAX_SLOT_LINES))]
    Shape {
        /// Messages asked for.
        messages: usize,
        /// Inline bytes asked for.
        inline_bytes: usize,
    },
    /// The state's: all ports, or all queue memory, are in use.
    #[error(
        "the domain has no room for another port ({MAX_PORTS} entries, 4 GiB of queues): close some, or use smaller queues"
    )]
    NoRoom,
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
            most: ANY_BYTES,
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
        let lines = (self.inline_bytes.max(1) + 16).div_ceil(portolan_abi::limits::LINE);
        if self.queue == 0 || self.queue >= MAX_SLOTS || lines > MAX_SLOT_LINES {
            return Err(BindError::Shape {
                messages: self.queue,
                inline_bytes: self.inline_bytes,
            });
        }
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
    member.link.connected()?;
    let (slots, lines) = options.shape()?;
    if let Some(name) = &options.name {
        names::check(member, name)?;
    }
    let (index, entry, generation) = take_entry(member, slots, lines)?;
    mark!("bind.entry_taken");
    let name = options.name.as_deref().unwrap_or("");
    write_text(&entry.name.words, name);
    let won = match &options.name {
        Some(name) => Some(names::win(member, index, name).inspect_err(|_| {
            // Nobody has heard of it. Release: the next one to bind it sees no name of ours.
            let free = PortStatus {
                generation,
                ..PortStatus::FRESH
            };
            entry.control.status.store(free.pack(), Ordering::Release);
        })?),
        None => None,
    };
    entry.control.transit.store(0, Ordering::Relaxed);
    entry.control.most.store(options.most, Ordering::Relaxed);
    entry.sleep.clear_events(generation);
    entry.sleep.wanted.store(0, Ordering::Relaxed);
    entry.sleep.wait_set.store(0, Ordering::Relaxed);
    entry.room.waiting.store(0, Ordering::Relaxed);
    if let Some(queue) = member.tables().queue(index) {
        queue.open();
    }
    mark!("bind.queue_open");
    let status = PortStatus {
        phase: PortPhase::Open,
        owner: member.space,
        synchronous: options.synchronous,
        by_urgency: options.by_urgency,
        copied: options.copied,
        replies: options.replies,
        shared: false,
        renewing: false,
        generation,
    };
    // Release: everything above comes before the port is open.
    entry.control.status.store(status.pack(), Ordering::Release);
    if let Some(won) = won {
        won.show();
    }
    mark!("bind.done");
    let attached =
        Attached::new(member, PortName { index, generation }).ok_or(BindError::NoRoom)?;
    Ok(ReceiveRight::new(attached, options.by_urgency))
}

/// Takes a free entry whose queue has this shape, or one that has no queue yet.
fn take_entry(
    member: &Member,
    slots: usize,
    lines: usize,
) -> Result<(u16, &PortEntry, u32), BindError> {
    let tables = member.tables();
    let shape = u64::from(slots.trailing_zeros()) | (lines as u64) << 8;
    let hint = &tables.header.port_hint.value;
    let start = usize::try_from(hint.load(Ordering::Relaxed)).unwrap_or(0);
    // Entries that were used before come first, so that queue memory is used again.
    for used in [true, false] {
        for step in 0..MAX_PORTS {
            let at = if used {
                step
            } else {
                (start + step) % MAX_PORTS
            };
            let entry = &tables.ports[at];
            let has = entry.control.geometry.load(Ordering::Acquire);
            if used && has == 0 {
                break;
            }
            let was = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
            if was.phase != PortPhase::Free || has != if used { shape } else { 0 } {
                continue;
            }
            let binding = PortStatus {
                phase: PortPhase::Binding,
                owner: member.space,
                generation: was.generation,
                ..PortStatus::FRESH
            };
            if entry
                .control
                .status
                .compare_exchange(
                    was.pack(),
                    binding.pack(),
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_err()
            {
                continue;
            }
            if !used {
                // Before its queue: whoever looks at all ports looks at this one too.
                hint.fetch_max(at as u64 + 1, Ordering::SeqCst);
                let Some(queue) = tables.reserve_queue(slots * lines) else {
                    entry.control.status.store(was.pack(), Ordering::Release);
                    return Err(BindError::NoRoom);
                };
                entry.control.queue.store(queue, Ordering::Relaxed);
                // Release: the offset comes first; a shape without one is never seen.
                entry.control.geometry.store(shape, Ordering::Release);
            }
            let index = u16::try_from(at).map_err(|_| BindError::NoRoom)?;
            return Ok((index, entry, was.generation));
        }
    }
    Err(BindError::NoRoom)
}
