//! What no publisher writes, in a publisher's channel.

use crate::{PATIENCE, options, until, used};
use portolan::channel::{ReadError, ReaderOptions, Since, SubscribeError};
use portolan::{Deadline, Domain, PortKind, Segment};
use portolan_testkit::{role, spawn, unique};
use std::sync::atomic::Ordering;

/// A note as publishers write it.
fn note(len: u64, generation: u32, index: u16) -> Vec<u8> {
    let mut bytes = vec![1, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend(len.to_le_bytes());
    bytes.extend(generation.to_le_bytes());
    bytes.extend(index.to_le_bytes());
    bytes.extend([0, 0]);
    bytes
}

#[test]
fn hostile_notes_are_missed_and_no_more() {
    let domain = Domain::private().unwrap();
    let mut subscriber = domain.subscriber::<[u64]>("t", options()).unwrap();
    let mut publisher = domain.publisher::<[u64]>("t", options()).unwrap();
    publisher.publish(&[1; 1000]).unwrap();
    let sample = subscriber.receive(Deadline::NOW).unwrap();
    assert_eq!(*sample, [1; 1000]);
    let channel = publisher.channel().clone();
    drop(publisher);
    // What the sample lies in, and a segment that is written.
    let written = domain.make_segment(None, 4096).unwrap();
    let survey = domain.survey().unwrap();
    let segments = survey.ports.iter().filter(|p| p.kind == PortKind::Segment);
    let segments: Vec<_> = segments.map(|p| (p.generation, p.index)).collect();
    assert!(segments.len() >= 3, "{segments:?}");
    let port = domain.bind(Default::default()).unwrap();
    let mut writer = channel.bind_writer().unwrap();
    let mut hostile = vec![
        vec![],
        vec![0; 7],
        vec![2; 30],
        // Not whole words.
        [&[0; 8][..], &[1; 9]].concat(),
        note(8, 0, u16::MAX),
        note(0, u32::MAX, 0),
        note(8, 0, 4000),
        note(8, 0, 0)[..20].to_vec(),
    ];
    for (generation, index) in segments {
        // Too long, of no whole words, and of a later use.
        hostile.push(note(u64::MAX, generation, index));
        hostile.push(note(1 << 30, generation, index));
        hostile.push(note(7, generation, index));
        hostile.push(note(8, generation + 1, index));
    }
    let count = hostile.len() as u64;
    for message in hostile {
        writer.write(&message, PATIENCE).unwrap();
        let nothing = subscriber.receive(Deadline::NOW);
        assert!(
            matches!(nothing, Err(SubscribeError::TimedOut)),
            "{message:?}: {nothing:?}"
        );
    }
    drop(writer);
    let mut publisher = domain.publisher::<[u64]>("t", options()).unwrap();
    publisher.publish(&[2; 1000]).unwrap();
    let honest = subscriber.receive(Deadline::NOW).unwrap();
    assert_eq!((honest[999], honest.missed()), (2, count));
    assert_eq!(*sample, [1; 1000]);
    drop((
        sample, honest, subscriber, publisher, channel, written, port,
    ));
    assert_eq!(used(&domain), (0, 0));
}

/// The other process; nothing, when it is run as a test.
#[test]
fn keeper() {
    let Some([name]) = role() else { return };
    let domain = Domain::join(&name).unwrap();
    let mut publisher = domain.publisher::<[u64]>("theirs", options()).unwrap();
    publisher.publish(&[3; 1000]).unwrap();
    std::thread::sleep(PATIENCE);
}

/// Its publisher would write it under a subscriber that another one told of it: it takes back only
/// what it has told itself.
#[test]
fn a_buffer_that_another_process_keeps_is_missed() {
    let name = unique("topic-keeper");
    let domain = Domain::join(&name).unwrap();
    let mut theirs = domain.subscriber::<[u64]>("theirs", options()).unwrap();
    let mut other = spawn("hostile::keeper", &[&name]);
    assert_eq!(*theirs.receive(PATIENCE).unwrap(), [3; 1000]);
    let note = {
        let channel = domain.find_channel("theirs#0", Deadline::NOW).unwrap();
        let since = ReaderOptions::default().since(Since::Last(1));
        let mut reader = channel.bind_reader(since).unwrap();
        reader.receive(Deadline::NOW).unwrap().to_vec()
    };

    let mut subscriber = domain.subscriber::<[u64]>("t", options()).unwrap();
    let publisher = domain.publisher::<[u64]>("t", options()).unwrap();
    let channel = publisher.channel().clone();
    drop(publisher);
    let mut writer = channel.bind_writer().unwrap();
    writer.write(&note, PATIENCE).unwrap();
    let nothing = subscriber.receive(Deadline::NOW);
    assert!(
        matches!(nothing, Err(SubscribeError::TimedOut)),
        "{nothing:?}"
    );
    drop(writer);
    let mut publisher = domain.publisher::<[u64]>("t", options()).unwrap();
    publisher.publish(&[4; 1000]).unwrap();
    let honest = subscriber.receive(Deadline::NOW).unwrap();
    assert_eq!((honest[999], honest.missed()), (4, 1));

    other.kill().unwrap();
    other.wait().unwrap();
    drop((honest, subscriber, publisher, channel, theirs));
    until("all is returned", || used(&domain) == (0, 0));
}

#[test]
fn a_segment_that_is_written_is_nobodys_sample() {
    let domain = Domain::private().unwrap();
    let mut subscriber = domain.subscriber::<[u64]>("t", options()).unwrap();
    let publisher = domain.publisher::<[u64]>("t", options()).unwrap();
    let channel = publisher.channel().clone();
    drop(publisher);
    let mut writer = channel.bind_writer().unwrap();
    let survey = domain.survey().unwrap();
    // The channels themselves.
    for port in survey.ports.iter().filter(|p| p.kind == PortKind::Segment) {
        let told = note(64, port.generation, port.index);
        writer.write(&told, PATIENCE).unwrap();
        let nothing = subscriber.receive(Deadline::NOW);
        assert!(
            matches!(nothing, Err(SubscribeError::TimedOut)),
            "{nothing:?}"
        );
    }
}

/// Scribbles over all units of a channel.
fn scribble(segment: &Segment) {
    let words = segment.words();
    let beside_units = words.len() / 8 * 4;
    for (at, word) in (0..).zip(words).skip(beside_units) {
        word.store(0x7777_7777_7777_7777 ^ (at << 13), Ordering::SeqCst);
    }
}

#[test]
fn one_garbled_publisher_silences_nobody_else() {
    let domain = Domain::private().unwrap();
    let hostile = domain.publisher::<u64>("t", options()).unwrap();
    let mut honest = domain.publisher::<u64>("t", options()).unwrap();
    let mut subscriber = domain.subscriber::<u64>("t", options()).unwrap();
    scribble(hostile.channel().segment());
    let mut told = 0;
    for sent in 0..5 {
        honest.publish(&sent).unwrap();
        let mut received = subscriber.receive(PATIENCE);
        if let Err(SubscribeError::Read { publisher, why }) = received {
            assert_eq!(publisher, 0);
            assert!(matches!(why, ReadError::Garbled(_)), "{why:?}");
            told += 1;
            received = subscriber.receive(PATIENCE);
        }
        assert_eq!(*received.unwrap(), sent);
    }
    assert_eq!(told, 1);
    // A newcomer is followed, and the subscriber does not look at the garbled one again.
    let mut newcomer = domain.publisher::<u64>("t", options()).unwrap();
    newcomer.publish(&9).unwrap();
    let sample = subscriber.receive(PATIENCE).unwrap();
    assert_eq!((*sample, sample.publisher()), (9, 2));
    // Who takes its place makes a channel of its own.
    drop(hostile);
    let mut successor = domain.publisher::<u64>("t", options()).unwrap();
    successor.publish(&10).unwrap();
    let sample = subscriber.receive(PATIENCE).unwrap();
    assert_eq!((*sample, sample.publisher()), (10, 0));
}

#[test]
fn a_garbled_rendezvous_channel_is_reported_once() {
    let domain = Domain::private().unwrap();
    let mut publisher = domain.publisher::<u64>("t", options()).unwrap();
    let mut subscriber = domain.subscriber::<u64>("t", options()).unwrap();
    let rendezvous = domain.find_channel("t#", Deadline::NOW).unwrap();
    scribble(rendezvous.segment());
    let told = subscriber.receive(PATIENCE);
    assert!(
        matches!(told, Err(SubscribeError::Newcomers(_))),
        "{told:?}"
    );
    let nothing = subscriber.receive(Deadline::NOW);
    assert!(
        matches!(nothing, Err(SubscribeError::TimedOut)),
        "{nothing:?}"
    );
    publisher.publish(&7).unwrap();
    assert_eq!(*subscriber.receive(PATIENCE).unwrap(), 7);
}
