//! Tells the domain's node that a port has changed that it has lent: see [`portolan_shm::lent`].

use super::rights::raise;
use crate::space::Member;
use portolan_abi::port::{RightWord, event};
use portolan_shm::mark;

/// The port of this entry is closed, or its receiver has asked for its senders: the node is told, if it
/// has lent the port. May be repeated.
#[inline]
pub(super) fn tell(member: &Member, index: u16) {
    if member.tables().lent.is_lent(index) {
        tell_node(member, index);
    }
}

#[cold]
fn tell_node(member: &Member, index: u16) {
    let bell = member.tables().lent.change(index);
    mark!("lent.changed");
    // Each time, although another process may have told of another port a moment ago: that one may be
    // stopped before it wakes the node.
    if let Some(bell) = RightWord::unpack(bell) {
        raise(member, bell.port, event::LENT);
    }
    mark!("lent.told");
}
