//! Fragments of another node, and the records that open transfers: a node puts them together, or
//! ends the association.

use super::records::{Machine, NOW, WIRE_TO_PEER, node, settle};
use arbitrary::{Result, Unstructured};
use portolan_abi::node::{
    Announce, FragmentHead, FragmentKind, MessageBody, MessageRecord, Record, RecordFlags, Sent,
};
use portolan_abi::slot::Kind;
use portolan_proto::node::Place;

pub(super) fn run(data: &[u8]) {
    if let Ok(head) = FragmentHead::decode(data) {
        assert_eq!(head.encode()[..], *data);
    }
    let _ = transfers(&mut Unstructured::new(data));
}

fn transfers(u: &mut Unstructured<'_>) -> Result<()> {
    let mut machine = Machine::default();
    let mut node = node(&mut machine);
    while !u.is_empty() {
        let transfer = u.int_in_range(0..=5)? | u32::from(u.ratio(1, 3)?) << 31;
        let lengths = vec![u.int_in_range(1..=100_000)?];
        let sent = Sent {
            flags: RecordFlags(u.int_in_range(0..=7)?),
            flow: u.int_in_range(0..=2)?,
            number: u.int_in_range(0..=4)?,
        };
        if u.ratio(1, 4)? {
            let announce = Announce {
                transfer,
                extents: 1,
                bytes: lengths[0],
                request: u.int_in_range(0..=1)?,
            };
            let bytes = Record::Announce(announce).with(sent);
            node.receive(NOW, WIRE_TO_PEER, &bytes, &mut machine);
            settle(&mut node);
            continue;
        }
        let kind = FragmentKind::ALL[u.choose_index(3)?];
        let body = MessageBody {
            extents: 1,
            ..MessageBody::new(if u.ratio(1, 8)? {
                Kind::Request
            } else {
                Kind::Message
            })
        };
        let (header, inline) = (&[][..], &[][..]);
        let message = MessageRecord {
            body,
            lengths,
            rights: Vec::new(),
            header,
            inline,
        };
        let record = Record::Message(message).with(sent);
        let head = FragmentHead {
            transfer,
            offset: match kind {
                FragmentKind::Data => u.int_in_range(0..=50_000)?,
                FragmentKind::Opens | FragmentKind::Aborts => 0,
            },
            length: match kind {
                FragmentKind::Data => u.int_in_range(0..=50_000)?,
                FragmentKind::Opens => u32::try_from(record.len()).unwrap_or(0),
                FragmentKind::Aborts => 0,
            },
            kind,
        };
        let head = head.encode();
        match node.fragment(NOW, WIRE_TO_PEER, &head) {
            (_, Place::Record) => {
                node.opened(NOW, WIRE_TO_PEER, &head, &record, &mut machine);
            }
            (length, Place::Into((), offset)) => {
                assert!(offset + u64::from(length) <= 100_000, "{offset} {length}");
                node.fragment_received(NOW, WIRE_TO_PEER, &head, &mut machine);
            }
            (_, Place::Discard) => {}
        }
        settle(&mut node);
    }
    Ok(())
}
