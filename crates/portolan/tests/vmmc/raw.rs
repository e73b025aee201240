//! An importer that does not keep to the library: it has what the protocol gives it, and does
//! with it whatever the kernel lets it do.

use portolan_abi::connect::{ConnectAnswer, ConnectRequest, Maker, OfferKind, OfferName};
use portolan_abi::hello::socket_name;
use portolan_abi::vmmc::{Answer, Ask, DESCRIPTORS, Granted};
use portolan_sys::memory::Mapping;
use portolan_sys::socket::{self, Address};
use portolan_testkit::PATIENCE;
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) type Failed = Box<dyn std::error::Error>;

/// Connects to the socket of a domain of this user.
pub(crate) fn connect(domain: &str) -> OwnedFd {
    connect_to(portolan_sys::process::user(), domain)
}

/// Connects to the socket of a user's domain.
pub(crate) fn connect_to(user: u32, domain: &str) -> OwnedFd {
    let name = socket_name(user, domain).unwrap();
    let address = Address::Abstract(name.into_bytes());
    socket::connect_by(&address, Some(Instant::now() + PATIENCE)).unwrap()
}

/// Asks the host for an export.
pub(crate) fn ask_for(connection: &OwnedFd, name: &str) -> Result<(), Failed> {
    let name = OfferName::new(name).ok_or("a name")?;
    ask_for_as(connection, OfferKind::Export, name, None, PATIENCE)
}

/// Asks the host for any offer.
pub(crate) fn ask_for_as(
    connection: &OwnedFd,
    kind: OfferKind,
    name: OfferName,
    token: Option<[u8; 16]>,
    patience: Duration,
) -> Result<(), Failed> {
    let request = ConnectRequest {
        kind,
        name,
        token,
        maker: Maker::ANY,
    };
    socket::send(connection, &request.encode(), &[])?;
    let mut bytes = [0; ConnectAnswer::MAX_BYTES];
    let end = Some(Instant::now() + patience);
    loop {
        let received = socket::receive_by(connection, &mut bytes, 0, end)?;
        match ConnectAnswer::decode(&bytes[..received.len]) {
            Ok(ConnectAnswer::Accepted) => return Ok(()),
            Ok(ConnectAnswer::Wait | ConnectAnswer::Queue) if kind == OfferKind::Memory => {}
            other => return Err(format!("{other:?}").into()),
        }
    }
}

/// Sends `ask` and whatever else; the answer, with its descriptors.
pub(crate) fn ask(connection: &OwnedFd, ask: &[u8]) -> Result<(Answer, Vec<OwnedFd>), Failed> {
    socket::send(connection, ask, &[])?;
    answer(connection)
}

pub(crate) fn answer(connection: &OwnedFd) -> Result<(Answer, Vec<OwnedFd>), Failed> {
    let mut bytes = [0; Answer::BYTES];
    let end = Some(Instant::now() + PATIENCE);
    let received = socket::receive_by(connection, &mut bytes, DESCRIPTORS, end)?;
    let answer = Answer::decode(&bytes[..received.len]).map_err(|_| "no answer")?;
    Ok((answer, received.fds))
}

/// What an importer asks.
pub(crate) fn question() -> Ask {
    Ask {
        // So that the exporter does not wait for it, should the claim be believed.
        barriers: true,
        brokered: false,
    }
}

/// Has everything that an importer gets, and keeps it.
pub(crate) struct Hostile {
    pub(crate) granted: Granted,
    pub(crate) file: OwnedFd,
    pub(crate) status_page: OwnedFd,
    pub(crate) notification_page: OwnedFd,
    early: Mapping,
}

impl Hostile {
    pub(crate) fn new(connection: &OwnedFd, name: &str) -> Result<Self, Failed> {
        ask_for(connection, name)?;
        let (answer, fds) = ask(connection, &question().encode())?;
        let Answer::Granted(granted) = answer else {
            return Err(format!("{answer:?}").into());
        };
        let [file, status_page, notification_page, _exporter] =
            <[OwnedFd; DESCRIPTORS]>::try_from(fds).map_err(|_| "descriptors")?;
        let len = usize::try_from(granted.len)?;
        let early = if granted.reach.writes() {
            Mapping::shared_anywhere(&file, len)?
        } else {
            Mapping::read_only(&file, len)?
        };
        Ok(Self {
            granted,
            file,
            status_page,
            notification_page,
            early,
        })
    }

    /// Writes for ever to each page, from byte 2,048 on, in every way it has: by the mapping
    /// that it made at first, by new ones, by system calls; and punches a hole for the last one.
    pub(crate) fn write_for_ever(&self, rounds: &AtomicU64) {
        let len = self.early.len();
        for round in 1_u64.. {
            let byte = round.to_le_bytes()[0].max(1);
            let late = Mapping::shared_anywhere(&self.file, len).unwrap();
            assert!(ftruncate(&self.file, 0).is_err(), "the file shrank");
            assert!(
                ftruncate(&self.file, self.granted.len * 2).is_err(),
                "the file grew"
            );
            for page in (0..len).step_by(4096) {
                let at = page + 2048;
                fill(&self.early, at, byte);
                fill(&late, at + 64, byte);
                rustix::io::pwrite(&self.file, &[byte; 64], at as u64 + 128).unwrap();
            }
            if round % 8 == 0 {
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let last = self.granted.len - 4096;
                fallocate(self.file.as_fd(), punch, last, 4096).unwrap();
            }
            rounds.store(round, Ordering::Relaxed);
        }
    }
}

/// Fills a line.
fn fill(mapping: &Mapping, at: usize, byte: u8) {
    for offset in at..at + 64 {
        let to = mapping.base().wrapping_add(offset);
        // SAFETY:
        // - In bounds: a line within a page of the mapping.
        unsafe { to.write_volatile(byte) };
    }
}
