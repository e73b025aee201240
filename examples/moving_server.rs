//! A server moves to another process while clients ask it: its port goes in a message, with its state and all
//! requests that wait. The clients do not notice.
//!
//! Run it with `cargo run --example moving_server`: four processes in one domain. They may as well be on
//! two machines, whose nodes span a domain; nothing changes in the programs:
//!
//! ```sh
//! moving_server second DOMAIN      # on one machine: DOMAIN is that machine's name for the domain
//! moving_server first DOMAIN       # on the other
//! moving_server client DOMAIN      # two of these, anywhere
//! ```

use portolan::{Access, Deadline, Domain, Message, PortOptions, ReceiveRight, Right};
use std::process::Command;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Questions of each of the two clients.
const EACH: u32 = 500;
/// So many the first server answers.
const FIRST: u32 = 200;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["first", domain] => first(&Domain::join(domain)?),
        ["second", domain] => second(&Domain::join(domain)?),
        ["client", domain] => client(&Domain::join(domain)?),
        _ => all(),
    }
}

/// All on this machine.
fn all() -> Outcome {
    let name = format!("moving-server-{}", std::process::id());
    let _domain = Domain::join(&name)?;
    let mut children = Vec::new();
    for role in ["second", "first", "client", "client"] {
        let mut command = Command::new(std::env::current_exe()?);
        children.push(command.args([role, &name]).spawn()?);
    }
    for mut child in children {
        child.wait()?;
    }
    Ok(())
}

/// Counts for all who ask, until it has counted so far: the state is the number.
fn serve(
    numbers: &mut ReceiveRight,
    mut number: u32,
    last: u32,
) -> Result<u32, Box<dyn std::error::Error>> {
    while number < last {
        let request = numbers.get_request(Access::Later, soon())?;
        number += 1;
        request.reply(Message::new(&number.to_le_bytes())?)?;
    }
    Ok(number)
}

/// Serves for a while, then sends its port away.
fn first(domain: &Domain) -> Outcome {
    let options = PortOptions::named("numbers").synchronous().spanned();
    let mut numbers = domain.bind(options)?;
    let second = domain.connect("second", soon())?;
    let number = serve(&mut numbers, 0, FIRST)?;
    let mut message = Message::new(&number.to_le_bytes())?;
    message.attach(numbers).map_err(|refused| refused.why)?;
    second
        .send(message, soon())
        .map_err(|refused| refused.why)?;
    println!("first: gave {number} numbers, and the port away");
    Ok(())
}

/// Goes on where the first one has stopped.
fn second(domain: &Domain) -> Outcome {
    let options = PortOptions::named("second").spanned();
    let mut inbox = domain.bind(options)?;
    let mut message = inbox.receive(Access::Later, soon())?;
    let Some(Right::Receive(mut numbers)) = message.take_rights().pop() else {
        return Err("a message without a port".into());
    };
    let number = u32::from_le_bytes(message.header().try_into()?);
    let last = serve(&mut numbers, number, 2 * EACH)?;
    println!("second: went on from {number}, to {last}");
    Ok(())
}

/// Asks for numbers, one after another.
fn client(domain: &Domain) -> Outcome {
    let numbers = domain.connect("numbers", soon())?;
    let (mut last, mut in_order) = (0, true);
    for _ in 0..EACH {
        let answer = numbers.request_reply(Message::default(), Access::Later, soon())?;
        let number = u32::from_le_bytes(answer.header().try_into()?);
        in_order &= number > last;
        last = number;
    }
    println!("client: {EACH} numbers, in order: {in_order}");
    Ok(())
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}
