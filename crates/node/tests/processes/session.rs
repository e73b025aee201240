//! What a user does: two nodes of a cluster, a domain that both span, a port here that a program
//! there calls. With real processes, on one machine, where the domain has two local names.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::scene::Machine;
use portolan::{Access, Deadline, Domain, Message, PortOptions, WhenFull};
use portolan_sys::process::dies_with_us;
use portolan_testkit::{Child as Program, PATIENCE, obey, unique, until};

/// The command `portolan`, beside `portolan-node`; built if it is not there.
fn portolan() -> PathBuf {
    let beside = PathBuf::from(env!("CARGO_BIN_EXE_portolan-node")).with_file_name("portolan");
    if !beside.exists() {
        let mut build = Command::new(env!("CARGO"));
        let built = build.args(["build", "-p", "portolan-cli"]).status();
        assert!(built.unwrap().success());
    }
    beside
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(portolan());
    command.args(args).stdin(Stdio::null());
    command
}

/// What a command prints, if it succeeds.
fn prints(args: &[&str]) -> Option<String> {
    let output = command(args).output().unwrap();
    let said = output.status.success();
    said.then(|| String::from_utf8(output.stdout).unwrap())
}

/// What the server `upper` answers, if it does within so many seconds.
fn call(domain: &str, seconds: &str, data: &str) -> Option<String> {
    let call = ["port", "call", "upper", "--domain", domain];
    prints(&[&call[..], &["--timeout", seconds, "--data", data]].concat())
}

struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server that runs a command for each request.
fn serve(domain: &str, name: &str, with: &[&str]) -> Ends {
    let args = ["port", "serve", name, "--domain", domain, "--spanned", "--"];
    let mut command = command(&[&args[..], with].concat());
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    Ends(dies_with_us(command).spawn().unwrap())
}

/// Two nodes that span a domain; its local names.
pub(crate) fn two() -> ([Machine; 2], [String; 2]) {
    let domains = [unique("session-hall"), unique("session-roof")];
    let (hall, roof) = crate::linked();
    for (node, local) in [(&hall, &domains[0]), (&roof, &domains[1])] {
        node.succeeds(&["span", "cameras", "--local", local]);
        until("all is well", || {
            let status = node.status();
            let is_up = |what: &str| status[what][0]["state"] == "up";
            is_up("spans") && is_up("peers")
        });
        assert_eq!(node.succeeds(&["status", "--check"]).trim(), "ok");
    }
    ([hall, roof], domains)
}

#[test]
fn a_program_calls_a_server_on_another_machine() {
    let ([hall, roof], [here, there]) = two();
    let _server = serve(&here, "upper", &["tr", "a-z", "A-Z"]);
    assert_eq!(call(&there, "60", "hello").as_deref(), Some("HELLO"));
    let long = "portolan ".repeat(20_000);
    // Arguments have a limit of their own.
    let file = roof.state.join("long");
    std::fs::write(&file, &long).unwrap();
    let file = file.to_str().unwrap();
    let answer = prints(&["port", "call", "upper", "--domain", &there, file]);
    assert_eq!(answer, Some(long.to_uppercase()));
    let status = hall.status();
    let lent = &status["spans"][0]["lent"];
    assert!(
        status["peers"][0]["received_bytes"].as_u64() > Some(180_000),
        "{status}"
    );
    assert!(lent.as_array().is_some(), "{status}");
    // What was written of it holds after a restart, and is taken back by name.
    let config = std::fs::read_to_string(roof.state.join("node.toml")).unwrap();
    assert!(config.contains(&format!(
        "[[span]]\ndomain = \"cameras\"\nlocal = {there:?}"
    )));
    roof.succeeds(&["unspan", "cameras"]);
    until("it is not spanned", || roof.status()["spans"][0].is_null());
    roof.fails(&["unspan", "cameras"], 2);
    roof.fails(&["span", "a@b"], 2);
    assert_eq!(call(&there, "1", "hello"), None);
}

#[test]
fn a_killed_node_comes_back_and_so_do_its_ports() {
    let ([mut hall, _roof], [here, there]) = two();
    let _server = serve(&here, "upper", &["tr", "a-z", "A-Z"]);
    until("it is called", || {
        call(&there, "2", "a").as_deref() == Some("A")
    });
    hall.kill();
    assert_eq!(call(&there, "2", "a"), None);
    hall.up();
    until("it is called again", || {
        call(&there, "2", "a").as_deref() == Some("A")
    });
}

#[test]
fn joins_a_domain_that_its_node_is_to_span() {
    obey(|order| {
        let domain = Domain::builder(order).spanning().join()?;
        let mut port = domain.bind(PortOptions::named("asked").spanned().synchronous())?;
        std::thread::spawn(move || {
            let domain = domain;
            while let Ok(request) = port.get_request(Access::Later, PATIENCE) {
                let answer = Message::new(domain.name().as_bytes());
                let _ = answer.map(|answer| request.reply(answer));
            }
        });
        Ok("spanned".to_owned())
    });
}

/// A program that asks this machine's node to span what it is told.
fn program_of(machine: &Machine) -> Program {
    let socket = machine.state.join("programs.sock");
    let joins = "session::joins_a_domain_that_its_node_is_to_span";
    Program::running(joins, |command| {
        command.env("PORTOLAN_NODE_SOCKET", &socket);
    })
}

#[test]
fn a_program_has_its_domain_spanned() {
    let ([hall, roof], _) = two();
    let domain = unique("session-asked");
    let mut program = program_of(&hall);
    assert_eq!(program.ask(&domain), "spanned");
    let local = unique("session-asks");
    roof.succeeds(&["span", &domain, "--local", &local]);
    let here = Domain::join(&local).unwrap();
    let right = here.connect("asked", PATIENCE).unwrap();
    let answer = right.request_reply(Message::default(), Access::Later, PATIENCE);
    assert_eq!(answer.unwrap().header(), domain.as_bytes());
    // Who kills the program ends what others have of it.
    program.kill();
    until("the right is dead", || !right.is_live());
}

#[test]
fn a_message_that_is_flushed_has_arrived_and_one_to_a_full_port_says_that_it_has_not() {
    let ([_hall, roof], [here, there]) = two();
    let home = Domain::join(&here).unwrap();
    let options = PortOptions::named("sink").queue(3).spanned();
    let mut port = home.bind(options).unwrap();
    let sent = |seconds: &str, data: &str| {
        let send = ["port", "send", "sink", "--flush", "--domain", &there];
        let send = [&send[..], &["--timeout", seconds, "--data", data]].concat();
        command(&send).output().unwrap()
    };
    let first = sent("60", "first");
    assert!(first.status.success(), "{first:?}");
    assert_eq!(port.depth(), 1);
    let _first = port.receive(Access::Now, Deadline::NOW).unwrap();
    // Until the port is full: what is behind it waits on this machine.
    let mut number: u8 = 0;
    let late = loop {
        let output = sent("2", &number.to_string());
        if !output.status.success() {
            break output;
        }
        number += 1;
        assert!(number < 50, "a port of three slots takes all");
    };
    let error = String::from_utf8_lossy(&late.stderr);
    assert_eq!(late.status.code(), Some(5), "{error}");
    assert!(error.contains("it may still arrive"), "{error}");
    for wanted in 0..=number {
        let message = port.receive(Access::Now, PATIENCE).unwrap();
        let bytes: Vec<u8> = message.slices().flatten().copied().collect();
        assert_eq!(bytes, wanted.to_string().as_bytes());
    }
    // A port that is not let out, one that is nowhere: the same is said of both.
    let _inner = home.bind(PortOptions::named("inner")).unwrap();
    for name in ["inner@hall", "none@hall"] {
        let call = ["port", "call", name, "--domain", &there, "--timeout", "1"];
        let output = command(&call).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).replace("none", "inner");
        assert_eq!(output.status.code(), Some(5), "{error}");
        assert!(
            error.contains("lets out no port named \"inner\""),
            "{error}"
        );
        assert!(error.contains("--spanned"), "{error}");
    }
    assert_eq!(roof.status()["lost"].as_array().map(Vec::len), Some(0));
}

#[test]
fn what_was_sent_before_a_node_is_told_to_end_arrives() {
    const MESSAGES: u8 = 20;
    const BYTES: usize = 2 << 20;
    let ([_hall, mut roof], [here, there]) = two();
    let home = Domain::join(&here).unwrap();
    let options = PortOptions::named("sink").queue(63).spanned();
    let mut port = home.bind(options).unwrap();
    let abroad = Domain::join(&there).unwrap();
    let right = abroad.connect("sink", PATIENCE).unwrap();
    for number in 0..MESSAGES {
        let mut message = Message::new(&[number]).unwrap();
        let mut extent = abroad.allocate(BYTES).unwrap();
        extent.fill(number);
        message.push(extent).unwrap();
        right.send(message, Deadline::after(PATIENCE)).unwrap();
    }
    roof.signal("TERM");
    roof.has_ended();
    for number in 0..MESSAGES {
        let message = port.receive(Access::Now, PATIENCE).unwrap();
        assert_eq!(message.header(), [number]);
        let [extent] = message.extents() else {
            panic!("{message:?}");
        };
        assert!(extent.len() == BYTES && extent.iter().all(|byte| *byte == number));
    }
}

#[test]
fn programs_are_served_again_when_another_process_has_taken_over() {
    let ([mut hall, roof], [here, there]) = two();
    let _server = serve(&here, "upper", &["tr", "a-z", "A-Z"]);
    assert_eq!(call(&there, "60", "hello").as_deref(), Some("HELLO"));
    // A domain that a program had spanned goes over too.
    let domain = unique("session-kept");
    let mut program = program_of(&hall);
    assert_eq!(program.ask(&domain), "spanned");
    hall.replace();
    assert_eq!(call(&there, "60", "again").as_deref(), Some("AGAIN"));
    assert_eq!(hall.status()["incarnation"], 1);
    until("both domains are spanned", || {
        let status = hall.status();
        let spans = status["spans"].as_array().unwrap();
        spans.len() == 2 && spans.iter().all(|span| span["state"] == "up")
    });
    // The other side of the link is replaced as well.
    let mut roof = roof;
    roof.replace();
    assert_eq!(call(&there, "60", "there").as_deref(), Some("THERE"));
    program.kill();
}

#[test]
fn a_peer_that_reads_nothing_holds_up_nobody_else() {
    let ([hall, roof], [here, there]) = two();
    let mut cellar = Machine::new("cellar");
    cellar.join(&hall.invite());
    let third = unique("session-cellar");
    cellar.succeeds(&["span", "cameras", "--local", &third]);
    cellar.up();
    let _server = serve(&here, "upper", &["tr", "a-z", "A-Z"]);
    assert_eq!(call(&third, "60", "hello").as_deref(), Some("HELLO"));
    // A port of the node that is stopped, and much that is sent there.
    let home = Domain::join(&there).unwrap();
    let options = PortOptions::named("sink").queue(63).spanned();
    let _port = home.bind(options).unwrap();
    let own = Domain::join(&here).unwrap();
    let right = own.connect("sink", PATIENCE).unwrap();
    roof.signal("STOP");
    let mut sent = 0;
    let is_refused = (0..500).any(|_| {
        let Ok(mut extent) = own.allocate(1 << 20) else {
            // What was sent takes all memory that the domain may have.
            return true;
        };
        extent.fill(7);
        let mut message = Message::new(b"").unwrap();
        message.push(extent).unwrap();
        sent += 1;
        // The queue is full, or the node is unreachable by now.
        right.send(message, WhenFull::Fail).is_err()
    });
    assert!(sent > 1 && is_refused, "{sent}");
    for _ in 0..5 {
        assert_eq!(call(&third, "60", "hello").as_deref(), Some("HELLO"));
    }
    until("it is unreachable", || {
        let status = hall.status();
        let mut all = status["peers"].as_array().unwrap().iter();
        all.any(|peer| peer["name"] == "roof" && peer["state"] == "unreachable")
    });
    assert_eq!(call(&third, "60", "hello").as_deref(), Some("HELLO"));
    roof.signal("CONT");
    until("it is up again", || crate::peers(&hall, "up").len() == 2);
}

/// The domain is a program's first. Its node hosts it, and gives the role back, in good order or not.
#[test]
fn a_node_hosts_the_domains_that_it_spans_and_a_program_does_after_it() {
    let mut hall = Machine::new("hall");
    hall.init();
    let local = unique("hosted");
    let domain = Domain::join(&local).unwrap();
    assert!(domain.is_host());
    for killed in [false, true] {
        hall.up();
        if !killed {
            hall.succeeds(&["span", "cameras", "--local", &local]);
        }
        until("the node hosts", || !domain.is_host());
        assert!(is_answered(&local));
        let port = domain.bind(PortOptions::named("beside")).unwrap();
        assert!(domain.connect("beside", PATIENCE).unwrap().is_live());
        drop(port);
        if killed {
            hall.kill();
        } else {
            hall.succeeds(&["leave"]);
            hall.has_ended();
        }
        until("the program hosts again", || domain.is_host());
        assert!(is_answered(&local));
    }
}

/// Whether a domain's host shows it to who looks.
fn is_answered(domain: &str) -> bool {
    prints(&["ls", domain]).is_some()
}
