//! Errors say why a connection cannot be made or has failed, and whose fault it is.

use std::fmt;
use std::io;

use crate::{Address, Class, NodeId};

/// Why a transport could not do what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The caller's: this transport does not take such addresses.
    #[error("{transport} does not take the address {address}")]
    WrongAddress {
        /// The transport.
        transport: &'static str,
        /// The address.
        address: Address,
    },
    /// The caller's or the system's: nothing can listen there.
    #[error("cannot listen at {address}: {reason}")]
    CannotListen {
        /// Where.
        address: Address,
        /// The system's reason.
        reason: String,
    },
    /// The peer's or the network's: no connection came about.
    #[error("cannot connect to {address}: {reason}")]
    CannotConnect {
        /// Where.
        address: Address,
        /// The system's reason.
        reason: String,
    },
    /// The caller's: the connection has no more streams of the class.
    #[error(
        "a connection of this transport has {most} streams of class {class:?}, and all are open"
    )]
    NoMoreStreams {
        /// The class.
        class: Class,
        /// How many there are.
        most: u16,
    },
    /// The process's or the system's: no descriptor is free.
    #[error("no file descriptor is free for a connection ({reason}): raise `ulimit -n`")]
    Descriptors {
        /// The system's reason.
        reason: String,
    },
    /// The peer's or the network's: the connection broke.
    #[error("the connection broke: {reason}")]
    Broken {
        /// The system's reason.
        reason: String,
    },
    /// The peer's or the network's: the stream stops without the peer's end, as after a cut.
    #[error("the connection stopped in the middle: its peer did not end it")]
    Truncated,
    /// The peer's or the network's: it did not say what it has to say in time.
    #[error("the peer did not finish its handshake within {seconds} s")]
    HandshakeTimedOut {
        /// How long it had.
        seconds: u64,
    },
    /// The peer's: what it said first is not of this protocol.
    #[error("the peer does not speak Portolan: {what}")]
    NotPortolan {
        /// What is wrong.
        what: String,
    },
    /// The peer's: it speaks another version of the transport's preface.
    #[error("the peer speaks version {theirs} of the transport, this node {ours}")]
    OtherVersion {
        /// The peer's.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The peer's, or a stranger's between: bytes that break the rules of TLS.
    #[error("the peer broke the rules of TLS: {what}")]
    NotTls {
        /// What rustls says.
        what: String,
    },
    /// The peer's: its certificate's time is over.
    #[error(
        "the certificate of node {node} expired at {not_after} and it is {now}: renew it there, or set the clock of one of the two"
    )]
    Expired {
        /// Whose.
        node: NodeId,
        /// Until when it was valid.
        not_after: Moment,
        /// What our clock says.
        now: Moment,
    },
    /// The peer's or ours: its certificate's time has not come, by our clock.
    #[error(
        "the certificate of node {node} is valid from {not_before} on and it is {now}: set the clock of one of the two"
    )]
    NotYetValid {
        /// Whose.
        node: NodeId,
        /// From when it is valid.
        not_before: Moment,
        /// What our clock says.
        now: Moment,
    },
    /// The peer's: its certificate is of another authority.
    #[error(
        "node {node} has a certificate of {theirs}, and this node belongs to {ours}: they are of different clusters"
    )]
    Foreign {
        /// Whose.
        node: NodeId,
        /// The authority that it names.
        theirs: String,
        /// Ours.
        ours: String,
    },
    /// Ours: somebody has said that this node is to be refused.
    #[error("node {node} was forgotten here: it may not come back under its key")]
    Forgotten {
        /// Whose.
        node: NodeId,
    },
    /// The caller's or the network's: another node answers there.
    #[error("node {found} answers where node {wanted} was expected")]
    OtherNode {
        /// Who was expected.
        wanted: NodeId,
        /// Who is there.
        found: NodeId,
    },
    /// The peer's: it has shown no certificate where it must.
    #[error("the peer has shown no certificate")]
    NoCertificate,
    /// The peer's: its certificate cannot be read, or is not for this.
    #[error("the peer's certificate is not usable: {what}")]
    BadCertificate {
        /// What is wrong with it.
        what: String,
    },
    /// The peer refused us; what it says of the reason.
    #[error("the peer refused this node's certificate: it says {alert}")]
    RefusedUs {
        /// The alert, in words.
        alert: &'static str,
    },
    /// A listener's: a client was refused.
    #[error("refused a connection from {from}: {reason}")]
    Refused {
        /// Where it came from.
        from: Address,
        /// Why.
        reason: Box<TransportError>,
    },
    /// The peer's, or a crowd's: too many connections that are not made yet.
    #[error("{count} connections from {whose} are being made already, at most {most} may be")]
    TooManyHalfOpen {
        /// How many.
        count: usize,
        /// Of whom.
        whose: &'static str,
        /// The bound.
        most: usize,
    },
    /// The process's: memory that is not there was to be sent or received into.
    #[error("a range of memory that was to be moved is not mapped")]
    NotMapped,
    /// The machine's: the kernel refused.
    #[error("{doing}: {reason}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// The kernel's reason.
        reason: String,
    },
}

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The caller's.
    Caller,
    /// The other end's, or of what lies between.
    Peer,
    /// This machine's.
    System,
}

impl TransportError {
    /// Whose fault it is.
    pub fn blame(&self) -> Blame {
        match self {
            Self::WrongAddress { .. }
            | Self::CannotListen { .. }
            | Self::NoMoreStreams { .. }
            | Self::NotMapped => Blame::Caller,
            Self::Descriptors { .. } | Self::System { .. } => Blame::System,
            _ => Blame::Peer,
        }
    }

    pub(crate) fn system(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| match error.raw_os_error() {
            Some(libc_errno::EMFILE | libc_errno::ENFILE) => Self::Descriptors {
                reason: error.to_string(),
            },
            _ => Self::System {
                doing,
                reason: error.to_string(),
            },
        }
    }

    /// Why a system call on a connection failed.
    pub(crate) fn broken(error: &io::Error) -> Self {
        if error.raw_os_error() == Some(libc_errno::EFAULT) {
            return Self::NotMapped;
        }
        Self::Broken {
            reason: error.to_string(),
        }
    }
}

/// The few numbers that are looked at.
mod libc_errno {
    pub(super) const EMFILE: i32 = 24;
    pub(super) const ENFILE: i32 = 23;
    pub(super) const EFAULT: i32 = 14;
}

/// A time of day, in UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Seconds since 1970.
    pub seconds: u64,
}

impl fmt::Display for Moment {
    /// As in RFC 3339.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, rest) = (self.seconds / 86_400, self.seconds % 86_400);
        let (year, month, day) = date(days);
        let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"
        )
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The date of a day since 1970, by the Gregorian calendar, whose days repeat after 400 years.
fn date(days: u64) -> (u64, u64, u64) {
    // Years begin in March here, so that the day of a leap year is its last.
    let days = days.saturating_add(719_468);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_read_as_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
        ] {
            assert_eq!(Moment { seconds }.to_string(), text);
        }
        // However far.
        let _ = Moment { seconds: u64::MAX }.to_string();
    }
}
