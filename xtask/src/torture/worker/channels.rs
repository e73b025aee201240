//! Writes to channels and reads from them.

use super::super::Doing;
use super::super::board::Entry;
use super::super::stream::{self, ANYWHERE, Followed, LEAST};
use super::{LONG, SHORT, Worker};
use portolan::channel::{
    Channel, ChannelOptions, Lagging, ReadError, Reader, ReaderOptions, Signalling, Since,
    WriteError, Writer,
};
use portolan::{Deadline, Domain, WaitSet, Waiting};
use std::sync::atomic::Ordering;

/// Channels that everybody makes or finds.
const NAMES: [&str; 6] = ["newest", "wide", "calls", "kept", "flow", "unsignalled"];
/// Most channels, writers and readers that a worker keeps.
const KEPT: usize = 3;
/// Places for readers: one for each of every worker.
const READERS: u64 = 3 * super::super::board::MAX_WORKERS as u64;
/// Most messages in one go.
const BATCH: usize = 12;

/// The name of the channel on which a worker gets letters.
fn letters(worker: usize) -> String {
    format!("letters {worker}")
}

fn options(name: Option<&str>, kind: usize) -> ChannelOptions {
    let named = name.map_or_else(ChannelOptions::unnamed, ChannelOptions::named);
    let named = named.readers(READERS);
    match kind {
        0 => named.units(16),
        1 => named.unit(1024).units(8).signal(Signalling::Bytes(2048)),
        2 => named.unit(128).units(16).many_writers(),
        3 => named.units(16).reliable(),
        4 => {
            let signalling = Signalling::Bytes(512);
            named.unit(256).units(8).reliable().signal(signalling)
        }
        _ => named.units(32).signal(Signalling::Never),
    }
}

/// What a worker has of channels.
#[derive(Default)]
pub(super) struct Channels {
    known: Vec<Channel>,
    writers: Vec<Writing>,
    readers: Vec<Following>,
    /// Its own, on which others write to it.
    letters: Option<Letters>,
}

/// How its letters are read, and what they must be.
struct Letters {
    by: By,
    followed: Followed,
}

enum By {
    Hand(Box<Reader>),
    Set(Box<WaitSet>, portolan::Token<Reader>),
}

struct Writing {
    writer: Writer,
    many: bool,
    longest: usize,
    who: u64,
    number: u64,
    /// A message that was begun, and how much of it was written.
    begun: Option<(Vec<u8>, usize)>,
}

struct Following {
    reader: Reader,
    followed: Followed,
    /// It takes messages piece by piece: what it has of one, and where that begins.
    pieces: Option<(Vec<u8>, u64)>,
}

/// What came of a look.
#[derive(PartialEq, Eq)]
enum Came {
    Something,
    Nothing,
    /// Nothing will come any more.
    Over,
}

impl Channels {
    /// Rights, readers' entries, and places as the one writer.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let letters = usize::from(self.letters.is_some());
        let readers = self.readers.len() + letters;
        let writers = self.writers.iter().filter(|w| !w.many).count();
        let rights = self.known.len() + self.writers.len() + readers;
        (rights, readers, writers)
    }

    /// A right on one, to be sent; or the channel itself, if it is to be kept no longer.
    pub(super) fn give(&mut self, random: &mut super::Random) -> Option<Channel> {
        let at = random.below(self.known.len());
        let channel = self.known.get(at)?.clone();
        if random.once_in(2) {
            self.known.swap_remove(at);
        }
        Some(channel)
    }

    /// A right that came in a message.
    pub(super) fn take(&mut self, channel: Channel) {
        if self.known.len() >= KEPT {
            self.known.remove(0);
        }
        self.known.push(channel);
    }
}

impl Following {
    /// Looks once, or waits; what is handed out must be what was written.
    fn look(&mut self, deadline: Deadline) -> Result<Came, String> {
        let Some((pieces, begin)) = &mut self.pieces else {
            return match self.reader.receive(deadline) {
                Ok(m) => {
                    let position = m.position();
                    self.followed.message(position, &m)?;
                    Ok(Came::Something)
                }
                Err(error) => no_message(&mut self.followed, error, false),
            };
        };
        let begun = !pieces.is_empty();
        let (position, complete) = match self.reader.receive_some(deadline) {
            Ok(piece) => {
                if begun && piece.position() != *begin {
                    return Err(format!("a piece of {begin} is of {}", piece.position()));
                }
                pieces.extend_from_slice(&piece);
                (piece.position(), piece.is_complete())
            }
            Err(ReadError::TimedOut) => return Ok(Came::Nothing),
            Err(error) => {
                pieces.clear();
                return no_message(&mut self.followed, error, begun);
            }
        };
        *begin = position;
        if complete {
            self.followed.message(position, pieces)?;
            pieces.clear();
        } else {
            self.followed.piece(pieces)?;
        }
        Ok(Came::Something)
    }
}

/// What a reader says that has no message.
fn no_message(followed: &mut Followed, error: ReadError, begun: bool) -> Result<Came, String> {
    match error {
        ReadError::TimedOut => Ok(Came::Nothing),
        ReadError::Missed(missed) => {
            followed.missed(missed, begun)?;
            Ok(Came::Something)
        }
        ReadError::WriterGone => Ok(Came::Something),
        ReadError::Dropped => Ok(Came::Over),
        other => Err(other.to_string()),
    }
}

impl Letters {
    fn look(&mut self, deadline: Deadline) -> Result<Came, String> {
        let (reader, deadline) = match &mut self.by {
            By::Hand(reader) => (&mut **reader, deadline),
            By::Set(set, token) => {
                // It names our one reader, or nobody.
                let _ = set.wait(deadline).map_err(|error| error.to_string())?;
                let reader = set.get_mut(*token).ok_or("the reader left its set")?;
                (reader, Deadline::NOW)
            }
        };
        match reader.receive(deadline) {
            Ok(m) => {
                self.followed.message(m.position(), &m)?;
                Ok(Came::Something)
            }
            Err(error) => no_message(&mut self.followed, error, false),
        }
    }
}

impl Worker {
    /// Something with a channel.
    pub(super) fn stream(&mut self) {
        match self.random.below(20) {
            0 => self.find_channel(),
            1..3 => self.bind_to_channel(),
            3..9 => self.write(),
            9..17 => self.read(),
            17 => self.write_letter(),
            18 if self.at % 3 == 1 && self.random.once_in(4) => self.await_letter(),
            18 => self.read_letters(Deadline::NOW),
            _ => self.leave_channel(),
        }
    }

    fn find_channel(&mut self) {
        self.doing(Doing::Streaming);
        let Some(domain) = self.domain.clone() else {
            return;
        };
        let kind = self.random.below(NAMES.len());
        // One that has no name is passed on as a right.
        let name = (!self.random.once_in(4)).then_some(NAMES[kind]);
        let found = name.and_then(|name| domain.find_channel(name, Deadline::NOW).ok());
        let channel = found.or_else(|| domain.make_channel(&options(name, kind)).ok());
        if let Some(channel) = channel {
            self.holds.channels.take(channel);
        }
    }

    fn bind_to_channel(&mut self) {
        self.doing(Doing::Streaming);
        let held = &mut self.holds.channels;
        let at = self.random.below(held.known.len());
        let Some(channel) = held.known.get(at) else {
            return self.find_channel();
        };
        let many = channel.has_many_writers();
        if held.writers.len() < KEPT && self.random.once_in(2) {
            if let Ok(writer) = channel.bind_writer() {
                let longest = channel.longest();
                held.writers.push(Writing {
                    writer,
                    many,
                    longest,
                    who: self.random.next(),
                    number: 0,
                    begun: None,
                });
            }
            return;
        }
        if held.readers.len() >= KEPT {
            return;
        }
        let policies = [Lagging::Wait, Lagging::Drop, Lagging::Skip];
        let lagging = policies[self.random.below(3)];
        let past = [0, 1, 5, u64::MAX][self.random.below(4)];
        let since = if past == 0 {
            Since::Now
        } else {
            Since::Last(past)
        };
        let options = ReaderOptions::default().lagging(lagging).since(since);
        if let Ok(reader) = channel.bind_reader(options) {
            let waited_for = channel.is_reliable() && lagging == Lagging::Wait;
            let until = reader.position().saturating_add(past.min(channel.units()));
            let until = if waited_for { until } else { u64::MAX };
            held.readers.push(Following {
                reader,
                followed: Followed::new(many, channel.unit_payload(), until),
                pieces: (!many && self.random.once_in(2)).then(Default::default),
            });
        }
    }

    fn write(&mut self) {
        self.doing(Doing::Streaming);
        let at = self.random.below(self.holds.channels.writers.len());
        for _ in 0..=self.random.below(BATCH) {
            let deadline = match self.random.below(4) {
                0 => Deadline::after(SHORT),
                _ => Deadline::NOW,
            };
            let Some(writing) = self.holds.channels.writers.get_mut(at) else {
                return self.bind_to_channel();
            };
            let written = writing.go_on(&mut self.random, deadline);
            match written {
                Ok(()) => {
                    let written = self.board.of(self.at, Entry::Written);
                    written.fetch_add(1, Ordering::Relaxed);
                }
                Err(WriteError::Full { .. } | WriteError::Contended) => return,
                Err(other) => return self.corrupt(&format!("a channel: {other}")),
            }
        }
    }

    fn read(&mut self) {
        self.doing(Doing::Streaming);
        let at = self.random.below(self.holds.channels.readers.len());
        for _ in 0..=self.random.below(BATCH) {
            let deadline = match self.random.below(8) {
                0 => Deadline::after(SHORT),
                _ => Deadline::NOW,
            };
            let Some(following) = self.holds.channels.readers.get_mut(at) else {
                return self.bind_to_channel();
            };
            if self.random.once_in(4) {
                following.reader.set_waiting(Waiting::Sleep);
            }
            let came = following.look(deadline);
            if !self.note_reading(came) {
                return self.forget_reader(at);
            }
        }
    }

    /// Counts what was read, and says whether the reader is of use yet.
    fn note_reading(&self, came: Result<Came, String>) -> bool {
        match came {
            Ok(Came::Something) => {
                let read = self.board.of(self.at, Entry::Read);
                read.fetch_add(1, Ordering::Relaxed);
                true
            }
            Ok(Came::Nothing) => true,
            Ok(Came::Over) => false,
            Err(what) => {
                self.corrupt(&format!("a channel: {what}"));
                false
            }
        }
    }

    fn forget_reader(&mut self, at: usize) {
        drop(self.holds.channels.readers.swap_remove(at));
    }

    fn leave_channel(&mut self) {
        self.doing(Doing::Streaming);
        let held = &mut self.holds.channels;
        match self.random.below(3) {
            0 => drop(held.known.pop()),
            1 if !held.writers.is_empty() => {
                let at = self.random.below(held.writers.len());
                drop(held.writers.swap_remove(at));
            }
            _ if !held.readers.is_empty() => {
                let at = self.random.below(held.readers.len());
                drop(held.readers.swap_remove(at));
            }
            _ => {}
        }
    }

    /// Its own channel, for letters; made if nobody has a right on an older one of this name.
    pub(super) fn open_letters(&mut self, domain: &Domain) {
        let name = letters(self.at);
        let options = ChannelOptions::named(&name).many_writers().units(32);
        let found = domain.find_channel(&name, Deadline::NOW).ok();
        let channel = found.or_else(|| domain.make_channel(&options).ok());
        let Some(channel) = channel else { return };
        let Ok(mut reader) = channel.bind_reader(ReaderOptions::default()) else {
            return;
        };
        if self.random.once_in(2) {
            reader.set_waiting(Waiting::Sleep);
        }
        let followed = Followed::new(true, channel.unit_payload(), u64::MAX);
        let address = channel.segment().address() as u64;
        self.board.set(self.at, Entry::Letters, address);
        let set = self.random.once_in(2).then(|| WaitSet::new(domain).ok());
        let by = match set.flatten() {
            Some(mut set) => set
                .add(reader)
                .ok()
                .map(|token| By::Set(Box::new(set), token)),
            None => Some(By::Hand(Box::new(reader))),
        };
        self.holds.channels.letters = by.map(|by| Letters { by, followed });
    }

    fn write_letter(&mut self) {
        self.doing(Doing::Streaming);
        let Some(domain) = self.domain.clone() else {
            return;
        };
        let to = self.random.below(super::super::board::MAX_WORKERS);
        let who = self.random.next();
        if post(&domain, to, who).is_ok() {
            let written = self.board.of(self.at, Entry::Written);
            written.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sleeps for a letter; only that ends it.
    fn await_letter(&mut self) {
        let waits = self.holds.channels.letters.is_some();
        if waits {
            // Who waits for us meanwhile shall not.
            self.holds.onces.clear();
            self.close_bridge();
            self.holds.channels.readers.clear();
            self.doing(Doing::Listening);
            self.read_letters(Deadline::after(LONG));
            self.doing(Doing::Streaming);
        }
    }

    fn read_letters(&mut self, deadline: Deadline) {
        let Some(letters) = &mut self.holds.channels.letters else {
            return;
        };
        let came = letters.look(deadline);
        if !self.note_reading(came) {
            self.holds.channels.letters = None;
        }
    }
}

/// Writes a letter to a worker, if it has a channel for that.
pub(super) fn post(domain: &Domain, to: usize, who: u64) -> Result<(), String> {
    let found = domain.find_channel(&letters(to), Deadline::NOW);
    let writer = found.map_err(|e| e.to_string())?.bind_writer();
    let letter = stream::message(who, 1, ANYWHERE, LEAST);
    let written = writer.map(|mut writer| writer.write(&letter, Deadline::after(SHORT)));
    match written {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

impl Writing {
    /// Writes a message, or some of one.
    fn go_on(&mut self, random: &mut super::Random, deadline: Deadline) -> Result<(), WriteError> {
        let Self { writer, .. } = self;
        if let Some((message, done)) = &mut self.begun {
            let left = &message[*done..];
            if left.is_empty() {
                writer.end(deadline)?;
                self.begun = None;
                return Ok(());
            }
            let now = 1 + random.below(left.len());
            *done += writer.append_some(&left[..now], deadline)?;
            if random.once_in(2) {
                writer.show();
            }
            return Ok(());
        }
        let most = match random.below(4) {
            0 => self.longest,
            _ => self.longest.min(100),
        };
        let position = if self.many {
            ANYWHERE
        } else {
            writer.position()
        };
        let number = self.number + 1;
        let message = stream::message(self.who, number, position, random.below(most + 1));
        match random.below(4) {
            0 if !self.many => {
                let claim = writer.claim(message.len(), deadline)?;
                let (a, b) = message.split_at(random.below(message.len()));
                claim.fill(a.len(), b);
                claim.fill(0, a);
                if random.once_in(4) {
                    // Given up: nothing was written.
                    return Ok(());
                }
                claim.commit();
            }
            1 if !self.many => self.begun = Some((message, 0)),
            2 => {
                let (a, b) = message.split_at(random.below(message.len()));
                writer.write_parts(&[a, b], deadline)?;
            }
            _ => {
                writer.write(&message, deadline)?;
            }
        }
        self.number = number;
        Ok(())
    }
}
