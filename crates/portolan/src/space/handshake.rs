//! A handshake over a socket: the machines of [`portolan_proto::handshake`], with packets and the
//! clock.
//!
//! An asker's request is sent, and its answer waited for, or looked for now and then; an answerer
//! does the same with the request. What to grant, and what a refusal means, is the caller's.

use portolan_abi::handshake::{Ask, Grant, Request};
use portolan_proto::handshake::{Answerer, Asker, Event, Failure, Packet, Step, Unasked};
use portolan_sys::socket::{self, Received, SocketError};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// Why a handshake has failed: by the rules, or because the socket did.
#[derive(Debug)]
pub(crate) enum Ended<F> {
    Failed(F),
    Socket(SocketError),
}

/// Why an asker has no grant.
pub(crate) type NotGranted<A> = Ended<Failure<<<A as Ask>::Granted as Grant>::Why>>;

/// Why an answerer has no request.
pub(crate) type NotAsked<R> = Ended<Unasked<<R as Request>::Why>>;

/// A grant, and the descriptors that belong to it.
pub(crate) type GrantOf<A> = (<A as Ask>::Granted, Vec<OwnedFd>);

/// A request that was sent.
#[derive(Debug)]
pub(crate) struct Asked<A>(Asker<A, Instant>);

impl<A: Ask> Asked<A> {
    /// Sends a request by `by`; its answer is to come by `until`.
    pub(crate) fn send(
        connection: impl AsFd,
        ask: &A,
        by: Option<Instant>,
        until: Option<Instant>,
    ) -> Result<Self, NotGranted<A>> {
        match socket::send_by(connection, &ask.to_bytes(), &[], by) {
            // It may have answered before it hung up (H4).
            Ok(()) | Err(SocketError::Closed) => Ok(Self(Asker::new(until))),
            Err(SocketError::TimedOut) => Err(Ended::Failed(Failure::Unanswered)),
            Err(error) => Err(Ended::Socket(error)),
        }
    }

    /// One that somebody else has sent.
    #[cfg(test)]
    pub(crate) fn sent(until: Option<Instant>) -> Self {
        Self(Asker::new(until))
    }

    /// Until when it is waited for.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.0.until()
    }

    /// Looks for the answer; `None`: not yet.
    pub(crate) fn poll(
        &mut self,
        connection: impl AsFd,
    ) -> Result<Option<GrantOf<A>>, NotGranted<A>> {
        let mut room = vec![0; Asker::<A, Instant>::ROOM];
        let came = socket::try_receive(connection, &mut room, A::DESCRIPTORS);
        self.step(&room, came)
    }

    /// Waits for the answer.
    pub(crate) fn wait(mut self, connection: impl AsFd) -> Result<GrantOf<A>, NotGranted<A>> {
        let mut room = vec![0; Asker::<A, Instant>::ROOM];
        loop {
            let until = self.until();
            let came = socket::receive_by(&connection, &mut room, A::DESCRIPTORS, until);
            if let Some(granted) = self.step(&room, came.map(Some))? {
                return Ok(granted);
            }
        }
    }

    fn step(
        &mut self,
        room: &[u8],
        came: Result<Option<Received>, SocketError>,
    ) -> Result<Option<GrantOf<A>>, NotGranted<A>> {
        let (event, fds) = event(room, came).map_err(Ended::Socket)?;
        match self.0.step(event) {
            Step::Wait => Ok(None),
            Step::Done(granted) => Ok(Some((granted, fds))),
            Step::Failed(failure) => Err(Ended::Failed(failure)),
        }
    }
}

/// A request that is to come.
#[derive(Debug)]
pub(crate) struct Awaited<R>(Answerer<R, Instant>);

impl<R: Request> Awaited<R> {
    /// Awaits a request until then, if it is said.
    pub(crate) fn new(until: Option<Instant>) -> Self {
        Self(Answerer::new(until))
    }

    /// Looks for the request; `None`: not yet.
    pub(crate) fn poll(&mut self, connection: impl AsFd) -> Result<Option<R>, NotAsked<R>> {
        let mut room = vec![0; Answerer::<R, Instant>::ROOM];
        let came = socket::try_receive(connection, &mut room, 0);
        self.step(&room, came)
    }

    fn step(
        &mut self,
        room: &[u8],
        came: Result<Option<Received>, SocketError>,
    ) -> Result<Option<R>, NotAsked<R>> {
        let (event, _) = event(room, came).map_err(Ended::Socket)?;
        match self.0.step(event) {
            Step::Wait => Ok(None),
            Step::Done(request) => Ok(Some(request)),
            Step::Failed(unasked) => Err(Ended::Failed(unasked)),
        }
    }
}

/// What has happened, and the descriptors that came.
fn event(
    room: &[u8],
    came: Result<Option<Received>, SocketError>,
) -> Result<(Event<'_, Instant>, Vec<OwnedFd>), SocketError> {
    let quiet = || Event::Quiet(Instant::now());
    match came {
        Ok(Some(received)) => {
            let packet = Packet {
                bytes: room.get(..received.len).unwrap_or(room),
                truncated: received.truncated,
                descriptors: received.fds.len(),
            };
            Ok((Event::Came(packet), received.fds))
        }
        Ok(None) | Err(SocketError::TimedOut) => Ok((quiet(), Vec::new())),
        Err(SocketError::Closed) => Ok((Event::HungUp, Vec::new())),
        Err(error) => Err(error),
    }
}
