//! Measures emulated signal-on-write: the sender does nothing but store, and the trap signals.
//!
//! Each side stores to a page of its own that it has mapped for reading only. The handler of
//! the trap opens the page and signals a line of the other side in a domain; the other side
//! is told of that, and then looks for the store, which was not made yet when the signal went
//! out. The page is protected again while the other side has its turn.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use portolan::{Domain, Segment};
use portolan_instruments::tripwire::Tripwire;
use portolan_sys::shared::Window;

use super::Endpoint;
use super::memory::{self, LINE_PAIR, Spin};
use super::portolan::{MEETING, join, parent};
use super::signal::{SEGMENT, Told, sharing};
use crate::case::Case;
use crate::error::{MeasureError, Result};

/// Bytes of a page that one side stores to.
const PAGE: usize = 4096;

/// What a trap does, as a type that has no name.
type Tell = Box<dyn Fn(usize) + Send + Sync>;

/// One side.
pub(crate) struct OnWrite {
    wire: Tripwire<Tell>,
    theirs: Window,
    told: Told,
    sent: u64,
    received: u64,
    spin: Spin,
    _segment: Segment,
    /// Last: it is left after all that belongs to it.
    _domain: Domain,
}

impl OnWrite {
    fn new(
        case: &Case,
        domain: Domain,
        segment: Segment,
        side: usize,
        [ours, theirs]: [Window; 2],
    ) -> Result<Self> {
        let line = |side: usize| segment.address() + side * LINE_PAIR;
        let told = Told::new(case, &domain, line(side)..line(side) + LINE_PAIR)?;
        let (to, sender) = (line(1 - side), domain.clone());
        // A listener that the signal does not reach does not answer, which ends the run.
        let tell: Tell = Box::new(move |_| {
            let _ = sender.signal(to);
        });
        let wire = Tripwire::new(ours, tell)
            .map_err(MeasureError::library("protecting a benchmark's memory"))?;
        Ok(Self {
            wire,
            theirs,
            told,
            sent: 0,
            received: 0,
            spin: Spin::new(case),
            _segment: segment,
            _domain: domain,
        })
    }
}

impl Endpoint for OnWrite {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let domain = join(case, std::process::id())?;
        let segment = domain.make_segment(Some(SEGMENT), PAGE).map_err(sharing)?;
        let windows = [memory::create(PAGE)?, memory::create(PAGE)?];
        let mut shared = memory::share(&windows[0])?;
        shared.extend(memory::share(&windows[1])?);
        Ok((Self::new(case, domain, segment, 0, windows)?, shared))
    }

    fn attach(case: &Case, _seat: u32, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let domain = join(case, parent()?)?;
        let segment = domain.find_segment(SEGMENT, MEETING).map_err(sharing)?;
        let [first, second] = <[OwnedFd; 2]>::try_from(descriptors)
            .map_err(|_| MeasureError::NoCoordinator)?
            .map(|descriptor| memory::attach(vec![descriptor]));
        Self::new(case, domain, segment, 1, [second?, first?])
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        self.sent += 1;
        self.wire.store(0, self.sent);
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        self.wire
            .arm()
            .map_err(MeasureError::system("protecting a benchmark's memory"))?;
        self.told.wait()?;
        self.received += 1;
        let (word, expected): (&AtomicU64, u64) = (self.theirs.word(0), self.received);
        self.spin.until(|| word.load(Ordering::Acquire) == expected);
        Ok(())
    }
}
