//! Starts the actors, waits until all of them stand, and audits after the death.

use super::{Failure, PATIENCE, Part, Scene};
use crate::audit::{self, Image};
use crate::checks::ourselves;
use crate::torture::board::Journal;
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long a finding must last, with a rule off: it is wanted then. With all rules on it
/// must last for [`PATIENCE`], so that nobody who is merely slow is found.
const LASTING: Duration = Duration::from_millis(500);

/// An actor's process; killed when dropped.
struct Cast {
    part: Part,
    child: Child,
    lines: Receiver<String>,
}

/// Plays a scene, with its rule on or off: what the auditor has found.
pub(crate) fn run(scene: &Scene, off: bool) -> Result<Vec<String>, Failure> {
    let domain = format!("stage-{}-{}", scene.name, std::process::id());
    let start = |part| Cast::start(scene, part, &domain, off && scene.keeper == part);
    let host = start(Part::Host)?;
    let mut journals = vec![host.journal()?];
    let image = Image::of_process(host.child.id(), &domain)?.ok_or("the host has no region")?;
    let survivor = start(Part::Survivor)?;
    let mut victim = start(Part::Victim)?;
    journals.push(survivor.journal()?);
    // Its journal dies with it.
    victim.journal()?;
    if scene.sleeps {
        let pid = survivor.child.id();
        wait("the survivor does not fall asleep", || sleeps(&image, pid))?;
    }
    let reclaims = image.reclaims()?;
    victim.die()?;
    wait("the victim is not reclaimed", || {
        Ok(image.reclaims()? > reclaims && audit::is_settled(&image)?)
    })?;
    let end = Instant::now() + if off { LASTING } else { PATIENCE };
    loop {
        let mut found = audit::audit(&image, &journals)?;
        // Here nobody is about to wake anybody.
        found.count_sleepers();
        if found.is_clean() || Instant::now() > end {
            return Ok(found.all().collect());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until something is so.
fn wait(complaint: &str, so: impl Fn() -> Result<bool, Failure>) -> Result<(), Failure> {
    let end = Instant::now() + PATIENCE;
    while !so()? {
        if Instant::now() > end {
            return Err(complaint.into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Whether a process sleeps for a message. Between arming its port and the futex a
/// receiver only computes, so once it is armed and does not run it is in the futex.
fn sleeps(image: &Image, pid: u32) -> Result<bool, Failure> {
    let is_armed = image.ports()?.iter().any(|p| p.asleep);
    Ok(is_armed && audit::process_state(pid) == Some('S'))
}

impl Cast {
    fn start(scene: &Scene, part: Part, domain: &str, off: bool) -> Result<Self, Failure> {
        let mut command = ourselves();
        command.args(["stage-actor", "--domain", domain, "--part", part.name()]);
        command.arg(scene.name);
        if off {
            command.arg("--off");
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (say, lines) = channel();
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                let lines = BufReader::new(output).lines().map_while(Result::ok);
                // Until nobody listens.
                lines.map(|l| say.send(l)).take_while(Result::is_ok).count()
            });
        }
        Ok(Self { part, child, lines })
    }

    /// Waits until it stands: its process, and what it has.
    fn journal(&self) -> Result<(u32, Journal), Failure> {
        let name = self.part.name();
        let line = self.lines.recv_timeout(PATIENCE);
        let line = line.map_err(|e| format!("the {name} is not ready: {e}"))?;
        let mut words = line.strip_prefix("ready").unwrap_or("").split_whitespace();
        let mut number = || words.next().and_then(|w| w.parse().ok());
        let all = [number(), number(), number(), number()];
        let [Some(ports), Some(pending), Some(sends), Some(readers)] = all else {
            return Err(format!("the {name} said {line:?}").into());
        };
        let journal = Journal {
            worker: self.part as usize,
            space: 1,
            extents: Vec::new(),
            sends,
            ports,
            pending,
            readers,
            writers: 0,
            listeners: 0,
        };
        Ok((self.child.id(), journal))
    }

    /// Gives the cue, and waits until it has died of it.
    fn die(&mut self) -> Result<(), Failure> {
        let mut cue = self.child.stdin.take().ok_or("a second cue")?;
        cue.write_all(b"die\n")?;
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return match status.signal() {
                    Some(signal) if signal == Signal::KILL.as_raw() => Ok(()),
                    _ => Err(format!("the victim has not died at its mark: {status}").into()),
                };
            }
            if Instant::now() > end {
                return Err("the victim does not come to its mark".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        // Cannot fail, but for a victim that was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
