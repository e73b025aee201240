//! Segments, which all members write, and shared extents, which no program writes any more.

use crate::causes::cause;
use crate::deadline::{deadline, portolan_deadline};
use crate::handles::Handle;
use crate::kinds::{portolan_domain, portolan_extent, portolan_segment, portolan_shared_extent};
use crate::pointers::{place, put, text, text_or_none};
use crate::status::{enter, portolan_status};
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

/// Makes a segment of at least `bytes` bytes, whole pages of zeros. `name` may be NULL: then it is
/// passed on in messages.
///
/// Threads: any, also several at once.
/// Owns: `*segment` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_make_segment(
    domain: portolan_domain,
    name: *const c_char,
    bytes: usize,
    segment: Option<&mut MaybeUninit<portolan_segment>>,
) -> portolan_status {
    enter(|| {
        let place = place(segment)?;
        let domain = domain.share()?;
        // SAFETY:
        // - C's promise.
        let name = unsafe { text_or_none(name) }?;
        let made = domain.make_segment(name, bytes).map_err(cause)?;
        place.write(Handle::insert(made)?);
        Ok(())
    })
}

/// A right on the segment of this name, waiting until there is one.
///
/// Threads: any, also several at once.
/// Owns: `*segment` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_find_segment(
    domain: portolan_domain,
    name: *const c_char,
    until: portolan_deadline,
    segment: Option<&mut MaybeUninit<portolan_segment>>,
) -> portolan_status {
    enter(|| {
        let place = place(segment)?;
        let domain = domain.share()?;
        // SAFETY:
        // - C's promise.
        let name = unsafe { text(name) }?;
        let found = domain.find_segment(name, deadline(until)).map_err(cause)?;
        place.write(Handle::insert(found)?);
        Ok(())
    })
}

/// Where the segment lies, which is the same in every member, and its bytes. Other processes write
/// it meanwhile: what is read while it is written is read by atomics. `len` may be NULL.
///
/// Threads: any, also several at once.
/// Owns: the bytes are all members'; use them until the handle is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_segment_data(
    segment: portolan_segment,
    data: Option<&mut MaybeUninit<*mut c_void>>,
    len: Option<&mut MaybeUninit<usize>>,
) -> portolan_status {
    enter(|| {
        let place = place(data)?;
        let segment = segment.share()?;
        place.write(segment.words().as_ptr().cast_mut().cast());
        put(len, segment.len());
        Ok(())
    })
}

/// Another right on the same segment.
///
/// Threads: any, also several at once.
/// Owns: `*clone` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_segment_clone(
    segment: portolan_segment,
    clone: Option<&mut MaybeUninit<portolan_segment>>,
) -> portolan_status {
    enter(|| {
        let place = place(clone)?;
        let another = segment.share()?.clone();
        place.write(Handle::insert(another)?);
        Ok(())
    })
}

/// Frees the right; the last one frees the memory.
///
/// Threads: any.
/// Owns: `segment` is freed; its bytes are not to be used any more.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_segment_free(segment: portolan_segment) -> portolan_status {
    enter(|| segment.take().map(drop))
}

/// Makes what was filled readable by all, and writable by none.
///
/// Threads: any; the extent by one at a time.
/// Owns: `extent` is freed: it is the shared extent now. If the call fails it is the caller's still.
/// `*shared` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_domain_share_extent(
    domain: portolan_domain,
    extent: portolan_extent,
    shared: Option<&mut MaybeUninit<portolan_shared_extent>>,
) -> portolan_status {
    enter(|| {
        let place = place(shared)?;
        let domain = domain.share()?;
        let extent = extent.hold()?;
        let reserved = portolan_shared_extent::reserve()?;
        portolan_extent::give(extent, |extent| match domain.share_extent(extent) {
            Ok(made) => {
                place.write(Handle::fill(reserved, made));
                Ok(())
            }
            Err(refused) => {
                let status = cause(refused.why);
                Err(((*refused.item).map(Box::new), status))
            }
        })
    })
}

/// Where the bytes of a shared extent lie. `len` may be NULL.
///
/// Threads: any, also several at once.
/// Owns: no program may write the bytes; read them until the handle is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_shared_extent_data(
    shared: portolan_shared_extent,
    data: Option<&mut MaybeUninit<*const c_void>>,
    len: Option<&mut MaybeUninit<usize>>,
) -> portolan_status {
    enter(|| {
        let place = place(data)?;
        let shared = shared.share()?;
        place.write(shared.as_ptr().cast());
        put(len, shared.len());
        Ok(())
    })
}

/// Frees the handle; the last one, in whatever process, frees the memory.
///
/// Threads: any.
/// Owns: `shared` is freed; its bytes are not to be used any more.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_shared_extent_free(shared: portolan_shared_extent) -> portolan_status {
    enter(|| shared.take().map(drop))
}
