//! Lays out where members of a cluster are reached, as one of them tells another.

use super::node_id::NodeId;
use crate::codec::{DecodeError, Reader};
use crate::record;

/// Members that one record names, at the most.
pub const MAX_MEMBERS: usize = 64;
/// Bytes of a member's address, at the most.
pub const MAX_ADDRESS: usize = 255;

/// A member of the cluster, and where it is reached.
///
/// The sender itself is told of like the others. Its address may be that of no particular host, as
/// `0.0.0.0:7411`: then it is the host that the connection leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// Which node.
    pub node: NodeId,
    /// Host and port, in ASCII: an allegation, like all that is said of a third node.
    pub address: &'a str,
}

record! {
    struct MembersBody {
        pub count: u32,
    }
    check |it| it.count as usize <= MAX_MEMBERS
}

/// Whether a text may stand for an address.
///
/// ```
/// use portolan_abi::node::is_member_address;
/// assert!(is_member_address("roof.example:7411"));
/// assert!(!is_member_address("") && !is_member_address("a b:1") && !is_member_address("ä:1"));
/// ```
pub fn is_member_address(text: &str) -> bool {
    (1..=MAX_ADDRESS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Writes as many as a record names; one without an address is left out.
pub(super) fn put(members: &[Member<'_>], out: &mut Vec<u8>) {
    let good = |member: &&Member<'_>| is_member_address(member.address);
    let members: Vec<_> = members.iter().filter(good).take(MAX_MEMBERS).collect();
    let count = u32::try_from(members.len()).unwrap_or(0);
    out.extend(MembersBody { count }.encode());
    for member in members {
        out.extend(member.node.0);
        out.push(u8::try_from(member.address.len()).unwrap_or(u8::MAX));
        out.extend(member.address.as_bytes());
    }
}

pub(super) fn get<'a>(from: &mut Reader<'a>) -> Result<Vec<Member<'a>>, DecodeError> {
    let MembersBody { count } = from.field("members")?;
    let mut members = Vec::new();
    for _ in 0..count {
        let node = from.field("member")?;
        let length: u8 = from.field("address")?;
        let address = std::str::from_utf8(from.bytes(usize::from(length))?);
        let address = address.ok().filter(|text| is_member_address(text));
        let address = address.ok_or(DecodeError::Value { field: "address" })?;
        members.push(Member { node, address });
    }
    Ok(members)
}
