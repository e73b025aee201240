//! Counts the instructions of a signal's parts, and of a call, by stepping through them.
//!
//! ```text
//! coordinator                      child
//!   seize its thread  <- Ready
//!   Go ->                          mark, part, mark, mark, part, mark, ...
//!   steps from mark to mark        (runs freely between parts)
//! ```
//!
//! Nothing that is timed is stepped through: the child is there for this alone. What is
//! counted are instructions in user mode; a system call is one of them.

use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan::rpc::{self, ClientOptions, ServerOptions};
use portolan::{Deadline, Domain, Waiting};
use portolan_instruments::step::Stepper;
use portolan_measure::child::{Child, Control};
use portolan_measure::cpus::{self, Cpus};
use portolan_measure::error::MeasureError;
use portolan_measure::stepped::{Counted, ROUNDS, instructions, part, refused, seize};
use portolan_sys::process;
use portolan_sys::shared::Window;
use serde::{Deserialize, Serialize};

use crate::calls::{MEETING, SERVICE, SMALL, WorkClient, WorkService, Worker};
use crate::child;
use crate::error::{LabError, Result};
use crate::steps::{self, BURST, Locked, PATIENCE, Signals, until};

/// Calls whose server is stepped through, of each kind; the fewest instructions count.
const CALLS: usize = 10;
/// How long a call is given to reach a server that stands still.
const ARRIVED: Duration = Duration::from_millis(2);
/// Steps after which a server that has answered waits again.
const SETTLED: u32 = 500;

/// What a child is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Brief {
    Signals,
    /// Its client's processor, and its server's.
    Calls([usize; 2]),
}

/// Child to coordinator: which threads to step through.
#[derive(Debug, Serialize, Deserialize)]
struct Ready {
    thread: u32,
    server: u32,
}

/// Coordinator to child: begin; and then: leave.
#[derive(Debug, Serialize, Deserialize)]
struct Go;

/// Instructions of a signal's parts, each alone: of one signal of a burst, as they are timed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfSignal {
    pub(crate) trap: f64,
    pub(crate) find: f64,
    /// The look-up included.
    pub(crate) signal: f64,
    pub(crate) take: f64,
    pub(crate) insert: f64,
    pub(crate) remove: f64,
}

/// Instructions of a call without bytes, and of one with [`SMALL`] there and back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfCalls {
    /// From the call to its result.
    pub(crate) client: [f64; 2],
    /// From the call to its answer.
    pub(crate) server: [f64; 2],
}

/// Parts of a round of [`Brief::Signals`], nothing first; and of [`Brief::Calls`].
const SIGNAL_PARTS: usize = 7;
const CALL_PARTS: usize = 3;

/// Counts a signal's; the reason if that is not possible here.
pub(crate) fn signal() -> Result<Counted<OfSignal>> {
    let (mut child, ready) = start(Brief::Signals, None)?;
    let counted = seize(ready.thread).and_then(|mut stepper| {
        go(&mut child)?;
        instructions::<SIGNAL_PARTS>(&mut stepper)
    });
    child.dismiss()?;
    Ok(
        counted.map(|[_, trap, find, signal, take, insert, remove]| {
            let each = |burst: f64| burst / BURST as f64;
            OfSignal {
                trap,
                find,
                signal: each(signal),
                take: each(take),
                insert: each(insert),
                remove: each(remove),
            }
        }),
    )
}

/// Counts calls'; the reason if that is not possible here.
pub(crate) fn calls(cpus: &Cpus) -> Result<Counted<OfCalls>> {
    let doing = "sharing memory with a counted process";
    let window = Window::create(4096).map_err(LabError::library(doing))?;
    let brief = Brief::Calls([cpus.ours, cpus.peer(0)]);
    let (mut child, ready) = start(brief, Some(&window))?;
    let counted = seize(ready.thread).and_then(|mut stepper| {
        go(&mut child)?;
        let [_, null, small] = instructions::<CALL_PARTS>(&mut stepper)?;
        drop(stepper);
        // We share the processor of the stepped process.
        cpus::pin(cpus.peer(0)).map_err(refused)?;
        let server = seize(ready.server).and_then(|stepper| served(stepper, &window));
        cpus::pin(cpus.ours).map_err(refused)?;
        Ok(OfCalls {
            client: [null, small],
            server: server?,
        })
    });
    window.word(GO).store(OVER, Ordering::Release);
    child.dismiss()?;
    Ok(counted)
}

fn start(brief: Brief, window: Option<&Window>) -> Result<(Child, Ready)> {
    let descriptors: Vec<_> = window.iter().map(|window| window.fd()).collect();
    let brief = child::Brief::Stepped(brief);
    let mut child = Child::start("counted process", &brief, &descriptors)?;
    let ready = child.expect()?;
    Ok((child, ready))
}

fn go(child: &mut Child) -> Counted<()> {
    child.send(&Go).map_err(refused)
}

/// Words of the window: which call is to be made, and which one has been.
const GO: usize = 0;
const DONE: usize = 16;
/// Instead of a call's number.
const OVER: u64 = u64::MAX;

/// Steps through a server from when a call has reached it until it is back. The server stands still
/// until then: what it would look in vain, a step at a time, is no part of the call.
fn served(mut stepper: Stepper, window: &Window) -> Counted<[f64; 2]> {
    let mut counts = [u64::MAX; 2];
    for number in 1..=2 * CALLS {
        window.word(GO).store(number as u64, Ordering::Release);
        std::thread::sleep(ARRIVED);
        let open = || window.word(DONE).load(Ordering::Acquire) != number as u64;
        let count = stepper.count_while(open).map_err(refused)?;
        let fewest = &mut counts[(number - 1) % 2];
        *fewest = count.min(*fewest);
        let mut left = SETTLED;
        let settling = || {
            left -= 1;
            left > 0
        };
        stepper.count_while(settling).map_err(refused)?;
    }
    Ok(counts.map(|count| count as f64))
}

/// The whole life of a child.
pub(crate) fn serve(brief: &Brief, control: &Control, descriptors: Vec<OwnedFd>) -> Result<()> {
    match brief {
        Brief::Signals => be_signals(control)?,
        Brief::Calls(cpus) => be_calls(*cpus, control, descriptors)?,
    }
    // Until the coordinator leaves.
    let _: Option<Go> = control.receive()?;
    Ok(())
}

fn be_signals(control: &Control) -> Result<()> {
    let (mut signals, mut queue) = (Signals::new()?, Locked::new());
    begin(control, 0)?;
    for _ in 0..ROUNDS {
        part(|| {});
        part(steps::trap);
        part(|| signals.to_nobody());
        part(|| steps::signal_burst(&mut signals));
        part(|| signals.take());
        part(|| steps::insert_burst(&mut queue));
        part(|| steps::remove_burst(&mut queue));
    }
    Ok(())
}

fn begin(control: &Control, server: u32) -> Result<()> {
    let thread = process::thread();
    control.send(&Ready { thread, server })?;
    let _: Option<Go> = control.receive()?;
    Ok(())
}

fn be_calls([ours, other]: [usize; 2], control: &Control, fds: Vec<OwnedFd>) -> Result<()> {
    let doing = "preparing calls that are counted";
    let window = fds.into_iter().next().ok_or(MeasureError::NoCoordinator)?;
    let window = Window::from_fd(window).map_err(LabError::library(doing))?;
    // The server's threads stay where they are made.
    cpus::pin(other)?;
    let domain = Domain::builder("lab-stepped").limit(64 << 20).private();
    let domain = domain.map_err(LabError::library(doing))?;
    // Awake for ever: a stepped thread is too slow for anything else.
    let options = ServerOptions::default().waiting(Waiting::Poll);
    let _server = rpc::serve(&domain, SERVICE, WorkService(Worker), &options)
        .map_err(LabError::library(doing))?;
    // A stepped server is slow: it would be asked for the answer meanwhile, and that counted.
    let options = ClientOptions::default()
        .period(PATIENCE)
        .waiting(Waiting::Poll);
    let deadline = Deadline::after(MEETING);
    let client = WorkClient::connect_with(&domain, SERVICE, &options, deadline)
        .map_err(LabError::library(doing))?;
    cpus::pin(ours)?;
    let null = || {
        black_box(client.null().is_ok());
    };
    let small = || {
        black_box(client.exchange(black_box([7; SMALL])).is_ok());
    };
    for _ in 0..100 {
        null();
        small();
    }
    let server = client.thread().map_err(LabError::library(doing))?;
    begin(control, server)?;
    for _ in 0..ROUNDS {
        part(|| {});
        part(null);
        part(small);
    }
    let mut last = 0;
    loop {
        let ordered = || window.word(GO).load(Ordering::Acquire);
        // A coordinator that gives up leaves, or orders nothing any more.
        if !until(|| ordered() != last) || ordered() == OVER {
            return Ok(());
        }
        last = ordered();
        if last % 2 == 1 {
            null()
        } else {
            small()
        }
        window.word(DONE).store(last, Ordering::Release);
    }
}
