//! Finds domains by their sockets, and asks all of them at once.
//!
//! The owner of a socket chooses its name, and whether it answers. So names are bytes, all sockets
//! are asked at the same time, and those of one user do not stand before another's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use portolan::{Domain, JoinError, Survey};
use portolan_measure::MeasureError;
use portolan_sys::socket;

use crate::error::Result;

/// How long all domains together may take to let us look: a host may be stopped.
const PATIENCE: Duration = Duration::from_secs(2);
/// And how long to be looked into, then.
const LOOKING: Duration = Duration::from_secs(1);
/// Domains that are asked at one time, each by a thread with a few descriptors.
const AT_ONCE: usize = 64;

/// A domain's socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Found {
    pub(crate) user: u32,
    pub(crate) name: String,
}

/// What came of asking a domain.
pub(super) enum Asked {
    Seen(Box<Survey>),
    /// It has gone since it was found.
    Gone,
    /// Why not.
    Unreachable(String),
}

/// The domains of this machine.
pub(crate) fn running() -> Result<BTreeSet<Found>> {
    let names = socket::abstract_names()
        .map_err(MeasureError::system("reading /proc/thread-self/net/unix"))?;
    Ok(found(&names))
}

/// The domains whose sockets have these names. Names that are no text are no domain's.
fn found(names: &BTreeSet<Vec<u8>>) -> BTreeSet<Found> {
    let parse = |name: &Vec<u8>| {
        let name = name.strip_prefix(b"portolan/")?;
        let (user, name) = std::str::from_utf8(name).ok()?.split_once('/')?;
        Some(Found {
            user: user.parse().ok()?,
            name: name.to_owned(),
        })
    };
    names.iter().filter_map(parse).collect()
}

/// Looks into all of them at once; what each said, in their order.
pub(super) fn look_into(domains: BTreeSet<Found>) -> Vec<(Found, Asked)> {
    let deadline = Instant::now() + PATIENCE;
    let waiting: Arc<Mutex<VecDeque<Found>>> = Arc::new(Mutex::new(in_turn(&domains)));
    let (tell, told) = mpsc::channel();
    for _ in 0..domains.len().min(AT_ONCE) {
        let (waiting, tell) = (Arc::clone(&waiting), tell.clone());
        let ask = move || {
            let next = || {
                let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                waiting.pop_front().filter(|_| Instant::now() < deadline)
            };
            while let Some(found) = next() {
                let asked = look(&found, deadline);
                if tell.send((found, asked)).is_err() {
                    return;
                }
            }
        };
        // Without a thread there are fewer; without any all are unreachable.
        drop(std::thread::Builder::new().spawn(ask));
    }
    drop(tell);
    let mut answers = BTreeMap::new();
    let end = deadline + LOOKING;
    while answers.len() < domains.len() {
        let left = end.saturating_duration_since(Instant::now());
        match told.recv_timeout(left) {
            Ok((found, asked)) => answers.insert(found, asked),
            // Who is asked still ends with this process.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        };
    }
    let late = || Asked::Unreachable("there was no answer in time".to_owned());
    let of = |found: Found| {
        let asked = answers.remove(&found).unwrap_or_else(late);
        (found, asked)
    };
    domains.into_iter().map(of).collect()
}

/// Each user's first, then each user's second, ...: ours before others'.
fn in_turn(domains: &BTreeSet<Found>) -> VecDeque<Found> {
    let us = portolan_sys::process::user();
    let mut seen: BTreeMap<u32, usize> = BTreeMap::new();
    let mut turns: Vec<(usize, bool, &Found)> = domains
        .iter()
        .map(|found| {
            let nth = seen.entry(found.user).or_default();
            *nth += 1;
            (*nth, found.user != us, found)
        })
        .collect();
    turns.sort();
    turns.into_iter().map(|(.., found)| found.clone()).collect()
}

fn look(found: &Found, deadline: Instant) -> Asked {
    let left = deadline.saturating_duration_since(Instant::now());
    let observer = Domain::builder(&found.name)
        .of_user(found.user)
        .deadline(left)
        .observe();
    match observer {
        Err(JoinError::NotRunning { .. }) => Asked::Gone,
        Err(error) => Asked::Unreachable(error.to_string()),
        Ok(observer) => match observer.survey() {
            Ok(survey) => Asked::Seen(Box::new(survey)),
            Err(_over) => Asked::Gone,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_are_found_by_their_names_and_names_that_are_no_text_hide_nobody() {
        let names = [
            &b"portolan/1000/demo"[..],
            b"portolan/0/two words",
            b"portolan/0/\xff",
            b"portolan/nobody/demo",
            b"portolan-at/200000000000-201800000000",
            b"x @portolan/0/within",
            b"\xff\xfe",
        ];
        let names: Vec<(u32, String)> = found(&names.map(<[u8]>::to_vec).into())
            .into_iter()
            .map(|found| (found.user, found.name))
            .collect();
        assert_eq!(names, [(0, "two words".into()), (1000, "demo".into())]);
    }

    #[test]
    fn nobody_stands_before_others_by_having_many() {
        let named = |user, name: &str| Found {
            user,
            name: name.to_owned(),
        };
        let other = portolan_sys::process::user() + 1;
        let many = (0..100).map(|n| named(other, &n.to_string()));
        let domains = many.chain([named(other + 1, "z")]).collect();
        let turns = in_turn(&domains);
        assert!(turns.iter().position(|f| f.name == "z") < Some(3));
        assert_eq!(turns.len(), 101);
    }
}
