//! The model's parameters, measured on this machine.

use std::collections::VecDeque;
use std::hint::black_box;
use std::net::UdpSocket;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use portolan::{Domain, Listener, ListenerOptions, Segment};
use portolan_measure::cpus;
use portolan_measure::sampler::median;
use portolan_sys::futex;

use super::model::Parameters;
use crate::clock;
use crate::error::{LabError, Result};
use crate::experiment::Context;
use crate::line;
use crate::outcome::Outcome;

/// Signals that are pushed and then taken: less than a FIFO holds.
const BURST: usize = 64;
/// How long the sleeper is given to fall asleep.
const ASLEEP: Duration = Duration::from_micros(50);
/// A wait within a measurement that takes this long is given up.
const PATIENCE: Duration = Duration::from_secs(2);
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
    let mut signals = Signals::new()?;
    let mut all = Vec::new();
    for _ in 0..slices {
        context.progress.step("the model's parameters");
        let trap = once(least, || {
            black_box(rustix::process::getppid());
        });
        let translate = signals.to_nobody(least);
        let [insert, remove] = locked_queue(least);
        let reverse = signals.handled(rounds)?;
        // Another thread did not get to run: this slice has no figures.
        let Some(fill) = line::between(ours, other, 1).map(|line| line.median()) else {
            continue;
        };
        let far = far.and_then(|far| Some(line::between(ours, far, 1)?.median()));
        let Some([sender, receiver]) = wake(ours, other, rounds) else {
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

/// Seconds that one call takes, over one batch.
fn once(least: Duration, work: impl FnMut()) -> f64 {
    clock::each(1, least, work).median()
}

/// Signals of this process to itself.
struct Signals {
    segment: Segment,
    listener: Listener,
    /// Last: it is left after all that belongs to it.
    domain: Domain,
}

impl Signals {
    fn new() -> Result<Self> {
        let doing = "making a domain for the model's parameters";
        let domain = Domain::builder("lab-scaling")
            .limit(64 << 20)
            .private()
            .map_err(LabError::library(doing))?;
        let segment = domain.make_segment(None, 2 * 4096);
        let segment = segment.map_err(LabError::library(doing))?;
        let listener = domain.listen(ListenerOptions::default());
        let mut listener = listener.map_err(LabError::library(doing))?;
        let start = segment.address();
        listener
            .on(start..start + 4096, |address| {
                black_box(address);
            })
            .map_err(LabError::library(doing))?;
        Ok(Self {
            segment,
            listener,
            domain,
        })
    }

    /// What it takes to find out that nobody handles an address.
    fn to_nobody(&self, least: Duration) -> f64 {
        let address = self.segment.address() + 4096;
        once(least, || {
            black_box(self.domain.signal(black_box(address)).ok());
        })
    }

    /// What it takes to take one out of the FIFO, find its handler and call it.
    fn handled(&mut self, rounds: usize) -> Result<f64> {
        let address = self.segment.address();
        let mut times = Vec::new();
        for _ in 0..rounds {
            for _ in 0..BURST {
                let reached = self.domain.signal(address);
                reached.map_err(LabError::library("signalling this process"))?;
            }
            let start = Instant::now();
            let handled = self.listener.poll();
            times.push(start.elapsed().as_secs_f64() / handled.max(1) as f64);
        }
        Ok(median(times).unwrap_or(f64::NAN))
    }
}

/// What it takes to put an address into a queue with a lock, and to take it out.
fn locked_queue(least: Duration) -> [f64; 2] {
    let queue = Mutex::new(VecDeque::with_capacity(BURST));
    let with = |work: &mut dyn FnMut(&mut VecDeque<usize>)| {
        // Nobody panics with it.
        work(
            &mut queue
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        );
    };
    let mut times = [Vec::new(), Vec::new()];
    let start = Instant::now();
    while start.elapsed() < least {
        let each = |since: Instant| since.elapsed().as_secs_f64() / BURST as f64;
        let since = Instant::now();
        for address in 0..BURST {
            with(&mut |queue| queue.push_back(black_box(address)));
        }
        times[0].push(each(since));
        let since = Instant::now();
        for _ in 0..BURST {
            with(&mut |queue| {
                black_box(queue.pop_front());
            });
        }
        times[1].push(each(since));
    }
    times.map(|times| median(times).unwrap_or(f64::NAN))
}

/// What it takes to wake a sleeping thread of another processor: the call, and then the time
/// until the thread's answer is here. None if it did not run.
fn wake(ours: usize, other: usize, rounds: usize) -> Option<[f64; 2]> {
    let (bell, answer) = (AtomicU32::new(0), AtomicU32::new(0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            cpus::pin(other).ok()?;
            let mut heard = 0;
            while !over.load(Ordering::Relaxed) {
                let deadline = Instant::now() + PATIENCE;
                let (futex::Wake::Woken | futex::Wake::Changed | futex::Wake::TimedOut) =
                    futex::wait(&bell, heard, Some(deadline));
                // Acquire and Release: nothing but the number itself is passed.
                heard = bell.load(Ordering::Acquire);
                answer.store(heard, Ordering::Release);
            }
            Some(())
        });
        let driver = scope.spawn(|| {
            cpus::pin(ours).ok()?;
            let mut times = [Vec::new(), Vec::new()];
            let mut number = 0;
            while times[0].len() < rounds {
                let begun = Instant::now();
                while begun.elapsed() < ASLEEP {
                    std::hint::spin_loop();
                }
                number += 1;
                let start = Instant::now();
                bell.store(number, Ordering::Release);
                let woken = futex::wake(&bell, 1);
                let called = start.elapsed();
                while answer.load(Ordering::Acquire) != number {
                    if start.elapsed() > PATIENCE {
                        return None;
                    }
                }
                let all = start.elapsed();
                // One that was awake was not interrupted.
                if woken == 1 {
                    times[0].push(called.as_secs_f64());
                    times[1].push((all - called).as_secs_f64());
                }
                if number > 1000 + 10 * u32::try_from(rounds).unwrap_or(u32::MAX / 16) {
                    return None;
                }
            }
            let [called, answered] = times.map(|times| median(times).unwrap_or(f64::NAN));
            Some([called, answered])
        });
        let times = driver.join().ok().flatten();
        over.store(true, Ordering::Relaxed);
        bell.fetch_add(1, Ordering::Release);
        futex::wake(&bell, 1);
        sleeper.join().ok().flatten()?;
        times
    })
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
