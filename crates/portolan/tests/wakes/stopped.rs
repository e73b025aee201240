//! One of several that could make a wake is stopped between finding that it owes it, and making
//! it: the next one makes it.

use portolan::channel::{ChannelOptions, Lagging, ReadError, ReaderOptions};
use portolan::{Deadline, Domain, ListenerOptions, PortOptions};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

thread_local! {
    /// Where this thread stops, for once, and the count of its test's stopped ones.
    static STOP_AT: Cell<Option<(&'static str, &'static AtomicU64)>> = const { Cell::new(None) };
}
/// How long one stops, unless the test is over before.
const STOP: Duration = Duration::from_secs(60);
/// Who is held up is so for the whole of it.
const HELD_UP: Duration = Duration::from_secs(30);
/// In the count: the test is over.
const OVER: u64 = 1 << 63;

fn hook(name: &'static str) {
    if let Some((at, stopped)) = STOP_AT.with(Cell::get)
        && at == name
    {
        STOP_AT.with(|s| s.set(None));
        stopped.fetch_add(1, Ordering::SeqCst);
        // As SIGSTOP would.
        let began = Instant::now();
        while stopped.load(Ordering::SeqCst) & OVER == 0 && began.elapsed() < STOP {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Threads of one test that stop.
#[derive(Clone, Copy)]
struct Stops(&'static AtomicU64);

impl Stops {
    fn begin() -> Self {
        portolan_shm::mark::install(hook);
        Self(Box::leak(Box::default()))
    }

    /// From now on the calling thread stops at the mark.
    fn at(self, name: &'static str) {
        STOP_AT.with(|at| at.set(Some((name, self.0))));
    }

    /// Waits until so many have.
    fn wait_for(self, n: u64) {
        let began = Instant::now();
        while self.0.load(Ordering::SeqCst) < n {
            assert!(began.elapsed() < STOP, "nobody comes to the mark");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Those who stopped go on.
    fn end(self) {
        self.0.fetch_or(OVER, Ordering::SeqCst);
    }
}

#[test]
fn a_stopped_writer_of_many() {
    let stops = Stops::begin();
    let domain = Domain::private().unwrap();
    let channel = domain
        .make_channel(&ChannelOptions::unnamed().many_writers())
        .unwrap();
    let mut reader = channel.bind_reader(ReaderOptions::default()).unwrap();
    let mut one = channel.bind_writer().unwrap();
    let mut two = channel.bind_writer().unwrap();
    std::thread::scope(|s| {
        let r = s.spawn(move || {
            let t = Instant::now();
            let mut got = vec![];
            while got.len() < 2 {
                let m = reader.receive(Deadline::NEVER).unwrap().to_vec();
                got.push((m, t.elapsed()));
            }
            got
        });
        std::thread::sleep(Duration::from_millis(300));
        s.spawn(move || {
            stops.at("channel.before_wake");
            one.write(b"one", Deadline::NEVER).unwrap();
        });
        stops.wait_for(1);
        two.write(b"two", Deadline::NEVER).unwrap();
        let got = r.join().unwrap();
        stops.end();
        assert!(
            got[1].1 < HELD_UP,
            "a stopped writer held up another one's message: {got:?}"
        );
    });
}

/// In the middle of their messages, one behind the other.
#[test]
fn two_stopped_writers_of_many() {
    let stops = Stops::begin();
    let domain = Domain::private().unwrap();
    let options = ChannelOptions::unnamed().many_writers();
    let channel = domain.make_channel(&options).unwrap();
    let mut reader = channel.bind_reader(ReaderOptions::default()).unwrap();
    let stopped = [(); 2].map(|()| channel.bind_writer().unwrap());
    let mut writer = channel.bind_writer().unwrap();
    std::thread::scope(|s| {
        for (at, mut stopped) in (1..).zip(stopped) {
            s.spawn(move || {
                stops.at("channel.begun");
                let _ = stopped.write(b"late", Deadline::NOW);
            });
            stops.wait_for(at);
        }
        let r = s.spawn(move || {
            let t = Instant::now();
            loop {
                match reader.receive(Deadline::NEVER) {
                    Ok(message) => return (message.to_vec(), t.elapsed()),
                    Err(ReadError::Missed(_)) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        });
        std::thread::sleep(Duration::from_millis(300));
        writer.write(b"whole", Deadline::NOW).unwrap();
        let (message, took) = r.join().unwrap();
        stops.end();
        assert_eq!(message, b"whole");
        assert!(
            took < HELD_UP,
            "two stopped writers held up the third one's message: {took:?}"
        );
    });
}

#[test]
fn a_stopped_signaller() {
    let stops = Stops::begin();
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    std::thread::scope(|s| {
        let d = &domain;
        let r = s.spawn(move || {
            let seen = Arc::new(AtomicU64::new(0));
            let count = seen.clone();
            let mut listener = d.listen(ListenerOptions::default()).unwrap();
            listener
                .on(at..at + 4096, move |_| {
                    count.fetch_add(1, Ordering::SeqCst);
                })
                .unwrap();
            let t = Instant::now();
            let mut when = vec![];
            while seen.load(Ordering::SeqCst) < 2 {
                listener.wait(Deadline::NEVER);
                when.push((seen.load(Ordering::SeqCst), t.elapsed()));
            }
            when
        });
        std::thread::sleep(Duration::from_millis(300));
        s.spawn(move || {
            stops.at("signal.before_wake");
            d.signal(at).unwrap();
        });
        stops.wait_for(1);
        d.signal(at + 64).unwrap();
        let got = r.join().unwrap();
        stops.end();
        assert!(
            got.last().unwrap().1 < HELD_UP,
            "a stopped sender held up another one's signal: {got:?}"
        );
    });
}

/// As above, for a thread that is interrupted.
#[test]
fn a_stopped_signaller_of_upcalls() {
    let stops = Stops::begin();
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    std::thread::scope(|s| {
        let d = &domain;
        let r = s.spawn(move || {
            let mut listener = d.listen(ListenerOptions::default()).unwrap();
            let (_handler, note) = listener.note(at..at + 4096).unwrap();
            let t = Instant::now();
            while note.count() < 2 && t.elapsed() < HELD_UP {
                std::thread::sleep(Duration::from_millis(1));
            }
            (note.count(), t.elapsed())
        });
        std::thread::sleep(Duration::from_millis(300));
        s.spawn(move || {
            stops.at("signal.before_wake");
            d.signal(at).unwrap();
        });
        stops.wait_for(1);
        d.signal(at + 64).unwrap();
        let got = r.join().unwrap();
        stops.end();
        assert!(
            got.0 == 2 && got.1 < HELD_UP,
            "a stopped sender held up another one's signal: {got:?}"
        );
    });
}

#[test]
fn a_stopped_reader_that_nobody_waits_for() {
    let stops = Stops::begin();
    let domain = Domain::private().unwrap();
    let channel = domain
        .make_channel(&ChannelOptions::unnamed().reliable().unit(64).units(16))
        .unwrap();
    let mut waits = channel
        .bind_reader(ReaderOptions::default().lagging(Lagging::Wait))
        .unwrap();
    let mut skips = channel
        .bind_reader(ReaderOptions::default().lagging(Lagging::Skip))
        .unwrap();
    let mut writer = channel.bind_writer().unwrap();
    for _ in 0..16 {
        writer.write(b"x", Deadline::NOW).unwrap();
    }
    std::thread::scope(|s| {
        let w = s.spawn(move || {
            let t = Instant::now();
            writer.write(b"y", Deadline::NEVER).unwrap();
            t.elapsed()
        });
        std::thread::sleep(Duration::from_millis(300));
        s.spawn(move || {
            stops.at("channel.room_made");
            for _ in 0..8 {
                skips.receive(Deadline::NOW).unwrap();
            }
        });
        stops.wait_for(1);
        for _ in 0..16 {
            waits.receive(Deadline::NOW).unwrap();
        }
        let _ = waits.receive(Deadline::from(Duration::from_millis(500)));
        let took = w.join().unwrap();
        stops.end();
        assert!(
            took < HELD_UP,
            "a stopped reader that skips held up the writer: {took:?}"
        );
    });
}

/// With its name won, and not shown.
#[test]
fn a_stopped_binder_of_a_name() {
    let stops = Stops::begin();
    let domain = Domain::private().unwrap();
    let named = |name: &str| PortOptions::named(name);
    std::thread::scope(|s| {
        let d = &domain;
        s.spawn(move || {
            stops.at("bind.name_won");
            d.bind(named("one")).unwrap();
        });
        stops.wait_for(1);
        let t = Instant::now();
        let other = d.bind(named("two")).unwrap();
        let took = t.elapsed();
        stops.end();
        drop(other);
        assert!(
            took < HELD_UP,
            "a stopped binder held up another one: {took:?}"
        );
    });
}

/// With the lock on ranges.
#[test]
fn a_stopped_listener() {
    let stops = Stops::begin();
    let domain = Domain::private().unwrap();
    let segment = domain.make_segment(None, 4096).unwrap();
    let at = segment.address();
    std::thread::scope(|s| {
        let d = &domain;
        s.spawn(move || {
            let mut listener = d.listen(ListenerOptions::default()).unwrap();
            stops.at("signal.locked");
            listener.on(at..at + 64, |_| {}).unwrap();
        });
        stops.wait_for(1);
        let mut listener = d.listen(ListenerOptions::default()).unwrap();
        let t = Instant::now();
        listener.on(at + 64..at + 128, |_| {}).unwrap();
        let took = t.elapsed();
        stops.end();
        assert!(
            took < HELD_UP,
            "a stopped listener held up another one: {took:?}"
        );
    });
}
