//! The host's copy brokers copy between delegated memory and importers that may not do so
//! themselves.
//!
//! ```text
//! membership thread                                   copy broker, a thread for each such member
//!   Delegate n + mem, maps  ------------------------->  keeps them
//!   Offer n  ---------------------------------------->  are they that member's? --> entered: Done
//!   a client with the capability: accepted  --------->  gets staging memory; requests, replies
//!   Withdraw n  ------------------------------------->  forgets them ----------> Done
//!   death, lost connection  ------------------------->  forgets all
//! ```
//!
//! # Invariants
//!
//! - **H1** The membership thread waits for no copy broker, and touches no descriptor that came
//!   with a record: its file system may never answer.
//! - **H2** A withdrawal is answered after the last copy of that memory has ended, and no copy
//!   begins afterwards.
//! - **H3** A broker copies only to and from the memory of the member that delegated it, and of the
//!   program with which it joined: `/proc` says that it is that process's, and it has the region.
//! - **H4** A broker does not trust an importer: it checks each request against the delegation. An
//!   importer has one staging memory of its own, and one of a limited number of copy slots.
//! - **H5** A host that resigns ends all copies first.

mod copier;

use super::admit::refuse;
use super::handoff::{Limits, tell};
use super::host::Host;
use crate::directory::Offers;
use crate::space::Member;
use crate::space::descriptor::Descriptor;
use crate::space::host::me;
use crate::space::host_connection::HostSockets;
use crate::wait::poller::{PollLoop, Poller};
use copier::Copier;
use portolan_abi::connect::ConnectAnswer;
use portolan_abi::control::{Announcement, Decline, FromHost};
use portolan_abi::delegate::Delegation;
use portolan_abi::hello::Reason;
use portolan_abi::space::HostWord;
use portolan_shm::atomic::Ordering;
use portolan_sys::fork::{CloseOnFork, close_in_child};
use portolan_sys::process::{EventFd, spawn_quiet};
use portolan_sys::socket::Peer;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Enough for the thread, and for the subscriber of its log.
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

/// The membership thread's handles of the threads that copy.
pub(super) struct CopyBrokers {
    told: Arc<BrokerNews>,
    by_member: HashMap<Id, CopyBroker>,
}

struct CopyBroker {
    poller: Poller,
    orders: Arc<Orders>,
    /// Goes up when the member's delegations are forgotten: late news has an older number.
    round: u64,
}

type Orders = Mutex<Vec<Order>>;

/// An order of the membership thread to a copy broker.
enum Order {
    Delegate(u32, Delegation, Box<[Handed; 2]>),
    /// The offer of the delegation that came before.
    Enter(u64, Box<Announcement>),
    Meet(u32, Descriptor, CopySlot),
    Withdraw(u64, u32),
    /// Forget everything.
    Clear,
    /// Tell importers that requests which were not begun will not be.
    End,
}

impl CopyBroker {
    fn order(&self, order: Order) {
        locked(&self.orders).push(order);
        self.poller.poll_loop().wake();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds one of these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A descriptor that came with a record, and that the membership thread does not touch (H1).
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

/// Where the copy brokers leave news for the membership thread.
struct BrokerNews {
    bell: Descriptor<EventFd>,
    news: Mutex<Vec<(HostWord, u64, News)>>,
    /// How many copy slots are taken, by user.
    slots_taken: Mutex<HashMap<u32, usize>>,
}

enum News {
    /// Whether a delegation may be offered.
    Examined(Box<Announcement>, bool),
    Withdrawn(u32),
}

impl BrokerNews {
    fn tell(&self, by: HostWord, round: u64, news: News) {
        locked(&self.news).push((by, round, news));
        // Fails only where the program has closed the descriptor.
        let _ = self.bell.notify();
    }
}

/// An importer's slot among those that a host serves; dropping this frees it.
struct CopySlot {
    told: Arc<BrokerNews>,
    user: u32,
}

impl CopySlot {
    fn take(told: &Arc<BrokerNews>, user: u32) -> Option<Self> {
        let limits = Limits::now();
        let mut slots_taken = locked(&told.slots_taken);
        let all: usize = slots_taken.values().sum();
        let of_one = slots_taken.get(&user).copied().unwrap_or(0);
        if all >= limits.copy_slots || of_one >= limits.copy_slots_of_one {
            return None;
        }
        slots_taken.insert(user, of_one + 1);
        drop(slots_taken);
        Some(Self {
            told: Arc::clone(told),
            user,
        })
    }
}

impl Drop for CopySlot {
    fn drop(&mut self) {
        let mut slots_taken = locked(&self.told.slots_taken);
        if let Some(count) = slots_taken.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                slots_taken.remove(&self.user);
            }
        }
    }
}

impl CopyBrokers {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            told: Arc::new(BrokerNews {
                bell: Descriptor::new(EventFd::new()?),
                news: Mutex::default(),
                slots_taken: Mutex::default(),
            }),
            by_member: HashMap::new(),
        })
    }

    /// Readable when there is news.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.told.bell.as_fd()
    }

    /// The copy broker of a member; starts one if there is none yet.
    fn of(&mut self, member: &Member, by: HostWord) -> io::Result<&CopyBroker> {
        if !self.by_member.contains_key(&id(by)) {
            let entry = member.tables().spaces.get(usize::from(by.space));
            let pid = entry.map_or(0, |entry| entry.pid.load(Ordering::Relaxed));
            let whose = copier::Whose {
                by,
                // An invalid id matches no process.
                process: u32::try_from(pid).unwrap_or(0),
                region: member.region.fd().try_clone()?,
                base: member.region.base(),
            };
            let orders = Arc::<Orders>::default();
            let mut copier = Copier::new(whose, Arc::clone(&orders), Arc::clone(&self.told));
            let look = move |poll_loop: &PollLoop, seen| copier.attend(poll_loop, seen);
            let copy_broker = CopyBroker {
                poller: Poller::start("portolan-broker", STACK, look)?,
                orders,
                round: 0,
            };
            self.by_member.insert(id(by), copy_broker);
        }
        self.by_member
            .get(&id(by))
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn order(&self, by: HostWord, order: impl FnOnce(u64) -> Order) -> bool {
        let copy_broker = self.by_member.get(&id(by));
        if let Some(copy_broker) = copy_broker {
            copy_broker.order(order(copy_broker.round));
        }
        copy_broker.is_some()
    }

    /// Forgets the delegations of a member, which may send them again.
    pub(super) fn forget(&mut self, space: u8, incarnation: u32) {
        if let Some(copy_broker) = self.by_member.get_mut(&(space, incarnation)) {
            copy_broker.round += 1;
            copy_broker.order(Order::Clear);
        }
    }

    /// A member is gone.
    pub(super) fn reclaim(&mut self, space: u8, incarnation: u32) {
        if let Some(copy_broker) = self.by_member.remove(&(space, incarnation)) {
            copy_broker.order(Order::End);
            // Not waited for (H1).
            drop(copy_broker.poller.dismiss());
        }
    }

    /// Ends all copies (H5). An importer whose request was not begun asks the next host.
    pub(super) fn stop(&mut self) {
        let dismiss = |(_, copy_broker): (Id, CopyBroker)| {
            copy_broker.order(Order::End);
            copy_broker.poller.dismiss()
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

impl Drop for CopyBrokers {
    fn drop(&mut self) {
        // A forked child has no threads.
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
    /// Takes a member's delegation; its offer follows.
    pub(super) fn delegated(
        &mut self,
        member: &Member,
        by: HostWord,
        number: u32,
        delegation: Delegation,
        fds: [OwnedFd; 2],
    ) {
        let handed = fds.map(Handed::new);
        match self.copy_brokers.of(member, by) {
            Ok(copy_broker) => {
                copy_broker.order(Order::Delegate(number, delegation, Box::new(handed)))
            }
            // The offer that follows is declined.
            Err(error) => {
                tracing::warn!(space = by.space, %error, "there is no thread to copy for importers");
                put_away(handed.into_iter().map(Handed::into_fd).collect());
            }
        }
    }

    /// Has a delegation examined; the answer to its offer follows.
    pub(super) fn examine(&mut self, member: &Member, by: HostWord, announcement: Announcement) {
        if let Some(copy_broker) = self.copy_brokers.by_member.get(&id(by)) {
            copy_broker.order(Order::Enter(copy_broker.round, Box::new(announcement)));
        } else {
            // Nothing has come with it.
            self.answer_to(member, by, announcement.number, Err(Decline::Unfit));
        }
    }

    /// Has the copy broker forget a delegation. `true`: the member has a broker, which answers
    /// later (H2).
    pub(super) fn end_delegation(&mut self, by: HostWord, number: u32) -> bool {
        self.copy_brokers
            .order(by, |round| Order::Withdraw(round, number))
    }

    /// Gives an importer a copy slot at the broker of the exporter.
    pub(super) fn serve_importer(
        &mut self,
        member: &Member,
        by: HostWord,
        number: u32,
        connection: Descriptor,
        peer: &Peer,
    ) {
        let Some(copy_slot) = CopySlot::take(&self.copy_brokers.told, peer.uid) else {
            return refuse(member, &connection, Reason::Busy, peer.uid.into());
        };
        if tell(&connection, &ConnectAnswer::Accepted) {
            portolan_shm::mark!("broker.accepted");
            self.copy_brokers
                .order(by, |_| Order::Meet(number, connection, copy_slot));
        }
    }

    /// Acts on the news of the copy brokers.
    pub(super) fn hear_copy_brokers(&mut self, member: &Member, sockets: &HostSockets) {
        let told = &self.copy_brokers.told;
        let _ = told.bell.drain();
        let news = std::mem::take(&mut *locked(&told.news));
        for (by, round, news) in news {
            let copy_broker = self.copy_brokers.by_member.get(&id(by));
            if copy_broker.is_none_or(|copy_broker| copy_broker.round != round) {
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
                Ok(()) => FromHost::Done { number },
                Err(why) => FromHost::Declined { number, why },
            };
            self.answer(member, index, said);
        }
    }
}
