//! Defines the trait of what a wait set can wait for.

use super::error::WaitSetError;
use std::any::Any;
use std::fmt::Debug;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

/// What a [`WaitSet`](super::WaitSet) waits for: receive rights of ports, proxy ports, answers to
/// requests, room in ports, readers of channels, subscribers of topics, listeners, notifications of
/// exports. Their documentation says when a wait names them.
///
/// Implemented by this library alone.
pub trait Waitable: Armable {}

impl<T: Armable> Waitable for T {}

/// How it is armed. A room that has something to wait for implements this, and nothing else.
///
/// Armed for a set, it raises the bit of its place there when something comes; it then is in
/// no other thread's sleep. *Link* names set and place, or is 0 for none.
pub trait Armable: Any + Debug + Send + Sync {
    /// What it is, in an error.
    fn kind(&self) -> &'static str;

    /// Of which membership of this process it is: its number.
    fn membership(&self) -> u64;

    /// Why it cannot be waited for in any set.
    fn why_not(&self) -> Option<WaitSetError> {
        None
    }

    /// Whether a call may find something, or say something.
    fn may_have(&mut self) -> bool;

    /// Whether [`due`](Self::due) or [`word`](Self::word) ever say something.
    fn has_alarms(&self) -> bool {
        false
    }

    /// When something is there in any case. It does not change while this is armed.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Of something that is told of by a futex word and not by raising a bit: the word, and the
    /// value that it had when this was armed last. Something may be there once it has another.
    /// It is there, or not, for as long as this lives.
    fn word(&self) -> Option<(&AtomicU32, u32)> {
        None
    }

    /// Arms it for the place that `link` names, also if it is armed; `false` if something is
    /// there. For 0 it is disarmed.
    fn arm_for(&mut self, link: u64) -> bool;
}
