//! Shared entries keep segments in the table of ports, as entries without an owner.
//!
//! A segment is a port whose queue holds one message, its memory, which no process receives. So
//! the memory lies in a published slot, where every count of extents finds it. Rights on the
//! segment are send rights and are counted as such, also those in messages. The segment ends as a
//! port does: the process that drops the last right closes it.
//!
//! ```text
//! binding, owned --> message posted --> shared, without an owner --> closing, by the process
//!   (dies with its maker)               (commit point)               that drops the last right
//! ```
//!
//! One process may close a segment while another makes a right on it from its name.
//! [`portolan_shm::rights`] decides which of the two comes first (G1, G2). A segment that its maker
//! keeps is closed by none before its maker lets go of it, or has died (G3).

use super::bind::bind;
use super::rights::{SegmentRight, drop_counted};
use super::senders::{held, is_unused};
use super::{BindError, ConnectError, PortOptions, close, names, send, wire};
use crate::space::Member;
use crate::space::region::Attached;
use crate::{Deadline, Extent, Message};
use portolan_abi::owner::Descriptor;
use portolan_abi::port::{PortName, PortStatus};
use portolan_abi::slot::Kind;
use portolan_shm::channel::Channel;
use portolan_shm::mark;
use portolan_shm::queue::{Queue, Spot};
use portolan_shm::region::write_text;
use portolan_shm::rights::{
    self, Joined, Mark, is_left_to_keeper, is_segment, joins_in_time, may_be_joined,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// The header of the message of a frozen segment, which no process writes any more.
pub(crate) const FROZEN: &[u8] = b"frozen";
/// The same, as the first word of a header.
const FROZEN_WORD: u64 = u64::from_le_bytes(*b"frozen\0\0");

/// The content of a segment's one message.
pub(crate) struct Memory {
    /// The extent.
    pub(crate) extent: Descriptor,
    /// No process writes it any more.
    pub(crate) frozen: bool,
}

/// Who writes a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Every process with a right on it.
    Written,
    /// No process any more.
    Frozen,
    /// The process that makes it and keeps it, while it is alone with it. To all others it is frozen.
    Kept,
}

/// Makes an extent a segment, and gives this process the first right on it.
///
/// # Errors
///
/// [`BindError`], and the extent, which is the caller's again.
pub(crate) fn make(
    member: &Arc<Member>,
    name: Option<&str>,
    extent: Extent,
    sharing: Sharing,
) -> Result<SegmentRight, (BindError, Option<Extent>)> {
    let header = match sharing {
        Sharing::Written => &[],
        Sharing::Frozen | Sharing::Kept => FROZEN,
    };
    // Cannot fail: a message holds so short a header, and one extent at least.
    let mut message = Message::new(header).unwrap_or_default();
    drop(message.push(extent));
    let kept = sharing == Sharing::Kept;
    make_of(member, name, &mut message, kept).map_err(|error| (error, message.remove(0)))
}

fn make_of(
    member: &Arc<Member>,
    name: Option<&str>,
    message: &mut Message,
    kept: bool,
) -> Result<SegmentRight, BindError> {
    if let Some(name) = name {
        names::check(member, name)?;
    }
    let port = bind(member, &PortOptions::unnamed().queue(1).inline_bytes(48))?;
    let at = port.at();
    let right = SegmentRight::make_counted(at.clone());
    let entry = at.queue().port;
    write_text(&entry.name.words, name.unwrap_or(""));
    let won = match name {
        Some(name) => Some(names::win(member, at.port.index, name)?),
        None => None,
    };
    let spot = Spot::new(at.queue().port.sender.tail.load(Ordering::Relaxed));
    send::plan_and_post(at, &spot, Kind::Message, None, message)?;
    mark!("segment.posted");
    let status = &entry.control.status;
    let was = PortStatus::unpack(status.load(Ordering::Acquire));
    let shared = PortStatus {
        shared: true,
        kept,
        owner: if kept { member.space } else { 0 },
        ..was
    };
    // The line of no return. Release: all of it comes before any space finds it.
    status.store(shared.pack(), Ordering::Release);
    mark!("segment.shared");
    if let Some(won) = won {
        won.show();
    }
    port.given();
    Ok(right)
}

/// A right on the segment of this name, waiting until there is one.
pub(crate) fn connect(
    member: &Arc<Member>,
    name: &str,
    deadline: Deadline,
) -> Result<SegmentRight, ConnectError> {
    names::wait_for(member, name, deadline, |port, shared| {
        let attached = shared.then(|| Attached::new(member, port))??;
        join(attached).map(|(right, _)| right)
    })
}

/// A right on a segment whose name another process told us, and the space that keeps it; `None` if
/// the segment is gone.
///
/// A kept segment's bytes may be its keeper's to write until the caller has found that it came in
/// time, which only those know who told the name.
pub(crate) fn join_told(member: &Arc<Member>, port: PortName) -> Option<(SegmentRight, Joined)> {
    member.rights().will_change(port);
    let to = Attached::new(member, port)?;
    if !is_segment(to.queue().port, port) {
        return None;
    }
    join(to)
}

/// Whether this right on a segment is the only one. None of the others may travel in a message: this
/// does not count those.
pub(crate) fn is_only(right: &SegmentRight) -> bool {
    let (member, port) = (&right.to.member, right.to.port);
    member.present().is_ok() && held(member, port) == 1
}

/// This process keeps the segment no more. Before it drops this right on it.
pub(crate) fn let_go(right: &SegmentRight) {
    let member = &right.to.member;
    if member.present().is_ok() {
        rights::let_go(right.to.queue().port, right.to.port, member.space);
        mark!("segment.let_go");
    }
}

/// A right out of nothing, unless the segment is being closed.
fn join(to: Attached) -> Option<(SegmentRight, Joined)> {
    let right = SegmentRight::make_counted(to);
    mark!("segment.joining");
    let joined = joins_in_time(right.to.queue().port, right.to.port)?;
    Some((right, joined))
}

/// Does something with every channel that there is. For the host, which keeps each by a
/// right of its own meanwhile. A segment that is kept is a publisher's buffer, and no channel.
pub(crate) fn for_each_channel(member: &Member, mut act: impl FnMut(u16, u64, &Channel<'_>)) {
    let tables = member.tables();
    for (index, entry) in tables.used_ports() {
        let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
        let generation = status.generation;
        let port = PortName { index, generation };
        if !may_be_joined(entry, port) {
            continue;
        }
        member.rights().add_send(port);
        if joins_in_time(entry, port).is_some()
            && let Some(memory) = tables.queue(index).and_then(|q| memory_of(member, &q))
            && !memory.frozen
            && let Ok(len) = usize::try_from(memory.extent.len)
        {
            let closed = member.guard.is_some();
            let page = memory.extent.page;
            let region = &member.region;
            let start = region.offset(page);
            region.with_channel(page, len, closed, |channel| act(index, start, channel));
        }
        drop_counted(member, port);
    }
}

/// Closes a segment on which no space has a right any more. Any space may call it.
pub(super) fn close_unused(member: &Member, port: PortName) {
    let Some(entry) = member.tables().ports.get(usize::from(port.index)) else {
        return;
    };
    // Most often it is in use, and nothing is marked; or it is its keeper's to close.
    if is_left_to_keeper(entry, port) || !is_unused(member, port) {
        return;
    }
    // G2: one thread of this space. No thread waits, or is told of anything, under this lock.
    let alone = member
        .closing
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let Some(mark) = Mark::set(entry, port, member.space) else {
        return;
    };
    mark!("segment.marked");
    if !is_unused(member, port) {
        mark!("segment.in_use");
        return mark.take_back();
    }
    // Ours from here on, so that the host goes on with it if we die.
    if mark.close() {
        drop(alone);
        mark!("segment.closing");
        close::close(member, port.index);
    }
}

/// The memory of a segment.
pub(crate) fn memory(right: &SegmentRight) -> Option<Memory> {
    memory_of(&right.to.member, right.to.queue())
}

fn memory_of(member: &Member, queue: &Queue<'_>) -> Option<Memory> {
    // No receiver takes it, so it lies where the queue begins.
    let head = queue.port.receiver.head.load(Ordering::Acquire);
    let (extent, header) = wire::read_extent(member, &queue.slot(head))?;
    let frozen = header == FROZEN_WORD;
    Some(Memory { extent, frozen })
}
