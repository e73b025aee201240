//! The bytes between two ends, and what each end is to be woken for.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};

use portolan_sys::process::EventFd;
use portolan_sys::stream::{Destination, Source};

use super::MemoryOptions;
use crate::{Class, Progress, State, StreamId, TransportError};

/// Both directions of a connection.
#[derive(Debug)]
pub(super) struct Queues {
    options: MemoryOptions,
    ends: [End; 2],
}

/// What belongs to one end.
#[derive(Debug)]
struct End {
    /// What it has opened, and what it may be told there.
    streams: BTreeMap<(u8, u16), Stream>,
    /// What it has sent and the other end has not received.
    sent: BTreeMap<(u8, u16), VecDeque<u8>>,
    datagrams: VecDeque<Vec<u8>>,
    /// It sends nothing more.
    closed: bool,
    /// Its handle is gone, or has failed.
    left: bool,
    event: EventFd,
    shown: bool,
}

#[derive(Debug, Default)]
struct Stream {
    /// A send found no room since the last progress.
    blocked: bool,
    /// It has been told the peer's end.
    ended: bool,
}

impl End {
    fn new(event: EventFd) -> Self {
        Self {
            streams: BTreeMap::new(),
            sent: BTreeMap::new(),
            datagrams: VecDeque::new(),
            closed: false,
            left: false,
            event,
            shown: false,
        }
    }

    fn under_way(&self, key: (u8, u16)) -> usize {
        self.sent.get(&key).map_or(0, VecDeque::len)
    }
}

fn key(class: Class, number: u16) -> (u8, u16) {
    (u8::from(class == Class::Bulk), number)
}

impl Queues {
    pub(super) fn new(
        options: MemoryOptions,
        events: [EventFd; 2],
    ) -> Result<Self, TransportError> {
        Ok(Self {
            options,
            ends: events.map(End::new),
        })
    }

    pub(super) fn event(&self, end: usize) -> BorrowedFd<'_> {
        self.ends[end].event.as_fd()
    }

    pub(super) fn open(&mut self, end: usize, class: Class) -> Option<StreamId> {
        let most = self.options.streams;
        let streams = &mut self.ends[end].streams;
        let number = (0..most).find(|n| !streams.contains_key(&key(class, *n)))?;
        streams.insert(key(class, number), Stream::default());
        Some(StreamId { class, number })
    }

    pub(super) fn send(&mut self, end: usize, on: StreamId, parts: &[Source<'_>]) -> Progress {
        let key = key(on.class, on.number);
        let peer_left = self.ends[1 - end].left;
        let ours = &mut self.ends[end];
        if ours.closed {
            return Progress::Ended;
        }
        if peer_left {
            return Progress::Failed(TransportError::Broken {
                reason: "the peer is gone".to_owned(),
            });
        }
        let queue = ours.sent.entry(key).or_default();
        let wanted: usize = parts.iter().map(Source::len).sum();
        let room = self.options.room.saturating_sub(queue.len());
        if wanted > 0 && room == 0 {
            if let Some(stream) = ours.streams.get_mut(&key) {
                stream.blocked = true;
            }
            return Progress::Blocked;
        }
        let mut moved = 0;
        for part in parts {
            let mut bytes = vec![0; part.len().min(room - moved)];
            moved += part.copy_to(&mut bytes);
            queue.extend(bytes);
        }
        Progress::Moved(moved)
    }

    pub(super) fn receive(
        &mut self,
        end: usize,
        on: StreamId,
        into: &[Destination<'_>],
    ) -> Progress {
        let key = key(on.class, on.number);
        let [a, b] = &mut self.ends;
        let (ours, theirs) = if end == 0 { (a, b) } else { (b, a) };
        if into.iter().all(Destination::is_empty) {
            return Progress::Moved(0);
        }
        let queue = theirs.sent.entry(key).or_default();
        if queue.is_empty() {
            return match (theirs.closed, theirs.left) {
                (true, _) => {
                    ours.streams.entry(key).or_default().ended = true;
                    Progress::Ended
                }
                (false, true) => Progress::Failed(TransportError::Truncated),
                (false, false) => Progress::Blocked,
            };
        }
        let mut moved = 0;
        for range in into {
            let (first, second) = queue.as_slices();
            let mut bytes = range.copy_from(first);
            bytes += range.part(bytes, usize::MAX).copy_from(second);
            queue.drain(..bytes);
            moved += bytes;
        }
        Progress::Moved(moved)
    }

    pub(super) fn datagram(&mut self, end: usize, bytes: &[u8]) -> bool {
        let full = self.ends[end].datagrams.len() >= self.options.datagrams;
        let gone = self.ends[1 - end].left || self.ends[end].closed;
        if full || gone || bytes.len() > self.options.datagram {
            return false;
        }
        self.ends[end].datagrams.push_back(bytes.to_vec());
        true
    }

    pub(super) fn receive_datagram(&mut self, end: usize) -> Option<Vec<u8>> {
        self.ends[1 - end].datagrams.pop_front()
    }

    /// What an end is like now. A sender that was blocked tries again.
    pub(super) fn progress(&mut self, end: usize) -> (State, Progress) {
        let streams = self.ends[end].streams.values_mut();
        streams.for_each(|stream| stream.blocked = false);
        let (ours, theirs) = (&self.ends[end], &self.ends[1 - end]);
        if theirs.left && !theirs.closed && self.unread(end) == 0 {
            return (State::Failed, Progress::Failed(TransportError::Truncated));
        }
        let told = ours.streams.values().all(|stream| stream.ended);
        let over = ours.closed && theirs.closed && told;
        let state = if over { State::Over } else { State::Up };
        (state, Progress::Moved(0))
    }

    /// Bytes that wait for an end, on streams that it has opened.
    fn unread(&self, end: usize) -> usize {
        let theirs = &self.ends[1 - end];
        let streams = self.ends[end].streams.keys();
        streams.map(|key| theirs.under_way(*key)).sum()
    }

    pub(super) fn close(&mut self, end: usize) {
        self.ends[end].closed = true;
    }

    /// The handle of an end is gone. What it sent before can be received.
    pub(super) fn leave(&mut self, end: usize) {
        self.ends[end].left = true;
    }

    /// An end has been told that it failed: nothing moves there any more, or is looked at.
    pub(super) fn fail(&mut self, end: usize) {
        self.ends[end].left = true;
        self.ends[end].streams.clear();
    }

    /// Makes the descriptors tell what there is.
    pub(super) fn show(&mut self) {
        for end in 0..2 {
            let ready = self.is_ready(end);
            let ours = &mut self.ends[end];
            if ready != ours.shown {
                // An eventfd that was not written for long takes one more.
                let _ = match ready {
                    true => ours.event.notify(),
                    false => ours.event.drain().map(|_| ()),
                };
                ours.shown = ready;
            }
        }
    }

    fn is_ready(&self, end: usize) -> bool {
        let (ours, theirs) = (&self.ends[end], &self.ends[1 - end]);
        if ours.left {
            return false;
        }
        let untold = ours.streams.values().any(|stream| !stream.ended);
        let room = |(key, stream): (&(u8, u16), &Stream)| {
            stream.blocked && (theirs.left || ours.under_way(*key) < self.options.room)
        };
        self.unread(end) > 0
            || !theirs.datagrams.is_empty()
            || (theirs.closed && untold)
            || (theirs.left && !theirs.closed)
            || ours.streams.iter().any(room)
    }
}
