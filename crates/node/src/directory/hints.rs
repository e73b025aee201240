//! What directories tell one another: keys, each of which is one hint, and a table of those that are
//! there.
//!
//! ```text
//! portolan/1/member/NODE/INCARNATION/NAME/ADDRESSES      a member; its addresses with ',' between
//! portolan/1/name/NODE/DOMAIN/NAME                       it has a port of this name in the domain
//! ```
//!
//! Each part but the first three is hexadecimal digits, so no name can be a pattern of keys. Each
//! member of the cluster can say any of this of any other, which is why all of it is a hint.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use portolan_abi::limits::{MAX_DOMAIN_NAME, MAX_NAME, MAX_NODE_NAME};
use portolan_transport::NodeId;

use super::{Announcement, Holders, MOST_ADDRESSES, MOST_NAMES, Member, News};
use crate::token::is_address;

/// What all keys begin with.
const PREFIX: &str = "portolan/1";
/// Members that are kept, at most, and starts of one of them.
const MOST_MEMBERS: usize = 4096;
const MOST_STARTS: usize = 4;
/// Names that are kept of all nodes, at most.
const MOST_IN_ALL: usize = 65_536;
/// Bytes of a list of addresses, at most.
const MOST_LIST: usize = 1024;

/// The pattern of all keys.
pub(super) fn all_keys() -> String {
    format!("{PREFIX}/**")
}

/// The key of a member.
pub(super) fn member_key(member: &Member) -> String {
    // No part of a key is empty.
    let addresses = match member.addresses.is_empty() {
        true => ",".to_owned(),
        false => member.addresses.join(","),
    };
    format!(
        "{PREFIX}/member/{}/{:x}/{}/{}",
        member.node,
        member.incarnation,
        digits(&member.name),
        digits(&addresses),
    )
}

/// The keys of a node's names, of which there are so many and no more.
pub(super) fn name_keys(own: &Announcement) -> impl Iterator<Item = String> {
    let node = own.member.node;
    let names = own.names.iter().take(MOST_NAMES);
    names.map(move |(domain, name)| {
        format!("{PREFIX}/name/{node}/{}/{}", digits(domain), digits(name))
    })
}

fn digits(text: &str) -> String {
    text.bytes().fold(String::new(), |mut digits, byte| {
        // To a text nothing fails.
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

/// The text of at most `most` bytes that these digits are; never an empty one.
fn text(digits: &str, most: usize) -> Option<String> {
    // Of one text there is one spelling.
    let are_digits = digits
        .bytes()
        .all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'));
    let is_long = digits.is_empty() || digits.len() > 2 * most;
    if !are_digits || is_long || !digits.len().is_multiple_of(2) {
        return None;
    }
    let bytes = digits.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    });
    String::from_utf8(bytes.collect::<Option<Vec<u8>>>()?).ok()
}

/// A hint.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hint {
    Member(Member),
    Name(NodeId, String, String),
}

/// What a key says; `None` if it is none of ours: any member may have made it.
fn read(key: &str) -> Option<Hint> {
    let mut parts = key.strip_prefix(PREFIX)?.strip_prefix('/')?.split('/');
    let (kind, node) = (parts.next()?, parts.next()?.parse().ok()?);
    let hint = match kind {
        "member" => Hint::Member(Member {
            node,
            incarnation: u64::from_str_radix(parts.next()?, 16).ok()?,
            name: text(parts.next()?, MAX_NODE_NAME)?,
            addresses: {
                let all = text(parts.next()?, MOST_LIST)?;
                let good = all.split(',').filter(|it| is_address(it));
                good.take(MOST_ADDRESSES).map(str::to_owned).collect()
            },
        }),
        "name" => Hint::Name(
            node,
            text(parts.next()?, MAX_DOMAIN_NAME)?,
            text(parts.next()?, MAX_NAME)?,
        ),
        _ => return None,
    };
    parts.next().is_none().then_some(hint)
}

/// The hints that are there (D4).
#[derive(Debug)]
pub(super) struct Table {
    own: NodeId,
    /// By node, and by start: of a node that was started again the last one counts.
    members: BTreeMap<NodeId, BTreeMap<u64, Member>>,
    holders: Arc<Holders>,
    /// Names by node.
    counts: BTreeMap<NodeId, usize>,
    total: usize,
    has_changed: bool,
}

impl Table {
    /// An empty one of a node, which hears nothing of itself.
    pub(super) fn new(own: NodeId) -> Self {
        Self {
            own,
            members: BTreeMap::new(),
            holders: Arc::default(),
            counts: BTreeMap::new(),
            total: 0,
            has_changed: true,
        }
    }

    /// A key is there, or is not any more. Whether that has changed anything.
    pub(super) fn hear(&mut self, key: &str, is_there: bool) -> bool {
        let changed = match read(key) {
            Some(Hint::Member(member)) if member.node != self.own => {
                self.hear_member(member, is_there)
            }
            Some(Hint::Name(node, domain, name)) if node != self.own => {
                self.hear_name(node, &domain, &name, is_there)
            }
            _ => false,
        };
        self.has_changed |= changed;
        changed
    }

    fn hear_member(&mut self, member: Member, is_there: bool) -> bool {
        let node = member.node;
        if !is_there {
            let Some(starts) = self.members.get_mut(&node) else {
                return false;
            };
            // One that was told of again with other addresses stays.
            let is_it = starts.get(&member.incarnation) == Some(&member);
            if is_it {
                starts.remove(&member.incarnation);
            }
            if starts.is_empty() {
                self.members.remove(&node);
                Arc::make_mut(&mut self.holders).set_announcing(node, false);
            }
            return is_it;
        }
        if !self.members.contains_key(&node) && self.members.len() >= MOST_MEMBERS {
            return false;
        }
        let starts = self.members.entry(node).or_default();
        if starts.len() >= MOST_STARTS && !starts.contains_key(&member.incarnation) {
            starts.pop_first();
        }
        starts.insert(member.incarnation, member);
        Arc::make_mut(&mut self.holders).set_announcing(node, true);
        true
    }

    fn hear_name(&mut self, node: NodeId, domain: &str, name: &str, is_there: bool) -> bool {
        let has = self.holders.of(domain, name).any(|it| it == node);
        if has == is_there {
            return false;
        }
        let has = self.counts.get(&node).copied().unwrap_or_default();
        if is_there && (has >= MOST_NAMES || self.total >= MOST_IN_ALL) {
            return false;
        }
        let count = self.counts.entry(node).or_default();
        if is_there {
            *count += 1;
            self.total += 1;
            Arc::make_mut(&mut self.holders).add(node, domain, name);
        } else {
            *count -= 1;
            self.total -= 1;
            if *count == 0 {
                self.counts.remove(&node);
            }
            Arc::make_mut(&mut self.holders).remove(node, domain, name);
        }
        true
    }

    /// What is known now, if that has changed since this was called last.
    pub(super) fn news(&mut self) -> Option<News> {
        if !std::mem::take(&mut self.has_changed) {
            return None;
        }
        let members = self.members.values();
        let members = members.filter_map(|starts| starts.values().next_back().cloned());
        Some(News {
            members: members.collect(),
            holders: Some(Arc::clone(&self.holders)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    fn member(id: u8, incarnation: u64, address: &str) -> Member {
        Member {
            node: NodeId([id; 16]),
            name: format!("node-{id}"),
            incarnation,
            addresses: vec![address.to_owned()],
        }
    }

    fn own(names: &[(&str, &str)]) -> Announcement {
        let owned = |(domain, name): &(&str, &str)| ((*domain).to_owned(), (*name).to_owned());
        Announcement {
            member: member(1, 7, "192.0.2.1:7411"),
            names: names.iter().map(owned).collect(),
            ..Announcement::default()
        }
    }

    #[test]
    fn a_key_says_what_was_announced_and_no_name_is_a_pattern() {
        let own = own(&[
            ("cameras", "**"),
            ("cameras", "frames/left"),
            ("a*$", "é@?#"),
        ]);
        let key = member_key(&own.member);
        assert_eq!(read(&key), Some(Hint::Member(own.member.clone())));
        for (key, (domain, name)) in name_keys(&own).zip(&own.names) {
            let said = Hint::Name(own.member.node, domain.clone(), name.clone());
            assert_eq!(read(&key), Some(said));
            assert!(!key.contains(['*', '$', '?', '#']), "{key}");
            assert!(key.starts_with(all_keys().trim_end_matches('*')), "{key}");
        }
    }

    #[test]
    fn what_is_no_hint_is_none() {
        let node = NodeId([2; 16]);
        let long = "61".repeat(MAX_NAME + 1);
        for key in [
            String::new(),
            "portolan/1".to_owned(),
            "portolan/2/name".to_owned(),
            format!("portolan/1/name/{node}"),
            format!("portolan/1/name/{node}/61/6"),
            format!("portolan/1/name/{node}/61/"),
            format!("portolan/1/name/{node}/61/zz"),
            format!("portolan/1/name/{node}/61/+1"),
            format!("portolan/1/name/{node}/61/ff"),
            format!("portolan/1/name/{node}/61/{long}"),
            format!("portolan/1/name/{node}/61/62/63"),
            format!("portolan/1/member/{node}/x/61/61"),
            "portolan/1/member/hall/1/61/61".to_owned(),
        ] {
            assert_eq!(read(&key), None, "{key}");
        }
        // Addresses that are none are left out.
        let wrong = member(2, 1, "192.0.2.1:7411,roof;reboot:1,:,roof.example:1");
        let Some(Hint::Member(found)) = read(&member_key(&wrong)) else {
            panic!("it is a member");
        };
        assert_eq!(found.addresses, ["192.0.2.1:7411", "roof.example:1"]);
    }

    #[test]
    fn a_table_has_what_is_there_of_others_and_the_last_start_counts() {
        let mut table = Table::new(NodeId([9; 16]));
        assert!(table.news().is_some_and(|news| news.members.is_empty()));
        let (first, second) = (member(1, 7, "a:1"), member(1, 8, "b:1"));
        assert!(table.hear(&member_key(&first), true));
        assert!(table.hear(&member_key(&second), true));
        assert_eq!(table.news().unwrap().members, from_ref(&second));
        assert!(table.news().is_none(), "nothing has changed");
        // The old start's end comes later.
        assert!(table.hear(&member_key(&first), false));
        assert!(!table.hear(&member_key(&first), false));
        assert_eq!(table.news().unwrap().members, from_ref(&second));
        let moved = member(1, 8, "c:1");
        assert!(table.hear(&member_key(&moved), true));
        assert!(
            !table.hear(&member_key(&second), false),
            "said of the old address"
        );
        assert_eq!(table.news().unwrap().members, from_ref(&moved));
        for key in name_keys(&own(&[("cameras", "upper")])) {
            assert!(table.hear(&key, true) && !table.hear(&key, true));
            let holders = table.news().unwrap().holders.unwrap();
            assert_eq!(holders.of("cameras", "upper").count(), 1);
            assert!(table.hear(&key, false) && !table.hear(&key, false));
            // What was said before stays as it was said.
            assert_eq!((holders.count(), table.total), (1, 0));
        }
        // Of itself it hears nothing.
        assert!(!table.hear(&member_key(&member(9, 1, "d:1")), true));
        assert!(table.hear(&member_key(&moved), false));
        let news = table.news().unwrap();
        assert!(news.members.is_empty() && !news.holders.unwrap().announces(moved.node));
    }

    #[test]
    fn a_node_that_announces_without_end_is_bounded() {
        let mut table = Table::new(NodeId([9; 16]));
        let name = |node: NodeId, at: usize| {
            let name = digits(&at.to_string());
            format!("{PREFIX}/name/{node}/61/{name}")
        };
        let loud = NodeId([1; 16]);
        for at in 0..MOST_NAMES + 10 {
            assert_eq!(table.hear(&name(loud, at), true), at < MOST_NAMES);
        }
        assert!(
            table.hear(&name(NodeId([2; 16]), 0), true),
            "others have room"
        );
        for start in 0..10 {
            table.hear(&member_key(&member(3, start, "a:1")), true);
        }
        assert_eq!(table.members[&NodeId([3; 16])].len(), MOST_STARTS);
        for at in 0..MOST_MEMBERS + 10 {
            let mut many = member(4, 1, "a:1");
            many.node.0[..8].copy_from_slice(&at.to_le_bytes());
            table.hear(&member_key(&many), true);
        }
        assert_eq!(table.members.len(), MOST_MEMBERS);
    }
}
