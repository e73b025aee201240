//! Short messages to one port while a long one goes to another on the same link, beside a
//! ping-pong while a bare stream goes over another connection.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use indicatif::ProgressBar;
use portolan::{Domain, SendRight};
use portolan_measure::cpus;
use portolan_measure::out;
use portolan_measure::sampler::Sampler;

use super::lanes::{self, Effort, Lane};
use super::places::{Over, Pair, Pinning, pin};
use super::server::{Brief, LAST, Server};
use super::streams::{self, Bare};
use super::table::{Row, Unit};
use super::trips::{self, Asker, Ping};
use crate::bench::budget::{Budget, Measure};
use crate::error::{CliError, Result};

const BESIDE: Budget = Budget::new(
    "short beside a long message, p99, to TCP beside TCP",
    Measure::Yardstick,
    1.5,
    Some(1.2),
);

/// Something that takes long, done again and again by a thread of its own.
struct Long {
    go: Sender<()>,
    done: Receiver<Result<()>>,
}

impl Long {
    /// `work` does it once. The thread ends with this.
    fn start(cpu: usize, mut work: impl FnMut() -> Result<()> + Send + 'static) -> Result<Self> {
        let ((go, going), (says, done)) = (channel(), channel());
        let thread = std::thread::Builder::new().name("bulk".into());
        let run = move || {
            let pinned = cpus::pin(cpu).map_err(CliError::from);
            if pinned.is_err() {
                let _ = says.send(pinned);
                return;
            }
            while going.recv().is_ok() {
                if says.send(work()).is_err() {
                    return;
                }
            }
        };
        let started = thread.spawn(run);
        started.map_err(CliError::system("starting a thread"))?;
        Ok(Self { go, done })
    }

    /// Does it once, and rounds of something short meanwhile.
    fn beside(&self, sampler: &mut Sampler, short: &mut impl Lane) -> Result<()> {
        let ended =
            || CliError::system("a thread of this benchmark")(std::io::ErrorKind::BrokenPipe);
        self.go.send(()).map_err(|_| ended())?;
        loop {
            short.slice(Duration::ZERO, sampler)?;
            match self.done.try_recv() {
                Ok(done) => return done,
                Err(std::sync::mpsc::TryRecvError::Empty) => {}
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return Err(ended()),
            }
        }
    }
}

/// A request beside a long message.
struct AskerBeside {
    asker: Asker,
    long: Long,
}

impl Lane for AskerBeside {
    fn slice(&mut self, _: Duration, sampler: &mut Sampler) -> Result<()> {
        self.long.beside(sampler, &mut self.asker)
    }
}

/// A ping-pong beside a stream.
struct PingBeside {
    ping: Ping,
    long: Long,
}

impl Lane for PingBeside {
    fn slice(&mut self, _: Duration, sampler: &mut Sampler) -> Result<()> {
        self.long.beside(sampler, &mut self.ping)
    }
}

/// Sends one message, and waits until it has come.
fn one_message(
    domain: Domain,
    right: SendRight,
    mut server: Server,
    bytes: usize,
) -> impl FnMut() -> Result<()> + Send + 'static {
    move || {
        streams::send(&domain, &right, bytes, LAST)?;
        server.done()
    }
}

/// Beside messages of so many bytes.
pub(super) fn measure(
    pinning: Pinning,
    bytes: u64,
    slices: usize,
    progress: &ProgressBar,
) -> Result<Vec<Row>> {
    let long = out::size(bytes);
    progress.set_message(format!("short messages beside one of {long}"));
    cpus::pin(pinning.near)?;
    let limit = bytes + (64 << 20);
    let pair = Pair::start(Over::Tcp, [limit, limit])?;
    pinning.pin(&pair)?;
    let (server, right) = pair.serve(|domain, port| Brief::Sink { domain, port })?;
    pin(server.id(), pinning.far)?;
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    let work = one_message(pair.domains[0].clone(), right, server, length);
    let mut asker = AskerBeside {
        asker: Asker::of(&pair, pinning.far)?,
        long: Long::start(pinning.near, work)?,
    };
    // As much, again and again from the same memory as a program that streams would have it.
    let part = bytes.min(16 << 20);
    let mut bare = Bare::new(pinning.far, part, 1)?;
    let mut ping = PingBeside {
        ping: trips::ping(pinning.far)?,
        long: Long::start(pinning.near, move || bare.send(bytes / part))?,
    };
    let effort = Effort {
        slices,
        slice: Duration::ZERO,
    };
    let measured = lanes::measure(&mut [&mut ping, &mut asker], effort, progress)?;
    let [base, node] = &measured[..] else {
        return Ok(Vec::new());
    };
    let asleep = |row: Row| row.waiting("asleep", pinning.name());
    let ping = format!("ping-pong beside a bare stream of {long}");
    let request = format!("null request beside a message of {long}");
    Ok(vec![
        asleep(Row::of(&ping, "TCP", Unit::Time, base)),
        asleep(Row::of(&request, Over::Tcp.name(), Unit::Time, node)).against(
            "TCP, p99 to p99",
            node.tail_to(base),
            Some(BESIDE),
        ),
    ])
}
