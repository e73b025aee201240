//! Measures iceoryx2: a publisher and a subscriber each way, or one publisher and many subscribers;
//! for blocking an event, too. Its requests and responses are in [`call`].
//!
//! The payload is written in the loaned sample and read in the received one. Each way a full
//! queue makes the publisher wait, as the other systems do; to many the oldest sample gives
//! way, and a subscriber sees by the first word which one it has.

use std::fmt::Debug;
use std::hint::black_box;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;

use super::Endpoint;
use super::memory::Spin;
use super::portolan::parent;
use crate::case::{Case, Mode, Pattern, Payload};
use crate::error::{MeasureError, Result};

pub(crate) use call::IceoryxCall;

mod call;

type Service = ipc::Service;

/// Samples of one direction that may be under way.
const DEPTH: usize = 8;

pub(crate) struct Iceoryx {
    ports: Ports,
    event: Option<Event>,
    words: usize,
    count: u64,
    /// The last sample read, and the one to be read, counted from 1.
    read: u64,
    due: u64,
    spin: Spin,
    /// Last: the ports go before the node they belong to.
    _node: Node<Service>,
}

/// The payload's type decides whether anything is written.
enum Ports {
    Touched(Pair<u64>),
    Untouched(Pair<MaybeUninit<u64>>),
}

/// The two ends of one process.
struct Pair<T: Debug + ZeroCopySend + 'static> {
    publisher: Option<Publisher<Service, [T], ()>>,
    subscriber: Option<Subscriber<Service, [T], ()>>,
}

impl Iceoryx {
    /// `coordinator` is the process that both sides know; `ours` and `theirs` name the directions.
    fn new(case: &Case, coordinator: u32, ours: &str, theirs: &str) -> Result<Self> {
        let coordinates = coordinator == std::process::id();
        let (publishes, subscribes) = match case.pattern {
            Pattern::Multicast { .. } => (coordinates, !coordinates),
            _ => (true, true),
        };
        let node = node()?;
        let words = usize::try_from(case.bytes).expect("64-bit only") / size_of::<u64>();
        let [ours, theirs] = [ours, theirs].map(|way| name(case, coordinator, way));
        let (to, from) = (publishes.then_some(&*ours), subscribes.then_some(&*theirs));
        let ports = match case.payload {
            Payload::Touched => Ports::Touched(Pair::new(case, &node, to, from, words)?),
            Payload::Untouched => Ports::Untouched(Pair::new(case, &node, to, from, words)?),
        };
        Ok(Self {
            ports,
            event: event(case, &node, &ours, &theirs)?,
            words,
            count: 0,
            read: 0,
            due: 0,
            spin: Spin::new(case),
            _node: node,
        })
    }
}

impl<T: Debug + ZeroCopySend + 'static> Pair<T> {
    fn new(
        case: &Case,
        node: &Node<Service>,
        to: Option<&str>,
        from: Option<&str>,
        words: usize,
    ) -> Result<Self> {
        let (subscribers, overflows) = match case.pattern {
            // And one that takes no part.
            Pattern::Multicast { readers } => (readers as usize + 1, true),
            _ => (1, false),
        };
        let service = |name: &str| {
            node.service_builder(&service_name(name)?)
                .publish_subscribe::<[T]>()
                .max_publishers(1)
                .max_subscribers(subscribers)
                .subscriber_max_buffer_size(DEPTH)
                .enable_safe_overflow(overflows)
                .open_or_create()
                .map_err(refused)
        };
        let publisher = |name: &str| {
            service(name)?
                .publisher_builder()
                .initial_max_slice_len(words)
                .create()
                .map_err(refused)
        };
        let subscriber = |name: &str| {
            service(name)?
                .subscriber_builder()
                .create()
                .map_err(refused)
        };
        Ok(Self {
            publisher: to.map(publisher).transpose()?,
            subscriber: from.map(subscriber).transpose()?,
        })
    }

    #[inline(always)]
    fn send(&self, words: usize, word: impl FnMut(usize) -> T) -> Result<()> {
        let Some(publisher) = &self.publisher else {
            return Ok(());
        };
        let sample = publisher.loan_slice_uninit(words).map_err(refused)?;
        sample.write_from_fn(word).send().map_err(refused)?;
        Ok(())
    }

    /// Waits for a sample and lets `read` have it.
    #[inline(always)]
    fn receive(&self, spin: Spin, event: Option<&Event>, read: impl FnOnce(&[T])) -> Result<()> {
        let Some(subscriber) = &self.subscriber else {
            return Ok(());
        };
        let sample = wait(spin, event, || subscriber.receive().map_err(refused))?;
        read(&sample);
        Ok(())
    }
}

fn node() -> Result<Node<Service>> {
    set_log_level(LogLevel::Fatal);
    NodeBuilder::new()
        // Control-C is to end us, not to be noticed by a library at its leisure.
        .signal_handling_mode(SignalHandlingMode::Disabled)
        .create::<Service>()
        .map_err(refused)
}

/// What both sides of a row call one of its services.
fn name(case: &Case, coordinator: u32, part: &str) -> String {
    let unit = case.unit().name();
    let row = format!("{} {} {:?} {unit}", case.name(), case.bytes, case.payload);
    let mode = case.mode.name();
    format!("portolan-bench/{coordinator}/{row}/{mode}/{part}")
}

/// What wakes a side that sleeps.
type Event = (Notifier<Service>, Listener<Service>);

/// Where sides sleep: one that wakes the other, and one that is woken.
fn event(case: &Case, node: &Node<Service>, ours: &str, theirs: &str) -> Result<Option<Event>> {
    Ok(match case.mode {
        Mode::Poll => None,
        Mode::Block | Mode::Adaptive | Mode::Monitor | Mode::Upcall => {
            Some((notifier(node, ours)?, listener(node, theirs)?))
        }
    })
}

/// Wakes the other side, where it may sleep.
#[inline(always)]
fn wake(event: Option<&Event>) -> Result<()> {
    if let Some((notifier, _)) = event {
        notifier.notify().map_err(refused)?;
    }
    Ok(())
}

/// Looks until there is something to be had, or sleeps between looks.
#[inline(always)]
fn wait<T>(
    spin: Spin,
    event: Option<&Event>,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let mut found = None;
    spin.until(|| {
        let looked = look().and_then(|looked| {
            if let (None, Some((_, listener))) = (&looked, event) {
                listener.blocking_wait(|_| {}).map_err(refused)?;
            }
            Ok(looked)
        });
        found = looked.transpose();
        found.is_some()
    });
    found.expect("it was waited for")
}

fn notifier(node: &Node<Service>, name: &str) -> Result<Notifier<Service>> {
    let service = node
        .service_builder(&service_name(name)?)
        .event()
        .open_or_create();
    service
        .map_err(refused)?
        .notifier_builder()
        .create()
        .map_err(refused)
}

fn listener(node: &Node<Service>, name: &str) -> Result<Listener<Service>> {
    let service = node
        .service_builder(&service_name(name)?)
        .event()
        .open_or_create();
    service
        .map_err(refused)?
        .listener_builder()
        .create()
        .map_err(refused)
}

fn service_name(name: &str) -> Result<ServiceName> {
    name.try_into().map_err(refused)
}

/// Its many error types say the most in their debug form.
fn refused(error: impl Debug) -> MeasureError {
    MeasureError::System {
        doing: "using iceoryx2",
        source: io::Error::other(format!("{error:?}")),
    }
}

impl Endpoint for Iceoryx {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        Ok((
            Self::new(case, std::process::id(), "there", "back")?,
            Vec::new(),
        ))
    }

    fn attach(case: &Case, _seat: u32, _descriptors: Vec<OwnedFd>) -> Result<Self> {
        Self::new(case, parent()?, "back", "there")
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        self.count += 1;
        let seed = self.count;
        match &self.ports {
            Ports::Touched(pair) => pair.send(self.words, |index| seed + index as u64)?,
            Ports::Untouched(pair) => pair.send(self.words, |_| MaybeUninit::uninit())?,
        }
        wake(self.event.as_ref())
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        let event = self.event.as_ref();
        self.due += 1;
        // To many, several may have gone by.
        while self.read < self.due {
            let mut read = self.read + 1;
            match &self.ports {
                Ports::Touched(pair) => pair.receive(self.spin, event, |words| {
                    black_box(
                        words
                            .iter()
                            .fold(0_u64, |sum, word| sum.wrapping_add(*word)),
                    );
                    read = words.first().copied().unwrap_or(read);
                })?,
                Ports::Untouched(pair) => pair.receive(self.spin, event, |words| {
                    black_box(words.as_ptr());
                })?,
            }
            self.read = read;
        }
        Ok(())
    }
}
