//! Permissions say which clients an offer admits, by the credentials that the kernel reports.

use super::OfferError;
use crate::space::OVERFLOW_ID;
use portolan_abi::connect::Grants;
use portolan_abi::limits::MAX_GRANTS;
use portolan_sys::process::{self, PidFd, start_time};
use portolan_sys::socket::Peer;
use std::io;

/// A secret that clients must know, in addition to being permitted: 128 random bits.
///
/// It is given to clients however the two sides like: by a file, an environment variable, a
/// message. Two are compared in a time that says nothing of where they differ, and
/// `Debug` does not show it.
///
/// ```
/// use portolan::AccessToken;
/// let token = AccessToken::random()?;
/// assert_eq!(AccessToken::from_bytes(token.to_bytes()), token);
/// assert_ne!(AccessToken::random()?, token);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct AccessToken([u8; 16]);

impl AccessToken {
    /// A new one, which no other process has.
    ///
    /// # Errors
    ///
    /// The kernel's, where it forbids `getrandom`.
    pub fn random() -> io::Result<Self> {
        process::random().map(Self)
    }

    /// The token of these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes, to give to a client.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl PartialEq for AccessToken {
    fn eq(&self, other: &Self) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        let differing = pairs.fold(0, |found, (a, b)| found | (a ^ b));
        // The compiler must not end the loop early.
        std::hint::black_box(differing) == 0
    }
}

impl Eq for AccessToken {}

impl std::fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AccessToken(..)")
    }
}

/// Says which processes may connect to an offer.
///
/// A process is admitted if its user, one of its groups or its id is listed; a token is asked for
/// in addition. The kernel says who a client is, as of the moment when it connected. The
/// user and group that it names when it cannot tell (65534, `nobody`) match nothing, not
/// even [`anyone`](Self::anyone).
///
/// ```
/// use portolan::{AccessToken, Permissions};
/// let team = Permissions::own_user().groups([27, 100]);
/// let service = Permissions::anyone().token(AccessToken::random()?);
/// let two = Permissions::nobody().processes([4711, 4712]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions {
    anyone: bool,
    users: Vec<u32>,
    groups: Vec<u32>,
    /// With the time at which each started, which together name it for ever.
    processes: Vec<(u32, Option<u64>)>,
    token: Option<AccessToken>,
}

impl Default for Permissions {
    fn default() -> Self {
        Self::own_user()
    }
}

impl Permissions {
    /// No process, until one is added.
    pub const fn nobody() -> Self {
        Self {
            anyone: false,
            users: Vec::new(),
            groups: Vec::new(),
            processes: Vec::new(),
            token: None,
        }
    }

    /// Every process that can reach the domain's socket and whose user is known.
    pub const fn anyone() -> Self {
        let mut all = Self::nobody();
        all.anyone = true;
        all
    }

    /// The processes of this process's effective user; the default.
    pub fn own_user() -> Self {
        Self::nobody().users([process::user()])
    }

    /// Adds users.
    #[must_use]
    pub fn users(mut self, uids: impl IntoIterator<Item = u32>) -> Self {
        self.users.extend(uids);
        self
    }

    /// Adds the members of groups, whether it is their main group or another.
    #[must_use]
    pub fn groups(mut self, gids: impl IntoIterator<Item = u32>) -> Self {
        self.groups.extend(gids);
        self
    }

    /// Adds processes that live now, by their ids. A later process that gets the same id
    /// is not meant; another program that the process executes is.
    #[must_use]
    pub fn processes(mut self, pids: impl IntoIterator<Item = u32>) -> Self {
        let named = pids.into_iter().map(|pid| (pid, start_time(pid)));
        self.processes.extend(named);
        self
    }

    /// Asks for a token in addition.
    #[must_use]
    pub fn token(mut self, token: AccessToken) -> Self {
        self.token = Some(token);
        self
    }

    /// What the host is told.
    pub(crate) fn grants(&self) -> Result<Grants, OfferError> {
        let overflow = [&self.users, &self.groups];
        if overflow.iter().any(|ids| ids.contains(&OVERFLOW_ID)) {
            return Err(OfferError::OverflowId);
        }
        let processes = self.processes.iter();
        let processes = processes.map(|(pid, started)| match started {
            Some(started) => Ok((*pid, *started)),
            None => Err(OfferError::NoProcess { pid: *pid }),
        });
        let processes: Vec<_> = processes.collect::<Result<_, _>>()?;
        let counts = [self.users.len(), self.groups.len(), processes.len()];
        if let Some(count) = counts.into_iter().find(|count| *count > MAX_GRANTS) {
            return Err(OfferError::TooManyPermitted { count });
        }
        Ok(Grants {
            anyone: self.anyone,
            users: self.users.clone(),
            groups: self.groups.clone(),
            processes,
            token: self.token.map(AccessToken::to_bytes),
        })
    }
}

/// What is found about a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Admitted,
    NotPermitted,
    WrongToken,
}

/// When the process that connected started, if it lives and means something to us.
pub(crate) fn started(peer: &Peer, pidfd: &PidFd) -> Option<u64> {
    let started = start_time(peer.pid);
    // Read while it lived, so it is that process's and no later one's.
    started.filter(|_| !pidfd.is_dead())
}

/// Whether `grants` admit a client that shows `token`. `started` says when it started,
/// if it can be told, and is asked only where that matters.
pub(crate) fn judge(
    grants: &Grants,
    peer: &Peer,
    started: impl FnOnce() -> Option<u64>,
    token: Option<&[u8; 16]>,
) -> Verdict {
    let known = |id: &&u32| **id != OVERFLOW_ID;
    let is_named = || {
        // Not the id alone: it may have been another's before.
        let mut named = grants.processes.iter().filter(|p| p.0 == peer.pid);
        peer.pid != 0 && named.clone().next().is_some() && {
            let started = started();
            named.any(|p| Some(p.1) == started)
        }
    };
    let mut groups = peer.groups.iter().chain([&peer.gid]).filter(known);
    let permitted = peer.uid != OVERFLOW_ID
        && (grants.anyone
            || grants.users.contains(&peer.uid)
            || groups.any(|g| grants.groups.contains(g))
            || is_named());
    let shown = token.copied().map(AccessToken::from_bytes);
    match grants.token.map(AccessToken::from_bytes) {
        _ if !permitted => Verdict::NotPermitted,
        Some(wanted) if shown != Some(wanted) => Verdict::WrongToken,
        _ => Verdict::Admitted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn peer(pid: u32, uid: u32, groups: &[u32]) -> Peer {
        Peer {
            pid,
            uid,
            gid: uid,
            groups: groups.to_vec(),
        }
    }

    fn found(permissions: &Permissions, peer: &Peer) -> Verdict {
        let grants = permissions.grants().unwrap();
        judge(&grants, peer, || start_time(peer.pid), None)
    }

    #[test]
    fn any_of_the_lists_admits() {
        let us = std::process::id();
        let permissions = Permissions::nobody().users([7]).groups([8]).processes([us]);
        let admitted = [
            peer(0, 7, &[]),
            peer(1, 9, &[5, 8]),
            peer(1, 8, &[]),
            peer(us, 9, &[]),
        ];
        for peer in &admitted {
            assert_eq!(found(&permissions, peer), Verdict::Admitted, "{peer:?}");
        }
        for peer in [peer(0, 9, &[]), peer(us + 1, 9, &[7])] {
            assert_eq!(
                found(&permissions, &peer),
                Verdict::NotPermitted,
                "{peer:?}"
            );
        }
    }

    #[test]
    fn a_process_is_not_its_id() {
        let us = peer(std::process::id(), 9, &[]);
        let grants = Permissions::nobody().processes([us.pid]).grants().unwrap();
        for later in [None, Some(u64::MAX)] {
            assert_eq!(judge(&grants, &us, || later, None), Verdict::NotPermitted);
        }
        let started = || start_time(us.pid);
        assert_eq!(judge(&grants, &us, started, None), Verdict::Admitted);
    }

    #[test]
    fn a_process_that_has_died_has_not_started() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let them = peer(child.id(), 9, &[]);
        let pidfd = PidFd::open(child.id()).unwrap();
        assert_eq!(started(&them, &pidfd), start_time(child.id()));
        child.kill().unwrap();
        // Not waited for: its id and its time are still to be read, and may be another's soon.
        let died = portolan_sys::process::poll(&[pidfd.as_fd()], None);
        assert!(died.unwrap()[0].readable && start_time(child.id()).is_some());
        assert_eq!(started(&them, &pidfd), None);
        child.wait().unwrap();
    }

    #[test]
    fn the_overflow_user_matches_nothing() {
        let unknown = peer(1, OVERFLOW_ID, &[OVERFLOW_ID, 3]);
        for permissions in [Permissions::anyone(), Permissions::nobody().groups([3])] {
            assert_eq!(found(&permissions, &unknown), Verdict::NotPermitted);
        }
        let listed = Permissions::nobody().users([OVERFLOW_ID]);
        assert_eq!(listed.grants(), Err(OfferError::OverflowId));
        // A user that is known, with a group that is not.
        let known = peer(1, 5, &[OVERFLOW_ID]);
        assert_eq!(found(&Permissions::anyone(), &known), Verdict::Admitted);
    }

    #[test]
    fn a_token_is_asked_for_in_addition() {
        let token = AccessToken::random().unwrap();
        let mut other = token.to_bytes();
        other[15] ^= 1;
        let grants = Permissions::nobody().users([5]).token(token);
        let grants = grants.grants().unwrap();
        let judged = |uid, token: Option<[u8; 16]>| {
            judge(&grants, &peer(1, uid, &[]), || None, token.as_ref())
        };
        assert_eq!(judged(5, Some(token.to_bytes())), Verdict::Admitted);
        assert_eq!(judged(5, Some(other)), Verdict::WrongToken);
        assert_eq!(judged(5, None), Verdict::WrongToken);
        assert_eq!(judged(6, Some(token.to_bytes())), Verdict::NotPermitted);
        assert!(!format!("{token:?}").contains(char::is_numeric));
    }

    #[test]
    fn what_cannot_be_granted() {
        let dead = Permissions::nobody().processes([u32::MAX]);
        assert_eq!(dead.grants(), Err(OfferError::NoProcess { pid: u32::MAX }));
        let many = Permissions::nobody().users(0..65);
        assert_eq!(
            many.grants(),
            Err(OfferError::TooManyPermitted { count: 65 })
        );
    }
}
