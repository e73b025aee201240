//! Errors say why a command failed: what happened, whose fault it is, what to do.

use std::io;
use std::path::PathBuf;

use portolan_measure::MeasureError;
use portolan_measure::error::Blame;

/// What ends a command. [`LabError::report`] adds whose fault it is and what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LabError {
    /// Caller's: there is no such experiment.
    #[error("there is no experiment {name:?}; there are {known}")]
    UnknownExperiment { name: String, known: String },
    /// Caller's: a result cannot be written.
    #[error("cannot write {path}: {source}")]
    Output { path: PathBuf, source: io::Error },
    /// Caller's: the report to compare with cannot be read.
    #[error("cannot read {path}: {source}")]
    Earlier { path: PathBuf, source: io::Error },
    /// Caller's: what is to be compared with is not a report.
    #[error("{path} is not a report of this program: {source}")]
    NotAReport {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// Caller's: a report of another version.
    #[error("{path} has format {found}; this program reads format {expected}")]
    OtherFormat {
        path: PathBuf,
        found: u32,
        expected: u32,
    },
    /// Caller's: what is named as this program with probes is not that.
    #[error("{path} is not this program built with probes: {why}")]
    NotTheProbes { path: PathBuf, why: String },
    /// While measuring; its own text says whose fault it is.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// Some experiments failed, as the report says; the others are in it.
    #[error("failed: {names}")]
    Failed { names: String },
}

/// Shorthand of this crate.
pub(crate) type Result<T> = std::result::Result<T, LabError>;

impl LabError {
    /// For `map_err`: names what was being done.
    pub(crate) fn library<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        doing: &'static str,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::Measure(MeasureError::library(doing)(source))
    }

    /// For what the crate `portolan-measure` calls back: what is not its error is the
    /// system's.
    pub(crate) fn into_measure(self) -> MeasureError {
        match self {
            Self::Measure(error) => error,
            other => MeasureError::system("measuring")(io::Error::other(other.to_string())),
        }
    }

    fn blame(&self) -> Blame {
        match self {
            Self::UnknownExperiment { .. }
            | Self::Output { .. }
            | Self::Earlier { .. }
            | Self::NotAReport { .. }
            | Self::OtherFormat { .. }
            | Self::NotTheProbes { .. } => Blame::Caller,
            Self::Measure(error) => error.blame(),
            Self::Failed { .. } => Blame::System,
        }
    }

    fn remedy(&self) -> &'static str {
        match self {
            Self::UnknownExperiment { .. } => "choose one of these, or `all`",
            Self::Output { .. } => "choose a directory that you may write (--out DIR)",
            Self::Earlier { .. } | Self::NotAReport { .. } => {
                "name the report.json that an earlier `run --out DIR` left"
            }
            Self::OtherFormat { .. } => {
                "make the earlier report again with this version, or compare by that version"
            }
            Self::NotTheProbes { .. } => {
                "build it of the same sources with --features probes, or name another (--probes PROGRAM)"
            }
            Self::Measure(error) => error.remedy(),
            Self::Failed { .. } => "the report says why, beside each; run that one alone",
        }
    }

    /// 2: the caller's (as for a wrong argument); 1: the system's or another process's.
    pub(crate) fn exit_code(&self) -> u8 {
        self.blame().exit_code()
    }

    /// Prints the whole error on standard error.
    pub(crate) fn report(&self) {
        self.blame().report(self, self.remedy());
    }
}
