//! Peers, and strangers, as a network and a hostile one of them are: IPv6, names that change, silence,
//! floods, clocks that jump.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use portolan_abi::node::{Hello, HelloBody, Record, Sent, Stated, WIRE, to_sign};
use portolan_node::state::State;
use portolan_node::up::{Ask, Start, ask};
use portolan_node::{authority, up};
use portolan_testkit::{PATIENCE, unique, until};
use portolan_transport::clock::{Clock, SystemClock};
use portolan_transport::tls::{Certificate, LinkOptions, links};
use portolan_transport::{
    Address, Class, Connection, Destination, Moment, Progress, Source, State as LinkState,
    StreamId, Transport as _,
};

use crate::scene::{Machine, json};
use crate::{are_linked, peers};

fn today() -> Moment {
    Moment {
        seconds: SystemClock::default().of_day().as_secs(),
    }
}

#[test]
fn nodes_meet_over_ipv6_and_one_listener_takes_both() {
    if TcpListener::bind("[::1]:0").is_err() {
        println!("skipped: this system has no IPv6");
        return;
    }
    let mut hall = Machine::new("hall");
    hall.succeeds(&["init", "--name", "hall", "--listen", "[::]:0"]);
    hall.up();
    let port = hall.address().parse::<SocketAddr>().unwrap().port();
    assert_eq!(hall.address(), format!("[::]:{port}"));
    let invite = |address: &str| {
        let token = hall.succeeds(&["invite", "--address", address]);
        assert!(token.starts_with(&format!("{address}/")), "{token}");
        token.trim().to_owned()
    };
    let mut roof = Machine::new("roof");
    let token = invite(&format!("[::1]:{port}"));
    roof.succeeds(&["join", &token, "--name", "roof", "--listen", "[::1]:0"]);
    roof.up();
    assert!(roof.address().starts_with("[::1]:"));
    until("both are linked", || are_linked(&hall, &roof));
    assert_eq!(
        roof.status()["peers"][0]["address"],
        format!("[::1]:{port}")
    );
    // An IPv4 address at the same listener, and one that is linked with both.
    let mut cellar = Machine::new("cellar");
    cellar.join(&invite(&format!("127.0.0.1:{port}")));
    cellar.configure(&format!(
        "peers = [\"127.0.0.1:{port}\", {:?}]",
        roof.address()
    ));
    cellar.up();
    until("all are linked", || peers(&cellar, "up").len() == 2);
    let joined = hall
        .audit()
        .into_iter()
        .filter(|it| it["event"] == "joined");
    let from: Vec<_> = joined.map(|it| it["from"].to_string()).collect();
    assert!(
        from[0].contains("[::1]") && from[1].contains("127.0.0.1"),
        "{from:?}"
    );
    // What is no address is refused by its line.
    hall.kill();
    hall.configure("listen = \"::1:7411:x\"");
    let error = hall.fails(&["up"], 2);
    assert!(error.contains("`listen` is"), "{error}");
}

#[test]
fn a_name_is_looked_up_anew_at_each_attempt() {
    let mut hall = Machine::new("hall");
    hall.init();
    hall.up();
    let address: SocketAddr = hall.address().parse().unwrap();
    let mut roof = Machine::new("roof");
    roof.join(&hall.invite());
    roof.configure(&format!("peers = [\"hall.test:{}\"]", address.port()));
    let hosts = roof.state.join("hosts");
    let leads_to = |ip: &str| std::fs::write(&hosts, format!("{ip} hall.test\n")).unwrap();
    // Nothing listens there: the listener has one address of the loopback.
    leads_to("127.0.0.9");
    if !can_mount() {
        println!("skipped: this system lets nobody make a mount namespace");
        return;
    }
    roof.up_with_hosts(&hosts);
    until("it has tried", || {
        let failure = roof.status()["peers"][0]["failure"].to_string();
        failure.contains("127.0.0.9")
    });
    leads_to("127.0.0.1");
    until("both are linked", || are_linked(&hall, &roof));
    // The machine moves: the link is lost, and the name leads elsewhere.
    hall.kill();
    hall.configure(&format!("listen = \"127.0.0.2:{}\"", address.port()));
    leads_to("127.0.0.2");
    hall.up();
    until("both are linked again", || are_linked(&hall, &roof));
}

#[test]
fn an_invitation_names_an_address_where_the_machines_name_leads_back_to_itself() {
    let hall = Machine::new("hall");
    hall.succeeds(&["init", "--name", "hall", "--listen", "0.0.0.0:7411"]);
    let hosts = hall.state.join("hosts");
    // A machine of its own, with one network and a way out of it; as the names of hosts stand in `/etc/hosts`.
    let script = r#"
        mount --bind "$HOSTS" /etc/hosts && hostname pavilion && ip link set lo up &&
        ip link add way type veth peer name other && ip link set way up && ip link set other up &&
        ip address add 198.51.100.7/24 dev way && ip route add default via 198.51.100.1 || exit 77
        exec "$NODE" invite
    "#;
    for (leads_to, address) in [
        ("127.0.1.1", "198.51.100.7:7411/"),
        ("198.51.100.9", "pavilion:7411/"),
    ] {
        std::fs::write(&hosts, format!("{leads_to} pavilion\n")).unwrap();
        let mut command = std::process::Command::new("unshare");
        command.args(["--map-root-user", "--user", "--mount", "--net", "--uts"]);
        let command = command.args(["sh", "-c", script]).env("HOSTS", &hosts);
        let command = command.env("PORTOLAN_NODE_STATE", &hall.state);
        let command = command.env("NODE", env!("CARGO_BIN_EXE_portolan-node"));
        let Ok(output) = command.output() else {
            println!("skipped: there is no unshare here");
            return;
        };
        if matches!(output.status.code(), Some(1 | 77)) {
            println!("skipped: this system lets nobody make such namespaces");
            return;
        }
        let said = String::from_utf8_lossy(&output.stdout);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(said.starts_with(address), "{said}{told}");
        assert!(told.contains("--address"), "{told}");
    }
}

fn can_mount() -> bool {
    let words = ["--map-root-user", "--user", "--mount", "true"];
    let tried = std::process::Command::new("unshare").args(words).status();
    tried.is_ok_and(|status| status.success())
}

/// Connections that were begun from an address of the loopback, and say nothing.
fn silent(from: &str, to: SocketAddr, count: usize) -> Vec<std::os::fd::OwnedFd> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let begin = |_| {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let from: SocketAddr = format!("{from}:0").parse().unwrap();
        bind(&socket, &from).unwrap();
        connect(&socket, &to).unwrap();
        socket
    };
    (0..count).map(begin).collect()
}

#[test]
fn a_crowd_that_says_nothing_keeps_nobody_else_away_and_is_dropped() {
    let mut hall = Machine::new("hall");
    hall.init();
    hall.up();
    let address: SocketAddr = hall.address().parse().unwrap();
    let crowd = silent("127.0.0.2", address, 40);
    // From another address one comes in at once.
    let mut roof = Machine::new("roof");
    roof.join(&hall.invite());
    roof.up();
    until("both are linked", || are_linked(&hall, &roof));
    let refused = |why: &str| {
        let log = hall.audit().into_iter();
        let mut its = log.filter(|it| it["event"] == "refused");
        its.any(|it| it["why"].to_string().contains(why))
    };
    until("most of them were too many", || {
        refused("connections from this address")
    });
    until("the others were too slow", || refused("handshake within"));
    drop(crowd);
}

/// A node that has a certificate, and says what it likes.
struct Hostile {
    connection: Box<dyn Connection>,
    records: StreamId,
}

impl Hostile {
    /// Has the identity of a machine whose node does not run.
    fn new(machine: &Machine, to: &Machine) -> Self {
        let state = State::at(&machine.state).unwrap();
        let cluster = authority::cluster(&state, today()).unwrap();
        let transport = links(
            &cluster,
            LinkOptions::default(),
            Arc::new(SystemClock::default()),
        );
        let address: SocketAddr = to.address().parse().unwrap();
        let mut connection = transport.connect(&Address::Internet(address)).unwrap();
        let records = connection.open(Class::Records).unwrap();
        let mut hostile = Self {
            connection,
            records,
        };
        until("it is connected", || {
            hostile.connection.progress() == LinkState::Up
        });
        let statements = portolan_node::statements::Statements::load(&state).unwrap();
        let body = HelloBody {
            versions: WIRE,
            features: 0,
            cluster: statements.cluster(),
            node: cluster.node(),
            incarnation: 1,
            run: [1; 16],
            name: 0,
            known: 0,
            association: None,
            proposal: 9,
            flows: 100,
            transfers: 100,
            requests: 100,
        };
        let (name, known) = ("hostile".to_owned(), Vec::new());
        hostile.say(&Record::Hello(Hello { body, name, known }));
        hostile.say(&Record::Resumed);
        hostile
    }

    fn say(&mut self, record: &Record<'_>) {
        let bytes = record.with(Sent::default());
        let mut sent = 0;
        let end = Instant::now() + PATIENCE;
        while sent < bytes.len() && Instant::now() < end {
            match self
                .connection
                .send(self.records, &[Source::from(&bytes[sent..])])
            {
                Progress::Moved(moved) => sent += moved,
                Progress::Blocked => std::thread::sleep(Duration::from_millis(1)),
                Progress::Ended | Progress::Failed(_) => return,
            }
            self.read();
        }
    }

    fn read(&mut self) {
        self.connection.progress();
        let mut room = [0; 4096];
        let into = [Destination::from(&mut room[..])];
        while let Progress::Moved(1..) = self.connection.receive(self.records, &into) {}
    }
}

#[test]
fn a_peer_that_asks_for_certificates_without_end_or_states_nonsense_is_bounded() {
    let mut hall = Machine::new("hall");
    hall.init();
    hall.up();
    let roof = Machine::new("roof");
    roof.join(&hall.invite());
    let state = State::at(&roof.state).unwrap();
    let request = authority::request_again(&state).unwrap();
    let mut hostile = Hostile::new(&roof, &hall);
    for _ in 0..200 {
        hostile.say(&Record::Renew(&request));
    }
    // Statements: none at all, one of its own key, and one that the authority has not signed.
    let own = Certificate::read(&authority::identity(&state).unwrap().certificate).unwrap();
    let statements = portolan_node::statements::Statements::load(&state).unwrap();
    let cluster = statements.cluster();
    let hall_id = hall.status()["node"].as_str().unwrap().parse().unwrap();
    for number in 0..200_u64 {
        hostile.say(&Record::Statement(&number.to_le_bytes()));
        for signer in [own.key, cluster] {
            let mut bytes = to_sign(cluster, signer, number, Stated::Forget(hall_id));
            bytes.extend([0x30; 70]);
            hostile.say(&Record::Statement(&bytes));
        }
    }
    let count = |event: &str, why: &str| {
        let log = hall.audit().into_iter();
        let its = log.filter(|it| it["event"] == event && it["why"].to_string().contains(why));
        its.count()
    };
    until("it was heard", || {
        hostile.read();
        count("refused", "a statement:") > 0 && count("refused", "too many certificates") > 0
    });
    std::thread::sleep(Duration::from_millis(200));
    assert!(
        (1..=8).contains(&count("renewed", "")),
        "{}",
        count("renewed", "")
    );
    assert!(count("refused", "too many certificates") <= 2);
    assert!(count("refused", "a statement:") <= 32);
    assert!(hall.status()["forgotten"].as_array().unwrap().is_empty());
    // Nobody else notices.
    let mut cellar = Machine::new("cellar");
    cellar.join(&hall.invite());
    cellar.up();
    until("another node is linked", || {
        hostile.read();
        peers(&cellar, "up") == ["hall"]
    });
}

/// The system's clock, whose time of day jumps.
#[derive(Debug, Default)]
struct Jumping {
    system: SystemClock,
    seconds: AtomicI64,
}

impl Clock for Jumping {
    fn now(&self) -> Duration {
        self.system.now()
    }

    fn of_day(&self) -> Duration {
        let seconds = self.system.of_day().as_secs();
        let jump = self.seconds.load(Ordering::Relaxed);
        Duration::from_secs(seconds.saturating_add_signed(jump))
    }
}

#[test]
fn clocks_that_jump_end_no_link_and_certificates_are_renewed_by_them() {
    const DAY: i64 = 86_400;
    let clock = Arc::new(Jumping::default());
    let states = ["jump-hall", "jump-roof"].map(|name| {
        let path = std::env::temp_dir().join(unique(name));
        State::at(&path).unwrap()
    });
    let [hall, roof] = &states;
    authority::make_first(hall, "hall", today()).unwrap();
    // As if it had joined.
    let (key, _) = authority::request("roof").unwrap();
    let certificate = authority::Authority::load(hall).unwrap();
    let certificate = certificate.sign("roof", &key, today()).unwrap();
    let believed = authority::authorities(hall, today()).unwrap();
    authority::keep(roof, &key, &certificate, &believed).unwrap();
    let run = |state: &State, peers: &str| {
        let name = if peers.is_empty() { "hall" } else { "roof" };
        let text = format!("name = {name:?}\nlisten = \"127.0.0.1:0\"\npeers = [{peers}]\n");
        state.write("node.toml", &text).unwrap();
        let (state, clock) = (state.clone(), Arc::clone(&clock));
        std::thread::spawn(move || up::run(&state, clock, Start::Alone, |_| {}))
    };
    let status = |state: &State| ask(state, Ask::Status).map(|it| json(&it));
    let first = run(hall, "");
    until("it answers", || status(hall).is_ok());
    let address = status(hall).unwrap()["listen"].to_string();
    let second = run(roof, &address);
    let is_up = |state: &State| status(state).is_ok_and(|it| it["peers"][0]["state"] == "up");
    until("both are linked", || is_up(hall) && is_up(roof));
    let valid_until = |state: &State| status(state).unwrap()["certificate_until"].to_string();
    let since = || status(roof).unwrap()["peers"][0]["for_ms"].as_u64();
    let jump = |days: i64| {
        clock.seconds.store(days * DAY, Ordering::Relaxed);
        // A look comes each minute anyway.
        for state in &states {
            ask(state, Ask::Reload).unwrap();
        }
    };
    // Two thirds are over; and then, by far, the whole time of both certificates.
    for days in [21, 90] {
        let before = states.each_ref().map(valid_until);
        let was_up = since();
        jump(days);
        until("both have new certificates", || {
            let now = states.each_ref().map(valid_until);
            now[0] != before[0] && now[1] != before[1]
        });
        assert!(
            is_up(hall) && is_up(roof) && since() >= was_up,
            "the link has stayed"
        );
    }
    // Back again: what was issued in the future is not valid yet. Links stay.
    jump(0);
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_up(hall) && is_up(roof));
    jump(90);
    // A new link is made by the clock of then.
    ask(roof, Ask::Leave).unwrap();
    second.join().unwrap().unwrap();
    let second = run(roof, &address);
    until("both are linked again", || is_up(hall) && is_up(roof));
    for (state, node) in [(roof, second), (hall, first)] {
        ask(state, Ask::Leave).unwrap();
        node.join().unwrap().unwrap();
        let _ = std::fs::remove_dir_all(state.path());
    }
}

#[test]
fn a_stranger_that_only_listens_is_given_up_and_the_next_address_is_tried() {
    let mut hall = Machine::new("hall");
    hall.init();
    hall.up();
    // It takes connections, and never says a word.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut roof = Machine::new("roof");
    roof.join(&hall.invite());
    let address = mute.local_addr().unwrap().to_string();
    roof.configure(&format!("peers = [{address:?}, {:?}]", hall.address()));
    roof.up();
    until("it is linked with the other one", || {
        peers(&roof, "up") == ["hall"]
    });
    until("the mute one is given up", || {
        let status = roof.status();
        let mut all = status["peers"].as_array().unwrap().iter();
        all.any(|it| {
            it["address"] == address.as_str() && it["failure"].to_string().contains("no answer")
        })
    });
    drop(mute);
}
