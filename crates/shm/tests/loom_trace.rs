//! A trace ring under the model checker.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p portolan-shm --release --target-dir target/loom \
//!     --test loom_trace -- --nocapture --test-threads 1
//! ```
#![cfg(loom)]

mod support;

use loom::thread;
use portolan_shm::atomic::death;
use portolan_shm::queue::Line;
use portolan_shm::trace::{Reader, Ring, WORDS};
use support::{explore, explore_deaths, with};

/// Binary logarithm of the number of events.
const SIZE: u8 = 1;
const CAPACITY: u64 = 1 << SIZE;

/// The memory of a ring, its head included.
fn lines() -> Vec<Line> {
    (0..=CAPACITY).map(|_| Line::new()).collect()
}

fn ring(lines: &[Line]) -> Ring<'_> {
    Ring::new(lines, SIZE)
}

fn event(value: u64) -> [u64; WORDS] {
    [value; WORDS]
}

/// Records `count` events of no interest.
fn fill(lines: &[Line], count: u64) {
    for _ in 0..count {
        ring(lines).record(1, &event(0));
    }
}

/// Reads, and checks that no event is torn.
fn see(lines: &[Line], reader: &mut Reader, seen: &mut Vec<u64>) {
    reader.drain(&ring(lines), |read| {
        assert_eq!(read.words, event(read.words[0]), "a torn event");
        seen.push(read.words[0]);
    });
}

/// E2, E4: a writer a lap ahead overwrites what the reader reads.
#[test]
fn an_event_is_overwritten_while_it_is_read() {
    explore("overwritten while read", 4, || {
        with(lines(), |lines| {
            ring(lines).record(1, &event(7));
            let mut reader = Reader::new(0);
            fill(lines, CAPACITY - 2);
            let writer = thread::spawn(|| {
                ring(lines).record(1, &event(8));
                ring(lines).record(1, &event(9))
            });
            let mut seen = Vec::new();
            see(lines, &mut reader, &mut seen);
            assert!(writer.join().unwrap());
            see(lines, &mut reader, &mut seen);
            reader.finish();
            assert_eq!(seen.len() as u64 + reader.lost(), CAPACITY + 1);
            assert!(
                seen.contains(&8) && seen.contains(&9),
                "the newest are kept"
            );
        });
    });
}

/// E1 to E3: two writers a lap apart in one line.
#[test]
fn writers_a_lap_apart_do_not_mix() {
    explore("a lap apart", 4, || {
        with(lines(), |lines| {
            let slow = thread::spawn(|| ring(lines).record(1, &event(7)));
            let fast = thread::spawn(|| {
                fill(lines, CAPACITY - 1);
                ring(lines).record(1, &event(8))
            });
            let (slow, fast) = (slow.join().unwrap(), fast.join().unwrap());
            // At most one writer drops its event: the second at the line.
            assert!(slow || fast);
            let mut reader = Reader::new(0);
            let mut seen = Vec::new();
            see(lines, &mut reader, &mut seen);
            reader.finish();
            assert_eq!(seen.len() as u64 + reader.lost(), CAPACITY + 1);
        });
    });
}

/// E3: a writer dies before its k-th access; its space's next incarnation records a lap
/// later, and the reader accounts for everything.
#[test]
fn a_writer_dies_at_any_access() {
    explore_deaths("writer", 3, |accesses| {
        with(lines(), |lines| {
            let victim = thread::spawn(move || {
                death::after(accesses, || ring(lines).record(1, &event(7))).is_none()
            });
            let mut reader = Reader::new(0);
            let mut seen = Vec::new();
            see(lines, &mut reader, &mut seen);
            let died = victim.join().unwrap();
            see(lines, &mut reader, &mut seen);
            for _ in 0..CAPACITY {
                assert!(
                    ring(lines).record(2, &event(8)),
                    "the dead are in nobody's way"
                );
            }
            see(lines, &mut reader, &mut seen);
            reader.finish();
            assert_eq!(seen.len() as u64 + reader.lost(), ring(lines).next());
            assert_eq!(seen.iter().filter(|v| **v == 8).count() as u64, CAPACITY);
            died
        })
    });
}
