//! Sends a message of 32 bytes to another thread, in each of several ways.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan::channel::{ChannelOptions, ReaderOptions};
use portolan::{Deadline, Delivery, Domain, Listener, ListenerOptions, Note, Segment, Waiting};

use super::rounds::Ends;
use crate::error::{LabError, Result};
use crate::steps::{Locked, PATIENCE, Padded, until};

/// Words of a message: 32 bytes.
const WORDS: usize = 4;
/// Slots of a ring, or a queue.
const SLOTS: usize = 64;

/// A line that holds a message.
type Message = Padded<[AtomicU64; WORDS]>;

fn write(message: &Message, number: u64) {
    for word in &message.0 {
        // Relaxed: whatever tells of the message publishes it.
        word.store(number, Ordering::Relaxed);
    }
}

/// Whether the message is the one of this number.
fn read(message: &Message, number: u64) -> bool {
    message
        .0
        .iter()
        .all(|word| word.load(Ordering::Relaxed) == number)
}

fn slot(number: u64) -> usize {
    usize::try_from(number % SLOTS as u64).unwrap_or(0)
}

/// The limit: a line, and nothing else.
pub(super) fn line() -> Ends {
    let line = Arc::new(Padded(AtomicU64::new(0)));
    let theirs = Arc::clone(&line);
    Ends::new(
        move |number| line.0.store(number, Ordering::Release),
        move |number| until(|| theirs.0.load(Ordering::Acquire) == number),
    )
}

/// The locked queue whose parts are timed alone, and the messages whose places it holds.
struct Queue {
    places: Locked,
    messages: [Message; SLOTS],
}

impl Queue {
    fn new() -> Self {
        Self {
            places: Locked::new(),
            messages: std::array::from_fn(|_| Message::default()),
        }
    }

    fn insert(&self, number: u64) {
        let at = slot(number);
        write(&self.messages[at], number);
        self.places.insert(at);
    }

    fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn remove(&self, number: u64) -> bool {
        let at = self.places.remove();
        at.is_some_and(|at| read(&self.messages[at], number))
    }
}

/// A locked queue that the receiver polls.
pub(super) fn queue() -> Ends {
    let queue = Arc::new(Queue::new());
    let theirs = Arc::clone(&queue);
    Ends::new(
        move |number| queue.insert(number),
        // It looks without the lock, and takes it only when there is something.
        move |number| until(|| !theirs.is_empty()) && theirs.remove(number),
    )
}

/// A conventional ring: the writer's index says what is there, the reader's what is free.
pub(super) fn ring() -> Ends {
    struct Ring {
        tail: Padded<AtomicU64>,
        head: Padded<AtomicU64>,
        slots: Vec<Message>,
    }
    let ring = Arc::new(Ring {
        tail: Padded::default(),
        head: Padded::default(),
        slots: (0..SLOTS).map(|_| Message::default()).collect(),
    });
    let theirs = Arc::clone(&ring);
    Ends::new(
        move |number| {
            until(|| number - ring.head.0.load(Ordering::Acquire) <= SLOTS as u64);
            write(&ring.slots[slot(number)], number);
            ring.tail.0.store(number, Ordering::Release);
        },
        move |number| {
            let there = until(|| theirs.tail.0.load(Ordering::Acquire) >= number);
            let read = read(&theirs.slots[slot(number)], number);
            theirs.head.0.store(number, Ordering::Release);
            there && read
        },
    )
}

/// A message with its stamp in one line.
pub(super) fn stamped() -> Ends {
    struct Slot {
        message: [AtomicU64; WORDS],
        stamp: AtomicU64,
    }
    let slots: Vec<Padded<Slot>> = (0..SLOTS)
        .map(|_| {
            Padded(Slot {
                message: Default::default(),
                stamp: AtomicU64::new(0),
            })
        })
        .collect();
    let slots = Arc::new(slots);
    let theirs = Arc::clone(&slots);
    Ends::new(
        move |number| {
            let slot = &slots[slot(number)].0;
            for word in &slot.message {
                word.store(number, Ordering::Relaxed);
            }
            slot.stamp.store(number, Ordering::Release);
        },
        move |number| {
            let slot = &theirs[slot(number)].0;
            until(|| slot.stamp.load(Ordering::Acquire) == number)
                && slot
                    .message
                    .iter()
                    .all(|word| word.load(Ordering::Relaxed) == number)
        },
    )
}

/// A message-consistent channel, polled.
pub(super) fn channel() -> Result<Ends> {
    let doing = "making a channel for an experiment";
    let domain = domain()?;
    let channel = domain
        .make_channel(&ChannelOptions::unnamed())
        .map_err(LabError::library(doing))?;
    let mut writer = channel.bind_writer().map_err(LabError::library(doing))?;
    let reader = channel.bind_reader(ReaderOptions::default());
    let mut reader = reader.map_err(LabError::library(doing))?;
    reader.set_waiting(Waiting::Poll);
    Ok(Ends::new(
        move |number| {
            let mut bytes = [0; WORDS * 8];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            // What is not written does not arrive, which the other side notices.
            let _ = writer.write(&bytes, Deadline::NOW);
        },
        move |number| {
            // The domain is left after both ends.
            let _ = &domain;
            reader
                .receive(PATIENCE)
                .is_ok_and(|message| message.starts_with(&number.to_le_bytes()))
        },
    ))
}

fn domain() -> Result<Domain> {
    Domain::builder("lab-ways")
        .limit(64 << 20)
        .private()
        .map_err(LabError::library("making a domain for an experiment"))
}

/// Signals to lines of a segment that `clients` have one each of, in turn; the listener takes
/// the message from the address.
pub(super) fn signals(delivery: Delivery, clients: usize) -> Result<Ends> {
    let doing = "making a listener for an experiment";
    let (domain, segment) = shared(clients)?;
    let mut listener = listener(&domain)?;
    let start = segment.address();
    let theirs = segment.clone();
    let seen = Arc::new(AtomicU64::new(0));
    let sees = Arc::clone(&seen);
    let handler = move |address: usize| {
        // Relaxed: the same thread looks.
        let word = theirs.words()[(address - start) / 8].load(Ordering::Relaxed);
        sees.store(word, Ordering::Relaxed);
    };
    listener
        .on_by(delivery, start..start + clients * LINE, handler)
        .map_err(LabError::library(doing))?;
    Ok(Ends::new(
        signaller(domain, segment, clients),
        move |number| listener.wait(PATIENCE).is_some() && seen.load(Ordering::Relaxed) == number,
    ))
}

/// Signals to a thread that looks at something else and is interrupted.
pub(crate) fn upcalls() -> Result<Ends> {
    let (domain, segment) = shared(1)?;
    let (start, theirs) = (segment.address(), segment.clone());
    let noted = Noted::to(domain.clone(), start);
    let (send, prepare) = (signaller(domain, segment, 1), noted.prepare());
    let receive = move |number| {
        let address = noted.next();
        address.is_some_and(|address| {
            theirs.words()[(address - start) / 8].load(Ordering::Relaxed) == number
        })
    };
    Ok(Ends::new(send, receive).prepared(prepare))
}

/// A locked queue, a system call, and a thread that is interrupted by it: software only. The
/// interrupt is a signal of the library's, which looks up its address and pushes it, too: an address
/// that no code looks at.
pub(crate) fn software() -> Result<Ends> {
    let (domain, segment) = shared(1)?;
    let noted = Noted::to(domain.clone(), segment.address());
    let prepare = noted.prepare();
    let queue = Arc::new(Queue::new());
    let theirs = Arc::clone(&queue);
    let send = move |number| {
        queue.insert(number);
        let _ = domain.signal(segment.address());
    };
    let receive = move |number| noted.next().is_some() && theirs.remove(number);
    Ok(Ends::new(send, receive).prepared(prepare))
}

/// A message of so many lines to a thread that looks at something else: it is interrupted at each
/// line, or once at the message's end.
pub(super) fn interrupted(lines: usize, at_each: bool) -> Result<Ends> {
    let (domain, segment) = shared(lines)?;
    let (start, theirs) = (segment.address(), segment.clone());
    let last = (lines - 1) * LINE;
    let noted = Noted::in_bytes(domain.clone(), start, lines * LINE);
    let prepare = noted.prepare();
    let send = move |number| {
        for line in (0..lines).map(|line| line * LINE) {
            for word in &segment.words()[line / 8..(line + LINE) / 8] {
                word.store(number, Ordering::Relaxed);
            }
            if at_each || line == last {
                // One who is not told does not answer, which the driver notices.
                let _ = domain.signal(start + line);
            }
        }
    };
    let receive = move |number| {
        loop {
            let Some(address) = noted.next() else {
                return false;
            };
            // The last line's signal is the message's end, of whichever message it is.
            if address == start + last && theirs.words()[last / 8].load(Ordering::Relaxed) == number
            {
                return true;
            }
        }
    };
    Ok(Ends::new(send, receive).prepared(prepare))
}

/// What interrupts the receiving thread, which is another one in every slice, and the only
/// one that can ask for it.
#[derive(Clone)]
struct Noted {
    domain: Domain,
    start: usize,
    bytes: usize,
    now: Arc<Mutex<Option<Noting>>>,
}

struct Noting {
    _listener: Listener,
    note: Arc<Note>,
    seen: u64,
}

impl Noted {
    fn to(domain: Domain, start: usize) -> Self {
        Self::in_bytes(domain, start, LINE)
    }

    fn in_bytes(domain: Domain, start: usize, bytes: usize) -> Self {
        Self {
            domain,
            start,
            bytes,
            now: Arc::default(),
        }
    }

    fn now(&self) -> MutexGuard<'_, Option<Noting>> {
        // No thread panics while it holds it, and no other thread waits for it.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the calling thread be interrupted from now on.
    fn prepare(&self) -> impl FnMut() -> bool + Send + 'static {
        let own = self.clone();
        move || {
            let made = listener(&own.domain).ok().and_then(|mut listener| {
                let (_, note) = listener.note(own.start..own.start + own.bytes).ok()?;
                Some(Noting {
                    _listener: listener,
                    note,
                    seen: 0,
                })
            });
            let mut now = own.now();
            *now = made;
            now.is_some()
        }
    }

    /// Looks at nothing else until it is interrupted; what was signalled.
    fn next(&self) -> Option<usize> {
        let mut now = self.now();
        let Noting { note, seen, .. } = now.as_mut()?;
        until(|| note.count() > *seen).then(|| {
            *seen = note.count();
            note.address()
        })
    }
}

/// A segment with a line for each client.
fn shared(clients: usize) -> Result<(Domain, Segment)> {
    let domain = domain()?;
    let segment = domain.make_segment(None, clients * LINE);
    let segment = segment.map_err(LabError::library("making a segment for an experiment"))?;
    Ok((domain, segment))
}

fn listener(domain: &Domain) -> Result<Listener> {
    domain
        .listen(ListenerOptions::default())
        .map_err(LabError::library("making a listener for an experiment"))
}

/// Writes each message to its client's line and signals that.
fn signaller(domain: Domain, segment: Segment, clients: usize) -> impl FnMut(u64) + Send + 'static {
    let mut client = Turns::of(clients);
    move |number| {
        let line = client.next() * LINE;
        for word in &segment.words()[line / 8..line / 8 + WORDS] {
            word.store(number, Ordering::Relaxed);
        }
        // One who is not told does not answer, which the driver notices.
        let _ = domain.signal(segment.address() + line);
    }
}

/// Bytes of a line.
const LINE: usize = 64;

/// A line for each of so many clients, all of which the receiver polls.
pub(super) fn mailboxes(clients: usize) -> Ends {
    let boxes: Arc<Vec<Padded<[AtomicU64; WORDS]>>> =
        Arc::new((0..clients).map(|_| Message::default()).collect());
    let theirs = Arc::clone(&boxes);
    let mut client = Turns::of(clients);
    let mut seen = vec![0; clients];
    let mut at = 0;
    Ends::new(
        move |number| {
            let message = &boxes[client.next()].0;
            for word in message[1..].iter() {
                word.store(number, Ordering::Relaxed);
            }
            message[0].store(number, Ordering::Release);
        },
        move |number| {
            until(|| {
                // The next one, wherever the last message was.
                at = if at + 1 == clients { 0 } else { at + 1 };
                let found = theirs[at].0[0].load(Ordering::Acquire);
                let new = found != seen[at];
                seen[at] = found;
                new
            }) && read(&theirs[at], number)
        },
    )
}

/// Whose turn it is: in an order that has nothing to do with where their places lie, the same in each
/// run, and each as often as the others.
struct Turns {
    order: Vec<usize>,
    at: usize,
}

impl Turns {
    fn of(clients: usize) -> Self {
        let mut order: Vec<usize> = (0..clients).collect();
        // Fisher and Yates, with a generator whose seed is fixed.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for left in (1..clients).rev() {
            state = state
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            let chosen = usize::try_from((state >> 33) % (left as u64 + 1)).unwrap_or(0);
            order.swap(left, chosen);
        }
        Self { order, at: 0 }
    }

    fn next(&mut self) -> usize {
        let client = self.order[self.at];
        self.at += 1;
        if self.at == self.order.len() {
            self.at = 0;
        }
        client
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_gets_there() {
        let cpus = portolan_measure::cpus::Cpus::choose();
        if cpus.count() < 2 {
            return;
        }
        for ends in [
            line(),
            queue(),
            software().unwrap(),
            ring(),
            stamped(),
            channel().unwrap(),
            signals(Delivery::DOORBELL, 1).unwrap(),
            signals(Delivery::MONITORED, 1).unwrap(),
            signals(Delivery::POLLED, 100).unwrap(),
            upcalls().unwrap(),
            interrupted(16, true).unwrap(),
            interrupted(16, false).unwrap(),
            mailboxes(100),
        ] {
            let mut ends = ends;
            // Twice, since each time has threads of its own.
            for _ in 0..2 {
                let near = [cpus.ours, cpus.peer(0)];
                let round = ends.rounds(near, 200, None).unwrap();
                assert!(round.whole > 0.0);
            }
        }
    }

    #[test]
    fn every_client_has_its_turn() {
        for clients in [1, 100, 1000] {
            let mut turns = Turns::of(clients);
            let mut met = vec![false; clients];
            (0..clients).for_each(|_| met[turns.next()] = true);
            assert!(met.iter().all(|met| *met), "{clients}");
        }
    }

    #[test]
    fn a_place_is_as_far_from_the_one_before_as_chance_has_it() {
        for clients in [100_usize, 1000] {
            let mut turns = Turns::of(clients);
            let mut at = turns.next();
            let steps = (1..clients).map(|_| {
                let before = std::mem::replace(&mut at, turns.next());
                (at + clients - before) % clients
            });
            let mean = steps.sum::<usize>() as f64 / (clients - 1) as f64 / clients as f64;
            // Half of all places, on average, have to be looked at to find the next.
            assert!((0.4..0.6).contains(&mean), "{clients}: {mean}");
        }
    }
}
