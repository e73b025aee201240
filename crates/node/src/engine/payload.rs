//! The bytes of a message on their way: those of one that was taken off a proxy port, which is kept
//! until it is acknowledged, or those of one that comes, which go straight into extents.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use portolan::Message;
use portolan::proxy::Incoming;
use portolan_transport::{Destination, Source};

/// What the protocol holds of a payload: a reference.
#[derive(Clone, Debug)]
pub(super) enum Payload {
    /// It goes to a peer.
    Goes(Rc<Message>),
    /// It comes from a peer; `None` once it has been taken out.
    Comes(Rc<RefCell<Option<Incoming>>>),
    /// It comes, and has no place here, ever: its bytes are thrown away.
    Unwanted,
}

impl Payload {
    pub(super) fn coming(incoming: Incoming) -> Self {
        Self::Comes(Rc::new(RefCell::new(Some(incoming))))
    }

    /// Where a range of it lies.
    pub(super) fn sources<'a>(&'a self, range: &Range<u64>, into: &mut Vec<Source<'a>>) {
        let Self::Goes(message) = self else {
            // What comes goes into a port, and nowhere else.
            return;
        };
        let mut begin = 0;
        for piece in message.slices() {
            let end = begin + piece.len() as u64;
            let (from, to) = (range.start.max(begin), range.end.min(end));
            if from < to {
                into.push(Source::from(&piece[within(from, begin)..within(to, begin)]));
            }
            begin = end;
            if begin >= range.end {
                break;
            }
        }
    }

    /// Copies a short payload into its extents.
    pub(super) fn fill(&self, mut bytes: &[u8]) {
        self.with(|incoming| {
            while !bytes.is_empty() && !incoming.is_whole() {
                let mut unfilled = incoming.unfilled();
                let Some(piece) = unfilled.first_mut() else {
                    return;
                };
                let part = piece.len().min(bytes.len());
                piece[..part].copy_from_slice(&bytes[..part]);
                bytes = &bytes[part..];
                incoming.filled(part);
            }
        });
    }

    /// Lets `receive` receive at most `most` bytes into the extents, and then what follows into
    /// `behind`; what it returns, and how many bytes were the payload's.
    pub(super) fn receive<T>(
        &self,
        most: u64,
        behind: &mut [u8],
        receive: impl FnOnce(&[Destination<'_>]) -> (T, usize),
    ) -> Option<(T, usize)> {
        self.with(|incoming| {
            let (mut left, mut room) = (usize::try_from(most).unwrap_or(usize::MAX), 0);
            let mut unfilled = incoming.unfilled();
            let mut into = Vec::with_capacity(unfilled.len() + 1);
            for piece in &mut unfilled {
                let part = piece.len().min(left);
                if part == 0 {
                    break;
                }
                into.push(Destination::from(&mut piece[..part]));
                (left, room) = (left - part, room + part);
            }
            if room == 0 {
                return None;
            }
            // Only behind all of it.
            if left == 0 {
                into.push(Destination::from(behind));
            }
            let (result, moved) = receive(&into);
            drop(into);
            let its = moved.min(room);
            incoming.filled(its);
            Some((result, its))
        })?
    }

    /// The message that has come, with this header; `None` if not all of it has.
    pub(super) fn take(&self) -> Option<Message> {
        let Self::Comes(shared) = self else {
            return None;
        };
        let incoming = shared.borrow_mut().take()?;
        incoming.into_message().ok()
    }

    fn with<T>(&self, act: impl FnOnce(&mut Incoming) -> T) -> Option<T> {
        let Self::Comes(shared) = self else {
            return None;
        };
        shared.borrow_mut().as_mut().map(act)
    }
}

/// An offset within a piece that begins at `begin`; it is less than the piece's length.
fn within(offset: u64, begin: u64) -> usize {
    usize::try_from(offset - begin).unwrap_or(usize::MAX)
}
