//! Exports and imports: a process writes and reads memory that another one has exported.

use crate::causes::cause;
use crate::deadline::{deadline, portolan_deadline};
use crate::domain::{builder, portolan_domain_options};
use crate::handles::Handle;
use crate::kinds::{
    portolan_domain, portolan_export, portolan_export_memory, portolan_import,
    portolan_notifications,
};
use crate::pointers::{bad, bytes, place, put, room, text, values};
use crate::status::{enter, fail_fixed, portolan_status};
use crate::wait_set::{Seat, Seated};
use portolan::Permissions;
use portolan::vmmc::{
    ExportMemory, ExportOptions, Notification, NotificationError, Notifications, Reach,
};
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

/// Memory of at least `len` bytes, whole pages of zeros, that can be exported.
///
/// Threads: any.
/// Owns: `*memory` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_export_memory_new(
    len: usize,
    memory: Option<&mut MaybeUninit<portolan_export_memory>>,
) -> portolan_status {
    enter(|| {
        let place = place(memory)?;
        place.write(Handle::insert(ExportMemory::new(len).map_err(cause)?)?);
        Ok(())
    })
}

/// Takes memory for every page now, so that no access can fail for want of it.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_export_memory_populate(
    memory: portolan_export_memory,
) -> portolan_status {
    enter(|| memory.share()?.populate().map_err(cause))
}

/// Where the memory lies, and its bytes. Importers may write it meanwhile: what is read while they
/// do is read by atomics, or by `portolan_export_memory_read`. `len` may be NULL.
///
/// Threads: any, also several at once.
/// Owns: the bytes are the memory's: use them until it is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_export_memory_data(
    memory: portolan_export_memory,
    data: Option<&mut MaybeUninit<*mut c_void>>,
    len: Option<&mut MaybeUninit<usize>>,
) -> portolan_status {
    enter(|| {
        let place = place(data)?;
        let memory = memory.share()?;
        let words = memory.words().map_err(cause)?;
        place.write(words.as_ptr().cast_mut().cast());
        put(len, memory.len());
        Ok(())
    })
}

/// Copies `len` bytes from `offset` on. What importers write meanwhile is there in part or not.
///
/// Threads: any, also several at once.
/// Owns: `data` is the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_export_memory_read(
    memory: portolan_export_memory,
    offset: usize,
    data: *mut c_void,
    len: usize,
) -> portolan_status {
    enter(|| {
        let memory = memory.share()?;
        // SAFETY:
        // - C's promise.
        let room = unsafe { room(data, len) }?;
        memory.read(offset, room).map_err(cause)
    })
}

/// Copies `len` bytes to `offset` and the following.
///
/// Threads: any, also several at once.
/// Owns: the bytes are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_export_memory_write(
    memory: portolan_export_memory,
    offset: usize,
    data: *const c_void,
    len: usize,
) -> portolan_status {
    enter(|| {
        let memory = memory.share()?;
        // SAFETY:
        // - C's promise.
        let data = unsafe { bytes(data, len) }?;
        memory.write(offset, data).map_err(cause)
    })
}

/// Loads the word at `offset`, a multiple of 8: what its writer wrote before it is then there.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_export_memory_load_acquire(
    memory: portolan_export_memory,
    offset: usize,
    value: Option<&mut MaybeUninit<u64>>,
) -> portolan_status {
    enter(|| {
        let place = place(value)?;
        place.write(memory.share()?.load_acquire(offset).map_err(cause)?);
        Ok(())
    })
}

/// Stores a word at `offset`, a multiple of 8, behind everything written before.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_export_memory_store_release(
    memory: portolan_export_memory,
    offset: usize,
    value: u64,
) -> portolan_status {
    enter(|| memory.share()?.store_release(offset, value).map_err(cause))
}

/// Frees the handle; memory that is exported is there until the export ends.
///
/// Threads: any.
/// Owns: `memory` is freed; its bytes are not to be used any more.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_export_memory_free(memory: portolan_export_memory) -> portolan_status {
    enter(|| memory.take().map(drop))
}

/// What importers may do.
pub type portolan_reach = u32;

/// Read it.
pub const PORTOLAN_REACH_READ: portolan_reach = 1;
/// Write it.
pub const PORTOLAN_REACH_WRITE: portolan_reach = 2;
/// Both.
pub const PORTOLAN_REACH_READ_WRITE: portolan_reach = 3;

/// How memory is exported.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct portolan_export_options {
    /// Users whose processes may import it; if neither these nor groups are named, it is the own
    /// user's.
    pub users: *const u32,
    /// How many.
    pub users_len: usize,
    /// Groups whose members may import it.
    pub groups: *const u32,
    /// How many.
    pub groups_len: usize,
    /// How many may have imported it at one time; 0 for 4,096.
    pub importers: usize,
    /// What they may do.
    pub reach: portolan_reach,
}

/// Exports the memory under a name, from now until it is taken back.
///
/// Threads: any, also several at once.
/// Owns: `*export` is the caller's, to be freed; `memory` is the caller's still. The options are
/// read and not kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_export(
    domain: portolan_domain,
    memory: portolan_export_memory,
    name: *const c_char,
    options: Option<&portolan_export_options>,
    until: portolan_deadline,
    export: Option<&mut MaybeUninit<portolan_export>>,
) -> portolan_status {
    enter(|| {
        let place = place(export)?;
        let domain = domain.share()?;
        let memory = memory.share()?;
        // SAFETY:
        // - C's promise.
        let name = unsafe { text(name) }?;
        let options = options.ok_or_else(|| bad("an export has options: at least its reach"))?;
        let mut wanted = ExportOptions::new(match options.reach {
            PORTOLAN_REACH_READ => Reach::Read,
            PORTOLAN_REACH_WRITE => Reach::Write,
            PORTOLAN_REACH_READ_WRITE => Reach::ReadWrite,
            _ => return Err(bad("a reach is to read, to write, or both")),
        });
        // SAFETY:
        // - C's promise.
        let users = unsafe { values(options.users, options.users_len) }?;
        // SAFETY:
        // - C's promise.
        let groups = unsafe { values(options.groups, options.groups_len) }?;
        if !users.is_empty() || !groups.is_empty() {
            let named = Permissions::nobody()
                .users(users.iter().copied())
                .groups(groups.iter().copied());
            wanted = wanted.permit(named);
        }
        if options.importers != 0 {
            wanted = wanted.importers(options.importers);
        }
        let reserved = portolan_export::reserve()?;
        let made = domain.export(&*memory, name, &wanted, deadline(until));
        place.write(Handle::fill(reserved, made.map_err(cause)?));
        Ok(())
    })
}

/// Ends the export: from here on no importer changes a byte, and the memory is the caller's alone,
/// at the same address.
///
/// Threads: any.
/// Owns: `export` is freed. If the call fails it is the caller's still, to try again.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_export_unexport(export: portolan_export) -> portolan_status {
    enter(|| {
        portolan_export::give(export.hold()?, |export| match export.unexport() {
            Ok(()) => Ok(()),
            Err(refused) => {
                let status = cause(refused.why);
                Err((Some(refused.item), status))
            }
        })
    })
}

/// How many have imported it now.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_export_importers(
    export: portolan_export,
    importers: Option<&mut MaybeUninit<usize>>,
) -> portolan_status {
    enter(|| {
        let place = place(importers)?;
        place.write(export.share()?.importers());
        Ok(())
    })
}

/// Frees the export, which ends.
///
/// Threads: any.
/// Owns: `export` is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_export_free(export: portolan_export) -> portolan_status {
    enter(|| export.take().map(drop))
}

/// Has importers notify from now on; there is one such handle of an export at a time.
///
/// Threads: any, also several at once.
/// Owns: `*notifications` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_export_notifications(
    export: portolan_export,
    notifications: Option<&mut MaybeUninit<portolan_notifications>>,
) -> portolan_status {
    enter(|| {
        let place = place(notifications)?;
        let made = export.share()?.notifications().map_err(cause)?;
        place.write(Handle::insert(Seat::Own(made))?);
        Ok(())
    })
}

impl Seated for portolan_notifications {
    type Item = Notifications;
}

/// What an importer says.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct portolan_notification {
    /// The first byte that it has written, within the export.
    pub offset: usize,
    /// Bytes; may be none.
    pub len: usize,
    /// Not 0: it has written more than there was room to tell, so many notes of it; anything may
    /// have changed.
    pub several: u64,
    /// The importer's process when it imported; 0 if it is in another namespace.
    pub process: u32,
    /// Its user.
    pub user: u32,
}

/// Waits for a notification.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_notifications_wait(
    notifications: portolan_notifications,
    until: portolan_deadline,
    notification: Option<&mut MaybeUninit<portolan_notification>>,
) -> portolan_status {
    enter(|| {
        let place = place(notification)?;
        let told = notifications.with(|notifications| {
            notifications
                .wait(deadline(until))
                .map_err(|why| match why {
                    NotificationError::TimedOut => fail_fixed(
                        portolan_status::PORTOLAN_TIMED_OUT,
                        c"nothing was notified by the deadline",
                    ),
                    other => cause(other),
                })
        })?;
        let (offset, len, several) = match told {
            Notification::Written { offset, len, .. } => (offset, len, 0),
            Notification::Several { count, .. } => (0, 0, count.max(1)),
        };
        let (process, user) = (told.importer().process(), told.importer().user());
        place.write(portolan_notification {
            offset,
            len,
            several,
            process,
            user,
        });
        Ok(())
    })
}

/// Frees the handle: importers notify no more.
///
/// Threads: any.
/// Owns: `notifications` is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_notifications_free(
    notifications: portolan_notifications,
) -> portolan_status {
    enter(|| notifications.take_seated().map(drop))
}

/// Imports what a member has exported under this name, waiting until there is such an export.
///
/// Threads: any, also several at once.
/// Owns: `*import` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_import(
    domain: portolan_domain,
    name: *const c_char,
    until: portolan_deadline,
    import: Option<&mut MaybeUninit<portolan_import>>,
) -> portolan_status {
    enter(|| {
        let place = place(import)?;
        let domain = domain.share()?;
        // SAFETY:
        // - C's promise.
        let name = unsafe { text(name) }?;
        let made = domain.import(name, deadline(until)).map_err(cause)?;
        place.write(Handle::insert(made)?);
        Ok(())
    })
}

/// Imports what a member of another domain has exported under this name, without joining it, and
/// waits until there is such an export. `other` says which domain: by `name`, `path`, `of_user`.
///
/// Threads: any.
/// Owns: `*import` is the caller's, to be freed. The options are read and not kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_import_from(
    other: Option<&portolan_domain_options>,
    name: *const c_char,
    until: portolan_deadline,
    import: Option<&mut MaybeUninit<portolan_import>>,
) -> portolan_status {
    enter(|| {
        let place = place(import)?;
        let other = other.ok_or_else(|| bad("there is no other domain"))?;
        // SAFETY:
        // - C's promise.
        let other = unsafe { builder(other, true) }?;
        // SAFETY:
        // - C's promise.
        let name = unsafe { text(name) }?;
        let made = other.import(name, deadline(until)).map_err(cause)?;
        place.write(Handle::insert(made)?);
        Ok(())
    })
}

/// Bytes of the import, and whether the export is still there: if not, `PORTOLAN_CLOSED` or
/// `PORTOLAN_PEER_DIED`. `len` may be NULL.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_import_check(
    import: portolan_import,
    len: Option<&mut MaybeUninit<usize>>,
) -> portolan_status {
    enter(|| {
        let import = import.share()?;
        import.check().map_err(cause)?;
        put(len, import.len());
        Ok(())
    })
}

/// Copies `len` bytes to `offset` and the following. When it returns they are in the exporter's
/// memory.
///
/// Threads: any, also several at once.
/// Owns: the bytes are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_import_write(
    import: portolan_import,
    offset: usize,
    data: *const c_void,
    len: usize,
) -> portolan_status {
    enter(|| {
        let import = import.share()?;
        // SAFETY:
        // - C's promise.
        let data = unsafe { bytes(data, len) }?;
        import.write(offset, data).map_err(cause)
    })
}

/// Copies `len` bytes from `offset` on.
///
/// Threads: any, also several at once.
/// Owns: `data` is the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_import_read(
    import: portolan_import,
    offset: usize,
    data: *mut c_void,
    len: usize,
) -> portolan_status {
    enter(|| {
        let import = import.share()?;
        // SAFETY:
        // - C's promise.
        let room = unsafe { room(data, len) }?;
        import.read(offset, room).map_err(cause)
    })
}

/// Stores a word at `offset`, a multiple of 8, behind everything that this thread wrote before.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_import_store_release(
    import: portolan_import,
    offset: usize,
    value: u64,
) -> portolan_status {
    enter(|| import.share()?.store_release(offset, value).map_err(cause))
}

/// Loads the word at `offset`, a multiple of 8: what its writer wrote before it is then there.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_import_load_acquire(
    import: portolan_import,
    offset: usize,
    value: Option<&mut MaybeUninit<u64>>,
) -> portolan_status {
    enter(|| {
        let place = place(value)?;
        place.write(import.share()?.load_acquire(offset).map_err(cause)?);
        Ok(())
    })
}

/// Adds to the word at `offset`, a multiple of 8, in one step. `before`, what it was, may be NULL.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_import_fetch_add(
    import: portolan_import,
    offset: usize,
    value: u64,
    before: Option<&mut MaybeUninit<u64>>,
) -> portolan_status {
    enter(|| {
        put(
            before,
            import.share()?.fetch_add(offset, value).map_err(cause)?,
        );
        Ok(())
    })
}

/// Replaces the word at `offset`, a multiple of 8, by `new_value` if it is `current`, in one step;
/// `*before` is what it was: `current`, if it was replaced.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_import_compare_exchange(
    import: portolan_import,
    offset: usize,
    current: u64,
    new_value: u64,
    before: Option<&mut MaybeUninit<u64>>,
) -> portolan_status {
    enter(|| {
        let place = place(before)?;
        let import = import.share()?;
        let (Ok(was) | Err(was)) = import
            .compare_exchange(offset, current, new_value)
            .map_err(cause)?;
        place.write(was);
        Ok(())
    })
}

/// Tells the exporter that these bytes were written, if it wants to be notified.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_import_notify(
    import: portolan_import,
    offset: usize,
    len: usize,
) -> portolan_status {
    enter(|| import.share()?.notify(offset, len).map_err(cause))
}

/// Waits until everything that was written before has landed.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_import_flush(
    import: portolan_import,
    until: portolan_deadline,
) -> portolan_status {
    enter(|| import.share()?.flush(deadline(until)).map_err(cause))
}

/// Frees the import.
///
/// Threads: any.
/// Owns: `import` is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_import_free(import: portolan_import) -> portolan_status {
    enter(|| import.take().map(drop))
}
