//! Rights to send, and rights that travel in messages.

use crate::causes::cause;
use crate::deadline::{deadline, portolan_deadline, portolan_when_full, when_full};
use crate::handles::{Handle, Slot, Sole};
use crate::kinds::{
    portolan_channel, portolan_message, portolan_receive_right, portolan_segment,
    portolan_send_once_right, portolan_send_right, portolan_shared_extent,
};
use crate::pointers::{bad, place, places};
use crate::status::{enter, enter_status, portolan_status};
use crate::wait_set::{Seat, Seated};
use portolan::channel::Channel;
use portolan::{Message, Right, RightState, SendRight, Unfinished};
use std::mem::{MaybeUninit, forget};

/// Sends the message to an asynchronous port. For a full queue see `portolan_when_full`.
///
/// Threads: any, also several at once with one right; the message by one at a time.
/// Owns: `message` is the caller's: empty when it was sent, untouched when not.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_send_right_send(
    right: portolan_send_right,
    message: portolan_message,
    full: portolan_when_full,
) -> portolan_status {
    // The straight line, which calls nothing but, last of all, a function that does the rest.
    enter_status(|| {
        let Some(to) = right.try_share() else {
            return send_any(right, message, full);
        };
        let Some(mut held) = message.try_hold() else {
            drop(to);
            return send_any(right, message, full);
        };
        if !held.owns_nothing() {
            return send_holding(right, message, full, to.leave(), held.leave());
        }
        match to.send_straight(&mut held) {
            Ok(()) => portolan_status::PORTOLAN_OK,
            Err(begun) => {
                forget((to, held));
                go_on(right, message, full, begun)
            }
        }
    })
}

/// One function for each, so that which one it is need not be put into a register.
#[inline(always)]
fn go_on(
    right: portolan_send_right,
    message: portolan_message,
    full: portolan_when_full,
    begun: Unfinished,
) -> portolan_status {
    match begun {
        Unfinished::Unsent => send_unsent(right, message, full),
        Unfinished::Claimed(position) => send_claimed(right, message, full, position),
        Unfinished::Closed(position) => send_closed(right, message, full, position),
        Unfinished::Posted(position) => send_posted(right, message, full, position),
        Unfinished::Wakes(position) => send_wakes(right, message, full, position),
    }
}

/// Goes on from where the straight line ended, at this position if there is one.
macro_rules! goes_on {
    ($($name:ident: $begun:path $(, $position:ident)?;)*) => {$(
        #[inline(never)]
        extern "C" fn $name(
            right: portolan_send_right,
            message: portolan_message,
            full: portolan_when_full,
            $($position: u64,)?
        ) -> portolan_status {
            send_on(right, message, full, $begun $(($position))?)
        }
    )*};
}

goes_on! {
    send_unsent: Unfinished::Unsent;
    send_claimed: Unfinished::Claimed, position;
    send_closed: Unfinished::Closed, position;
    send_posted: Unfinished::Posted, position;
    send_wakes: Unfinished::Wakes, position;
}

/// The same, of a message that holds an extent, or more; both are held.
#[inline(never)]
extern "C" fn send_holding(
    right: portolan_send_right,
    message: portolan_message,
    full: portolan_when_full,
    to: &'static Slot<SendRight>,
    held: &'static Slot<Message>,
) -> portolan_status {
    enter_status(|| {
        // SAFETY:
        // - Its caller has begun it, and left the guard.
        let to = unsafe { right.resume_shared_at(to) };
        // SAFETY:
        // - The same.
        let mut held = unsafe { message.resume_at(held) };
        match to.send_extent_straight(&mut held) {
            Ok(given) => {
                drop((to, held));
                drop(given);
                portolan_status::PORTOLAN_OK
            }
            Err(begun) => {
                forget((to, held));
                go_on(right, message, full, begun)
            }
        }
    })
}

/// The same, of handles that another call uses too, or that are wrong.
#[cold]
#[inline(never)]
extern "C" fn send_any(
    right: portolan_send_right,
    message: portolan_message,
    full: portolan_when_full,
) -> portolan_status {
    enter(|| {
        let (to, mut message) = (right.share()?, message.hold()?);
        to.send_from(&mut message, when_full(full)).map_err(cause)
    })
}

/// What `goes_on` says, of the handles that `portolan_send_right_send` has found.
fn send_on(
    right: portolan_send_right,
    message: portolan_message,
    full: portolan_when_full,
    begun: Unfinished,
) -> portolan_status {
    enter(|| {
        // SAFETY:
        // - Its caller has begun it, and forgotten the guard.
        let to = unsafe { right.resume_shared() };
        // SAFETY:
        // - The same.
        let mut message = unsafe { message.resume() };
        to.finish(begun, &mut message, when_full(full))
            .map_err(cause)
    })
}

/// Waits until the machine of the port has put what was sent into the port's queue, if that is
/// another one.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_send_right_flush(
    right: portolan_send_right,
    until: portolan_deadline,
) -> portolan_status {
    enter(|| right.share()?.flush(deadline(until)).map_err(cause))
}

/// Another right on the same port, which is counted.
///
/// Threads: any, also several at once.
/// Owns: `*clone` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_send_right_clone(
    right: portolan_send_right,
    clone: Option<&mut MaybeUninit<portolan_send_right>>,
) -> portolan_status {
    enter(|| {
        let place = place(clone)?;
        let reserved = portolan_send_right::reserve()?;
        let another = right.share()?.clone();
        place.write(Handle::fill(reserved, another));
        Ok(())
    })
}

/// How the port of a right stands.
pub type portolan_right_state = u32;

/// The port lives.
pub const PORTOLAN_RIGHT_LIVE: portolan_right_state = 0;
/// The port is on another node, which is silent. It may be there again.
pub const PORTOLAN_RIGHT_UNREACHABLE: portolan_right_state = 1;
/// The port is dead, for good.
pub const PORTOLAN_RIGHT_DEAD: portolan_right_state = 2;

/// How the port is, as things are.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_send_right_state(
    right: portolan_send_right,
    state: Option<&mut MaybeUninit<portolan_right_state>>,
) -> portolan_status {
    enter(|| {
        let place = place(state)?;
        place.write(match right.share()?.state() {
            RightState::Live => PORTOLAN_RIGHT_LIVE,
            RightState::Unreachable => PORTOLAN_RIGHT_UNREACHABLE,
            _ => PORTOLAN_RIGHT_DEAD,
        });
        Ok(())
    })
}

/// Asks that `notify` be told, once, when the port of this right dies: a message with the notice
/// `PORTOLAN_NOTICE_DEAD_NAME` and this token.
///
/// Threads: any, also several at once with one right; `notify` by one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_send_right_watch(
    right: portolan_send_right,
    notify: portolan_receive_right,
    token: u64,
) -> portolan_status {
    enter(|| {
        let right = right.share()?;
        notify.with(|notify| right.watch(notify, token).map_err(cause))
    })
}

/// Ends a `portolan_send_right_watch`.
///
/// Threads: any, also several at once with one right; `notify` by one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_send_right_unwatch(
    right: portolan_send_right,
    notify: portolan_receive_right,
    token: u64,
) -> portolan_status {
    enter(|| {
        let right = right.share()?;
        notify.with(|notify| {
            right.unwatch(notify, token);
            Ok(())
        })
    })
}

/// Frees the right, which is counted no more.
///
/// Threads: any.
/// Owns: `right` is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_send_right_free(right: portolan_send_right) -> portolan_status {
    enter(|| right.take().map(drop))
}

/// Sends the one message: most often the answer to a request.
///
/// Threads: any; the message by one at a time.
/// Owns: `right` is freed, also when the call fails for what is in the message: the client that
/// waits is told that no answer will come. `message` is the caller's: empty when it was sent,
/// untouched when not.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_send_once_right_send(
    right: portolan_send_once_right,
    message: portolan_message,
) -> portolan_status {
    enter(|| {
        let mut message = message.hold()?;
        let right = right.take()?;
        match right.send(std::mem::take(&mut *message)) {
            Ok(()) => Ok(()),
            Err(refused) => {
                let status = cause(refused.why);
                *message = *refused.item;
                Err(status)
            }
        }
    })
}

/// Frees the right unused: the client that waits for the answer is told.
///
/// Threads: any.
/// Owns: `right` is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_send_once_right_free(
    right: portolan_send_once_right,
) -> portolan_status {
    enter(|| right.take().map(drop))
}

/// Rights of one message at the most.
pub const PORTOLAN_MAX_RIGHTS: usize = 64;

/// What a right is.
pub type portolan_right_kind = u32;

/// A `portolan_send_right`.
pub const PORTOLAN_RIGHT_SEND: portolan_right_kind = 1;
/// A `portolan_send_once_right`.
pub const PORTOLAN_RIGHT_SEND_ONCE: portolan_right_kind = 2;
/// A `portolan_receive_right`.
pub const PORTOLAN_RIGHT_RECEIVE: portolan_right_kind = 3;
/// A `portolan_segment`; of a channel, `portolan_channel_of_segment` makes that of it.
pub const PORTOLAN_RIGHT_SEGMENT: portolan_right_kind = 4;
/// A `portolan_shared_extent`.
pub const PORTOLAN_RIGHT_SHARED_EXTENT: portolan_right_kind = 5;

/// A right that came in a message.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct portolan_right {
    /// What it is.
    pub kind: portolan_right_kind,
    /// The `id` of a handle of that kind.
    pub id: u64,
}

/// Attaches a right, or gives it back to its handle.
fn attach<H: Handle>(
    message: portolan_message,
    handle: Sole<H::Value>,
    into: impl FnOnce(H::Value) -> Right,
    back: impl FnOnce(Right) -> Option<H::Value>,
) -> Result<(), portolan_status> {
    let mut message = message.hold()?;
    H::give(handle, |right| match message.attach(into(right)) {
        Ok(()) => Ok(()),
        Err(refused) => {
            let status = cause(refused.why);
            Err((back(*refused.item).map(Box::new), status))
        }
    })
}

/// Attaches a send right.
///
/// Threads: one at a time.
/// Owns: `right` is freed: it is the message's now. If the call fails it is the caller's still.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_message_attach_send_right(
    message: portolan_message,
    right: portolan_send_right,
) -> portolan_status {
    enter(|| {
        let back = |right| match right {
            Right::Send(right) => Some(right),
            _ => None,
        };
        attach::<portolan_send_right>(message, right.hold()?, Right::Send, back)
    })
}

/// Attaches a send-once right.
///
/// Threads: one at a time.
/// Owns: `right` is freed: it is the message's now. If the call fails it is the caller's still.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_message_attach_send_once_right(
    message: portolan_message,
    right: portolan_send_once_right,
) -> portolan_status {
    enter(|| {
        let back = |right| match right {
            Right::SendOnce(right) => Some(right),
            _ => None,
        };
        attach::<portolan_send_once_right>(message, right.hold()?, Right::SendOnce, back)
    })
}

/// Attaches a receive right: the port moves, with what waits in it. It leaves its wait set first.
///
/// Threads: one at a time.
/// Owns: `port` is freed: it is the message's now. If the call fails it is the caller's still.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_message_attach_receive_right(
    message: portolan_message,
    port: portolan_receive_right,
) -> portolan_status {
    enter(|| {
        let seat = portolan_receive_right::unseat(port.hold()?)?;
        let mut message = message.hold()?;
        portolan_receive_right::give(seat, |seat| {
            let Seat::Own(port) = seat else {
                return Err((None, bad("the port was lost in a call that panicked")));
            };
            let Err(refused) = message.attach(port) else {
                return Ok(());
            };
            let status = cause(refused.why);
            match *refused.item {
                Right::Receive(port) => Err((Some(Box::new(Seat::Own(port))), status)),
                _ => Err((None, status)),
            }
        })
    })
}

/// Attaches a segment.
///
/// Threads: one at a time.
/// Owns: `segment` is freed: it is the message's now. If the call fails it is the caller's still.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_message_attach_segment(
    message: portolan_message,
    segment: portolan_segment,
) -> portolan_status {
    enter(|| {
        let back = |right| match right {
            Right::Segment(segment) => Some(segment),
            _ => None,
        };
        attach::<portolan_segment>(message, segment.hold()?, Right::Segment, back)
    })
}

/// Attaches a shared extent.
///
/// Threads: one at a time.
/// Owns: `shared` is freed: it is the message's now. If the call fails it is the caller's still.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_message_attach_shared_extent(
    message: portolan_message,
    shared: portolan_shared_extent,
) -> portolan_status {
    enter(|| {
        let back = |right| match right {
            Right::Shared(shared) => Some(shared),
            _ => None,
        };
        attach::<portolan_shared_extent>(message, shared.hold()?, Right::Shared, back)
    })
}

/// Attaches a channel; it arrives as a segment.
///
/// Threads: one at a time.
/// Owns: `channel` is freed: it is the message's now. If the call fails it is the caller's still.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_message_attach_channel(
    message: portolan_message,
    channel: portolan_channel,
) -> portolan_status {
    enter(|| {
        let back = |right| match right {
            Right::Segment(segment) => Channel::try_from(segment).ok(),
            _ => None,
        };
        attach::<portolan_channel>(message, channel.hold()?, Right::from, back)
    })
}

/// Takes the rights that came with the message: `rights` has room for all that there may be,
/// `PORTOLAN_MAX_RIGHTS`, and `*count` says how many there were.
///
/// Threads: one at a time.
/// Owns: each is the caller's, to be freed by the function of its kind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_message_take_rights(
    message: portolan_message,
    rights: *mut portolan_right,
    most: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> portolan_status {
    enter(|| {
        let count = place(count)?;
        if most < PORTOLAN_MAX_RIGHTS {
            return Err(bad("there has to be room for PORTOLAN_MAX_RIGHTS rights"));
        }
        // SAFETY:
        // - C's promise.
        let places = unsafe { places(rights, most) }?;
        let mut message = message.hold()?;
        let mut taken = 0;
        for right in message.take_rights() {
            let Some(place) = places.get_mut(taken) else {
                break;
            };
            place.write(handle_of(right)?);
            taken += 1;
        }
        count.write(taken);
        Ok(())
    })
}

/// A handle for a right that has come.
fn handle_of(right: Right) -> Result<portolan_right, portolan_status> {
    let (kind, id) = match right {
        Right::Send(right) => {
            let handle = portolan_send_right::insert(right)?;
            (PORTOLAN_RIGHT_SEND, handle.id)
        }
        Right::SendOnce(right) => {
            let handle = portolan_send_once_right::insert(right)?;
            (PORTOLAN_RIGHT_SEND_ONCE, handle.id)
        }
        Right::Receive(port) => {
            let handle = portolan_receive_right::insert(Seat::Own(port))?;
            (PORTOLAN_RIGHT_RECEIVE, handle.id)
        }
        Right::Segment(segment) => {
            let handle = portolan_segment::insert(segment)?;
            (PORTOLAN_RIGHT_SEGMENT, handle.id)
        }
        Right::Shared(shared) => {
            let handle = portolan_shared_extent::insert(shared)?;
            (PORTOLAN_RIGHT_SHARED_EXTENT, handle.id)
        }
        _ => return Err(bad("a right has come that this version does not know")),
    };
    Ok(portolan_right { kind, id })
}
