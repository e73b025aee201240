//! Measures Portolan's channels: one each way, one from a peer to us, or one from us to many.
//!
//! Streams and round trips go over reliable channels, so that as many come as were
//! written. From one to many the channel is message-consistent: what is measured is the
//! writer, which waits for nobody, and a reader is done when it has read or missed all.

use std::os::fd::OwnedFd;

use portolan::channel::{
    Channel as Right, ChannelOptions, ReadError, Reader, ReaderOptions, Signalling, Writer,
    WriterCounts,
};
use portolan::{Deadline, Domain, Waiting};

use super::Endpoint;
use super::portolan::{MEETING, join, parent};
use crate::case::{Case, Mode, Pattern, Payload, Placement, SMALL, Shape, Signal};
use crate::error::{MeasureError, Result};
use crate::payload;
use crate::run::Counted;

/// Units of small messages, as many as the bare ring has slots.
const UNITS_SMALL: u64 = 2048;
/// Units of large messages, as many as the bare ring has.
const UNITS_LARGE: u64 = 8;
/// Bytes of a channel of messages over several units.
const RING: usize = 128 << 10;
const LINE: usize = 64;
/// Stamp and meta word.
const UNIT_HEAD: usize = 16;

/// One process's ends.
pub(crate) struct Channel {
    writer: Option<Writer>,
    reader: Option<Reader>,
    /// What is written; what was read lies in the reader.
    message: Vec<u8>,
    touched: bool,
    /// The row is about the writer's signals.
    counted: bool,
    written: u64,
    /// The position that we have read up to.
    read: u64,
    /// Units of a message.
    units: u64,
    /// Last: it is left after all that belongs to it.
    _domain: Domain,
}

/// From the coordinator, and to it.
const THERE: &str = "there";
const BACK: &str = "back";

fn options(case: &Case, name: &str) -> ChannelOptions {
    let bytes = usize::try_from(case.bytes).expect("64-bit only");
    let options = ChannelOptions::named(name);
    let options = match case.shape {
        _ if case.bytes <= SMALL => options.unit(LINE).units(UNITS_SMALL),
        // Units of a line, whatever the message: what is compared is when it is signalled.
        Shape::Signalled(_) => options.unit(LINE).units((4 * RING / LINE) as u64),
        _ => {
            let unit = (bytes + UNIT_HEAD).next_multiple_of(LINE);
            let units = (RING / unit).next_power_of_two() as u64;
            options.unit(unit).units(units.max(UNITS_LARGE))
        }
    };
    let options = match case.shape {
        Shape::Signalled(Signal::Never) => options.signal(Signalling::Never),
        Shape::Signalled(Signal::Bytes(bytes)) => options.signal(Signalling::Bytes(bytes)),
        _ => options.signal(Signalling::Message),
    };
    match case.pattern {
        Pattern::Multicast { .. } => options,
        _ => options.reliable(),
    }
}

fn refused(error: impl std::error::Error + Send + Sync + 'static) -> MeasureError {
    MeasureError::library("using a benchmark's channel")(error)
}

impl Channel {
    fn new(
        case: &Case,
        domain: Domain,
        writes: Option<&Right>,
        reads: Option<&Right>,
    ) -> Result<Self> {
        let bytes = usize::try_from(case.bytes).expect("64-bit only");
        let waiting = match (case.mode, case.pattern, case.placement) {
            // Polling on one CPU would only keep the other side from running.
            (Mode::Poll, _, Placement::TwoCpus) => Waiting::Poll,
            (_, Pattern::RoundTrip { .. }, _) => Waiting::Sleep,
            _ => Waiting::Adaptive,
        };
        let units = writes.or(reads).map_or(1, |channel| {
            bytes.div_ceil(channel.unit_payload()).max(1) as u64
        });
        let reader = reads.map(|channel| channel.bind_reader(ReaderOptions::default()));
        let mut reader = reader.transpose().map_err(refused)?;
        if let Some(reader) = &mut reader {
            reader.set_waiting(waiting);
        }
        let writer = writes.map(Right::bind_writer);
        Ok(Self {
            writer: writer.transpose().map_err(refused)?,
            reader,
            message: vec![1; bytes],
            touched: case.payload == Payload::Touched,
            counted: matches!(case.shape, Shape::Signalled(_)),
            written: 0,
            read: 0,
            units,
            _domain: domain,
        })
    }
}

/// Which of the two ways a row has.
fn ways(case: &Case) -> (bool, bool) {
    match case.pattern {
        Pattern::Multicast { .. } | Pattern::Paced => (true, false),
        Pattern::Stream | Pattern::FanIn { .. } => (false, true),
        Pattern::RoundTrip { .. } => (true, true),
    }
}

impl Endpoint for Channel {
    fn create(case: &Case) -> Result<(Self, Vec<OwnedFd>)> {
        let domain = join(case, std::process::id())?;
        let (there, back) = ways(case);
        let make = |wanted: bool, name| {
            let made = wanted.then(|| domain.make_channel(&options(case, name)));
            made.transpose().map_err(refused)
        };
        let (there, back) = (make(there, THERE)?, make(back, BACK)?);
        let end = Self::new(case, domain, there.as_ref(), back.as_ref())?;
        Ok((end, Vec::new()))
    }

    fn attach(case: &Case, _seat: u32, _descriptors: Vec<OwnedFd>) -> Result<Self> {
        let domain = join(case, parent()?)?;
        let (there, back) = ways(case);
        let find = |wanted: bool, name| {
            let found = wanted.then(|| domain.find_channel(name, MEETING));
            found.transpose().map_err(refused)
        };
        let (there, back) = (find(there, THERE)?, find(back, BACK)?);
        Self::new(case, domain, back.as_ref(), there.as_ref())
    }

    fn counts(&self) -> Vec<Counted> {
        let Some(writer) = self.writer.as_ref().filter(|_| self.counted) else {
            return Vec::new();
        };
        let WriterCounts { signals, wakes, .. } = writer.counts();
        [("signals", signals), ("wakes", wakes)]
            .map(Counted::new)
            .into()
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        self.written += 1;
        if self.touched {
            payload::write(&mut self.message, self.written);
        }
        if let Some(writer) = &mut self.writer {
            writer
                .write(&self.message, Deadline::NEVER)
                .map_err(refused)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self) -> Result<()> {
        self.read += self.units;
        let Some(reader) = &mut self.reader else {
            return Ok(());
        };
        // Where nobody waits for us, several may have gone by.
        while reader.position() < self.read {
            match reader.receive(Deadline::NEVER) {
                Ok(received) if self.touched => payload::read(&received),
                Ok(_) | Err(ReadError::Missed(_)) => {}
                Err(error) => return Err(refused(error)),
            }
        }
        Ok(())
    }
}
