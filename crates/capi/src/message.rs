//! Messages: a header, which is copied, and extents, which are moved.

use crate::causes::cause;
use crate::handles::Handle;
use crate::kinds::{portolan_domain, portolan_extent, portolan_message};
use crate::pointers::{bad, bytes, bytes_there, null, place, put};
use crate::status::{enter, enter_status, fail, portolan_status};
use portolan::{INLINE_HEADER, Message, Notice, Urgency};
use std::ffi::c_void;
use std::mem::{MaybeUninit, forget};
use std::ptr::with_exposed_provenance_mut;

/// Bytes of a header at the most.
pub const PORTOLAN_MAX_HEADER: usize = 4096;
/// Extents of one message at the most.
pub const PORTOLAN_MAX_EXTENTS: usize = 1024;

/// What a message tells, if it is no message but something that the port asked to be told.
pub type portolan_notice_kind = u32;

/// It is a message.
pub const PORTOLAN_NOTICE_NONE: portolan_notice_kind = 0;
/// No send right on the port is left anywhere.
pub const PORTOLAN_NOTICE_NO_MORE_SENDERS: portolan_notice_kind = 1;
/// A send-once right on the port was dropped unused.
pub const PORTOLAN_NOTICE_SEND_ONCE_DROPPED: portolan_notice_kind = 2;
/// A watched port has died; `token` says which.
pub const PORTOLAN_NOTICE_DEAD_NAME: portolan_notice_kind = 3;
/// A watched port is on a node that is silent; `token` says which.
pub const PORTOLAN_NOTICE_UNREACHABLE: portolan_notice_kind = 4;
/// Its node is there again; `token` says which.
pub const PORTOLAN_NOTICE_REACHABLE: portolan_notice_kind = 5;
/// Something that this version has no number for.
pub const PORTOLAN_NOTICE_OTHER: portolan_notice_kind = 6;

/// See `portolan_notice_kind`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct portolan_notice {
    /// What is told.
    pub kind: portolan_notice_kind,
    /// What the watcher gave to recognise the port by.
    pub token: u64,
}

/// A message with this header and nothing else, for any domain. A header of no bytes may be NULL.
///
/// Threads: any.
/// Owns: `*message` is the caller's, to be freed; to send it empties it and leaves it the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_message_new(
    header: *const c_void,
    len: usize,
    message: Option<&mut MaybeUninit<portolan_message>>,
) -> portolan_status {
    enter_status(|| {
        let Some(place) = message else {
            return null();
        };
        // The straight line: see `portolan_send_right_send`.
        if len == 0
            && let Some(reserved) = portolan_message::try_reserve()
        {
            place.write(portolan_message::fill(reserved, Message::default()));
            return portolan_status::PORTOLAN_OK;
        }
        // SAFETY:
        // - C's promise.
        unsafe { new_with(header, len, place) }
    })
}

/// The same, of any header.
#[inline(never)]
unsafe extern "C" fn new_with(
    header: *const c_void,
    len: usize,
    place: &mut MaybeUninit<portolan_message>,
) -> portolan_status {
    enter_status(|| {
        if len <= INLINE_HEADER
            && !header.is_null()
            && let Some(reserved) = portolan_message::try_reserve()
        {
            // SAFETY:
            // - Not null. The rest is the caller's.
            let header = unsafe { bytes_there(header, len) };
            // Written where it will lie, and not moved there.
            let made = portolan_message::fill_with(reserved, Message::default(), |message| {
                let _ = message.set_short_header(header);
                Ok(())
            });
            if let Ok(made) = made {
                place.write(made);
                return portolan_status::PORTOLAN_OK;
            }
        }
        // SAFETY:
        // - The caller's.
        unsafe { new_any(header, len, place) }
    })
}

/// The same, of a longer header, in a slot that was never used, or with a mistake.
#[inline(never)]
unsafe extern "C" fn new_any(
    header: *const c_void,
    len: usize,
    place: &mut MaybeUninit<portolan_message>,
) -> portolan_status {
    enter(|| {
        // SAFETY:
        // - The caller's.
        let made = Message::new(unsafe { header_of(header, len) }?).map_err(cause)?;
        place.write(Handle::insert(made)?);
        Ok(())
    })
}

/// As `portolan_message_new`; a header of more than 48 bytes is written straight into a page of
/// the domain, which saves a copy.
///
/// Threads: any, also several at once.
/// Owns: as `portolan_message_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_message(
    domain: portolan_domain,
    header: *const c_void,
    len: usize,
    message: Option<&mut MaybeUninit<portolan_message>>,
) -> portolan_status {
    enter(|| {
        let place = place(message)?;
        let domain = domain.share()?;
        // SAFETY:
        // - C's promise.
        let made = domain.message(unsafe { header_of(header, len) }?);
        place.write(Handle::insert(made.map_err(cause)?)?);
        Ok(())
    })
}

/// # Safety
///
/// - As [`bytes`].
#[inline]
unsafe fn header_of<'a>(header: *const c_void, len: usize) -> Result<&'a [u8], portolan_status> {
    // Before it is looked at.
    if len > PORTOLAN_MAX_HEADER {
        return Err(fail(
            portolan_status::PORTOLAN_TOO_LONG,
            format_args!(
                "a header of {len} bytes is over the limit of {PORTOLAN_MAX_HEADER}: put the rest into an extent"
            ),
        ));
    }
    // SAFETY:
    // - The caller's.
    unsafe { bytes(header, len) }
}

/// Gives all that the message holds back.
///
/// Threads: any.
/// Owns: `message` is freed, with its extents and rights.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_message_free(message: portolan_message) -> portolan_status {
    enter_status(|| {
        let Some(mut held) = message.try_hold() else {
            return message.refuse();
        };
        if held.owns_nothing() {
            portolan_message::let_go(held);
            return portolan_status::PORTOLAN_OK;
        }
        if let Some(extent) = held.take_only_extent() {
            portolan_message::let_go(held);
            drop(extent);
            return portolan_status::PORTOLAN_OK;
        }
        forget(held);
        free_on(message)
    })
}

/// The same, of a message that is held and holds more than an extent.
#[inline(never)]
extern "C" fn free_on(message: portolan_message) -> portolan_status {
    enter(|| {
        // SAFETY:
        // - Its caller has begun it, and forgotten the guard.
        portolan_message::drop_held(unsafe { message.resume() });
        Ok(())
    })
}

/// Drops all that the message holds; it can be used again.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_message_clear(message: portolan_message) -> portolan_status {
    enter(|| {
        message.hold()?.clear();
        Ok(())
    })
}

/// The message's header.
///
/// Threads: one at a time.
/// Owns: the bytes are the message's: there until its next call, of whatever function.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_message_header(
    message: portolan_message,
    header: Option<&mut MaybeUninit<*const c_void>>,
    len: Option<&mut MaybeUninit<usize>>,
) -> portolan_status {
    enter_status(|| {
        let (Some(header), Some(len)) = (header, len) else {
            return null();
        };
        let Some(held) = message.try_hold() else {
            return message.refuse();
        };
        let Some(bytes) = held.short_header() else {
            forget(held);
            return header_on(message, header, len);
        };
        header.write(bytes.as_ptr().cast());
        len.write(bytes.len());
        portolan_status::PORTOLAN_OK
    })
}

/// The same, of a message that is held and has more than a short header.
#[inline(never)]
extern "C" fn header_on(
    message: portolan_message,
    header: &mut MaybeUninit<*const c_void>,
    len: &mut MaybeUninit<usize>,
) -> portolan_status {
    enter(|| {
        // SAFETY:
        // - Its caller has begun it, and forgotten the guard.
        let message = unsafe { message.resume() };
        let bytes = message.header();
        header.write(bytes.as_ptr().cast());
        len.write(bytes.len());
        Ok(())
    })
}

/// Replaces the message's header.
///
/// Threads: one at a time.
/// Owns: the bytes are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_message_set_header(
    message: portolan_message,
    header: *const c_void,
    len: usize,
) -> portolan_status {
    enter(|| {
        let mut message = message.hold()?;
        // SAFETY:
        // - C's promise.
        let header = unsafe { header_of(header, len) }?;
        message.set_header(header).map_err(cause)
    })
}

/// Appends an extent.
///
/// Threads: one at a time.
/// Owns: `extent` is freed: it is the message's now. If the call fails it is the caller's still.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_message_push(
    message: portolan_message,
    extent: portolan_extent,
) -> portolan_status {
    enter_status(|| {
        let Some(mut held) = message.try_hold() else {
            return message.refuse();
        };
        let Some(pushed) = extent.try_hold() else {
            drop(held);
            return extent.refuse();
        };
        if held.owns_nothing() {
            let (extent, vacated) = portolan_extent::vacate(pushed);
            held.put_only_extent(extent);
            drop(vacated);
            return portolan_status::PORTOLAN_OK;
        }
        forget((held, pushed));
        push_on(message, extent)
    })
}

/// The same, to a message that holds something; both are held.
#[inline(never)]
extern "C" fn push_on(message: portolan_message, extent: portolan_extent) -> portolan_status {
    enter(|| {
        // SAFETY:
        // - Its caller has begun it, and forgotten the guard.
        let mut message = unsafe { message.resume() };
        // SAFETY:
        // - The same.
        let extent = unsafe { extent.resume() };
        if message.extents().len() + message.sealed().len() >= PORTOLAN_MAX_EXTENTS {
            return Err(fail(
                portolan_status::PORTOLAN_NO_ROOM,
                format_args!(
                    "a message carries {PORTOLAN_MAX_EXTENTS} extents at the most: use larger ones, or send several messages"
                ),
            ));
        }
        // Nothing fails from here on.
        message
            .push(portolan_extent::take_out(extent))
            .map_err(cause)
    })
}

/// How many extents the message holds, and how many bytes in all. Either may be NULL.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_message_extents(
    message: portolan_message,
    extents: Option<&mut MaybeUninit<usize>>,
    len: Option<&mut MaybeUninit<usize>>,
) -> portolan_status {
    enter(|| {
        let message = message.hold()?;
        put(extents, message.extents().len());
        put(len, message.len());
        Ok(())
    })
}

/// Where the bytes of the extent at `index` lie. `len` may be NULL.
///
/// Threads: one at a time.
/// Owns: the bytes are the message's: use them until it is sent, cleared or freed, or the extent
/// removed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_message_extent(
    message: portolan_message,
    index: usize,
    data: Option<&mut MaybeUninit<*mut c_void>>,
    len: Option<&mut MaybeUninit<usize>>,
) -> portolan_status {
    enter_status(|| {
        let Some(data) = data else {
            return null();
        };
        let Some(mut held) = message.try_hold() else {
            return message.refuse();
        };
        let there = held.extents_mut().get(index);
        let Some((at, bytes)) = there.and_then(|e| Some((e.place()?, e.len()))) else {
            drop(held);
            return no_extent(index);
        };
        data.write(with_exposed_provenance_mut(at));
        put(len, bytes);
        portolan_status::PORTOLAN_OK
    })
}

/// Takes the extent at `index` out.
///
/// Threads: one at a time.
/// Owns: `*extent` is the caller's, until it is sent or freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_message_remove(
    message: portolan_message,
    index: usize,
    extent: Option<&mut MaybeUninit<portolan_extent>>,
) -> portolan_status {
    enter(|| {
        let place = place(extent)?;
        let mut message = message.hold()?;
        let reserved = portolan_extent::reserve()?;
        let taken = message.remove(index).ok_or_else(|| no_extent(index))?;
        place.write(Handle::fill(reserved, taken));
        Ok(())
    })
}

/// As `refused` of handles.
#[cold]
#[inline(never)]
extern "C" fn no_extent(index: usize) -> portolan_status {
    enter(|| {
        Err(fail(
            portolan_status::PORTOLAN_OUT_OF_BOUNDS,
            format_args!("the message has no extent {index}"),
        ))
    })
}

/// Says when the message should be dealt with, for ports that hand out the most urgent first: by
/// an instant of the monotonic clock, in nanoseconds.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_message_set_deadline(
    message: portolan_message,
    deadline: crate::portolan_deadline,
) -> portolan_status {
    enter(|| {
        let at = crate::deadline::deadline(deadline).instant();
        let at = at.ok_or_else(|| bad("an urgent message has an instant"))?;
        message.hold()?.set_urgency(Some(Urgency::Deadline(at)));
        Ok(())
    })
}

/// As `portolan_message_set_deadline`, by a number: the higher, the more urgent; all come after
/// those with a deadline.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_message_set_priority(
    message: portolan_message,
    priority: u32,
) -> portolan_status {
    enter(|| {
        let urgency = Some(Urgency::Priority(priority));
        message.hold()?.set_urgency(urgency);
        Ok(())
    })
}

/// Whether this is no message but something that the port asked to be told.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_message_notice(
    message: portolan_message,
    notice: Option<&mut MaybeUninit<portolan_notice>>,
) -> portolan_status {
    enter(|| {
        let place = place(notice)?;
        let (kind, token) = match message.hold()?.notice() {
            None => (PORTOLAN_NOTICE_NONE, 0),
            Some(Notice::NoMoreSenders) => (PORTOLAN_NOTICE_NO_MORE_SENDERS, 0),
            Some(Notice::SendOnceDropped) => (PORTOLAN_NOTICE_SEND_ONCE_DROPPED, 0),
            Some(Notice::DeadName { token }) => (PORTOLAN_NOTICE_DEAD_NAME, token),
            Some(Notice::Unreachable { token }) => (PORTOLAN_NOTICE_UNREACHABLE, token),
            Some(Notice::Reachable { token }) => (PORTOLAN_NOTICE_REACHABLE, token),
            Some(_) => (PORTOLAN_NOTICE_OTHER, 0),
        };
        place.write(portolan_notice { kind, token });
        Ok(())
    })
}
