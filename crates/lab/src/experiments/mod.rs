//! The experiments. [`experiment`](crate::experiment) says how to add one.

mod head;
mod table4;
mod table5;

use crate::experiment::Experiment;

/// All of them, in the page's order.
pub(crate) const ALL: &[&Experiment] =
    &[&head::EXPERIMENT, &table4::EXPERIMENT, &table5::EXPERIMENT];
