//! Network namespaces, one for each node, joined by a bridge in one more: as many machines on a
//! switch. The command `ip` makes and removes them.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};

/// Where the nodes listen.
const PORT: u16 = 7411;

/// The namespaces. Dropped, they are removed, and all links with them.
pub(super) struct Network {
    nodes: u8,
    /// The lab's, which is in their names.
    number: u32,
}

impl Network {
    /// Namespaces for so many nodes of this lab; `None` where this process may not make them, or
    /// there is no `ip`.
    pub(super) fn new(nodes: u8, number: u32) -> Option<Self> {
        let network = Self { nodes, number };
        let switch = network.namespace(0);
        let made = ip(&["netns", "add", &switch])
            && ip(&["-n", &switch, "link", "add", "switch", "type", "bridge"])
            && ip(&["-n", &switch, "link", "set", "switch", "up"])
            && (1..=nodes).all(|node| network.add(node, &switch));
        // Dropped, it removes what there is.
        made.then_some(network)
    }

    /// Adds a node's namespace, with a cable to the switch.
    fn add(&self, node: u8, switch: &str) -> bool {
        let (space, cable) = (self.namespace(node), format!("cable{node}"));
        let address = format!("{}/24", self.address(node).ip());
        ip(&["netns", "add", &space])
            && ip(&[
                "-n", switch, "link", "add", &cable, "type", "veth", "peer", "name", "cable",
                "netns", &space,
            ])
            && ip(&[
                "-n", switch, "link", "set", &cable, "master", "switch", "up",
            ])
            && ip(&["-n", &space, "address", "add", &address, "dev", "cable"])
            && ip(&["-n", &space, "link", "set", "cable", "up"])
            && ip(&["-n", &space, "link", "set", "lo", "up"])
    }

    /// The namespace of a node; 0 is the switch's.
    pub(super) fn namespace(&self, node: u8) -> String {
        format!("portolan-lab-{}-{node}", self.number)
    }

    /// Where a node listens: an address for documents, that no real network has.
    #[expect(clippy::unused_self, reason = "it exists while the network does")]
    pub(super) fn address(&self, node: u8) -> SocketAddr {
        (Ipv4Addr::new(192, 0, 2, node), PORT).into()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for node in 0..=self.nodes {
            // One that was not made cannot be removed.
            ip(&["netns", "delete", &self.namespace(node)]);
        }
    }
}

/// Runs `ip`; whether it did it.
fn ip(words: &[&str]) -> bool {
    let mut command = Command::new("ip");
    let command = command.args(words).stdin(Stdio::null());
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
