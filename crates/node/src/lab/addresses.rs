//! Addresses for nodes side by side on one machine.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// So many addresses that no socket has, no two of them one. They are loopback addresses of this process's own: a
/// node that is killed finds its port free when it is started again, as connections to others, which
/// are given ports by the kernel, have them at 127.0.0.1.
///
/// # Errors
///
/// The kernel gives no port.
#[doc(hidden)]
pub fn free_addresses(count: usize) -> io::Result<Vec<SocketAddr>> {
    let own = own_address(std::process::id());
    // All are taken at once, so that no two are one.
    let listeners = (0..count).map(|_| TcpListener::bind((own, 0)));
    let listeners: Vec<TcpListener> = listeners.collect::<io::Result<_>>()?;
    listeners.iter().map(TcpListener::local_addr).collect()
}

/// Process numbers have 22 bits.
fn own_address(process: u32) -> Ipv4Addr {
    let [_, high, middle, low] = process.to_be_bytes();
    Ipv4Addr::new(127, 1 + (high & 0x3f), middle, low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    /// A node is killed, and others connect and are connected to, before it is there again.
    #[test]
    fn no_connection_to_another_has_the_address_of_a_node_that_is_away() {
        let addresses = free_addresses(2).unwrap();
        let [away, other] = addresses[..] else {
            panic!("{addresses:?}")
        };
        let there = TcpListener::bind(other).unwrap();
        let connection = TcpStream::connect(other).unwrap();
        assert_ne!(connection.local_addr().unwrap().ip(), away.ip());
        drop(there);
        TcpListener::bind(away).unwrap();
    }

    #[test]
    fn processes_have_addresses_of_their_own() {
        let all = [1, 2, 256, 0x1_0000, 0x3f_ffff].map(own_address);
        let texts = all.map(|it| it.to_string());
        let expected = [
            "127.1.0.1",
            "127.1.0.2",
            "127.1.1.0",
            "127.2.0.0",
            "127.64.255.255",
        ];
        assert_eq!(texts, expected);
    }
}
