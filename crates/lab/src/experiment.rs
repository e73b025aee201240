//! Defines an experiment, and says how to add one.
//!
//! # To add an experiment
//!
//! 1. A file in `experiments/` with a `pub(crate) const EXPERIMENT: Experiment` that says
//!    what is asked, and a function `fn run(context: &Context) -> Result<Outcome>` that
//!    answers it. The paper's own figures stand as constants at the top of the file.
//! 2. Its line in [`experiments::ALL`](crate::experiments::ALL), in the page's order.
//!    Everything else follows from that: `list`, `run`, text, page, JSON, comparison.
//!
//! The function measures and fills an [`Outcome`]:
//!
//! - Figures are in the units of [`Unit`](crate::unit::Unit): seconds, bytes, bytes a
//!   second; the paper's too.
//! - What this machine cannot do is not an error: ask [`Context::lacks`] and note it with
//!   [`Outcome::leave_out`]. If *nothing* can be done without it, name it in `needs`.
//! - A verdict is made from a claim of [`claims::table`](crate::claims::table), which has the
//!   rule; the experiment brings the figures, each with its spread, and a paragraph made from
//!   them. Tests ask of a new claim for figures at which it holds and at which it does not.
//! - [`Context::pick`] chooses between a quick run and a full one. A quick run has every
//!   row and every verdict; a test runs it and looks at structure, never at a time.
//! - Ids, rows and columns keep their names from run to run: comparison goes by them.
//!
//! # Further processes
//!
//! A process of an experiment is this program again, under a hidden subcommand, with a
//! control socket as its standard input, and is gone when the coordinator is; see
//! [`portolan_measure::child`]. There are two ways to have one:
//!
//! - A row of `portolan bench` ([`portolan_measure::run::start`]) brings its own.
//! - For work of its own an experiment adds a variant to [`Brief`](crate::child::Brief)
//!   and its arm to [`serve`](crate::child::serve), and starts it with
//!   [`Child::start`](portolan_measure::child::Child::start). In a busy loop beside it,
//!   [`Child::watch`](portolan_measure::child::Child::watch) it.

use portolan_measure::cpus::Cpus;

use crate::args::FeatureName;
use crate::error::Result;
use crate::outcome::Outcome;
use crate::progress::Progress;

/// One experiment: what is asked, and how it is answered.
pub(crate) struct Experiment {
    /// For the command line.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) source: Source,
    /// What the paper leads one to expect here.
    pub(crate) hypothesis: &'static str,
    /// How it is measured, for a reader who would do it again.
    pub(crate) method: &'static str,
    /// Without any of these there is no row at all.
    pub(crate) needs: &'static [Need],
    pub(crate) run: fn(&Context<'_>) -> Result<Outcome>,
}

/// Where in the papers the figures come from.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub(crate) paper: &'static str,
    pub(crate) section: &'static str,
}

/// Tzou and Anderson's paper.
pub(crate) const DASH: &str = "Tzou, Anderson: The Performance of Message-passing using \
    Restricted Virtual Memory Remapping. Software: Practice and Experience 21 (3), 1991";

/// The same authors' earlier report.
pub(crate) const DASH_88: &str = "Tzou, Anderson: A Performance Evaluation of the Dash \
    Message-Passing System. Technical Report UCB/CSD-88-452, 1988";

/// Cheriton and Kutter's paper.
pub(crate) const MBM: &str = "Cheriton, Kutter: Optimized Memory-Based Messaging: Leveraging \
    the Memory System for High-Performance Communication. Computing Systems 9 (3), 1996";

/// Dubnicki, Iftode, Felten and Li's paper.
pub(crate) const VMMC: &str = "Dubnicki, Iftode, Felten, Li: Software Support for Virtual \
    Memory-Mapped Communication. IPPS 1996";

/// Milojević, Langerman, Black, Sears, Dominijanni and Dean's paper.
pub(crate) const DIPC: &str = "Milojević, Langerman, Black, Sears, Dominijanni, Dean: Concurrency, \
    a Case Study in Remote Tasking and Distributed IPC. OSF Research Institute";

/// What an experiment, or a row of one, cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// So many processors.
    Cpus(usize),
    /// Guarded domains.
    Guarded,
    /// Other libraries to measure against.
    Peers,
    /// A build with the library's probes.
    Probes,
    /// So many bytes of memory to be had.
    Memory(u64),
}

/// What an experiment runs with.
pub(crate) struct Context<'a> {
    pub(crate) quick: bool,
    pub(crate) cpus: &'a Cpus,
    pub(crate) features: &'a Features,
    pub(crate) progress: &'a Progress,
}

impl Context<'_> {
    /// Why `need` is not met here; `None` if it is.
    pub(crate) fn lacks(&self, need: Need) -> Option<String> {
        match need {
            Need::Cpus(wanted) => {
                let found = self.cpus.count();
                (found < wanted)
                    .then(|| format!("it needs {wanted} processors, and may use {found}"))
            }
            Need::Guarded => self.features.unguarded.clone(),
            Need::Peers => self.features.unpeered.clone(),
            Need::Probes => (!portolan::probes::COMPILED).then(|| {
                "it needs a build with probes: this one (cargo run --release -p portolan-lab \
                 --features probes -- run ...), or another for it alone (--probes PROGRAM)"
                    .to_owned()
            }),
            Need::Memory(wanted) => {
                let found = portolan_sys::machine::available();
                (found < wanted).then(|| {
                    let show = |bytes: u64| crate::unit::Unit::Bytes.show(bytes as f64);
                    format!(
                        "it needs {} of memory, and {} are to be had",
                        show(wanted),
                        show(found)
                    )
                })
            }
        }
    }

    /// Bytes that no cache holds; in a quick run only as many as show that it works.
    pub(crate) fn cold_bytes(&self) -> u64 {
        self.pick(4 << 20, crate::copies::beyond_caches())
    }

    /// `quick` in a quick run, else `full`.
    pub(crate) fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// What was found out about the machine before the first experiment.
#[derive(Debug)]
pub(crate) struct Features {
    /// Why there are no guarded domains here.
    unguarded: Option<String>,
    /// Why there are no rows of other libraries.
    unpeered: Option<String>,
}

impl Features {
    /// Tries each, except those that are to be done `without`.
    pub(crate) fn probe(without: &[FeatureName]) -> Self {
        let unguarded = if without.contains(&FeatureName::Guarded) {
            Some("this run is without guarded domains (--without guarded)".to_owned())
        } else {
            portolan::Domain::builder("lab-probe")
                .protection(portolan::Protection::Guarded)
                .private()
                .err()
                .map(|error| format!("no guarded domains here: {error}"))
        };
        let unpeered = if !cfg!(feature = "peers") {
            Some(
                "this program was built without other libraries (feature `peers`: cargo run \
                 --release -p portolan-lab --features peers -- run ...; that needs libclang)"
                    .to_owned(),
            )
        } else if without.contains(&FeatureName::Peers) {
            Some("this run is without other libraries (--without peers)".to_owned())
        } else {
            None
        };
        Self {
            unguarded,
            unpeered,
        }
    }
}
