//! Runs the neighbour: a process that reads memory all the time, more than any cache holds, and
//! says how much it read.

use std::hint::black_box;
use std::time::{Duration, Instant};

use portolan_measure::child::{Child, Control};
use portolan_measure::cpus;
use portolan_measure::payload;
use portolan_sys::machine;
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// Between two looks at the clock.
const STRIDE: usize = 256 << 10;

/// What the neighbour is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Brief {
    /// Of memory, more than the caches hold.
    bytes: usize,
    cpu: usize,
}

/// Read for so long.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    nanos: u64,
}

/// Ready, or so many bytes in so much processor time, in which other users of the processor do not
/// count.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    bytes: u64,
    nanos: u64,
}

/// The neighbour, from the coordinator's side.
pub(super) struct Neighbour(Child);

impl Neighbour {
    pub(super) fn start(bytes: usize, cpu: usize) -> Result<Self> {
        let brief = crate::child::Brief::Neighbour(Brief { bytes, cpu });
        let mut child = Child::start("neighbour", &brief, &[])?;
        let Answer { .. } = child.expect()?;
        child.watch()?;
        Ok(Self(child))
    }

    /// Seconds of its processor that a byte takes the neighbour while `meanwhile` goes on; that should take
    /// about `time`.
    pub(super) fn reads(
        &mut self,
        time: Duration,
        meanwhile: impl FnOnce() -> Result<()>,
    ) -> Result<f64> {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.send(&Order { nanos })?;
        meanwhile()?;
        let Answer { bytes, nanos } = self.0.expect()?;
        Ok(Duration::from_nanos(nanos).as_secs_f64() / bytes as f64)
    }

    pub(super) fn finish(self) -> Result<()> {
        Ok(self.0.dismiss()?)
    }
}

/// The whole life of the neighbour.
pub(crate) fn serve(brief: &Brief, control: &Control) -> Result<()> {
    cpus::pin(brief.cpu)?;
    // Ones, so that every page is there, and another.
    let memory = vec![1_u8; brief.bytes.next_multiple_of(STRIDE)];
    let mut strides = memory.chunks_exact(STRIDE).cycle();
    control.send(&Answer { bytes: 0, nanos: 0 })?;
    while let Some(Order { nanos }) = control.receive()? {
        let time = Duration::from_nanos(nanos);
        let (start, before) = (Instant::now(), machine::cpu_time());
        let mut bytes = 0;
        loop {
            payload::read(black_box(strides.next().unwrap_or_default()));
            bytes += STRIDE as u64;
            if start.elapsed() >= time {
                break;
            }
        }
        let took = machine::cpu_time() - before;
        control.send(&Answer {
            bytes,
            nanos: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
        })?;
    }
    Ok(())
}
