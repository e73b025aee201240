//! The builder collects the settings of a domain.

use super::JoinError;
use crate::Protection;
use portolan_abi::hello::{fallback_name, socket_name};
use portolan_abi::region::Geometry;
use portolan_sys::socket::Address;
use std::path::PathBuf;
use std::time::Duration;

/// How long joining may take unless the caller says otherwise.
const DEADLINE: Duration = Duration::from_secs(5);
/// Instants beyond this cannot be told.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// How many bytes of addresses extents get unless the caller says otherwise.
const SIZE: u64 = 16 << 30;
/// Users or groups that a domain's header has room for, besides their count.
const MAX_PERMITTED: usize = 63;

/// How to join a domain, and what it is like if this process is the first.
///
/// Size, limit, protection, locking and permissions hold if this process creates the
/// domain; of a domain that exists, they are what its creator chose. The rest is this
/// process's own affair.
///
/// # Examples
///
/// ```
/// use portolan::{Domain, Protection};
/// let domain = Domain::builder("example").size(1 << 30).protection(Protection::Trusted).private()?;
/// assert_eq!(domain.protection(), Protection::Trusted);
/// # Ok::<(), portolan::JoinError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `join`"]
pub struct Builder {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) limit: Option<u64>,
    pub(crate) protection: Option<Protection>,
    pub(crate) lock_pages: bool,
    pub(crate) always_open: bool,
    pub(crate) users: Vec<u32>,
    pub(crate) groups: Vec<u32>,
    pub(crate) space_name: Option<String>,
    pub(crate) deadline: Duration,
    pub(crate) directory: Option<PathBuf>,
    /// Whether a domain that is not there is created.
    pub(crate) create: bool,
    /// Whether this machine's node is to span it.
    pub(crate) spanning: bool,
    /// The effective user of this process.
    pub(crate) user: u32,
    /// Whose domain it is.
    pub(crate) owner: u32,
}

impl Builder {
    pub(crate) fn new(name: &str) -> Self {
        let user = portolan_sys::process::user();
        Self {
            name: name.to_owned(),
            size: SIZE,
            limit: None,
            protection: None,
            lock_pages: false,
            always_open: false,
            users: Vec::new(),
            groups: Vec::new(),
            space_name: None,
            deadline: DEADLINE,
            directory: None,
            create: true,
            spanning: false,
            user,
            owner: user,
        }
    }

    /// Bytes of addresses for extents of up to 1 MiB, and as many for larger ones; memory is
    /// taken as it is used, up to the limit. 16 GiB by default, at most 1 TiB.
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = bytes;
        self
    }

    /// Bytes of memory that the domain's extents may have at one time. By default half of
    /// what is available here when the domain is created.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// Trusted (the default) or guarded. Joining a domain of another protection fails.
    pub fn protection(mut self, protection: Protection) -> Self {
        self.protection = Some(protection);
        self
    }

    /// Whether the pages of extents are locked in memory.
    pub fn lock_pages(mut self, lock: bool) -> Self {
        self.lock_pages = lock;
        self
    }

    /// Keeps this process's own mapping of a guarded domain's memory open for good: its
    /// pages are neither closed when it sends nor opened when it receives, and nothing
    /// that it touches is a stray access. For a service that all members trust with
    /// everything they send, as the processes of an operating system trust its kernel; it
    /// saves the work on its side of each message.
    ///
    /// The other members are guarded as before, from each other. From this process
    /// nothing guards them: it can read and write every extent at any time, by mistake as
    /// well. In a trusted domain this changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use portolan::{Domain, Protection};
    /// let service = Domain::builder("files").protection(Protection::Guarded).always_open();
    /// assert!(service.private()?.is_always_open());
    /// # Ok::<(), portolan::JoinError>(())
    /// ```
    pub fn always_open(mut self) -> Self {
        self.always_open = true;
        self
    }

    /// Permits another user to join.
    pub fn allow_user(mut self, uid: u32) -> Self {
        self.users.push(uid);
        self
    }

    /// Permits the members of a group to join.
    pub fn allow_group(mut self, gid: u32) -> Self {
        self.groups.push(gid);
        self
    }

    /// Joins a domain of another user, who must have permitted it. It is not created if
    /// it is not there.
    pub fn of_user(mut self, uid: u32) -> Self {
        self.owner = uid;
        self
    }

    /// Whether this process creates the domain if it is not there; it does by default. A
    /// program that only uses what others offer may rather be told that no member offers it.
    ///
    /// # Examples
    ///
    /// ```
    /// use portolan::{Domain, JoinError};
    /// let mistyped = Domain::builder("camreas").create(false).join();
    /// assert!(matches!(mistyped, Err(JoinError::NotRunning { .. })));
    /// ```
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Has this machine's node span the domain, which then reaches over all nodes that span a domain of
    /// this name: see [`Domain::connect`](crate::Domain::connect). Joining fails if no node runs, or
    /// if it refuses; a domain that it spans already is left as it is. A private domain is never
    /// spanned.
    ///
    /// A name is found from other machines only if its port is bound
    /// [`spanned`](crate::PortOptions::spanned).
    ///
    /// # Examples
    ///
    /// ```
    /// use portolan::{Domain, JoinError};
    /// # let name = format!("doc-spanning-{}", std::process::id());
    /// # if std::env::var_os("PORTOLAN_NODE_SOCKET").is_some() { return Ok(()); }
    /// match Domain::builder(&name).spanning().join() {
    ///     Ok(domain) => println!("{:?}", domain.name()),
    ///     Err(JoinError::NoNode { socket }) => println!("nobody serves {socket}: portolan node up"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok::<(), JoinError>(())
    /// ```
    pub fn spanning(mut self) -> Self {
        self.spanning = true;
        self
    }

    /// What this process is called in `portolan ls`; by default its program's name.
    pub fn space_name(mut self, name: &str) -> Self {
        self.space_name = Some(name.to_owned());
        self
    }

    /// How long joining may take; 5 seconds by default, and no longer than a hundred years.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline.min(LONGEST);
        self
    }

    /// Meets the other members at a socket in this directory, which is there already, instead of
    /// an abstract one, which only processes of one network namespace share. The last member to leave
    /// removes the socket; one that was killed leaves it for the next newcomer to replace.
    ///
    /// Who reaches the socket is decided by the directory's mode. The socket itself is open
    /// to all (0666) from when other users are permitted to join, or are offered something;
    /// who they are is for the host to judge, as at an abstract socket.
    pub fn path(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Whether a domain could be so.
    pub(crate) fn check(&self) -> Result<(), JoinError> {
        if portolan_sys::fork::in_child() {
            return Err(JoinError::Forked);
        }
        if socket_name(self.owner, &self.name).is_none() {
            return Err(JoinError::BadName {
                name: self.name.clone(),
            });
        }
        if Geometry::new(self.size).is_none() {
            return Err(JoinError::BadSize { size: self.size });
        }
        if matches!(
            self.protection,
            Some(Protection::Copied | Protection::Sealed)
        ) {
            return Err(JoinError::BadProtection);
        }
        for (list, what) in [(&self.users, "users"), (&self.groups, "groups")] {
            if list.len() > MAX_PERMITTED {
                let (count, max) = (list.len(), MAX_PERMITTED);
                return Err(JoinError::TooManyPermitted { count, what, max });
            }
        }
        Ok(())
    }

    /// Where the members meet.
    /// Which domain it is: its name, and whose it is.
    pub(crate) fn whose(&self) -> (&str, u32) {
        (&self.name, self.owner)
    }

    pub(crate) fn address(&self) -> Address {
        self.at(socket_name(self.owner, &self.name))
    }

    /// Where every member answers newcomers whom the host does not.
    pub(crate) fn fallback_address(&self) -> Address {
        self.at(fallback_name(self.owner, &self.name))
    }

    fn at(&self, name: Option<String>) -> Address {
        let name = name.unwrap_or_default();
        match &self.directory {
            None => Address::Abstract(name.into_bytes()),
            Some(directory) => Address::Path(directory.join(name.replace('/', "-"))),
        }
    }

    pub(crate) fn space_name_or_default(&self) -> String {
        self.space_name
            .clone()
            .unwrap_or_else(|| portolan_sys::process::comm(std::process::id()).unwrap_or_default())
    }
}
