//! `portolan ls --nodes` and `portolan top --node`, beside nodes that run.

#[path = "support/lab.rs"]
mod lab;
#[path = "support/shown.rs"]
mod shown;
mod support;

use lab::{Lab, Place};
use portolan::{Access, Deadline, Domain, Message, PortOptions, ReceiveRight, SendRight, WhenFull};
use portolan_testkit::{PATIENCE, unique, until};
use rustix::process::Signal;
use serde_json::Value;
use shown::Shown;
use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixListener;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use support::portolan;

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

/// A port beside one node, and a right on it beside another.
struct Sends {
    _domains: [Domain; 2],
    port: ReceiveRight,
    right: SendRight,
}

impl Sends {
    fn new(from: &Place, to: &Place) -> Self {
        let there = Domain::join(&to.domain).unwrap();
        // Room for all that a test sends.
        let options = PortOptions::named("log").queue(100).spanned();
        let port = there.bind(options).unwrap();
        let here = Domain::join(&from.domain).unwrap();
        let right = here.connect("log", soon()).unwrap();
        Self {
            _domains: [there, here],
            port,
            right,
        }
    }

    /// So many messages, which are there when this returns.
    fn send(&self, messages: usize) {
        for _ in 0..messages {
            self.right.send(Message::default(), soon()).unwrap();
        }
        self.right.flush(soon()).unwrap();
    }
}

/// Tells a thread to end, also when the test fails: the scope waits for it.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The state of the link that a node has with another one.
fn link(listed: &Value, with: &str) -> String {
    let peers = listed["peers"].as_array().unwrap().iter();
    let mut its = peers.filter(|peer| peer["name"] == with);
    its.next().unwrap()["state"].as_str().unwrap().to_owned()
}

#[track_caller]
fn complaint(output: Output, code: i32) -> String {
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains("to do: "), "{said}");
    said
}

#[test]
fn the_nodes_are_listed_with_links_domains_and_ports_of_others() {
    let lab = Lab::start(3);
    let [one, two, three] = &lab.places[..] else {
        unreachable!()
    };
    let sends = Sends::new(two, one);
    sends.send(5);
    let text = two.says(&["ls", "--nodes"]);
    assert!(
        text.starts_with("lab2 sees 2 other nodes, 2 up\n"),
        "{text}"
    );
    let row = |first: &str| -> Vec<String> {
        let rows = text.lines().map(str::split_whitespace);
        let mut rows = rows.filter(|row| row.clone().next() == Some(first));
        let row = rows
            .next()
            .unwrap_or_else(|| panic!("no {first} in {text}"));
        row.map(str::to_owned).collect()
    };
    assert_eq!(row("lab1")[1], "up");
    assert_eq!(row("log")[1..], ["lab1", "lab", "5", "0", "0"]);
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(text.contains("all nodes"), "{text}");
    let listed = json(&two.says(&["ls", "--nodes", "--json"]));
    assert_eq!(listed["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(
        (&listed["name"], &listed["incarnation"]),
        (&"lab2".into(), &1.into())
    );
    // The names are those of `portolan node status`, and so is what they say.
    let status = json(&two.says(&["node", "status", "--json"]));
    assert_eq!(listed["spans"], status["spans"]);
    assert_eq!(listed["node"], status["node"]);
    let proxy = &listed["spans"][0]["proxies"][0];
    assert_eq!(
        (&proxy["name"], &proxy["node"]),
        (&"log".into(), &"lab1".into())
    );
    assert_eq!(
        (&proxy["sent"], &proxy["unacknowledged"]),
        (&5.into(), &0.into())
    );
    let there = json(&one.says(&["ls", "--nodes", "--json"]));
    assert_eq!(there["spans"][0]["lent"][0]["delivered"], 5);
    // A node that is silent, and one that is gone.
    let listed = || json(&two.says(&["ls", "--nodes", "--json"]));
    three.signal(Signal::STOP);
    until("it is unreachable", || {
        link(&listed(), "lab3") == "unreachable"
    });
    let text = two.says(&["ls", "--nodes"]);
    assert!(
        text.starts_with("lab2 sees 2 other nodes, 1 up\n"),
        "{text}"
    );
    three.signal(Signal::CONT);
    until("it is back", || link(&listed(), "lab3") == "up");
    three.signal(Signal::KILL);
    until("it is down", || link(&listed(), "lab3") != "up");
    assert_eq!(link(&listed(), "lab1"), "up");
}

#[test]
fn where_no_node_runs_or_answers_it_says_what_to_do() {
    let folder = std::env::temp_dir().join(unique("no-node"));
    std::fs::create_dir_all(&folder).unwrap();
    let ls = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_portolan"));
        let command = command.args(["ls", "--nodes"]);
        command
            .env("PORTOLAN_NODE_STATE", &folder)
            .output()
            .unwrap()
    };
    let said = complaint(ls(), 2);
    assert!(said.contains("no node runs"), "{said}");
    assert!(said.contains("portolan node up"), "{said}");
    let directory = folder.to_str().unwrap();
    let top = portolan(&["top", "--node", directory, "--json"]);
    assert!(complaint(top, 2).contains("portolan node up"));
    let top = portolan(&["top", "--node", "no-such-node", "--json"]);
    assert!(complaint(top, 2).contains("no node named \"no-such-node\""));
    // A path is not always text.
    let odd = folder.join(OsStr::from_bytes(b"stat\xff"));
    let mut top = std::process::Command::new(env!("CARGO_BIN_EXE_portolan"));
    let top = top.args(["top", "--json", "--node"]).arg(&odd).output();
    assert!(complaint(top.unwrap(), 2).contains("no node runs"));
    // Something else has the socket.
    let listener = UnixListener::bind(folder.join("control.sock")).unwrap();
    let other = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        assert!(client.read(&mut [0; 100]).unwrap() > 0);
        client.write_all(b"hello\n").unwrap();
    });
    let said = complaint(ls(), 1);
    assert!(said.contains("cannot ask the node"), "{said}");
    other.join().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let both = portolan(&["ls", "--nodes", "frames"]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn a_node_that_is_stopped_is_told_of() {
    let lab = Lab::start(1);
    let place = &lab.places[0];
    place.signal(Signal::STOP);
    let output = place.command(&["ls", "--nodes"]).output().unwrap();
    place.signal(Signal::CONT);
    let said = complaint(output, 1);
    assert!(said.contains("does not answer"), "{said}");
    assert!(said.contains("kill -CONT"), "{said}");
}

#[test]
fn the_screen_shows_a_node_its_links_and_ports_and_says_when_it_ends() {
    let lab = Lab::start(3);
    let [one, two, three] = &lab.places[..] else {
        unreachable!()
    };
    let mut sends = Sends::new(two, one);
    let state = two.state.to_str().unwrap();
    let mut top = Shown::start(&["--node", state, "--interval", "0.1"]);
    let text = top.until_all(&["2 up, 0 not", "lab1", "lab3", "CAME/s"]);
    assert!(text.starts_with("lab2  127."), "{text}");
    assert!(top.is_raw() && top.is_full_screen());
    top.press("2");
    top.until_all(&["log", "lab1", "MSG OUT/s"]);
    // What happens is seen.
    sends.send(57);
    let text = top.until(" 57 ");
    assert!(text.contains("log"), "{text}");
    // What waits for a node that is silent, too.
    one.signal(Signal::STOP);
    top.until("1 up, 1 not");
    one.signal(Signal::CONT);
    top.until("2 up, 0 not");
    for _ in 0..57 {
        drop(sends.port.receive(Access::Later, soon()).unwrap());
    }
    top.press("1");
    three.signal(Signal::KILL);
    top.until("1 up, 1 not");
    // A node that does not answer is shown as it was, and keys are heeded.
    two.signal(Signal::STOP);
    top.until("no answer");
    top.press("4");
    top.until_all(&["SERVES", "no answer"]);
    two.signal(Signal::CONT);
    assert!(top.changes("no answer"), "{}", top.text());
    two.signal(Signal::KILL);
    top.ends_well();
    let text = top.until("has ended");
    assert!(text.contains("the node with the state directory"), "{text}");
}

#[test]
fn a_snapshot_of_a_node_has_rates_and_a_node_is_found_by_its_name() {
    let lab = Lab::start(2);
    let [one, two] = &lab.places[..] else {
        unreachable!()
    };
    let sends = Sends::new(two, one);
    sends.send(1);
    let state = two.state.to_str().unwrap();
    let ended = AtomicBool::new(false);
    let shown = std::thread::scope(|scope| {
        let _ends = Ends(&ended);
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                // The port is full now and then, which is all the same.
                let _ = sends.right.send(Message::default(), WhenFull::Drop);
                std::thread::yield_now();
            }
        });
        let look = || json(&two.says(&["top", "--node", state, "--json", "--interval", "0.1"]));
        let rate = |shown: &Value| shown["peers"][0]["sent_bytes_per_second"].as_f64().unwrap();
        let mut shown = look();
        until("bytes go there", || {
            shown = look();
            rate(&shown) > 0.0
        });
        shown
    });
    assert_eq!(shown["version"], env!("CARGO_PKG_VERSION"));
    assert!(shown["seconds"].as_f64().unwrap() >= 0.1, "{shown}");
    assert_eq!(shown["spans"][0]["proxies"][0]["name"], "log");
    // Other labs may run, whose nodes have the same names: then it says which there are. A node that
    // is too busy to say its name in time is not found, and looked for again.
    until("it is found by its name", || {
        let named = portolan(&["top", "--node", "lab2", "--json", "--interval", "0.1"]);
        if named.status.success() {
            return json(&String::from_utf8(named.stdout).unwrap())["name"] == "lab2";
        }
        let said = String::from_utf8(named.stderr).unwrap();
        said.contains("several nodes named") && said.contains(state)
    });
    // Beside the node, nothing need be named.
    let own = json(&two.says(&["top", "--node", "--json", "--interval", "0.1"]));
    assert_eq!(own["name"], "lab2");
    let without = two.command(&["top", "--node"]).output().unwrap();
    assert!(complaint(without, 2).contains("--json"));
}
