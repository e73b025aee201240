//! The transports under test.

use std::sync::Arc;

use portolan_transport::clock::SystemClock;
use portolan_transport::{Address, Memory, MemoryOptions, Shape, Shaped, Tcp, Transport};

use crate::pair::{Factory, Pair};

/// Connects by `transport`, at `address`.
fn connect(transport: &impl Transport, address: &Address) -> Pair {
    let listener = transport.listen(address).unwrap();
    let client = transport.connect(&listener.address()).unwrap();
    Pair::of(client, listener, None)
}

/// The same; what the first end sends is cut.
fn connect_and_cut<T: Transport + Clone>(transport: &T, address: &Address, bytes: u64) -> Pair {
    let node = || {
        let clock = Arc::new(SystemClock::default());
        Shaped::new(transport.clone(), Shape::default(), clock)
    };
    let (client, server) = (node(), node());
    let listener = server.listen(address).unwrap();
    let connection = client.connect(&listener.address()).unwrap();
    let pair = Pair::of(connection, listener, None);
    client.faults().cut_after(bytes);
    pair
}

#[derive(Default)]
pub(crate) struct Memories {
    options: MemoryOptions,
}

impl Memories {
    /// With room for a few bytes.
    pub(crate) fn tiny() -> Self {
        Self {
            options: MemoryOptions {
                streams: 1,
                room: 61,
                datagram: 0,
                datagrams: 0,
            },
        }
    }
}

impl Factory for Memories {
    fn pair(&self) -> Pair {
        connect(&Memory::new(self.options), &Address::named("hall"))
    }

    fn cut_after(&self, bytes: u64) -> Pair {
        connect_and_cut(&Memory::new(self.options), &Address::named("hall"), bytes)
    }
}

pub(crate) struct Sockets {
    address: Address,
}

impl Sockets {
    pub(crate) fn v4() -> Self {
        let address = Address::Internet("127.0.0.1:0".parse().unwrap());
        Self { address }
    }

    pub(crate) fn v6() -> Self {
        let address = Address::Internet("[::1]:0".parse().unwrap());
        Self { address }
    }
}

impl Factory for Sockets {
    fn pair(&self) -> Pair {
        connect(&Tcp::default(), &self.address)
    }

    fn cut_after(&self, bytes: u64) -> Pair {
        connect_and_cut(&Tcp::default(), &self.address, bytes)
    }
}
