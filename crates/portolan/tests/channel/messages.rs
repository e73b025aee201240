//! Messages of every length, in every way to write them, and who may.

use crate::{PATIENCE, bound};
use portolan::channel::{
    Channel, ChannelError, ChannelOptions, ReadError, ReaderOptions, Signalling, WriteError,
};
use portolan::{Deadline, Domain};

#[test]
fn messages_of_every_length_come_whole() {
    let domain = Domain::private().unwrap();
    let channel = domain
        .make_channel(&ChannelOptions::unnamed().unit(128).units(64).reliable())
        .unwrap();
    assert_eq!((channel.unit(), channel.units()), (128, 64));
    assert_eq!((channel.unit_payload(), channel.longest()), (112, 7168));
    let (mut writer, mut reader) = (channel.bind_writer().unwrap(), bound(&channel));
    for len in [0, 1, 7, 8, 111, 112, 113, 500, 7167, 7168] {
        let bytes: Vec<u8> = (0..len).map(|i| u8::try_from(i % 255).unwrap()).collect();
        let at = writer.write(&bytes, Deadline::NOW).unwrap();
        let received = reader.receive(Deadline::NOW).unwrap();
        assert_eq!((&*received, received.position()), (&*bytes, at));
        let (a, b) = bytes.split_at(len / 3);
        writer.write_parts(&[a, b, &[]], Deadline::NOW).unwrap();
        assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *bytes);
        // In place, from the end to the beginning.
        let claim = writer.claim(len, Deadline::NOW).unwrap();
        assert_eq!((claim.len(), claim.is_empty()), (len, len == 0));
        assert_eq!(claim.fill(len / 3, b), b.len());
        assert_eq!(claim.fill(0, a), a.len());
        assert_eq!(claim.fill(len, b"beyond"), 0);
        let units = len.max(1).div_ceil(channel.unit_payload());
        assert!(!claim.words(units - 1).is_empty());
        for beyond in [units, usize::MAX / channel.unit_payload() + 1, usize::MAX] {
            assert!(claim.words(beyond).is_empty(), "{beyond}");
        }
        claim.commit();
        assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *bytes);
    }
    let long = vec![0; 7169];
    let (len, most) = (7169, 7168);
    let refused = WriteError::TooLong { len, most };
    assert_eq!(writer.write(&long, Deadline::NOW), Err(refused));
    assert_eq!(writer.claim(len, Deadline::NOW).map(|_| 0), Err(refused));
    // A claim that is given up leaves nothing.
    drop(writer.claim(400, Deadline::NOW).unwrap());
    assert_eq!(reader.receive(Deadline::NOW), Err(ReadError::TimedOut));
    writer.write(b"next", Deadline::NOW).unwrap();
    assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *b"next");
}

#[test]
fn one_space_writes_at_a_time_and_readers_hear_that_it_left() {
    let domain = Domain::private().unwrap();
    let channel = domain
        .make_channel(&ChannelOptions::named("one").reliable().readers(2))
        .unwrap();
    let mut reader = bound(&channel);
    assert!(!reader.has_writer());
    assert_eq!(reader.receive(Deadline::NOW), Err(ReadError::TimedOut));
    let mut writer = channel.bind_writer().unwrap();
    assert_eq!(channel.writer(), Some(domain.space()));
    assert!(reader.has_writer());
    let space = domain.space();
    assert!(
        matches!(channel.bind_writer(), Err(ChannelError::Written { space: by }) if by == space)
    );
    writer.write(b"last words", Deadline::NOW).unwrap();
    let channel = writer.unbind();
    assert_eq!(*reader.receive(PATIENCE).unwrap(), *b"last words");
    assert_eq!(reader.receive(PATIENCE), Err(ReadError::WriterGone));
    // Told once; the next writer goes on.
    assert_eq!(reader.receive(Deadline::NOW), Err(ReadError::TimedOut));
    let mut writer = channel.bind_writer().unwrap();
    assert_eq!(writer.write(b"again", Deadline::NOW), Ok(1));
    assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *b"again");
    let _second = bound(&channel);
    let third = channel.bind_reader(ReaderOptions::default());
    assert!(matches!(third, Err(ChannelError::NoEntry { entries: 2 })));
    let channel = reader.unbind();
    let _third = bound(&channel);
}

#[test]
fn options_and_segments_that_cannot_be_are_refused() {
    let domain = Domain::private().unwrap();
    for options in [
        ChannelOptions::unnamed().unit(96),
        ChannelOptions::unnamed().units(5),
        ChannelOptions::unnamed().readers(256),
        ChannelOptions::unnamed().signal(Signalling::Bytes(32)),
        ChannelOptions::unnamed().reliable().many_writers(),
    ] {
        assert!(domain.make_channel(&options).is_err(), "{options:?}");
    }
    let segment = domain.make_segment(Some("plain"), 4096).unwrap();
    assert!(domain.find_channel("plain", Deadline::NOW).is_err());
    let back = Channel::try_from(segment).unwrap_err();
    assert_eq!(back.item.len(), 4096);
}

#[test]
fn many_writers_never_mix() {
    let domain = Domain::private().unwrap();
    let channel = domain
        .make_channel(&ChannelOptions::unnamed().units(64).many_writers())
        .unwrap();
    let mut reader = bound(&channel);
    const EACH: u32 = 3000;
    let heard = std::thread::scope(|scope| {
        for who in 0..3u8 {
            let mut writer = channel.bind_writer().unwrap();
            scope.spawn(move || {
                for i in 0..EACH {
                    let mut bytes = [who; 40];
                    bytes[..4].copy_from_slice(&i.to_le_bytes());
                    writer.write(&bytes, PATIENCE).unwrap();
                }
            });
        }
        let (mut heard, mut missed) = ([0; 3], 0);
        while heard.iter().sum::<u64>() + missed < 3 * u64::from(EACH) {
            match reader.receive(PATIENCE) {
                Ok(bytes) => {
                    assert_eq!(bytes.len(), 40);
                    assert!(bytes[4..].iter().all(|b| *b == bytes[4]));
                    heard[usize::from(bytes[4])] += 1;
                }
                Err(ReadError::Missed(range)) => missed += range.units(),
                Err(error) => panic!("{error}"),
            }
        }
        heard.iter().sum::<u64>()
    });
    assert!(heard > 0);
    assert_eq!(
        channel.bind_writer().unwrap().show_is_refused(),
        WriteError::ManyWriters
    );
}

trait Pieces {
    fn show_is_refused(&mut self) -> WriteError;
}

impl Pieces for portolan::channel::Writer {
    fn show_is_refused(&mut self) -> WriteError {
        self.append(b"x", Deadline::NOW).unwrap_err()
    }
}

#[test]
fn a_message_longer_than_the_ring_comes_in_pieces() {
    let domain = Domain::private().unwrap();
    let channel = domain
        .make_channel(&ChannelOptions::unnamed().units(4).reliable())
        .unwrap();
    let (mut writer, mut reader) = (channel.bind_writer().unwrap(), bound(&channel));
    let all: Vec<u8> = (0..5000u32).map(|i| i.to_le_bytes()[0]).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for piece in all.chunks(70) {
                writer.append(piece, PATIENCE).unwrap();
                writer.show();
            }
            writer.end(PATIENCE).unwrap();
            writer.write(b"after", PATIENCE).unwrap();
        });
        let mut seen = vec![];
        loop {
            let piece = reader.receive_some(PATIENCE).unwrap();
            seen.extend_from_slice(&piece);
            assert_eq!(piece.position(), 0);
            if piece.is_complete() {
                break;
            }
        }
        assert_eq!(seen, all);
        assert_eq!(*reader.receive(PATIENCE).unwrap(), *b"after");
    });
    // Who wants it whole is told that it cannot be.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            writer.append(&all, PATIENCE).unwrap();
            writer.end(PATIENCE).unwrap();
            writer.write(b"after", PATIENCE).unwrap();
        });
        let most = channel.longest();
        assert_eq!(
            reader.receive(PATIENCE).map(|_| ()),
            Err(ReadError::TooLong { most })
        );
        loop {
            match reader.receive(PATIENCE) {
                Ok(bytes) => break assert_eq!(*bytes, *b"after"),
                Err(error) => assert!(matches!(error, ReadError::Missed(_)), "{error}"),
            }
        }
    });
}
