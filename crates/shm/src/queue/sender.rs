//! The sending side: claim, fill, publish.

use super::{Queue, Slot};
use crate::atomic::{AtomicU64, Ordering, store_load_barrier};
use crate::mark;
use portolan_abi::slot::{Phase, SlotState};

/// Slots that a sender looks at, in laps, before it gives up on a queue of garbage.
const WALK: usize = 64;

/// Where a sender believes the queue's end to be. A hint: any value is safe.
#[derive(Default)]
pub struct Spot(AtomicU64);

impl Spot {
    /// A spot at a position, for instance the port's tail hint.
    pub fn new(position: u64) -> Self {
        Self(AtomicU64::new(position))
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
/// until the process dies, so every path ends in [`Claim::publish`].
#[must_use = "a claimed slot must be published"]
pub struct Claim<'r> {
    queue: Queue<'r>,
    slot: Slot<'r>,
    position: u64,
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
    /// Walks on as long as other senders take the slots that it looks at; a whole lap
    /// of passed slots, or one that waits to be taken, means full.
    #[inline]
    pub fn claim(&self, spot: &Spot, space: u8) -> Result<Claim<'r>, ClaimError> {
        // Relaxed: a hint, any value is safe (Q2 checks it against the slot).
        let mut at = spot.0.load(Ordering::Relaxed);
        let mut expected = SlotState::free(at);
        let mut hinted = false;
        let mut left_out = 0;
        // The bound is never met by correct members; it keeps garbage from holding us.
        for _ in 0..WALK * self.slots() {
            let slot = self.slot(at);
            mark!("send.before_claim");
            let Err(found) = slot.exchange(expected, expected.claimed(at, space)) else {
                mark!("send.claimed");
                spot.0.store(at + 1, Ordering::Relaxed);
                // Relaxed: a hint for senders that have fallen behind.
                self.port.sender.tail.store(at + 1, Ordering::Relaxed);
                return Ok(Claim { queue: *self, slot, position: at });
            };
            match found.phase() {
                Phase::Closed => return Err(ClaimError::Closed),
                Phase::Free if found.position() == at => {
                    expected = found;
                    continue;
                }
                // Never written by a correct member; start again from what the slot says.
                Phase::Free if found.position() < at => at = found.position(),
                // Q3: passed, so this position is left out.
                Phase::Claimed | Phase::Published | Phase::Void if found.position() < at && found.has(SlotState::PASSED) => {
                    // Told to the receiver, who then brings the slot back in a later lap.
                    if !found.has(SlotState::SKIPPED) && slot.exchange(found, found.with(SlotState::SKIPPED)).is_err() {
                        continue;
                    }
                    left_out += 1;
                    if left_out > self.slots() {
                        break;
                    }
                    at += 1;
                }
                Phase::Claimed | Phase::Published | Phase::Void if found.position() < at => {
                    spot.0.store(at, Ordering::Relaxed);
                    return Err(ClaimError::Full { slots: self.slots() });
                }
                // Behind, or out of service for this lap. Jump to the hint once, then walk.
                _ => {
                    left_out = 0;
                    let tail = self.port.sender.tail.load(Ordering::Relaxed);
                    at = if !hinted && tail > at { tail } else { at + 1 };
                    hinted = true;
                }
            }
            expected = SlotState::free(at);
        }
        spot.0.store(self.port.sender.tail.load(Ordering::Relaxed), Ordering::Relaxed);
        Err(ClaimError::Full { slots: self.slots() })
    }

    /// Gives back the slot of a message that met a closed port (see [`Published::Closed`]).
    pub fn withdraw(&self, position: u64) {
        // Release: our records are in order before the slot may be reused.
        self.slot(position).words()[0].store(SlotState::closed(position).0, Ordering::Release);
    }

    /// Whether `state` says that `space` has claimed `position` and not sent it: not
    /// published, or published into a closed port and not taken back yet.
    pub fn is_unsent(state: SlotState, space: u8, position: u64) -> bool {
        let in_hand = state.phase() == Phase::Claimed || (state.phase() == Phase::Published && state.has(SlotState::CLOSING));
        in_hand && state.space() == space && state.position() == position
    }

    /// Voids a claimed slot on behalf of its dead claimer; says whether the receiver must be woken.
    ///
    /// `None` if the slot is not (or no longer) claimed by `space`.
    pub fn void(&self, position: u64, space: u8) -> Option<bool> {
        let slot = self.slot(position);
        let mut state = slot.state(Ordering::Acquire);
        while Self::is_unsent(state, space, position) {
            let to = if state.has(SlotState::CLOSING) { SlotState::closed(position) } else { state.with_phase(Phase::Void) };
            match slot.exchange(state, to) {
                Ok(_) => return Some(state.has(SlotState::ASLEEP)),
                Err(now) => state = now,
            }
        }
        None
    }
}

impl<'r> Claim<'r> {
    /// The position that the message will have.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Writes the meta word.
    #[inline]
    pub fn set_meta(&self, meta: u64) {
        // Relaxed: published by the release in `publish`.
        self.slot.words()[1].store(meta, Ordering::Relaxed);
    }

    /// Writes inline words from `first` on.
    #[inline]
    pub fn write(&self, first: usize, words: &[u64]) {
        for (i, word) in words.iter().enumerate() {
            // Relaxed: as for meta.
            self.slot.inline(first + i).store(*word, Ordering::Relaxed);
        }
    }

    /// How many inline words there are.
    pub fn inline_words(&self) -> usize {
        self.slot.inline_words()
    }

    /// Publishes the message: **the commit point of a send**.
    #[inline]
    pub fn publish(self) -> Published {
        mark!("send.before_publish");
        // Q6: loaded after the claim's read-modify-write, which pairs with the
        // receiver's store to `asleep` before it marks slots.
        store_load_barrier();
        let asleep = self.queue.port.sleep.asleep.load(Ordering::SeqCst) != 0;
        // AcqRel: releases meta and inline words to the receiver's Acquire load of the state.
        // An addition, so that marks set meanwhile by the receiver stay and are seen.
        let was = SlotState(self.slot.words()[0].fetch_add(SlotState::PUBLISH, Ordering::AcqRel));
        mark!("send.published");
        if was.has(SlotState::CLOSING) {
            Published::Closed
        } else if asleep || was.has(SlotState::ASLEEP) {
            Published::Wake
        } else {
            Published::Done
        }
    }
}
