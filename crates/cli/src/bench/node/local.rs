//! What local messages and requests cost while a node spans their domain and another node has
//! rights on a thousand of its ports: counted in instructions, by stepping.

use indicatif::ProgressBar;
use portolan::{PortOptions, ReceiveRight, SendRight};
use portolan_measure::cpus::{self, Cpus};
use portolan_measure::instructions::{self, Row as Counted};

use super::lanes::Ratio;
use super::places::{MEETING, Over, Pair, Pinning, domain, unique};
use super::table::{Row, Unit};
use crate::bench::budget::{Budget, Measure};
use crate::error::{CliError, Result};

const LOCAL: Budget = Budget::new(
    "local message and request beside a node, more",
    Measure::Instructions,
    3.0,
    Some(0.0),
);

/// Memory of a domain.
const LIMIT: u64 = 256 << 20;
/// What is counted.
const OPERATIONS: [&str; 2] = ["send, null", "request, null"];

/// With so many rights lent; or why nothing was counted.
pub(super) fn measure(
    pinning: Pinning,
    rights: usize,
    cpus: &Cpus,
    progress: &ProgressBar,
) -> Result<std::result::Result<Vec<Row>, String>> {
    progress.set_message("instructions of local messages");
    cpus::pin(pinning.near)?;
    let alone = domain(&unique("alone")?, LIMIT)?;
    let without = match count(alone.name(), cpus)? {
        Ok(counted) => counted,
        Err(why) => return Ok(Err(why)),
    };
    progress.inc(1);
    let pair = Pair::start(Over::Tcp, [LIMIT, LIMIT])?;
    pinning.pin(&pair)?;
    let (ports, lent) = lend(&pair, rights)?;
    let with = match count(pair.domains[1].name(), cpus)? {
        Ok(counted) => counted,
        Err(why) => return Ok(Err(why)),
    };
    progress.inc(1);
    let open = ports.iter().filter(|port| port.senders() > 0).count();
    let note = format!(
        "and all below it: to a port of a domain of which the other node has connected to {open} spanned ports, with {} rights",
        lent.len()
    );
    let rows = with.iter().enumerate().filter_map(|(number, with)| {
        let mut before = without.iter();
        let without = before.find(|row| row.operation == with.operation)?;
        let (many, few) = (with.instructions as f64, without.instructions as f64);
        let over = Over::Tcp.name();
        let row = Row::figure(with.operation, over, Unit::Instructions, many);
        let row = row.waiting("polling", "one processor");
        let row = row.against(&format!("{few:.0} without a node"), None, None);
        let row = if number == 0 {
            row.noted(note.clone())
        } else {
            row
        };
        let more = many - few;
        let exactly = Ratio {
            median: more,
            range: [more, more],
        };
        Some(row.judged(exactly, LOCAL))
    });
    Ok(Ok(rows.collect()))
}

/// Binds so many spanned ports in the far domain, and connects to all of them from the near one.
fn lend(pair: &Pair, rights: usize) -> Result<(Vec<ReceiveRight>, Vec<SendRight>)> {
    let (mut ports, mut lent) = (Vec::new(), Vec::new());
    for number in 0..rights {
        let name = format!("lent {number}");
        let options = PortOptions::named(&name).queue(1).spanned();
        let port = pair.domains[1].bind(options);
        ports.push(port.map_err(CliError::library("binding a port of this benchmark"))?);
        let right = pair.domains[0].connect(&name, MEETING);
        lent.push(right.map_err(CliError::library("finding a port on another node"))?);
    }
    Ok((ports, lent))
}

/// The operations of both scenes, in a process that joins this domain.
fn count(domain: &str, cpus: &Cpus) -> Result<std::result::Result<Vec<Counted>, String>> {
    let mut rows = Vec::new();
    for (number, scene) in instructions::scenes().iter().enumerate() {
        let ours = scene.system == "Portolan";
        if !ours
            || !scene
                .parts
                .first()
                .is_some_and(|part| OPERATIONS.contains(part))
        {
            continue;
        }
        match instructions::count_in(number, domain, cpus)? {
            Ok(counted) => rows.extend(counted),
            Err(why) => return Ok(Err(why)),
        }
    }
    Ok(Ok(rows))
}
