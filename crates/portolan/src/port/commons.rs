//! Segments as the table of ports sees them: entries that belong to nobody.
//!
//! A segment is a port whose queue holds one message that nobody takes: the memory. So
//! it is in a published slot, where every count of extents finds it; rights on it are
//! send rights, counted as those are, also under way; and it ends as a port does, by
//! being closed, when the last right is gone.
//!
//! ```text
//! binding, ours --> message posted --> shared, nobody's --> closing, by who saw the
//!      (dies with its maker)             (commit point)     last right go
//! ```
//!
//! A right that comes in a message is counted throughout (R1 of rights), so whoever has
//! one keeps the segment. A right made from the name comes out of nothing: its maker
//! counts it, then changes the status word, and who is about to close it, and counted
//! before, fails to.

use super::bind::bind;
use super::rights::{SendRight, drop_counted, held, is_live, senders};
use super::wire::Contents;
use super::{BindError, ConnectError, PortOptions, Unsent, close, names, send};
use crate::member::Member;
use crate::region::Attached;
use crate::{Deadline, Extent, Message};
use portolan_abi::owner::Descriptor;
use portolan_abi::port::{GENERATION_MASK, JOINS, PortName, PortPhase, PortStatus};
use portolan_abi::slot::Kind;
use portolan_shm::bulk;
use portolan_shm::channel::Channel;
use portolan_shm::mark;
use portolan_shm::queue::{PortEntry, Queue, Spot};
use portolan_shm::region::write_text;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Whether an entry is the segment `port`, open.
pub(super) fn is_segment(entry: &PortEntry, port: PortName) -> bool {
    let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
    status.shared && is_live(status, port)
}

/// The header of the message that holds a segment which nobody writes any more.
pub(crate) const FROZEN: &[u8] = b"frozen";

/// What a segment's one message says.
pub(crate) struct Memory {
    /// The extent.
    pub(crate) extent: Descriptor,
    /// Nobody writes it any more.
    pub(crate) frozen: bool,
}

/// Makes an extent a segment, and us the first who has a right on it. A frozen one is read
/// only from now on, by whoever has a right.
///
/// # Errors
///
/// [`MakeError`], and the extent, which is the caller's again.
pub(crate) fn make(
    member: &Arc<Member>,
    name: Option<&str>,
    extent: Extent,
    frozen: bool,
) -> Result<SendRight, (MakeError, Option<Extent>)> {
    // Cannot fail: a message holds so short a header, and one extent at least.
    let mut message = Message::new(if frozen { FROZEN } else { &[] }).unwrap_or_default();
    drop(message.push(extent));
    make_of(member, name, &mut message).map_err(|error| (error, message.remove(0)))
}

fn make_of(
    member: &Arc<Member>,
    name: Option<&str>,
    message: &mut Message,
) -> Result<SendRight, MakeError> {
    let lock = match name {
        Some(name) => Some(names::reserve(member, name)?),
        None => None,
    };
    let port = bind(member, &PortOptions::unnamed().queue(1).inline_bytes(48))?;
    let right = port.make_send();
    let at = port.at();
    let spot = Spot::new(at.queue().port.sender.tail.load(Ordering::Relaxed));
    send::plan_and_post(at, &spot, Kind::Message, None, message)?;
    mark!("segment.posted");
    let entry = at.queue().port;
    write_text(&entry.name.words, name.unwrap_or(""));
    let status = &entry.control.status;
    let was = PortStatus::unpack(status.load(Ordering::Acquire));
    let shared = PortStatus {
        shared: true,
        owner: 0,
        ..was
    };
    // The line of no return. Release: all of it comes before it is everybody's.
    status.store(shared.pack(), Ordering::Release);
    mark!("segment.shared");
    if let Some(lock) = lock {
        lock.publish(at.port.index, name.unwrap_or(""));
    }
    port.given();
    Ok(right)
}

/// Why no segment was made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MakeError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Unsent(#[from] Unsent),
}

/// A right on the segment of this name, waiting until there is one.
pub(crate) fn connect(
    member: &Arc<Member>,
    name: &str,
    deadline: Deadline,
) -> Result<SendRight, ConnectError> {
    names::wait_for(member, name, deadline, |port, shared| {
        let attached = shared.then(|| Attached::new(member, port))??;
        join(attached)
    })
}

/// A right on a segment whose name somebody told us; nothing, if it is gone, or was renewed.
pub(crate) fn join_told(member: &Arc<Member>, port: PortName) -> Option<SendRight> {
    // Both come from whoever told us; they are looked at, and then changed.
    let entry = member.tables().ports.get(usize::from(port.index))?;
    bulk::will_write(slice::from_ref(&entry.control.status));
    member.rights().will_change(port);
    let to = Attached::new(member, port)?;
    // Before it is counted: our row would take a name that nothing has yet for the newest.
    if !is_segment(to.queue().port, port) {
        return None;
    }
    join(to)
}

/// Gives a segment on which nobody else has a right another name, so that whoever was told
/// of it comes too late; `false` if somebody has a right, or the segment is gone.
///
/// For segments on which no right travels in messages: those are not counted here.
pub(crate) fn renew(right: &mut SendRight) -> bool {
    let (member, port) = (&right.to.member, right.to.port);
    let entry = right.to.queue().port;
    let status = &entry.control.status;
    bulk::will_write(slice::from_ref(status));
    // SeqCst: before the count. Who joins counts its right before it changes this word: it
    // is counted here, or the exchange below fails, or its own does.
    let word = status.load(Ordering::SeqCst);
    let was = PortStatus::unpack(word);
    if !(was.shared && is_live(was, port)) || held(member, port) != 1 {
        return false;
    }
    let renewed = PortName {
        generation: port.generation.wrapping_add(1) & GENERATION_MASK,
        ..port
    };
    let now = PortStatus {
        generation: renewed.generation,
        joins: 0,
        ..was
    };
    let exchanged = status.compare_exchange(word, now.pack(), Ordering::SeqCst, Ordering::Relaxed);
    if exchanged.is_err() {
        return false;
    }
    mark!("segment.renewing");
    // Under its new name it is nobody's until we have come, as others come to a segment that
    // they find. Before the exchange our row would have forgotten the rights of our other
    // threads.
    member.rights().add_send(renewed, 1);
    if is_joined(entry, renewed) {
        right.to.port = renewed;
        return true;
    }
    drop_counted(member, renewed);
    false
}

/// A right out of nothing, unless the segment is being closed.
fn join(to: Attached) -> Option<SendRight> {
    let right = SendRight::make_untold(to);
    is_joined(right.to.queue().port, right.to.port).then_some(right)
}

/// Tells who is about to close a segment that somebody came, who has counted a right
/// before; `false` if it is too late.
fn is_joined(entry: &PortEntry, port: PortName) -> bool {
    mark!("segment.joining");
    let status = &entry.control.status;
    let mut word = status.load(Ordering::Acquire);
    loop {
        let was = PortStatus::unpack(word);
        if !(was.shared && is_live(was, port)) {
            return false;
        }
        let joined = PortStatus {
            joins: (was.joins + 1) % JOINS,
            ..was
        };
        // SeqCst: counted before, and whoever closes it reads this word before it counts.
        match status.compare_exchange(word, joined.pack(), Ordering::SeqCst, Ordering::Acquire) {
            Ok(_) => return true,
            Err(now) => word = now,
        }
    }
}

/// Does something with every channel that there is. For the host, which keeps each by a
/// right of its own meanwhile.
pub(crate) fn for_each_channel(member: &Member, mut act: impl FnMut(u16, &Channel<'_>)) {
    let tables = member.tables();
    for (index, entry) in tables.used_ports() {
        let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
        let generation = status.generation;
        let port = PortName { index, generation };
        if !is_segment(entry, port) {
            continue;
        }
        member.rights().add_send(port, 1);
        if is_joined(entry, port)
            && let Some(memory) = tables.queue(index).and_then(|q| memory_of(member, &q))
            && !memory.frozen
            && let Ok(len) = usize::try_from(memory.extent.len)
        {
            let closed = member.guard.is_some();
            let page = memory.extent.page;
            let region = &member.region;
            region.with_channel(page, len, closed, |channel| act(index, channel));
        }
        drop_counted(member, port);
    }
}

/// Closes a segment on which nobody has a right any more. For anybody.
pub(super) fn close_unused(member: &Member, port: PortName) {
    let Some(entry) = member.tables().ports.get(usize::from(port.index)) else {
        return;
    };
    let status = &entry.control.status;
    loop {
        let word = status.load(Ordering::SeqCst);
        let was = PortStatus::unpack(word);
        if !(was.shared && is_live(was, port)) || senders(member, port) != 0 {
            return;
        }
        // As `close` does; ours, so that the host goes on with it if we die.
        let closing = PortStatus {
            phase: PortPhase::Closing,
            owner: member.space,
            generation: was.generation.wrapping_add(1) & GENERATION_MASK,
            shared: false,
            joins: 0,
            ..was
        };
        if status
            .compare_exchange(word, closing.pack(), Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
        {
            mark!("segment.closing");
            close::close(member, port.index);
            return;
        }
    }
}

/// The memory of a segment.
pub(crate) fn memory(right: &SendRight) -> Option<Memory> {
    memory_of(&right.to.member, right.to.queue())
}

fn memory_of(member: &Member, queue: &Queue<'_>) -> Option<Memory> {
    // Nobody takes it, so it lies where the queue begins.
    let head = queue.port.receiver.head.load(Ordering::Acquire);
    let contents = Contents::read(member, &queue.slot(head));
    Some(Memory {
        extent: contents.extents.first().copied()?,
        frozen: contents.is_headed(FROZEN),
    })
}
