//! Writes and reads streams of bytes.

use super::super::Doing;
use super::super::board::Entry;
use super::super::flow::{self, Flow};
use super::{SHORT, Worker};
use portolan::channel::{
    Channel, ChannelOptions, ReadError, ReaderOptions, StreamReader, StreamWriter, Writer,
};
use portolan::{Deadline, Domain};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::sync::atomic::Ordering;

/// Channels for streams: a reliable one, and one that may lose some.
const NAMES: [&str; 2] = ["river", "spray"];
/// Bytes of a stream, and of one write, at most.
const LONG: usize = 30_000;
const PIECE: usize = 3000;

/// What a worker has of streams. None of it outlives a pause.
#[derive(Default)]
pub(super) struct Flows {
    out: Option<Pouring>,
    from: Option<Drinking>,
}

struct Pouring {
    stream: StreamWriter,
    who: u64,
    len: usize,
    done: usize,
}

struct Drinking {
    stream: StreamReader,
    flow: Flow,
    /// It is waited for.
    misses_nothing: bool,
}

impl Worker {
    pub(super) fn flow(&mut self) {
        self.doing(Doing::Streaming);
        let Some(domain) = self.domain.clone() else {
            return;
        };
        match self.random.below(20) {
            0 => self.end_flows(),
            1..10 => self.pour(&domain),
            _ => self.drink(&domain),
        }
    }

    fn flow_channel(&mut self, domain: &Domain) -> Option<Channel> {
        let kind = self.random.below(NAMES.len());
        let name = NAMES[kind];
        let options = ChannelOptions::named(name).units(16).readers(64);
        let options = if kind == 0 {
            options.unit(256).reliable()
        } else {
            options
        };
        let found = domain.find_channel(name, Deadline::NOW).ok();
        found.or_else(|| domain.make_channel(&options).ok())
    }

    fn begin_to_pour(&mut self, writer: Writer) {
        // For the board: who it is, and a number that follows the last one's.
        let number = self.board.of(self.at, Entry::Streams);
        let number = number.fetch_add(1, Ordering::SeqCst) & 0xff;
        let who = self.random.next() << 16 | number << 8 | self.at as u64;
        self.holds.flows.out = Some(Pouring {
            stream: writer.into_stream(SHORT),
            who,
            len: flow::HEAD + self.random.below(LONG),
            done: 0,
        });
    }

    fn pour(&mut self, domain: &Domain) {
        if self.holds.flows.out.is_none()
            && let Some(channel) = self.flow_channel(domain)
            && let Ok(writer) = channel.bind_writer()
        {
            self.begin_to_pour(writer);
        }
        let spoils = self.plants("stream");
        for _ in 0..=self.random.below(8) {
            let Some(out) = &mut self.holds.flows.out else {
                return;
            };
            if out.done == out.len {
                let ended = self.holds.flows.out.take();
                // One that finds no room for its end is ended, or not, as it is dropped.
                if let Some(Ok(writer)) = ended.map(|out| out.stream.finish()) {
                    self.begin_to_pour(writer);
                }
                continue;
            }
            let to = out.len.min(out.done + 1 + self.random.below(PIECE));
            let mut bytes = flow::bytes(out.who, out.len, out.done, to);
            if spoils && let Some(last) = bytes.last_mut() {
                *last ^= 1;
            }
            let (a, b) = bytes.split_at(self.random.below(bytes.len()));
            let written = match self.random.below(3) {
                0 => out
                    .stream
                    .write_vectored(&[IoSlice::new(a), IoSlice::new(b)]),
                _ => out.stream.write(&bytes),
            };
            match written {
                Ok(some) => out.done += some,
                Err(error) if error.kind() == ErrorKind::TimedOut => return,
                Err(error) => {
                    self.end_flows();
                    return self.corrupt(&format!("a stream cannot be written: {error}"));
                }
            }
            if self.random.once_in(2) {
                // Fails only where writing has.
                let _ = out.stream.flush();
            }
            if self.random.once_in(40) {
                return self.cut_short();
            }
        }
    }

    /// Ends a stream before its length, and says so.
    fn cut_short(&mut self) {
        // It happens seldom enough.
        let says_so = self.plant != Some("stream-end");
        if let Some(out) = self.holds.flows.out.take()
            && says_so
        {
            self.board.cut(out.who);
        }
    }

    fn drink(&mut self, domain: &Domain) {
        if self.holds.flows.from.is_none()
            && let Some(channel) = self.flow_channel(domain)
            && let Ok(reader) = channel.bind_reader(ReaderOptions::default())
        {
            self.holds.flows.from = Some(Drinking {
                stream: reader.into_stream(SHORT),
                flow: Flow::default(),
                misses_nothing: channel.is_reliable(),
            });
        }
        for _ in 0..=self.random.below(8) {
            let most = 1 + self.random.below(2 * PIECE);
            let Some(from) = self.holds.flows.from.take() else {
                return;
            };
            match self.drink_some(from, most) {
                Ok((from, more)) => {
                    self.holds.flows.from = Some(from);
                    if !more {
                        return;
                    }
                }
                Err(what) => return self.corrupt(&format!("a stream: {what}")),
            }
        }
    }

    /// Reads once; whether there may be more.
    fn drink_some(&self, mut from: Drinking, most: usize) -> Result<(Drinking, bool), String> {
        let mut bytes = vec![0; most];
        let error = match from.stream.read(&mut bytes) {
            Ok(0) => {
                if let Some(who) = from.flow.end().filter(|who| !self.board.is_cut(*who)) {
                    return Err(format!("that of {who:#x} ends before its length"));
                }
                from.stream = from.stream.into_reader().into_stream(SHORT);
                return Ok((from, true));
            }
            Ok(some) => {
                from.flow.bytes(&bytes[..some])?;
                let read = self.board.of(self.at, Entry::Drunk);
                read.fetch_add(some as u64, Ordering::Relaxed);
                return Ok((from, true));
            }
            Err(error) => error,
        };
        let why = error.get_ref().and_then(|e| e.downcast_ref::<ReadError>());
        match why {
            Some(ReadError::TimedOut) => return Ok((from, false)),
            Some(ReadError::WriterGone) => {}
            // The rest of one whose writer has died is missed by everybody.
            Some(ReadError::Missed(_))
                if !from.misses_nothing || from.flow.is_within() || !from.flow.begun => {}
            _ => return Err(format!("{error}, in the middle: {}", from.flow.is_within())),
        }
        from.flow.break_off();
        Ok((from, true))
    }

    /// Lets go of both, and says so of a stream that has not come to its end.
    pub(super) fn end_flows(&mut self) {
        if let Some(out) = &self.holds.flows.out {
            self.board.cut(out.who);
        }
        self.holds.flows = Flows::default();
    }
}
