//! Watches: who wants to be told when a port has died.
//!
//! An entry is free, being written, armed, or fired, in this order; whoever dies in between
//! has its entries freed by the host.

use super::ReceiveRight;
use super::rights::{SendRight, raise};
use crate::member::Member;
use portolan_abi::port::{PortName, RightKind, RightWord, event};
use portolan_shm::mark;
use std::sync::atomic::Ordering;

/// Why no death notification could be arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the domain's {limit} death notifications are all in use: drop ports that wait for some")]
pub struct WatchError {
    /// The limit.
    pub limit: usize,
}

impl SendRight {
    /// Asks that `notify` be told with `token` when the port of this right dies
    /// ([`crate::Notice::DeadName`]). If it is dead already, it is told at once.
    ///
    /// # Errors
    ///
    /// [`WatchError`] if the domain's table of watches is full.
    pub fn watch(&self, notify: &ReceiveRight, token: u64) -> Result<(), WatchError> {
        let member = &self.to.member;
        let watches = member.tables().watches;
        let writing = 1 | u64::from(member.space) << 8;
        let (index, entry) = watches
            .iter()
            .enumerate()
            .find(|(_, w)| {
                w.state
                    .compare_exchange(0, writing, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            })
            .ok_or(WatchError {
                limit: watches.len(),
            })?;
        let used = &member.tables().header.watches.value;
        // Before it is armed, so that whoever looks for watches looks at this one too.
        used.fetch_max(index as u64 + 1, Ordering::SeqCst);
        mark!("watch.taken");
        entry.target.store(word_of(self.to.port), Ordering::Relaxed);
        entry
            .notify
            .store(word_of(notify.at().port), Ordering::Relaxed);
        entry.token.store(token, Ordering::Relaxed);
        // SeqCst: armed before we look whether the port is dead; the closer kills it
        // before it looks for watches.
        entry
            .state
            .store(2 | u64::from(member.space) << 8, Ordering::SeqCst);
        if !self.is_live() {
            fire_watches(member, self.to.port);
        }
        Ok(())
    }
}

/// A port's name as one word, for watches.
fn word_of(port: PortName) -> u64 {
    RightWord {
        kind: RightKind::Send,
        port,
        tag: 0,
    }
    .pack()
}

/// Tells every watcher of a dead port.
pub(super) fn fire_watches(member: &Member, port: PortName) {
    let target = word_of(port);
    for entry in member.tables().used_watches() {
        let state = entry.state.load(Ordering::SeqCst);
        if state & 0xff != 2 || entry.target.load(Ordering::Acquire) != target {
            continue;
        }
        let fired = state & !0xff | 3;
        let notify = entry.notify.load(Ordering::Acquire);
        if entry
            .state
            .compare_exchange(state, fired, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
            && let Some(notify) = RightWord::unpack(notify)
        {
            mark!("watch.fired");
            raise(member, notify.port.index, event::DEAD_NAME);
        }
    }
}

/// Takes one notification that has fired for the port `notify`: its token, and whether
/// more are there.
pub(super) fn take_fired(member: &Member, notify: PortName) -> Option<(u64, bool)> {
    let notify = word_of(notify);
    let mut fired = member.tables().used_watches().iter().filter(|w| {
        w.state.load(Ordering::Acquire) & 0xff == 3 && w.notify.load(Ordering::Acquire) == notify
    });
    let first = fired.next()?;
    let token = first.token.load(Ordering::Acquire);
    first.state.store(0, Ordering::Release);
    Some((token, fired.next().is_some()))
}

/// Forgets what the port `notify` waits for; it is being closed.
pub(super) fn drop_watches(member: &Member, notify: PortName) {
    let notify = word_of(notify);
    for entry in member.tables().used_watches() {
        if matches!(entry.state.load(Ordering::Acquire) & 0xff, 2 | 3)
            && entry.notify.load(Ordering::Acquire) == notify
        {
            entry.state.store(0, Ordering::Release);
        }
    }
}
