//! The command at work beside a test: its domain, its processes, its files.

pub(crate) use portolan_testkit::{PATIENCE, unique, until};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// `portolan port`, which tells nothing of its waits: these take as long as the machine is busy.
pub(crate) fn command(domain: &str, args: &[&str]) -> Command {
    let (what, args) = args.split_first().expect("a subcommand");
    talkative(domain, what, &[&["--quiet"], args].concat())
}

/// `portolan port`, which tells what it waits for.
pub(crate) fn talkative(domain: &str, what: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    command
        .args(["port", what])
        .args(args)
        .env("PORTOLAN_DOMAIN", domain)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(domain: &str, args: &[&str]) -> Output {
    command(domain, args).output().unwrap()
}

#[track_caller]
pub(crate) fn succeeds(domain: &str, args: &[&str]) -> Vec<u8> {
    finished(run(domain, args), Some(0)).stdout
}

#[track_caller]
pub(crate) fn fails(domain: &str, code: i32, args: &[&str]) -> String {
    let output = finished(run(domain, args), Some(code));
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

#[track_caller]
pub(crate) fn finished(output: Output, code: Option<i32>) -> Output {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), code, "{complaint}");
    output
}

/// A command that runs beside. Killed when dropped.
pub(crate) struct Running(pub(crate) Option<Child>);

impl Running {
    pub(crate) fn start(domain: &str, args: &[&str]) -> Self {
        Self(Some(command(domain, args).spawn().unwrap()))
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    pub(crate) fn finished(mut self, code: i32) -> Output {
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        finished(output, Some(code))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A file of this test, removed when dropped.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("portolan-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    pub(crate) fn holding(name: &str, bytes: &[u8]) -> Self {
        let scratch = Self::new(name);
        std::fs::write(&scratch.0, bytes).unwrap();
        scratch
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
