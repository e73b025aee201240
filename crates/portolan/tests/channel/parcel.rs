//! Parcels: large payloads beside a channel's messages.

use crate::{PATIENCE, used};
use portolan::channel::{
    Channel, ChannelOptions, Delivery, Lagging, Missed, Parcel, ParcelError, ParcelReader,
    ReadError, ReaderOptions,
};
use portolan::{
    Access, Deadline, Domain, Message, PortKind, PortOptions, Refused, Right, SendError, WhenFull,
};
use std::sync::atomic::{AtomicBool, Ordering};

/// What a parcel is full of.
fn byte_of(parcel: Option<Parcel>) -> u8 {
    let parcel = parcel.unwrap();
    let bytes: &[u8] = match &parcel {
        Parcel::Moved(extent) => extent,
        Parcel::Shared(shared) => shared,
    };
    assert!(bytes.iter().all(|b| *b == bytes[0]));
    bytes[0]
}

fn full_of(domain: &Domain, byte: u8) -> portolan::Extent {
    let mut extent = domain.allocate(70_000).unwrap();
    extent.fill(byte);
    extent
}

fn moved(domain: &Domain, byte: u8) -> Option<Parcel> {
    Some(Parcel::Moved(full_of(domain, byte)))
}

fn shared(domain: &Domain, byte: u8) -> Option<Parcel> {
    let extent = full_of(domain, byte);
    Some(Parcel::Shared(domain.share_extent(extent).unwrap()))
}

fn bound(channel: &Channel) -> ParcelReader {
    channel
        .bind_parcel_reader(ReaderOptions::default(), PATIENCE)
        .unwrap()
}

#[test]
fn one_extent_has_one_taker_and_a_shared_one_as_many_as_there_are() {
    let domain = Domain::private().unwrap();
    let channel = domain
        .make_channel(&ChannelOptions::unnamed().reliable())
        .unwrap();
    let mut writer = channel.bind_parcel_writer().unwrap();
    let refused = writer
        .send(b"nobody", moved(&domain, 1), Deadline::NOW)
        .unwrap_err();
    assert!(matches!(
        refused.why,
        ParcelError::NotOneReader { readers: 0 }
    ));
    let mut first = bound(&channel);
    let at = writer.send(b"one", *refused.item, Deadline::NOW).unwrap();
    let delivery = first.receive(Deadline::NOW).unwrap();
    assert_eq!((&*delivery.note, delivery.position), (&b"one"[..], at));
    assert_eq!(byte_of(delivery.parcel), 1);

    let mut second = bound(&channel);
    assert_eq!(writer.readers(), 2);
    let refused = writer
        .send(b"two", moved(&domain, 2), Deadline::NOW)
        .unwrap_err();
    assert!(matches!(
        refused.why,
        ParcelError::NotOneReader { readers: 2 }
    ));
    assert_eq!(
        first.receive(Deadline::NOW).unwrap_err(),
        ReadError::TimedOut
    );

    for round in 3..60 {
        writer
            .send(&[round], shared(&domain, round), Deadline::NOW)
            .unwrap();
        writer.send(b"no parcel", None, Deadline::NOW).unwrap();
        for reader in [&mut first, &mut second] {
            let delivery = reader.receive(Deadline::NOW).unwrap();
            assert_eq!(delivery.note, [round]);
            assert_eq!(byte_of(delivery.parcel), round);
            let plain = reader.receive(Deadline::NOW).unwrap();
            assert!(plain.parcel.is_none() && plain.note == b"no parcel");
        }
    }
    // One extent lies there for all readers, until the last lets go.
    writer.send(b"", shared(&domain, 9), Deadline::NOW).unwrap();
    let held = [&mut first, &mut second].map(|r| r.receive(Deadline::NOW).unwrap().parcel);
    let [Some(Parcel::Shared(a)), Some(Parcel::Shared(b))] = held else {
        panic!("{held:?}")
    };
    assert_eq!(a.as_ptr(), b.as_ptr());
    assert_eq!(used(&domain).1, 2);
    drop(a);
    assert_eq!((b[69_999], used(&domain).1), (9, 2));
    drop(b);
    assert_eq!(used(&domain).1, 1);
    // Parcels that are not taken are freed with the reader that would have taken them.
    writer.send(b"", shared(&domain, 9), Deadline::NOW).unwrap();
    drop((first, second, refused, writer, channel));
    assert_eq!(used(&domain), (0, 0));
}

#[test]
fn a_parcel_of_another_domain_comes_back_and_nobody_is_told() {
    let (domain, other) = (Domain::private().unwrap(), Domain::private().unwrap());
    let foreign = |refused: Result<u64, Refused<Option<Parcel>, ParcelError>>| {
        let refused = refused.unwrap_err();
        assert!(matches!(
            refused.why,
            ParcelError::Unsent(SendError::Foreign)
        ));
        *refused.item
    };
    for options in [
        ChannelOptions::unnamed(),
        ChannelOptions::unnamed().reliable(),
    ] {
        let channel = domain.make_channel(&options).unwrap();
        let mut writer = channel.bind_parcel_writer().unwrap();
        let mut readers = [bound(&channel), bound(&channel)];
        let back = foreign(writer.send(b"", shared(&other, 5), Deadline::NOW));
        assert_eq!(byte_of(back), 5);
        let back = foreign(writer.send(b"", moved(&other, 6), Deadline::NOW));
        assert_eq!(byte_of(back), 6);
        for reader in &mut readers {
            let nothing = reader.receive(Deadline::NOW).unwrap_err();
            assert_eq!(nothing, ReadError::TimedOut);
        }
    }
    // What is of another domain is not shared in this one either.
    let refused = domain.share_extent(full_of(&other, 7)).unwrap_err();
    assert_eq!(refused.item.unwrap()[0], 7);
}

#[test]
fn a_full_channel_gives_the_parcel_back() {
    let domain = Domain::private().unwrap();
    let options = ChannelOptions::unnamed().reliable().units(4);
    let channel = domain.make_channel(&options).unwrap();
    let mut writer = channel.bind_parcel_writer().unwrap();
    let mut reader = bound(&channel);
    for i in 0..4 {
        writer.send(&[i], moved(&domain, i), Deadline::NOW).unwrap();
    }
    let refused = writer
        .send(b"x", moved(&domain, 5), Deadline::NOW)
        .unwrap_err();
    assert!(matches!(refused.why, ParcelError::Write(_)));
    assert_eq!(byte_of(*refused.item), 5);
    for i in 0..4 {
        assert_eq!(byte_of(reader.receive(Deadline::NOW).unwrap().parcel), i);
    }
    // A reader that takes no parcels, and wants to be waited for.
    let _plain = channel.bind_reader(ReaderOptions::default()).unwrap();
    let refused = writer.send(b"", shared(&domain, 6), Deadline::NOW);
    let reason = refused.unwrap_err().why;
    assert!(matches!(reason, ParcelError::Unknown { readers: 1 }));
    let called = ChannelOptions::unnamed().many_writers();
    let called = domain.make_channel(&called).unwrap();
    assert!(called.bind_parcel_writer().is_err());
}

#[test]
fn who_need_not_be_waited_for_misses_what_it_is_too_slow_for() {
    let domain = Domain::private().unwrap();
    let consistent = ChannelOptions::unnamed().units(8);
    let reliable = consistent.clone().reliable();
    for options in [consistent, reliable] {
        let channel = domain.make_channel(&options).unwrap();
        let mut writer = channel.bind_parcel_writer().unwrap();
        let skips = ReaderOptions::default().lagging(Lagging::Skip);
        let mut slow = channel.bind_parcel_reader(skips, PATIENCE).unwrap();
        if !channel.is_reliable() {
            let refused = writer.send(b"", moved(&domain, 0), Deadline::NOW);
            assert!(matches!(refused.unwrap_err().why, ParcelError::NotReliable));
        }
        for i in 0..100 {
            // Never refused.
            writer
                .send(&[i], shared(&domain, i), Deadline::NOW)
                .unwrap();
        }
        let (mut next, mut got) = (0, 0);
        loop {
            match slow.receive(Deadline::NOW) {
                Ok(Delivery {
                    note,
                    parcel,
                    position,
                }) => {
                    assert_eq!((position, u64::from(note[0])), (next, next));
                    assert_eq!(byte_of(parcel), note[0]);
                    (next, got) = (next + 1, got + 1);
                }
                Err(ReadError::Missed(Missed { from, to })) => {
                    assert_eq!(from, next);
                    next = to;
                }
                Err(error) => break assert_eq!(error, ReadError::TimedOut),
            }
        }
        assert_eq!(next, 100);
        assert!(got < 10, "{got}");
        // It has caught up, and gets the next.
        writer
            .send(&[7], shared(&domain, 7), Deadline::NOW)
            .unwrap();
        assert_eq!(byte_of(slow.receive(Deadline::NOW).unwrap().parcel), 7);
        drop((writer, slow, channel));
        assert_eq!(used(&domain), (0, 0));
    }
}

#[test]
fn readers_come_and_go_while_parcels_are_sent() {
    let domain = Domain::private().unwrap();
    let options = ChannelOptions::unnamed().reliable().units(16);
    let channel = domain.make_channel(&options).unwrap();
    let mut writer = channel.bind_parcel_writer().unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in (0..251).cycle() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                writer.send(&[i], shared(&domain, i), PATIENCE).unwrap();
            }
        });
        let mut readers = (0..3).map(|_| {
            scope.spawn(|| {
                for round in 0..40 {
                    let mut reader = bound(&channel);
                    let mut last = None;
                    for _ in 0..round % 7 + 1 {
                        // A reader that has come gets all parcels from its first one on.
                        let delivery = reader.receive(PATIENCE).unwrap();
                        let byte = delivery.note[0];
                        assert_eq!(byte_of(delivery.parcel), byte);
                        assert!(last.is_none_or(|last| byte == (last + 1) % 251));
                        last = Some(byte);
                    }
                }
            })
        });
        let readers: Vec<_> = readers.by_ref().collect();
        readers.into_iter().for_each(|r| r.join().unwrap());
        over.store(true, Ordering::Relaxed);
    });
    drop((writer, channel));
    assert_eq!(used(&domain), (0, 0));
}

#[test]
fn the_next_writer_waits_until_it_knows_whom_it_waits_for() {
    let domain = Domain::private().unwrap();
    let options = ChannelOptions::unnamed().reliable();
    let channel = domain.make_channel(&options).unwrap();
    let first = channel.bind_parcel_writer().unwrap();
    let mut reader = bound(&channel);
    drop(first);
    for round in 0..20 {
        if round % 3 == 0 {
            // Gone before the reader looks.
            drop(channel.bind_parcel_writer().unwrap());
        }
        let mut writer = channel.bind_parcel_writer().unwrap();
        let refused = writer.send(b"", shared(&domain, round), Deadline::NOW);
        let reason = refused.unwrap_err().why;
        assert!(
            matches!(reason, ParcelError::Unknown { readers: 1 }),
            "{reason}"
        );
        std::thread::scope(|scope| {
            scope.spawn(|| {
                writer.send(b"", moved(&domain, round), PATIENCE).unwrap();
            });
            assert_eq!(reader.receive(PATIENCE).unwrap_err(), ReadError::WriterGone);
            assert_eq!(byte_of(reader.receive(PATIENCE).unwrap().parcel), round);
        });
    }
}

#[test]
fn hostile_notes_and_parcels_are_missed_and_no_more() {
    let domain = Domain::private().unwrap();
    let options = ChannelOptions::unnamed().reliable();
    let channel = domain.make_channel(&options).unwrap();
    let mut writer = channel.bind_parcel_writer().unwrap();
    let mut reader = bound(&channel);
    writer.send(b"", shared(&domain, 1), PATIENCE).unwrap();
    assert_eq!(byte_of(reader.receive(PATIENCE).unwrap().parcel), 1);
    drop(writer);
    assert_eq!(reader.receive(PATIENCE).unwrap_err(), ReadError::WriterGone);
    // Another process stands at the registry, and gets the right on the inbox.
    let port = domain.survey().unwrap();
    let port = port.ports.iter().find(|p| p.kind == PortKind::Segment);
    let port = port.unwrap();
    let name = format!("parcels {}.{}", port.index, port.generation);
    let mut registry = domain.bind(PortOptions::named(&name)).unwrap();
    assert_eq!(
        reader.receive(Deadline::NOW).unwrap_err(),
        ReadError::TimedOut
    );
    let mut registration = registry.receive(Access::Later, PATIENCE).unwrap();
    let Some(Right::Send(inbox)) = registration.take_rights().pop() else {
        panic!()
    };
    let mut raw = channel.bind_writer().unwrap();
    let stamp = |number: u64, flag: u8| {
        let mut stamp = [0; 16];
        stamp[..8].copy_from_slice(&number.to_le_bytes());
        stamp[8..].copy_from_slice(&[1, 0, 0, 0, flag, 0, 0, 0]);
        stamp
    };
    let post = |header: &[u8], what: Option<Right>| {
        let mut message = Message::new(header).unwrap();
        if let Some(right) = what {
            message.attach(right).unwrap();
        }
        inbox.send(message, WhenFull::Fail).unwrap();
    };
    post(b"", None);
    post(b"short", Some(inbox.clone().into()));
    post(&stamp(1, 1), None);
    post(&stamp(2, 1), Some(inbox.clone().into()));
    let writable = domain.make_segment(None, 4096).unwrap();
    post(&stamp(3, 1), Some(writable.into()));
    post(&stamp(4, 1), Some(channel.clone().into()));
    let notes = [vec![], vec![1; 15], vec![0xff; 40]];
    let stamped = (1..=4).map(|number| stamp(number, 1).to_vec());
    for note in notes.into_iter().chain(stamped) {
        let from = raw.write(&note, PATIENCE).unwrap();
        let to = from + 1;
        assert_eq!(
            reader.receive(PATIENCE).unwrap_err(),
            ReadError::Missed(Missed { from, to }),
            "{note:?}"
        );
    }
    drop((raw, registry));
    // The next honest one is heard.
    let mut writer = channel.bind_parcel_writer().unwrap();
    assert_eq!(reader.receive(PATIENCE).unwrap_err(), ReadError::WriterGone);
    std::thread::scope(|scope| {
        scope.spawn(|| writer.send(b"", shared(&domain, 2), PATIENCE).unwrap());
        assert_eq!(byte_of(reader.receive(PATIENCE).unwrap().parcel), 2);
    });
    // What a registry is handed that is no registration counts for no reader.
    let registry = domain.connect(&name, PATIENCE).unwrap();
    for header in [&b""[..], &[0xff; 100]] {
        let message = Message::new(header).unwrap();
        registry.send(message, WhenFull::Fail).unwrap();
        let mut message = Message::new(header).unwrap();
        message.attach(channel.clone()).unwrap();
        registry.send(message, WhenFull::Fail).unwrap();
    }
    writer.send(b"", moved(&domain, 3), PATIENCE).unwrap();
    assert_eq!(byte_of(reader.receive(PATIENCE).unwrap().parcel), 3);
    drop((writer, reader, channel, registry, inbox, registration));
    assert_eq!(used(&domain), (0, 0));
}

#[cfg(feature = "marks")]
mod deaths {
    use super::*;
    use portolan_testkit::until;
    use std::os::unix::process::ExitStatusExt;

    /// The other process; nothing, when it is run as a test.
    #[test]
    fn victim() {
        let Some([what, name, mark]) = portolan_testkit::role() else {
            return;
        };
        let domain = Domain::join(&name).unwrap();
        let channel = domain.find_channel("channel", PATIENCE).unwrap();
        if what == "reads" {
            let mut reader = channel
                .bind_parcel_reader(ReaderOptions::default(), PATIENCE)
                .unwrap();
            let mut held = vec![];
            for i in 0.. {
                held.push(reader.receive(PATIENCE).unwrap());
                if i == 5 {
                    portolan_testkit::die_at(&mark, portolan_shm::mark::install);
                }
                if mark == "none" && i == 9 {
                    // With parcels in its hands.
                    portolan_testkit::die();
                }
            }
        }
        let mut writer = channel.bind_parcel_writer().unwrap();
        until("a reader", || writer.readers() == 1);
        for i in 0u8.. {
            let mut extent = domain.allocate(20_000).unwrap();
            extent.fill(i);
            let parcel = if i % 2 == 0 {
                Parcel::Moved(extent)
            } else {
                Parcel::Shared(domain.share_extent(extent).unwrap())
            };
            writer.send(&[i], Some(parcel), PATIENCE).unwrap();
            if i == 5 {
                portolan_testkit::die_at(&mark, portolan_shm::mark::install);
            }
        }
    }

    #[test]
    fn a_writer_dies_with_a_parcel_in_its_hands() {
        for mark in [
            "send.published",
            "channel.parcel_sent",
            "channel.published",
            "segment.shared",
        ] {
            let name = portolan_testkit::unique("parcel-w");
            let domain = Domain::join(&name).unwrap();
            let options = ChannelOptions::named("channel").reliable();
            let channel = domain.make_channel(&options).unwrap();
            let mut child =
                portolan_testkit::spawn("parcel::deaths::victim", &["writes", &name, mark]);
            let mut reader = channel
                .bind_parcel_reader(ReaderOptions::default(), PATIENCE)
                .unwrap();
            let mut next = 0;
            loop {
                match reader.receive(PATIENCE) {
                    Ok(delivery) => {
                        assert_eq!(delivery.note, [next], "{mark}");
                        assert_eq!(byte_of(delivery.parcel), next, "{mark}");
                        next += 1;
                    }
                    Err(ReadError::WriterGone) => break,
                    Err(error) => panic!("{mark}: {error}"),
                }
            }
            assert!(next >= 6, "{mark}");
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
            // The next writer, and the same reader, which is told once.
            let mut writer = None;
            until(mark, || {
                writer = channel.bind_parcel_writer().ok();
                writer.is_some()
            });
            let mut writer = writer.unwrap();
            assert_eq!(
                reader.receive(Deadline::NOW).unwrap_err(),
                ReadError::TimedOut
            );
            assert_eq!(writer.readers(), 1, "{mark}");
            let parcel = moved(&domain, 1);
            writer.send(b"again", parcel, Deadline::NOW).unwrap();
            let delivery = reader.receive(Deadline::NOW).unwrap();
            assert_eq!(delivery.note, b"again", "{mark}");
            drop((delivery, reader, writer, channel));
            until(mark, || used(&domain) == (0, 0));
        }
    }

    #[test]
    fn a_reader_dies_with_parcels_on_their_way_and_in_its_hands() {
        for mark in ["channel.copied", "receive.noted", "receive.taken", "none"] {
            let name = portolan_testkit::unique("parcel-r");
            let domain = Domain::join(&name).unwrap();
            let options = ChannelOptions::named("channel").reliable().units(8);
            let channel = domain.make_channel(&options).unwrap();
            let mut writer = channel.bind_parcel_writer().unwrap();
            let mut child =
                portolan_testkit::spawn("parcel::deaths::victim", &["reads", &name, mark]);
            until(mark, || writer.readers() == 1);
            for i in 0..200u8 {
                let parcel = match writer.readers() {
                    1 if i % 2 == 0 => moved(&domain, i),
                    _ => shared(&domain, i),
                };
                if let Err(error) = writer.send(&[i], parcel, PATIENCE) {
                    // Dead between the count and the send.
                    assert_eq!(byte_of(*error.item), i);
                }
            }
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
            assert_eq!(writer.readers(), 0);
            drop((writer, channel));
            until(mark, || used(&domain) == (0, 0));
        }
    }

    #[test]
    fn what_a_dead_reader_held_stays_for_the_others() {
        let name = portolan_testkit::unique("parcel-o");
        let domain = Domain::join(&name).unwrap();
        let options = ChannelOptions::named("channel").reliable().units(8);
        let channel = domain.make_channel(&options).unwrap();
        let mut writer = channel.bind_parcel_writer().unwrap();
        let mut reader = bound(&channel);
        let mut child =
            portolan_testkit::spawn("parcel::deaths::victim", &["reads", &name, "none"]);
        until("two readers", || writer.readers() == 2);
        let mut held = vec![];
        for i in 0..40u8 {
            writer.send(&[i], shared(&domain, i), PATIENCE).unwrap();
            held.push(reader.receive(PATIENCE).unwrap().parcel);
        }
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        until("its entry", || writer.readers() == 1);
        // New memory is not the memory that is still held.
        let _others: Vec<_> = (0..40).map(|_| full_of(&domain, 99)).collect();
        for (i, parcel) in (0..).zip(held) {
            assert_eq!(byte_of(parcel), i);
        }
        drop((writer, reader, channel, _others));
        until("nothing left", || used(&domain) == (0, 0));
    }
}
