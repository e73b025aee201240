//! The sending side claims, fills and publishes slots.

use super::{Line, PortEntry, Queue, Slot, exchange};
use crate::atomic::{AtomicU64, Ordering, store_load_barrier};
use crate::mark;
use portolan_abi::slot::{Phase, SlotState};

/// Slots that a sender looks at, in laps, before it gives up on a queue of garbage.
const WALK: usize = 64;

/// Where a sender believes the queue's end to be. A hint: any value is safe but 0, which memory
/// that was given up shows as free (U4 of [`crate::queue_memory`]); no queue has that position.
pub struct Spot(AtomicU64);

impl Spot {
    /// A spot at a position, for instance the port's tail hint.
    pub fn new(position: u64) -> Self {
        Self(AtomicU64::new(position.max(1)))
    }
}

impl Default for Spot {
    fn default() -> Self {
        Self::new(1)
    }
}

/// Why no slot could be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The state's: every slot holds a message that was not taken yet.
    #[error("all {slots} slots hold messages that were not taken yet")]
    Full {
        /// Slots of the queue.
        slots: usize,
    },
    /// The state's: the port is closed.
    #[error("the port is closed")]
    Closed,
}

/// A claimed slot. It must be published; a claim that is dropped blocks its slot
/// until the process dies, so every path ends in [`Claim::publish`] or [`Claim::abandon`].
#[must_use = "a claimed slot must be published"]
pub struct Claim<'r, 's> {
    queue: Queue<'r>,
    /// The slot's first line.
    first: &'r Line,
    position: u64,
    spot: &'s Spot,
}

/// What [`Queue::claim_at_spot`] found. The tag is a byte of its own, and not a pointer that is null,
/// of which the caller would look whether it is.
#[must_use = "a claimed slot must be published"]
#[repr(u8)]
pub enum AtSpot<'r, 's> {
    /// A free slot, which is claimed now.
    Claimed(Claim<'r, 's>),
    /// None: nothing was done.
    Taken,
}

/// What a sender owes after publishing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// Nothing: the receiver is awake.
    Done,
    /// A wake: the receiver may sleep.
    Wake,
    /// The port was closed meanwhile: the message was not sent and is the sender's again.
    /// Call [`Queue::withdraw`] when the sender's own records say so too.
    Closed,
}

impl<'r> Queue<'r> {
    /// Claims the next free slot for `space`.
    ///
    /// Full means that a slot which is not passed waits to be taken, or that a whole
    /// lap of slots is passed.
    ///
    /// The port may be closed, and its memory and its entry be other ports', before the claim.
    /// Then none succeeds: what the sender looks for lies before every position that it finds
    /// (U5 of [`crate::queue_memory`]). Only the words of the entry could lead it on to them, so
    /// it follows these only where `lives` says afterwards that the port is still the one that
    /// the caller means; `lives` reads the port's status with Acquire.
    ///
    /// The caller reads the status *after* the claim, too, which holds it (a slot that is
    /// claimed keeps the port's memory its own), and gives a claim on a port that was closed
    /// back with [`Claim::abandon`].
    #[inline(always)]
    pub fn claim<'s>(
        &self,
        spot: &'s Spot,
        space: u8,
        lives: impl Fn() -> bool,
    ) -> Result<Claim<'r, 's>, ClaimError> {
        // Relaxed: a hint, any value is safe (Q2 checks it against the slot).
        let at = spot.0.load(Ordering::Relaxed);
        let free = SlotState::free(at);
        mark!("send.before_claim");
        let first = &self.lines[self.first_line_at(at)];
        let claim = |first, position| Claim {
            queue: *self,
            first,
            position,
            spot,
        };
        if exchange(first, free, free.claimed(at, space)).is_ok() {
            mark!("send.claimed");
            return Ok(claim(first, at));
        }
        let at = self.walk(spot, space, at, lives)?;
        mark!("send.claimed");
        Ok(claim(self.slot(at).first, at))
    }

    /// As [`Queue::claim`], of the slot at the spot and no other: the straight line, which calls no
    /// function. Where that is not free [`Queue::claim`] looks further.
    #[inline(always)]
    pub fn claim_at_spot<'s>(&self, spot: &'s Spot, space: u8) -> AtSpot<'r, 's> {
        // Relaxed: as in `claim`.
        let position = spot.0.load(Ordering::Relaxed);
        let free = SlotState::free(position);
        mark!("send.before_claim");
        let Some(first) = self.lines.get(self.first_line_at(position)) else {
            return AtSpot::Taken;
        };
        if exchange(first, free, free.claimed(position, space)).is_err() {
            return AtSpot::Taken;
        }
        mark!("send.claimed");
        AtSpot::Claimed(Claim {
            queue: *self,
            first,
            position,
            spot,
        })
    }

    /// Gives up a claim that was left ([`Claim::leave`]), as [`Claim::abandon`] does.
    #[cold]
    pub fn abandon(&self, position: u64) -> bool {
        abandon(self, position)
    }

    /// Claims a slot when the one where we expected the end is not free.
    ///
    /// Invariant of the loop: no position before `from` is free, or ever will be; those
    /// from there to `at` were not free when we looked.
    #[inline(never)]
    fn walk(
        &self,
        spot: &Spot,
        space: u8,
        mut at: u64,
        lives: impl Fn() -> bool,
    ) -> Result<u64, ClaimError> {
        let mut from = at;
        let mut hinted = false;
        let mut passed = 0;
        // The bound is never met by correct members; it keeps garbage from holding us.
        for _ in 0..WALK * self.slots {
            let slot = self.slot(at);
            let found = slot.state(Ordering::Acquire);
            match found.phase() {
                Phase::Closed => return Err(ClaimError::Closed),
                Phase::Free if found.position() == at => {
                    mark!("send.before_claim");
                    if !self.leave_out(from, at) {
                        (at, passed) = (from, 0);
                    } else if slot.exchange(found, found.claimed(at, space)).is_ok() {
                        return Ok(at);
                    }
                }
                // The spot was never this queue's, or this memory was given up: start again
                // where the receiver is, if the port lives.
                Phase::Free if found.position() < at => {
                    // Acquire: before `lives` reads the status.
                    from = self.port.receiver.head.load(Ordering::Acquire);
                    if !lives() {
                        return Err(ClaimError::Closed);
                    }
                    (at, passed) = (from, 0);
                }
                // Being closed, and not by us: its claimer will find out when it publishes.
                _ if found.has(SlotState::CLOSING) => return Err(ClaimError::Closed),
                _ if found.position() < at => {
                    passed += 1;
                    if !found.has(SlotState::PASSED) || passed > self.slots {
                        break;
                    }
                    at += 1;
                }
                // Behind: others have been here.
                _ => {
                    let start = if found.position() > at + 2 * self.slots_u64() {
                        // Far behind, or before the positions of another port. Nothing
                        // before the head is ever free again.
                        self.port.receiver.head.load(Ordering::Acquire)
                    } else if hinted {
                        0
                    } else {
                        hinted = true;
                        // Acquire: see `publish`.
                        self.port.sender.tail.load(Ordering::Acquire)
                    };
                    // Acquire, all: before `lives` reads the status.
                    if !lives() {
                        return Err(ClaimError::Closed);
                    }
                    if start > at {
                        from = start;
                        at = start;
                    } else {
                        from += u64::from(from == at);
                        at += 1;
                    }
                    passed = 0;
                }
            }
        }
        spot.0.store(from, Ordering::Relaxed);
        Err(ClaimError::Full { slots: self.slots })
    }

    /// Whether a sender would find a slot to claim now, or that the port is closed. It looks as
    /// [`Queue::claim`] does, and changes nothing.
    ///
    /// For one that waits for room and is not a sender: it announces itself first
    /// ([`Queue::announce_waiting`]), then looks (Q7). The port must live, or have lived until
    /// now, for the answer to mean anything.
    pub fn has_room(&self) -> bool {
        // Acquire: see `publish`.
        let mut at = self.port.sender.tail.load(Ordering::Acquire);
        let mut passed = 0;
        // The bound is as in `walk`.
        for _ in 0..WALK * self.slots {
            let found = self.slot(at).state(Ordering::SeqCst);
            match found.phase() {
                Phase::Closed => return true,
                // A sender finds out what is wrong, if the position is an earlier one.
                Phase::Free if found.position() <= at => return true,
                _ if found.has(SlotState::CLOSING) => return true,
                _ if found.position() < at => {
                    passed += 1;
                    if !found.has(SlotState::PASSED) || passed > self.slots {
                        return false;
                    }
                    at += 1;
                }
                // Others have been here since.
                _ if found.position() > at + 2 * self.slots_u64() => {
                    at = self.port.receiver.head.load(Ordering::Acquire);
                    passed = 0;
                }
                _ => {
                    at += 1;
                    passed = 0;
                }
            }
        }
        false
    }

    /// Q3: leaves the positions from `from` to `to` out, so that no slot ever comes back
    /// at one of them; `false` if one has come back already.
    fn leave_out(&self, from: u64, to: u64) -> bool {
        if from == to {
            return true;
        }
        // Announce, then look whether the slots are still passed. The receiver takes the
        // mark off, then reads the announcement (`free_passed`).
        self.port.sender.left_out.fetch_max(to, Ordering::SeqCst);
        mark!("send.leaving_out");
        store_load_barrier();
        (from..to).all(|position| {
            let state = self.slot(position).state(Ordering::SeqCst);
            match state.position() {
                p if p < position => state.has(SlotState::PASSED),
                p => p > position || state.phase() != Phase::Free,
            }
        })
    }

    /// Gives back the slot of a message that met a closed port (see [`Published::Closed`]).
    pub fn withdraw(&self, position: u64) {
        // Release: our records are in order before the slot may be reused.
        self.slot(position).words()[0].store(SlotState::closed(position).0, Ordering::Release);
    }

    /// Whether `state` says that `space` has claimed `position` and not sent it: not
    /// published, or published into a closed port and not taken back yet.
    pub fn is_unsent(state: SlotState, space: u8, position: u64) -> bool {
        let in_hand = state.phase() == Phase::Claimed
            || (state.phase() == Phase::Published && state.has(SlotState::CLOSING));
        in_hand && state.space() == space && state.position() == position
    }

    /// Voids a claimed slot on behalf of its dead claimer; says whether the receiver must
    /// be woken, to step over it and make room.
    ///
    /// `None` if the slot is not (or no longer) claimed by `space`. A caller that asks
    /// [`Queue::is_unsent`] what becomes of the dead claimer's extents must ask before.
    pub fn void(&self, position: u64, space: u8) -> Option<bool> {
        void(self.port, self.slot(position), position, space)
    }
}

/// See [`Queue::void`].
fn void(port: &PortEntry, slot: Slot<'_>, position: u64, space: u8) -> Option<bool> {
    let mut state = slot.state(Ordering::Acquire);
    while Queue::is_unsent(state, space, position) {
        let to = if state.has(SlotState::CLOSING) {
            SlotState::closed(position)
        } else {
            state.with_phase(Phase::Void)
        };
        match slot.exchange(state, to) {
            Ok(_) => {
                // As in `publish`; a mark is only in slots that were claimed when it fell asleep.
                store_load_barrier();
                return Some(
                    state.has(SlotState::ASLEEP) || port.sleep.asleep.load(Ordering::SeqCst) != 0,
                );
            }
            Err(now) => state = now,
        }
    }
    None
}

/// See [`Claim::abandon`].
#[cold]
#[inline(never)]
fn abandon(queue: &Queue<'_>, position: u64) -> bool {
    let slot = queue.slot(position);
    let space = slot.state(Ordering::Relaxed).space();
    void(queue.port, slot, position, space).unwrap_or(false)
}

impl<'r> Claim<'r, '_> {
    fn slot(&self) -> Slot<'r> {
        self.queue.slot(self.position)
    }

    /// The position that the message will have.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Leaves the slot claimed, for [`Queue::abandon`] to give up.
    #[inline(always)]
    pub fn leave(self) {}

    /// Writes the meta word.
    #[inline]
    pub fn set_meta(&self, meta: u64) {
        // Relaxed: published by the release in `publish`.
        self.first.words[1].store(meta, Ordering::Relaxed);
    }

    /// Writes the whole first line but for its state: meta word and six inline words.
    ///
    /// Unrolled, for it lies between claim and publication: the longer that takes, the
    /// more surely a receiver that polls snatches the line back in between.
    #[inline(always)]
    pub fn fill(&self, meta: u64, words: &[u64; 6]) {
        let line = &self.first.words;
        // Relaxed: published by the release in `publish`.
        line[1].store(meta, Ordering::Relaxed);
        line[2].store(words[0], Ordering::Relaxed);
        line[3].store(words[1], Ordering::Relaxed);
        line[4].store(words[2], Ordering::Relaxed);
        line[5].store(words[3], Ordering::Relaxed);
        line[6].store(words[4], Ordering::Relaxed);
        line[7].store(words[5], Ordering::Relaxed);
    }

    /// Writes inline words from `first` on.
    #[inline]
    pub fn write(&self, first: usize, words: &[u64]) {
        let slot = self.slot();
        for (i, word) in words.iter().enumerate() {
            // Relaxed: as for meta.
            slot.inline(first + i).store(*word, Ordering::Relaxed);
        }
    }

    /// How many inline words there are.
    pub fn inline_words(&self) -> usize {
        self.slot().inline_words()
    }

    /// Gives the slot up without a message, as if its sender had died; says whether the
    /// receiver must be woken.
    // Inline, so that the claim stays in registers where it is published.
    #[inline(always)]
    pub fn abandon(self) -> bool {
        abandon(&self.queue, self.position)
    }

    /// Publishes the message: **the commit point of a send**.
    #[inline(always)]
    pub fn publish(self) -> Published {
        mark!("send.before_publish");
        // Q6: loaded after the claim's read-modify-write, which pairs with the
        // receiver's store to `asleep` before it marks slots.
        store_load_barrier();
        let asleep = self.queue.port.sleep.asleep.load(Ordering::SeqCst) != 0;
        // AcqRel: releases meta and inline words to the receiver's Acquire load of the state.
        // An addition, so that marks set meanwhile by the receiver stay and are seen.
        let was = SlotState(self.first.words[0].fetch_add(SlotState::PUBLISH, Ordering::AcqRel));
        mark!("send.published");
        // Only now: between claim and publication the receiver may snatch the line back.
        self.spot.0.store(self.position + 1, Ordering::Relaxed);
        // Release: a thread that starts from this hint knows what we knew. It never runs ahead: no
        // position before one that was claimed is free, or ever will be (Q3).
        self.queue
            .port
            .sender
            .tail
            .store(self.position + 1, Ordering::Release);
        if was.has(SlotState::CLOSING) {
            Published::Closed
        } else if asleep || was.has(SlotState::ASLEEP) {
            Published::Wake
        } else {
            Published::Done
        }
    }
}
