//! Ports: where messages are received.

use crate::causes::cause;
use crate::deadline::{Until, deadline, portolan_deadline};
use crate::handles::{Handle, Slot};
use crate::kinds::{
    portolan_domain, portolan_message, portolan_receive_right, portolan_send_once_right,
    portolan_send_right,
};
use crate::pointers::{bad, place, put, text, text_or_none};
use crate::status::{enter, enter_status, fail_fixed, portolan_status};
use crate::wait_set::{Seat, Seated};
use portolan::{Access, Message, PortOptions, ReceiveError, ReceiveRight, Straight, Waiting};
use std::ffi::c_char;
use std::mem::{MaybeUninit, forget};

/// Whether a receiver will touch a message's pages at once.
pub type portolan_access = u32;

/// Open pages as they are touched, if they are.
pub const PORTOLAN_LATER: portolan_access = 0;
/// Open all pages now, in one batch.
pub const PORTOLAN_AT_ONCE: portolan_access = 1;

#[inline]
pub(crate) fn access(word: portolan_access) -> Result<Access, portolan_status> {
    match word {
        PORTOLAN_LATER => Ok(Access::Later),
        PORTOLAN_AT_ONCE => Ok(Access::Now),
        _ => Err(bad_access()),
    }
}

#[cold]
fn bad_access() -> portolan_status {
    bad("an access is PORTOLAN_LATER or PORTOLAN_AT_ONCE")
}

/// How a call waits.
pub type portolan_waiting = u32;

/// Spin for an adaptive time, then sleep.
pub const PORTOLAN_ADAPTIVE: portolan_waiting = 0;
/// Never sleep: lowest latency, one processor at full load.
pub const PORTOLAN_POLL: portolan_waiting = 1;
/// Sleep at once.
pub const PORTOLAN_SLEEP: portolan_waiting = 2;

pub(crate) fn waiting(word: portolan_waiting) -> Result<Waiting, portolan_status> {
    match word {
        PORTOLAN_ADAPTIVE => Ok(Waiting::Adaptive),
        PORTOLAN_POLL => Ok(Waiting::Poll),
        PORTOLAN_SLEEP => Ok(Waiting::Sleep),
        _ => Err(bad(
            "a way to wait is PORTOLAN_ADAPTIVE, PORTOLAN_POLL or PORTOLAN_SLEEP",
        )),
    }
}

/// How a port is made. All zeros are what holds if nothing else is said.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct portolan_port_options {
    /// Under which others find it; NULL for a port that is reached only by rights that are sent.
    pub name: *const c_char,
    /// Messages that the queue holds at least; 0 for 63.
    pub queue: usize,
    /// Bytes of header and descriptors that travel in the slot itself; 0 for 112.
    pub inline_bytes: usize,
    /// It takes requests, which are answered.
    pub synchronous: bool,
    /// Hand out the message with the earliest deadline first, then by priority, then in order.
    pub by_urgency: bool,
    /// Give the receiver a copy of what is sent.
    pub copied: bool,
    /// Let the name out to other nodes that span the domain.
    pub spanned: bool,
}

/// # Safety
///
/// - The name is as [`text_or_none`] asks.
pub(crate) unsafe fn options_of(
    options: Option<&portolan_port_options>,
) -> Result<PortOptions, portolan_status> {
    let mut wanted = PortOptions::unnamed();
    let Some(options) = options else {
        return Ok(wanted);
    };
    // SAFETY:
    // - The caller's.
    if let Some(name) = unsafe { text_or_none(options.name) }? {
        wanted = PortOptions::named(name);
    }
    if options.queue != 0 {
        wanted = wanted.queue(options.queue);
    }
    if options.inline_bytes != 0 {
        wanted = wanted.inline_bytes(options.inline_bytes);
    }
    if options.synchronous {
        wanted = wanted.synchronous();
    }
    if options.by_urgency {
        wanted = wanted.by_urgency();
    }
    if options.copied {
        wanted = wanted.copied();
    }
    if options.spanned {
        wanted = wanted.spanned();
    }
    Ok(wanted)
}

/// Binds a port to this process. `options` may be NULL.
///
/// Threads: any, also several at once.
/// Owns: `*port` is the caller's; freed, it closes the port. The options are read and not kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_bind(
    domain: portolan_domain,
    options: Option<&portolan_port_options>,
    port: Option<&mut MaybeUninit<portolan_receive_right>>,
) -> portolan_status {
    enter(|| {
        let place = place(port)?;
        let domain = domain.share()?;
        // SAFETY:
        // - C's promise.
        let wanted = unsafe { options_of(options) }?;
        let reserved = portolan_receive_right::reserve()?;
        let bound = domain.bind(wanted).map_err(cause)?;
        place.write(Handle::fill(reserved, Seat::Own(bound)));
        Ok(())
    })
}

/// A send right on the port of this name, waiting until there is one. `name` may be
/// `port@node`, where a node spans the domain.
///
/// Threads: any, also several at once.
/// Owns: `*right` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_connect(
    domain: portolan_domain,
    name: *const c_char,
    until: portolan_deadline,
    right: Option<&mut MaybeUninit<portolan_send_right>>,
) -> portolan_status {
    enter(|| {
        let place = place(right)?;
        let domain = domain.share()?;
        // SAFETY:
        // - C's promise.
        let name = unsafe { text(name) }?;
        let connected = domain.connect(name, deadline(until)).map_err(cause)?;
        place.write(Handle::insert(connected)?);
        Ok(())
    })
}

impl Seated for portolan_receive_right {
    type Item = ReceiveRight;
}

/// Receives a message from an asynchronous port into `message`; what that held is dropped first.
/// `PORTOLAN_TIMED_OUT`: nothing came before the deadline.
///
/// Threads: one at a time.
/// Owns: `message` is the caller's; what it holds now is too.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_receive_right_receive(
    port: portolan_receive_right,
    message: portolan_message,
    how: portolan_access,
    until: portolan_deadline,
) -> portolan_status {
    // As `portolan_send_right_send`.
    enter_status(|| {
        let Some(mut held) = message.try_hold() else {
            return receive_any(port, message, how, until);
        };
        let Some(mut seat) = port.try_hold() else {
            drop(held);
            return receive_any(port, message, how, until);
        };
        // What it takes has no pages, so one access is as good as the other.
        let mut done = Straight::Nothing;
        if how <= PORTOLAN_AT_ONCE
            && let Seat::Own(own) = &mut *seat
        {
            done = own.receive_straight(&mut held);
        }
        match done {
            Straight::Taken => portolan_status::PORTOLAN_OK,
            Straight::Found => {
                receive_holding(port, message, how, until, seat.leave(), held.leave())
            }
            Straight::Nothing => {
                forget((held, seat));
                receive_on(port, message, how, until)
            }
        }
    })
}

/// The same, of a message that is there and holds an extent, or more; both are held.
#[inline(never)]
extern "C" fn receive_holding(
    port: portolan_receive_right,
    message: portolan_message,
    how: portolan_access,
    until: portolan_deadline,
    seat: &'static Slot<Seat<ReceiveRight>>,
    held: &'static Slot<Message>,
) -> portolan_status {
    enter_status(|| {
        // SAFETY:
        // - Its caller has begun it, and left the guard.
        let mut held = unsafe { message.resume_at(held) };
        // SAFETY:
        // - The same.
        let mut seat = unsafe { port.resume_at(seat) };
        // Pages that are to be opened at once take calls.
        if how != PORTOLAN_AT_ONCE
            && let Seat::Own(own) = &mut *seat
            && own.receive_extent_straight(&mut held)
        {
            return portolan_status::PORTOLAN_OK;
        }
        forget((held, seat));
        receive_on(port, message, how, until)
    })
}

/// The same, of handles that another call uses, or that are wrong.
#[cold]
#[inline(never)]
extern "C" fn receive_any(
    port: portolan_receive_right,
    message: portolan_message,
    how: portolan_access,
    until: portolan_deadline,
) -> portolan_status {
    enter(|| {
        let (mut message, mut seat) = (message.hold()?, port.hold()?);
        receive_into(&mut seat, &mut message, how, until)
    })
}

/// The same, from where the straight line ends.
#[inline(never)]
extern "C" fn receive_on(
    port: portolan_receive_right,
    message: portolan_message,
    how: portolan_access,
    until: portolan_deadline,
) -> portolan_status {
    enter(|| {
        // SAFETY:
        // - Its caller has begun it, and forgotten the guard.
        let mut message = unsafe { message.resume() };
        // SAFETY:
        // - The same.
        let mut seat = unsafe { port.resume() };
        receive_into(&mut seat, &mut message, how, until)
    })
}

#[inline]
fn receive_into(
    seat: &mut Seat<ReceiveRight>,
    message: &mut Message,
    how: portolan_access,
    until: portolan_deadline,
) -> Result<(), portolan_status> {
    let how = access(how)?;
    seat.with(|port| {
        port.receive_into(message, how, Until(until))
            .map_err(not_received)
    })
}

/// Receives a request from a synchronous port: what is asked, into `message`, and the right to
/// answer it: `portolan_send_once_right_send`, from any thread, in any order. `reply->id` is 0 where
/// a notice came, for which no client waits.
///
/// Threads: one at a time.
/// Owns: `message` is the caller's; `*reply` too: freed unused, it tells the client that no answer
/// will come.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_receive_right_get_request(
    port: portolan_receive_right,
    message: portolan_message,
    how: portolan_access,
    until: portolan_deadline,
    reply: Option<&mut MaybeUninit<portolan_send_once_right>>,
) -> portolan_status {
    enter(|| {
        let place = place(reply)?;
        let mut message = message.hold()?;
        let how = access(how)?;
        let reserved = portolan_send_once_right::reserve()?;
        let request = port.with(|port| match port.get_request(how, deadline(until)) {
            Ok(request) => Ok(request),
            Err(why) => Err(not_received(why)),
        })?;
        let (asked, right) = request.into_parts();
        *message = asked;
        place.write(match right {
            Some(right) => Handle::fill(reserved, right),
            None => portolan_send_once_right { id: 0 },
        });
        Ok(())
    })
}

/// Nothing came, most often.
#[cold]
pub(crate) fn not_received(why: ReceiveError) -> portolan_status {
    match why {
        ReceiveError::TimedOut => fail_fixed(
            portolan_status::PORTOLAN_TIMED_OUT,
            c"no message came before the deadline",
        ),
        other => cause(other),
    }
}

/// A new send right on this port.
///
/// Threads: one at a time.
/// Owns: `*right` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_receive_right_make_send(
    port: portolan_receive_right,
    right: Option<&mut MaybeUninit<portolan_send_right>>,
) -> portolan_status {
    enter(|| {
        let place = place(right)?;
        let made = port.with(|port| Ok(port.make_send()))?;
        place.write(Handle::insert(made)?);
        Ok(())
    })
}

/// A new send-once right on this port.
///
/// Threads: one at a time.
/// Owns: `*right` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_receive_right_make_send_once(
    port: portolan_receive_right,
    right: Option<&mut MaybeUninit<portolan_send_once_right>>,
) -> portolan_status {
    enter(|| {
        let place = place(right)?;
        let reserved = portolan_send_once_right::reserve()?;
        let made = port.with(|port| Ok(port.make_send_once()))?;
        place.write(Handle::fill(reserved, made));
        Ok(())
    })
}

/// Asks to be told, once, when no send right on this port is left anywhere: a message with the
/// notice `PORTOLAN_NOTICE_NO_MORE_SENDERS`.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_receive_right_request_no_more_senders(
    port: portolan_receive_right,
) -> portolan_status {
    enter(|| {
        port.with(|port| {
            port.request_no_more_senders();
            Ok(())
        })
    })
}

/// How many messages wait in the port, and how many send rights there are, held or travelling.
/// Either may be NULL.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_receive_right_depth(
    port: portolan_receive_right,
    depth: Option<&mut MaybeUninit<usize>>,
    senders: Option<&mut MaybeUninit<u32>>,
) -> portolan_status {
    enter(|| {
        port.with(|port| {
            put(depth, port.depth());
            put(senders, port.senders());
            Ok(())
        })
    })
}

/// Chooses how this port waits.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_receive_right_set_waiting(
    port: portolan_receive_right,
    how: portolan_waiting,
) -> portolan_status {
    enter(|| {
        let how = waiting(how)?;
        port.with(|port| {
            port.set_waiting(how);
            Ok(())
        })
    })
}

/// Closes the port. What waits in it is dropped, and its clients are told.
///
/// Threads: any.
/// Owns: `port` is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_receive_right_free(port: portolan_receive_right) -> portolan_status {
    enter(|| port.take_seated().map(drop))
}
