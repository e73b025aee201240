//! A publisher that obeys no rule writes the channels of a topic (samples, and references to long
//! ones) and its rendezvous channel, beside an honest publisher, in a real domain of this process.

use arbitrary::{Result, Unstructured};
use portolan::channel::{
    ChannelOptions, Flat, Publisher, ReadError, Reader, ReaderOptions, Sample, SubscribeError,
    Subscriber, TopicOptions, Writer,
};
use portolan::{Deadline, Domain, PortKind};
use std::sync::OnceLock;

/// How many may publish; the first of them follows the rules.
const PUBLISHERS: u8 = 3;
/// The one that we look with, and a reader of ours.
const SUBSCRIBERS: u64 = 3;
/// A sample of more bytes lies in memory of its own.
const COPIED: usize = 200;

fn domain() -> &'static Domain {
    static DOMAIN: OnceLock<Domain> = OnceLock::new();
    DOMAIN.get_or_init(|| {
        let builder = Domain::builder("fuzz-topic").size(64 << 20);
        match builder.private() {
            Ok(domain) => domain,
            Err(error) => panic!("there is no domain to fuzz: {error}"),
        }
    })
}

/// What is published here.
trait Kind: Flat {
    /// One that is told from others, of about so many bytes if that is for us to say.
    fn make(number: u64, len: usize) -> Box<Self>;
    /// Of all that is in it.
    fn sum(&self) -> u64;
}

impl Kind for [u8] {
    fn make(number: u64, len: usize) -> Box<Self> {
        vec![number.to_le_bytes()[0]; len].into()
    }

    fn sum(&self) -> u64 {
        self.iter().map(|&byte| u64::from(byte)).sum()
    }
}

impl Kind for [u32] {
    fn make(number: u64, len: usize) -> Box<Self> {
        vec![u32::from(number.to_le_bytes()[0]); len / 4].into()
    }

    fn sum(&self) -> u64 {
        self.iter().map(|&word| u64::from(word)).sum()
    }
}

impl<const N: usize> Kind for [u64; N] {
    fn make(number: u64, _: usize) -> Box<Self> {
        Box::new([number; N])
    }

    fn sum(&self) -> u64 {
        self.iter().fold(0, |sum, word| sum ^ word.rotate_left(7))
    }
}

pub(super) fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let played = u.int_in_range(0..=4).and_then(|kind| match kind {
        0 => play::<[u8]>(&mut u),
        1 => play::<[u32]>(&mut u),
        2 => play::<[u64; 600]>(&mut u),
        3 => play::<[u64; 5]>(&mut u),
        _ => play::<[u8]>(&mut u),
    });
    // It ends where the bytes do.
    let _ = played;
    let survey = match domain().survey() {
        Ok(survey) => survey,
        Err(error) => panic!("{error}"),
    };
    let segments = survey.ports.iter().filter(|p| p.kind == PortKind::Segment);
    let left = (survey.memory.used, segments.count());
    assert_eq!(left, (0, 0), "bytes and segments that nobody has");
}

struct Play<T: ?Sized> {
    options: TopicOptions,
    honest: Publisher<T>,
    /// Of the honest one's notes, as they are.
    notes: Reader,
    note: Vec<u8>,
    subscriber: Option<Subscriber<T>>,
    /// The honest one's samples, and what they were when they came.
    kept: Vec<(Sample<T>, u64)>,
    published: u64,
    /// Where publishers write, and announce themselves.
    garblers: Vec<Writer>,
    announcer: Writer,
}

fn play<T: Kind + ?Sized>(u: &mut Unstructured<'_>) -> Result<()> {
    let options = TopicOptions::default()
        .history(u.int_in_range(1..=4)?)
        .publishers(PUBLISHERS)
        .subscribers(SUBSCRIBERS)
        .copied(COPIED);
    let Some(mut play) = Play::<T>::begin(options) else {
        panic!("no topic can be made any more");
    };
    let done = play.go_on(u);
    play.end();
    done
}

impl<T: Kind + ?Sized> Play<T> {
    fn begin(options: TopicOptions) -> Option<Self> {
        let domain = domain();
        let honest = domain.publisher::<T>("t", options).ok()?;
        let rendezvous = domain.find_channel("t#", Deadline::NOW).ok()?;
        let notes = honest.channel().bind_reader(ReaderOptions::default());
        Some(Self {
            notes: notes.ok()?,
            note: Vec::new(),
            subscriber: domain.subscriber::<T>("t", options).ok(),
            kept: Vec::new(),
            published: 0,
            garblers: Vec::new(),
            announcer: rendezvous.bind_writer().ok()?,
            options,
            honest,
        })
    }

    fn go_on(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        while !u.is_empty() {
            match u.int_in_range(0..=11)? {
                0..=1 => self.publish(u)?,
                2..=5 => self.garble(u)?,
                6 => self.announce(u)?,
                7..=8 => {
                    for _ in 0..u.int_in_range(1..=6)? {
                        self.receive();
                    }
                }
                9 => self.come(u)?,
                10 => drop(self.garblers.pop()),
                _ if u.ratio(1, 3)? => {
                    self.subscriber = None;
                    self.subscriber = domain().subscriber::<T>("t", self.options).ok();
                }
                _ => self.kept.truncate(u.int_in_range(0..=3)?),
            }
        }
        Ok(())
    }

    fn publish(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        self.published += 1;
        let len = *u.choose(&[0, 4, 100, 250, 5000, 70_000])?;
        let sample = T::make(self.published, len);
        if let Err(error) = self.honest.publish(&sample) {
            panic!("the one that follows the rules: {error}");
        }
        while let Ok(message) = self.notes.receive(Deadline::NOW) {
            self.note = message.to_vec();
        }
        Ok(())
    }

    /// Writes what a publisher would, most often almost right.
    fn garble(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        if self.garblers.is_empty() {
            return self.come(u);
        }
        let message = match u.int_in_range(0..=5)? {
            // The note of another one's sample, or that with a flaw.
            0 => self.note.clone(),
            1 if !self.note.is_empty() => {
                let mut note = self.note.clone();
                let at = u.choose_index(note.len().min(24))?;
                note[at] = u.arbitrary()?;
                note
            }
            2..=4 => {
                let tag = *u.choose(&[1_u64, 1, 1, 0, 2, u64::MAX])?;
                let few = u.arbitrary::<u8>()?.into();
                let len = *u.choose(&[few, 5000, 4096, 70_000, 1 << 40, u64::MAX])?;
                let generation = u.int_in_range(0..=40_u32)?;
                let generation = *u.choose(&[generation, generation, u32::MAX])?;
                let index = u.int_in_range(0..=40_u16)?;
                let index = *u.choose(&[index, index, u16::MAX])?;
                let mut note = [tag, len].map(u64::to_le_bytes).concat();
                note.extend(generation.to_le_bytes());
                note.extend(index.to_le_bytes());
                note.extend([0; 2]);
                note
            }
            _ => {
                let len = u.int_in_range(0..=300)?.min(u.len());
                u.bytes(len)?.to_vec()
            }
        };
        let which = u.choose_index(self.garblers.len())?;
        // What is too long for the channel is refused.
        let _ = self.garblers[which].write(&message, Deadline::NOW);
        Ok(())
    }

    fn announce(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let len = u.int_in_range(0..=50)?.min(u.len());
        let message = if u.arbitrary()? {
            vec![u.int_in_range(0..=PUBLISHERS)?]
        } else {
            u.bytes(len)?.to_vec()
        };
        let _ = self.announcer.write(&message, Deadline::NOW);
        Ok(())
    }

    /// One more publisher, of a channel like the honest one's, or like none.
    fn come(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let id = u.int_in_range(1..=PUBLISHERS - 1)?;
        let alike = u.ratio(3, 4)?;
        let channel = self.honest.channel();
        let mut options = ChannelOptions::named(&format!("t#{id}"))
            .content(channel.content())
            .unit(channel.unit())
            .units(channel.units())
            .readers(SUBSCRIBERS);
        if !alike {
            options = match u.int_in_range(0..=5)? {
                0 => options.content(u.arbitrary()?),
                1 => options.unit(*u.choose(&[64, 128, 4096])?),
                2 => options.readers(0),
                3 => options.many_writers(),
                4 => options.reliable(),
                _ => options.raw(),
            };
        }
        if let Ok(made) = domain().make_channel(&options)
            && let Ok(writer) = made.bind_writer()
        {
            self.garblers.push(writer);
        }
        Ok(())
    }

    /// Gets a sample, if there is one; `false` if there is nothing.
    fn receive(&mut self) -> bool {
        let Some(subscriber) = &mut self.subscriber else {
            return false;
        };
        match subscriber.receive(Deadline::NOW) {
            Ok(sample) => {
                // All of it can be read.
                let sum = sample.sum();
                if sample.publisher() == self.honest.id() {
                    self.kept.push((sample, sum));
                }
                true
            }
            Err(SubscribeError::TimedOut) => false,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                if let SubscribeError::Read { publisher, why } = error {
                    let garbled = matches!(why, ReadError::Garbled(_));
                    assert!(!garbled || publisher != self.honest.id(), "{why}");
                }
                true
            }
        }
    }

    /// The honest publisher is heard all the same, and its sample arrives unchanged.
    fn end(&mut self) {
        self.published += 1;
        let last = T::make(self.published, 5000);
        if let Err(error) = self.honest.publish(&last) {
            panic!("the one that follows the rules: {error}");
        }
        while self.receive() {}
        if self.subscriber.is_some() {
            let heard = self.kept.last().map(|(sample, _)| sample.sum());
            assert_eq!(heard, Some(last.sum()), "its last sample did not come");
        }
        for (sample, sum) in &self.kept {
            assert_eq!(sample.sum(), *sum, "a sample that somebody has was changed");
        }
    }
}
