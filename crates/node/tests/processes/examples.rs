//! The examples `remote_port`, `handoff`, `moving_server` and `cluster_status` over nodes, each of them a process.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use crate::scene::Machine;
use portolan::{Deadline, Domain, Message, PortOptions};
use portolan_sys::process::dies_with_us;
use portolan_testkit::{PATIENCE, unique, until};

/// An example of this package, where cargo puts it; built if it is not there.
fn example(package: &str, name: &str) -> PathBuf {
    let beside = PathBuf::from(env!("CARGO_BIN_EXE_portolan-node"));
    let example = beside.with_file_name("examples").join(name);
    if !example.exists() {
        let mut build = Command::new(env!("CARGO"));
        let built = build.args(["build", "-p", package, "--example", name]);
        assert!(built.status().unwrap().success());
    }
    example
}

fn runs(name: &str, words: &[&str]) -> Child {
    let mut command = Command::new(example("portolan", name));
    command.args(words).stdin(Stdio::null());
    dies_with_us(command.stdout(Stdio::piped()))
        .spawn()
        .unwrap()
}

fn says(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Has a machine span the domain "cameras"; its own name for it.
fn spans(machine: &Machine) -> String {
    let local = unique(&format!("cameras-{}", machine.name));
    machine.succeeds(&["span", "cameras", "--local", &local]);
    until("it is spanned", || {
        machine.status()["spans"][0]["state"] == "up"
    });
    local
}

/// What `cluster_status` says of the node with this state directory.
fn cluster_status(machine: &Machine) -> Output {
    let mut command = Command::new(example("portolan-node", "cluster_status"));
    command.arg(&machine.state).output().unwrap()
}

#[test]
fn a_program_finds_ports_of_another_machine_and_the_status_of_both_nodes_says_so() {
    let (mut hall, roof) = crate::linked();
    let domains = [&hall, &roof].map(spans);
    let shown = |machine: &Machine| {
        let output = cluster_status(machine);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    // The client looks first, and waits for the ports.
    let client = runs("remote_port", &["client", &domains[1], "hall"]);
    let server = runs("remote_port", &["server", &domains[0]]);
    assert_eq!(
        says(client),
        "client: three lines are there\nclient: 1048576 bytes came back, all in capitals: true\n"
    );
    assert_eq!(
        says(server),
        "server: line 1\nserver: line 2\nserver: line 3\n"
    );
    let text = shown(&roof);
    assert!(text.starts_with("roof listens at 127.0.0.1:"), "{text}");
    for line in [
        "other nodes: 1",
        &format!(
            "domain cameras, {} here: up, 0 requests made, 0 served",
            domains[1]
        ),
        "messages that could not travel: 0",
    ] {
        assert!(
            text.lines().any(|said| said == line),
            "no {line:?} in {text}"
        );
    }
    assert!(text.contains("  hall: up for "), "{text}");
    // What went over the link is counted at both ends: the text went there, and came back.
    let bytes = |text: &str, what: &str| {
        let before = text.split(what).next().unwrap().trim_end();
        before.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    for text in [text, shown(&hall)] {
        assert!(bytes(&text, "bytes there") > 1 << 20, "{text}");
        assert!(bytes(&text, "bytes back") > 1 << 20, "{text}");
    }
    // A port that stays, and a right on it.
    let there = Domain::join(&domains[0]).unwrap();
    let port = there.bind(PortOptions::named("kept").spanned()).unwrap();
    let here = Domain::join(&domains[1]).unwrap();
    let right = here.connect("kept", PATIENCE).unwrap();
    right
        .send(Message::default(), Deadline::after(PATIENCE))
        .unwrap();
    right.flush(PATIENCE).unwrap();
    let sent = "\n  kept of hall: 1 messages sent, 0 not there yet, 0 wait here\n";
    assert!(shown(&roof).contains(sent), "{}", shown(&roof));
    let came = "\n  kept, let out: 1 messages came\n";
    assert!(shown(&hall).contains(came), "{}", shown(&hall));
    drop(port);
    hall.kill();
    until("the link is down", || {
        !shown(&roof).contains("  hall: up for ")
    });
    let output = cluster_status(&hall);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("portolan node up"), "{said}");
}

#[test]
fn a_right_given_by_one_machine_to_another_leads_to_a_third_and_its_giver_may_go() {
    let mut machines: [Machine; 3] = crate::three();
    let domains = machines.each_ref().map(spans);
    until("all are linked", || {
        machines
            .iter()
            .all(|machine| crate::peers(machine, "up").len() == 2)
    });
    let [giver, receiver, home] = &domains;
    let home = runs("handoff", &["home", home]);
    let receiver = runs("handoff", &["receiver", receiver]);
    let giver = runs("handoff", &["giver", giver]);
    assert_eq!(says(giver), "giver: gave its right away\n");
    assert_eq!(says(receiver), "receiver: the counter says 42\n");
    assert_eq!(says(home), "");
    // What `node status` says of it.
    let rights = |machine: &Machine| machine.status()["rights"].clone();
    until("nothing is kept", || rights(&machines[0])["kept"] == 0);
    let given = machines
        .each_ref()
        .map(|it| rights(it)["given"].as_u64().unwrap());
    let come = machines
        .each_ref()
        .map(|it| rights(it)["come"].as_u64().unwrap());
    assert_eq!((given, come), ([1, 0, 0], [0, 1, 0]));
    let asked = machines
        .each_ref()
        .map(|it| rights(it)["senders_asked"].clone());
    assert_eq!(asked, [0, 0, 0], "no port wanted to know");
    let text = machines[0].succeeds(&["status"]);
    assert!(
        text.contains("rights       1 given in messages, 0 come"),
        "{text}"
    );
    machines[0].kill();
}

#[test]
fn a_server_moves_to_another_machine_while_programs_of_both_ask_it() {
    let (mut hall, roof) = crate::linked();
    let domains = [&hall, &roof].map(spans);
    let second = runs("moving_server", &["second", &domains[1]]);
    let first = runs("moving_server", &["first", &domains[0]]);
    let clients = [0, 1].map(|at: usize| runs("moving_server", &["client", &domains[at]]));
    for client in clients {
        assert_eq!(says(client), "client: 500 numbers, in order: true\n");
    }
    assert_eq!(says(first), "first: gave 200 numbers, and the port away\n");
    assert_eq!(says(second), "second: went on from 200, to 1000\n");
    let rights = |machine: &Machine, what: &str| machine.status()["rights"][what].clone();
    assert_eq!(rights(&hall, "ports_left"), 1);
    assert_eq!(rights(&roof, "ports_arrived"), 1);
    hall.kill();
}
