//! Runs the further processes of an experiment.
//!
//! They are started with [`Child::start`](portolan_measure::child::Child::start), with a
//! [`Brief`] as their first packet. An experiment that has some adds its variant here; a
//! row of [`portolan_measure::run`] needs none.

use std::os::fd::OwnedFd;

use portolan_measure::child::Control;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::experiments::{chain, neighbour, update};
use crate::{calls, nodes, pair, stepped};

/// What a further process is for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Brief {
    Echo(pair::EchoBrief),
    Chain(chain::Brief),
    #[cfg(feature = "probes")]
    Breakdown(crate::experiments::breakdown::pair::Brief),
    Neighbour(neighbour::Brief),
    Calls(calls::ServerBrief),
    Stepped(stepped::Brief),
    Busy(update::busy::Brief),
    Nodes(nodes::Brief),
}

/// The whole life of a further process.
pub(crate) fn serve(brief: Brief, control: &Control, descriptors: Vec<OwnedFd>) -> Result<()> {
    match brief {
        Brief::Echo(brief) => pair::echo(&brief, control),
        Brief::Chain(brief) => chain::serve(&brief, control, descriptors),
        #[cfg(feature = "probes")]
        Brief::Breakdown(brief) => {
            crate::experiments::breakdown::pair::serve(&brief, control, descriptors)
        }
        Brief::Neighbour(brief) => neighbour::serve(&brief, control),
        Brief::Calls(brief) => calls::serve(&brief, control),
        Brief::Busy(brief) => update::busy::serve(&brief, control, descriptors),
        Brief::Nodes(brief) => nodes::serve(brief, control, descriptors),
        Brief::Stepped(brief) => stepped::serve(&brief, control, descriptors),
    }
}
