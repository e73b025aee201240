//! Messages that are written and read in a straight line, between others that are not.

use crate::bound;
use portolan::channel::{ChannelOptions, ReadError, Reader, Signalling, WriteError, Writer};
use portolan::{Deadline, Domain};
use std::collections::VecDeque;

/// xorshift64*: enough to choose what comes next.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        usize::try_from(drawn).unwrap() % bound
    }
}

/// A message of this length that differs from others.
fn message(number: usize, len: usize) -> Vec<u8> {
    let byte = |i: usize| u8::try_from((number * 31 + i) % 251).unwrap();
    (0..len).map(byte).collect()
}

/// Writes a message in one of the ways there are; whether it is there now.
fn write(writer: &mut Writer, way: usize, bytes: &[u8]) -> bool {
    let (a, b) = bytes.split_at(bytes.len() / 3);
    let written = match way {
        0..=3 => writer.write(bytes, Deadline::NOW).map(drop),
        4 => writer.write_parts(&[a, b], Deadline::NOW).map(drop),
        5 => writer.claim(bytes.len(), Deadline::NOW).map(|claim| {
            claim.fill(0, bytes);
            claim.commit();
        }),
        6 => {
            // Given up.
            let _ = writer.claim(bytes.len(), Deadline::NOW);
            return false;
        }
        7 => {
            // Begun, and never ended: what is written next comes alone.
            let _ = writer.append(a, Deadline::NOW);
            writer.write(bytes, Deadline::NOW).map(drop)
        }
        _ => {
            let there = writer.append(a, Deadline::NOW);
            writer.show();
            let ended = there.and_then(|()| {
                writer.append(b, Deadline::NOW)?;
                writer.end(Deadline::NOW)
            });
            // What did not fit in the middle of it ends there, without an end.
            let _ = writer.claim(0, Deadline::NOW);
            ended
        }
    };
    match written {
        Ok(()) => true,
        Err(WriteError::Full { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

/// What the reader has still to get, and what it had of the first of these.
#[derive(Default)]
struct Expected {
    messages: VecDeque<Vec<u8>>,
    had: usize,
}

impl Expected {
    fn read(&mut self, reader: &mut Reader, whole: bool) {
        if whole {
            match reader.receive(Deadline::NOW) {
                Ok(received) => {
                    assert_eq!(Some(&*received), self.messages.front().map(|m| &m[..]));
                    assert!(received.is_complete());
                    self.messages.pop_front();
                    self.had = 0;
                }
                Err(ReadError::TimedOut) => assert_eq!(self.messages.len(), 0),
                Err(other) => panic!("{other}"),
            }
            return;
        }
        match reader.receive_some(Deadline::NOW) {
            Ok(piece) => {
                let first = self.messages.front().unwrap();
                assert_eq!(*piece, first[self.had..self.had + piece.len()]);
                self.had += piece.len();
                if piece.is_complete() {
                    assert_eq!(self.had, first.len());
                    self.messages.pop_front();
                    self.had = 0;
                }
            }
            Err(ReadError::TimedOut) => assert_eq!(self.messages.len(), 0),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn messages_of_all_kinds_come_in_order_and_whole() {
    let domain = Domain::private().unwrap();
    for (round, signalling) in [
        Signalling::Message,
        Signalling::Never,
        Signalling::Bytes(128),
    ]
    .into_iter()
    .cycle()
    .take(12)
    .enumerate()
    {
        let options = ChannelOptions::unnamed().unit(64).units(32).reliable();
        let channel = domain.make_channel(&options.signal(signalling)).unwrap();
        let (mut writer, mut reader) = (channel.bind_writer().unwrap(), bound(&channel));
        let mut chance = Chance(0x9e37_79b9 + round as u64);
        let mut expected = Expected::default();
        for number in 0..4000 {
            let len = match chance.below(4) {
                0 => chance.below(200),
                // Around what one unit takes.
                1 => 46 + chance.below(4),
                _ => chance.below(48),
            };
            let bytes = message(number, len);
            // Pieces of a message that never ends would be seen by a reader that reads piece by piece.
            let in_pieces = round % 2 == 0;
            let way = chance.below(if in_pieces { 7 } else { 10 });
            if write(&mut writer, way, &bytes) {
                expected.messages.push_back(bytes);
            }
            for _ in 0..chance.below(3) {
                expected.read(&mut reader, !in_pieces || chance.below(3) != 0);
            }
        }
        while !expected.messages.is_empty() {
            expected.read(&mut reader, true);
        }
        expected.read(&mut reader, true);
    }
}

#[test]
fn a_piece_that_was_read_stays_with_its_message() {
    let domain = Domain::private().unwrap();
    let options = ChannelOptions::unnamed().unit(64).units(32).reliable();
    let channel = domain.make_channel(&options).unwrap();
    let (mut writer, mut reader) = (channel.bind_writer().unwrap(), bound(&channel));
    writer.write(b"first", Deadline::NOW).unwrap();
    assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *b"first");
    writer.append(b"to be ", Deadline::NOW).unwrap();
    writer.show();
    assert_eq!(*reader.receive_some(Deadline::NOW).unwrap(), *b"to be ");
    writer.append(b"continued", Deadline::NOW).unwrap();
    writer.end(Deadline::NOW).unwrap();
    writer.write(b"next", Deadline::NOW).unwrap();
    // Not the next one, which is there and short.
    assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *b"to be continued");
    assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *b"next");
}

#[test]
fn a_reader_that_was_overtaken_is_told_between_two_short_messages() {
    let domain = Domain::private().unwrap();
    let options = ChannelOptions::unnamed().unit(64).units(16);
    let channel = domain.make_channel(&options).unwrap();
    let (mut writer, mut reader) = (channel.bind_writer().unwrap(), bound(&channel));
    for lap in 0..20_u8 {
        writer.write(&[lap], Deadline::NOW).unwrap();
        assert_eq!(*reader.receive(Deadline::NOW).unwrap(), [lap]);
        for _ in 0..40 {
            writer.write(b"too many", Deadline::NOW).unwrap();
        }
        let from = reader.position();
        let missed = match reader.receive(Deadline::NOW) {
            Err(ReadError::Missed(missed)) => missed,
            other => panic!("{other:?}"),
        };
        assert_eq!(missed.from, from);
        while reader.position() < writer.position() {
            assert_eq!(*reader.receive(Deadline::NOW).unwrap(), *b"too many");
        }
    }
}
