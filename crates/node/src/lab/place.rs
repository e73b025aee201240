//! A node's place in the lab: its state, its address, its daemon, and the command beside it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::output::{print, tell};
use crate::state::State;
use crate::{NodeError, Result};

use super::Plan;

/// How long a daemon has for its farewell, and a command to end when it is told to.
const FAREWELL: Duration = Duration::from_secs(3);

/// A node's place.
pub(super) struct Place {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    pub(super) state: State,
    /// The domain's name at this node.
    local: String,
    number: u8,
    namespace: Option<String>,
    daemon: Option<Child>,
    command: Option<Child>,
    ended: Option<ExitStatus>,
    /// They print what the command says.
    printers: Vec<JoinHandle<()>>,
}

impl Place {
    pub(super) fn new(
        number: u8,
        address: SocketAddr,
        local: String,
        namespace: Option<String>,
        state: &Path,
    ) -> Result<Self> {
        Ok(Self {
            name: format!("lab{number}"),
            address,
            state: State::at(state)?,
            local,
            number,
            namespace,
            daemon: None,
            command: None,
            ended: None,
            printers: Vec::new(),
        })
    }

    /// A command that runs at this node.
    fn here(&self, program: &std::ffi::OsStr) -> Command {
        match &self.namespace {
            None => Command::new(program),
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace]).arg(program);
                command
            }
        }
    }

    /// This program, at this node.
    fn own(&self, words: &[&str]) -> Result<Command> {
        let own = std::env::current_exe();
        let own = own.map_err(NodeError::system("cannot find this program"))?;
        let mut command = self.here(own.as_os_str());
        command.arg("--state").arg(self.state.path()).args(words);
        Ok(command)
    }

    /// Runs this program to its end; what it has printed.
    fn runs(&self, words: &[&str]) -> Result<String> {
        let output = self.own(words)?.output();
        let output = output.map_err(NodeError::system("cannot run portolan-node"))?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() {
            return Ok(said(&output.stdout));
        }
        Err(NodeError::Wrong {
            what: format!(
                "{} cannot {}: {}",
                self.name,
                words[0],
                said(&output.stderr)
            ),
        })
    }

    pub(super) fn init(&self) -> Result<()> {
        let listen = self.address.to_string();
        self.runs(&["init", "--name", &self.name, "--listen", &listen])?;
        Ok(())
    }

    pub(super) fn invite(&self) -> Result<String> {
        self.runs(&["invite", "--address", &self.address.to_string()])
    }

    pub(super) fn join(&self, token: &str) -> Result<()> {
        let listen = self.address.to_string();
        self.runs(&["join", token, "--name", &self.name, "--listen", &listen])?;
        Ok(())
    }

    /// Writes the node.toml of a node that is linked with these peers, and spans the domain.
    pub(super) fn configure(&self, peers: &[SocketAddr], plan: &Plan) -> Result<()> {
        let peers: Vec<_> = peers.iter().map(|peer| format!("\"{peer}\"")).collect();
        let (name, listen) = (&self.name, self.address);
        let times = [
            ("silent_after", &plan.silent_after),
            ("dead_after", &plan.dead_after),
        ];
        let times = times.into_iter().filter_map(|(key, time)| {
            let time = time.as_ref()?;
            Some(format!("{key} = {time:?}\n"))
        });
        let text = format!(
            "name = {name:?}\nlisten = \"{listen}\"\npeers = [{}]\n{}[[span]]\ndomain = {:?}\nlocal = {:?}\n",
            peers.join(", "),
            times.collect::<String>(),
            plan.domain,
            self.local,
        );
        self.state.write("node.toml", &text)
    }

    pub(super) fn up(&mut self) -> Result<()> {
        let failed = || NodeError::system("cannot start a node");
        let log = File::create(self.state.file("log")).map_err(failed())?;
        let mut command = self.own(&["up"])?;
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        self.daemon = Some(command.stderr(log).spawn().map_err(failed())?);
        Ok(())
    }

    /// Fails with what the daemon has said, if it has ended.
    pub(super) fn check_up(&mut self) -> Result<()> {
        let Some(daemon) = &mut self.daemon else {
            return Ok(());
        };
        match daemon.try_wait() {
            Ok(Some(status)) => {
                let said = self.state.read("log")?.unwrap_or_default();
                Err(NodeError::Wrong {
                    what: format!(
                        "the node of {} ended ({status}): {}",
                        self.name,
                        said.trim()
                    ),
                })
            }
            _ => Ok(()),
        }
    }

    /// Says once that the daemon has ended: the command may have done that.
    pub(super) fn say_if_down(&mut self) {
        let ended = self.daemon.as_mut().map(Child::try_wait);
        if let Some(Ok(Some(status))) = ended {
            tell(&format!("[{}] its node has ended: {status}", self.name));
            self.daemon = None;
        }
    }

    /// Starts the command, and prints what it says with the node's name before each line.
    pub(super) fn begin(&mut self, plan: &Plan) -> Result<()> {
        let Some((program, words)) = plan.command.split_first() else {
            return Ok(());
        };
        let pid = self.daemon.as_ref().map_or(0, Child::id);
        let mut command = self.here(program);
        command
            .args(words)
            .env("PORTOLAN_NODE_STATE", self.state.path())
            .env("PORTOLAN_LAB_NODE", self.number.to_string())
            .env("PORTOLAN_LAB_NODES", plan.nodes.to_string())
            .env("PORTOLAN_LAB_DOMAIN", &self.local)
            .env("PORTOLAN_LAB_ADDRESS", self.address.ip().to_string())
            .env("PORTOLAN_LAB_PID", pid.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| NodeError::Wrong {
            what: format!("cannot start the command {program:?}: {error}"),
        })?;
        if let Some(out) = child.stdout.take() {
            self.print(out, print);
        }
        if let Some(out) = child.stderr.take() {
            self.print(out, tell);
        }
        self.command = Some(child);
        Ok(())
    }

    fn print(&mut self, from: impl Read + Send + 'static, print: fn(&str)) {
        let name = self.name.clone();
        self.printers.push(std::thread::spawn(move || {
            let mut from = BufReader::new(from);
            let mut line = Vec::new();
            while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                let text = String::from_utf8_lossy(&line);
                print(&format!("[{name}] {}", text.trim_end_matches('\n')));
                line.clear();
            }
        }));
    }

    /// How the command has ended, if it has.
    pub(super) fn command_ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none()
            && let Some(command) = &mut self.command
        {
            let ended = command.try_wait();
            self.ended = ended.map_err(NodeError::system("cannot wait for the command"))?;
        }
        Ok(self.ended)
    }

    /// Ends the command and the daemon.
    pub(super) fn end(&mut self) {
        let children = [self.command.take(), self.daemon.take()];
        for mut child in children.into_iter().flatten() {
            end(&mut child);
        }
        // Processes that the command has left behind may hold the pipes: nobody waits for those.
        for printer in self.printers.drain(..) {
            let end = Instant::now() + Duration::from_millis(200);
            while !printer.is_finished() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// Asks a process to end, and kills it if it does not.
fn end(child: &mut Child) {
    let pid = i32::try_from(child.id()).ok();
    if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw)
        && matches!(child.try_wait(), Ok(None))
    {
        // It is our child and was not waited for, so the number is its own.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let until = Instant::now() + FAREWELL;
    while Instant::now() < until {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
}
