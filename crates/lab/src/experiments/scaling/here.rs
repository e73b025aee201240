//! Measures the model's parameters on this machine.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use portolan_measure::cpus;
use portolan_measure::sampler::median;

use super::model::Parameters;
use crate::error::{LabError, Result};
use crate::experiment::Context;
use crate::line;
use crate::outcome::Outcome;
use crate::steps::{self, Locked, PATIENCE, Signals};

/// Bytes of a message.
const LINE: usize = 64;

/// Every parameter, once a slice.
pub(super) fn parameters(
    context: &Context<'_>,
    outcome: &mut Outcome,
    slices: usize,
) -> Result<Vec<Parameters>> {
    let least = context.pick(Duration::from_micros(100), Duration::from_millis(2));
    let rounds = context.pick(20, 200);
    let (ours, other) = (context.cpus.ours, context.cpus.peer(0));
    let far = context.cpus.far();
    if far.is_none() {
        outcome.leave_out(
            "a shared L3 beyond a shared L2, on this machine",
            "all processors that this program may use share their largest cache, and that is \
             taken for the near one",
        );
    }
    let (mut signals, mut queue) = (Signals::new()?, Locked::new());
    let mut all = Vec::new();
    for _ in 0..slices {
        context.progress.step("the model's parameters");
        let trap = steps::once(least, steps::trap);
        let translate = steps::once(least, || signals.to_nobody());
        let [insert, remove] = steps::locked(&mut queue, rounds);
        let [_, reverse] = steps::signalled(&mut signals, rounds);
        // Another thread did not get to run: this slice has no figures.
        let Some(fill) = line::between(ours, other, 1).map(|line| line.median()) else {
            continue;
        };
        let far = far.and_then(|far| Some(line::between(ours, far, 1)?.median()));
        let Some([sender, receiver]) = steps::wake(ours, other, rounds) else {
            continue;
        };
        let Some(hop) = hop(ours, other, rounds)? else {
            continue;
        };
        all.push(Parameters {
            trap,
            translate,
            find: 0.0,
            insert,
            interrupt: (sender - trap).max(0.0),
            remove,
            fifo: 0.0,
            reverse,
            invalidate: 0.0,
            check: 0.0,
            // Its answer came by a line.
            deliver: (receiver - fill).max(0.0),
            fill,
            bus: 0.0,
            far,
            hop,
        });
    }
    Ok(all)
}

/// One way of a line as a datagram over the loopback, both sides polling: the only link that
/// a machine has to itself. None if the other thread did not run.
fn hop(ours: usize, other: usize, rounds: usize) -> Result<Option<f64>> {
    let doing = "opening a socket on the loopback";
    let socket = || {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_nonblocking(true)?;
        std::io::Result::Ok(socket)
    };
    let here = socket().map_err(LabError::library(doing))?;
    let there = socket().map_err(LabError::library(doing))?;
    let connect = || {
        here.connect(there.local_addr()?)?;
        there.connect(here.local_addr()?)
    };
    connect().map_err(LabError::library(doing))?;
    let receive = |socket: &UdpSocket| {
        let mut line = [0; LINE];
        let since = Instant::now();
        while socket.recv(&mut line).is_err() {
            if since.elapsed() > PATIENCE {
                return None;
            }
        }
        Some(line)
    };
    Ok(std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            cpus::pin(other).ok()?;
            for _ in 0..=rounds {
                let line = receive(&there)?;
                there.send(&line).ok()?;
            }
            Some(())
        });
        let drive = scope.spawn(|| {
            cpus::pin(ours).ok()?;
            let mut times = Vec::new();
            for _ in 0..=rounds {
                let start = Instant::now();
                here.send(&[1; LINE]).ok()?;
                receive(&here)?;
                times.push(start.elapsed().as_secs_f64() / 2.0);
            }
            median(times)
        });
        let time = drive.join().ok().flatten();
        echo.join().ok().flatten()?;
        time
    }))
}
