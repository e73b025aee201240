//! Sources: descriptors, timers and Unix signals signal an address.

use crate::causes::cause;
use crate::handles::Handle;
use crate::kinds::{portolan_domain, portolan_source};
use crate::pointers::{bad, place};
use crate::status::{enter, fail, portolan_status};
use portolan::Origin;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Has `address`, in memory that members share, signalled by a descriptor, as if a thread called
/// `portolan_domain_signal` when there is more to read or to accept, or the other end has gone. The
/// handler reads until nothing is left; it is told again only of what comes after.
///
/// Threads: any, also several at once.
/// Owns: `*source` is the caller's, to be freed. `descriptor` is the caller's still; the source keeps
/// a duplicate of it.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_domain_bind_address_to_descriptor(
    domain: portolan_domain,
    address: *const c_void,
    descriptor: i32,
    source: Option<&mut MaybeUninit<portolan_source>>,
) -> portolan_status {
    bind(domain, address, source, || {
        if descriptor < 0 {
            return Err(bad("a descriptor is not negative"));
        }
        // SAFETY:
        // - Not -1: just checked.
        // - Open, or the system says that it is not: it is duplicated, and used for nothing else.
        let theirs = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let ours = theirs.try_clone_to_owned().map_err(|error| {
            fail(
                portolan_status::PORTOLAN_BAD_ARGUMENT,
                format_args!("descriptor {descriptor} cannot be duplicated: {error}"),
            )
        })?;
        Ok(Origin::Descriptor(ours))
    })
}

/// Has `address`, in memory that members share, signalled by a timer of the monotonic clock: `first`
/// nanoseconds from now, and then again after `every` so many; 0 for once.
///
/// Threads: any, also several at once.
/// Owns: `*source` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_domain_bind_address_to_timer(
    domain: portolan_domain,
    address: *const c_void,
    first: u64,
    every: u64,
    source: Option<&mut MaybeUninit<portolan_source>>,
) -> portolan_status {
    bind(domain, address, source, || {
        Ok(Origin::Timer {
            first: Duration::from_nanos(first),
            every: (every != 0).then(|| Duration::from_nanos(every)),
        })
    })
}

/// Has `address`, in memory that members share, signalled by a Unix signal of this process, by its
/// number. Several that come together may signal once. A handler that the program has for it is
/// still called; if it has none, the signal's default action is off from here on.
///
/// Threads: any, also several at once.
/// Owns: `*source` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_domain_bind_address_to_unix_signal(
    domain: portolan_domain,
    address: *const c_void,
    number: i32,
    source: Option<&mut MaybeUninit<portolan_source>>,
) -> portolan_status {
    bind(domain, address, source, || Ok(Origin::UnixSignal(number)))
}

fn bind(
    domain: portolan_domain,
    address: *const c_void,
    source: Option<&mut MaybeUninit<portolan_source>>,
    origin: impl FnOnce() -> Result<Origin, portolan_status>,
) -> portolan_status {
    enter(|| {
        let place = place(source)?;
        let domain = domain.share()?;
        let reserved = portolan_source::reserve()?;
        let bound = domain.bind_address(address.addr(), origin()?);
        place.write(Handle::fill(reserved, bound.map_err(cause)?));
        Ok(())
    })
}

/// Frees the source: the address is bound to nothing.
///
/// Threads: any.
/// Owns: `source` is freed, with its duplicate of a descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_source_free(source: portolan_source) -> portolan_status {
    enter(|| source.take().map(drop))
}
