//! What goes between nodes at the same time: to several nodes, to several ports of one, to one port
//! that several threads receive at, and between pairs of nodes that have nothing in common.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use portolan::{Access, Domain, Message, PendingReply, SendRight, WhenFull};
use portolan_measure::child::Child;
use portolan_measure::cpus::Cpus;

use crate::claims::{paired, shown, table};
use crate::error::Result;
use crate::experiment::{Context, DIPC, Experiment, Need, Source};
use crate::lanes::{Beside, Track, figure};
use crate::nodes::far::{Place, What};
use crate::nodes::pair::{Star, failed, finish, program, unique};
use crate::nodes::{Mode, PATIENCE, Wire};
use crate::outcome::{Cell, Outcome, Table, Verdict};
use crate::unit::Unit;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "nodes-concurrency",
    title: "Messages between nodes at the same time",
    source: Source {
        paper: DIPC,
        section: "2, the four concurrencies",
    },
    hypothesis: "Each port has a flow of its own, and a link carries any number of flows and of \
        messages of one flow. So eight transfers over a link that is 20 ms long should take about as \
        long as one, wherever they go; with one message at a time between two nodes only those to \
        different nodes should.",
    method: "A transfer is a request with an extent of 16 KiB and its empty answer, over links that \
        are 20 ms long (shaped; TCP over loopback, 175 MB/s), and have been quiet for 80 ms. All are begun by one thread, one behind \
        the other, and then it waits for all answers; the time of that, beside the time of one alone \
        in the same slice; and the time of as many where the next is begun as soon as one is answered, so \
        that as many are always under way. To 8 nodes: a node with eight others. To 8 ports of a node, and to one port at \
        which 8 threads take requests: two nodes. Between pairs: 16 nodes, and 56, each a process of \
        its own, with a domain each. One at a time is the same engine with one message at a time \
        between two nodes, in blocks of 8 pages.",
    needs: &[Need::Cpus(2), Need::Memory(4 << 30)],
    run,
};

/// Transfers at once, and bytes of each.
const AT_ONCE: u8 = 8;
const BYTES: usize = 16 << 10;
/// Pairs of 56 nodes.
const PAIRS: u8 = 28;
/// How long links are quiet before a measurement: two round trips.
const QUIET: Duration = Duration::from_millis(80);
/// Memory of a domain.
const LIMIT: u64 = 16 << 20;
const ONE_AT_A_TIME: Mode = Mode::StopAndWait { pages: 8 };

/// Where transfers go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Nodes,
    Ports,
    Threads,
    Pairs(u8),
}

const ROWS: [(&str, To, Mode); 7] = [
    ("8 nodes, DIPC", To::Nodes, Mode::Dipc),
    ("8 ports of a node, DIPC", To::Ports, Mode::Dipc),
    ("a port with 8 threads, DIPC", To::Threads, Mode::Dipc),
    ("8 pairs of nodes, DIPC", To::Pairs(AT_ONCE), Mode::Dipc),
    ("28 pairs of nodes, DIPC", To::Pairs(PAIRS), Mode::Dipc),
    ("8 nodes, one at a time", To::Nodes, ONE_AT_A_TIME),
    ("8 ports of a node, one at a time", To::Ports, ONE_AT_A_TIME),
];

/// Nodes, and a right for each transfer with the domain that its bytes are of.
struct Scene {
    stars: Vec<Star>,
    servers: Vec<Child>,
    asks: Vec<(Domain, SendRight)>,
}

impl Scene {
    fn start(to: To, mode: Mode, cpus: &Cpus) -> Result<Self> {
        let places = [cpus.ours, cpus.peer(0)];
        let one = |leaves| Star::start(mode, Wire::Far, leaves, LIMIT, places);
        let (stars, transfers) = match to {
            To::Nodes => (vec![one(AT_ONCE)?], AT_ONCE),
            To::Ports | To::Threads => (vec![one(1)?], AT_ONCE),
            To::Pairs(pairs) => (Star::pairs(mode, Wire::Far, pairs, LIMIT, places)?, pairs),
        };
        // Where each transfer begins, and to which domain it goes.
        let far = stars.iter().flat_map(|star| {
            star.leaves
                .iter()
                .map(|leaf| (&star.hub.domain, &leaf.domain))
        });
        let ways: Vec<(&Domain, &Domain)> = far.cycle().take(usize::from(transfers)).collect();
        let shared = unique("port");
        let port = |_: &(&Domain, &Domain)| match to {
            To::Threads => shared.clone(),
            _ => unique("port"),
        };
        let ports: Vec<String> = ways.iter().map(port).collect();
        let mut places: Vec<Place> = ways
            .iter()
            .zip(&ports)
            .map(|((_, there), port)| Place {
                domain: there.name().to_owned(),
                port: port.clone(),
            })
            .collect();
        let threads = match to {
            To::Threads => {
                places.truncate(1);
                u32::from(AT_ONCE)
            }
            _ => 1,
        };
        let servers = vec![program(
            "server",
            cpus.peer(0),
            What::Echo {
                ports: places,
                threads,
            },
        )?];
        let asks: Result<Vec<(Domain, SendRight)>> = ways
            .iter()
            .zip(&ports)
            .map(|((here, _), port)| {
                let right = here.connect(port, PATIENCE).map_err(failed)?;
                Ok(((*here).clone(), right))
            })
            .collect();
        let asks = asks?;
        Ok(Self {
            stars,
            servers,
            asks,
        })
    }

    /// The time of the first so many transfers at once.
    fn transfers(&self, count: usize) -> Result<Duration> {
        // What was said behind the transfers before has been acknowledged.
        std::thread::sleep(QUIET);
        let messages: Result<Vec<Message>> = self.asks[..count]
            .iter()
            .map(|(domain, _)| transfer(domain))
            .collect();
        let messages = messages?;
        let begun = Instant::now();
        let mut pending: Vec<PendingReply> = Vec::with_capacity(count);
        for ((_, right), message) in self.asks.iter().zip(messages) {
            let asked = right.begin_request(message, WhenFull::Fail);
            pending.push(asked.map_err(failed)?);
        }
        for reply in &mut pending {
            // It is empty.
            drop(reply.wait(Access::Later, PATIENCE).map_err(failed)?);
        }
        Ok(begun.elapsed())
    }

    /// The time of so many transfers where as many are always under way: the mean of `lots` of them,
    /// behind as many.
    fn without_pause(&self, count: usize, lots: usize) -> Result<Duration> {
        let mut pending: VecDeque<PendingReply> = VecDeque::new();
        let mut begun = Instant::now();
        for number in 0..2 * lots * count {
            if number == lots * count {
                begun = Instant::now();
            }
            if pending.len() == count
                && let Some(mut oldest) = pending.pop_front()
            {
                drop(oldest.wait(Access::Later, PATIENCE).map_err(failed)?);
            }
            let (domain, right) = &self.asks[number % count];
            let asked = right.begin_request(transfer(domain)?, WhenFull::Fail);
            pending.push_back(asked.map_err(failed)?);
        }
        let took = begun.elapsed() / u32::try_from(lots).unwrap_or(1);
        for mut reply in pending {
            drop(reply.wait(Access::Later, PATIENCE).map_err(failed)?);
        }
        Ok(took)
    }

    fn finish(self) -> Result<()> {
        drop(self.asks);
        finish(self.servers)?;
        self.stars.into_iter().try_for_each(Star::finish)
    }
}

/// What a transfer sends.
fn transfer(domain: &Domain) -> Result<Message> {
    let mut message = Message::new(&[]).map_err(failed)?;
    let extent = domain.allocate(BYTES).map_err(failed)?;
    message
        .push(extent)
        .map_err(|refused| failed(refused.why))?;
    Ok(message)
}

/// One transfer, and several at once, slice by slice.
struct Measured {
    row: &'static str,
    count: usize,
    nodes: usize,
    one: Track,
    all: Track,
    /// As many where as many are always under way.
    steady: Track,
}

impl Measured {
    fn ratio(&self) -> Option<Beside> {
        Beside::ratio(&self.all.times, &self.one.times)
    }
}

fn run(context: &Context<'_>) -> Result<Outcome> {
    let slices = context.pick(2, 12);
    let lots = context.pick(1, 3);
    context.progress.begin(ROWS.len());
    let mut found = Vec::new();
    for (row, to, mode) in ROWS {
        context.progress.step(row);
        let scene = Scene::start(to, mode, context.cpus)?;
        let mut measured = Measured {
            row,
            count: scene.asks.len(),
            nodes: scene.stars.iter().map(|star| 1 + star.leaves.len()).sum(),
            one: Track::new(row),
            all: Track::new(row),
            steady: Track::new(row),
        };
        // Credit, and memory that was never touched.
        scene.transfers(measured.count)?;
        for _ in 0..slices {
            let one = scene.transfers(1)?;
            measured.one.times.push(one.as_secs_f64());
            let all = scene.transfers(measured.count)?;
            measured.all.times.push(all.as_secs_f64());
            let steady = scene.without_pause(measured.count, lots)?;
            measured.steady.times.push(steady.as_secs_f64());
        }
        found.push(measured);
        scene.finish()?;
    }
    Ok(Outcome {
        tables: vec![times(&found)],
        verdicts: verdicts(&found),
        ..Outcome::default()
    })
}

fn times(found: &[Measured]) -> Table {
    let columns = [
        ("nodes", Unit::Count),
        ("transfers", Unit::Count),
        ("one alone", Unit::Seconds),
        ("all at once", Unit::Seconds),
        ("to one", Unit::Times),
        ("as many, without a pause", Unit::Seconds),
    ];
    let title = "Transfers over links of 20 ms, shaped: at once, beside one alone";
    let mut table = Table::new("concurrency", title, "to", &columns);
    for measured in found {
        table.row(
            measured.row,
            [
                Cell::here(measured.nodes as f64),
                Cell::here(measured.count as f64),
                measured.one.timed().cell(),
                measured.all.timed().cell(),
                figure(measured.ratio()),
                measured.steady.timed().cell(),
            ],
        );
    }
    table.note(
        "Each direction has a delay of 20 ms, 175 MB/s, and 10 µs for each piece of 64 KiB. Nodes are \
         processes on two processors, so 56 of them measure what waits for what, and not what 56 \
         machines could do.",
    )
}

fn verdicts(found: &[Measured]) -> Vec<Verdict> {
    let ratio = |to: To, mode: Mode| {
        let row = ROWS.iter().find(|row| (row.1, row.2) == (to, mode))?.0;
        paired(found.iter().find(|it| it.row == row)?.ratio())
    };
    let all = [
        To::Nodes,
        To::Ports,
        To::Threads,
        To::Pairs(AT_ONCE),
        To::Pairs(PAIRS),
    ]
    .map(|to| ratio(to, Mode::Dipc));
    let stops = [To::Nodes, To::Ports].map(|to| ratio(to, ONE_AT_A_TIME));
    let steady = ROWS[2].0;
    let steady = found.iter().find(|it| it.row == steady);
    let steady = steady.and_then(|it| Beside::ratio(&it.steady.times, &it.one.times));
    let [nodes, ports, threads, pairs, many] = all.map(|it| shown(it, Unit::Times));
    vec![
        table::FOUR_CONCURRENCIES.verdict(&all).because(format!(
            "Eight transfers at once take, to one alone: {nodes} to different nodes, {ports} to ports \
             of one node, {threads} to one port with eight threads, {pairs} between pairs; and 28 \
             between 28 pairs {many}. To one port all are of one flow: after a pause it sends one message, \
             and has credit for more only when a round trip has shown that the port takes them. Without \
             a pause eight to one port take {}.",
            shown(paired(steady), Unit::Times)
        )),
        table::OVERLAP_TO_NODES.verdict(&stops).because(format!(
            "With one message at a time between two nodes eight transfers take {} as long as one to \
             eight nodes, and {} to eight ports of one.",
            shown(stops[0], Unit::Times),
            shown(stops[1], Unit::Times)
        )),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planted(to_one: impl Fn(To, Mode) -> f64) -> Vec<Measured> {
        let measured = |(row, to, mode): (&'static str, To, Mode)| {
            let track = |time: f64| Track {
                times: vec![time, time * 1.01, time * 1.02],
                ..Track::new(row)
            };
            Measured {
                row,
                count: 8,
                nodes: 2,
                one: track(0.04),
                all: track(0.04 * to_one(to, mode)),
                steady: track(0.04),
            }
        };
        ROWS.into_iter().map(measured).collect()
    }

    fn answers(found: &[Measured]) -> Vec<&'static str> {
        let verdicts = verdicts(found).into_iter();
        verdicts.map(|verdict| verdict.by_figures.name()).collect()
    }

    #[test]
    fn what_is_at_once_takes_as_long_as_one() {
        let as_the_paper = planted(|to, mode| match (to, mode) {
            (To::Ports, ONE_AT_A_TIME) => 7.9,
            _ => 1.1,
        });
        assert_eq!(answers(&as_the_paper), ["holds", "holds"]);
        let in_turn = planted(|_, _| 8.0);
        assert_eq!(answers(&in_turn), ["does not hold"; 2]);
        let all_at_once = planted(|_, _| 1.0);
        assert_eq!(
            answers(&all_at_once),
            ["holds", "does not hold"],
            "one at a time is no more that where ports overlap"
        );
        assert_eq!(answers(&[]), ["cannot tell"; 2]);
    }
}
