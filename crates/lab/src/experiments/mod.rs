//! Lists the experiments. [`experiment`](crate::experiment) says how to add one.

mod ablations;
pub(crate) mod breakdown;
pub(crate) mod chain;
mod figures;
mod head;
pub(crate) mod neighbour;
mod pages;
mod rpc;
mod scaling;
mod setup;
mod signals;
mod table4;
mod table5;
mod tables;
pub(crate) mod update;

use crate::experiment::Experiment;

/// All of them, in the page's order.
pub(crate) const ALL: &[&Experiment] = &[
    &head::EXPERIMENT,
    &tables::EXPERIMENT,
    &pages::EXPERIMENT,
    &figures::EXPERIMENT,
    &table4::EXPERIMENT,
    &table5::EXPERIMENT,
    &breakdown::EXPERIMENT,
    &ablations::EXPERIMENT,
    &chain::EXPERIMENT,
    &neighbour::EXPERIMENT,
    &signals::EXPERIMENT,
    &rpc::EXPERIMENT,
    &setup::EXPERIMENT,
    &scaling::EXPERIMENT,
    &update::EXPERIMENT,
];
