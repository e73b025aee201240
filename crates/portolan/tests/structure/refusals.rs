//! Roots that are not lent out, and structures that are not sent.

use super::steps::{Chart, Stranger, begin, step};
use portolan::structure::{List, Map, RootError, Structure, Text, Tree};
use portolan::{
    Access, Deadline, Domain, Handover, Message, PortOptions, Protection, SendError, WhenFull,
};
use std::os::unix::fs::FileExt;

fn words(domain: &Domain) -> Message {
    let words = Structure::<List<Text>>::build(domain, |arena| {
        let mut list = arena.list();
        list.push(arena.text("one")?)?;
        Ok(list)
    });
    words.unwrap().into_message()
}

#[track_caller]
fn is_whole(message: &Message) {
    assert_eq!(message.root::<List<Text>>().unwrap()[0], "one");
}

#[track_caller]
fn is_none(message: &Message) {
    assert_eq!(message.root::<List<Text>>().err(), Some(RootError::NoRoot));
    assert_eq!(message.structure_extents(), 0);
}

/// Writes where no safe program can: as a member with a stray pointer would.
fn scribble(address: usize, bytes: &[u8]) {
    let memory = std::fs::OpenOptions::new()
        .write(true)
        .open("/proc/self/mem")
        .unwrap();
    memory.write_all_at(bytes, address as u64).unwrap();
}

#[test]
fn a_root_is_asked_for_as_another_type() {
    let domain = Domain::private().unwrap();
    let message = words(&domain);
    let error = message.root::<List<u64>>().err().unwrap();
    let RootError::OtherType { asked, found } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(
        (&**asked, &**found),
        ("List<'_, u64>", "List<'_, Text<'_>>")
    );
    assert!(message.root::<Map<Text, u64>>().is_err());
    assert!(message.root::<Chart>().is_err());
    is_whole(&message);
    // With the message handed back.
    let refused = message.into_structure::<Tree<u64, Text>>().err().unwrap();
    assert!(matches!(refused.why, RootError::OtherType { .. }));
    let words = refused.item.into_structure::<List<Text>>().unwrap();
    assert_eq!(words.root().unwrap().len(), 1);
}

#[test]
fn types_are_told_apart_by_what_their_bytes_mean() {
    mod here {
        #[derive(portolan::Handover)]
        pub(super) struct Stranger {
            pub(super) other: u64,
        }
    }
    #[derive(Handover)]
    struct Renamed {
        other: u64,
    }
    mod field {
        #[derive(portolan::Handover)]
        pub(super) struct Stranger {
            pub(super) name: u64,
        }
    }
    mod kind {
        #[derive(portolan::Handover)]
        pub(super) struct Stranger {
            pub(super) other: i64,
        }
    }
    #[derive(Handover)]
    struct Pair<'a, T, const N: usize> {
        name: Text<'a>,
        values: [T; N],
    }
    let domain = Domain::private().unwrap();
    let sent = Structure::<Stranger>::build(&domain, |_| Ok(Stranger { other: 7 })).unwrap();
    let message = sent.into_message();
    // The same name, fields and places, wherever it is declared: two programs may each have theirs.
    assert_eq!(message.root::<here::Stranger>().unwrap().other, 7);
    assert!(message.root::<Renamed>().map(|r| r.other).is_err());
    assert!(message.root::<field::Stranger>().map(|r| r.name).is_err());
    assert!(message.root::<kind::Stranger>().map(|r| r.other).is_err());

    let pair = Structure::<Pair<u16, 3>>::build(&domain, |arena| {
        Ok(Pair {
            name: arena.text("pair")?,
            values: [1, 2, 3],
        })
    });
    let message = pair.unwrap().into_message();
    let root = message.root::<Pair<u16, 3>>().unwrap();
    assert_eq!((&*root.name, root.values), ("pair", [1, 2, 3]));
    assert!(message.root::<Pair<u16, 4>>().is_err());
    assert!(message.root::<Pair<i16, 3>>().is_err());
}

#[test]
fn what_is_opened_for_writing_is_no_structure_any_more() {
    let domain = Domain::private().unwrap();
    let extra = || domain.allocate(4096).unwrap();

    let mut message = words(&domain);
    // Beside the structure anything may be done.
    message.push(extra()).unwrap();
    message.push(extra()).unwrap();
    let own = message.structure_extents();
    let behind = message.extents()[..own].iter().map(|e| e.len()).sum();
    assert!(message.swap(own, own + 1) && message.remove(own).is_some());
    message.at_mut(behind).unwrap()[0] = 1;
    message.set_header(b"words").unwrap();
    message
        .edit::<List<Text>, _>(|list, _| list.reserve(1 << 20))
        .unwrap()
        .unwrap();
    assert!(
        message.structure_extents() > own,
        "grown before the extent that came later"
    );
    is_whole(&message);
    drop(message.split_off(message.structure_extents()));
    is_whole(&message);

    // Within it, what is there may be anything.
    let mut written = words(&domain);
    written.at_mut(0).unwrap()[4000] = 1;
    is_none(&written);
    let mut lent = words(&domain);
    lent.extents_mut()[0].fill(0);
    is_none(&lent);
    let mut moved = words(&domain);
    moved.insert(0, extra()).unwrap();
    is_none(&moved);
    let mut swapped = words(&domain);
    swapped.push(extra()).unwrap();
    assert!(swapped.swap(0, 1));
    is_none(&swapped);

    // Nor are the same bytes, put together again by hand.
    let mut apart = words(&domain);
    let extent = apart.remove(0).unwrap();
    let mut again = Message::default();
    again.push(extent).unwrap();
    is_none(&again);
    is_none(&Message::default());
    // Nor what is sent after it, in the same message.
    assert_eq!(
        again.edit::<List<Text>, _>(|_, _| ()).err(),
        Some(RootError::NoRoot)
    );
}

#[test]
fn a_message_without_a_structure_arrives_without_one() {
    let domain = Domain::private().unwrap();
    let mut port = domain.bind(PortOptions::unnamed()).unwrap();
    let right = port.make_send();
    right.send(words(&domain), WhenFull::Fail).unwrap();
    let mut message = port.receive(Access::Later, Deadline::NOW).unwrap();
    is_whole(&message);
    // Its first extent is overwritten with what was a structure's.
    let bytes = message.extents()[0].to_vec();
    let extent = message.remove(0).unwrap();
    let mut copy = Message::new(&[0; 100]).unwrap();
    copy.push(extent).unwrap();
    copy.extents_mut()[0].copy_from_slice(&bytes);
    right.send(copy, WhenFull::Fail).unwrap();
    is_none(&port.receive(Access::Later, Deadline::NOW).unwrap());
    // With a long header, rights and an urgency it says so too.
    let mut rich = words(&domain);
    rich.set_header(&[7; 3000]).unwrap();
    rich.attach(port.make_send()).unwrap();
    right.send(rich, WhenFull::Fail).unwrap();
    is_whole(&port.receive(Access::Later, Deadline::NOW).unwrap());
}

#[test]
fn a_damaged_head_is_found() {
    let domain = Domain::private().unwrap();
    let damaged = |at: usize, bytes: &[u8]| {
        let message = words(&domain);
        scribble(message.extents()[0].address() + at, bytes);
        message.root::<List<Text>>().map(|list| list.len())
    };
    // Magic, address, root, number of extents, size of the first.
    assert_eq!(damaged(0, b"x"), Err(RootError::Torn));
    assert_eq!(damaged(8, b"x"), Err(RootError::Torn));
    assert_eq!(damaged(32, &0u64.to_le_bytes()), Err(RootError::Torn));
    assert_eq!(damaged(32, &[0xff; 8]), Err(RootError::Torn));
    assert_eq!(damaged(56, &[2]), Err(RootError::Torn));
    assert_eq!(damaged(56, &[0xff; 8]), Err(RootError::Torn));
    assert_eq!(damaged(88, &[1]), Err(RootError::Torn));
    // Another build.
    let error = damaged(24, &[1; 8]).err().unwrap();
    assert!(matches!(error, RootError::OtherBuild { .. }), "{error:?}");
    assert!(error.to_string().contains("hashbrown 0.17.1"), "{error}");
}

#[test]
fn a_head_that_is_damaged_after_the_check_is_found_too() {
    let domain = Domain::private().unwrap();
    for (at, bytes) in [(0, b"x".as_slice()), (32, &[0xff; 8]), (56, &[0xff; 8])] {
        let mut words = words(&domain).into_structure::<List<Text>>().unwrap();
        assert_eq!(words.root().map(|list| list.len()), Ok(1));
        // No other member may write to it; one with a stray pointer does.
        let message = words.into_message();
        let address = message.extents()[0].address();
        words = message.into_structure().unwrap();
        scribble(address + at, bytes);
        assert_eq!(words.root().map(|list| list.len()), Err(RootError::Torn));
        let mut ran = false;
        assert_eq!(words.edit(|_, _| ran = true), Err(RootError::Torn));
        assert!(!ran, "nothing is done to a structure that is not whole");
        // What it can be used for still: to be given back.
        drop(words.into_message());
    }
}

#[test]
fn memory_is_handed_out_within_the_extents_whatever_the_head_says() {
    let domain = Domain::private().unwrap();
    // Where memory is handed out next, where it ends, what is free, which lists have some,
    // and where they begin.
    let words = [40, 48, 64, 72, 1104, 1112, 1120]
        .into_iter()
        .chain((1128..1400).step_by(8));
    for at in words {
        let built = Structure::<List<u64>>::build(&domain, |arena| Ok(arena.list())).unwrap();
        let message = built.into_message();
        let address = message.extents()[0].address();
        let mut list = message.into_structure::<List<u64>>().unwrap();
        for word in [0, 1, u64::MAX, address as u64, address as u64 + 8, 1 << 46] {
            scribble(address + at, &word.to_le_bytes());
            let filled = list.edit(|list, _| {
                list.clear();
                (0..1000)
                    .try_for_each(|n| list.push(n))
                    .map_err(|full| full.reason)
            });
            filled.unwrap().unwrap();
            let root = list.root().unwrap();
            assert!(root.iter().copied().eq(0..1000), "{at}: {word:#x}");
            let (first, bytes) = (root.as_ptr().addr(), root.capacity() * 8);
            let message = list.into_message();
            let within = |e: &portolan::Extent| {
                let into = first.wrapping_sub(e.address());
                into <= e.capacity() && bytes <= e.capacity() - into
            };
            assert!(message.extents().iter().any(within), "{at}: {word:#x}");
            list = message.into_structure().unwrap();
        }
    }
}

#[test]
fn a_structure_is_not_copied_to_another_place() {
    for protection in [Protection::Trusted, Protection::Guarded] {
        let domain = Domain::builder("structure-copied")
            .protection(protection)
            .private()
            .unwrap();
        let copies = domain.bind(PortOptions::unnamed().copied()).unwrap();
        let mut port = domain.bind(PortOptions::unnamed()).unwrap();
        let structure = Structure::<Chart>::build(&domain, |arena| {
            let mut chart = begin(arena);
            step(&mut chart, arena, 2)?;
            Ok(chart)
        });
        let message = structure.unwrap().into_message();
        let refused = copies
            .make_send()
            .send(message, WhenFull::Fail)
            .err()
            .unwrap();
        assert!(
            matches!(refused.why, SendError::Structure),
            "{}",
            refused.why
        );
        // It is whole, and goes elsewhere.
        assert_eq!(refused.item.root::<Chart>().unwrap().map.len(), 1000);
        port.make_send()
            .send(*refused.item, WhenFull::Fail)
            .unwrap();
        let message = port.receive(Access::Later, Deadline::NOW).unwrap();
        assert_eq!(message.root::<Chart>().unwrap().map.len(), 1000);
    }
}
