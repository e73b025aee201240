//! Errors say why a run failed: what happened, whose fault it is, what to do.

use std::io::{self, Write as _};

/// Exit code of a process whose neighbour's end was the reason for its own.
pub const FOLLOWED: u8 = 4;

/// What ends a run. [`MeasureError::blame`] and [`MeasureError::remedy`] complete the text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// Caller's: the hidden subcommand was started by hand.
    #[error("{} was started without a coordinator", crate::child::ARGUMENT)]
    NoCoordinator,
    /// The system's: a call that ordinarily succeeds did not.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The library refused; its own text says whose fault it is and what to do.
    #[error("{doing}: {source}")]
    Library {
        /// What was being done.
        doing: &'static str,
        /// What the library said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A peer's: a process of this run ended before its work was done.
    #[error("the {role} (process {pid}) ended early: {status}")]
    PeerDied {
        /// What it was for.
        role: String,
        /// Its process id.
        pid: u32,
        /// How it ended, in words.
        status: String,
        /// The same, for comparing.
        end: End,
    },
    /// A peer's: the other end of a control socket is closed.
    #[error("another process of this run is gone")]
    Gone,
    /// A peer's: a packet on the control socket makes no sense.
    #[error("another process of this run sent a packet that does not parse: {0}")]
    Garbled(serde_json::Error),
    /// A peer's: a call of another library brought something else back.
    #[error("a call of {sent} bytes by {system} brought back {came} that are not its answer")]
    WrongAnswer {
        /// Which library.
        system: &'static str,
        /// Bytes that the call took there.
        sent: usize,
        /// Bytes that it brought back.
        came: usize,
    },
    /// Nobody's: the reader of our output has gone away.
    #[error("nobody reads the output any more")]
    ReaderLeft,
}

/// How a process of this run ended, in the order in which it explains the others' ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// By a signal.
    Killed,
    /// By an error of its own.
    Failed,
    /// It only followed another one.
    Followed,
}

/// Shorthand for what most functions here return.
pub type Result<T> = std::result::Result<T, MeasureError>;

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The command line's.
    Caller,
    /// This system's.
    System,
    /// Another process's of the run.
    Peer,
    /// Ours.
    Portolan,
}

impl Blame {
    /// 2: the caller's (as for a wrong argument); 1: the system's or a peer's; 3: ours.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Caller => 2,
            Self::System | Self::Peer => 1,
            Self::Portolan => 3,
        }
    }

    /// Prints an error of this kind on standard error, with what to do about it.
    pub fn report(self, error: &dyn std::fmt::Display, remedy: &str) {
        let fault = match self {
            Self::Caller => "the command line's",
            Self::System => "this system's",
            Self::Peer => "another process's",
            Self::Portolan => "a bug in portolan, or a file that changed meanwhile",
        };
        let program = program();
        let mut to = std::io::stderr().lock();
        // The exit code says it still, where nobody reads this.
        let _ = writeln!(
            to,
            "{program}: {error}\n  fault: {fault}\n  to do: {remedy}"
        );
    }
}

impl MeasureError {
    /// For `map_err`: names what was being done.
    pub fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System {
            doing,
            source: source.into(),
        }
    }

    /// The same for an error of the library.
    pub fn library<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        doing: &'static str,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::Library {
            doing,
            source: source.into(),
        }
    }

    /// Whose fault it is.
    pub fn blame(&self) -> Blame {
        match self {
            Self::NoCoordinator => Blame::Caller,
            Self::System { .. } | Self::Library { .. } | Self::ReaderLeft => Blame::System,
            Self::PeerDied { .. } | Self::Gone | Self::Garbled(_) | Self::WrongAnswer { .. } => {
                Blame::Peer
            }
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoCoordinator => "run a command of the program, which starts it itself",
            Self::System { .. } | Self::Library { .. } => {
                "run `portolan doctor`; look at limits (ulimit -a) and at free memory"
            }
            Self::PeerDied { .. } => {
                "if nobody killed it, look for its own message above, and in the kernel log for the out-of-memory killer"
            }
            Self::Gone | Self::Garbled(_) | Self::WrongAnswer { .. } => {
                "run it again; if it repeats, report it"
            }
            Self::ReaderLeft => "nothing",
        }
    }

    /// What a program that ends with this error exits with.
    pub fn exit_code(&self) -> u8 {
        self.blame().exit_code()
    }

    /// Prints the whole error on standard error.
    pub fn report(&self) {
        self.blame().report(self, self.remedy());
    }
}

/// The running program's name: its file's.
fn program() -> String {
    let file = std::env::current_exe().unwrap_or_default();
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    if name.is_empty() {
        "portolan".to_owned()
    } else {
        name.into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_follow_the_blame() {
        let codes = [
            MeasureError::NoCoordinator,
            MeasureError::system("looking")(io::Error::from_raw_os_error(2)),
            MeasureError::Gone,
        ]
        .map(|error| (error.blame(), error.exit_code()));
        let expected = [(Blame::Caller, 2), (Blame::System, 1), (Blame::Peer, 1)];
        assert_eq!(codes, expected);
    }
}
