//! A program finds, by name, ports of another machine, sends to one and calls the other.
//!
//! Run it with `cargo run --example remote_port`: a server and a client in one domain of this machine.
//! The two may as well be on two machines, whose nodes span a domain; nothing changes in the programs:
//!
//! ```sh
//! remote_port server DOMAIN          # on one machine: DOMAIN is that machine's name for the domain
//! remote_port client DOMAIN [NODE]   # on another; NODE says whose ports, if several nodes have them
//! ```
//!
//! Without other machines, `portolan node lab` has nodes on this one:
//!
//! ```sh
//! portolan node lab 2 -- sh -c '
//!     case $PORTOLAN_LAB_NODE in
//!         1) target/debug/examples/remote_port server "$PORTOLAN_LAB_DOMAIN" ;;
//!         *) target/debug/examples/remote_port client "$PORTOLAN_LAB_DOMAIN" lab1 ;;
//!     esac'
//! ```

use portolan::{Access, Deadline, Domain, Message, PortOptions};
use std::process::Command;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["server", domain] => server(&Domain::join(domain)?),
        ["client", domain] => client(&Domain::join(domain)?, None),
        ["client", domain, node] => client(&Domain::join(domain)?, Some(node)),
        _ => both(),
    }
}

/// The two on this machine.
fn both() -> Outcome {
    let name = format!("remote-port-{}", std::process::id());
    let _domain = Domain::join(&name)?;
    let mut children = Vec::new();
    for role in ["server", "client"] {
        let mut command = Command::new(std::env::current_exe()?);
        children.push(command.args([role, &name]).spawn()?);
    }
    for mut child in children {
        child.wait()?;
    }
    Ok(())
}

/// Prints three lines that are sent to it, and answers one request.
fn server(domain: &Domain) -> Outcome {
    // Other machines find only what is bound as spanned.
    let mut log = domain.bind(PortOptions::named("log").spanned())?;
    let options = PortOptions::named("upper").synchronous().spanned();
    let mut upper = domain.bind(options)?;
    for _ in 0..3 {
        let message = log.receive(Access::Later, soon())?;
        println!("server: {}", String::from_utf8_lossy(message.header()));
    }
    let mut request = upper.get_request(Access::Now, soon())?;
    for extent in request.message.extents_mut() {
        extent.make_ascii_uppercase();
    }
    request.reply_in_place()?;
    Ok(())
}

/// Looks for both ports, wherever they are.
fn client(domain: &Domain, node: Option<&str>) -> Outcome {
    let named = |port: &str| match node {
        Some(node) => format!("{port}@{node}"),
        None => port.to_owned(),
    };
    let log = domain.connect(&named("log"), soon())?;
    let upper = domain.connect(&named("upper"), soon())?;
    for number in 1..=3 {
        let line = Message::new(format!("line {number}").as_bytes())?;
        // Sent, once this machine's node has it.
        log.send(line, soon()).map_err(|refused| refused.why)?;
    }
    // There, once this returns.
    log.flush(soon())?;
    println!("client: three lines are there");
    let mut text = domain.allocate(1 << 20)?;
    text.fill(b'x');
    let mut request = Message::new(b"")?;
    request.push(text).map_err(|refused| refused.why)?;
    let answer = upper.request_reply(request, Access::Now, soon())?;
    let text = &answer.extents()[0];
    let is_upper = text.iter().all(|letter| *letter == b'X');
    println!(
        "client: {} bytes came back, all in capitals: {is_upper}",
        text.len()
    );
    Ok(())
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}
