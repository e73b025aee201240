//! Measures each part of a call, message by message, in one process and in cache.

use std::hint::black_box;
use std::time::Duration;

use portolan::channel::{ChannelOptions, Reader, ReaderOptions, Signalling, Writer};
use portolan::{Deadline, Domain};

use crate::calls::SMALL;
use crate::clock::{self, Timed};
use crate::error::{LabError, Result};
use crate::experiment::Context;

/// What is done for one message, measured alone.
pub(super) struct Parts {
    pub(super) marshal: Timed,
    signalled: Timed,
    pub(super) unmarshal: Timed,
}

impl Parts {
    pub(super) fn measure(context: &Context<'_>) -> Result<Self> {
        let (slices, least) = context.pick(
            (3, Duration::from_micros(100)),
            (31, Duration::from_millis(2)),
        );
        context.progress.step("components");
        let domain = Domain::builder("lab-rpc")
            .limit(64 << 20)
            .private()
            .map_err(LabError::library("making a domain for components"))?;
        let quiet = Ends::new(&domain, Signalling::Never)?;
        let loud = Ends::new(&domain, Signalling::Message)?;
        let [mut quiet, mut loud] = [quiet, loud];
        let mut times: [Vec<f64>; 3] = Default::default();
        for _ in 0..slices {
            let once = |work: &mut dyn FnMut()| clock::each(1, least, work).median();
            times[0].push(once(&mut || quiet.write()));
            times[1].push(once(&mut || loud.write()));
            quiet.catch_up();
            times[2].push(once(&mut || {
                quiet.write();
                quiet.read();
            }));
        }
        let both = &times[2];
        let unmarshal = both.iter().zip(&times[0]).map(|(both, one)| both - one);
        Ok(Self {
            unmarshal: Timed::of(unmarshal.collect()),
            marshal: Timed::of(times[0].clone()),
            signalled: Timed::of(times[1].clone()),
        })
    }

    /// What the signal adds.
    pub(super) fn signal(&self) -> f64 {
        (self.signalled.median() - self.marshal.median()).max(0.0)
    }

    /// All of it.
    pub(super) fn sum(&self) -> f64 {
        self.marshal.median() + self.signal() + self.unmarshal.median()
    }
}

/// A channel with both its ends.
struct Ends {
    writer: Writer,
    reader: Reader,
}

impl Ends {
    fn new(domain: &Domain, signalling: Signalling) -> Result<Self> {
        let doing = "making a channel for components";
        let options = ChannelOptions::unnamed().signal(signalling);
        let channel = domain.make_channel(&options);
        let channel = channel.map_err(LabError::library(doing))?;
        Ok(Self {
            reader: channel
                .bind_reader(ReaderOptions::default())
                .map_err(LabError::library(doing))?,
            writer: channel.bind_writer().map_err(LabError::library(doing))?,
        })
    }

    fn write(&mut self) {
        // A message-consistent channel has room for what fits it.
        let written = self.writer.write(black_box(&[7; SMALL]), Deadline::NOW);
        black_box(written.is_ok());
    }

    fn read(&mut self) {
        let mut bytes = [0_u8; SMALL];
        if let Ok(message) = self.reader.receive(Deadline::NOW) {
            bytes.copy_from_slice(&message[..SMALL]);
        }
        black_box(bytes);
    }

    /// What was written and not read is missed, once.
    fn catch_up(&mut self) {
        while self.reader.receive(Deadline::NOW).is_ok() {}
    }
}
