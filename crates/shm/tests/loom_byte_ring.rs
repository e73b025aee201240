//! A byte ring's two sides, each of which sleeps, and is woken for.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p portolan-shm --release --target-dir target/loom \
//!     --test loom_byte_ring -- --test-threads 1
//! ```
#![cfg(loom)]

mod support;

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use portolan_abi::bridge::control::STRIDE;
use portolan_abi::limits::LINE;
use portolan_shm::atomic::AtomicU64;
use portolan_shm::byte_ring::{ByteRing, Reader, Writer};
use support::explore;

/// The socket: a wake stays in it until the side takes it.
#[derive(Default)]
struct Bell {
    woken: Mutex<bool>,
    sleeper: Condvar,
}

impl Bell {
    fn wake_if(&self, owed: bool) {
        if owed {
            *self.woken.lock().unwrap() = true;
            self.sleeper.notify_one();
        }
    }

    /// Sleeps until woken, if it says so. A wake that is not sent is a deadlock, which the
    /// model finds.
    fn sleep_if(&self, armed: bool) {
        if armed {
            let mut woken = self.woken.lock().unwrap();
            while !std::mem::take(&mut *woken) {
                woken = self.sleeper.wait(woken).unwrap();
            }
        }
    }
}

/// What the two sides share: a byte ring of one line, and two bells for wakes.
struct Shared {
    page: Vec<AtomicU64>,
    ring: Vec<AtomicU64>,
    for_reader: Bell,
    for_writer: Bell,
}

impl Shared {
    fn new() -> Self {
        Self {
            page: (0..STRIDE).map(|_| AtomicU64::new(0)).collect(),
            // Bytes: each side uses them only while they are its own.
            ring: (0..LINE / 8).map(|_| AtomicU64::plain(0)).collect(),
            for_reader: Bell::default(),
            for_writer: Bell::default(),
        }
    }

    fn write(&self, all: &[u8]) {
        let ring = ByteRing::new(&self.page, 0, &self.ring);
        let mut writer = Writer::default();
        for byte in all {
            loop {
                let passed = writer.push(&ring, &[*byte; 8]).unwrap();
                self.for_reader.wake_if(passed.wake);
                if passed.bytes > 0 {
                    break;
                }
                self.for_writer.sleep_if(writer.arm(&ring).unwrap());
                writer.disarm(&ring);
            }
        }
    }

    fn read(&self, all: &[u8]) {
        let ring = ByteRing::new(&self.page, 0, &self.ring);
        let mut reader = Reader::default();
        for byte in all {
            let mut out = [0; 8];
            loop {
                let passed = reader.pull(&ring, &mut out).unwrap();
                self.for_writer.wake_if(passed.wake);
                if passed.bytes > 0 {
                    break;
                }
                self.for_reader.sleep_if(reader.arm(&ring).unwrap());
                reader.disarm(&ring);
            }
            assert_eq!(out, [*byte; 8]);
        }
    }
}

fn pass(name: &str, bytes: &'static [u8], preemptions: usize) {
    explore(name, preemptions, move || {
        let shared = Arc::new(Shared::new());
        let theirs = Arc::clone(&shared);
        let writing = thread::spawn(move || theirs.write(bytes));
        shared.read(bytes);
        writing.join().unwrap();
    });
}

/// A byte ring with room: only the reader sleeps.
#[test]
fn a_reader_does_not_sleep_for_good() {
    pass("one line", &[7], 6);
}

/// L1, L3. Two lines through a ring of one: each side sleeps, and what was read is overwritten.
#[test]
fn nobody_sleeps_for_good_and_nothing_is_overwritten_that_was_not_read() {
    pass("two lines through one", &[7, 9], 4);
}
