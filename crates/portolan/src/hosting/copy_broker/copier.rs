//! A copy broker's thread copies between one member's delegated memory and its importers.
//!
//! It has opened the member's memory by the descriptors that the member sent. It shares a
//! connection and some staging memory with each importer. It serves the requests of one importer in
//! order, and importers in turn.

use super::{BrokerNews, CopySlot, Handed, News, Order, Orders, locked};
use crate::space::descriptor::{Descriptor, HeldMemory};
use crate::wait::poller::{PollLoop, Seen};
use portolan_abi::control::Announcement;
use portolan_abi::delegate::{Act, Delegation, Outcome, PART, Ready, Reply, Request, STAGING};
use portolan_abi::space::HostWord;
use portolan_sys::memory::{self, Mapping};
use portolan_sys::process::{ForeignError, Need, ProcessMemory, TransferError};
use portolan_sys::socket;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// Requests of one importer that are done before others have their turn.
const AT_ONCE: usize = 4;

/// Whose memory it is.
pub(super) struct Whose {
    pub(super) by: HostWord,
    /// Its process.
    pub(super) process: u32,
    /// The domain's region, and where every member has it mapped.
    pub(super) region: OwnedFd,
    pub(super) base: usize,
}

/// The thread's state.
pub(super) struct Copier {
    whose: Whose,
    orders: Arc<Orders>,
    told: Arc<BrokerNews>,
    /// The delegation that came last, until its offer comes.
    handed: Option<(u32, Delegation, Box<[Handed; 2]>)>,
    delegated: HashMap<u32, Delegated>,
    last: u64,
    /// Each is watched by its number.
    importers: HashMap<u64, Importer>,
    /// To be looked at again.
    unheard: Vec<u64>,
}

/// Memory that is copied to and from.
struct Delegated {
    delegation: Delegation,
    memory: HeldMemory,
}

/// An importer.
struct Importer {
    number: u32,
    connection: Descriptor,
    staging: Mapping,
    _copy_slot: CopySlot,
}

/// Why a delegation is not offered.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("nothing came with the offer; this process may have no descriptors left")]
    Nothing,
    #[error(transparent)]
    Foreign(#[from] ForeignError),
    #[error("it is the memory of process {found:?}, and process {wanted} has sent it")]
    OtherProcess { found: Option<u32>, wanted: u32 },
    #[error("it is not the memory of the program that has joined the domain")]
    OtherProgram,
}

impl Copier {
    pub(super) fn new(whose: Whose, orders: Arc<Orders>, told: Arc<BrokerNews>) -> Self {
        Self {
            whose,
            orders,
            told,
            handed: None,
            delegated: HashMap::new(),
            last: 0,
            importers: HashMap::new(),
            unheard: Vec::new(),
        }
    }

    pub(super) fn attend(&mut self, poll_loop: &PollLoop, seen: Seen) {
        match seen {
            Seen::Bell => {
                let orders = std::mem::take(&mut *locked(&self.orders));
                for order in orders {
                    self.obey(poll_loop, order);
                }
                for importer in std::mem::take(&mut self.unheard) {
                    self.look(poll_loop, importer);
                }
            }
            Seen::At(importer) => self.look(poll_loop, importer),
        }
    }

    fn obey(&mut self, poll_loop: &PollLoop, order: Order) {
        let by = self.whose.by;
        match order {
            Order::Delegate(number, delegation, fds) => {
                self.handed = Some((number, delegation, fds))
            }
            Order::Enter(round, announcement) => {
                let fit = self.examine(&announcement);
                if let Err(error) = &fit {
                    let space = by.space;
                    tracing::warn!(space, %error, "the delegation of a member is unfit");
                }
                let news = News::Examined(announcement, fit.is_ok());
                self.told.tell(by, round, news);
            }
            Order::Meet(number, connection, copy_slot) => {
                self.meet(poll_loop, number, connection, copy_slot)
            }
            Order::Withdraw(round, number) => {
                self.forget(poll_loop, |n| n == number);
                portolan_shm::mark!("broker.withdrawn");
                self.told.tell(by, round, News::Withdrawn(number));
            }
            Order::Clear => {
                self.handed = None;
                self.forget(poll_loop, |_| true);
            }
            Order::End => self.end(),
        }
    }

    /// Takes what came before an offer, if it is what it should be (H3).
    fn examine(&mut self, announcement: &Announcement) -> Result<(), Unfit> {
        let handed = self.handed.take();
        let matching = handed.filter(|(number, ..)| *number == announcement.number);
        let (number, delegation, fds) = matching.ok_or(Unfit::Nothing)?;
        let [memory, maps] = fds.map(Handed::into_fd);
        let memory = ProcessMemory::from_descriptors(memory, maps)?;
        let (found, wanted) = (memory.process(), self.whose.process);
        if found != Some(wanted) {
            return Err(Unfit::OtherProcess { found, wanted });
        }
        let shown = memory.maps().shows(&self.whose.region, self.whose.base);
        if !shown.unwrap_or(false) {
            return Err(Unfit::OtherProgram);
        }
        let memory = HeldMemory::new(memory);
        self.delegated
            .insert(number, Delegated { delegation, memory });
        Ok(())
    }

    /// Gives a client its staging memory.
    fn meet(
        &mut self,
        poll_loop: &PollLoop,
        number: u32,
        connection: Descriptor,
        copy_slot: CopySlot,
    ) {
        if !self.delegated.contains_key(&number) {
            // Withdrawn meanwhile. It asks again, or hears from the exporter.
            return;
        }
        let Some(staging) = send_staging(&connection) else {
            return;
        };
        self.last += 1;
        if poll_loop.watch().add(&connection, self.last).is_ok() {
            let importer = Importer {
                number,
                connection,
                staging,
                _copy_slot: copy_slot,
            };
            self.importers.insert(self.last, importer);
        }
    }

    /// Does what an importer asks for.
    fn look(&mut self, poll_loop: &PollLoop, number: u64) {
        for _ in 0..AT_ONCE {
            let Some(importer) = self.importers.get(&number) else {
                return;
            };
            let request = match importer.hear() {
                Heard::Nothing => return,
                Heard::Request(request) => request,
                Heard::Over => return self.dismiss(poll_loop, number),
            };
            let outcome = match self.delegated.get(&importer.number) {
                Some(delegated) => delegated.copy(&request, &importer.staging),
                None => return self.dismiss(poll_loop, number),
            };
            if !importer.reply(&request, outcome) {
                // It does not read, or has gone.
                return self.dismiss(poll_loop, number);
            }
        }
        // There may be more requests, and epoll need not report them again.
        self.unheard.push(number);
        poll_loop.wake();
    }

    fn dismiss(&mut self, poll_loop: &PollLoop, number: u64) {
        if let Some(importer) = self.importers.remove(&number) {
            let _ = poll_loop.watch().remove(&importer.connection);
        }
    }

    fn forget(&mut self, poll_loop: &PollLoop, which: impl Fn(u32) -> bool) {
        self.delegated.retain(|number, _| !which(*number));
        let of_it = |(importer, g): (&u64, &Importer)| which(g.number).then_some(*importer);
        let all: Vec<u64> = self.importers.iter().filter_map(of_it).collect();
        for importer in all {
            if let Some(importer) = self.importers.get(&importer) {
                importer.take_leave();
            }
            self.dismiss(poll_loop, importer);
        }
    }

    /// Tells those who have asked for something that it was not begun (H5).
    fn end(&mut self) {
        self.handed = None;
        self.delegated.clear();
        for (_, importer) in self.importers.drain() {
            importer.take_leave();
        }
    }
}

/// Sends an importer the memory that it shares with us; mapped here.
fn send_staging(connection: &Descriptor) -> Option<Mapping> {
    let made = memory::create("portolan-staging", STAGING as u64);
    let mapped = made.map_err(|error| error.to_string()).and_then(|fd| {
        let mapping = Mapping::shared_anywhere(&fd, STAGING).and_then(Mapping::not_in_children);
        mapping
            .map(|mapping| (mapping, fd))
            .map_err(|error| error.to_string())
    });
    let (mapping, fd) = match mapped {
        Ok(made) => made,
        Err(error) => {
            tracing::warn!(error, "there is no memory to copy through for an importer");
            return None;
        }
    };
    let ready = Ready {};
    let now = Some(Instant::now());
    let sent = socket::send_by(connection, &ready.encode(), &[fd.as_fd()], now);
    sent.is_ok().then_some(mapping)
}

/// What came of listening to an importer.
enum Heard {
    Nothing,
    Request(Request),
    Over,
}

impl Importer {
    fn hear(&self) -> Heard {
        // One more byte than a record has, so that a longer one is not taken for it.
        let mut bytes = [0; Request::BYTES + 1];
        let received = match socket::try_receive(&self.connection, &mut bytes, 0) {
            Ok(None) => return Heard::Nothing,
            Ok(Some(received)) if !received.truncated => received,
            Ok(Some(_)) | Err(_) => return Heard::Over,
        };
        let request = bytes
            .get(..received.len)
            .and_then(|b| Request::decode(b).ok());
        request.map_or(Heard::Over, Heard::Request)
    }

    /// Takes no more requests, and tells of those that have come that they were not begun.
    fn take_leave(&self) {
        let _ = socket::close_entrance(&self.connection);
        while let Heard::Request(request) = self.hear() {
            if !self.reply(&request, Outcome::Away) {
                break;
            }
        }
    }

    /// Whether it was told.
    fn reply(&self, request: &Request, outcome: Outcome) -> bool {
        let number = request.number;
        let reply = Reply { number, outcome }.encode();
        socket::send_by(&self.connection, &reply, &[], Some(Instant::now())).is_ok()
    }
}

impl Delegated {
    /// Copies, if the delegation permits it and the member itself may do that there (H4).
    fn copy(&self, request: &Request, staging: &Mapping) -> Outcome {
        let Request {
            act, offset, len, ..
        } = *request;
        let Some(place) = self.delegation.place(act, offset, len.into()) else {
            return Outcome::Refused;
        };
        let Some(memory) = self.memory.get() else {
            let errno = rustix::io::Errno::BADF.raw_os_error();
            return Outcome::Failed { errno };
        };
        let Ok(address) = usize::try_from(place) else {
            return Outcome::Refused;
        };
        let len = len as usize;
        let part = request.part as usize * PART;
        let need = match act {
            Act::Write => Need::Write,
            Act::Read => Need::Read,
        };
        let copied = memory.check(address, len, need).and_then(|()| {
            portolan_shm::mark!("broker.checked");
            match act {
                Act::Write => memory.write_from(address, staging, part, len),
                Act::Read => memory.read_into(address, staging, part, len),
            }
        });
        portolan_shm::mark!("broker.copied");
        copied.map_or_else(|error| self.explain(&error), |()| Outcome::Done)
    }

    fn explain(&self, error: &TransferError) -> Outcome {
        match error {
            TransferError::Unmapped { address, .. } => {
                let offset = (*address as u64).saturating_sub(self.delegation.address);
                Outcome::Unmapped { offset }
            }
            TransferError::Protected { .. } => Outcome::Protected,
            TransferError::Gone { .. } => Outcome::Gone,
            TransferError::Io { source, .. } => {
                let errno = source.raw_os_error().unwrap_or(0);
                Outcome::Failed { errno }
            }
            _ => Outcome::Refused,
        }
    }
}
