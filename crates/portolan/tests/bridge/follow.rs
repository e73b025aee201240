//! A process follows a channel of another domain: it reads each message, or counts it as missed.

use crate::child::Child;
use crate::numbered::long;
use portolan::channel::{Channel, ChannelOptions, Lagging, ReadError, ReaderOptions};
use portolan::channel::{Signalling, Writer};
use portolan::{
    ConnectOptions, ConnectToError, Deadline, Domain, OfferError, OfferOptions, OfferedChannel,
    Permissions,
};
use portolan_testkit::{SetOnDrop, pattern, unique, until};

/// A domain of this process, with a channel that others may follow.
struct Offering {
    name: String,
    domain: Domain,
    channel: Channel,
    writer: Writer,
    offered: OfferedChannel,
}

fn offering(channel: &ChannelOptions, offer: OfferOptions) -> Offering {
    let name = unique("crying");
    let domain = Domain::join(&name).unwrap();
    let channel = domain.make_channel(channel).unwrap();
    let offered = channel
        .offer("news", &Permissions::own_user(), offer)
        .unwrap();
    Offering {
        writer: channel.bind_writer().unwrap(),
        name,
        domain,
        channel,
        offered,
    }
}

fn reliable() -> Offering {
    offering(
        &ChannelOptions::unnamed().reliable(),
        OfferOptions::default().lagging(Lagging::Wait),
    )
}

/// A follower in another domain.
fn follower(theirs: &str) -> Child {
    let mut child = Child::new();
    let ours = unique("follower");
    assert_eq!(
        child.ask(&format!("follow {ours} {theirs} news")),
        "follows"
    );
    child
}

fn bytes(n: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    pattern(&mut bytes, n);
    bytes
}

/// A message whose first word is its number.
fn numbered(n: u64) -> [u8; 40] {
    let mut bytes = [7; 40];
    bytes[..8].copy_from_slice(&n.to_le_bytes());
    bytes
}

#[test]
fn messages_of_all_lengths_are_followed_in_order() {
    let mut theirs = reliable();
    let mut children = [follower(&theirs.name), follower(&theirs.name)];
    let longest = theirs.channel.longest();
    let lengths = [0, 1, 47, 48, 49, 4096, longest / 2, longest, 3];
    for (n, len) in lengths.into_iter().enumerate() {
        theirs.writer.write(&bytes(n as u64, len), long()).unwrap();
    }
    for child in &mut children {
        for (n, len) in lengths.into_iter().enumerate() {
            assert_eq!(child.ask(&format!("hear {n} {len}")), "heard");
        }
    }
    assert_eq!(theirs.offered.clients(), 2);
    let [mut first, _second] = children;
    assert_eq!(first.ask("unfollow"), "unfollowed");
    until("one has left", || theirs.offered.clients() == 1);
    assert!(theirs.offered.take_violations().is_empty());
}

#[test]
fn where_the_offer_waits_nothing_is_missed() {
    const LAST: u64 = 20_000;
    let mut theirs = reliable();
    let mut child = follower(&theirs.name);
    child.tell(&format!("hear-to {LAST}"));
    for n in 0..=LAST {
        theirs.writer.write(&numbered(n), long()).unwrap();
    }
    assert_eq!(child.answer(), format!("{} 0", LAST + 1));
}

/// Writes until the stopped follower must have missed something, then compares what it heard and
/// missed with what was written.
fn slow(mut theirs: Offering) {
    let mut child = follower(&theirs.name);
    child.stop();
    // Far more than byte rings and channels hold; the writer waits for no follower.
    const LAST: u64 = 200_000;
    for n in 0..=LAST {
        theirs.writer.write(&numbered(n), Deadline::NOW).unwrap();
    }
    child.resume();
    // What the egress has not read by now is still missed before this one.
    child.tell(&format!("hear-to {}", LAST + 1));
    theirs
        .writer
        .write(&numbered(LAST + 1), Deadline::NOW)
        .unwrap();
    let answer = child.answer();
    let counts: Vec<u64> = answer
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    // Each message is one unit.
    assert_eq!(counts[0] + counts[1], LAST + 2, "{answer}");
    assert!(counts[1] > 0, "{answer}");
    assert_eq!(theirs.offered.clients(), 1);
}

#[test]
fn who_is_too_slow_misses_some_and_is_told_how_many() {
    for options in [
        ChannelOptions::unnamed(),
        ChannelOptions::unnamed().reliable(),
    ] {
        slow(offering(&options, OfferOptions::default()));
    }
}

#[test]
fn a_client_that_is_dropped_for_lagging_is_told_that_it_is_over() {
    let mut theirs = offering(
        &ChannelOptions::unnamed().reliable(),
        OfferOptions::default().lagging(Lagging::Drop),
    );
    let mut child = follower(&theirs.name);
    child.stop();
    for n in 0..200_000 {
        theirs.writer.write(&numbered(n), Deadline::NOW).unwrap();
    }
    child.resume();
    until("it has left", || theirs.offered.clients() == 0);
    // What came before waits for its reader; a reader that reads no more delays nothing.
    assert_eq!(child.ask("read-no-more"), "done");
    until("it knows", || child.ask("is-live") == "false");
}

#[test]
fn a_writer_that_leaves_is_told_and_so_is_the_next_one() {
    let mut theirs = reliable();
    let mut child = follower(&theirs.name);
    theirs.writer.write(&bytes(1, 9), long()).unwrap();
    assert_eq!(child.ask("hear 1 9"), "heard");
    drop(theirs.writer);
    assert_eq!(child.ask("hear 2 9"), "WriterGone");
    assert_eq!(child.ask("is-live"), "true");
    let mut next = theirs.channel.bind_writer().unwrap();
    next.write(&bytes(2, 9), long()).unwrap();
    assert_eq!(child.ask("hear 2 9"), "heard");
}

#[test]
fn the_end_of_an_offer_is_the_end_of_its_connections_also_under_load() {
    let Offering {
        mut writer,
        offered,
        name,
        ..
    } = offering(&ChannelOptions::unnamed(), OfferOptions::default());
    let mut child = follower(&name);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&stop);
        scope.spawn(|| {
            let mut n = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                writer.write(&numbered(n), Deadline::NOW).unwrap();
                n += 1;
            }
        });
        assert_eq!(offered.clients(), 1);
        drop(offered);
        until("it knows", || child.ask("is-live") == "false");
    });
}

#[test]
fn an_offering_process_that_is_killed_is_a_writer_that_has_gone() {
    let name = unique("dying");
    let mut child = Child::new();
    assert_eq!(child.ask(&format!("offer-channel {name}")), "offered");
    let ours = Domain::join(&unique("survivor")).unwrap();
    let followed = ours
        .follow(&Domain::builder(&name), "news", ConnectOptions::default())
        .unwrap();
    let mut reader = followed
        .channel()
        .bind_reader(ReaderOptions::default())
        .unwrap();
    assert_eq!(child.ask("write 5 100"), "written");
    assert_eq!(*reader.receive(long()).unwrap(), *bytes(5, 100));
    child.kill();
    assert_eq!(reader.receive(long()), Err(ReadError::WriterGone));
    assert!(!followed.is_live());
}

#[test]
fn a_copy_of_either_side_does_not_hide_its_death() {
    let name = unique("copied");
    let mut child = Child::new();
    assert_eq!(child.ask(&format!("offer-channel {name}")), "offered");
    let ours = Domain::join(&unique("sees-it")).unwrap();
    let followed = ours
        .follow(&Domain::builder(&name), "news", ConnectOptions::default())
        .unwrap();
    let channel = followed.channel();
    let mut reader = channel.bind_reader(ReaderOptions::default()).unwrap();
    let _copy = child.copied();
    child.kill();
    assert_eq!(reader.receive(long()), Err(ReadError::WriterGone));
    assert!(!followed.is_live());

    let mut theirs = reliable();
    let mut child = follower(&theirs.name);
    theirs.writer.write(&numbered(0), long()).unwrap();
    assert_eq!(child.ask("hear-to 0"), "1 0");
    let _copy = child.copied();
    child.kill();
    until("it has left", || theirs.offered.clients() == 0);
}

#[test]
fn a_client_that_is_killed_or_stopped_holds_up_nobody_for_long() {
    let mut theirs = reliable();
    let mut reader = theirs
        .channel
        .bind_reader(ReaderOptions::default())
        .unwrap();
    let mut child = follower(&theirs.name);
    child.stop();
    // The offer says that it is waited for. So it is, until it is dead.
    let writer = &mut theirs.writer;
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            for n in 0..300_000_u64 {
                assert_eq!(*reader.receive(long()).unwrap(), numbered(n));
            }
        });
        let full = (0..300_000_u64).find(|n| writer.write(&numbered(*n), Deadline::NOW).is_err());
        // Our own reader may be the slow one for a moment.
        child.kill();
        for n in full.unwrap()..300_000 {
            writer.write(&numbered(n), long()).unwrap();
        }
        reading.join().unwrap();
    });
    until("it has left", || theirs.offered.clients() == 0);
}

#[test]
fn while_nothing_is_written_nobody_wakes() {
    let name = unique("idle");
    let mut egress = Child::new();
    assert_eq!(egress.ask(&format!("offer-channel {name}")), "offered");
    let mut ingress = follower(&name);
    assert_eq!(egress.ask("write 1 9"), "written");
    assert_eq!(ingress.ask("hear 1 9"), "heard");
    for child in [&mut egress, &mut ingress] {
        // Once it has gone to sleep, it stays so.
        let mut before = child.ask("sleeps");
        until("it sleeps", || {
            std::thread::sleep(std::time::Duration::from_millis(500));
            let now = child.ask("sleeps");
            std::mem::replace(&mut before, now.clone()) == now
        });
    }
    assert_eq!(egress.ask("write 2 9"), "written");
    assert_eq!(ingress.ask("hear 2 9"), "heard");
}

#[test]
fn what_cannot_be_offered_or_followed_is_refused() {
    let domain = Domain::join(&unique("refused")).unwrap();
    let offer = |options: &ChannelOptions| {
        let channel = domain.make_channel(options).unwrap();
        let permissions = Permissions::own_user();
        channel.offer("other", &permissions, OfferOptions::default())
    };
    let raw = offer(&ChannelOptions::unnamed().raw());
    assert!(matches!(raw, Err(OfferError::Raw)), "{raw:?}");
    let polled = offer(&ChannelOptions::unnamed().signal(Signalling::Never));
    assert!(matches!(polled, Err(OfferError::NeverSignals)));
    let channel = domain.make_channel(&ChannelOptions::unnamed()).unwrap();
    let _parcels = channel.bind_parcel_writer().unwrap();
    let permissions = Permissions::own_user();
    let refused = channel.offer("other", &permissions, OfferOptions::default());
    assert!(matches!(refused, Err(OfferError::Parcels)));

    let theirs = offering(&ChannelOptions::unnamed(), OfferOptions::default());
    let few = ConnectOptions::default().most_bytes(64 * 1024 - 1);
    let refused = domain.follow(&Domain::builder(&theirs.name), "news", few);
    let Err(ConnectToError::TooLarge { bytes, most }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((bytes, most), (64 * 1024, 64 * 1024 - 1));
    // A port of that name is another thing.
    let soon = ConnectOptions::default().deadline(Deadline::NOW);
    let none = domain.connect_to(&Domain::builder(&theirs.name), "news", soon);
    assert!(matches!(none, Err(ConnectToError::Connect(_))), "{none:?}");
    drop(theirs.domain);
}

#[test]
fn a_client_takes_a_readers_place_only_if_it_is_waited_for() {
    for lagging in [Lagging::Wait, Lagging::Skip] {
        let options = ChannelOptions::unnamed().reliable().readers(1);
        let offer = OfferOptions::default().lagging(lagging);
        let mut theirs = offering(&options, offer);
        let own = theirs.channel.bind_reader(ReaderOptions::default());
        let ours = Domain::join(&unique("full")).unwrap();
        let other = Domain::builder(&theirs.name);
        let followed = ours.follow(&other, "news", ConnectOptions::default());
        if lagging == Lagging::Wait {
            assert!(
                matches!(followed, Err(ConnectToError::Full)),
                "{followed:?}"
            );
            continue;
        }
        let followed = followed.unwrap();
        let mut reader = followed
            .channel()
            .bind_reader(ReaderOptions::default())
            .unwrap();
        theirs.writer.write(b"both", Deadline::NOW).unwrap();
        assert_eq!(*reader.receive(long()).unwrap(), *b"both");
        assert_eq!(*own.unwrap().receive(long()).unwrap(), *b"both");
    }
}
