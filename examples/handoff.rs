//! A program gives another one a right on a port of a third, and is gone: the right works on.
//!
//! Run it with `cargo run --example handoff`: three processes in one domain. The three may as well be
//! on three machines, whose nodes span a domain; nothing changes in the programs:
//!
//! ```sh
//! handoff home DOMAIN        # on one machine: DOMAIN is that machine's name for the domain
//! handoff receiver DOMAIN    # on another
//! handoff giver DOMAIN       # on a third
//! ```

use portolan::{Access, Deadline, Domain, Message, PortOptions, Right};
use std::process::Command;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["home", domain] => home(&Domain::join(domain)?),
        ["receiver", domain] => receiver(&Domain::join(domain)?),
        ["giver", domain] => giver(&Domain::join(domain)?),
        _ => all(),
    }
}

/// The three on this machine.
fn all() -> Outcome {
    let name = format!("handoff-{}", std::process::id());
    let _domain = Domain::join(&name)?;
    let mut children = Vec::new();
    for role in ["home", "receiver", "giver"] {
        let mut command = Command::new(std::env::current_exe()?);
        children.push(command.args([role, &name]).spawn()?);
    }
    for mut child in children {
        child.wait()?;
    }
    Ok(())
}

/// Counts for all that have a right, until one says that it was enough.
fn home(domain: &Domain) -> Outcome {
    let options = PortOptions::named("counter").synchronous().spanned();
    let mut counter = domain.bind(options)?;
    loop {
        let request = counter.get_request(Access::Later, soon())?;
        let Some(number) = request.message.header().first().copied() else {
            request.reply(Message::default())?;
            return Ok(());
        };
        request.reply(Message::new(&[number + 1])?)?;
    }
}

/// Knows nothing of the counter but the right that it is given.
fn receiver(domain: &Domain) -> Outcome {
    let options = PortOptions::named("receiver").spanned();
    let mut inbox = domain.bind(options)?;
    let mut message = inbox.receive(Access::Later, soon())?;
    let Some(Right::Send(counter)) = message.take_rights().pop() else {
        return Err("a message without a right".into());
    };
    let answer = counter.request_reply(Message::new(&[41])?, Access::Later, soon())?;
    println!("receiver: the counter says {}", answer.header()[0]);
    // An empty question ends it.
    drop(counter.request_reply(Message::default(), Access::Later, soon())?);
    Ok(())
}

/// Has a right on the counter, and gives it away.
fn giver(domain: &Domain) -> Outcome {
    let counter = domain.connect("counter", soon())?;
    let receiver = domain.connect("receiver", soon())?;
    let mut message = Message::new(b"ask this one")?;
    message.attach(counter).map_err(|refused| refused.why)?;
    receiver
        .send(message, soon())
        .map_err(|refused| refused.why)?;
    println!("giver: gave its right away");
    Ok(())
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}
