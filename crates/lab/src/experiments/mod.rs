//! Lists the experiments. [`experiment`](crate::experiment) says how to add one.

mod ablations;
pub(crate) mod breakdown;
pub(crate) mod chain;
mod figures;
mod head;
pub(crate) mod neighbour;
mod nodes;
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
    &nodes::rpc::EXPERIMENT,
    &nodes::throughput::EXPERIMENT,
    &nodes::concurrency::EXPERIMENT,
    &nodes::flow::EXPERIMENT,
];

/// Experiments that a run may name together.
pub(crate) const GROUPS: &[(&str, &[&Experiment])] = &[(
    "nodes",
    &[
        &nodes::rpc::EXPERIMENT,
        &nodes::throughput::EXPERIMENT,
        &nodes::concurrency::EXPERIMENT,
        &nodes::flow::EXPERIMENT,
    ],
)];
