//! Async: a server and a client under tokio, with many requests under way at once.
//!
//! Run it with `cargo run --example async_tokio --features tokio`.

use portolan::{Access, Deadline, Domain, Message, PortOptions};
use std::process::Command;
use std::time::Duration;

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    match std::env::args().nth(1) {
        Some(domain) => serve(&domain).await,
        None => ask().await,
    }
}

/// Squares numbers, each request in a task of its own.
async fn serve(domain: &str) -> Result<(), Error> {
    let domain = Domain::join(domain)?;
    let mut port = domain.bind(PortOptions::named("square").synchronous())?;
    let mut served = 0;
    loop {
        let request = port.get_request_async(Access::Now).await?;
        if request.message.notice().is_some() {
            println!("server: {served} requests, and no client is left");
            return Ok(());
        }
        served += 1;
        // To be asked only once there has been a client; asking again does no harm.
        port.request_no_more_senders();
        tokio::spawn(async move {
            let number = request.message.header().first().copied().unwrap_or(0);
            // The larger the number the sooner: answers overtake one another.
            tokio::time::sleep(Duration::from_millis(u64::from(20 - number))).await;
            let square = u16::from(number).pow(2).to_le_bytes();
            Message::new(&square).map(|answer| request.reply(answer))
        });
    }
}

async fn ask() -> Result<(), Error> {
    let name = format!("async-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let mut server = Command::new(std::env::current_exe()?).arg(&name).spawn()?;
    let right = domain.connect("square", Deadline::after(Duration::from_secs(30)))?;

    // Ten requests at once, in one thread.
    let requests: Vec<_> = (1..=10u8)
        .map(|number| {
            let right = right.clone();
            tokio::spawn(async move {
                let answer = right
                    .request_reply_async(Message::new(&[number])?, Access::Now)
                    .await?;
                let square = u16::from_le_bytes(answer.header().try_into()?);
                Ok::<_, Error>((number, square))
            })
        })
        .collect();
    for request in requests {
        let (number, square) = request.await??;
        println!("{number} squared is {square}");
    }

    drop(right);
    server.wait()?;
    Ok(())
}
