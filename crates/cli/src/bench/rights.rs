//! `portolan bench rights` measures costs that must not grow with the number of open ports, of ports
//! that a node has lent, nor of messages that wait at one.
//!
//! One process does all of it, and each operation is timed alone, less what the clock takes. The
//! scenes are all there from the beginning and are measured slice by slice in turn, so that what
//! drifts touches all of them alike.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use portolan::proxy::{KnownPort, LentNotice, Span};
use portolan::{
    Access, Deadline, Domain, Message, Notice, PortOptions, ReceiveRight, Urgency, Waiting,
    WhenFull,
};
use portolan_measure::cpus::{self, Cpus};
use portolan_measure::machine::Machine;
use portolan_measure::out::{self, Align, Table};
use portolan_measure::sampler::{Figures, Sampler, clock_cost};
use serde::Serialize;

use super::budget::{Budget, Measure, Verdict};
use super::report::{self, LeftOut};
use crate::args::BenchArgs;
use crate::error::{CliError, Result};

const BIND: Budget = Budget::new(
    "binding beside 10,000 ports, to beside 10",
    Measure::Yardstick,
    1.5,
    Some(1.1),
);
const LAST: Budget = Budget::new(
    "dropping a last right, 4,000 ports open, ns",
    Measure::Counted,
    5000.0,
    Some(1000.0),
);
const LAST_BUSY: Budget = Budget::new(
    "the same, beside a thread that clones rights, ns",
    Measure::Counted,
    5000.0,
    Some(1000.0),
);
const URGENT: Budget = Budget::new(
    "the most urgent of 4,000, above that of 10, ns",
    Measure::Counted,
    1000.0,
    Some(300.0),
);

const LENT: Budget = Budget::new(
    "a close or a wish of a lent port, beside 20,000, to beside 10",
    Measure::Yardstick,
    1.5,
    Some(1.1),
);

/// Memory of a scene's domain.
const LIMIT: u64 = 512 << 20;
/// Binds before the first that counts: every entry that there is has been a port once.
const ROUND: usize = 33_000;
/// As many ports as a node lends in the largest scene.
const MANY_LENT: usize = 20_000;
/// Operations before the first that counts, of all others.
const WARM_UP: usize = 200;

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Bind,
    /// At a port that asked to be told of it.
    LastRight,
    /// At a segment, which is closed by it.
    LastOfSegment,
    Urgent,
    /// Of one that a node has lent, until the node knows.
    LentCloses,
    /// Its receiver asks for its senders, until the node knows.
    LentAsks,
}

/// An operation, and what is there beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    operation: Operation,
    /// Ports that are open, or lent, or messages that wait.
    others: usize,
    /// Whether another thread clones and drops rights meanwhile.
    busy: bool,
}

const PLANS: [Plan; 16] = {
    use Operation::{Bind, LastOfSegment, LastRight, LentAsks, LentCloses, Urgent};
    const fn plan(operation: Operation, others: usize, busy: bool) -> Plan {
        Plan {
            operation,
            others,
            busy,
        }
    }
    [
        plan(Bind, 10, false),
        plan(Bind, 10_000, false),
        plan(LastRight, 10, false),
        plan(LastRight, 4000, false),
        plan(LastRight, 4000, true),
        plan(LastOfSegment, 10, false),
        plan(LastOfSegment, 4000, false),
        plan(LastOfSegment, 4000, true),
        plan(Urgent, 10, false),
        plan(Urgent, 4000, false),
        plan(LentCloses, 10, false),
        plan(LentCloses, 1000, false),
        plan(LentCloses, MANY_LENT, false),
        plan(LentAsks, 10, false),
        plan(LentAsks, 1000, false),
        plan(LentAsks, MANY_LENT, false),
    ]
};

impl Plan {
    fn what(self) -> &'static str {
        match self.operation {
            Operation::Bind => "bind a port",
            Operation::LastRight => "drop a port's last right",
            Operation::LastOfSegment => "drop a segment's last right",
            Operation::Urgent => "receive the most urgent",
            Operation::LentCloses => "a node learns that a lent port closes",
            Operation::LentAsks => "a node learns that a lent port asks for its senders",
        }
    }

    fn beside(self) -> String {
        let others = match self.operation {
            Operation::Urgent => format!("{} messages wait", self.others),
            Operation::LentCloses | Operation::LentAsks => format!("{} ports lent", self.others),
            _ => format!("{} ports open", self.others),
        };
        if self.busy {
            others + ", a thread clones rights"
        } else {
            others
        }
    }
}

/// In nanoseconds.
#[derive(Debug, Serialize)]
struct Row {
    operation: &'static str,
    beside: String,
    /// How often it was timed.
    operations: u64,
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
    #[serde(skip)]
    plan: Plan,
}

#[derive(Serialize)]
struct Report<'a> {
    machine: &'a Machine,
    rows: Vec<Row>,
    budgets: Vec<Verdict>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<LeftOut>,
}

pub(super) fn run(args: &BenchArgs) -> Result<()> {
    let cpus = Cpus::choose();
    let machine = Machine::look(&cpus);
    let word = args.filter.as_deref().unwrap_or("").to_lowercase();
    let mut plans = PLANS.to_vec();
    plans.retain(|plan| format!("{} {}", plan.what(), plan.beside()).contains(&word));
    if plans.is_empty() {
        return Err(CliError::NothingMatches { word });
    }
    let mut left_out = Vec::new();
    if cpus.single() {
        plans.retain(|plan| !plan.busy);
        left_out.push(LeftOut {
            what: "beside a thread that clones rights",
            why: "there is one processor".into(),
        });
    }
    cpus::pin(cpus.ours)?;
    let (slices, operations) = if args.quick { (5, 100) } else { (20, 1000) };
    let clock = clock_cost();
    let mut scenes = Vec::new();
    for plan in plans {
        scenes.push((Scene::new(plan)?, Sampler::new(clock)));
    }
    for _ in 0..slices {
        for (scene, sampler) in &mut scenes {
            scene.slice(operations, sampler, &cpus)?;
            sampler.close_slice();
        }
    }
    let rows = scenes.iter().filter_map(|(scene, sampler)| {
        let figures = sampler.figures()?;
        Some(Row::new(scene.plan, slices * operations as u64, figures))
    });
    let rows: Vec<Row> = rows.collect();
    let report = Report {
        machine: &machine,
        budgets: judge(&rows),
        rows,
        left_out,
    };
    if args.json {
        crate::json::print(&report)?;
    } else {
        out::print(&report.text())?;
    }
    Ok(())
}

/// A domain, and what is done in it.
struct Scene {
    plan: Plan,
    domain: Domain,
    /// Those that are open beside it.
    _others: Vec<ReceiveRight>,
    port: ReceiveRight,
    /// The node, if it has lent the others.
    span: Option<Span>,
    /// How many messages were sent by urgency.
    sent: u32,
    /// What their urgencies come from.
    seed: u32,
}

impl Scene {
    fn new(plan: Plan) -> Result<Self> {
        let domain = Domain::builder("portolan-bench-rights").limit(LIMIT);
        let domain = domain.private().map_err(library("making a domain"))?;
        let small = || PortOptions::unnamed().queue(1);
        let (others, waiting) = match plan.operation {
            Operation::Urgent => (0, plan.others),
            _ => (plan.others, 0),
        };
        let bound = (0..others).map(|_| domain.bind(small()));
        let bound: std::result::Result<Vec<_>, _> = bound.collect();
        let options = match plan.operation {
            Operation::Urgent => PortOptions::unnamed().queue(8192).by_urgency(),
            _ => PortOptions::unnamed(),
        };
        let port = domain.bind(options).map_err(library("binding a port"))?;
        let others = bound.map_err(library("binding a port"))?;
        let lends = matches!(plan.operation, Operation::LentCloses | Operation::LentAsks);
        let span = lends.then(|| Span::begin(&domain, "bench"));
        let mut span = span.transpose().map_err(library("beginning a span"))?;
        if let Some(span) = &mut span {
            let known = others.iter().map(|port| KnownPort::of(&port.make_send()));
            known.for_each(|port| span.lend(&port, 0));
        }
        let mut scene = Self {
            plan,
            _others: others,
            port,
            span,
            domain,
            sent: 0,
            seed: 1,
        };
        scene.port.set_waiting(Waiting::Poll);
        for _ in 0..waiting {
            scene.send_urgent()?;
        }
        let warm_up = match plan.operation {
            Operation::Bind => ROUND,
            _ => WARM_UP,
        };
        for _ in 0..warm_up {
            scene.once()?;
        }
        Ok(scene)
    }

    fn slice(&mut self, operations: usize, sampler: &mut Sampler, cpus: &Cpus) -> Result<()> {
        if !self.plan.busy {
            return self.operations(operations, sampler);
        }
        let other = self.domain.bind(PortOptions::unnamed());
        let right = other.map_err(library("binding a port"))?.make_send();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let cloning = scope.spawn(|| {
                cpus::pin(cpus.peer(0))?;
                while !over.load(Ordering::Relaxed) {
                    drop(right.clone());
                }
                Ok(())
            });
            let done = self.operations(operations, sampler);
            over.store(true, Ordering::Relaxed);
            let cloned: Result<()> = cloning.join().unwrap_or(Ok(()));
            done.and(cloned)
        })
    }

    fn operations(&mut self, operations: usize, sampler: &mut Sampler) -> Result<()> {
        for _ in 0..operations {
            sampler.typical(self.once()?, 1);
        }
        Ok(())
    }

    /// The operation, and what makes it possible once more.
    fn once(&mut self) -> Result<Duration> {
        match self.plan.operation {
            Operation::Bind => {
                let options = PortOptions::unnamed().queue(1);
                let (bound, time) = timed(|| self.domain.bind(options));
                bound.map_err(library("binding a port"))?;
                Ok(time)
            }
            Operation::LastRight => {
                let right = self.port.make_send();
                self.port.request_no_more_senders();
                let ((), time) = timed(|| drop(right));
                let told = self.port.receive(Access::Later, Deadline::NOW);
                let told = told.map_err(library("receiving a notice"))?;
                match told.notice() {
                    Some(Notice::NoMoreSenders) => Ok(time),
                    _ => Err(unexpected("a message that is no notice")),
                }
            }
            Operation::LastOfSegment => {
                let segment = self.domain.make_segment(None, 64);
                let segment = segment.map_err(library("making a segment"))?;
                Ok(timed(|| drop(segment)).1)
            }
            Operation::LentCloses | Operation::LentAsks => self.lent(),
            Operation::Urgent => {
                self.send_urgent()?;
                let (received, time) = timed(|| self.port.receive(Access::Later, Deadline::NOW));
                drop(received.map_err(library("receiving the most urgent message"))?);
                Ok(time)
            }
        }
    }

    /// A lent port closes, or asks, and the node learns it.
    fn lent(&mut self) -> Result<Duration> {
        let span = self.span.as_mut();
        let span = span.ok_or_else(|| unexpected("no span"))?;
        let port = self.domain.bind(PortOptions::unnamed().queue(1));
        let port = port.map_err(library("binding a port"))?;
        span.lend(&KnownPort::of(&port.make_send()), 1);
        let closes = self.plan.operation == Operation::LentCloses;
        let (expected, (told, time)) = if closes {
            let learn = || {
                drop(port);
                span.changed()
            };
            (LentNotice::Closed { token: 1 }, timed(learn))
        } else {
            let learn = || {
                port.request_no_more_senders();
                span.changed()
            };
            let learned = timed(learn);
            drop(port);
            span.changed();
            (LentNotice::WantsSenders { token: 1 }, learned)
        };
        match told == Some(expected) {
            true => Ok(time),
            false => Err(unexpected("another notice of a lent port, or none")),
        }
    }

    /// Sends a message that is less urgent than most that wait, and more urgent than some.
    fn send_urgent(&mut self) -> Result<()> {
        // A linear congruence: what matters is that no order is in it.
        self.seed = self
            .seed
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        let spread = u32::try_from(2 * self.plan.others).unwrap_or(u32::MAX);
        let due = self.sent.wrapping_add((self.seed >> 8) % spread);
        self.sent = self.sent.wrapping_add(1);
        let mut message = Message::default();
        message.set_urgency(Some(Urgency::Priority(u32::MAX - due)));
        let sent = self.port.make_send().send(message, WhenFull::Fail);
        sent.map_err(library("sending a message"))
    }
}

fn timed<T>(operation: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let done = operation();
    (done, begun.elapsed())
}

impl Row {
    fn new(plan: Plan, operations: u64, figures: Figures) -> Self {
        let nanos = |picos: f64| (picos / 1000.0).round();
        Self {
            operation: plan.what(),
            beside: plan.beside(),
            operations,
            p50: nanos(figures.p50),
            p99: nanos(figures.p99),
            p999: nanos(figures.p999),
            max: nanos(figures.max),
            plan,
        }
    }
}

/// The budgets of which all rows are there: of medians.
fn judge(rows: &[Row]) -> Vec<Verdict> {
    let median = |operation, others, busy| {
        let plan = Plan {
            operation,
            others,
            busy,
        };
        let row = rows.iter().find(|row| row.plan == plan)?;
        Some(row.p50)
    };
    let pair = |operation, others| {
        let alone = median(operation, 10, false)?;
        Some((alone, median(operation, others, false)?))
    };
    let last = |busy| {
        let both = [Operation::LastRight, Operation::LastOfSegment];
        let times = both.into_iter().filter_map(|o| median(o, 4000, busy));
        let times: Vec<f64> = times.collect();
        Some((times.iter().copied().reduce(f64::max)?, times.len()))
    };
    let bind = pair(Operation::Bind, 10_000);
    let urgent = pair(Operation::Urgent, 4000);
    let lent = [Operation::LentCloses, Operation::LentAsks].map(|it| pair(it, MANY_LENT));
    let lent: Vec<f64> = lent
        .into_iter()
        .flatten()
        .map(|(few, many)| many / few)
        .collect();
    let worst = lent.iter().copied().reduce(f64::max);
    [
        bind.map(|(few, many)| BIND.verdict_of(many / few, 1)),
        last(false).map(|(worst, rows)| LAST.verdict_of(worst, rows)),
        last(true).map(|(worst, rows)| LAST_BUSY.verdict_of(worst, rows)),
        urgent.map(|(few, many)| URGENT.verdict_of(many - few, 1)),
        worst.map(|worst| LENT.verdict_of(worst, lent.len())),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl Report<'_> {
    fn text(&self) -> String {
        let mut table = Table::new(&[
            ("operation", Align::Left),
            ("beside", Align::Left),
            ("p50", Align::Right),
            ("p99", Align::Right),
            ("p99.9", Align::Right),
            ("max", Align::Right),
        ]);
        for row in &self.rows {
            let mut cells = vec![row.operation.to_owned(), row.beside.clone()];
            cells.extend([row.p50, row.p99, row.p999, row.max].map(report::nanos));
            table.row(cells);
        }
        let mut text = format!("{}\n\n{}", self.machine, table.render());
        for LeftOut { what, why } in &self.left_out {
            text += &format!("left out: {what}: {why}\n");
        }
        text + "\n" + &report::verdicts(&self.budgets)
    }
}

/// For `map_err`: names what was being done.
fn library<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    doing: &'static str,
) -> impl FnOnce(E) -> CliError {
    CliError::library(doing)
}

fn unexpected(what: &'static str) -> CliError {
    library("receiving a notice")(std::io::Error::other(what))
}
