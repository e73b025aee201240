//! A directory whose thread is killed, hangs or lies: links go on, and names are found. The thread is
//! the node's own kind, as Zenoh's is; what it does is the test's.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portolan::{Access, Domain, Message, PortOptions, ReceiveRight, WhenFull};
use portolan_node::config::Config;
use portolan_node::directory::{Holders, LEAVE, Member, News, Post, Threaded};
use portolan_node::state::State;
use portolan_node::up::{self, Ask, Start, ask};
use portolan_node::{authority, directory};
use portolan_testkit::{PATIENCE, unique, until};
use portolan_transport::clock::{Clock, SystemClock};
use portolan_transport::{Moment, NodeId};
use serde_json::Value;

use crate::scene::json;

/// A node in this process, and a domain that it spans.
struct Place {
    state: State,
    node: Option<JoinHandle<()>>,
    domain: Domain,
}

fn today() -> Moment {
    Moment {
        seconds: SystemClock::default().of_day().as_secs(),
    }
}

impl Place {
    /// Runs the node of a state directory, whose directory's thread does this; without it is static.
    fn new(
        name: &str,
        state: State,
        peers: &str,
        work: Option<impl FnOnce(&Post) + Send + 'static>,
    ) -> Self {
        let local = unique(name);
        let text = format!(
            "name = {name:?}\nlisten = \"127.0.0.1:0\"\npeers = [{peers}]\nsilent_after = \"1500ms\"\n[[span]]\ndomain = \"cameras\"\nlocal = {local:?}\n"
        );
        state.write("node.toml", &text).unwrap();
        let at = state.clone();
        let node = std::thread::spawn(move || {
            let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
            let ran = match work {
                None => up::run(&at, clock, Start::Alone, |_| {}),
                Some(work) => {
                    let make = move |_: &Config, seat: directory::Seat| {
                        let faulty = Threaded::start("faulty", &seat, move |post| work(&post));
                        Box::new(faulty) as Box<dyn directory::Directory>
                    };
                    up::run_with(&at, clock, Start::Alone, make, |_| {})
                }
            };
            ran.unwrap();
        });
        let its = state.clone();
        until("it spans the domain", || {
            ask(&its, Ask::Status).is_ok_and(|it| json(&it)["spans"][0]["state"] == "up")
        });
        Self {
            state,
            node: Some(node),
            domain: Domain::join(&local).unwrap(),
        }
    }

    fn status(&self) -> Value {
        json(&ask(&self.state, Ask::Status).unwrap())
    }

    fn id(&self) -> NodeId {
        self.status()["node"].as_str().unwrap().parse().unwrap()
    }

    fn bind(&self, name: &str) -> ReceiveRight {
        self.domain
            .bind(PortOptions::named(name).spanned())
            .unwrap()
    }

    fn directory_is(&self, state: &str) {
        until("the directory is as it should be", || {
            self.status()["directory"]["state"] == state
        });
    }

    /// Ends it; how long that took.
    fn leave(&mut self) -> Duration {
        let began = Instant::now();
        ask(&self.state, Ask::Leave).unwrap();
        self.node.take().unwrap().join().unwrap();
        began.elapsed()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            let _ = ask(&self.state, Ask::Leave);
            let _ = node.join();
        }
        let _ = std::fs::remove_dir_all(self.state.path());
    }
}

/// Two nodes of one cluster that are linked: the directory of the second one does this. It is told the
/// first one's id and address.
fn two(work: impl FnOnce(&Post, NodeId, &str) + Send + 'static) -> (Place, Place) {
    let [hall, roof] = ["faults-hall", "faults-roof"].map(|name| {
        let path = std::env::temp_dir().join(unique(name));
        State::at(&path).unwrap()
    });
    authority::make_first(&hall, "hall", today()).unwrap();
    // As if it had joined.
    let (key, _) = authority::request("roof").unwrap();
    let certificate = authority::Authority::load(&hall).unwrap();
    let certificate = certificate.sign("roof", &key, today()).unwrap();
    let believed = authority::authorities(&hall, today()).unwrap();
    authority::keep(&roof, &key, &certificate, &believed).unwrap();
    let hall = Place::new("hall", hall, "", None::<fn(&Post)>);
    let (id, address) = (
        hall.id(),
        hall.status()["listen"].as_str().unwrap().to_owned(),
    );
    let peers = format!("{address:?}");
    let roof = Place::new(
        "roof",
        roof,
        &peers,
        Some(move |post: &Post| work(post, id, &address)),
    );
    until("both are linked", || is_up(&hall) && is_up(&roof));
    (hall, roof)
}

fn is_up(place: &Place) -> bool {
    place.status()["peers"][0]["state"] == "up"
}

/// Since when the link is up, in milliseconds: smaller again if it was made anew.
fn lasts(place: &Place) -> u64 {
    place.status()["peers"][0]["for_ms"].as_u64().unwrap()
}

/// A message from one to the other by a name, in this time.
fn carries(from: &Place, to: &Place, name: &str, within: Duration) {
    let mut port = to.bind(name);
    let began = Instant::now();
    let right = from.domain.connect(name, PATIENCE).unwrap();
    let took = began.elapsed();
    assert!(took < within, "{name} was found after {took:?}");
    right
        .send(Message::new(b"hello").unwrap(), WhenFull::Fail)
        .unwrap();
    assert_eq!(
        port.receive(Access::Later, PATIENCE).unwrap().header(),
        b"hello"
    );
}

/// Who is named as a member, at this address.
fn member(node: NodeId, address: &str) -> Member {
    Member {
        node,
        name: "named".to_owned(),
        incarnation: 1,
        addresses: vec![address.to_owned()],
    }
}

/// That a node announces names, and has none.
fn hides(node: NodeId) -> Holders {
    let mut holders = Holders::default();
    holders.set_announcing(node, true);
    holders
}

#[test]
fn a_directory_whose_thread_is_killed_is_noticed_by_no_link() {
    let (hall, mut roof) = two(|post, hall, address| {
        post.say(News {
            members: vec![member(hall, address)],
            holders: Some(Arc::new(hides(hall))),
        });
        panic!("as a test has it");
    });
    roof.directory_is("ended");
    let before = lasts(&roof);
    // What it had said counts no more: all are asked, at once.
    carries(&roof, &hall, "upper", PATIENCE);
    carries(&hall, &roof, "lower", PATIENCE);
    assert!(
        is_up(&roof) && lasts(&roof) >= before,
        "the link has stayed"
    );
    let status = roof.status();
    assert_eq!(status["directory"]["names"], 0, "{status}");
    assert!(status["directory"]["failure"].is_string(), "{status}");
    let took = roof.leave();
    assert!(took < PATIENCE, "{took:?}");
}

#[test]
fn a_directory_that_hangs_is_noticed_by_no_link_and_the_node_does_not_wait_for_it() {
    let (hall, mut roof) = two(|post, hall, _| {
        // It has begun, hides what there is, and then it says and hears nothing any more.
        let holders = Some(Arc::new(hides(hall)));
        post.say(News {
            members: Vec::new(),
            holders,
        });
        std::thread::sleep(10 * PATIENCE);
    });
    // Names are found before anybody knows that it hangs: a bit later, because it hides them.
    carries(&roof, &hall, "upper", PATIENCE);
    roof.directory_is("silent");
    let before = lasts(&roof);
    carries(&roof, &hall, "other", PATIENCE);
    carries(&hall, &roof, "lower", PATIENCE);
    assert!(
        is_up(&roof) && lasts(&roof) >= before,
        "the link has stayed"
    );
    // What the node has for its thread has a bound, and the last of it.
    for name in 0..100 {
        drop(roof.bind(&format!("many-{name}")));
    }
    let began = Instant::now();
    roof.leave();
    let took = began.elapsed();
    assert!(took < LEAVE + Duration::from_secs(20), "{took:?}");
}

#[test]
fn a_directory_that_lies_delays_and_forges_nothing() {
    let nobody = NodeId([9; 16]);
    let (hall, roof) = two(move |post, hall, address| {
        let mut holders = hides(hall);
        // Of a node that there is not, and of one that has not got it.
        holders.add(nobody, "cameras", "upper");
        holders.add(hall, "cameras", "none");
        let lies = News {
            // One node at the address of another, and that one where nobody is.
            members: vec![member(nobody, address), member(hall, "127.0.0.1:1")],
            holders: Some(Arc::new(holders)),
        };
        while !post.is_over() {
            post.say(lies.clone());
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    roof.directory_is("up");
    let before = lasts(&roof);
    // It says that another one has it, and this one not.
    carries(&roof, &hall, "upper", PATIENCE);
    let missing = roof.domain.connect("none", Duration::from_millis(300));
    assert!(missing.is_err(), "the node itself says that there is none");
    let peers = |roof: &Place| roof.status()["peers"].as_array().unwrap().clone();
    until("the one that it names has not proved its key", || {
        peers(&roof).iter().any(|peer| {
            peer["node"] == nobody.to_string().as_str()
                && peer["failure"]
                    .to_string()
                    .contains("another node answers there")
        })
    });
    assert!(
        is_up(&roof) && lasts(&roof) >= before,
        "the link has stayed"
    );
    let linked = peers(&roof)
        .into_iter()
        .filter(|peer| peer["state"] == "up");
    assert_eq!(linked.count(), 1);
    drop(hall);
}
