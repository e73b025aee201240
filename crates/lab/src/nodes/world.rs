//! Tests of the modes in virtual time: all ends of a world in one thread, over a shaped memory
//! transport whose clock goes to the next moment at which something happens.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan::{Access, Deadline, Domain, Message, PortOptions};
use portolan_transport::clock::{Clock, ManualClock};
use portolan_transport::{
    Address, Class, Connection, Memory, MemoryOptions, Shape, Shaped, State, Transport,
};

use super::engine;
use super::pair::unique;
use super::relay::Relay;
use super::stop_and_wait::StopAndWait;
use super::transfer::{Frames, HEAD, Inbound, Outbound, head};
use super::{Mode, PAGE, PATIENCE, Wire};

const PAGES: [usize; 3] = [1, 8, 64];

/// Two ends of a connection, each with an interface of the slow link's shape.
fn ends(clock: &Arc<ManualClock>) -> [Box<dyn Connection>; 2] {
    let network = Memory::new(MemoryOptions::default());
    let shape = Wire::Slow.shape().unwrap();
    let interface = |shape: Shape| Shaped::new(network.clone(), shape, clock.clone());
    let at = Address::named("far");
    let (near, far) = (interface(shape), interface(shape));
    let mut listener = far.listen(&at).unwrap();
    let near = near.connect(&at).unwrap();
    [near, listener.accept().unwrap().unwrap()]
}

/// Lets time pass until the first of these wants to be looked at.
fn pass(clock: &ManualClock, wakes: impl IntoIterator<Item = Option<Duration>>) {
    let next = wakes.into_iter().flatten().min();
    let next = next.expect("nothing is under way, and not all has come");
    clock.advance(
        next.saturating_sub(clock.now())
            .max(Duration::from_nanos(1)),
    );
}

/// A byte that is where it is.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at ^ (at >> 8) ^ (at >> 16)).to_le_bytes()[0])
        .collect()
}

/// Sends so many transfers from end to end, and looks at what came; `after` sees each step.
fn carried(
    clock: &ManualClock,
    [near, far]: &mut [Box<dyn Connection>; 2],
    frames: Frames,
    (bytes, count): (usize, u64),
    mut after: impl FnMut(),
) {
    let sent = pattern(bytes);
    let mut received = vec![0; bytes];
    let [from, to] = [&mut *near, &mut *far].map(|end| end.open(Class::Bulk).unwrap());
    let mut out = Outbound::new(from, frames, count);
    let mut inbound = Inbound::new(to, frames);
    while inbound.come < count {
        // What one passes on in its turn is there for the other.
        near.progress();
        far.progress();
        near.progress();
        out.step(&mut **near, &sent).unwrap();
        let whole = inbound.step(&mut **far, &mut received).unwrap();
        after();
        if whole {
            assert!(received == sent, "transfer {} is not whole", inbound.come);
            received.fill(0);
        } else {
            pass(clock, [near.wake_at(), far.wake_at()]);
        }
    }
    assert!(out.step(&mut **near, &sent).unwrap());
}

#[test]
fn bare_bytes_and_transfers_come_whole_and_in_order() {
    for frames in [Frames::None, Frames::Heads] {
        for (bytes, count) in [(1, 3), (PAGE + 1, 20), (1 << 20, 3)] {
            let clock = Arc::new(ManualClock::default());
            carried(&clock, &mut ends(&clock), frames, (bytes, count), || {});
        }
    }
}

#[test]
fn a_block_of_n_pages_waits_until_the_one_before_is_acknowledged() {
    for pages in PAGES {
        for blocks in [1, 2, 7] {
            let clock = Arc::new(ManualClock::default());
            let [near, far] = ends(&clock);
            let wrap = |end| StopAndWait::new(end, pages * PAGE);
            let (mut near, mut far) = (wrap(near), wrap(far));
            // Acknowledgements have this stream.
            near.open(Class::Records).unwrap();
            far.open(Class::Records).unwrap();
            let (here, there) = (near.counts(), far.counts());
            let mut ends: [Box<dyn Connection>; 2] = [Box::new(near), Box::new(far)];
            // The last block is not full.
            let bytes = blocks * pages * PAGE - PAGE / 2;
            let count = |of: &std::sync::atomic::AtomicU64| of.load(Ordering::Relaxed);
            carried(&clock, &mut ends, Frames::None, (bytes, 1), || {
                let under_way = count(&here.blocks) - count(&there.acknowledged);
                assert!(under_way <= 1, "{under_way} blocks at once");
            });
            // A call's bytes are 64 pages at the most, which is the longest block.
            assert_eq!(count(&here.blocks), blocks as u64, "of {pages} pages");
            assert_eq!(count(&there.acknowledged), blocks as u64);
            assert_eq!(count(&there.blocks), 0, "nothing was sent back");
        }
    }
}

#[test]
fn a_stream_that_stops_and_waits_refuses_what_is_no_head() {
    let clock = Arc::new(ManualClock::default());
    let [mut near, far] = ends(&clock);
    let mut far = StopAndWait::new(far, PAGE);
    let on = near.open(Class::Records).unwrap();
    far.open(Class::Records).unwrap();
    let mut longer = [1_u32, 4097].map(u32::to_le_bytes).concat();
    longer.resize(64, 0);
    let sent = near.send(on, &[portolan_transport::Source::from(&longer[..])]);
    assert_eq!(sent, portolan_transport::Progress::Moved(64));
    for _ in 0..1000 {
        clock.advance(Duration::from_micros(1));
        near.progress();
        if far.progress() == State::Failed {
            break;
        }
    }
    let why = far.failure().map(ToString::to_string).unwrap_or_default();
    assert!(why.contains("length 4097"), "{why}");
}

#[test]
fn a_proxy_copies_every_byte_at_each_crossing() {
    let clock = Arc::new(ManualClock::default());
    let [mut near, mut far] = ends(&clock);
    let (mut program, here) = UnixStream::pair().unwrap();
    let (there, mut beside) = UnixStream::pair().unwrap();
    let relay = |end: &mut Box<dyn Connection>, socket| {
        Relay::new(socket, end.open(Class::Bulk).unwrap()).unwrap()
    };
    let (mut first, mut second) = (relay(&mut near, here), relay(&mut far, there));
    beside.set_nonblocking(true).unwrap();
    program.set_nonblocking(true).unwrap();
    let sent = [&head(1, 1 << 20)[..], &pattern(1 << 20)].concat();
    let (mut written, mut received) = (0, Vec::new());
    while received.len() < sent.len() {
        match program.write(&sent[written..]) {
            Ok(bytes) => written += bytes,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        near.progress();
        far.progress();
        let before = first.copied + second.copied;
        first.step(&mut *near).unwrap();
        second.step(&mut *far).unwrap();
        let mut bytes = vec![0; 64 << 10];
        match beside.read(&mut bytes) {
            Ok(read) => received.extend_from_slice(&bytes[..read]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                if first.copied + second.copied == before {
                    pass(&clock, [near.wake_at(), far.wake_at()]);
                }
            }
        }
    }
    assert!(received == sent);
    // Into each proxy and out of it, beside what each mode has: out of a program, and into another.
    for relay in [&first, &second] {
        assert_eq!(relay.copied, 2 * sent.len() as u64);
    }
    assert_eq!(sent.len(), (1 << 20) + HEAD);
}

/// Messages by engines, in one mode.
fn by_engines(mode: Mode) {
    let clock = Arc::new(ManualClock::default());
    let [near, far] = ends(&clock);
    let names = [unique("near"), unique("far")];
    let domains = names.each_ref().map(|name| Domain::join(name).unwrap());
    let mut engines = [(1, &names[0]), (2, &names[1])]
        .map(|(number, name)| engine::engine(number, name, mode).unwrap());
    let mut counts = Vec::new();
    for (at, connection) in [near, far].into_iter().enumerate() {
        let connection: Box<dyn Connection> = match mode {
            Mode::StopAndWait { pages } => {
                let paced = StopAndWait::new(connection, pages * PAGE);
                counts.push(paced.counts());
                Box::new(paced)
            }
            _ => connection,
        };
        let peer = engine::id(if at == 0 { 2 } else { 1 });
        engines[at]
            .adopt(clock.now(), connection, peer, at == 0)
            .unwrap();
    }
    // Steps both until nothing moves, then lets time pass.
    let mut step = || {
        for _ in 0..4 {
            for engine in &mut engines {
                engine.step(clock.now());
                engine.happened();
            }
        }
        let next = engines.iter().filter_map(|engine| engine.wake_at()).min();
        // Not to the next ping: a link that is silent for long is given up.
        let soon = clock.now() + Duration::from_millis(5);
        pass(&clock, [Some(next.map_or(soon, |next| next.min(soon)))]);
    };
    let mut port = domains[1]
        .bind(PortOptions::named("upper").spanned())
        .unwrap();
    let there = domains[0].clone();
    let connecting = std::thread::spawn(move || there.connect("upper", PATIENCE).unwrap());
    while !connecting.is_finished() {
        step();
        std::thread::yield_now();
    }
    let right = connecting.join().unwrap();
    // Short ones, one that comes with its record, and long ones of which one is announced.
    let sizes = [1, 3 * PAGE, 64 * PAGE, 700 * PAGE + 3];
    for (number, &bytes) in (0_u32..).zip(&sizes) {
        let mut message = Message::new(&number.to_le_bytes()).unwrap();
        let mut extent = domains[0].allocate(bytes).unwrap();
        extent.copy_from_slice(&pattern(bytes));
        message.push(extent).unwrap();
        right.send(message, Deadline::NOW).unwrap();
    }
    for (number, &bytes) in (0_u32..).zip(&sizes) {
        let message = loop {
            match port.receive(Access::Later, Deadline::NOW) {
                Ok(message) => break message,
                Err(portolan::ReceiveError::TimedOut) => step(),
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(message.header(), number.to_le_bytes(), "in order");
        let [extent] = message.extents() else {
            panic!("{} extents", message.extents().len());
        };
        assert!(extent[..] == pattern(bytes), "message {number} is whole");
    }
    // What is said behind the last message is acknowledged, too.
    for _ in 0..100 {
        step();
    }
    let all: usize = sizes.iter().sum();
    if let (Mode::StopAndWait { pages }, [here, there]) = (mode, &counts[..]) {
        let [blocks, acknowledged] =
            [&here.blocks, &there.acknowledged].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(blocks, acknowledged);
        let least = all.div_ceil(pages * PAGE) as u64;
        assert!(
            blocks >= least,
            "{blocks} blocks of {pages} pages, for {all} B"
        );
    }
}

#[test]
fn messages_come_whole_and_in_order_as_the_engine_is() {
    by_engines(Mode::Dipc);
}

#[test]
fn messages_come_whole_and_in_order_one_at_a_time_by_blocks_that_are_acknowledged() {
    for pages in PAGES {
        by_engines(Mode::StopAndWait { pages });
    }
}
