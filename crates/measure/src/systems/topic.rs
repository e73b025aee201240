//! Measures Portolan's topics: one each way, or one from us to many.
//!
//! A sample is written in a loan and read where it is received. A small one is of a type of
//! its size, so that it fits a line; others are slices.

use std::os::fd::OwnedFd;

use portolan::channel::{Payload, PublishError, Publisher, Sample, Subscriber, TopicOptions};
use portolan::{Deadline, Domain, Waiting};

use super::Endpoint;
use super::portolan::{join, parent};
use crate::case::{Case, Mode, Pattern, Payload as Touch, Placement, SMALL};
use crate::error::{MeasureError, Result};
use crate::payload;

/// A sample that fits a line.
type Small = [u64; 6];
const _: () = assert!(size_of::<Small>() as u64 == SMALL);
/// Samples that a row has memory for at one time: those that publishers keep and readers hold.
pub(super) const KEPT: u64 = 16;

/// One process's ends.
pub(crate) struct Topic {
    ends: Ends,
    touched: bool,
    published: u64,
    /// The position that we have read up to, and are to read up to.
    read: u64,
    due: u64,
    /// Last: it is left after all that belongs to it.
    _domain: Domain,
}

/// By what a sample is made of.
enum Ends {
    Small(Pair<Small>),
    Slice(Pair<[u8]>, usize),
}

struct Pair<T: ?Sized> {
    publisher: Option<Publisher<T>>,
    subscriber: Option<Subscriber<T>>,
}

/// From the coordinator, and to it.
const THERE: &str = "there";
const BACK: &str = "back";

fn refused(error: impl std::error::Error + Send + Sync + 'static) -> MeasureError {
    MeasureError::library("using a benchmark's topic")(error)
}

impl<T: Payload + ?Sized> Pair<T> {
    fn new(
        case: &Case,
        domain: &Domain,
        publishes: Option<&str>,
        reads: Option<&str>,
    ) -> Result<Self> {
        let options = TopicOptions::default();
        let publisher = publishes.map(|topic| domain.publisher(topic, options));
        let subscriber = reads.map(|topic| domain.subscriber(topic, options));
        let mut subscriber = subscriber.transpose().map_err(refused)?;
        if let Some(subscriber) = &mut subscriber {
            subscriber.set_waiting(waiting(case));
        }
        Ok(Self {
            publisher: publisher.transpose().map_err(refused)?,
            subscriber,
        })
    }

    /// Publishes what `publish` makes of it.
    #[inline(always)]
    fn send(
        &mut self,
        publish: impl FnOnce(&mut Publisher<T>) -> std::result::Result<u64, PublishError>,
    ) -> Result<()> {
        if let Some(publisher) = &mut self.publisher {
            publish(publisher).map_err(refused)?;
        }
        Ok(())
    }

    /// The next sample, for `read`; its position.
    #[inline(always)]
    fn receive(&mut self, read: impl FnOnce(&Sample<T>)) -> Result<Option<u64>> {
        let Some(subscriber) = &mut self.subscriber else {
            return Ok(None);
        };
        let sample = subscriber.receive(Deadline::NEVER).map_err(refused)?;
        read(&sample);
        Ok(Some(sample.position()))
    }
}

fn waiting(case: &Case) -> Waiting {
    match (case.mode, case.pattern, case.placement) {
        // Polling on one CPU would only keep the other side from running.
        (Mode::Poll, _, Placement::TwoCpus) => Waiting::Poll,
        (Mode::Adaptive, ..) => Waiting::Adaptive,
        _ => Waiting::Sleep,
    }
}

impl Topic {
    fn new(case: &Case, domain: Domain, ours: &str, theirs: &str) -> Result<Self> {
        let coordinates = ours == THERE;
        let (publishes, reads) = match case.pattern {
            Pattern::Multicast { .. } | Pattern::Paced => (coordinates, !coordinates),
            Pattern::Stream | Pattern::FanIn { .. } => (!coordinates, coordinates),
            Pattern::RoundTrip { .. } => (true, true),
        };
        let (publishes, reads) = (publishes.then_some(ours), reads.then_some(theirs));
        let ends = if case.bytes == SMALL {
            Ends::Small(Pair::new(case, &domain, publishes, reads)?)
        } else {
            let bytes = usize::try_from(case.bytes).expect("64-bit only");
            Ends::Slice(Pair::new(case, &domain, publishes, reads)?, bytes)
        };
        Ok(Self {
            ends,
            touched: case.payload == Touch::Touched,
            published: 0,
            read: 0,
            due: 0,
            _domain: domain,
        })
    }
}

impl Endpoint for Topic {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let domain = join(case, std::process::id())?;
        Ok((Self::new(case, domain, THERE, BACK)?, Vec::new()))
    }

    fn attach(case: &Case, _seat: u32, _descriptors: Vec<OwnedFd>) -> Result<Self> {
        let domain = join(case, parent()?)?;
        Self::new(case, domain, BACK, THERE)
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        self.published += 1;
        let (touched, seed) = (self.touched, self.published);
        match &mut self.ends {
            Ends::Small(pair) => pair.send(|publisher| {
                let mut loan = publisher.loan()?;
                if touched {
                    loan.iter_mut()
                        .zip(seed..)
                        .for_each(|(word, value)| *word = value);
                }
                loan.publish()
            }),
            Ends::Slice(pair, bytes) => pair.send(|publisher| {
                let mut loan = publisher.loan(*bytes)?;
                if touched {
                    payload::write(&mut loan, seed);
                }
                loan.publish()
            }),
        }
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        self.due += 1;
        let touched = self.touched;
        // Where nobody waits for us, several may have gone by.
        while self.read < self.due {
            let position = match &mut self.ends {
                Ends::Small(pair) => pair.receive(|sample| {
                    if touched {
                        std::hint::black_box(sample.iter().fold(0, |s: u64, w| s.wrapping_add(*w)));
                    }
                }),
                Ends::Slice(pair, _) => pair.receive(|sample| {
                    if touched {
                        payload::read(sample);
                    }
                }),
            };
            match position? {
                Some(position) => self.read = position + 1,
                None => return Ok(()),
            }
        }
        Ok(())
    }
}
