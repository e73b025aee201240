//! The acceptor grants exports to importers, and sees importers go.
//!
//! A membership has one acceptor thread, as long as it has exports. The thread sleeps in epoll over
//! the importers' connections and pidfds. It does not trust importers: each sends one record, and
//! afterwards single bytes, without descriptors; the acceptor drops an importer that sends anything
//! else.
//!
//! # Invariants
//!
//! - **R1** The acceptor grants an export under the lock of its importers, and only while the
//!   export is open. So the thread that closes the export knows every importer.
//! - **R2** The acceptor waits for no importer: it drops an importer to which it cannot send at
//!   once.
//! - **R3** An importer is forgotten when its connection ends or it dies, whichever is seen first.
//! - **R4** Importers leave the program an eighth of the descriptors that it may have, because
//!   among other things the end of an export needs some.

use super::export::Exported;
use crate::directory::Client;
use crate::space::Descriptor;
use crate::space::handshake::{Awaited, Ended};
use crate::space::{Member, Part};
use crate::wait::poller::{PollLoop, Poller, Seen};
use portolan_abi::handshake::Refusal;
use portolan_abi::vmmc::{Answer, Ask, Denied, WAKE};
use portolan_proto::handshake::Unasked;
use portolan_sys::machine::rlimit_nofile;
use portolan_sys::process::PidFd;
use portolan_sys::socket::{self, Peer, SocketError};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

/// Enough for the thread, and for the subscriber of its log.
const STACK: usize = 512 << 10;

/// Messages of one importer that are read before others have their turn.
const AT_ONCE: usize = 32;

/// The acceptor of a membership.
pub(crate) struct Acceptor {
    /// The thread; woken when there are orders.
    poller: Poller,
    orders: Arc<Orders>,
}

type Orders = Mutex<Vec<Order>>;

/// An order to the thread.
enum Order {
    Meet(Client, Weak<Exported>),
    /// Let go of an export's importers.
    Close(Weak<Exported>),
}

/// The acceptor of a membership, there as long as it has exports.
#[derive(Default)]
struct Acceptors(Mutex<Weak<Acceptor>>);

impl Part for Acceptors {}

impl Acceptor {
    /// The acceptor of this member; starts its thread if there is none yet.
    pub(super) fn of(member: &Arc<Member>) -> io::Result<Arc<Self>> {
        let mut known = member
            .part::<Acceptors>()
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(acceptor) = known.upgrade() {
            return Ok(acceptor);
        }
        let acceptor = Arc::new(Self::new()?);
        *known = Arc::downgrade(&acceptor);
        Ok(acceptor)
    }

    fn new() -> io::Result<Self> {
        let orders = Arc::<Orders>::default();
        let its_own = Arc::clone(&orders);
        let mut peers = ImporterPeers::default();
        let look = move |poll_loop: &PollLoop, seen| peers.attend(poll_loop, &its_own, seen);
        let poller = Poller::start("portolan-export", STACK, look)?;
        Ok(Self { poller, orders })
    }

    /// Shows an export to a client, soon.
    pub(super) fn meet(&self, client: Client, export: Weak<Exported>) {
        self.order(Order::Meet(client, export));
    }

    /// Lets go of an export's importers, soon.
    pub(super) fn close(&self, export: &Arc<Exported>) {
        self.order(Order::Close(Arc::downgrade(export)));
    }

    fn order(&self, order: Order) {
        locked(&self.orders).push(order);
        self.poller.poll_loop().wake();
    }
}

fn locked(orders: &Orders) -> MutexGuard<'_, Vec<Order>> {
    orders.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connected peer: an importer, or a process that asks to become one.
struct ImporterPeer {
    connection: Descriptor,
    pidfd: Option<Descriptor<PidFd>>,
    peer: Peer,
    export: Weak<Exported>,
    asking: Awaited<Ask>,
    granted: bool,
}

/// The thread's state.
#[derive(Default)]
struct ImporterPeers {
    last: u64,
    /// Each is watched by twice its number (the connection), and one more (the pidfd).
    by_number: HashMap<u64, ImporterPeer>,
    /// To be looked at again.
    unheard: Vec<u64>,
}

impl ImporterPeers {
    fn attend(&mut self, poll_loop: &PollLoop, orders: &Orders, seen: Seen) {
        match seen {
            Seen::Bell => {
                let orders = std::mem::take(&mut *locked(orders));
                for order in orders {
                    match order {
                        Order::Meet(client, export) => self.meet(poll_loop, client, export),
                        Order::Close(export) => self.close(poll_loop, &export),
                    }
                }
                for importer in std::mem::take(&mut self.unheard) {
                    self.look(poll_loop, importer);
                }
            }
            // A readable pidfd: the importer is dead.
            Seen::At(number) if number % 2 == 1 => self.forget(poll_loop, number / 2),
            Seen::At(number) => self.look(poll_loop, number / 2),
        }
    }

    fn meet(&mut self, poll_loop: &PollLoop, client: Client, export: Weak<Exported>) {
        let Client {
            connection,
            peer,
            pidfd,
        } = client;
        // Best effort: where the kernel cannot, room for none does the same (see `look`).
        let _ = socket::refuse_descriptors(&connection);
        let (uid, pid) = (peer.uid, peer.pid);
        let Some(exported) = export.upgrade() else {
            return deny(&connection, Denied::Over);
        };
        if is_scarce(&connection) {
            tracing::warn!(
                export = exported.name(),
                uid,
                pid,
                "an importer is refused: few descriptors are left"
            );
            return deny(&connection, Denied::Resources);
        }
        if !exported.admit() {
            tracing::warn!(
                export = exported.name(),
                uid,
                pid,
                "an export has as many importers as it may have"
            );
            return deny(&connection, Denied::Full);
        }
        self.last += 1;
        let number = self.last;
        let importer = ImporterPeer {
            connection,
            pidfd,
            peer,
            export,
            // No deadline: it takes no thread, and one of the places that the export has.
            asking: Awaited::new(None),
            granted: false,
        };
        let mut watched = poll_loop.watch().add(&importer.connection, number * 2);
        if let (Ok(()), Some(pidfd)) = (&watched, &importer.pidfd) {
            watched = poll_loop.watch().add(&**pidfd, number * 2 + 1);
        }
        if let Err(error) = &watched {
            tracing::warn!(export = exported.name(), uid, %error, "an importer cannot be watched");
            deny(&importer.connection, Denied::Resources);
        }
        let met = watched.is_ok();
        self.by_number.insert(number, importer);
        if !met {
            self.forget(poll_loop, number);
        }
    }

    /// Reads the records of an importer.
    fn look(&mut self, poll_loop: &PollLoop, number: u64) {
        for _ in 0..AT_ONCE {
            let Some(importer) = self.by_number.get_mut(&number) else {
                return;
            };
            match importer.hear(number) {
                Heard::Nothing => return,
                Heard::Fine => {}
                Heard::Over => return self.forget(poll_loop, number),
            }
        }
        // There may be more records, and epoll need not report them again.
        self.unheard.push(number);
        poll_loop.wake();
    }

    fn forget(&mut self, poll_loop: &PollLoop, number: u64) {
        let Some(importer) = self.by_number.remove(&number) else {
            return;
        };
        let _ = poll_loop.watch().remove(&importer.connection);
        if let Some(pidfd) = &importer.pidfd {
            let _ = poll_loop.watch().remove(&**pidfd);
        }
        if let Some(export) = importer.export.upgrade() {
            export.leave(number);
        }
    }

    fn close(&mut self, poll_loop: &PollLoop, export: &Weak<Exported>) {
        let of_it = |(number, importer): (&u64, &ImporterPeer)| {
            Weak::ptr_eq(&importer.export, export).then_some(*number)
        };
        let all: Vec<u64> = self.by_number.iter().filter_map(of_it).collect();
        for number in all {
            self.forget(poll_loop, number);
        }
    }
}

/// The result of reading a record.
enum Heard {
    Nothing,
    Fine,
    Over,
}

impl ImporterPeer {
    fn hear(&mut self, number: u64) -> Heard {
        if !self.granted {
            return self.hear_request(number);
        }
        // One more byte than a record has, so that a longer one is not taken for it.
        let mut bytes = [0; 2];
        let len = match socket::try_receive(&self.connection, &mut bytes, 0) {
            Ok(None) => return Heard::Nothing,
            Ok(Some(received)) if !received.truncated => received.len,
            Ok(Some(_)) => 0,
            Err(_) => return Heard::Over,
        };
        let Some(export) = self.export.upgrade() else {
            return Heard::Over;
        };
        if bytes.get(..len) == Some(&[WAKE]) {
            export.importer_woke(number);
            return Heard::Fine;
        }
        let (uid, pid) = (self.peer.uid, self.peer.pid);
        tracing::warn!(
            export = export.name(),
            uid,
            pid,
            "an importer sent an invalid record"
        );
        Heard::Over
    }

    /// Reads what it asks for, and grants it or says why not.
    fn hear_request(&mut self, number: u64) -> Heard {
        let granted = match self.asking.poll(&self.connection) {
            Ok(None) => return Heard::Nothing,
            Ok(Some(ask)) => match self.export.upgrade() {
                Some(export) => self.grant(number, &export, ask),
                None => Err(Denied::Over),
            },
            Err(Ended::Failed(Unasked::Refuse(why, _))) => Err(why),
            Err(Ended::Failed(Unasked::HangUp) | Ended::Socket(_)) => return Heard::Over,
        };
        match granted {
            Ok(()) => Heard::Fine,
            Err(why) => {
                deny(&self.connection, why);
                Heard::Over
            }
        }
    }

    fn grant(&mut self, number: u64, export: &Exported, ask: Ask) -> Result<(), Denied> {
        let send = |granted: Answer, fds: &[BorrowedFd<'_>]| {
            // R2: the deadline is now.
            socket::send_by(
                &self.connection,
                &granted.encode(),
                fds,
                Some(Instant::now()),
            )
        };
        export.grant(number, &self.peer, ask, send)?;
        self.granted = true;
        let (uid, pid, export) = (self.peer.uid, self.peer.pid, export.name());
        tracing::debug!(export, uid, pid, "an export is imported");
        Ok(())
    }
}

/// Whether importers have to leave what descriptors there are to the program (R4).
fn is_scarce(connection: &Descriptor) -> bool {
    let may = rlimit_nofile().soft.unwrap_or(u64::MAX);
    // The kernel takes the lowest number that is free, so all below this one are in use.
    let used = u64::try_from(connection.as_fd().as_raw_fd()).unwrap_or(0);
    used >= may - may / 8
}

fn deny(connection: &Descriptor, why: Denied) {
    let answer = Answer::Refused(Refusal::new(why)).encode();
    let sent = socket::send_by(connection, &answer, &[], Some(Instant::now()));
    if let Err(error) = sent
        && !matches!(error, SocketError::Closed)
    {
        tracing::debug!(%error, "a refusal was not sent");
    }
}
