//! Runs a process that sends to itself, which passes every segment but the wake.

use portolan::probes::{self, Point, Points};
use portolan::{
    Access, Deadline, Domain, Message, PortOptions, Protection, ReceiveRight, SendRight,
};

use super::load::Load;
use super::statistics::Statistics;
use super::trace::Trace;
use crate::error::{LabError, Result};

pub(super) struct Alone {
    port: ReceiveRight,
    right: SendRight,
    message: Message,
    load: Load,
    access: Access,
    touched: bool,
    _domain: Domain,
}

impl Alone {
    pub(super) fn new(
        protection: Protection,
        load: Load,
        access: Access,
        touched: bool,
    ) -> Result<Self> {
        let doing = "making a domain for the breakdown";
        let domain = Domain::builder("lab-breakdown")
            .protection(protection)
            .limit(64 << 20)
            .private()
            .map_err(LabError::library(doing))?;
        let port = domain
            .bind(PortOptions::unnamed().inline_bytes(load.inline_bytes()))
            .map_err(LabError::library(doing))?;
        Ok(Self {
            right: port.make_send(),
            port,
            message: load.message(&domain)?,
            load,
            access,
            touched,
            _domain: domain,
        })
    }

    #[inline]
    fn round(&mut self) -> Result<()> {
        let message = &mut self.message;
        self.right
            .send_from(message, Deadline::NOW)
            .map_err(LabError::library("sending to a port of this process"))?;
        probes::pass(Point::SendReturned);
        self.port
            .receive_into(message, self.access, Deadline::NOW)
            .map_err(LabError::library("receiving from a port of this process"))?;
        probes::pass(Point::ReceiveReturned);
        if self.touched {
            self.load.touch(message);
        }
        Ok(())
    }

    /// So many rounds with a probe at either end only.
    pub(super) fn plain(&mut self, rounds: usize, statistics: &mut Statistics) -> Result<()> {
        probes::turn_on([Point::Empty].into_iter().collect());
        for _ in 0..rounds {
            probes::begin();
            self.round()?;
            probes::pass(Point::Empty);
            statistics.plain(&Trace::of(&probes::collect()));
        }
        probes::turn_off();
        statistics.end_batch();
        Ok(())
    }

    /// So many rounds with the `points` on.
    pub(super) fn probed(
        &mut self,
        rounds: usize,
        points: Points,
        statistics: &mut Statistics,
    ) -> Result<()> {
        probes::turn_on(points);
        for _ in 0..rounds {
            probes::begin();
            self.round()?;
            statistics.round(&Trace::of(&probes::collect()));
        }
        probes::turn_off();
        statistics.end_batch();
        Ok(())
    }
}
