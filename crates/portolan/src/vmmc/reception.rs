//! The thread that shows exports to importers, and sees them go.
//!
//! One a membership, there as long as it has exports. It sleeps in epoll over the importers'
//! connections and pidfds. Whatever it reads is a stranger's: one record, and afterwards single
//! bytes, without descriptors; who sends anything else is let go of.
//!
//! # Invariants
//!
//! - **R1** What is granted is granted under the lock of the export's importers, and only while
//!   the export is open: whoever closes it knows all whom it was granted to.
//! - **R2** Nobody waits for an importer: what cannot be sent at once is not sent, and it is let
//!   go of.
//! - **R3** An importer is forgotten when its connection ends or it dies, whichever is seen first.

use super::export::Exported;
use crate::domain::{Descriptor, Visitor};
use crate::member::Member;
use portolan_abi::FORMAT_VERSION;
use portolan_abi::vmmc::{Answer, Ask, Denied, RING};
use portolan_sys::process::{EventFd, PidFd, spawn_quiet};
use portolan_sys::socket::{self, Peer, SocketError};
use portolan_sys::watch::Watch;
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Enough for the thread, and for whoever subscribes to what it says.
const STACK: usize = 512 << 10;

/// Messages of one importer that are read before others have their turn.
const AT_ONCE: usize = 32;

/// The reception of a membership.
pub(crate) struct Reception {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    watch: Watch,
    /// Rung when there are orders.
    bell: EventFd,
    orders: Mutex<Vec<Order>>,
}

/// What the thread is told.
enum Order {
    Meet(Visitor, Weak<Exported>),
    /// Look at a guest again.
    Look(u64),
    /// Let go of an export's importers.
    Close(Weak<Exported>),
    End,
}

/// The number of the bell; those of guests are even for connections, odd for pidfds.
const BELL: u64 = 0;

impl Reception {
    /// That of this member, and its thread.
    pub(super) fn of(member: &Arc<Member>) -> io::Result<Arc<Self>> {
        let mut known = member
            .reception
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(reception) = known.upgrade() {
            return Ok(reception);
        }
        let reception = Arc::new(Self::new()?);
        *known = Arc::downgrade(&reception);
        Ok(reception)
    }

    fn new() -> io::Result<Self> {
        let shared = Arc::new(Shared {
            watch: Watch::new()?,
            bell: EventFd::new()?,
            orders: Mutex::default(),
        });
        shared.watch.add(&shared.bell, BELL)?;
        let its_own = Arc::clone(&shared);
        let serve = move || Guests::default().serve(&its_own);
        let thread = spawn_quiet("portolan-export", STACK, serve)?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Shows an export to a visitor, soon.
    pub(super) fn meet(&self, visitor: Visitor, export: Weak<Exported>) {
        self.shared.order(Order::Meet(visitor, export));
    }

    /// Lets go of an export's importers, soon.
    pub(super) fn close(&self, export: &Arc<Exported>) {
        self.shared.order(Order::Close(Arc::downgrade(export)));
    }
}

impl Drop for Reception {
    fn drop(&mut self) {
        // In a forked child there is no thread, and its descriptors are let go of.
        if portolan_sys::fork::in_child() {
            return;
        }
        self.shared.order(Order::End);
        if let Some(thread) = self.thread.take() {
            // The last handle of an export may be dropped by this very thread, as it closes it.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    /// What has been ordered since this was called last.
    fn orders(&self) -> Vec<Order> {
        std::mem::take(&mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn order(&self, order: Order) {
        self.orders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(order);
        // Fails only where the program has closed the descriptor.
        let _ = self.bell.notify();
    }
}

/// One importer, or somebody who wants to be one.
struct Guest {
    connection: Descriptor,
    pidfd: Option<Descriptor<PidFd>>,
    peer: Peer,
    export: Weak<Exported>,
    granted: bool,
}

/// What the thread knows.
#[derive(Default)]
struct Guests {
    last: u64,
    by_number: HashMap<u64, Guest>,
}

impl Guests {
    fn serve(mut self, shared: &Shared) {
        while let Ok(numbers) = shared.watch.wait() {
            for number in numbers {
                if number == BELL {
                    let _ = shared.bell.drain();
                    for order in shared.orders() {
                        match order {
                            Order::Meet(visitor, export) => self.meet(shared, visitor, export),
                            Order::Look(guest) => self.look(shared, guest),
                            Order::Close(export) => self.close(shared, &export),
                            Order::End => return,
                        }
                    }
                } else if number % 2 == 1 {
                    // A pidfd that is readable: dead.
                    self.forget(shared, number / 2);
                } else {
                    self.look(shared, number / 2);
                }
            }
        }
    }

    fn meet(&mut self, shared: &Shared, visitor: Visitor, export: Weak<Exported>) {
        let Visitor {
            connection,
            peer,
            pidfd,
        } = visitor;
        // Best effort: where the kernel cannot, room for none does the same (see `look`).
        let _ = socket::refuse_descriptors(&connection);
        let (uid, pid) = (peer.uid, peer.pid);
        let Some(exported) = export.upgrade() else {
            return deny(&connection, Denied::Over);
        };
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
        let guest = Guest {
            connection,
            pidfd,
            peer,
            export,
            granted: false,
        };
        let mut watched = shared.watch.add(&guest.connection, number * 2);
        if let (Ok(()), Some(pidfd)) = (&watched, &guest.pidfd) {
            watched = shared.watch.add(&**pidfd, number * 2 + 1);
        }
        if let Err(error) = &watched {
            tracing::warn!(export = exported.name(), uid, %error, "an importer cannot be watched");
            deny(&guest.connection, Denied::Resources);
        }
        let met = watched.is_ok();
        self.by_number.insert(number, guest);
        if !met {
            self.forget(shared, number);
        }
    }

    /// Reads what a guest says.
    fn look(&mut self, shared: &Shared, number: u64) {
        for _ in 0..AT_ONCE {
            let Some(guest) = self.by_number.get_mut(&number) else {
                return;
            };
            match guest.hear(number) {
                Heard::Nothing => return,
                Heard::Fine => {}
                Heard::Over => return self.forget(shared, number),
            }
        }
        // There may be more, of which nobody tells.
        shared.order(Order::Look(number));
    }

    fn forget(&mut self, shared: &Shared, number: u64) {
        let Some(guest) = self.by_number.remove(&number) else {
            return;
        };
        let _ = shared.watch.remove(&guest.connection);
        if let Some(pidfd) = &guest.pidfd {
            let _ = shared.watch.remove(&**pidfd);
        }
        if let Some(export) = guest.export.upgrade() {
            export.leave(number);
        }
    }

    fn close(&mut self, shared: &Shared, export: &Weak<Exported>) {
        let of_it = |(number, guest): (&u64, &Guest)| {
            Weak::ptr_eq(&guest.export, export).then_some(*number)
        };
        let all: Vec<u64> = self.by_number.iter().filter_map(of_it).collect();
        for number in all {
            self.forget(shared, number);
        }
    }
}

/// What came of listening to a guest.
enum Heard {
    Nothing,
    Fine,
    Over,
}

impl Guest {
    fn hear(&mut self, number: u64) -> Heard {
        // One more byte than a record has, so that a longer one is not taken for it.
        let mut bytes = [0; Ask::BYTES + 1];
        let received = match socket::try_receive(&self.connection, &mut bytes, 0) {
            Ok(None) => return Heard::Nothing,
            Ok(Some(received)) if !received.truncated => received,
            Ok(Some(_)) => {
                deny(&self.connection, Denied::Garbled);
                return Heard::Over;
            }
            Err(_) => return Heard::Over,
        };
        let Some(export) = self.export.upgrade() else {
            deny(&self.connection, Denied::Over);
            return Heard::Over;
        };
        let bytes = bytes.get(..received.len).unwrap_or_default();
        if self.granted {
            if bytes == [RING] {
                export.rung(number);
                return Heard::Fine;
            }
        } else {
            return match self.grant(number, &export, bytes) {
                Ok(()) => Heard::Fine,
                Err(why) => {
                    deny(&self.connection, why);
                    Heard::Over
                }
            };
        }
        let (uid, pid) = (self.peer.uid, self.peer.pid);
        tracing::warn!(
            export = export.name(),
            uid,
            pid,
            "an importer says what none says"
        );
        Heard::Over
    }

    fn grant(&mut self, number: u64, export: &Exported, bytes: &[u8]) -> Result<(), Denied> {
        let ask = Ask::decode(bytes).ok_or(Denied::Garbled)?;
        if ask.version != FORMAT_VERSION {
            return Err(Denied::Version);
        }
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

fn deny(connection: &Descriptor, why: Denied) {
    let answer = Answer::Denied(why, FORMAT_VERSION).encode();
    let sent = socket::send_by(connection, &answer, &[], Some(Instant::now()));
    if let Err(error) = sent
        && !matches!(error, SocketError::Closed)
    {
        tracing::debug!(%error, "a refusal was not sent");
    }
}
