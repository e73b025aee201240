//! An importer for which the host copies and that does not keep to the library.

use crate::raw::{self, Failed};
use portolan_abi::connect::OfferKind;
use portolan_abi::delegate::{
    Act, Capability, Outcome, PART, PARTS, Ready, Reply, Request, STAGING,
};
use portolan_abi::vmmc::{Answer, Ask, Granted, Way};
use portolan_sys::memory::Mapping;
use portolan_sys::socket;
use portolan_testkit::PATIENCE;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Asks an exporter for a capability to show to the host.
pub(crate) fn capability(
    user: u32,
    domain: &str,
    name: &str,
) -> Result<(Granted, Capability), Failed> {
    let connection = raw::connect_to(user, domain);
    raw::ask_for(&connection, name)?;
    let ask = Ask {
        brokered: true,
        ..raw::question()
    };
    match raw::ask(&connection, &ask.encode())?.0 {
        Answer::Granted(granted) => match granted.way {
            Way::Brokered(capability) => Ok((granted, capability)),
            other => Err(format!("{other:?}").into()),
        },
        other => Err(format!("{other:?}").into()),
    }
}

/// A copy slot at the host.
pub(crate) struct CopySlot {
    pub(crate) connection: OwnedFd,
    pub(crate) staging: Mapping,
}

impl CopySlot {
    pub(crate) fn take(user: u32, domain: &str, capability: &Capability) -> Result<Self, Failed> {
        Self::take_within(PATIENCE, user, domain, capability)
    }

    fn take_within(
        patience: Duration,
        user: u32,
        domain: &str,
        capability: &Capability,
    ) -> Result<Self, Failed> {
        let connection = raw::connect_to(user, domain);
        let name = capability.name().ok_or("a name")?;
        raw::ask_for_as(
            &connection,
            OfferKind::Memory,
            name,
            Some(capability.token),
            patience,
        )?;
        let mut bytes = [0; Ready::BYTES];
        let end = Some(Instant::now() + PATIENCE);
        let received = socket::receive_by(&connection, &mut bytes, 1, end)?;
        Ready::decode(&bytes[..received.len]).map_err(|_| "not ready")?;
        let fd = received.fds.into_iter().next().ok_or("no memory")?;
        Ok(Self {
            connection,
            staging: Mapping::shared_anywhere(&fd, STAGING)?,
        })
    }

    pub(crate) fn send(&self, request: &Request) -> Result<(), Failed> {
        Ok(socket::send(&self.connection, &request.encode(), &[])?)
    }

    pub(crate) fn reply(&self) -> Result<Reply, Failed> {
        let mut bytes = [0; Reply::BYTES + 1];
        let end = Some(Instant::now() + PATIENCE);
        let received = socket::receive_by(&self.connection, &mut bytes, 0, end)?;
        Ok(Reply::decode(&bytes[..received.len]).map_err(|_| "no reply")?)
    }

    /// What the host answers.
    pub(crate) fn ask(&self, act: Act, offset: u64, len: u32) -> Result<Outcome, Failed> {
        let request = request(act, offset, len);
        self.send(&request)?;
        let reply = self.reply()?;
        assert_eq!(reply.number, request.number);
        Ok(reply.outcome)
    }
}

pub(crate) fn request(act: Act, offset: u64, len: u32) -> Request {
    Request {
        number: 77,
        act,
        offset,
        len,
        part: 1,
    }
}

/// Writes all of an export for ever, and comes back whenever it is thrown out.
pub(crate) struct Siege {
    user: u32,
    domain: String,
    granted: Granted,
    capability: Capability,
}

impl Siege {
    pub(crate) fn new(user: u32, domain: &str, name: &str) -> Result<Self, Failed> {
        let (granted, capability) = capability(user, domain, name)?;
        Ok(Self {
            user,
            domain: domain.to_owned(),
            granted,
            capability,
        })
    }

    pub(crate) fn write_for_ever(&self, rounds: &AtomicU64) {
        loop {
            let soon = Duration::from_millis(20);
            if let Ok(copy_slot) =
                CopySlot::take_within(soon, self.user, &self.domain, &self.capability)
            {
                let _ = self.storm(&copy_slot, rounds);
            }
            rounds.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// As many requests at a time as go in, from memory that changes meanwhile.
    fn storm(&self, copy_slot: &CopySlot, rounds: &AtomicU64) -> Result<(), Failed> {
        const CROWD: u32 = 16;
        for round in 1_u64.. {
            let byte = round.to_le_bytes()[0].max(1);
            copy_slot.staging.words()[..PART / 4]
                .iter()
                .for_each(|word| word.store(u64::from_ne_bytes([byte; 8]), Ordering::Relaxed));
            let mut offset = 0;
            while offset < self.granted.len {
                let mut sent = 0;
                while sent < CROWD && offset < self.granted.len {
                    let len = (self.granted.len - offset).min(PART as u64);
                    copy_slot.send(&Request {
                        number: sent,
                        act: Act::Write,
                        offset,
                        len: u32::try_from(len)?,
                        part: sent % u32::try_from(PARTS)?,
                    })?;
                    offset += len;
                    sent += 1;
                }
                for _ in 0..sent {
                    copy_slot.reply()?;
                }
            }
            rounds.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
