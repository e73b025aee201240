//! Two ends of a connection, and waiting for them.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_sys::process::poll;
use portolan_testkit::PATIENCE;
use portolan_transport::clock::{Clock, ManualClock};
use portolan_transport::{
    Class, Connection, Destination, Listener, Progress, Source, State, StreamId, skip_sources,
};

/// Makes connections of one transport.
pub(crate) trait Factory {
    /// Two ends of a connection that is up.
    fn pair(&self) -> Pair;

    /// The same; what the first end sends is cut after so many bytes of all, counted behind
    /// everything that makes the connection.
    fn cut_after(&self, bytes: u64) -> Pair;
}

/// Both ends.
pub(crate) struct Pair {
    pub(crate) ends: [Box<dyn Connection>; 2],
    /// Time goes on only when both ends wait.
    pub(crate) clock: Option<Arc<ManualClock>>,
}

impl Pair {
    /// Makes a connection and waits until both of its ends are up.
    pub(crate) fn of(
        client: Box<dyn Connection>,
        mut listener: Box<dyn Listener>,
        clock: Option<Arc<ManualClock>>,
    ) -> Self {
        let mut client = client;
        let end = Instant::now() + PATIENCE;
        let mut server = loop {
            assert!(Instant::now() < end, "no connection came about");
            assert_ne!(client.progress(), State::Failed, "{:?}", client.failure());
            if let Some(server) = listener.accept().unwrap() {
                break server;
            }
            let fds = [client.descriptor(), listener.descriptor()];
            poll(&fds, Some(Instant::now() + Duration::from_millis(20))).unwrap();
        };
        // What is watched before a stream is opened is quiet.
        while [client.progress(), server.progress()] != [State::Up; 2] {
            assert!(Instant::now() < end, "a connection did not come up");
            let fds = [client.descriptor(), server.descriptor()];
            poll(&fds, Some(Instant::now() + Duration::from_millis(20))).unwrap();
        }
        Self {
            ends: [client, server],
            clock,
        }
    }

    pub(crate) fn open(&mut self, class: Class) -> [StreamId; 2] {
        [0, 1].map(|end| self.ends[end].open(class).unwrap())
    }

    /// Waits until an end has something to do, and lets both do it.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> [State; 2] {
        let end = Instant::now() + PATIENCE;
        let wake = self.ends.iter().filter_map(|e| e.wake_at()).min();
        if let (Some(clock), Some(wake)) = (&self.clock, wake) {
            // Whatever else there is: bytes that nobody receives must not stop the time.
            clock.advance(wake.saturating_sub(clock.now()));
            return self.ends.each_mut().map(|end| end.progress());
        }
        while !self.readable().contains(&true) {
            assert!(Instant::now() < end, "neither end has anything to do");
            let fds = self.ends.each_ref().map(|end| end.descriptor());
            poll(&fds, Some(Instant::now() + Duration::from_millis(100))).unwrap();
        }
        self.ends.each_mut().map(|end| end.progress())
    }

    /// Which descriptors are readable now.
    pub(crate) fn readable(&self) -> [bool; 2] {
        let fds = self.ends.each_ref().map(|end| end.descriptor());
        let polled = poll(&fds, Some(Instant::now())).unwrap();
        [polled[0].readable, polled[1].readable]
    }

    /// Sends all bytes from one end and receives them at the other; what was received when the
    /// stream ended or failed, if it did.
    #[track_caller]
    pub(crate) fn carry(
        &mut self,
        from: usize,
        on: [StreamId; 2],
        bytes: &[u8],
    ) -> (Vec<u8>, Progress) {
        let mut parts = [Source::from(bytes)];
        let mut left = &mut parts[..];
        let mut came = Vec::new();
        loop {
            if left.is_empty() || left[0].is_empty() {
                left = &mut [];
            } else {
                match self.ends[from].send(on[from], left) {
                    Progress::Moved(moved) => skip_sources(&mut left, moved),
                    Progress::Blocked => {}
                    Progress::Ended | Progress::Failed(_) => left = &mut [],
                }
            }
            match receive(&mut *self.ends[1 - from], on[1 - from], 64 * 1024) {
                Ok(more) => came.extend(more),
                Err(end @ (Progress::Ended | Progress::Failed(_))) => return (came, end),
                Err(_) if came.len() == bytes.len() => return (came, Progress::Blocked),
                Err(_) => drop(self.wait()),
            }
            assert!(came.len() <= bytes.len(), "bytes that were not sent");
        }
    }
}

/// What an end receives at once, if it is not nothing.
pub(crate) fn receive(
    end: &mut dyn Connection,
    on: StreamId,
    most: usize,
) -> Result<Vec<u8>, Progress> {
    let mut bytes = vec![0; most];
    match end.receive(on, &[Destination::from(&mut bytes[..])]) {
        Progress::Moved(moved) => {
            assert!(moved > 0 && moved <= most);
            bytes.truncate(moved);
            Ok(bytes)
        }
        other => Err(other),
    }
}

/// Bytes that differ from place to place.
pub(crate) fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        bytes.extend(seed.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Whether a descriptor is readable within a moment.
pub(crate) fn soon_readable(end: &dyn Connection) -> bool {
    let by = Instant::now() + Duration::from_millis(50);
    poll(&[end.descriptor().as_fd()], Some(by)).unwrap()[0].readable
}
