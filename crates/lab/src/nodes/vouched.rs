//! A connection whose other end the lab has started, and thus knows: as if the transport had proved it.
//! Without that no rights go over it, and TCP proves nothing.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use portolan_abi::node::NodeId;
use portolan_transport::{
    Address, Class, Connection, Destination, Limits, Peer, Progress, Source, State, StreamId,
    TransportError,
};

/// A connection with a node that the lab has started.
#[derive(Debug)]
pub(crate) struct Vouched {
    inner: Box<dyn Connection>,
    node: NodeId,
}

impl Vouched {
    pub(crate) fn new(inner: Box<dyn Connection>, node: NodeId) -> Self {
        Self { inner, node }
    }
}

impl Connection for Vouched {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.descriptor()
    }

    fn wake_at(&self) -> Option<Duration> {
        self.inner.wake_at()
    }

    fn progress(&mut self) -> State {
        self.inner.progress()
    }

    fn failure(&self) -> Option<&TransportError> {
        self.inner.failure()
    }

    fn peer(&self) -> Peer {
        Peer::Node(self.node)
    }

    fn remote(&self) -> Option<Address> {
        self.inner.remote()
    }

    fn open(&mut self, class: Class) -> Result<StreamId, TransportError> {
        self.inner.open(class)
    }

    fn send(&mut self, on: StreamId, parts: &[Source<'_>]) -> Progress {
        self.inner.send(on, parts)
    }

    fn receive(&mut self, on: StreamId, into: &[Destination<'_>]) -> Progress {
        self.inner.receive(on, into)
    }

    fn datagram(&mut self, bytes: &[u8]) -> bool {
        self.inner.datagram(bytes)
    }

    fn receive_datagram(&mut self) -> Option<Vec<u8>> {
        self.inner.receive_datagram()
    }

    fn close(&mut self) {
        self.inner.close();
    }

    fn binding(&self, label: &str) -> Option<[u8; 32]> {
        self.inner.binding(label)
    }
}
