//! What a worker publishes, and what it is subscribed to.

use super::super::Doing;
use super::super::board::Entry;
use super::{SHORT, Worker};
use portolan::channel::{Publisher, Sample, SubscribeError, Subscriber, TopicError, TopicOptions};
use portolan::{Deadline, Domain};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Topics that everybody publishes, and is subscribed to.
const TOPICS: [&str; 2] = ["weather", "tide"];
/// Most samples in one go.
const BATCH: usize = 12;

/// Who publishes (a number drawn by each publisher), the sample's number, and words that
/// follow from the two.
type Told = [u64; 5];

fn told(who: u64, number: u64) -> Told {
    let seed = who ^ number.rotate_left(32);
    [who, number, seed, !seed, seed.rotate_left(7)]
}

/// What a worker has of topics.
#[derive(Default)]
pub(super) struct Topics {
    publisher: Option<(Publisher<Told>, u64, u64)>,
    subscriber: Option<Subscribed>,
}

struct Subscribed {
    subscriber: Subscriber<Told>,
    /// Of each publisher: who it was last, and the number of its last sample.
    last: BTreeMap<u8, (u64, u64)>,
}

impl Topics {
    /// Rights, readers' entries, and places as the one writer.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let publishes = usize::from(self.publisher.is_some());
        // The publishers' channels, and that on which new ones announce themselves.
        let follows = |s: &Subscribed| 1 + s.subscriber.publishers();
        let reads = self.subscriber.as_ref().map_or(0, follows);
        // A publisher: its writer, its channel, and the announcements'.
        (3 * publishes + reads, reads, publishes)
    }
}

impl Subscribed {
    /// Whether the sample is what its publisher told next, but for what was missed.
    fn check(&mut self, sample: &Sample<Told>) -> Result<(), String> {
        let [who, number, ..] = **sample;
        if **sample != told(who, number) {
            return Err(format!("a sample is torn: {:x?}", **sample));
        }
        let before = self.last.insert(sample.publisher(), (who, number));
        match before {
            Some((last, before)) if last == who && before + 1 + sample.missed() != number => {
                Err(format!(
                    "sample {number} came after {before}, and {} were missed",
                    sample.missed()
                ))
            }
            _ => Ok(()),
        }
    }
}

impl Worker {
    pub(super) fn publish_or_subscribe(&mut self) {
        self.doing(Doing::Publishing);
        let Some(domain) = self.domain.clone() else {
            return;
        };
        let topic = TOPICS[self.random.below(TOPICS.len())];
        match self.random.below(10) {
            0 => self.holds.topics.publisher = None,
            1 => self.holds.topics.subscriber = None,
            2..6 => self.publish(&domain, topic),
            _ => self.sample(&domain, topic),
        }
    }

    fn publish(&mut self, domain: &Domain, topic: &str) {
        let options = TopicOptions::default().history(4);
        if self.holds.topics.publisher.is_none() {
            match domain.publisher::<Told>(topic, options) {
                Ok(publisher) => {
                    self.holds.topics.publisher = Some((publisher, self.random.next(), 0));
                }
                Err(error) => self.no_topic(&error),
            }
        }
        let Some((publisher, who, number)) = &mut self.holds.topics.publisher else {
            return;
        };
        let mut refused = None;
        for _ in 0..=self.random.below(BATCH) {
            let sample = told(*who, *number + 1);
            let published = if self.random.once_in(3) {
                publisher.loan().and_then(|mut loan| {
                    *loan = sample;
                    loan.publish()
                })
            } else {
                publisher.publish(&sample)
            };
            match published {
                Ok(_) => *number += 1,
                Err(error) => refused = Some(error),
            }
        }
        if let Some(error) = refused {
            self.corrupt(&format!("a topic: {error}"));
        }
    }

    fn sample(&mut self, domain: &Domain, topic: &str) {
        if self.holds.topics.subscriber.is_none() {
            let options = TopicOptions::default().history(4);
            match domain.subscriber::<Told>(topic, options) {
                Ok(subscriber) => {
                    let last = BTreeMap::new();
                    self.holds.topics.subscriber = Some(Subscribed { subscriber, last });
                }
                Err(error) => self.no_topic(&error),
            }
        }
        for _ in 0..=self.random.below(BATCH) {
            let deadline = match self.random.below(8) {
                0 => Deadline::after(SHORT),
                _ => Deadline::NOW,
            };
            let Some(subscribed) = &mut self.holds.topics.subscriber else {
                return;
            };
            let came = match subscribed.subscriber.receive(deadline) {
                Ok(sample) => subscribed.check(&sample),
                Err(SubscribeError::TimedOut) => return,
                Err(error) => Err(error.to_string()),
            };
            match came {
                Ok(()) => {
                    let sampled = self.board.of(self.at, Entry::Sampled);
                    sampled.fetch_add(1, Ordering::Relaxed);
                }
                Err(what) => {
                    self.holds.topics.subscriber = None;
                    return self.corrupt(&format!("a topic: {what}"));
                }
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
