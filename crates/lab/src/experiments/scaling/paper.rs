//! States the figures that the paper prints about its simulation, against which the model is
//! checked.

/// Shares of the speed-up of signals, consistency and signal on write, through a shared L2.
pub(super) const SHARES_NEAR: [f64; 3] = [0.79, 0.06, 0.15];
/// The same over three hops.
pub(super) const SHARES_THREE_HOPS: [f64; 3] = [0.56, 0.37, 0.07];
/// Table 2: what a call has beside its two messages.
pub(super) const RPC: f64 = 7e-6;
/// Table 4: a null RPC through a shared L2, with all optimisations and in software.
pub(super) const NULL_RPC: f64 = 44e-6;
pub(super) const NULL_RPC_SOFTWARE: f64 = 121e-6;
