//! Pushes an address once to each FIFO that has a handler for it.

use super::push;
use crate::space::Member;
use portolan_abi::limits::MAX_FIFOS;
use portolan_shm::signal::HandlerEntry;

/// Handlers of one address that are told together: each FIFO of theirs gets one signal.
/// Further ones are the next group's, and a FIFO that is in both gets two.
const GROUP: usize = 32;

/// Tells every handler of an offset; how many FIFOs that reached.
#[inline]
pub(crate) fn signal(member: &Member, offset: u64) -> usize {
    let mut first = None;
    let mut several = false;
    member.tables().ranges().find(offset, |_, handler| {
        several = first.is_some();
        if !several {
            first = Some((handler, handler.fifo()));
        }
    });
    if several {
        return signal_several(member, offset);
    }
    let Some((handler, mut to)) = first else {
        return 0;
    };
    loop {
        let pushed = push(member, to, offset);
        // S5: it may have moved away from where we have just pushed.
        match handler.moved_from(to) {
            Some(now) => to = now,
            None => return usize::from(pushed),
        }
    }
}

/// Tells each handler that has some of the bytes from `start` up to `end`, once: of the byte at
/// `best` if it has that, else of the first that it has. A FIFO of several handlers gets several
/// signals.
pub(crate) fn tell_each(member: &Member, (start, end): (u64, u64), best: u64) {
    for handler in member.tables().ranges().handlers() {
        let Some((first, last)) = handler.overlap(start, end) else {
            continue;
        };
        let offset = if (first..last).contains(&best) {
            best
        } else {
            first
        };
        let mut to = handler.fifo();
        loop {
            push(member, to, offset);
            // S5, as in `signal`.
            match handler.moved_from(to) {
                Some(now) => to = now,
                None => break,
            }
        }
    }
}

/// As [`signal`], for more than one handler.
#[inline(never)]
fn signal_several(member: &Member, offset: u64) -> usize {
    let mut group = [None; GROUP];
    let mut filled = 0;
    let mut reached = Fifos::default();
    member.tables().ranges().find(offset, |_, handler| {
        group[filled] = Some((handler, handler.fifo()));
        filled += 1;
        if filled == GROUP {
            tell(member, offset, &group, &mut reached);
            filled = 0;
        }
    });
    tell(member, offset, &group[..filled], &mut reached);
    reached.count()
}

/// Tells a group. Where each of them led is known before anything is pushed (S5).
fn tell(member: &Member, offset: u64, group: &[Option<(&HandlerEntry, u32)>], reached: &mut Fifos) {
    let mut told = Fifos::default();
    let mut has = Fifos::default();
    for &(_, to) in group.iter().flatten() {
        if told.add(to) && push(member, to, offset) {
            has.add(to);
        }
    }
    for &(handler, mut to) in group.iter().flatten() {
        // S5: also where it was pushed to already, for that may have been read before the
        // handler came.
        let mut pushed = has.contains(to);
        while let Some(now) = handler.moved_from(to) {
            pushed = push(member, now, offset);
            to = now;
        }
        if pushed {
            reached.add(to);
        }
    }
}

/// A set of FIFOs.
#[derive(Default)]
struct Fifos([u64; MAX_FIFOS / 64]);

impl Fifos {
    /// `false`: it was in the set, or there is no such FIFO.
    fn add(&mut self, fifo: u32) -> bool {
        let Some(word) = self.0.get_mut(fifo as usize / 64) else {
            return false;
        };
        let bit = 1 << (fifo % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    fn contains(&self, fifo: u32) -> bool {
        let word = self.0.get(fifo as usize / 64);
        word.is_some_and(|word| word & 1 << (fifo % 64) != 0)
    }

    fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}
