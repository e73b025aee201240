//! Ports that another domain's processes may send to, and the connections to them.

use crate::causes::cause;
use crate::deadline::{deadline, portolan_deadline};
use crate::domain::{builder, portolan_domain_options};
use crate::handles::Handle;
use crate::kinds::{
    portolan_domain, portolan_offered_port, portolan_receive_right, portolan_send_right,
};
use crate::pointers::{bad, place, text, values};
use crate::status::{enter, fail, portolan_status};
use crate::wait_set::Seated;
use portolan::{AccessToken, ConnectOptions, OfferOptions, Permissions};
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::time::Duration;

/// A secret that an offer asks for, of clients that are permitted otherwise.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct portolan_access_token {
    /// Any bytes. The caller gives them to the other program.
    pub bytes: [u8; 16],
}

impl std::fmt::Debug for portolan_access_token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("portolan_access_token(..)")
    }
}

/// A random token.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_access_token_random(
    token: Option<&mut MaybeUninit<portolan_access_token>>,
) -> portolan_status {
    enter(|| {
        let place = place(token)?;
        let made = AccessToken::random().map_err(|error| {
            fail(
                portolan_status::PORTOLAN_SYSTEM,
                format_args!("the system gives no random bytes: {error}"),
            )
        })?;
        place.write(portolan_access_token {
            bytes: made.to_bytes(),
        });
        Ok(())
    })
}

/// How a port is offered to other domains. All zeros are what holds if nothing else is said.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct portolan_offer_options {
    /// Users whose processes may connect; if neither these nor groups are named, and not
    /// `permits_anyone`, it is the own user's.
    pub users: *const u32,
    /// How many.
    pub users_len: usize,
    /// Groups whose members may connect.
    pub groups: *const u32,
    /// How many.
    pub groups_len: usize,
    /// Asked for in addition; NULL for none.
    pub token: *const portolan_access_token,
    /// Bytes of memory that a message may take; 0 for 256 MiB.
    pub most_bytes: u64,
    /// How many may be connected at one time; 0 for 64.
    pub most_clients: usize,
    /// Requests of a client that are with the server at one time; 0 for 64.
    pub most_requests: usize,
    /// Nanoseconds that the domain's host may take; 0 for five seconds.
    pub deadline: u64,
    /// Every process whose user is known may connect.
    pub permits_anyone: bool,
}

/// Offers the port to other domains under a name, which may be another than its own, from now until
/// the offer is freed. What comes is a copy, without rights. What a client does against the rules
/// ends its own connection, and is recorded (`portolan_offered_port_take_violations`). `options` may be
/// NULL.
///
/// Threads: one at a time.
/// Owns: `*offered` is the caller's, to be freed; `port` is the caller's still. The options are read
/// and not kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_receive_right_offer(
    port: portolan_receive_right,
    name: *const c_char,
    options: Option<&portolan_offer_options>,
    offered: Option<&mut MaybeUninit<portolan_offered_port>>,
) -> portolan_status {
    enter(|| {
        let place = place(offered)?;
        // SAFETY:
        // - C's promise.
        let name = unsafe { text(name) }?;
        let (permissions, wanted) = match options {
            // SAFETY:
            // - C's promise.
            Some(options) => unsafe { offer(options) }?,
            None => (Permissions::own_user(), unsealed()),
        };
        let reserved = portolan_offered_port::reserve()?;
        let made = port.with(|port| port.offer(name, &permissions, wanted).map_err(cause))?;
        place.write(Handle::fill(reserved, made));
        Ok(())
    })
}

/// # Safety
///
/// - The arrays and the token of the options are as C promises.
unsafe fn offer(
    options: &portolan_offer_options,
) -> Result<(Permissions, OfferOptions), portolan_status> {
    // SAFETY:
    // - The caller's.
    let users = unsafe { values(options.users, options.users_len) }?;
    // SAFETY:
    // - The caller's.
    let groups = unsafe { values(options.groups, options.groups_len) }?;
    let mut permissions = match (options.permits_anyone, users, groups) {
        (true, ..) => Permissions::anyone(),
        (false, [], []) => Permissions::own_user(),
        (false, ..) => Permissions::nobody()
            .users(users.iter().copied())
            .groups(groups.iter().copied()),
    };
    // SAFETY:
    // - The caller's.
    if let Some(token) = unsafe { token(options.token) }? {
        permissions = permissions.token(token);
    }
    let mut wanted = unsealed();
    if options.most_bytes != 0 {
        wanted = wanted.most_bytes(options.most_bytes);
    }
    if options.most_clients != 0 {
        wanted = wanted.most_clients(options.most_clients);
    }
    if options.most_requests != 0 {
        wanted = wanted.most_requests(options.most_requests);
    }
    if options.deadline != 0 {
        wanted = wanted.deadline(Duration::from_nanos(options.deadline));
    }
    Ok((permissions, wanted))
}

/// C cannot look at sealed memory, so its ports take none.
fn unsealed() -> OfferOptions {
    OfferOptions::default().sealed(false)
}

/// # Safety
///
/// - The token is as C promises.
unsafe fn token(
    token: *const portolan_access_token,
) -> Result<Option<AccessToken>, portolan_status> {
    if token.is_null() {
        return Ok(None);
    }
    // SAFETY:
    // - The caller's.
    let token = unsafe { values(token, 1) }?;
    Ok(token.first().map(|t| AccessToken::from_bytes(t.bytes)))
}

/// How many are connected now.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_offered_port_clients(
    offered: portolan_offered_port,
    clients: Option<&mut MaybeUninit<usize>>,
) -> portolan_status {
    enter(|| {
        let place = place(clients)?;
        place.write(offered.share()?.clients());
        Ok(())
    })
}

/// How many clients have broken the rules since the last call, 64 at most: their connections
/// were ended.
///
/// Threads: any, also several at once.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_offered_port_take_violations(
    offered: portolan_offered_port,
    violations: Option<&mut MaybeUninit<usize>>,
) -> portolan_status {
    enter(|| {
        let place = place(violations)?;
        place.write(offered.share()?.take_violations().len());
        Ok(())
    })
}

/// Frees the offer, which ends: no client can send any more, and their rights are dead names. What
/// they sent before is in the port.
///
/// Threads: any.
/// Owns: `offered` is freed.
#[unsafe(no_mangle)]
pub extern "C" fn portolan_offered_port_free(offered: portolan_offered_port) -> portolan_status {
    enter(|| offered.take().map(drop))
}

/// How a port of another domain is connected to. All zeros are what holds if nothing else is said.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct portolan_connect_options {
    /// What the offer asks for; NULL for nothing.
    pub token: *const portolan_access_token,
    /// Messages that wait in this domain before sending finds the queue full; 0 for 63.
    pub queue: usize,
    /// Bytes of memory that an answer may take; 0 for 256 MiB.
    pub most_bytes: u64,
}

/// A right on a port that another domain offers under this name, waiting until it does. `other` says
/// which domain, as for joining it: by `name`, `path`, `of_user`; this process need not be permitted
/// to join. What is sent goes over while this process lives. `options` may be NULL.
///
/// Threads: any, also several at once.
/// Owns: `*right` is the caller's, to be freed. The options are read and not kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portolan_domain_connect_to(
    domain: portolan_domain,
    other: Option<&portolan_domain_options>,
    name: *const c_char,
    options: Option<&portolan_connect_options>,
    until: portolan_deadline,
    right: Option<&mut MaybeUninit<portolan_send_right>>,
) -> portolan_status {
    enter(|| {
        let place = place(right)?;
        let domain = domain.share()?;
        let other = other.ok_or_else(|| bad("there is no other domain"))?;
        // SAFETY:
        // - C's promise.
        let other = unsafe { builder(other, true) }?;
        // SAFETY:
        // - C's promise.
        let name = unsafe { text(name) }?;
        let mut wanted = ConnectOptions::default().deadline(deadline(until));
        if let Some(options) = options {
            // SAFETY:
            // - C's promise.
            if let Some(token) = unsafe { token(options.token) }? {
                wanted = wanted.token(token);
            }
            if options.queue != 0 {
                wanted = wanted.queue(options.queue);
            }
            if options.most_bytes != 0 {
                wanted = wanted.most_bytes(options.most_bytes);
            }
        }
        let reserved = portolan_send_right::reserve()?;
        let connected = domain.connect_to(&other, name, wanted);
        place.write(Handle::fill(reserved, connected.map_err(cause)?));
        Ok(())
    })
}
