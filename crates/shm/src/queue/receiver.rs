//! The receiving side finds, takes and retires slots, and falls asleep.

use super::{Line, Queue, Slot};
use crate::atomic::{Ordering, pause, store_load_barrier};
use crate::mark;
use core::cmp::Reverse;
use portolan_abi::slot::{Phase, SlotState};
use std::collections::BinaryHeap;

/// How often a receiver looks at a claimed slot before it looks past it.
const PATIENCE: u32 = if cfg!(loom) { 1 } else { 200 };

/// Urgency and position of messages.
type Urgent = BinaryHeap<Reverse<(u64, u64)>>;

/// The receiver's place in a queue. Private to the receiving process; one that
/// takes the port over rebuilds it with [`Cursor::resume`].
#[derive(Debug, Default)]
pub struct Cursor {
    head: u64,
    /// Positions passed while claimed, oldest first.
    passed: Vec<u64>,
    /// On a port by urgency: messages passed while published, the most urgent first, then the
    /// oldest.
    urgent: Option<Box<Urgent>>,
    /// Taken, but not yet retired: done when the receiver has time.
    unretired: Option<u64>,
    /// Positions that carry our ASLEEP mark.
    marked: Vec<u64>,
    retired_since_wake: usize,
}

/// A message found in a slot; [`Queue::take`] makes it ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a found message is still in the queue"]
pub struct Found {
    position: u64,
    passed: bool,
}

impl Found {
    /// Its position.
    pub fn position(&self) -> u64 {
        self.position
    }
}

/// That the message at the head can be taken, and the slot that was taken last, which is given back then.
#[must_use = "the message is still in the queue"]
pub struct Turn<'r>(Option<(u64, &'r Line)>);

/// What a look at the queue gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A message.
    Found(Found),
    /// Nothing published.
    Empty,
    /// The port is closed.
    Closed,
}

/// Whether sleepers must be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "senders that sleep must be woken"]
pub enum Woken {
    /// No sender waits for room, or not enough of it is there yet.
    Nobody,
    /// Add one to `room`, then wake all that sleep on it.
    Senders,
}

impl Cursor {
    /// The place of a receiver that has just bound the port, or received its receive right.
    ///
    /// Retires what an earlier receiver took and, dying, did not retire.
    pub fn resume(queue: &Queue<'_>) -> Self {
        // Acquire: pairs with the Release in `take` of the space that received before us.
        let head = queue.port.receiver.head.load(Ordering::Acquire);
        let mut cursor = Self {
            head,
            ..Self::default()
        };
        for index in 0..queue.slots_u64() {
            let state = queue.slot(index).state(Ordering::Acquire);
            match state.phase() {
                Phase::Free | Phase::Closed => {}
                _ if state.position() >= head => {}
                _ if state.has(SlotState::PASSED) => cursor.passed.push(state.position()),
                Phase::Published | Phase::Void => queue.free_passed(&mut cursor, state.position()),
                Phase::Claimed => {}
            }
        }
        cursor.passed.sort_unstable();
        cursor
    }

    /// The next position that it has not looked past.
    pub fn head(&self) -> u64 {
        self.head
    }

    fn wait_urgently(&mut self, urgency: u64, position: u64) {
        let urgent = self.urgent.get_or_insert_default();
        urgent.push(Reverse((urgency, position)));
    }

    /// The position of the most urgent message that was passed.
    fn most_urgent(&self) -> Option<u64> {
        let Reverse((_, position)) = self.urgent.as_ref()?.peek()?;
        Some(*position)
    }

    /// How many slots were passed over and not taken.
    fn skipped(&self) -> usize {
        self.passed.len() + self.urgent.as_ref().map_or(0, |u| u.len())
    }
}

impl<'r> Queue<'r> {
    /// The next message and its slot, if it lies where it is expected and none was passed before
    /// it: the straight line. Otherwise [`Queue::next`] looks for it.
    #[inline(always)]
    pub fn at_head(&self, cursor: &Cursor) -> Option<(Found, Slot<'r>)> {
        let at = self.first_line_at(cursor.head);
        let slot = Slot {
            first: self.lines.get(at)?,
            lines: self.lines,
            at,
            count: self.slot_lines,
        };
        let state = slot.state(Ordering::Acquire);
        let found = Found {
            position: cursor.head,
            passed: false,
        };
        (state.is_published_at(cursor.head) && cursor.passed.is_empty()).then_some((found, slot))
    }

    /// Whether the slot that comes next is free, and none was passed.
    #[inline(always)]
    pub fn is_empty_at_head(&self, cursor: &Cursor) -> bool {
        let state = self.slot(cursor.head).state(Ordering::Acquire);
        state == SlotState::free(cursor.head) && cursor.passed.is_empty()
    }

    /// Looks for the next message. Costs one load when there is none.
    #[inline]
    pub fn next(&self, cursor: &mut Cursor) -> Next {
        if cursor.passed.is_empty() {
            let state = self.slot(cursor.head).state(Ordering::Acquire);
            if state.is_published_at(cursor.head) {
                return Next::Found(Found {
                    position: cursor.head,
                    passed: false,
                });
            }
            if state.phase() == Phase::Free && state.position() == cursor.head {
                return Next::Empty;
            }
        }
        self.search(cursor)
    }

    /// Whether nothing is published in the slot that comes next: the one load of a receiver
    /// that polls. A claim is left alone for a while; senders that stay, and those that were
    /// passed over, are dealt with by [`Queue::next`] only.
    #[inline]
    pub fn is_still(&self, cursor: &Cursor) -> bool {
        matches!(
            self.slot(cursor.head).state(Ordering::Relaxed).phase(),
            Phase::Free | Phase::Claimed
        )
    }

    #[cold]
    fn search(&self, cursor: &mut Cursor) -> Next {
        let mut patience = PATIENCE;
        // From here on every slot at a position before the head is passed.
        self.retire(cursor);
        // Bounded: each turn moves the head, spends patience, or returns; and the head stops
        // at the first slot that is not passed.
        loop {
            if let Some(found) = self.late(cursor) {
                return Next::Found(found);
            }
            if cursor.skipped() >= self.slots {
                return Next::Empty;
            }
            let slot = self.slot(cursor.head);
            let state = slot.state(Ordering::Acquire);
            match state.phase() {
                Phase::Closed => return Next::Closed,
                Phase::Free if state.position() <= cursor.head => return Next::Empty,
                // Q3: left out for this lap; or one lap later still passed.
                _ if state.position() != cursor.head => self.advance(cursor),
                Phase::Free => return Next::Empty,
                Phase::Published => {
                    // Q4: the passed ones are looked at again, after this one was seen.
                    return Next::Found(self.late(cursor).unwrap_or(Found {
                        position: cursor.head,
                        passed: false,
                    }));
                }
                Phase::Void => self.skip_void(cursor),
                Phase::Claimed if self.nothing_beyond(cursor.head) => return Next::Empty,
                Phase::Claimed if patience > 0 => {
                    patience -= 1;
                    pause();
                }
                Phase::Claimed => {
                    if slot.exchange(state, state.with(SlotState::PASSED)).is_ok() {
                        mark!("receive.passed");
                        cursor.passed.push(cursor.head);
                        self.advance(cursor);
                        patience = PATIENCE;
                    }
                }
            }
        }
    }

    fn nothing_beyond(&self, position: u64) -> bool {
        let beyond = self.slot(position + 1).state(Ordering::Acquire);
        beyond.phase() == Phase::Free && beyond.position() == position + 1
    }

    fn advance(&self, cursor: &mut Cursor) {
        cursor.head += 1;
        // Release: a thread that resumes sees the slots as we left them.
        self.port
            .receiver
            .head
            .store(cursor.head, Ordering::Release);
    }

    /// The first passed slot that holds a message now, in sending order (Q4).
    fn late(&self, cursor: &mut Cursor) -> Option<Found> {
        let mut i = 0;
        let mut best = None;
        while let Some(&position) = cursor.passed.get(i) {
            if best == Some(i) {
                return Some(Found {
                    position,
                    passed: true,
                });
            }
            let state = self.slot(position).state(Ordering::Acquire);
            match state.phase() {
                // Look again at the older ones; they may have been published before this one.
                Phase::Published if best.is_none_or(|b| i < b) => {
                    best = Some(i);
                    i = 0;
                }
                Phase::Void => {
                    cursor.passed.remove(i);
                    best = best.map(|b| if i < b { b - 1 } else { b });
                    self.count_void();
                    self.free_passed(cursor, position);
                }
                _ => i += 1,
            }
        }
        None
    }

    /// Steps over a void slot at the head. It was never passed, so no sender left it out.
    fn skip_void(&self, cursor: &mut Cursor) {
        let position = cursor.head;
        self.advance(cursor);
        self.count_void();
        self.free_slot(cursor, position);
    }

    fn count_void(&self) {
        let voids = &self.port.receiver.voids;
        // Relaxed: a counter with one writer.
        voids.store(voids.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// On a port by urgency: passes every message, published or being written, so that the
    /// most urgent one can be found; `urgency` reads it from a published slot, the least number
    /// first. Each message is looked at once, so the cost does not grow with how many wait.
    pub fn pass_published(&self, cursor: &mut Cursor, urgency: impl Fn(&Slot<'_>) -> u64) {
        self.retire(cursor);
        self.sort_passed(cursor, &urgency);
        let before = cursor.head;
        self.pass_to_end(cursor, &urgency);
        if cursor.head != before {
            // Q4: again, after later ones were seen.
            self.sort_passed(cursor, &urgency);
        }
    }

    fn pass_to_end(&self, cursor: &mut Cursor, urgency: impl Fn(&Slot<'_>) -> u64) {
        while cursor.skipped() < self.slots {
            let position = cursor.head;
            let slot = self.slot(position);
            let state = slot.state(Ordering::Acquire);
            match state.phase() {
                Phase::Void if state.position() == position => self.skip_void(cursor),
                Phase::Published | Phase::Claimed if state.position() == position => {
                    if state.phase() == Phase::Claimed && self.nothing_beyond(position) {
                        return;
                    }
                    if slot.exchange(state, state.with(SlotState::PASSED)).is_ok() {
                        if state.phase() == Phase::Published {
                            cursor.wait_urgently(urgency(&slot), position);
                        } else {
                            cursor.passed.push(position);
                        }
                        self.advance(cursor);
                    }
                }
                Phase::Closed => return,
                Phase::Free if state.position() <= position => return,
                _ => self.advance(cursor),
            }
        }
    }

    /// Looks again at the slots that were passed while claimed: most have none of these.
    fn sort_passed(&self, cursor: &mut Cursor, urgency: impl Fn(&Slot<'_>) -> u64) {
        let mut i = 0;
        while let Some(&position) = cursor.passed.get(i) {
            let slot = self.slot(position);
            match slot.state(Ordering::Acquire).phase() {
                Phase::Void => {
                    cursor.passed.remove(i);
                    self.count_void();
                    self.free_passed(cursor, position);
                }
                Phase::Published => {
                    cursor.passed.remove(i);
                    cursor.wait_urgently(urgency(&slot), position);
                }
                _ => i += 1,
            }
        }
    }

    /// On a port by urgency: the message to take next of those that were passed.
    pub fn most_urgent(&self, cursor: &Cursor) -> Option<Found> {
        let position = cursor.most_urgent()?;
        // Closed meanwhile, by the host for one who is taken for dead, it is not there any more.
        let state = self.slot(position).state(Ordering::Acquire);
        (state.phase() == Phase::Published && state.position() == position).then_some(Found {
            position,
            passed: true,
        })
    }

    /// Whether a slot that was passed over has something for the receiver by now.
    pub fn has_late(&self, cursor: &Cursor) -> bool {
        let is_there = |position: &u64| {
            let phase = self.slot(*position).state(Ordering::Acquire).phase();
            matches!(phase, Phase::Published | Phase::Void)
        };
        cursor.most_urgent().is_some() || cursor.passed.iter().any(is_there)
    }

    /// Makes a found message ours: **the commit point of a receive** (Q5).
    ///
    /// The caller has read the slot and written its owner words before. The slot
    /// itself is retired later, by [`Queue::settle`] or the next take.
    #[inline(always)]
    pub fn take(&self, cursor: &mut Cursor, found: Found) -> Woken {
        mark!("receive.before_take");
        let woken = self.settle(cursor);
        self.count_taken();
        if found.passed {
            return self.take_passed(cursor, found, woken);
        }
        self.move_past(cursor, found);
        woken
    }

    /// As [`Queue::take`], of a message that [`Queue::at_head`] found, where no sender is to be woken
    /// after it: the straight line, which calls no function. Otherwise it does nothing, which is every
    /// half ring, and `take` takes the message.
    #[inline(always)]
    pub fn take_at_head(&self, cursor: &mut Cursor, found: Found) -> bool {
        let Some(turn) = self.turn_at_head(cursor, found) else {
            return false;
        };
        self.take_in_turn(cursor, found, turn);
        true
    }

    /// Whether [`Queue::take_at_head`] would take the message, without taking it.
    #[inline(always)]
    pub fn turn_at_head(&self, cursor: &Cursor, found: Found) -> Option<Turn<'r>> {
        // One more may be retired below; `room_made` looks after senders from the half on.
        if found.passed || cursor.retired_since_wake + 1 >= self.slots / 2 {
            return None;
        }
        match cursor.unretired {
            None => Some(Turn(None)),
            Some(position) => {
                let first = self.lines.get(self.first_line_at(position))?;
                Some(Turn(Some((position, first))))
            }
        }
    }

    /// Takes the message that [`Queue::turn_at_head`] said of that it can be: the cursor has not changed
    /// since.
    #[inline(always)]
    pub fn take_in_turn(&self, cursor: &mut Cursor, found: Found, turn: Turn<'_>) {
        mark!("receive.before_take");
        if let Some((position, first)) = turn.0 {
            self.free_line(cursor, first, position);
        }
        self.count_taken();
        self.move_past(cursor, found);
    }

    #[inline(always)]
    fn count_taken(&self) {
        let taken = &self.port.receiver.taken;
        // Relaxed: a counter with one writer.
        taken.store(taken.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Moves the head past a message that was not passed before: it is taken (Q5).
    #[inline(always)]
    fn move_past(&self, cursor: &mut Cursor, found: Found) {
        cursor.unretired = Some(found.position);
        // Release: our owner words come before it, for the host that reads it after our death.
        cursor.head = found.position + 1;
        self.port
            .receiver
            .head
            .store(cursor.head, Ordering::Release);
        mark!("receive.taken");
    }

    #[cold]
    #[inline(never)]
    fn take_passed(&self, cursor: &mut Cursor, found: Found, woken: Woken) -> Woken {
        match &mut cursor.urgent {
            Some(urgent) if urgent.peek().is_some_and(|m| m.0.1 == found.position) => {
                urgent.pop();
            }
            _ => cursor.passed.retain(|p| *p != found.position),
        }
        self.free_passed(cursor, found.position);
        if woken == Woken::Senders {
            woken
        } else {
            self.room_made(cursor)
        }
    }

    /// Retires what was taken last, so that its slot can be claimed again.
    #[inline]
    pub fn settle(&self, cursor: &mut Cursor) -> Woken {
        self.retire(cursor);
        self.room_made(cursor)
    }

    #[inline]
    fn retire(&self, cursor: &mut Cursor) {
        if let Some(position) = cursor.unretired.take() {
            self.free_slot(cursor, position);
        }
    }

    /// Q2, Q3: the next position of a slot that was not passed is a lap later.
    #[inline]
    fn free_slot(&self, cursor: &mut Cursor, position: u64) {
        self.free_line(cursor, self.slot(position).first, position);
    }

    /// The same, of the slot that begins with this line.
    #[inline(always)]
    fn free_line(&self, cursor: &mut Cursor, first: &Line, position: u64) {
        mark!("receive.before_retire");
        // SeqCst and not a plain store: the first half of the store-load pair with
        // senders that announce in `waiting` and then look at the slot again (Q7).
        first.words[0].swap(
            SlotState::free(position + self.slots_u64()).0,
            Ordering::SeqCst,
        );
        cursor.retired_since_wake += 1;
        mark!("receive.retired");
    }

    /// Q3: a slot that was passed comes back at the first position of its own that neither
    /// we nor a sender have left out. Taking the mark off is the **commit point of the
    /// receive of a passed message** (Q5).
    fn free_passed(&self, cursor: &mut Cursor, position: u64) {
        mark!("receive.before_retire");
        // Once the mark is off no sender leaves the slot out any more; then we read how far
        // they did (pairs with `leave_out`).
        self.slot(position).words()[0].fetch_and(!SlotState::PASSED, Ordering::SeqCst);
        mark!("receive.mark_off");
        store_load_barrier();
        let left_out = self.port.sender.left_out.load(Ordering::SeqCst);
        let n = self.slots_u64();
        let beyond = left_out.max(cursor.head).max(position + 1);
        let next = beyond + (position.wrapping_sub(beyond) & (n - 1));
        // SeqCst: as in `free_slot`.
        self.slot(position).words()[0].swap(SlotState::free(next).0, Ordering::SeqCst);
        cursor.retired_since_wake += 1;
        mark!("receive.retired");
    }

    /// Every half ring: whether senders wait for the room made since.
    #[inline]
    fn room_made(&self, cursor: &mut Cursor) -> Woken {
        // Counted first: the line that `waiting` is in goes to and fro between senders.
        if cursor.retired_since_wake < self.slots / 2 {
            Woken::Nobody
        } else {
            self.wake_waiting(cursor)
        }
    }

    /// Before a receiver sleeps, leaves, or looks in vain: retires, and wakes senders
    /// whatever the room. (Looking may retire slots too, so this comes after the last look.)
    pub fn settle_all(&self, cursor: &mut Cursor) -> Woken {
        self.retire(cursor);
        if cursor.retired_since_wake == 0 {
            Woken::Nobody
        } else {
            self.wake_waiting(cursor)
        }
    }

    /// A sender that announces itself after this look still finds the room that was made
    /// before, or meets slots that others have filled and that will be retired in turn (Q7).
    fn wake_waiting(&self, cursor: &mut Cursor) -> Woken {
        cursor.retired_since_wake = 0;
        store_load_barrier();
        let waiting = &self.port.room.waiting;
        // SeqCst: pairs with the announcement in `announce_waiting`.
        if waiting.load(Ordering::SeqCst) == 0 {
            return Woken::Nobody;
        }
        // An announcement made at this instant is lost, but not the wake: that sender has
        // read `room` before, and our caller changes it after. Taken before the wake is made:
        // only we make room, and the space that closes the port after our death wakes them all.
        waiting.store(0, Ordering::SeqCst);
        Woken::Senders
    }

    /// Says "I am about to sleep" in every place where a sender will look (Q6).
    ///
    /// `false`: something is published, do not sleep. After sleeping, or instead of
    /// it, call [`Queue::disarm`]. Before it, in this order: read the doorbell, look
    /// once more with [`Queue::settle_all`] done after the look; then sleep on the
    /// doorbell's value.
    pub fn arm(&self, cursor: &mut Cursor) -> bool {
        // SeqCst (an exchange on x86): the first half of the pair with `publish`.
        self.port.sleep.asleep.store(1, Ordering::SeqCst);
        store_load_barrier();
        if cursor.most_urgent().is_some() {
            return false;
        }
        for i in 0..cursor.passed.len() {
            if !self.mark_claimed(cursor, cursor.passed[i]) {
                return false;
            }
        }
        let head = cursor.head;
        // Each slot once, whatever its position: a passed slot may have come back far ahead.
        for at in head..head + self.slots_u64() {
            let slot = self.slot(at);
            let state = slot.state(Ordering::SeqCst);
            match state.phase() {
                Phase::Closed => return false,
                // Passed, which was seen to above; or taken and not retired yet.
                _ if state.position() < head => {}
                Phase::Published | Phase::Void => return false,
                Phase::Claimed => {
                    if !self.mark_claimed(cursor, state.position()) {
                        return false;
                    }
                }
                // Q3: nothing lies beyond. The mark spares the sender that claims it next a look.
                Phase::Free if state.position() == at => {
                    if slot.exchange(state, state.with(SlotState::ASLEEP)).is_ok() {
                        cursor.marked.push(at);
                        mark!("sleep.armed");
                        return true;
                    }
                    // Claimed this instant.
                    if !self.mark_claimed(cursor, at) {
                        return false;
                    }
                }
                // The next sender that claims it finds `asleep`.
                Phase::Free => {}
            }
        }
        true
    }

    /// Marks a claimed slot; `false` if it is published, void or closed now.
    fn mark_claimed(&self, cursor: &mut Cursor, position: u64) -> bool {
        let slot = self.slot(position);
        let mut state = slot.state(Ordering::SeqCst);
        loop {
            match state.phase() {
                Phase::Claimed => match slot.exchange(state, state.with(SlotState::ASLEEP)) {
                    Ok(_) => {
                        cursor.marked.push(position);
                        return true;
                    }
                    Err(now) => state = now,
                },
                Phase::Free => return true,
                _ => return false,
            }
        }
    }

    /// Takes the sleep marks back, so that senders make no system call for us.
    pub fn disarm(&self, cursor: &mut Cursor) {
        self.port.sleep.asleep.store(0, Ordering::Relaxed);
        while let Some(position) = cursor.marked.pop() {
            let slot = self.slot(position);
            let mut state = slot.state(Ordering::Relaxed);
            while state.position() == position
                && state.has(SlotState::ASLEEP)
                && matches!(state.phase(), Phase::Free | Phase::Claimed)
            {
                match slot.exchange(state, state.without(SlotState::ASLEEP)) {
                    Ok(_) => break,
                    Err(now) => state = now,
                }
            }
        }
    }

    /// A sender announces that it will sleep for room. It then tries to claim once
    /// more, and sleeps on `room` at the value returned here only if that fails (Q7).
    pub fn announce_waiting(&self) -> u32 {
        // Before the announcement: see `wake_waiting`.
        let room = self.port.room.room.load(Ordering::SeqCst);
        self.port.room.waiting.swap(1, Ordering::SeqCst);
        store_load_barrier();
        room
    }
}
