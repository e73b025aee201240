//! Samples that are structures: built by one program, read in place by others.

use crate::{PATIENCE, options, until, used};
use portolan::channel::{PublishError, Publisher, ReaderOptions, Since, SubscribeError};
use portolan::structure::{List, Map, NoRoom, RootError, Structure, Text, Tree};
use portolan::{Deadline, Domain, Handover, Message, Protection, SegmentKind};

#[derive(Handover)]
pub(crate) struct Atlas<'a> {
    number: u64,
    depths: Tree<'a, u64, Text<'a>>,
    of: Map<'a, Text<'a>, List<'a, u64>>,
}

type Atlases = Structure<Atlas<'static>>;

/// Adds `entries` entries that follow from the atlas's number.
fn fill<'a>(
    atlas: &mut Atlas<'a>,
    arena: portolan::structure::Arena<'a>,
    entries: u64,
) -> Result<(), NoRoom> {
    for entry in 0..entries {
        let key = entry ^ atlas.number;
        atlas.depths.insert(key, arena.text(&format!("{key} m"))?)?;
        let mut list = arena.list();
        list.push(key)?;
        atlas.of.insert(arena.text(&key.to_string())?, list)?;
    }
    Ok(())
}

fn publish(publisher: &mut Publisher<Atlases>, number: u64, entries: u64) -> u64 {
    let mut loan = publisher
        .loan(|arena| {
            Ok(Atlas {
                number,
                depths: arena.tree(),
                of: arena.map(),
            })
        })
        .unwrap();
    let filled = loan.edit(|atlas, arena| fill(atlas, arena, entries));
    filled.unwrap().unwrap();
    loan.publish().unwrap()
}

#[track_caller]
fn is_atlas(atlas: &Atlas<'_>, number: u64, entries: u64) {
    assert_eq!(atlas.number, number);
    assert_eq!(atlas.depths.len() as u64, entries);
    assert_eq!(atlas.of.len() as u64, entries);
    for entry in 0..entries {
        let key = entry ^ number;
        let depth = atlas.depths.get(&key).map(Text::as_str);
        assert_eq!(depth, Some(&*format!("{key} m")));
        let of = atlas.of.get(key.to_string().as_str());
        assert_eq!(of.map(|list| &list[..]), Some(&[key][..]));
    }
}

#[test]
fn a_structure_is_read_where_it_was_built_by_all_who_have_it() {
    for protection in [Protection::Trusted, Protection::Guarded] {
        let name = portolan_testkit::unique("atlas");
        let domain = Domain::builder(&name)
            .protection(protection)
            .join()
            .unwrap();
        let mut publisher = domain.publisher::<Atlases>("t", options()).unwrap();
        let mut early = domain.subscriber::<Atlases>("t", options()).unwrap();
        let mut loan = publisher
            .loan(|arena| {
                let mut atlas = Atlas {
                    number: 7,
                    depths: arena.tree(),
                    of: arena.map(),
                };
                fill(&mut atlas, arena, 30)?;
                Ok(atlas)
            })
            .unwrap();
        loan.edit(|atlas, _| atlas.number += 1).unwrap();
        loan.edit(|atlas, _| atlas.number -= 1).unwrap();
        let built_at = std::ptr::from_ref(loan.root().unwrap()).addr();
        assert_eq!(loan.publish().unwrap(), 0);
        publish(&mut publisher, 9, 5);
        // Late, it has the history.
        let mut late = domain.subscriber::<Atlases>("t", options()).unwrap();
        for subscriber in [&mut early, &mut late] {
            let sample = subscriber.receive(Deadline::NOW).unwrap();
            let root = sample.root().unwrap();
            is_atlas(root, 7, 30);
            assert_eq!(std::ptr::from_ref(root).addr(), built_at);
            assert_eq!((sample.position(), sample.missed()), (0, 0));
            is_atlas(
                subscriber.receive(Deadline::NOW).unwrap().root().unwrap(),
                9,
                5,
            );
        }
        drop((publisher, early, late));
        assert_eq!(used(&domain), (0, 0));
    }
}

#[test]
fn who_keeps_a_sample_keeps_it_as_it_was_and_the_rest_is_freed() {
    let domain = Domain::private().unwrap();
    let few = options().history(2);
    let mut publisher = domain.publisher::<Atlases>("t", few).unwrap();
    let mut subscriber = domain.subscriber::<Atlases>("t", few).unwrap();
    let mut kept = Vec::new();
    let mut most = 0;
    for number in 0..60 {
        publish(&mut publisher, number, 20);
        let sample = subscriber.receive(Deadline::NOW).unwrap();
        if number % 20 == 0 {
            kept.push((number, sample.clone()));
        }
        drop(sample);
        assert!(publisher.buffers() <= 3, "the history, and this one");
        most = most.max(used(&domain).0);
    }
    for (number, sample) in &kept {
        is_atlas(sample.root().unwrap(), *number, 20);
    }
    // Three that are kept, the history, and one that is being built.
    assert!(
        most <= (1 << 20) + 7 * kept[0].1.capacity() as u64,
        "{most}"
    );
    // Who is slow has what is left.
    for number in 60..64 {
        publish(&mut publisher, number, 20);
    }
    let sample = subscriber.receive(Deadline::NOW).unwrap();
    is_atlas(sample.root().unwrap(), 61, 20);
    assert_eq!(sample.missed(), 1);
    drop((publisher, subscriber, sample));
    is_atlas(kept[1].1.root().unwrap(), 20, 20);
    let segments = used(&domain).1;
    assert_eq!(segments, 3, "those that are kept");
    drop(kept);
    assert_eq!(used(&domain), (0, 0));
}

#[test]
fn a_large_one_grows_and_the_next_begins_as_large() {
    let domain = Domain::builder(&portolan_testkit::unique("large"))
        .limit(24 << 20)
        .join()
        .unwrap();
    let few = options().history(1);
    let mut publisher = domain.publisher::<Atlases>("t", few).unwrap();
    let mut subscriber = domain.subscriber::<Atlases>("t", few).unwrap();
    publish(&mut publisher, 1, 5000);
    assert!(publisher.buffers() > 1, "it has grown");
    let large = subscriber.receive(Deadline::NOW).unwrap();
    is_atlas(large.root().unwrap(), 1, 5000);
    let capacity = large.capacity();
    drop(large);
    for number in 2..6 {
        publish(&mut publisher, number, 5000);
        // One each: of the first, which is history then, there were more.
        assert!(number == 2 || publisher.buffers() == 2);
        let again = subscriber.receive(Deadline::NOW).unwrap();
        is_atlas(again.root().unwrap(), number, 5000);
        assert!(again.capacity() <= 2 * capacity);
    }
    // Over the limit: an error, nothing is told, and it goes on.
    let mut loan = publisher
        .loan(|arena| {
            Ok(Atlas {
                number: 0,
                depths: arena.tree(),
                of: arena.map(),
            })
        })
        .unwrap();
    let full = loan
        .edit(|atlas, arena| fill(atlas, arena, 1_000_000))
        .unwrap();
    assert!(matches!(full, Err(NoRoom::OutOfPages { .. })), "{full:?}");
    drop(loan);
    publish(&mut publisher, 9, 5000);
    let sample = subscriber.receive(Deadline::NOW).unwrap();
    is_atlas(sample.root().unwrap(), 9, 5000);
    assert_eq!(sample.missed(), 0);
}

#[test]
fn what_is_no_sample_comes_back() {
    let domain = Domain::private().unwrap();
    let elsewhere = Domain::private().unwrap();
    let mut publisher = domain.publisher::<Structure<u64>>("t", options()).unwrap();
    let mut subscriber = domain.subscriber::<Structure<u64>>("t", options()).unwrap();
    let built = |domain: &Domain| Structure::<u64>::build(domain, |_| Ok(7)).unwrap();
    let refused = publisher.publish(built(&elsewhere)).unwrap_err();
    assert!(matches!(refused.why, PublishError::Foreign), "{refused}");
    assert_eq!(*refused.item.unwrap().root().unwrap(), 7);
    let with_header = |header: &[u8]| {
        let mut message = built(&domain).into_message();
        message.set_header(header).unwrap();
        message.into_structure::<u64>().unwrap()
    };
    let refused = publisher.publish(with_header(b"and a word")).unwrap_err();
    assert!(matches!(refused.why, PublishError::NotAlone), "{refused}");
    let mut message: Message = refused.item.unwrap().into_message();
    assert_eq!(message.header(), b"and a word");
    message.set_header(b"").unwrap();
    // Received, or built elsewhere in the program: as good as a loan.
    publisher
        .publish(message.into_structure().unwrap())
        .unwrap();
    let sample = subscriber.receive(Deadline::NOW).unwrap();
    assert_eq!((*sample.root().unwrap(), sample.position()), (7, 0));
}

/// The generations and numbers of all segments that are only read.
fn shared_extents(domain: &Domain) -> Vec<(u32, u16)> {
    let segments = domain.survey().unwrap().segments;
    let shared = segments
        .iter()
        .filter(|s| s.kind == SegmentKind::SharedExtent);
    shared.map(|s| (s.generation, s.index)).collect()
}

#[test]
fn notes_that_lead_elsewhere_are_missed_and_other_structures_are_an_error() {
    let domain = Domain::private().unwrap();
    let mut numbers = domain.publisher::<Structure<u64>>("n", options()).unwrap();
    let mut subscriber = domain.subscriber::<Structure<u64>>("n", options()).unwrap();
    let mut atlases = domain.publisher::<Atlases>("a", options()).unwrap();
    publish(&mut atlases, 1, 1);
    let (mut large, mut pictures) = (
        domain.publisher::<Atlases>("l", options()).unwrap(),
        domain.publisher::<[u8]>("p", options()).unwrap(),
    );
    publish(&mut large, 1, 5000);
    pictures.publish(&[7; 70_000]).unwrap();
    let told = |name: &str| {
        let channel = domain.find_channel(name, Deadline::NOW).unwrap();
        let since = ReaderOptions::default().since(Since::Last(1));
        let mut reader = channel.bind_reader(since).unwrap();
        reader.receive(Deadline::NOW).unwrap().to_vec()
    };
    let (atlas, large, picture) = (told("a#0"), told("l#0"), told("p#0"));
    assert!(large.len() > 16, "of several buffers");
    let channel = numbers.channel().clone();
    numbers
        .publish(Structure::build(&domain, |_| Ok(3)).unwrap())
        .unwrap();
    let number = told("n#0");
    subscriber.receive(Deadline::NOW).unwrap();
    drop(numbers);
    let mut writer = channel.bind_writer().unwrap();
    // No note at all; a later use of a buffer; names cut short, or none.
    let mut later = atlas.clone();
    later[8] = later[8].wrapping_add(1);
    let twice = [&atlas[..16], &atlas[8..16]].concat();
    // By a structure's note.
    let as_arena = |generation: [u8; 4], index: [u8; 2]| {
        let tag = [2, 0, 0, 0, 0, 0, 0, 0];
        [&tag[..], &generation, &index, &[0; 2]].concat()
    };
    // A buffer that its publisher writes again: whatever it holds, it is no structure's.
    let picture_as_arena = {
        let (generation, index) = picture[16..22].split_at(4);
        as_arena(generation.try_into().unwrap(), index.try_into().unwrap())
    };
    let missed = [
        &b""[..],
        &[2, 0, 0, 0, 0, 0, 0, 0],
        &later,
        &atlas[..15],
        &picture,
        &picture_as_arena,
        &[9; 16],
        // Gone with its publisher.
        &number,
    ];
    for note in missed {
        writer.write(note, PATIENCE).unwrap();
    }
    let nothing = subscriber.receive(Deadline::NOW);
    assert!(
        matches!(nothing, Err(SubscribeError::TimedOut)),
        "{nothing:?}"
    );
    // What is shared and no arena; and one buffer of several is torn.
    let before = shared_extents(&domain);
    let extent = domain.allocate(70_000).unwrap();
    let _shared = domain.share_extent(extent).unwrap();
    let after = shared_extents(&domain).into_iter();
    let (generation, index) = after.into_iter().find(|one| !before.contains(one)).unwrap();
    let bytes_as_arena = as_arena(generation.to_le_bytes(), index.to_le_bytes());
    let swapped = [&large[..8], &large[16..24], &large[8..16]].concat();
    for (note, torn) in [
        (&bytes_as_arena, true),
        (&large[..16].to_vec(), true),
        (&swapped, true),
        // More than there is of it does no harm.
        (&twice, false),
        (&atlas, false),
        (&large, false),
    ] {
        writer.write(note, PATIENCE).unwrap();
        let told = subscriber.receive(Deadline::NOW);
        let Err(SubscribeError::NotAStructure {
            publisher: 0, why, ..
        }) = told
        else {
            panic!("{note:?}: {told:?}");
        };
        match why {
            RootError::Torn => assert!(torn, "{note:?}"),
            RootError::OtherType { asked, found } => {
                assert!(!torn, "{note:?}");
                assert!(asked == "u64" && found.starts_with("Atlas"), "{found}");
            }
            other => panic!("{other}"),
        }
    }
    drop(writer);
    let mut numbers = domain.publisher::<Structure<u64>>("n", options()).unwrap();
    numbers
        .publish(Structure::build(&domain, |_| Ok(4)).unwrap())
        .unwrap();
    let honest = subscriber.receive(Deadline::NOW).unwrap();
    assert_eq!((*honest.root().unwrap(), honest.missed()), (4, 8));
    let other = domain.subscriber::<Atlases>("n", options()).unwrap_err();
    assert!(other.to_string().contains("another type"), "{other}");
}

/// Publishers and subscribers in other processes, which are killed.
#[cfg(feature = "marks")]
mod deaths {
    use super::*;
    use portolan_shm::mark::install;
    use portolan_testkit::{die_at, role, spawn};
    use std::os::unix::process::ExitStatusExt;

    const ENTRIES: u64 = 3000;

    /// The other process; nothing, when it is run as a test.
    #[test]
    fn victim() {
        let Some([what, name, mark]) = role() else {
            return;
        };
        let domain = Domain::join(&name).unwrap();
        if what == "subscribes" {
            let mut subscriber = domain.subscriber::<Atlases>("t", options()).unwrap();
            let mut held = Vec::new();
            loop {
                held.push(subscriber.receive(PATIENCE).unwrap());
                if held.len() == 6 {
                    die_at(&mark, install);
                }
                if held.len() > 8 {
                    drop(held.remove(2));
                }
            }
        }
        let mut publisher = domain.publisher::<Atlases>("t", options()).unwrap();
        for number in 0.. {
            if number == 12 {
                die_at(&mark, install);
            }
            publish(&mut publisher, number, ENTRIES);
        }
    }

    fn domain(what: &str, mark: &str) -> (Domain, std::process::Child) {
        let name = portolan_testkit::unique(&format!("atlases-{what}"));
        let domain = Domain::join(&name).unwrap();
        let child = spawn("structures::deaths::victim", &[what, &name, mark]);
        (domain, child)
    }

    #[test]
    fn a_publisher_dies_at_whatever_step() {
        for mark in [
            "segment.posted",
            "segment.shared",
            "topic.shared",
            "topic.kept",
            "segment.closing",
        ] {
            let (domain, mut child) = domain("publishes", mark);
            let mut subscriber = domain.subscriber::<Atlases>("t", options()).unwrap();
            let mut kept = Vec::new();
            let (mut next, mut told) = (0, 0);
            // Its end is noticed by nothing more coming.
            let status = loop {
                match subscriber.receive(Deadline::after(std::time::Duration::from_millis(20))) {
                    Ok(sample) => {
                        next += sample.missed();
                        is_atlas(sample.root().unwrap(), next, ENTRIES);
                        (next, told) = (next + 1, told + 1);
                        if kept.len() < 3 {
                            kept.push(sample);
                        }
                    }
                    Err(SubscribeError::TimedOut) => {
                        if let Some(status) = child.try_wait().unwrap() {
                            break status;
                        }
                    }
                    Err(error) => panic!("{mark}: {error}"),
                }
            };
            assert_eq!(status.signal(), Some(libc::SIGKILL), "{mark}");
            assert!(told > 0, "{mark}");
            // What was read is still there, and the next one publishes on.
            for sample in &kept {
                is_atlas(sample.root().unwrap(), sample.position(), ENTRIES);
            }
            let mut successor = domain.publisher::<Atlases>("t", options()).unwrap();
            publish(&mut successor, 77, 10);
            let sample = subscriber.receive(PATIENCE).unwrap();
            is_atlas(sample.root().unwrap(), 77, 10);
            drop((kept, sample, successor, subscriber));
            until("all is freed", || used(&domain) == (0, 0));
        }
    }

    #[test]
    fn what_a_killed_subscriber_held_is_freed() {
        for mark in ["segment.joining", "segment.closing"] {
            let (domain, mut child) = domain("subscribes", mark);
            let few = options().history(2);
            let mut publisher = domain.publisher::<Atlases>("t", few).unwrap();
            let mut number = 0;
            until("its death", || {
                publish(&mut publisher, number, 100);
                number += 1;
                child.try_wait().unwrap().is_some()
            });
            let mut subscriber = domain.subscriber::<Atlases>("t", few).unwrap();
            let sample = subscriber.receive(PATIENCE).unwrap();
            is_atlas(sample.root().unwrap(), sample.position(), 100);
            drop((sample, subscriber, publisher));
            until("all is freed", || used(&domain) == (0, 0));
        }
    }
}
