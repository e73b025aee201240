//! Prepares a message once, however often the queue is full: it copies for a port that gives its
//! receiver copies ([`crate::Protection::Copied`]), looks at what is to leave the domain, and in a
//! guarded domain ends this process's access.
//!
//! ```text
//! check -> copy (copied ports) -> lay out -> close (guarded domains) -> post, post, ...
//!                                                                         |       |
//!                                             the originals are freed <- sent   not sent -> undone
//! ```

use super::elsewhere;
use super::rights::is_live;
use super::sealed;
use super::send::{SendError, WhenFull, check, full, has_turned, post, takes, takes_elsewhere};
use super::wire::{self, Plan};
use crate::port::message::Message;
use crate::space::Member;
use crate::space::extent::allocate;
use crate::space::region::Attached;
use crate::{AllocateError, Extent};
use portolan_abi::bridge::bytes_taken;
use portolan_abi::port::{Leaving, PortStatus};
use portolan_abi::slot::{Kind, inline_capacity};
use portolan_shm::queue::Spot;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A message that can be posted, any number of times until there is room.
struct Prepared {
    plan: Plan,
    /// What the port's status must be: a mask and a value.
    takes: (u64, u64),
    /// What was copied.
    originals: Option<Originals>,
}

/// What was in a message before copies took their place.
struct Originals {
    extents: SmallVec<[Extent; 1]>,
    page: Option<Extent>,
}

/// As [`super::send::deliver`].
pub(super) fn deliver(
    to: &Attached,
    spot: &Spot,
    kind: Kind,
    reply: Option<u64>,
    message: &mut Message,
    when_full: WhenFull,
) -> Result<(), SendError> {
    loop {
        let Prepared {
            plan,
            takes,
            originals,
        } = prepare(to, kind, reply, message)?;
        let posted = match post(to, spot, takes, &plan, message) {
            Err(SendError::Full { slots }) => full(to, message, when_full, slots, |message| {
                post(to, spot, takes, &plan, message)
            }),
            other => other,
        };
        let Err(why) = posted else { return Ok(()) };
        undo(&to.member, message, originals);
        // It has become a proxy meanwhile, or is none any more; each round takes such a change.
        if !has_turned(to, kind, &why) {
            return Err(why);
        }
    }
}

/// As [`super::send::try_post`].
pub(super) fn try_post(
    to: &Attached,
    spot: &Spot,
    kind: Kind,
    reply: Option<u64>,
    message: &mut Message,
) -> Result<(), SendError> {
    loop {
        let Prepared {
            plan,
            takes,
            originals,
        } = prepare(to, kind, reply, message)?;
        let Err(why) = post(to, spot, takes, &plan, message) else {
            return Ok(());
        };
        undo(&to.member, message, originals);
        // As in `deliver`.
        if !has_turned(to, kind, &why) {
            return Err(why);
        }
    }
}

fn prepare(
    to: &Attached,
    kind: Kind,
    reply: Option<u64>,
    message: &mut Message,
) -> Result<Prepared, SendError> {
    let member = &to.member;
    member.present()?;
    probe!(SendCalled);
    let queue = to.queue();
    check(to, message)?;
    probe!(SendChecked);
    // Whether this is our port's status is asked after the claim. Acquire: of a proxied port, where
    // its home is.
    let status = PortStatus::unpack(queue.port.control.status.load(Ordering::Acquire));
    let takes = match status.proxied && is_live(status, to.port) {
        true => {
            elsewhere::may_travel(message)?;
            elsewhere::is_reachable(to)?;
            takes_elsewhere(to, kind)
        }
        false => takes(to, kind),
    };
    if status.copied && message.structure {
        return Err(SendError::Structure);
    }
    if let Some(leaving) = Leaving::unpack(queue.port.control.most.load(Ordering::Relaxed)) {
        may_leave(message, leaving)?;
    }
    let originals = if status.copied {
        Some(copy(member, message)?)
    } else {
        None
    };
    let plan = match wire::plan(
        member,
        message,
        kind,
        reply,
        inline_capacity(queue.slot_lines()),
    ) {
        Ok(plan) => plan,
        Err(reason) => {
            undo(member, message, originals);
            return Err(reason.into());
        }
    };
    probe!(SendPlanned);
    if let Some(guard) = &member.guard {
        // Before the claim: no receive can return before our access has ended, and no
        // receiver waits for a claimed slot while we change page tables.
        let extents = message.extents.iter().chain(message.page());
        if let Err(reason) = guard.close(extents.map(Extent::pages)) {
            let (domain, space) = (member.domain.as_str(), member.space);
            tracing::warn!(domain, space, error = %reason, "pages could not be closed");
            undo(member, message, originals);
            return Err(SendError::Open(reason));
        }
    }
    Ok(Prepared {
        plan,
        takes,
        originals,
    })
}

/// Whether a message may go on to another domain.
pub(crate) fn may_leave(message: &Message, leaving: Leaving) -> Result<(), SendError> {
    if message.structure {
        return Err(SendError::Structure);
    }
    match message.rights().len() {
        0 => {}
        rights => return Err(SendError::Rights { rights }),
    }
    let extents = message.extents().iter().map(|e| e.len() as u64);
    let sealed = message.sealed().iter().map(|s| s.len() as u64);
    let sealed = sealed.chain(sealed::laid_lengths(message));
    let header = message.header_len();
    let bytes = match leaving.sealed {
        true => {
            let together = extents.reduce(|sum, len| sum + len);
            bytes_taken(header, together.into_iter().chain(sealed))
        }
        false => bytes_taken(header, extents.chain(sealed)),
    };
    if bytes > leaving.most {
        return Err(SendError::TooLong {
            len: message.len() as u64 + sealed::laid_lengths(message).sum::<u64>(),
            extents: message.extents().len(),
            bytes,
            most: leaving.most,
        });
    }
    Ok(())
}

/// Puts copies in the place of a message's extents; the originals. A header that is not in
/// an extent yet is copied into one anyway.
fn copy(member: &Arc<Member>, message: &mut Message) -> Result<Originals, AllocateError> {
    let copy_of = |original: &Extent| {
        let mut copy = allocate(member, original.len())?;
        copy.copy_from_slice(original);
        Ok::<_, AllocateError>(copy)
    };
    let copies = message
        .extents
        .iter()
        .map(copy_of)
        .collect::<Result<_, _>>()?;
    let page = message.page().map(copy_of).transpose()?;
    let page = page.and_then(|copy| message.exchange_page(copy));
    let extents = std::mem::replace(&mut message.extents, copies);
    Ok(Originals { extents, page })
}

/// The message was not sent: it is the caller's again, as it was.
fn undo(member: &Member, message: &mut Message, originals: Option<Originals>) {
    if let Some(Originals { extents, page }) = originals {
        // What they take the place of are copies, and freed.
        message.extents = extents;
        drop(page.and_then(|page| message.exchange_page(page)));
    }
    if let Some(guard) = &member.guard {
        let ours = |extent: &&Extent| {
            let d = extent.descriptor();
            member.row().check(d.page, d.generation).is_ok()
        };
        let extents = message.extents.iter().chain(message.page());
        guard.open(extents.filter(ours).map(Extent::pages));
    }
}
