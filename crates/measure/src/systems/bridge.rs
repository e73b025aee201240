//! Measures Portolan between domains: a domain and an offered port on each side; messages are
//! copied over.
//!
//! A round trip sends the very message back that came; its extents are the receiver's own.
//! Sealed memory is written and sealed once on each side, sent again and again, and read by its
//! receiver each time.

use std::os::fd::OwnedFd;

use portolan::{
    Access, ConnectOptions, Deadline, Domain, Message, OfferOptions, OfferedPort, Permissions,
    PortOptions, ReceiveRight, Sealed, SendRight, Unsealed, Waiting,
};

use super::Endpoint;
use super::portolan::{MEETING, allocate, name, parent, push};
use crate::case::{Case, Mode, Placement, Protection};
use crate::error::{MeasureError, Result};
use crate::payload;

/// Times a message's bytes that a domain may hold: one is under way, one is kept, and no
/// message may take more than a quarter.
const ROOM: u64 = 8;
const SLACK: u64 = 64 << 20;
const PORT: &str = "messages";

pub(crate) struct Bridge {
    to: Option<SendRight>,
    from: ReceiveRight,
    message: Message,
    /// What is sent instead of extents.
    sealed: Option<Sealed>,
    count: u64,
    /// Whose port we send to.
    other: String,
    _offered: OfferedPort,
    /// Last: it is left after all that belongs to it.
    domain: Domain,
}

/// The domain of one of the two sides.
fn side(case: &Case, coordinator: u32, drives: bool) -> String {
    let side = if drives { "drive" } else { "echo" };
    format!("{}-{side}", name(case, coordinator))
}

/// Memory that is written here and sealed.
fn sealed(bytes: usize) -> Result<Sealed> {
    let mut memory = Unsealed::new(bytes)
        .map_err(MeasureError::library("making a benchmark's sealed memory"))?;
    payload::write(&mut memory, 1);
    memory
        .seal()
        .map_err(MeasureError::library("sealing a benchmark's memory"))
}

impl Bridge {
    fn new(case: &Case, coordinator: u32, drives: bool) -> Result<Self> {
        let domain = Domain::builder(&side(case, coordinator, drives))
            .limit(ROOM * case.bytes + SLACK)
            .deadline(MEETING)
            .join()
            .map_err(MeasureError::library("making a benchmark's domain"))?;
        let mut from = domain
            .bind(PortOptions::unnamed())
            .map_err(MeasureError::library("binding a benchmark's port"))?;
        from.set_waiting(match (case.mode, case.placement) {
            (Mode::Poll, Placement::TwoCpus) => Waiting::Poll,
            _ => Waiting::Adaptive,
        });
        let offered = from
            .offer(
                PORT,
                &Permissions::own_user(),
                OfferOptions::default().deadline(MEETING),
            )
            .map_err(MeasureError::library("offering a benchmark's port"))?;
        let mut message = Message::default();
        let bytes = usize::try_from(case.bytes).expect("64-bit only");
        let seals = case.protection == Protection::Sealed;
        if drives && bytes > 0 && !seals {
            push(&mut message, allocate(&domain, bytes)?);
        }
        Ok(Self {
            to: None,
            from,
            message,
            sealed: seals.then(|| sealed(bytes)).transpose()?,
            count: 0,
            other: side(case, coordinator, !drives),
            _offered: offered,
            domain,
        })
    }

    fn connect(&mut self) -> Result<()> {
        let mut options = ConnectOptions::default().deadline(MEETING);
        if self.sealed.is_some() {
            options = options.protection(portolan::Protection::Sealed);
        }
        let other = Domain::builder(&self.other);
        let right = self.domain.connect_to(&other, PORT, options);
        self.to = Some(right.map_err(MeasureError::library("connecting to a benchmark's port"))?);
        Ok(())
    }
}

impl Endpoint for Bridge {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        Ok((Self::new(case, std::process::id(), true)?, Vec::new()))
    }

    fn attach(case: &Case, _seat: u32, _descriptors: Vec<OwnedFd>) -> Result<Self> {
        let mut end = Self::new(case, parent()?, false)?;
        end.connect()?;
        Ok(end)
    }

    fn meet(&mut self, _case: &Case) -> Result<()> {
        self.connect()
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        self.count += 1;
        if let Some(extent) = self.message.extents_mut().first_mut() {
            payload::write(extent, self.count);
        }
        if let Some(sealed) = &self.sealed {
            self.message.clear();
            let pushed = self.message.push_sealed(sealed.clone());
            pushed.map_err(|e| MeasureError::library("filling a benchmark's message")(e.why))?;
        }
        let to = self.to.as_ref().ok_or(MeasureError::Gone)?;
        to.send_from(&mut self.message, Deadline::NEVER)
            .map_err(MeasureError::library("sending a benchmark's message"))
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        self.from
            .receive_into(&mut self.message, Access::Later, Deadline::NEVER)
            .map_err(MeasureError::library("receiving a benchmark's message"))?;
        if let Some(extent) = self.message.extents().first() {
            payload::read(extent);
        }
        for part in self.message.sealed() {
            payload::read(part);
        }
        Ok(())
    }
}
