//! A port becomes a proxy, and its home changes, beside senders and closers, under the model
//! checker.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p portolan-shm --release --target-dir target/loom \
//!     --test loom_proxied -- --nocapture --test-threads 1
//! ```
//!
//! The bound of each model is the number in it; LOOM_MAX_PREEMPTIONS overrides it.
#![cfg(loom)]

mod support;

use loom::thread;
use portolan_abi::limits::MAX_NODE_NAME;
use portolan_abi::port::{GENERATION_MASK, PortName, PortPhase, PortStatus};
use portolan_shm::atomic::{AtomicU64, Ordering};
use portolan_shm::queue::{Cursor, Home, PortEntry, Proxied, Spot};
use support::{Port, explore, with};

const OPEN: PortStatus = PortStatus {
    phase: PortPhase::Open,
    owner: 1,
    generation: 7,
    ..PortStatus::FRESH
};

const NAME: PortName = PortName {
    index: 0,
    generation: 7,
};

/// What a message says of the port that its sender took it for.
const HERE: u64 = 1;
const ELSEWHERE: u64 = 2;

/// Sends one word, as the library does: the status that the sender knew is compared under the
/// claim. The word says what it took the port for.
fn send(port: &Port, spot: &Spot, space: u8) -> u64 {
    let status = &port.queue().port.control.status;
    for (word, takes) in [
        (HERE, PortStatus::takes(7, None)),
        (ELSEWHERE, PortStatus::takes_elsewhere(7, None)),
    ] {
        let claim = port.queue().claim(spot, space, || true).expect("room");
        if status.load(Ordering::Acquire) & takes.0 != takes.1 {
            let _ = claim.abandon();
            continue;
        }
        claim.set_meta(0);
        claim.write(0, &[word]);
        let _ = claim.publish();
        return word;
    }
    panic!("it is one or the other");
}

/// V3: each message comes once, and one whose sender has heard of the change was sent as to a
/// proxied port.
fn who_has_heard_knows(senders: u8) {
    with((Port::new(4), AtomicU64::new(0)), |(port, told)| {
        let entry = port.queue().port;
        entry.control.status.store(OPEN.pack(), Ordering::Relaxed);
        let others: Vec<_> = (0..senders)
            .map(|at| {
                thread::spawn(move || {
                    let heard = told.load(Ordering::Acquire) != 0;
                    let sent = send(port, &port.spots[usize::from(at)], at + 2);
                    assert!(!heard || sent == ELSEWHERE, "heard, and sent as before");
                    sent
                })
            })
            .collect();
        let mut cursor = Cursor::resume(&port.queue());
        assert!(entry.set_proxied(NAME, Proxied::Yes));
        told.store(1, Ordering::Release);
        let mut sent: Vec<u64> = others.into_iter().map(|o| o.join().unwrap()).collect();
        let mut came = port.drain(&mut cursor);
        sent.sort_unstable();
        came.sort_unstable();
        assert_eq!(came, sent);
    });
}

#[test]
fn a_sender_beside_the_change() {
    explore("a sender", 4, || who_has_heard_knows(1));
}

#[test]
fn two_senders_beside_the_change() {
    explore("two senders", 2, || who_has_heard_knows(2));
}

/// V1: of an owner that marks its port and a space that closes it, neither undoes the other's.
#[test]
fn a_port_that_is_closed_meanwhile_stays_closed() {
    explore("a closer", 4, || {
        with(PortEntry::default(), |entry| {
            entry.control.status.store(OPEN.pack(), Ordering::Relaxed);
            let closer = thread::spawn(move || {
                let status = &entry.control.status;
                let mut seen = status.load(Ordering::Acquire);
                loop {
                    let was = PortStatus::unpack(seen);
                    let closing = PortStatus {
                        phase: PortPhase::Closing,
                        generation: (was.generation + 1) & GENERATION_MASK,
                        ..was
                    };
                    match status.compare_exchange(
                        seen,
                        closing.pack(),
                        Ordering::SeqCst,
                        Ordering::Acquire,
                    ) {
                        Ok(_) => return was.proxied,
                        Err(now) => seen = now,
                    }
                }
            });
            let marked = entry.set_proxied(NAME, Proxied::Unreachable);
            let found = closer.join().unwrap();
            let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
            assert_eq!(
                (status.phase, status.generation),
                (PortPhase::Closing, 8),
                "a closed port has come back"
            );
            assert!(
                marked == found,
                "marked and not found, or found and not marked"
            );
        });
    });
}

fn home(of: u8) -> Home {
    Home {
        node: [of; MAX_NODE_NAME],
        silent_since: u64::from(of),
    }
}

/// V2: a sender that is told that the node is silent reads a home that was written as it stands.
#[test]
fn a_home_that_changes_is_read_whole_or_not_at_all() {
    explore("a home", 3, || {
        with(PortEntry::default(), |entry| {
            entry.set_home(&home(1));
            let reader = thread::spawn(move || entry.home());
            entry.set_home(&home(2));
            if let Some(read) = reader.join().unwrap() {
                assert!([home(1), home(2)].contains(&read), "{read:?}");
            }
            assert_eq!(entry.home(), Some(home(2)));
        });
    });
}
