//! Domains: joining, leaving, and what they are like.

use crate::causes::cause;
use crate::handles::Handle;
use crate::kinds::{portolan_domain, portolan_extent};
use crate::pointers::{bad, null, place, put, text, text_or_none, values};
use crate::status::{enter, enter_status, portolan_status};
use portolan::{Builder, Domain, Protection};
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::time::Duration;

/// What happens to a sender's access to the memory that it sends.
pub type portolan_protection = u32;

/// As the domain is; one that is made is trusted.
pub const PORTOLAN_PROTECTION_ANY: portolan_protection = 0;
/// The handle is used up and the owner changes; page tables stay as they are.
pub const PORTOLAN_PROTECTION_TRUSTED: portolan_protection = 1;
/// An extent is accessible only in the process that owns it; a stray access is reported.
pub const PORTOLAN_PROTECTION_GUARDED: portolan_protection = 2;

/// How to join a domain, and what it is like if this process is the first. All zeros are what
/// holds if nothing else is said; so `{ .name = "cameras" }` is enough.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct portolan_domain_options {
    /// The domain's name; for a private one it may be NULL.
    pub name: *const c_char,
    /// Bytes of addresses for extents; 0 for 16 GiB.
    pub size: u64,
    /// Bytes of memory that the extents may have; 0 for half of what is available.
    pub limit: u64,
    /// Nanoseconds that joining may take; 0 for five seconds.
    pub deadline: u64,
    /// What this process is called in `portolan ls`; NULL for its program's name.
    pub space_name: *const c_char,
    /// A directory in which the members meet; NULL for an abstract socket.
    pub path: *const c_char,
    /// Users that may join beside the domain's own.
    pub allow_users: *const u32,
    /// How many.
    pub allow_users_len: usize,
    /// Groups whose members may join.
    pub allow_groups: *const u32,
    /// How many.
    pub allow_groups_len: usize,
    /// See `portolan_protection`.
    pub protection: portolan_protection,
    /// Whose domain it is, if `is_of_user`.
    pub of_user: u32,
    /// Join the domain of the user `of_user`.
    pub is_of_user: bool,
    /// Lock the pages of extents in memory.
    pub lock_pages: bool,
    /// Keep this process's own mapping of a guarded domain open.
    pub always_open: bool,
    /// Fail if the domain is not there, instead of making it.
    pub no_create: bool,
    /// Have this machine's node span the domain.
    pub spanning: bool,
}

/// A domain as the options have it; a private one needs no name.
///
/// # Safety
///
/// - The texts and arrays of the options are as C promises.
pub(crate) unsafe fn builder(
    options: &portolan_domain_options,
    is_named: bool,
) -> Result<Builder, portolan_status> {
    // SAFETY:
    // - The caller's.
    let name = unsafe { text_or_none(options.name) }?;
    if is_named && name.is_none() {
        return Err(bad("the options have no name"));
    }
    let mut builder = Domain::builder(name.unwrap_or("private"));
    if options.size != 0 {
        builder = builder.size(options.size);
    }
    if options.limit != 0 {
        builder = builder.limit(options.limit);
    }
    if options.deadline != 0 {
        builder = builder.deadline(Duration::from_nanos(options.deadline));
    }
    // SAFETY:
    // - The caller's.
    if let Some(name) = unsafe { text_or_none(options.space_name) }? {
        builder = builder.space_name(name);
    }
    // SAFETY:
    // - The caller's.
    if let Some(path) = unsafe { text_or_none(options.path) }? {
        builder = builder.path(path);
    }
    // SAFETY:
    // - The caller's.
    for user in unsafe { values(options.allow_users, options.allow_users_len) }? {
        builder = builder.allow_user(*user);
    }
    // SAFETY:
    // - The caller's.
    for group in unsafe { values(options.allow_groups, options.allow_groups_len) }? {
        builder = builder.allow_group(*group);
    }
    builder = match options.protection {
        PORTOLAN_PROTECTION_ANY => builder,
        PORTOLAN_PROTECTION_TRUSTED => builder.protection(Protection::Trusted),
        PORTOLAN_PROTECTION_GUARDED => builder.protection(Protection::Guarded),
        _ => return Err(bad("a domain is trusted or guarded")),
    };
    if options.is_of_user {
        builder = builder.of_user(options.of_user);
    }
    builder = builder
        .lock_pages(options.lock_pages)
        .create(!options.no_create);
    if options.always_open {
        builder = builder.always_open();
    }
    if options.spanning {
        builder = builder.spanning();
    }
    Ok(builder)
}

/// Joins the domain of this name, and makes it if it is not there. Nothing has to be installed or
/// running.
///
/// Threads: any.
/// Owns: `*domain` is the caller's, to be freed or left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_join(
    name: *const c_char,
    domain: Option<&mut MaybeUninit<portolan_domain>>,
) -> portolan_status {
    enter(|| {
        let place = place(domain)?;
        // SAFETY:
        // - C's promise.
        let name = unsafe { text(name) }?;
        let joined = Domain::join(name).map_err(cause)?;
        place.write(Handle::insert(joined)?);
        Ok(())
    })
}

/// As `portolan_domain_join`, with options.
///
/// Threads: any.
/// Owns: `*domain` is the caller's, to be freed or left. The options are read and not kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_join_with(
    options: Option<&portolan_domain_options>,
    domain: Option<&mut MaybeUninit<portolan_domain>>,
) -> portolan_status {
    enter(|| {
        let place = place(domain)?;
        let options = options.ok_or_else(|| bad("there are no options"))?;
        // SAFETY:
        // - C's promise.
        let builder = unsafe { builder(options, true) }?;
        place.write(Handle::insert(builder.join().map_err(cause)?)?);
        Ok(())
    })
}

/// A domain that only this process is in. `options` may be NULL.
///
/// Threads: any.
/// Owns: `*domain` is the caller's, to be freed or left. The options are read and not kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_private(
    options: Option<&portolan_domain_options>,
    domain: Option<&mut MaybeUninit<portolan_domain>>,
) -> portolan_status {
    enter(|| {
        let place = place(domain)?;
        let made = match options {
            // SAFETY:
            // - C's promise.
            Some(options) => unsafe { builder(options, false) }?.private(),
            None => Domain::private(),
        };
        place.write(Handle::insert(made.map_err(cause)?)?);
        Ok(())
    })
}

/// Another handle of the same membership.
///
/// Threads: any, also several at once.
/// Owns: `*clone` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_domain_clone(
    domain: portolan_domain,
    clone: Option<&mut MaybeUninit<portolan_domain>>,
) -> portolan_status {
    enter(|| {
        let place = place(clone)?;
        let another = domain.share()?.clone();
        place.write(Handle::insert(another)?);
        Ok(())
    })
}

/// Leaves the domain, and waits until what this process held was returned.
/// `PORTOLAN_BUSY`: other handles (ports, extents, ...) keep the membership; it ends with the last
/// of them.
///
/// Threads: any.
/// Owns: `domain` is freed, also when the call fails for another reason than `PORTOLAN_BAD_HANDLE`
/// or a call that uses it.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_domain_leave(domain: portolan_domain) -> portolan_status {
    enter(|| domain.take()?.leave().map_err(cause))
}

/// Frees the handle. The process leaves with the last handle of the membership.
///
/// Threads: any.
/// Owns: `domain` is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_domain_free(domain: portolan_domain) -> portolan_status {
    enter(|| domain.take().map(drop))
}

/// What a domain is like.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct portolan_domain_state {
    /// This process's number in the domain, from 1 on.
    pub space: u8,
    /// Whether this process hosts the domain now.
    pub is_host: bool,
    /// How extents are protected.
    pub protection: portolan_protection,
}

/// What the domain is like, and whether this process is a member still: if not,
/// `PORTOLAN_DISOWNED`.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_domain_check(
    domain: portolan_domain,
    state: Option<&mut MaybeUninit<portolan_domain_state>>,
) -> portolan_status {
    enter(|| {
        let domain = domain.share()?;
        domain.check().map_err(cause)?;
        let protection = match domain.protection() {
            Protection::Guarded => PORTOLAN_PROTECTION_GUARDED,
            _ => PORTOLAN_PROTECTION_TRUSTED,
        };
        let now = portolan_domain_state {
            space: domain.space(),
            is_host: domain.is_host(),
            protection,
        };
        put(state, now);
        Ok(())
    })
}

/// Allocates an extent of at least `bytes` bytes, one page at least. What it holds is unspecified.
///
/// Threads: any, also several at once.
/// Owns: `*extent` is the caller's, until it is sent or freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_domain_allocate(
    domain: portolan_domain,
    bytes: usize,
    extent: Option<&mut MaybeUninit<portolan_extent>>,
) -> portolan_status {
    enter_status(|| {
        let Some(place) = extent else {
            return null();
        };
        // The usual way: few values lie over the one call.
        let Some(shared) = domain.try_share() else {
            return allocate_any(domain, bytes, place);
        };
        let Some(reserved) = portolan_extent::try_reserve() else {
            drop(shared);
            return allocate_any(domain, bytes, place);
        };
        match shared.allocate_straight(bytes) {
            Ok(allocated) => {
                place.write(portolan_extent::fill(reserved, allocated));
                portolan_status::PORTOLAN_OK
            }
            Err(why) => cause(why),
        }
    })
}

/// The same, of a domain that another call uses too, into a slot that was never used, or with a mistake.
#[inline(never)]
extern "C" fn allocate_any(
    domain: portolan_domain,
    bytes: usize,
    place: &mut MaybeUninit<portolan_extent>,
) -> portolan_status {
    enter(|| {
        let allocated = domain.share()?.allocate(bytes).map_err(cause)?;
        place.write(Handle::insert(allocated)?);
        Ok(())
    })
}

/// Gives memory that no extent uses back to the system; how many bytes. `given` may be NULL.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_domain_trim(
    domain: portolan_domain,
    given: Option<&mut MaybeUninit<u64>>,
) -> portolan_status {
    enter(|| {
        put(given, domain.share()?.trim().map_err(cause)?);
        Ok(())
    })
}
