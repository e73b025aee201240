//! The host's side of memory that members entrust to it: it copies for importers that may not.
//!
//! ```text
//! keeper                                              mediator, a thread for each such member
//!   Entrust n + mem, maps  -------------------------->  keeps them
//!   Offer n  ---------------------------------------->  are they that member's? --> entered: Done
//!   a visitor with the ticket: introduced  ---------->  gets staging memory; requests, replies
//!   Withdraw n  ------------------------------------->  forgets them ----------> Done
//!   death, lost connection  ------------------------->  forgets all
//! ```
//!
//! # Invariants
//!
//! - **H1** The keeper waits for no mediator, and touches no descriptor that came with a record:
//!   it may be of a file system that never answers.
//! - **H2** A withdrawal is answered once nothing of that memory is being copied, nor will be.
//! - **H3** What is copied to and from is the memory of the member that entrusted it, and of the
//!   program with which it joined: `/proc` says that it is that process's, and it has the region.
//! - **H4** Of what an importer says nothing is believed: each request is held against the
//!   exporter's terms. It has one part of the staging memory, and a seat, of which there is a
//!   number.
//! - **H5** Who lays the host's role down has ended all copies before.

mod copier;

use super::admit::refuse;
use super::host::Host;
use super::introduce::{Limits, tell};
use crate::directory::Offers;
use crate::space::Member;
use crate::space::descriptor::Descriptor;
use crate::space::host::me;
use crate::space::host_connection::HostSockets;
use crate::wait::poller::{PollLoop, Poller};
use copier::Copier;
use portolan_abi::control::{Announcement, Decline, FromHost};
use portolan_abi::hello::Reason;
use portolan_abi::mediate::Terms;
use portolan_abi::space::HostWord;
use portolan_abi::visit::VisitAnswer;
use portolan_shm::atomic::Ordering;
use portolan_sys::fork::{CloseOnFork, close_in_child};
use portolan_sys::process::{EventFd, spawn_quiet};
use portolan_sys::socket::Peer;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Enough for the thread, and for whoever subscribes to what it says.
const STACK: usize = 256 << 10;
/// How long a host that lays its role down waits for copies under way: they take that long
/// only where the exporter itself answers the faults of its pages, and does not.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at them.
const PAUSE: Duration = Duration::from_micros(200);

/// A member, by its space and incarnation.
type Id = (u8, u32);

fn id(by: HostWord) -> Id {
    (by.space, by.incarnation)
}

/// The threads that copy, as the keeper has them.
pub(super) struct Mediators {
    told: Arc<ToKeeper>,
    by_member: HashMap<Id, Mediator>,
}

struct Mediator {
    poller: Poller,
    orders: Arc<Orders>,
    /// Goes up when what the member entrusted is forgotten, so that late news is known as such.
    epoch: u64,
}

type Orders = Mutex<Vec<Order>>;

/// What a mediator is told.
enum Order {
    Entrust(u32, Terms, Box<[Handed; 2]>),
    /// The offer for what was entrusted.
    Enter(u64, Box<Announcement>),
    Meet(u32, Descriptor, Seat),
    Withdraw(u64, u32),
    /// Forget everything.
    Clear,
    /// Tell those who wait that what was not begun will not be.
    End,
}

impl Mediator {
    fn order(&self, order: Order) {
        locked(&self.orders).push(order);
        self.poller.poll_loop().ring();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that is done under these locks panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A descriptor that came with a record, and that the keeper does not touch (H1).
struct Handed {
    fd: OwnedFd,
    _guard: CloseOnFork,
}

impl Handed {
    fn new(fd: OwnedFd) -> Self {
        Self {
            _guard: close_in_child(fd.as_raw_fd()),
            fd,
        }
    }

    /// The descriptor, which may be closed from here on.
    fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

/// What mediators tell the keeper.
struct ToKeeper {
    bell: Descriptor<EventFd>,
    news: Mutex<Vec<(HostWord, u64, News)>>,
    /// Importers that there are, by user.
    seated: Mutex<HashMap<u32, usize>>,
}

enum News {
    /// Whether what was entrusted is fit to be offered.
    Examined(Box<Announcement>, bool),
    Withdrawn(u32),
}

impl ToKeeper {
    fn tell(&self, by: HostWord, epoch: u64, news: News) {
        locked(&self.news).push((by, epoch, news));
        // Fails only where the program has closed the descriptor.
        let _ = self.bell.notify();
    }
}

/// An importer's place among those that a host copies for, until dropped.
struct Seat {
    told: Arc<ToKeeper>,
    user: u32,
}

impl Seat {
    fn take(told: &Arc<ToKeeper>, user: u32) -> Option<Self> {
        let limits = Limits::now();
        let mut seated = locked(&told.seated);
        let all: usize = seated.values().sum();
        let of_one = seated.get(&user).copied().unwrap_or(0);
        if all >= limits.mediated || of_one >= limits.mediated_of_one {
            return None;
        }
        seated.insert(user, of_one + 1);
        drop(seated);
        Some(Self {
            told: Arc::clone(told),
            user,
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seated = locked(&self.told.seated);
        if let Some(count) = seated.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                seated.remove(&self.user);
            }
        }
    }
}

impl Mediators {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            told: Arc::new(ToKeeper {
                bell: Descriptor::new(EventFd::new()?),
                news: Mutex::default(),
                seated: Mutex::default(),
            }),
            by_member: HashMap::new(),
        })
    }

    /// Readable when there is news.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.told.bell.as_fd()
    }

    /// That of a member, made if there is none yet.
    fn of(&mut self, member: &Member, by: HostWord) -> io::Result<&Mediator> {
        if !self.by_member.contains_key(&id(by)) {
            let entry = member.tables().spaces.get(usize::from(by.space));
            let pid = entry.map_or(0, |entry| entry.pid.load(Ordering::Relaxed));
            let whose = copier::Whose {
                by,
                // An id that is none is nobody's.
                process: u32::try_from(pid).unwrap_or(0),
                region: member.region.fd().try_clone()?,
                base: member.region.base(),
            };
            let orders = Arc::<Orders>::default();
            let mut copier = Copier::new(whose, Arc::clone(&orders), Arc::clone(&self.told));
            let look = move |poll_loop: &PollLoop, seen| copier.attend(poll_loop, seen);
            let mediator = Mediator {
                poller: Poller::start("portolan-mediate", STACK, look)?,
                orders,
                epoch: 0,
            };
            self.by_member.insert(id(by), mediator);
        }
        self.by_member
            .get(&id(by))
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn order(&self, by: HostWord, order: impl FnOnce(u64) -> Order) -> bool {
        let mediator = self.by_member.get(&id(by));
        if let Some(mediator) = mediator {
            mediator.order(order(mediator.epoch));
        }
        mediator.is_some()
    }

    /// Forgets what a member has entrusted; it may tell us anew.
    pub(super) fn forget(&mut self, space: u8, incarnation: u32) {
        if let Some(mediator) = self.by_member.get_mut(&(space, incarnation)) {
            mediator.epoch += 1;
            mediator.order(Order::Clear);
        }
    }

    /// A member is gone.
    pub(super) fn bury(&mut self, space: u8, incarnation: u32) {
        if let Some(mediator) = self.by_member.remove(&(space, incarnation)) {
            mediator.order(Order::End);
            // Not waited for (H1).
            drop(mediator.poller.dismiss());
        }
    }

    /// Ends all copies (H5): who has asked for one that was not begun asks the next host.
    pub(super) fn stop(&mut self) {
        let dismiss = |(_, mediator): (Id, Mediator)| {
            mediator.order(Order::End);
            mediator.poller.dismiss()
        };
        let threads: Vec<_> = self.by_member.drain().filter_map(dismiss).collect();
        let end = Instant::now() + PATIENCE;
        for thread in threads {
            while !thread.is_finished() && Instant::now() < end {
                std::thread::sleep(PAUSE);
            }
            if !thread.is_finished() {
                tracing::error!(
                    "a copy for an importer does not end; do the exporter's pages never come?"
                );
            }
        }
    }
}

impl Drop for Mediators {
    fn drop(&mut self) {
        // In a forked child there are no threads.
        if !portolan_sys::fork::in_child() {
            self.stop();
        }
    }
}

/// Lets go of descriptors that came with what takes none, on a thread of their own (H1).
pub(super) fn put_away(fds: Vec<OwnedFd>) {
    if !fds.is_empty() {
        // Where there is no thread to be had they are closed here.
        let _ = spawn_quiet("portolan-close", 64 << 10, move || drop(fds));
    }
}

impl Host {
    /// A member entrusts us with memory; its offer follows.
    pub(super) fn entrusted(
        &mut self,
        member: &Member,
        by: HostWord,
        number: u32,
        terms: Terms,
        fds: [OwnedFd; 2],
    ) {
        let handed = fds.map(Handed::new);
        match self.mediators.of(member, by) {
            Ok(mediator) => mediator.order(Order::Entrust(number, terms, Box::new(handed))),
            // What is offered is declined then.
            Err(error) => {
                tracing::warn!(space = by.space, %error, "there is no thread to copy for importers");
                put_away(handed.into_iter().map(Handed::into_fd).collect());
            }
        }
    }

    /// Has what is offered examined, and answers then.
    pub(super) fn examine(&mut self, member: &Member, by: HostWord, announcement: Announcement) {
        if let Some(mediator) = self.mediators.by_member.get(&id(by)) {
            mediator.order(Order::Enter(mediator.epoch, Box::new(announcement)));
        } else {
            // Nothing has come with it.
            self.answer_to(member, by, announcement.number, Err(Decline::Unfit));
        }
    }

    /// Has the mediator forget it; whether there is one, and so the answer comes later (H2).
    pub(super) fn disentrusted(&mut self, by: HostWord, number: u32) -> bool {
        self.mediators
            .order(by, |epoch| Order::Withdraw(epoch, number))
    }

    /// Introduces a visitor to the thread that copies for it.
    pub(super) fn seat(
        &mut self,
        member: &Member,
        by: HostWord,
        number: u32,
        connection: Descriptor,
        peer: &Peer,
    ) {
        let Some(seat) = Seat::take(&self.mediators.told, peer.uid) else {
            return refuse(member, &connection, Reason::Busy, peer.uid.into());
        };
        if tell(&connection, VisitAnswer::Introduced) {
            portolan_shm::mark!("mediate.introduced");
            self.mediators
                .order(by, |_| Order::Meet(number, connection, seat));
        }
    }

    /// Does what mediators have told.
    pub(super) fn hear_mediators(&mut self, member: &Member, sockets: &HostSockets) {
        let told = &self.mediators.told;
        let _ = told.bell.drain();
        let news = std::mem::take(&mut *locked(&told.news));
        for (by, epoch, news) in news {
            let mediator = self.mediators.by_member.get(&id(by));
            if mediator.is_none_or(|mediator| mediator.epoch != epoch) {
                // Of a connection that has ended: the member has begun anew.
                continue;
            }
            match news {
                News::Examined(announcement, true) => {
                    self.enter(member, sockets, by, *announcement)
                }
                News::Examined(announcement, false) => {
                    let number = announcement.number;
                    self.answer_to(member, by, number, Err(Decline::Unfit));
                }
                News::Withdrawn(number) => self.answer_to(member, by, number, Ok(())),
            }
        }
    }

    /// Answers a member, which may be ourselves, about an offer.
    pub(super) fn answer_to(
        &mut self,
        member: &Member,
        by: HostWord,
        number: u32,
        answer: Result<(), Decline>,
    ) {
        if by == me(member) {
            return member.part::<Offers>().answered(number, answer);
        }
        let mut watched = self.watched.iter();
        let its =
            watched.position(|w| !w.done && (w.space, w.incarnation) == (by.space, by.incarnation));
        if let Some(index) = its {
            let said = match answer {
                Ok(()) => FromHost::Done(number),
                Err(why) => FromHost::Declined(number, why),
            };
            self.answer(member, index, said);
        }
    }
}
