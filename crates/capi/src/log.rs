//! Logs: what is stored to memory of this process reaches an import, in the order of the stores.

use crate::causes::cause;
use crate::handles::Handle;
use crate::kinds::{portolan_export_memory, portolan_import, portolan_log};
use crate::pointers::{bad, bytes, place};
use crate::status::{enter, portolan_status};
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// Maps the `len` bytes at `start` of `memory` to the import from `offset` on: what is stored by the
/// log is stored there and sent, one store after another, so that a reader that sees a flag sees what
/// was stored before it. `memory` need not be exported.
///
/// Threads: any, also several at once.
/// Owns: `*log` is the caller's, to be freed; `import` and `memory` are the caller's still, and may be
/// freed before it.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_import_map_log(
    import: portolan_import,
    memory: portolan_export_memory,
    start: usize,
    len: usize,
    offset: usize,
    log: Option<&mut MaybeUninit<portolan_log>>,
) -> portolan_status {
    enter(|| {
        let place = place(log)?;
        let import = import.share()?;
        let memory = memory.share()?;
        let end = start.checked_add(len);
        let end = end.ok_or_else(|| bad("a length is more than memory can be"))?;
        let reserved = portolan_log::reserve()?;
        let mapped = import.map_log(&memory, start..end, offset);
        place.write(Handle::fill(reserved, mapped.map_err(cause)?));
        Ok(())
    })
}

/// Stores `len` bytes, `at` so many after the first mapped one. Stores that follow one another without
/// a gap are sent together: at the next one that lies elsewhere, after 4,096 bytes, at
/// `portolan_log_store_release`, `portolan_log_flush` and `portolan_log_unmap`.
///
/// Threads: one at a time.
/// Owns: the bytes are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_log_store(
    log: portolan_log,
    at: usize,
    data: *const c_void,
    len: usize,
) -> portolan_status {
    enter(|| {
        let mut log = log.hold()?;
        // SAFETY:
        // - C's promise.
        let data = unsafe { bytes(data, len) }?;
        log.store(at, data).map_err(cause)
    })
}

/// Stores a word, `at` so many bytes after the first mapped one, at a multiple of 8 in the memory and
/// in the import. When this returns, it and all that was stored before have landed.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_log_store_release(
    log: portolan_log,
    at: usize,
    value: u64,
) -> portolan_status {
    enter(|| log.hold()?.store_release(at, value).map_err(cause))
}

/// Sends what is not sent yet. When this returns, all that was stored has landed.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_log_flush(log: portolan_log) -> portolan_status {
    enter(|| log.hold()?.flush().map_err(cause))
}

/// As `portolan_log_flush`, and notifies the exporter of what was sent since this was called last.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_log_flush_notifying(log: portolan_log) -> portolan_status {
    enter(|| log.hold()?.flush_notifying().map_err(cause))
}

/// Sends what is not sent yet, and ends the mapping. If that fails the last stores may not have
/// landed.
///
/// Threads: any.
/// Owns: `log` is freed, also when the call fails for another reason than `PORTOLAN_BAD_HANDLE` or a
/// call that uses it.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_log_unmap(log: portolan_log) -> portolan_status {
    enter(|| log.take()?.unmap().map_err(cause))
}

/// As `portolan_log_unmap`; whether the last stores have landed is not said.
///
/// Threads: any.
/// Owns: `log` is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_log_free(log: portolan_log) -> portolan_status {
    enter(|| log.take().map(drop))
}
