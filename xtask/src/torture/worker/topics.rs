//! Publishes and subscribes: samples that are copied, and long ones, which lie in memory that all
//! their readers have a right on.

use super::super::Doing;
use super::super::board::Entry;
use super::super::payload;
use super::super::random::Random;
use super::{SHORT, Worker, keep};
use portolan::channel::{
    Flat, PublishError, Publisher, Sample, SubscribeError, Subscriber, TopicError, TopicOptions,
};
use portolan::{Deadline, Domain};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Topics that everybody publishes, and is subscribed to: of words, and of pictures.
const TOPICS: [&str; 2] = ["weather", "tide"];
const PICTURES: &str = "pictures";
/// Most samples in one go.
const BATCH: usize = 12;
/// Bytes of pictures: up to so many are copied, and there are none that are a little longer.
const COPIED: usize = 256;
const LENGTHS: [usize; 6] = [PICTURE, COPIED, 5000, 20_000, 70_000, 300_000];
/// Bytes of the least picture: payload's words, who published it, its number.
const PICTURE: usize = payload::LEAST + 16;
const WHO: usize = 16;

fn options() -> TopicOptions {
    TopicOptions::default().history(4).copied(COPIED)
}

/// Who publishes (a number drawn by each publisher), the sample's number, and words that
/// follow from the two.
type Told = [u64; 5];

fn seed(who: u64, number: u64) -> u64 {
    who ^ number.rotate_left(32)
}

fn told(who: u64, number: u64) -> Told {
    let seed = seed(who, number);
    [who, number, seed, !seed, seed.rotate_left(7)]
}

/// Makes a picture of these bytes.
fn paint(bytes: &mut [u8], who: u64, number: u64) {
    payload::stamp(bytes, seed(who, number));
    bytes[WHO..WHO + 8].copy_from_slice(&who.to_le_bytes());
    bytes[WHO + 8..WHO + 16].copy_from_slice(&number.to_le_bytes());
}

/// What is published.
trait Content: Flat {
    fn within(topics: &mut Topics) -> &mut Of<Self>;
    fn topic(random: &mut Random) -> &'static str;
    /// Publishes the sample `number` of `who`; `false` if a loan was given up instead.
    fn publish(
        publisher: &mut Publisher<Self>,
        random: &mut Random,
        who: u64,
        number: u64,
    ) -> Result<bool, PublishError>;
    /// Who published it, and its number; `None` if it is torn.
    fn read(sample: &Sample<Self>) -> Option<(u64, u64)>;
}

impl Content for Told {
    fn within(topics: &mut Topics) -> &mut Of<Self> {
        &mut topics.words
    }

    fn topic(random: &mut Random) -> &'static str {
        TOPICS[random.below(TOPICS.len())]
    }

    fn publish(
        publisher: &mut Publisher<Self>,
        random: &mut Random,
        who: u64,
        number: u64,
    ) -> Result<bool, PublishError> {
        let sample = told(who, number);
        if random.once_in(3) {
            let mut loan = publisher.loan()?;
            *loan = sample;
            loan.publish()?;
        } else {
            publisher.publish(&sample)?;
        }
        Ok(true)
    }

    fn read(sample: &Sample<Self>) -> Option<(u64, u64)> {
        let [who, number, ..] = **sample;
        (**sample == told(who, number)).then_some((who, number))
    }
}

impl Content for [u8] {
    fn within(topics: &mut Topics) -> &mut Of<Self> {
        &mut topics.pictures
    }

    fn topic(_: &mut Random) -> &'static str {
        PICTURES
    }

    fn publish(
        publisher: &mut Publisher<Self>,
        random: &mut Random,
        who: u64,
        number: u64,
    ) -> Result<bool, PublishError> {
        let len = LENGTHS[random.below(LENGTHS.len())];
        if random.once_in(4) {
            let mut bytes = vec![0; len];
            paint(&mut bytes, who, number);
            publisher.publish(&bytes)?;
            return Ok(true);
        }
        let mut loan = publisher.loan(len)?;
        paint(&mut loan, who, number);
        if random.once_in(6) {
            return Ok(false);
        }
        loan.publish()?;
        Ok(true)
    }

    fn read(sample: &Sample<Self>) -> Option<(u64, u64)> {
        let bytes = &**sample;
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let (who, number) = (word(WHO)?, word(WHO + 8)?);
        let whole = payload::verify(bytes).is_ok() && word(0) == Some(seed(who, number));
        whole.then_some((who, number))
    }
}

/// What a worker has of topics.
#[derive(Default)]
pub(super) struct Topics {
    words: Of<Told>,
    pictures: Of<[u8]>,
}

/// What it has of those of one kind.
struct Of<T: ?Sized> {
    /// Also who it is, and the number of its last sample.
    publisher: Option<(Publisher<T>, u64, u64)>,
    subscriber: Option<Subscribed<T>>,
    /// Samples that it looks at again, and what they said at first.
    kept: Vec<(Sample<T>, (u64, u64))>,
}

impl<T: ?Sized> Default for Of<T> {
    fn default() -> Self {
        Self {
            publisher: None,
            subscriber: None,
            kept: Vec::new(),
        }
    }
}

struct Subscribed<T: ?Sized> {
    subscriber: Subscriber<T>,
    /// Of each publisher: who it was last, and the number of its last sample.
    last: BTreeMap<u8, (u64, u64)>,
}

impl Topics {
    /// Rights, readers' entries, and places as the one writer.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let (words, pictures) = (self.words.counts(), self.pictures.counts());
        let long = |kept: &&(Sample<[u8]>, _)| kept.0.len() > COPIED;
        let samples = self.pictures.kept.iter().filter(long).count();
        (
            words.0 + pictures.0 + samples,
            words.1 + pictures.1,
            words.2 + pictures.2,
        )
    }
}

impl<T: Flat + ?Sized> Of<T> {
    /// The same, but for samples.
    fn counts(&self) -> (usize, usize, usize) {
        let publishes = usize::from(self.publisher.is_some());
        let buffers = self.publisher.as_ref().map_or(0, |p| p.0.buffers());
        // The publishers' channels, and that on which new ones announce themselves.
        let follows = |s: &Subscribed<T>| 1 + s.subscriber.publishers();
        let reads = self.subscriber.as_ref().map_or(0, follows);
        // A publisher: its writer, its channel, and the announcements'.
        (3 * publishes + buffers + reads, reads, publishes)
    }
}

impl<T: Content + ?Sized> Subscribed<T> {
    /// Who told the sample, and its number, if it is what its publisher told next, but for what
    /// was missed.
    fn check(&mut self, sample: &Sample<T>) -> Result<(u64, u64), String> {
        let Some((who, number)) = T::read(sample) else {
            let (publisher, position) = (sample.publisher(), sample.position());
            return Err(format!("sample {position} of {publisher} is torn"));
        };
        let before = self.last.insert(sample.publisher(), (who, number));
        match before {
            Some((last, before)) if last == who && before + 1 + sample.missed() != number => {
                Err(format!(
                    "sample {number} came after {before}, and {} were missed",
                    sample.missed()
                ))
            }
            _ => Ok((who, number)),
        }
    }
}

impl Worker {
    pub(super) fn publish_or_subscribe(&mut self) {
        if self.random.once_in(2) {
            self.at_a_topic::<Told>();
        } else {
            self.at_a_topic::<[u8]>();
        }
    }

    fn at_a_topic<T: Content + ?Sized>(&mut self) {
        self.doing(Doing::Publishing);
        let Some(domain) = self.domain.clone() else {
            return;
        };
        match self.random.below(20) {
            0..2 => T::within(&mut self.holds.topics).publisher = None,
            2..4 => T::within(&mut self.holds.topics).subscriber = None,
            4 => self.look_again::<T>(),
            5..12 => self.publish::<T>(&domain),
            _ => self.sample::<T>(&domain),
        }
    }

    fn publish<T: Content + ?Sized>(&mut self, domain: &Domain) {
        if T::within(&mut self.holds.topics).publisher.is_none() {
            let topic = T::topic(&mut self.random);
            match domain.publisher::<T>(topic, options()) {
                Ok(publisher) => {
                    let who = self.random.next();
                    T::within(&mut self.holds.topics).publisher = Some((publisher, who, 0));
                }
                Err(error) => self.no_topic(&error),
            }
        }
        let Some((publisher, who, number)) = &mut T::within(&mut self.holds.topics).publisher
        else {
            return;
        };
        let mut refused = None;
        for _ in 0..=self.random.below(BATCH) {
            match T::publish(publisher, &mut self.random, *who, *number + 1) {
                Ok(published) => *number += u64::from(published),
                // It runs out now and then.
                Err(PublishError::NoMemory(_)) => break,
                Err(error) => refused = Some(error),
            }
        }
        if let Some(error) = refused {
            self.corrupt(&format!("a topic: {error}"));
        }
    }

    fn sample<T: Content + ?Sized>(&mut self, domain: &Domain) {
        if T::within(&mut self.holds.topics).subscriber.is_none() {
            let topic = T::topic(&mut self.random);
            match domain.subscriber::<T>(topic, options()) {
                Ok(subscriber) => {
                    let last = BTreeMap::new();
                    T::within(&mut self.holds.topics).subscriber =
                        Some(Subscribed { subscriber, last });
                }
                Err(error) => self.no_topic(&error),
            }
        }
        for _ in 0..=self.random.below(BATCH) {
            let deadline = match self.random.below(8) {
                0 => Deadline::after(SHORT),
                _ => Deadline::NOW,
            };
            let Of {
                subscriber: Some(subscribed),
                kept,
                ..
            } = T::within(&mut self.holds.topics)
            else {
                return;
            };
            let came = match subscribed.subscriber.receive(deadline) {
                Ok(sample) => subscribed.check(&sample).map(|told| (sample, told)),
                Err(SubscribeError::TimedOut) => return,
                Err(error) => Err(error.to_string()),
            };
            match came {
                Ok((sample, told)) => {
                    if self.random.once_in(3) {
                        keep(kept, (sample, told));
                    } else if self.plant == Some("sample") {
                        std::mem::forget(sample);
                    }
                    let sampled = self.board.of(self.at, Entry::Sampled);
                    sampled.fetch_add(1, Ordering::Relaxed);
                }
                Err(what) => {
                    T::within(&mut self.holds.topics).subscriber = None;
                    return self.corrupt(&format!("a topic: {what}"));
                }
            }
        }
    }

    /// A sample that somebody has stays what it was, whatever its publisher does.
    fn look_again<T: Content + ?Sized>(&mut self) {
        for (sample, told) in std::mem::take(&mut T::within(&mut self.holds.topics).kept) {
            if T::read(&sample) != Some(told) {
                self.corrupt(&format!("a topic: the sample {told:x?} is another one now"));
            }
        }
    }

    /// Memory, places and names run out now and then; nothing else may.
    fn no_topic(&self, error: &TopicError) {
        if matches!(error, TopicError::OtherType { .. }) {
            self.corrupt(&format!("a topic: {error}"));
        }
    }
}
