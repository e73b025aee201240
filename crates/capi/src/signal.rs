//! Address-valued signals: "look at this address".

use crate::causes::cause;
use crate::deadline::{deadline, portolan_deadline};
use crate::handles::Handle;
use crate::kinds::{portolan_domain, portolan_handler, portolan_listener};
use crate::pointers::{bad, place, put};
use crate::port::{portolan_waiting, waiting};
use crate::status::{enter, fail_fixed, portolan_status};
use crate::wait_set::{Seat, Seated};
use portolan::{Delivery, Listener, ListenerOptions};
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// Signals an address in memory that the domain's members share: every handler whose range holds
/// it, in every process. How many listeners it reached, none of which is no error; `reached` may
/// be NULL.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_domain_signal(
    domain: portolan_domain,
    address: *const c_void,
    reached: Option<&mut MaybeUninit<usize>>,
) -> portolan_status {
    enter(|| {
        let domain = domain.share()?;
        put(reached, domain.signal(address.addr()).map_err(cause)?);
        Ok(())
    })
}

/// How a listener is made. All zeros are what holds if nothing else is said.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct portolan_listener_options {
    /// Signals that it holds, 512 at most; 0 for 128. One that finds it full is dropped and counted.
    pub depth: usize,
    /// How it waits.
    pub waiting: portolan_waiting,
}

/// A listener, which handles signals on the thread that waits with it. `options` may be NULL.
///
/// Threads: any, also several at once.
/// Owns: `*listener` is the caller's, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_domain_listen(
    domain: portolan_domain,
    options: Option<&portolan_listener_options>,
    listener: Option<&mut MaybeUninit<portolan_listener>>,
) -> portolan_status {
    enter(|| {
        let place = place(listener)?;
        let options = options.copied().unwrap_or_default();
        let mut wanted = ListenerOptions::default().waiting(waiting(options.waiting)?);
        if options.depth != 0 {
            wanted = wanted.depth(options.depth);
        }
        let made = domain.share()?.listen(wanted).map_err(cause)?;
        place.write(Handle::insert(Seat::Own(made))?);
        Ok(())
    })
}

impl Seated for portolan_listener {
    type Item = Listener;
}

/// How a handler's thread is told.
pub type portolan_delivery = u32;

/// As its listener waits.
pub const PORTOLAN_DELIVERY_LISTENED: portolan_delivery = 0;
/// The thread looks again and again, and never sleeps.
pub const PORTOLAN_DELIVERY_POLLED: portolan_delivery = 1;
/// The processor watches the line.
pub const PORTOLAN_DELIVERY_MONITORED: portolan_delivery = 2;
/// The thread sleeps, at once, and is woken.
pub const PORTOLAN_DELIVERY_DOORBELL: portolan_delivery = 3;

/// What a handler does: `address` lies in its range. It may call this library, but not with its own
/// listener (`PORTOLAN_BUSY`), and must return: no `longjmp`, no exception.
pub type portolan_handle_signal =
    Option<unsafe extern "C" fn(context: *mut c_void, address: *mut c_void)>;

/// C's function, and what it wants to be given.
struct Callback {
    run: unsafe extern "C" fn(*mut c_void, *mut c_void),
    context: *mut c_void,
}

// SAFETY:
// - The header says that the function runs on whichever thread waits with the listener, so what
//   it is given may be used there.
unsafe impl Send for Callback {}

impl Callback {
    fn call(&self, address: usize) {
        let address = std::ptr::without_provenance_mut(address);
        // SAFETY:
        // - C's promise: the function may be called with its context until the handler is off.
        unsafe { (self.run)(self.context, address) }
    }
}

/// Adds a handler for the `len` bytes at `start`, which lie in memory that members share. It runs
/// in `portolan_listener_wait` and `portolan_listener_poll`, on the thread that calls them.
///
/// Threads: one at a time.
/// Owns: `*handler` is the caller's, until `portolan_listener_off`; the context has to live until
/// then, or until the listener is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_listener_on(
    listener: portolan_listener,
    delivery: portolan_delivery,
    start: *const c_void,
    len: usize,
    run: portolan_handle_signal,
    context: *mut c_void,
    handler: Option<&mut MaybeUninit<portolan_handler>>,
) -> portolan_status {
    enter(|| {
        let place = place(handler)?;
        let run = run.ok_or_else(|| bad("there is no function to run"))?;
        let start = start.addr();
        let end = start.checked_add(len);
        let end = end.ok_or_else(|| bad("a length is more than memory can be"))?;
        let reserved = portolan_handler::reserve()?;
        let callback = Callback { run, context };
        let run = move |address| callback.call(address);
        let id = listener.with(|listener| {
            let range = start..end;
            match delivery {
                PORTOLAN_DELIVERY_LISTENED => listener.on(range, run),
                PORTOLAN_DELIVERY_POLLED => listener.on_by(Delivery::POLLED, range, run),
                PORTOLAN_DELIVERY_MONITORED => listener.on_by(Delivery::MONITORED, range, run),
                PORTOLAN_DELIVERY_DOORBELL => listener.on_by(Delivery::DOORBELL, range, run),
                _ => return Err(bad("a delivery is one of PORTOLAN_DELIVERY_...")),
            }
            .map_err(cause)
        })?;
        place.write(Handle::fill(reserved, (listener, id)));
        Ok(())
    })
}

/// Takes a handler away from its listener, which may be gone.
///
/// Threads: one at a time.
/// Owns: `handler` is freed; its function is not called any more.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_listener_off(handler: portolan_handler) -> portolan_status {
    enter(|| {
        let held = handler.hold()?;
        let (listener, id) = *held;
        match listener.with(|listener| listener.off(id).map(drop).map_err(cause)) {
            // Its listener is gone, and it with that.
            Ok(()) | Err(portolan_status::PORTOLAN_BAD_HANDLE) => {
                portolan_handler::take_out(held);
                Ok(())
            }
            Err(status) => Err(status),
        }
    })
}

/// Waits until a signal came, and handles it; `PORTOLAN_TIMED_OUT` if none came before the
/// deadline.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_listener_wait(
    listener: portolan_listener,
    until: portolan_deadline,
) -> portolan_status {
    enter(|| {
        listener.with(|listener| match listener.wait(deadline(until)) {
            Some(_) => Ok(()),
            None => Err(fail_fixed(
                portolan_status::PORTOLAN_TIMED_OUT,
                c"no signal came before the deadline",
            )),
        })
    })
}

/// Handles what is there; how many signals. `handled` may be NULL.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_listener_poll(
    listener: portolan_listener,
    handled: Option<&mut MaybeUninit<usize>>,
) -> portolan_status {
    enter(|| {
        put(handled, listener.with(|listener| Ok(listener.poll()))?);
        Ok(())
    })
}

/// Signals that found the listener full, and were dropped.
///
/// Threads: one at a time.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_listener_dropped(
    listener: portolan_listener,
    dropped: Option<&mut MaybeUninit<u64>>,
) -> portolan_status {
    enter(|| {
        let place = place(dropped)?;
        place.write(listener.with(|listener| Ok(listener.dropped()))?);
        Ok(())
    })
}

/// Frees the listener, with its handlers.
///
/// Threads: any.
/// Owns: `listener` is freed; handles of its handlers are to be freed by `portolan_listener_off`.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_listener_free(listener: portolan_listener) -> portolan_status {
    enter(|| listener.take_seated().map(drop))
}
