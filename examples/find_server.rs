//! Finds a server by calling on a well-known channel, as on citizens' band radio: many
//! write, many listen, and the server that is called answers.
//!
//! Run it with `cargo run --example find_server`.

use portolan::channel::{ChannelOptions, ReaderOptions};
use portolan::{Access, Deadline, Domain, Message, PortOptions, Right};
use std::process::Command;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The one well-known name.
const CALLS: &str = "calls";

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().collect();
    match &args[..] {
        [_, domain, service] => server(domain, service),
        _ => clients(),
    }
}

fn clients() -> Outcome {
    let name = format!("find-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let calls = domain.make_channel(&ChannelOptions::named(CALLS).many_writers())?;
    let mut servers = vec![];
    for service in ["adder", "doubler"] {
        let mut command = Command::new(std::env::current_exe()?);
        servers.push(command.args([&name, service]).spawn()?);
    }

    for (service, number) in [("doubler", 21), ("adder", 41)] {
        // The call says who is wanted, and where the answer goes.
        let mut inbox = domain.bind(PortOptions::named(&format!("wants a {service}")))?;
        let mut channel = calls.bind_writer()?;
        // No server may have listened yet, so the client calls again.
        let mut answer = loop {
            channel.write(service.as_bytes(), soon())?;
            match inbox.receive(Access::Later, Duration::from_millis(50)) {
                Ok(answer) => break answer,
                Err(_) => continue,
            }
        };
        let Some(Right::Send(server)) = answer.take_rights().pop() else {
            return Err("an answer without a right".into());
        };
        // From here on the two talk in private.
        let question = Message::new(&[number])?;
        let result = server.request_reply(question, Access::Later, soon())?;
        println!("the {service} says {}", result.header()[0]);
        // An empty question sends it home.
        drop(server.request_reply(Message::default(), Access::Later, soon())?);
    }
    for mut server in servers {
        server.wait()?;
    }
    Ok(())
}

fn server(domain: &str, service: &str) -> Outcome {
    let domain = Domain::join(domain)?;
    let calls = domain.find_channel(CALLS, soon())?;
    let mut calls = calls.bind_reader(ReaderOptions::default())?;
    let mut requests = domain.bind(PortOptions::unnamed().synchronous())?;
    // Others are called here too, and a call that was missed comes again.
    while !calls
        .receive(soon())
        .is_ok_and(|call| *call == *service.as_bytes())
    {}
    let client = domain.connect(&format!("wants a {service}"), soon())?;
    let mut answer = Message::default();
    answer.attach(requests.make_send())?;
    client.send(answer, soon())?;

    loop {
        let request = requests.get_request(Access::Later, soon())?;
        let Some(number) = request.message.header().first().copied() else {
            request.reply(Message::default())?;
            return Ok(());
        };
        let result = if service == "adder" {
            number + 1
        } else {
            number * 2
        };
        request.reply(Message::new(&[result])?)?;
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}
