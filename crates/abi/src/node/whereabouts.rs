//! Lays out the question where ports are whose homes have gone, and the answer.

use super::lent::PORT_SECRET;
use super::node_id::NodeId;
use crate::codec::{DecodeError, Reader};
use crate::record;

/// Ports that one question names, at the most.
pub const MAX_ASKED: usize = 256;

record! {
    /// A port that is asked for. A node that was never lent the port cannot tell which one it is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Asked {
        /// What follows from the port's secret, and names it.
        pub port: [u8; PORT_SECRET],
        /// What follows from the borrower's key ([`super::Lent::key`]): one of the port's homes has lent the
        /// port to the node that asks.
        pub proof: [u8; PORT_SECRET],
    }
}

record! {
    /// Where a port is that was asked for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Located {
        /// As the question has named it.
        pub port: [u8; PORT_SECRET],
        /// Its home: the node that answers, or the one to which that has passed the port on.
        pub home: NodeId,
        /// The home's incarnation.
        pub incarnation: u64,
        /// What follows from the borrower's key, the node that answers, and the home: the node that answers is the
        /// port's home, or was.
        pub proof: [u8; PORT_SECRET],
    }
}

record! {
    struct WhereBody {
        pub number: u64,
        pub count: u32,
        _: 4,
    }
    check |it| it.count as usize <= MAX_ASKED
}

/// Writes the number of a question, and as many entries as a record has.
pub(super) fn put<const N: usize>(
    number: u64,
    entries: impl ExactSizeIterator<Item = [u8; N]>,
    out: &mut Vec<u8>,
) {
    let count = entries.len().min(MAX_ASKED);
    let body = WhereBody {
        number,
        count: u32::try_from(count).unwrap_or(0),
    };
    out.extend(body.encode());
    entries.take(count).for_each(|entry| out.extend(entry));
}

pub(super) fn get<T>(
    from: &mut Reader<'_>,
    entry: impl Fn(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<(u64, Vec<T>), DecodeError> {
    let WhereBody { number, count } = from.field("where")?;
    let entries: Result<Vec<T>, _> = (0..count).map(|_| entry(from)).collect();
    Ok((number, entries?))
}
