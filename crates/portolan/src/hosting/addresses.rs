//! The creator of a domain picks addresses for the region, and reserves them on this machine.
//!
//! Every member maps the region at the same addresses, so a process can join two domains only if
//! their regions do not overlap. A region of the default size takes a 500th of the band, so of 20
//! domains that are placed by chance two overlap in every second case. So the creator gives
//! a socket a name that says which addresses the region takes, and every member keeps that socket:
//! the name is there as long as the domain has a member. The next creator lists these names and
//! picks addresses beside them.
//!
//! A reservation is advice: any process may bind such a name, and other network namespaces have
//! names of their own. Where it cannot be had, the domain lies where chance puts it.
//!
//! A domain that no other process can join needs no addresses that are free everywhere. It lies where
//! the kernel puts it, outside of the band as long as there is room, and reserves nothing.

use crate::space::JoinError;
use portolan_abi::hello::{range_name, reserved_range};
use portolan_abi::region::Geometry;
use portolan_sys::memory::{MapError, Mapping};
use portolan_sys::socket::{self, Address, SocketError, abstract_names};
use std::ops::Range;
use std::os::fd::OwnedFd;

/// Places tried for a new region.
const ATTEMPTS: u32 = 16;

/// Maps the file of a new region where no other domain of this machine lies, and this process has
/// nothing. Returns the mapping, and the socket that reserves its addresses.
pub(super) fn place(
    fd: &OwnedFd,
    geometry: &Geometry,
    user: u32,
    place: &str,
) -> Result<(Mapping, OwnedFd), JoinError> {
    let mut attempt = 0;
    loop {
        let wished = geometry.base(user, place.as_bytes(), attempt);
        let base = geometry.unreserved(wished, reserved()).unwrap_or(wished);
        let socket = socket::unbound().map_err(JoinError::socket)?;
        let again = attempt + 1 < ATTEMPTS;
        attempt += 1;
        if !reserve(&socket, geometry, base) && again {
            continue;
        }
        match map(fd, base, geometry.len) {
            Err(MapError::Taken { .. }) if again => {}
            Err(MapError::Taken { by, .. }) => {
                let (len, domains) = (geometry.len, reserved().len());
                return Err(JoinError::NoAddresses { len, domains, by });
            }
            other => return Ok((other.map_err(JoinError::map)?, socket)),
        }
    }
}

/// Maps the file of a region that no other process is to map. Returns the mapping, and a socket that
/// reserves nothing.
pub(super) fn place_alone(
    fd: &OwnedFd,
    geometry: &Geometry,
) -> Result<(Mapping, OwnedFd), JoinError> {
    let socket = socket::unbound().map_err(JoinError::socket)?;
    let len = usize::try_from(geometry.len).unwrap_or(usize::MAX);
    let mapping = Mapping::shared_anywhere(fd, len)
        .and_then(Mapping::not_in_children)
        .and_then(Mapping::not_in_dumps);
    Ok((mapping.map_err(JoinError::map)?, socket))
}

/// Maps a region's file at its address.
pub(super) fn map(fd: &OwnedFd, base: u64, len: u64) -> Result<Mapping, MapError> {
    // 64-bit machines only, so neither is cut.
    let whole = |value| usize::try_from(value).unwrap_or(usize::MAX);
    Mapping::shared_at(fd, whole(base), whole(len))
}

/// The addresses that domains of this machine reserve; none if the kernel does not tell.
fn reserved() -> Vec<Range<u64>> {
    let names = abstract_names().unwrap_or_default();
    let ranges = names.iter().filter_map(|name| reserved_range(name));
    ranges.collect()
}

/// Gives `socket` the name that reserves a region at `base`. Returns whether no other domain
/// has reserved any of its addresses, as far as that can be told.
///
/// Two creators that do so at the same time list the names after they have bound theirs, so at
/// least one of them sees the other.
fn reserve(socket: &OwnedFd, geometry: &Geometry, base: u64) -> bool {
    let range = geometry.range(base);
    let name = Address::Abstract(range_name(&range).into_bytes());
    if let Err(SocketError::AddressInUse { .. }) = socket::reserve(socket, &name) {
        return false;
    }
    let mut others = reserved();
    others.retain(|other| *other != range);
    geometry.unreserved(base, others) == Some(base)
}
