//! Three nodes, of which the first lets the others in, and what they know of one another.

use portolan::{Access, Domain, Message, PortOptions, ReceiveRight, SendRight, WhenFull};
use portolan_testkit::{PATIENCE, unique, until};
use serde_json::Value;

use crate::scene::Machine;

/// A node, and a domain that it spans, which this process is a member of.
struct Place {
    node: Machine,
    domain: Domain,
}

impl Place {
    /// A node of this directory: the first of its cluster, or one that the first lets in.
    fn new(name: &str, directory: &str, first: Option<&Self>) -> Self {
        let mut node = Machine::new(name);
        match first {
            None => node.init(),
            Some(first) => node.join(&first.node.invite()),
        }
        node.configure(&format!(
            "directory = {directory:?}\nsilent_after = \"1500ms\""
        ));
        node.up();
        let local = unique(name);
        node.succeeds(&["span", "cameras", "--local", &local]);
        until("the domain is spanned", || {
            node.status()["spans"][0]["state"] == "up"
        });
        let domain = Domain::join(&local).unwrap();
        Self { node, domain }
    }

    fn bind(&self, name: &str) -> ReceiveRight {
        let options = PortOptions::named(name).spanned();
        self.domain.bind(options).unwrap()
    }

    fn connect(&self, name: &str) -> SendRight {
        self.domain.connect(name, PATIENCE).unwrap()
    }

    fn directory(&self) -> Value {
        self.node.status()["directory"].clone()
    }

    /// How often it was asked for a name.
    fn heard(&self) -> u64 {
        self.directory()["heard"].as_u64().unwrap()
    }

    /// Members that its directory names, with their starts.
    fn members(&self) -> Vec<(String, u64)> {
        let directory = self.directory();
        let members = directory["members"].as_array().unwrap().iter();
        let mut members: Vec<_> = members
            .map(|it| {
                let name = it["name"].as_str().unwrap().to_owned();
                (name, it["incarnation"].as_u64().unwrap())
            })
            .collect();
        members.sort();
        members
    }

    fn is_linked_with(&self, others: &[&str]) -> bool {
        let status = self.node.status();
        let peers = status["peers"].as_array().unwrap().iter();
        let up = peers.filter(|peer| peer["state"] == "up");
        let mut up: Vec<_> = up.filter_map(|peer| peer["name"].as_str()).collect();
        up.sort_unstable();
        up == others
    }
}

/// Who is asked, and by what it is known that there is something to ask for.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// All are asked.
    Static,
    /// Only those are asked that announce a name.
    #[cfg(feature = "zenoh")]
    Zenoh,
}

impl Kind {
    fn in_words(self) -> &'static str {
        match self {
            Self::Static => "static",
            #[cfg(feature = "zenoh")]
            Self::Zenoh => "zenoh",
        }
    }

    /// Waits until a directory knows so many names, if it knows any.
    fn knows(self, place: &Place, names: u64) {
        if self != Self::Static {
            until("the directory knows the names", || {
                place.directory()["names"].as_u64() == Some(names)
            });
        }
    }

    /// Waits until a directory names these members, if it names any.
    fn names(self, place: &Place, members: &[(&str, u64)]) {
        if self != Self::Static {
            let wanted: Vec<_> = members.iter().map(|(n, i)| ((*n).to_owned(), *i)).collect();
            until("the directory names the members", || {
                place.members() == wanted
            });
        }
    }
}

fn sends(from: &Place, name: &str, to: &mut ReceiveRight) {
    let right = from.connect(name);
    let sent = right.send(Message::new(name.as_bytes()).unwrap(), WhenFull::Fail);
    sent.unwrap();
    let message = to.receive(Access::Later, PATIENCE).unwrap();
    assert_eq!(message.header(), name.as_bytes());
}

#[test]
fn three_nodes_know_one_another_by_what_peers_tell() {
    three_nodes_know_one_another(Kind::Static);
}

#[test]
#[cfg(feature = "zenoh")]
fn three_nodes_know_one_another_by_zenoh() {
    three_nodes_know_one_another(Kind::Zenoh);
}

fn three_nodes_know_one_another(kind: Kind) {
    let mut hall = Place::new("hall", kind.in_words(), None);
    let mut roof = Place::new("roof", kind.in_words(), Some(&hall));
    let attic = Place::new("attic", kind.in_words(), Some(&hall));
    assert_eq!(attic.directory()["kind"], kind.in_words());
    // The third, which the first has let in, finds the second.
    until("all are linked", || {
        attic.is_linked_with(&["hall", "roof"]) && roof.is_linked_with(&["attic", "hall"])
    });
    kind.names(&attic, &[("hall", 1), ("roof", 1)]);
    kind.names(&roof, &[("attic", 1), ("hall", 1)]);
    // A name is found, and who has it not is asked only where nobody knows who has it.
    let mut upper = roof.bind("upper");
    kind.knows(&attic, 1);
    sends(&attic, "upper", &mut upper);
    assert!(roof.heard() > 0);
    assert_eq!(hall.heard() > 0, kind == Kind::Static);
    // A name that moves is found where it is.
    drop(upper);
    let mut upper = hall.bind("upper");
    sends(&attic, "upper", &mut upper);
    kind.knows(&attic, 1);
    // So is one that a program waits for already.
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| attic.connect("lower"));
        let mut lower = roof.bind("lower");
        let right = waits.join().unwrap();
        right
            .send(Message::new(b"late").unwrap(), WhenFull::Fail)
            .unwrap();
        let _late = lower.receive(Access::Later, PATIENCE).unwrap();
    });
    // A node that is cut for a while is unreachable, and comes back.
    roof.node.signal("STOP");
    until("it is unreachable", || attic.is_linked_with(&["hall"]));
    roof.node.signal("CONT");
    until("it is back", || attic.is_linked_with(&["hall", "roof"]));
    // One that dies disappears, with its names, and comes back with the next start.
    roof.node.kill();
    until("its link is gone", || attic.is_linked_with(&["hall"]));
    kind.names(&attic, &[("hall", 1)]);
    roof.node.up();
    until("it is back", || attic.is_linked_with(&["hall", "roof"]));
    kind.names(&attic, &[("hall", 1), ("roof", 2)]);
    // Without the one that has brought them together.
    hall.node.kill();
    kind.names(&attic, &[("roof", 2)]);
    until("the domain is spanned again", || {
        roof.node.status()["spans"][0]["state"] == "up"
    });
    let mut beside = roof.bind("beside");
    kind.knows(&attic, 1);
    sends(&attic, "beside", &mut beside);
    assert!(attic.node.succeeds(&["status"]).contains(kind.in_words()));
}
