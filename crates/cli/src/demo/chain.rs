//! Starts the three processes of the demo together, and ends them together (D2).

use std::fs::File;
use std::io::Seek as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use portolan_measure::MeasureError;
use portolan_measure::child::{Child, readable};
use portolan_measure::error::End;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use serde::de::DeserializeOwned;

use super::files::{Input, Output};
use super::stages::{Done, Ready, Role, StageBrief, Start};
use crate::Own;
use crate::args::CarrierName;
use crate::error::{CliError, Result};

/// A larger pipe and socket buffer, for the baselines at their best; what an
/// unprivileged process may set.
const BUFFER: usize = 1 << 20;
/// How often the bar moves.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// How long the other stages get to fail, too, before we say which failed first.
const AFTERMATH: Duration = Duration::from_millis(200);

/// What a run of the chain took.
#[derive(Debug)]
pub(crate) struct Totals {
    pub(crate) elapsed: Duration,
    /// User and system time of the three stages.
    pub(crate) cpu: Duration,
    /// The hasher's; the writer's last stamp was the same.
    pub(crate) digest: String,
}

/// One stage while it runs.
struct Stage {
    child: Child,
    ready: Option<Ready>,
    done: Option<Done>,
}

/// Sends `input` through the chain into `output`.
pub(crate) fn run(
    carrier: CarrierName,
    input: &Input,
    output: &Output,
    block_kib: u32,
) -> Result<Totals> {
    // We keep the writer's open file: its position says how far the work is.
    let result = output.reopen()?;
    let mut stages = start(carrier, input, &result, block_kib)?;
    gather(&mut stages, |stage| &mut stage.ready, || {})?;
    let bar = super::progress(input.len(), carrier.label());
    let begun = Instant::now();
    for stage in &mut stages {
        stage.child.send(&Start {})?;
    }
    let position = || bar.set_position((&result).stream_position().unwrap_or(0));
    let gathered = gather(&mut stages, |stage| &mut stage.done, position);
    let elapsed = begun.elapsed();
    bar.finish_and_clear();
    gathered?;
    let dones: Vec<Done> = stages
        .iter()
        .filter_map(|stage| stage.done.clone())
        .collect();
    stages
        .into_iter()
        .try_for_each(|stage| stage.child.dismiss())?;
    totals(carrier, elapsed, &dones)
}

fn totals(carrier: CarrierName, elapsed: Duration, dones: &[Done]) -> Result<Totals> {
    let [reader, hasher, writer] = dones else {
        unreachable!("one result for each of the three stages");
    };
    if writer.digest != hasher.digest {
        let (found, expected) = (writer.digest.clone(), hasher.digest.clone());
        return Err(CliError::WrongDigest {
            carrier: carrier.label(),
            what: "the last stamp",
            found,
            expected,
        });
    }
    let cpu = reader.cpu + hasher.cpu + writer.cpu;
    Ok(Totals {
        elapsed,
        cpu,
        digest: hasher.digest.clone(),
    })
}

/// The two ends of one hop between stages: where it is read, where it is written.
/// None for a carrier whose stages find each other by name.
fn hop(carrier: CarrierName) -> Result<Option<(OwnedFd, OwnedFd)>> {
    match carrier {
        CarrierName::Portolan => Ok(None),
        CarrierName::Pipe => {
            let (from, to) =
                pipe_with(PipeFlags::CLOEXEC).map_err(CliError::system("making a pipe"))?;
            // A user's quota may refuse; the default size works as well.
            let _ = fcntl_setpipe_size(&to, BUFFER);
            Ok(Some((from, to)))
        }
        CarrierName::Socket => {
            let doing = "making a pair of Unix sockets";
            let (from, to) = socketpair(
                AddressFamily::UNIX,
                SocketType::STREAM,
                SocketFlags::CLOEXEC,
                None,
            )
            .map_err(CliError::system(doing))?;
            rustix::net::sockopt::set_socket_send_buffer_size(&to, BUFFER)
                .map_err(CliError::system(doing))?;
            Ok(Some((from, to)))
        }
    }
}

fn start(carrier: CarrierName, input: &Input, result: &File, block_kib: u32) -> Result<Vec<Stage>> {
    let (hasher_in, reader_out) = hop(carrier)?.unzip();
    let (writer_in, hasher_out) = hop(carrier)?.unzip();
    let block = usize::try_from(block_kib).expect("64-bit only") << 10;
    let file = input.reopen()?;
    let (file, result) = (Some(file.as_fd()), Some(result.as_fd()));
    let [reader_out, hasher_in, hasher_out, writer_in] =
        [&reader_out, &hasher_in, &hasher_out, &writer_in]
            .map(|end| end.as_ref().map(OwnedFd::as_fd));
    let descriptors = [
        [file, reader_out],
        [hasher_in, hasher_out],
        [writer_in, result],
    ];
    // Our copies go with this function, so that a dead stage ends its neighbours' streams.
    let stages = Role::ALL.into_iter().zip(descriptors).map(|(role, ends)| {
        let brief = StageBrief {
            role,
            carrier,
            block,
            domain: format!("portolan-demo-{}", std::process::id()),
        };
        let ends: Vec<_> = ends.into_iter().flatten().collect();
        let child = Child::start(role.name(), &Own::Stage(brief), &ends)?;
        Ok(Stage {
            child,
            ready: None,
            done: None,
        })
    });
    stages.collect()
}

/// One packet from every stage into its `place`, in any order; `tick` is called now and
/// then meanwhile.
fn gather<T: DeserializeOwned>(
    stages: &mut [Stage],
    place: impl Fn(&mut Stage) -> &mut Option<T>,
    tick: impl Fn(),
) -> Result<()> {
    loop {
        let mut waiting: Vec<&mut Stage> = stages
            .iter_mut()
            .filter_map(|stage| place(stage).is_none().then_some(stage))
            .collect();
        if waiting.is_empty() {
            return Ok(());
        }
        wait(&waiting)?;
        tick();
        if let Err(error) = collect(&mut waiting, &place) {
            return Err(first_failure(error, stages));
        }
    }
}

/// Until a stage says something or ends, or the bar is to move.
fn wait(stages: &[&mut Stage]) -> Result<()> {
    let mut fds: Vec<PollFd<'_>> = stages
        .iter()
        .map(|stage| PollFd::from_borrowed_fd(stage.child.control().as_fd(), PollFlags::IN))
        .collect();
    rustix::io::retry_on_intr(|| poll(&mut fds, Some(&TICK)))
        .map_err(CliError::system("waiting for the demo's processes"))?;
    Ok(())
}

/// Takes the packets that have arrived.
fn collect<T: DeserializeOwned>(
    stages: &mut [&mut Stage],
    place: impl Fn(&mut Stage) -> &mut Option<T>,
) -> Result<()> {
    for stage in stages {
        let ready = readable(stage.child.control().as_fd(), Some(Duration::ZERO));
        if ready.map_err(CliError::system("waiting for the demo's processes"))? {
            let packet = stage.child.expect()?;
            *place(stage) = Some(packet);
        }
    }
    Ok(())
}

/// Of several stages that ended, the one whose end explains the others'.
fn first_failure(error: CliError, stages: &mut [Stage]) -> CliError {
    std::thread::sleep(AFTERMATH);
    let mut failures = vec![error];
    for stage in stages.iter_mut().filter(|stage| stage.done.is_none()) {
        let speaks = |child: &Child| {
            readable(child.control().as_fd(), Some(Duration::ZERO)).unwrap_or(false)
        };
        // What it has said before it ended, if it has, does not matter any more.
        while speaks(&stage.child) {
            if let Err(error) = stage.child.expect::<serde::de::IgnoredAny>() {
                failures.push(error.into());
                break;
            }
        }
    }
    // One that did not end by itself explains more than any that did.
    failures.sort_by_key(|error| match error {
        CliError::Measure(MeasureError::PeerDied { end, .. }) => *end,
        _ => End::Failed,
    });
    failures.swap_remove(0)
}
