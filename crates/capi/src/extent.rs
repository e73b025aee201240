//! Extents: memory that is moved by changing who owns it.

use crate::handles::Handle;
use crate::kinds::portolan_extent;
use crate::pointers::{null, place, put};
use crate::status::{enter, enter_status, fail, portolan_status};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::with_exposed_provenance_mut;

/// Where an extent's bytes lie, which is the same in every member, and how many belong to the
/// message. `len` may be NULL.
///
/// Threads: one at a time.
/// Owns: the bytes are the extent's: use them until it is sent, pushed into a message, or freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_extent_data(
    extent: portolan_extent,
    data: Option<&mut MaybeUninit<*mut c_void>>,
    len: Option<&mut MaybeUninit<usize>>,
) -> portolan_status {
    // The straight line: see `portolan_send_right_send`.
    enter_status(|| {
        let Some(data) = data else {
            return null();
        };
        let Some(held) = extent.try_hold() else {
            return extent.refuse();
        };
        // An extent in use has a place.
        data.write(with_exposed_provenance_mut(held.place().unwrap_or(0)));
        put(len, held.len());
        portolan_status::PORTOLAN_OK
    })
}

/// Bytes that the extent could hold.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_extent_capacity(
    extent: portolan_extent,
    capacity: Option<&mut MaybeUninit<usize>>,
) -> portolan_status {
    enter(|| {
        let place = place(capacity)?;
        place.write(extent.hold()?.capacity());
        Ok(())
    })
}

/// Says how many bytes belong to the message: up to the capacity.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_extent_set_len(extent: portolan_extent, len: usize) -> portolan_status {
    enter(|| {
        extent.hold()?.set_len(len).map_err(|capacity| {
            fail(
                portolan_status::PORTOLAN_TOO_LONG,
                format_args!("the extent holds {capacity} bytes, not {len}"),
            )
        })
    })
}

/// Gives the extent back to the domain.
///
/// Threads: any.
/// Owns: `extent` is freed; its bytes are not the caller's any more.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_extent_free(extent: portolan_extent) -> portolan_status {
    enter(|| extent.drop_value())
}
