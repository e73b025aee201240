//! Publish and subscribe: two weather stations, and somebody who comes late.
//!
//! Run it with `cargo run --example topic`.

use portolan::channel::TopicOptions;
use portolan::{Deadline, Domain};
use std::process::Command;
use std::time::Duration;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Station, hour, and tenths of a degree.
type Reading = [i32; 3];

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().collect();
    match &args[..] {
        [_, domain, station] => publish(domain, station.parse()?),
        _ => subscribe(),
    }
}

fn subscribe() -> Outcome {
    let name = format!("topic-{}", std::process::id());
    let domain = Domain::join(&name)?;
    let mut subscriber = domain.subscriber::<Reading>("weather", options())?;
    let mut stations = vec![];
    for station in 1..=2 {
        let mut command = Command::new(std::env::current_exe()?);
        stations.push(command.args([&name, &station.to_string()]).spawn()?);
    }
    for _ in 0..6 {
        let reading = subscriber.receive(soon())?;
        let [station, hour, tenths] = *reading;
        println!(
            "station {station}, {hour} h: {}.{} degrees",
            tenths / 10,
            tenths % 10
        );
    }

    // Late, one still gets the last readings of each.
    let mut late = domain.subscriber::<Reading>("weather", options())?;
    let mut last = [0; 2];
    for _ in 0..4 {
        let [station, hour, _] = *late.receive(soon())?;
        last[usize::try_from(station - 1)?] = hour;
    }
    println!(
        "late: the last readings are of {} h and {} h",
        last[0], last[1]
    );

    // Another type under the same name is refused.
    if domain.subscriber::<f64>("weather", options()).is_err() {
        println!("the topic is of another type");
    }
    let mut stop = domain.publisher::<u8>("stop", options())?;
    stop.publish(&1)?;
    for mut station in stations {
        station.wait()?;
    }
    Ok(())
}

fn publish(domain: &str, station: i32) -> Outcome {
    let domain = Domain::join(domain)?;
    let mut publisher = domain.publisher::<Reading>("weather", options())?;
    for hour in [6, 12, 18] {
        publisher.publish(&[station, hour, 100 * station + hour])?;
    }
    domain
        .subscriber::<u8>("stop", options())?
        .receive(soon())?;
    Ok(())
}

fn options() -> TopicOptions {
    TopicOptions::default().history(2)
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}
