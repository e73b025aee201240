//! A watch tells a port that another port has died, or that its node is out of reach. The states are
//! in [`portolan_shm::watch`].

use super::ReceiveRight;
use super::rights::{RightState, SendRight, is_live, raise};
use crate::BindError;
use crate::space::Member;
use portolan_abi::port::{PortName, PortStatus, RightKind, RightWord, event};
use portolan_shm::mark;
use portolan_shm::watch::{WatchEntry, WatchPhase};
use std::sync::atomic::{Ordering, fence};

impl SendRight {
    /// Asks that `notify` be told with `token` when the port of this right dies
    /// ([`crate::Notice::DeadName`]). If it is dead already, it gets the notice at once.
    ///
    /// # Errors
    ///
    /// [`BindError::NoWatch`] if the domain's table of watches is full.
    pub fn watch(&self, notify: &ReceiveRight, token: u64) -> Result<(), BindError> {
        self.watch_from(notify, token, WatchPhase::Armed)
    }

    /// As [`watch`](Self::watch), and `notify` is told as well while the port is on another node that
    /// is silent ([`Notice::Unreachable`](crate::Notice::Unreachable)), and when it is there again
    /// ([`Notice::Reachable`](crate::Notice::Reachable)), as often as that changes: a receiver that
    /// looks seldom is told the last of it. If the node is silent already, it gets the notice at once.
    /// A port of this machine is always within reach.
    ///
    /// # Errors
    ///
    /// As [`watch`](Self::watch).
    ///
    /// ```
    /// use portolan::proxy::ProxyPort;
    /// use portolan::{Access, Deadline, Domain, Notice, PortOptions};
    /// use std::time::Instant;
    /// let domain = Domain::private()?;
    /// let port = domain.bind(PortOptions::unnamed())?;
    /// let right = port.make_send();
    /// let mut proxy = ProxyPort::new(port, "hall").map_err(|refused| refused.why)?;
    /// let mut notices = domain.bind(PortOptions::unnamed())?;
    /// right.watch_reach(&notices, 7)?;
    /// proxy.set_unreachable(Instant::now());
    /// let notice = notices.receive(Access::Later, Deadline::NOW)?.notice();
    /// assert_eq!(notice, Some(Notice::Unreachable { token: 7 }));
    /// proxy.set_reachable();
    /// let notice = notices.receive(Access::Later, Deadline::NOW)?.notice();
    /// assert_eq!(notice, Some(Notice::Reachable { token: 7 }));
    /// drop(proxy);
    /// let notice = notices.receive(Access::Later, Deadline::NOW)?.notice();
    /// assert_eq!(notice, Some(Notice::DeadName { token: 7 }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watch_reach(&self, notify: &ReceiveRight, token: u64) -> Result<(), BindError> {
        self.watch_from(notify, token, WatchPhase::Reachable)?;
        // After it is armed; a node says that it is silent before it looks for watches.
        fence(Ordering::SeqCst);
        if self.state() == RightState::Unreachable {
            raise(&self.to.member, notify.at().port, event::REACH);
        }
        Ok(())
    }

    /// Ends what [`watch`](Self::watch) or [`watch_reach`](Self::watch_reach) of this port has begun for
    /// `notify` with this token: a domain has so many watches and no more. A notice that was due is not
    /// told; nothing happens if there is no such watch.
    ///
    /// ```
    /// use portolan::{Access, Deadline, Domain, PortOptions};
    /// let domain = Domain::private()?;
    /// let port = domain.bind(PortOptions::unnamed())?;
    /// let right = port.make_send();
    /// let mut notices = domain.bind(PortOptions::unnamed())?;
    /// right.watch(&notices, 7)?;
    /// right.unwatch(&notices, 7);
    /// drop(port);
    /// assert!(notices.receive(Access::Later, Deadline::NOW).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unwatch(&self, notify: &ReceiveRight, token: u64) {
        let member = &self.to.member;
        let (target, notify) = (word_of(self.to.port), word_of(notify.at().port));
        for entry in member.tables().used_watches() {
            entry.free_if(|watch, entry| {
                // Its words are of this watch: `free_if` changes no later one (N1).
                watch.phase != WatchPhase::Writing
                    && entry.notify.load(Ordering::Acquire) == notify
                    && entry.token.load(Ordering::Acquire) == token
                    && entry.target.load(Ordering::Acquire) == target
            });
        }
    }

    fn watch_from(
        &self,
        notify: &ReceiveRight,
        token: u64,
        phase: WatchPhase,
    ) -> Result<(), BindError> {
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
        entry.arm(writing, phase, [target, notify, token]);
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

/// Tells every watcher of a port's reach that it has changed, after the port says so.
pub(super) fn tell_reach(member: &Member, port: PortName) {
    // Pairs with that of `SendRight::watch_reach`.
    fence(Ordering::SeqCst);
    let target = word_of(port);
    for entry in member.tables().used_watches() {
        if let Some(notify) = entry.of_reach(target).and_then(RightWord::unpack) {
            mark!("watch.reach_told");
            raise(member, notify.port, event::REACH);
        }
    }
}

/// Takes one notification of a port's reach for the port `notify`: its token, whether it is out of
/// reach, and whether more may be there.
pub(super) fn take_reach(member: &Member, notify: PortName) -> Option<(u64, bool, bool)> {
    let notify = word_of(notify);
    let reach = |target| {
        let port = RightWord::unpack(target)?.port;
        let entry = member.tables().ports.get(usize::from(port.index))?;
        // Acquire: pairs with the release of the change.
        let status = PortStatus::unpack(entry.control.status.load(Ordering::Acquire));
        is_live(status, port).then_some(status.unreachable)
    };
    let mut watches = member.tables().used_watches().iter();
    let (token, is_out) = watches.find_map(|watch| watch.take_reach(notify, reach))?;
    let is_next = |watch: &WatchEntry| {
        watch.watch().told().is_some() && watch.notify.load(Ordering::Acquire) == notify
    };
    Some((token, is_out, watches.any(is_next)))
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
