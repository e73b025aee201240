//! Which mechanisms this kernel and this machine offer, and what Portolan loses without.
//!
//! A mechanism counts as present only if it was tried and worked, here and now, with
//! the rights of this process.

mod kernel;
mod machine;

/// One mechanism.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name.
    pub name: &'static str,
    /// Whether it works here.
    pub present: bool,
    /// What was seen: a value, or the reason why it does not work.
    pub detail: String,
    /// What Portolan loses where it does not.
    pub without: &'static str,
}

/// What a trial says: what was seen, or why it failed.
type Outcome = Result<String, String>;

/// A mechanism's name, its trial, and what is lost without it.
struct Trial {
    name: &'static str,
    run: fn() -> Outcome,
    without: &'static str,
}

/// Tries every mechanism. Takes a few milliseconds and a few megabytes.
///
/// # Examples
///
/// ```
/// for feature in portolan_sys::probe::probe() {
///     println!("{:30} {:5} {}", feature.name, feature.present, feature.detail);
/// }
/// ```
pub fn probe() -> Vec<Feature> {
    let trials = kernel::TRIALS.iter().chain(machine::TRIALS);
    trials
        .map(|trial| {
            let outcome = (trial.run)();
            let present = outcome.is_ok();
            let detail = outcome.unwrap_or_else(|reason| reason);
            Feature {
                name: trial.name,
                present,
                detail,
                without: trial.without,
            }
        })
        .collect()
}
