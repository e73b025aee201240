//! Finding a domain's host, or becoming the first.

use super::create::{self, FIRST};
use super::error::JoinError;
use super::link::Link;
use super::settings::Builder;
use super::Domain;
use crate::Protection;
use crate::member::Member;
use crate::region::Region;
use portolan_abi::space::HostWord;
use portolan_shm::atomic::Ordering;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

/// Joins, or creates.
pub(super) fn join(settings: &Builder) -> Result<Domain, JoinError> {
    private(settings)
}

/// A domain of this process alone.
pub(super) fn private(settings: &Builder) -> Result<Domain, JoinError> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only to tell them apart, so that they lie in different places.
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let place = format!("/{}/{number}", std::process::id());
    let region = create::region(settings, &place)?;
    Ok(Domain::new(Arc::new(member(settings, region, FIRST, Link::private())?)))
}

/// The membership of space `us` in a region that is mapped.
fn member(
    settings: &Builder,
    region: Region,
    us: HostWord,
    link: Link,
) -> Result<Member, JoinError> {
    let header = region.tables().header;
    let protection = match header.protection.load(Ordering::Relaxed) {
        0 => Protection::Trusted,
        _ => Protection::Guarded,
    };
    Ok(Member {
        region,
        space: us.space,
        incarnation: us.incarnation,
        domain: settings.name.clone(),
        protection,
        cache: Mutex::default(),
        guard: None,
        link,
    })
}
