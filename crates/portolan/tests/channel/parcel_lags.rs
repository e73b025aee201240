//! Parcels of a reliable channel for readers that have chosen not to be waited for.

use crate::{PATIENCE, used};
use portolan::channel::{
    Channel, ChannelOptions, Lagging, Parcel, ParcelError, ParcelReader, ReadError, ReaderOptions,
};
use portolan::{Deadline, Domain};

const LEN: usize = 1 << 20;

fn channel(domain: &Domain) -> Channel {
    let options = ChannelOptions::unnamed().reliable().units(4).readers(4);
    domain.make_channel(&options).unwrap()
}

fn bound(channel: &Channel, lagging: Lagging) -> ParcelReader {
    let options = ReaderOptions::default().lagging(lagging);
    channel.bind_parcel_reader(options, PATIENCE).unwrap()
}

fn moved(domain: &Domain, byte: u8) -> Option<Parcel> {
    let mut extent = domain.allocate(LEN).unwrap();
    extent[0] = byte;
    Some(Parcel::Moved(extent))
}

/// What comes next, and how many were missed before it.
fn next(reader: &mut ParcelReader) -> (u8, u64) {
    let mut missed = 0;
    loop {
        match reader.receive(Deadline::NOW) {
            Ok(delivery) => {
                let Some(Parcel::Moved(extent)) = delivery.parcel else {
                    panic!("{delivery:?}")
                };
                assert_eq!(extent[0], delivery.note[0]);
                return (extent[0], missed);
            }
            Err(ReadError::Missed(range)) => missed += range.units(),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn who_skips_stops_nobody_who_moves_extents() {
    let domain = Domain::private().unwrap();
    let channel = channel(&domain);
    let mut writer = channel.bind_parcel_writer().unwrap();
    let mut slow = bound(&channel, Lagging::Skip);
    for i in 0..20 {
        writer.send(&[i], moved(&domain, i), Deadline::NOW).unwrap();
    }
    // No more than its inbox holds, however long it does not read.
    assert!(used(&domain).0 <= 8 * LEN as u64, "{:?}", used(&domain));
    let missed = slow.receive(Deadline::NOW).unwrap_err();
    assert!(
        matches!(missed, ReadError::Missed(range) if range.from == 0),
        "{missed}"
    );
    while slow.receive(Deadline::NOW).unwrap_err() != ReadError::TimedOut {}
    // It has caught up.
    for i in 20..30 {
        writer.send(&[i], moved(&domain, i), Deadline::NOW).unwrap();
        assert_eq!(next(&mut slow), (i, 0));
    }
    drop((writer, slow, channel));
    assert_eq!(used(&domain), (0, 0));
}

#[test]
fn who_is_dropped_is_sent_nothing_more_and_its_place_is_free() {
    let domain = Domain::private().unwrap();
    let channel = channel(&domain);
    let mut writer = channel.bind_parcel_writer().unwrap();
    let mut slow = bound(&channel, Lagging::Drop);
    let refused = (0..20).find_map(|i| {
        let sent = writer.send(&[i], moved(&domain, i), Deadline::NOW);
        sent.err().map(|refused| (i, refused))
    });
    // It has a ring's worth, and then no reader is there.
    let (at, refused) = refused.unwrap();
    assert!(
        matches!(refused.why, ParcelError::NotOneReader { readers: 0 }),
        "{refused}"
    );
    assert_eq!((at, refused.item.is_some()), (4, true));
    drop(refused);
    assert_eq!(writer.readers(), 0);

    let mut other = bound(&channel, Lagging::Wait);
    for i in 0..9 {
        writer.send(&[i], moved(&domain, i), Deadline::NOW).unwrap();
        assert_eq!(next(&mut other), (i, 0));
    }
    assert_eq!(writer.readers(), 1);
    // It is told, and what lay there for it is freed.
    let told = loop {
        match slow.receive(Deadline::NOW) {
            Ok(delivery) => drop(delivery),
            Err(error) => break error,
        }
    };
    assert_eq!(told, ReadError::Dropped);
    assert!(used(&domain).0 < LEN as u64, "{:?}", used(&domain));
    assert_eq!(slow.receive(PATIENCE).unwrap_err(), ReadError::Dropped);
    // Three more have a place beside the other, so its own is free.
    let mut more: Vec<_> = (0..3).map(|_| bound(&channel, Lagging::Wait)).collect();
    assert_eq!(writer.readers(), 4);
    let shared = domain.share_extent(domain.allocate(LEN).unwrap()).unwrap();
    let parcel = Some(Parcel::Shared(shared));
    writer.send(b"for all", parcel, Deadline::NOW).unwrap();
    for reader in more.iter_mut().chain([&mut other]) {
        let delivery = reader.receive(Deadline::NOW).unwrap();
        assert!(matches!(delivery.parcel, Some(Parcel::Shared(_))));
    }
    drop((writer, slow, other, more, channel));
    assert_eq!(used(&domain), (0, 0));
}
