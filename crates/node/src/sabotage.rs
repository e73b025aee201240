//! Switches one rule of the protocol off in this process, to see that an audit of several nodes
//! finds what that loses.

use std::sync::OnceLock;

use portolan_proto::node::Fault;

static OFF: OnceLock<Fault> = OnceLock::new();

/// The rules, as [`switch_off`] takes them: what was not acknowledged is sent again over the next
/// connection; what has come already is not delivered again; flows that wait are served in turn.
pub const RULES: [&str; 3] = ["resend", "duplicates", "fair-queue"];

/// Switches a rule off in the nodes that this process makes from now on; the first call wins.
pub fn switch_off(rule: &str) {
    let fault = match rule {
        "resend" => Fault::ForgetsToResend,
        "duplicates" => Fault::DeliversTwice,
        "fair-queue" => Fault::ServesLast,
        _ => return,
    };
    let _ = OFF.set(fault);
}

pub(crate) fn fault() -> Option<Fault> {
    OFF.get().copied()
}
