//! Stages deaths: for each rule of the recovery, one death that only this rule mends.
//!
//! A torture run meets such a death only now and then, and what was lost is often mended
//! by the next message. Here nothing is left to chance: three processes are put exactly
//! where the rule is needed, one of them dies at a mark, and the auditor looks at what is
//! left. With the rule switched off it must find something, with all rules on nothing.
//!
//! ```text
//! host          joins first, hosts, reclaims the victim
//! survivor      is owed something, or just stands by
//! victim        dies at the mark, in the one call that it makes after its cue
//! ```
//!
//! The rule is off in one of them: the host, or the victim, if it is the victim that keeps it.
//!
//! | file | what it does |
//! |---|---|
//! | `director` | starts the three, waits until they stand, and audits |
//! | `actor` | what is the same in all of them: being ready, the cue, the death |
//! | `scenes` | the deaths |

mod actor;
mod director;
mod scenes;

pub(crate) use actor::run as act;
pub(crate) use director::run;
pub(crate) use scenes::{SCENES, Scene};

use std::time::Duration;

/// How long anybody waits for what must come. No finding depends on it: it only ends a
/// run that can go no further.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Why a scene could not be played.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// Who somebody is in a scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    Host,
    Survivor,
    Victim,
}

impl Part {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Survivor => "survivor",
            Self::Victim => "victim",
        }
    }
}
