//! Types of which not any bytes are a value, and which have padding.

use crate::{PATIENCE, options};
use portolan::channel::{Payload, Plain, SubscribeError, Writer};
use portolan::{Deadline, Domain};
use std::mem::{offset_of, size_of};
use std::num::NonZeroU16;

#[derive(Clone, Copy, Debug, PartialEq, Payload)]
#[repr(C)]
struct Track {
    seen: bool,
    // Seven bytes of padding.
    id: u64,
    kind: Kind,
    // One.
    number: NonZeroU16,
    mark: char,
    what: Finding,
    // Perhaps some.
}

#[derive(Clone, Copy, Debug, PartialEq, Payload)]
#[repr(u8)]
enum Kind {
    Ship = 3,
    Buoy,
    Rock = 9,
}

#[derive(Clone, Copy, Debug, PartialEq, Payload)]
#[repr(u8)]
enum Finding {
    Depth(u32) = 1,
    Light { on: bool, seconds: u16 },
    Nothing = 200,
}

#[derive(Clone, Copy, Debug, PartialEq, Payload)]
#[repr(transparent)]
struct Both<T>([T; 2]);

fn track(id: u64) -> Track {
    Track {
        seen: true,
        id,
        kind: Kind::Buoy,
        number: NonZeroU16::new(7).unwrap(),
        mark: 'ü',
        what: Finding::Light {
            on: true,
            seconds: 5,
        },
    }
}

/// The bytes of the samples that are in a topic's ring.
fn ring(domain: &Domain, name: &str) -> portolan::channel::Reader {
    use portolan::channel::{ReaderOptions, Since};
    let channel = domain.find_channel(name, Deadline::NOW).unwrap();
    channel
        .bind_reader(ReaderOptions::default().since(Since::Last(10)))
        .unwrap()
}

#[test]
fn values_with_padding_come_as_they_were_published() {
    let domain = Domain::private().unwrap();
    let mut publisher = domain.publisher::<Track>("one", options()).unwrap();
    let mut subscriber = domain.subscriber::<Track>("one", options()).unwrap();
    for what in [
        Finding::Depth(9),
        Finding::Nothing,
        Finding::Light {
            on: false,
            seconds: 9,
        },
    ] {
        let kind = Kind::Rock;
        let sent = Track {
            what,
            kind,
            ..track(1)
        };
        publisher.publish(&sent).unwrap();
        assert_eq!(*subscriber.receive(Deadline::NOW).unwrap(), sent);
    }
    // Through the ring, and in memory that all read.
    let mut publisher = domain.publisher::<[Track]>("many", options()).unwrap();
    let mut subscriber = domain.subscriber::<[Track]>("many", options()).unwrap();
    for count in [0, 1, 3, 5000] {
        let sent: Vec<_> = (0..count).map(track).collect();
        publisher.publish(&sent).unwrap();
        assert_eq!(*subscriber.receive(Deadline::NOW).unwrap(), *sent);
    }
    let mut publisher = domain.publisher::<Both<bool>>("both", options()).unwrap();
    let mut subscriber = domain.subscriber::<Both<bool>>("both", options()).unwrap();
    publisher.publish(&Both([true, false])).unwrap();
    let both = subscriber.receive(Deadline::NOW).unwrap().into_inner();
    assert_eq!(both, Both([true, false]));
}

/// Where a [`Track`] has no field's byte.
fn is_padding(at: usize) -> bool {
    let fields = [
        (offset_of!(Track, seen), 1),
        (offset_of!(Track, id), 8),
        (offset_of!(Track, kind), 1),
        (offset_of!(Track, number), 2),
        (offset_of!(Track, mark), 4),
        // A number, a `bool` behind it, and a number of two bytes at the next even place.
        (offset_of!(Track, what), 4),
    ];
    fields
        .iter()
        .all(|(start, len)| !(*start..start + len).contains(&at))
}

/// Values in memory whose padding is not zero.
fn dirty() -> Vec<Track> {
    let mut values: Vec<_> = (0..300).map(track).collect();
    let first = values.as_mut_ptr().cast::<u8>();
    let bytes = size_of_val(&*values);
    for at in (0..bytes).filter(|at| is_padding(at % size_of::<Track>())) {
        let place = first.wrapping_add(at);
        // SAFETY:
        // - in bounds: a byte of the vector's, and exclusive; no field has it, so the values stay
        //   what they are.
        unsafe { place.write(0xee) };
    }
    values
}

#[test]
fn nothing_of_the_publishers_memory_gets_out_by_padding() {
    assert_eq!(size_of::<Track>(), 32);
    assert!((0..size_of::<Track>()).filter(|at| is_padding(*at)).count() >= 8);
    let domain = Domain::private().unwrap();
    let few = options().copied(1024);
    let mut publisher = domain.publisher::<[Track]>("t", few).unwrap();
    let mut subscriber = domain.subscriber::<[Track]>("t", few).unwrap();
    let mut ring = ring(&domain, "t#0");
    let dirty = dirty();
    let clean = |bytes: &[u8]| {
        let mut bytes = bytes.chunks_exact(size_of::<Track>()).flatten().enumerate();
        bytes.all(|(at, byte)| *byte == 0 || !is_padding(at % size_of::<Track>()))
    };
    // Copied: behind a tag.
    publisher.publish(&dirty[..9]).unwrap();
    assert_eq!(*subscriber.receive(Deadline::NOW).unwrap(), dirty[..9]);
    let copied = ring.receive(Deadline::NOW).unwrap().to_vec();
    assert_eq!(copied.len(), 8 + 9 * size_of::<Track>());
    assert!(clean(&copied[8..]), "{copied:x?}");
    let mut loan = publisher.loan(9).unwrap();
    loan.copy_from_slice(&dirty[..9]);
    loan.publish().unwrap();
    assert_eq!(*subscriber.receive(Deadline::NOW).unwrap(), dirty[..9]);
    let copied = ring.receive(Deadline::NOW).unwrap().to_vec();
    assert!(clean(&copied[8..]), "{copied:x?}");
    // In memory that all read; a loan of it too.
    let in_buffer = |sample: &portolan::channel::Sample<[Track]>| {
        let (first, len) = (sample.as_ptr().cast::<u8>(), size_of_val(&**sample));
        // SAFETY:
        // - a sample's memory, which is file memory; the sample is kept meanwhile.
        unsafe { std::slice::from_raw_parts(first, len) }.to_vec()
    };
    publisher.publish(&dirty).unwrap();
    let sample = subscriber.receive(Deadline::NOW).unwrap();
    assert_eq!(*sample, *dirty);
    assert!(clean(&in_buffer(&sample)));
    let mut loan = publisher.loan(dirty.len()).unwrap();
    loan.copy_from_slice(&dirty);
    loan.publish().unwrap();
    let sample = subscriber.receive(Deadline::NOW).unwrap();
    assert_eq!(*sample, *dirty);
    assert!(clean(&in_buffer(&sample)));
}

#[test]
fn a_loan_begins_with_a_value() {
    let domain = Domain::private().unwrap();
    let first = Track {
        seen: false,
        id: 0,
        kind: Kind::Ship,
        number: NonZeroU16::MIN,
        mark: '\0',
        what: Finding::Depth(0),
    };
    let mut one = domain.publisher::<Track>("one", options()).unwrap();
    let mut many = domain.publisher::<[Track]>("many", options()).unwrap();
    for round in 0..3 {
        let mut loan = one.loan().unwrap();
        assert_eq!(*loan, first);
        loan.id = round;
        loan.publish().unwrap();
        drop(one.loan().unwrap());
        for len in [2, 1000] {
            let mut loan = many.loan(len).unwrap();
            assert!(loan.iter().all(|track| *track == first));
            loan.fill(track(round));
            if round > 0 {
                loan.publish().unwrap();
            }
        }
    }
    // Of numbers it may hold anything; a loan that is given up does no harm.
    let mut numbers = domain.publisher::<[u64; 3]>("numbers", options()).unwrap();
    drop(numbers.loan().unwrap());
    let mut loan = numbers.loan().unwrap();
    *loan = [1, 2, 3];
    loan.publish().unwrap();
}

/// Writes bytes as if a publisher of this topic had.
fn writer(domain: &Domain) -> Writer {
    let channel = domain.find_channel("t#0", Deadline::NOW).unwrap();
    channel.bind_writer().unwrap()
}

#[test]
fn bytes_that_are_no_value_are_an_error_and_the_next_sample_comes() {
    let domain = Domain::private().unwrap();
    let mut publisher = domain.publisher::<Track>("t", options()).unwrap();
    let mut subscriber = domain.subscriber::<Track>("t", options()).unwrap();
    let mut ring = ring(&domain, "t#0");
    publisher.publish(&track(1)).unwrap();
    assert_eq!(*subscriber.receive(Deadline::NOW).unwrap(), track(1));
    let good = ring.receive(Deadline::NOW).unwrap().to_vec();
    drop(publisher);
    let mut writer = writer(&domain);
    let what = offset_of!(Track, what);
    let spoilt: [(usize, &[u8]); 9] = [
        (offset_of!(Track, seen), &[2]),
        (offset_of!(Track, kind), &[0]),
        (offset_of!(Track, kind), &[5]),
        (offset_of!(Track, number), &[0, 0]),
        (offset_of!(Track, mark), &[0, 0xd8, 0, 0]),
        (offset_of!(Track, mark), &[0, 0, 0x11, 0]),
        (what, &[0]),
        (what, &[3]),
        (what + 1, &[0xff]),
    ];
    for (position, (at, bytes)) in (1..).zip(spoilt) {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        writer.write(&bad, PATIENCE).unwrap();
        let told = subscriber.receive(Deadline::NOW);
        let Err(SubscribeError::NotAValue {
            publisher: 0,
            position: found,
            wanted,
        }) = told
        else {
            panic!("{at}: {told:?}");
        };
        assert!(found == position && wanted.ends_with("Track"));
    }
    // The content of padding does not matter.
    let mut odd = good.clone();
    odd[offset_of!(Track, seen) + 1] = 0xee;
    writer.write(&odd, PATIENCE).unwrap();
    let sample = subscriber.receive(Deadline::NOW).unwrap();
    assert_eq!((*sample, sample.missed()), (track(1), 0));
}

#[test]
fn short_and_long_samples_of_a_slice_come_by_turns() {
    let domain = Domain::private().unwrap();
    let mut publisher = domain.publisher::<[u16]>("turns", options()).unwrap();
    let mut subscriber = domain.subscriber::<[u16]>("turns", options()).unwrap();
    // Around what is taken out of the ring in a straight line, and what lies in memory of its own.
    for len in (0..40).chain(2000..2004).chain(0..40) {
        let sent: Vec<u16> = (0..len).map(|i| i * 3 + len).collect();
        publisher.publish(&sent).unwrap();
        let sample = subscriber.receive(Deadline::NOW).unwrap();
        assert_eq!((&*sample, sample.missed()), (&sent[..], 0));
        let kept = sample.clone();
        drop(sample);
        assert_eq!(*kept, *sent);
    }
    let nothing = subscriber.receive(Deadline::NOW);
    assert!(matches!(nothing, Err(SubscribeError::TimedOut)));
}

#[test]
fn bytes_of_another_length_are_left_out_and_count_as_missed() {
    let domain = Domain::private().unwrap();
    let publisher = domain.publisher::<[u64; 3]>("t", options()).unwrap();
    let mut subscriber = domain.subscriber::<[u64; 3]>("t", options()).unwrap();
    drop(publisher);
    let mut writer = writer(&domain);
    for wrong in [0, 8, 23, 25, 32] {
        writer.write(&vec![7; wrong], PATIENCE).unwrap();
        let nothing = subscriber.receive(Deadline::NOW);
        assert!(matches!(nothing, Err(SubscribeError::TimedOut)), "{wrong}");
    }
    for wrong in [0, 8, 23, 25, 32] {
        writer.write(&vec![7; wrong], PATIENCE).unwrap();
    }
    writer.write(&[1; 24], PATIENCE).unwrap();
    let sample = subscriber.receive(Deadline::NOW).unwrap();
    assert_eq!((sample[2], sample.missed()), (0x0101_0101_0101_0101, 10));
}

#[test]
fn types_of_other_variants_or_another_number_are_others() {
    mod other {
        #[derive(Clone, Copy, portolan::channel::Payload)]
        #[repr(u8)]
        pub(super) enum Kind {
            Ship = 3,
            Buoy,
            Rock = 10,
        }
        impl Kind {
            pub(super) const ALL: [Self; 3] = [Self::Ship, Self::Buoy, Self::Rock];
        }
    }
    assert_eq!(other::Kind::ALL.len(), 3);
    assert_ne!(Kind::HASH, other::Kind::HASH);
    assert_ne!(<Both<u8> as Plain>::HASH, <Both<i8> as Plain>::HASH);
    // What costs nothing to look at, and has nothing to be zeroed.
    const {
        assert!(Both::<u64>::ANY && Both::<u64>::WHOLE);
        assert!(!Both::<bool>::ANY && Both::<bool>::WHOLE);
        assert!(!Track::ANY && !Track::WHOLE && !Finding::WHOLE && Kind::WHOLE);
    }
}
