//! Requests and their answers, as a client sees them.

use crate::causes::cause;
use crate::deadline::{deadline, portolan_deadline, portolan_when_full, when_full};
use crate::handles::Handle;
use crate::kinds::{portolan_message, portolan_pending_reply, portolan_send_right};
use crate::pointers::place;
use crate::port::{access, portolan_access};
use crate::status::{enter, portolan_status};
use crate::wait_set::{Seat, Seated};
use portolan::{Message, PendingReply, RequestError, Waiting};
use std::mem::MaybeUninit;

/// Sends `message` as a request to a synchronous port and waits for the answer, which is then in
/// `message`. If the request was not sent, `message` is as it was; if it was, and no answer came,
/// it is empty: `PORTOLAN_TIMED_OUT`, `PORTOLAN_DROPPED`, `PORTOLAN_PEER_DIED`.
///
/// Threads: any, also several at once with one right; the message by one at a time.
/// Owns: `message` is the caller's; what it holds now is too.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_send_right_request_reply(
    right: portolan_send_right,
    message: portolan_message,
    how: portolan_access,
    until: portolan_deadline,
) -> portolan_status {
    enter(|| {
        let right = right.share()?;
        let mut message = message.hold()?;
        let (how, until) = (access(how)?, deadline(until));
        right
            .request_reply_in_place(&mut message, how, until, Waiting::Adaptive)
            .map_err(|why| unanswered(why, &mut message))
    })
}

/// Sends `message` as a request; its answer is waited for later. Any number may be under way. For
/// a full queue see `portolan_when_full`.
///
/// Threads: any, also several at once with one right; the message by one at a time.
/// Owns: `message` is the caller's: empty, unless the call failed. `*pending` is the caller's, to be
/// freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_send_right_begin_request(
    right: portolan_send_right,
    message: portolan_message,
    full: portolan_when_full,
    pending: Option<&mut MaybeUninit<portolan_pending_reply>>,
) -> portolan_status {
    enter(|| {
        let place = place(pending)?;
        let right = right.share()?;
        let mut message = message.hold()?;
        let reserved = portolan_pending_reply::reserve()?;
        match right.begin_request(std::mem::take(&mut *message), when_full(full)) {
            Ok(begun) => {
                place.write(Handle::fill(reserved, Seat::Own(begun)));
                Ok(())
            }
            Err(why) => Err(unanswered(why, &mut message)),
        }
    })
}

/// Why there is no answer; a message that was not sent is its handle's again.
#[cold]
fn unanswered(why: RequestError, message: &mut Message) -> portolan_status {
    let status = cause_of(&why);
    match why {
        RequestError::Unsent(refused) => *message = *refused.item,
        RequestError::NoReplyPort(_, item) => *message = *item,
        _ => {}
    }
    status
}

fn cause_of(why: &RequestError) -> portolan_status {
    use crate::causes::Cause;
    crate::status::fail(why.status(), format_args!("{why}"))
}

impl Seated for portolan_pending_reply {
    type Item = PendingReply;
}

/// Waits for the answer, which is then in `message`; what that held is dropped first. After
/// `PORTOLAN_TIMED_OUT` it can be waited for again.
///
/// Threads: one at a time.
/// Owns: `message` is the caller's; `pending` too, and is of no use once the answer has come.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_pending_reply_wait(
    pending: portolan_pending_reply,
    message: portolan_message,
    how: portolan_access,
    until: portolan_deadline,
) -> portolan_status {
    enter(|| {
        let mut message = message.hold()?;
        let (how, until) = (access(how)?, deadline(until));
        message.clear();
        *message = pending.with(|pending| pending.wait(how, until).map_err(cause))?;
        Ok(())
    })
}

/// Frees the handle; a request that is not answered yet is abandoned.
///
/// Threads: any.
/// Owns: `pending` is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_pending_reply_free(pending: portolan_pending_reply) -> portolan_status {
    enter(|| pending.take_seated().map(drop))
}
