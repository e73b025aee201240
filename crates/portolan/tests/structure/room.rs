//! Growth, its end, and what is used again.

use portolan::structure::{Boxed, Full, List, Map, NoRoom, Structure, Text, Tree};
use portolan::{Access, Deadline, Domain, Handover, PortOptions, WhenFull};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn small() -> Domain {
    let builder = Domain::builder("structure-room").size(64 << 20);
    builder.limit(16 << 20).private().unwrap()
}

#[derive(Handover)]
struct Everything<'a> {
    map: Map<'a, u64, [u64; 8]>,
    tree: Tree<'a, u64, [u64; 8]>,
    list: List<'a, [u64; 8]>,
    text: Text<'a>,
    boxes: Option<Boxed<'a, Link<'a>>>,
}

#[derive(Handover)]
struct Link<'a> {
    more: [u64; 64],
    next: Option<Boxed<'a, Link<'a>>>,
}

fn everything(domain: &Domain) -> Structure<Everything<'_>> {
    let built = Structure::build(domain, |arena| {
        Ok(Everything {
            map: arena.map(),
            tree: arena.tree(),
            list: arena.list(),
            text: Text::new_in(arena),
            boxes: None,
        })
    });
    built.unwrap()
}

/// Adds until there is no room; how many were added. `add` says what came back.
#[track_caller]
fn until_full<T: PartialEq + std::fmt::Debug>(
    mut add: impl FnMut(u64) -> Result<(), Full<T>>,
    item: impl Fn(u64) -> T,
) -> u64 {
    let mut n = 0;
    loop {
        match add(n) {
            Ok(()) => n += 1,
            Err(Full { reason, item: back }) => {
                assert!(
                    matches!(reason, NoRoom::OutOfPages { limit, .. } if limit == 16 << 20),
                    "{reason:?}"
                );
                assert_eq!(back, item(n), "what was to be added comes back");
                return n;
            }
        }
    }
}

#[test]
fn what_outgrows_the_limit_is_told_and_loses_nothing() {
    let domain = small();
    let value = |n: u64| [n; 8];
    let mut one = everything(&domain);
    let map = one
        .edit(|all, _| until_full(|n| all.map.insert(n, value(n)).map(drop), |n| (n, value(n))))
        .unwrap();
    assert!(map > 1000);
    assert!((0..map).all(|n| one.root().unwrap().map.get(&n) == Some(&value(n))));
    assert_eq!(one.root().unwrap().map.len() as u64, map);
    // An entry that is there already needs no room.
    one.edit(|all, _| assert_eq!(all.map.insert(0, value(0)).unwrap(), Some(value(0))))
        .unwrap();
    // It is whole, so it may be sent; and once there is memory, it goes on.
    let slots = PortOptions::unnamed().inline_bytes(400);
    let mut port = domain.bind(slots).unwrap();
    port.make_send()
        .send(one.into_message(), WhenFull::Fail)
        .unwrap();
    let message = port.receive(Access::Later, Deadline::NOW).unwrap();
    let mut one = message.into_structure::<Everything>().unwrap();
    one.edit(|all, _| {
        all.map.retain(|n, _| n % 2 == 0);
        all.map.insert(map, value(map)).map(drop).unwrap();
    })
    .unwrap();
    drop(one);

    let mut two = everything(&domain);
    let tree = two
        .edit(|all, _| {
            until_full(
                |n| all.tree.insert(n, value(n)).map(drop),
                |n| (n, value(n)),
            )
        })
        .unwrap();
    assert_eq!(two.root().unwrap().tree.len() as u64, tree);
    assert!(
        two.root()
            .unwrap()
            .tree
            .iter()
            .map(|(k, v)| (*k, *v))
            .eq((0..tree).map(|n| (n, value(n))))
    );
    // What is taken out makes room.
    two.edit(|all, _| {
        for n in 0..100 {
            assert_eq!(all.tree.remove(&n), Some(value(n)));
        }
        all.tree.insert(tree, value(tree)).map(drop).unwrap();
    })
    .unwrap();
    drop(two);

    let mut three = everything(&domain);
    let list = three
        .edit(|all, _| until_full(|n| all.list.push(value(n)), value))
        .unwrap();
    assert!(
        list > 1000
            && three
                .root()
                .unwrap()
                .list
                .iter()
                .eq((0..list).map(value).collect::<Vec<_>>().iter())
    );
    let boxes = three
        .edit(|all, arena| {
            all.list = arena.list();
            let mut boxes = 0;
            loop {
                let next = all.boxes.take();
                match arena.boxed(Link {
                    more: [7; 64],
                    next,
                }) {
                    Ok(link) => all.boxes = Some(link),
                    Err(full) => {
                        all.boxes = full.item.next;
                        return boxes;
                    }
                }
                boxes += 1;
            }
        })
        .unwrap();
    let mut next = three.root().unwrap().boxes.as_ref();
    for _ in 0..boxes {
        assert_eq!(next.unwrap().more, [7; 64]);
        next = next.unwrap().next.as_ref();
    }
    assert!(next.is_none() && boxes > 1000);
    let text = three
        .edit(|all, _| {
            // Not one by one: a box's drop drops the next.
            while let Some(link) = all.boxes.take() {
                all.boxes = link.into_inner().next;
            }
            loop {
                let len = all.text.len();
                let more = "ä".repeat(len.max(1));
                if let Err(reason) = all.text.push_str(&more) {
                    assert!(matches!(reason, NoRoom::OutOfPages { .. }), "{reason:?}");
                    return len;
                }
            }
        })
        .unwrap();
    assert_eq!(three.root().unwrap().text.len(), text);
    assert!(three.root().unwrap().text.chars().all(|c| c == 'ä'));

    // And all of it comes back.
    drop(three);
    drop(domain.allocate(8 << 20).unwrap());
    let refused = Structure::<u64>::with_capacity(&domain, 1 << 30, |_| Ok(1))
        .err()
        .unwrap();
    assert!(matches!(refused, NoRoom::OutOfPages { .. }), "{refused}");
}

#[test]
fn a_failed_beginning_gives_its_memory_back() {
    let domain = small();
    for _ in 0..20 {
        let built = Structure::<List<u8>>::build(&domain, |arena| {
            let mut list = arena.list();
            list.reserve(6 << 20)?;
            list.reserve(12 << 20)?;
            Ok(list)
        });
        assert!(matches!(built.err(), Some(NoRoom::OutOfPages { .. })));
    }
}

#[test]
fn memory_is_used_again() {
    let domain = small();
    let mut all = everything(&domain);
    let mut settled = 0;
    for round in 0..50 {
        all.edit(|all, arena| {
            for n in 0..500 {
                all.map.insert(n, [round; 8])?;
                all.tree.insert(n, [round; 8])?;
                all.list.push([round; 8])?;
                all.text.push_str("round and round")?;
                let next = all.boxes.take();
                all.boxes = Some(arena.boxed(Link {
                    more: [0; 64],
                    next,
                })?);
            }
            all.map.take();
            all.tree.clear();
            all.list.take();
            all.text.take();
            while let Some(link) = all.boxes.take() {
                all.boxes = link.into_inner().next;
            }
            Ok::<_, NoRoom>(())
        })
        .unwrap()
        .unwrap();
        if round == 10 {
            settled = all.capacity();
        }
    }
    assert_eq!(
        all.capacity(),
        settled,
        "a structure of constant size grows no more"
    );
}

#[test]
fn a_known_size_lies_in_one_extent() {
    let domain = small();
    let build = |bytes| {
        Structure::<List<u64>>::with_capacity(&domain, bytes, |arena| {
            let mut list = arena.list();
            list.reserve_exact(bytes / 8)?;
            Ok(list)
        })
        .unwrap()
    };
    for bytes in [8, 4096, 60 << 10, 1 << 20, 5 << 20] {
        assert_eq!(build(bytes).extents(), 1, "{bytes}");
    }
}

#[test]
fn a_panic_in_an_edit_leaves_a_structure_that_is_whole() {
    let domain = small();
    let mut all = everything(&domain);
    let before = all.capacity();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        all.edit(|all, _| {
            for n in 0..5000 {
                all.map.insert(n, [n; 8]).map(drop).unwrap();
                assert!(n < 4000, "stop here");
            }
        })
        .unwrap();
    }));
    assert!(panicked.is_err());
    // Also what was grown meanwhile is the message's.
    assert!(all.capacity() > before);
    assert_eq!(all.root().unwrap().map.len(), 4001);
    all.edit(|all, _| all.map.insert(9999, [1; 8]).map(drop))
        .unwrap()
        .unwrap();
    assert_eq!(
        all.into_message().root::<Everything>().unwrap().map.len(),
        4002
    );
}

#[test]
fn two_structures_are_edited_at_once() {
    let domain = small();
    let text = |text| Structure::<Text>::build(&domain, |arena| arena.text(text)).unwrap();
    let (mut one, mut two) = (text("one"), text("two"));
    let long = "long".repeat(100_000);
    one.edit(|one, _| {
        two.edit(|two, _| {
            // Each grows out of its own.
            one.push_str(&long)?;
            two.push_str(&long)?;
            one.push_str(two)
        })
        .unwrap()
    })
    .unwrap()
    .unwrap();
    assert_eq!(two.root().unwrap().len(), 3 + long.len());
    drop(two);
    assert_eq!(**one.root().unwrap(), *format!("one{long}two{long}"));
}

#[test]
fn many_threads_read_one_structure() {
    let domain = small();
    let mut all = everything(&domain);
    all.edit(|all, _| (0..1000).try_for_each(|n| all.tree.insert(n, [n; 8]).map(drop)))
        .unwrap()
        .unwrap();
    let root = all.root().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!((0..1000).all(|n| root.tree.get(&n) == Some(&[n; 8]))));
        }
    });
}
