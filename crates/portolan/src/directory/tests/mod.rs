//! Tests offers and connections among real processes.
//!
//! The other processes are this test program again, told what to do line by line. An inbox
//! here answers each client at once with a line that says which acceptor met which client, so that a connection
//! is seen from both ends.

#[cfg(feature = "marks")]
mod deaths;
mod offers;
mod private;
mod strangers;
mod users;

use super::{
    AcceptedConnection, Client, Offer, OfferInbox, OfferKind, connect, connect_own, offer,
};
use crate::{AccessToken, Builder, Deadline, Domain, OfferConnectError, Permissions};
use portolan_sys::socket;
use portolan_testkit::{Answer, Child, PATIENCE};
use std::collections::HashMap;
use std::os::fd::IntoRawFd;
use std::os::unix::process::CommandExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn long() -> Deadline {
    Deadline::after(PATIENCE)
}

/// An inbox that keeps each client.
#[derive(Default)]
struct Queue(Mutex<Vec<Client>>);

impl OfferInbox for Queue {
    fn meet(&self, client: Client) {
        let peer = &client.peer;
        let line = format!(
            "process {} of user {} meets process {} of user {}",
            std::process::id(),
            portolan_sys::process::user(),
            peer.pid,
            peer.uid
        );
        let now = Some(Instant::now());
        // It may be gone already.
        let _ = socket::send_by(&client.connection, line.as_bytes(), &[], now);
        self.0.lock().unwrap().push(client);
    }
}

/// What the acceptor has sent.
fn said(accepted: &AcceptedConnection) -> String {
    let mut buffer = [0; 128];
    let by = Some(Instant::now() + PATIENCE);
    match socket::receive_by(&accepted.connection, &mut buffer, 0, by) {
        Ok(received) => String::from_utf8_lossy(&buffer[..received.len]).into_owned(),
        Err(error) => debug(error),
    }
}

/// A process that has joined, or not.
fn child() -> Child {
    Child::running("directory::tests::takes_orders", |_| {})
}

/// A process of another user, which only root can start.
fn child_of(uid: u32) -> Child {
    Child::running("directory::tests::takes_orders", |command| {
        command.uid(uid).gid(uid);
    })
}

fn joined(domain: &str) -> Child {
    let mut child = child();
    let answer = child.ask(&format!("join {domain}"));
    assert!(answer.starts_with("space "), "{answer}");
    child
}

/// Connects to an offer in a domain of this user, from outside it.
fn from_outside(
    domain: &str,
    name: &str,
    by: Deadline,
) -> Result<AcceptedConnection, OfferConnectError> {
    connect(&Domain::builder(domain), OfferKind::Port, name, None, by)
}

/// The same, at once, but that the host may take its time to say so: on a machine that is busy it may have
/// no turn for seconds. One who gives up too soon each time leaves it ever more to answer first.
fn answered(domain: &str, name: &str) -> Result<AcceptedConnection, OfferConnectError> {
    let mut patience = Duration::ZERO;
    loop {
        match from_outside(domain, name, Deadline::after(patience)) {
            Err(OfferConnectError::Unanswered) if patience < PATIENCE => {
                patience = 2 * patience + Duration::from_millis(100);
            }
            other => return other,
        }
    }
}

/// Whose clients this process became.
fn meets(offerer: &Child) -> String {
    let (us, user) = (std::process::id(), portolan_sys::process::user());
    let them = offerer.pid();
    format!("process {them} of user {user} meets process {us} of user {user}")
}

/// What a process that takes orders has.
#[derive(Default)]
struct State {
    domain: Option<Domain>,
    queue: Arc<Queue>,
    offers: HashMap<String, Offer>,
    accepted: Vec<AcceptedConnection>,
}

/// Not a test: what the other processes run.
#[test]
fn takes_orders() {
    let mut state = State::default();
    portolan_testkit::obey(|line| state.obey(line));
}

/// `key=value` options, of all orders.
struct Options<'o>(Vec<(&'o str, &'o str)>);

impl<'o> Options<'o> {
    fn new(words: &[&'o str]) -> Self {
        Self(words.iter().map(|w| w.split_once('=').unwrap()).collect())
    }

    fn all<'s>(&'s self, key: &'s str) -> impl Iterator<Item = &'o str> + 's {
        self.0.iter().filter(move |o| o.0 == key).map(|o| o.1)
    }

    fn ids<'s>(&'s self, key: &'s str) -> impl Iterator<Item = u32> + 's {
        self.all(key).map(|id| id.parse().unwrap())
    }

    fn token(&self) -> Option<AccessToken> {
        let byte = self.ids("token").next()?;
        Some(AccessToken::from_bytes([u8::try_from(byte).unwrap(); 16]))
    }

    fn builder(&self, domain: &str) -> Builder {
        let mut builder = Domain::builder(domain).size(64 << 20).deadline(PATIENCE);
        for user in self.ids("allow") {
            builder = builder.allow_user(user);
        }
        if let Some(owner) = self.ids("of").next() {
            builder = builder.of_user(owner);
        }
        if let Some(path) = self.all("path").next() {
            builder = builder.path(path);
        }
        builder
    }

    fn permissions(&self) -> Permissions {
        let permissions = match self.all("anyone").next() {
            Some(_) => Permissions::anyone(),
            None => Permissions::nobody(),
        };
        let permissions = permissions
            .users(self.ids("user"))
            .groups(self.ids("group"))
            .processes(self.ids("process"));
        match self.token() {
            Some(token) => permissions.token(token),
            None => permissions,
        }
    }

    fn deadline(&self) -> Deadline {
        match self.ids("ms").next() {
            Some(0) => Deadline::NOW,
            Some(ms) => Deadline::after(Duration::from_millis(ms.into())),
            None => long(),
        }
    }
}

fn debug(error: impl std::fmt::Debug) -> String {
    format!("{error:?}")
}

/// How many descriptors this process may have from now on.
fn limit(most: u64) -> Answer {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY:
    // - A structure to write to.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur = most.min(limit.rlim_max);
    // SAFETY:
    // - A valid structure.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    Ok(set.to_string())
}

impl State {
    fn obey(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["join", name, ref options @ ..] => {
                Ok(match Options::new(options).builder(name).join() {
                    Ok(domain) => {
                        let space = domain.space();
                        self.domain = Some(domain);
                        format!("space {space}")
                    }
                    Err(error) => debug(error),
                })
            }
            ["host?"] => Ok(self.domain.as_ref().unwrap().is_host().to_string()),
            ["leave"] => {
                self.offers.clear();
                Ok(debug(self.domain.take().unwrap().leave()))
            }
            ["offer", name, ref options @ ..] => {
                let options = Options::new(options);
                let (inbox, permissions) = (self.queue.clone(), options.permissions());
                let member = self.domain.as_ref().unwrap().member();
                let (kind, by) = (OfferKind::Port, options.deadline());
                Ok(match offer(member, kind, name, &permissions, inbox, by) {
                    Ok(offer) => {
                        self.offers.insert(name.to_owned(), offer);
                        "offered".to_owned()
                    }
                    Err(error) => debug(error),
                })
            }
            ["offer-many", count] => {
                let member = self.domain.as_ref().unwrap().member();
                let open = Permissions::anyone();
                for number in 0..count.parse::<u32>()? {
                    let (name, inbox) = (format!("many-{number}"), self.queue.clone());
                    let made = offer(member, OfferKind::Port, &name, &open, inbox, long())?;
                    self.offers.insert(name, made);
                }
                Ok("offered".to_owned())
            }
            ["withdraw-all"] => {
                self.offers.clear();
                Ok("withdrawn".to_owned())
            }
            ["withdraw", name] => {
                drop(self.offers.remove(name).unwrap());
                Ok("withdrawn".to_owned())
            }
            ["connect", domain, name, ref options @ ..] => {
                let options = Options::new(options);
                let settings = options.builder(domain);
                let token = options.token();
                let (kind, by) = (OfferKind::Port, options.deadline());
                Ok(self.heard(connect(&settings, kind, name, token.as_ref(), by)))
            }
            ["connect-own", name, ref options @ ..] => {
                let options = Options::new(options);
                let member = self.domain.as_ref().unwrap().member();
                let (kind, by) = (OfferKind::Port, options.deadline());
                let accepted = connect_own(member, kind, name, options.token().as_ref(), by);
                Ok(self.heard(accepted))
            }
            ["close", "all"] => Ok(portolan_testkit::close_all()),
            ["gifts"] => {
                portolan_testkit::until("somebody comes", || {
                    !self.queue.0.lock().unwrap().is_empty()
                });
                let queue = self.queue.0.lock().unwrap();
                let client = queue.last().ok_or("nobody")?;
                let by = Some(Instant::now() + PATIENCE);
                let gift = socket::receive_by(&client.connection, &mut [0; 8], 1, by)?;
                Ok(gift.fds.len().to_string())
            }
            ["met"] => Ok(self.queue.0.lock().unwrap().len().to_string()),
            ["descriptors"] => Ok(std::fs::read_dir("/proc/self/fd")?.count().to_string()),
            ["limit", most] => limit(most.parse()?),
            ["no", "room"] => {
                // Every number below the limit is taken, so that one which is given up is of use.
                let open = |n: i32| std::path::Path::new(&format!("/proc/self/fd/{n}")).exists();
                loop {
                    let last = std::fs::File::open("/dev/null")?.into_raw_fd();
                    if !(last + 1..last + 64).any(open) {
                        return limit(u64::try_from(last)? + 1);
                    }
                }
            }
            #[cfg(feature = "marks")]
            ["die", "at", mark] => {
                portolan_testkit::die_at(mark, portolan_shm::mark::install);
                Ok("done".to_owned())
            }
            _ => Err(format!("no such order: {line}").into()),
        }
    }

    fn heard(&mut self, accepted: Result<AcceptedConnection, OfferConnectError>) -> String {
        match accepted {
            Ok(accepted) => {
                let line = said(&accepted);
                self.accepted.push(accepted);
                line
            }
            Err(error) => debug(error),
        }
    }
}
