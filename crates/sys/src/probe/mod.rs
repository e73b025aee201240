//! Finds out which mechanisms this kernel and this machine offer, and says what Portolan loses
//! without.
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
    /// How much that is.
    pub need: Need,
}

/// How much Portolan needs a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing works without it.
    Required,
    /// Something is slower, weaker or absent without it.
    Wanted,
    /// As [`Wanted`](Self::Wanted), but only where the mechanism of this name is missing too.
    Alternative(&'static str),
    /// Nothing is lost without it.
    Unused,
}

/// What a trial says: what was seen, or why it failed.
type Outcome = Result<String, String>;

/// A mechanism's name, its trial, what is lost without it, and how much that is.
struct Trial {
    name: &'static str,
    run: fn() -> Outcome,
    without: &'static str,
    need: Need,
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
                need: trial.need,
            }
        })
        .collect()
}

impl Feature {
    /// Whether it is missing, and that costs something here: `all` are the others that were tried.
    ///
    /// # Examples
    ///
    /// ```
    /// use portolan_sys::probe::probe;
    /// let features = probe();
    /// let lost = features.iter().filter(|feature| feature.is_missed(&features));
    /// println!("works, without {:?}", lost.map(|feature| feature.name).collect::<Vec<_>>());
    /// ```
    pub fn is_missed(&self, all: &[Self]) -> bool {
        let needed = match self.need {
            Need::Required | Need::Wanted => true,
            Need::Alternative(other) => !all.iter().any(|f| f.name == other && f.present),
            Need::Unused => false,
        };
        needed && !self.present
    }
}
