//! One stream of a shaped connection: the pieces that are under way, each way.

use std::collections::VecDeque;
use std::time::Duration;

use portolan_sys::stream::Destination;

use crate::{Progress, StreamId};

/// Bytes that are due at one time.
#[derive(Debug)]
struct Piece {
    due: Duration,
    bytes: Vec<u8>,
    /// How many of them have gone on.
    done: usize,
}

#[derive(Debug)]
pub(super) struct Lane {
    on: StreamId,
    out: VecDeque<Piece>,
    /// What was passed on and counts against the window still: until when, how many bytes.
    unconfirmed: VecDeque<(Duration, usize)>,
    /// What has come and occupies the interface.
    staged: VecDeque<Piece>,
    /// What comes behind it.
    end: Option<Progress>,
    blocked: bool,
    /// The first piece was offered to the transport below, which had no room.
    offered: bool,
}

impl Lane {
    pub(super) fn new(on: StreamId) -> Self {
        Self {
            on,
            out: VecDeque::new(),
            unconfirmed: VecDeque::new(),
            staged: VecDeque::new(),
            end: None,
            blocked: false,
            offered: false,
        }
    }

    pub(super) fn push(&mut self, due: Duration, bytes: &[u8]) {
        self.out.push_back(Piece {
            due,
            bytes: bytes.to_vec(),
            done: 0,
        });
    }

    /// The first bytes that are due, which are offered below.
    pub(super) fn due(&mut self, now: Duration) -> Option<(StreamId, &[u8])> {
        let piece = self.out.front().filter(|piece| piece.due <= now)?;
        self.offered = true;
        Some((self.on, &piece.bytes[piece.done..]))
    }

    /// A stall keeps the first piece, wherever it was offered before.
    pub(super) fn hold(&mut self) {
        self.offered = false;
    }

    /// So many of the first bytes were passed on.
    pub(super) fn passed(&mut self, bytes: usize, back: Duration) {
        self.offered = false;
        let Some(piece) = self.out.front_mut() else {
            return;
        };
        piece.done += bytes;
        self.unconfirmed.push_back((piece.due + back, bytes));
        if piece.done == piece.bytes.len() {
            self.out.pop_front();
        }
    }

    /// Makes room for what has been confirmed by now.
    pub(super) fn release(&mut self, now: Duration) {
        while self.unconfirmed.front().is_some_and(|(at, _)| *at <= now) {
            self.unconfirmed.pop_front();
        }
    }

    /// Bytes that count against the window.
    pub(super) fn under_way(&self) -> usize {
        let waits = self.out.iter().map(|piece| piece.bytes.len() - piece.done);
        let unconfirmed = self.unconfirmed.iter().map(|(_, bytes)| *bytes);
        waits.chain(unconfirmed).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    pub(super) fn block(&mut self) {
        self.blocked = true;
    }

    pub(super) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// When the first piece is to be passed on. One that was offered waits for the transport below.
    pub(super) fn sends_at(&self, now: Duration) -> Option<Duration> {
        let piece = self.out.front()?;
        (piece.due > now || !self.offered).then_some(piece.due)
    }

    /// When there is room again for a sender that was blocked.
    pub(super) fn frees_at(&self) -> Option<Duration> {
        let (at, _) = self.unconfirmed.front()?;
        self.blocked.then_some(*at)
    }

    pub(super) fn came(&mut self, due: Duration, bytes: Vec<u8>) {
        self.staged.push_back(Piece {
            due,
            bytes,
            done: 0,
        });
    }

    pub(super) fn ended(&mut self, end: Progress) {
        self.end = Some(end);
    }

    /// Whether more may come.
    pub(super) fn stages(&self) -> bool {
        self.end.is_none()
    }

    pub(super) fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// When the first bytes that have come can be received.
    pub(super) fn receives_at(&self) -> Option<Duration> {
        self.staged.front().map(|piece| piece.due)
    }

    /// Receives what has come by now.
    pub(super) fn take(&mut self, now: Duration, into: &[Destination<'_>]) -> Progress {
        if into.iter().all(Destination::is_empty) {
            return Progress::Moved(0);
        }
        let mut moved = 0;
        'ranges: for range in into {
            let mut filled = 0;
            while filled < range.len() {
                let Some(piece) = self.staged.front_mut().filter(|piece| piece.due <= now) else {
                    break 'ranges;
                };
                let bytes = range
                    .part(filled, usize::MAX)
                    .copy_from(&piece.bytes[piece.done..]);
                piece.done += bytes;
                filled += bytes;
                moved += bytes;
                if piece.done == piece.bytes.len() {
                    self.staged.pop_front();
                }
            }
        }
        match (moved, &self.end) {
            (0, Some(end)) if self.staged.is_empty() => end.clone(),
            (0, _) => Progress::Blocked,
            _ => Progress::Moved(moved),
        }
    }
}
