//! Subscribers of topics, and readers of frames, beside ports and listeners.

use crate::{Epoll, PATIENCE, send, soon, take};
use portolan::channel::{
    ChannelOptions, FrameReader, ReadError, Signalling, SubscribeError, Subscriber, TopicOptions,
};
use portolan::{
    Deadline, Domain, Listener, ListenerOptions, PortOptions, ReceiveRight, Segment, SendRight,
    Token, WaitSet, WaitSetError, Waiting,
};
use rustix::event::epoll::EventFlags;
use std::sync::mpsc;
use std::time::Duration;

/// Rounds of what others do, one thing at a time.
const ROUNDS: u64 = 300;
/// Two publish at a time, and each goes after so many rounds.
const PUBLISHES: u64 = 17;

fn numbers(domain: &Domain) -> Subscriber<u64> {
    domain.subscriber("numbers", topic()).unwrap()
}

fn topic() -> TopicOptions {
    TopicOptions::default().history(8)
}

/// A set with one of each, in which nothing is there.
struct Mixed {
    domain: Domain,
    set: WaitSet,
    port: Token<ReceiveRight>,
    listener: Token<Listener>,
    subscriber: Token<Subscriber<u64>>,
    frames: Token<FrameReader>,
    /// For others.
    right: SendRight,
    segment: Segment,
    channel: portolan::channel::Channel,
    signals: mpsc::Receiver<usize>,
}

impl Mixed {
    fn new() -> Self {
        let domain = Domain::private().unwrap();
        let mut set = WaitSet::new(&domain).unwrap();
        let port = domain.bind(PortOptions::unnamed()).unwrap();
        let right = port.make_send();
        let segment = domain.make_segment(None, 4096).unwrap();
        let start = segment.address();
        let (signal, signals) = mpsc::channel();
        let mut listener = domain.listen(ListenerOptions::default()).unwrap();
        let told = listener.on(start..start + 4096, move |at| {
            signal.send(at - start).unwrap();
        });
        told.unwrap();
        let raw = ChannelOptions::unnamed().raw().units(4);
        let channel = domain.make_channel(&raw).unwrap();
        let frames = channel.bind_frame_reader().unwrap();
        Self {
            port: set.add(port).unwrap(),
            listener: set.add(listener).unwrap(),
            subscriber: set.add(numbers(&domain)).unwrap(),
            frames: set.add(frames).unwrap(),
            domain,
            set,
            right,
            segment,
            channel,
            signals,
        }
    }

    /// What is there at a token that was named.
    fn served(&mut self, token: Token) -> Vec<Seen> {
        if token == self.port {
            let port = self.set.get_mut(self.port).unwrap();
            let text = take(port).unwrap();
            return vec![Seen::Message(text.parse().unwrap())];
        }
        if token == self.listener {
            assert!(self.set.get_mut(self.listener).unwrap().poll() > 0);
            return self.signals.try_iter().map(Seen::Signal).collect();
        }
        if token == self.subscriber {
            let subscriber = self.set.get_mut(self.subscriber).unwrap();
            return match subscriber.receive(Deadline::NOW) {
                Ok(sample) => vec![Seen::Sample(*sample)],
                // A new publisher has come.
                Err(SubscribeError::TimedOut) => Vec::new(),
                Err(why) => panic!("{why}"),
            };
        }
        assert_eq!(token, self.frames);
        let reader = self.set.get_mut(self.frames).unwrap();
        vec![match reader.wait(Deadline::NOW) {
            Ok(puts) => Seen::Puts(puts),
            Err(ReadError::WriterGone) => Seen::WriterGone,
            Err(why) => panic!("named for nothing: {why}"),
        }]
    }

    /// Others do one thing after the other, each once the last was seen, which `wait` is to
    /// find; nothing else wakes the set.
    fn everything_is_seen(mut self, mut wait: impl FnMut(&mut WaitSet) -> Vec<Token>) {
        let (done, seen) = (mpsc::channel(), mpsc::channel());
        let (domain, right) = (self.domain.clone(), self.right.clone());
        let (start, channel) = (self.segment.address(), self.channel.clone());
        let others = std::thread::spawn(move || {
            let (done, seen) = (done.0, seen.1);
            let mut publishers = Vec::new();
            let mut camera = None;
            for round in 0..ROUNDS {
                if round % PUBLISHES == 0 {
                    publishers.push(domain.publisher::<u64>("numbers", topic()).unwrap());
                    // The eldest goes, and all that it wrote was seen.
                    if publishers.len() > 2 {
                        publishers.remove(0);
                    }
                }
                // Before it sleeps, while it goes to sleep, or after.
                std::thread::sleep(Duration::from_micros(round * 37 % 300));
                let expected = match round % 5 {
                    0 => {
                        send(&right, &round.to_string());
                        Seen::Message(round)
                    }
                    1 => {
                        let at = usize::try_from(round).unwrap() * 8;
                        domain.signal(start + at).unwrap();
                        Seen::Signal(at)
                    }
                    2 => {
                        publishers[0].publish(&round).unwrap();
                        Seen::Sample(round)
                    }
                    3 => {
                        publishers.last_mut().unwrap().publish(&round).unwrap();
                        Seen::Sample(round)
                    }
                    _ if camera.is_some() && round % 2 == 0 => {
                        camera = None;
                        Seen::WriterGone
                    }
                    _ => {
                        let writer = || channel.bind_frame_writer().unwrap();
                        let writer = camera.get_or_insert_with(writer);
                        writer.put(round, &round.to_ne_bytes()).unwrap();
                        writer.show().unwrap();
                        Seen::Puts(1)
                    }
                };
                done.send(expected).unwrap();
                let () = seen.recv().unwrap();
            }
            // A writer of frames that leaves would be told.
            let _ = seen.recv();
        });
        for round in 0..ROUNDS {
            let found = loop {
                let ready = wait(&mut self.set);
                let found: Vec<_> = ready.into_iter().flat_map(|t| self.served(t)).collect();
                if !found.is_empty() {
                    break found;
                }
            };
            assert_eq!(found, [done.1.recv().unwrap()], "{round}");
            seen.0.send(()).unwrap();
        }
        // Of its publishers some may be new; then nothing is there.
        while let Some(token) = self.set.wait(Deadline::NOW).unwrap().next() {
            assert_eq!(self.served(token), []);
        }
        drop(seen.0);
        others.join().unwrap();
    }
}

#[derive(Debug, PartialEq)]
enum Seen {
    Message(u64),
    Signal(usize),
    Sample(u64),
    Puts(u64),
    WriterGone,
}

#[test]
fn a_blocked_wait_finds_everything() {
    for waiting in [Waiting::Sleep, Waiting::Adaptive] {
        let mut mixed = Mixed::new();
        mixed.set.set_waiting(waiting);
        mixed.everything_is_seen(|set| set.wait(soon()).unwrap().collect());
    }
}

#[test]
fn a_descriptor_is_readable_for_everything_and_quiet_otherwise() {
    let mut mixed = Mixed::new();
    let epoll = Epoll::of(&mixed.set, EventFlags::empty());
    assert_eq!(mixed.set.wait(Deadline::NOW).unwrap().count(), 0);
    assert!(!epoll.wait(Duration::from_millis(20)), "nothing is there");

    let mut publisher = mixed.domain.publisher::<u64>("numbers", topic()).unwrap();
    let mut camera = mixed.channel.bind_frame_writer().unwrap();
    for round in 0..20u64 {
        publisher.publish(&round).unwrap();
        camera.put(round, b"line").unwrap();
        camera.show().unwrap();
        let mut found = Vec::new();
        while found.len() < 2 {
            assert!(epoll.wait(PATIENCE));
            let ready: Vec<_> = mixed.set.wait(Deadline::NOW).unwrap().collect();
            found.extend(ready.into_iter().flat_map(|token| mixed.served(token)));
        }
        assert!(found.contains(&Seen::Sample(round)), "{found:?}");
        assert!(found.contains(&Seen::Puts(1)), "{found:?}");
        assert_eq!(mixed.set.wait(Deadline::NOW).unwrap().count(), 0);
        assert!(!epoll.wait(Duration::ZERO), "nothing is left in {round}");
    }

    drop(camera);
    assert!(epoll.wait(PATIENCE));
    let ready: Vec<_> = mixed.set.wait(Deadline::NOW).unwrap().collect();
    assert_eq!(ready, [mixed.frames]);
    assert_eq!(mixed.served(mixed.frames.any()), [Seen::WriterGone]);
    drop(publisher);
    mixed.everything_is_seen(|set| {
        loop {
            let ready: Vec<_> = set.wait(Deadline::NOW).unwrap().collect();
            if !ready.is_empty() {
                return ready;
            }
            assert!(epoll.wait(PATIENCE));
        }
    });
}

#[cfg(feature = "tokio")]
#[test]
fn a_task_finds_everything() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    Mixed::new().everything_is_seen(|set| {
        runtime.block_on(async {
            let found = tokio::time::timeout(PATIENCE, set.wait_async()).await;
            found.unwrap().unwrap().collect()
        })
    });
}

/// Named again until it was served; and what is loose is as it is alone.
#[test]
fn what_is_not_taken_is_named_again() {
    let mut mixed = Mixed::new();
    let mut one = mixed.domain.publisher::<u64>("numbers", topic()).unwrap();
    let mut other = mixed.domain.publisher::<u64>("numbers", topic()).unwrap();
    let mut samples = 0;
    for round in 0..40 {
        // Every member is armed.
        assert!(mixed.set.wait(Duration::from_micros(1)).unwrap().count() <= 1);
        one.publish(&round).unwrap();
        other.publish(&round).unwrap();
        while samples < 2 * (round + 1) {
            let ready: Vec<_> = mixed.set.wait(soon()).unwrap().collect();
            assert_eq!(ready, [mixed.subscriber], "{round}");
            samples += mixed.served(mixed.subscriber.any()).len() as u64;
        }
        assert_eq!(mixed.set.wait(Deadline::NOW).unwrap().count(), 0);
        if round % 2 == 0 {
            // It waits alone meanwhile, in its own set.
            let token = mixed.subscriber;
            let subscriber = mixed.set.get_mut(token).unwrap();
            let nothing = subscriber.receive(Duration::from_micros(1));
            assert!(matches!(nothing, Err(SubscribeError::TimedOut)));
        }
    }
}

#[test]
fn what_is_removed_works_alone() {
    let mut mixed = Mixed::new();
    let mut publisher = mixed.domain.publisher::<u64>("numbers", topic()).unwrap();
    let mut camera = mixed.channel.bind_frame_writer().unwrap();
    for armed in [true, false, true] {
        let quiet = mixed.set.wait(Duration::from_micros(1)).unwrap().count();
        assert!(quiet <= 1, "a new publisher may be there");
        if !armed {
            assert!(mixed.set.get_mut(mixed.subscriber).is_some());
            assert!(mixed.set.get_mut(mixed.frames).is_some());
        }
        let mut subscriber = mixed.set.remove(mixed.subscriber).unwrap();
        let mut frames = mixed.set.remove(mixed.frames).unwrap();
        assert!(mixed.set.remove(mixed.subscriber).is_none());
        assert!(mixed.set.get_mut(mixed.frames).is_none());
        assert_eq!(mixed.set.len(), 2);

        // Its own descriptor tells again.
        let epoll = Epoll::of(subscriber.wait_set(), EventFlags::empty());
        while epoll.wait(Duration::ZERO) {
            let nothing = subscriber.receive(Deadline::NOW);
            assert!(matches!(nothing, Err(SubscribeError::TimedOut)));
        }
        publisher.publish(&1).unwrap();
        assert!(epoll.wait(PATIENCE));
        assert_eq!(*subscriber.receive(Deadline::NOW).unwrap(), 1);

        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(2));
                publisher.publish(&7).unwrap();
                camera.put(0, b"line").unwrap();
                camera.show().unwrap();
            });
            assert_eq!(*subscriber.receive(soon()).unwrap(), 7);
            assert_eq!(frames.wait(soon()), Ok(1));
        });
        assert_eq!(mixed.set.wait(Deadline::NOW).unwrap().count(), 0);

        // While it waits in another set its own one says that a thread should look.
        mixed.subscriber = mixed.set.add(subscriber).unwrap();
        mixed.frames = mixed.set.add(frames).unwrap();
        let none = mixed.set.wait(Duration::from_micros(1)).unwrap();
        assert_eq!(none.count(), 0);
        assert!(epoll.wait(PATIENCE));
    }
    // A set that is dropped takes them with it.
    drop(mixed.set);
    let reader = mixed.channel.bind_frame_reader().unwrap();
    let mut set = WaitSet::new(&mixed.domain).unwrap();
    assert!(set.add(reader).is_ok());
}

#[test]
fn what_cannot_be_told_is_given_back() {
    let domain = Domain::private().unwrap();
    let elsewhere = Domain::private().unwrap();
    let mut set = WaitSet::new(&domain).unwrap();
    let refused = set.add(numbers(&elsewhere)).unwrap_err();
    assert!(matches!(refused.why, WaitSetError::OtherDomain { .. }));
    let mut subscriber = refused.item;
    let mut publisher = elsewhere.publisher::<u64>("numbers", topic()).unwrap();
    publisher.publish(&3).unwrap();
    assert_eq!(*subscriber.receive(soon()).unwrap(), 3);

    let reader = |domain: &Domain, options: ChannelOptions| {
        let channel = domain.make_channel(&options).unwrap();
        channel.bind_frame_reader().unwrap()
    };
    let mut why = |reader: FrameReader| set.add(reader).unwrap_err().why;
    let raw = ChannelOptions::unnamed().raw();
    assert!(matches!(
        why(reader(&elsewhere, raw)),
        WaitSetError::OtherDomain { .. }
    ));
    let silent = ChannelOptions::unnamed().raw().signal(Signalling::Never);
    assert_eq!(why(reader(&domain, silent)), WaitSetError::NotSignalled);

    let lone = ChannelOptions::unnamed().raw().readers(1);
    let channel = domain.make_channel(&lone).unwrap();
    let first = channel.bind_frame_reader().unwrap();
    let mut second = channel.bind_frame_reader().unwrap();
    let refused = set.add(second).unwrap_err();
    assert_eq!(refused.why, WaitSetError::NoEntry);
    second = *refused.item;
    let mut camera = channel.bind_frame_writer().unwrap();
    camera.put(0, b"line").unwrap();
    assert_eq!(second.wait(Deadline::NOW), Ok(1), "it looks all the same");
    drop(first);
    let third = channel.bind_frame_reader().unwrap();
    let frames = set.add(third).unwrap();

    let topic = set.add(numbers(&domain)).unwrap();
    assert!(
        set.get_mut(topic.of::<Subscriber<u32>>()).is_none(),
        "another type"
    );
    assert!(set.remove(topic.of::<Subscriber<u32>>()).is_none());
    assert!(set.remove(frames.of::<Subscriber<u64>>()).is_none());
    assert!(set.remove(topic.of::<FrameReader>()).is_none());
    assert_eq!(set.len(), 2);
    assert!(set.remove(topic).is_some());
    assert!(set.remove(frames).is_some());
    assert!(set.is_empty());
}
