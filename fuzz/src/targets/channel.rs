//! A channel's memory, which its other members rewrite between any two steps of a reader and
//! a writer.

use crate::memory::Words;
use arbitrary::{Result, Unstructured};
use portolan_abi::channel::{POSITIONS, Shape, Stamp};
use portolan_shm::channel::{
    Barriers, Channel, Finished, Head, Lagging, Look, Meta, Mode, NotWritten, Pen, ReaderEntry,
    Reading, Signalling, Since,
};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

struct Memory {
    head: Box<Head>,
    readers: Vec<ReaderEntry>,
    units: Vec<AtomicU64>,
    unit: usize,
}

/// One that makes barriers, or does not let us.
struct Kernel(bool);

impl Barriers for Kernel {
    fn everywhere(&self) -> bool {
        self.0
    }

    fn by_time(&self) {}
}

/// Does without barriers as soon as it may.
fn relaxing(mut pen: Pen) -> Pen {
    pen.relax_when(|| true);
    pen
}

/// Those of us who follow the rules.
struct Honest {
    pen: Pen,
    readings: Vec<Reading>,
    message: Vec<u8>,
}

pub(super) fn run(data: &[u8]) {
    let _ = play(&mut Unstructured::new(data));
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    let unit = *u.choose(&[64, 128, 320, 4096])?;
    let units = *u.choose(&[4, 8, 16_u64])?;
    let entries = u.int_in_range(0..=3)?;
    let mode = Mode {
        reliable: u.arbitrary()?,
        many_writers: u.ratio(1, 3)?,
        raw: u.ratio(1, 8)?,
        signalling: *u.choose(&[
            Signalling::Message,
            Signalling::Never,
            Signalling::Bytes(0),
            Signalling::Bytes(128),
        ])?,
    };
    let Ok(shape) = Shape::new(unit, units, entries) else {
        return Ok(());
    };
    let memory = Memory {
        head: Box::default(),
        readers: (0..entries).map(|_| ReaderEntry::default()).collect(),
        units: (0..shape.units * unit as u64 / 8)
            .map(|_| AtomicU64::new(0))
            .collect(),
        unit,
    };
    let made = Channel::make(&memory.head, &memory.readers, &memory.units, shape, mode);
    let Ok(mut channel) = made else { return Ok(()) };
    let mut honest = Honest::new(&channel);
    while !u.is_empty() {
        match u.int_in_range(0..=7)? {
            0..=2 => memory.scribble(u, &honest)?,
            3 => honest.write(u, &channel, &memory)?,
            4 => honest.read(u, &channel)?,
            5 => honest.wait(u, &channel)?,
            6 => honest.come_and_go(u, &channel)?,
            _ => match Channel::open(&memory.head, &memory.readers, &memory.units) {
                Ok(again) => {
                    // Whatever its head says now, it lies within its memory.
                    let shape = again.shape();
                    assert!(shape.units * shape.unit as u64 <= 8 * memory.units.len() as u64);
                    channel = again;
                    honest = Honest::new(&channel);
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            },
        }
    }
    Ok(())
}

impl Memory {
    /// Writes a word anywhere, most often one that is almost right.
    fn scribble(&self, u: &mut Unstructured<'_>, honest: &Honest) -> Result<()> {
        let units = self.units.len() / (self.unit / 8);
        match u.int_in_range(0..=5)? {
            0 => {
                let word = self.word(u, honest)?;
                u.choose(self.head.words())?.store(word, Relaxed);
            }
            1 if !self.readers.is_empty() => {
                let word = self.word(u, honest)?;
                let entry = u.choose(&self.readers)?;
                u.choose(entry.words())?.store(word, Relaxed);
            }
            2 => {
                // A whole unit, said again where it stood or elsewhere.
                let (from, to) = (u.choose_index(units)?, u.choose_index(units)?);
                let words = self.unit / 8;
                for i in 0..words {
                    let word = self.units[from * words + i].load(Relaxed);
                    self.units[to * words + i].store(word, Relaxed);
                }
            }
            3 | 4 => {
                // The stamp or the meta word of a unit.
                let at =
                    u.choose_index(units)? * (self.unit / 8) + usize::from(u.arbitrary::<bool>()?);
                self.units[at].store(self.word(u, honest)?, Relaxed);
            }
            _ => {
                let word = self.word(u, honest)?;
                u.choose(&self.units)?.store(word, Relaxed);
            }
        }
        Ok(())
    }

    fn word(&self, u: &mut Unstructured<'_>, honest: &Honest) -> Result<u64> {
        let near = honest.pen.position();
        Ok(match u.int_in_range(0..=6)? {
            0 => u.arbitrary()?,
            1 => u.int_in_range(0..=300)?,
            2 => Meta::new(u.int_in_range(0..=5000)?, u.arbitrary()?, u.arbitrary()?).0,
            3 => Stamp::done(u.int_in_range(0..=near + 40)?, u.arbitrary()?).0,
            4 => {
                Stamp::busy(
                    u.int_in_range(near.saturating_sub(20)..=near + 20)?,
                    u.arbitrary()?,
                )
                .0
            }
            5 => {
                let at = POSITIONS - u.int_in_range(1..=70)?;
                *u.choose(&[at, Stamp::done(at, 1).0, Stamp::busy(at, 1).0])?
            }
            _ => u64::MAX,
        })
    }
}

impl Honest {
    fn new(channel: &Channel<'_>) -> Self {
        Self {
            pen: relaxing(channel.resume_writing(1)),
            readings: vec![channel.start_reading(Since::Now)],
            message: Vec::new(),
        }
    }

    fn write(
        &mut self,
        u: &mut Unstructured<'_>,
        channel: &Channel<'_>,
        memory: &Memory,
    ) -> Result<()> {
        let len = u.int_in_range(0..=700)?;
        let bytes = vec![7; len];
        let pen = &mut self.pen;
        if channel.mode().many_writers {
            refused(channel.write(pen, &[&bytes]));
            return Ok(());
        }
        match u.int_in_range(0..=5)? {
            0 if !pen.is_within_message() => {
                refused(channel.write(pen, &[&bytes[..len / 2], &bytes[len / 2..]]))
            }
            1 => match channel.append(pen, &bytes) {
                Ok((done, _)) => assert!(done <= len),
                Err(error) => refused::<()>(Err(error)),
            },
            2 => drop(channel.show(pen)),
            3 => refused(channel.end(pen)),
            4 if !pen.is_within_message() => {
                if channel.claim(pen, len).is_ok() {
                    let units = len.div_ceil(channel.shape().payload()).max(1) as u64;
                    for unit in 0..units {
                        channel.claimed(pen, unit)[0].store(5, Relaxed);
                    }
                    memory.scribble(u, self)?;
                    let _ = channel.commit(&mut self.pen, len);
                }
            }
            _ => drop(channel.abandon(pen)),
        }
        Ok(())
    }

    fn read(&mut self, u: &mut Unstructured<'_>, channel: &Channel<'_>) -> Result<()> {
        if self.readings.is_empty() {
            return Ok(());
        }
        let which = u.choose_index(self.readings.len())?;
        let reading = &mut self.readings[which];
        let payload = channel.shape().payload();
        for _ in 0..u.int_in_range(1..=20)? {
            let before = reading.position();
            match channel.look(reading) {
                Look::Unit { len, flags } => {
                    assert!(len <= payload, "{len} bytes of {payload}");
                    // As much as is wanted, or less.
                    self.message.resize(u.int_in_range(0..=len)?, 0);
                    let Some(copied) = channel.copy(reading, &mut self.message) else {
                        continue;
                    };
                    assert!(copied <= self.message.len());
                    let _ = channel.is_whole(reading, &self.message[..copied]);
                    let _ = channel.advance(reading, copied, flags & Meta::CLOSED != 0);
                }
                Look::Missed(missed) => {
                    assert!(missed.start == before && missed.end == reading.position());
                    assert!(missed.start < missed.end, "what was missed is behind us");
                }
                Look::Garbled(why) => {
                    assert!(!why.to_string().is_empty());
                    break;
                }
                Look::Nothing | Look::Dropped => break,
            }
            assert!(reading.position() >= before, "backward");
        }
        if u.ratio(1, 8)? {
            channel.seek(reading);
        }
        if let Some(missed) = channel.step_over(reading) {
            assert_eq!(missed.end, reading.position());
        }
        let _ = (
            channel.has_more(reading),
            channel.is_stuck(reading),
            reading.taken(),
        );
        Ok(())
    }

    fn wait(&mut self, u: &mut Unstructured<'_>, channel: &Channel<'_>) -> Result<()> {
        let units = u.int_in_range(1..=channel.shape().units)?;
        let _ = channel.room_for(&mut self.pen, units);
        let _ = channel.wait_for_room(&mut self.pen, units);
        let _ = channel.signal_now(&mut self.pen);
        let _ = channel.signal();
        for reading in &mut self.readings {
            channel.link(reading, 77);
            let _ = channel.arm(reading, &Kernel(u.arbitrary()?));
        }
        let _: Finished = channel.room_made();
        channel.change_doorbell();
        let (mut linked, mut woken) = (0, 0);
        channel.rouse(|_| linked += 1, |_| woken += 1);
        assert_eq!((linked, woken), (channel.readers().len(), 1));
        channel.rouse_writer(|_| woken += 1);
        assert_eq!(woken, 2);
        let place = u.arbitrary()?;
        assert!(!channel.place_words(place).is_empty());
        assert!(channel.place(place) < channel.shape().units * channel.shape().unit as u64);
        channel.put();
        let _ = channel.arm_for_puts(channel.puts());
        Ok(())
    }

    fn come_and_go(&mut self, u: &mut Unstructured<'_>, channel: &Channel<'_>) -> Result<()> {
        let space = u.int_in_range(1..=3)?;
        let since = if u.arbitrary()? {
            Since::Now
        } else {
            Since::Last(u.arbitrary()?)
        };
        match u.int_in_range(0..=5)? {
            0 => {
                let lagging = *u.choose(&[Lagging::Wait, Lagging::Drop, Lagging::Skip])?;
                match channel.join(space, lagging, since) {
                    Ok(reading) => self.readings.push(reading),
                    Err(none) => assert_eq!(none.entries, channel.readers().len() as u64),
                }
            }
            1 => self.readings.push(channel.start_reading(since)),
            2 => {
                if let Some(reading) = self.readings.pop() {
                    let _ = channel.leave(reading);
                }
            }
            3 => {
                let _ = channel.bind_writer(space);
            }
            4 => {
                let _ = channel.unbind_writer(space);
                self.pen = relaxing(channel.resume_writing(space));
            }
            _ => channel.reclaim(space),
        }
        self.readings.truncate(8);
        let _ = (channel.writer(), channel.content());
        Ok(())
    }
}

/// An error is one that says something.
fn refused<T>(outcome: std::result::Result<T, NotWritten>) {
    if let Err(error) = outcome {
        assert!(!error.to_string().is_empty());
    }
}
