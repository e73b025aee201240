//! The directory over a Zenoh session, in a thread of its own.
//!
//! A node announces itself and its names as *liveliness tokens*, whose keys say all that there is to
//! say ([`hints`](super::hints)). Zenoh tells every node of the tokens that are there, and takes back
//! those of a session that is gone. Nothing else is published, asked or stored.
//!
//! The session is a router of Zenoh's, which finds ways over several nodes: each node connects with a
//! few others only. It listens and connects at sockets in the state directory, and
//! [`tunnels`](super::tunnels) carry their bytes. It scouts for nobody, by multicast or gossip.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use portolan_sys::process::poll;
use zenoh::liveliness::LivelinessToken;
use zenoh::pubsub::Subscriber;
use zenoh::sample::SampleKind;
use zenoh::{Config, Session, Wait as _};

use super::hints::{Table, all_keys, member_key, name_keys};
use super::tunnels::{SLOTS, Tunnels, slot_path};
use super::{Announcement, News, Post, Seat, Threaded, Way};

/// How often the thread says that it is there.
const BEAT: Duration = Duration::from_secs(1);
/// The pause before a session is opened again that could not be opened.
const AGAIN: Duration = Duration::from_secs(2);
/// What is learnt within this time is said at once.
const GATHER: Duration = Duration::from_millis(10);
/// Tokens that are declared in one turn, at most: between two turns bytes are carried.
const TOKENS: usize = 256;

/// A directory over Zenoh.
pub(super) fn start(seat: Seat) -> Threaded {
    let with = seat.clone();
    Threaded::start("zenoh", &seat, move |post| work(&with, &post))
}

/// Opens a session again and again until it is open, and works with it until the node ends.
fn work(seat: &Seat, post: &Post) {
    while !post.is_over() {
        match Works::begin(seat, post) {
            Ok(works) => return works.run(),
            Err(why) => post.say_state(Some(why), Vec::new()),
        }
        let until = Instant::now() + AGAIN;
        while !post.is_over() && Instant::now() < until {
            post.rest();
            let _ = poll(&[post.descriptor()], Some(until));
        }
    }
}

/// The thread, while there is a session.
struct Works<'a> {
    seat: &'a Seat,
    post: &'a Post,
    table: Arc<Mutex<Table>>,
    tunnels: Tunnels,
    own: Announcement,
    /// Keys that are to be there, and their tokens where they are.
    wanted: Vec<String>,
    tokens: BTreeMap<String, LivelinessToken>,
    /// What was learnt last, and when that was said.
    members: Vec<Way>,
    said_at: Duration,
    beat_at: Duration,
    connected: Option<Vec<portolan_transport::NodeId>>,
    _subscriber: Subscriber<()>,
    session: Session,
}

impl<'a> Works<'a> {
    fn begin(seat: &'a Seat, post: &'a Post) -> Result<Self, String> {
        let zenoh = seat.state.file("zenoh.sock");
        let failed = |doing: &str, error: &dyn ToString| format!("{doing}: {}", error.to_string());
        let tunnels = Tunnels::new(&seat.cluster, &seat.clock, &zenoh)
            .map_err(|error| failed("cannot listen in the state directory", &error))?;
        let session = zenoh::open(config(&zenoh)?).wait();
        let session = session.map_err(|error| failed("cannot open a session of Zenoh", &error))?;
        let table = Arc::new(Mutex::new(Table::new(seat.cluster.node())));
        let (hears, wakes) = (Arc::clone(&table), post.waker());
        let subscriber = session
            .liveliness()
            .declare_subscriber(all_keys())
            .history(true)
            .callback(move |sample| {
                let is_there = sample.kind() == SampleKind::Put;
                let mut table = hears.lock().unwrap_or_else(PoisonError::into_inner);
                if table.hear(sample.key_expr().as_str(), is_there) {
                    let _ = wakes.notify();
                }
            })
            .wait()
            .map_err(|error| failed("cannot subscribe with Zenoh", &error))?;
        Ok(Self {
            seat,
            post,
            table,
            tunnels,
            own: Announcement::default(),
            wanted: Vec::new(),
            tokens: BTreeMap::new(),
            members: Vec::new(),
            said_at: Duration::ZERO,
            beat_at: Duration::ZERO,
            connected: None,
            _subscriber: subscriber,
            session,
        })
    }

    fn run(mut self) {
        while !self.post.is_over() {
            self.step();
            if self.wait().is_err() {
                break;
            }
        }
        // Others hear of it by the ends of these. What follows may hang, and nobody waits for it.
        drop(self.tunnels);
        let _ = self.session.close().wait();
    }

    fn wait(&self) -> std::io::Result<()> {
        let now = self.seat.clock.now();
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.post.descriptor()];
        fds.extend(self.tunnels.descriptors());
        let wake = self
            .tunnels
            .wake_at()
            .map_or(self.beat_at, |at| at.min(self.beat_at));
        let left = match self.wanted.is_empty() {
            true => wake.saturating_sub(now),
            false => Duration::ZERO,
        };
        poll(&fds, Some(Instant::now() + left)).map(drop)
    }

    fn step(&mut self) {
        let now = self.seat.clock.now();
        self.post.rest();
        if now >= self.beat_at {
            self.post.beat();
            self.beat_at = now + BEAT;
        }
        while let Some((node, connection)) = self.post.connection() {
            self.tunnels.take(node, connection);
        }
        if let Some(own) = self.post.announced() {
            self.announce(own);
        }
        self.declare();
        self.tunnels.step(&self.post.waker());
        let nodes = self.tunnels.nodes();
        if self.connected.as_ref() != Some(&nodes) {
            self.post.say_state(None, nodes.clone());
            self.connected = Some(nodes);
        }
        // Of a crowd that comes at once it is told in a few times.
        if now >= self.said_at + GATHER {
            let news = self
                .table
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .news();
            if let Some(news) = news {
                self.said_at = now;
                self.hear(&news);
                self.post.say(news);
            }
        } else {
            self.beat_at = self.beat_at.min(self.said_at + GATHER);
        }
    }

    /// The members that there are may be reached by their directories, too.
    fn hear(&mut self, news: &News) {
        let ways = news.members.iter().flat_map(|member| {
            let addresses = member.addresses.iter();
            addresses.map(|address| Way {
                node: Some(member.node),
                address: address.clone(),
            })
        });
        self.members = ways.collect();
        self.set_ways();
    }

    fn set_ways(&mut self) {
        let all = self.own.ways.iter().chain(&self.members);
        self.tunnels.set_ways(all.cloned().collect());
    }

    /// Says something else of this node from now on.
    fn announce(&mut self, own: Announcement) {
        let keys: Vec<String> = std::iter::once(member_key(&own.member))
            .chain(name_keys(&own))
            .collect();
        self.own = own;
        self.set_ways();
        let stays: std::collections::BTreeSet<&String> = keys.iter().collect();
        // A token that is dropped is taken back.
        self.tokens.retain(|key, _| stays.contains(key));
        let new = keys.iter().filter(|key| !self.tokens.contains_key(*key));
        self.wanted = new.rev().cloned().collect();
    }

    /// Declares some of the tokens that are wanted.
    fn declare(&mut self) {
        for _ in 0..TOKENS {
            let Some(key) = self.wanted.pop() else {
                return;
            };
            match self.session.liveliness().declare_token(key.clone()).wait() {
                Ok(token) => drop(self.tokens.insert(key, token)),
                Err(error) => {
                    let why = format!("cannot declare a token of Zenoh: {error}");
                    self.post.say_state(Some(why), self.tunnels.nodes());
                }
            }
        }
    }
}

/// What Zenoh is to do: nothing but what it is told here.
fn config(zenoh: &Path) -> Result<Config, String> {
    let endpoint = |path: &Path| match path.to_str() {
        Some(text) if !text.contains(['?', '#']) => Ok(format!("unixsock-stream/{text}")),
        _ => Err(format!(
            "Zenoh takes no path with '?', '#' or other than UTF-8: {}",
            path.display()
        )),
    };
    let directory = zenoh.parent().unwrap_or(zenoh);
    let slots = (0..SLOTS).map(|at| endpoint(&slot_path(directory, at)));
    let listen = json(&[endpoint(zenoh)?])?;
    let connect = json(&slots.collect::<Result<Vec<_>, _>>()?)?;
    let settings = [
        ("mode", "\"router\""),
        ("scouting/delay", "0"),
        ("scouting/multicast/enabled", "false"),
        ("scouting/gossip/enabled", "false"),
        ("listen/endpoints", &listen),
        ("connect/endpoints", &connect),
        ("connect/timeout_ms", "-1"),
        ("connect/exit_on_failure", "false"),
        (
            "connect/retry",
            "{ period_init_ms: 100, period_max_ms: 1000, period_increase_factor: 2 }",
        ),
        // Less than the silence after which a name's node is given up by most.
        ("transport/link/tx/lease", "8000"),
    ];
    let mut config = Config::default();
    for (key, value) in settings {
        let set = config.insert_json5(key, value);
        set.map_err(|error| format!("Zenoh does not take {key} = {value}: {error}"))?;
    }
    Ok(config)
}

fn json(endpoints: &[String]) -> Result<String, String> {
    serde_json::to_string(endpoints).map_err(|error| error.to_string())
}
