//! Sends a message: checks everything, claims a slot, writes it, publishes it.

mod carried;
mod error;
mod straight;

use carried::{Any, Carried};
pub use error::{SendError, WhenFull};
pub use straight::{Given, Unfinished};

use super::sealed;
use crate::port::message::{Long, Message};
use crate::port::sealed::Laid;
use crate::port::wire::Plan;
use crate::port::{Right, entry, prepare, wire};
use crate::space::Member;
use crate::space::counters;
use crate::space::record::{About, Begun};
use crate::space::region::Attached;
use crate::wait::Backoff;
use crate::wait::raise_link;
use crate::{Deadline, Extent};
use portolan_abi::owner::Destination;
use portolan_abi::port::{PortName, PortPhase, PortStatus, RightWord};
use portolan_abi::slot::{Kind, Meta, inline_capacity};
use portolan_abi::thread::Wait;
use portolan_abi::trace::EventKind;
use portolan_shm::mark;
use portolan_shm::owner::{Held, OwnerRow};
use portolan_shm::queue::{Claim, ClaimError, Published, Queue, Spot};
use portolan_sys::futex;
use std::sync::atomic::Ordering;

/// Sends a message of any kind, with this reply word if it has one, waiting for room as `when_full`
/// says. What was sent leaves `message` empty; what was not leaves it as it was.
#[inline(always)]
pub(super) fn deliver(
    to: &Attached,
    spot: &Spot,
    kind: Kind,
    reply: Option<u64>,
    message: &mut Message,
    when_full: WhenFull,
) -> Result<(), SendError> {
    if post_short(to, spot, kind, reply, message) {
        return Ok(());
    }
    deliver_any(to, spot, kind, reply, message, when_full)
}

/// One attempt; otherwise as [`deliver`].
#[inline(always)]
pub(super) fn try_post(
    to: &Attached,
    spot: &Spot,
    kind: Kind,
    reply: Option<u64>,
    message: &mut Message,
) -> Result<(), SendError> {
    if post_short(to, spot, kind, reply, message) {
        return Ok(());
    }
    try_post_any(to, spot, kind, reply, message)
}

/// The straight line: one attempt with a short header and nothing else, or one extent, to a port
/// that needs no preparation, while no tracer records. `false`: nothing was sent, and the general
/// way may send it, or says why not.
#[inline(always)]
fn post_short(
    to: &Attached,
    spot: &Spot,
    kind: Kind,
    reply: Option<u64>,
    message: &mut Message,
) -> bool {
    if !message.is_header_only() {
        return match (kind, reply) {
            (Kind::Message, None) => post_one(to, spot, message),
            _ => post_one_of(to, spot, kind, reply, message),
        };
    }
    if !is_straight(to) {
        return false;
    }
    probe!(SendCalled);
    probe!(SendChecked);
    let Some(plan) = Plan::short(message, kind, reply, None) else {
        return false;
    };
    probe!(SendPlanned);
    let Ok(posted) = post_untraced(to, spot, takes(to, kind), &plan, message, ()) else {
        return false;
    };
    message.emptied();
    posted.settle(to, 0);
    true
}

/// The same, of an ordinary message with an extent, if it has one and no more.
#[inline(never)]
fn post_one(to: &Attached, spot: &Spot, message: &mut Message) -> bool {
    post_extent(to, spot, Kind::Message, None, message)
}

/// The same, of another kind.
#[inline(never)]
fn post_one_of(
    to: &Attached,
    spot: &Spot,
    kind: Kind,
    reply: Option<u64>,
    message: &mut Message,
) -> bool {
    post_extent(to, spot, kind, reply, message)
}

#[inline(always)]
fn post_extent(
    to: &Attached,
    spot: &Spot,
    kind: Kind,
    reply: Option<u64>,
    message: &mut Message,
) -> bool {
    let Some(extent) = message.only_extent() else {
        return false;
    };
    if !is_straight(to) {
        return false;
    }
    probe!(SendCalled);
    let Ok(held) = check_extent(to, &to.member.row(), extent) else {
        return false;
    };
    probe!(SendChecked);
    let Some(plan) = Plan::short(message, kind, reply, Some(extent)) else {
        return false;
    };
    probe!(SendPlanned);
    let Ok(posted) = post_untraced(to, spot, takes(to, kind), &plan, message, held) else {
        return false;
    };
    let bytes = message.gave_extents();
    message.emptied();
    posted.settle(to, bytes);
    true
}

/// Whether what is sent there needs nothing but to be written.
#[inline(always)]
fn is_straight(to: &Attached) -> bool {
    // The first of these before our own lines are looked at: a forked child has none.
    to.member.present().is_ok() && !to.prepares && !to.traces(EventKind::Send)
}

#[inline(never)]
fn deliver_any(
    to: &Attached,
    spot: &Spot,
    kind: Kind,
    reply: Option<u64>,
    message: &mut Message,
    when_full: WhenFull,
) -> Result<(), SendError> {
    if message.holds_sealed() {
        return sealed::laid_down(to, message, |message| {
            deliver_any(to, spot, kind, reply, message, when_full)
        });
    }
    if to.prepares {
        return prepare::deliver(to, spot, kind, reply, message, when_full);
    }
    let sent = match plan_and_post(to, spot, kind, reply, message) {
        Err(SendError::Full { slots }) => full(to, message, when_full, slots, |message| {
            plan_and_post(to, spot, kind, reply, message)
        }),
        other => other,
    };
    match sent {
        Err(why) if has_turned(to, kind, &why) => {
            prepare::deliver(to, spot, kind, reply, message, when_full)
        }
        other => other,
    }
}

#[inline(never)]
fn try_post_any(
    to: &Attached,
    spot: &Spot,
    kind: Kind,
    reply: Option<u64>,
    message: &mut Message,
) -> Result<(), SendError> {
    if message.holds_sealed() {
        return sealed::laid_down(to, message, |message| {
            try_post_any(to, spot, kind, reply, message)
        });
    }
    if to.prepares {
        return prepare::try_post(to, spot, kind, reply, message);
    }
    match plan_and_post(to, spot, kind, reply, message) {
        Err(why) if has_turned(to, kind, &why) => prepare::try_post(to, spot, kind, reply, message),
        other => other,
    }
}

/// The queue was found full; `attempt` posts the message.
#[cold]
pub(super) fn full(
    to: &Attached,
    message: &mut Message,
    when_full: WhenFull,
    slots: usize,
    attempt: impl Fn(&mut Message) -> Result<(), SendError>,
) -> Result<(), SendError> {
    let counters = &to.queue().port.counters;
    counters.full.fetch_add(1, Ordering::Relaxed);
    counters::full(&to.member);
    let deadline = match when_full {
        WhenFull::Fail => return Err(SendError::Full { slots }),
        WhenFull::Drop => {
            counters.dropped.fetch_add(1, Ordering::Relaxed);
            counters::dropped(&to.member);
            message.clear();
            return Ok(());
        }
        WhenFull::Wait(deadline) => deadline,
    };
    counters::waits(&to.member, Wait::ForRoom(to.port.index));
    let outcome = await_room(to, message, deadline, attempt);
    counters::waits(&to.member, Wait::Nothing);
    outcome
}

fn await_room(
    to: &Attached,
    message: &mut Message,
    deadline: Deadline,
    attempt: impl Fn(&mut Message) -> Result<(), SendError>,
) -> Result<(), SendError> {
    let mut backoff = Backoff::for_room();
    loop {
        match attempt(message) {
            Err(SendError::Full { .. }) => {}
            other => return other,
        }
        if backoff.spin() {
            continue;
        }
        let queue = to.queue();
        let room = queue.announce_waiting();
        let last = attempt(message);
        if matches!(last, Err(SendError::Full { .. })) && !deadline.has_passed() {
            mark!("send.waiting");
            let about = About::port(to.port.index);
            let _ = to.member.during(EventKind::Sleep, about, || {
                futex::wait(&queue.port.room.room, room, deadline.instant())
            });
        }
        match last {
            Err(SendError::Full { .. }) if deadline.has_passed() => return attempt(message),
            Err(SendError::Full { .. }) => {}
            other => return other,
        }
    }
}

/// One attempt of what needs no preparation.
#[inline(always)]
pub(super) fn plan_and_post(
    to: &Attached,
    spot: &Spot,
    kind: Kind,
    reply: Option<u64>,
    message: &mut Message,
) -> Result<(), SendError> {
    let member = &to.member;
    member.present()?;
    probe!(SendCalled);
    check(to, message)?;
    probe!(SendChecked);
    let plan = wire::plan(
        member,
        message,
        kind,
        reply,
        inline_capacity(to.queue().slot_lines()),
    )?;
    probe!(SendPlanned);
    post(to, spot, takes(to, kind), &plan, message)
}

/// Whether an entry with this status word holds the port of this name.
fn is_live(status: u64, port: PortName) -> bool {
    super::rights::is_live(PortStatus::unpack(status), port)
}

/// One attempt with a message that was checked and laid out for a port whose status is as `takes`
/// says, a mask and a value. On success everything in `message` belongs to the receiver, and what
/// is left of it is empty.
#[inline(always)]
pub(super) fn post(
    to: &Attached,
    spot: &Spot,
    takes: (u64, u64),
    plan: &Plan,
    message: &mut Message,
) -> Result<(), SendError> {
    // Before the claim, and so before a receiver can take the message.
    if to.traces(EventKind::Send) {
        return post_traced(to, spot, takes, plan, message);
    }
    post_and_give(to, spot, takes, plan, message).map(drop)
}

/// The same, and recorded.
#[cold]
#[inline(never)]
fn post_traced(
    to: &Attached,
    spot: &Spot,
    takes: (u64, u64),
    plan: &Plan,
    message: &mut Message,
) -> Result<(), SendError> {
    let begun = Begun::now(EventKind::Send);
    let bytes = message.len() as u64;
    let position = post_and_give(to, spot, takes, plan, message)?;
    let about = About::message(to.port.index, position, bytes);
    to.member.record(begun, about);
    Ok(())
}

/// The same, without a record; the message's position.
#[inline]
fn post_and_give(
    to: &Attached,
    spot: &Spot,
    takes: (u64, u64),
    plan: &Plan,
    message: &mut Message,
) -> Result<u64, SendError> {
    let carried = Any::of(&to.member, message);
    let posted =
        post_untraced(to, spot, takes, plan, message, carried).map_err(|why| unposted(to, why))?;
    let bytes = given(message);
    message.emptied();
    posted.settle(to, bytes);
    Ok(posted.position)
}

/// A message that was published, and cleared from our row.
#[derive(Clone, Copy)]
struct Posted {
    position: u64,
    /// Whether its receiver may sleep.
    wakes: bool,
}

impl Posted {
    /// Counts it, with so many bytes of extents, and wakes its receiver.
    #[inline(always)]
    fn settle(self, to: &Attached, bytes: u64) {
        counters::sent(to.own().threads, bytes);
        probe!(SendGiven);
        if self.wakes {
            wake(&to.member, to.queue(), to.port.index);
        }
    }
}

/// Why nothing was published. Small, because the straight line does not ask.
#[derive(Clone, Copy)]
enum Unposted {
    /// No slot was claimed.
    Unclaimed(ClaimError),
    /// The port was closed meanwhile.
    Closed,
    /// The port has this status.
    Refused(u64),
}

/// What the caller is told of it.
#[cold]
fn unposted(to: &Attached, why: Unposted) -> SendError {
    match why {
        Unposted::Unclaimed(ClaimError::Full { slots }) => SendError::Full { slots },
        Unposted::Unclaimed(ClaimError::Closed) | Unposted::Closed => SendError::DeadName,
        Unposted::Refused(status) => refuse(status, to),
    }
}

/// Claims a slot, writes the message into it and publishes it.
#[inline(always)]
fn post_untraced(
    to: &Attached,
    spot: &Spot,
    takes: (u64, u64),
    plan: &Plan,
    message: &Message,
    carried: impl Carried,
) -> Result<Posted, Unposted> {
    let member = &to.member;
    let queue = to.queue();
    // All that can be done before the claim is: see `Claim::fill`.
    // Before the claim as well as under it: our queue's memory may be another port's, and our
    // spot its end, if the right was a dead name when we came by it (see `Queue::claim`).
    let status = queue.port.control.status.load(Ordering::Acquire);
    if status & takes.0 != takes.1 {
        return Err(Unposted::Refused(status));
    }
    probe!(SendAdmitted);
    // By value: what is behind a reference is stored first.
    let lives = move || queue.port.control.status.load(Ordering::Acquire) & takes.0 == takes.1;
    let claim = queue
        .claim(spot, member.space, lives)
        .map_err(Unposted::Unclaimed)?;
    match publish(to, claim, takes, plan, message, carried) {
        Ok(posted) => Ok(posted),
        Err(Unpublished::Refused { status, position }) => {
            if queue.abandon(position) {
                wake(member, queue, to.port.index);
            }
            Err(Unposted::Refused(status))
        }
        Err(Unpublished::Closed { position }) => {
            take_back(to, carried, position);
            Err(Unposted::Closed)
        }
    }
}

/// Why a message was not published into the slot that was claimed for it.
#[derive(Clone, Copy)]
enum Unpublished {
    /// The port has this status. The slot is claimed still.
    Refused { status: u64, position: u64 },
    /// The port was closed meanwhile: what was carried is to be taken back.
    Closed { position: u64 },
}

/// Writes the message into a claimed slot and publishes it.
#[inline(always)]
fn publish(
    to: &Attached,
    claim: Claim<'_, '_>,
    takes: (u64, u64),
    plan: &Plan,
    message: &Message,
    carried: impl Carried,
) -> Result<Posted, Unpublished> {
    let (member, queue) = (&to.member, to.queue());
    let position = claim.position();
    // Not before: while we hold a slot neither entry nor memory can become another port's.
    // Acquire: pairs with the release of bind, move and close.
    let status = queue.port.control.status.load(Ordering::Acquire);
    if status & takes.0 != takes.1 {
        claim.leave();
        return Err(Unpublished::Refused { status, position });
    }
    probe!(SendClaimed);
    let destination = Destination::new(to.port.index, position);
    carried.leave(member, destination);
    probe!(SendNoted);
    plan.write(message, &claim);
    mark!("send.written");
    probe!(SendWritten);
    // The line of no return.
    let published = claim.publish();
    probe!(SendPublished);
    if published == Published::Closed {
        return Err(Unpublished::Closed { position });
    }
    carried.has_left(destination);
    mark!("send.cleared");
    probe!(SendCleared);
    Ok(Posted {
        position,
        wakes: published == Published::Wake,
    })
}

/// What the port's status must be to take this kind of message: a mask and a value. Not of a
/// proxied port.
#[inline(always)]
pub(super) fn takes(to: &Attached, kind: Kind) -> (u64, u64) {
    PortStatus::takes(to.port.generation, takes_requests(kind))
}

/// The same, of a proxied port.
pub(super) fn takes_elsewhere(to: &Attached, kind: Kind) -> (u64, u64) {
    PortStatus::takes_elsewhere(to.port.generation, takes_requests(kind))
}

/// Whether a port that takes this kind of message is synchronous; `None`: both kinds take it.
#[inline(always)]
fn takes_requests(kind: Kind) -> Option<bool> {
    match kind {
        Kind::Message => Some(false),
        Kind::Request => Some(true),
        Kind::Reply | Kind::Dropped | Kind::ServerDead => None,
    }
}

/// Whether a send was refused for no other reason than that the port is proxied, or was, and is
/// not any more: the port is of the kind that takes this, and alive.
#[cold]
pub(super) fn has_turned(to: &Attached, kind: Kind, why: &SendError) -> bool {
    // The latter: a sender that looked for a free slot gives up if the status is another meanwhile.
    let (SendError::WrongKind(..) | SendError::DeadName) = why else {
        return false;
    };
    // Acquire: as in `refuse`. No dead port comes alive, and none becomes one of the other kind.
    let status = to.queue().port.control.status.load(Ordering::Acquire);
    let of_kind =
        takes_requests(kind).is_none_or(|kind| PortStatus::unpack(status).synchronous == kind);
    of_kind && is_live(status, to.port)
}

/// The port is not one that takes this: it is dead, of the other kind, or proxied ([`has_turned`]).
#[cold]
fn refuse(status: u64, to: &Attached) -> SendError {
    entry::sweep(&to.member, to.port.index);
    let status = PortStatus::unpack(status);
    if status.generation != to.port.generation
        || !matches!(status.phase, PortPhase::Open | PortPhase::Moving)
    {
        SendError::DeadName
    } else if status.synchronous {
        SendError::WrongKind("synchronous", "request_reply, or bind an asynchronous port")
    } else {
        SendError::WrongKind("asynchronous", "send, or bind a synchronous port")
    }
}

/// Everything that could be wrong with the message, before anything is changed.
#[inline]
pub(super) fn check(to: &Attached, message: &Message) -> Result<(), SendError> {
    let member = &to.member;
    let row = member.row();
    for extent in &message.extents {
        check_extent(to, &row, extent)?;
    }
    match message.rest() {
        Some(rest) if rest.rights.iter().any(|r| !r.is_of(member)) => Err(SendError::Foreign),
        Some(rest) if matches!(&rest.long, Long::Page(extent) if !extent.is_of(member)) => {
            Err(SendError::Foreign)
        }
        Some(rest) if rest.rights.iter().any(|r| r.receives_from(to.port)) => {
            Err(SendError::IntoItself)
        }
        _ => Ok(()),
    }
}

#[inline(always)]
fn check_extent<'r>(
    to: &Attached,
    row: &OwnerRow<'r>,
    extent: &Extent,
) -> Result<Held<'r>, SendError> {
    if !extent.is_of(&to.member) {
        return Err(SendError::Foreign);
    }
    probe!(SendDescriptor);
    let d = extent.descriptor();
    let held = row.held(d.page, d.generation)?;
    probe!(SendOwner);
    Ok(held)
}

/// The port was closed between claim and publication: the message is ours again.
#[cold]
fn take_back(to: &Attached, carried: impl Carried, position: u64) {
    let member = &to.member;
    carried.stay(member);
    to.queue().withdraw(position);
    entry::sweep(member, to.port.index);
}

/// Posts an answer that is a word and nothing else, on behalf of a space that cannot.
/// A dead port gets none; `false` if a live one is full, of voids most likely.
pub(crate) fn post_word(member: &Member, port: PortName, kind: Kind, word: RightWord) -> bool {
    let Some(queue) = member.tables().queue(port.index) else {
        return true;
    };
    let lives = || {
        let status = queue.port.control.status.load(Ordering::Acquire);
        is_live(status, port)
    };
    if !lives() {
        return true;
    }
    let spot = Spot::new(queue.port.sender.tail.load(Ordering::Relaxed));
    let begun = Begun::now(EventKind::Send);
    let claim = match queue.claim(&spot, member.space, lives) {
        Ok(claim) => claim,
        Err(ClaimError::Full { .. }) => return false,
        Err(ClaimError::Closed) => return true,
    };
    // As in `post_untraced`: while we hold a slot it cannot become another client's.
    if !lives() {
        if claim.abandon() {
            wake(member, &queue, port.index);
        }
        entry::sweep(member, port.index);
        return true;
    }
    let position = claim.position();
    claim.set_meta(
        Meta {
            reply: true,
            ..Meta::new(kind)
        }
        .pack(),
    );
    claim.write(0, &[word.pack()]);
    match claim.publish() {
        Published::Done => {}
        Published::Wake => wake(member, &queue, port.index),
        Published::Closed => {
            queue.withdraw(position);
            return true;
        }
    }
    if member.traces(EventKind::Send) {
        member.record(begun, About::message(port.index, position, 0));
    }
    true
}

/// The receiver has it all: forget our handles; how many bytes of extents it was.
#[inline]
fn given(message: &mut Message) -> u64 {
    let bytes = message.gave_extents();
    if let Some(rest) = message.take_rest() {
        let rest = *rest;
        if let Long::Page(mut extent) = rest.long {
            extent.forget();
        }
        rest.rights.into_iter().for_each(Right::given);
        rest.laid.into_iter().for_each(Laid::given);
    }
    bytes
}

/// Wakes the port's receiver: through the wait set while the port is armed there, else directly.
#[cold]
pub(crate) fn wake(member: &Member, queue: &Queue<'_>, port: u16) {
    let sleep = &queue.port.sleep;
    sleep.doorbell.fetch_add(1, Ordering::SeqCst);
    mark!("send.before_wake");
    // SeqCst: pairs with the receiver, which changes the link before it reads the doorbell
    // and arms (W2 of wait sets).
    let link = sleep.wait_set.load(Ordering::SeqCst);
    if !raise_link(member, link, About::port(port)) {
        probe!(WakeFound);
        member.during(EventKind::Wake, About::port(port), || {
            futex::wake(&sleep.doorbell, 1)
        });
        probe!(WakeCalled);
    }
}

/// Wakes all senders that wait for room.
#[cold]
pub(crate) fn wake_senders(queue: &Queue<'_>) {
    queue.port.room.room.fetch_add(1, Ordering::SeqCst);
    futex::wake(&queue.port.room.room, u32::MAX);
}
