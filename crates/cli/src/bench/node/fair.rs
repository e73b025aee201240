//! Fifty nodes that all send to one port as fast as they can: whether each is served as often.

use indicatif::ProgressBar;
use portolan::{Domain, Message, SendRight, WhenFull};
use portolan_measure::cpus;
use portolan_measure::sampler::jain;
use std::time::{Duration, Instant};

use super::lanes::Ratio;
use super::places::{Helper, MEETING, Pinning, domain, pin, unique};
use super::server::{Brief, Server};
use super::table::{Row, Unit};
use crate::bench::budget::{Budget, Measure};
use crate::error::{CliError, Result};

const JAIN: Budget = Budget::new(
    "flows to one port, Jain's index",
    Measure::Index,
    0.95,
    Some(0.99),
);

/// Memory of a domain that sends, or receives, messages without bytes.
const LIMIT: u64 = 32 << 20;
/// What the receiver does with each message: less than the link brings, so that senders wait.
const EACH: Duration = Duration::from_micros(100);

/// So many nodes, each with a sender that never stops, for so long.
pub(super) fn measure(
    pinning: Pinning,
    nodes: u8,
    time: Duration,
    progress: &ProgressBar,
) -> Result<Vec<Row>> {
    let case = format!("{nodes} flows to one port");
    progress.set_message(case.clone());
    cpus::pin(pinning.near)?;
    let (far, near) = (unique("hub")?, unique("spoke")?);
    let _far = domain(&far, LIMIT)?;
    let words = |words: &[&str]| -> Vec<String> { words.iter().map(|&w| w.to_owned()).collect() };
    let links = nodes.to_string();
    let hub = [
        "engine", "--over", "tcp", "--number", "1", "--local", &far, "--links", &links,
    ];
    let mut hub = Helper::start(&words(&hub), None)?;
    let address = hub.expect("listens")?;
    let domains: Result<Vec<Domain>> = (0..nodes)
        .map(|n| domain(&format!("{near}.{n}"), LIMIT))
        .collect();
    let domains = domains?;
    let spokes = [
        "spokes",
        "--count",
        &links,
        "--local",
        &near,
        "--connect",
        &address,
    ];
    let mut spokes = Helper::start(&words(&spokes), None)?;
    spokes.expect("linked")?;
    hub.expect("linked")?;
    pin(hub.id(), pinning.far)?;
    pin(spokes.id(), pinning.near)?;
    let port = unique("port")?;
    let mut server = Server::start(&Brief::Count {
        domain: far,
        port: port.clone(),
        senders: nodes.into(),
        each_nanos: u64::try_from(EACH.as_nanos()).unwrap_or(u64::MAX),
        millis: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
    })?;
    pin(server.id(), pinning.far)?;
    let rights = domains.iter().map(|domain| domain.connect(&port, MEETING));
    let rights: std::result::Result<Vec<SendRight>, _> = rights.collect();
    let rights = rights.map_err(CliError::library("finding a port on another node"))?;
    // Both halves of the time, and as long again for a machine that is busy.
    let until = Instant::now() + 3 * time;
    fill(&rights, until, progress)?;
    let counts = server.counts()?;
    for helper in [&mut hub, &mut spokes] {
        helper.ends();
    }
    let index = jain(counts.iter().map(|&count| count as f64));
    let all: u64 = counts.iter().sum();
    let row = Row::figure(&case, "nodes, plain TCP", Unit::Index, index);
    let row = row.waiting("asleep", pinning.name());
    let row = row.noted(format!(
        "{all} messages of 4 B; the fewest of a flow {}, the most {}",
        counts.iter().min().unwrap_or(&0),
        counts.iter().max().unwrap_or(&0)
    ));
    let exactly = Ratio {
        median: index,
        range: [index, index],
    };
    Ok(vec![row.judged(exactly, JAIN)])
}

/// Keeps the queues of all senders full.
fn fill(rights: &[SendRight], until: Instant, progress: &ProgressBar) -> Result<()> {
    let failed = CliError::library::<portolan::SendError>;
    while Instant::now() < until {
        for (number, right) in rights.iter().enumerate() {
            let number = u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
            loop {
                let message = Message::new(&number);
                let message = message.map_err(CliError::library("making a message"))?;
                match right.send(message, WhenFull::Fail) {
                    Ok(()) => {}
                    Err(refused) if matches!(refused.why, portolan::SendError::Full { .. }) => {
                        break;
                    }
                    Err(refused) => return Err(failed("sending to another node")(refused.why)),
                }
            }
        }
        // Whole queues: it need not look all the time.
        std::thread::sleep(Duration::from_millis(1));
        progress.tick();
    }
    Ok(())
}
