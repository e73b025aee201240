//! Publishes pictures on a topic: each has its own size, and all viewers read it where it was drawn.
//!
//! Two viewers look at every picture and let go of it. A third one keeps what it gets, and
//! is killed: the camera does not notice, and the memory comes back.
//! Run it with `cargo run --example pictures`.

use portolan::channel::TopicOptions;
use portolan::{Deadline, Domain};
use std::process::Command;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;
type Pixel = [u8; 4];
/// Who saw how many pixels, and where.
type Seen = [u64; 3];

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().collect();
    match &args[..] {
        [_, domain, who] => view(domain, who.parse()?),
        _ => draw(),
    }
}

fn draw() -> Outcome {
    let name = format!("pictures-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let mut pictures = domain.publisher::<[Pixel]>("pictures", options())?;
    let mut seen = domain.subscriber::<Seen>("seen", options())?;
    let mut viewers = vec![];
    for who in 1..=3 {
        let mut command = Command::new(std::env::current_exe()?);
        viewers.push(command.args([&name, &who.to_string()]).spawn()?);
        // It has subscribed.
        seen.receive(soon())?;
    }

    for width in [4, 64, 1024] {
        let mut picture = pictures.loan(width * width)?;
        picture.fill([7, 7, 7, 255]);
        let drawn_at = picture.as_ptr().addr() as u64;
        picture.publish()?;
        let mut in_place = 0;
        for _ in &viewers {
            let [_, pixels, at] = *seen.receive(soon())?;
            assert_eq!(pixels, (width * width).try_into()?);
            in_place += u32::from(at == drawn_at);
        }
        println!("{width} x {width}: {in_place} of 3 look at it where it was drawn");
    }

    let mut keeper = viewers.remove(2);
    let killed = keeper.kill();
    keeper.wait()?;
    killed?;
    for _ in 0..1000 {
        pictures.loan(256 * 256)?.publish()?;
    }
    println!("a viewer died with pictures in its hands, and 1000 more were published");
    // An empty one says that there will be no more.
    pictures.publish(&[])?;
    for mut viewer in viewers {
        viewer.wait()?;
    }
    Ok(())
}

fn view(domain: &str, who: u64) -> Outcome {
    let domain = Domain::join(domain)?;
    let mut pictures = domain.subscriber::<[Pixel]>("pictures", options())?;
    let mut seen = domain.publisher::<Seen>("seen", options())?;
    seen.publish(&[who, 0, 0])?;
    let mut kept = vec![];
    loop {
        let picture = pictures.receive(soon())?;
        if picture.is_empty() {
            println!("viewer {who}: no more pictures");
            return Ok(());
        }
        seen.publish(&[
            who,
            picture.len().try_into()?,
            picture.as_ptr().addr() as u64,
        ])?;
        if who == 3 {
            kept.push(picture);
        }
    }
}

fn options() -> TopicOptions {
    TopicOptions::default().history(8)
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}
