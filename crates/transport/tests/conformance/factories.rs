//! The transports under test.

use std::sync::Arc;
use std::time::Duration;

use portolan_transport::clock::{ManualClock, SystemClock};
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

/// Memory with a delay, a rate, a window and gaps, in virtual time.
#[derive(Default)]
pub(crate) struct Virtual {
    _private: (),
}

impl Virtual {
    const SHAPE: Shape = Shape {
        delay: Duration::from_millis(20),
        rate: Some(10_000_000),
        window: 100_000,
        gap: Duration::from_micros(50),
        piece: 4_000,
        lost: 0,
        seed: 1,
    };

    fn cut(bytes: Option<u64>) -> Pair {
        let clock = Arc::new(ManualClock::default());
        let memory = Memory::default();
        let node = || Shaped::new(memory.clone(), Self::SHAPE, clock.clone());
        let (client, server) = (node(), node());
        let listener = server.listen(&Address::named("hall")).unwrap();
        let connection = client.connect(&listener.address()).unwrap();
        if let Some(bytes) = bytes {
            client.faults().cut_after(bytes);
        }
        Pair::of(connection, listener, Some(clock))
    }
}

impl Factory for Virtual {
    fn pair(&self) -> Pair {
        Self::cut(None)
    }

    fn cut_after(&self, bytes: u64) -> Pair {
        Self::cut(Some(bytes))
    }
}

#[cfg(feature = "tls")]
pub(crate) use secured::Secured;

#[cfg(feature = "tls")]
mod secured {
    use portolan_transport::tls::{Cluster, LinkOptions, links};

    use super::*;
    use crate::certificates::{Authority, TODAY};

    /// TLS between two nodes of a cluster.
    pub(crate) struct Secured {
        address: Address,
        nodes: [Cluster; 2],
        shape: Option<Shape>,
    }

    impl Secured {
        pub(crate) fn new(address: &str) -> Self {
            let authority = Authority::new("authority of tests");
            Self {
                address: Address::Internet(address.parse().unwrap()),
                nodes: ["hall", "roof"].map(|name| authority.node(name)),
                shape: None,
            }
        }

        /// With odd pieces and a small window.
        pub(crate) fn shaped(address: &str) -> Self {
            let shape = Shape {
                window: 50_000,
                piece: 777,
                ..Shape::default()
            };
            Self {
                shape: Some(shape),
                ..Self::new(address)
            }
        }

        fn connect(&self, shape: Option<Shape>, cut: Option<u64>) -> Pair {
            let of_day = Duration::from_secs(TODAY);
            let clock = || Arc::new(ManualClock::at(of_day));
            let [client, server] = self
                .nodes
                .each_ref()
                .map(|node| links(node, LinkOptions::default(), clock()));
            let Some(shape) = shape else {
                let listener = server.listen(&self.address).unwrap();
                let client = client.connect(&listener.address()).unwrap();
                return Pair::of(client, listener, None);
            };
            let clock = || Arc::new(SystemClock::default());
            let client = Shaped::new(client, shape, clock());
            let server = Shaped::new(server, shape, clock());
            let listener = server.listen(&self.address).unwrap();
            let connection = client.connect(&listener.address()).unwrap();
            let pair = Pair::of(connection, listener, None);
            if let Some(bytes) = cut {
                client.faults().cut_after(bytes);
            }
            pair
        }
    }

    impl Factory for Secured {
        fn pair(&self) -> Pair {
            self.connect(self.shape, None)
        }

        fn cut_after(&self, bytes: u64) -> Pair {
            self.connect(Some(self.shape.unwrap_or_default()), Some(bytes))
        }
    }
}
