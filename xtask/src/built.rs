//! Finds test binaries that cargo has built, and runs each in a process group of its own, which is
//! ended, with all its processes, if it takes too long.

use portolan_sys::process::dies_with_us;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A test binary.
pub(crate) struct Binary {
    /// Its package and target.
    pub(crate) name: String,
    program: PathBuf,
    /// Where cargo runs it.
    folder: PathBuf,
}

impl Binary {
    /// A command that runs it as cargo does.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

/// Runs a `cargo test --no-run --message-format json`: the binaries, or what the compiler said.
pub(crate) fn binaries(build: &mut Command) -> io::Result<Result<Vec<Binary>, String>> {
    let output = build.stderr(Stdio::piped()).output()?;
    let lines = String::from_utf8_lossy(&output.stdout);
    let messages = || {
        let messages = lines.lines();
        messages.filter_map(|line| serde_json::from_str::<Value>(line).ok())
    };
    if !output.status.success() {
        let rendered =
            messages().filter_map(|m| Some(m["message"]["rendered"].as_str()?.to_owned()));
        let said: String = rendered.collect();
        return Ok(Err(said + &String::from_utf8_lossy(&output.stderr)));
    }
    Ok(Ok(messages().filter_map(|m| binary(&m)).collect()))
}

fn binary(message: &Value) -> Option<Binary> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let package = folder.file_name()?.to_string_lossy();
    let target = message["target"]["name"].as_str()?;
    Some(Binary {
        name: format!("{package}/{target}"),
        program: message["executable"].as_str()?.into(),
        folder: folder.to_owned(),
    })
}

/// What a process came to.
pub(crate) struct Ran {
    /// `None`: it took too long, and was ended.
    pub(crate) status: Option<ExitStatus>,
    /// All that it said.
    pub(crate) output: String,
}

/// Runs a command for at most `limit`, and no longer than this program runs. What it says goes to a
/// file, and not to a pipe, which processes that outlive it would hold open.
pub(crate) fn run(command: &mut Command, limit: Duration) -> io::Result<Ran> {
    let said = unnamed_file()?;
    let mut child = dies_with_us(command)
        .stdin(Stdio::null())
        .stdout(said.try_clone()?)
        .stderr(said.try_clone()?)
        .process_group(0)
        .spawn()?;
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if began.elapsed() > limit {
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                // The child is not reaped yet, so the number is still its group's.
                kill_process_group(group, Signal::KILL)?;
            }
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let output = text(said)?;
    Ok(Ran { status, output })
}

/// Runs a command to its end: how it ended, and all that it said. What it says is handed on as it
/// comes, too.
pub(crate) fn captured(
    command: &mut Command,
    mut hand_on: impl FnMut(&[u8]),
) -> io::Result<(ExitStatus, String)> {
    let said = unnamed_file()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(said.try_clone()?)
        .stderr(said.try_clone()?)
        .spawn()?;
    let mut output = Vec::new();
    loop {
        // Looked at first, so that all that it said until its end is read.
        let ended = child.try_wait()?;
        let known = output.len();
        read_on(&said, &mut output)?;
        hand_on(&output[known..]);
        if let Some(status) = ended {
            return Ok((status, String::from_utf8_lossy(&output).into_owned()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Reads what follows `known` in a file whose own position its writers share.
fn read_on(file: &File, known: &mut Vec<u8>) -> io::Result<()> {
    let mut part = [0; 65_536];
    loop {
        match file.read_at(&mut part, known.len() as u64)? {
            0 => return Ok(()),
            read => known.extend_from_slice(&part[..read]),
        }
    }
}

fn text(mut said: File) -> io::Result<String> {
    said.rewind()?;
    let mut output = Vec::new();
    said.read_to_end(&mut output)?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

fn unnamed_file() -> io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};
    Ok(memfd_create("output", MemfdFlags::CLOEXEC)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_ended_with_what_it_started() {
        let mut endless = Command::new("sh");
        endless.args(["-c", "echo begun; sleep 1000 & echo $!; wait"]);
        let ran = run(&mut endless, Duration::from_millis(500)).unwrap();
        assert!(ran.status.is_none());
        let mut lines = ran.output.lines();
        assert_eq!(lines.next(), Some("begun"));
        let sleeper: u32 = lines.next().unwrap().parse().unwrap();
        // It is a zombie until somebody reaps it, or gone.
        let is_gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{sleeper}/stat"));
            stat.is_err() || stat.is_ok_and(|s| s.contains(") Z "))
        };
        while !is_gone() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn what_ends_is_reported_with_what_it_said() {
        let mut failing = Command::new("sh");
        failing.args(["-c", "echo out; echo err >&2; exit 3"]);
        let ran = run(&mut failing, Duration::from_secs(60)).unwrap();
        assert_eq!(ran.status.and_then(|s| s.code()), Some(3));
        assert_eq!(ran.output, "out\nerr\n");
    }

    #[test]
    fn what_is_captured_is_handed_on_before_the_end() {
        let mut waiting = Command::new("sh");
        // It ends once it has been heard: `hand_on` makes the file that it waits for.
        let mark = std::env::temp_dir().join(format!("captured-{}", std::process::id()));
        let _ = std::fs::remove_file(&mark);
        let line = format!(
            "echo out; until [ -e {0} ]; do sleep 0.01; done; echo err >&2; exit 3",
            mark.display()
        );
        waiting.args(["-c", &line]);
        let mut heard = Vec::new();
        let (status, output) = captured(&mut waiting, |part| {
            heard.extend_from_slice(part);
            if heard == b"out\n" {
                std::fs::write(&mark, b"").unwrap();
            }
        })
        .unwrap();
        std::fs::remove_file(&mark).unwrap();
        assert_eq!(status.code(), Some(3));
        assert_eq!(output, "out\nerr\n");
        assert_eq!(heard, output.as_bytes());
    }
}
