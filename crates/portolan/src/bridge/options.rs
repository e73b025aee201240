//! Options set up an offer to other domains, and a connection to one.

use crate::channel::Lagging;
use crate::{AccessToken, Deadline, Protection};
use portolan_abi::bridge::{MAX_REQUESTS, RING_BYTES};
use std::time::Duration;

/// Waits for a host, or for the other side, unless the caller says otherwise.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a message, unless the caller says otherwise.
const MOST: u64 = 256 << 20;
/// Clients, unless the caller says otherwise.
const CLIENTS: usize = 64;
/// Requests of a client that are with the server, unless the caller says otherwise.
const REQUESTS: usize = 64;
/// Bytes of a client's byte ring, at the most, unless the caller says otherwise.
const MOST_RING_BYTES: u64 = 4 << 20;
/// Bytes of the byte ring there, unless the caller says otherwise: large enough that a
/// side waits seldom for the other side, which wakes it when half of the ring is free.
const USUAL_RING_BYTES: u64 = 2 << 20;

/// How a port or a channel is offered to other domains.
///
/// ```
/// use portolan::OfferOptions;
/// let options = OfferOptions::default().most_bytes(16 << 20).most_clients(4);
/// ```
#[derive(Clone, Debug)]
pub struct OfferOptions {
    pub(super) most: u64,
    pub(super) clients: usize,
    pub(super) requests: usize,
    pub(super) ring_bytes: u64,
    pub(super) sealed: bool,
    pub(super) lagging: Lagging,
    /// If it was said: else it counts from when these are used.
    deadline: Option<Deadline>,
}

impl Default for OfferOptions {
    fn default() -> Self {
        Self {
            most: MOST,
            clients: CLIENTS,
            requests: REQUESTS,
            ring_bytes: MOST_RING_BYTES,
            sealed: true,
            lagging: Lagging::Skip,
            deadline: None,
        }
    }
}

impl OfferOptions {
    /// Bytes of memory that one message may take in this domain, one at least; 256 MiB if not
    /// said, and never more than a quarter of the domain's limit. A channel's messages are as long
    /// as it takes.
    ///
    /// What counts is the memory, not the length: an extent counts as
    /// [`Domain::allocate`](crate::Domain::allocate) cuts it, which is 4 KiB times a power of two
    /// up to 1 MiB and whole 2 MiB above, so one of a single byte counts 4 KiB; so does each part
    /// of sealed memory. A header and a list of extents that a slot may not hold (a header over
    /// 24 bytes; two extents and more) count as one extent more. Sending a message that takes
    /// more is refused with [`SendError::TooLong`](crate::SendError::TooLong); a stranger that sends
    /// one all the same is thrown out ([`ViolationKind::TooLong`](crate::ViolationKind::TooLong)).
    ///
    /// As many messages as the port's queue has slots may wait, each of which takes as much. So
    /// much again, together, may wait for room before the port, for each client.
    #[must_use]
    pub fn most_bytes(self, most: u64) -> Self {
        Self { most, ..self }
    }

    /// Clients at one time; 64 if not said. Each has a byte ring here, but that the ports to which a
    /// process has connected share one. A process that has connected twice counts twice. One
    /// thread of this process serves all of them.
    #[must_use]
    pub fn most_clients(self, clients: usize) -> Self {
        Self { clients, ..self }
    }

    /// Requests of one client that are with the server at one time, from 1 to 1,024; 64 if not said.
    /// Their answers come in any order. Further requests wait before the port, and then with the
    /// client, until one of them is answered and the client has room for the answer.
    #[must_use]
    pub fn most_requests(self, requests: usize) -> Self {
        Self {
            requests: requests.clamp(1, MAX_REQUESTS),
            ..self
        }
    }

    /// Bytes of the byte ring through which a connection's messages are copied, at the most; 4 MiB
    /// if not said. It is this process's memory. Ports share a connection only if they get byte
    /// rings of one length.
    #[must_use]
    pub fn most_ring_bytes(self, bytes: u64) -> Self {
        Self {
            ring_bytes: ring_bytes(bytes),
            ..self
        }
    }

    /// Whether clients may send sealed memory, which is mapped here instead of copied; yes, if
    /// not said. It is their memory, and stays theirs to pay for while this process holds it.
    #[must_use]
    pub fn sealed(self, sealed: bool) -> Self {
        Self { sealed, ..self }
    }

    /// What happens to a client of a reliable channel that does not keep up: it misses some units
    /// if not said, so that no stranger stops the writer. By [`Lagging::Wait`] the writer waits for
    /// a client while it lives, as for readers of the domain, and the client takes the place of
    /// one.
    #[must_use]
    pub fn lagging(self, lagging: Lagging) -> Self {
        Self { lagging, ..self }
    }

    /// How long the host may take to make it known; 5 seconds from when these are used, if not
    /// said.
    #[must_use]
    pub fn deadline(self, deadline: impl Into<Deadline>) -> Self {
        Self {
            deadline: Some(deadline.into()),
            ..self
        }
    }

    /// The deadline of an offer that is made now.
    pub(super) fn until(&self) -> Deadline {
        until(self.deadline)
    }
}

/// How a port of another domain is connected to, or a channel followed.
///
/// ```
/// use portolan::ConnectOptions;
/// use std::time::Duration;
/// let options = ConnectOptions::default().queue(8).deadline(Duration::from_secs(1));
/// ```
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    pub(super) token: Option<AccessToken>,
    pub(super) protection: Protection,
    pub(super) queue: usize,
    pub(super) ring_bytes: u64,
    pub(super) most: u64,
    /// If it was said: else it counts from when these are used.
    deadline: Option<Deadline>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            token: None,
            protection: Protection::Copied,
            queue: 63,
            ring_bytes: USUAL_RING_BYTES,
            most: MOST,
            deadline: None,
        }
    }
}

impl ConnectOptions {
    /// The token that the offer asks for.
    #[must_use]
    pub fn token(self, token: AccessToken) -> Self {
        Self {
            token: Some(token),
            ..self
        }
    }

    /// How messages go over: [`Protection::Copied`], which is the default, or
    /// [`Protection::Sealed`]. Then the extents of a message are copied once, into memory that
    /// is sealed and shown to the receiver, and [`Sealed`](crate::Sealed) memory not at all; a
    /// receiver finds both as [`Message::sealed`](crate::Message::sealed).
    #[must_use]
    pub fn protection(self, protection: Protection) -> Self {
        Self { protection, ..self }
    }

    /// Messages that wait in this domain before sending finds the queue full; 63 if not said.
    #[must_use]
    pub fn queue(self, messages: usize) -> Self {
        Self {
            queue: messages,
            ..self
        }
    }

    /// Bytes of the byte ring through which messages are copied, rounded up to a power of two from
    /// 64 KiB to 16 MiB; 2 MiB if not said. Longer messages pass through it piece by piece. The
    /// offer may allow less. A port shares the connection of another one only if its byte ring is
    /// as long.
    #[must_use]
    pub fn ring_bytes(self, bytes: u64) -> Self {
        Self {
            ring_bytes: ring_bytes(bytes),
            ..self
        }
    }

    /// Bytes of memory that the answer to a request may take in this domain, counted as in
    /// [`OfferOptions::most_bytes`]; 256 MiB if not said, and never more than a quarter of the
    /// domain's limit. A request whose answer takes more is dropped; a server that sends one all
    /// the same loses the connection.
    #[must_use]
    pub fn most_bytes(self, most: u64) -> Self {
        Self { most, ..self }
    }

    /// How long to wait until the port is offered and we are let in; 5 seconds from when these
    /// are used, if not said. [`Deadline::NOW`] waits for answers, and for no offer.
    #[must_use]
    pub fn deadline(self, deadline: impl Into<Deadline>) -> Self {
        Self {
            deadline: Some(deadline.into()),
            ..self
        }
    }

    /// With the deadline of a connection that is begun now.
    pub(super) fn begun(self) -> Self {
        let deadline = Some(self.until());
        Self { deadline, ..self }
    }

    /// The deadline of what was [begun](Self::begun) with these.
    pub(super) fn until(&self) -> Deadline {
        until(self.deadline)
    }

    /// The deadline of the offering process's answer, which a caller that does not wait for offers
    /// waits for all the same.
    pub(super) fn answer_by(&self) -> Deadline {
        match self.until() {
            now if now.is_now() => Deadline::after(PATIENCE),
            deadline => deadline,
        }
    }
}

fn until(said: Option<Deadline>) -> Deadline {
    said.unwrap_or_else(|| Deadline::after(PATIENCE))
}

/// The length of a byte ring that is nearest to the wanted one, and allowed.
pub(super) fn ring_bytes(bytes: u64) -> u64 {
    let bytes = bytes.clamp(*RING_BYTES.start(), *RING_BYTES.end());
    bytes.next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn options_that_are_kept_count_from_when_they_are_used() {
        let (offer, connect) = (OfferOptions::default(), ConnectOptions::default());
        std::thread::sleep(Duration::from_millis(1));
        let now = Instant::now();
        for until in [offer.until(), connect.until(), connect.answer_by()] {
            assert!(until.instant() >= Some(now + PATIENCE));
        }
        // From the beginning on it is one and the same.
        let connect = connect.begun();
        assert_eq!(connect.until(), connect.until());
        assert_eq!(connect.until(), connect.answer_by());
    }
}
