//! A watch tells a port that another port has died. The states are in [`portolan_shm::watch`].

use super::ReceiveRight;
use super::rights::{SendRight, raise};
use crate::BindError;
use crate::space::Member;
use portolan_abi::port::{PortName, RightKind, RightWord, event};
use portolan_shm::mark;
use portolan_shm::watch::{WatchEntry, WatchPhase};
use std::sync::atomic::Ordering;

impl SendRight {
    /// Asks that `notify` be told with `token` when the port of this right dies
    /// ([`crate::Notice::DeadName`]). If it is dead already, it gets the notice at once.
    ///
    /// # Errors
    ///
    /// [`BindError::NoWatch`] if the domain's table of watches is full.
    pub fn watch(&self, notify: &ReceiveRight, token: u64) -> Result<(), BindError> {
        let member = &self.to.member;
        let watches = member.tables().watches;
        let taken = watches
            .iter()
            .enumerate()
            .find_map(|(index, entry)| Some((index, entry, entry.take(member.space)?)));
        let (index, entry, writing) = taken.ok_or(BindError::NoWatch {
            limit: watches.len(),
        })?;
        let used = &member.tables().header.watches.value;
        // Before it is armed, so that a search for watches looks at this one too.
        used.fetch_max(index as u64 + 1, Ordering::SeqCst);
        mark!("watch.taken");
        let (target, notify) = (word_of(self.to.port), word_of(notify.at().port));
        entry.arm(writing, target, notify, token);
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
        if let Some(notify) = entry.fire(target).and_then(RightWord::unpack) {
            mark!("watch.fired");
            raise(member, notify.port, event::DEAD_NAME);
        }
    }
}

/// Takes one notification that has fired for the port `notify`: its token, and whether
/// more are there.
pub(super) fn take_fired(member: &Member, notify: PortName) -> Option<(u64, bool)> {
    let notify = word_of(notify);
    let mut watches = member.tables().used_watches().iter();
    let token = watches.find_map(|w| w.take_fired(notify))?;
    Some((token, watches.any(|w| is_fired_for(w, notify))))
}

fn is_fired_for(entry: &WatchEntry, notify: u64) -> bool {
    entry.watch().phase == WatchPhase::Fired && entry.notify.load(Ordering::Acquire) == notify
}

/// Forgets what the port `notify` waits for; it is being closed.
pub(super) fn drop_watches(member: &Member, notify: PortName) {
    let notify = word_of(notify);
    for entry in member.tables().used_watches() {
        entry.free_if(|watch, entry| {
            watch.phase != WatchPhase::Writing && entry.notify.load(Ordering::Acquire) == notify
        });
    }
}

/// Host: tells of a watch once more if it has fired: who fired it may have died before it told.
/// Should the watch be another by now, its receiver looks for what has fired, and finds nothing.
pub(crate) fn tell_again(member: &Member, entry: &WatchEntry) {
    if entry.watch().phase == WatchPhase::Fired
        && let Some(notify) = RightWord::unpack(entry.notify.load(Ordering::Acquire))
    {
        raise(member, notify.port, event::DEAD_NAME);
    }
}
