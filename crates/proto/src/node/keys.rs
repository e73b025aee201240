//! What follows from a port's key, which the port's homes know alone: it moves with the receive right.
//!
//! ```text
//! key ---> secret: who knows it may be lent the port ---> name, by which the port is asked for
//!   \----> a borrower's key ---> proof of the borrower that asks, proof of the home that answers
//! ```
//!
//! All of it is SipHash-2-4 with 128 bits, a keyed function made for short inputs: who has some results knows
//! neither the key nor any other result. A borrower's key is of one node, so a borrower can pass for no other
//! one, and for no home; proofs name the nodes between which they are said, so they are worth nothing to a
//! third node. A node that was a port's home once knows the key for good.

use core::hash::Hasher;
use portolan_abi::node::{NodeId, PORT_SECRET, PortId};
use siphasher::sip128::{Hasher128, SipHasher24};

/// A key, or what follows from one.
pub(super) type Key = [u8; PORT_SECRET];

/// What it is for: no two results are the same by accident.
#[derive(Clone, Copy)]
enum Purpose {
    Secret = 1,
    Name = 2,
    Borrower = 3,
    Asks = 4,
    Answers = 5,
}

/// The parts have fixed lengths, so what one purpose hashes is told apart.
fn keyed(key: &Key, purpose: Purpose, parts: &[&[u8]]) -> Key {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(&[purpose as u8]);
    parts.iter().for_each(|part| hasher.write(part));
    hasher.finish128().as_bytes()
}

/// What a port's borrowers know of its key: who shows it may be lent the port.
pub(super) fn secret(key: &Key) -> Key {
    keyed(key, Purpose::Secret, &[])
}

/// By this a port is asked for.
pub(super) fn name(secret: &Key, port: &PortId) -> Key {
    keyed(secret, Purpose::Name, &[&port.encode()])
}

/// What a borrower is told when it is lent the port.
pub(super) fn of_borrower(key: &Key, borrower: NodeId) -> Key {
    keyed(key, Purpose::Borrower, &[&borrower.0])
}

/// The borrower that has this key asks.
pub(super) fn asks(borrower: &Key) -> Key {
    keyed(borrower, Purpose::Asks, &[])
}

/// A home, of now or of before, tells the borrower that has this key where the port is.
pub(super) fn answers(borrower: &Key, by: NodeId, home: NodeId, incarnation: u64) -> Key {
    let incarnation = incarnation.to_le_bytes();
    keyed(borrower, Purpose::Answers, &[&by.0, &home.0, &incarnation])
}

/// Whether they are the same. All of it is looked at, wherever it differs: the time says nothing.
pub(super) fn is_same(one: &Key, other: &Key) -> bool {
    let differs = one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b));
    differs == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first of the vectors that the function's authors have published: the empty input, and one byte.
    #[test]
    fn it_is_the_published_function() {
        let key: Key = core::array::from_fn(|at| u8::try_from(at).unwrap());
        let empty = SipHasher24::new_with_key(&key).finish128().as_bytes();
        let expected = [
            0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55,
            0x02, 0x93,
        ];
        assert_eq!(empty, expected);
    }

    #[test]
    fn what_is_of_one_purpose_port_or_node_is_of_no_other() {
        let nodes = [NodeId([1; 16]), NodeId([2; 16])];
        let mut all = Vec::new();
        for key in [[3; 16], [4; 16]] {
            all.extend([key, secret(&key), asks(&key)]);
            let ports = nodes.map(|origin| PortId { origin, serial: 1 });
            all.extend(ports.map(|port| name(&secret(&key), &port)));
            for node in nodes {
                all.push(of_borrower(&key, node));
                for home in nodes {
                    all.extend([1, 2].map(|it| answers(&key, node, home, it)));
                }
            }
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(is_same(&all[0], &all[0].clone()) && !is_same(&all[0], &all[1]));
    }
}
