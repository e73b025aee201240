//! Peers that scribble: they are found out, named, and do no harm.

use crate::bound;
use portolan::channel::{
    Channel, ChannelOptions, Garbled, Missed, ReadError, ReaderOptions, Since,
};
use portolan::{Deadline, Domain, Segment};
use portolan_abi::channel::{Meta, Stamp};
use std::sync::atomic::Ordering;

/// A writer and a reader of ours among words that another process scribbles at.
#[test]
fn a_hostile_peer_is_found_out_and_does_no_harm() {
    let mut state = 88_172_645_463_325_252u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let domain = Domain::private().unwrap();
    let mut found_out = [0; 3];
    for (mode, options) in [
        ChannelOptions::unnamed().reliable(),
        ChannelOptions::unnamed(),
        ChannelOptions::unnamed().many_writers(),
    ]
    .into_iter()
    .enumerate()
    {
        for _ in 0..300 {
            let channel = domain.make_channel(&options.clone().units(8)).unwrap();
            let (mut writer, mut reader) = (channel.bind_writer().unwrap(), bound(&channel));
            let words = channel.segment().words();
            for _ in 0..60 {
                let at = usize::try_from(random()).unwrap() % (words.len() / 2);
                // Garbage; lengths beyond all bounds; positions that go back, or far ahead.
                let word = match random() % 5 {
                    0 => random(),
                    1 => u64::MAX,
                    2 => Meta::new(0xff_ffff, 0xff, 0).0,
                    3 => Stamp::done(random() % 64, 1).0,
                    _ => reader.position().wrapping_sub(random() % 3),
                };
                words[at].store(word, Ordering::Relaxed);
                if random() % 3 == 0 {
                    let _ = writer.write(&[7; 100], Deadline::NOW);
                    let _ = writer.append(&[7; 20], Deadline::NOW);
                }
                let late = ReaderOptions::default().since(Since::Last(random()));
                drop(channel.bind_reader(late));
                for _ in 0..20 {
                    match reader.receive(Deadline::NOW) {
                        Ok(_) | Err(ReadError::Missed(_)) => {}
                        Err(why @ ReadError::Garbled(_)) => {
                            found_out[mode] += 1;
                            // For good.
                            assert_eq!(reader.receive(Deadline::NOW), Err(why));
                            break;
                        }
                        Err(_) => break,
                    }
                }
            }
            assert!(
                Channel::try_from(channel.segment().clone()).is_ok_and(|c| c.units() <= 16)
                    || Channel::try_from(channel.segment().clone()).is_err()
            );
            drop(writer);
            drop(channel.bind_writer());
        }
    }
    assert!(found_out.iter().all(|found| *found > 0), "{found_out:?}");
}

#[test]
fn what_a_hostile_peer_does_is_named() {
    let domain = Domain::private().unwrap();
    let options = ChannelOptions::unnamed().units(8).readers(0);
    let unit = |segment: &Segment, position: usize, stamp: Stamp, meta: Meta| {
        let at = 32 + position % 8 * 8;
        segment.words()[at + 1].store(meta.0, Ordering::Relaxed);
        segment.words()[at].store(stamp.0, Ordering::Release);
    };
    let whole = Meta::FIRST | Meta::LAST | Meta::CLOSED;
    let hostile = |stamp, meta| {
        let channel = domain.make_channel(&options).unwrap();
        let mut reader = bound(&channel);
        unit(channel.segment(), 0, stamp, meta);
        reader.receive(Deadline::NOW).map(|_| ())
    };
    let (position, len, most) = (0, 1 << 20, 48);
    let (expected, found) = (0, 3);
    assert_eq!(
        hostile(Stamp::done(0, 1), Meta::new(1 << 20, whole, 0)),
        Err(ReadError::Garbled(Garbled::Length {
            position,
            len,
            most
        }))
    );
    assert_eq!(
        hostile(Stamp::done(3, 1), Meta::new(1, whole, 0)),
        Err(ReadError::Garbled(Garbled::Position { expected, found }))
    );
    // A unit of an older lap, put back: where many write, its sum is of that lap.
    let called = options.clone().many_writers();
    let channel = domain.make_channel(&called).unwrap();
    let (mut writer, mut reader) = (channel.bind_writer().unwrap(), bound(&channel));
    let words = &channel.segment().words()[32..40];
    writer.write(b"pay him", Deadline::NOW).unwrap();
    let old: Vec<u64> = words.iter().map(|w| w.load(Ordering::Relaxed)).collect();
    for _ in 0..7 {
        writer.write(b"other", Deadline::NOW).unwrap();
    }
    while reader.receive(Deadline::NOW).is_ok() {}
    words
        .iter()
        .zip(&old)
        .for_each(|(w, old)| w.store(*old, Ordering::Relaxed));
    assert_eq!(reader.receive(Deadline::NOW), Err(ReadError::TimedOut));
    words[0].store(Stamp::done(8, 1).0, Ordering::Relaxed);
    let (from, to) = (8, 9);
    assert_eq!(
        reader.receive(Deadline::NOW),
        Err(ReadError::Missed(Missed { from, to }))
    );
}
