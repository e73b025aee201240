//! The queue under the model checker: every interleaving within a bound on preemptions.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p portolan-shm --release --target-dir target/loom \
//!     --test loom_queue -- --nocapture --test-threads 1
//! ```
//!
//! The bound of each model is the number in it; LOOM_MAX_PREEMPTIONS overrides it.
#![cfg(loom)]

mod support;

use loom::sync::atomic::AtomicBool;
use loom::thread;
use portolan_abi::slot::Phase;
use portolan_shm::atomic::{AtomicU64, Ordering};
use portolan_shm::queue::{CloseStep, Closing, Cursor, Next, Published, Spot};
use support::{Port, Sent, explore, with};

/// Words of sender `s` are `s * 10 + 1` and up.
fn of_sender(words: &[u64], sender: u64) -> Vec<u64> {
    words.iter().copied().filter(|w| w / 10 == sender).collect()
}

fn send_all(port: &Port, sender: u8, count: u64) -> Vec<u64> {
    let spot = Spot::default();
    let words = (1..=count).map(|i| u64::from(sender) * 10 + i);
    words
        .filter(|w| port.send(&spot, sender, *w) == Sent::Yes)
        .collect()
}

fn poll(port: &Port, cursor: &mut Cursor, looks: usize) -> Vec<u64> {
    (0..looks).filter_map(|_| port.receive(cursor)).collect()
}

/// Q2, Q4: what one sender sends is received once, in order.
#[test]
fn one_sender_and_one_receiver() {
    explore("one sender", 3, || {
        with(Port::new(2), |port| {
            let sender = thread::spawn(|| send_all(port, 1, 4));
            let mut cursor = Cursor::resume(&port.queue());
            let mut got = poll(port, &mut cursor, 4);
            let sent = sender.join().unwrap();
            got.extend(port.drain(&mut cursor));
            assert_eq!(got, sent);
        });
    });
}

/// Q3, Q4: two senders; nothing lost, nothing twice, each in its order.
#[test]
fn two_senders_and_one_receiver() {
    explore("two senders", 2, || {
        with(Port::new(2), |port| {
            let senders = [1, 2].map(|s| thread::spawn(move || send_all(port, s, 2)));
            let mut cursor = Cursor::resume(&port.queue());
            let mut got = poll(port, &mut cursor, 3);
            let sent = senders.map(|s| s.join().unwrap());
            got.extend(port.drain(&mut cursor));
            assert_eq!(of_sender(&got, 1), sent[0]);
            assert_eq!(of_sender(&got, 2), sent[1]);
            port.is_usable(&mut cursor, 3);
        });
    });
}

/// Q1: two senders that know where the end is claim there at once; each gets a slot.
#[test]
fn two_claims_at_one_place() {
    explore("two claims", 3, || {
        with(Port::new(2), |port| {
            let mut cursor = Cursor::resume(&port.queue());
            let end = cursor.head();
            let senders = [1, 2].map(|s| {
                thread::spawn(move || port.send(&Spot::new(end), s, u64::from(s) * 10 + 1))
            });
            for sender in senders {
                assert_eq!(sender.join().unwrap(), Sent::Yes);
            }
            let mut got = port.drain(&mut cursor);
            got.sort_unstable();
            assert_eq!(got, [11, 21]);
        });
    });
}

/// Q3, Q4: a sender stalls with a claim while another sends on around it, and the ring wraps.
#[test]
fn a_stalled_sender_is_passed() {
    explore("stalled sender", 2, || {
        with(Port::new(2), |port| {
            let claim = port.queue().claim(&port.spots[1], 1, || true).unwrap();
            claim.write(0, &[11]);
            assert_eq!(port.send(&Spot::default(), 3, 31), Sent::Yes);
            let mut cursor = Cursor::resume(&port.queue());
            assert_eq!(poll(port, &mut cursor, 1), [31]);
            // Slot 0 is passed, slot 1 taken and not retired.
            let stalled = thread::spawn(move || {
                let _ = claim.publish();
                (port.send(&port.spots[1], 1, 12) == Sent::Yes).then_some(12)
            });
            let other = thread::spawn(|| send_all(port, 2, 3));
            let mut got = poll(port, &mut cursor, 4);
            let mut sent = vec![11];
            sent.extend(stalled.join().unwrap());
            let other = other.join().unwrap();
            got.extend(port.drain(&mut cursor));
            assert_eq!(of_sender(&got, 1), sent);
            assert_eq!(of_sender(&got, 2), other);
            port.is_usable(&mut cursor, 3);
        });
    });
}

/// Q3: both slots are passed and come back while two senders walk around them.
#[test]
fn two_passed_slots_come_back() {
    explore("two passed", 2, || {
        with(Port::new(2), |port| {
            let (one, two) = (&port.spots[1], &port.spots[2]);
            let first = port.queue().claim(one, 1, || true).unwrap();
            let second = port.queue().claim(two, 2, || true).unwrap();
            first.write(0, &[11]);
            second.write(0, &[21]);
            let mut cursor = Cursor::resume(&port.queue());
            port.queue().pass_published(&mut cursor, |_| 0);
            let first = thread::spawn(move || {
                let _ = first.publish();
                let sent: Vec<u64> = [12, 13]
                    .into_iter()
                    .filter(|w| port.send(one, 1, *w) == Sent::Yes)
                    .collect();
                sent
            });
            let second = thread::spawn(move || {
                let _ = second.publish();
                let sent: Vec<u64> = [22, 23]
                    .into_iter()
                    .filter(|w| port.send(two, 2, *w) == Sent::Yes)
                    .collect();
                sent
            });
            let mut got = poll(port, &mut cursor, 4);
            let (first, second) = (first.join().unwrap(), second.join().unwrap());
            got.extend(port.drain(&mut cursor));
            assert_eq!(of_sender(&got, 1), [&[11][..], &first].concat());
            assert_eq!(of_sender(&got, 2), [&[21][..], &second].concat());
            port.is_usable(&mut cursor, 3);
        });
    });
}

/// Q6: a receiver that sleeps is woken for every message.
#[test]
fn no_publication_is_slept_over() {
    explore("sleep, one sender", 3, || {
        with(Port::new(2), |port| {
            let sender = thread::spawn(|| send_all(port, 1, 2));
            let mut cursor = Cursor::resume(&port.queue());
            assert_eq!(port.receive_waiting(&mut cursor, || false), Some(11));
            assert_eq!(port.receive_waiting(&mut cursor, || false), Some(12));
            sender.join().unwrap();
        });
    });
}

/// Q6, with slots that are claimed and passed when the receiver falls asleep.
#[test]
fn no_publication_of_two_senders_is_slept_over() {
    explore("sleep, two senders", 2, || {
        with(Port::new(2), |port| {
            let senders = [1, 2].map(|s| thread::spawn(move || send_all(port, s, 1)));
            let mut cursor = Cursor::resume(&port.queue());
            let mut got = [0; 2].map(|_| port.receive_waiting(&mut cursor, || false).unwrap());
            got.sort_unstable();
            assert_eq!(got, [11, 21]);
            senders
                .into_iter()
                .for_each(|s| assert_eq!(s.join().unwrap().len(), 1));
        });
    });
}

/// Q6: the sender that has claimed the slot with the receiver's mark stops there, and another
/// one's message is found nevertheless.
#[test]
fn no_publication_beside_a_stopped_sender_is_slept_over() {
    explore("sleep, a sender stops", 2, || {
        with((Port::new(2), AtomicBool::new(false)), |(port, came)| {
            let sender = thread::spawn(move || {
                let stopped = port.queue().claim(&port.spots[1], 1, || true).unwrap();
                stopped.write(0, &[11]);
                assert_eq!(port.send(&port.spots[2], 2, 21), Sent::Yes);
                while !came.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                if stopped.publish() == Published::Wake {
                    port.wake_receiver();
                }
            });
            let mut cursor = Cursor::resume(&port.queue());
            assert_eq!(port.receive_waiting(&mut cursor, || false), Some(21));
            came.store(true, Ordering::Release);
            assert_eq!(port.receive_waiting(&mut cursor, || false), Some(11));
            sender.join().unwrap();
        });
    });
}

/// Q6, where a slot has come back far ahead of the head.
#[test]
fn no_publication_beyond_a_lap_is_slept_over() {
    explore("sleep, passed slots", 2, || {
        with(Port::new(2), |port| {
            let (one, two) = (&port.spots[1], &port.spots[2]);
            let first = port.queue().claim(one, 1, || true).unwrap();
            let second = port.queue().claim(two, 2, || true).unwrap();
            let mut cursor = Cursor::resume(&port.queue());
            port.queue().pass_published(&mut cursor, |_| 0);
            first.write(0, &[11]);
            let _ = first.publish();
            assert_eq!(port.receive(&mut cursor), Some(11));
            let third = port.queue().claim(one, 1, || true).unwrap();
            let senders = [(third, 12), (second, 21)].map(|(claim, word)| {
                thread::spawn(move || {
                    claim.write(0, &[word]);
                    if claim.publish() == Published::Wake {
                        port.wake_receiver();
                    }
                })
            });
            let mut got = [0; 2].map(|_| port.receive_waiting(&mut cursor, || false).unwrap());
            got.sort_unstable();
            assert_eq!(got, [12, 21]);
            senders.into_iter().for_each(|s| s.join().unwrap());
        });
    });
}

/// Q6, where the receiver falls asleep with its head behind the only free slot.
#[test]
fn no_publication_ahead_of_the_head_is_slept_over() {
    explore("sleep, head behind", 3, || {
        with(Port::new(2), |port| {
            let queue = port.queue();
            let stalled = queue.claim(&port.spots[2], 2, || true).unwrap();
            stalled.write(0, &[21]);
            assert_eq!(port.send(&port.spots[1], 1, 11), Sent::Yes);
            let mut cursor = Cursor::resume(&queue);
            assert_eq!(poll(port, &mut cursor, 1), [11]);
            let _ = queue.settle_all(&mut cursor);
            // The stalled slot is left out for a lap, then comes back beyond the other.
            let next = queue.claim(&port.spots[1], 1, || true).unwrap();
            let beyond = queue.claim(&port.spots[1], 1, || true);
            assert!(beyond.is_err());
            next.write(0, &[12]);
            let _ = next.publish();
            assert_eq!(poll(port, &mut cursor, 1), [12]);
            let _ = queue.settle_all(&mut cursor);
            let next = queue.claim(&port.spots[1], 1, || true).unwrap();
            let _ = stalled.publish();
            assert_eq!(poll(port, &mut cursor, 1), [21]);
            assert!(cursor.head() < next.position());
            let sender = thread::spawn(|| assert_eq!(port.send(&port.spots[3], 3, 31), Sent::Yes));
            let bell = queue.port.sleep.doorbell.load(Ordering::SeqCst);
            if queue.arm(&mut cursor) {
                port.bell.wait(&queue.port.sleep.doorbell, bell);
            }
            queue.disarm(&mut cursor);
            sender.join().unwrap();
            assert_eq!(poll(port, &mut cursor, 1), [31]);
            next.write(0, &[13]);
            let _ = next.publish();
            assert_eq!(poll(port, &mut cursor, 1), [13]);
        });
    });
}

/// Q7: a sender that sleeps for room is woken.
#[test]
fn no_room_is_slept_over() {
    explore("full, one sender", 3, || {
        with(Port::new(2), |port| {
            let sender = thread::spawn(|| {
                let spot = Spot::default();
                for word in 11..=14 {
                    assert_eq!(port.send_waiting(&spot, 1, word), Sent::Yes);
                }
            });
            let mut cursor = Cursor::resume(&port.queue());
            for word in 11..=14 {
                assert_eq!(port.receive_waiting(&mut cursor, || false), Some(word));
            }
            sender.join().unwrap();
        });
    });
}

/// Q7, of one that only watches for room, as a thread does that waits for it in many ports, and
/// sends once it has found some.
#[test]
fn no_room_is_slept_over_by_who_watches_for_it() {
    explore("full, one that watches", 3, || {
        with(Port::new(2), |port| {
            let filler = Spot::default();
            assert_eq!(port.send(&filler, 3, 31), Sent::Yes);
            assert_eq!(port.send(&filler, 3, 32), Sent::Yes);
            let watcher = thread::spawn(move || {
                let queue = port.queue();
                loop {
                    let room = queue.announce_waiting();
                    if queue.has_room() {
                        break;
                    }
                    port.room.wait(&queue.port.room.room, room);
                }
                // Nobody else sends.
                assert_eq!(port.send(&Spot::default(), 1, 11), Sent::Yes);
            });
            let mut cursor = Cursor::resume(&port.queue());
            for word in [31, 32, 11] {
                assert_eq!(port.receive_waiting(&mut cursor, || false), Some(word));
            }
            watcher.join().unwrap();
        });
    });
}

/// Q7, with two that wait.
#[test]
fn no_room_is_slept_over_by_two() {
    explore("full, two senders", 2, || {
        with(Port::new(2), |port| {
            let filler = Spot::default();
            assert_eq!(port.send(&filler, 3, 31), Sent::Yes);
            assert_eq!(port.send(&filler, 3, 32), Sent::Yes);
            let senders = [1, 2].map(|s| {
                thread::spawn(move || port.send_waiting(&Spot::default(), s, u64::from(s) * 10))
            });
            let mut cursor = Cursor::resume(&port.queue());
            let mut got = [0; 4].map(|_| port.receive_waiting(&mut cursor, || false).unwrap());
            got.sort_unstable();
            assert_eq!(got, [10, 20, 31, 32]);
            senders
                .into_iter()
                .for_each(|s| assert_eq!(s.join().unwrap(), Sent::Yes));
        });
    });
}

/// A process that finds a message taken finds what its receiver noted before. The receiver lives,
/// so nothing but the queue orders the two.
fn look_for_a_taken_one(port: &Port, position: u64, noted: &AtomicU64) {
    let state = port.queue().slot(position).state(Ordering::Acquire);
    if state.phase() == Phase::Published && !port.queue().is_untaken(state) {
        assert_eq!(noted.load(Ordering::Relaxed), 1, "taken, and not noted");
    }
}

/// Notes, then takes what is found.
fn note_and_take(port: &Port, mut cursor: Cursor, noted: &AtomicU64) {
    let Next::Found(found) = port.queue().next(&mut cursor) else {
        panic!("it was published");
    };
    noted.store(1, Ordering::Relaxed);
    let _ = port.queue().take(&mut cursor, found);
}

/// Q5: the commit point of a receive publishes what the receiver wrote before.
#[test]
fn what_is_taken_was_noted_before() {
    explore("taken, and looked at", 3, || {
        with((Port::new(2), AtomicU64::new(0)), |(port, noted)| {
            assert_eq!(port.send(&port.spots[1], 1, 11), Sent::Yes);
            let cursor = Cursor::resume(&port.queue());
            let position = cursor.head();
            let taker = thread::spawn(move || note_and_take(port, cursor, noted));
            let looker = thread::spawn(move || look_for_a_taken_one(port, position, noted));
            taker.join().unwrap();
            looker.join().unwrap();
        });
    });
}

/// Q5: so does the commit point of the receive of a passed message.
#[test]
fn what_is_taken_and_was_passed_was_noted_before() {
    explore("passed, taken, and looked at", 3, || {
        // So many slots that no look for senders that wait, with its barrier, lies in between.
        with((Port::new(8), AtomicU64::new(0)), |(port, noted)| {
            let queue = port.queue();
            let claim = queue.claim(&port.spots[1], 1, || true).unwrap();
            let position = claim.position();
            let mut cursor = Cursor::resume(&queue);
            // Only a claim with something behind it is passed.
            assert_eq!(port.send(&port.spots[2], 2, 21), Sent::Yes);
            assert_eq!(poll(port, &mut cursor, 1), [21]);
            assert!(cursor.head() > position);
            let _ = claim.publish();
            let taker = thread::spawn(move || note_and_take(port, cursor, noted));
            let looker = thread::spawn(move || look_for_a_taken_one(port, position, noted));
            taker.join().unwrap();
            looker.join().unwrap();
        });
    });
}

/// Q5: a message that is passed between the two looks of another process is not taken.
#[test]
fn what_is_passed_is_not_taken() {
    explore("passed, and looked at", 3, || {
        with(Port::new(8), |port| {
            assert_eq!(port.send(&port.spots[1], 1, 11), Sent::Yes);
            let mut cursor = Cursor::resume(&port.queue());
            let position = cursor.head();
            let passer = thread::spawn(move || {
                port.queue()
                    .pass_published(&mut cursor, |_| Default::default());
            });
            let looker = thread::spawn(move || {
                let state = port.queue().slot(position).state(Ordering::Acquire);
                assert!(port.queue().is_untaken(state), "nobody takes it");
            });
            passer.join().unwrap();
            looker.join().unwrap();
        });
    });
}

/// Closes a queue as its owner does; the words that waited in it.
fn close(port: &Port) -> Vec<u64> {
    let queue = port.queue();
    let mut drained = Vec::new();
    for index in 0..queue.slots() as u64 {
        while let CloseStep::Message { position } = queue.close_slot(index) {
            let mut word = [0];
            queue.slot(position).read(0, &mut word);
            drained.extend(word);
            queue.close_drained(position);
        }
    }
    drained
}

/// A message to a closing port goes to the closer or back to its sender.
#[test]
fn closing_meets_every_message_once() {
    explore("close", 3, || {
        with(Port::new(2), |port| {
            let senders = [1, 2].map(|s| thread::spawn(move || send_all(port, s, 1)));
            let mut cursor = Cursor::resume(&port.queue());
            let mut got = poll(port, &mut cursor, 1);
            got.extend(close(port));
            let sent = senders.map(|s| s.join().unwrap());
            assert_eq!(of_sender(&got, 1), sent[0]);
            assert_eq!(of_sender(&got, 2), sent[1]);
            let retired = port.queue().retired().unwrap();
            port.queue().open(retired);
            port.is_usable(&mut Cursor::resume(&port.queue()), 3);
        });
    });
}

/// A sender whose port is closed and bound anew meanwhile sends nothing to the new one.
#[test]
fn a_late_sender_does_not_reach_the_next_port() {
    explore("reopen", 3, || {
        with(Port::new(2), |port| {
            let status = &port.queue().port.control.status;
            let late = thread::spawn(|| {
                let queue = port.queue();
                let lives = || queue.port.control.status.load(Ordering::Acquire) == 0;
                if !lives() {
                    return None;
                }
                let claim = queue.claim(&port.spots[1], 1, lives).ok()?;
                if !lives() {
                    claim.abandon();
                    return None;
                }
                let position = claim.position();
                claim.write(0, &[11]);
                if claim.publish() == Published::Closed {
                    queue.withdraw(position);
                    return None;
                }
                Some(11)
            });
            status.store(1, Ordering::SeqCst);
            let drained = close(port);
            let retired = port.queue().retired();
            let reopened = retired.is_some();
            if let Some(retired) = retired {
                port.queue().open(retired);
                status.store(2, Ordering::Release);
            }
            let sent: Vec<u64> = late.join().unwrap().into_iter().collect();
            assert_eq!(drained, sent, "drained, sent");
            if reopened {
                let mut cursor = Cursor::resume(&port.queue());
                assert_eq!(port.drain(&mut cursor), []);
                port.is_usable(&mut cursor, 3);
            } else {
                assert_eq!(port.queue().closing(), Closing::Complete);
            }
        });
    });
}
