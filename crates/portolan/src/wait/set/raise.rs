//! Raises a bit of a wait set, which a sender does for a receiver that waits there.

use crate::EventKind;
use crate::space::Member;
use crate::space::record::About;
use portolan_shm::mark;
use portolan_sys::futex;

/// Raises the place of a wait set that `link` names, because of something at what `about`
/// names; `false` if it names none.
pub(crate) fn raise_link(member: &Member, link: u64, about: About) -> bool {
    let link = link.to_le_bytes();
    let set = u32::from_le_bytes([link[0], link[1], link[2], link[3]]);
    let index = u32::from_le_bytes([link[4], link[5], link[6], link[7]]);
    let Some(entry) = set
        .checked_sub(1)
        .and_then(|s| member.tables().wait_sets.get(s as usize))
    else {
        return false;
    };
    let asleep = entry.raise(index as usize);
    mark!("send.raised");
    if asleep {
        // All: a descriptor may be armed besides the thread that sleeps.
        member.during(EventKind::Wake, about, || {
            futex::wake(&entry.doorbell, u32::MAX)
        });
    }
    true
}
