//! Says which member hosts a domain.

use super::member::Member;
use portolan_abi::space::HostWord;
use portolan_shm::atomic::Ordering;

/// The member that hosts.
pub(crate) fn host_of(member: &Member) -> HostWord {
    // Acquire: what the host did before it took the role is seen.
    HostWord::unpack(member.tables().header.host.word.load(Ordering::Acquire))
}

/// Whether `host`, or else the present host, may have a descriptor of all of this process's
/// memory: it may if its user is the same, or root, who could have it anyway.
pub(crate) fn trusts_host(member: &Member, host: Option<HostWord>) -> bool {
    let host = host.unwrap_or_else(|| host_of(member));
    let entry = member.tables().spaces.get(usize::from(host.space));
    // Relaxed: written before the space was live, so before it could host.
    let its_user = entry.map(|entry| entry.user.load(Ordering::Relaxed));
    its_user.is_some_and(|its| its == 0 || its == u64::from(portolan_sys::process::user()))
}

/// Our own host word.
pub(crate) fn me(member: &Member) -> HostWord {
    HostWord {
        space: member.space,
        incarnation: member.incarnation,
    }
}
