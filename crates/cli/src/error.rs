//! Why a command failed: what happened, whose fault it is, what to do.

use std::io;
use std::path::PathBuf;

/// Exit code of a process whose neighbour's end was the reason for its own.
pub(crate) const FOLLOWED: u8 = 4;

/// What ends a command. [`CliError::blame`] and [`CliError::remedy`] complete the text.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// Caller's: the input cannot be opened.
    #[error("cannot open {path}: {source}")]
    Input { path: PathBuf, source: io::Error },
    /// Caller's: the input is a directory, a device or a pipe.
    #[error("{path} is not a regular file")]
    NotAFile { path: PathBuf },
    /// Caller's: the output cannot be made.
    #[error("cannot write {path}: {source}")]
    Output { path: PathBuf, source: io::Error },
    /// Caller's: no row contains the filter's word.
    #[error("no row of this benchmark contains {word:?}")]
    NothingMatches { word: String },
    /// Caller's: the hidden subcommand was started by hand.
    #[error("__peer was started without a coordinator")]
    NoCoordinator,
    /// The system's: a call that ordinarily succeeds did not.
    #[error("{doing}: {source}")]
    System {
        doing: &'static str,
        source: io::Error,
    },
    /// The library refused; its own text says whose fault it is and what to do.
    #[error("{doing}: {source}")]
    Library {
        doing: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A peer's: a process of this run ended before its work was done.
    #[error("the {role} (process {pid}) ended early: {status}")]
    PeerDied {
        role: String,
        pid: u32,
        status: String,
        end: End,
    },
    /// A peer's: the other end of a control socket is closed.
    #[error("another process of this run is gone")]
    Gone,
    /// A peer's: a neighbour in the chain closed its end in the middle of the work.
    #[error("the {role} lost its neighbour: {source}")]
    NeighbourLost {
        role: &'static str,
        source: io::Error,
    },
    /// A peer's: a packet on the control socket makes no sense.
    #[error("another process of this run sent a packet that does not parse: {0}")]
    Garbled(serde_json::Error),
    /// Ours: the data that arrived is not the data that was sent.
    #[error("{carrier}: {what} has digest {found}, expected {expected}")]
    WrongDigest {
        carrier: &'static str,
        what: &'static str,
        found: String,
        expected: String,
    },
    /// Ours: blocks arrived out of order, or without a stamp.
    #[error("the writer expected block {expected} and got block {found}")]
    OutOfOrder { expected: u64, found: u64 },
    /// Nobody's: the reader of our output has gone away.
    #[error("nobody reads the output any more")]
    ReaderLeft,
}

/// How a process of this run ended, in the order in which it explains the others' ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Killed,
    Failed,
    /// It only followed another one.
    Followed,
}

/// Shorthand of this crate.
pub(crate) type Result<T> = std::result::Result<T, CliError>;

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    Caller,
    System,
    Peer,
    Portolan,
}

impl CliError {
    /// For `map_err`: names what was being done.
    pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System {
            doing,
            source: source.into(),
        }
    }

    /// The same for an error of the library.
    pub(crate) fn library<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        doing: &'static str,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::Library {
            doing,
            source: source.into(),
        }
    }

    pub(crate) fn blame(&self) -> Blame {
        match self {
            Self::Input { .. }
            | Self::NotAFile { .. }
            | Self::Output { .. }
            | Self::NothingMatches { .. }
            | Self::NoCoordinator => Blame::Caller,
            Self::System { .. } | Self::Library { .. } | Self::ReaderLeft => Blame::System,
            Self::PeerDied { .. } | Self::Gone | Self::NeighbourLost { .. } | Self::Garbled(_) => {
                Blame::Peer
            }
            Self::WrongDigest { .. } | Self::OutOfOrder { .. } => Blame::Portolan,
        }
    }

    fn remedy(&self) -> &'static str {
        match self {
            Self::Input { .. } => "name a file that exists and that you may read",
            Self::NotAFile { .. } => "name a regular file, or none for generated data",
            Self::Output { .. } => {
                "choose a directory that you may write and that has room (--output FILE)"
            }
            Self::NothingMatches { .. } => "run without --filter to see the columns to choose from",
            Self::NoCoordinator => {
                "run `portolan bench` or `portolan demo`, which start it themselves"
            }
            Self::System { .. } | Self::Library { .. } => {
                "run `portolan doctor`; look at limits (ulimit -a) and at free memory"
            }
            Self::PeerDied { .. } => {
                "if nobody killed it, look for its own message above, and in the kernel log for the out-of-memory killer"
            }
            Self::Gone | Self::NeighbourLost { .. } | Self::Garbled(_) => {
                "run it again; if it repeats, report it"
            }
            Self::WrongDigest { .. } | Self::OutOfOrder { .. } => {
                "if the file changed during the run, run it again; otherwise report it with this output"
            }
            Self::ReaderLeft => "nothing",
        }
    }

    /// 2: the caller's (as for a wrong argument); 1: the system's or a peer's; 3: ours.
    pub(crate) fn exit_code(&self) -> u8 {
        match self.blame() {
            _ if matches!(self, Self::NeighbourLost { .. }) => FOLLOWED,
            Blame::Caller => 2,
            Blame::System | Blame::Peer => 1,
            Blame::Portolan => 3,
        }
    }

    /// Prints the whole error on standard error.
    pub(crate) fn report(&self) {
        if matches!(self, Self::NeighbourLost { .. }) {
            // The coordinator says which neighbour, and why.
            return;
        }
        let fault = match self.blame() {
            Blame::Caller => "the command line's",
            Blame::System => "this system's",
            Blame::Peer => "another process's of this run",
            Blame::Portolan => "a bug in portolan, or a file that changed meanwhile",
        };
        eprintln!(
            "portolan: {self}\n  fault: {fault}\n  to do: {}",
            self.remedy()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_follow_the_blame() {
        let no_file = CliError::Input {
            path: "/x".into(),
            source: io::Error::from_raw_os_error(2),
        };
        assert_eq!((no_file.blame(), no_file.exit_code()), (Blame::Caller, 2));
        let late = CliError::OutOfOrder {
            expected: 1,
            found: 2,
        };
        assert_eq!((late.blame(), late.exit_code()), (Blame::Portolan, 3));
    }
}
