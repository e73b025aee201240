//! A picture stream: one camera, two viewers of different speed, none of which holds the
//! others up.
//!
//! The channel is message-consistent: the camera writes each frame once and waits for
//! nobody. A viewer that is too slow loses frames, knows which, and never sees half of one.
//! Run it with `cargo run --example video`.

use portolan::channel::{ChannelOptions, ReadError, ReaderOptions};
use portolan::{Deadline, Domain};
use std::process::Command;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const FRAMES: u8 = 200;
const FRAME: usize = 40_000;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().collect();
    match &args[..] {
        [_, domain, who] => viewer(domain, who),
        _ => camera(),
    }
}

fn camera() -> Outcome {
    let name = format!("video-{}", std::process::id());
    let domain = Domain::join(&name)?;
    // Ten units hold a frame, and the ring holds six frames.
    let camera = ChannelOptions::named("camera").unit(4096).units(64);
    let camera = domain.make_channel(&camera)?;
    let ready = domain.make_channel(&ChannelOptions::named("ready").many_writers())?;
    let mut ready = ready.bind_reader(ReaderOptions::default())?;
    let mut viewers = vec![];
    for who in ["fast", "slow"] {
        let mut command = Command::new(std::env::current_exe()?);
        viewers.push(command.args([&name, who]).spawn()?);
    }
    for _ in &viewers {
        ready.receive(soon())?;
    }

    let mut writer = camera.bind_writer()?;
    for number in 0..FRAMES {
        // Drawn in place, in the channel's own memory.
        let frame = writer.claim(FRAME, Deadline::NOW)?;
        frame.fill(0, &[number; FRAME]);
        frame.commit();
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(writer);
    for mut viewer in viewers {
        viewer.wait()?;
    }
    Ok(())
}

fn viewer(domain: &str, who: &str) -> Outcome {
    let domain = Domain::join(domain)?;
    let mut reader = domain
        .find_channel("camera", soon())?
        .bind_reader(ReaderOptions::default())?;
    let ready = domain.find_channel("ready", soon())?;
    ready.bind_writer()?.write(b"ready", soon())?;

    let units = FRAME.div_ceil(4096 - 16) as u64;
    let (mut seen, mut missed) = (0, 0);
    loop {
        match reader.receive(soon()) {
            Ok(frame) => {
                assert!(frame.iter().all(|pixel| *pixel == frame[0]), "a torn frame");
                seen += 1;
            }
            Err(ReadError::Missed(range)) => missed += range.units(),
            Err(ReadError::WriterGone) => break,
            Err(error) => return Err(error.into()),
        }
        if who == "slow" {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!(missed % units, 0, "frames are missed whole");
    let all = seen + missed / units;
    println!("{who}: of {all} frames each was seen whole, or is known to be missed");
    if who == "slow" && missed > 0 {
        println!("slow: some were missed");
    }
    Ok(())
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}
