//! Switches one rule of the recovery off, to see that an audit then finds what it lost.

use std::sync::OnceLock;

static OFF: OnceLock<String> = OnceLock::new();

/// The rules, as [`switch_off`] takes them: those of the reclaim, which the host follows after a
/// death, and `holes`, which a space that gives memory to the kernel follows against its own death.
pub const RULES: [&str; 12] = [
    "extents", "moving", "claims", "ports", "cycles", "rights", "chunks", "waits", "signals",
    "channels", "wakes", "holes",
];

/// Switches a rule off in this process, for good; the first call wins.
pub fn switch_off(rule: &str) {
    let _ = OFF.set(rule.to_owned());
}

pub(crate) fn holds(rule: &str) -> bool {
    OFF.get().is_none_or(|off| off != rule)
}
