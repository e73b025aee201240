//! What C points at becomes slices, texts and places for results: the one file that does it.
//!
//! A null pointer is found here, and so is a length that no memory can have. That a pointer which
//! is not null points at as many bytes as its caller says, only the caller can know: the header
//! says so in its first lines, and each call of these functions cites that promise.

use crate::status::{enter, fail, portolan_status};
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;

/// The bytes that a caller gives; of none the pointer is not looked at.
///
/// # Safety
///
/// - Unless it is null, `data` points at `len` bytes that are not written for `'a`.
#[inline]
pub(crate) unsafe fn bytes<'a>(
    data: *const c_void,
    len: usize,
) -> Result<&'a [u8], portolan_status> {
    check(data, len)?;
    // SAFETY:
    // - Not null, and not longer than memory can be: just checked. The rest is the caller's.
    Ok(unsafe { bytes_there(data, len) })
}

/// The same, of a length and a pointer that were looked at.
///
/// # Safety
///
/// - `len` is no more than memory can be. Unless it is 0, `data` is not null, and points at so many bytes
///   that are not written for `'a`.
#[inline(always)]
pub(crate) unsafe fn bytes_there<'a>(data: *const c_void, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY:
    // - The caller's.
    unsafe { std::slice::from_raw_parts(data.cast(), len) }
}

/// The room that a caller gives.
///
/// # Safety
///
/// - Unless it is null, `data` points at `len` bytes that no other code reads or writes for `'a`.
pub(crate) unsafe fn room<'a>(
    data: *mut c_void,
    len: usize,
) -> Result<&'a mut [u8], portolan_status> {
    check(data, len)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY:
    // - Not null, and not longer than memory can be: just checked.
    // - Live and exclusive: the caller's.
    // - Initialised: the caller's; C has no memory that a program may not look at.
    Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), len) })
}

/// The values that a caller gives.
///
/// # Safety
///
/// - Unless it is null, `data` points at `len` values of `T` that are not written for `'a`.
pub(crate) unsafe fn values<'a, T>(data: *const T, len: usize) -> Result<&'a [T], portolan_status> {
    check(data.cast(), len.saturating_mul(size_of::<T>()))?;
    if len == 0 {
        return Ok(&[]);
    }
    if !data.is_aligned() {
        return Err(bad("an array does not lie where its type may"));
    }
    // SAFETY:
    // - Not null, aligned, and not longer than memory can be: just checked.
    // - Live, and not written meanwhile: the caller's.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// The places that a caller gives for results.
///
/// # Safety
///
/// - Unless it is null, `data` points at `len` places for a `T` that no other code uses for `'a`.
pub(crate) unsafe fn places<'a, T>(
    data: *mut T,
    len: usize,
) -> Result<&'a mut [MaybeUninit<T>], portolan_status> {
    check(data.cast(), len.saturating_mul(size_of::<T>()))?;
    if len == 0 {
        return Ok(&mut []);
    }
    if !data.is_aligned() {
        return Err(bad("an array does not lie where its type may"));
    }
    // SAFETY:
    // - Not null, aligned, and not longer than memory can be: just checked.
    // - Live and exclusive: the caller's. They need not be initialised.
    Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), len) })
}

/// The text that a caller gives.
///
/// # Safety
///
/// - Unless it is null, `text` points at bytes up to a zero that are not written for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, portolan_status> {
    if text.is_null() {
        return Err(null());
    }
    // SAFETY:
    // - Not null: just checked. Live, ended by a zero, and not written meanwhile: the caller's.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| bad("a text is not UTF-8"))
}

/// As [`text`], which need not be there.
///
/// # Safety
///
/// - As there.
pub(crate) unsafe fn text_or_none<'a>(
    named: *const c_char,
) -> Result<Option<&'a str>, portolan_status> {
    if named.is_null() {
        return Ok(None);
    }
    // SAFETY:
    // - The caller's.
    unsafe { text(named) }.map(Some)
}

/// A place for a result, which has to be there.
#[inline]
pub(crate) fn place<T>(
    place: Option<&mut MaybeUninit<T>>,
) -> Result<&mut MaybeUninit<T>, portolan_status> {
    match place {
        Some(place) => Ok(place),
        None => Err(null()),
    }
}

/// Puts a result where the caller wants it, if it does.
#[inline]
pub(crate) fn put<T>(place: Option<&mut MaybeUninit<T>>, value: T) {
    if let Some(place) = place {
        place.write(value);
    }
}

/// The caller's mistake, most often. As `refused` of handles.
#[cold]
#[inline(never)]
pub(crate) extern "C" fn null() -> portolan_status {
    enter(|| Err(bad("a pointer is null that has to point at something")))
}

/// The caller's mistake, in these words.
#[cold]
pub(crate) fn bad(what: &str) -> portolan_status {
    fail(
        portolan_status::PORTOLAN_BAD_ARGUMENT,
        format_args!("{what}"),
    )
}

#[inline]
fn check(data: *const c_void, bytes: usize) -> Result<(), portolan_status> {
    if data.is_null() && bytes > 0 {
        return Err(null());
    }
    if isize::try_from(bytes).is_err() {
        return Err(bad("a length is more than memory can be"));
    }
    Ok(())
}
