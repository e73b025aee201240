//! Readers of parcels that are awaited, or wait in a set, while writers come and go.

use crate::PATIENCE;
use portolan::channel::{
    Channel, ChannelOptions, Parcel, ParcelReader, ParcelWriter, ReadError, Reader, ReaderOptions,
};
use portolan::{
    Deadline, Domain, Message, PortKind, Token, WaitSet, WaitSetError, Waiting, WhenFull,
};
use std::sync::mpsc;
use std::time::Duration;
use tokio::time::timeout;

/// Parcels of each writer.
const EACH: u8 = 20;

fn bound(channel: &Channel) -> ParcelReader {
    channel
        .bind_parcel_reader(ReaderOptions::default(), PATIENCE)
        .unwrap()
}

fn shared(domain: &Domain, byte: u8) -> Option<Parcel> {
    let mut extent = domain.allocate(5000).unwrap();
    extent[4999] = byte;
    Some(Parcel::Shared(domain.share_extent(extent).unwrap()))
}

fn byte_of(parcel: Option<Parcel>) -> u8 {
    match parcel {
        Some(Parcel::Shared(shared)) => shared[4999],
        other => panic!("{other:?}"),
    }
}

/// Sends all of one writer's, waiting for readers that the last one had.
fn send_all(domain: &Domain, writer: &mut ParcelWriter) {
    for i in 0..EACH {
        let sent = writer.send(&[i], shared(domain, i), PATIENCE);
        sent.unwrap_or_else(|e| panic!("{e}"));
    }
}

/// Has one writer after the other send and leave, each as soon as it is asked for.
fn writers<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    domain: &'scope Domain,
    channel: &'scope Channel,
) -> mpsc::Sender<u64> {
    let (next, wanted) = mpsc::channel();
    scope.spawn(move || {
        for round in wanted {
            // Before the reader sleeps, or after.
            std::thread::sleep(Duration::from_micros(round * 137 % 700));
            let mut writer = channel.bind_parcel_writer().unwrap();
            if round % 3 == 0 {
                std::thread::sleep(Duration::from_micros(300));
            }
            send_all(domain, &mut writer);
        }
    });
    next
}

#[tokio::test(flavor = "current_thread")]
async fn a_task_is_told_of_parcels_and_of_later_writers() {
    let domain = Domain::private().unwrap();
    let options = ChannelOptions::unnamed().reliable().units(8);
    let channel = domain.make_channel(&options).unwrap();
    let first = channel.bind_parcel_writer().unwrap();
    let mut reader = bound(&channel);
    drop(first);
    let (next, wanted) = mpsc::channel::<u64>();
    let thread = std::thread::spawn(move || {
        std::thread::scope(|scope| {
            let all = writers(scope, &domain, &channel);
            wanted.iter().for_each(|round| all.send(round).unwrap());
            drop(all);
        });
    });
    for round in 0..60 {
        let gone = timeout(PATIENCE, reader.receive_async()).await.unwrap();
        assert_eq!(gone.unwrap_err(), ReadError::WriterGone);
        // No writer writes. A wait that is given up loses nothing.
        let nothing = timeout(Duration::from_micros(50), reader.receive_async()).await;
        assert!(nothing.is_err());
        next.send(round).unwrap();
        for i in 0..EACH {
            let delivery = timeout(PATIENCE, reader.receive_async()).await.unwrap();
            let delivery = delivery.unwrap();
            assert_eq!((&*delivery.note, byte_of(delivery.parcel)), (&[i][..], i));
        }
    }
    drop(next);
    thread.join().unwrap();
}

/// What the reader of a set gets next.
fn receive(
    set: &mut WaitSet,
    token: Token<ParcelReader>,
) -> Result<portolan::channel::Delivery, ReadError> {
    loop {
        assert_eq!(set.wait(PATIENCE).unwrap().next(), Some(token.any()));
        let reader = set.get_mut(token).unwrap();
        match reader.receive(Deadline::NOW) {
            Err(ReadError::TimedOut) => {}
            other => return other,
        }
    }
}

#[test]
fn a_wait_set_is_told_of_parcels_and_of_later_writers() {
    let domain = Domain::private().unwrap();
    let options = ChannelOptions::unnamed().reliable().units(8);
    let channel = domain.make_channel(&options).unwrap();
    for waiting in [Waiting::Sleep, Waiting::Adaptive] {
        let first = channel.bind_parcel_writer().unwrap();
        let mut set = WaitSet::new(&domain).unwrap();
        set.set_waiting(waiting);
        let token = set.add(bound(&channel)).unwrap();
        assert!(set.wait(Deadline::NOW).unwrap().is_empty());
        drop(first);
        std::thread::scope(|scope| {
            let next = writers(scope, &domain, &channel);
            for round in 0..60 {
                let gone = receive(&mut set, token).unwrap_err();
                assert_eq!(gone, ReadError::WriterGone);
                assert!(set.wait(Deadline::NOW).unwrap().is_empty());
                next.send(round).unwrap();
                for i in 0..EACH {
                    let delivery = receive(&mut set, token).unwrap();
                    assert_eq!((&*delivery.note, byte_of(delivery.parcel)), (&[i][..], i));
                }
            }
        });
        assert!(
            set.get_mut(token.of::<Reader>()).is_none()
                && set.remove(token.of::<Reader>()).is_none()
        );
        let mut reader = set.remove(token).unwrap();
        assert!(set.remove(token).is_none());
        // Out of the set it waits for itself again.
        let gone = reader.receive(PATIENCE).unwrap_err();
        assert_eq!(gone, ReadError::WriterGone);
    }
}

#[test]
fn who_writes_without_a_registry_is_not_reported_again_and_again() {
    let domain = Domain::private().unwrap();
    let options = ChannelOptions::unnamed().units(8);
    let channel = domain.make_channel(&options).unwrap();
    let first = channel.bind_parcel_writer().unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    let token = set.add(bound(&channel)).unwrap();
    drop(first);
    assert_eq!(receive(&mut set, token).unwrap_err(), ReadError::WriterGone);
    let mut plain = channel.bind_writer().unwrap();
    plain.write(b"no note", Deadline::NOW).unwrap();
    assert!(set.wait(Duration::from_millis(5)).unwrap().is_empty());
    drop(plain);
    let mut writer = channel.bind_parcel_writer().unwrap();
    // It makes itself known as it is looked at, and is then told what was before.
    let missed = receive(&mut set, token).unwrap_err();
    assert!(matches!(missed, ReadError::Missed(_)), "{missed:?}");
    assert_eq!(writer.readers(), 1);
    send_all(&domain, &mut writer);
}

#[test]
fn a_reader_that_finds_a_registry_full_is_told_when_there_is_room() {
    let domain = Domain::private().unwrap();
    let options = ChannelOptions::unnamed().units(4);
    let channel = domain.make_channel(&options).unwrap();
    let first = channel.bind_parcel_writer().unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    let token = set.add(bound(&channel)).unwrap();
    drop(first);
    assert_eq!(receive(&mut set, token).unwrap_err(), ReadError::WriterGone);
    // The next one's registry is full before the reader looks.
    let mut writer = channel.bind_parcel_writer().unwrap();
    let survey = domain.survey().unwrap();
    let segment = survey.ports.iter().find(|p| p.kind == PortKind::Segment);
    let segment = segment.unwrap();
    let registry = format!("parcels {}.{}", segment.index, segment.generation);
    let registry = domain.connect(&registry, Deadline::NOW).unwrap();
    while registry.send(Message::default(), WhenFull::Fail).is_ok() {}
    assert!(set.wait(Deadline::NOW).unwrap().is_empty());
    assert!(set.wait(Duration::from_millis(2)).unwrap().is_empty());
    std::thread::scope(|scope| {
        let receives = scope.spawn(|| receive(&mut set, token).unwrap());
        std::thread::sleep(Duration::from_millis(5));
        // Each look at the registry makes room.
        portolan_testkit::until("the reader is known", || writer.readers() == 1);
        let sent = writer.send(b"", shared(&domain, 5), Deadline::NOW);
        assert!(sent.is_ok());
        assert_eq!(byte_of(receives.join().unwrap().parcel), 5);
    });
}

#[test]
fn a_reader_of_parcels_that_is_not_added_comes_back() {
    let domain = Domain::private().unwrap();
    let elsewhere = Domain::private().unwrap();
    let mut set = WaitSet::new(&elsewhere).unwrap();
    let channel = domain.make_channel(&ChannelOptions::unnamed()).unwrap();
    let mut writer = channel.bind_parcel_writer().unwrap();
    let mut refused = set.add(bound(&channel)).unwrap_err();
    assert!(matches!(refused.why, WaitSetError::OtherDomain { .. }));
    writer.send(b"", shared(&domain, 3), Deadline::NOW).unwrap();
    let delivery = refused.item.receive(Deadline::NOW).unwrap();
    assert_eq!(byte_of(delivery.parcel), 3);
}
